"""Golden values, worked out in float64 outside the library: one test for each vector of the formulas' sheet."""

from __future__ import annotations

import math

import pytest
import torch

from reinlm.algorithms import algorithm
from reinlm.objectives import (
    GAE,
    KL,
    Clip,
    ClipCov,
    Counts,
    EntropyBonus,
    Feedback,
    GeometricFilter,
    GreedyBaseline,
    GroupCenter,
    K3Filter,
    KLCov,
    Layout,
    LeaveOneOut,
    LengthWeighted,
    Masked,
    Measured,
    NoGate,
    OffPolicyMask,
    Returns,
    SchulmanRule,
    SequenceTokenRatio,
    Signals,
    Soft,
    TokenRatio,
    Truncated,
    TruncatedWeight,
    Whitened,
    ZieglerRule,
    adaptive_lambda,
    admissible_rollouts,
    conjugate_gradient,
    correct,
    covariance,
    decoupled_mix,
    effective_sample_size,
    full_kl,
    full_step,
    gae,
    k2,
    k3,
    kept_logprobs,
    line_search,
    prompt_mean,
    soft_gate,
    token_mean,
    whiten,
)

NAN = math.nan


def d(values, grad=False):
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def near(values, places=9):
    return pytest.approx(values, abs=10.0**-places)


def signals(advantages, lengths=None, **given):
    """Flat tokens in sequences of these lengths, all of weight 1."""
    advantages = d(advantages)
    layout = Layout.from_lengths(lengths or [1] * len(advantages))
    return Signals(layout, advantages, torch.ones_like(advantages), **given)


def gated(gate, ratios, advantages, logprobs=None):
    """Losses and their gradients with respect to log π, from ratios."""
    current = d([0.0] * len(ratios) if logprobs is None else logprobs, grad=True)
    old = current.detach() - d(ratios).log()
    s = signals(advantages, old_logprobs=old)
    out = gate(TokenRatio()(current, s), current, s)
    out.losses.sum().backward()
    return out, current.grad.tolist()


# ------------------------------------------------------------------------------------------------ 1: GAE


def flags(*where, steps):
    return torch.tensor([t in where for t in range(steps)])


def test_1a_and_1b_terminated_and_truncated():
    rewards, values = d([1.0, 0.0, 2.0]), d([0.5, 0.4, 0.3])
    none, end = flags(steps=3), flags(2, steps=3)
    options = {"gamma": 0.9, "gae_lambda": 0.8}
    finished = gae(rewards, values, d([0.4, 0.3, 9.0]), end, none, **options)
    assert finished.tolist() == near([1.64768, 1.094, 1.7])
    assert (finished + values).tolist() == near([2.14768, 1.494, 2.0])
    cut = gae(rewards, values, d([0.4, 0.3, 0.7]), none, end, **options)
    assert cut.tolist() == near([1.974272, 1.5476, 2.33])


def test_1c_an_end_in_the_middle():
    rewards, values = d([1.0, 2.0, 3.0, 4.0]), d([0.5] * 4)
    following = d([0.5, 0.5, 0.5, 1.0])
    options = {"gamma": 0.9, "gae_lambda": 0.8}
    mine = gae(rewards, values, following, flags(1, steps=4), flags(3, steps=4), **options)
    assert mine.tolist() == near([2.03, 1.5, 6.118, 4.4])
    following = d([0.5, 0.6, 0.5, 1.0])
    mine = gae(rewards, values, following, flags(steps=4), flags(1, 3, steps=4), **options)
    assert mine.tolist() == near([2.4188, 2.04, 6.118, 4.4])


def test_1e_whitening():
    x = d([1.0, 2.0, 3.0])
    assert whiten(x, bessel=True).tolist() == near([-0.999999995, 0.0, 0.999999995])
    assert whiten(x).tolist() == near([-1.2247448622, 0.0, 1.2247448622])
    assert whiten(x, shift_mean=False, bessel=True).tolist() == near([1.000000005, 2.0, 2.999999995])


# ------------------------------------------------------------------------------------------------ 2: PPO, KL, TRPO


