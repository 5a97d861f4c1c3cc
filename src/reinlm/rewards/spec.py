"""`RewardConfig`, and the parsing of reward specifications from recipes, flags and Python."""

from __future__ import annotations

import functools
import itertools
import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_serializer, field_validator, model_validator

from reinlm.aliases import alias_hint
from reinlm.config import MAX_SECONDS, Config
from reinlm.errors import InputError, nearest
from reinlm.importable import is_placeholder, written
from reinlm.parts import PARTS, builder, part_spec, read_part
from reinlm.rewards import learned as learned  # registers the reward `model`
from reinlm.rewards.builtin import Builtin
from reinlm.rewards.functions import FunctionSource, source_of, source_of_part

RewardSpec = str | Callable[..., Any] | Mapping[str, Any] | Sequence[Any]
"""A reward or a list of rewards. One reward is

- a name: `"math"`, or one that `@part("reward", NAME)` of a user's file registers;
- a function, sync or async: `my_function`;
- where to find one: `"rewards.py:score"` or `"package.module:score"`; of a class, which is called with the values that are
  given, `{"rewards.py:Near": {"scale": 0.5}}`;
- a mapping with the reward under `name`, a `weight` (1), a `label` to log it by, and the values of a reward with a name:
  `{"name": "regex", "pattern": "####", "weight": 0.5}`, or `{"regex": {"pattern": "####", "weight": 0.5}}`; `function` may
  stand for `name`: `{"function": my_function, "weight": 0.5}`;
- a pair of one and its weight: `(my_function, 0.5)`.
"""


class RewardConfig(Config):
    """Which rewards, and what happens when one fails.

    Example:
        RewardConfig(functions=["math", {"name": "rewards.py:polite", "weight": 0.1}], time_limit=10)
    """

    functions: Any
    """A `RewardSpec`."""
    time_limit: float | None = Field(default=60.0, gt=0, le=MAX_SECONDS)
    """Seconds that a call may take; for `math`, `regex` and a function of one answer, a single answer. None: no limit,
    and every function runs inside this process."""
    call: Literal["group", "batch"] = "group"
    """What one call of a function of yours scores: the answers to one prompt, while others are still sampled, or those
    to all prompts of a step. Built-in rewards score each answer alone in either case."""
    on_reward_error: Literal["stop", "skip"] = "stop"
    """When a function raises, overruns, ends its process or returns what is no list of finite numbers: stop the run, or leave
    the answers of that call (for a single bad value: that answer) out of training and count them."""
    retries: int = Field(default=3, ge=0)
    """Further attempts at a call that raised an error which may pass: of the network, the system or a library, such as a
    service that answers 503; not one of the code or of an answer, such as a TypeError or a ValueError."""
    retry_delay: float = Field(default=1.0, ge=0, le=MAX_SECONDS)
    """Seconds before the first of them, doubled before each further one up to a minute, less up to half at random."""
    one_by_one: bool = True
    """With on_reward_error=skip: where a call with several answers raised, overran or ended its process, call again for each
    answer alone, so that only those are lost that cause it. False for a function that compares answers."""
    concurrency: int = Field(default=16, ge=1)
    """Answers of a call that an async function of one answer (`completion`) scores at the same time."""
    max_failed_steps: int = Field(default=10, ge=1)
    """With on_reward_error=skip: steps in a row in which no answer has a reward because functions failed, until the run ends,
    saved. The steps before make no update."""
    workers: int = Field(default=2, ge=1)
    """Processes that check answers for `math` and `regex`. Each function of yours has one more, of its own."""

    @field_validator("functions")
    @classmethod
    def _readable(cls, functions: Any) -> Any:
        read_spec(functions)
        return functions

    @model_validator(mode="after")
    def _every_setting_has_an_effect(self) -> RewardConfig:
        if self.time_limit is None and self.changed("workers"):
            raise ValueError(
                f"workers {self.workers} has no effect without time_limit: every reward runs in this process"
            )
        for choice in read_spec(self.functions) if self.time_limit is None else ():
            if choice.source is not None and choice.source.options.get("process") == "own":
                raise ValueError("process own has no effect without time_limit: every reward runs in this process")
        for name in ("one_by_one", "max_failed_steps"):
            if self.on_reward_error == "stop" and self.changed(name):
                raise ValueError(f"{name} has no effect with on_reward_error=stop: the first failure ends the run")
        if self.retries == 0 and self.changed("retry_delay"):
            raise ValueError("retry_delay has no effect with retries=0")
        return self

    @field_serializer("functions", when_used="json")
    def _named(self, functions: Any) -> Any:
        return write_spec(functions)


@dataclass(frozen=True)
class Choice:
    """One reward as it was asked for: a `source` that a worker could load, a `function`, or both."""

    name: str
    """By which it is logged; unique in a set."""
    weight: float
    source: FunctionSource | None
    function: Callable[..., Any] | None
    judges: bool = False
    """Whether it compares two answers, as `reinlm.rewards.judging.Judge` has it do."""

    @property
    def noun(self) -> str:
        """What messages call it, and the section of its settings."""
        return "judge" if self.judges else "reward"


