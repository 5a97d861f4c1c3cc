"""Micro-batches, padding, packing and order change how an update is computed, not what it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from training_helpers import Watched, rl_task, tiny_policy

from reinlm.algorithms import ALGORITHMS, algorithm
from reinlm.batches import TokenBatch, token_batch
from reinlm.models import Policy
from reinlm.objectives import Counts, Feedback
from reinlm.records import NO_TURN, RewardEvent, Rollout, RolloutGroup, ScoredGroup, Segment, Task
from reinlm.training.preparation import Prepared

pytestmark = pytest.mark.no_cover

# How far each answer has moved, as log-ratios that stay clear of every clip bound: those of PPO lie at ±0.2 and 0.25, those
# of GSPO at -3e-4 and 4e-4, those of GMPO at ±0.4.
TOKENS, SEQUENCES = (0.02, 0.12, 0.5, 0.8), (5e-5, 2e-4, 1e-3, 1e-2)
NAMES = tuple(name for name in ALGORITHMS if name != "distill")  # which learns from a teacher, not from an advantage
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


def batch_of(groups: list[list[tuple[int, int]]], rng: np.random.Generator) -> TokenBatch:
    scored = []
    for number, group in enumerate(groups):
        task = Task(id=f"data[{number}]", content="")
        rollouts, events = [], []
        prompt = rng.integers(2, 14, group[0][0])  # that of the whole group
        for start, answer in group:
            turns = np.array([NO_TURN] * start + [0] * answer)
            columns = {"rollout_logprobs": np.full(answer, -1.0), "version": np.zeros(answer)}
            segment = Segment(np.concatenate([prompt, rng.integers(2, 14, answer)]), turns, columns)
            rollouts.append(Rollout(task, (segment,), "", terminated=True, truncated=False, reason="stop"))
            events.append((RewardEvent("r", float(rng.standard_normal())),))
        scored.append(ScoredGroup(RolloutGroup(task, tuple(rollouts)), tuple(events)))
    return token_batch(scored)


def prepared_of(name: str, batch: TokenBatch, logprobs: torch.Tensor, rng: np.random.Generator) -> Prepared:
    """Random advantages, and old log-probabilities at a distance from the model's own, clear of the clip bounds."""
    near, far, away, most = MOVES[name]
    count = batch.sequences if name.startswith("gspo") else batch.tokens
    inside = rng.random(count) < 0.6
    size = np.where(inside, rng.uniform(near, far, count), rng.uniform(away, most, count))
    moved = torch.tensor(size * rng.choice([-1.0, 1.0], count))
    if name.startswith("gspo"):
        moved = batch.layout.expand(moved, "sequence")
    advantages = torch.tensor(rng.standard_normal(batch.tokens))
    episodes = batch.layout.size("episode")
    values = 0 * advantages if name.startswith("ppo") else None
    return Prepared(
        feedback=Feedback(batch.layout, torch.zeros(episodes, dtype=torch.float64), values=values),
        advantages=advantages,
        old=(logprobs.double() - moved).to(logprobs.dtype),
        ref=logprobs + torch.tensor(rng.normal(0, 0.3, len(logprobs))).to(logprobs.dtype),
        teacher=None,
        full=None,
        returns=advantages if name.startswith("ppo") else None,
        trained=torch.ones(episodes, dtype=torch.bool),
    )


def turned(batch: TokenBatch, prepared: Prepared) -> tuple[TokenBatch, Prepared]:
    """The same sequences in the opposite order."""
    return part_of(batch, prepared, torch.arange(batch.sequences).flip(0))


