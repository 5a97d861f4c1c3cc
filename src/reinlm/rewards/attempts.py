"""Attempts at one call of a reward function: repeated where the cause may pass, then for each answer alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from reinlm.rewards.retries import delay
from reinlm.rewards.running import Logged
from reinlm.rewards.values import Entry, Failure

Once = Callable[[Sequence[int]], tuple[list[Entry] | Failure, Logged]]
"""Makes one call for the answers of these indices."""


@dataclass(frozen=True)
class Policy:
    """What becomes of a call that fails."""

    stop: bool = True
    """It ends the run."""
    retries: int = 0
    """Further attempts at most, where the cause may pass."""
    retry_delay: float = 1.0
    """Seconds before the first of them; doubled before each further one."""
    one_by_one: bool = True
    """Call again for each answer alone, unless the run ends."""


@dataclass(frozen=True)
class Usage:
    """What the calls of one reward function cost in a step.

    Example:
        Usage(calls=4, retries=1, seconds=2.5, failed=0, metrics={"exact": (3.0, 8)})
    """

    calls: int = 0
    retries: int = 0
    """Attempts after the first one."""
    seconds: float = 0.0
    """Spent in calls, and in waiting for another attempt."""
    failed: int = 0
    """Answers that it failed on."""
    metrics: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """What it logged by name: the sum of the values, and how many there were."""

    def __add__(self, other: Usage) -> Usage:
        names = dict.fromkeys([*self.metrics, *other.metrics])
        pairs = {name: (self.metrics.get(name, (0.0, 0)), other.metrics.get(name, (0.0, 0))) for name in names}
        return Usage(
            self.calls + other.calls,
            self.retries + other.retries,
            self.seconds + other.seconds,
            self.failed + other.failed,
            {name: (a[0] + b[0], a[1] + b[1]) for name, (a, b) in pairs.items()},
        )


@dataclass
class Attempts:
    """The attempts at one call.

    Args:
        once: makes a call.
        wait: waits so many seconds; False where the call was cancelled meanwhile.
    """

    once: Once
    policy: Policy
    wait: Callable[[float], bool]

    def __post_init__(self) -> None:
        self._left = self.policy.retries
        self._usage = Usage()
        self._extra: dict[int, dict[str, Any]] = {}

    def score(self, count: int) -> tuple[list[Entry] | Failure, Usage, dict[int, dict[str, Any]]]:
        """The entries of `count` answers, or why the call has none; what it cost; by answer what it logged in columns."""
        started = time.perf_counter()
        found = self._repeated(range(count))
        split = isinstance(found, Failure) and found.cause != "value" and count > 1
        if split and self.policy.one_by_one and not self.policy.stop:
            found = self._one_by_one(count)
        failed = count if isinstance(found, Failure) else sum(isinstance(entry, Failure) for entry in found)
        usage = replace(self._usage, seconds=time.perf_counter() - started, failed=failed)
        return found, usage, self._extra

    def _repeated(self, indices: Sequence[int]) -> list[Entry] | Failure:
        """Call for these answers, and again for those whose failure may pass."""
        entries: dict[int, Entry] = {}
        pending = list(indices)
        attempt = 0
        while True:
            found = self._call(pending)
            if isinstance(found, Failure):
                again, whole = pending if found.cause == "passing" else [], found
                entries |= dict.fromkeys(pending, found)
            else:
                entries |= dict(zip(pending, found, strict=True))
                again, whole = [index for index in pending if _may_pass(entries[index])], None
            attempt += 1
            if not again or not self._left or not self.wait(delay(attempt, self.policy.retry_delay)):
                break
            self._left -= 1
            self._usage += Usage(retries=1)
            pending = again
        if whole is not None and len(pending) == len(indices):
            return _after(whole, attempt)
        return [_after(entry, attempt) if isinstance(entry, Failure) else entry for entry in entries.values()]

    def _one_by_one(self, count: int) -> list[Entry]:
        """Call for each answer alone, until two in a row overrun: then the function is slow, and not the answer."""
        entries: list[Entry] = []
        slow = 0
        for index in range(count):
            found = self._repeated([index])
            entry = found if isinstance(found, Failure) else found[0]
            entries.append(entry)
            slow = slow + 1 if isinstance(entry, Failure) and entry.cause == "overran" else 0
            if slow == 2:
                return [*entries, *[entry] * (count - len(entries))]
        return entries

    def _call(self, indices: Sequence[int]) -> list[Entry] | Failure:
        found, logged = self.once(indices)
        metrics = {} if isinstance(found, Failure) else logged.metrics
        self._usage += Usage(calls=1, metrics=metrics)
        for column, values in logged.extra.items():
            if len(values) == len(indices) and not isinstance(found, Failure):
                for index, value in zip(indices, values, strict=True):
                    self._extra.setdefault(index, {})[column] = value
        return found


def _may_pass(entry: Entry) -> bool:
    return isinstance(entry, Failure) and entry.cause == "passing"


def _after(failure: Failure, attempts: int) -> Failure:
    """The failure with the number of attempts, where there were several."""
    return replace(failure, text=f"{failure.text} in each of {attempts} attempts,") if attempts > 1 else failure
