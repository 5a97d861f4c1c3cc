"""The numbers of other projects' tests hold here: rlax (github.com/google-deepmind/rlax) and tianshou (thu-ml/tianshou).

Inputs and expected outputs are theirs, the code is not. rlax has the batch first, and gives every step a discount of its
own, 0 where the episode terminates; tianshou has one γ, and steps that are terminated or truncated.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from reinlm.objectives import (
    Layout,
    Signals,
    TruncatedWeight,
    clip_surrogate,
    gae,
    lambda_returns,
    n_step_returns,
    td_errors,
    value_loss,
    vtrace,
)

DISCOUNT = 0.9
"""The one γ in which varying discounts are expressed; any above 0 would do."""


def d(values: list | float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def time_first(rows: list[list[float]]) -> Tensor:
    return d(rows).T


def flags(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.bool)


def agrees(found: Tensor, published: Tensor, tolerance: float = 0.0) -> None:
    """To float64's rounding where a number was published in full, else to one unit of the last digit that was."""
    torch.testing.assert_close(found, published, rtol=0.0, atol=max(tolerance, 1e-12))


def agrees_as_float32(found: Tensor, published: Tensor) -> None:
    """For numbers that are the printed results of float32."""
    torch.testing.assert_close(found, published, rtol=2e-7, atol=2e-7)


def units(discounts: Tensor) -> tuple[Tensor, Tensor]:
    """Units s_t and s_{t+1} = s_t d_t / γ, in which discounts d_t of their own are one γ.

    Rewards s_t R_t, values s_t V_t and successors s_{t+1} V'_t have the returns s_t G_t. d_t = 0 is a termination, and what
    comes after it starts again from 1.
    """
    now, after, unit = [], [], torch.ones_like(discounts[0])
    for discount in discounts:
        now.append(unit)
        unit = torch.where(discount > 0.0, unit * discount / DISCOUNT, 1.0)
        after.append(unit)
    return torch.stack(now), torch.stack(after)


# ------------------------------------------------------------------------------------------------ rlax: returns

# rlax/_src/multistep_test.py: r_t, discount_t and v_t of LambdaReturns, DiscountedReturns and NStepBootstrappedReturns
REWARDS = [[1.0, 0.0, -1.0, 0.0, 1.0], [0.5, 0.8, -0.7, 0.0, 2.1]]
DISCOUNTS = [[0.5, 0.9, 1.0, 0.5, 0.8], [0.9, 0.5, 0.3, 0.8, 0.7]]
SUCCESSORS = [[3.0, 1.0, 5.0, -5.0, 3.0], [-1.7, 1.2, 2.3, 2.2, 2.7]]
DISCOUNTED = [[1.315, 0.63, 0.7, 1.7, 3.4], [1.33592, 0.9288, 0.2576, 3.192, 3.99]]


def test_lambda_returns_are_those_of_rlax() -> None:
    """multistep_test.py, LambdaReturnsTest: λ = 0.75."""
    now, after = units(time_first(DISCOUNTS))
    none = torch.zeros(5, 2, dtype=torch.bool)
    rewards, successors = now * time_first(REWARDS), after * time_first(SUCCESSORS)
    found = lambda_returns(rewards, successors, none, none, gamma=DISCOUNT, gae_lambda=0.75) / now
    published = [
        [1.6460547, 0.72281253, 0.7375001, 0.6500001, 3.4],
        [0.7866317, 0.9913063, 0.1101501, 2.834, 3.99],
    ]
    agrees_as_float32(found, time_first(published))


@pytest.mark.parametrize("inner_values", [0.0, 1.0], ids=["scalar bootstrap", "vector of values"])
def test_discounted_returns_are_those_of_rlax(inner_values: float) -> None:
    """multistep_test.py, DiscountedReturnsTest: only the last value counts."""
    now, after = units(time_first(DISCOUNTS))
    none = torch.zeros(5, 2, dtype=torch.bool)
    successors = time_first(SUCCESSORS)
    successors[:-1] *= inner_values
    found = lambda_returns(now * time_first(REWARDS), after * successors, none, none, gamma=DISCOUNT, gae_lambda=1.0)
    agrees(found / now, time_first(DISCOUNTED))