def part_of(batch: TokenBatch, prepared: Prepared, sequences: torch.Tensor) -> tuple[TokenBatch, Prepared]:
    """Some sequences, each of which is an episode."""
    layout, tokens = batch.layout.select(sequences)
    chosen: dict[str, Any] = {
        name: None if value is None else value[tokens]
        for name, value in vars(prepared).items()
        if name not in ("feedback", "trained")
    }
    values = prepared.feedback.values
    feedback = Feedback(layout, prepared.feedback.rewards[sequences], values=None if values is None else values[tokens])
    return batch.select(sequences), Prepared(**chosen, feedback=feedback, trained=prepared.trained[sequences])


def update(
    name: str, policy: Policy, batch: TokenBatch, prepared: Prepared, split: Split
) -> tuple[float, torch.Tensor]:
    """The loss and the gradient of one optimizer step, computed in this way; the weights stay as they are."""
    training = {"micro_batch_tokens": split.tokens, "packing": split.packing}
    watched = Watched(
        rl_task(policy, algorithm(name), training=training, optimizer={"max_grad_norm": None}), still=True
    )
    if split.reverse:
        batch, prepared = turned(batch, prepared)
    found = watched.task.updater.update(1, batch, prepared)
    (gradient,) = watched.gradients
    return found.metrics["loss"], gradient


def logprobs_of(name: str, policy: Policy, batch: TokenBatch) -> torch.Tensor:
    return rl_task(policy, algorithm(name)).updater.learner.forward(batch).scored


def scale_of(name: str, batch: TokenBatch, prepared: Prepared) -> float:
    """Σ |w A|, what the loss is made of."""
    weights = algorithm(name).aggregation(batch.layout, Counts.of(batch.layout))
    return float((weights.double() * prepared.advantages).abs().sum())


SPLITS = [
    Split(1, "pad", False),
    Split(24, "pad", True),
    Split(24, "pack", False),
    Split(10**6, "pack", True),
    Split(24, "share", True),
    Split(10**6, "share", False),
]


@pytest.mark.parametrize("name", MOVES)
@settings(max_examples=3)
@given(drawn=ragged())
def test_the_gradient_does_not_depend_on_how_the_update_is_split(name: str, drawn: tuple) -> None:
    groups, seed = drawn
    rng = np.random.default_rng(seed)
    policy = tiny_policy(seed=seed % 7)
    batch = batch_of(groups, rng)
    logprobs = logprobs_of(name, policy, batch)
    prepared = prepared_of(name, batch, logprobs, rng)
    loss, expected = update(name, policy, batch, prepared, Split(10**6, "pad", False))
    scale = scale_of(name, batch, prepared)
    for split in SPLITS:
        found_loss, found = update(name, policy, batch, prepared, split)
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
    logprobs = logprobs_of(name, policy, batch)
    prepared = prepared_of(name, batch, logprobs, rng)
    assert logprobs.dtype == torch.float64
    loss, expected = update(name, policy, batch, prepared, Split(10**6, "pad", False))
    scale = scale_of(name, batch, prepared)
    for split in (Split(1, "pad", False), Split(24, "pad", True), Split(24, "share", False)):
        found, gradient = update(name, policy, batch, prepared, split)
        assert abs(found - loss) <= 1e-12 * scale
        assert float((gradient - expected).norm()) <= 1e-9 * float(expected.norm())


def test_a_mean_over_micro_batch_means_would_be_noticed() -> None:
    """Answers of 1 and 7 tokens under a token mean: the weights know the whole step, not the micro-batch."""
    rng = np.random.default_rng(0)
    policy = tiny_policy()
    batch = batch_of([[(3, 1), (3, 7)]], rng)
    prepared = prepared_of("dapo", batch, logprobs_of("dapo", policy, batch), rng)
    whole = Split(10**6, "pad", False)
    _, expected = update("dapo", policy, batch, prepared, whole)
    halves = []
    for number in range(2):
        one = part_of(batch, prepared, torch.tensor([number]))
        assert one[0].tokens in (1, 7)
        halves.append(update("dapo", policy, *one, whole)[1] / 2)
    assert float((sum(halves) - expected).norm()) > 0.1 * float(expected.norm())
