"""Ranks within a group, and rewards standardised one by one, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reinlm.objectives import GDPO, Feedback, GroupRank, GroupStandardize, Layout, group_rank, group_standardize


def d(values):
    return torch.tensor(values, dtype=torch.float64)


def one_group(rewards):
    return group_rank(d(rewards), torch.zeros(len(rewards), dtype=torch.long), 1).tolist()


# ------------------------------------------------------------------------------------------------ ranks


def test_vector_16_1_ranks_with_a_tie():
    expected = [-0.9428090416, 1.4142135624, -0.9428090416, 0.4714045208]
    assert one_group([0.1, 5.0, 0.1, 2.0]) == pytest.approx(expected, abs=1e-9)


def test_an_outlier_moves_no_other_rank_and_every_z_score():
    tame, wild = [0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3000.0]
    assert one_group(tame) == one_group(wild)
    group = torch.zeros(4, dtype=torch.long)
    scores = [group_standardize(d(rewards), group, 1)[:3].tolist() for rewards in (tame, wild)]
    assert [round(x, 2) for x in scores[0]] == [-1.34, -0.45, 0.45]
    assert max(scores[1]) - min(scores[1]) < 0.002


@pytest.mark.parametrize("rewards", [[1.0], [], [0.3, 0.1 + 0.2], [2.0, 2.0, 2.0], [math.nan, 1.0], [math.nan]])
def test_tied_single_and_missing_rewards_give_exact_zeros(rewards):
    assert one_group(rewards) == [0.0] * len(rewards)


def plain(rewards, groups):
    """By pairs: an item is above as many as it beats, and half above those that it equals."""
    out = []
    for i, reward in enumerate(rewards):
        peers = [r for j, r in enumerate(rewards) if groups[j] == groups[i] and not math.isnan(r)]
        if math.isnan(reward) or len(set(peers)) < 2:
            out.append(0.0)
            continue
        ranks = [sum((a > b) + 0.5 * (a == b) for b in peers) for a in peers]
        mean = sum(ranks) / len(ranks)
        deviation = math.sqrt(sum((r - mean) ** 2 for r in ranks) / len(ranks))
        mine = sum((reward > b) + 0.5 * (reward == b) for b in peers)
        out.append((mine - mean) / deviation)
    return out


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0, -3.0, 40.0, math.nan]), st.integers(0, 3)), max_size=24))
def test_ranks_are_those_counted_by_pairs_in_any_order_of_groups(items):
    rewards, groups = [r for r, _ in items], [g for _, g in items]
    found = group_rank(d(rewards), torch.tensor(groups, dtype=torch.long), 4).tolist()
    assert found == pytest.approx(plain(rewards, groups), abs=1e-12)


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=12))
def test_ranks_keep_the_order_and_forget_the_size(rewards):
    assert one_group([float(r) for r in rewards]) == one_group([math.exp(r) for r in rewards])


def test_every_token_gets_the_rank_of_its_answer():
    feedback = Feedback(Layout.from_lengths([2, 1, 1], group_size=3), d([5.0, 1.0, math.nan]))
    assert GroupRank()(feedback).tolist() == [1.0, 1.0, -1.0, 0.0]
    steps = Feedback(feedback.layout, feedback.rewards, step_rewards=d([1.0]), step_tokens=torch.tensor([0]))
    with pytest.raises(ValueError, match=r"^a rank compares outcome rewards, and there are step rewards"):
        GroupRank()(steps)


# ------------------------------------------------------------------------------------------------ several rewards


def two_rewards(first, second, weights=(1.0, 0.5), group_size=2, lengths=None):
    total = [weights[0] * a + weights[1] * b for a, b in zip(first, second, strict=True)]
    return Feedback(
        Layout.from_lengths(lengths or [1] * len(first), group_size=group_size),
        d(total),
        named_rewards={"math": d(first), "format": d(second)},
        reward_weights={"math": weights[0], "format": weights[1]},
    )


def test_gdpo_by_hand():
    """z-scores ±1 each; sums 1.5, -1.5, 0.5, -0.5 with weights 1 and 0.5; their variance over the batch is 1.25."""
    feedback = two_rewards([1.0, 0.0, 1.0, 0.0], [2.0, 0.0, 0.0, 2.0])
    expected = [1.3416407865, -1.3416407865, 0.4472135955, -0.4472135955]
    assert GDPO(epsilon=0.0)(feedback).tolist() == pytest.approx(expected, abs=1e-8)
    uneven = two_rewards([1.0, 0.0, 0.0], [0.0, 0.0, 0.0], group_size=3)
    root = math.sqrt(2.0)
    assert GDPO(epsilon=0.0)(uneven).tolist() == pytest.approx([root, -root / 2, -root / 2], abs=1e-8)


def test_a_z_score_of_the_sum_forgets_which_rewards_were_won_and_gdpo_does_not():
    """One answer wins one reward, or both: against none, the z-score of the sum is ±1 either way."""
    feedback = two_rewards([1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, 0.0], weights=(1.0, 1.0))
    summed = GroupStandardize(epsilon=0.0)(feedback).tolist()
    assert summed == pytest.approx([1.0, -1.0, 1.0, -1.0])
    apart = GDPO(epsilon=0.0)(feedback).tolist()
    assert apart == pytest.approx([x / math.sqrt(2.5) for x in (1.0, -1.0, 2.0, -2.0)], abs=1e-8)


def test_a_reward_that_was_not_given_drops_its_term_alone_and_an_answer_without_any_is_out_of_the_batch():
    feedback = Feedback(
        Layout.from_lengths([2, 1, 1, 0], group_size=4),
        d([1.0, 0.0, math.nan, 1.0]),
        named_rewards={"a": d([1.0, 0.0, math.nan, 1.0]), "b": d([math.nan] * 4)},
        reward_weights={"a": 1.0, "b": 3.0},
    )
    assert GDPO()(feedback).tolist() == pytest.approx([1.0, 1.0, -1.0, 0.0], abs=1e-6)
    filtered = feedback.without(torch.tensor([True, False, False, False]))
    assert filtered.effective_named_rewards is not None
    assert filtered.named_rewards is not None
    assert filtered.effective_named_rewards["a"].isnan().tolist() == [True, False, True, False]
    assert filtered.named("a", "a test").isnan().tolist() == [True, False, True, False]
    assert filtered.named_rewards["a"].isnan().tolist() == [False, False, True, False]
    assert GDPO()(filtered).tolist() == [0.0] * 4
    plain = Feedback(feedback.layout, feedback.rewards).without(torch.ones(4, dtype=torch.bool))
    assert plain.effective_named_rewards is None


def test_what_gdpo_cannot_do_without_is_named():
    layout = Layout.from_lengths([1])
    with pytest.raises(ValueError, match=r"Feedback\.named_rewards is missing$"):
        GDPO()(Feedback(layout, d([1.0])))
    with pytest.raises(ValueError, match=r"^gdpo compares outcome rewards"):
        GDPO()(Feedback(layout, d([1.0]), step_rewards=d([1.0]), step_tokens=torch.tensor([0])))
    with pytest.raises(ValueError, match=r"give adjusted_step_rewards and adjusted_step_tokens, or neither$"):
        Feedback(layout, d([1.0]), adjusted_step_rewards=d([1.0]))
    with pytest.raises(ValueError, match=r"^epsilon must be at least 0 and finite, not -1\.0"):
        GDPO(epsilon=-1.0)
    with pytest.raises(ValueError, match=r"^named_rewards \['a'\] need a weight each, not \['b'\]$"):
        Feedback(layout, d([1.0]), named_rewards={"a": d([1.0])}, reward_weights={"b": 1.0})
    given = Feedback(layout, d([1.0]), named_rewards={"a": d([1.0])}, reward_weights={"a": 1.0})
    with pytest.raises(ValueError, match=r"^a test reads the reward 'b'; there are a$"):
        given.named("b", "a test")
    with pytest.raises(ValueError, match=r"there are none by name$"):
        Feedback(layout, d([1.0])).named("b", "a test")


def test_the_sample_deviation_changes_the_shares_where_groups_differ_in_size():
    """Bessel scales a z-score by sqrt((n - 1) / n): groups of 2 and of 3 differently, so the batch's shares move."""
    layout = Layout(torch.arange(5), torch.arange(5), torch.arange(5), torch.tensor([0, 0, 1, 1, 1]), 2)
    rewards = d([1.0, 0.0, 1.0, 0.0, 0.0])
    feedback = Feedback(layout, rewards, named_rewards={"a": rewards}, reward_weights={"a": 1.0})
    plain_ones, sample = (GDPO(epsilon=0.0, bessel=bessel)(feedback) for bessel in (False, True))
    ratios = (sample / plain_ones)[[0, 2]]
    assert float(ratios[1] / ratios[0]) == pytest.approx(math.sqrt(2 / 3) / math.sqrt(1 / 2))