def test_2a_clip_and_dual_clip():
    ratios = [0.5, 0.9, 1.1, 1.5, 5.0]
    up, slope = gated(Clip(), ratios, [1.0] * 5)
    assert up.losses.tolist() == near([-0.5, -0.9, -1.1, -1.2, -1.2])
    assert slope == near([-0.5, -0.9, -1.1, 0.0, 0.0])
    assert (up.low.tolist(), up.high.tolist()) == ([False] * 5, [False, False, False, True, True])
    down, slope = gated(Clip(), ratios, [-1.0] * 5)
    assert down.losses.tolist() == near([0.8, 0.9, 1.1, 1.5, 5.0])
    assert slope == near([0.0, 0.9, 1.1, 1.5, 5.0])
    assert (down.low.tolist(), down.high.tolist()) == ([True, False, False, False, False], [False] * 5)
    dual, slope = gated(Clip(dual=3.0), ratios, [-1.0] * 5)
    assert dual.losses.tolist() == near([0.8, 0.9, 1.1, 1.5, 3.0])
    assert slope == near([0.0, 0.9, 1.1, 1.5, 0.0])
    assert dual.high.tolist() == [False, False, False, False, True]
    unmoved, _ = gated(Clip(dual=3.0), ratios, [1.0] * 5)
    assert unmoved.losses.tolist() == up.losses.tolist()


def test_2b_the_two_sided_clip_of_intellect_2():
    out, _ = gated(Clip(dual=4.0), [0.5, 1.0, 3.0, 5.0], [-1.0] * 4)
    assert out.losses.tolist() == near([0.8, 1.0, 3.0, 4.0])


def test_2c_entropy_and_its_gradient():
    """What the forward pass measures, and what the bonus is differentiated through."""
    logits = d([0.5, 0.25, 0.25]).log().requires_grad_()
    logprobs = logits.log_softmax(0)
    entropy = -(logprobs.exp() * logprobs).sum()
    (slope,) = torch.autograd.grad(entropy, logits)
    assert entropy.item() == near(1.0397207708)
    assert slope.tolist() == near([-0.1732867951, 0.0866433976, 0.0866433976])


def measured(kl, episodes=256, batches=1):
    return Measured(kl_per_token=kl, kl_per_sequence=kl, episodes=episodes, batches=batches)


def test_2d_adaptive_coefficients():
    rule = SchulmanRule(0.01)
    assert [rule(1.0, 1.0, measured(kl)) for kl in (0.005, 0.01, 0.02)] == [0.5, 1.0, 2.0]
    ziegler = ZieglerRule(6.0, 10_000)
    assert [ziegler(0.2, 0.2, measured(kl)) for kl in (9.0, 6.3, 1.0)] == near([0.201024, 0.200256, 0.198976])


def test_2e_a_kl_in_the_reward_of_each_token():
    chosen = algorithm("ppo", kl={"coefficient": 0.1})
    feedback = Feedback(Layout.from_lengths([3]), d([1.0]))
    charged = chosen.adjust_rewards(feedback, chosen.initial_state(), d([-1.0, -2.0, -0.5]), d([-1.2, -1.5, -0.5]))
    rewards = charged.token_rewards + d([0.0, 0.0, 1.0])
    assert rewards.tolist() == near([-0.02, 0.05, 1.0])
    assert Returns()(charged).tolist() == near([1.03, 1.05, 1.0])


def test_2f_conjugate_gradient_and_the_full_step():
    fisher, gradient = d([[4.0, 1.0], [1.0, 3.0]]), d([1.0, 2.0])

    def product(v):
        return fisher @ v

    assert conjugate_gradient(product, gradient, iterations=1).tolist() == near([0.25, 0.5])
    x = conjugate_gradient(product, gradient)
    assert x.tolist() == near([1 / 11, 7 / 11])
    assert float(x @ fisher @ x) == near(1.3636363636)
    step = full_step(x, product(x), 0.01)
    assert step.tolist() == near([0.0110096377, 0.0770674636])
    assert float(0.5 * step @ fisher @ step) == near(0.01)
    tried = []

    def better_from_the_third_on(s):
        tried.append(s)
        return float(len(tried) > 2), 0.0

    found = line_search(better_from_the_third_on, step, 0.01)
    assert found is not None
    assert found.tolist() == near([0.0070461681, 0.0493231767])


