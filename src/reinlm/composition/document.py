"""Choices as short text and as Markdown tables, for the terminal, JSON and `docs/algorithms.md`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from reinlm.composition.algorithm import Algorithm, Updates
from reinlm.composition.choices import algorithm_spec, choice_spec
from reinlm.objectives import CHOICES, KL
from reinlm.objectives.kl import ANCHORS, NAMES, PLACEMENTS


def short(choice: Any) -> str:
    """A choice as short text: its name and its most important values.

    Example:
        >>> short({"clip": {"low": 0.2, "high": 0.28, "dual": None}})
        'clip 0.2 0.28'
    """
    if not isinstance(choice, Mapping):
        return "none" if choice is None else str(choice)
    (name, values), *_ = choice.items()
    parts = [name]
    telling = _TELLING.get(name, ())
    for key, value in (values or {}).items():
        if isinstance(value, Mapping):
            parts.append(short(value))
        elif key in telling and value not in (None, False):
            parts.append(f"{value:g}")
    return " ".join(parts)


_TELLING = {
    "clip": ("low", "high", "dual"),
    "soft": ("positive", "negative"),
    "truncated_weight": ("cap", "floor"),
    "constant_budget": ("length",),
    "off_policy": ("threshold",),
    "gae": ("gamma", "gae_lambda"),
}
"""The values that `short` shows, by choice."""


def short_kl(kl: Any) -> str:
    """Every KL as short text: direction where one is set, estimator, coefficient, anchor and placement.

    Example:
        >>> short_kl({"estimator": "k3", "coefficient": 0.04, "anchor": "reference", "placement": "loss", "controller": None,
        ...           "direction": None, "allow_reward_alone": False})
        'k3 0.04 in loss'
    """
    words = []
    for term in kl if isinstance(kl, list) else [kl] if kl else []:
        to = "" if term["anchor"] == "reference" else f"to {term['anchor']}, "
        toward = f"{term['direction']} " if term["direction"] else ""
        moves = " adaptive" if term["controller"] else ""
        words.append(f"{toward}{term['estimator']} {term['coefficient']:g}{moves} {to}in {term['placement']}")
    return "; ".join(words) or "none"


def choice_rows(algorithm: Algorithm) -> list[tuple[str, str]]:
    """(choice, short text) of every choice that is made, the five first."""
    tree = algorithm_spec(algorithm)
    first = ("advantage", "ratio", "gate", "kl", "aggregation")
    others = [kind for kind in tree if kind not in (*first, "base", "name") and tree[kind] not in (None, [], False)]
    rows = [(kind, short_kl(tree[kind]) if kind == "kl" else _listed(tree[kind])) for kind in (*first, *others)]
    return [*rows, ("updates", short_updates(algorithm.updates))]


def changed_choices(made: Algorithm, parent: Algorithm | None) -> list[dict[str, str]]:
    """The choices in which an algorithm differs from its parent, as {choice, from, to}; empty without a parent."""
    if parent is None:
        return []
    mine, theirs = algorithm_spec(made), algorithm_spec(parent)
    changed = []
    for kind in mine:
        if kind != "base" and mine[kind] != theirs[kind]:
            say = short_kl if kind == "kl" else _listed
            changed.append({"choice": kind, "from": say(theirs[kind]), "to": say(mine[kind])})
    if made.updates != parent.updates:
        changed.append({"choice": "updates", "from": short_updates(parent.updates), "to": short_updates(made.updates)})
    return changed


def short_updates(updates: Updates) -> str:
    """The number of updates per batch, as short text.

    Example:
        >>> short_updates(Updates(passes=2, minibatches=4))
        '8 a batch: 2 passes of 4 minibatches'
    """
    total, parts = updates.passes * updates.minibatches, (updates.passes, updates.minibatches)
    if total == 1:
        return "1 a batch"
    each = [f"{n} {word}" if n == 1 else f"{n} {word}es" for n, word in zip(parts, ("pass", "minibatch"), strict=True)]
    return f"{total} a batch: {each[0]} of {each[1]}"


def _listed(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(short(item) for item in value) or "none"
    return short(value)


def choice_tables() -> list[str]:
    """Markdown lines: every registered choice with its fields and the first paragraph of its docstring."""
    lines = ["## Every choice by its name"]
    kinds = {**CHOICES, "kl": {"kl": KL}}
    for kind in sorted(kinds):
        lines += ["", f"### {kind}", "", "| name | values | what it is |", "|---|---|---|"]
        for name, made in kinds[kind].items():
            lines.append(f"| `{name}` | {_fields(made)} | {_first_sentence(made)} |")
        if kind == "kl":
            allowed = {
                "estimator": NAMES,
                "anchor": ANCHORS,
                "placement": PLACEMENTS,
                "direction": ("reverse", "forward"),
            }
            lines += ["", *(f"- `{value}`: {', '.join(names)}" for value, names in allowed.items())]
    return lines


def _fields(made: Any) -> str:
    if not is_dataclass(made):
        return ""
    given = ((item.name, item.default) for item in fields(made))
    return ", ".join(f"`{name}`" + ("" if default is MISSING else f"={yaml_text(default)}") for name, default in given)


def yaml_text(value: Any) -> str:
    """A default value in recipe syntax."""
    if isinstance(value, bool | None):
        return "null" if value is None else str(value).lower()
    return str(choice_spec(value) if is_dataclass(value) or callable(value) else value)


def _first_sentence(made: Any) -> str:
    text = " ".join((made.__doc__ or "").split("\n\n")[0].split())
    return text.replace("|", "\\|")
