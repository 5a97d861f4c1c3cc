"""A judge that sees both answers: asked in both orders, counts by hand, TRL's objects, and what it may not return."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from training_helpers import ROWS, jsonl, pair, saved_model, tiny_policy

import reinlm
from reinlm.objectives.win_rate import both_orders, first_position

HOW: dict[str, Any] = {"max_new_tokens": 3, "quiet": True}
FILE = '''
def biased(prompts, completions, answer):
    """The longer answer; of two equally long ones the first. Of answers with a 1 it has no opinion."""
    assert len(prompts) == len(completions) == len(answer) <= 4
    return [-1 if "1" in first + second else int(len(second) > len(first)) for first, second in completions]


class Shorter:
    """As a judge of TRL: no `__call__`, and an order that it shuffles unless it is told not to."""

    def __init__(self, least=0):
        self.least = least

    def judge(self, prompts, completions, shuffle_order=True):
        assert not shuffle_order
        return [int(max(len(b), self.least) < max(len(a), self.least)) for a, b in completions]


shorter = Shorter()
'''


def answered(tmp_path: Path, completion: str = "22", rows: Any = ROWS[:6]) -> str:
    """A file of one answer to each prompt."""
    rows = [{"prompt": row["prompt"], "completion": completion} for row in rows]
    return str(jsonl(tmp_path / "answers.jsonl", rows))


def lengths(found: Any) -> list[int]:
    return [len(str(rollout.completion)) for group in found.groups for rollout in group.group.rollouts]


def test_an_answer_wins_that_both_orders_prefer_and_the_judge_is_asked_for_each(tmp_path: Path) -> None:
    """Two answers to each of six prompts against one in a file, of five letters or of two, in calls of four, with a column."""
    (tmp_path / "judges.py").write_text(FILE)
    theirs = [5, 5, 2, 2, 2, 2]
    rows = [{"prompt": row["prompt"], "completion": "2" * n} for row, n in zip(ROWS[:6], theirs, strict=True)]
    file = str(jsonl(tmp_path / "answers.jsonl", rows))
    judge = {"function": f"{tmp_path}/judges.py:biased", "batch_size": 4}
    found = reinlm.evaluate(pair(tiny_policy()), ROWS[:6], against=file, judge=judge, samples=2, **HOW)
    ours = [
        (str(one.completion), n) for group, n in zip(found.groups, theirs, strict=True) for one in group.group.rollouts
    ]
    judged = [len(text) - n for text, n in ours if "1" not in text]
    assert 0 < len(judged) < 12
    wins, ties, losses = sum(n > 0 for n in judged), sum(n == 0 for n in judged), sum(n < 0 for n in judged)
    assert min(wins, ties, losses) > 0, "the model's answers are of every length"
    metrics = found.metrics
    assert (metrics["wins"], metrics["ties"], metrics["losses"]) == (wins, ties, losses)
    assert metrics["win_rate"] == pytest.approx((wins + ties / 2) / len(judged))
    assert metrics["tie_rate"] == pytest.approx(ties / len(judged))
    assert metrics["position_consistency"] == pytest.approx((wins + losses) / len(judged))
    assert metrics["first_position"] == pytest.approx((0.5 * (wins + losses) + ties) / len(judged))
    assert (metrics["unpaired"], metrics["unjudged"]) == (0.0, 12 - len(judged))
    assert 0.0 <= metrics["win_rate_low"] < metrics["win_rate"] < metrics["win_rate_high"] <= 1.0
    assert next(iter(metrics)) == "win_rate"
    assert {"accuracy", "unrewarded", "failed"}.isdisjoint(metrics)
    assert "win_rate" in repr(found)


def test_an_object_of_trl_is_asked_without_shuffling_from_python_by_file_and_as_a_class(tmp_path: Path) -> None:
    (tmp_path / "judges.py").write_text(FILE)
    space: dict[str, Any] = {}
    exec(FILE, space)
    place = f"{tmp_path}/judges.py"
    file = answered(tmp_path)
    judges = (space["shorter"], f"{place}:shorter", f"{place}:Shorter", {f"{place}:Shorter": {"least": 0}})
    seen = []
    for judge in judges:
        found = reinlm.evaluate(pair(tiny_policy()), ROWS[:6], against=file, judge=judge, **HOW)
        assert found.metrics["wins"] == sum(n < 2 for n in lengths(found))
        assert found.metrics["losses"] == sum(n > 2 for n in lengths(found))
        seen.append(found.metrics)
    assert all(metrics == seen[0] for metrics in seen)
    least = {f"{place}:Shorter": {"least": 9}}
    found = reinlm.evaluate(pair(tiny_policy()), ROWS[:6], against=file, judge=least, **HOW)
    assert (found.metrics["tie_rate"], found.metrics["first_position"]) == (1.0, 1.0)


def test_an_async_judge_of_one_pair_is_asked_about_several_at_the_same_time(tmp_path: Path) -> None:
    """It answers in words; no call ends before eight have begun, and every pair is seen in both orders."""
    begun: list[tuple[str, str]] = []
    many = asyncio.Event()

    async def one(prompt: str, completion: list[str]) -> str:
        begun.append((completion[0], completion[1]))
        if len(begun) == 8:
            many.set()
        await asyncio.wait_for(many.wait(), 10)
        first, second = completion
        return "tie" if len(first) == len(second) else "first" if len(first) > len(second) else "second"

    judge = {"function": one, "batch_size": 8, "time_limit": None}
    found = reinlm.evaluate(
        pair(tiny_policy()), ROWS[:4], against=answered(tmp_path), judge=judge, reward="exact_match", **HOW
    )
    ours = [str(group.group.rollouts[0].completion) for group in found.groups]
    assert sorted(begun) == sorted([(text, "22") for text in ours] + [("22", text) for text in ours])
    assert found.metrics["position_consistency"] == 1.0
    assert found.metrics["first_position"] == 0.5
    assert found.metrics["wins"] == sum(len(text) > 2 for text in ours)
    assert next(iter(found.metrics)) == "accuracy"


def test_two_models_on_two_sets_are_judged_against_a_third(tmp_path: Path) -> None:
    models = [str(saved_model(tmp_path / name, seed=seed)) for seed, name in enumerate(("a", "b"))]

    def longer(prompts: list[str], completions: list[list[str]]) -> list[float]:
        return [0.5 if len(a) == len(b) else float(len(b) > len(a)) for a, b in completions]

    judge = {"function": longer, "time_limit": None}
    sets = {"one": ROWS[:3], "other": ROWS[3:5]}
    found = reinlm.evaluate({"a": models[0], "b": models[1]}, sets, against=models[1], judge=judge, **HOW)
    for (_, name), cell in found.items():
        counts = [cell.metrics[key] for key in ("wins", "ties", "losses")]
        assert sum(counts) == len(sets[name])
        assert cell.metrics["position_consistency"] == 1.0
    (head, *rows) = found.tables()["win_rate"]
    assert head == ("win_rate", "one (3 prompts, 3 answers)", "other (2 prompts, 2 answers)")
    assert [row[0] for row in rows] == ["a", "b"]


ALLOWED = 'allowed: a list with, for each pair, 0 or "first", 1 or "second"'


@pytest.mark.parametrize(
    ("returned", "told", "hint"),
    [
        ([0], "judge 'bad' returned 1 values for 2 samples", ALLOWED),
        ([0, 2], r"judge 'bad' returned 2 for data\[0\], pair 1 of 1, the other model's answer first", ALLOWED),
        ([math.nan, 0], r"judge 'bad' returned nan for data\[0\], pair 1 of 1", ALLOWED),
        ([True, 0], r"judge 'bad' returned True for data\[0\], pair 1 of 1", ALLOWED),
        (["A", "B"], r"judge 'bad' returned 'A' for data\[0\]", ALLOWED),
        (1, "judge 'bad' returned 1 instead of a list of 2 values, one for each pair", ALLOWED),
        (
            KeyError("x"),
            "judge 'bad' raised KeyError: 'x'.* in a call with 2 pairs",
            "correct the judge; or return None",
        ),
    ],
)
def test_what_is_no_judgement_ends_the_evaluation_and_names_judge_and_pair(
    returned: Any, told: str, hint: str, tmp_path: Path
) -> None:
    def bad(prompts: list[str], completions: list[list[str]]) -> Any:
        if isinstance(returned, Exception):
            raise returned
        return returned

    judge = {"function": bad, "time_limit": None}
    with pytest.raises(reinlm.RunError, match=told) as raised:
        reinlm.evaluate(pair(tiny_policy()), ROWS[:1], against=answered(tmp_path), judge=judge, **HOW)
    assert hint in str(raised.value.hint)
    assert "reward" not in str(raised.value)


def test_a_judge_that_overruns_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "judges.py").write_text("import time\n\n\ndef slow(prompts, completions):\n    time.sleep(60)\n")
    judge = {"function": f"{tmp_path}/judges.py:slow", "time_limit": 0.2}
    with pytest.raises(reinlm.RunError, match=r"judge 'slow' overran its time limit of 0\.2 s") as raised:
        reinlm.evaluate(pair(tiny_policy()), ROWS[:1], against=answered(tmp_path), judge=judge, **HOW)
    assert "raise judge.time_limit" in str(raised.value.hint)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"judge": "judges.py:biased"}, "judge has no effect without against"),
        ({"judge": "none.py:f", "against": "answers.jsonl"}, "judge 'none.py:f': no such file"),
        ({"judge": "judges.py:bias", "against": "answers.jsonl"}, "judge 'bias': .* has no function 'bias'"),
        ({"judge": "judges.py:NOTHING", "against": "answers.jsonl"}, "judge 'NOTHING'"),
        ({"judge": "math", "against": "answers.jsonl"}, "judge 'math': it scores one answer"),
        ({"judge": "mth", "against": "answers.jsonl"}, "unknown judge 'mth'"),
        ({"judge": 3, "against": "answers.jsonl"}, "3 is not a judge"),
        ({"judge": ["judges.py:biased", "judges.py:other"], "against": "answers.jsonl"}, "2 judges are given"),
        (
            {"judge": {"function": "judges.py:biased", "retries": 0, "retry_delay": 2.0}, "against": "answers.jsonl"},
            "retry_delay has no effect",
        ),
        ({"judge": "judges.py:biased", "against": "answers.jsonl", "data": [{"prompt": "1+2="}]}, "argument 'answer'"),
    ],
)
def test_a_judge_that_cannot_be_asked_is_refused(
    given: dict[str, Any], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "judges.py").write_text(FILE + "\nNOTHING = 3\n")
    answered(tmp_path)
    with pytest.raises(reinlm.InputError, match=told):
        reinlm.evaluate(pair(tiny_policy()), **{"data": ROWS[:6], **HOW, **given})


def test_outcomes_and_the_preference_for_the_first_place_by_hand() -> None:
    first, swapped = torch.tensor([1.0, 1.0, 0.5, 0.0, 0.5]), torch.tensor([1.0, 0.0, 1.0, 0.0, 0.5])
    assert both_orders(first, swapped).tolist() == [1.0, 0.5, 0.5, 0.0, 0.5]
    # first shown is preferred: A then B; A twice; tie, B; B then A; ties: (1 + 0)/2, 1, (½ + 0)/2, (0 + 1)/2, ½
    assert first_position(first, swapped) == pytest.approx((0.5 + 1.0 + 0.25 + 0.5 + 0.5) / 5)
    with pytest.raises(ValueError, match=r"1, 0\.5 or 0"):
        both_orders(torch.tensor([math.nan]), torch.tensor([1.0]))
