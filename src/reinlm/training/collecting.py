"""The batch of each step: sampled before its update, or beside the update of the step before, from a copy of the weights."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch

from reinlm.models import FollowingModel
from reinlm.models.threads import using_threads
from reinlm.rewards import RewardSet, TrainerState
from reinlm.rollouts import Engine, Sampling, Source
from reinlm.rollouts.engines import ready_to_sample
from reinlm.training.config import RLConfig
from reinlm.training.dpo_config import DPOConfig
from reinlm.training.sampled_batch import SampledBatch
from reinlm.training.setup import Phases

if TYPE_CHECKING:
    from torch import Tensor

GRACE = 10.0
"""Seconds that sampling may take to end once it is cancelled; it ends after the token that it is at."""


class Sampler:
    """Samples the batch of a step, with the settings that the schedules of the run give at it."""

    def __init__(
        self, config: RLConfig | DPOConfig, engine: Engine, source: Source, stops: Sequence[int], total_steps: int
    ) -> None:
        self.engine = engine
        self.source = source
        self.total_steps = total_steps
        self._config = config
        self._stops = stops

    def collect(self, step: int, version: int, phases: Phases) -> SampledBatch:
        """The batch of this step, its tokens stamped with `version`. Raises what `Source.collect` raises."""
        source = self.source
        sampling = self.sampling(step)
        source.episodes = replace(source.episodes, sampling=sampling)
        state = TrainerState(global_step=step - 1, max_steps=self.total_steps, epoch=source.order.epochs)
        with ready_to_sample(self.engine, version):
            collected = source.collect(step, state, phases)
        return SampledBatch(collected, source.order.epochs, sampling)

    def sampling(self, step: int) -> Sampling:
        """As the schedules say at this step."""
        settings = self._config.rollout.at((step - 1) / max(self.total_steps - 1, 1))
        return settings.sampling(self._stops)


class Batches(Protocol):
    """Where a run has the batch of each step from."""

    def of_step(self, step: int, version: int, phases: Phases) -> contextlib.AbstractContextManager[SampledBatch]:
        """The batch of a step, whose update is made within the context.

        Args:
            version: of the policy: updates made before this step.
            phases: takes the time that the step spends on it.
        """

    def before_evaluation(self) -> None:
        """Let the engine sample from the weights as they are."""

    def state_dict(self) -> dict[str, Any]:
        """Cursor and rewards, and what was sampled already; between two steps."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Synchronous:
    """Samples the batch of a step when the step begins, from the weights in training."""

    def __init__(self, sampler: Sampler, rewards: RewardSet | None) -> None:
        self._sampler = sampler
        self._rewards = rewards

    @contextlib.contextmanager
    def of_step(self, step: int, version: int, phases: Phases) -> Iterator[SampledBatch]:
        """As `Batches`."""
        yield self._sampler.collect(step, version, phases)

    def before_evaluation(self) -> None:
        """The engine samples from the weights in training."""

    def state_dict(self) -> dict[str, Any]:
        """Of the source and of the rewards."""
        return {
            **self._sampler.source.state_dict(),
            "rewards": self._rewards.state_dict() if self._rewards is not None else {},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken."""
        self._sampler.source.load_state_dict(state)
        if self._rewards is not None:
            self._rewards.load_state_dict(state.get("rewards", {}))


@dataclass(frozen=True)
class _Failed:
    """A batch that could not be sampled, with all that sampling it again takes."""

    error: BaseException
    version: int
    weights: dict[str, Tensor]
    before: dict[str, Any]
    """The state of source and rewards before it was begun."""


class OneStepAhead:
    """Samples the batch of the next step in a thread, while a step trains on its own.

    The batch of step k is sampled from the weights after step k - 2, the first two from the initial ones: a copy follows the
    weights at the beginning of each step, and nothing else changes it while the thread samples. Nothing is sampled between
    two steps, so that checkpoints hold a finished batch. A batch that cannot be sampled is an error of its own step, and the
    checkpoint before it holds the weights that it is to be sampled from.

    Args:
        sampler: its engine samples from `weights.model`.
        weights: the copy.
    """

    def __init__(self, sampler: Sampler, rewards: RewardSet | None, weights: FollowingModel) -> None:
        self._sampler = sampler
        self._rest = Synchronous(sampler, rewards)
        self._weights = weights
        self._device = next(weights.model.parameters()).device
        self._next: SampledBatch | _Failed | None = None
        self._again: tuple[int, Mapping[str, Tensor]] | None = None
        """Version and weights that a resumed run samples its first batch from, where that could not be sampled before."""

    @contextlib.contextmanager
    def of_step(self, step: int, version: int, phases: Phases) -> Iterator[SampledBatch]:
        """As `Batches`; within the context the next batch is sampled. Raises what kept this one from being sampled."""
        with half_the_threads(self._device):
            if self._next is None:
                self._finish(self._begin(step, version), phases)
            if isinstance(self._next, _Failed):
                raise self._next.error
            batch, self._next = self._next, None
            assert batch is not None
            if step >= self._sampler.total_steps or batch.collected.nothing_left is not None:
                yield batch
                return
            following = self._begin(step + 1, version)
            try:
                yield batch
            except BaseException:
                following.cancel()
                raise
            self._finish(following, phases)

    def before_evaluation(self) -> None:
        """Let the copy follow."""
        self._weights.follow()

    def state_dict(self) -> dict[str, Any]:
        """As `Batches`; the batch of the next step with it."""
        ready = self._next
        if isinstance(ready, _Failed):
            return {**ready.before, "again": {"version": ready.version, "weights": ready.weights}}
        return {**self._rest.state_dict(), "next": None if ready is None else ready.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As `Batches`."""
        self._rest.load_state_dict(state)
        again, ready = state.get("again"), state.get("next")
        self._again = None if again is None else (int(again["version"]), again["weights"])
        self._next = None if ready is None else SampledBatch.from_state(ready, self._sampler.source.tasks)

    def _begin(self, step: int, version: int) -> _Sampling:
        """Sample the batch of a step in a thread, from the weights as they are."""
        if self._again is None:
            self._weights.follow()
        else:
            version, weights = self._again
            self._weights.load(weights)
            self._again = None
        before = self._rest.state_dict()
        return _Sampling(self._sampler, step, version, before, self._device)

    def _finish(self, sampling: _Sampling, phases: Phases) -> None:
        """Wait for the thread, and keep what it sampled, or why it could not."""
        with phases("wait"):
            try:
                sampling.wait()
            except BaseException:
                sampling.cancel()
                raise
        error = sampling.error
        if error is None:
            self._next = sampling.batch
        else:
            self._next = _Failed(error, sampling.version, self._weights.weights(), sampling.before)


class _Sampling:
    """A thread that samples one batch."""

    def __init__(self, sampler: Sampler, step: int, version: int, before: dict[str, Any], device: torch.device) -> None:
        self.version = version
        self.before = before
        self.batch: SampledBatch | None = None
        self.error: BaseException | None = None
        self._sampler = sampler
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # the copy of the weights is made on another stream

        def work() -> None:
            try:
                with computing_beside(device):
                    phases = Phases()
                    batch = sampler.collect(step, version, phases)
                    self.batch = replace(batch, seconds=phases.seconds)
            except BaseException as error:  # noqa: BLE001 - raised by the step that needs the batch
                self.error = error

        self._thread = threading.Thread(target=work, daemon=True, name=f"sampling of step {step}")
        self._thread.start()

    def wait(self) -> None:
        """Until it has ended."""
        self._thread.join()

    def cancel(self) -> None:
        """End it; where it does not end, as in a reward function that hangs, it is left behind."""
        self._sampler.source.loop.cancel()
        self._thread.join(GRACE)


@contextlib.contextmanager
def computing_beside(device: torch.device) -> Iterator[None]:
    """Compute in this thread without a trace in others: on a stream of its own, and without clearing the casts of autocast.

    Those are kept for the whole process, and cleared where the outermost context of any thread ends.
    """
    torch.autocast_increment_nesting()
    try:
        if device.type != "cuda":
            yield
            return
        stream = torch.cuda.Stream(device)
        with torch.cuda.device(device), torch.cuda.stream(stream):
            yield
            stream.synchronize()
    finally:
        torch.autocast_decrement_nesting()


@contextlib.contextmanager
def half_the_threads(device: torch.device) -> Iterator[None]:
    """On a CPU two threads compute at the same time: give each half of the cores that one has otherwise."""
    with using_threads(max(1, torch.get_num_threads() // 2) if device.type == "cpu" else None):
        yield


def batches_of(sampler: Sampler, rewards: RewardSet | None, weights: FollowingModel | None) -> Batches:
    """Where a run has its batches from: one step ahead where its engine has a copy of the weights."""
    return Synchronous(sampler, rewards) if weights is None else OneStepAhead(sampler, rewards, weights)
