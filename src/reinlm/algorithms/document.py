"""What is told about the named algorithms, in a terminal, as JSON and as a page: all from their cards and choices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from reinlm.algorithms.algorithm import Algorithm, Updates
from reinlm.algorithms.choices import describe, spell
from reinlm.algorithms.ladder import ALGORITHMS, CARDS, Card, ladder
from reinlm.errors import unknown

COLUMNS = ("name", "advantage", "ratio", "gate", "kl", "weights", "critic", "source")


def table() -> list[dict[str, str]]:
    """A row for each named algorithm by the date of its paper: its five choices in short, critic and source."""
    rows = []
    for card in ladder():
        tree = describe(ALGORITHMS[card.name]())
        rows.append(
            {
                "name": card.name,
                **{kind: short(tree[kind]) for kind in ("advantage", "ratio", "gate")},
                "kl": short_kl(tree["kl"]),
                "weights": short(tree["weights"]),
                "critic": "yes" if tree["critic"] else "no",
                "source": card.source,
            }
        )
    return rows


def short(choice: Any) -> str:
    """A choice in a few words: its name, and its values where they say something.

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
"""Values that a short form gives."""


def short_kl(kl: Any) -> str:
    """Every tie in a few words: direction where one is said, estimator, coefficient, anchor and place.

    Example:
        >>> short_kl({"estimator": "k3", "coefficient": 0.04, "anchor": "reference", "placement": "loss", "controller": None,
        ...           "direction": None, "allow_reward_alone": False})
        'k3 0.04 in loss'
    """
    ties = kl if isinstance(kl, list) else [kl] if kl else []
    words = []
    for tie in ties:
        to = "" if tie["anchor"] == "reference" else f"to {tie['anchor']}, "
        toward = f"{tie['direction']} " if tie["direction"] else ""
        moves = " adaptive" if tie["controller"] else ""
        place = tie["placement"].replace("_", " ")
        words.append(f"{toward}{tie['estimator']} {tie['coefficient']:g}{moves} {to}in {place}")
    return "; ".join(words) or "none"


def told(name: str) -> dict[str, Any]:
    """Everything about one algorithm: its card, all its choices, and how they differ from its parent's.

    Raises InputError for an unknown name, with the nearest.
    """
    card, made = _find(name)
    return {
        **asdict(card),
        "description": " ".join((ALGORITHMS[name].__doc__ or "").split()),
        "differs": differences(card, made),
        "choices": describe(made),
        "updates": short_updates(made.updates),
        "needs": sorted(made.advantage.needs | ({"reference"} if made.needs_reference else set())),
        "warnings": list(made.warnings),
    }


def differences(card: Card, made: Algorithm) -> list[dict[str, str]]:
    """What the algorithm changes of its parent: choice, from, to; empty for the lowest rung."""
    if card.parent is None:
        return []
    mine, theirs = describe(made), describe(ALGORITHMS[card.parent]())
    changed = []
    for kind in mine:
        if kind != "base" and mine[kind] != theirs[kind]:
            say = short_kl if kind == "kl" else _listed
            changed.append({"choice": kind, "from": say(theirs[kind]), "to": say(mine[kind])})
    before, after = ALGORITHMS[card.parent]().updates, made.updates
    if before != after:
        changed.append({"choice": "updates", "from": short_updates(before), "to": short_updates(after)})
    return changed


def short_updates(updates: Updates) -> str:
    """How many updates a batch makes, in a few words.

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


def _find(name: str) -> tuple[Card, Algorithm]:
    if name not in CARDS:
        raise unknown("algorithm", name, CARDS)
    return CARDS[name], ALGORITHMS[name]()


def page() -> str:
    """`docs/algorithms.md`: the ladder, and a section for each algorithm."""
    lines = [
        "# Algorithms",
        "",
        "Every online algorithm here is one update, loss = Σ_t w_t · ( gate(ratio_t, advantage_t) + β · KL_t ), and five",
        "choices.",
        "This page is written by `reinlm algorithms --page` from the files that define the algorithms.",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "---|" * len(COLUMNS),
    ]
    for row in table():
        cells = [f"[`{row['name']}`](#{row['name']})", *(row[column] for column in COLUMNS[1:])]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "Any choice can be replaced, from Python or in a recipe:", "", *_EXAMPLE]
    for card in ladder():
        lines += _section(told(card.name))
    return "\n".join([*lines, "", *_choices()]) + "\n"


_EXAMPLE = (
    "```python",
    'reinlm.algorithm("grpo", ratio="sequence", gate={"clip": [3e-4, 4e-4]})',
    "```",
    "",
    "```yaml",
    "algorithm: {base: grpo, ratio: sequence, gate: {clip: [3e-4, 4e-4]}}",
    "```",
)


def _section(item: Mapping[str, Any]) -> list[str]:
    lines = ["", f"## {item['name']}", "", item["description"], "", "```math", item["formula"], "```", ""]
    if item["parent"]:
        lines += [f"What it changes of `{item['parent']}`:", "", "| choice | from | to |", "|---|---|---|"]
        lines += [f"| {row['choice']} | {row['from']} | {row['to']} |" for row in item["differs"]]
        lines.append("")
    return [
        *lines,
        f"- **Use it for**: {item['use']}",
        f"- **How it fails**: {item['fails']}",
        f"- **Updates of its paper**: {item['updates']}",
        f"- **Source**: {item['source']}",
    ]


def _choices() -> list[str]:
    """Every choice that a recipe may name, with the first line of its documentation."""
    from reinlm.objectives import CHOICES, KL
    from reinlm.objectives.kl import ANCHORS, NAMES, PLACEMENTS

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
    from dataclasses import MISSING, fields, is_dataclass

    if not is_dataclass(made):
        return ""
    given = ((item.name, item.default) for item in fields(made))
    return ", ".join(
        f"`{name}`" + ("" if default is MISSING else f"={spell_value(default)}") for name, default in given
    )


def spell_value(value: Any) -> str:
    """A default as a recipe would write it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(spell(value))


def _first_sentence(made: Any) -> str:
    text = " ".join((made.__doc__ or "").split("\n\n")[0].split())
    return text.replace("|", "\\|")