def test_2g_trpo_on_one_bernoulli_parameter():
    """π(1) = σ(θ), θ = 0, A(1) = 1, A(0) = -1: F = ¼, g = ½."""
    old = d([0.5, 0.5])

    def attempt(step):
        new = torch.stack([torch.sigmoid(step[0]), 1 - torch.sigmoid(step[0])])
        surrogate = float((old * (new / old) * d([1.0, -1.0])).sum())
        return surrogate, float(full_kl(old.log(), new.log()))

    def product(v):
        return 0.25 * v

    x = conjugate_gradient(product, d([0.5]))
    step = full_step(x, product(x), 0.01)
    assert step.item() == near(0.2828427125)
    assert attempt(step) == near((0.1404860291, 0.0099668434))
    found = line_search(attempt, step, 0.01)
    assert found is not None
    assert torch.equal(found, step)
    assert line_search(attempt, step, 1e-9, backtracks=5) is None
    assert line_search(attempt, -step, 0.01) is None


def test_a_zero_gradient_gives_no_step():
    zero = conjugate_gradient(lambda v: v, d([0.0, 0.0]))
    assert zero.tolist() == [0.0, 0.0]
    assert full_step(zero, zero, 0.01).tolist() == [0.0, 0.0]
    for divergence in (0.0, -1.0, NAN):
        with pytest.raises(ValueError, match=f"^a trust region needs a divergence above 0, not {divergence}$"):
            full_step(zero, zero, divergence)


# ------------------------------------------------------------------------------------------------ 3: KL

PI, REF, MU = d([0.7, 0.2, 0.1]), d([0.5, 0.3, 0.2]), d([0.6, 0.25, 0.15])
REVERSE = [0.175944587, -0.098117587, -0.077827001]


def off_policy(estimate):
    """E_μ of an estimate from (log π, signals with old = μ), and its gradient with respect to the logits."""
    logits = PI.log().requires_grad_()
    logprobs = logits.log_softmax(0)
    s = signals([0.0] * 3, [3], old_logprobs=MU.log(), ref_logprobs=REF.log())
    value = (MU * estimate(logprobs, s)).sum()
    (slope,) = torch.autograd.grad(value, logits)
    return float(value), slope.tolist()


def test_3_off_policy_the_unbiased_k3_has_the_value_and_the_gradient_of_the_kl():
    value, slope = off_policy(KL("k3_unbiased"))
    assert value == near(0.0851228260)
    assert slope == near(REVERSE, 8)
    assert off_policy(KL("k3"))[0] == near(0.1001164164)


def test_3_off_policy_what_the_other_placements_of_the_ratio_follow():
    def ratio(logprobs):
        return (logprobs - MU.log()).exp()

    assert off_policy(lambda lp, s: ratio(lp).detach() * k3(lp, REF.log()))[1] == near([0.2, -0.1, -0.1], 8)
    assert off_policy(lambda lp, s: ratio(lp).detach() * k2(lp, REF.log()))[1] == near(REVERSE, 8)
    assert off_policy(lambda lp, s: ratio(lp) * k2(lp, REF.log()))[1] == near([0.159508, -0.097695, -0.061813], 6)
    assert off_policy(KL("k2"))[1] == near([0.204302, -0.100675, -0.103627], 6)


def test_3_the_full_distribution_is_the_kl_itself():
    logits = PI.log().requires_grad_()
    value = full_kl(logits.log_softmax(0), REF.log())
    value.backward()
    assert value.item() == near(0.0851228260)
    assert logits.grad.tolist() == near(REVERSE, 8)
    assert float(full_kl(REF.log(), PI.log())) == near(0.0920328502)


def test_3_a_token_of_probability_zero_adds_nothing():
    policy = d([0.0, 1.0]).log().requires_grad_()
    value = full_kl(policy, d([0.5, 0.5]).log())
    assert value.item() == near(math.log(2.0))


