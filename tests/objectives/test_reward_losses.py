"""Losses of reward models against loops in NumPy, and what holds of all of them."""

from __future__ import annotations

import math
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles_preferences as oracle
from reinlm.objectives import (
    CHOICES,
    BradleyTerry,
    Davidson,
    PlackettLuce,
    Ranked,
    RaoKupper,
    Regression,
    RewardLoss,
    auc,
    brier_score,
    calibration_error,
    pairwise_accuracy,
    reliability,
)
from reinlm.objectives.calibration import bin_of
from reinlm.objectives.reward_losses import comparisons, plackett_luce_loss

LOSSES: dict[str, list[RewardLoss]] = {
    "bradley_terry": [BradleyTerry(), BradleyTerry(margin_weight=0.5, label_smoothing=0.2, centering=0.1)],
    "plackett_luce": [PlackettLuce(), PlackettLuce(top=1), PlackettLuce(top=2)],
    "davidson": [Davidson(), Davidson(nu=0.3)],
    "rao_kupper": [RaoKupper(), RaoKupper(theta=1.5)],
}
EACH = [(name, loss) for name, losses in LOSSES.items() for loss in losses]
Unit = tuple[list[float], list[int], float]

units = st.builds(
    lambda seed, steps, margin: (
        np.random.default_rng(seed).normal(size=len(steps)).tolist(),
        (np.cumsum(steps) - steps[0]).tolist(),
        margin,
    ),
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(0, 1), min_size=1, max_size=5),
    st.sampled_from([0.0, 0.5, 2.0]),
)


def ranked(drawn: list[Unit], **more: Any) -> Ranked:
    return Ranked(
        torch.tensor([score for scores, _, _ in drawn for score in scores], dtype=torch.float64),
        torch.tensor([place for place, (scores, _, _) in enumerate(drawn) for _ in scores], dtype=torch.long),
        torch.tensor([rank for _, ranks, _ in drawn for rank in ranks], dtype=torch.long),
        margin=torch.tensor([margin for _, _, margin in drawn], dtype=torch.float64),
        **more,
    )


def test_every_loss_is_tried() -> None:
    assert LOSSES.keys() | {"regression"} == CHOICES["reward_loss"].keys()
    assert all(type(loss) is CHOICES["reward_loss"][name] for name, loss in EACH)
    assert [loss.models_ties for _, loss in EACH] == [False] * 5 + [True] * 4
    assert [BradleyTerry(margin_weight=0.1).needs_margin, BradleyTerry().needs_margin] == [True, False]
    assert not PlackettLuce().needs_margin
    assert [Regression().needs_ratings, BradleyTerry().needs_ratings] == [True, False]


@pytest.mark.parametrize(("name", "loss"), EACH)
@given(drawn=st.lists(units, max_size=4))
def test_the_loss_of_units_is_that_of_the_loop(name: str, loss: RewardLoss, drawn: list[Unit]) -> None:
    np.testing.assert_allclose(loss(ranked(drawn)), oracle.unit_losses(name, drawn, vars(loss)), atol=1e-10)


@pytest.mark.parametrize(("name", "loss"), EACH)
@given(drawn=st.lists(units, min_size=2, max_size=4))
def test_a_unit_has_the_same_loss_alone(name: str, loss: RewardLoss, drawn: list[Unit]) -> None:
    alone = [loss(ranked([unit])) for unit in drawn]
    torch.testing.assert_close(loss(ranked(drawn)), torch.cat(alone))


@pytest.mark.parametrize(("name", "loss"), EACH)
def test_a_constant_added_to_all_scores_changes_nothing_but_the_centering(name: str, loss: RewardLoss) -> None:
    drawn: list[Unit] = [([1.0, 0.5, -0.2], [0, 1, 1], 0.5)]
    moved: list[Unit] = [([4.0, 3.5, 2.8], [0, 1, 1], 0.5)]
    assert bool((loss(ranked(drawn)) - loss(ranked(moved))).abs() < 1e-9) is not bool(getattr(loss, "centering", 0.0))


