"""Controllers of KL coefficients, and the entropy bonus: coefficients that change once per collected batch."""

from __future__ import annotations

from dataclasses import dataclass

from reinlm.objectives.registry import choice


@dataclass(frozen=True)
class Measured:
    """Measurements of a batch, as the input of a controller.

    Example: 512 answers, of which each moved 0.02 nats a token, 0.3 in sum; 40 batches done:
        Measured(kl_per_token=0.02, kl_per_sequence=0.3, episodes=512, batches=40)
    """

    kl_per_token: float
    """Nats, mean over tokens."""
    kl_per_sequence: float
    """Nats, sum over the tokens of an answer, mean over answers. About length times the other: never mix the two."""
    episodes: int
    """Answers in the batch."""
    batches: int
    """Batches done, this one included."""


class Controller:
    """(first coefficient, current coefficient, what was measured) -> the coefficient of the next batch."""

    needs_kl: bool = True

    def __call__(self, first: float, current: float, measured: Measured) -> float:
        raise NotImplementedError


def _check_target(name: str, target: float) -> None:
    if not 0.0 < target < float("inf"):
        raise ValueError(f"{name}: the target must be more than 0 nats and finite, not {target}")


def _check_per(name: str, per: str) -> None:
    if per not in {"token", "sequence"}:
        raise ValueError(f"{name}: per is token or sequence, not {per!r}")


def _kl(measured: Measured, per: str) -> float:
    return measured.kl_per_token if per == "token" else measured.kl_per_sequence


@choice("controller", "linear")
@dataclass(frozen=True)
class Linear(Controller):
    """From the first coefficient to `final` in equal steps over `batches`: a gradual β."""

    final: float
    """At least 0."""
    batches: int
    """At least 1."""
    needs_kl = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.final < float("inf"):
            raise ValueError(f"linear: final must be at least 0 and finite, not {self.final}")
        if self.batches < 1:
            raise ValueError(f"linear: batches must be at least 1, not {self.batches}")

    def __call__(self, first: float, current: float, measured: Measured) -> float:
        done = min(measured.batches / self.batches, 1.0)
        return first + (self.final - first) * done


@choice("controller", "schulman")
@dataclass(frozen=True)
class SchulmanRule(Controller):
    """Halved where the divergence is below target / 1.5, doubled where it is above 1.5 · target. PPO, arXiv 1707.06347 §4."""

    target: float
    """Nats, more than 0."""
    per: str = "token"
    """"token", or "sequence"."""

    def __post_init__(self) -> None:
        _check_target("schulman", self.target)
        _check_per("schulman", self.per)

    def __call__(self, first: float, current: float, measured: Measured) -> float:
        kl = _kl(measured, self.per)
        if kl < self.target / 1.5:
            return current / 2.0
        return current * 2.0 if kl > self.target * 1.5 else current


@choice("controller", "ziegler")
@dataclass(frozen=True)
class ZieglerRule(Controller):
    """β ← β (1 + clip(KL / target - 1, ±0.2) · n / horizon), n answers in the batch. arXiv 1909.08593 §2.2, as in its code.

    Their KL is the sum over tokens, averaged over answers: `per="sequence"`.
    """

    target: float = 6.0
    """Nats, more than 0."""
    horizon: int = 10_000
    """Answers, at least 1."""
    per: str = "sequence"
    """Whether the KL is of a token or the sum over a sequence."""

    def __post_init__(self) -> None:
        _check_target("ziegler", self.target)
        _check_per("ziegler", self.per)
        if self.horizon < 1:
            raise ValueError(f"ziegler: horizon must be at least 1 answer, not {self.horizon}")

    def __call__(self, first: float, current: float, measured: Measured) -> float:
        error = min(max(_kl(measured, self.per) / self.target - 1.0, -0.2), 0.2)
        return current * (1.0 + error * measured.episodes / self.horizon)


@choice("controller", "band")
@dataclass(frozen=True)
class TargetBand(Controller):
    """Multiplied by `factor` above the band, divided by it below, and left alone within."""

    low: float
    """Nats, at least 0."""
    high: float
    """Nats, above low."""
    factor: float = 1.5
    """More than 1."""
    per: str = "token"
    """Whether the KL is of a token or the sum over a sequence."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.low < self.high < float("inf"):
            raise ValueError(f"band: needs 0 ≤ low < high, not {self.low} and {self.high}")
        if not 1.0 < self.factor < float("inf"):
            raise ValueError(f"band: factor must be more than 1, not {self.factor}")
        _check_per("band", self.per)

    def __call__(self, first: float, current: float, measured: Measured) -> float:
        kl = _kl(measured, self.per)
        if kl < self.low:
            return current / self.factor
        return current * self.factor if kl > self.high else current


@choice("entropy", "entropy")
@dataclass(frozen=True)
class EntropyBonus:
    """- coefficient · entropy in the loss of every token.

    With a `target` the coefficient moves by `step` a batch, up while the mean entropy is at most the target and down
    otherwise, within [low, high], and the bonus counts only while it is at most the target. Skywork-OR1, arXiv 2505.22312.
    """

    coefficient: float = 0.01
    """At least 0: 0.01 for games, 0 for most language models."""
    target: float | None = None
    """Nats a token, at least 0; None: the coefficient stays."""
    step: float = 0.005
    """Change of the coefficient after each batch, with a `target`; more than 0."""
    low: float = 0.0
    """The least coefficient, with a `target`."""
    high: float = 1.0
    """The largest coefficient, with a `target`."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.coefficient < float("inf"):
            raise ValueError(f"entropy: the coefficient must be at least 0 and finite, not {self.coefficient}")
        if self.target is not None and not 0.0 <= self.target < float("inf"):
            raise ValueError(f"entropy: the target must be at least 0 and finite, not {self.target}")
        if not 0.0 < self.step < float("inf"):
            raise ValueError(f"entropy: step must be more than 0 and finite, not {self.step}")
        if not 0.0 <= self.low <= self.high < float("inf"):
            raise ValueError(f"entropy: needs 0 ≤ low ≤ high, finite, not {self.low} and {self.high}")

    def advance(self, coefficient: float, entropy: float) -> tuple[float, bool]:
        """The next coefficient, and whether the bonus counts, given the mean entropy of a batch in nats a token."""
        if self.target is None:
            return coefficient, True
        below = entropy <= self.target
        moved = coefficient + (self.step if below else -self.step)
        return min(max(moved, self.low), self.high), below