def read_spec(spec: RewardSpec) -> list[Choice]:
    """The rewards that `spec` names; an `InputError` names what cannot be read. Imports no function yet.

    A second reward of the same name is logged as `NAME_2`, unless it has a label.
    """
    items = list(spec) if isinstance(spec, Sequence) and not isinstance(spec, str) and not _is_pair(spec) else [spec]
    if not items:
        raise InputError("no reward is given", hint=f"{offered_rewards()}, a function, or file.py:function")
    read = [_read(item) for item in items]
    labels = [label for _, label in read if label is not None]
    twice = [label for label in labels if labels.count(label) > 1]
    if twice:
        raise InputError(f"two rewards have the label {twice[0]!r}", hint="labels name what is logged: change one")
    taken = set(labels)
    choices = []
    for choice, label in read:
        name = label if label is not None else _free(choice.name, taken)
        taken.add(name)
        choices.append(Choice(name, choice.weight, choice.source, choice.function))
    return choices


def offered_rewards() -> str:
    """The rewards with a name as a hint writes them, those that need values with an example of these."""
    spelled = [f"{{{name}: {{{_example(name)}}}}}" if _example(name) else name for name in PARTS["reward"]]
    return f"name one: {', '.join(spelled)}"


def _example(name: str) -> str:
    """The values without which a reward cannot be, as an example; empty where it needs none."""
    config = PARTS["reward"][name]
    if issubclass(config, Builtin):
        return config.example
    return ", ".join(f"{key}: VALUE" for key, field in config.model_fields.items() if field.is_required())


def _is_pair(item: Any) -> bool:
    """Whether it is one reward with its weight: `(f, 0.5)`. A number is no reward, so no list of rewards looks like it."""
    return (
        isinstance(item, Sequence)
        and not isinstance(item, str)
        and len(item) == 2
        and isinstance(item[1], int | float)
        and not isinstance(item[0], int | float)
    )


def _free(name: str, taken: set[str]) -> str:
    """`name`, or where it is taken `name_2`, `name_3`, …"""
    return next(
        free for free in itertools.chain([name], (f"{name}_{n}" for n in itertools.count(2))) if free not in taken
    )


def _read(item: Any) -> tuple[Choice, str | None]:
    """One reward, and its label where it has one."""
    options: dict[str, Any] = {}
    nested = False
    if isinstance(item, str) and _is_model(item):
        item = {"name": "model", "path": item}
    if _is_pair(item):
        item, weight_of_pair = item
        named = item if isinstance(item, Mapping) and item.keys() & {"name", "function"} else {"name": item}
        item = {**named, "weight": weight_of_pair}
    if isinstance(item, Mapping):
        options = dict(item)
        if "function" in options and "name" not in options:
            options["name"] = options.pop("function")
        item = options.pop("name") if "name" in options else item
        if isinstance(item, Mapping):
            beside = options if "weight" in options or "label" in options else {}
            item, values = _by_key(item)
            options, nested = {**values, **beside}, True
    weight, label = options.pop("weight", 1.0), options.pop("label", None)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
        raise InputError(f"reward {_name(item)!r}: weight must be a finite number, not {weight!r}")
    if label is not None and (not isinstance(label, str) or not label):
        raise InputError(f"reward {_name(item)!r}: label must be text, not {label!r}")
    source, function = _find(item, options, nested=nested)
    return Choice(_name(item), float(weight), source, function), label


def _is_model(text: str) -> bool:
    """Whether a reward's text names a model: a folder, or a name with a slash, and no file of Python."""
    if ":" in text or text.endswith(".py") or text[:1] in "{[" or " " in text or "," in text:
        return False
    return text not in PARTS["reward"] and ("/" in text or Path(text).expanduser().is_dir())


