"""TensorBoard events, in `tensorboard/` of the run folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reinlm.config import Config
from reinlm.loop.callbacks import Callback, Control
from reinlm.loop.events import Logged, RunEnded, RunStarted
from reinlm.loop.trackers.registry import tracker

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoardConfig(Config):
    """TensorBoard has no settings."""


@tracker("tensorboard", TensorBoardConfig, package="tensorboard")
class TensorBoardTracker(Callback):
    """Writes every metric as a scalar; steps that a resumed run repeats replace the earlier ones."""

    def __init__(self, config: TensorBoardConfig | None = None) -> None:
        self._writer: SummaryWriter | None = None

    def on_run_started(self, event: RunStarted, control: Control) -> None:
        if not event.over:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(event.folder / "tensorboard"), purge_step=event.after_step + 1)

    def on_logged(self, event: Logged, control: Control) -> None:
        if self._writer is not None:
            for name, value in event.metrics.items():
                self._writer.add_scalar(name, value, event.step)
            self._writer.flush()

    def on_run_ended(self, event: RunEnded, control: Control) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
