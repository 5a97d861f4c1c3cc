"""Weights & Biases: metrics by step, the configuration, and a table of samples at each evaluation."""

from __future__ import annotations

import inspect
import os
import secrets
from collections.abc import Mapping
from typing import Any, Literal

from reinlm.config import Config
from reinlm.errors import InputError
from reinlm.loop.events import RunEnded, RunStarted
from reinlm.loop.trackers.logged_steps import as_builtins
from reinlm.loop.trackers.registry import tracker
from reinlm.loop.trackers.service import ServiceTracker


class WandbConfig(Config):
    """Project and name of the run in Weights & Biases."""

    project: str = "reinlm"
    """The project that the run belongs to."""
    name: str | None = None
    """Name of the run; null: the name of its folder."""
    group: str | None = None
    """Group of the run; null: as WANDB_RUN_GROUP says; runs of a queue of seeds or a grid: the name of its folder."""
    entity: str | None = None
    """The user or team; null: the account's default."""
    mode: Literal["online", "offline"] | None = None
    """"offline" writes to `wandb/` in the run folder, which `wandb sync` uploads; null: as WANDB_MODE says, else online."""


@tracker("wandb", WandbConfig, package="wandb", extra="wandb")
class WandbTracker(ServiceTracker):
    """One W&B run for a run folder, also when it is resumed. What W&B had not written when a run is killed is missing there.

    Raises InputError where the mode is "online" and there is no API key.
    """

    service = "wandb"

    def __init__(self, config: WandbConfig) -> None:
        super().__init__()
        self.config = config
        if (config.mode or os.environ.get("WANDB_MODE", "online")) == "online" and not _has_key():
            raise InputError(
                "tracker 'wandb' has no API key",
                hint="run `wandb login`, set WANDB_API_KEY, or write run.trackers.wandb.mode=offline",
            )

    def identity(self, event: RunStarted) -> str:
        return secrets.token_hex(4)

    def open(self, event: RunStarted, identity: str) -> Any:
        import wandb

        return wandb.init(
            project=self.config.project,
            name=self.config.name or event.folder.resolve().name,
            group=self.config.group,
            entity=self.config.entity,
            mode=self.config.mode,
            id=identity,
            resume="allow",
            dir=str(event.folder.resolve()),  # its service has a working directory of its own
            config=as_builtins(event.config),
            settings=wandb.Settings(console="off", silent=True),
        )

    def log(
        self, run: Any, metrics: Mapping[str, float], table: tuple[list[str], list[list[Any]]] | None, step: int
    ) -> None:
        row: dict[str, Any] = dict(metrics)
        if table is not None:
            import wandb

            columns, data = table
            row["samples_table"] = wandb.Table(columns=[*columns], data=data, allow_mixed_types=True)
        run.log(row, step=step, commit=True)

    def finish(self, run: Any, event: RunEnded) -> None:
        run.finish(exit_code=0 if event.reason in ("finished", "stopped") else 1)


def _has_key() -> bool:
    """Whether W&B finds a key: in the environment, its settings or the netrc file."""
    import wandb

    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    if "prompt" in inspect.signature(wandb.login).parameters:
        return bool(wandb.login(prompt=False, verify=False))
    return bool(wandb.api.api_key)
