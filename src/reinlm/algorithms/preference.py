"""The registry of named algorithms of `reinlm dpo`, and how a recipe names one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, Unpack

from reinlm.algorithms.cards import Card, Described, registering
from reinlm.composition.preference import (
    KIND,
    PreferenceAlgorithm,
    compose_preference,
    merge_preference,
    preference_spec,
)
from reinlm.errors import InputError, find_name, unknown
from reinlm.objectives import CHOICES
from reinlm.program import command_line

PREFERENCES: dict[str, Callable[[], PreferenceAlgorithm]] = {}
PREFERENCE_CARDS: dict[str, Card] = {}

ALIASES = {
    "sigmoid": "dpo",
    "robust": "robust_dpo",
    "rso": "hinge",
    "slic_hf": "slic",
    "rpo": "dpo_sft",
    "sigmoid_norm": "dpo_norm",
    "apo": "apo_zero",
    "sppo_hard": "sppo",
    "irpo": "iterative_rpo",
}
"""What papers and TRL's `loss_type` call an algorithm -> its name here."""
ONLINE = ("online_dpo", "iterative_dpo", "oaif")
"""Names of what `reinlm dpo` does with a reward, whatever the loss."""


def preference(
    **described: Unpack[Described],
) -> Callable[[Callable[[], PreferenceAlgorithm]], Callable[[], PreferenceAlgorithm]]:
    """Register an algorithm of `reinlm dpo`."""
    return registering(PREFERENCES, PREFERENCE_CARDS, described)


def preference_name(name: str) -> str:
    """The name of an algorithm of `reinlm dpo` as it is registered; case, hyphens and underscores make no difference.

    Raises:
        InputError: no such algorithm, with the most similar one, or with the verb of one that learns from rewards.
    """
    from reinlm.algorithms.ladder import ALGORITHMS

    known = _known(name)
    if known is not None:
        return known
    if find_name(name, ONLINE) is not None:
        raise InputError(
            f"algorithm {name!r} is no loss: with a reward every loss of pairs learns from answers that the model samples",
            hint=f"{command_line('dpo', '--reward', 'file.py:function')}, with prompts as data",
        )
    online = find_name(name, ALGORITHMS)
    if online is not None:
        raise InputError(
            f"algorithm {name!r} learns from rewards, not from judged answers",
            hint=f"{command_line('rl', '--algorithm', online)}; of dpo: {', '.join(PREFERENCES)}",
        )
    raise unknown("algorithm of dpo", name, PREFERENCES)


def _known(name: str) -> str | None:
    """The name of an algorithm of `dpo` as it is registered, or None."""
    return find_name(name, PREFERENCES) or ALIASES.get(find_name(name, ALIASES) or "")


def is_preference(name: str) -> bool:
    """Whether a name is that of an algorithm of `dpo`; case, hyphens and underscores make no difference."""
    return _known(name) is not None


def refuse_preference(name: str) -> None:
    """Raise InputError for the name of an algorithm of `dpo` where one of `rl` is asked for."""
    known = _known(name)
    if known is not None:
        raise InputError(
            f"algorithm {name!r} learns from judged answers, not from rewards",
            hint=command_line("dpo", "--algorithm", known),
        )


def preference_algorithm(name: str, /, **changes: Any) -> PreferenceAlgorithm:
    """A named algorithm of `reinlm dpo`, with any of its values changed.

    A change is a value of its loss (`beta=0.2`), `kl` (`kl=0.05`, `kl={"estimator": "full", "coefficient": 0.1}`, `kl=None`),
    `loss` for another loss, or `name`.

    Raises InputError (a ValueError) for an unknown name, for a value that its loss does not use, or one out of range.

    Example:
        >>> preference_algorithm("SimPO", gamma=0.8).loss
        SimPO(beta=2.0, gamma=0.8)
    """
    return compose_preference(PREFERENCES[preference_name(name)](), changes)


def resolve_preference(spec: str | Mapping[str, Any] | PreferenceAlgorithm) -> PreferenceAlgorithm:
    """The algorithm that a recipe of `dpo` names: `ipo`, or `{base: dpo, beta: 0.2}`; without `base` a change of dpo."""
    if isinstance(spec, PreferenceAlgorithm):
        return spec
    if isinstance(spec, str):
        return preference_algorithm(spec)
    if not isinstance(spec, Mapping):
        raise InputError(f"algorithm: cannot read {spec!r}", hint="a name, or {base: dpo, beta: 0.2}")
    changes = dict(spec)
    base = changes.pop("base", "dpo")
    if not isinstance(base, str):
        raise InputError(f"algorithm.base: {base!r} is no name", hint=f"one of {', '.join(PREFERENCES)}")
    return preference_algorithm(base, **changes)


def of_judgements(spec: Any) -> bool:
    """Whether a recipe's `algorithm` is one of `reinlm dpo`: by the name of its base, or by a value of a loss of judgements."""
    base = spec.get("base") if isinstance(spec, Mapping) else spec
    if isinstance(base, str):
        return find_name(base, PREFERENCES) is not None or find_name(base, ALIASES) is not None
    values = {member.name for made in CHOICES[KIND].values() for member in fields(made)}
    return isinstance(spec, Mapping) and not values.isdisjoint(spec)


def preference_algorithm_spec(algorithm: PreferenceAlgorithm) -> dict[str, Any]:
    """The algorithm as a mapping in recipe syntax with every value explicit; `resolve_preference` builds an equal one.

    One that is not registered is spelled out as a change of dpo.
    """
    if (algorithm.base or algorithm.name) not in PREFERENCES:
        algorithm = replace(algorithm, base="dpo")
    return preference_spec(algorithm, PREFERENCES[algorithm.base or algorithm.name]())


def merge_preference_specs(old: Any, new: Any, default: str = "dpo") -> Any:
    """The algorithm that a recipe of `dpo` names, after a change of it; see `reinlm.algorithms.merge_specs`.

    Example:
        >>> merge_preference_specs("ipo", {"beta": 0.2})
        {'base': 'ipo', 'beta': 0.2}
    """
    if not all(isinstance(spec, str | Mapping) for spec in (old, new)):
        return new
    before, after = ({"base": spec} if isinstance(spec, str) else dict(spec) for spec in (old, new))
    base = before.pop("base", default)
    named = after.pop("base", base)
    if not (isinstance(base, str) and isinstance(named, str)):
        return new
    base = preference_name(base)
    if preference_name(named) != base:
        return new
    changes = merge_preference(PREFERENCES[base](), before, after)
    if not changes:
        return base
    spelled = any(isinstance(spec, str) or "base" in spec for spec in (old, new))
    return ({"base": base} if spelled else {}) | changes