@pytest.mark.parametrize(
    ("n", "published"),
    [
        pytest.param(3, [[2.8, -3.15, 0.7, 1.7, 3.4], [1.2155, 0.714, 0.2576, 3.192, 3.99]], id="smaller_n"),
        pytest.param(5, DISCOUNTED, id="equal_n"),
        pytest.param(7, DISCOUNTED, id="bigger_n"),
    ],
)
def test_n_step_returns_are_those_of_rlax(n: int, published: list[list[float]]) -> None:
    """multistep_test.py, NStepBootstrappedReturnsTest."""
    now, after = units(time_first(DISCOUNTS))
    none = torch.zeros(5, 2, dtype=torch.bool)
    rewards, successors = now * time_first(REWARDS), after * time_first(SUCCESSORS)
    found = n_step_returns(rewards, successors, none, none, gamma=DISCOUNT, n=n) / now
    agrees(found, time_first(published))


# value_learning_test.py: the values that their functions pick from Q are written out here
LEARNING = {
    "TDLambdaTest": (
        [[1.1, -1.1, 3.1], [2.1, -1.1, -2.1]],
        [[-1.1, 3.1, 2.2], [-1.1, -2.1, -1.2]],
        [[-2.4, 3.2732253, 1.0700002], [-0.01701999, 2.6529999, -2.196]],
    ),
    "SarsaLambdaTest": (
        [[1.1, 1.1, 3.1], [3.1, -1.1, -2.1]],
        [[2.2, -1.2, -1.2], [2.2, 1.2, -1.2]],
        [[-2.4, -1.8126001, -1.8200002], [0.25347996, 3.4780002, -2.196]],
    ),
    "QLambdaTest": (
        [[1.1, 1.1, 3.1], [3.1, -1.1, -2.1]],
        [[2.2, 0.2, 2.2], [4.2, 1.2, -1.2]],
        [[-2.4, 0.427975, 1.07], [0.69348, 3.478, -2.196]],
    ),
}


@pytest.mark.parametrize("name", LEARNING)
def test_errors_against_lambda_returns_with_a_termination_are_those_of_rlax(name: str) -> None:
    """value_learning_test.py, λ = 0.75; the first discount of the first row is 0."""
    values, successors, published = map(time_first, LEARNING[name])
    discounts = time_first([[0.0, 0.89, 0.85], [0.88, 1.0, 0.83]])
    rewards = time_first([[-1.3, -1.3, 2.3], [1.3, 5.3, -3.3]])
    now, after = units(discounts)
    rewards, following = now * rewards, after * successors
    ends = (discounts == 0.0, torch.zeros(3, 2, dtype=torch.bool))
    found = lambda_returns(rewards, following, *ends, gamma=DISCOUNT, gae_lambda=0.75) / now - values
    agrees_as_float32(found, published)
    if name == "TDLambdaTest":  # where successors are the next values, it is GAE
        advantages = gae(rewards, now * values, following, *ends, gamma=DISCOUNT, gae_lambda=0.75)
        agrees_as_float32(advantages / now, published)


# ------------------------------------------------------------------------------------------------ rlax: TD errors


@pytest.mark.parametrize(
    ("rewards", "discounts", "values", "successors", "published"),
    [
        pytest.param(
            [-1.0] * 9,
            [0.0, 0.5, 1.0] * 3,
            [1.0] * 9,
            [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0],
            [-2.0, -2.0, -2.0, -2.0, -1.5, -1.0, -2.0, -1.0, 0.0],
            id="TDLearningTest",
        ),
        pytest.param([1.0, 1.0], [0.0, 1.0], [1.0, 1.0], [1.0, 3.0], [0.0, 3.0], id="SarsaTest"),
        pytest.param([4.0, 1.0], [1.0, 1.0], [1.0, 1.0], [1.4, 2.0], [4.4, 2.0], id="ExpectedSarsaTest"),
        pytest.param([1.0, 1.0], [0.0, 1.0], [1.0, 2.0], [1.0, 2.0], [0.0, 1.0], id="QLearningTest"),
        pytest.param([1.0, 1.0], [0.0, 1.0], [1.0, 2.0], [1.0, 3.0], [0.0, 2.0], id="QVLearningTest"),
    ],
)
def test_td_errors_are_those_of_rlax(
    rewards: list[float], discounts: list[float], values: list[float], successors: list[float], published: list[float]
) -> None:
    """value_learning_test.py: one step each; a discount of 0 is a γ of 0, and a termination under any other γ."""
    rows = zip(d(rewards), discounts, d(values), d(successors), strict=True)
    for (reward, discount, value, successor), expected in zip(rows, published, strict=True):
        one = (reward[None], value[None], successor[None])
        agrees(td_errors(*one, flags([0]), gamma=discount), d([expected]))
        if discount == 0.0:
            agrees(td_errors(*one, flags([1]), gamma=DISCOUNT), d([expected]))


