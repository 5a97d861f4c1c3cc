"""Compute log-probabilities, values, adjusted rewards and advantages of a batch before its first update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from reinlm.algorithms import Algorithm, AlgorithmState
from reinlm.batches import TokenBatch
from reinlm.models import VALUES, Anchor, Want
from reinlm.objectives import Feedback, explained_variance
from reinlm.training.critic import CriticModel
from reinlm.training.learner import Learner
from reinlm.training.staleness import stale_tokens

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

FULL_KL_METRICS = {"reference": "kl/full", "old": "kl/old_full", "teacher": "kl/teacher"}
FULL_KL_COLUMNS = {"reference": "kl_full", "old": "kl_old_full", "teacher": "kl_teacher"}
"""Of the rollout log, nats at each token: the divergence over the whole vocabulary that a loss holds."""


@dataclass(frozen=True)
class Prepared:
    """Quantities of a batch before its first update; all on the CPU, without gradient."""

    feedback: Feedback
    advantages: Float[Tensor, " tokens"]
    old: Float[Tensor, " tokens"] | None
    ref: Float[Tensor, " tokens"] | None
    teacher: Float[Tensor, " tokens"] | None
    full: Float[Tensor, " tokens"] | None
    """Divergence from the reference over the vocabulary, where it is charged to the reward."""
    returns: Float[Tensor, " tokens"] | None
    trained: Bool[Tensor, " episodes"]
    """Which episodes reach the loss."""


def prepare(
    batch: TokenBatch,
    feedback: Feedback,
    algorithm: Algorithm,
    state: AlgorithmState,
    *,
    learner: Learner,
    critic: CriticModel | None = None,
    anchors: Mapping[str, Anchor],
    several: bool,
    decoupled: bool = False,
) -> Prepared:
    """Log-probabilities, values and advantages of a batch.

    Tokens of an earlier version of the policy have the sampler's log-probabilities as their old ones, so that their
    ratios hold what has happened since; not where that is `decoupled`.

    Args:
        anchors: the frozen models by name, as far as the algorithm asks for them.
        several: whether the batch makes more than one update, so that the old policy is not always the current one.
        decoupled: old log-probabilities are those of the policy before the first update of the batch for every token, and what
            has happened since it was sampled is left to corrections. Decoupled PPO, arXiv 2110.00641.
    """
    shared = critic is not None and critic.shared
    rollout = batch.columns["rollout_logprobs"]
    stale = torch.zeros(batch.tokens, dtype=torch.bool) if decoupled else stale_tokens(batch, state.updates)
    old = ref = teacher = values = full = None
    in_reward = algorithm.needs_full_kl_in_reward
    if several or bool(stale.any()) or algorithm.needs_old_logprobs or shared or in_reward:
        directions: dict[str, Any] = {"reference": algorithm.full_directions["reference"]} if in_reward else {}
        want = Want(values=shared, full_kl=directions)
        found = learner.forward(batch, want, anchors=anchors)
        old, values = torch.where(stale, rollout.to(found.scored.dtype), found.scored), found.values
        full = found.full_kl.get("reference")
    if algorithm.needs_ref_logprobs:
        ref = learner.forward(batch, anchor=anchors["reference"]).scored
    if algorithm.needs_teacher_logprobs:
        teacher = learner.forward(batch, anchor=anchors["teacher"]).scored
        feedback = replace(feedback, teacher_logprobs=teacher.double())
    if critic is not None:
        if values is None:
            values = critic.learner.forward(batch, VALUES).values
        assert values is not None
        feedback = replace(feedback, values=values.double(), final_values=_final_values(batch, feedback, critic))
    if old is not None:
        feedback = replace(feedback, log_importance=(old - rollout).double())
    charged = algorithm.adjust_rewards(feedback, state, old, ref, full)
    advantages = algorithm.advantage(charged)
    returns = algorithm.advantage.targets(charged) if critic is not None else None
    return Prepared(charged, advantages, old, ref, teacher, full, returns, algorithm.trained(charged))


def _final_values(batch: TokenBatch, feedback: Feedback, critic: CriticModel) -> Float[Tensor, " episodes"]:
    """The critic's value of the last state of every truncated episode, elsewhere 0; on the CPU."""
    layout, cut = batch.layout, feedback.truncated
    final = torch.zeros(layout.size("episode"), dtype=torch.float64)
    last = {episode: row for row, episode in enumerate(layout.episode_of_sequence.tolist())}
    rows = [] if cut is None else [row for episode, row in last.items() if bool(cut[episode])]
    if rows:
        ends = TokenBatch.of([batch.ids(row) for row in rows], [[int(batch.lengths[row])] for row in rows])
        found = critic.learner.forward(ends, VALUES).values
        assert found is not None
        final[layout.episode_of_sequence[torch.tensor(rows)]] = found.double()
    return final


def prepared_metrics(prepared: Prepared) -> dict[str, float]:
    """Metrics of a batch before its updates."""
    kept = prepared.feedback.layout.expand(prepared.trained, "episode")
    metrics = {
        "advantage/std": float(prepared.advantages.std(correction=0)) if len(kept) else 0.0,
        "completions/untrained": float((~prepared.trained).sum()),
    }
    if prepared.full is not None and bool(kept.any()):
        metrics[FULL_KL_METRICS["reference"]] = float(prepared.full[kept].double().mean())
    if prepared.returns is not None and prepared.feedback.values is not None:
        known = prepared.feedback.given
        explained = float(explained_variance(prepared.feedback.values[known], prepared.returns[known]))
        if explained == explained:
            metrics["explained_variance"] = explained
        metrics["returns/mean"] = float(prepared.returns[known].mean()) if bool(known.any()) else 0.0
    return metrics
