"""A task without a model for the loop's own tests, and tiny real runs through the public API."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import reinlm
from reinlm.loop import Callback, Loop, LoopSettings, StepContext, StepReport, Updated
from reinlm.loop.run import ALONE
from reinlm.models import character_tokenizer, load_policy, tiny_model
from reinlm.runs import RunFolder, read_metrics, without_clocks

ROWS = [{"prompt": f"{a}+{b}=", "completion": str(a + b)} for a in range(5) for b in range(5)]


class FakeTask:
    """Walks at random: w ← w + rate · noise, with the loss w². Evaluated where `accuracies` has a value for the step."""

    kind = "sft"

    def __init__(self, total_steps: int = 6, accuracies: Mapping[int, float] | None = None, fails_at: int = -1) -> None:
        self.total_steps = total_steps
        self.accuracies = accuracies or {}
        self.fails_at = fails_at
        self.policy = torch.zeros(3, dtype=torch.float64)
        self.rate = 0.1
        self.contexts: list[StepContext] = []
        self.version = 0

    def step(self, step: int, context: StepContext = ALONE) -> StepReport:
        if step == self.fails_at:
            raise OSError("the environment has gone away")
        self.contexts.append(context)
        self.policy = self.policy + self.rate * torch.randn(3, dtype=torch.float64) * random.random()
        self.version += 1
        metrics = {"loss": float((self.policy**2).sum()), "learning_rate": self.rate}
        context.send(Updated(step, metrics))
        return StepReport(metrics)

    def evaluate(self, step: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
        if step not in self.accuracies:
            return {}, []
        sample = {"prompt": "2+2=", "completion": str(step), "reward": self.accuracies[step], "end": "stop"}
        return {"eval/x/accuracy": self.accuracies[step]}, [sample]

    def set_learning_rate(self, value: float) -> None:
        self.rate = value

    def scale_learning_rate(self, factor: float) -> None:
        self.rate *= factor

    def save(self, folder: Path) -> None:
        torch.save(self.policy, folder / "weights.pt")

    def restore(self, folder: Path) -> None:
        self.policy = torch.load(folder / "weights.pt", weights_only=True)

    def state_dict(self) -> dict[str, Any]:
        return {"rate": self.rate}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.rate = state["rate"]


def loop(path: Path, task: FakeTask, callbacks: Sequence[Any] = (), *, resume: bool = False, **settings: Any) -> Loop:
    """A loop over the fake task, seeded; the folder's lock is given back when the folder object goes."""
    torch.manual_seed(5)
    random.seed(5)
    config = {"seed": 5, "run": {"output": None}}
    folder = RunFolder.create(path, kind="sft", config=config, command="", resume=resume)
    folder.close()
    chosen = {"higher_is_better": True, "evaluate_every": 1} | settings
    return Loop(task, LoopSettings(**chosen), folder, callbacks=callbacks)


def logged(folder: Path) -> list[dict[str, Any]]:
    """The records of a run without what depends on the clock."""
    return [without_clocks(record) for record in read_metrics(folder / "metrics.jsonl")]


def tiny() -> tuple[Any, Any]:
    """One layer of 16 with a character tokenizer."""
    tokenizer = character_tokenizer("0123456789+=")
    shape: dict[str, Any] = {"hidden_size": 16, "layers": 1, "heads": 2, "context": 32}
    policy = load_policy((tiny_model("qwen3", vocab_size=len(tokenizer), seed=0, **shape), tokenizer))
    return policy.model, policy.tokenizer


def even(completions: list[str], **_: Any) -> list[float]:
    return [float(text[-1:] in tuple("02468")) for text in completions]


def sft(folder: Path, callbacks: Sequence[Callback] = (), **changes: Any) -> Any:
    settings: dict[str, Any] = {
        "quiet": True,
        "optimizer": {"learning_rate": 5e-3, "schedule": "constant"},
        "training": {"steps": 4, "batch_size": 8},
        "run": {"tensorboard": False},
    }
    return reinlm.sft(tiny(), ROWS, output=folder, callbacks=callbacks, **_changed(settings, changes))


def rl(folder: Path, callbacks: Sequence[Callback] = (), **changes: Any) -> Any:
    settings: dict[str, Any] = {
        "quiet": True,
        "reward": {"functions": even, "time_limit": None},
        "rollout": {"group_size": 4, "batch_size": 8, "max_new_tokens": 3},
        "training": {"steps": 3},
        "optimizer": {"learning_rate": 5e-3},
        "run": {"tensorboard": False},
    }
    return reinlm.rl(tiny(), ROWS, output=folder, callbacks=callbacks, **_changed(settings, changes))


def _changed(settings: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(settings)
    for key, value in changes.items():
        old = merged.get(key)
        merged[key] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


class Recorder(Callback):
    """Keeps every event, and notes its own name in a list that several share."""

    def __init__(self, label: str = "", order: list[str] | None = None) -> None:
        self.label = label
        self.order = order if order is not None else []
        self.events: list[Any] = []

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("on_"):
            return super().__getattribute__(name)

        def keep(event: Any, control: Any) -> None:
            self.events.append(event)
            self.order.append(f"{self.label}{name}")

        return keep


class Smoothed(Callback):
    """A stateful callback that acts on the run: logs a running mean of the loss, and slows learning while it rises."""

    def __init__(self) -> None:
        self.mean: float | None = None
        self.history = torch.zeros(0, dtype=torch.float64)

    def on_step_ended(self, event: Any, control: Any) -> None:
        loss = event.metrics["loss"]
        before = self.mean
        self.mean = loss if before is None else 0.7 * before + 0.3 * loss
        self.history = torch.cat([self.history, torch.tensor([loss + torch.rand(()).item()], dtype=torch.float64)])
        control.log("mine/mean_loss", self.mean)
        control.log("mine/noise", float(self.history.sum()))
        control.scale_learning_rate(0.9 if before is not None and self.mean > before else 1.05)

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "history": self.history}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.mean, self.history = state["mean"], state["history"]