# ------------------------------------------------------------------------------------------------ rlax: GAE

# multistep_test.py, TruncatedGeneralizedAdvantageEstimationTest: "0.9" has a discount of 0 at its fourth step
GAE_ROWS = {
    "0.99": (0.99, [0.0, 0.0, 1.0, 0.0, -0.5], [1.0, 4.0, -3.0, -2.0, -1.0, -1.0], [0, 0, 0, 0, 0]),
    "0.9": (0.9, [0.0, 0.0, 0.0, 0.0, 1.0], [-3.0, -2.0, -1.0, 0.0, 5.0, -1.0], [0, 0, 0, 1, 0]),
}


@pytest.mark.parametrize(
    ("row", "smoothing", "published", "tolerance"),
    [
        ("0.99", 1.0, [-1.45118, -4.4557, 2.5396, 0.5249, -0.49], 1e-4),
        ("0.99", 0.7, [-0.676979, -5.248167, 2.4846, 0.6704, -0.49], 1e-4),
        ("0.99", 0.4, [0.56731, -6.042, 2.3431, 0.815, -0.49], 1e-3),
        ("0.9", 1.0, [3.0, 2.0, 1.0, 0.0, -4.9], 0.0),
        ("0.9", 0.7, [2.2899, 1.73, 1.0, 0.0, -4.9], 0.0),
        ("0.9", 0.4, [1.725, 1.46, 1.0, 0.0, -4.9], 1e-3),
    ],
)
def test_gae_is_that_of_rlax(row: str, smoothing: float, published: list[float], tolerance: float) -> None:
    """The digits beyond are cut off, not rounded: 0.815 is 0.81596, and 1.725 is 1.7256."""
    discount, rewards, values, terminated = GAE_ROWS[row]
    inputs = (d(rewards), d(values[:-1]), d(values[1:]), flags(terminated), flags([0] * 5))
    agrees(gae(*inputs, gamma=discount, gae_lambda=smoothing), d(published), tolerance)


# ------------------------------------------------------------------------------------------------ rlax: V-trace


def chosen_logprobs(logits: Tensor, actions: list) -> Tensor:
    return logits.log_softmax(-1).gather(-1, torch.tensor(actions)[..., None]).squeeze(-1)


def test_vtrace_targets_and_advantages_are_those_of_rlax() -> None:
    """vtrace_test.py, test_vtrace_td_error_and_advantage: all caps 1 (the policy's of 5 that it names is not passed)."""
    behaviour = [
        [[8.9, 0.7], [5.0, 1.0], [0.6, 0.1], [-0.9, -0.1]],
        [[0.3, -5.0], [1.0, -8.0], [0.3, 1.7], [4.7, 3.3]],
    ]
    target = [
        [[0.4, 0.5], [9.2, 8.8], [0.7, 4.4], [7.9, 1.4]],
        [[1.0, 0.9], [1.0, -1.0], [-4.3, 8.7], [0.8, 0.3]],
    ]
    actions = [[0, 1, 0, 0], [1, 0, 0, 1]]
    rewards = time_first([[-1.3, -1.3, 2.3, 42.0], [1.3, 5.3, -3.3, -5.0]])
    discounts = time_first([[0.0, 0.89, 0.85, 0.99], [0.88, 1.0, 0.83, 0.95]])
    values = time_first([[2.1, 1.1, -3.1, 0.0, 8.4], [3.1, 0.1, -1.1, 7.4, -1.2]])
    errors = time_first([[-1.6155143, -3.4973226, 1.8670533, 50.316002], [1.4662437, 3.6116405, -8.3327293e-5, -13.54]])
    advantages = time_first(
        [[-1.6155143, -3.4973226, 1.8670534, 50.316002], [1.4662433, 3.6116405, -8.3369283e-5, -13.54]]
    )
    log_ratios = (chosen_logprobs(d(target), actions) - chosen_logprobs(d(behaviour), actions)).T
    now, after = units(discounts)
    none = torch.zeros(4, 2, dtype=torch.bool)
    targets, found = vtrace(
        log_ratios,
        now * rewards,
        now * values[:-1],
        after * values[1:],
        discounts == 0.0,
        none,
        gamma=DISCOUNT,
    )
    agrees_as_float32(targets / now - values[:-1], errors)
    agrees_as_float32(found / now, advantages)