@pytest.mark.parametrize(("name", "loss"), EACH)
def test_gradients_are_those_of_finite_differences_and_raise_the_better_answer(name: str, loss: RewardLoss) -> None:
    scores = torch.tensor([0.3, 0.6, -0.1, 0.2, 0.4], dtype=torch.float64, requires_grad=True)
    unit, rank = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 1, 2, 0, 1])
    margin = torch.tensor([0.5, 0.1], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: loss(Ranked(x, unit, rank, margin)), (scores,))
    loss(Ranked(scores, unit, rank, margin)).sum().backward()
    assert scores.grad is not None
    assert scores.grad[3] < 0


@pytest.mark.parametrize(("name", "loss"), EACH)
@pytest.mark.parametrize("apart", [1e4, -1e4])
def test_scores_that_are_far_apart_have_finite_losses_and_gradients(name: str, loss: RewardLoss, apart: float) -> None:
    scores = torch.tensor([apart, 0.0, -1.0], requires_grad=True)
    found = loss(Ranked(scores, torch.tensor([0, 0, 0]), torch.tensor([0, 1, 1]), torch.ones(1)))
    found.sum().backward()
    assert torch.isfinite(found).all()
    assert scores.grad is not None
    assert torch.isfinite(scores.grad).all()


def test_a_margin_that_is_nan_is_none_and_an_infinite_one_has_an_infinite_loss() -> None:
    margin = torch.tensor([math.nan, 0.5, math.inf])
    pairs = Ranked(torch.zeros(6), torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([0, 1, 0, 1, 0, 1]), margin)
    losses = BradleyTerry(margin_weight=2.0)(pairs).tolist()
    assert losses[:2] == pytest.approx([math.log(2.0), math.log1p(math.e)])
    assert losses[2] == math.inf  # which skips the step


def test_half_precision_is_widened() -> None:
    scores = torch.tensor([0.5, 0.2]).bfloat16()
    for _, loss in EACH:
        found = loss(Ranked(scores, torch.tensor([0, 0]), torch.tensor([0, 1]), torch.ones(1)))
        assert found.dtype == torch.float32


def test_a_unit_that_says_nothing_has_no_loss_and_no_gradient() -> None:
    scores = torch.tensor([0.5, 0.2, 0.1], requires_grad=True)
    tied = Ranked(scores, torch.tensor([0, 0, 1]), torch.tensor([0, 0, 0]))
    for loss in (BradleyTerry(), PlackettLuce()):
        found = loss(tied)
        assert found.tolist() == [0.0, 0.0]
    found.sum().backward()
    assert scores.grad is not None
    assert scores.grad.tolist() == [0.0, 0.0, 0.0]
    nothing = torch.zeros(0, dtype=torch.long)
    assert plackett_luce_loss(torch.zeros(0), nothing, nothing).tolist() == []
    assert comparisons(nothing, nothing).first.tolist() == []
    assert Ranked(torch.zeros(0), nothing, nothing).units == 0


def test_label_smoothing_has_a_finite_target() -> None:
    target = math.log(0.9 / 0.1)
    found = [
        float(BradleyTerry(label_smoothing=0.1)(ranked([([score, 0.0], [0, 1], 0.0)])))
        for score in (target - 0.1, target, target + 0.1)
    ]
    assert found[1] < min(found[0], found[2])


def test_the_probability_that_the_first_wins() -> None:
    difference = torch.tensor([0.7, -0.7], dtype=torch.float64)
    assert BradleyTerry().win_probability(difference).tolist() == pytest.approx([0.6681877722, 0.3318122278])
    expected = 0.4542825089 + 0.3201274734 / 2
    assert Davidson().win_probability(difference).tolist() == pytest.approx([expected, 1 - expected])
    expected = 0.4016457981 + 0.4563341279 / 2
    assert RaoKupper().win_probability(difference).tolist() == pytest.approx([expected, 1 - expected])


