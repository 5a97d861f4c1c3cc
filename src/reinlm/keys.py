"""All keys of the configuration, as data: what `reinlm keys`, the help of the verbs and hints on unknown keys read.

`keys.json` beside this file is written from the configuration classes by `reinlm.key_reference`, and a test holds the two
together; reading it needs neither torch nor pydantic.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from reinlm.aliases import alias_hint, aliases_of, is_alias
from reinlm.errors import InputError, nearest, unknown
from reinlm.program import command_line

VERBS = ("rl", "sft", "rft", "dpo", "reward", "eval", "generate", "bench", "create-model", "classical")
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
        hint = f"try `{command_line('keys', near)}`" if near else f"`{command_line('keys')}` lists all"
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
    """The keys of a verb, or the choices with keys of their own, whose last part is `name`; those nearest to the top alone.

    Example:
        >>> locate("learning_rate", "rl")
        ['optimizer.learning_rate']
    """
    parts = (key.key.split(".") for key in keys_of(verb))
    every = dict.fromkeys(".".join(path[:end]) for path in parts for end in range(1, len(path) + 1))
    found = [path for path in every if path.rpartition(".")[2] == name]
    fewest = min((path.count(".") for path in found), default=0)
    return [path for path in found if path.count(".") == fewest]


def key_hint(path: Sequence[str], value: Any = None, *, verb: str) -> str | None:
    """What to write in place of an unknown key: ours for the name of another library, or the level where it belongs.

    Example:
        >>> key_hint(["num_generations"], 8, verb="rl")
        "TRL's num_generations is rollout.group_size"
        >>> key_hint(["group_size"], 8, verb="rl")
        'the key is rollout.group_size'

    Args:
        path: the parts of the key as given.
        value: the value given to it; of a mapping the inner keys are looked up too.
        verb: whose keys are known; another one for a configuration of no verb.
    """
    if verb not in VERBS:
        return alias_hint(path, value)
    if verb == "classical":
        return alias_hint(path, value, classical=True)
    known = {key.key for key in keys_of(verb)}
    here = ".".join(path)
    inner = here in known or any(key.startswith(f"{here}.") for key in known)
    places = [] if inner else [place for place in locate(path[-1], verb) if place != here]
    hint = alias_hint(path, value, known=known)
    main = str(hint).partition(";")[0]
    another = main.startswith("write ") or (is_alias(path) and not any(f" is {place}" in main for place in places))
    deeper = not places or (len(path) > 1 and all(place.count(".") > len(path) for place in places))  # as of one engine
    if hint is not None and (deeper or another):
        return hint
    if places and (hint is None or len(places) == 1):
        return f"the key is {' or '.join(places[:3])}"
    misspelt = get_close_matches(here, {key.partition(".")[0] for key in known})
    if hint is None and isinstance(value, Mapping) and not misspelt:
        inside = {name: locate(str(name), verb) for name in value}
        said = [f"{here}.{name} is {found[0]}" for name, found in inside.items() if len(found) == 1]
        return "; ".join(said) or None
    return hint


def takes(type_: str, text: str) -> bool:
    """Whether a value, as it is typed, fits the type of a key in the words of `Key.type`; ranges are not looked at.

    Example:
        >>> takes("integer ≥ 0", "0.1"), takes("auto | float32", "auto"), takes("text", "x")
        (False, True, True)
    """
    for option in type_.split(" | "):
        kind = option.partition(" ")[0]
        pattern = {"integer": r"[-+]?\d+", "number": r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?"}.get(kind)
        if option in ("text", "any", text) or (pattern and re.fullmatch(pattern, text)):
            return True
        if (kind in ("list", "[number,", "a") and text[:1] == "[") or (
            kind in ("mapping", "section") and text[:1] == "{"
        ):
            return True
        if option.startswith("file.py:") and ".py:" in text:
            return True
    return False


def flag_hint(flag: str, verb: str, value: Any = None) -> str | None:
    """What to write in place of an unknown flag that is the name of a key, here or in another library: KEY=VALUE.

    Example:
        >>> flag_hint("--learning-rate", "rl")
        'the key is optimizer.learning_rate (write KEY=VALUE, without dashes)'
    """
    path = flag.lstrip("-").replace("-", "_").split(".")
    if verb in VERBS and verb != "classical" and any(key.key == ".".join(path) for key in keys_of(verb)):
        return f"write {'.'.join(path)}=VALUE, without dashes"
    if verb == "classical" and any(key.key == path[-1] for key in keys_of(verb)):
        return f"write {path[-1]}=VALUE, without dashes"
    hint = key_hint(path, value, verb=verb)
    if hint and hint.startswith("write "):
        return hint
    return f"{hint} (write KEY=VALUE, without dashes)" if hint and " is --" not in hint else hint