# ------------------------------------------------------------------------------------------------ rlax: losses


@pytest.mark.parametrize(
    ("sign", "published", "tolerance"),
    [
        pytest.param(1.0, -0.17117467, 4e-6, id="advantages above 0"),  # -(0.5 + 0.1 e^-2) / 3 is -0.17117784
        pytest.param(-1.0, 0.19333333, 1e-8, id="advantages below 0"),
    ],
)
def test_the_clipped_loss_is_that_of_rlax(sign: float, published: float, tolerance: float) -> None:
    """policy_gradients_test.py, ClippedSurrogatePGLossTest: ε = 0.2, the mean over three steps."""
    logits = [[1.0, 1.0, 1.0], [2.0, 0.0, 0.0], [-1.0, -2.0, -3.0]]
    old_logits = [[1.0, 1.0, 1.0], [2.0, 0.0, 0.0], [-3.0, -2.0, -1.0]]
    actions = [0, 1, 2]
    ratio = (chosen_logprobs(d(logits), actions) - chosen_logprobs(d(old_logits), actions)).exp()
    agrees(clip_surrogate(ratio, sign * d([0.3, 0.2, 0.1]), 0.2, 0.2).mean(), d(published), tolerance)


def test_the_truncated_weight_at_ratio_one_is_the_policy_gradient_loss_of_rlax() -> None:
    """policy_gradients_test.py, PolicyGradientLossTest: the mean over three steps of weight · -A log π."""
    logits = [[1.0, 1.0, 1.0], [2.0, 0.0, 0.0], [-1.0, -2.0, -3.0]]
    for shift, sign, actions, weights, published in (
        (0.0, 1.0, [0, 1, 2], [-2.0, 2.0, 0.0], 0.0788835088),
        (1.0, -1.0, [0, 0, 0], [-3.0, 1.0, -1.0], 0.327200909),
    ):
        logprobs = chosen_logprobs(d(logits) + shift, actions)
        signals = Signals(Layout.from_lengths([3]), sign * d([0.3, 0.2, 0.1]), d([1.0] * 3))
        losses = TruncatedWeight()(torch.zeros_like(logprobs), logprobs, signals).losses
        agrees_as_float32((d(weights) * losses).mean(), d(published))


def test_the_unclipped_value_loss_and_its_gradient_are_the_l2_loss_of_rlax() -> None:
    """losses_test.py, L2LossTest."""
    values = d([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0]).requires_grad_()
    losses = value_loss(values, torch.zeros_like(values))
    (slope,) = torch.autograd.grad(losses.sum(), values)
    agrees(losses.detach(), d([2.0, 0.5, 0.125, 0.0, 0.125, 0.5, 2.0]))
    agrees(slope, d([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0]))


# ------------------------------------------------------------------------------------------------ tianshou

NONE = [0] * 7
THIRD = [474.2876, 390.1027, 299.476, 202.0]