def test_3_a_single_token():
    logprob = d([-1.5], grad=True)
    s = signals([0.0], old_logprobs=d([-1.0]), ref_logprobs=d([-1.1]))
    plain, unbiased = KL("k3")(logprob, s), KL("k3_unbiased")(logprob, s)
    assert (plain.item(), unbiased.item()) == near((0.0918246976, 0.0556944944))
    assert torch.autograd.grad(plain.sum(), logprob)[0].item() == near(-0.4918247, 7)
    assert torch.autograd.grad(unbiased.sum(), logprob)[0].item() == near(-0.2426122639)


# ------------------------------------------------------------------------------------------------ 7: critic-free baselines


def one_token_each(rewards, group_size, **given):
    return Feedback(Layout.from_lengths([1] * len(rewards), group_size), d(rewards), **given)


def test_7_leave_one_out():
    assert LeaveOneOut()(one_token_each([0.2, 0.5, 0.9], 3)).tolist() == near([-0.5, -0.05, 0.55])
    assert LeaveOneOut()(one_token_each([1.0, 0.0, 0.0, 0.0], 4)).tolist() == near([1.0] + [-1 / 3] * 3)


def test_7_reinforce_plus_plus():
    layout = Layout.from_lengths([3, 2])
    token_rewards = d([-0.01, -0.02, 0.0, -0.03, 0.0])
    feedback = Feedback(layout, d([1.0, 0.0]), token_rewards=token_rewards)
    assert Returns()(feedback).tolist() == near([0.97, 0.98, 1.0, -0.03, 0.0])
    population = [0.7889322978, 0.8093709583, 0.8502482794, -1.2549337586, -1.1936177769]
    sample = [0.7056425019, 0.7239233957, 0.7604851834, -1.1224468813, -1.0676041998]
    assert Whitened(Returns())(feedback).tolist() == near(population, 7)
    assert Whitened(Returns(), bessel=True)(feedback).tolist() == near(sample, 7)


def test_7_reinforce_plus_plus_baseline():
    feedback = one_token_each([1.0, 0.0, 0.0, 1.0, 1.0, 1.0], 3)
    assert GroupCenter()(feedback).tolist() == near([2 / 3, -1 / 3, -1 / 3, 0.0, 0.0, 0.0])
    whitened = Whitened(GroupCenter(), bessel=True)(feedback)
    assert whitened.tolist() == near([1.8257417899, -0.9128708949, -0.9128708949, 0.0, 0.0, 0.0], 6)


def test_7_remax_and_opo():
    feedback = one_token_each([0.8, 0.1], 1, baseline_rewards=d([0.5, NAN]))
    assert GreedyBaseline()(feedback).tolist() == near([0.3, 0.0])
    answers = Feedback(Layout.from_lengths([2, 6], 2), d([1.0, 0.0]))
    assert LengthWeighted()(answers).tolist() == near([0.75] * 2 + [-0.25] * 6)


def test_7_aggregations_at_ratio_one():
    layout, advantages = Layout.from_lengths([2, 4], 2), d([1.0] * 2 + [-1.0] * 4)
    found = {}
    for name, changes in (("grpo", {"kl": None}), ("dapo", {}), ("dr_grpo", {"aggregation": {"constant_budget": 8}})):
        chosen = algorithm(name, **changes)
        s = chosen.prepare(layout, advantages)
        loss = chosen.loss(d([0.0] * 6), s, chosen.initial_state()).value.item()
        found[name] = (loss, s.weights[0].item(), s.weights[2].item())
    assert found["grpo"] == near((0.0, 0.25, 0.125))
    assert found["dapo"] == near((1 / 3, 1 / 6, 1 / 6))
    assert found["dr_grpo"] == near((0.125, 1 / 16, 1 / 16))


# ------------------------------------------------------------------------------------------------ 9: GSPO-token


def test_9_gspo_token_with_advantages_that_differ():
    moved = d([0.0002, -0.0001, 0.0004, 0.0001], grad=True)
    s = signals([1.0, 1.0, -1.0, 2.0], [4], old_logprobs=d([0.0] * 4))
    out = Clip(3e-4, 4e-4)(SequenceTokenRatio()(moved, s), moved, s)
    (-out.losses / 4).sum().backward()
    assert moved.grad.tolist() == near([0.2500375028, 0.2500375028, -0.2500375028, 0.5000750056])


