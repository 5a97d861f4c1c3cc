"""`PreferenceAlgorithm`, what `reinlm dpo` minimises, and its values in recipe syntax: one loss, and a KL beside it.

The rule of changes is that of `reinlm.composition.changes`. The values of the loss stand beside its name, not below it:
`{base: dpo, beta: 0.2}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from reinlm.composition.changes import build_choice, build_values, change, change_kl, change_values, choice_tree
from reinlm.errors import InputError, nearest
from reinlm.importable import placeholder
from reinlm.objectives import CHOICES, KL, Layout, PreferenceLoss, Signals

if TYPE_CHECKING:
    from jaxtyping import Float

KIND = "preference"
"""The kind of choice that a loss is."""
ESTIMATORS = ("k2", "k3", "full")
"""KL estimators with a use on answers that the policy did not sample: each is least where policy and reference agree."""


@dataclass(frozen=True)
class PreferenceAlgorithm:
    """A loss of pairs or of labelled answers, and a KL regulariser beside it.

    Example:
        >>> from reinlm.objectives import DPO
        >>> PreferenceAlgorithm("dpo", DPO(beta=0.2)).needs_reference
        True

    Raises ValueError for a KL that cannot act on given answers.
    """

    name: str
    loss: PreferenceLoss[Any, Any]
    kl: KL | None = None
    """Added to the loss of every trained token, of chosen and rejected answers alike: `regularize`."""
    source: str = ""
    base: str = ""
    """The named algorithm of which this one, renamed, is a change."""

    def __post_init__(self) -> None:
        kl = self.kl
        if kl is None:
            return
        if kl.placement != "loss" or kl.anchor != "reference" or kl.controller is not None:
            raise ValueError(
                "the KL of a preference algorithm stands in the loss, to the reference, with a fixed coefficient; leave "
                "placement, anchor and controller out"
            )
        if kl.estimator not in ESTIMATORS:
            raise ValueError(
                f"KL estimator {kl.estimator!r} wants samples of the policy, and the answers are given; allowed: "
                f"{', '.join(ESTIMATORS)}"
            )

    @property
    def takes(self) -> Literal["pairs", "labels"]:
        """What the loss is given: `Pairs` or `Labelled`."""
        return self.loss.takes

    @property
    def needs_reference(self) -> bool:
        """Whether the loss or the KL reads a reference."""
        return self.loss.needs_reference or self.active_kl is not None

    @property
    def active_kl(self) -> KL | None:
        """The KL, where its coefficient is above 0."""
        return self.kl if self.kl is not None and self.kl.active else None

    @property
    def needs_full_kl(self) -> bool:
        """Whether the divergence over the whole vocabulary is needed at every trained token."""
        return self.active_kl is not None and self.active_kl.estimator == "full"

    def regularize(
        self,
        logprobs: Float[Tensor, " tokens"],
        ref_logprobs: Float[Tensor, " tokens"],
        full_kl: Float[Tensor, " tokens"] | None = None,
    ) -> Float[Tensor, " tokens"]:
        """coefficient · KL of each trained token; the trainer averages it over all trained tokens of the step.

        Args:
            logprobs: [N] of the policy, with a gradient.
            ref_logprobs: [N] of the reference.
            full_kl: [N] the divergence over the vocabulary, where the algorithm `needs_full_kl`.

        Raises ValueError without a KL.
        """
        if self.active_kl is None:
            raise ValueError(f"{self.name} has no KL")
        nothing = torch.zeros_like(ref_logprobs)
        layout = Layout.from_lengths([len(logprobs)])
        signals = Signals(layout, advantages=nothing, weights=nothing, ref_logprobs=ref_logprobs)
        return self.active_kl.coefficient * self.active_kl(logprobs, signals, full_kl, "old")


def compose_preference(base: PreferenceAlgorithm, changes: Mapping[str, Any]) -> PreferenceAlgorithm:
    """`base` with some of its values changed.

    Args:
        changes: values of its loss by name (`beta=0.2`), `kl` as in `reinlm.algorithm`, `loss` for another loss or one of the
            user's own (a name, a place `mine.py:NAME`, {name: values} or an object), and `name`.

    Raises:
        InputError: an unknown name, a value that the loss does not use, or one out of range.
    """
    given = dict(changes)
    name, kl, loss = given.pop("name", base.name), base.kl, base.loss
    if not isinstance(name, str) or not name:
        raise InputError(f"name: {name!r} is no name for an algorithm", hint="a text such as my_dpo")
    try:
        if "kl" in given:
            tree = change_kl(base.kl and vars(base.kl).copy(), given.pop("kl"))
            if isinstance(tree, list):
                raise InputError(f"algorithm {base.name}: kl: there is one KL, not a list of {len(tree)}")
            kl = None if tree is None else build_values("kl", KL, tree)
        if "loss" in given:
            loss = _loss(loss, given.pop("loss"))
        if given:
            loss = replace(loss, **_values(base, loss, given))  # type: ignore[type-var]
        origin = base.base or base.name
        return replace(base, name=name, loss=loss, kl=kl, base=origin if name != origin else "")
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"algorithm {base.name}: {error}") from error


def merge_preference(base: PreferenceAlgorithm, old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The changes of `base` that are those of `old` and then those of `new`, as one mapping."""
    if "loss" in new and "loss" in old:
        new = {**new, "loss": change(KIND, change(KIND, choice_tree(base.loss), old["loss"]), new["loss"])}
    merged = {**old, **new}
    if "kl" in old and "kl" in new:
        merged["kl"] = change_kl(change_kl(base.kl and vars(base.kl).copy(), old["kl"]), new["kl"])
    return merged


