"""Plain functions as gate and advantage equal the library's own, and depend on no micro-batch."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from reinlm.algorithms import Algorithm, algorithm
from reinlm.composition.functions import FunctionAdvantage, FunctionAggregation, FunctionGate, as_advantage, as_gate
from reinlm.errors import InputError
from reinlm.objectives import (
    Clip,
    Counts,
    Feedback,
    Gated,
    GroupCenter,
    Layout,
    NoGate,
    Whitened,
    clip_surrogate,
    group_center,
    length_weighted_center,
    sequence_mean,
    surrogate,
)

LAYOUT = Layout.from_lengths([3, 1, 0, 2, 4, 1], group_size=3)
REWARDS = torch.tensor([1.0, 0.0, 0.5, torch.nan, 2.0, 1.0], dtype=torch.float64)
FEEDBACK = Feedback(LAYOUT, REWARDS)


def clipped(ratio: Any, advantages: Any, low: float = 0.2) -> Any:
    return clip_surrogate(ratio, advantages, low, 0.28)


def per_token(rewards: Any, layout: Any) -> Any:
    """2 for the first token of an answer, 1 for the others, times the reward."""
    return layout.expand(rewards, "episode") * (1.0 + (layout.offset("episode") == 0))


def loss(made: Algorithm, sequences: list[int] | None = None) -> tuple[float, torch.Tensor]:
    """The loss, and the gradient of each token of the whole step, summed over slices of these sizes."""
    noise = torch.Generator().manual_seed(0)
    old = -torch.rand(LAYOUT.tokens, generator=noise).double()
    logprobs = (old + 0.5 * torch.randn(LAYOUT.tokens, generator=noise).double()).requires_grad_()
    signals = made.prepare(LAYOUT, made.advantage(FEEDBACK), old_logprobs=old)
    state, total, at = made.initial_state(), 0.0, 0
    for size in sequences or [LAYOUT.size("sequence")]:
        chosen = torch.arange(at, at + size)
        _, tokens = LAYOUT.select(chosen)
        value = made.loss(logprobs[tokens], signals.select(chosen), state).value
        value.backward()
        total, at = total + float(value), at + size
    assert logprobs.grad is not None
    return total, logprobs.grad


@pytest.mark.parametrize(
    ("function", "same"),
    [(surrogate, NoGate()), (clipped, Clip(0.2, 0.28))],
    ids=["surrogate", "clip"],
)
def test_a_function_of_ratio_and_advantages_is_the_gate_that_it_computes(function: Any, same: Any) -> None:
    (mine, mine_gradient), (theirs, their_gradient) = (
        loss(algorithm("grpo", kl=None, gate=gate)) for gate in (function, same)
    )
    assert mine == pytest.approx(theirs, rel=1e-12)
    assert torch.allclose(mine_gradient, their_gradient, rtol=1e-12, atol=0)
    assert mine_gradient.abs().sum() > 0


def test_the_librarys_own_functions_of_rewards_are_advantages() -> None:
    centred = algorithm("grpo", advantage=group_center).advantage
    assert torch.equal(centred(FEEDBACK), GroupCenter()(FEEDBACK))
    assert centred.needs == {"group"}
    weighted = algorithm("grpo", advantage=length_weighted_center).advantage(FEEDBACK)
    # the first group: lengths 3, 1, 0 and rewards 1, 0, 0.5 have the weighted mean 3/4; the second 4·2 + 1 over 5: 9/5
    assert torch.allclose(weighted, torch.tensor([1, 1, 1, -3, 0, 0, 0.8, 0.8, 0.8, 0.8, -3.2]).double() / 4)


def test_a_function_of_the_layout_gives_a_value_of_each_token_and_a_missing_reward_gives_0() -> None:
    made = algorithm("grpo", advantage=per_token).advantage
    assert made(FEEDBACK).tolist() == [2, 1, 1, 0, 0, 0, 4, 2, 2, 2, 2]
    assert made.needs == frozenset()


def test_a_wrapper_holds_a_function_as_it_holds_any_advantage() -> None:
    mine = algorithm("grpo", advantage=Whitened(group_center))  # type: ignore[arg-type]  # a function
    assert torch.equal(mine.advantage(FEEDBACK), Whitened(GroupCenter())(FEEDBACK))
    assert isinstance(mine.advantage, Whitened)
    assert isinstance(mine.advantage.advantage, FunctionAdvantage)


def test_the_loss_of_functions_does_not_depend_on_the_micro_batches() -> None:
    made = algorithm("grpo", kl=None, gate=clipped, advantage=per_token)
    whole, gradient = loss(made)
    for sizes in ([1] * 6, [2, 4], [3, 1, 2]):
        parts, summed = loss(made, sizes)
        assert parts == pytest.approx(whole, rel=1e-12)
        assert torch.allclose(summed, gradient, rtol=1e-12, atol=0)


def test_what_follows_the_protocol_stays_as_it_is_and_a_callable_object_may_name_its_arguments() -> None:
    @dataclass(frozen=True)
    class Protocol:
        def __call__(self, log_ratio: Any, logprobs: Any, signals: Any) -> Any: ...

    @dataclass(frozen=True)
    class Scaled:
        by: float = 2.0

        def __call__(self, ratio: Any, advantages: Any) -> Any:
            return -self.by * ratio * advantages

    def with_signals(log_ratio: Any, signals: Any) -> Gated:
        return NoGate()(log_ratio, log_ratio, signals)

    assert as_gate(Protocol()) == Protocol()
    assert as_gate(Scaled(3.0)) == FunctionGate(Scaled(3.0))
    plain = loss(algorithm("grpo", kl=None, gate=surrogate))[0]
    assert loss(algorithm("grpo", kl=None, gate=Scaled(3.0)))[0] == pytest.approx(3.0 * plain)
    assert loss(algorithm("grpo", kl=None, gate=with_signals))[0] == pytest.approx(plain)


def unreadable(a: Any, /) -> Any:
    """A positional argument has no name to be called by."""
    return a


def refuses(ratio: Any, advantages: Any) -> Any:
    raise InputError("the ratio is mine")


def by_rank(rewards: Any, step: Any) -> Any:
    return rewards * step


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gate": unreadable}, "gate unreadable has arguments without a name"),
        ({"gate": refuses}, "the ratio is mine"),
        ({"advantage": by_rank}, "advantage by_rank has an argument 'step'"),
        ({"advantage": Whitened(3)}, "advantage: 3 is no advantage"),  # type: ignore[arg-type]
        ({"advantage": Whitened(int)}, "advantage: int is no advantage"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_a_function_of_the_step_is_refused(given: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        algorithm("grpo", **given)


def test_only_a_function_that_takes_the_feedback_sees_step_rewards() -> None:
    ends = torch.tensor([2, 3, 5, 9, 10])
    steps = replace(FEEDBACK, step_rewards=torch.ones(5, dtype=torch.float64), step_tokens=ends)
    with pytest.raises(InputError, match="advantage group_center compares outcome rewards, and there are step rewards"):
        FunctionAdvantage(group_center)(steps)

    def summed(feedback: Any) -> Any:
        return torch.full([feedback.layout.tokens], float(feedback.effective_step_rewards.sum()))

    made = algorithm("grpo", advantage=summed).advantage
    assert made(steps).unique().tolist() == [0.0, 5.0]  # an episode without a reward has 0


def test_an_object_that_says_what_it_needs_is_an_advantage_of_its_own() -> None:
    @dataclass(frozen=True)
    class Own:
        needs: frozenset[str] = frozenset()

        def __call__(self, feedback: Any) -> Any:
            return torch.zeros(feedback.layout.tokens)

    assert as_advantage(Own()) == Own()


# ---------------------------------------------------------------------------------------------------- aggregation


def by_sequence(layout: Any, counts: Any) -> Any:
    return 1.0 / (layout.expand(layout.count("sequence"), "sequence").double() * counts.sequences)


def test_a_function_of_layout_and_counts_is_the_aggregation_that_it_computes() -> None:
    made = algorithm("grpo", kl=None, aggregation=by_sequence)
    assert made.aggregation == FunctionAggregation(by_sequence)
    assert replace(made).aggregation == made.aggregation
    (mine, gradient), (theirs, their_gradient) = loss(made), loss(algorithm("grpo", kl=None, aggregation=sequence_mean))
    assert mine == pytest.approx(theirs, rel=1e-12)
    assert torch.equal(gradient, their_gradient)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda layout: None, "cannot be called with (layout, counts): too many positional arguments"),
        (lambda layout, counts, scale: None, "cannot be called with (layout, counts): missing a required argument"),
        (lambda layout, counts: 1 / 0, "failed: ZeroDivisionError: division by zero (" + __file__),
        (lambda layout, counts: 1.0, "returned float, not a tensor"),
        (lambda layout, counts: torch.ones(3), "returned float32 of shape [3] for 7 tokens"),
        (lambda layout, counts: torch.ones(layout.tokens).long(), "returned int64 of shape [7] for 7 tokens"),
        (lambda layout, counts: torch.ones(layout.tokens).log() / 0, "returned nan for 7 of 7 tokens"),
        (lambda layout, counts: torch.arange(layout.tokens) - 2.0, "returned -2.0 for 2 of 7 tokens"),
    ],
)
def test_what_cannot_be_an_aggregation_is_refused_before_a_run_in_one_line(function: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"^aggregation <lambda> {re.escape(message)}"):
        algorithm("grpo", aggregation=function)


def test_a_value_that_cannot_be_called_is_no_aggregation() -> None:
    for given, name in ((Layout, "Layout"), (Scale, "Scale"), (3, "int")):
        with pytest.raises(InputError, match=f"^aggregation: {name} is no aggregation"):
            replace(algorithm("grpo"), aggregation=given)  # type: ignore[arg-type]  # that is what is refused


@dataclass(frozen=True)
class Scale:
    """Objects are tried as functions are."""

    by: float = 1.0

    def __call__(self, layout: Any, counts: Any) -> Any:
        return torch.full((layout.tokens,), self.by / counts.tokens)


def test_an_aggregation_that_fails_in_a_later_step_is_named_then() -> None:
    made = algorithm("grpo", aggregation=Scale(2.0))
    with pytest.raises(InputError, match=r"^aggregation Scale returned -1.0 for 7 of 7 tokens"):
        algorithm("grpo", aggregation=Scale(-7.0))
    with pytest.raises(InputError, match=r"^aggregation Scale failed: ZeroDivisionError"):
        made.aggregation(LAYOUT, Counts(tokens=0, sequences=0, rows=0, groups=0))


# ---------------------------------------------------------------------------------------------------- what is logged


def silent(ratio: Any, advantages: Any, signals: Any) -> Gated:
    return Gated(-ratio * advantages, ratio > 1.1, ratio > 1.1, known=False)


@pytest.mark.parametrize(
    ("gate", "logged"),
    [
        (Clip(0.2, 0.28), {"low_mean", "high_mean", "region_mean"}),
        (NoGate(), {"low_mean", "high_mean", "region_mean"}),
        (clipped, set()),
        (silent, set()),
    ],
    ids=["clip", "none", "function", "gate of its own"],
)
def test_only_a_gate_that_says_what_it_stops_logs_how_much_it_stops(gate: Any, logged: set[str]) -> None:
    made = algorithm("grpo", kl=None, gate=gate)
    old = torch.full((LAYOUT.tokens,), -1.0).double()
    signals = made.prepare(LAYOUT, made.advantage(FEEDBACK), old_logprobs=old)
    found = made.loss(old + 0.5, signals, made.initial_state())
    names = {name.removeprefix("clip_ratio/") for name in found.metrics.sums if name.startswith("clip_ratio/")}
    assert names == logged
    assert ("clip" in found.tokens) == (len(logged) == 3)
