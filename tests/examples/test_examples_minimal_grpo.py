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
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    assert logprobs.grad.tolist() == [[-1.0, 0.0]]


def test_its_advantages_are_those_of_the_library(example):
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.5, 0.25, 1.0], dtype=torch.float64)
    feedback = Feedback(Layout.from_lengths([1] * 12, 4), rewards)
    expected = GroupStandardize()(feedback)
    assert example.group_advantages(rewards, 4).tolist() == pytest.approx(expected.tolist(), abs=1e-12)


def test_its_gradient_reaches_the_weights_as_the_librarys_does(example):
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    tokenizer = character_tokenizer(example.ALPHABET)
    model = tiny_model("gpt2", vocab_size=len(tokenizer), hidden_size=16, layers=1, heads=2, context=32, seed=3)
    model = model.double()
    problems = example.problems(2, seed=0)
    prompts = example.encode(tokenizer, [problem for problem in problems for _ in range(3)])
    ids, mask, rollout_logprobs = example.sample(model, prompts, tokenizer.eos_token_id, generator)
    assert mask.sum(1).max() <= example.MAX_NEW_TOKENS
    old = example.token_logprobs(model, ids).detach() + 0.1 * torch.randn(mask.shape, generator=generator)
    ref = old + 0.2 * torch.randn(mask.shape, generator=generator)
    advantages = torch.tensor([1.0, -1.0, 0.5, 2.0, -1.5, -0.5], dtype=torch.float64)
    example.grpo_loss(example.token_logprobs(model, ids), old, ref, advantages, mask).backward()
    mine = torch.cat([p.grad.flatten().double() for p in model.parameters()])
    model.zero_grad()
    lengths = mask.sum(1).tolist()
    layout = Layout.from_lengths(lengths, 3)
    positions = [[t + 1 for t in range(mask.shape[1]) if row[t]] for row in mask]
    chosen = algorithm("grpo")
    signals = chosen.prepare(
        layout, layout.expand(advantages, "sequence"), old_logprobs=old[mask].double(), ref_logprobs=ref[mask].double()
    )
    logprobs = score(model, ids.tolist(), positions).logprobs
    assert rollout_logprobs[mask].tolist() == pytest.approx(logprobs.tolist(), abs=1e-5)
    chosen.loss(logprobs, signals, chosen.initial_state()).value.backward()
    theirs = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert float((mine - theirs).norm()) <= 1e-6 * float(theirs.norm())  # the example's softmax is float32


@pytest.mark.slow
def test_it_learns_to_add(example):
    before, after = example.main(seed=1, steps=60)
    assert before < 0.6
    assert after > before + 0.5 * (1.0 - before)
