"""Diversity in an evaluation: figures by hand, and of real runs in the table and its rows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from training_helpers import ROWS, pair, tiny_policy

import reinlm
from reinlm.objectives.diversity import distinct_n
from reinlm.records import Content, Rollout, RolloutGroup, ScoredGroup, Segment, Task
from reinlm.training.diversity import FIGURES, diversity_metrics, words

EVEN = {"functions": {"regex": {"pattern": "[02468]$"}}, "time_limit": None}
HOW: dict[str, Any] = {"max_new_tokens": 3, "reward": EVEN, "quiet": True}


def group(name: str, *answers: Content) -> ScoredGroup:
    task = Task(name, "1")
    segment = Segment(np.array([9, 1], np.int32), np.array([-1, 0], np.int16))
    rollouts = tuple(
        Rollout(task, (segment,), text, terminated=True, truncated=False, reason="stop") for text in answers
    )
    return ScoredGroup(RolloutGroup(task, rollouts), tuple(() for _ in answers))


def test_figures_of_two_prompts() -> None:
    """Words "a b" | "a c" and "d" | "d": 4 of 6 differ, both pairs of words do. Similarity 1/5 and 1, entropy log 2 twice."""
    assert diversity_metrics([group("x", "a b", "a c"), group("y", "d", " d ")]) == {
        "distinct_1": pytest.approx(4 / 6),
        "distinct_2": 1.0,
        "similarity": pytest.approx((1 / 5 + 1) / 2),
        "answer_entropy": pytest.approx(math.log(2)),  # "d" and " d " differ as answers, not in words
    }


def test_of_a_conversation_the_last_message_counts() -> None:
    said = tuple({"role": "assistant", "content": text} for text in ("one", "two"))
    assert diversity_metrics([group("x", said, "two")])["answer_entropy"] == 0.0


def test_what_cannot_be_measured_is_absent() -> None:
    assert diversity_metrics([group("x", "a")]) == {"distinct_1": 1.0, "answer_entropy": 0.0}
    assert diversity_metrics([group("x", "", "")]) == {"similarity": 1.0, "answer_entropy": 0.0}
    whole = group("x", "a b", "c d")
    ended = tuple(replace(one, terminated=False, reason="ValueError") for one in whole.group.rollouts)
    first = ScoredGroup(RolloutGroup(whole.group.task, (whole.group.rollouts[0], ended[1])), whole.events)
    assert diversity_metrics([first]) == {"distinct_1": 1.0, "distinct_2": 1.0, "answer_entropy": 0.0}
    assert diversity_metrics([ScoredGroup(RolloutGroup(whole.group.task, ended), whole.events)]) == {}


def test_an_evaluation_reports_it_where_it_is_asked_for() -> None:
    models = {name: pair(tiny_policy(seed)) for seed, name in enumerate(("first", "second"))}
    table = reinlm.evaluate(models, ROWS[:5], samples=4, diversity=True, **HOW)
    for row, cell in zip(table.rows(), table.values(), strict=True):
        expected = diversity_metrics(cell.groups)
        assert tuple(expected) == FIGURES
        assert {name: row[name] for name in FIGURES} == expected
        texts = [str(rollout.completion) for one in cell.groups for rollout in one.group.rollouts]
        assert row["distinct_1"] == distinct_n([words(text) for text in texts], 1)
        assert 0.0 < row["answer_entropy"] <= math.log(4)
    shown = table.tables()
    assert set(shown) == {"accuracy", *FIGURES}
    value = table["second", "data"].metrics["similarity"]
    assert shown["similarity"][2] == ("second", f"{value:.4g}")
    assert table._repr_html_().count("95 % intervals") == 1  # these figures have none
    assert not set(FIGURES) & set(reinlm.evaluate(models["first"], ROWS[:5], samples=4, **HOW).metrics)


def test_one_answer_to_a_prompt_is_refused() -> None:
    with pytest.raises(reinlm.InputError, match=r"diversity: the similarity .* evaluation\.samples is 1"):
        reinlm.evaluate(pair(tiny_policy()), ROWS[:5], diversity=True, **HOW)
