"""Scored groups flattened: every token and every reward lands where it was said."""

from __future__ import annotations

import math

import pytest
import torch

from reinlm.objectives import GroupCenter
from reinlm.records import Rollout, RolloutGroup, ScoredGroup, Segment, outcome, train_batch
from samples import reward, scored, segment

# An answer of two turns around a tool's output; an episode of two segments; an answer without a token; a second prompt.
GROUPS = [
    scored(
        ("ppaapaa", [reward(1.0), reward(0.5, "steps", token=1), reward(0.25, "steps", token=3)]),
        (["paa", "pppa"], [reward(2.0, weight=0.5), reward(3.0, "steps", token=2, weight=2.0)]),
    ),
    scored(("pp", [reward(-1.0)]), ("pa", []), where="data[1]", end="length"),
]


def test_tokens_stand_in_turns_segments_episodes_and_groups():
    layout = train_batch(GROUPS).layout
    assert layout.turn_of_token.tolist() == [0, 0, 1, 1, 2, 2, 3, 4]
    assert layout.sequence_of_turn.tolist() == [0, 0, 1, 2, 4]
    assert layout.episode_of_sequence.tolist() == [0, 1, 1, 2, 3]
    assert layout.group_of_episode.tolist() == [0, 0, 1, 1]
    assert layout.groups == 2


def test_sequences_positions_and_the_samplers_log_probabilities_come_along():
    batch = train_batch(GROUPS)
    assert batch.sequences == ((10, 11, 12, 13, 14, 15, 16), (10, 11, 12), (10, 11, 12, 13), (10, 11), (10, 11))
    assert batch.positions == ((2, 3, 5, 6), (1, 2), (3,), (), (1,))
    expected = torch.tensor([-0.1, -0.2, -0.3, -0.4, -0.1, -0.2, -0.1, -0.1])
    assert batch.rollout_logprobs.tolist() == pytest.approx(expected.tolist(), abs=1e-7)
    assert batch.rollout_logprobs.dtype == torch.float32


def test_outcomes_are_weighted_and_the_one_without_events_is_missing():
    feedback = train_batch(GROUPS).feedback
    assert feedback.rewards[:3].tolist() == [1.0, 1.0, -1.0]
    assert math.isnan(feedback.rewards[3])
    assert feedback.rewards.dtype == torch.float64
    assert feedback.truncated.tolist() == [False, False, True, True]


def test_step_rewards_land_on_chosen_tokens_across_tool_output_and_segments():
    feedback = train_batch(GROUPS).feedback
    assert feedback.step_rewards.tolist() == [0.5, 0.25, 6.0]
    assert feedback.step_tokens.tolist() == [1, 3, 6]
    assert feedback.layout.index("turn")[feedback.step_tokens].tolist() == [0, 1, 3]


def test_step_rewards_alone_leave_the_outcome_at_zero():
    feedback = train_batch([scored(("pa", [reward(0.5, token=0)]), ("pa", [reward(1.0)]))]).feedback
    assert feedback.rewards.tolist() == [0.0, 1.0]
    assert feedback.step_rewards.tolist() == [0.5]


def test_without_step_rewards_there_are_none():
    feedback = train_batch([scored(("pa", [reward(1.0)]))]).feedback
    assert feedback.step_rewards is None
    assert feedback.step_tokens is None


def test_shaping_is_added_to_rewards_that_exist_and_makes_none():
    feedback = train_batch(GROUPS, shaping=[-0.5, 0.0, 1.0, -1.0]).feedback
    assert feedback.rewards[:3].tolist() == [0.5, 1.0, 0.0]
    assert math.isnan(feedback.rewards[3])


@pytest.mark.parametrize("shaping", [[], [0.0], [0.0] * 5])
def test_shaping_needs_a_number_for_each_rollout(shaping):
    with pytest.raises(ValueError, match="zip"):
        train_batch(GROUPS, shaping=shaping)


def test_nothing_to_flatten_gives_an_empty_batch():
    batch = train_batch([])
    assert (batch.layout.tokens, batch.layout.groups, batch.sequences) == (0, 0, ())
    assert batch.feedback.rewards.tolist() == []


def test_the_advantage_of_a_step_reward_reaches_the_tokens_before_it_and_no_other_episode():
    two = [
        scored(
            ("paapa", [reward(0.0), reward(1.0, "s", token=1)]),
            ("paa", [reward(0.0), reward(3.0, "s", token=0)]),
        )
    ]
    assert GroupCenter()(train_batch(two).feedback).tolist() == [-1.0, -1.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize("token", [-1, 4, 99])
def test_a_step_reward_beyond_the_answer_is_refused_by_name(token):
    with pytest.raises(
        ValueError, match=rf"^data\[0\], sample 1: reward 'steps' lands on token {token} of an answer of 4"
    ):
        scored(("pa", [reward(1.0, token=0)]), ("paapaa", [reward(0.5, "steps", token=token)]))


def test_rewards_of_a_group_are_weighted_sums_or_none():
    assert GROUPS[0].rewards == (1.75, 7.0)
    assert GROUPS[1].rewards == (-1.0, None)
    assert outcome(GROUPS[0].events[0], "steps") == 0.75
    assert outcome(GROUPS[0].events[0], "absent") is None


def test_as_many_tuples_of_events_as_rollouts():
    with pytest.raises(ValueError, match=r"^2 rollouts need as many tuples of events, not 1$"):
        ScoredGroup(GROUPS[0].group, ((),))


def test_a_rollout_is_as_long_as_its_chosen_tokens_and_ends_as_its_last_segment():
    prompt = GROUPS[0].group.prompt
    rollout = Rollout(prompt, (segment("paa", "environment"), segment("ppa", "length")), completion="2")
    assert (rollout.length, rollout.end, rollout.truncated) == (3, "length", True)
    assert Rollout(prompt, (segment("paa", "length"), segment("pa")), completion="2").truncated is False
    assert segment("papa").chosen_ids == (11, 13)
    assert segment("papa").positions == (1, 3)
    assert RolloutGroup(prompt, (rollout,)).rollouts == (rollout,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"chosen": (False,)}, "chosen has 1 entries for 2 tokens"),
        ({"rollout_logprobs": ()}, r"1 chosen tokens need as many rollout_logprobs \(0\) and versions \(1\)"),
        ({"versions": (0, 1)}, r"1 chosen tokens need as many rollout_logprobs \(1\) and versions \(2\)"),
        ({"chosen": (True, False)}, "the first token of a segment cannot be chosen: nothing stands before it"),
    ],
)
def test_a_segment_that_contradicts_itself_is_refused(changes, message):
    good = {"token_ids": (5, 6), "chosen": (False, True), "rollout_logprobs": (-1.0,), "versions": (0,), "end": "stop"}
    with pytest.raises(ValueError, match=f"^{message}$"):
        Segment(**(good | changes))
