"""The two directions of the KL: values, gradients as losses by enumeration, and what is refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from reinlm.objectives import KL, Layout, Signals, f3, full_divergence, full_kl, k2, k3

PI = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
REF = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64)
MU = torch.tensor([0.25, 0.15, 0.6], dtype=torch.float64)
REVERSE = [0.0989381987, -0.0938847679, -0.0050534308]
FORWARD = [0.1, -0.1, 0.0]


def gradient(loss, policy=PI):
    """Of a function of the log-distribution, with respect to logits."""
    logits = policy.log().requires_grad_()
    return torch.autograd.grad(loss(logits.log_softmax(0)), logits)[0].tolist()


def sampled(kl, drew=PI):
    """E over the policy that drew, which is the old one, of the loss of each token."""
    n = len(PI)
    constant = torch.zeros(n, dtype=torch.float64)
    signals = Signals(Layout.from_lengths([n]), constant, constant, old_logprobs=drew.log(), ref_logprobs=REF.log())
    return lambda logprobs: (drew * kl(logprobs, signals)).sum()


def test_vector_16_3_values():
    assert float(full_kl(PI.log(), REF.log())) == pytest.approx(0.0252671539, abs=1e-9)
    assert float(full_divergence(PI.log(), REF.log(), "reverse")) == pytest.approx(0.0252671539, abs=1e-9)
    assert float(full_divergence(PI.log(), REF.log(), "forward")) == pytest.approx(0.0258154085, abs=1e-9)
    assert float((PI * k3(PI.log(), REF.log())).sum()) == pytest.approx(0.0252671539, abs=1e-9)
    assert float((PI * f3(PI.log(), REF.log())).sum()) == pytest.approx(0.0258154085, abs=1e-9)


def test_vector_16_3_gradients_over_the_vocabulary():
    reverse = gradient(lambda policy: full_divergence(policy, REF.log(), "reverse"))
    forward = gradient(lambda policy: full_divergence(policy, REF.log(), "forward"))
    assert reverse == pytest.approx(REVERSE, abs=1e-9)
    assert forward == pytest.approx(FORWARD, abs=1e-9)


def test_f3_as_a_plain_loss_follows_neither_direction():
    found = gradient(lambda logprobs: (PI * f3(logprobs, REF.log())).sum())
    assert found == pytest.approx([0.1021651247, -0.1073282098, 0.0051630851], abs=1e-8)


@pytest.mark.parametrize(
    ("kl", "expected"),
    [
        (KL("k3", direction="forward"), FORWARD),
        (KL("f3_unbiased", direction="forward"), FORWARD),
        (KL("k2", direction="reverse"), REVERSE),
        (KL("k3_unbiased", direction="reverse"), REVERSE),
        (KL("k3"), FORWARD),
    ],
    ids=str,
)
def test_as_a_loss_on_the_policys_own_samples_each_follows_its_direction(kl, expected):
    assert gradient(sampled(kl)) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("name", "direction"), [("f3_unbiased", "forward"), ("k3_unbiased", "reverse")])
def test_off_policy_the_unbiased_ones_have_value_and_gradient_of_their_direction(name, direction):
    loss = sampled(KL(name, direction=direction), drew=MU)
    exact = lambda policy: full_divergence(policy, REF.log(), direction)  # noqa: E731
    assert float(loss(PI.log())) == pytest.approx(float(exact(PI.log())), abs=1e-12)
    assert gradient(loss) == pytest.approx(gradient(exact), abs=1e-9)


def test_a_plain_k3_off_policy_follows_neither():
    found = gradient(sampled(KL("k3", direction="forward"), drew=MU))
    for exact in (FORWARD, REVERSE):
        assert max(abs(a - b) for a, b in zip(found, exact, strict=True)) > 0.04


def test_the_forward_divergence_is_infinite_where_the_policy_rules_out_what_the_reference_does():
    gone = torch.tensor([0.6, 0.4, 0.0], dtype=torch.float64)
    assert float(full_divergence(gone.log(), REF.log(), "forward")) == float("inf")
    assert float(full_divergence(gone.log(), REF.log(), "reverse")) < 1.0
    both = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    assert float(full_divergence(gone.log(), both.log(), "forward")) == pytest.approx(0.0204109973, abs=1e-9)


distributions = st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3)


@given(distributions, distributions)
def test_f3_is_unbiased_never_negative_and_the_other_sides_k3_times_the_ratio(first, second):
    policy, ref = (torch.tensor(x, dtype=torch.float64) for x in (first, second))
    policy, ref = policy / policy.sum(), ref / ref.sum()
    value = f3(policy.log(), ref.log())
    assert float(value.min()) >= -1e-15
    assert float((policy * value).sum()) == pytest.approx(float(full_kl(ref.log(), policy.log())), abs=1e-12)
    torch.testing.assert_close(value, ref / policy * k3(ref.log(), policy.log()), atol=1e-12, rtol=1e-9)


def test_f3_agrees_with_finite_differences_and_stays_finite():
    assert gradcheck(lambda x: f3(x, REF.log()), PI.log().requires_grad_())
    far = torch.tensor([-1e4, 1e4], dtype=torch.float64, requires_grad=True)
    value = f3(far, torch.zeros(2, dtype=torch.float64))
    value.sum().backward()
    assert value.tolist() == pytest.approx([19 * torch.e**20 + 1, 1 - 21 * torch.e**-20])
    assert far.grad is not None
    assert far.grad.tolist() == [0.0, 0.0]


def test_to_the_old_policy_it_is_the_forward_one_and_k3_of_old_samples_has_the_gradient_of_the_full_one():
    """PPO-penalty: KL(π_old ‖ π_θ), sampled by π_old or exact."""
    assert KL(anchor="old").forward
    assert not KL().forward
    exact = gradient(lambda policy: full_divergence(policy, MU.log(), "forward"))
    assert gradient(sampled(KL(anchor="old"), drew=MU)) == pytest.approx(exact, abs=1e-9)
    constant = torch.zeros(3, dtype=torch.float64)
    signals = Signals(Layout.from_lengths([3]), constant, constant, old_logprobs=MU.log())
    given = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    assert KL("full", anchor="old")(PI.log(), signals, given).tolist() == given.tolist()


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"estimator": "f3"}, "f3 as a plain loss, or as a constant in the reward, follows neither direction"),
        ({"estimator": "f3", "direction": "forward"}, "f3 as a plain loss"),
        ({"estimator": "f3", "placement": "token_reward"}, "f3 as a plain loss"),
        ({"estimator": "k3", "direction": "reverse"}, "k3 as a plain loss follows the forward KL"),
        (
            {"estimator": "k2", "direction": "forward"},
            "KL estimator 'k2' to the reference policy in the loss, forward:",
        ),
        ({"estimator": "k3_unbiased", "direction": "forward"}, "KL estimator 'k3_unbiased' to the reference policy"),
        ({"estimator": "f3_unbiased"}, "KL estimator 'f3_unbiased' to the reference policy in the loss, reverse:"),
        (
            {"estimator": "k1", "placement": "token_reward", "direction": "forward"},
            "KL estimator 'k1' to the reference",
        ),
        ({"direction": "backward"}, "KL: the direction is reverse or forward, not 'backward'"),
        ({"anchor": "old", "direction": "reverse"}, "samples of the old policy estimate KL(π_old ‖ π_θ)"),
        ({"anchor": "old", "estimator": "k3_unbiased"}, "KL estimator 'k3_unbiased' to the old policy"),
        ({"anchor": "teacher"}, "a KL to the teacher is estimator=full in the loss"),
        ({"anchor": "teacher", "estimator": "full", "placement": "token_reward"}, "a KL to the teacher is"),
        ({"allow_reward_alone": True}, "allow_reward_alone has no effect but on a full KL in the reward"),
        (
            {"allow_reward_alone": True, "estimator": "k1", "placement": "token_reward"},
            "allow_reward_alone has no effect but on a full KL in the reward",
        ),
    ],
    ids=str,
)
def test_what_would_follow_another_divergence_is_refused(values, told):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        KL(**values)
    assert str(error.value).startswith(told)


@pytest.mark.parametrize(
    ("anchor", "told"), [("reference", "full_kl"), ("old", "full_old_kl"), ("teacher", "full_teacher_kl")]
)
def test_a_full_kl_without_its_divergence_says_which_is_missing(anchor, told):
    constant = torch.zeros(1, dtype=torch.float64)
    signals = Signals(Layout.from_lengths([1]), constant, constant)
    with pytest.raises(ValueError, match=f"needs it from the forward pass: {told} is missing$"):
        KL("full", anchor=anchor)(constant, signals)


def test_the_reward_of_a_full_kl_takes_the_estimators_that_it_always_took():
    assert KL("k2", placement="token_reward").reward(PI.log(), REF.log()).tolist() == k2(PI.log(), REF.log()).tolist()
