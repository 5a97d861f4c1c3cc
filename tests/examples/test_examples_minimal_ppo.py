"""The example is the library: rewards, advantages, loss and gradient are the same on the same batch."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given

from reinlm.algorithms import algorithm
from reinlm.models import character_tokenizer, tiny_model
from reinlm.objectives import Feedback, Layout
from strategies import padded_batches

FILE = Path(__file__).parents[2] / "examples" / "minimal_ppo.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("minimal_ppo", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_has_at_most_200_lines() -> None:
    assert len(FILE.read_text(encoding="utf-8").splitlines()) <= 200


@given(batch=padded_batches(min_tokens=1))
def test_loss_and_gradients_of_policy_and_critic_are_those_of_the_library(example: Any, batch: Any) -> None:
    t = batch.tensors()
    generator = torch.Generator().manual_seed(len(batch.mask))
    old_values = torch.randn(t["mask"].shape, generator=generator, dtype=torch.float64)
    old = {"old_logprobs": t["old"], "values": old_values, "advantages": t["advantages"], "returns": t["rollout"]}
    found = []
    for call in (
        lambda x, v: example.ppo_loss(x, v, old, t["mask"]),
        lambda x, v: (
            algorithm("ppo")
            .objective(x, t["old"], t["advantages"], t["mask"], values=v, old_values=old_values, returns=t["rollout"])
            .loss
        ),
    ):
        logprobs = t["logprobs"].clone().requires_grad_()
        values = (old_values + 0.3 * t["ref"]).detach().requires_grad_()
        loss = call(logprobs, values)
        loss.backward()
        found.append((loss.item(), logprobs.grad, values.grad))
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-12)
    for mine, theirs in zip(found[0][1:], found[1][1:], strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-12)


def test_rewards_advantages_and_returns_are_those_of_the_library(example: Any) -> None:
    lengths = [3, 1, 4, 2]
    mask = torch.arange(6)[None, :].sub(1) < torch.tensor(lengths)[:, None]
    mask[:, 0] = False  # a prompt
    generator = torch.Generator().manual_seed(0)
    old, ref, values = (torch.randn(mask.shape, generator=generator, dtype=torch.float64) for _ in range(3))
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    paid = example.token_rewards(rewards, old, ref, mask)
    advantages, returns = example.gae(paid, values, mask)
    chosen, layout = algorithm("ppo"), Layout.from_lengths(lengths)
    feedback = Feedback(layout, rewards, values=values[mask])
    feedback = chosen.adjust_rewards(feedback, chosen.initial_state(), old[mask], ref[mask])
    torch.testing.assert_close(advantages[mask], chosen.advantage(feedback))
    assert (example.GAMMA, example.LAMBDA) == (1.0, 0.95)
    torch.testing.assert_close(returns[mask], chosen.advantage.advantage.targets(feedback))  # type: ignore[attr-defined]
    assert float(advantages[mask].std()) > 0.5


def test_what_stands_at_masked_places_does_not_reach_it(example: Any) -> None:
    mask = torch.tensor([[True, False]])
    logprobs = torch.tensor([[-1.0, torch.nan]], requires_grad=True)
    other = torch.tensor([[-1.0, torch.inf]])
    old = dict.fromkeys(("old_logprobs", "values", "advantages", "returns"), other)
    loss = example.ppo_loss(logprobs, other, old, mask)
    loss.backward()
    assert loss.item() == 1.0
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [[1.0, 0.0]]


def test_a_step_moves_policy_and_critic(example: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example, "BATCH", 16)
    tokenizer = character_tokenizer(example.ALPHABET)
    shape: Any = {"hidden_size": 16, "layers": 1, "heads": 2, "context": 32}
    model: Any
    model, reference = (tiny_model("qwen3", vocab_size=len(tokenizer), seed=seed, **shape) for seed in (3, 4))
    critic = example.Critic(model)
    ids = example.encode(tokenizer, example.problems(4, seed=0))
    before = example.token_logprobs(model, ids).detach()
    optimizer = torch.optim.AdamW([*model.parameters(), *critic.parameters()], lr=1e-2)
    batch, generator = example.problems(16, seed=0), torch.Generator().manual_seed(0)
    values = critic(ids).detach()
    assert example.ppo_step(model, critic, reference, tokenizer, optimizer, batch, generator) == 0.0
    assert (
        float((example.token_logprobs(model, ids) - before).abs().max()) > 1e-3
    )  # the KL moves it: no answer is right
    assert float((critic(ids) - values).abs().max()) > 1e-3


@pytest.mark.slow
def test_it_learns_to_add(example: Any) -> None:
    before, after = example.main(seed=1, steps=20)
    assert before < 0.6
    assert after > before + 0.5 * (1.0 - before)
