"""Micro-batches, padding, packing and order change how an update is computed, not what it is."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from training_helpers import gradient, rl_task, tiny_policy

from reinlm.algorithms import algorithm
from reinlm.objectives import Counts
from reinlm.objectives.signals import Signals
from reinlm.records import Prompt, RewardEvent, Rollout, RolloutGroup, ScoredGroup, Segment, TrainBatch, train_batch
from reinlm.runs import MetricSums

# How far each answer has moved, as log-ratios that stay clear of every clip bound: those of PPO lie at ±0.2 and 0.25, those
# of GSPO at -3e-4 and 4e-4, those of GMPO at ±0.4.
TOKENS, SEQUENCES = (0.02, 0.12, 0.5, 0.8), (5e-5, 2e-4, 1e-3, 1e-2)
NAMES = ("grpo", "dapo", "gspo", "ppo", "sapo", "cispo", "scaling_grpo")
MOVES = {name: SEQUENCES if name.startswith("gspo") else TOKENS for name in NAMES}


@dataclass(frozen=True)
class Split:
    """One way to compute an update."""

    tokens: int
    packing: str
    reverse: bool


@st.composite
def ragged(draw: st.DrawFn) -> tuple[list[list[tuple[int, int]]], int]:
    """Groups of (prompt tokens, answer tokens), and a seed for what the tokens are."""
    answer = st.tuples(st.just(0), st.integers(1, 9))
    groups = draw(st.lists(st.lists(answer, min_size=1, max_size=4), min_size=1, max_size=3))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    return [[(int(length), answer) for _, answer in group] for group in groups for length in [rng.integers(1, 7)]], seed


def batch_of(groups: list[list[tuple[int, int]]], rng: np.random.Generator) -> TrainBatch:
    scored = []
    for number, group in enumerate(groups):
        ids = [tuple(int(t) for t in rng.integers(2, 14, prompt + answer)) for prompt, answer in group]
        prompt = Prompt(id=f"data[{number}]", content="", token_ids=ids[0][: group[0][0]])
        rollouts, events = [], []
        for tokens, (start, answer) in zip(ids, group, strict=True):
            chosen = (False,) * start + (True,) * answer
            segment = Segment(tokens, chosen, (-1.0,) * answer, (0,) * answer, "stop")
            rollouts.append(Rollout(prompt, (segment,), ""))
            events.append((RewardEvent("r", float(rng.standard_normal())),))
        scored.append(ScoredGroup(RolloutGroup(prompt, tuple(rollouts)), tuple(events)))
    return train_batch(scored)


def signals_of(name: str, batch: TrainBatch, logprobs: torch.Tensor, rng: np.random.Generator) -> Signals:
    """Random advantages, and old log-probabilities at a distance from the model's own, clear of the clip bounds."""
    near, far, away, most = MOVES[name]
    count = len(batch.sequences) if name.startswith("gspo") else batch.layout.tokens
    inside = rng.random(count) < 0.6
    size = np.where(inside, rng.uniform(near, far, count), rng.uniform(away, most, count))
    moved = torch.tensor(size * rng.choice([-1.0, 1.0], count))
    if name.startswith("gspo"):
        moved = batch.layout.expand(moved, "sequence")
    advantages = torch.tensor(rng.standard_normal(batch.layout.tokens))
    return algorithm(name).prepare(
        batch.layout,
        advantages,
        old_logprobs=(logprobs.double() - moved).to(logprobs.dtype),
        rollout_logprobs=batch.rollout_logprobs,
        ref_logprobs=logprobs + torch.tensor(rng.normal(0, 0.3, len(logprobs))).to(logprobs.dtype),
        returns=advantages if name == "ppo" else None,
        old_values=0 * advantages if name == "ppo" else None,
        counts=Counts.of(batch.layout),
    )


def update(name: str, policy: object, batch: TrainBatch, signals: Signals, split: Split) -> tuple[float, torch.Tensor]:
    """The loss and the gradient of one optimizer step, computed in this way by the RL task."""
    training = {"micro_batch_tokens": split.tokens, "packing": split.packing}
    task = rl_task(policy, algorithm(name), training=training)
    sequences = torch.arange(len(batch.sequences))
    if split.reverse:
        sequences = sequences.flip(0)
        signals = signals.select(sequences)
    loss, _ = task.updater._backward(batch, sequences, signals, MetricSums(), warming=False)
    return loss, gradient(policy.model)


SPLITS = [Split(1, "pad", False), Split(24, "pad", True), Split(24, "pack", False), Split(10**6, "pack", True)]


@pytest.mark.parametrize("name", MOVES)
@settings(max_examples=5)
@given(drawn=ragged())
def test_the_gradient_does_not_depend_on_how_the_update_is_split(name: str, drawn: tuple) -> None:
    groups, seed = drawn
    rng = np.random.default_rng(seed)
    policy = tiny_policy(seed=seed % 7)
    batch = batch_of(groups, rng)
    logprobs = rl_task(policy, algorithm(name)).updater._measure(policy.model, batch)[0]
    signals = signals_of(name, batch, logprobs, rng)
    loss, expected = update(name, policy, batch, signals, Split(10**6, "pad", False))
    scale = float((signals.weights.double() * signals.advantages).abs().sum())
    for split in SPLITS:
        found_loss, found = update(name, policy, batch, signals, split)
        assert float((found - expected).norm()) <= 1e-5 * float(expected.norm())
        assert abs(found_loss - loss) <= 1e-5 * scale


@pytest.mark.parametrize("name", MOVES)
@settings(max_examples=3)
@given(drawn=ragged())
def test_in_float64_the_objective_moves_by_rounding_alone(name: str, drawn: tuple) -> None:
    groups, seed = drawn
    rng = np.random.default_rng(seed)
    policy = tiny_policy(seed=seed % 7, family="gpt2", dtype=torch.float64)  # its norms stay in float64
    batch = batch_of(groups, rng)
    logprobs = rl_task(policy, algorithm(name)).updater._measure(policy.model, batch)[0]
    signals = signals_of(name, batch, logprobs, rng)
    assert logprobs.dtype == torch.float64
    loss, _ = update(name, policy, batch, signals, Split(10**6, "pad", False))
    scale = float((signals.weights * signals.advantages).abs().sum())
    for split in (Split(1, "pad", False), Split(24, "pad", True)):
        found, _ = update(name, policy, batch, signals, split)
        assert abs(found - loss) <= 1e-12 * scale


def test_a_mean_over_micro_batch_means_would_be_noticed() -> None:
    """Answers of 1 and 7 tokens under a token mean: the weights know the whole step, not the micro-batch."""
    rng = np.random.default_rng(0)
    policy = tiny_policy()
    batch = batch_of([[(3, 1), (3, 7)]], rng)
    logprobs = rl_task(policy, algorithm("dapo")).updater._measure(policy.model, batch)[0]
    signals = signals_of("dapo", batch, logprobs, rng)
    _, expected = update("dapo", policy, batch, signals, Split(10**6, "pad", False))
    halves = []
    for sequence in range(2):
        layout, tokens = batch.layout.select(torch.tensor([sequence]))
        own = algorithm("dapo").weights(layout, Counts.of(layout)) / 2
        part = replace(signals.select(torch.tensor([sequence])), weights=own)
        task = rl_task(policy, algorithm("dapo"))
        task.updater._backward(batch, torch.tensor([sequence]), part, MetricSums(), warming=False)
        halves.append(gradient(policy.model))
        assert len(tokens) in (1, 7)
    assert float((sum(halves) - expected).norm()) > 0.1 * float(expected.norm())
