"""The registry of named algorithms, and their descriptions for the terminal, JSON and `docs/algorithms.md`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Unpack

from reinlm.algorithms.cards import Card, Described, registering
from reinlm.composition import Algorithm, algorithm_spec
from reinlm.composition.document import changed_choices, choice_tables, short, short_kl, short_updates
from reinlm.errors import find_name, unknown
from reinlm.renamed import renamed

ALGORITHMS: dict[str, Callable[[], Algorithm]] = {}
CARDS: dict[str, Card] = {}


def named(**described: Unpack[Described]) -> Callable[[Callable[[], Algorithm]], Callable[[], Algorithm]]:
    """Register an algorithm of `reinlm rl`."""
    return registering(ALGORITHMS, CARDS, described)


def algorithm_name(name: str) -> str:
    """The name of an algorithm as it is registered; case, hyphens and underscores make no difference: `Dr-GRPO`.

    Raises:
        InputError: no such algorithm, with the most similar one, or with the verb of one that learns from judged answers.
    """
    known = find_name(name, ALGORITHMS)
    if known is None:
        from reinlm.algorithms.preference import refuse_preference

        refuse_preference(name)
        raise unknown("algorithm", name, ALGORITHMS)
    return known


def ladder() -> list[Card]:
    """The cards of all named algorithms, sorted by the date of their paper."""
    return sorted(CARDS.values(), key=lambda card: card.published)


COLUMNS = ("name", "advantage", "ratio", "gate", "kl", "aggregation", "critic", "source")


def table() -> list[dict[str, str]]:
    """One row per named algorithm, sorted by the date of its paper: short texts of its choices, critic and source."""
    rows = []
    for card in ladder():
        tree = algorithm_spec(ALGORITHMS[card.name]())
        rows.append(
            {
                "name": card.name,
                **{kind: short(tree[kind]) for kind in ("advantage", "ratio", "gate")},
                "kl": short_kl(tree["kl"]),
                "aggregation": short(tree["aggregation"]),
                "critic": "yes" if tree["critic"] else "no",
                "source": card.source,
            }
        )
    return rows


_FEWER = "; fewer minibatches in small batches, with at least eight groups in each"
"""The rule of `reinlm.training.rl_checks.updates_per_batch`."""


def algorithm_details(name: str) -> dict[str, Any]:
    """The card of one algorithm, all its choices, and the differences from its parent, as plain values.

    Raises InputError for an unknown name; the hint gives the most similar one.
    """
    name = algorithm_name(name)
    card, made = CARDS[name], ALGORITHMS[name]()
    parent = None if card.parent is None else ALGORITHMS[card.parent]()
    return {
        **asdict(card),
        "description": " ".join((ALGORITHMS[name].__doc__ or "").split()),
        "differs": changed_choices(made, parent),
        "choices": algorithm_spec(made),
        "updates": short_updates(made.updates) + (_FEWER if made.updates.minibatches > 1 else ""),
        "needs": sorted(made.advantage.needs | ({"reference"} if made.needs_reference else set())),
        "warnings": list(made.warnings),
    }


def algorithms_page() -> str:
    """The text of `docs/algorithms.md`: a table of all algorithms, and a section for each."""
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
        lines += _section(algorithm_details(card.name))
    from reinlm.algorithms.preference_cards import preference_sections

    return "\n".join([*lines, *preference_sections(), "", *choice_tables(), *_BESIDE]) + "\n"


_EXAMPLE = (
    "```python",
    'reinlm.algorithm("grpo", ratio="sequence", gate={"clip": [3e-4, 4e-4]})',
    "```",
    "",
    "```yaml",
    "algorithm: {base: grpo, ratio: sequence, gate: {clip: [3e-4, 4e-4]}}",
    "```",
)


_BESIDE = (
    "",
    "## Beside the choices",
    "",
    "What a recipe sets for every algorithm:",
    "",
    "| keys | what they do |",
    "|---|---|",
    "| `training.passes`, `training.minibatches` | Updates of a collected batch; null: as many as the algorithm's paper makes, "
    "with at least eight groups in each. |",
    "| `training.target_kl` | An update that would begin too far from the old policy is not made. |",
    "| `training.kl_learning_rate` | The learning rate follows the divergence from the old policy. |",
    "| `rollout.temperature`, `rollout.temperature_end`, `rollout.schedule` | The sampling temperature goes from one to the "
    "other over the run. Every answer is scored at the temperature at which it was sampled. |",
    "| `rollout.max_new_tokens`, `rollout.max_new_tokens_end`, `rollout.schedule` | So does the limit of an answer's length. "
    "Shapers take the limit under which an answer was sampled. |",
    "| `evaluation.correct_above` | From which value of the first reward an answer counts as right. |",
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


renamed(
    __name__,
    {"told": "reinlm.algorithms.ladder:algorithm_details", "page": "reinlm.algorithms.ladder:algorithms_page"},
)
