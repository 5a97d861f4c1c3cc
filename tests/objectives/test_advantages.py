"""Advantages: group baselines, process rewards, GAE and whitening."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles
from reinlm.objectives import (
    GAE,
    Feedback,
    GroupCenter,
    GroupStandardize,
    Layout,
    discounted_returns,
    gae,
    group_center,
    group_standardize,
    process_advantages,
    whiten,
)
from strategies import layouts

NAN = float("nan")


def d(values):
    return torch.tensor(values, dtype=torch.float64)


def one_group(rewards) -> tuple[torch.Tensor, torch.Tensor, int]:
    return d(rewards), torch.zeros(len(rewards), dtype=torch.long), 1


# ------------------------------------------------------------------------------------------------ groups


@pytest.mark.parametrize(
    ("rewards", "options", "expected"),
    [
        ([1, 0, 0, 1], {"bessel": True}, [0.8660239038, -0.8660239038, -0.8660239038, 0.8660239038]),
        ([1, 0, 0, 1], {}, [0.9999980000, -0.9999980000, -0.9999980000, 0.9999980000]),
        ([1, 0, 0, 1], {"bessel": True, "epsilon": 1e-4}, [0.8658754298, -0.8658754298, -0.8658754298, 0.8658754298]),
        ([1, 0, 0, 0], {"bessel": True}, [1.4999970000, *[-0.4999990000] * 3]),
        ([1, 0, 0, 0], {"epsilon": 0.0}, [1.7320508076, *[-0.5773502692] * 3]),
    ],
)
def test_vector_7_outcome_rewards_standardized_within_the_group(rewards, options, expected):
    assert group_standardize(*one_group(rewards), **options).tolist() == pytest.approx(expected, abs=1e-9)


def test_vector_7_dr_grpo_centres_and_does_not_divide():
    assert group_center(*one_group([1, 0, 0, 0])).tolist() == [0.75, -0.25, -0.25, -0.25]


def test_a_standardized_advantage_forgets_the_scale_of_rewards_and_a_centred_one_keeps_it():
    small, large = one_group([0.0, 0.0, 0.1]), one_group([0.0, 0.0, 10.0])
    large_scores = group_standardize(*large, epsilon=0.0).tolist()
    assert group_standardize(*small, epsilon=0.0).tolist() == pytest.approx(large_scores, rel=1e-12)
    assert (group_center(*small) * 100).tolist() == pytest.approx(group_center(*large).tolist(), rel=1e-12)


@pytest.mark.parametrize(("wrong", "factor", "of_a_wrong_answer"), [(1, 8 / 7**0.5, -(7**0.5)), (4, 2.0, -1.0)])
def test_dividing_by_the_deviation_lifts_groups_that_almost_agree(wrong, factor, of_a_wrong_answer):
    """Eight answers: with one wrong all advantages grow 3.02-fold, in a group half wrong 2-fold."""
    members = one_group([0.0] * wrong + [1.0] * (8 - wrong))
    centred, standardized = group_center(*members), group_standardize(*members, epsilon=0.0)
    assert (standardized / centred).tolist() == pytest.approx([factor] * 8, rel=1e-12)
    assert standardized[0].item() == pytest.approx(of_a_wrong_answer, rel=1e-12)


@pytest.mark.parametrize("normalize", [group_center, group_standardize])
@pytest.mark.parametrize(
    "rewards",
    [
        [0.1, 0.1, 0.1],
        [0.1 + 0.2, 0.3, 0.3],
        [5.0],
        [0.0, 0.0],
        [-1e9, -1e9],
        [NAN, 0.7],
        [NAN, NAN],
        [1 / 3 + 1e-13, 1 / 3],
    ],
)
def test_equal_rewards_a_group_of_one_and_rounding_residue_give_exact_zeros(normalize, rewards):
    assert normalize(*one_group(rewards)).tolist() == [0.0] * len(rewards)


@pytest.mark.parametrize("bessel", [False, True])
def test_zeros_stay_zeros_without_an_epsilon(bessel):
    assert group_standardize(*one_group([0.3, 0.3, NAN]), epsilon=0.0, bessel=bessel).tolist() == [0.0] * 3
    assert group_standardize(*one_group([0.3]), epsilon=0.0, bessel=bessel).tolist() == [0.0]


def test_rounding_residue_in_float32_is_no_advantage_either():
    residue = torch.nextafter(torch.tensor([70.0, 70.0]), torch.tensor([70.0, 71.0]))
    plain = (residue - residue.mean()) / (residue.std(correction=0) + 1e-6)
    assert plain.abs().max() > 0.5, "what the plain formula makes of one bit"
    group = torch.zeros(2, dtype=torch.long)
    assert group_standardize(residue, group, 1).tolist() == [0.0, 0.0]
    assert group_standardize(torch.tensor([0.7, 0.70001]), group, 1)[1] > 0.5


@pytest.mark.parametrize(("units", "moves"), [(4, False), (5, True)])
def test_the_residue_that_float32_may_leave_is_four_units_in_the_last_place(units, moves):
    """-1 and a little above: the difference is exact, so that the bound itself is met."""
    rewards = torch.tensor([-1.0, -1.0 + units * torch.finfo(torch.float32).eps])
    assert bool(group_center(rewards, torch.zeros(2, dtype=torch.long), 1).any()) is moves


def test_a_difference_just_above_rounding_counts():
    assert group_center(*one_group([1.0, 1.0 + 4e-12])).tolist() == pytest.approx([-2e-12, 2e-12], rel=1e-3)
    assert group_center(*one_group([-2.0, -2.0 - 1e-12])).tolist() == [0.0, 0.0]
    assert group_center(*one_group([0.0, -1e-30])).tolist() == [5e-31, -5e-31]


def test_a_missing_reward_is_out_of_the_statistics():
    rewards, group = d([1.0, NAN, 0.0, 4.0, NAN]), torch.tensor([0, 0, 0, 1, 1])
    assert group_center(rewards, group, 2).tolist() == [0.5, 0.0, -0.5, 0.0, 0.0]
    assert group_standardize(rewards, group, 2, epsilon=0.0).tolist() == [1.0, 0.0, -1.0, 0.0, 0.0]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([None, 0.0, 1.0, 0.3, -2.5, 0.1 + 0.2])), max_size=12))
def test_group_advantages_equal_the_formulas(answers):
    groups = [g for g, _ in answers]
    rewards = [r for _, r in answers]
    given_ = d([NAN if r is None else r for r in rewards])
    index = torch.tensor(groups, dtype=torch.long)
    assert group_center(given_, index, 4).tolist() == pytest.approx(
        oracles.group_advantages(rewards, groups, False), abs=1e-14
    )
    for bessel in (False, True):
        mine = group_standardize(given_, index, 4, 1e-3, bessel).tolist()
        assert mine == pytest.approx(oracles.group_advantages(rewards, groups, True, bessel, 1e-3), abs=1e-12)


# The process example: three answers to one prompt, of 4, 2 and 5 tokens; step rewards end at these tokens.
STEPS = [[(1, 0.2), (2, 0.8)], [(1, 0.5)], [(0, 0.1), (1, 0.3), (4, 0.9)]]
LENGTHS = [4, 2, 5]


def process_feedback(rewards=(0.0, 0.0, 0.0)):
    starts = [0, 4, 6]
    return Feedback(
        layout=Layout.from_lengths(LENGTHS, group_size=3),
        rewards=d(list(rewards)),
        step_rewards=d([r for steps in STEPS for _, r in steps]),
        step_tokens=torch.tensor([start + t for start, steps in zip(starts, STEPS, strict=True) for t, _ in steps]),
    )


@pytest.mark.parametrize(
    ("bessel", "at_steps"),
    [
        (False, [0.2236067977, 1.1180339887, 0.1118033989, -0.3354101966, 0.894427191, 1.4534441854]),
        (True, [0.2041241452, 1.0206207262, 0.1020620726, -0.3061862178, 0.8164965809, 1.326806944]),
    ],
)
def test_vector_7_process_rewards_sum_over_the_steps_that_end_later(bessel, at_steps):
    advantages = GroupStandardize(epsilon=0.0, bessel=bessel)(process_feedback())
    assert advantages[process_feedback().step_tokens].tolist() == pytest.approx(at_steps, abs=1e-9)
    assert advantages[3] == 0.0, "after the last step of the first answer there is nothing to earn"
    assert advantages[0] == advantages[1]
    assert advantages.tolist() == pytest.approx(
        [a for row in oracles.process_advantages(STEPS, LENGTHS, bessel) for a in row], abs=1e-12
    )


def test_outcome_and_process_advantages_add():
    both = GroupStandardize()(process_feedback((1.0, 0.0, 0.0)))
    outcome = GroupStandardize()(Feedback(process_feedback().layout, d([1.0, 0.0, 0.0])))
    assert torch.equal(both, outcome + GroupStandardize()(process_feedback()))


def test_centred_process_rewards_are_not_divided():
    layout = Layout.from_lengths([2, 1], group_size=2)
    feedback = Feedback(layout, d([0.0, 0.0]), d([1.0, 3.0, 2.0]), torch.tensor([0, 1, 2]))
    assert GroupCenter()(feedback).tolist() == [0.0, 1.0, 0.0]


def test_process_rewards_are_compared_within_their_own_group():
    layout = Layout.from_lengths([1, 1, 1, 1], group_size=2)
    feedback = Feedback(layout, d([0.0] * 4), d([1.0, 3.0, 10.0, 20.0]), torch.tensor([0, 1, 2, 3]))
    assert GroupCenter()(feedback).tolist() == [-1.0, 1.0, -5.0, 5.0]


def test_two_step_rewards_on_one_token_add():
    layout = Layout.from_lengths([2])
    assert process_advantages(d([1.0, 2.0, 4.0]), torch.tensor([0, 1, 1]), layout).tolist() == [7.0, 6.0]


def test_process_rewards_run_through_the_turns_and_sequences_of_an_episode_and_end_with_it():
    layout = Layout(
        torch.tensor([0, 1, 2, 3]), torch.tensor([0, 0, 1, 2]), torch.tensor([0, 0, 1]), torch.tensor([0, 0]), 1
    )
    assert process_advantages(d([1.0, 5.0]), torch.tensor([2, 3]), layout).tolist() == [1.0, 1.0, 1.0, 5.0]


@pytest.mark.parametrize("alone", [{"step_rewards": d([1.0])}, {"step_tokens": torch.tensor([0])}])
def test_process_rewards_without_their_tokens_are_refused(alone):
    message = "^process rewards need the tokens that they land on: give step_rewards and step_tokens, or neither$"
    with pytest.raises(ValueError, match=message):
        Feedback(Layout.from_lengths([1]), d([1.0]), **alone)


def test_every_token_of_an_episode_has_its_outcome_advantage():
    layout = Layout.from_lengths([2, 0, 1, 1], group_size=2)
    feedback = Feedback(layout, d([1.0, 0.0, 3.0, NAN]))
    assert GroupCenter()(feedback).tolist() == [0.5, 0.5, 0.0, 0.0]
    assert GroupStandardize(epsilon=0.0)(feedback).tolist() == [1.0, 1.0, 0.0, 0.0]


def test_the_population_deviation_and_a_small_epsilon_are_the_defaults():
    assert GroupStandardize() == GroupStandardize(epsilon=1e-6, bessel=False)
    feedback = Feedback(Layout.from_lengths([1, 1], group_size=2), d([1.0, 0.0]))
    assert GroupStandardize()(feedback)[0].item() == pytest.approx(0.5 / (0.5 + 1e-6), abs=1e-12)


def test_group_baselines_need_a_group_and_gae_a_critic():
    wants = [choice.needs for choice in (GroupStandardize(), GroupCenter(), GAE())]
    assert wants == [{"group"}, {"group"}, {"critic"}]


@pytest.mark.parametrize("epsilon", [-1e-9, NAN])
def test_a_negative_epsilon_is_refused(epsilon):
    with pytest.raises(ValueError, match=f"^epsilon must be at least 0 and finite, not {epsilon}$"):
        GroupStandardize(epsilon=epsilon)


# ------------------------------------------------------------------------------------------------ returns and GAE


def test_returns_are_discounted_within_the_episode():
    layout = Layout.from_lengths([3, 0, 2])
    assert discounted_returns(d([1.0, 2.0, 4.0, 8.0, 16.0]), layout, 0.5).tolist() == [3.0, 4.0, 4.0, 16.0, 16.0]
    assert discounted_returns(d([1.0, 2.0, 4.0, 8.0, 16.0]), layout).tolist() == [7.0, 6.0, 4.0, 24.0, 16.0]
    assert discounted_returns(d([]), Layout.from_lengths([0])).tolist() == []


def control(rewards, values, successors, terminated, truncated, discount=0.9, smoothing=0.8):
    flags = (torch.tensor(terminated), torch.tensor(truncated))
    return gae(d(rewards), d(values), d(successors), *flags, gamma=discount, gae_lambda=smoothing).tolist()


NO, END = [False, False, False], [False, False, True]


def test_vector_1a_terminated():
    a = control([1, 0, 2], [0.5, 0.4, 0.3], [0.4, 0.3, 99.0], END, NO)
    assert a == pytest.approx([1.64768, 1.094, 1.7], abs=1e-9)
    assert (d(a) + d([0.5, 0.4, 0.3])).tolist() == pytest.approx([2.14768, 1.494, 2.0], abs=1e-9)


def test_vector_1b_truncated_bootstraps():
    a = control([1, 0, 2], [0.5, 0.4, 0.3], [0.4, 0.3, 0.7], NO, END)
    assert a == pytest.approx([1.974272, 1.5476, 2.33], abs=1e-9)
    assert (d(a) + d([0.5, 0.4, 0.3])).tolist() == pytest.approx([2.474272, 1.9476, 2.63], abs=1e-9)


@pytest.mark.parametrize(
    ("terminated", "truncated", "successor", "expected"),
    [
        ([False, True, False, False], [False, False, False, True], 0.5, [2.03, 1.5, 6.118, 4.4]),
        ([False] * 4, [False, True, False, True], 0.6, [2.4188, 2.04, 6.118, 4.4]),
    ],
)
def test_vector_1c_termination_and_truncation_within_one_buffer(terminated, truncated, successor, expected):
    a = control([1, 2, 3, 4], [0.5] * 4, [0.5, successor, 0.5, 1.0], terminated, truncated)
    assert a == pytest.approx(expected, abs=1e-9)


def test_the_end_of_the_buffer_ends_the_recursion_and_not_the_bootstrap():
    assert control([1.0], [0.5], [2.0], [False], [False]) == pytest.approx([1.0 + 0.9 * 2.0 - 0.5])


def test_a_successor_after_termination_is_never_looked_at():
    assert control([1.0], [0.5], [NAN], [True], [False]) == [0.5]


def test_gae_of_no_step_is_empty():
    none = torch.zeros(0, dtype=torch.bool)
    assert gae(d([]), d([]), d([]), none, none, gamma=1.0, gae_lambda=1.0).tolist() == []
    none = torch.zeros(0, 3, dtype=torch.bool)
    empty = torch.zeros(0, 3)
    assert gae(empty, empty, empty, none, none, gamma=1.0, gae_lambda=1.0).shape == (0, 3)


def test_lambda_zero_is_one_step_td_and_lambda_one_is_monte_carlo_with_a_baseline():
    rewards, values, successors = [1.0, 0.0, 2.0], [0.5, 0.4, 0.3], [0.4, 0.3, 0.0]
    td = [r + 0.9 * s - v for r, v, s in zip(rewards, values, successors, strict=True)]
    assert control(rewards, values, successors, END, NO, smoothing=0.0) == pytest.approx(td)
    returns = discounted_returns(d(rewards), Layout.from_lengths([3]), 0.9) - d(values)
    assert control(rewards, values, successors, END, NO, smoothing=1.0) == pytest.approx(returns.tolist())


@given(st.integers(1, 6), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_gae_equals_the_sum_over_temporal_differences(steps, seed, smoothing):
    rng = np.random.default_rng(seed)
    rewards, values, successors = rng.standard_normal((3, steps, 2))
    terminated, truncated = rng.random((2, steps, 2)) < 0.2
    mine = gae(
        *(torch.tensor(x) for x in (rewards, values, successors, terminated, truncated)),
        gamma=0.9,
        gae_lambda=smoothing,
    )
    for b in range(2):
        columns = (x[:, b] for x in (rewards, values, successors, terminated, truncated))
        expected = oracles.gae_by_sums(*(*columns, 0.9, smoothing))
        assert mine[:, b].tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", ["gamma", "gae_lambda"])
@pytest.mark.parametrize("value", [-0.1, 1.1, NAN])
def test_fractions_outside_their_range_are_refused(name, value):
    message = rf"^(gae: )?{name} must be in \[0, 1\], not {value}$"
    with pytest.raises(ValueError, match=message):
        GAE(**{name: value})
    step = d([0.0])
    flag = torch.tensor([True])
    with pytest.raises(ValueError, match=message):
        gae(step, step, step, flag, flag, **({"gamma": 1.0, "gae_lambda": 1.0} | {name: value}))


def test_the_ends_of_the_fractions_are_allowed():
    assert GAE(0.0, 0.0) == GAE(gamma=0.0, gae_lambda=0.0)
    assert GAE() == GAE(gamma=1.0, gae_lambda=0.95)


# Vector 1d: a tool's output at places 2 and 3; mask [1, 1, 0, 0, 1].
HOLE = torch.tensor([[True, True, False, False, True]])


def hole_feedback(**changes):
    arguments = {
        "layout": Layout.from_mask(HOLE),
        "rewards": d([1.0]),
        "step_rewards": d([0.1]),
        "step_tokens": torch.tensor([1]),
        "values": d([0.2, 0.3, 0.6]),
    }
    return Feedback(**(arguments | changes))


def test_vector_1d_gae_across_a_hole_equals_the_compacted_run():
    advantages = GAE(0.9, 0.8)(hole_feedback())
    assert advantages.tolist() == pytest.approx([0.52216, 0.628, 0.4], abs=1e-9)
    assert hole_feedback().layout.size("turn") == 2
    compact = GAE(0.9, 0.8)(hole_feedback(layout=Layout.from_lengths([3])))
    assert advantages.tolist() == compact.tolist()
    carried = oracles.gae_with_holes([0, 0.1, 9, 9, 1], [0.2, 0.3, 7, 7, 0.6], [1, 1, 0, 0, 1], 0.9, 0.8)
    assert [carried[t] for t in (0, 1, 4)] == pytest.approx(advantages.tolist(), abs=1e-12)


def test_tool_output_seen_as_states_of_value_zero_would_give_other_advantages():
    """From the end: δ = 0.4, 0.54, 0, -0.2, 0.07, carried on with 0.72; without the hole 0.52216, 0.628, 0.4."""
    last = [False, False, False, False, True]
    naive = control([0, 0.1, 0, 0, 1], [0.2, 0.3, 0, 0, 0.6], [0.3, 0, 0, 0.6, 0], last, [False] * 5)
    assert naive == pytest.approx([0.235049344, 0.2292352, 0.59616, 0.828, 0.4], abs=1e-9)
    kept = [naive[t] for t in (0, 1, 4)]
    assert max(abs(a - b) for a, b in zip(kept, GAE(0.9, 0.8)(hole_feedback()).tolist(), strict=True)) > 0.39


@given(layouts(), st.integers(0, 2**32 - 1))
def test_the_gae_choice_equals_the_carried_recursion_of_every_episode(layout, seed):
    rng = np.random.default_rng(seed)
    episodes, tokens = layout.size("episode"), layout.tokens
    rewards = rng.standard_normal(episodes)
    rewards[rng.random(episodes) < 0.2] = NAN
    truncated, final = rng.random(episodes) < 0.4, rng.standard_normal(episodes)
    values, steps = rng.standard_normal(tokens), rng.standard_normal(tokens)
    feedback = Feedback(
        layout,
        d(rewards),
        d(steps),
        torch.arange(tokens),
        d(values),
        d(final),
        torch.tensor(truncated, dtype=torch.bool),
    )
    mine = GAE(0.9, 0.7)(feedback).numpy()
    for e in range(episodes):
        own = np.flatnonzero(layout.index("episode").numpy() == e)
        landed = steps[own].copy()
        landed[-1:] += rewards[e]
        expected = oracles.gae_with_holes(
            landed, values[own], [1] * len(own), 0.9, 0.7, final[e] if truncated[e] else 0.0
        )
        np.testing.assert_allclose(mine[own], 0.0 if np.isnan(rewards[e]) else expected, atol=1e-12)


def test_gae_holds_where_the_tokens_of_episodes_are_interleaved():
    ordered = Layout(
        torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 2, 3]), torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1]), 2
    )
    rewards, values = d([1.0, -1.0]), d([0.1, 0.2, 0.3, 0.4])
    mixed, tokens = ordered.select(torch.tensor([0, 2, 1, 3]))
    expected = GAE(0.9, 0.8)(Feedback(ordered, rewards, values=values))[tokens]
    assert GAE(0.9, 0.8)(Feedback(mixed, rewards, values=values[tokens])).tolist() == expected.tolist()


def test_an_episode_cut_off_bootstraps_and_a_finished_one_does_not():
    layout = Layout.from_lengths([1, 1])
    cut = torch.tensor([True, False])
    feedback = Feedback(layout, d([1.0, 1.0]), values=d([0.5, 0.5]), final_values=d([2.0, 2.0]), truncated=cut)
    assert GAE()(feedback).tolist() == [2.5, 0.5]


def test_gae_without_a_critic_is_refused():
    with pytest.raises(ValueError, match=r"^GAE needs a critic: Feedback\.values is missing$"):
        GAE()(Feedback(Layout.from_lengths([1]), d([1.0])))


def test_a_truncated_episode_without_its_last_value_is_refused():
    message = r"^GAE of a truncated episode needs the value of its last state: Feedback\.final_values$"
    with pytest.raises(ValueError, match=message):
        GAE()(hole_feedback(truncated=torch.tensor([True])))
    assert GAE()(hole_feedback(truncated=torch.tensor([False]))).tolist() == GAE()(hole_feedback()).tolist()


# ------------------------------------------------------------------------------------------------ whitening


def test_vector_1e_whitening():
    x = d([1.0, 2.0, 3.0])
    assert whiten(x, bessel=True).tolist() == pytest.approx([-0.999999995, 0, 0.999999995], abs=1e-9)
    assert whiten(x).tolist() == pytest.approx([-1.2247448622, 0, 1.2247448622], abs=1e-9)
    assert whiten(x, shift_mean=False, bessel=True).tolist() == pytest.approx([1.000000005, 2, 2.999999995], abs=1e-9)


@pytest.mark.parametrize("bessel", [False, True])
@pytest.mark.parametrize("items", [[0.1, 0.1, 0.1], [0.1 + 0.2, 0.3], [5.0], []])
def test_whitening_equal_items_only_centres_them(items, bessel):
    assert whiten(d(items), bessel=bessel).tolist() == [0.0] * len(items)
    assert whiten(d(items), shift_mean=False, bessel=bessel).tolist() == items


def test_whitening_does_not_hide_what_is_not_a_number():
    assert whiten(d([1.0, NAN])).isnan().all()


def test_advantages_are_made_on_the_device_of_their_inputs():
    """With another default device, a tensor made without naming one would not meet the others."""
    rewards, group, _ = one_group([1.0, 0.0])
    steps = Feedback(Layout.from_lengths([1, 1], group_size=2), d([1.0, 0.0]), d([1.0, 2.0]), torch.tensor([0, 1]))
    with torch.device("meta"):
        made = [group_standardize(rewards, group, 1), GroupCenter()(steps), discounted_returns(rewards, steps.layout)]
    assert {x.device.type for x in made} == {"cpu"}
