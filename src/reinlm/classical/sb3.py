"""Calls in the words of Stable-Baselines3: `PPO("MlpPolicy", env, n_steps=2048).learn(total_timesteps=100_000)`.

What means the same is accepted under both names (`reinlm.aliases.SB3` pairs them); what does not is an error that names
ours.
The functions here are the only place that knows it; everything behind them has our names alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from reinlm.aliases import SB3
from reinlm.classical.environments import EnvLike, arguments_of, check_one, name_of
from reinlm.classical.sb3_names import AS_IT_IS, OF_LEARN, POLICIES, SYMBOLS
from reinlm.errors import InputError, nearest

if TYPE_CHECKING:
    from reinlm.classical.agent import Agent

# ------------------------------------------------------------------------------------------------ the environment


def environment_of(kind: type[Agent], given: tuple[Any, ...], keywords: dict[str, Any]) -> EnvLike:
    """The environment among the arguments; a policy's name before it is checked and left out. Takes both out of `keywords`.

    Raises:
        InputError: for a policy that is not here, no environment, or several.
    """
    words = list(given)
    if isinstance(keywords.get("policy"), str | type):
        words.insert(0, keywords.pop("policy"))
    if words and (_is_policy(words[0]) or (len(words) > 1 and isinstance(words[0], str | type))):
        _check_policy(kind, words.pop(0))
    if "env" in keywords:
        words.append(keywords.pop("env"))
    call = f"{kind.__name__}("
    if not words:
        raise InputError(f"{kind.name} needs an environment", hint=f'such as {call}"CartPole-v1") or {call}env)')
    if len(words) > 1:
        raise InputError(
            f"{kind.__name__} takes one environment, and settings by name; not {len(words)} values: {_short(words[1:])}",
            hint=f'such as {call}"CartPole-v1", learning_rate=3e-4)',
        )
    (env,) = words
    if not (isinstance(env, str) or callable(env)) or isinstance(env, gym.vector.VectorEnv):
        check_one(env, "env")
    return env  # type: ignore[no-any-return]


def _is_policy(word: Any) -> bool:
    return isinstance(word, str) and word.endswith("Policy")


def _check_policy(kind: type[Agent], policy: Any) -> None:
    name = policy if isinstance(policy, str) else policy.__name__
    call = f"{kind.__name__}(env)"
    if not hasattr(kind, "activation"):
        raise InputError(f"{kind.name} has a table and no network {name!r}", hint=f"write {call}")
    if not isinstance(policy, str):
        raise InputError(
            f"the networks of {kind.name} are not of a class, as {name} is", hint=f"write {call}; hidden=(64, 64)"
        )
    if name.startswith("Cnn"):
        raise InputError(
            f"{name}: there is no convolutional network here, and so none for images",
            hint=f"take observations that are numbers in a row, and write {call}",
        )
    if name not in POLICIES:
        hint = f"write {call}; hidden=(64, 64) are the units of its layers"
        raise InputError(f"there is no policy {name!r}: networks are linear layers (MlpPolicy)", hint=hint)


def _short(values: Any) -> str:
    return ", ".join(repr(value)[:40] for value in values)


# ------------------------------------------------------------------------------------------------ settings


def settings_of(
    kind: type[Agent], env: EnvLike | None, given: Mapping[str, Any], before: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Settings under our names, those of one environment beside them where the environment is one that is made already.

    Args:
        kind: the algorithm, whose settings are looked at.
        env: None where it is not known.
        given: settings under our names, the textbooks' symbols or those of Stable-Baselines3.
        before: settings under our names that these change; what they say is not said again.

    Raises:
        InputError: for a setting under two names, and for what means something else here.
    """
    found: dict[str, Any] = {}
    by: dict[str, str] = {}
    for name, value in given.items():
        for ours, setting in _ours(kind, name, value, env).items():
            if ours in found:
                both = " and ".join(sorted({name, by[ours]})) if name != by[ours] else name
                raise InputError(f"{both} are the same setting; give one of them", hint=f"{ours} is its name here")
            found[ours], by[ours] = setting, name
    fields = kind.Settings.model_fields
    if "environments" in fields and "environments" not in {*found, *(before or {})}:
        if by.get("rollout_steps") == "n_steps":
            found["environments"] = 1  # there an environment is one unless it is a vector of them
        elif isinstance(env, gym.Env):
            found["environments"] = 1
            if "rollout_steps" in fields and "rollout_steps" not in found:
                found["rollout_steps"] = fields["rollout_steps"].default * fields["environments"].default
    return found