# ------------------------------------------------------------------------------------------------ 10: SAPO

GATE = {
    0.5: (1.5101626752, 0.9400148488, 1.4159383303, 0.9341398233),
    0.8: (1.8006640108, 0.9900662908, 1.7054936778, 0.9890555304),
    1.0: (2.0, 1.0, 1.9047619048, 1.0),
    1.2: (2.1993359892, 0.9900662908, 2.1040301317, 0.9890555304),
    1.5: (2.4898373248, 0.9400148488, 2.3935854792, 0.9341398233),
    2.0: (2.9242343145, 0.7864477330, 2.8219996159, 0.7681097917),
    3.0: (3.5231883119, 0.4199743416, 3.3939168716, 0.3887788192),
}


@pytest.mark.parametrize("ratio", GATE)
def test_10_the_soft_gate_and_its_slope(ratio):
    found = []
    for temperature in (1.0, 1.05):
        r = d(ratio, grad=True)
        value = soft_gate(r, d(temperature))
        value.backward()
        found += [value.item(), r.grad.item()]
    assert found == near(list(GATE[ratio]))


def test_10_one_sequence():
    for sign, loss, slope in (
        (1.0, -2.0968337785, [-0.2640176776, -0.3333333333, -0.4700074244]),
        (-1.0, 2.0012803539, [0.2637481414, 0.3333333333, 0.4670699116]),
    ):
        out, gradient = gated(Soft(), [0.8, 1.0, 1.5], [sign] * 3)
        assert out.losses.mean().item() == near(loss)
        assert [g / 3 for g in gradient] == near(slope)
        assert not bool((out.low | out.high).any())


# ------------------------------------------------------------------------------------------------ 11: others


def test_11_1_cispo():
    ratios, logprobs, advantages = [0.3, 0.9, 1.4, 7.0], [-1.0, -2.0, -0.5, -3.0], [1.0, 1.0, -1.0, 1.0]
    out, slope = gated(TruncatedWeight(cap=5.0), ratios, advantages, logprobs)
    assert out.losses.tolist() == near([0.3, 1.8, -0.7, 15.0])
    assert out.losses.mean().item() == near(4.1)
    assert [g / 4 for g in slope] == near([-0.075, -0.225, 0.35, -1.25])
    _, clipped = gated(Clip(0.2, 0.28), ratios, advantages, logprobs)
    assert [g / 4 for g in clipped] == near([-0.075, -0.225, 0.35, 0.0])
    _, both_sides = gated(TruncatedWeight(cap=1.28, floor=0.8), ratios, advantages, logprobs)
    assert [-g / a for g, a in zip(both_sides, advantages, strict=True)] == near([0.8, 0.9, 1.28, 1.28])
    masked, slope = gated(TruncatedWeight(cap=1.28, floor=0.8, masked=True), ratios, advantages, logprobs)
    assert [float(g != 0.0) for g in slope] == [1.0, 1.0, 1.0, 0.0]
    assert masked.high.tolist() == [False, False, False, True]


def test_11_2_scalerl():
    lengths, rewards = [2, 4, 4, 2, 1, 1, 3, 1], [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0]
    layout = Layout.from_lengths(lengths, 4)
    advantages = Whitened(GroupCenter(), by="episode")(Feedback(layout, d(rewards)))
    first = advantages[layout.offset("episode") == 0]
    expected = [1.7320508076] + [-0.5773502692] * 3 + [0.5773502692, 0.5773502692, -1.7320508076, 0.5773502692]
    assert first.tolist() == near(expected, 6)  # the variance carries 1e-8
    losses = -advantages * -1.0  # weight 1, log π = -1
    counts = Counts.of(layout)
    assert float((prompt_mean(layout, counts) * losses).sum()) == near(-0.3849001795, 6)
    assert float((token_mean(layout, counts) * losses).sum()) == near(-0.3207501495, 6)
    assert layout.mean(losses, "group").tolist() == near([-0.1924500897, -0.5773502692], 6)


