"""Weights & Biases: metrics by step, the configuration, and a table of samples at each evaluation."""

from __future__ import annotations

import secrets
from typing import Any, Literal

from reinlm.config import Config
from reinlm.loop.callbacks import Callback, Control
from reinlm.loop.events import Evaluated, Logged, RunEnded, RunStarted
from reinlm.loop.trackers.ledger import Ledger, plain
from reinlm.loop.trackers.registry import tracker


class WandbConfig(Config):
    """Where a run stands in Weights & Biases."""

    project: str = "reinlm"
    name: str | None = None
    """Of the run; null: the name of its folder."""
    entity: str | None = None
    """The user or team; null: the account's default."""
    mode: Literal["online", "offline"] = "online"
    """"offline" writes to `wandb/` in the run folder, which `wandb sync` uploads."""


@tracker("wandb", WandbConfig, package="wandb", extra="wandb")
class WandbTracker(Callback):
    """One W&B run for a run folder, also when it is resumed. What W&B had not written when a run is killed is missing there."""

    def __init__(self, config: WandbConfig) -> None:
        self.config = config
        self._run: Any = None
        self._samples: Any = None

    def on_run_started(self, event: RunStarted, control: Control) -> None:
        if event.over:
            return
        import wandb

        self._ledger = Ledger(event, "wandb", secrets.token_hex(4))
        self._run = wandb.init(
            project=self.config.project,
            name=self.config.name or event.folder.resolve().name,
            entity=self.config.entity,
            mode=self.config.mode,
            id=self._ledger.identity,
            resume="allow",
            dir=str(event.folder),
            config=plain(event.config),
            settings=wandb.Settings(console="off", silent=True),
        )

    def on_evaluated(self, event: Evaluated, control: Control) -> None:
        self._samples = event.samples

    def on_logged(self, event: Logged, control: Control) -> None:
        samples, self._samples = self._samples, None
        if self._run is None or not self._ledger.claim(event.step):
            return
        row: dict[str, Any] = dict(event.metrics)
        if samples:
            import wandb

            columns = list(dict.fromkeys(name for sample in samples for name in sample))
            data = [[plain(sample.get(name)) for name in columns] for sample in samples]
            row["samples_table"] = wandb.Table(columns=columns, data=data, allow_mixed_types=True)
        self._run.log(row, step=event.step, commit=True)

    def on_run_ended(self, event: RunEnded, control: Control) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0 if event.reason in ("finished", "stopped") else 1)
            self._run = None
