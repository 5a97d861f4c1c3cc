"""Which groups are trained on, and what is added to rewards before."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from reinlm.algorithms import MissingEnd, MixedOutcomes, SoftOverlong
from reinlm.composition.shapers import shaped
from reinlm.errors import InputError
from reinlm.objectives import missing_end_penalty
from reinlm.records import RolloutGroup, ScoredGroup
from samples import reward, scored


def group(*rewards):
    """A group of one-token answers with these rewards; None: no event."""
    return scored(*[("pa", [] if r is None else [reward(r)]) for r in rewards])


@pytest.mark.parametrize(
    ("rewards", "kept", "by_sum"),
    [
        ([1.0, 0.0], True, True),
        ([1.0, 1.0], False, False),
        ([0.0, 0.0, 0.0], False, False),
        ([0.1 + 0.2, 0.3], False, False),
        ([0.3, 0.3 + 1e-9], False, True),
        ([0.5, 0.6], True, True),
        ([0.9, 0.6], False, True),
        ([-1.0, 1.0], True, True),
        ([None, 1.0], False, False),
        ([None, 1.0, 0.0], True, True),
        ([None, None], False, False),
        ([1.0], False, False),
    ],
)
def test_a_group_is_kept_where_some_answers_are_right_and_some_wrong(rewards, kept, by_sum):
    assert MixedOutcomes()(group(*rewards)) is kept
    assert MixedOutcomes("sum")(group(*rewards)) is by_sum


def test_the_first_reward_decides_and_the_others_make_no_group_mixed():
    """All answers are right and differ in their format alone: the weighted sum would keep the group."""
    both = scored(
        ("pa", [reward(0.9, "format")]),
        ("pa", [reward(1.0, "math"), reward(0.2, "format")]),
        ("pa", [reward(1.0, "math"), reward(0.9, "format")]),
    )
    assert MixedOutcomes()(both) is MixedOutcomes("math")(both) is False
    assert MixedOutcomes("format")(both) is MixedOutcomes("sum")(both) is True
    assert MixedOutcomes("format", correct_above=0.1)(both) is False
    assert MixedOutcomes("absent")(both) is False


def test_an_answer_is_right_by_its_own_value_whatever_the_weight():
    light = scored(("pa", [reward(1.0, "math", weight=0.1)]), ("pa", [reward(0.0, "math", weight=0.1)]))
    assert MixedOutcomes()(light) is True
    cancel = scored(
        ("pa", [reward(1.0, "a", weight=2.0), reward(0.0, "b")]), ("pa", [reward(0.0, "a"), reward(2.0, "b")])
    )
    assert (MixedOutcomes()(cancel), MixedOutcomes("sum")(cancel)) == (True, False)


def test_a_threshold_that_cannot_count_is_refused():
    with pytest.raises(ValueError, match=r"^mixed outcomes: correct_above has no effect on the sum of rewards"):
        MixedOutcomes("sum", correct_above=0.7)
    with pytest.raises(ValueError, match=r"^mixed outcomes: correct_above must be finite, not nan"):
        MixedOutcomes(correct_above=math.nan)


def test_shaped_rewards_would_make_every_group_look_mixed():
    """Equal outcomes at different lengths: the filter drops the group, and would keep it after the length penalty."""
    equal = answers([6, 9], 10, reward(1.0))
    events = shaped(equal, [SoftOverlong(10, 4)], 10)
    assert MixedOutcomes("sum")(equal) is MixedOutcomes("sum")(events) is False
    added = [(*earned, *more) for earned, more in zip(events.events, events.shaping, strict=True)]
    assert MixedOutcomes("sum")(replace(equal, events=tuple(added))) is True


def answers(lengths, limit, *events):
    """A group of answers of these lengths, cut off where they reach the limit, that all earned the same."""
    made = [scored(("p" + "a" * n, list(events)), end="length" if n >= limit else "stop") for n in lengths]
    rollouts = tuple(one.group.rollouts[0] for one in made)
    return ScoredGroup(RolloutGroup(rollouts[0].task, rollouts), tuple(one.events[0] for one in made))


def penalties(shaper, lengths, limit):
    """What the shaper adds to each answer: one event of its name, on the whole answer."""
    added = shaper(answers(lengths, limit), limit)
    assert all((event.name, event.token, event.weight) == (shaper.name, None, 1.0) for (event,) in added)
    return [event.value for (event,) in added]


def test_what_all_shapers_add_stands_beside_what_was_earned():
    equal = answers([6, 10], 10, reward(1.0))
    both = shaped(equal, [SoftOverlong(10, 4), MissingEnd(0.5)], 10)
    assert both.events == equal.events
    assert [[event.value for event in added] for added in both.shaping] == [[0.0, 0.0], [-1.0, -0.5]]
    assert both.returns == (1.0, 1.0)
    assert shaped(equal, [], 10) is equal


def test_the_samplers_limit_and_a_fifth_of_it_are_the_defaults():
    assert penalties(SoftOverlong(), [80, 85, 90, 100], 100) == [0.0, -0.25, -0.5, -1.0]
    assert penalties(SoftOverlong(), [16384, 18432, 20480], 20480) == [0.0, -0.5, -1.0]
    assert SoftOverlong() == SoftOverlong(max_length=None, cache=0.2)
    assert SoftOverlong.name == "overlong"


def test_a_cache_of_whole_tokens_and_a_fraction_are_both_read():
    assert penalties(SoftOverlong(20, 4), [16, 17, 20], 100) == [0.0, -0.25, -1.0]
    assert penalties(SoftOverlong(20, 0.5), [10, 15, 20], 100) == [0.0, -0.5, -1.0]
    assert penalties(SoftOverlong(20, 1), [19, 20], 100) == [0.0, -1.0]


def test_no_cache_is_a_cliff():
    assert penalties(SoftOverlong(10, 0), [10, 11], 20) == [0.0, -1.0]


def test_a_cache_beyond_the_limit_punishes_from_the_first_token():
    assert penalties(SoftOverlong(10, 50), [0, 5], 10) == [0.0, -0.5]


@pytest.mark.parametrize(
    ("shaper", "limit", "begins"),
    [
        (SoftOverlong(100, 10), 90, 90),
        (SoftOverlong(100, 10), 20, 90),
        (SoftOverlong(None, 0), 50, 50),
        (SoftOverlong(), 2, 2),
    ],
)
def test_a_punishment_that_no_answer_can_reach_is_refused(shaper, limit, begins):
    with pytest.raises(InputError) as error:
        shaper.check(limit)
    assert error.value.message == (
        f"soft overlong: answers end at {limit} tokens, and the punishment would begin only after {begins}"
    )
    assert error.value.hint == "raise rollout.max_new_tokens, or lower the shaper's max_length"
    SoftOverlong(100, 11).check(90)
    assert penalties(SoftOverlong(100, 11), [90], 90) == [-1 / 11]


def test_a_missing_end_costs_its_penalty_and_nothing_else_does():
    assert penalties(MissingEnd(), [1, 9, 10], 10) == [0.0, 0.0, -1.0]
    assert penalties(MissingEnd(0.25), [10, 3], 10) == [-0.25, 0.0]
    assert MissingEnd.name == "missing_end"


@pytest.mark.parametrize("penalty", [0.0, -1.0, math.nan, math.inf])
def test_a_penalty_for_a_missing_end_is_more_than_nothing(penalty):
    message = f"^missing end: the penalty must be more than 0 and finite, not {penalty}$"
    with pytest.raises(ValueError, match=message):
        MissingEnd(penalty)
    with pytest.raises(ValueError, match=message):
        missing_end_penalty(torch.tensor([True]), penalty)


@pytest.mark.parametrize("length", [0, -5])
def test_a_limit_below_one_token_is_refused(length):
    with pytest.raises(ValueError, match=f"^soft overlong: max_length must be at least 1 token, not {length}$"):
        SoftOverlong(length)
    assert SoftOverlong(1).max_length == 1


@pytest.mark.parametrize("cache", [-0.1, 1.5, math.nan, math.inf])
def test_a_cache_that_is_neither_a_fraction_nor_whole_tokens_is_refused(cache):
    message = f"^soft overlong: cache is a fraction below 1 or a number of tokens, not {cache}$"
    with pytest.raises(ValueError, match=message):
        SoftOverlong(10, cache)


def test_the_first_reward_is_right_above_what_evaluation_says_unless_the_filter_says_otherwise():
    from reinlm.composition.filters import with_first_reward

    high = scored(
        ("pa", [reward(0.6, "math"), reward(0.6, "format")]), ("pa", [reward(0.9, "math"), reward(0.9, "format")])
    )
    kept = {
        one: bound(high)
        for one in (MixedOutcomes(), MixedOutcomes("math"), MixedOutcomes(correct_above=0.5), MixedOutcomes("format"))
        for bound in with_first_reward((one,), "math", 0.7)
    }
    assert list(kept.values()) == [True, True, False, False]
    (bound,) = with_first_reward((MixedOutcomes(),), None, 0.7)
    assert bound(high)
    assert with_first_reward((MixedOutcomes("sum"),), "math", 0.7) == (MixedOutcomes("sum"),)


def test_the_first_reward_is_the_recipes_where_an_environment_gives_rewards_too():
    from reinlm.composition.filters import with_first_reward

    tool, maths = reward(1.0, "tool"), [reward(1.0, "math"), reward(0.0, "math")]
    group = scored(("pa", [tool, maths[0]]), ("pa", [tool, maths[1]]))
    (bound,) = with_first_reward((MixedOutcomes(),), "math")
    assert bound(group)
    assert not MixedOutcomes()(group)
    assert with_first_reward((MixedOutcomes("tool"),), "math") == (MixedOutcomes("tool"),)
    silent = scored(("pa", [reward(1.0, "brevity")]), ("pa", [reward(0.0, "brevity")]))
    assert not bound(silent)