def test_11_3_covariance_selected_tokens():
    logprobs, advantages = d([-0.1, -2.0, -0.5, -3.0, -0.2]), d([1.0, -1.0, 1.0, 1.0, -1.0])
    assert covariance(logprobs, advantages).tolist() == near([0.848, 1.008, 0.528, -1.472, -1.152])
    selection = KLCov(fraction=0.2, coefficient=1.0)
    selected = selection.select(logprobs, advantages, seed=0)
    assert selected.tolist() == [False, True, False, False, False]
    moved = d([0.1, -0.1, 0.05, 0.2, -0.05])
    s = Signals(Layout.from_lengths([5]), advantages, advantages * 0 + 0.2, old_logprobs=logprobs, selected=selected)
    current = logprobs + moved
    losses = selection.apply(NoGate()(TokenRatio()(current, s), current, s).losses, current, s)
    assert losses.tolist() == near([-1.1051709181, 1.0048374180, -1.0512710964, -1.2214027582, 0.9512294245])
    assert losses.mean().item() == near(-0.2843555860)
    candidates = ClipCov(fraction=1.0, low=0.3, high=5.0).select(logprobs, advantages, seed=0)
    assert candidates.tolist() == [True, True, True, False, False]


def test_11_5_decoupled_and_length_adaptive_gae():
    lengths = torch.tensor([10, 20, 40, 100, 1000, 8192])
    assert adaptive_lambda(lengths, 0.05).tolist() == near([0.0, 0.0, 0.5, 0.8, 0.98, 0.9975585938])
    feedback = Feedback(Layout.from_lengths([4]), d([1.0]), values=d([0.5, 0.6, 0.4, 0.7]))
    decoupled = GAE(1.0, 0.95, critic_lambda=1.0)
    assert decoupled(feedback).tolist() == near([0.4379625, 0.35575, 0.585, 0.3])
    assert decoupled.targets(feedback).tolist() == near([1.0] * 4)
    assert GAE(1.0, 0.95).targets(feedback).tolist() == near([0.9379625, 0.95575, 0.985, 1.0])
    adaptive = GAE(1.0, length_adaptive=0.5)  # λ = 1 - 1 / (0.5 · 4) = 0.5
    assert adaptive(feedback).tolist() == near(GAE(1.0, 0.5)(feedback).tolist())
    assert adaptive.targets(feedback).tolist() == near(GAE(1.0, 0.5).targets(feedback).tolist())


# ------------------------------------------------------------------------------------------------ 12: Scaling GRPO


def test_12_the_off_policy_sequence_mask():
    old = [[-1.0, -1.2, -0.8], [-0.5, -0.7, -0.6], [-1.0, -1.0, -1.0], [-0.3, -0.2, -0.1]]
    new = [[-1.5, -1.6, -1.3], [-0.45, -0.75, -0.6], [-1.6, -1.4, -1.5], [-0.2, -0.3, -0.05]]
    advantages = [-1.0] * 6 + [1.0] * 3 + [0.0] * 3
    current = d([x for row in new for x in row])
    drew = d([x for row in old for x in row])
    s = signals(advantages, [3] * 4, rollout_logprobs=drew, old_logprobs=current)
    left = s.layout.mean(drew - current, "sequence")
    assert left.tolist() == near([0.4666666667, 0.0, 0.5, -0.0166666667])
    assert OffPolicyMask(0.1)(current, s).tolist() == [False] * 3 + [True] * 9
    assert OffPolicyMask(0.5)(current, s).all()
    stand_in = signals(advantages, [3] * 4, old_logprobs=drew)
    assert torch.equal(OffPolicyMask(0.1)(current, stand_in), OffPolicyMask(0.1)(current, s))
    assert OffPolicyMask(0.0)(current, signals(advantages, [3] * 4)).all()


def test_12_the_kept_sampling_mask():
    logits, before = d([[2.0, 1.0, 0.0, -1.0]]), d([[2.1, 1.0, 0.0, -1.0]])
    kept, chosen = torch.tensor([[True, True, False, False]]), torch.tensor([0])
    mine, behaviour = kept_logprobs(logits, chosen, kept), kept_logprobs(before, chosen, kept)
    everything = torch.ones_like(kept)
    assert kept_logprobs(logits, chosen, everything).item() == near(-0.4401896986)
    assert mine.item() == near(-0.3132616875)
    assert behaviour.item() == near(-0.2873353251)
    assert (mine - behaviour).exp().item() == near(0.9744068399)
    whole = logits.log_softmax(-1)[0, 0] - behaviour[0]
    assert whole.exp().item() == near(0.8582546974)
    forced = kept_logprobs(logits, torch.tensor([3]), kept)
    assert forced.item() == near(-1.0 - math.log(math.exp(2) + math.exp(1) + math.exp(-1)))


