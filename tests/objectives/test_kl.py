"""Estimators of KL(π_θ ‖ π_ref): values, and what each does as a loss."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck

from reinlm.objectives import KL, Layout, Signals, k1, k2, k3

# Three tokens: π = [.7, .2, .1], reference [.5, .3, .2].
PI = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
REF = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
FORWARD = [0.2, -0.1, -0.1]  # ∇ KL(π_ref ‖ π)
REVERSE = [0.175944587, -0.098117587, -0.077827001]  # ∇ KL(π ‖ π_ref)


@pytest.mark.parametrize(
    ("estimator", "values", "expectation"),
    [
        (k1, [0.3364722366, -0.4054651081, -0.6931471806], 0.0851228260),
        (k2, [0.0566067830, 0.0822009769, 0.2402265070], 0.0800875942),
        (k3, [0.0507579509, 0.0945348919, 0.3068528194], 0.0851228260),
    ],
)
def test_vector_3_values_and_expectations(estimator, values, expectation):
    mine = estimator(PI.log(), REF.log())
    assert mine.tolist() == pytest.approx(values, abs=1e-9)
    assert float((PI * mine).sum()) == pytest.approx(expectation, abs=1e-9)


@pytest.mark.parametrize(("estimator", "gradient"), [(k1, [0.0, 0.0, 0.0]), (k2, REVERSE), (k3, FORWARD)])
def test_vector_3_gradients_as_a_loss_on_the_policys_own_samples(estimator, gradient):
    """k1 ties to nothing, k2 follows KL(π ‖ π_ref), k3 follows KL(π_ref ‖ π): samples are fixed, so π weighs as a constant."""
    logits = PI.log().requires_grad_()
    (PI * estimator(logits.log_softmax(0), REF.log())).sum().backward()
    assert logits.grad is not None
    assert logits.grad.tolist() == pytest.approx(gradient, abs=1e-8)


def test_the_gradients_named_above_are_those_of_the_two_divergences():
    logits = PI.log().requires_grad_()
    policy = logits.log_softmax(0)
    (reverse,) = torch.autograd.grad((policy.exp() * (policy - REF.log())).sum(), logits, retain_graph=True)
    (forward,) = torch.autograd.grad((REF * (REF.log() - policy)).sum(), logits)
    assert reverse.tolist() == pytest.approx(REVERSE, abs=1e-8)
    assert forward.tolist() == pytest.approx(FORWARD, abs=1e-8)


def test_k3_of_a_single_token():
    logprob = torch.tensor([-1.5], dtype=torch.float64, requires_grad=True)
    value = k3(logprob, torch.tensor([-1.1], dtype=torch.float64))
    value.sum().backward()
    assert value.item() == pytest.approx(0.0918246976, abs=1e-9)
    assert logprob.grad is not None
    assert logprob.grad.item() == pytest.approx(-0.4918247, abs=1e-7)


def test_k3_stays_finite_at_extreme_differences():
    far = torch.tensor([-1e4, 1e4, -30.0], dtype=torch.float64, requires_grad=True)
    value = k3(far, torch.zeros(3, dtype=torch.float64))
    value.sum().backward()
    assert value.tolist() == pytest.approx([torch.e**20 - 21, torch.e**-20 + 19, torch.e**20 - 21])
    assert far.grad is not None
    assert far.grad.tolist() == [0.0, 0.0, 0.0]


def test_gradients_agree_with_finite_differences():
    logprobs = PI.log().requires_grad_()
    for estimator in (k1, k2, k3):
        assert gradcheck(lambda x, f=estimator: f(x, REF.log()), logprobs)


def test_the_choice_applies_its_estimator():
    constant = torch.zeros(3, dtype=torch.float64)
    signals = Signals(Layout.from_lengths([3]), constant, constant, ref_logprobs=REF.log())
    assert KL("k2")(PI.log(), signals).tolist() == k2(PI.log(), REF.log()).tolist()
    assert KL("k3")(PI.log(), signals).tolist() == k3(PI.log(), REF.log()).tolist()
    assert KL() == KL(estimator="k3", coefficient=0.04)


def test_k1_as_a_loss_is_refused_with_its_reason():
    with pytest.raises(
        ValueError,
        match=r"^k1 as a loss has no gradient in expectation, so it ties the policy to nothing; use k2 or k3$",
    ):
        KL("k1")


def test_an_unknown_estimator_is_named():
    with pytest.raises(
        ValueError, match=r"^unknown KL estimator 'k9'; allowed: f3_unbiased, full, k1, k2, k3, k3_unbiased$"
    ):
        KL("k9")


@pytest.mark.parametrize("coefficient", [-0.1, float("inf"), float("nan")])
def test_a_coefficient_outside_its_range_is_refused(coefficient):
    with pytest.raises(ValueError, match=f"^the KL coefficient must be at least 0 and finite, not {coefficient}$"):
        KL(coefficient=coefficient)


def test_a_coefficient_of_zero_is_allowed():
    assert KL(coefficient=0.0).coefficient == 0.0
