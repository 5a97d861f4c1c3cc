"""Golden values of the losses of reward models and of their metrics, worked out in float64 outside the library."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from reinlm.objectives import (
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
from reinlm.objectives.reward_losses import (
    bradley_terry_loss,
    log_davidson,
    log_rao_kupper,
    rating_loss,
    step_label_loss,
)


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def ranking(*scores: float, **more: Tensor) -> Ranked:
    """One unit, the best answer first."""
    places = torch.arange(len(scores))
    given = {"scores": numbers(*scores), "unit": torch.zeros_like(places), "rank": places}
    return Ranked(**{**given, **more})


@pytest.mark.parametrize(
    ("loss", "scores", "value"),
    [
        (BradleyTerry(), (1.2, 0.5), 0.4031860489),
        (BradleyTerry(centering=0.01), (1.2, 0.5), 0.4320860489),
        (BradleyTerry(label_smoothing=0.1), (1.2, 0.5), 0.4731860489),
        (BradleyTerry(), (2.0, 1.0, 0.0), 0.2511504620),
        (PlackettLuce(), (1.2, 0.5), 0.4031860489),
        (PlackettLuce(), (2.0, 1.0, 0.0), 0.7208676520),
        (PlackettLuce(top=1), (2.0, 1.0, 0.0, -1.0), 0.4401896986),
        (PlackettLuce(top=2), (2.0, 1.0, 0.0, -1.0), 0.8477956630),
        (PlackettLuce(), (2.0, 1.0, 0.0, -1.0), 1.1610573505),
        (Davidson(), (1.2, 0.5), 0.7890360081),
        (BradleyTerry(), (0.5, 0.5), math.log(2.0)),
        (BradleyTerry(label_smoothing=0.1), (0.5, 0.5), math.log(2.0)),
    ],
)
def test_the_loss_of_a_ranking(loss: RewardLoss, scores: tuple[float, ...], value: float) -> None:
    assert loss(ranking(*scores)).tolist() == pytest.approx([value], abs=1e-10)


@pytest.mark.parametrize(("margin", "value"), [(1.0, 0.8543552445), (1 / 3, 0.5265260958), (math.nan, 0.4031860489)])
def test_a_margin_by_which_the_better_answer_shall_win(margin: float, value: float) -> None:
    found = BradleyTerry(margin_weight=1.0)(ranking(1.2, 0.5, margin=numbers(margin)))
    assert found.tolist() == pytest.approx([value], abs=1e-10)


def test_davidson_by_hand_and_by_the_other_convention() -> None:
    found = torch.stack(log_davidson(numbers(0.7)))
    assert found.exp().flatten().tolist() == pytest.approx([0.4542825089, 0.2255900177, 0.3201274734], abs=1e-10)
    assert (-found).flatten().tolist() == pytest.approx([0.7890360081, 1.4890360081, 1.1390360081], abs=1e-10)
    doubled = torch.stack(log_davidson(numbers(0.7), nu=2.0)).exp()
    assert doubled.flatten().tolist() == pytest.approx([0.3441201839, 0.1708850261, 0.4849947900], abs=1e-10)
    assert log_davidson(numbers(0.0))[2].exp().item() == pytest.approx(1 / 3)
    assert log_davidson(numbers(0.0), nu=2.0)[2].exp().item() == pytest.approx(1 / 2)


@pytest.mark.parametrize(
    ("theta", "expected"),
    [(3.0, [0.4016457981, 0.1420200741, 0.4563341279]), (1.0, [0.6681877722, 0.3318122278, 0.0])],
)
def test_rao_and_kupper(theta: float, expected: list[float]) -> None:
    found = torch.stack(log_rao_kupper(numbers(0.7), theta)).exp().flatten()
    assert found.tolist() == pytest.approx(expected, abs=1e-10)


def test_log_probabilities_of_a_tie_hold_where_their_complement_would_be_0() -> None:
    _, _, tie = log_rao_kupper(numbers(60.0, -60.0), 3.0)
    assert tie.tolist() == pytest.approx([math.log(8.0 / 3.0) - 60.0] * 2, abs=1e-9)
    assert log_rao_kupper(numbers(0.0), 3.0)[2].exp().item() == pytest.approx(0.5)
    for theta in (0.99, math.nan):
        with pytest.raises(ValueError, match=f"^Rao and Kupper's theta is at least 1, not {theta}$"):
            log_rao_kupper(numbers(0.0), theta)


@pytest.mark.parametrize("loss", [Davidson(), Davidson(nu=0.2), RaoKupper(), RaoKupper(theta=1.5)])
def test_a_tie_is_least_expensive_at_equal_scores_and_both_sides_win_alike_there(loss: Davidson | RaoKupper) -> None:
    tied = torch.zeros(2, dtype=torch.long)
    apart, equal = (float(loss(ranking(first, 0.5, rank=tied))[0]) for first in (1.2, 0.5))
    assert equal < apart
    assert loss.win_probability(numbers(0.0)).item() == pytest.approx(0.5)
    first, second, tie = (x.exp() for x in loss.log_probabilities(numbers(0.7, -0.2)))
    assert (first + second + tie).tolist() == pytest.approx([1.0, 1.0])
    assert loss.win_probability(numbers(0.7, -0.2)).tolist() == pytest.approx((first + tie / 2).tolist())


def test_regression_on_what_was_rated() -> None:
    ratings = numbers(4.0, math.nan, 1.0)
    assert Regression()(ranking(3.5, 9.0, 2.0, ratings=ratings)).tolist() == pytest.approx([(0.25 + 1.0) / 2])


def test_a_step_by_its_label() -> None:
    found = step_label_loss(numbers(0.7, 0.7), torch.tensor([True, False]))
    assert found.tolist() == pytest.approx([0.4031860489, 1.1031860489], abs=1e-10)


def test_accuracy_auc_brier_and_calibration() -> None:
    better, worse = numbers(1.0, 0.2, 0.5, 0.3), numbers(0.0, 0.4, 0.5, -1.0)
    assert pairwise_accuracy(better, worse, tie=0.0).item() == 0.5
    assert pairwise_accuracy(better, worse).item() == 0.625
    assert auc(numbers(0.9, 0.7, 0.4), numbers(0.7, 0.2)).item() == pytest.approx(0.75)
    predicted, outcome = numbers(0.95, 0.85, 0.65, 0.55, 0.15), numbers(1.0, 1.0, 0.0, 1.0, 0.0)
    assert calibration_error(predicted, outcome, bins=5).item() == pytest.approx(0.29)
    assert brier_score(predicted, outcome).item() == pytest.approx(0.1345)
    bins = reliability(predicted, outcome, bins=5)
    assert bins.count.tolist() == [1, 0, 1, 1, 2]
    assert bins.confidence.tolist() == pytest.approx([0.15, math.nan, 0.55, 0.65, 0.9], nan_ok=True)
    assert bins.accuracy.tolist() == pytest.approx([0.0, math.nan, 1.0, 0.0, 1.0], nan_ok=True)


def test_arguments_that_are_left_out() -> None:
    assert bradley_terry_loss(numbers(0.7)).item() == pytest.approx(0.4031860489)
    assert rating_loss(numbers(3.0, 9.0), numbers(1.0, math.nan)).tolist() == [4.0, 0.0]
    predicted, outcome = numbers(0.55, 0.45), numbers(0.0, 1.0)
    assert calibration_error(predicted, outcome).item() == pytest.approx(0.55)
    assert len(reliability(predicted, outcome).count) == 10