@pytest.mark.parametrize(
    ("rewards", "terminated", "truncated", "published"),
    [
        pytest.param(
            [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0],
            [1, 0, 0, 1, 0, 0, 0, 1],
            [0, 0, 0, 0, 0, 1, 0, 0],
            [0.0, 1.23, 2.3, 3.0, 4.5, 5.0, 6.7, 7.0],
            id="one truncated",
        ),
        pytest.param(
            [7.0, 6.0, 1.0, 2.0, 3.0, 4.0, 5.0],
            [0, 1, 0, 1, 0, 1, 0],
            NONE,
            [7.6, 6.0, 1.2, 2.0, 3.4, 4.0, 5.0],
            id="an end that is open",
        ),
        pytest.param(
            [7.0, 6.0, 1.0, 2.0, 3.0, 4.0, 5.0],
            [0, 1, 0, 1, 0, 0, 1],
            NONE,
            [7.6, 6.0, 1.2, 2.0, 3.45, 4.5, 5.0],
            id="three terminated",
        ),
    ],
)
def test_discounted_returns_without_values_are_those_of_tianshou(
    rewards: list[float], terminated: list[int], truncated: list[int], published: list[float]
) -> None:
    """test/base/test_returns.py, test_episodic_returns: γ = 0.1, λ = 1."""
    zeros = torch.zeros(len(rewards), dtype=torch.float64)
    ends = (flags(terminated), flags(truncated))
    agrees(lambda_returns(d(rewards), zeros, *ends, gamma=0.1, gae_lambda=1.0), d(published))
    agrees(gae(d(rewards), zeros, zeros, *ends, gamma=0.1, gae_lambda=1.0), d(published))


@pytest.mark.parametrize(
    ("truncated", "published"),
    [
        pytest.param(
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            [[454.8344, 376.1143, 291.298, 200.0], [464.561, 383.1085, 295.387, 201.0], THIRD],
            id="all terminated",
        ),
        pytest.param(
            [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0],
            [[454.0109, 375.2386, 290.3669, 199.01], [462.9138, 381.3571, 293.5248, 199.02], THIRD],
            id="two truncated",
        ),
    ],
)
def test_gae_returns_of_terminated_and_truncated_episodes_are_those_of_tianshou(
    truncated: list[int], published: list[list[float]]
) -> None:
    """test/base/test_returns.py, test_episodic_returns: γ = 0.99, λ = 0.95; a value is the successor of the step before."""
    rewards = d([101.0, 102.0, 103.0, 200.0, 104.0, 105.0, 106.0, 201.0, 107.0, 108.0, 109.0, 202.0])
    successors = d([2.0, 3.0, 4.0, -1.0, 5.0, 6.0, 7.0, -2.0, 8.0, 9.0, 10.0, -3.0])
    values = successors.roll(1)
    cut = flags(truncated)
    terminated = flags([0, 0, 0, 1] * 3) & ~cut
    options = {"gamma": 0.99, "gae_lambda": 0.95}
    advantages = gae(rewards, values, successors, terminated, cut, **options)
    agrees(advantages + values, d(published).flatten(), 1e-4)
    agrees(lambda_returns(rewards, successors, terminated, cut, **options), d(published).flatten(), 1e-4)


@pytest.mark.parametrize(
    ("first_end", "n", "published"),
    [
        ("terminated", 1, [2.6, 4.0, 4.4, 5.3, 6.2, 8.0, 8.0, 8.9, 9.8, 12.0]),
        ("terminated", 2, [3.4, 4.0, 5.53, 6.62, 7.8, 8.0, 9.89, 10.98, 12.2, 12.0]),
        ("terminated", 10, [3.4, 4.0, 5.678, 6.78, 7.8, 8.0, 10.122, 11.22, 12.2, 12.0]),
        ("truncated", 1, [2.6, 3.6, 4.4, 5.3, 6.2, 8.0, 8.0, 8.9, 9.8, 12.0]),
        ("truncated", 2, [3.36, 3.6, 5.53, 6.62, 7.8, 8.0, 9.89, 10.98, 12.2, 12.0]),
        ("truncated", 10, [3.36, 3.6, 5.678, 6.78, 7.8, 8.0, 10.122, 11.22, 12.2, 12.0]),
    ],
)
def test_n_step_returns_of_terminated_and_truncated_episodes_are_those_of_tianshou(
    first_end: str, n: int, published: list[float]
) -> None:
    """test/base/test_returns.py, test_nstep_returns and test_nstep_returns_with_timelimit: γ = 0.1.

    Its value of a successor is minus the reward there; the successor of an episode's last step is that step itself.
    """
    rewards = d([3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0])
    successors = d([-4.0, -4.0, -6.0, -7.0, -8.0, -8.0, -10.0, -11.0, -12.0, -12.0])
    first, others = flags([0, 1] + [0] * 8), flags([0] * 5 + [1, 0, 0, 0, 1])
    truncated = first & (first_end == "truncated")
    found = n_step_returns(rewards, successors, others | (first & ~truncated), truncated, gamma=0.1, n=n)
    agrees(found, d(published))
