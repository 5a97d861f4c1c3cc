"""The addition task: right, deterministic, and with held-out problems that training cannot show."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reinlm.data.arithmetic import ALPHABET, Addition, _pair, demonstrations, problems
from reinlm.errors import InputError


def test_a_problem_is_written_least_significant_digit_first_in_fixed_width():
    assert Addition(123, 456).row() == {"prompt": "321+654=", "answer": "9750"}
    assert Addition(7, 0).row() == {"prompt": "700+000=", "answer": "7000"}
    assert Addition(999, 999).row() == {"prompt": "999+999=", "answer": "8991"}


@given(st.integers(0, 999), st.integers(0, 999))
def test_prompt_and_answer_say_the_sum_within_the_alphabet(first, second):
    problem = Addition(first, second)
    left, right = problem.prompt.removesuffix("=").split("+")
    assert int(left[::-1]) + int(right[::-1]) == int(problem.answer[::-1])
    assert (len(problem.prompt), len(problem.answer)) == (8, 4)
    assert set(problem.prompt + problem.answer) <= set(ALPHABET)


@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 99))
def test_training_never_shows_a_held_out_problem_not_even_swapped(held_out, train, seed):
    evaluation = problems(held_out, seed)
    shown = problems(train, seed + 1, exclude=evaluation)
    pairs = {frozenset((p.first, p.second)) for p in shown}
    assert len(pairs) == len(shown) == train
    assert not pairs & {frozenset((p.first, p.second)) for p in evaluation}


def test_the_same_seed_draws_the_same_problems_and_another_one_others():
    assert problems(20, 3) == problems(20, 3)
    assert problems(20, 3) != problems(20, 4)


def test_all_operands_and_both_orders_occur():
    drawn = problems(20_000, 0)
    assert {p.first for p in drawn} == {p.second for p in drawn} == set(range(1000))
    assert 0.48 < sum(p.first > p.second for p in drawn) / len(drawn) < 0.52


def test_every_unordered_pair_has_one_rank():
    assert {_pair(rank) for rank in range(5050)} == {(a, b) for b in range(100) for a in range(b + 1)}
    assert (_pair(0), _pair(500_499)) == ((0, 0), (999, 999))


def test_more_problems_than_there_are_is_an_error_that_counts_the_excluded_ones():
    with pytest.raises(InputError, match=r"cannot draw 500501 problems \(between 0 and 500500 are left\)"):
        problems(500_501, 0)
    with pytest.raises(InputError, match=r"cannot draw 500500 problems \(between 0 and 500498 are left\)"):
        problems(500_500, 0, exclude=[Addition(1, 2), Addition(2, 1), Addition(3, 3)])


def test_demonstrations_forget_carries_at_the_rate_asked_for_and_err_nowhere_else():
    rows = demonstrations([Addition(5, 5)] * 4000, forget_rate=0.3, seed=1)  # one carry each: 5 + 5 = 10
    assert {row["completion"] for row in rows} == {"0100", "0000"}
    assert 0.27 < sum(row["completion"] == "0000" for row in rows) / 4000 < 0.33
    calm = [problem for problem in problems(2000, 0) if set(problem.answer) and not _carries(problem)]
    assert all(row["completion"] == row["answer"] for row in demonstrations(calm, 1.0, seed=0))


def _carries(problem):
    return any(int(a) + int(b) > 9 for a, b in zip(f"{problem.first:03d}", f"{problem.second:03d}", strict=True))


def test_demonstrations_that_forget_nothing_are_the_answers_and_those_that_forget_all_add_digit_by_digit():
    drawn = problems(50, 0)
    assert [row["completion"] for row in demonstrations(drawn, 0.0, seed=0)] == [problem.answer for problem in drawn]
    assert demonstrations([Addition(999, 999)], 1.0, seed=0)[0] == {**Addition(999, 999).row(), "completion": "8880"}
    assert demonstrations(drawn, 0.5, seed=2) == demonstrations(drawn, 0.5, seed=2)


def test_a_forget_rate_that_is_no_probability_is_refused():
    with pytest.raises(InputError, match=r"forget_rate must be in \[0, 1\], not 1.5"):
        demonstrations(problems(1, 0), 1.5, seed=0)
