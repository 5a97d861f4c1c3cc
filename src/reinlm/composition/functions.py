"""Plain functions as gate, advantage or aggregation: gate and advantage take what they name; what they return is checked.

    def soft_clip(ratio, advantages):               # a loss of each token [N]
        return -torch.tanh(ratio - 1) * advantages

    def median_baseline(rewards, group, groups):    # a value of each episode [E]
        ...

    def by_root_length(layout, counts):             # a weight of each token [N]
        ...

`reinlm.objectives.surrogate` and `group_center` are such functions too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from reinlm.errors import InputError, ReinlmError, error_line, file_of, nearest
from reinlm.objectives import Advantage, Counts, Feedback, Gated, Layout, Signals
from reinlm.objectives.advantages import Need

if TYPE_CHECKING:
    from jaxtyping import Float

GATE = ("ratio", "advantages", "log_ratio", "logprobs", "signals")
"""What a gate's function may name: tensors [N], and the `Signals` of the slice."""
GATE_PROTOCOL = ("log_ratio", "logprobs", "signals")
ADVANTAGE = ("rewards", "group", "groups", "lengths", "layout", "feedback")
"""What an advantage's function may name: rewards [E], group of each episode [E], their number, tokens of each episode [E],
the `Layout` and the `Feedback`."""
PER_TOKEN = ("layout", "feedback")
"""A function that names one of these returns values of tokens [N], any other one values of episodes [E]."""


@dataclass(frozen=True)
class FunctionGate:
    """A function of the ratio and the advantages of each token [N] -> a loss of each token [N]."""

    function: Callable[..., Any]

    def __call__(
        self, log_ratio: Float[Tensor, " tokens"], logprobs: Float[Tensor, " tokens"], signals: Signals
    ) -> Gated:
        """Raises InputError, which names the function, if it raises or returns no finite loss of each token."""
        given = {"ratio": log_ratio.exp(), "advantages": signals.advantages.to(log_ratio.dtype)}
        given |= {"log_ratio": log_ratio, "logprobs": logprobs, "signals": signals}  # type: ignore[dict-item]
        losses = _call("gate", self.function, given)
        if isinstance(losses, Gated):
            return losses
        _check_values("gate", self.function, losses, len(log_ratio), "token")
        nowhere = torch.zeros_like(log_ratio, dtype=torch.bool)
        return Gated(losses, nowhere, nowhere, known=False)


@dataclass(frozen=True)
class FunctionAdvantage(Advantage):
    """A function of the rewards of a whole collected batch -> a value of each episode [E] or token [N].

    Episodes without a reward (NaN) get 0, whatever the function returns for them.
    """

    function: Callable[..., Any]

    @property
    def needs(self) -> frozenset[Need]:  # type: ignore[override]
        """ "group" for a function that names `group` or `groups`."""
        return frozenset({"group"} if {"group", "groups"} & set(_parameters("advantage", self.function)) else ())

    def __call__(self, feedback: Feedback) -> Float[Tensor, " tokens"]:
        """Raises InputError, which names the function, if it raises or returns no finite value of each episode or token."""
        layout, rewards = feedback.layout, feedback.effective_rewards
        taken = _parameters("advantage", self.function)
        if feedback.effective_step_rewards is not None and "feedback" not in taken:
            raise InputError(
                f"advantage {name_of(self.function)} compares outcome rewards, and there are step rewards",
                hint="take `feedback`, which holds them, or advantage=group_standardize",
            )
        given = {"rewards": rewards, "group": layout.group_of_episode, "groups": layout.groups}
        given |= {"lengths": layout.count("episode"), "layout": layout, "feedback": feedback}
        values = _call("advantage", self.function, given)
        per_token = any(name in taken for name in PER_TOKEN)
        count, of = (layout.tokens, "token") if per_token else (layout.size("episode"), "episode")
        scored = feedback.given if per_token else ~rewards.isnan()
        _check_values("advantage", self.function, values, count, of, scored)
        values = torch.where(scored, values.detach().to(rewards), 0.0)
        return values if per_token else layout.expand(values, "episode")


@dataclass(frozen=True)
class FunctionAggregation:
    """A function of the layout and the counts of a whole step -> a weight of each token [N]."""

    function: Callable[..., Any]

    def __call__(self, layout: Layout, counts: Counts) -> Float[Tensor, " tokens"]:
        """Raises InputError, which names the function, if it raises or returns no finite weight ≥ 0 of each token."""
        with _named_errors("aggregation", self.function):
            weights = self.function(layout, counts)
        _check_values("aggregation", self.function, weights, layout.tokens, "token")
        if bool((weights < 0).any()):
            first, several = weights[weights < 0][0].item(), int((weights < 0).sum())
            raise InputError(
                f"aggregation {name_of(self.function)} returned {first} for {several} of {layout.tokens} tokens",
                hint="a weight is at least 0: a negative one would train against the advantage",
            )
        return weights.detach()  # type: ignore[no-any-return]


