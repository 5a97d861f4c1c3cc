"""Figures of an evaluation: pass@k, and an interval that knows that answers to one prompt resemble one another."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from training_helpers import HELD_OUT, pair, tiny_policy

import reinlm
from reinlm.intervals import share_interval
from reinlm.training.evaluation import accuracy_metrics, pass_at_k


def wilson(right: int, total: int) -> tuple[float, float]:
    """The shares p with |right/total - p| = z sqrt(p (1 - p) / total): the roots of a quadratic."""
    z2 = 1.959963984540054**2
    share = right / total
    low, high = sorted(np.roots([total + z2, -(2 * total * share + z2), total * share**2]).real)
    return float(low), float(high)


@pytest.mark.parametrize(("k", "expected"), [(1, 0.3), (2, 8 / 15), (5, 11 / 12)])
def test_pass_at_k_of_three_right_among_ten(k: int, expected: float) -> None:
    assert pass_at_k(10, 3, k) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("n", "correct", "k"), [(6, 2, 3), (5, 0, 2), (5, 5, 4), (4, 3, 2), (7, 1, 7)])
def test_pass_at_k_is_the_share_of_draws_with_a_right_answer(n: int, correct: int, k: int) -> None:
    draws = list(itertools.combinations([True] * correct + [False] * (n - correct), k))
    assert pass_at_k(n, correct, k) == pytest.approx(sum(map(any, draws)) / len(draws), abs=1e-12)


@pytest.mark.parametrize(("right", "total"), [(0, 1), (1, 1), (0, 20), (7, 20), (20, 20), (430, 1000)])
def test_one_answer_a_prompt_has_wilsons_interval(right: int, total: int) -> None:
    rows = [[index < right] for index in range(total)]
    assert share_interval(rows) == pytest.approx(wilson(right, total), abs=1e-9)


def test_answers_that_all_agree_within_their_prompt_count_once_a_prompt() -> None:
    prompts = [[True] * 8] * 12 + [[False] * 8] * 18
    one_each = [[True]] * 12 + [[False]] * 18
    assert share_interval(prompts) == pytest.approx(share_interval(one_each), abs=1e-12)


def test_answers_that_do_not_cluster_count_each() -> None:
    assert share_interval([[True, False, False]] * 40) == pytest.approx(wilson(40, 120), abs=1e-9)


def test_answers_that_cluster_half_way_count_by_the_spread_of_their_prompts() -> None:
    """Prompts with 0, 1 or 2 right of 2, four of each: p = 1/2, its variance Σ (right - 1)² / 24² · 12/11
    = 8/576 · 12/11 = 1/66, so that the answers count as p (1 - p) · 66 = 16.5 and not as 24."""
    rows = [[False, False]] * 4 + [[True, False]] * 4 + [[True, True]] * 4
    z2 = 1.959963984540054**2
    half = math.sqrt(z2 * 0.25 / 16.5 + z2**2 / (4 * 16.5**2)) / (1 + z2 / 16.5)
    assert share_interval(rows) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-12)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    """200 sets of 40 prompts with 6 answers; prompts differ in difficulty, so answers to one prompt are alike."""
    rng = np.random.default_rng(1)
    covered = []
    for _ in range(200):
        difficulty = rng.beta(0.8, 1.2, size=(40, 1))
        low, high = share_interval((rng.random((40, 6)) < difficulty).tolist())
        covered.append(low <= 0.4 <= high)
    assert 0.91 <= np.mean(covered) <= 0.985


def test_answers_without_verdict_are_left_out() -> None:
    found = accuracy_metrics([[True, None, False], [None, None, None], [True, True, None]])
    assert found["accuracy"] == 0.75
    assert found["pass@1"] == 0.75
    assert found["pass@2"] == 1.0
    assert "pass@4" not in found
    assert accuracy_metrics([[None], [None]]) == {}


def test_pass_at_k_goes_up_in_powers_of_two_to_the_fewest_answers() -> None:
    found = accuracy_metrics([[True] * 3 + [False] * 7, [False] * 6])
    assert [name for name in found if name.startswith("pass@")] == ["pass@1", "pass@2", "pass@4"]
    assert found["pass@2"] == pytest.approx((8 / 15 + 0) / 2)


def test_an_evaluation_counts_what_the_reward_says_and_can_be_repeated() -> None:
    model = pair(tiny_policy())
    seen: list[str] = []

    def short(completions: list[str], **_: object) -> list[float]:
        seen.extend(completions)
        return [0.25 * len(text) for text in completions]

    settings = {"samples": 3, "max_new_tokens": 4, "correct_above": 0.6}
    first = reinlm.evaluate(model, HELD_OUT, reward=short, evaluation=settings)
    again = reinlm.evaluate(model, HELD_OUT, reward=short, evaluation=settings)
    other = reinlm.evaluate(model, HELD_OUT, reward=short, evaluation=settings, seed=1)
    texts = seen[: 3 * len(HELD_OUT)]
    assert len(seen) == 9 * len(HELD_OUT)
    assert first.metrics["accuracy"] == pytest.approx(np.mean([0.25 * len(text) > 0.6 for text in texts]))
    assert first.metrics["reward"] == pytest.approx(np.mean([0.25 * len(text) for text in texts]))
    assert first.metrics == again.metrics
    assert seen[: 3 * len(HELD_OUT)] != seen[6 * len(HELD_OUT) :]
    assert math.isfinite(other.metrics["accuracy"])


@pytest.mark.parametrize(
    ("reward", "order"),
    [
        (lambda completions: [float("1" in text) for text in completions], ["accuracy", "reward"]),
        (lambda completions: [None if index else 1.0 for index, _ in enumerate(completions)], ["accuracy", "reward"]),
        (lambda completions: [len(text) / 4 for text in completions], ["reward", "accuracy"]),
    ],
    ids=["verdicts", "verdicts of some", "graded"],
)
def test_an_evaluation_begins_with_the_accuracy_or_with_the_reward_that_is_no_verdict(reward: Any, order: Any) -> None:
    found = reinlm.evaluate(pair(tiny_policy()), HELD_OUT[:3], reward=reward, samples=2, max_new_tokens=4, quiet=True)
    assert [name for name in found.metrics if name in ("accuracy", "reward")] == order
    assert next(iter(found.metrics)) == order[0]
