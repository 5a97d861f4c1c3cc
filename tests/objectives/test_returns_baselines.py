"""Returns and baselines against independent formulas."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles
import oracles_returns
from reinlm.objectives import (
    GAE,
    Feedback,
    GreedyBaseline,
    GroupCenter,
    GroupStandardize,
    Layout,
    LeaveOneOut,
    LengthWeighted,
    NStep,
    Returns,
    VTrace,
    Whitened,
    gae,
    lambda_returns,
    n_step_returns,
    vtrace,
)
from strategies import layouts

NAN, INF = math.nan, math.inf
seeds = st.integers(0, 2**32 - 1)


def d(values, grad=False):
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def trajectories(steps, seed):
    rng = np.random.default_rng(seed)
    floats = rng.standard_normal((4, steps, 3))
    terminated, truncated = rng.random((2, steps, 3)) < 0.2
    return [torch.tensor(x) for x in (*floats, terminated, truncated & ~terminated)]


def columns(tensors):
    return [[t[:, b].tolist() for t in tensors] for b in range(3)]


# ------------------------------------------------------------------------------------------------ returns


@given(st.integers(1, 6), seeds, st.sampled_from([0.0, 0.4, 1.0]), st.sampled_from([0.0, 0.9, 1.0]))
def test_lambda_returns_mix_all_n_step_returns(steps, seed, smoothing, discount):
    _, rewards, _, successors, terminated, truncated = trajectories(steps, seed)
    mine = lambda_returns(rewards, successors, terminated, truncated, gamma=discount, gae_lambda=smoothing)
    for b, column in enumerate(columns([rewards, successors, terminated, truncated])):
        expected = oracles_returns.lambda_return(*(*column, discount, smoothing))
        assert mine[:, b].tolist() == pytest.approx(expected, abs=1e-10)


@given(st.integers(1, 6), seeds, st.integers(1, 8))
def test_n_step_returns_are_n_rewards_and_a_value(steps, seed, n):
    _, rewards, _, successors, terminated, truncated = trajectories(steps, seed)
    mine = n_step_returns(rewards, successors, terminated, truncated, gamma=0.9, n=n)
    for b, column in enumerate(columns([rewards, successors, terminated, truncated])):
        assert mine[:, b].tolist() == pytest.approx(oracles_returns.n_step(*(*column, 0.9, n)), abs=1e-10)


@given(st.integers(1, 6), seeds, st.sampled_from([(1.0, 1.0, 1.0), (0.7, 0.5, 2.0), (INF, 1.2, INF)]))
def test_vtrace_is_the_sum_of_its_definition(steps, seed, caps):
    logs, *rest = trajectories(steps, seed)
    names = dict(zip(("value_cap", "trace_cap", "policy_cap"), caps, strict=True))
    targets, advantages = vtrace(logs, *rest, gamma=0.9, gae_lambda=0.8, **names)
    for b, column in enumerate(columns([logs, *rest])):
        expected = oracles_returns.vtrace(*(*column, 0.9, 0.8, *caps))
        assert targets[:, b].tolist() == pytest.approx(expected[0], abs=1e-9)
        assert advantages[:, b].tolist() == pytest.approx(expected[1], abs=1e-9)


@given(st.integers(1, 6), seeds, st.sampled_from([0.0, 0.5, 1.0]))
def test_lambda_returns_equal_gae_plus_values_where_successors_are_the_next_values(steps, seed, smoothing):
    _, rewards, values, final, terminated, truncated = trajectories(steps, seed)
    goes_on = ~(terminated | truncated)
    goes_on[-1] = False
    successors = torch.where(goes_on, values.roll(-1, 0), final)
    options = {"gamma": 0.9, "gae_lambda": smoothing}
    advantages = gae(rewards, values, successors, terminated, truncated, **options)
    returns = lambda_returns(rewards, successors, terminated, truncated, **options)
    np.testing.assert_allclose(advantages + values, returns, atol=1e-12)
    long = n_step_returns(rewards, successors, terminated, truncated, gamma=0.9, n=steps)
    whole = lambda_returns(rewards, successors, terminated, truncated, gamma=0.9, gae_lambda=1.0)
    np.testing.assert_allclose(long, whole, atol=1e-12)
    on_policy, _ = vtrace(0 * rewards, rewards, values, successors, terminated, truncated, **options)
    np.testing.assert_allclose(on_policy, returns, atol=1e-12)


@given(st.integers(1, 5), seeds)
def test_gae_takes_a_smoothing_for_each_episode(steps, seed):
    _, rewards, values, successors, terminated, truncated = trajectories(steps, seed)
    each = d([0.0, 0.5, 1.0])
    mine = gae(rewards, values, successors, terminated, truncated, gamma=0.9, gae_lambda=each)
    for b, column in enumerate(columns([rewards, values, successors, terminated, truncated])):
        expected = oracles.gae_by_sums(*(*column, 0.9, float(each[b])))
        assert mine[:, b].tolist() == pytest.approx(expected, abs=1e-12)
    with pytest.raises(ValueError, match=r"^gae_lambda must be in \[0, 1\]"):
        gae(rewards, values, successors, terminated, truncated, gamma=0.9, gae_lambda=each + 0.5)


def test_trajectories_without_a_step_have_no_returns():
    none, flag = torch.zeros(0, 2, dtype=torch.float64), torch.zeros(0, 2, dtype=torch.bool)
    assert lambda_returns(none, none, flag, flag, gamma=1.0, gae_lambda=0.5).shape == (0, 2)
    assert n_step_returns(none, none, flag, flag, gamma=1.0, n=2).shape == (0, 2)
    assert [x.shape for x in vtrace(none, none, none, none, flag, flag, gamma=1.0)] == [(0, 2), (0, 2)]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda x, f: n_step_returns(x, x, f, f, gamma=1.0, n=0), "n-step returns need n of at least 1, not 0"),
        (lambda x, f: n_step_returns(x, x, f, f, gamma=1.1, n=1), "gamma must be in [0, 1], not 1.1"),
        (lambda x, f: lambda_returns(x, x, f, f, gamma=-0.1, gae_lambda=1.0), "gamma must be in [0, 1], not -0.1"),
        (lambda x, f: lambda_returns(x, x, f, f, gamma=1.0, gae_lambda=2.0), "gae_lambda must be in [0, 1], not 2.0"),
        (lambda x, f: vtrace(x, x, x, x, f, f, gamma=1.0, gae_lambda=-1.0), "gae_lambda must be in [0, 1], not -1.0"),
        (lambda x, f: vtrace(x, x, x, x, f, f, gamma=2.0), "gamma must be in [0, 1], not 2.0"),
        (
            lambda x, f: vtrace(x, x, x, x, f, f, gamma=1.0, trace_cap=0.0),
            "vtrace: trace_cap must be more than 0, not 0.0",
        ),
    ],
)
def test_returns_refuse_what_is_out_of_range(call, told):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        call(d([1.0]), torch.tensor([False]))
    assert str(error.value) == told


# ------------------------------------------------------------------------------------------------ choices over time


@st.composite
def feedbacks(draw, steps=False):
    layout = draw(layouts())
    rng = np.random.default_rng(draw(seeds))
    episodes, tokens = layout.size("episode"), layout.tokens
    rewards = rng.choice([0.0, 1.0, 0.5, NAN], episodes)
    return Feedback(
        layout,
        d(rewards.tolist()),
        values=d(rng.standard_normal(tokens).tolist()),
        final_values=d(rng.standard_normal(episodes).tolist()),
        truncated=torch.tensor(rng.random(episodes) < 0.3, dtype=torch.bool).reshape(episodes),
        token_rewards=d(rng.standard_normal(tokens).tolist()),
        log_importance=d((0.3 * rng.standard_normal(tokens)).tolist()),
        baseline_rewards=d(rng.choice([0.0, 0.5, NAN], layout.groups).tolist()),
    )


def by_episode(feedback):
    """(which tokens, rewards on their tokens, values, successors, terminated, truncated) of every rewarded episode."""
    for e in range(feedback.layout.size("episode")):
        tokens = torch.nonzero(feedback.layout.index("episode") == e).flatten().tolist()
        if tokens and not math.isnan(feedback.rewards[e]):
            rewards = feedback.token_rewards[tokens].tolist()
            rewards[-1] += float(feedback.rewards[e])
            values = feedback.values[tokens].tolist()
            end = [False] * (len(tokens) - 1)
            cut = bool(feedback.truncated[e])
            successors = [*values[1:], float(feedback.final_values[e])]
            yield tokens, rewards, values, successors, [*end, not cut], [*end, cut]


def assembled(feedback, of_episode):
    out = [0.0] * feedback.layout.tokens
    for tokens, *rest in by_episode(feedback):
        for token, value in zip(tokens, of_episode(tokens, *rest), strict=True):
            out[token] = value
    return pytest.approx(out, abs=1e-10)


@given(feedbacks())
def test_choices_over_time_equal_the_formulas_of_every_episode(feedback):
    def returns(tokens, rewards, *_):
        return [sum(r * 0.9**k for k, r in enumerate(rewards[t:])) for t in range(len(rewards))]

    def n_steps(tokens, rewards, values, successors, terminated, truncated):
        found = oracles_returns.n_step(rewards, successors, terminated, truncated, 0.9, 2)
        return [g - v for g, v in zip(found, values, strict=True)]

    def of_vtrace(which):
        def call(tokens, *rest):
            logs = feedback.log_importance[tokens].tolist()
            return oracles_returns.vtrace(logs, *(*rest, 0.9, 1.0, 1.0, 1.0, 1.0))[which]

        return call

    assert Returns(0.9)(feedback).tolist() == assembled(feedback, returns)
    assert GAE(0.9, 0.8)(feedback).tolist() == assembled(feedback, lambda t, *x: oracles.gae_by_sums(*(*x, 0.9, 0.8)))
    assert NStep(2, 0.9)(feedback).tolist() == assembled(feedback, n_steps)
    assert VTrace(0.9)(feedback).tolist() == assembled(feedback, of_vtrace(1))
    assert VTrace(0.9).targets(feedback).tolist() == assembled(feedback, of_vtrace(0))
    given = feedback.given
    ended = replace(feedback, truncated=None)
    for bootstrapping, plain in (
        (GAE(0.9, 0.8), GAE(0.9, 0.8, bootstrap_truncated=False)),
        (NStep(2, 0.9), NStep(2, 0.9, False)),
    ):
        assert plain(feedback).tolist() == bootstrapping(ended).tolist()
    assert VTrace(0.9, bootstrap_truncated=False)(feedback).tolist() == VTrace(0.9)(ended).tolist()
    kept = torch.where(given, GAE(0.9, 0.8).targets(feedback) - feedback.values, 0.0)
    assert kept.tolist() == pytest.approx(GAE(0.9, 0.8)(feedback).tolist(), abs=1e-12)
    expected = torch.where(given, NStep(2, 0.9).targets(feedback) - feedback.values, 0.0)
    assert NStep(2, 0.9)(feedback).tolist() == pytest.approx(expected.tolist(), abs=1e-12)


@given(feedbacks())
def test_baselines_equal_the_formulas(feedback):
    layout = feedback.layout
    rewards = [None if math.isnan(r) else r for r in feedback.rewards.tolist()]
    groups = layout.group_of_episode.tolist()
    lengths = layout.count("episode").tolist()
    baselines = feedback.baseline_rewards.tolist()

    def spread(values):
        return pytest.approx(layout.expand(d(values), "episode").tolist() if values else [], abs=1e-12)

    greedy = [
        0.0 if r is None or math.isnan(baselines[g]) else r - baselines[g] for r, g in zip(rewards, groups, strict=True)
    ]
    assert LeaveOneOut()(feedback).tolist() == spread(oracles_returns.leave_one_out(rewards, groups))
    assert LengthWeighted()(feedback).tolist() == spread(oracles_returns.length_weighted(rewards, lengths, groups))
    assert GreedyBaseline()(feedback).tolist() == spread(greedy)


@pytest.mark.parametrize("bessel", [False, True])
@given(feedbacks())
def test_whitening_leaves_out_what_has_no_reward(bessel, feedback):
    layout, given = feedback.layout, feedback.given
    plain = Returns(0.9)(feedback)
    kept = plain[given].tolist()
    found = Whitened(Returns(0.9), bessel=bessel)(feedback)
    expected = oracles_returns.whitened(kept, bessel=bessel) if len(kept) > 1 else [0.0] * len(kept)
    assert found[given].tolist() == pytest.approx(expected, abs=1e-9)
    assert found[~given].abs().sum() == 0.0
    centred = GroupCenter()(feedback)
    episodes = [e for e in range(layout.size("episode")) if lengths_of(layout)[e] and not feedback.rewards[e].isnan()]
    each = [float(layout.mean(centred, "episode")[e]) for e in episodes]
    found = layout.mean(Whitened(GroupCenter(), by="episode", bessel=bessel)(feedback), "episode")
    expected = oracles_returns.whitened(each, bessel=bessel) if len(each) > 1 else [0.0] * len(each)
    assert [float(found[e]) for e in episodes] == pytest.approx(expected, abs=1e-9)


def lengths_of(layout):
    return layout.count("episode").tolist()


def test_whitened_needs_what_its_inner_advantage_needs_and_teaches_what_it_teaches():
    feedback = Feedback(Layout.from_lengths([2]), d([1.0]), values=d([0.2, 0.4]))
    assert Whitened(GAE()).needs == {"critic"}
    assert (Whitened(GAE()).sums_rewards, Whitened(GroupCenter()).sums_rewards) == (True, False)
    assert Whitened(GAE()).targets(feedback).tolist() == GAE().targets(feedback).tolist()
    assert VTrace().needs == {"critic", "importance"}
    assert GreedyBaseline().needs == {"greedy"}
    assert Returns().needs == set()
    assert LeaveOneOut().needs == LengthWeighted().needs == GroupStandardize().needs == {"group"}


def test_what_an_advantage_lacks_is_named():
    bare = Feedback(Layout.from_lengths([1]), d([1.0]))
    steps = Feedback(Layout.from_lengths([1]), d([1.0]), step_rewards=d([1.0]), step_tokens=torch.tensor([0]))
    critic = Feedback(Layout.from_lengths([1]), d([1.0]), values=d([1.0]))
    cut = Feedback(Layout.from_lengths([1]), d([1.0]), values=d([1.0]), truncated=torch.tensor([True]))
    for choice, feedback, told in (
        (GAE(), bare, "GAE needs a critic: Feedback.values is missing"),
        (NStep(1), bare, "n-step needs a critic: Feedback.values is missing"),
        (VTrace(), critic, "V-trace needs the ratio of policy and sampler: Feedback.log_importance is missing"),
        (GAE(), cut, "GAE of a truncated episode needs the value of its last state: Feedback.final_values"),
        (
            GreedyBaseline(),
            bare,
            "a greedy baseline needs the rewards of the greedy answers: Feedback.baseline_rewards",
        ),
        (
            GreedyBaseline(),
            steps,
            "a greedy baseline compares outcome rewards, and there are step rewards; take group_st",
        ),
        (LengthWeighted(), steps, "a length-weighted baseline compares outcome rewards, and there are step rewards"),
    ):
        with pytest.raises(ValueError) as error:  # noqa: PT011
            choice(feedback)
        assert str(error.value).startswith(told)
    with pytest.raises(ValueError, match=r"^GroupCenter has no critic to teach$"):
        GroupCenter().targets(bare)
