"""Early stopping: the rule behind `evaluation.stop_at` and `evaluation.patience`, and the callback `EarlyStopping`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from reinlm.errors import InputError, nearest
from reinlm.loop.callbacks import Callback, Control
from reinlm.loop.events import Evaluated, RunEnded, StepEnded

Mode = Literal["max", "min"]


@dataclass(frozen=True)
class Best:
    """The best value so far, and how many values since were not better. Immutable.

    Example:
        >>> Best().seen(0.5, "max").seen(0.4, "max")
        Best(value=0.5, since=1)
    """

    value: float | None = None
    since: int = 0

    def seen(self, value: float, mode: Mode, min_delta: float = 0.0) -> Best:
        """The result after one more value, which is better if it improves on the best by more than `min_delta`."""
        gain = math.inf if self.value is None else (value - self.value if mode == "max" else self.value - value)
        return Best(value) if gain > min_delta else replace(self, since=self.since + 1)


@dataclass(frozen=True)
class StopRule:
    """Decides by the accuracy on the first evaluation set, or its loss where nothing is sampled.

    Example: stop once the accuracy reaches 0.9:
        StopRule(higher_is_better=True, stop_at=0.9, patience=None)
    """

    higher_is_better: bool
    stop_at: float | None
    patience: int | None

    @property
    def mode(self) -> Mode:
        return "max" if self.higher_is_better else "min"

    def value(self, found: Mapping[str, float]) -> float | None:
        """The accuracy or loss among the metrics `found`; None if it is missing or NaN."""
        suffix = "/accuracy" if self.higher_is_better else "/loss"
        value = next((value for name, value in found.items() if name.endswith(suffix)), math.nan)
        return None if math.isnan(value) else value

    def stop(self, value: float, best: Best) -> str | None:
        """The reason to stop after this value, which `best` includes; None to continue."""
        if self.stop_at is not None and self.higher_is_better and value >= self.stop_at:
            return f"evaluation reached {value:.3f}, at least stop_at={self.stop_at}"
        if self.patience is not None and best.since >= self.patience:
            return f"{best.since} evaluations without a better one (patience)"
        return None


_THERE = {
    "early_stopping_patience": "patience",
    "early_stopping_threshold": "min_delta",
    "metric_for_best_model": "metric",
    "monitor": "metric",
}
"""Arguments of other libraries -> ours."""


class EarlyStopping(Callback):
    """Stops the run when a metric has not got better for `patience` of the steps that logged it.

    Args:
        metric: a metric of the library, or one that an earlier callback logs; of an evaluation also as tables print it,
            `gsm8k/accuracy` for `eval/gsm8k/accuracy`.
        patience: how many values in a row may fail to be better, 1 or more.
        min_delta: the least improvement that counts, in the unit of the metric.
        mode: "max" where higher is better, "min" where lower is.

    NaN values are ignored. The evaluation before training counts as the first value. A name `eval/…` that the first
    evaluation does not log ends the run.

    Example:
        reinlm.rl(…, callbacks=[EarlyStopping("reward", patience=20, min_delta=0.01)])
    """

    def __init__(
        self, metric: str = "", *, patience: int = 0, min_delta: float = 0.0, mode: Mode = "max", **others: Any
    ) -> None:
        for name in others:
            hint = f"it is called {_THERE[name]} here: " if name in _THERE else ""
            raise InputError(
                f"EarlyStopping has no {name}",
                hint=f'{hint}EarlyStopping("reward", patience=3, min_delta=0.01, mode="max")',
            )
        if not metric or not isinstance(metric, str):
            raise InputError("EarlyStopping needs a metric", hint='EarlyStopping("reward", patience=3)')
        if patience < 1:
            raise InputError(f"EarlyStopping: patience must be 1 or more, not {patience}")
        if not (math.isfinite(min_delta) and min_delta >= 0):
            raise InputError(f"EarlyStopping: min_delta must be 0 or more, not {min_delta}")
        if mode not in ("max", "min"):
            raise InputError(f"EarlyStopping: mode must be 'max' or 'min', not {mode!r}")
        self.metric = metric
        self.patience = patience
        self.min_delta = min_delta
        self.mode: Mode = mode
        self.best = Best()
        self._others: set[str] = set()

    @property
    def name(self) -> str:
        return f"EarlyStopping({self.metric})"

    def on_evaluated(self, event: Evaluated, control: Control) -> None:
        names = (self.metric, f"eval/{self.metric}")
        if self.metric.startswith("eval/") and self.best.value is None and not any(n in event.metrics for n in names):
            near = nearest(self.metric, event.metrics)
            raise InputError(
                f"no evaluation logs {self.metric!r}",
                hint=f"did you mean {near!r}?" if near else f"it logs {', '.join(event.metrics)}",
            )
        if event.step == 0:
            self._see({**event.metrics, **control.logged})

    def on_step_ended(self, event: StepEnded, control: Control) -> None:
        if self._see({**event.metrics, **control.logged}) and self.best.since >= self.patience:
            control.stop(f"{self.metric}: {self.best.since} values without a better one than {self.best.value:.6g}")

    def on_run_ended(self, event: RunEnded, control: Control) -> None:
        if self.best.value is None and event.step and event.reason in ("finished", "stopped"):
            near = nearest(self.metric, self._others)
            hint = f"; did you mean {near!r}?" if near else ""
            warnings.warn(f"EarlyStopping had no effect: no step logged {self.metric!r}{hint}", stacklevel=2)

    def _see(self, metrics: Mapping[str, float]) -> bool:
        self._others |= metrics.keys()
        value = metrics.get(self.metric, metrics.get(f"eval/{self.metric}", math.nan))
        if math.isnan(value):
            return False
        self.best = self.best.seen(value, self.mode, self.min_delta)
        return True

    def state_dict(self) -> dict[str, Any]:
        return asdict(self.best)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best = Best(**state)
