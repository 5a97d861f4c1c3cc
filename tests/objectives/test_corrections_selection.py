"""Corrections and selections against independent formulas; gradients; degenerate input; refusals."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from reinlm.objectives import (
    GAE,
    KL,
    Clip,
    ClipCov,
    Critic,
    EntropyBonus,
    Feedback,
    GeometricFilter,
    GreedyBaseline,
    GroupCenter,
    GroupStandardize,
    K3Filter,
    KLCov,
    Layout,
    LeaveOneOut,
    LengthWeighted,
    Linear,
    Masked,
    NoGate,
    NStep,
    OffPolicyMask,
    Returns,
    SchulmanRule,
    SelfNormalized,
    SequenceRatio,
    SequenceTokenRatio,
    Signals,
    Soft,
    TargetBand,
    TokenRatio,
    Truncated,
    TruncatedWeight,
    TurnRatio,
    VTrace,
    Whitened,
    ZieglerRule,
    correct,
    decoupled_mix,
    effective_sample_size,
    explained_variance,
    full_divergence,
    full_entropy,
    kept_logprobs,
    soft_gate,
    surrogate,
    td_errors,
    value_loss,
)
from reinlm.objectives.corrections import importance

NAN, INF = math.nan, math.inf
seeds = st.integers(0, 2**32 - 1)


def d(values, grad=False):
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


# ------------------------------------------------------------------------------------------------ degenerate input

ADVANTAGES = [
    GroupStandardize(),
    GroupCenter(),
    LeaveOneOut(),
    LengthWeighted(),
    GreedyBaseline(),
    Returns(),
    GAE(),
    NStep(2),
    VTrace(),
    Whitened(Returns()),
    Whitened(GroupCenter(), by="episode"),
]


@pytest.mark.parametrize("choice", ADVANTAGES, ids=str)
@pytest.mark.parametrize("lengths", [[], [0, 0], [2, 0, 1]])
def test_no_reward_anywhere_is_no_advantage_anywhere(choice, lengths):
    layout = Layout.from_lengths(lengths)
    n = layout.tokens
    feedback = Feedback(
        layout,
        d([NAN] * len(lengths)),
        values=d([0.3] * n),
        final_values=d([0.1] * len(lengths)),
        truncated=torch.ones(len(lengths), dtype=torch.bool),
        baseline_rewards=d([NAN] * len(lengths)),
        log_importance=d([0.1] * n),
    )
    assert choice(feedback).tolist() == [0.0] * n


@pytest.mark.parametrize("choice", [LeaveOneOut(), LengthWeighted(), GroupStandardize(), GroupCenter()], ids=str)
@pytest.mark.parametrize("rewards", [[0.1 + 0.2, 0.3], [1.0], [NAN, 2.0], [5.0, 5.0, 5.0]])
def test_equal_rewards_and_groups_of_one_give_exact_zeros(choice, rewards):
    feedback = Feedback(Layout.from_lengths([3] * len(rewards), len(rewards)), d(rewards))
    assert choice(feedback).tolist() == [0.0] * (3 * len(rewards))


def test_a_greedy_answer_as_good_gives_exactly_nothing():
    feedback = Feedback(Layout.from_lengths([1]), d([0.1 + 0.2]), baseline_rewards=d([0.3]))
    assert GreedyBaseline()(feedback).tolist() == [0.0]


# ------------------------------------------------------------------------------------------------ corrections

CORRECTIONS = [Truncated(), Masked(), Truncated(level="sequence"), GeometricFilter(), K3Filter(), SelfNormalized()]


@pytest.mark.parametrize("correction", CORRECTIONS, ids=str)
@pytest.mark.parametrize("missing", [-INF, NAN, INF])
def test_a_token_without_a_samplers_log_probability_has_weight_zero(correction, missing):
    weights = correct([correction], d([-1.0, -2.0]), d([missing, -2.0]), Layout.from_lengths([1, 1]))
    assert weights[0].item() == 0.0
    assert weights[1].item() == (2.0 if isinstance(correction, SelfNormalized) else 1.0)
    assert correct([correction], d([]), d([]), Layout.from_lengths([])).tolist() == []


def test_self_normalised_weights_average_one_or_are_all_zero():
    layout = Layout.from_lengths([2, 1])
    weights = correct([Truncated(2.0), SelfNormalized()], d([-1.0, -1.0, -1.0]), d([-1.5, -1.1, -0.2]), layout)
    assert weights.mean().item() == pytest.approx(1.0, abs=1e-12)
    none = correct([Masked(100.0, 200.0), SelfNormalized()], d([-1.0] * 3), d([-1.0] * 3), layout)
    assert none.tolist() == [0.0] * 3
    assert effective_sample_size(none).item() == 0.0
    assert effective_sample_size(d([1.0, 1.0, 0.0])).item() == 2.0


def test_far_ratios_stay_finite_and_low_precision_is_raised():
    far = correct([Truncated(1e30, level="sequence")], d([0.0] * 3), d([-1e4] * 3), Layout.from_lengths([3]))
    assert far.tolist() == pytest.approx([math.exp(20.0)] * 3)
    low = correct(
        [Truncated()], torch.tensor([-1.0]).bfloat16(), torch.tensor([-1.0]).bfloat16(), Layout.from_lengths([1])
    )
    assert low.dtype == torch.float32
    with pytest.raises(ValueError, match=r"^correction: level is token, turn, sequence, episode, not 'group'$"):
        importance(d([0.0]), Layout.from_lengths([1]), "group")


def test_nothing_is_stale_without_an_older_sampler():
    assert decoupled_mix(version=3, proximal=2, behaviour=3) == 1.0
    assert decoupled_mix(version=9, proximal=1, behaviour=2) == 0.0
    assert decoupled_mix(version=3, proximal=5, behaviour=2) == 1.0


# ------------------------------------------------------------------------------------------------ selection


@given(seeds, st.integers(2, 30))
def test_a_draw_belongs_to_its_token_and_not_to_its_place(seed, n):
    rng = np.random.default_rng(seed)
    logprobs, advantages = d((-rng.exponential(1.0, n)).tolist()), d(rng.standard_normal(n).tolist())
    order = torch.as_tensor(rng.permutation(n))
    for selection in (ClipCov(0.3, 0.0, 100.0), KLCov(0.3)):
        chosen = selection.select(logprobs, advantages, seed=seed)
        moved = selection.select(logprobs[order], advantages[order], seed=seed)
        assert moved.tolist() == chosen[order].tolist()
        assert int(chosen.sum()) <= max(1, int(0.3 * n))


def test_another_seed_draws_other_tokens_about_evenly():
    logprobs = -torch.linspace(0.1, 2.0, 100, dtype=torch.float64)
    advantages = -logprobs * 0 + torch.where(torch.arange(100) < 50, 1.0, -1.0).double()
    selection = ClipCov(0.05, 0.0, 100.0)
    candidates = ClipCov(1.0, 0.0, 100.0).select(logprobs, advantages, 0)
    counts = torch.stack([selection.select(logprobs, advantages, seed) for seed in range(2000)]).double().sum(0)
    assert counts[~candidates].sum() == 0.0
    expected = 2000 * 5 / int(candidates.sum())
    assert float((counts[candidates] - expected).abs().max()) < 6 * math.sqrt(expected)


def test_no_covariance_selects_nothing():
    same = d([1.0, 1.0, 1.0])
    for selection in (ClipCov(1.0, 0.0, 9.0), KLCov(1.0)):
        assert selection.select(d([-1.0, -2.0, -3.0]), same, 0).tolist() == [False] * 3
        assert selection.select(d([]), d([]), 0).tolist() == []


def test_tokens_that_clip_cov_chose_count_zero_with_no_gradient():
    logprobs = d([-1.0, -2.0], grad=True)
    s = Signals(Layout.from_lengths([2]), d([1.0, 1.0]), d([1.0, 1.0]), selected=torch.tensor([True, False]))
    losses = ClipCov().apply(NoGate()(TokenRatio()(logprobs, s), logprobs, s).losses, logprobs, s)
    losses.sum().backward()
    assert losses.tolist() == [0.0, -1.0]
    assert logprobs.grad.tolist() == [0.0, -1.0]


# ------------------------------------------------------------------------------------------------ gradients


def smooth(seed=0, n=6):
    """Ratios away from every bound, in two sequences."""
    rng = np.random.default_rng(seed)
    moved = rng.choice([-0.5, -0.1, 0.1, 0.5], n) + rng.uniform(-0.02, 0.02, n)
    old = d((-rng.exponential(1.0, n)).tolist())
    logprobs = (old + d(moved.tolist())).requires_grad_()
    advantages = d(rng.choice([-1.0, 1.0, 2.0], n).tolist())
    s = Signals(
        Layout.from_lengths([2, n - 2]),
        advantages,
        torch.ones_like(advantages),
        old_logprobs=old,
        ref_logprobs=old + 0.2,
        rollout_logprobs=old - 0.05,
        selected=torch.arange(n) % 2 == 0,
    )
    return logprobs, s


@pytest.mark.parametrize("ratio", [TokenRatio(), TurnRatio(), SequenceRatio(), TokenRatio("rollout")], ids=str)
@pytest.mark.parametrize("gate", [NoGate(), Clip(), Clip(0.2, 0.28, 1.4), Soft(), Soft(3.0, 5.0)], ids=str)
def test_gates_of_ratios_pass_gradcheck(ratio, gate):
    logprobs, s = smooth()
    assert gradcheck(lambda x: gate(ratio(x, s), x, s).losses, logprobs)


@pytest.mark.parametrize(
    "kl",
    [
        KL("k2"),
        KL("k3"),
        KL("k3_unbiased"),
        KL("f3_unbiased", direction="forward"),
        KL("k2", anchor="old"),
        KL("k3", anchor="old"),
    ],
    ids=str,
)
def test_ties_pass_gradcheck(kl):
    logprobs, s = smooth(1)
    assert gradcheck(lambda x: kl(x, s), logprobs)


def test_the_rest_passes_gradcheck():
    logprobs, s = smooth(2)
    rng = np.random.default_rng(0)
    table, other = d(rng.standard_normal((3, 4)).tolist(), grad=True), d(rng.standard_normal((3, 4)).tolist())
    kept = torch.tensor([[True, True, False, True]] * 3)
    assert gradcheck(lambda x: KLCov(0.5).apply(0 * x, x, s), logprobs)
    for direction in ("reverse", "forward"):
        assert gradcheck(lambda x, to=direction: full_divergence(x.log_softmax(-1), other.log_softmax(-1), to), table)
    assert gradcheck(lambda x: kept_logprobs(x, torch.tensor([0, 1, 2]), kept), table)
    assert gradcheck(lambda x: soft_gate(x, torch.full_like(x, 1.3)), table)
    assert gradcheck(lambda x: value_loss(x, other, other + 0.05, 0.2), table)


def test_the_old_anchor_is_the_mean_of_r_minus_one_minus_log_r():
    logprobs, s = smooth(3)
    moved = (logprobs - s.old_logprobs).detach()
    assert KL("k3", anchor="old")(logprobs, s).tolist() == pytest.approx((moved.exp() - 1 - moved).tolist(), abs=1e-12)
    assert KL("k2", anchor="old")(logprobs, s).tolist() == pytest.approx((moved**2 / 2).tolist(), abs=1e-12)


@given(seeds)
def test_gspo_token_is_gspo_where_a_sequence_has_one_advantage(seed):
    logprobs, s = smooth(seed)
    same = Signals(s.layout, s.layout.expand(d([1.5, -0.5]), "sequence"), s.weights, old_logprobs=s.old_logprobs)
    found = []
    for ratio in (SequenceRatio(), SequenceTokenRatio()):
        out = Clip(0.2, 0.28)(ratio(logprobs, same), logprobs, same)
        (slope,) = torch.autograd.grad(out.losses.sum(), logprobs)
        found.append((out.losses.tolist(), slope.tolist(), out.low.tolist(), out.high.tolist()))
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-12)
    assert found[0][1] == pytest.approx(found[1][1], abs=1e-12)
    assert found[0][2:] == found[1][2:]


def test_constants_have_no_gradient_and_the_mask_follows_none():
    logprobs, s = smooth()
    mask = OffPolicyMask(0.0)(logprobs, s)
    assert mask.dtype == torch.bool
    out = TruncatedWeight()(TokenRatio()(logprobs, s), logprobs, s)
    (slope,) = torch.autograd.grad(out.losses.sum(), logprobs)
    ratio = (logprobs - s.old_logprobs).exp().detach()
    assert slope.tolist() == pytest.approx((-ratio.clamp(max=5.0) * s.advantages).tolist(), abs=1e-12)
    for name in ("advantages", "weights", "old_logprobs", "ref_logprobs", "returns", "old_values", "correction"):
        given = {"advantages": d([1.0]), "weights": d([1.0])} | {name: d([1.0], grad=True)}
        with pytest.raises(
            ValueError, match=f"^{name} carries a gradient; the log-probabilities alone may: detach it$"
        ):
            Signals(Layout.from_lengths([1]), **given)


# ------------------------------------------------------------------------------------------------ critics


def test_explained_variance():
    returns = d([1.0, 2.0, 3.0])
    assert explained_variance(d([1.0, 2.0, 2.0]), returns).item() == pytest.approx(2 / 3)
    assert explained_variance(returns, returns).item() == 1.0
    assert explained_variance(d([5.0, 5.0, 5.0]), returns).item() == 0.0
    assert explained_variance(d([3.0, 2.0, 1.0]), returns).item() == -3.0
    assert explained_variance(returns, d([2.0, 2.0, 2.0])).isnan()
    assert explained_variance(d([]), d([])).isnan()


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Returns(1.5), "returns: gamma must be in [0, 1], not 1.5"),
        (lambda: GAE(critic_lambda=-0.1), "gae: critic_lambda must be in [0, 1], not -0.1"),
        (lambda: GAE(length_adaptive=0.0), "gae: length_adaptive must be more than 0 and finite, not 0.0"),
        (lambda: NStep(0), "n_step: n must be at least 1, not 0"),
        (lambda: NStep(1, 2.0), "n_step: gamma must be in [0, 1], not 2.0"),
        (lambda: VTrace(-1.0), "vtrace: gamma must be in [0, 1], not -1.0"),
        (lambda: VTrace(1.0, 2.0), "vtrace: gae_lambda must be in [0, 1], not 2.0"),
        (lambda: VTrace(value_cap=0.0), "vtrace: value_cap must be more than 0, not 0.0"),
        (lambda: VTrace(trace_cap=-1.0), "vtrace: trace_cap must be more than 0, not -1.0"),
        (lambda: VTrace(policy_cap=NAN), "vtrace: policy_cap must be more than 0, not nan"),
        (lambda: Truncated(0.0), "truncated: needs 0 ≤ low < high, not 0.0 and 0.0"),
        (lambda: Truncated(2.0, -1.0), "truncated: needs 0 ≤ low < high, not -1.0 and 2.0"),
        (lambda: Truncated(level="group"), "truncated: level is one of token, turn, sequence, episode, not 'group'"),
        (lambda: Masked(5.0, 0.5), "masked: needs 0 ≤ low < high, not 5.0 and 0.5"),
        (lambda: Masked(level="word"), "masked: level is one of token, turn, sequence, episode, not 'word'"),
        (lambda: GeometricFilter(1.0, 1.0), "geometric: needs 0 ≤ low < high, not 1.0 and 1.0"),
        (lambda: K3Filter(0.0), "k3_filter: limit must be more than 0, not 0.0"),
        (lambda: OffPolicyMask(-0.1), "off-policy mask: the threshold must be at least 0 and finite, not -0.1"),
        (lambda: OffPolicyMask(INF), "off-policy mask: the threshold must be at least 0 and finite, not inf"),
        (lambda: ClipCov(0.0), "clip_cov: the fraction of tokens must be in (0, 1], not 0.0"),
        (lambda: ClipCov(low=5.0), "clip_cov: needs low < high, not 5.0 and 5.0"),
        (lambda: KLCov(1.1), "kl_cov: the fraction of tokens must be in (0, 1], not 1.1"),
        (lambda: KLCov(coefficient=0.0), "kl_cov: the coefficient must be more than 0 and finite, not 0.0"),
        (lambda: Linear(-1.0, 3), "linear: final must be at least 0 and finite, not -1.0"),
        (lambda: Linear(1.0, 0), "linear: batches must be at least 1, not 0"),
        (lambda: SchulmanRule(0.0), "schulman: the target must be more than 0 nats and finite, not 0.0"),
        (lambda: SchulmanRule(0.1, "word"), "schulman: per is token or sequence, not 'word'"),
        (lambda: ZieglerRule(INF), "ziegler: the target must be more than 0 nats and finite, not inf"),
        (lambda: ZieglerRule(horizon=0), "ziegler: horizon must be at least 1 answer, not 0"),
        (lambda: ZieglerRule(per=""), "ziegler: per is token or sequence, not ''"),
        (lambda: TargetBand(0.2, 0.1), "band: needs 0 ≤ low < high, not 0.2 and 0.1"),
        (lambda: TargetBand(0.1, 0.2, 1.0), "band: factor must be more than 1, not 1.0"),
        (lambda: TargetBand(0.1, 0.2, per="x"), "band: per is token or sequence, not 'x'"),
        (lambda: EntropyBonus(-1.0), "entropy: the coefficient must be at least 0 and finite, not -1.0"),
        (lambda: EntropyBonus(target=-1.0), "entropy: the target must be at least 0 and finite, not -1.0"),
        (lambda: EntropyBonus(step=0.0), "entropy: step must be more than 0 and finite, not 0.0"),
        (lambda: EntropyBonus(low=2.0), "entropy: needs 0 ≤ low ≤ high, finite, not 2.0 and 1.0"),
        (lambda: Critic(0.0), "critic: clip must be more than 0, or none; not 0.0"),
        (lambda: Critic(coefficient=0.0), "critic: the coefficient must be more than 0 and finite, not 0.0"),
        (
            lambda: KL("k3_unbiased", placement="token_reward"),
            "KL estimator 'k3_unbiased' to the reference policy in the",
        ),
    ],
)
def test_values_out_of_range_are_refused_by_name(make, told):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        make()
    assert str(error.value).startswith(told)


# ------------------------------------------------------------------------------------------------ what control tasks share


def test_td_errors_of_plain_numbers_and_of_tensors_are_the_same() -> None:
    """ALGORITHMS §15: γ = 0.9, Q(s, a) = 1, R = 1, Q(s', a') = 0.5: target 1.45, and 1 where the episode ends."""
    assert td_errors(1.0, 1.0, 0.5, False, gamma=0.9) == pytest.approx(0.45)
    assert td_errors(1.0, 0.25, float("nan"), True, gamma=0.9) == 0.75
    rewards, values, following = torch.tensor([1.0, 1.0]), torch.tensor([1.0, 0.25]), torch.tensor([0.5, float("nan")])
    found = td_errors(rewards, values, following, torch.tensor([False, True]), gamma=torch.tensor([0.9, 0.9]))
    torch.testing.assert_close(found, torch.tensor([0.45, 0.75]))
    with pytest.raises(ValueError, match="gamma must be in"):
        td_errors(1.0, 1.0, 0.5, False, gamma=1.5)


def test_the_plain_surrogate_has_reinforces_gradient_at_ratio_one() -> None:
    logprobs = torch.tensor([-1.0, -2.0], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([3.0, -0.5], dtype=torch.float64)
    losses = surrogate((logprobs - logprobs.detach()).exp(), advantages)
    torch.testing.assert_close(losses.detach(), torch.tensor([-3.0, 0.5], dtype=torch.float64))
    losses.sum().backward()
    torch.testing.assert_close(logprobs.grad, torch.tensor([-3.0, 0.5], dtype=torch.float64))


def test_vector_2c_the_entropy_of_a_distribution_and_its_gradient() -> None:
    logits = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64).log().requires_grad_()
    found = full_entropy(torch.log_softmax(logits, -1))
    found.backward()
    assert float(found) == pytest.approx(1.0397207708, abs=1e-10)
    expected = torch.tensor([-0.1732867951, 0.0866433976, 0.0866433976], dtype=torch.float64)
    torch.testing.assert_close(logits.grad, expected, atol=1e-10, rtol=0)


def test_an_impossible_choice_adds_nothing_to_the_entropy() -> None:
    assert float(full_entropy(torch.tensor([0.0, -float("inf")]))) == 0.0


def test_kl_cov_breaks_ties_by_lots_that_do_not_depend_on_the_order() -> None:
    """Of two tokens both covariances are the same number but for rounding: the one chosen is the same in either order."""
    for first, second in ((-0.7074878, -0.24761479), (-0.3, -1.9), (-1e-3, -2.0)):
        logprobs, advantages = d([first, second]), d([-1.6384425, 2.52437668]) * (1 if first < second else -1)
        selection = KLCov(fraction=0.3)
        one = selection.select(logprobs, advantages, seed=3)
        other = selection.select(logprobs.flip(0), advantages.flip(0), seed=3)
        assert int(one.sum()) == 1
        assert torch.equal(one, other.flip(0))
    assert {
        tuple(KLCov(fraction=0.3).select(d([-0.7, -0.2]), d([-1.0, 1.0]), seed).tolist()) for seed in range(40)
    } == {
        (True, False),
        (False, True),
    }


def test_kl_cov_has_no_gradient_where_the_log_probabilities_differ_by_rounding_alone() -> None:
    """The sign of a difference of rounding is no direction: the first update of a batch would depend on the processor."""
    _, s = smooth(2)
    all_selected = replace(s, selected=torch.ones_like(s.old_logprobs, dtype=torch.bool))
    for moved, expected in ((4.5e-16, 0.0), (-4.5e-16, 0.0), (1e-6, 2.0), (-1e-6, -2.0)):
        logprobs = (s.old_logprobs + moved).requires_grad_()
        losses = KLCov(0.5, coefficient=2.0).apply(torch.zeros_like(logprobs), logprobs, all_selected)
        (gradient,) = torch.autograd.grad(losses.sum(), logprobs)
        torch.testing.assert_close(gradient, torch.full_like(gradient, expected), rtol=0, atol=0)


def test_kl_cov_takes_the_highest_first_and_fills_its_quota_from_ties() -> None:
    logprobs = d([-2.0, -2.0, -0.1, -0.1, -1.0, -1.0])
    advantages = d([-3.0, 1.0, 2.0, 2.0, 0.0, 0.0])
    chosen = KLCov(fraction=0.5).select(logprobs, advantages, seed=0)
    assert chosen.tolist() == [True, False, True, True, False, False]


@pytest.mark.parametrize(
    ("correction", "by_sequence"),
    [
        (Truncated(cap=1.5), True),
        (Truncated(cap=1.5, level="turn"), True),
        (Truncated(cap=1.5, level="sequence"), True),
        (Truncated(cap=1.5, level="episode"), False),
        (Masked(0.5, 1.2), True),
        (Masked(0.5, 1.2, level="sequence"), True),
        (Masked(0.5, 1.2, level="episode"), False),
        (GeometricFilter(0.8, 1.05), True),
        (K3Filter(0.02), True),
        (SelfNormalized(), False),
    ],
)
def test_a_correction_by_sequence_weighs_each_sequence_as_alone_and_the_others_do_not(correction, by_sequence):
    whole = Layout(  # an episode of two sequences, the first of two turns, and one of a single sequence
        turn_of_token=torch.tensor([0, 0, 1, 2, 2, 3]),
        sequence_of_turn=torch.tensor([0, 0, 1, 2]),
        episode_of_sequence=torch.tensor([0, 0, 1]),
        group_of_episode=torch.tensor([0, 1]),
        groups=2,
    )
    log_rho, weights = d([0.3, -0.1, 0.2, -0.4, 0.05, 0.1]), d([1.0, 0.5, 2.0, 1.0, 1.5, 0.7])
    together = correction(weights, log_rho, whole)
    alone = []
    for number in range(3):
        layout, tokens = whole.select(torch.tensor([number]))
        alone.append(correction(weights[tokens], log_rho[tokens], layout))
    assert correction.by_sequence is by_sequence
    assert torch.allclose(torch.cat(alone), together, rtol=1e-12) is by_sequence
