"""The result of scoring several models or sets: a table of models and sets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any

from reinlm.display import figure, html_table, text_table
from reinlm.errors import InputError
from reinlm.intervals import mean_interval
from reinlm.records import ScoredGroup
from reinlm.training.diversity import FIGURES
from reinlm.training.evaluation import Evaluation
from reinlm.training.held_out import TEXT_LOSS, TEXT_PERPLEXITY, TEXT_TOKENS

Named = Mapping[tuple[str, str], Evaluation]


class Evaluations(Mapping[tuple[str, str], Evaluation]):
    """Evaluations by (model, set), which print as a table.

    Example:
        found = reinlm.evaluate({"sft": "runs/sft", "rl": "runs/rl"}, {"test": "a.jsonl", "harder": "b.jsonl"}, reward="math")
        found["rl", "harder"].metrics["accuracy"], found.rows()
    """

    def __init__(self, found: Named) -> None:
        self._found = dict(found)

    def __getitem__(self, key: tuple[str, str]) -> Evaluation:
        return self._found[key]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the models, in their order."""
        return tuple(dict.fromkeys(model for model, _ in self))

    @property
    def sets(self) -> tuple[str, ...]:
        """The names of the sets, in their order."""
        return tuple(dict.fromkeys(name for _, name in self))

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know, each with the model and the set that it is about."""
        return tuple(f"{model} on {name}: {note}" for (model, name), one in self.items() for note in one.notes)

    def rows(self) -> list[dict[str, Any]]:
        """For every model and set a row of figures: `model`, `set`, `prompts`, `answers`, then `Evaluation.metrics`, with the
        95 % interval of the mean reward. A held-out text has a row of its own, without prompts and answers."""
        return [
            {
                "model": model,
                "set": name,
                **({"prompts": len(one.groups), "answers": _answers(one)} if one.groups else {}),
                **with_reward_interval(one),
            }
            for (model, name), one in self.items()
        ]

    def frame(self) -> Any:
        """`rows` as a DataFrame of pandas. Raises InputError where pandas is not installed."""
        try:
            import pandas
        except ImportError as error:
            raise InputError("frame() needs pandas", hint="pip install pandas, or read rows()") from error
        return pandas.DataFrame(self.rows())

    def tables(self) -> dict[str, list[tuple[str, ...]]]:
        """By figure a head and each model's values: the leading one, which is the accuracy where rewards are verdicts and else
        the reward; the win rate and the figures of diversity where they were asked for; loss and perplexity of held-out texts."""
        shown = {key: with_reward_interval(one) for key, one in self.items()}
        leading = {name: next(iter(self._metrics_of(name)), None) for name in self.sets}
        tables = {}
        for title in dict.fromkeys(title for title in leading.values() if title is not None):
            sets = [name for name in self.sets if leading[name] == title]
            head = (title, *(f"{name} ({self._counted(name)})" for name in sets))
            body = [(model, *(_cell(shown.get((model, name), {}), title) for name in sets)) for model in self.models]
            tables[title] = [head, *body]
        for title in ("win_rate", *FIGURES, TEXT_PERPLEXITY):
            if title not in tables and (
                sets := [name for name in self.sets if any(title in shown[model, name] for model in self.models)]
            ):
                body = [(model, *(_cell(shown[model, name], title) for name in sets)) for model in self.models]
                tables[title] = [(title, *sets), *body]
        return tables

    def _metrics_of(self, name: str) -> Mapping[str, float]:
        return next(one.metrics for (_, own), one in self.items() if own == name)

    def _counted(self, name: str) -> str:
        one = next(one for (_, own), one in self.items() if own == name)
        if not one.groups:
            return f"{one.metrics[TEXT_TOKENS]:.0f} tokens"
        return f"{len(one.groups)} prompts, {_answers(one)} answers"

    def __repr__(self) -> str:
        return "\n\n".join([*map(text_table, self.tables().values()), *(f"note: {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        return f"<div>{''.join(html_table(table, caption(title)) for title, table in self.tables().items())}</div>"


def caption(title: str) -> str:
    """What stands over the table of a figure."""
    if title in (TEXT_LOSS, TEXT_PERPLEXITY):
        return "held-out text, per token"
    return "diversity" if title in FIGURES else "95 % intervals"


def _answers(one: Evaluation) -> int:
    return sum(len(group.group.rollouts) for group in one.groups)


def _cell(metrics: Mapping[str, float], name: str) -> str:
    """A figure with its interval; empty where it was not measured."""
    if name not in metrics:
        return ""
    text = figure(name, metrics[name])
    low, high = metrics.get(f"{name}_low"), metrics.get(f"{name}_high")
    return text if low is None or high is None else f"{text} ({figure(name, low)} to {figure(name, high)})"


def with_reward_interval(one: Evaluation) -> dict[str, float]:
    """The metrics with `reward_low` and `reward_high` behind the reward."""
    found: dict[str, float] = {}
    for name, value in one.metrics.items():
        found[name] = value
        if name == "reward" and (ends := reward_interval(one.groups)) is not None:
            found["reward_low"], found["reward_high"] = ends
    return found


def reward_interval(groups: tuple[ScoredGroup, ...]) -> tuple[float, float] | None:
    """Student's 95 % interval of the mean reward, over the means of the prompts, which are independent; None for one prompt.

    Answers to one prompt are a cluster (arXiv 2411.00640).
    """
    earned = [[value for value in group.returns if value is not None] for group in groups]
    _, low, high = mean_interval([fmean(row) for row in earned if row] or [0.0])
    return None if low is None or high is None else (low, high)
