"""Best of several answers and majority vote, in evaluation: figures by hand, and from real runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import reinlm
from reinlm.errors import InputError
from reinlm.records import RewardEvent, Rollout, RolloutGroup, ScoredGroup, Segment, Task
from reinlm.rewards.builtin import ExactMatch, Format, Math, Regex
from reinlm.training.choosing import Choosing
from tiny_runs import ROWS, local, tiny


def group(name: str, answers: list[str], scores: list[float | None]) -> ScoredGroup:
    task = Task(name, "1")
    rollouts = tuple(
        Rollout(
            task,
            (Segment(np.array([9, 1], np.int32), np.array([-1, 0], np.int16)),),
            text,
            terminated=True,
            truncated=False,
            reason="stop",
        )
        for text in answers
    )
    events = tuple(() if score is None else (RewardEvent("rm", score, weight=2.0),) for score in scores)
    return ScoredGroup(RolloutGroup(task, rollouts), events)


GROUPS = [
    group("a", ["7", "8", "8", "7"], [0.1, 0.9, 0.5, 0.2]),
    group("b", ["#### 5", "so 5.0", "none", "4"], [0.3, 0.2, 0.2, 1.0]),
]
CORRECT = [[True, False, False, True], [True, True, False, False]]


def test_best_of_is_the_mean_over_all_choices() -> None:
    """Pairs of the first prompt: right where the better scored of both is 0 or 3, so (0, 3) alone; of the second (0, 1),
    (0, 2), and (1, 2), whose scores tie, so that the first one counts."""
    found = Choosing(best_of="rm").metrics(GROUPS, CORRECT, None)
    assert found == {
        "best_of@2": pytest.approx((1 / 6 + 3 / 6) / 2),
        "best_of@4": 0.0,
        "best_of_kl": pytest.approx(0.6362943611),
    }
    assert Choosing(best_of="sum").metrics(GROUPS, CORRECT, None) == found


def test_a_vote_compares_what_answers_say() -> None:
    """7 against 8 ties, and the first wins: right. 5 and 5.0 are one number; an answer without any does not vote. In parts of
    two: (7, 8) and (8, 7) are right and wrong, (5, 5.0) right, (none, 4) wrong."""
    assert Choosing(majority_vote=True).metrics(GROUPS, CORRECT, None) == {"maj@2": 0.5, "maj@4": 1.0}


def test_answers_without_a_verdict_or_a_score_are_left_out() -> None:
    groups = [group("a", ["1", "2", "3"], [0.5, None, 0.1])]
    assert Choosing("rm", majority_vote=True).metrics(groups, [[True, None, False]], None) == {
        "best_of@2": 1.0,
        "best_of_kl": pytest.approx(0.1931471806),
        "maj@2": 1.0,
    }
    assert Choosing("rm", majority_vote=True).metrics(groups, [[None, None, None]], None) == {}


@pytest.mark.parametrize(
    ("reward", "one", "other", "same"),
    [
        (Math(), "I get \\boxed{1/2}", "so it is 0.5", True),
        (Math(), "#### 1,000", "the answer is 1000", True),
        (Math(), "#### 7", "#### 8", False),
        (Math(), "\\boxed{x+y}", "\\boxed{y + x}", True),
        (ExactMatch(), " yes ", "yes", True),
        (ExactMatch(), "Yes", "yes", False),
        (ExactMatch(ignore_case=True), "Yes", "yes", True),
        (Regex(pattern="=(\\d+)", column="answer"), "1=2 or 1=3", "=3", True),
        (Regex(pattern="a(\\d+)", column="answer", full=True), "a3", " a3", True),
        (Format(), "it is 8", "8", True),
    ],
)
def test_rewards_say_when_answers_are_the_same(reward: Any, one: str, other: str, same: bool) -> None:
    assert (reward.extract(one) == reward.extract(other)) == same


def test_what_cannot_be_read_does_not_vote() -> None:
    assert Math().extract("no idea") is None
    assert ExactMatch().extract("  ") is None
    assert Regex(pattern="=(\\d+)", column="answer").extract("3") is None


def longer(completions: list[str], **_: Any) -> list[float]:
    return [float(len(text)) for text in completions]


def even(completions: list[str], **_: Any) -> list[float]:
    return [float(text[-1:] in ("0", "2", "4", "6", "8")) for text in completions]


def test_an_evaluation_reports_both(tmp_path: Any) -> None:
    settings = {"samples": 4, "best_of": "longer", "majority_vote": True, "max_new_tokens": 2}
    found = reinlm.evaluate(tiny(), ROWS, reward=local([even, longer]), evaluation=settings, quiet=True)
    expected = Choosing("longer", majority_vote=True).metrics(found.groups, found.correct, None)
    assert expected.keys() == {"best_of@2", "best_of@4", "best_of_kl", "maj@2", "maj@4"}
    assert {name: found.metrics[name] for name in expected} == expected
    assert "best_of@4" in repr(found)


@pytest.mark.parametrize(
    ("evaluation", "message"),
    [
        ({"samples": 4, "best_of": "other"}, "evaluation.best_of 'other' names no reward of this run"),
        ({"best_of": "even"}, "best_of even has no effect: it chooses among several answers"),
        ({"majority_vote": True}, "majority_vote True has no effect: it chooses among several answers"),
    ],
)
def test_what_cannot_choose_is_refused(evaluation: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        reinlm.evaluate(tiny(), ROWS, reward=local([even, longer]), evaluation=evaluation, quiet=True)
    assert message in caught.value.message


# ------------------------------------------------------------------------------------------------ generate


def test_generate_gives_the_best_of_several(capsys: pytest.CaptureFixture[str]) -> None:
    every = reinlm.generate(tiny(), "1+2=", samples=8, max_new_tokens=4, quiet=True)[0]
    (best,) = reinlm.generate(tiny(), "1+2=", best_of=4, samples=2, reward=local(longer), max_new_tokens=4, quiet=False)
    for number, (text, reward) in enumerate(zip(best.completions, best.rewards, strict=True)):
        part = every.completions[4 * number : 4 * number + 4]
        assert text == max(part, key=len)
        assert reward == max(map(len, part))
    assert best.votes == ()
    assert "best of 4 by longer: at most 0.64 nats an answer from the model" in capsys.readouterr().err


def test_generate_gives_what_most_answers_say() -> None:
    every = reinlm.generate(tiny(), "1+2=", samples=16, max_new_tokens=1, quiet=True)[0]
    (voted,) = reinlm.generate(tiny(), "1+2=", majority_vote=16, max_new_tokens=1, quiet=True)
    said = [Math().extract(text) for text in every.completions]
    counts = {key: said.count(key) for key in said if key is not None}
    first = next(place for place, key in enumerate(said) if key is not None and counts[key] == max(counts.values()))
    assert (voted.completions, voted.votes) == ((every.completions[first],), (max(counts.values()),))
    assert voted.rewards == ()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"best_of": 4}, "best_of 4 has no effect without a reward"),
        ({"reward": local(even)}, "reward has no effect without best_of or majority_vote"),
        ({"best_of": 4, "majority_vote": 4, "reward": local(even)}, "both choose an answer"),
        ({"majority_vote": 4, "temperature": 0}, "sampling.temperature 0 gives equal answers to choose from"),
    ],
)
def test_generate_refuses_what_cannot_choose(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        reinlm.generate(tiny(), "1+2=", quiet=True, **settings)
    assert message in caught.value.message
