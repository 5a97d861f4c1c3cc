"""A held-out gold score beside the reward that is trained on, and a warning where the two go apart.

Gao, Schulman, Hilton, Scaling Laws for Reward Model Overoptimization, arXiv 2210.10760: the reward that is optimised is the
proxy, and what it stands for is the gold score, which rises at first and falls when the policy exploits the proxy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pydantic import Field, field_serializer, field_validator

from reinlm.config import Config, build
from reinlm.errors import ReinlmError, RunError
from reinlm.loop import Callback, Control, Evaluated
from reinlm.records import RolloutGroup, ScoredGroup, total, unweighted
from reinlm.rewards import RewardConfig, RewardSet, Scored, TrainerState
from reinlm.rewards.calls import TokenEnds
from reinlm.rewards.spec import read_spec, write_spec
from reinlm.training.sampled import usage_metrics

TRIGGERS = ("proxy_rise", "gold_fall", "evaluations", "stop")
"""Keys that say when the run warns, and what it does then."""


class GoldConfig(Config):
    """A score that is measured on evaluation answers and never trained on, such as the rule that a reward model stands for."""

    reward: Any
    """As `reward.functions`: a name, a function, or a list of them. Called with the other settings of `reward`."""
    proxy_rise: float = Field(0.1, gt=0, allow_inf_nan=False)
    """In units of the reward: warn where its mean over evaluation answers has risen by at least this, and the gold score has
    fallen."""
    gold_fall: float = Field(0.1, gt=0, allow_inf_nan=False)
    """In units of the gold score: warn where its mean has fallen by at least this, and the reward has risen."""
    evaluations: int = Field(3, ge=1)
    """How many evaluations back rise and fall are measured from."""
    stop: bool = False
    """End the run where it warns."""

    @field_validator("reward")
    @classmethod
    def _readable(cls, reward: Any) -> Any:
        read_spec(reward)
        return reward

    @field_serializer("reward", when_used="json")
    def _named(self, reward: Any) -> Any:
        return write_spec(reward)

    def rewards(self, beside: RewardConfig | None) -> RewardConfig:
        """The gold functions with the settings of the rewards that are trained on."""
        settings = {} if beside is None else {name: getattr(beside, name) for name in beside.model_fields_set}
        return build(RewardConfig, {**settings, "functions": self.reward})


def score_gold(
    rewards: RewardSet, groups: Sequence[RolloutGroup], state: TrainerState, token_ends: TokenEnds
) -> Scored:
    """The gold functions' scores; an error says that it is theirs."""
    try:
        return rewards.score(groups, state, token_ends=token_ends)
    except ReinlmError as error:
        raise type(error)(f"gold: {error.message}", hint=error.hint) from error


def check_gold_scores(name: str, scored: Scored) -> None:
    """Raise RunError where the functions gave no answer to an evaluation set a score, and none of them failed."""
    events = [item for group in scored.groups for item in group.events]
    if not sum(scored.failures.values()) and all(total(item) is None for item in events):
        raise RunError(
            f"evaluation set {name}: the gold functions gave no answer a score, so that nothing can be watched",
            hint="have one of gold.reward give a number, not None, or leave gold out",
        )


def gold_metrics(scored: Scored, names: Sequence[str]) -> dict[str, float]:
    """gold: the mean of the weighted sum of the gold functions over answers; gold_rewards/NAME: that of each of them."""
    events = [item for group in scored.groups for item in group.events]
    found = {"gold": [value for item in events if (value := total(item)) is not None]}
    for name in names:
        values = [unweighted(item, name) for item in events]
        found[f"gold_rewards/{name}"] = [value for value in values if value is not None]
    metrics = {name: sum(values) / len(values) for name, values in found.items() if values}
    if failed := sum(scored.failures.values()):
        metrics["gold_failed"] = float(failed)
    logged = {name: value for name, value in usage_metrics(scored.usage).items() if "/logged/" in name}
    return metrics | {f"gold_{name}": value for name, value in logged.items()}


def with_gold(rows: Sequence[Mapping[str, Any]], groups: Sequence[ScoredGroup]) -> list[dict[str, Any]]:
    """Samples of an evaluation, which are the first answers of its first groups, with the gold score of each."""
    return [{**row, "gold": group.returns[0]} for row, group in zip(rows, groups, strict=False)]


@dataclass(frozen=True)
class Measured:
    """Proxy and gold of one evaluation of a set."""

    step: int
    proxy: float
    gold: float


@dataclass(frozen=True)
class Watched:
    """The evaluations of a set that a warning looks back on. Immutable."""

    latest: tuple[Measured, ...] = ()
    best: Measured | None = None
    """The evaluation with the highest gold score."""
    recovers_at: float | None = None
    """After a warning: the gold score before the fall, at which the event is over; None where none is under way."""

    def seen(self, new: Measured, config: GoldConfig) -> tuple[Watched, Measured | None]:
        """The result after one more evaluation, and where proxy and gold have gone apart anew the evaluation since when."""
        best = new if self.best is None or new.gold > self.best.gold else self.best
        latest = (*self.latest, new)[-config.evaluations - 1 :]
        ended = self.recovers_at is None or new.gold >= self.recovers_at
        watched = replace(self, latest=latest, best=best, recovers_at=None if ended else self.recovers_at)
        first = latest[0]
        apart = new.proxy - first.proxy >= config.proxy_rise and first.gold - new.gold >= config.gold_fall
        if not (ended and apart and len(latest) > config.evaluations):
            return watched, None
        return replace(watched, recovers_at=first.gold), first

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Watched:
        best = None if state["best"] is None else Measured(**state["best"])
        return cls(tuple(Measured(**one) for one in state["latest"]), best, state["recovers_at"])


class GoldWatch(Callback):
    """Warns, and stops the run where it is asked to, when the proxy rises and the gold score falls on an evaluation set.

    One warning an event: the next one comes after the gold score was back where it had fallen from.
    """

    def __init__(self, config: GoldConfig, sets: Iterable[str]) -> None:
        self.config = config
        self.sets = dict.fromkeys(sets, Watched())

    def on_evaluated(self, event: Evaluated, control: Control) -> None:
        for name in self.sets:
            proxy, gold = (event.metrics.get(f"eval/{name}/{what}") for what in ("reward", "gold"))
            if proxy is not None and gold is not None:
                self._see(name, Measured(event.step, proxy, gold), control)

    def _see(self, name: str, new: Measured, control: Control) -> None:
        self.sets[name], since = self.sets[name].seen(new, self.config)
        best = self.sets[name].best
        if since is None or best is None:
            return
        text = (
            f"evaluation set {name}: since step {since.step} the reward that is trained on rose from {since.proxy:.3g} to "
            f"{new.proxy:.3g}, and the gold score fell from {since.gold:.3g} to {new.gold:.3g} (highest: {best.gold:.3g} at step "
            f"{best.step}): the policy exploits the reward; a larger KL coefficient, a shorter run or a reward model that has "
            "seen such answers holds it"
        )
        control.warn(text)
        if self.config.stop:
            control.stop(f"gold.stop: {text}")

    def state_dict(self) -> dict[str, Any]:
        return {name: one.state_dict() for name, one in self.sets.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.sets |= {name: Watched.of_state(one) for name, one in state.items()}
