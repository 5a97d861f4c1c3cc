"""Claims of the field, settled by exact sums and small numbers."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from reinlm.objectives import (
    KL,
    Clip,
    Feedback,
    Layout,
    Returns,
    SequenceRatio,
    Signals,
    TokenRatio,
    clip_surrogate,
    full_kl,
    k2,
    k3,
)


def d(values, grad=False):
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


# ------------------------------------------------------------------------------------------------ ratios in logs


def test_a_ratio_of_probabilities_is_lost_where_a_difference_of_logs_is_exact():
    """2,000 tokens at -1 nat: both probabilities are 0 in float64; the log-ratio of the answer is 0.002 a token."""
    n = 2000
    new, old = torch.full((n,), -0.998, dtype=torch.float64), torch.full((n,), -1.0, dtype=torch.float64)
    assert (new.sum().exp() / old.sum().exp()).isnan()
    signals = Signals(Layout.from_lengths([n]), old, old, old_logprobs=old)
    assert SequenceRatio()(new, signals)[0].exp().item() == pytest.approx(math.exp(0.002), abs=1e-12)


def test_a_ratio_formed_in_bfloat16_cannot_leave_one_by_less_than_a_clip_range_of_gspo():
    steps = (torch.tensor(1.0).bfloat16() + 2**-9).float() - 1.0
    assert steps.item() == 0.0  # 0.002 above 1 rounds back to it
    new, old = torch.tensor([-1.0003]), torch.tensor([-1.0])
    signals = Signals(Layout.from_lengths([1]), old, old, old_logprobs=old)
    assert TokenRatio()(new, signals).exp().item() == pytest.approx(math.exp(-0.0003), abs=1e-7)
    halves = Signals(Layout.from_lengths([1]), old, old, old_logprobs=old)
    assert TokenRatio()(old.bfloat16(), halves).dtype == torch.float32


# ------------------------------------------------------------------------------------------------ min and clip


def test_a_clip_alone_forgives_a_bad_token_that_grew_and_the_minimum_does_not():
    """r = 1.5 and A = -1: the policy already likes the bad token more. Clipped alone, nothing pulls it back."""
    logprob = d([math.log(1.5)], grad=True)
    ratio = logprob.exp()
    (alone,) = torch.autograd.grad((-ratio.clamp(0.8, 1.2) * -1.0).sum(), logprob, retain_graph=True)
    (both,) = torch.autograd.grad(clip_surrogate(ratio, d([-1.0]), 0.2, 0.2).sum(), logprob)
    assert (alone.item(), both.item()) == (0.0, pytest.approx(1.5))


def test_the_minimum_alone_has_no_bound_and_the_clip_gives_it_one():
    """A > 0: without a clip the gain grows with the ratio for ever; with it, it ends at 1 + ε. A < 0 is bounded below."""
    gains = [-clip_surrogate(d([r]), d([1.0]), 0.2, 0.2).item() for r in (1.0, 1.2, 2.0, 1e6)]
    assert gains == pytest.approx([1.0, 1.2, 1.2, 1.2])
    losses = [clip_surrogate(d([r]), d([-1.0]), 0.2, 0.2).item() for r in (1.0, 0.8, 0.1, 1e-6)]
    assert losses == pytest.approx([1.0, 0.8, 0.8, 0.8])


# ------------------------------------------------------------------------------------------------ KL in reward and loss


class Pairs:
    """A policy over answers of two tokens from {0, 1}: the second token's distribution depends on the first."""

    REF = (d([0.5, 0.5]).log(), d([[0.9, 0.1], [0.2, 0.8]]).log())

    def __init__(self):
        self.logits = d([0.3, -0.2, 0.5, 0.1, -0.4, 0.7], grad=True)

    def logprobs(self):
        return self.logits[:2].log_softmax(0), self.logits[2:].view(2, 2).log_softmax(-1)

    def answers(self):
        """Every answer: log π and log π_ref of its two tokens."""
        first, second = self.logprobs()
        for a, b in itertools.product(range(2), repeat=2):
            yield torch.stack([first[a], second[a, b]]), torch.stack([self.REF[0][a], self.REF[1][a, b]])

    def gradient_of(self, term):
        """Σ over answers of π(answer), as a constant, times a term of (log π, log π_ref) of its tokens."""
        total = sum(logprobs.detach().sum().exp() * term(logprobs, ref) for logprobs, ref in self.answers())
        return torch.autograd.grad(total, self.logits)[0].tolist()

    def exact(self):
        first, second = self.logprobs()
        whole = full_kl(first, self.REF[0]) + (first.exp() * full_kl(second, self.REF[1])).sum()
        return torch.autograd.grad(whole, self.logits)[0].tolist()