# ---------------------------------------------------------------------------------------------------- what is given


def as_gate(made: Any) -> Any:
    """The gate itself, or a `FunctionGate` around a function that names its arguments.

    Raises InputError for a function that cannot be one: tried on a few tokens, it must give a finite loss of each of them
    that depends on no other sequence and falls as the ratio of a token with a positive advantage rises.
    """
    if isinstance(made, FunctionGate) or not _by_name("gate", made, GATE, GATE_PROTOCOL):
        return made
    gate = FunctionGate(made)
    if "signals" not in _parameters("gate", made):
        _try_gate(gate)
    return gate


def as_advantage(made: Any) -> Any:
    """The advantage itself, or a `FunctionAdvantage` around a function that names its arguments; inside wrappers too.

    Raises InputError for a function that cannot be one, tried on a few episodes.
    """
    if is_dataclass(made) and isinstance(made, Advantage) and not isinstance(made, type):
        inner = {
            member.name: as_advantage(getattr(made, member.name))
            for member in fields(made)
            if member.metadata.get("kind") == "advantage"
        }
        changed = any(getattr(made, name) is not value for name, value in inner.items())
        return replace(made, **inner) if changed else made
    if isinstance(made, Advantage) or hasattr(made, "needs"):
        return made
    _by_name("advantage", made, ADVANTAGE, ())
    advantage = FunctionAdvantage(made)
    if "feedback" not in _parameters("advantage", made):
        layout = Layout.from_lengths([2, 1, 3, 1], group_size=2)
        advantage(Feedback(layout, torch.tensor([1.0, 0.0, 0.5, 0.25], dtype=torch.float64)))
    return advantage


def as_aggregation(made: Any) -> Any:
    """The aggregation itself where it is of this library, or a `FunctionAggregation` around a function of the user.

    Raises InputError for one that cannot be one, tried on a few tokens.
    """
    own = made if inspect.isfunction(made) else type(made)
    if isinstance(made, FunctionAggregation) or own.__module__.partition(".")[0] == "reinlm":
        return made
    if isinstance(made, type) or not callable(made):
        raise InputError(f"aggregation: {name_of(made)} is no aggregation", hint=_HINTS["aggregation"])
    try:
        inspect.signature(made).bind("layout", "counts")
    except (TypeError, ValueError) as error:
        raise InputError(
            f"aggregation {name_of(made)} cannot be called with (layout, counts): {error}", hint=_HINTS["aggregation"]
        ) from error
    aggregation = FunctionAggregation(made)
    layout = Layout.from_lengths([2, 1, 3, 1], group_size=2)
    aggregation(layout, Counts.of(layout))
    return aggregation


def function_in(choice: Any) -> Any:
    """The function that stands in a `FunctionGate`, `FunctionAdvantage` or `FunctionAggregation`; any other choice itself."""
    return choice.function if isinstance(choice, FunctionGate | FunctionAdvantage | FunctionAggregation) else choice


def name_of(choice: Any) -> str:
    """The name of a choice in messages: of a function its own, otherwise that of its class."""
    made = function_in(choice)
    return str(getattr(made, "__name__", type(made).__name__))


_HINTS = {
    "gate": "a gate is a function such as f(ratio, advantages), which returns a loss of each token: -ratio * advantages",
    "advantage": "an advantage is a function such as f(rewards, group, groups), which returns a value of each episode, "
    "or a class that derives from reinlm.objectives.Advantage",
    "aggregation": "an aggregation is a function f(layout, counts), which returns a weight of each token",
}


def _by_name(kind: str, made: Any, known: Sequence[str], protocol: Sequence[str]) -> bool:
    """Whether an object is called by the names of its arguments; False for one of the protocol, which has its order."""
    if isinstance(made, type) or not callable(made):
        raise InputError(f"{kind}: {getattr(made, '__name__', repr(made))} is no {kind}", hint=_HINTS[kind])
    taken = _parameters(kind, made)
    required = [name for name, needed in taken.items() if needed]
    if protocol and (
        tuple(required) == tuple(protocol) or not (inspect.isfunction(made) or set(required) & set(known))
    ):
        return False
    for name in required:
        if name not in known:
            near = nearest(name, known)
            did = f"did you mean {near!r}? " if near else ""
            raise InputError(
                f"{kind} {name_of(made)} has an argument {name!r}, and there are {', '.join(known)}",
                hint=f"{did}{_HINTS[kind]}",
            )
    if not taken:
        raise InputError(f"{kind} {name_of(made)} takes no argument", hint=_HINTS[kind])
    return True


