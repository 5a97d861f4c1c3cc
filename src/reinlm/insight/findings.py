"""What a comparison says beside its figures: groups that are identical, notes of the runs, updates of a batch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from reinlm.runs.declarations import without_clocks
from reinlm.sources import IN_FORCE

if TYPE_CHECKING:
    from reinlm.insight.compare import ComparedRun

UPDATES = "updates of a batch"


def identical_groups(groups: Mapping[str, Sequence[ComparedRun]]) -> list[str]:
    """One sentence for each set of groups whose runs have logged the same figures, clocks aside."""
    alike: dict[str, list[str]] = {}
    for name, runs in groups.items():
        figures = sorted((str(run.seed), repr([without_clocks(record) for record in run.records])) for run in runs)
        if all(run.records for run in runs):
            alike.setdefault(repr(figures), []).append(name)
    return [
        f"groups {', '.join(names[:-1])} and {names[-1]} are identical in every figure"
        for names in alike.values()
        if len(names) > 1
    ]


def notes_of(groups: Mapping[str, Sequence[ComparedRun]]) -> list[str]:
    """Each note of the runs once, with the groups that have it where not all do."""
    having: dict[str, dict[str, None]] = {}
    for name, runs in groups.items():
        for note in dict.fromkeys(note for run in runs for note in run.notes):
            having.setdefault(note, {})[name] = None
    return [note if len(names) == len(groups) else f"{', '.join(names)}: {note}" for note, names in having.items()]


def updates_that_differ(groups: Mapping[str, Sequence[ComparedRun]]) -> dict[str, str]:
    """By group the updates that are made of a batch; empty where no two groups differ in them."""
    found = {name: runs[0].updates for name, runs in groups.items()}
    return {name: text or "" for name, text in found.items()} if len({*found.values()}) > 1 else {}


def updates_in_force(config: Mapping[str, Any], text: str) -> str | None:
    """The updates of a batch that a run's config.yaml says: `8 (1 × 8)`, passes times minibatches; None where it says none.

    Args:
        text: of the file, whose comments say what stands for nulls.
    """
    training = config.get("training")
    counts = []
    for name in ("passes", "minibatches"):
        value = training.get(name) if isinstance(training, Mapping) else None
        implied = re.search(rf"^  {name}: null  # {IN_FORCE}(\d+)$", text, re.MULTILINE)
        value = int(implied[1]) if value is None and implied else value
        if not isinstance(value, int):
            return None
        counts.append(value)
    return f"{counts[0] * counts[1]} ({counts[0]} × {counts[1]})"
