"""The example is the library: advantages, loss and gradient are the same on the same batch."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given

from reinlm.algorithms import algorithm
from reinlm.models import character_tokenizer, score, tiny_model
from reinlm.objectives import Feedback, GroupStandardize, Layout
from strategies import padded_batches

FILE = Path(__file__).parents[2] / "examples" / "minimal_grpo.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("minimal_grpo", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def small(example, seed):
    """The task's tokenizer and an untrained model, which stops at random."""
    tokenizer = character_tokenizer(example.ALPHABET)
    return tokenizer, tiny_model(
        "gpt2", vocab_size=len(tokenizer), hidden_size=16, layers=1, heads=2, context=32, seed=seed
    )


@given(batch=padded_batches())
def test_its_loss_and_gradient_are_those_of_the_library(example, batch):
    t = batch.tensors()
    advantages = t["advantages"][:, 0] if t["advantages"].shape[1] else t["advantages"].new_zeros(len(t["mask"]))
    found = []
    for call in (
        lambda x: example.grpo_loss(x, t["old"], t["ref"], advantages, t["mask"]),
        lambda x: algorithm("grpo").objective(x, t["old"], advantages, t["mask"], ref_logprobs=t["ref"]).loss,
    ):
        logprobs = t["logprobs"].clone().requires_grad_()
        loss = call(logprobs)
        loss.backward()
        found.append((loss.item(), logprobs.grad))
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-12)
    np.testing.assert_allclose(found[0][1], found[1][1], atol=1e-12)


def test_what_stands_at_masked_places_does_not_reach_it(example):
    mask = torch.tensor([[True, False]])
    logprobs = torch.tensor([[-1.0, math.nan]], dtype=torch.float64, requires_grad=True)
    other = torch.tensor([[-1.0, math.inf]], dtype=torch.float64)
    loss = example.grpo_loss(logprobs, other, other, torch.ones(1), mask)
    loss.backward()
    assert loss.item() == -1.0
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [[-1.0, 0.0]]


def test_its_advantages_are_those_of_the_library(example):
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.5, 0.25, 1.0], dtype=torch.float64)
    feedback = Feedback(Layout.from_lengths([1] * 12, 4), rewards)
    expected = GroupStandardize()(feedback)
    assert example.group_advantages(rewards, 4).tolist() == pytest.approx(expected.tolist(), abs=1e-12)


def test_its_gradient_reaches_the_weights_as_the_librarys_does(example):
    tokenizer, model = small(example, seed=3)
    model = model.double()
    generator = torch.Generator().manual_seed(3)
    prompts = example.encode(tokenizer, [problem for problem in example.problems(2, seed=0) for _ in range(3)])
    ids, mask, rollout_logprobs = example.sample(model, prompts, tokenizer.eos_token_id, generator)
    assert len(set(mask.sum(1).tolist())) > 1  # some answers stop early, so that there is padding to leave out
    noise = torch.randn(2, *mask.shape, generator=generator, dtype=torch.float64)
    old = example.token_logprobs(model, ids).detach() + 0.1 * noise[0]
    ref = old + 0.2 * noise[1]
    advantages = torch.tensor([1.0, -1.0, 0.5, 2.0, -1.5, -0.5], dtype=torch.float64)
    loss = example.grpo_loss(example.token_logprobs(model, ids), old, ref, advantages, mask)
    loss.backward()
    mine = torch.cat([p.grad.flatten() for p in model.parameters()])
    model.zero_grad()
    lengths = mask.sum(1).tolist()
    layout = Layout.from_lengths(lengths, 3)
    positions = [[t + 1 for t in range(mask.shape[1]) if row[t]] for row in mask]
    chosen = algorithm("grpo")
    signals = chosen.prepare(
        layout, layout.expand(advantages, "sequence"), old_logprobs=old[mask], ref_logprobs=ref[mask]
    )
    logprobs = score(model, ids.tolist(), positions).scored
    assert rollout_logprobs[mask].tolist() == pytest.approx(logprobs.tolist(), abs=1e-5)
    expected = chosen.loss(logprobs, signals, chosen.initial_state()).value
    expected.backward()
    theirs = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert loss.item() == pytest.approx(expected.item(), abs=1e-9)
    assert float(theirs.norm()) > 0.01
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-9)


def test_an_answer_ends_with_its_first_stop_token(example):
    tokenizer, model = small(example, seed=3)
    prompts = example.encode(tokenizer, example.problems(64, seed=0))
    ids, mask, _ = example.sample(model, prompts, tokenizer.eos_token_id, torch.Generator().manual_seed(0))
    start = prompts.shape[1]
    assert not mask[:, : start - 1].any()  # a prompt is not chosen
    lengths = []
    for row, kept in zip(ids[:, start:].tolist(), mask[:, start - 1 :].tolist(), strict=True):
        stop = row.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in row else len(row)
        assert kept == [t < stop for t in range(len(row))]
        lengths.append(stop)
    assert min(lengths) < example.MAX_NEW_TOKENS - 2  # tokens sampled behind a stop would show
    texts = example.answers(tokenizer, ids, mask)
    assert all(tokenizer.eos_token not in text and len(text) <= n for text, n in zip(texts, lengths, strict=True))


def test_a_step_makes_updates_that_move_the_ratio_away_from_one(example, monkeypatch):
    tokenizer, model = small(example, seed=3)
    _, reference = small(example, seed=4)  # no answer is right here: what moves the policy is the KL
    ratios = []
    loss = example.grpo_loss

    def spy(logprobs, old_logprobs, ref_logprobs, advantages, mask):
        ratios.append((logprobs - old_logprobs).detach().exp()[mask])
        return loss(logprobs, old_logprobs, ref_logprobs, advantages, mask)

    monkeypatch.setattr(example, "grpo_loss", spy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batch, generator = example.problems(4, seed=0), torch.Generator().manual_seed(0)
    assert example.grpo_step(model, reference, tokenizer, optimizer, batch, generator) == 0.0
    assert len(ratios) == example.MINIBATCHES
    torch.testing.assert_close(ratios[0], torch.ones_like(ratios[0]))
    assert all(float((ratio - 1).abs().max()) > 1e-3 for ratio in ratios[1:])


@pytest.mark.slow
def test_it_learns_to_add(example):
    before, after = example.main(seed=1, steps=60)
    assert before < 0.6
    assert after > before + 0.5 * (1.0 - before)