def _parameters(kind: str, made: Callable[..., Any]) -> dict[str, bool]:
    """The arguments of a function by name, and whether each is required."""
    try:
        parameters = inspect.signature(made).parameters.values()
    except (TypeError, ValueError) as error:
        raise InputError(f"{kind} {name_of(made)} has no readable signature", hint=_HINTS[kind]) from error
    single = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    if any(one.kind is one.POSITIONAL_ONLY for one in parameters):
        raise InputError(f"{kind} {name_of(made)} has arguments without a name", hint=_HINTS[kind])
    return {one.name: one.default is one.empty for one in single}


# ---------------------------------------------------------------------------------------------------- what comes back


def _call(kind: str, function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    taken = _parameters(kind, function)
    with _named_errors(kind, function):
        return function(**{name: value for name, value in given.items() if name in taken})


@contextmanager
def _named_errors(kind: str, function: Callable[..., Any]) -> Iterator[None]:
    """Raise InputError, which names the function and its line, for what it raises in the block."""
    try:
        yield
    except (ReinlmError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise InputError(f"{kind} {name_of(function)} failed: {error_line(error, file_of(function))}") from error


def _check_values(
    kind: str, function: Callable[..., Any], values: Any, count: int, of: str, scored: Tensor | None = None
) -> None:
    """Raise InputError unless `values` is a floating-point tensor [count] without NaN where `scored`."""
    name, wanted = name_of(function), f"return a floating-point tensor [{count}], a value of each {of}"
    if not isinstance(values, Tensor):
        raise InputError(f"{kind} {name} returned {type(values).__name__}, not a tensor", hint=wanted)
    if values.shape != (count,) or not values.is_floating_point():
        found = f"{str(values.dtype).removeprefix('torch.')} of shape {list(values.shape)}"
        also = "" if kind != "advantage" else "; one that takes `layout` or `feedback` returns a value of each token"
        raise InputError(f"{kind} {name} returned {found} for {count} {of}s", hint=wanted + also)
    wrong = ~values.detach().isfinite() if scored is None else ~values.detach().isfinite() & scored
    if bool(wrong.any()):
        first = values.detach()[wrong][0].item()
        hint = "rewards are NaN where an answer has none: leave these out, as torch.nanmean does"
        raise InputError(
            f"{kind} {name} returned {first} for {int(wrong.sum())} of {count} {of}s",
            hint=hint if kind == "advantage" else None,
        )


def _try_gate(gate: FunctionGate) -> None:
    """Call a gate on a few tokens, at ratios of 1 and around it."""
    layout = Layout.from_lengths([2, 1, 3, 1], group_size=2)
    advantages = layout.expand(torch.tensor([1.0, -1.0, 0.5, -0.5]), "episode")
    old = torch.linspace(-2.0, -0.5, layout.tokens)
    signals = Signals(layout, advantages, torch.ones(layout.tokens), old_logprobs=old)

    def losses(log_ratio: Tensor, at: Signals) -> tuple[Tensor, Tensor]:
        assert at.old_logprobs is not None
        logprobs = (at.old_logprobs + log_ratio).requires_grad_()
        return gate(logprobs - at.old_logprobs, logprobs, at).losses, logprobs

    moved = torch.linspace(-0.3, 0.3, layout.tokens)
    whole, _ = losses(moved, signals)
    for number in range(layout.size("sequence")):
        chosen = torch.tensor([number])
        alone, _ = losses(moved[layout.index("sequence") == number], signals.select(chosen))
        if not torch.allclose(alone, whole[layout.index("sequence") == number], rtol=1e-4, atol=1e-6):
            raise InputError(
                f"gate {name_of(gate)}: the loss of a token depends on the other sequences that it is computed with",
                hint="these are those of one micro-batch, so results would depend on its size; what needs the whole batch "
                "is an advantage",
            )
    at_one, logprobs = losses(torch.zeros(layout.tokens), signals)
    if not at_one.requires_grad:
        raise InputError(
            f"gate {name_of(gate)}: its loss has no gradient to the policy", hint="compute it from ratio or logprobs"
        )
    (gradient,) = torch.autograd.grad(at_one.sum(), logprobs)
    if bool((gradient * advantages > 0).any()):
        raise InputError(
            f"gate {name_of(gate)}: its loss rises with the ratio where the advantage is positive",
            hint="return a loss, which is minimised: -ratio * advantages",
        )