# ------------------------------------------------------------------------------------------------ 13: corrections

OLD, ROLLOUT = d([-1.0, -0.5, -2.0, -0.1]), d([-1.1, -1.5, -1.2, -0.1])
RHO = [1.1051709181, 2.7182818285, 0.4493289641, 1.0]


def weights(*corrections):
    return correct(corrections, OLD, ROLLOUT, Layout.from_lengths([4])).tolist()


def test_13_token_and_sequence_weights():
    assert weights(Truncated(cap=100.0)) == near(RHO)
    assert weights(Truncated(cap=2.0)) == near([RHO[0], 2.0, RHO[2], 1.0])
    assert weights(Truncated(cap=2.0, floor=0.5)) == near([RHO[0], 2.0, 0.5, 1.0])
    assert weights(Masked(0.5, 5.0)) == near([RHO[0], RHO[1], 0.0, 1.0])
    assert weights(Masked(0.0, 2.0)) == near([RHO[0], 0.0, RHO[2], 1.0])
    assert weights(Truncated(cap=2.0, level="sequence")) == near([1.3498588076] * 4)
    assert weights(GeometricFilter(0.999, 1.001)) == [0.0] * 4
    assert weights(GeometricFilter(1.0778841, 1.0778842)) == [1.0] * 4
    assert weights(K3Filter(0.2431955)) == [1.0] * 4
    assert weights(K3Filter(0.2431954)) == [0.0] * 4
    assert effective_sample_size(d(weights(Truncated(cap=2.0)))).item() == near(3.2294103521)


def test_13_decoupled_ppo():
    chosen = algorithm("ppo", corrections=[{"truncated": 10.0}])
    for advantage, loss in ((1.0, -1.4656833098), (-1.0, 1.6487212707)):
        layout = Layout.from_lengths([1])
        s = chosen.prepare(layout, d([advantage]), old_logprobs=d([-1.0]), rollout_logprobs=d([-1.2]))
        assert s.correction is not None
        assert s.correction.tolist() == near([1.2214027582])
        assert chosen.loss(d([-0.7]), s, chosen.initial_state()).value.item() == near(loss)
    against = algorithm("ppo", ratio={"token": {"against": "rollout"}})
    s = against.prepare(layout, d([1.0]), old_logprobs=d([-1.0]), rollout_logprobs=d([-1.2]))
    assert against.loss(d([-0.7]), s, against.initial_state()).value.item() == near(-1.2)
    s = against.prepare(layout, d([-1.0]), old_logprobs=d([-1.0]), rollout_logprobs=d([-1.2]))
    assert against.loss(d([-0.7]), s, against.initial_state()).value.item() == near(1.6487212707)


def test_13_staleness():
    assert admissible_rollouts(version=10, batch=512, lag=4) == 7680
    alpha = decoupled_mix(version=6, proximal=5, behaviour=2)
    assert alpha == 0.75
    assert -1.2 + alpha * (-0.7 - -1.2) == near(-0.825)
    assert decoupled_mix(version=2, proximal=2, behaviour=2) == 1.0


def test_2_5_the_adaptive_entropy_bonus():
    bonus = EntropyBonus(0.01, target=0.5)
    assert bonus.advance(0.01, 0.4) == (0.015, True)
    assert bonus.advance(0.01, 0.5) == (0.015, True)
    assert bonus.advance(0.01, 0.6) == (0.005, False)
    assert bonus.advance(0.0, 0.6) == (0.0, False)
    assert EntropyBonus(0.01, target=0.5, high=0.012).advance(0.01, 0.4) == (0.012, True)
    assert EntropyBonus(0.01).advance(0.01, 9.0) == (0.01, True)