# ---------------------------------------------------------------------------------------------- metrics

scores_ = st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0]), min_size=1, max_size=8)


@given(positive=scores_, negative=scores_)
def test_the_area_under_the_curve_is_that_of_all_pairs(positive: list[float], negative: list[float]) -> None:
    found = float(auc(torch.tensor(positive), torch.tensor(negative)))
    assert found == pytest.approx(oracle.area_under_curve(np.array(positive), np.array(negative)))


@given(predicted=scores_, seed=st.integers(0, 99), bins=st.integers(1, 7))
def test_the_calibration_error_is_that_of_the_loop(predicted: list[float], seed: int, bins: int) -> None:
    outcome = np.random.default_rng(seed).choice([0.0, 0.5, 1.0], len(predicted))
    given_ = torch.tensor(predicted, dtype=torch.float64), torch.tensor(outcome)
    expected = oracle.expected_calibration_error(np.array(predicted), outcome, bins)
    assert float(calibration_error(*given_, bins)) == pytest.approx(expected)
    assert float(brier_score(*given_)) == pytest.approx(((np.array(predicted) - outcome) ** 2).mean())


def test_metrics_are_counted_in_double_precision_whatever_the_scores_are() -> None:
    assert float(auc(torch.ones(1), torch.tensor([0.0, 2.0, 2.0]))) == pytest.approx(1 / 3, abs=1e-15)
    positive = torch.cat([torch.zeros(128), torch.full((129,), 2.0)]).bfloat16()  # bfloat16 counts to 256
    assert float(auc(positive, torch.ones(1).bfloat16())) == pytest.approx(129 / 257, abs=1e-15)
    assert float(auc(-torch.ones(1).bfloat16(), -positive)) == pytest.approx(129 / 257, abs=1e-15)


def test_bins_hold_their_lower_ends_and_there_are_ten_unless_others_are_asked_for() -> None:
    assert bin_of(torch.tensor([0.05, 0.5, 0.81, 0.89, 1.0])).tolist() == [0, 5, 8, 8, 9]
    for bins in (1, 3, 10, 100):
        for dtype in (torch.float32, torch.float64):
            tenths = torch.tensor([place / bins for place in range(bins)], dtype=dtype)
            halves = torch.tensor([(bins + place) / (2 * bins) for place in range(bins)], dtype=dtype)
            assert bin_of(tenths, bins).tolist() == bin_of(halves, bins, 0.5).tolist() == list(range(bins))
    predicted, outcome = torch.tensor([0.81, 0.89]), torch.tensor([1.0, 0.0])  # in 11 bins each would be alone
    assert float(calibration_error(predicted, outcome)) == pytest.approx(0.85 - 0.5)


def test_metrics_without_a_case_and_of_no_probability() -> None:
    nothing, one = torch.zeros(0), torch.ones(1)
    assert math.isnan(float(auc(nothing, one)))
    assert math.isnan(float(auc(one, nothing)))
    assert math.isnan(float(pairwise_accuracy(nothing, nothing)))
    assert math.isnan(float(calibration_error(nothing, nothing)))
    assert reliability(one, one).count.tolist() == [0.0] * 9 + [1.0]
    with pytest.raises(ValueError, match=r"^at least one bin is needed, not 0"):
        reliability(one, one, bins=0)
    for wrong in (1.1, -0.1, math.nan):
        with pytest.raises(ValueError, match=r"^a predicted probability is from 0 to 1"):
            reliability(torch.tensor([wrong]), one)


