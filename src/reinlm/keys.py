"""All keys of the configuration, as data: what `reinlm keys`, the help of the verbs and hints on unknown keys read.

`keys.json` beside this file is written from the configuration classes by `reinlm.key_reference`, and a test holds the two
together; reading it needs neither torch nor pydantic.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from reinlm.aliases import aliases_of
from reinlm.errors import InputError, nearest, unknown

VERBS = ("rl", "sft", "eval", "generate", "classical")
"""The verbs that take keys."""
REQUIRED = "required"
"""In place of a default."""


@dataclass(frozen=True)
class Key:
    """One key of a recipe, or one setting of a classical algorithm.

    Example:
        Key("rollout.group_size", "integer ≥ 1", "Answers to each prompt.", {"rl": "8"})
    """

    key: str
    """As it is typed: `SECTION.NAME`; of a part `algorithm.gate.clip.low`."""
    type: str
    """What may stand there: a type with its range, or the allowed words."""
    doc: str
    defaults: Mapping[str, str] = field(hash=False)
    """By verb: the default in recipe syntax, or "required"."""
    algorithms: tuple[str, ...] = ()
    """Of a setting of `reinlm classical`: the algorithms that have it; empty for a flag or a key of every one."""

    @property
    def section(self) -> str:
        """The part before the first dot; empty for a key that stands alone."""
        return self.key.partition(".")[0] if "." in self.key else ""

    @property
    def names(self) -> tuple[str, ...]:
        """Its names in other libraries."""
        return aliases_of(self.key, classical="classical" in self.defaults)


@functools.cache
def all_keys() -> tuple[Key, ...]:
    """Every key of every verb that the library itself has, in the order of the sections."""
    rows = json.loads((Path(__file__).parent / "keys.json").read_text(encoding="utf-8"))
    return tuple(Key(**{**row, "algorithms": tuple(row.get("algorithms", ()))}) for row in rows)


def keys_of(verb: str) -> tuple[Key, ...]:
    """The keys of one verb. Raises InputError for a verb that takes none."""
    if verb not in VERBS:
        raise unknown("verb", verb, VERBS)
    return tuple(key for key in all_keys() if verb in key.defaults)


def grouped(verb: str) -> dict[str, list[Key]]:
    """The keys of a verb by section: those that stand alone under "", the algorithm's parts under "algorithm".

    Raises InputError as `keys_of` does.
    """
    groups: dict[str, list[Key]] = {"": []}
    for key in keys_of(verb):
        groups.setdefault(key.section, []).append(key)
    return groups


def find_keys(word: str | None = None, verb: str | None = None) -> list[Key]:
    """The keys in whose name, description or foreign names all words of `word` occur; names first, then descriptions.

    Raises:
        InputError: nothing found, with the most similar key; or an unknown verb.
    """
    known = all_keys() if verb is None else keys_of(verb)
    words = (word or "").lower().replace("-", "_").split()
    ranked = [(rank, key) for key in known if (rank := _rank(key, words)) is not None]
    if not ranked:
        near = nearest((word or "").split(".")[-1], {part for key in known for part in key.key.split(".")})
        where = "" if verb is None else f" of {verb}"
        hint = f"try `reinlm keys {near}`" if near else "`reinlm keys` lists all"
        raise InputError(f"no key{where} has {word!r} in its name, its description or its names elsewhere", hint=hint)
    return [key for _, key in sorted(ranked, key=lambda pair: pair[0])]


def _rank(key: Key, words: Iterable[str]) -> int | None:
    """0 if the key's own name has all words, 1 with its names elsewhere, 2 with its description; None if one is missing."""
    texts = [key.key.lower(), " ".join(key.names).lower(), f"{key.doc} {key.type}".lower().replace("-", "_")]
    for rank in range(len(texts)):
        if all(any(word in text for text in texts[: rank + 1]) for word in words):
            return rank
    return None


def locate(name: str, verb: str) -> list[str]:
    """The keys of a verb whose last part is `name`, the shortest ones only: where a key at the wrong level belongs.

    Example:
        >>> locate("learning_rate", "rl")
        ['optimizer.learning_rate']
    """
    found = [key.key for key in keys_of(verb) if key.key.rpartition(".")[2] == name]
    fewest = min((key.count(".") for key in found), default=0)
    return [key for key in found if key.count(".") == fewest]
