"""Every metric that reinlm logs, under the names that users of TRL know where one exists.

`{name}` stands for a reward, `{set}` for an evaluation set, `{k}` for a number of samples. `docs/metrics.md` says of
each what is healthy and what a bad value means.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class MetricInfo:
    """The unit and the meaning of a metric.

    Example:
        MetricInfo(unit="nats", description="entropy of the policy per scored token")
    """

    unit: str
    description: str


METRICS: dict[str, MetricInfo] = {
    "loss": MetricInfo("nats (SFT); none (RL)", "the objective that the optimizer minimises"),
    "mean_token_accuracy": MetricInfo("fraction", "trained tokens that were the model's first choice"),
    "reward": MetricInfo("reward", "mean weighted reward of the samples"),
    "reward_std": MetricInfo("reward", "standard deviation of the reward within a group, averaged over groups"),
    "frac_reward_zero_std": MetricInfo("fraction", "groups whose samples all earned the same reward"),
    "rewards/{name}/mean": MetricInfo("reward", "mean of this reward function, before its weight"),
    "rewards/{name}/std": MetricInfo("reward", "standard deviation of this reward function over the samples"),
    "rewards/failed": MetricInfo("samples", "samples left out because a reward function failed"),
    "completions/mean_length": MetricInfo("tokens", "mean length of the sampled answers"),
    "completions/min_length": MetricInfo("tokens", "the shortest sampled answer"),
    "completions/max_length": MetricInfo("tokens", "the longest sampled answer"),
    "completions/clipped_ratio": MetricInfo("fraction", "answers that the length limit cut off"),
    "completions/mean_terminated_length": MetricInfo("tokens", "mean length of the answers that ended by themselves"),
    "entropy": MetricInfo("nats per token", "entropy of the policy at the scored tokens"),
    "kl": MetricInfo("nats per token", "divergence of the policy from its reference"),
    "approx_kl": MetricInfo("nats per token", "how far the update has moved the policy from where it began (k3)"),
    "clip_ratio/low_mean": MetricInfo("fraction", "tokens stopped at the lower clip bound (negative advantage)"),
    "clip_ratio/high_mean": MetricInfo("fraction", "tokens stopped at the upper clip bound (positive advantage)"),
    "clip_ratio/region_mean": MetricInfo("fraction", "tokens stopped at either clip bound"),
    "ratio/mean": MetricInfo("ratio", "mean probability ratio between the policy and the start of the update"),
    "ratio/moved": MetricInfo("fraction", "tokens whose probability ratio is off 1 by more than 1 %"),
    "ratio/max": MetricInfo("ratio", "the largest probability ratio in the update"),
    "sampling/logprob_difference/mean": MetricInfo(
        "nats", "mean |trainer − sampler| log-probability of sampled tokens"
    ),
    "sampling/logprob_difference/max": MetricInfo("nats", "largest |trainer − sampler| log-probability of any token"),
    "sampling/importance_ratio/mean": MetricInfo("ratio", "mean trainer-to-sampler probability ratio"),
    "sampling/importance_ratio/max": MetricInfo("ratio", "largest trainer-to-sampler probability ratio"),
    "advantage/std": MetricInfo("reward or none", "standard deviation of the advantages over the scored tokens"),
    "return": MetricInfo("reward", "mean undiscounted return of the episodes that ended since the last line"),
    "return/min": MetricInfo("reward", "the lowest of them"),
    "return/max": MetricInfo("reward", "the highest of them"),
    "return/low_seed": MetricInfo("reward", "the return of the seed that did worst"),
    "return/high_seed": MetricInfo("reward", "the return of the seed that did best"),
    "episode_length": MetricInfo("steps", "mean length of the episodes that ended since the last line"),
    "episodes": MetricInfo("episodes", "finished since the run began"),
    "env_steps": MetricInfo("steps", "steps of the environment since the run began"),
    "td_error": MetricInfo("reward", "mean |TD error| of the steps, before their updates"),
    "policy_loss": MetricInfo("none", "the surrogate of the policy"),
    "surrogate_improvement": MetricInfo(
        "reward", "how much better TRPO's step made the surrogate; 0 where none was taken"
    ),
    "trust_region/accepted": MetricInfo("fraction", "TRPO's steps that the line search accepted"),
    "q": MetricInfo("reward", "mean value of the actions in the replayed transitions"),
    "epsilon": MetricInfo("fraction", "random actions"),
    "sweeps": MetricInfo("sweeps", "over the model until its values stood still"),
    "episodes_used": MetricInfo("fraction", "episodes that were learned from"),
    "importance_weight": MetricInfo("ratio", "mean weight of a whole episode"),
    "eval/greedy/return": MetricInfo("reward", "mean return of greedy episodes after training"),
    "eval/greedy/return_std": MetricInfo("reward", "standard deviation of the returns of those episodes"),
    "explained_variance": MetricInfo(
        "fraction", "share of the returns' variance that the critic's values explain, before the update"
    ),
    "returns/mean": MetricInfo("reward", "mean of what the critic learns to predict"),
    "value_loss": MetricInfo("reward squared", "the critic's loss per token, before its coefficient"),
    "values/mean": MetricInfo("reward", "mean of the critic's values"),
    "values/clip_ratio": MetricInfo("fraction", "values that moved beyond their clip in this update"),
    "critic/grad_norm": MetricInfo("none", "norm of the gradient of the critic's own weights, before clipping"),
    "critic/learning_rate": MetricInfo("none", "learning rate of the critic's own weights"),
    "critic/warmup": MetricInfo("flag", "1 in steps in which the critic alone learned"),
    "kl/coefficient": MetricInfo("none", "coefficient of the KL to the reference in this step"),
    "kl/old_coefficient": MetricInfo("none", "coefficient of the KL to the old policy in this step"),
    "kl/reference": MetricInfo(
        "nats per token", "divergence of the sampling policy from its reference, which moves the coefficient"
    ),
    "kl/reference_per_sequence": MetricInfo("nats per answer", "the same, summed over an answer"),
    "kl/old": MetricInfo(
        "nats per token", "divergence of the policy after the batch's last update from the one before its first"
    ),
    "kl/old_per_sequence": MetricInfo("nats per answer", "the same, summed over an answer"),
    "kl/full": MetricInfo("nats per token", "divergence from the reference over the whole vocabulary"),
    "kl/old_full": MetricInfo("nats per token", "divergence from the start of the update over the whole vocabulary"),
    "kl/teacher": MetricInfo("nats per token", "divergence from the teacher over the whole vocabulary"),
    "kl/teacher_per_sequence": MetricInfo("nats per answer", "the same, summed over an answer"),
    "kl/teacher_coefficient": MetricInfo("none", "coefficient of the KL to the teacher in this step"),
    "text/loss": MetricInfo("nats per token", "loss of the data-set text beside the answers, before its coefficient"),
    "staleness/mean": MetricInfo("updates", "updates since a token was sampled, on average over the batch"),
    "staleness/max": MetricInfo("updates", "updates since the oldest token of the batch was sampled"),
    "sampling/temperature": MetricInfo("none", "temperature that this step's answers were sampled at"),
    "sampling/max_new_tokens": MetricInfo("tokens", "limit of this step's answers"),
    "entropy/coefficient": MetricInfo("none", "coefficient of the entropy bonus; 0 while it does not count"),
    "constraint/{name}/multiplier": MetricInfo("none", "Lagrange multiplier of the bound on this reward in this step"),
    "sequence_mask/dropped": MetricInfo("fraction", "tokens of punished answers that the policy has left behind"),
    "selection/selected": MetricInfo("fraction", "tokens chosen by their covariance with the advantage"),
    "correction/mean": MetricInfo("ratio", "mean weight of a token, for samples of another policy"),
    "correction/dropped": MetricInfo("fraction", "tokens whose weight is 0"),
    "correction/effective_samples": MetricInfo("fraction", "effective sample size of the weights, over their number"),
    "completions/untrained": MetricInfo("samples", "answers that reach no loss: no reward, or filtered as overlong"),
    "groups/single": MetricInfo("groups", "groups with at most one reward, which have no baseline"),
    "groups/replayed": MetricInfo("groups", "groups of earlier steps mixed into this batch"),
    "updates/made": MetricInfo("updates", "updates of the policy in this step"),
    "updates/stopped": MetricInfo("flag", "1 where the rest of the updates was not made, for target_kl"),
    "groups/dropped": MetricInfo("groups", "groups that the filter removed in this step"),
    "groups/attempts": MetricInfo("rounds", "rounds of sampling that it took to fill the batch"),
    "updates/skipped": MetricInfo("updates", "updates skipped because loss or gradient was not finite"),
    "grad_norm": MetricInfo("none", "norm of the gradient before clipping"),
    "learning_rate": MetricInfo("none", "learning rate of the update"),
    "epoch": MetricInfo("epochs", "passes over the training data so far"),
    "num_tokens": MetricInfo("tokens", "tokens trained on since the start"),
    "samples": MetricInfo("samples", "answers sampled in this step, dropped groups included"),
    "step_time": MetricInfo("s", "wall clock of the whole step"),
    "time": MetricInfo("s since 1970", "when the step was logged"),
    "time/rollout": MetricInfo("s", "sampling answers"),
    "time/reward": MetricInfo("s", "scoring answers with the reward functions"),
    "time/score": MetricInfo("s", "log-probabilities under the old and the reference policy"),
    "time/update": MetricInfo("s", "forward, backward and optimizer"),
    "time/evaluate": MetricInfo("s", "evaluation"),
    "time/checkpoint": MetricInfo("s", "writing a checkpoint"),
    "tokens_per_second": MetricInfo("tokens/s", "tokens handled in the step over its time"),
    "samples_per_second": MetricInfo("samples/s", "samples handled in the step over its time"),
    "eval/{set}/accuracy": MetricInfo("fraction", "held-out answers that the verifier accepts"),
    "eval/{set}/accuracy_low": MetricInfo("fraction", "lower end of the accuracy's 95 % interval"),
    "eval/{set}/accuracy_high": MetricInfo("fraction", "upper end of the accuracy's 95 % interval"),
    "eval/{set}/pass@{k}": MetricInfo("fraction", "held-out prompts with a right answer among k samples"),
    "eval/{set}/reward": MetricInfo("reward", "mean weighted reward of the held-out answers"),
    "eval/{set}/rewards/{name}": MetricInfo("reward", "mean of this reward function over the held-out answers"),
    "eval/{set}/clipped_ratio": MetricInfo("fraction", "held-out answers that the length limit cut off"),
    "eval/{set}/mean_token_accuracy": MetricInfo(
        "fraction", "held-out demonstrations' tokens that were the first choice"
    ),
    "eval/{set}/mean_length": MetricInfo("tokens", "mean length of the held-out answers"),
    "eval/{set}/failed": MetricInfo("samples", "held-out answers left out because a reward function failed"),
    "eval/{set}/loss": MetricInfo("nats per token", "cross-entropy of held-out demonstrations"),
    "eval/{set}/entropy": MetricInfo("nats per token", "entropy of the model at the tokens of held-out demonstrations"),
}

CLOCKS = frozenset({"time", "step_time", "tokens_per_second", "samples_per_second"})
"""Fields that depend on the clock, together with every `time/…`: two equal runs differ in these alone."""


def pattern(name: str) -> re.Pattern[str]:
    """What matches the names that `name` stands for, with a group for each of `{name}`, `{set}` and `{k}`."""
    return re.compile(re.sub(r"\\\{(\w+)\\\}", lambda match: f"(?P<{match[1]}>[^/]+)", re.escape(name)))


_PATTERNS = {name: pattern(name) for name in METRICS}


def describe(name: str) -> MetricInfo | None:
    """What is known of a logged name such as `eval/gsm8k/pass@8`; None for a user's own metric."""
    return next((METRICS[known] for known, form in _PATTERNS.items() if form.fullmatch(name)), None)


def is_clock(name: str) -> bool:
    """Whether a metric measures time and so differs between two equal runs."""
    return name in CLOCKS or name.startswith("time/")


def without_clocks(record: Mapping[str, Any]) -> dict[str, Any]:
    """A step's record without its clock fields: what two runs from one seed share to the last bit."""
    return {name: value for name, value in record.items() if not is_clock(name)}