# ---------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: BradleyTerry(margin_weight=-1.0),
            "bradley_terry: margin_weight must be at least 0 and finite, not -1.0",
        ),
        (lambda: BradleyTerry(centering=math.inf), "bradley_terry: centering must be at least 0 and finite, not inf"),
        (lambda: BradleyTerry(label_smoothing=0.5), "bradley_terry: label_smoothing is a share of wrong labels"),
        (lambda: BradleyTerry(label_smoothing=-0.1), "bradley_terry: label_smoothing is a share of wrong labels"),
        (lambda: PlackettLuce(top=0), "plackett_luce: top must be at least 1, not 0"),
        (lambda: Davidson(nu=0.0), "davidson: nu must be more than 0 and finite, not 0.0"),
        (lambda: Davidson(nu=math.inf), "davidson: nu must be more than 0 and finite, not inf"),
        (lambda: RaoKupper(theta=1.0), "rao_kupper: theta must be more than 1 and finite, not 1.0"),
        (lambda: RaoKupper(theta=math.inf), "rao_kupper: theta must be more than 1 and finite, not inf"),
    ],
)
def test_a_coefficient_out_of_range_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        make()


def test_coefficients_at_the_ends_of_their_ranges_are_taken() -> None:
    """Of equal scores a win has probability 1/(1 + θ), and 1/(2 + ν): next to no ties leave a half, many next to nothing."""
    wins = [
        float(family.log_probabilities(torch.zeros(1, dtype=torch.float64))[0].exp())
        for family in (RaoKupper(1.001), RaoKupper(99.0), Davidson(1e-6), Davidson(98.0))
    ]
    assert wins == pytest.approx([1 / 2.001, 0.01, 1 / 2.000001, 0.01])
    best = PlackettLuce(top=1)(ranked([([0.0, 0.0, 0.0], [0, 1, 2], 0.0)]))
    assert best.tolist() == pytest.approx([math.log(3.0)])


def test_units_and_ranks_are_in_order() -> None:
    zeros = torch.zeros(2)
    for unit in ([1, 1], [0, 2], [1, 0]):
        with pytest.raises(ValueError, match=r"^units are numbered from 0, ascending, without a gap"):
            Ranked(zeros, torch.tensor(unit), torch.tensor([0, 0]))
    for rank in ([0, 2, 1, 0], [0, 1, 2, 1], [1, 2, 3, 0], [-1, 0, 0, 0], [0, -1, -1, 0]):
        with pytest.raises(ValueError, match=r"^the ranks of a unit ascend from 0: the best answer is first$"):
            Ranked(torch.zeros(4), torch.tensor([0, 0, 0, 1]), torch.tensor(rank))
    assert Ranked(torch.zeros(4), torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1, 3, 0])).units == 2


def test_the_shapes_of_what_is_ranked_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    places = torch.tensor([0, 0, 1])
    given_ = {"scores": torch.zeros(3), "unit": places, "rank": torch.tensor([0, 1, 0])}
    given_ |= {"ratings": torch.zeros(3), "margin": torch.zeros(2)}
    assert Ranked(**given_).units == 2
    for name, wrong, shapes in [
        ("scores", torch.zeros(3, 1), r"\(3, 1\) where \(3,\)"),
        ("unit", places[:2], r"\(2,\) where \(3,\)"),
        ("rank", places[:0], r"\(0,\) where \(3,\)"),
        ("ratings", torch.zeros(4), r"\(4,\) where \(3,\)"),
        ("margin", torch.zeros(3), r"\(3,\) where \(2,\)"),
    ]:
        with pytest.raises(ValueError, match=f"^{name} has shape {shapes} is expected$"):
            Ranked(**{**given_, name: wrong})


def test_what_a_loss_lacks_is_named() -> None:
    bare = Ranked(torch.zeros(2), torch.tensor([0, 0]), torch.tensor([0, 1]))
    with pytest.raises(
        ValueError, match=r"^bradley_terry: margin_weight needs the margin of each unit, and there are none$"
    ):
        BradleyTerry(margin_weight=1.0)(bare)
    with pytest.raises(ValueError, match=r"^regression needs the rating of each answer, and there are none$"):
        Regression()(bare)
    with pytest.raises(NotImplementedError):
        RewardLoss()(bare)


def test_a_family_of_ties_says_its_probabilities() -> None:
    from reinlm.objectives.reward_choices import _WithTies

    with pytest.raises(NotImplementedError):
        _WithTies().log_probabilities(torch.zeros(1))
