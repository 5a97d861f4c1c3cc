"""The ledger of a run: a line for each model in memory, in run.json, in the console and in the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from reinlm.display import text_table

MIB = 2**20


@dataclass(frozen=True)
class Entry:
    """A line of the ledger. Bytes are those of this process (of a sharded model its share), and each byte is counted once: for
    the first model that holds it.

    Example: a reference that is the policy without its LoRA adapter:
        Entry("reference", parameters=1000, trained=0, weights=0, gradients=0, optimizer=0, shares="all parameters with policy")
    """

    role: str
    parameters: int
    """All that it computes with, shared ones too; tied ones once."""
    trained: int
    """Those that its own optimizer updates."""
    weights: int
    """Bytes of parameters and buffers that no model above holds."""
    gradients: int
    """Bytes of the gradients of the trained parameters, during an update."""
    optimizer: int | None
    """Bytes of the optimizer's state after its first step; None where that cannot be said before it."""
    shares: str
    """With which models above, and how much; empty for nothing."""

    @property
    def total(self) -> int:
        """Bytes of all three."""
        return self.weights + self.gradients + (self.optimizer or 0)


def rows(entries: Sequence[Entry | Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """The ledger as a table, sizes in MiB, with a head and where there are several models their sum."""
    known = [entry if isinstance(entry, Entry) else Entry(**entry) for entry in entries]
    head = ("model", "parameters", "trained", "weights", "gradients", "optimizer", "sum (MiB)", "shares")
    body = [
        (
            one.role,
            f"{one.parameters:,}",
            f"{one.trained:,}" if one.trained else "frozen",
            *(_mib(size) for size in (one.weights, one.gradients, one.optimizer, one.total)),
            one.shares,
        )
        for one in known
    ]
    return [head, *body]


def _mib(size: int | None) -> str:
    return "?" if size is None else f"{size / MIB:,.1f}" if size >= MIB / 10 else f"{size / MIB:.2g}"


def console_lines(entries: Sequence[Entry]) -> list[str]:
    """The table for a console."""
    return text_table(rows(entries)).splitlines()


def to_json(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """For run.json."""
    return [asdict(entry) for entry in entries]
