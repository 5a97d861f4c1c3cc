"""Whole losses through the padded adapter, against the NumPy formulas: value, gradient and every metric."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given

import oracles
from reinlm.algorithms import AlgorithmState, algorithm
from reinlm.objectives import Layout
from strategies import padded_batches


def changed(base, recipe, **changes):
    return algorithm(base, **changes), replace(oracles.RECIPES[base], **recipe)


VARIANTS = {name: (algorithm(name), oracles.RECIPES[name]) for name in oracles.RECIPES} | {
    "k2": changed("grpo", {"kl": "k2"}, kl={"estimator": "k2"}),
    "budget": changed("grpo", {"weights": 5}, aggregation={"constant_budget": 5}),
    "prompts": changed("dapo", {"weights": "prompt"}, aggregation="prompt_mean"),
    "sums": changed("dapo", {"weights": "sum"}, aggregation="sequence_sum"),
    "turns": changed("gspo", {"ratio": "turn"}, ratio="turn"),
    "products": changed("gspo", {"ratio": "product"}, ratio="sequence_product"),
    "asked for": changed("dapo", {"ratio": "sequence"}, ratio={"sequence": {"allow_token_mean": True}}),
    "sampler": changed("grpo", {"against": "rollout"}, ratio={"token": "rollout"}),
    "sampler's kl": changed(
        "scaling_grpo",
        {"against": "rollout", "beta": 0.5},
        ratio={"token": "rollout"},
        kl={"coefficient": 0.5},
    ),
    "dual": changed("dapo", {"dual": 1.4}, gate={"clip": [0.2, 0.28, 1.4]}),
    "soft": changed("sapo", {"soft": (3.0, 5.0)}, gate={"soft": [3.0, 5.0]}),
    "floor": changed("cispo", {"cap": 1.1, "floor": 0.9}, gate={"truncated_weight": [1.1, 0.9]}),
    "masked weight": changed(
        "cispo", {"cap": 1.1, "floor": 0.9, "masked": True}, gate={"truncated_weight": [1.1, 0.9, True]}
    ),
    "two ties": changed(
        "grpo",
        {"old_kl": "k2", "old_beta": 2.0},
        kl=[{"estimator": "k3", "coefficient": 0.04}, {"estimator": "k2", "coefficient": 2.0, "anchor": "old"}],
    ),
    "tis": changed(
        "grpo", {"corrections": [("truncated", 1.005, 0.99, "token")]}, corrections={"truncated": [1.005, 0.99]}
    ),
    "sequence tis": changed(
        "ppo",
        {"corrections": [("truncated", 1.005, 0.0, "sequence")]},
        corrections={"truncated": {"cap": 1.005, "level": "sequence"}},
    ),
    "turn mis": changed(
        "ppo",
        {"corrections": [("masked", 0.99, 1.01, "turn")]},
        corrections={"masked": [0.99, 1.01, "turn"]},
    ),
    "icepop, normalized": changed(
        "scaling_grpo",
        {"corrections": [("masked", 0.99, 1.01), ("self_normalized",)], "threshold": 0.0},
        corrections=[{"masked": [0.99, 1.01]}, "self_normalized"],
        sequence_mask={"threshold": 0.0},
    ),
    "filters": changed(
        "grpo",
        {"corrections": [("geometric", 0.995, 1.005), ("k3_filter", 1e-4)]},
        corrections=[{"geometric": [0.995, 1.005]}, {"k3_filter": 1e-4}],
    ),
}


def from_the_forward_pass(chosen, logprobs):
    """What an algorithm asks of the model beside log-probabilities: stand-ins that follow them, so that gradients do."""
    entropy = {} if chosen.entropy is None else {"entropy": -0.3 * logprobs}
    return entropy | ({"full_kl": 0.5 * logprobs} if chosen.needs_full_kl else {})


def run(chosen, tensors, with_extra=False, **changes):
    """Objective and gradient of the padded adapter; `with_extra` with entropy, values and whatever else it can take."""
    t = tensors | changes
    logprobs = t["logprobs"].clone().requires_grad_()
    extra = from_the_forward_pass(chosen, logprobs)
    if chosen.critic is not None:
        extra |= {"values": 2 * logprobs, "old_values": t["old"], "returns": t["advantages"]}
        if t["advantages"].dim() == 1:
            extra["returns"] = t["advantages"][:, None].expand(t["mask"].shape)
    result = chosen.objective(
        logprobs,
        t["old"],
        t["advantages"],
        t["mask"],
        ref_logprobs=t.get("ref"),
        rollout_logprobs=t.get("rollout"),
        groups=t.get("groups"),
        **(extra if with_extra else {}),
    )
    result.loss.backward()
    return result, logprobs.grad


@pytest.mark.parametrize("name", VARIANTS)
@given(batch=padded_batches())
def test_loss_gradient_and_metrics_equal_the_formulas(name, batch):
    chosen, recipe = VARIANTS[name]
    result, gradient = run(chosen, batch.tensors())
    value, slope, metrics = oracles.policy_loss(
        recipe, batch.logprobs, batch.old, batch.advantages, batch.mask, batch.ref, batch.rollout, batch.groups
    )
    assert result.loss.item() == pytest.approx(value, abs=1e-12)
    np.testing.assert_allclose(gradient, slope, atol=1e-12)
    assert result.metrics == pytest.approx(metrics, abs=1e-12)


def test_the_formulas_gradients_agree_with_central_differences():
    """The oracle itself, once."""
    rng = np.random.default_rng(3)
    mask = np.array([[1, 1, 0, 1], [0, 1, 1, 0]], dtype=bool)
    old, ref, advantages = -rng.random((2, 4)), -rng.random((2, 4)), rng.standard_normal((2, 4))
    logprobs = old + 0.1 * rng.standard_normal((2, 4))
    for recipe in oracles.RECIPES.values():
        for kl in ("k2", "k3", "k3_unbiased"):
            tied = replace(recipe, kl=kl, beta=0.1, threshold=None)
            slope = oracles.policy_loss(tied, logprobs, old, advantages, mask, ref)[1]
            if recipe.ratio == "sequence_token" or recipe.gate == "weight":
                continue  # stop-gradients are what these are about
            numeric = oracles.central_difference(
                lambda x, r=tied: oracles.policy_loss(r, x, old, advantages, mask, ref)[0], logprobs
            )
            np.testing.assert_allclose(slope, numeric, atol=1e-7)


SMOOTH = [name for name in oracles.RECIPES if name not in {"gspo_token", "cispo"}]  # those two stop gradients


@pytest.mark.parametrize("name", SMOOTH)
def test_the_objective_passes_gradcheck_away_from_kinks(name):
    torch.manual_seed(1)
    mask = torch.tensor([[True, True, False], [True, False, True], [False, False, False]])
    old, ref = -torch.rand(3, 3, dtype=torch.float64), -torch.rand(3, 3, dtype=torch.float64)
    logprobs = (old + 0.1 * torch.randn(3, 3, dtype=torch.float64)).requires_grad_()
    advantages = torch.tensor([1.0, -1.0, 2.0], dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda x: algorithm(name).objective(x, old, advantages, mask, ref_logprobs=ref).loss, logprobs
    )


def test_advantages_of_rows_stand_for_all_their_tokens():
    t = {
        "mask": torch.tensor([[True, True], [True, False]]),
        "logprobs": torch.tensor([[-1.0, -2.0], [-0.5, 0.0]]),
        "old": torch.tensor([[-1.1, -2.0], [-0.4, 0.0]]),
        "ref": torch.zeros(2, 2),
    }
    by_row, gradient = run(algorithm("grpo"), t, advantages=torch.tensor([1.0, -2.0]))
    by_token, same = run(algorithm("grpo"), t, advantages=torch.tensor([[1.0, 1.0], [-2.0, -2.0]]))
    assert by_row.loss.item() == by_token.loss.item()
    assert by_row.metrics == by_token.metrics
    assert torch.equal(gradient, same)


def test_the_loss_and_its_gradient_have_the_precision_of_the_log_probabilities_and_float32_at_least():
    mask = torch.ones(1, 2, dtype=torch.bool)
    for given_, expected in ((torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64,) * 2):
        logprobs = torch.full((1, 2), -1.0, dtype=given_, requires_grad=True)
        result = algorithm("dapo").objective(logprobs, logprobs.detach(), torch.ones(1), mask)
        result.loss.backward()
        assert logprobs.grad is not None
        assert (result.loss.dtype, logprobs.grad.dtype) == (expected, given_)
        assert result.loss.item() == -1.0


def test_a_mask_of_numbers_is_a_mask():
    t = {"logprobs": torch.zeros(1, 2), "old": torch.zeros(1, 2), "advantages": torch.ones(1)}
    result, gradient = run(algorithm("dapo"), t, mask=torch.tensor([[1, 0]]))
    assert result.loss.item() == -1.0
    assert gradient.tolist() == [[-1.0, 0.0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logprobs": (2, 2)}, r"logprobs has shape \(2, 2\), the mask \(2, 3\); both are \[B, T\]"),
        ({"old": (1, 3)}, r"old_logprobs has shape \(1, 3\), the mask \(2, 3\); both are \[B, T\]"),
        ({"ref": (3,)}, r"ref_logprobs has shape \(3,\), the mask \(2, 3\); both are \[B, T\]"),
        ({"rollout": (2, 3, 1)}, r"rollout_logprobs has shape \(2, 3, 1\), the mask \(2, 3\); both are \[B, T\]"),
        ({"advantages": (3,)}, r"advantages has shape \(3,\); \[B\] or \[B, T\] of \(2, 3\)"),
        ({"groups": (3,)}, r"groups has shape \(3,\); \[B\] of \(2, 3\)"),
    ],
)
def test_shapes_that_do_not_agree_are_refused_by_name(change, message):
    shapes = {"logprobs": (2, 3), "old": (2, 3), "ref": (2, 3), "rollout": (2, 3), "advantages": (2,), "groups": (2,)}
    tensors = {name: torch.zeros(shape) for name, shape in (shapes | change).items()}
    with pytest.raises(ValueError, match=f"^{message}$"):
        run(algorithm("grpo"), tensors, mask=torch.ones(2, 3, dtype=torch.bool))


def test_a_tie_to_a_reference_needs_the_reference():
    layout = Layout.from_lengths([1])
    with pytest.raises(
        ValueError,
        match=r"^grpo ties the policy to a reference: ref_logprobs is missing \(or take kl=None\)$",
    ):
        algorithm("grpo").prepare(layout, torch.ones(1))
    free = algorithm("grpo", kl={"coefficient": 0.0})
    assert (algorithm("grpo").needs_reference, free.needs_reference, algorithm("dapo").needs_reference) == (
        True,
        False,
        False,
    )
    signals = free.prepare(layout, torch.ones(1))
    assert free.loss(torch.zeros(1), signals, free.initial_state()).value.item() == -1.0


def test_the_coefficient_of_the_state_counts_and_not_that_of_the_choice():
    chosen = algorithm("grpo")
    one = torch.tensor([1.0])
    signals = chosen.prepare(Layout.from_lengths([1]), 0 * one, ref_logprobs=-one)
    plain = chosen.loss(0 * one, signals, AlgorithmState(kl_coefficients=(1.0,))).value.item()
    assert plain == pytest.approx(torch.e**-1, abs=1e-7)
    assert chosen.loss(0 * one, signals, AlgorithmState(kl_coefficients=(3.0,))).value.item() == pytest.approx(
        3 * plain
    )
    result = chosen.objective(
        0 * one[None],
        0 * one[None],
        0 * one,
        one[None] > 0,
        ref_logprobs=-one[None],
        state=AlgorithmState(kl_coefficients=(2.0,)),
    )
    assert result.loss.item() == pytest.approx(2 * plain)


def test_the_state_counts_updates_and_batches_and_a_fixed_coefficient_stays():
    chosen = algorithm("grpo")
    state = chosen.initial_state()
    assert state == AlgorithmState(updates=0, batches=0, kl_coefficients=(0.04,))
    moved = chosen.advance(state, updates=3, episodes=8, kl=[(9.0, 90.0)])
    assert moved == AlgorithmState(updates=3, batches=1, kl_coefficients=(0.04,))
    assert chosen.advance(moved).updates == 4
    assert algorithm("dapo").initial_state() == AlgorithmState()
