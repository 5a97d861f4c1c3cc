"""Exactly at the bounds: what still counts, what does not, what is allowed and what is no longer."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from reinlm.objectives import (
    CHOICES,
    KL,
    Clip,
    ClipCov,
    Critic,
    EntropyBonus,
    Feedback,
    GeometricFilter,
    KLCov,
    Layout,
    LengthWeighted,
    Linear,
    Masked,
    Measured,
    NStep,
    OffPolicyMask,
    SchulmanRule,
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
    ZieglerRule,
    adaptive_lambda,
    choice,
    conjugate_gradient,
    correct,
    effective_sample_size,
    full_kl,
    kept_logprobs,
    line_search,
    nested,
    vtrace,
)
from reinlm.objectives.selection import _random_keys

INF = math.inf


def d(values):
    return torch.tensor(values, dtype=torch.float64)


def one(advantage=1.0, **given):
    return Signals(Layout.from_lengths([1]), d([advantage]), d([1.0]), **given)


def flags(gate, log_ratio, advantage):
    out = gate(d([log_ratio]), d([0.0]), one(advantage))
    return out.low.item(), out.high.item(), out.losses.item()


# ------------------------------------------------------------------------------------------------ gates


def test_a_ratio_at_its_bound_is_within_it():
    assert flags(TruncatedWeight(cap=1.0, floor=0.5), 0.0, 1.0)[:2] == (False, False)
    assert flags(TruncatedWeight(cap=2.0, floor=1.0), 0.0, 1.0)[:2] == (False, False)
    assert flags(TruncatedWeight(cap=0.9, floor=0.5), 0.0, 1.0)[:2] == (False, True)
    assert flags(TruncatedWeight(cap=2.0, floor=1.1), 0.0, 1.0)[:2] == (True, False)
    dual = Clip(0.2, 0.2, dual=math.e)
    assert flags(dual, 1.0, -1.0)[1] is False
    assert flags(dual, 1.1, -1.0)[1] is True
    assert flags(dual, 1.1, 0.0)[1] is False


@pytest.mark.parametrize(
    "make",
    [
        lambda: Clip(1.0, 0.2),
        lambda: Clip(0.2, 1e9),
        lambda: Clip(0.2, 0.2, 1.21),
        lambda: Soft(1e-9, 1e9),
        lambda: TruncatedWeight(1e9, 0.0),
        lambda: KL("k3", 0.0),
        lambda: Linear(0.0, 1),
        lambda: SchulmanRule(1e-9),
        lambda: ZieglerRule(1e9, 1),
        lambda: TargetBand(0.0, 1e9, 1e9),
        lambda: EntropyBonus(0.0, 0.0, 1e-9, 0.0, 0.0),
        lambda: EntropyBonus(1e9, 1e9),
        lambda: ClipCov(1.0),
        lambda: KLCov(1.0, 1e9),
        lambda: OffPolicyMask(0.0),
        lambda: Critic(1e-9, 1e9),
        lambda: NStep(1),
    ],
)
def test_the_last_value_inside_is_allowed(make):
    made = make()
    assert made == make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Clip(0.2, INF),
        lambda: Soft(INF, 1.0),
        lambda: TruncatedWeight(INF),
        lambda: KL("k3", INF),
        lambda: Linear(INF, 1),
        lambda: SchulmanRule(INF),
        lambda: TargetBand(0.1, 0.1),
        lambda: TargetBand(0.1, INF),
        lambda: TargetBand(0.1, 0.2, INF),
        lambda: EntropyBonus(INF),
        lambda: EntropyBonus(target=INF),
        lambda: KLCov(coefficient=INF),
        lambda: Critic(coefficient=INF),
    ],
)
def test_infinity_and_empty_ranges_are_refused(make):
    with pytest.raises(ValueError, match=r"finite|needs 0 ≤ low|must be more than"):
        make()


# ------------------------------------------------------------------------------------------------ ratios


def test_every_ratio_knows_its_snapshot():
    s = Signals(
        Layout.from_lengths([2]),
        d([1.0, 1.0]),
        d([1.0, 1.0]),
        old_logprobs=d([0.0, 0.0]),
        rollout_logprobs=d([-1.0, -3.0]),
    )
    current = d([0.5, 0.5])
    assert TokenRatio("rollout")(current, s).tolist() == [1.5, 3.5]
    assert TurnRatio("rollout")(current, s).tolist() == [2.5, 2.5]
    assert SequenceRatio("rollout")(current, s).tolist() == [2.5, 2.5]
    assert SequenceTokenRatio("rollout")(current, s).tolist() == [2.5, 2.5]
    assert SequenceTokenRatio()(current.bfloat16(), s).dtype == torch.float64


# ------------------------------------------------------------------------------------------------ coefficients


def test_controllers_leave_their_thresholds_alone():
    def measured(kl):
        return Measured(kl, kl, 1, 1)

    rule = SchulmanRule(3.0)
    assert [rule(1.0, 1.0, measured(kl)) for kl in (1.99, 2.0, 4.5, 4.51)] == [0.5, 1.0, 1.0, 2.0]


# ------------------------------------------------------------------------------------------------ corrections


def weights(correction, old, rollout):
    return correct([correction], d(old), d(rollout), Layout.from_lengths([len(old)])).tolist()


def test_weights_at_the_bounds_are_kept():
    for correction in (Masked(1.0, 2.0), Masked(0.5, 1.0), GeometricFilter(1.0, 2.0), GeometricFilter(0.5, 1.0)):
        assert weights(correction, [-1.0], [-1.0]) == [1.0]
    assert effective_sample_size(d([0.1])).item() == pytest.approx(1.0)
    assert effective_sample_size(d([0.0])).item() == 0.0


def test_low_precision_stays_float32_throughout():
    low = torch.tensor([-1.0, -2.0], dtype=torch.float32)
    for correction in (Truncated(), GeometricFilter()):
        assert correct([correction], low, low, Layout.from_lengths([2])).dtype == torch.float32


def test_the_off_policy_mask_keeps_its_threshold_and_ignores_what_was_not_scored():
    far = one(-1.0, rollout_logprobs=d([0.5]))
    assert OffPolicyMask(0.5)(d([0.0]), far).item() is True
    assert OffPolicyMask(0.49)(d([0.0]), far).item() is False
    assert OffPolicyMask(0.0)(d([0.5]), far).item() is True
    assert OffPolicyMask()(d([0.0]), one(-1.0)).dtype == torch.bool
    for missing in (-INF, INF, math.nan):
        two = Signals(Layout.from_lengths([2]), d([-1.0] * 2), d([1.0] * 2), rollout_logprobs=d([missing, 0.0]))
        assert OffPolicyMask(0.1)(d([-9.0, -0.3]), two).tolist() == [False, False]
        assert OffPolicyMask(0.2)(d([-9.0, -0.3]), two).tolist() == [True, True]


def test_kept_sets_and_divergences_of_many_rows_are_those_of_each():
    logits = d([[[2.0, 1.0, 0.0], [0.5, 0.5, 3.0]], [[1.0, 4.0, 1.0], [0.0, 0.0, 0.0]]])
    kept = torch.tensor([[[True, False, True], [False, True, True]], [[True, True, True], [False, False, False]]])
    chosen = torch.tensor([[0, 0], [1, 2]])
    found = kept_logprobs(logits, chosen, kept)
    assert found.shape == (2, 2)
    assert found[0].tolist() == pytest.approx(
        [2 - math.log(math.e**2 + 1), 0.5 - math.log(2 * math.e**0.5 + math.e**3)]
    )
    assert found[1].tolist() == pytest.approx([4 - math.log(2 * math.e + math.e**4), 0.0])
    mine, other = logits.log_softmax(-1), logits.flip(-1).log_softmax(-1)
    each = [[float(full_kl(mine[i, j], other[i, j])) for j in range(2)] for i in range(2)]
    assert [row.tolist() for row in full_kl(mine, other)] == [pytest.approx(row) for row in each]


# ------------------------------------------------------------------------------------------------ selection


def test_covariances_at_their_bounds_are_no_candidates_and_small_ones_are_selected():
    logprobs, advantages = d([-1.0, 1.0, -1.0, 1.0]), d([-1.0, 1.0, 1.0, -1.0])  # covariances 1, 1, -1, -1
    assert ClipCov(1.0, 1.0, 2.0).select(logprobs, advantages, 0).any().item() is False
    assert ClipCov(1.0, 0.5, 1.0).select(logprobs, advantages, 0).any().item() is False
    assert ClipCov(1.0, 0.5, 1.1).select(logprobs, advantages, 0).tolist() == [True, True, False, False]
    small = KLCov(0.25).select(d([-0.1, -0.2, -0.3, -0.4]), d([0.1, 0.0, 0.0, 0.0]), 0)
    assert small.tolist() == [True, False, False, False]


def test_draws_are_these_numbers():
    """Whoever changes the draw changes the tokens that a resumed run selects."""
    logprobs = d([-0.1, -2.0, -0.5, -3.0])
    assert _random_keys(logprobs, 0).tolist() == [
        0.7933257239501008,
        0.5449368390254676,
        0.7804040771216023,
        0.8877577498262781,
    ]
    expected = [0.050941580749381266, 0.3537536624124469, 0.008102914331021616, 0.878193762034317]
    assert _random_keys(logprobs, 7).tolist() == expected
    assert _random_keys(logprobs.float(), 7).device == logprobs.device


# ------------------------------------------------------------------------------------------------ returns


def test_vtrace_caps_ratios_at_one_unless_told_otherwise():
    flag = torch.tensor([False, False])
    given = (d([0.5, 0.5]), d([1.0, 2.0]), d([0.1, 0.2]), d([0.2, 0.7]), flag, flag)
    plain = vtrace(*given, gamma=0.9)
    capped = vtrace(*given, gamma=0.9, value_cap=1.0, trace_cap=1.0, policy_cap=1.0)
    assert [x.tolist() for x in plain] == [x.tolist() for x in capped]
    for name in ("value_cap", "trace_cap", "policy_cap"):
        raised: dict[str, Any] = {name: 2.0}
        assert [x.tolist() for x in vtrace(*given, gamma=0.9, **raised)] != [x.tolist() for x in plain]
        zero: dict[str, Any] = {name: 0.0}
        with pytest.raises(ValueError, match=f"^vtrace: {name} must be more than 0, not 0.0$"):
            vtrace(*given, gamma=0.9, **zero)


def test_the_choice_hands_its_values_on():
    layout = Layout.from_lengths([2])
    feedback = Feedback(
        layout,
        d([1.0]),
        values=d([0.1, 0.2]),
        final_values=d([0.7]),
        truncated=torch.tensor([True]),
        log_importance=d([0.5, 0.5]),
    )
    options: dict[str, Any] = {"gamma": 0.9, "gae_lambda": 0.5, "value_cap": 1.2, "trace_cap": 1.3, "policy_cap": 1.4}
    never, end = torch.tensor([[False], [False]]), torch.tensor([[False], [True]])
    trajectory = (d([[0.5], [0.5]]), d([[0.0], [1.0]]), d([[0.1], [0.2]]), d([[0.2], [0.7]]), never, end)
    expected = vtrace(*trajectory, **options)
    assert VTrace(**options)(feedback).tolist() == pytest.approx(expected[1][:, 0].tolist())
    assert VTrace(**options).targets(feedback).tolist() == pytest.approx(expected[0][:, 0].tolist())
    bare = Feedback(layout, d([1.0]), log_importance=d([0.0, 0.0]))
    with pytest.raises(ValueError, match=r"^V-trace needs a critic: Feedback.values is missing$"):
        VTrace()(bare)


def test_short_episodes_have_a_smoothing_too():
    assert adaptive_lambda(torch.tensor([0, 1, 2, 4]), 2.0).tolist() == [0.5, 0.5, 0.75, 0.875]


def test_a_group_of_answers_of_one_token_has_a_length_weighted_mean():
    single = Feedback(Layout.from_lengths([1, 0], 2), d([1.0, 0.0]))
    assert LengthWeighted()(single).tolist() == [0.0]
    pair = Feedback(Layout.from_lengths([1, 1], 2), d([1.0, 0.0]))
    assert LengthWeighted()(pair).tolist() == [0.5, -0.5]


# ------------------------------------------------------------------------------------------------ TRPO


def test_the_solver_and_the_search_stop_where_they_should():
    products: list[int] = []
    diagonal = torch.arange(1.0, 31.0, dtype=torch.float64)

    def product(v):
        products.append(1)
        return diagonal * v

    conjugate_gradient(product, torch.ones(30, dtype=torch.float64))
    assert len(products) == 10
    tried: list[float] = []

    def attempt(step):
        tried.append(step.item())
        return 0.0, 0.0

    assert line_search(attempt, d([1.0]), 0.01) is None
    assert tried == pytest.approx([0.8**j for j in range(10)])
    found = line_search(lambda step: (1.0, 0.01), d([1.0]), 0.01)
    assert found is not None
    assert found.item() == 1.0
    assert line_search(lambda step: (math.nan, 0.0), d([1.0]), 0.01) is None


# ------------------------------------------------------------------------------------------------ names and signals


def test_a_new_kind_of_choice_needs_nothing_but_its_decorator():
    made = choice("kind of this test", "first")(Clip)
    try:
        assert made is Clip
        assert CHOICES["kind of this test"] == {"first": Clip}
    finally:
        del CHOICES["kind of this test"]
    assert nested("gate") == {"kind": "gate"}


def test_selections_stay_yes_or_no_on_their_way_to_another_precision():
    moved = one(selected=torch.tensor([True]), returns=d([2.0])).to("cpu", torch.float32)
    assert moved.selected.dtype == torch.bool
    assert moved.returns.dtype == torch.float32
