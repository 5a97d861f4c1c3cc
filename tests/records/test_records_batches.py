"""Scored groups flattened: every token and every reward lands where it was said."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given

from reinlm.batches import TokenBatch, example_batch, feedback, token_batch
from reinlm.objectives import GroupCenter
from reinlm.records import (
    COLUMNS,
    Column,
    Rollout,
    RolloutGroup,
    SamplingSettings,
    ScoredGroup,
    Segment,
    declare_column,
    total,
    unweighted,
)
from samples import ended, groups, reward, scored, segment

# An answer of two turns around a tool's output; an episode of two segments; an answer without a token; a second prompt.
GROUPS = [
    scored(
        ("ppaapaa", [reward(1.0), reward(0.5, "steps", token=1), reward(0.25, "steps", token=3)]),
        (["paa", "pppa"], [reward(2.0, weight=0.5), reward(3.0, "steps", token=2, weight=2.0)]),
    ),
    scored(("pp", [reward(-1.0)]), ("pa", []), where="data[1]", end="length"),
]


def earned(these=GROUPS, **options):
    """The feedback of groups for the layout of their batch."""
    return feedback(these, token_batch(these).layout, **options)


def shaped(group, *values):
    """The group with one event of shaping for each rollout."""
    return replace(group, shaping=tuple((reward(value, "shaping"),) for value in values))


# ------------------------------------------------------------------------------------------------ tokens


def test_tokens_stand_in_turns_segments_episodes_and_groups():
    layout = token_batch(GROUPS).layout
    assert layout.turn_of_token.tolist() == [0, 0, 1, 1, 2, 2, 3, 4]
    assert layout.sequence_of_turn.tolist() == [0, 0, 1, 2, 4]
    assert layout.episode_of_sequence.tolist() == [0, 1, 1, 2, 3]
    assert layout.group_of_episode.tolist() == [0, 0, 1, 1]
    assert layout.groups == 2


def test_turns_end_where_their_number_changes_too():
    two = Segment(np.arange(5), np.array([-1, 0, 0, 1, 1]), {"rollout_logprobs": np.zeros(4)})
    rollout = Rollout(GROUPS[0].group.task, (two,), "", **ended("stop"))
    group = ScoredGroup(RolloutGroup(rollout.task, (rollout,)), ((),))
    assert token_batch([group]).layout.turn_of_token.tolist() == [0, 0, 1, 1]


def test_sequences_positions_and_the_samplers_log_probabilities_come_along():
    batch = token_batch(GROUPS)
    sequences = [batch.ids(number) for number in range(batch.sequences)]
    assert sequences == [[10, 11, 12, 13, 14, 15, 16], [10, 11, 12], [10, 11, 12, 13], [10, 11], [10, 11]]
    assert batch.positions.tolist() == [2, 3, 5, 6, 1, 2, 3, 1]
    assert batch.layout.index("sequence").tolist() == [0, 0, 0, 0, 1, 1, 2, 4]
    expected = torch.tensor([-0.1, -0.2, -0.3, -0.4, -0.1, -0.2, -0.1, -0.1])
    assert batch.columns["rollout_logprobs"].tolist() == pytest.approx(expected.tolist(), abs=1e-7)
    assert batch.columns["rollout_logprobs"].dtype == torch.float32
    assert batch.columns["version"].tolist() == [0] * 8
    assert batch.temperature is not None
    assert batch.temperature.tolist() == [1.0] * 5


def test_nothing_to_flatten_gives_an_empty_batch():
    batch = token_batch([])
    assert (batch.layout.tokens, batch.layout.groups, batch.sequences, batch.tokens) == (0, 0, 0, 0)
    assert earned([]).rewards.tolist() == []


def test_a_part_of_a_batch_keeps_what_belongs_to_its_sequences():
    batch = token_batch(GROUPS)
    part = batch.select(torch.tensor([4, 0]))
    assert [part.ids(0), part.ids(1)] == [[10, 11], [10, 11, 12, 13, 14, 15, 16]]
    assert part.positions.tolist() == [1, 2, 3, 5, 6]
    assert part.columns["rollout_logprobs"].tolist() == pytest.approx([-0.1, -0.1, -0.2, -0.3, -0.4], abs=1e-7)
    with pytest.raises(ValueError, match="twice"):
        batch.select(torch.tensor([1, 1]))


@given(groups())
def test_a_batch_holds_the_chosen_tokens_of_every_segment_in_order(drawn):
    batch = token_batch([_with_all_columns(group) for group in drawn])
    segments = [s for group in drawn for rollout in group.group.rollouts for s in rollout.segments]
    assert batch.token_ids.tolist() == [token for s in segments for token in s.token_ids.tolist()]
    assert batch.positions.tolist() == [place for s in segments for place in s.positions.tolist()]
    owner = batch.layout.index("sequence")
    assert owner.tolist() == [number for number, s in enumerate(segments) for _ in range(s.length)]
    assert batch.token_ids[batch.starts[owner] + batch.positions].tolist() == [
        token for s in segments for token in s.chosen_ids.tolist()
    ]


def _with_all_columns(group):
    """Every segment with the one column that has no value for missing entries."""
    rollouts = [
        replace(
            rollout,
            segments=tuple(
                replace(s, columns={"rollout_logprobs": np.zeros(s.length), **s.columns}) for s in rollout.segments
            ),
        )
        for rollout in group.group.rollouts
    ]
    return replace(group, group=replace(group.group, rollouts=tuple(rollouts)))


def test_sequences_of_examples_have_their_own_tokens_scored():
    batch = example_batch(np.array([5, 6, 7, 8, 9]), np.array([0, 1, 1, 0, 1], bool), np.array([0, 3, 5]))
    same = TokenBatch.of([[5, 6, 7], [8, 9]], [[1, 2], [1]])
    for found in (batch, same):
        assert [found.ids(0), found.ids(1)] == [[5, 6, 7], [8, 9]]
        assert found.positions.tolist() == [1, 2, 1]
        assert found.layout.index("group").tolist() == [0, 0, 1]


def test_as_many_lists_of_positions_as_sequences():
    with pytest.raises(ValueError, match=r"^1 sequences need as many lists of positions, not 2$"):
        TokenBatch.of([[1, 2]], [[1], [1]])


# ------------------------------------------------------------------------------------------------ rewards


def test_outcomes_are_weighted_and_the_one_without_events_is_missing():
    found = earned()
    assert found.rewards[:3].tolist() == [1.0, 1.0, -1.0]
    assert math.isnan(found.rewards[3])
    assert found.rewards.dtype == torch.float64
    assert found.truncated.tolist() == [False, False, True, True]


def test_step_rewards_land_on_chosen_tokens_across_tool_output_and_segments():
    found = earned()
    assert found.step_rewards.tolist() == [0.5, 0.25, 6.0]
    assert found.step_tokens.tolist() == [1, 3, 6]
    assert found.layout.index("turn")[found.step_tokens].tolist() == [0, 1, 3]


def test_step_rewards_alone_leave_the_outcome_at_zero():
    found = earned([scored(("pa", [reward(0.5, token=0)]), ("pa", [reward(1.0)]))])
    assert found.rewards.tolist() == [0.0, 1.0]
    assert found.step_rewards.tolist() == [0.5]


def test_without_step_rewards_there_are_none():
    found = earned([scored(("pa", [reward(1.0)]))])
    assert found.step_rewards is None
    assert found.step_tokens is None


def test_shaping_is_added_to_rewards_that_exist_and_makes_none():
    found = earned([shaped(GROUPS[0], -0.5, 0.0), shaped(GROUPS[1], 1.0, -1.0)])
    assert found.adjusted_rewards[:3].tolist() == [0.5, 1.0, 0.0]
    assert math.isnan(found.adjusted_rewards[3])
    assert found.rewards[:3].tolist() == [1.0, 1.0, -1.0]
    assert earned(GROUPS).adjusted_rewards is None


def test_what_a_shaper_adds_to_a_token_stands_beside_the_steps_that_were_earned():
    group = scored(("paa", [reward(0.5, "steps", token=0)]))
    found = earned([replace(group, shaping=((reward(2.0, "bonus", token=1),),))])
    assert (found.step_rewards.tolist(), found.step_tokens.tolist()) == ([0.5], [0])
    assert (found.adjusted_step_rewards.tolist(), found.adjusted_step_tokens.tolist()) == ([0.5, 2.0], [0, 1])
    assert found.effective_step_rewards is found.adjusted_step_rewards
    assert found.effective_step_tokens is found.adjusted_step_tokens


def test_an_answer_without_rewards_has_the_default_unless_an_error_ended_it():
    found = earned([GROUPS[1], scored(("pa", []), end="error")], default=0.0)
    assert found.rewards[:2].tolist() == [-1.0, 0.0]
    assert math.isnan(found.rewards[2])
    assert earned([shaped(scored(("pa", [])), -0.5)], default=0.0).adjusted_rewards.tolist() == [-0.5]


def test_rewards_are_told_apart_by_name_before_their_weights():
    found = earned([GROUPS[0]], names=["math", "absent"])
    assert found.named_rewards["math"].tolist() == [1.0, 2.0]
    assert found.named_rewards["absent"].isnan().all()
    assert found.reward_weights == {"math": 0.5, "absent": 1.0}


@pytest.mark.parametrize("values", [[0.0], [0.0] * 3])
def test_shaping_needs_events_for_each_rollout(values):
    with pytest.raises(ValueError, match=rf"^2 rollouts need as many tuples of shaping, not {len(values)}$"):
        shaped(GROUPS[0], *values)


def test_the_advantage_of_a_step_reward_reaches_the_tokens_before_it_and_no_other_episode():
    two = [
        scored(
            ("paapa", [reward(0.0), reward(1.0, "s", token=1)]),
            ("paa", [reward(0.0), reward(3.0, "s", token=0)]),
        )
    ]
    assert GroupCenter()(earned(two)).tolist() == [-1.0, -1.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize("token", [-1, 4, 99])
def test_a_step_reward_beyond_the_answer_is_refused_by_name(token):
    with pytest.raises(
        ValueError, match=rf"^data\[0\], sample 1: reward 'steps' lands on token {token} of an answer of 4"
    ):
        scored(("pa", [reward(1.0, token=0)]), ("paapaa", [reward(0.5, "steps", token=token)]))


def test_rewards_of_a_group_are_weighted_sums_or_none():
    assert GROUPS[0].returns == (1.75, 7.0)
    assert GROUPS[1].returns == (-1.0, None)
    assert unweighted(GROUPS[0].events[0], "steps") == 0.75
    assert total(GROUPS[0].events[1], "steps") == 6.0
    assert total(GROUPS[0].events[0], "absent") is unweighted(GROUPS[0].events[0], "absent") is None


def test_as_many_tuples_of_events_as_rollouts():
    with pytest.raises(ValueError, match=r"^2 rollouts need as many tuples of events, not 1$"):
        ScoredGroup(GROUPS[0].group, ((),))


# ------------------------------------------------------------------------------------------------ rollouts


def test_a_rollout_is_as_long_as_its_chosen_tokens_and_says_how_it_ended():
    task = GROUPS[0].group.task
    rollout = Rollout(task, (segment("paa", 3), segment("ppa", 5)), "2", **ended("length"))
    assert (rollout.length, rollout.reason, rollout.truncated, rollout.failed) == (3, "length", True, False)
    assert rollout.versions == (3, 5)
    assert Rollout(task, (segment("paa", -1), segment("pa", 4)), "2", **ended("stop")).versions == (4, 4)
    assert Rollout(task, (segment("paa", -1),), "2", **ended("stop")).versions is None
    assert Rollout(task, (segment("paapa"),), "2", **ended("stop")).turns == 2
    assert Rollout(task, (segment("pp"),), "", **ended("error")).failed is True
    assert segment("papa").chosen_ids.tolist() == [11, 13]
    assert segment("papa").positions.tolist() == [1, 3]
    with pytest.raises(ValueError, match=r"^an episode is terminated or truncated, not both$"):
        Rollout(task, (segment("pa"),), "", terminated=True, truncated=True, reason="stop")


# ------------------------------------------------------------------------------------------------ segments and columns


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"turns": [-1]}, r"turns has shape \(1,\) for token_ids of shape \(2,\)"),
        ({"columns": {"version": [0, 1]}}, r"the column 'version' has \(2,\) entries for 1 chosen tokens"),
        (
            {"columns": {"rollout_logprobs": []}},
            r"the column 'rollout_logprobs' has \(0,\) entries for 1 chosen tokens",
        ),
        (
            {"columns": {"difficulty": [1.0]}},
            r"no per-token column 'difficulty' is declared; declared are rollout_logprobs, .*"
            r"\(reinlm.records.declare_column adds one\)",
        ),
        ({"turns": [0, 0]}, "the first token of a segment cannot be chosen: nothing stands before it"),
    ],
)
def test_a_segment_that_contradicts_itself_is_refused(changes, message):
    good: Any = {"token_ids": [5, 6], "turns": [-1, 0], "columns": {"rollout_logprobs": [-1.0], "version": [0]}}
    assert Segment(**good).length == 1
    with pytest.raises(ValueError, match=f"^{message}$"):
        Segment(**(good | changes))


def test_columns_take_their_declared_types_and_cannot_be_written_to():
    mine = segment("paa")
    assert [mine.token_ids.dtype, mine.turns.dtype] == [np.int32, np.int16]
    assert {name: values.dtype for name, values in mine.columns.items()} == {
        "rollout_logprobs": np.float32,
        "version": np.int32,
    }
    given = np.zeros(2, np.float32)
    with pytest.raises(ValueError, match="read-only"):
        segment("paa", rollout_logprobs=given).columns["rollout_logprobs"][0] = 1.0
    given[0] = 1.0  # the caller's array stays the caller's


def test_segments_are_equal_to_the_last_bit():
    nan = np.array([np.nan, -0.0], np.float32)
    assert segment("paa", rollout_logprobs=nan) == segment("paa", rollout_logprobs=nan.copy())
    assert segment("paa", rollout_logprobs=nan) != segment("paa", rollout_logprobs=np.array([np.nan, 0.0]))
    assert segment("paa") != segment("paa", loss_weight=[1.0, 1.0])
    assert segment("paa") != replace(segment("paa"), sampling=SamplingSettings(temperature=0.5))


def test_a_segment_takes_at_most_16_bytes_a_token():
    """64 answers of 512 tokens with the columns that the engine fills in, prompts included."""
    prompt, answer = 64, 448
    made = [
        Segment(
            np.arange(prompt + answer),
            np.array([-1] * prompt + [0] * answer),
            {"rollout_logprobs": np.zeros(answer), "version": np.zeros(answer)},
        )
        for _ in range(64)
    ]
    assert sum(one.nbytes for one in made) == 64 * (512 * (4 + 2) + 448 * (4 + 4))
    assert sum(one.nbytes for one in made) <= 16 * 64 * 512


def batch_of(*segments):
    """One group of one episode with these segments, flattened."""
    rollout = Rollout(GROUPS[0].group.task, segments, "", **ended("stop"))
    return token_batch([ScoredGroup(RolloutGroup(rollout.task, (rollout,)), ((),))])


def test_what_is_missing_has_the_value_that_its_column_declares():
    found = batch_of(segment("paa", loss_weight=[0.5, 2.0]), segment("pa"), segment("p"))
    assert found.columns["loss_weight"].tolist() == [0.5, 2.0, 1.0]
    assert "loss_weight" not in batch_of(segment("paa")).columns
    unstamped = replace(segment("paa"), columns={"rollout_logprobs": np.array([-0.1, -0.2])})
    assert batch_of(segment("pa", 0), unstamped).columns["version"].tolist() == [0, -1, -1]


def test_a_column_without_such_a_value_is_needed_in_every_segment_with_chosen_tokens():
    teacher: dict[str, Any] = {"teacher_logprobs": [-0.5]}
    assert batch_of(segment("pa", **teacher), segment("p")).columns["teacher_logprobs"].tolist() == [-0.5]
    with pytest.raises(ValueError, match=r"^segment 1 has no column 'teacher_logprobs', which other segments"):
        batch_of(segment("pa", **teacher), segment("pa"))


@pytest.fixture
def routing():
    """A column of every token of a segment, with two entries each; gone again afterwards."""
    yield declare_column(Column("routing", "int16", missing=-1, meaning="which experts"))
    del COLUMNS["routing"]


def test_a_declared_column_flows_into_the_batch_and_its_parts(routing):
    experts = np.arange(4).reshape(2, 2)
    found = batch_of(segment("paa", routing=experts), segment("pa"))
    assert found.columns["routing"].tolist() == [[0, 1], [2, 3], [-1, -1]]
    assert found.select(torch.tensor([1])).columns["routing"].tolist() == [[-1, -1]]
    with pytest.raises(ValueError, match=r"^the column 'routing' has \(1,\) entries for 2 chosen tokens$"):
        segment("paa", routing=experts[:1])


def test_a_column_is_declared_once(routing):
    assert declare_column(routing) is routing
    with pytest.raises(ValueError, match=r"^the column 'routing' is declared already, as Column"):
        declare_column(replace(routing, dtype="int32"))
