"""A warning where the likelihoods of both sides of the pairs fall: the margin grows, and the probability goes elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reinlm.loop import Callback, Control, Updated

SIDES = ("chosen", "rejected")
FALL = 0.1
"""Nats a token below the start at which a side counts as fallen."""
WINDOW = 10
"""Updates over which both are averaged."""


class FallingLikelihoods(Callback):
    """Compares the mean log-probability of a token, over the latest updates, with the reference or with the first updates.

    Warns once in a run. Source of the effect: Smaug, arXiv 2402.13228; Likelihood displacement, arXiv 2410.08847.
    """

    def __init__(self) -> None:
        self._first: list[dict[str, float]] = []
        self._latest: list[dict[str, float]] = []
        self.said = False

    def on_updated(self, event: Updated, control: Control) -> None:
        """Take the figures of an update."""
        metrics = event.metrics
        found = {side: value for side in SIDES if (value := _per_token(metrics, side)) is not None}
        if len(found) < len(SIDES):
            return
        against_reference = "log_ratios/chosen" in metrics
        if not against_reference and len(self._first) < WINDOW:
            self._first.append(found)
            return
        self._latest = [*self._latest[1 - WINDOW :], found]
        if self.said or len(self._latest) < WINDOW:
            return
        falls = {side: _mean(self._first, side) - _mean(self._latest, side) for side in SIDES}
        if min(falls.values()) > FALL:
            self.said = True
            since = "below the reference" if against_reference else f"below the first {WINDOW} updates"
            control.warn(
                f"both likelihoods fall: a token of the chosen answers is {falls['chosen']:.2f} nats {since}, "
                f"one of the rejected {falls['rejected']:.2f}; a loss with imitation of the chosen answers (dpo_sft), a larger "
                "beta or a lower learning rate holds them"
            )

    def state_dict(self) -> dict[str, Any]:
        return {"first": self._first, "latest": self._latest, "said": self.said}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._first, self._latest = list(state["first"]), list(state["latest"])
        self.said = bool(state["said"])


def _per_token(metrics: Mapping[str, float], side: str) -> float | None:
    """The log-ratio to the reference of a token, or without one its log-probability."""
    value = metrics.get(f"log_ratios/{side}", metrics.get(f"logprobs/{side}"))
    length = metrics.get(f"completions/{side}_length")
    return None if value is None or not length else value / length


def _mean(values: list[dict[str, float]], side: str) -> float:
    return sum(value[side] for value in values) / len(values) if values else 0.0
