"""The algorithms of `reinlm dpo` as tables and sections, for the terminal, JSON and `docs/algorithms.md`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from reinlm.algorithms.cards import Card
from reinlm.algorithms.preference import (
    PREFERENCE_CARDS,
    PREFERENCES,
    preference_algorithm_spec,
    preference_name,
)

PREFERENCE_COLUMNS = ("name", "loss", "values", "data", "reference", "source")


def preference_cards() -> list[Card]:
    """The cards of all algorithms of `reinlm dpo`, sorted by the date of their paper."""
    return sorted(PREFERENCE_CARDS.values(), key=lambda card: card.published)


def preference_table() -> list[dict[str, str]]:
    """One row per algorithm, sorted by the date of its paper: its loss, its values, what it reads, and its source."""
    rows = []
    for card in preference_cards():
        made = PREFERENCES[card.name]()
        rows.append(
            {
                "name": card.name,
                "loss": card.equation.removeprefix("L = "),
                "values": ", ".join(f"{name} {value}" for name, value in _values(card.name).items()),
                "data": made.takes,
                "reference": "yes" if made.needs_reference else "no",
                "source": card.source,
            }
        )
    return rows


def preference_details(name: str) -> dict[str, Any]:
    """The card of one algorithm, all its values, and the differences from its parent, as plain values.

    Raises InputError for an unknown name.
    """
    name = preference_name(name)
    card, made = PREFERENCE_CARDS[name], PREFERENCES[name]()
    mine, theirs = _values(name), {} if card.parent is None else _values(card.parent)
    needs = ["reference"] if made.needs_reference else []
    return {
        **asdict(card),
        "verb": "dpo",
        "description": " ".join((PREFERENCES[name].__doc__ or "").split()),
        "differs": [
            {"choice": key, "from": str(theirs.get(key, "")), "to": str(mine.get(key, ""))}
            for key in (theirs | mine if theirs else ())
            if mine.get(key) != theirs.get(key)
        ],
        "choices": preference_algorithm_spec(made),
        "needs": [made.takes, *needs],
    }


def _values(name: str) -> dict[str, Any]:
    spec = preference_algorithm_spec(PREFERENCES[name]())
    return {key: value for key, value in spec.items() if key not in ("base", "kl")}


def preference_sections() -> list[str]:
    """Markdown lines: what `reinlm dpo` minimises, a table of its algorithms, and a section for each."""
    lines = [
        "",
        "## Algorithms of judged answers",
        "",
        "`reinlm dpo` learns from pairs of answers, or from answers that are labelled good or bad. Each algorithm is one loss",
        "of a pair (y_w, the better answer, and y_l) or of an answer. a = log π(y)/π_ref(y) is the log-ratio of a whole answer",
        "to the reference, h = a_w - a_l. `kl` adds a KL to the reference at every trained token (k2, k3 or full).",
        "",
        "| " + " | ".join(PREFERENCE_COLUMNS) + " |",
        "|" + "---|" * len(PREFERENCE_COLUMNS),
    ]
    for row in preference_table():
        escaped = {name: text.replace("|", "\\|") for name, text in row.items()}
        cells = [f"[`{row['name']}`](#{row['name']})", f"`{escaped['loss']}`"]
        lines.append("| " + " | ".join([*cells, *(escaped[column] for column in PREFERENCE_COLUMNS[2:])]) + " |")
    lines += ["", *_EXAMPLE]
    for card in preference_cards():
        lines += _section(preference_details(card.name))
    return lines


_EXAMPLE = (
    "```python",
    'reinlm.algorithms.preference_algorithm("dpo", beta=0.2, kl=0.05)',
    "```",
    "",
    "```yaml",
    "algorithm: {base: dpo, beta: 0.2, kl: 0.05}",
    "```",
)


def _section(item: dict[str, Any]) -> list[str]:
    lines = ["", f"### {item['name']}", "", item["description"], "", "```math", item["formula"], "```", ""]
    if item["differs"]:
        lines += [f"What it changes of `{item['parent']}`:", "", "| value | from | to |", "|---|---|---|"]
        lines += [f"| {row['choice']} | {row['from']} | {row['to']} |" for row in item["differs"]]
        lines.append("")
    return [
        *lines,
        f"- **Use it for**: {item['use']}",
        f"- **How it fails**: {item['fails']}",
        f"- **Source**: {item['source']}",
    ]