def _by_key(item: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """`{"regex": {…}}`: the reward is the only key."""
    given = dict(item)
    if len(given) == 1:
        ((name, options),) = given.items()
        if options is None or isinstance(options, Mapping):
            return name, dict(options or {})
    raise InputError(f"reward {given!r} does not say which one it is", hint='write {"name": "math", "weight": 0.5}')


def _find(
    item: Any, options: Mapping[str, Any], *, nested: bool
) -> tuple[FunctionSource | None, Callable[..., Any] | None]:
    """`nested`: the values stand below the name, `{mine.py:CLASS: {…}}`, so that they are those of a class."""
    if isinstance(item, str) and ":" not in item:
        if item.endswith(".py"):
            raise InputError(f"reward {item!r} names a file and no function in it", hint=f"write {item}:FUNCTION")
        if item not in PARTS["reward"]:
            if (weighted := _meant(item)) is not None:
                raise InputError(f"unknown reward {item!r}", hint=weighted)
            near = nearest(item, PARTS["reward"])
            did = f"did you mean {near!r}? " if near else ""
            hint = f"{did}{offered_rewards()}, or file.py:function, or package.module:function"
            raise InputError(f"unknown reward {item!r}", hint=hint)
        return _part(item, options)
    if not isinstance(item, str) and not callable(item):
        raise InputError(
            f"{item!r} is not a reward", hint="give a name, a function, file.py:function, or a mapping with a name"
        )
    if isinstance(item, str) and nested:
        return replace(_place(item), options=dict(options)), None
    if options:
        key = next(iter(options))
        raise InputError(
            f"reward {_name(item)!r}: unknown key {key!r}",
            hint=_of_all(key) or "a function of yours takes name, weight and label; values are for rewards with a name",
        )
    return (_place(item), None) if isinstance(item, str) else (source_of(item), item)


def _part(name: str, options: Mapping[str, Any]) -> tuple[FunctionSource | None, Callable[..., Any] | None]:
    """Where a worker finds and builds the reward of this name; the function where it is a `Builtin`, or no worker can."""
    try:
        config = read_part("reward", {name: options})
        build = builder("reward", config)
    except InputError as error:
        text = error.message.removeprefix(f"reward {name}: ")
        written = f'write reward="{{{name}: {{{_example(name)}}}}}"' if not options and _example(name) else error.hint
        misplaced = next((hint for key in options if f"unknown key {key!r}" in text and (hint := _of_all(key))), None)
        raise InputError(f"reward {name!r}: {text}", hint=misplaced or written) from error
    source = source_of_part(name, options)
    if isinstance(config, Builtin):
        return source, config
    return source, None if source is not None else build()


def _place(text: str) -> FunctionSource:
    """`file.py:function` or `package.module:function`."""
    place, _, function = text.rpartition(":")
    if not place or not function.isidentifier():
        hint = _meant(text) or "write file.py:function or package.module:function"
        raise InputError(f"reward {text!r} cannot be read", hint=hint)
    if not place.endswith(".py"):
        return FunctionSource("module", place, function)
    path = Path(place).expanduser().resolve()
    if not path.is_file():
        raise InputError(f"reward {text!r}: no such file: {place}", hint=f"looked for {path}")
    return FunctionSource("file", str(path), function)


_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)"
_WEIGHTED = re.compile(rf"(?P<name>.+?)\s*[:=*@, ]\s*(?P<weight>{_NUMBER})|(?P<before>{_NUMBER})\s*\*\s*(?P<of>.+)")
"""How a weight is written beside a reward's name: `math:0.5`, `0.5*math`."""


def _meant(text: str) -> str | None:
    """A hint for a text that holds more than the name of a reward: its weight, several rewards, or a mapping; None otherwise."""
    if text[:1] in ("{", "["):
        return f"--reward takes a name or a place: write reward={shlex.quote(text)}"
    found = _WEIGHTED.fullmatch(text)
    if found is not None:
        name, weight = found["name"] or found["of"], found["weight"] or found["before"]
        if name.isidentifier() and name not in PARTS["reward"]:
            name = f"FILE.py:{name}"
        key = f"reward.functions.{_name(name)}.weight={weight}"
        return (
            f"a weight is a value of its own: --reward {name} {key}, or in a recipe {{name: {name}, weight: {weight}}}"
        )
    several = [name.strip() for name in text.split(",")]
    if len(several) > 1 and all(name in PARTS["reward"] or ":" in name for name in several):
        return f"write --reward {' --reward '.join(several)}, or reward='[{', '.join(several)}]'"
    return None


def _of_all(key: str) -> str | None:
    """A hint for a key of the whole section that stands below one reward; None for any other."""
    named = alias_hint([key], known=[f"reward.{name}" for name in RewardConfig.model_fields])
    if named is None and key in RewardConfig.model_fields:
        named = f"the key is reward.{key}"
    return named and f"{named}; it holds for all rewards"


def _name(item: Any) -> str:
    if isinstance(item, str):
        return item.rpartition(":")[2]
    while isinstance(item, functools.partial):
        item = item.func
    name: str = getattr(item, "__name__", type(item).__name__)
    return name.strip("<>")


def write_spec(spec: Any) -> Any:
    """`spec` for a file: functions and objects by their place, logged by the names that they have."""
    if isinstance(spec, Mapping):
        tree = {key: write_spec(value) for key, value in spec.items()}
        key = "name" if "name" in spec else "function"
        if isinstance(tree.get(key), Mapping) and "label" in tree[key]:
            return {"label": tree[key]["label"], **tree, key: tree[key]["name"]}
        return tree
    if isinstance(spec, list | tuple):
        if _is_pair(spec):
            first = write_spec(spec[0])
            return {**first, "weight": spec[1]} if isinstance(first, Mapping) and "label" in first else [first, spec[1]]
        return [write_spec(item) for item in spec]
    if isinstance(spec, Config):
        return part_spec("reward", spec)
    if callable(spec):
        place = written(spec)
        known = not isinstance(place, str) or is_placeholder(place) or _name(place) == _name(spec)
        return place if known else {"name": place, "label": _name(spec)}
    return spec