def _ours(kind: type[Agent], name: str, value: Any, env: EnvLike | None) -> dict[str, Any]:
    """One setting under our name, or none where it describes what happens anyway; an unknown one as it is."""
    fields = kind.Settings.model_fields
    if name in READERS:
        read = READERS[name](kind, value)
        return read if read.keys() <= fields.keys() else {name: value}
    if name in OF_LEARN and name not in fields:
        raise InputError(f"{name} is no setting of {kind.name}", hint=f"write {OF_LEARN[name]}")
    if name in AS_IT_IS and name not in fields:
        same, why = AS_IT_IS[name]
        if value == same:
            return {}
        raise InputError(f"{name}={value!r} is not supported: {why.format(value)}")
    alias = SB3[name].classical if name in SB3 else None
    ours = next((one for one in (name, *SYMBOLS.get(name, ()), alias) if one in fields), name)
    if ours not in fields:
        _refuse_misspelt(fields, name)
        if name in arguments_of(env):
            raise InputError(
                f"{name} is an argument of {name_of(env)}, not a setting of {kind.name}",  # type: ignore[arg-type]
                hint=f"write env_arguments={{{name!r}: {value!r}}}",
            )
    if callable(value):
        raise InputError(f"{name} is a number here, not a function", hint=_scheduled(kind, ours))
    return {ours: value}


def _refuse_misspelt(fields: Collection[str], name: str) -> None:
    """Raise InputError for a name that is nearest to one of Stable-Baselines3 or the textbooks; other names are refused later."""
    symbols = {word for word, ours in SYMBOLS.items() if any(one in fields for one in ours)}
    foreign = {word for word, alias in SB3.items() if alias.classical in fields} | symbols
    near = None if name in SB3 or name in SYMBOLS else nearest(name, [*foreign, *fields])
    if near is not None and near in foreign and near not in fields:
        raise InputError(f"unknown key {name!r}", hint=f"did you mean {near!r}?")


def _scheduled(kind: type[Agent], ours: str) -> str:
    for setting, key in (("learning_rate", "schedule"), ("clip", "clip_schedule")):
        if ours == setting and key in kind.Settings.model_fields:
            return f"{key}='linear' takes it to 0 over the budget"
    return f"give {ours} as a number"


def _value_coefficient(kind: type[Agent], value: Any) -> dict[str, Any]:
    """There the loss of values is c · (V - R)², here c · ½ (V - R)²."""
    return {"value_coefficient": 2 * value if isinstance(value, int | float) else value}


def _network(kind: type[Agent], value: Any) -> dict[str, Any]:
    """`policy_kwargs`: net_arch is `hidden`."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InputError(
            f"policy_kwargs={value!r} is no mapping", hint='write hidden=(64, 64) for {"net_arch": [64, 64]}'
        )
    found: dict[str, Any] = {}
    for name, inner in value.items():
        if name == "net_arch":
            found |= _hidden(kind, inner)
        elif name == "activation_fn" and getattr(inner, "__name__", str(inner)).lower() == getattr(
            kind, "activation", ""
        ):
            continue
        else:
            raise InputError(
                f"policy_kwargs: {name}={getattr(inner, '__name__', inner)} is not supported: the networks of {kind.name} are "
                f"linear layers with {getattr(kind, 'activation', 'nothing')} between them",
                hint="hidden=(64, 64) are their units",
            )
    return found


def _hidden(kind: type[Agent], value: Any) -> dict[str, Any]:
    layers = (value,) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(value, list | tuple) and len(value) == 1 and isinstance(value[0], Mapping):
        (layers,) = value
    if isinstance(layers, Mapping):
        parts = [list(layers[part]) for part in ("pi", "vf", "qf") if part in layers]
        if not parts or any(part != parts[0] for part in parts):
            raise InputError(
                f"net_arch={value!r}: policy and values have networks of one size",
                hint="such as hidden=(64, 64) for both",
            )
        layers = parts[0]
    return {"hidden": layers}


def _train_freq(kind: type[Agent], value: Any) -> dict[str, Any]:
    if isinstance(value, list | tuple) and len(value) == 2:
        if value[1] != "step":
            raise InputError(
                f"train_freq={value!r}: updates come after a number of steps", hint="such as train_every=4"
            )
        value = value[0]
    return {"train_every": value}


def _gradient_steps(kind: type[Agent], value: Any) -> dict[str, Any]:
    if value == -1:
        raise InputError("gradient_steps=-1 is not supported", hint="give updates the number that train_every has")
    return {"updates": value}


def _device(kind: type[Agent], value: Any) -> dict[str, Any]:
    if str(value) not in ("cpu", "auto"):
        raise InputError(
            f"device={str(value)!r} is not supported: networks this small are faster on the CPU",
            hint="leave device out",
        )
    return {}


def _no_rate(kind: type[Agent], value: Any) -> dict[str, Any]:
    ours = "learning_rate" if "learning_rate" in kind.Settings.model_fields else "step_size"
    raise InputError("unknown key 'lr'", hint=f"did you mean {ours!r}?")


def _policy(kind: type[Agent], value: Any) -> dict[str, Any]:
    _check_policy(kind, str(value))
    return {}


READERS: Mapping[str, Callable[[Any, Any], dict[str, Any]]] = {
    "policy": _policy,
    "vf_coef": _value_coefficient,
    "policy_kwargs": _network,
    "net_arch": _hidden,
    "hidden": _hidden,
    "train_freq": _train_freq,
    "gradient_steps": _gradient_steps,
    "device": _device,
    "lr": _no_rate,
}
"""Arguments whose value has another form there."""
