"""The named algorithms: what registers one, and what is told about them, in a terminal, as JSON and as a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import wraps
from typing import Any

from reinlm.composition import Algorithm, describe
from reinlm.composition.document import choice_tables, differences, short, short_kl, short_updates
from reinlm.errors import unknown

ALGORITHMS: dict[str, Callable[[], Algorithm]] = {}
CARDS: dict[str, Card] = {}


@dataclass(frozen=True)
class Card:
    """What the documentation says of a named algorithm, beside what its choices say for themselves.

    Example:
        Card(name="gspo", parent="grpo", source="GSPO, arXiv 2507.18071", published="2025-07-24", equation="J = …",
             formula=r"J(\\theta) = …", summary="GRPO with one ratio a sequence.", use="…", fails="…")
    """

    name: str
    parent: str | None
    """The rung below: what it is told as a difference from."""
    source: str
    published: str
    """Year and month, which order the ladder."""
    equation: str
    """What is maximised, in plain characters."""
    formula: str
    """The same in LaTeX."""
    summary: str
    """One sentence."""
    use: str
    """When to take it."""
    fails: str
    """How it fails, and what to look at."""


def named(
    *, parent: str | None, source: str, published: str, equation: str, formula: str, use: str, fails: str
) -> Callable[[Callable[[], Algorithm]], Callable[[], Algorithm]]:
    """Register a composition under its function's name, and give the algorithm that name and source.

    The first line of the docstring is the summary.
    """

    def register(compose: Callable[[], Algorithm]) -> Callable[[], Algorithm]:
        name = compose.__name__
        summary = (compose.__doc__ or "").strip().splitlines()[0]

        @wraps(compose)
        def build() -> Algorithm:
            return replace(compose(), name=name, source=source)

        ALGORITHMS[name] = build
        CARDS[name] = Card(name, parent, source, published, equation, formula, summary, use, fails)
        return build

    return register


def ladder() -> list[Card]:
    """All named algorithms by the date of their paper."""
    return sorted(CARDS.values(), key=lambda card: card.published)


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


def told(name: str) -> dict[str, Any]:
    """Everything about one algorithm: its card, all its choices, and how they differ from its parent's.

    Raises InputError for an unknown name, with the nearest.
    """
    if name not in CARDS:
        raise unknown("algorithm", name, CARDS)
    card, made = CARDS[name], ALGORITHMS[name]()
    parent = None if card.parent is None else ALGORITHMS[card.parent]()
    return {
        **asdict(card),
        "description": " ".join((ALGORITHMS[name].__doc__ or "").split()),
        "differs": differences(made, parent),
        "choices": describe(made),
        "updates": short_updates(made.updates),
        "needs": sorted(made.advantage.needs | ({"reference"} if made.needs_reference else set())),
        "warnings": list(made.warnings),
    }


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
    return "\n".join([*lines, "", *choice_tables()]) + "\n"


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
        f"- **Updates**: {item['updates']}",
        f"- **Source**: {item['source']}",
    ]
