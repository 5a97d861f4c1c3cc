"""What a table of option names holds, and the reasons that several tables give."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

MEMORY = "results do not depend on it: tokens that are in memory at once"
ALWAYS = "there is no such option"


class Alias(NamedTuple):
    """The equivalent of an option of another library.

    Example: TRL's `num_iterations` is `training.passes`:
        Alias("training.passes")
    """

    ours: str | None
    """Key of a recipe of `rl` or `sft`, or a flag; None without an equivalent."""
    note: str = ""
    """What differs, or why there is no equivalent."""
    classical: str | None = None
    """Setting or flag of `reinlm classical`."""
    same_value: bool = True
    """Whether a value means the same under our name; False where ours counts something else."""


def none_of(names: str, why: str) -> Iterable[tuple[str, Alias]]:
    """Options without a counterpart, for one reason."""
    return ((name, Alias(None, why)) for name in names.split())