def test_a_kl_in_the_reward_follows_the_divergence_of_whole_answers():
    layout = Layout.from_lengths([2])

    def charged(logprobs, ref):
        feedback = Feedback(layout, d([0.0]), token_rewards=-(logprobs - ref).detach())
        return -(Returns()(feedback) * logprobs).sum()

    assert Pairs().gradient_of(charged) == pytest.approx(Pairs().exact(), abs=1e-12)


@pytest.mark.parametrize("estimator", [k2, k3])
def test_a_kl_in_the_loss_does_not_because_it_forgets_what_a_token_leads_to(estimator):
    found = Pairs().gradient_of(lambda logprobs, ref: estimator(logprobs, ref).sum())
    exact = Pairs().exact()
    assert max(abs(a - b) for a, b in zip(found[:2], exact[:2], strict=True)) > 0.01
    if estimator is k2:  # the last token leads to nothing: there the two agree
        assert found[2:] == pytest.approx(exact[2:], abs=1e-12)
        first, _ = Pairs().logprobs()
        policy = Pairs()
        first, _ = policy.logprobs()
        (own,) = torch.autograd.grad(full_kl(first, Pairs.REF[0]), policy.logits)
        assert found[:2] == pytest.approx(own[:2].tolist(), abs=1e-12)


# ------------------------------------------------------------------------------------------------ advantages


def test_an_advantage_with_a_gradient_would_pull_the_policy_where_no_reward_points():
    """One parameter moves the policy and the baseline. The exact gradient of E[R] holds the advantage constant."""
    theta = d(0.4, grad=True)
    probability, baseline = torch.sigmoid(theta), 0.3 * theta
    rewards, logprobs = d([0.0, 1.0]), torch.stack([torch.log1p(-probability), probability.log()])
    chances = logprobs.detach().exp()
    (exact,) = torch.autograd.grad(
        (torch.stack([1 - probability, probability]) * rewards).sum(), theta, retain_graph=True
    )
    held = (chances * (rewards - baseline).detach() * logprobs).sum()
    loose = (chances * (rewards - baseline) * logprobs).sum()
    (right,) = torch.autograd.grad(held, theta, retain_graph=True)
    (wrong,) = torch.autograd.grad(loose, theta)
    assert right.item() == pytest.approx(exact.item(), abs=1e-12)
    assert abs(wrong.item() - exact.item()) > 0.1
    with pytest.raises(ValueError, match=r"^advantages carries a gradient"):
        Signals(Layout.from_lengths([1]), d([1.0], grad=True), d([1.0]))


# ------------------------------------------------------------------------------------------------ gradients that blow up


def test_the_plain_k3_blows_up_for_a_forgotten_token_and_the_unbiased_one_does_not():
    """π_θ → 0 while π_ref stays: the gradient of k3 is 1 - π_ref/π_θ, that of r·k3 is r·log(π_θ/π_ref) → 0."""
    slopes: dict[str, list[float]] = {"k3": [], "k3_unbiased": []}
    for logprob in (-2.0, -6.0, -12.0):
        for estimator, seen in slopes.items():
            x = d([logprob], grad=True)
            s = Signals(Layout.from_lengths([1]), d([0.0]), d([1.0]), old_logprobs=d([-2.0]), ref_logprobs=d([-1.0]))
            KL(estimator)(x, s).sum().backward()
            seen.append(abs(x.grad.item()))
    assert slopes["k3"] == pytest.approx([math.e - 1, math.e**5 - 1, math.e**11 - 1])
    assert slopes["k3_unbiased"] == pytest.approx([1.0, 5 * math.exp(-4), 11 * math.exp(-10)])


def test_a_clip_reports_the_tokens_that_it_stops_and_no_others():
    s = Signals(Layout.from_lengths([4]), d([1.0, 1.0, -1.0, -1.0]), d([0.25] * 4), old_logprobs=d([0.0] * 4))
    out = Clip()(d([0.5, -0.5, 0.5, -0.5]), d([0.0] * 4), s)
    assert (out.high.tolist(), out.low.tolist()) == ([True, False, False, False], [False, False, False, True])
