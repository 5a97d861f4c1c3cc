"""Signals refuse what a loss must not see; metrics keep their denominators."""

from __future__ import annotations

import jaxtyping
import pytest
import torch

from reinlm.objectives import Layout, Metrics, Signals

LAYOUT = Layout.from_lengths([2, 1])


def signals(**changes):
    tensors = {
        "advantages": torch.tensor([1.0, 2.0, 3.0]),
        "weights": torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64),
        "old_logprobs": torch.tensor([-1.0, -2.0, -3.0]),
        "ref_logprobs": torch.tensor([-4.0, -5.0, -6.0]),
    }
    return Signals(layout=LAYOUT, **(tensors | changes))


NAMES = ["advantages", "weights", "old_logprobs", "rollout_logprobs", "ref_logprobs"]


@pytest.mark.parametrize("name", NAMES)
def test_a_constant_with_a_gradient_is_refused(name):
    with pytest.raises(ValueError, match=f"^{name} carries a gradient; the log-probabilities alone may: detach it$"):
        signals(**{name: torch.zeros(3, requires_grad=True)})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(2,), (3, 1)])
def test_a_constant_of_another_shape_is_refused(name, shape, monkeypatch):
    """By Signals itself, which users have; the annotations check in tests alone."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    given = str(shape).replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(ValueError, match=f"^{name} has shape {given} for 3 tokens$"):
        signals(**{name: torch.zeros(shape)})


def test_select_takes_the_tokens_of_the_chosen_sequences_and_keeps_the_step():
    part = signals().select(torch.tensor([1, 0]))
    assert part.advantages.tolist() == [3.0, 1.0, 2.0]
    assert part.weights.tolist() == [0.3, 0.1, 0.2]
    assert part.old_logprobs.tolist() == [-3.0, -1.0, -2.0]
    assert part.ref_logprobs.tolist() == [-6.0, -4.0, -5.0]
    assert part.rollout_logprobs is None
    assert part.layout.count("sequence").tolist() == [1, 2]


def test_to_moves_and_casts_every_tensor():
    moved = signals().to("cpu", torch.float32)
    assert {moved.weights.dtype, moved.advantages.dtype, moved.old_logprobs.dtype} == {torch.float32}
    away = signals().to("meta", torch.bfloat16)
    assert (away.weights.device.type, away.weights.dtype) == ("meta", torch.bfloat16)
    assert away.layout.turn_of_token.device.type == "meta"


def test_metrics_divide_totals_by_counts_and_leave_out_what_was_never_observed():
    one, none = torch.tensor(2.0), torch.tensor(0.0)
    metrics = Metrics({"a": (torch.tensor(3.0), one), "b": (torch.tensor(0.0), none)}, {"m": torch.tensor(7.0)})
    assert metrics.means() == {"a": 1.5, "m": 7.0}
    assert Metrics().means() == {}


def test_a_metric_with_a_small_denominator_is_kept():
    assert Metrics({"a": (torch.tensor(0.5), torch.tensor(0.25))}).means() == {"a": 2.0}