def preference_spec(algorithm: PreferenceAlgorithm, base: PreferenceAlgorithm | None = None) -> dict[str, Any]:
    """The algorithm as a mapping in recipe syntax with every value explicit, for config.yaml.

    `reinlm.algorithms.resolve_preference` builds an equal one from it; an object that no file holds stands there as a
    placeholder.

    Args:
        base: the named algorithm that `base` names in it, beside which another loss is named.
    """
    spec: dict[str, Any] = {"base": algorithm.base or algorithm.name}
    if algorithm.base:
        spec["name"] = algorithm.name
    tree = choice_tree(algorithm.loss)
    if not isinstance(tree, Mapping):
        spec["loss"] = placeholder(tree)
    else:
        ((kind, values),) = tree.items()
        if base is not None and type(base.loss) is not type(algorithm.loss):
            spec["loss"] = kind
        spec |= values
    spec["kl"] = None if algorithm.kl is None else vars(algorithm.kl).copy()
    return spec


def _loss(old: PreferenceLoss[Any, Any], given: Any) -> PreferenceLoss[Any, Any]:
    if given is None:
        raise InputError("loss: null is no loss", hint=f"names: {', '.join(CHOICES[KIND])}")
    made = build_choice(KIND, change(KIND, choice_tree(old), given))
    missing = [name for name in ("takes", "needs_reference", "prepare", "rewards") if not hasattr(made, name)]
    if missing or not callable(made):
        raise InputError(
            f"loss: {type(made).__name__} is no loss of preferences: it has no {', '.join(missing) or '__call__'}",
            hint="derive a frozen dataclass from reinlm.objectives.PairLoss or LabelLoss",
        )
    return made  # type: ignore[no-any-return]


def _values(base: PreferenceAlgorithm, loss: PreferenceLoss[Any, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Values of the loss that are given. Raises InputError for one that it does not have, with the losses that do."""
    known = [member.name for member in fields(loss)]  # type: ignore[arg-type]
    for key in given:
        if key in known:
            continue
        name = base.name
        allowed = [*known, "kl", "loss", "name"]
        having = [other for other, made in CHOICES[KIND].items() if key in {item.name for item in fields(made)}]
        near = nearest(str(key), allowed)
        hint = f"{name} takes {', '.join(allowed)}"
        if having:
            raise InputError(f"algorithm {name} does not use {key!r}", hint=f"{hint}; {key} is of {', '.join(having)}")
        hint = f"did you mean {near!r}? {hint}" if near else hint
        raise InputError(f"algorithm {name} has no value {key!r}", hint=hint)
    return change_values(base.name, type(loss), {}, given)
