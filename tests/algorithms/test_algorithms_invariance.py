"""What must not change a loss: micro-batches, order, padding, masked garbage; and what degenerate batches give."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_algorithms_losses import from_the_forward_pass
from test_algorithms_losses import run as run_plainly

from reinlm.algorithms import ALGORITHMS, algorithm
from reinlm.objectives import Counts, Feedback, Layout
from strategies import layouts, padded_batches, partition

COVARIANCE = {"fraction": 0.3, "low": 0.0, "high": 100.0}
CHOSEN = {name: algorithm(name) for name in ALGORITHMS} | {
    "prompts": algorithm("dapo", aggregation="prompt_mean"),
    "budget": algorithm("grpo", aggregation={"constant_budget": 4}),
    "turns": algorithm("gspo", ratio="turn"),
    "normalized": algorithm("grpo", corrections=[{"truncated": 1.005}, "self_normalized"]),
    "sequence weights": algorithm("dapo", corrections={"masked": [0.98, 1.02, "sequence"]}),
    "clip-cov": algorithm("dapo", selection={"clip_cov": COVARIANCE}),
    "kl-cov": algorithm("dapo", gate="none", selection={"kl_cov": [0.3, 0.5]}),
    "masked": algorithm("grpo", sequence_mask={"threshold": 0.0}),
    "entropy": algorithm("ppo", entropy={"coefficient": 0.3}),
    "full": algorithm("grpo", kl={"estimator": "full", "coefficient": 0.5}),
}
every_algorithm = pytest.mark.parametrize("chosen", CHOSEN.values(), ids=CHOSEN)


def run(chosen, tensors, **changes):
    return run_plainly(chosen, tensors, with_extra=True, **changes)


def normal(rng, count, scale=1.0):
    return torch.tensor(scale * rng.standard_normal(count))


def step(chosen, layout, seed):
    """Log-probabilities and signals of one optimizer step on this layout."""
    rng = np.random.default_rng(seed)
    n = layout.tokens
    old = -normal(rng, n).abs()
    signals = chosen.prepare(
        layout,
        normal(rng, n),
        old_logprobs=old,
        rollout_logprobs=old + normal(rng, n, 0.01),
        ref_logprobs=old + normal(rng, n, 0.3),
    )
    return (old + normal(rng, n, 0.2)).requires_grad_(), signals


def backward(chosen, logprobs, signals):
    loss = chosen.loss(logprobs, signals, chosen.initial_state(), **from_the_forward_pass(chosen, logprobs))
    (gradient,) = torch.autograd.grad(loss.value, logprobs)
    return loss, gradient


def added(metrics):
    """Metrics of slices reduced: totals and counts add, maxima are taken."""
    sums: dict[str, Any] = {}
    maxima: dict[str, Any] = {}
    for each in metrics:
        for name, (total, count) in each.sums.items():
            old = sums.get(name, (0.0, 0.0))
            sums[name] = (old[0] + total.item(), old[1] + count.item())
        for name, value in each.maxima.items():
            maxima[name] = max(maxima.get(name, -math.inf), value.item())
    return {name: total / count for name, (total, count) in sums.items() if count} | maxima


@every_algorithm
@given(data=st.data())
def test_micro_batches_in_any_order_add_up_to_the_step(chosen, data):
    layout = data.draw(layouts())
    logprobs, signals = step(chosen, layout, data.draw(st.integers(0, 2**32 - 1)))
    whole, gradient = backward(chosen, logprobs, signals)
    parts = []
    assembled = torch.zeros_like(gradient)
    for sequences in partition(data.draw, layout.size("sequence")):
        _, tokens = layout.select(sequences)
        part, slope = backward(chosen, logprobs[tokens].detach().requires_grad_(), signals.select(sequences))
        assembled[tokens] += slope
        parts.append(part)
    scale = (signals.weights * (signals.advantages.abs() + 1.0)).sum().item()
    assert sum(part.value.item() for part in parts) == pytest.approx(whole.value.item(), abs=1e-12 * scale)
    np.testing.assert_allclose(assembled, gradient, atol=1e-14)
    assert added(part.metrics for part in parts) == pytest.approx(whole.metrics.means(), rel=1e-12, abs=1e-12)


@every_algorithm
@given(batch=padded_batches(), extra=st.integers(0, 3), left=st.booleans())
def test_padding_changes_nothing(chosen, batch, extra, left):
    tensors = batch.tensors()
    plain, gradient = run(chosen, tensors)

    def pad(x):
        return torch.nn.functional.pad(x, (extra, 0) if left else (0, extra)) if x.dim() == 2 else x

    padded, wide = run(chosen, {name: pad(x) for name, x in tensors.items()})
    assert padded.loss.item() == plain.loss.item()
    assert torch.equal(wide, pad(gradient))
    assert padded.metrics == plain.metrics


@every_algorithm
@given(batch=padded_batches(), seed=st.integers(0, 2**32 - 1))
def test_the_order_of_rows_changes_nothing(chosen, batch, seed):
    order = torch.as_tensor(np.random.default_rng(seed).permutation(len(batch.mask)))
    plain, gradient = run(chosen, batch.tensors())
    shuffled, moved = run(chosen, {name: x[order] for name, x in batch.tensors().items()})
    scale = 1.0 + np.abs(batch.advantages[batch.mask]).sum()
    assert shuffled.loss.item() == pytest.approx(plain.loss.item(), abs=1e-12 * scale)
    np.testing.assert_allclose(moved, gradient[order], atol=1e-14)
    assert shuffled.metrics == pytest.approx(plain.metrics, rel=1e-12, abs=1e-12)


@every_algorithm
@given(batch=padded_batches(min_tokens=1), garbage=st.sampled_from([math.nan, math.inf, -math.inf, 1e300]))
def test_what_stands_at_masked_places_changes_nothing(chosen, batch, garbage):
    plain, gradient = run(chosen, batch.tensors())
    dirty = {
        name: np.where(batch.mask, getattr(batch, name), garbage)
        for name in ("logprobs", "old", "ref", "rollout", "advantages")
    }
    result, slope = run(chosen, batch.tensors(**dirty))
    assert result.loss.item() == plain.loss.item()
    assert torch.equal(slope, gradient)
    assert slope[~torch.as_tensor(batch.mask)].abs().sum() == 0.0
    assert result.metrics == plain.metrics


@pytest.mark.parametrize("chosen", [c for c in CHOSEN.values() if not (c.corrections or c.selection)])
@given(layout=layouts(), seed=st.integers(0, 2**32 - 1))
def test_no_old_logprobs_are_the_current_ones(chosen, layout, seed):
    logprobs, signals = step(chosen, layout, seed)
    arguments = {"rollout_logprobs": signals.rollout_logprobs, "ref_logprobs": signals.ref_logprobs}
    without = chosen.prepare(layout, signals.advantages, **arguments)
    given_ = chosen.prepare(layout, signals.advantages, old_logprobs=logprobs.detach(), **arguments)
    (loss, gradient), (same, slope) = backward(chosen, logprobs, without), backward(chosen, logprobs, given_)
    assert loss.value.item() == same.value.item()
    assert torch.equal(gradient, slope)
    assert loss.metrics.means() == same.metrics.means()


@every_algorithm
@pytest.mark.parametrize("shape", [(0, 3), (2, 3), (2, 0)])
def test_an_empty_batch_has_loss_zero_and_can_still_run_backward(chosen, shape):
    mask = torch.zeros(shape, dtype=torch.bool)
    result, gradient = run(
        chosen,
        dict.fromkeys(("logprobs", "old", "ref", "rollout", "advantages"), torch.full(shape, math.nan)),
        mask=mask,
    )
    assert result.loss.item() == 0.0
    assert gradient.abs().sum() == 0.0
    assert result.metrics == {}


@pytest.mark.parametrize("name", ["grpo", "dapo", "gspo"])
@pytest.mark.parametrize("rewards", [[0.1 + 0.2, 0.3], [1.0, 1.0], [math.nan, 1.0], [math.nan, math.nan]])
def test_a_group_without_a_difference_moves_nothing(name, rewards):
    layout = Layout.from_lengths([2, 1], group_size=2)
    chosen = algorithm(name, kl=None)
    advantages = chosen.advantage(Feedback(layout, torch.tensor(rewards, dtype=torch.float64)))
    logprobs = torch.tensor([-1.0, -2.0, -3.0], dtype=torch.float64, requires_grad=True)
    signals = chosen.prepare(layout, advantages, old_logprobs=torch.tensor([-1.5, -1.9, -3.0], dtype=torch.float64))
    loss, gradient = backward(chosen, logprobs, signals)
    assert advantages.tolist() == [0.0] * 3
    assert loss.value.item() == 0.0
    assert gradient.tolist() == [0.0] * 3


@pytest.mark.parametrize("name", ["grpo", "dapo", "gspo"])
def test_a_group_without_a_difference_still_counts_and_dilutes_the_others(name):
    """Two answers to each of two prompts, all as long; the second prompt is solved: half the gradient is left."""
    chosen = algorithm(name, kl=None)
    logprobs = torch.tensor([-1.0, -2.0, -3.0, -4.0], dtype=torch.float64)
    mixed, both = Layout.from_lengths([2, 2], group_size=2), Layout.from_lengths([2, 2, 2, 2], group_size=2)
    slopes = []
    for layout, rewards in ((mixed, [1.0, 0.0]), (both, [1.0, 0.0, 1.0, 1.0])):
        advantages = chosen.advantage(Feedback(layout, torch.tensor(rewards, dtype=torch.float64)))
        flat = logprobs.repeat(layout.tokens // 4).requires_grad_()
        slopes.append(backward(chosen, flat, chosen.prepare(layout, advantages))[1].tolist())
    assert slopes[0] == pytest.approx([-0.25, -0.25, 0.25, 0.25], abs=1e-6)
    assert slopes[1] == pytest.approx([slope / 2 for slope in slopes[0]] + [0.0] * 4, abs=1e-15)


def test_constants_carry_no_gradient():
    """Advantages, old and reference log-probabilities that come with a graph are cut off at the padded edge, refused inside."""
    t = {
        name: torch.rand(2, 2, dtype=torch.float64, requires_grad=True)
        for name in ("old", "ref", "rollout", "advantages")
    }
    t |= {"logprobs": -torch.rand(2, 2, dtype=torch.float64), "mask": torch.ones(2, 2, dtype=torch.bool)}
    _, gradient = run(algorithm("grpo"), t)
    assert gradient.abs().min() > 0.0
    assert [t[name].grad for name in ("old", "ref", "rollout", "advantages")] == [None] * 4
    with pytest.raises(ValueError, match="advantages carries a gradient"):
        algorithm("dapo").prepare(Layout.from_lengths([1]), torch.ones(1, requires_grad=True))


def test_metrics_are_detached():
    logprobs, signals = step(CHOSEN["grpo"], Layout.from_lengths([2, 1]), 0)
    loss, _ = backward(CHOSEN["grpo"], logprobs, signals)
    tensors = [x for pair in loss.metrics.sums.values() for x in pair] + list(loss.metrics.maxima.values())
    assert not any(x.requires_grad for x in tensors)
    assert loss.value.requires_grad


@pytest.mark.parametrize("name", ["grpo", "dapo", "gspo"])
@pytest.mark.parametrize("far", [-1e4, -100.0, 100.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_movements_stay_finite(name, far, dtype):
    t = {
        "logprobs": torch.tensor([[far, -1.0]], dtype=dtype),
        "old": torch.tensor([[-1.0, far]], dtype=dtype),
        "ref": torch.tensor([[-1.0, far]], dtype=dtype),
        "mask": torch.ones(1, 2, dtype=torch.bool),
    }
    for advantage in (1.0, -1.0):
        result, gradient = run(algorithm(name), t, advantages=torch.tensor([advantage], dtype=dtype))
        assert math.isfinite(result.loss.item())
        assert gradient.isfinite().all()
        assert all(math.isfinite(value) for value in result.metrics.values())


@given(batch=padded_batches())
def test_packed_gspo_equals_each_sequence_alone(batch):
    """The whole step is the mean over sequences of what each gives when it is the only one."""
    chosen = algorithm("gspo")
    t = batch.tensors()
    whole, gradient = run(chosen, t)
    rows = [i for i in range(len(batch.mask)) if batch.mask[i].any()]
    alone = [run(chosen, {name: x[i : i + 1] for name, x in t.items()}) for i in rows]
    assert whole.loss.item() == pytest.approx(sum(a.loss.item() for a, _ in alone) / max(len(rows), 1), abs=1e-12)
    for i, (_, slope) in zip(rows, alone, strict=True):
        np.testing.assert_allclose(gradient[i], slope[0] / len(rows), atol=1e-14)


def test_counts_of_all_ranks_make_each_ranks_loss_a_part_of_the_whole():
    chosen = CHOSEN["dapo"]
    layout = Layout.from_lengths([3, 1])
    logprobs, signals = step(chosen, layout, 5)
    parts = []
    for rank, (a, b) in enumerate([(0, 3), (3, 4)]):
        mine = Layout.from_lengths([b - a])
        other = Layout.from_lengths([4 - (b - a)])
        at = chosen.prepare(
            mine,
            signals.advantages[a:b],
            old_logprobs=signals.old_logprobs[a:b],
            counts=Counts.of(mine) + Counts.of(other),
        )
        assert at.weights.tolist() == signals.select(torch.tensor([rank])).weights.tolist()
        parts.append(chosen.loss(logprobs[a:b], at, chosen.initial_state()).value.item())
    assert sum(parts) == pytest.approx(chosen.loss(logprobs, signals, chosen.initial_state()).value.item(), abs=1e-15)
