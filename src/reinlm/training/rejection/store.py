"""What an iteration has sampled, on disk in parts: a run that is resumed reads them in place of sampling again.

samples/iteration_2/weights.json       which weights the answers are of
samples/iteration_2/part_1.jsonl       answers with their rewards, as in `rollouts/`; their tokens beside it in .safetensors
samples/iteration_2/hinted/part_1.…    second tries with a hint
samples/iteration_2/selection_1.jsonl  every answer: kept or not, and why
samples/iteration_2/kept_1.jsonl       prompt and completion of the kept ones
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.numpy import save
from safetensors.torch import load_file, save_file
from torch import nn

from reinlm.records import ScoredGroup
from reinlm.rewards.attempts import Usage
from reinlm.runs.files import remove, write_atomic, write_json, write_json_lines
from reinlm.runs.schema import pack_groups, read_groups
from reinlm.runs.state import pack_state, unpack_state

WEIGHTS = "weights.json"


@dataclass(frozen=True)
class Part:
    """The answers to some of the prompts, scored."""

    groups: tuple[ScoredGroup, ...]
    failures: int
    """Answers that a reward function failed on."""
    messages: Mapping[str, str]
    """By reward that failed: what went wrong first."""
    usage: Mapping[str, Usage]
    """By reward: what its calls cost, and what it logged."""
    rewards: Mapping[str, Any] = field(default_factory=dict)
    """The state of the rewards after it."""


class SampleStore:
    """The folder of the samples of one iteration.

    Args:
        folder: made where it is not there.
        weights: `fingerprint` of the weights that are sampled from; parts of other ones are removed. None: those that are there.
    """

    def __init__(self, folder: Path, weights: str | None) -> None:
        self.folder = folder
        known = folder / WEIGHTS
        if weights is None:
            return
        if folder.exists() and (not known.is_file() or json.loads(known.read_text())["sha256"] != weights):
            remove(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(known, {"sha256": weights})

    def read(self, name: str) -> Part | None:
        """A part that is written completely; None for any other."""
        path = self.folder / f"{name}.jsonl"
        if not path.is_file():
            return None
        groups, _ = read_groups(path)
        tensors = path.with_suffix(".state.safetensors")
        tree = json.loads(path.with_suffix(".state.json").read_text(encoding="utf-8"))
        state = unpack_state(tree, load_file(tensors) if tensors.is_file() else {})
        usage = {reward: Usage(**used) for reward, used in state["usage"].items()}
        return Part(tuple(groups), state["failures"], state["messages"], usage, state["rewards"])

    def write(self, name: str, part: Part) -> None:
        """Write a part; it counts once its last file, the answers, is there."""
        path = self.folder / f"{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        rows, columns = pack_groups(part.groups)
        usage = {reward: asdict(used) for reward, used in part.usage.items()}
        state = {"failures": part.failures, "messages": dict(part.messages), "usage": usage, "rewards": part.rewards}
        tree, tensors = pack_state(state)
        if tensors:
            save_file(tensors, path.with_suffix(".state.safetensors"))
        write_atomic(path.with_suffix(".state.json"), json.dumps(tree))
        write_atomic(path.with_suffix(".safetensors"), save(columns))
        write_json_lines(path, rows)

    def write_rows(self, name: str, rows: Iterable[Any]) -> None:
        """Write further rows beside the parts."""
        write_json_lines(self.folder / f"{name}.jsonl", rows)


def fingerprint(model: nn.Module) -> str:
    """sha256 of all weights of a model."""
    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
