"""Environments by name: the values of `environment` in a recipe."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from reinlm.config import Config
from reinlm.environments.protocol import MakeEnvironment, check_environment
from reinlm.environments.question import Question
from reinlm.errors import InputError
from reinlm.importable import find, is_place
from reinlm.parts import builder, part, read_part
from reinlm.program import command_line


@part("environment", "question")
class QuestionConfig(Config):
    """One question, one answer."""

    def build(self) -> Question:
        return Question()


def make_environment(spec: Any) -> MakeEnvironment:
    """The factory of environments for a name, {name: values}, `file.py:CLASS`, `module:CLASS`, or a class.

    Values may also be those of the arguments of a class: {file.py:CLASS: values}.

    Raises:
        InputError: an unknown name, values that do not fit, or a class that is not there.
    """
    if isinstance(spec, str) and ":" in spec:
        return _at_place(spec, {})
    if isinstance(spec, Mapping) and len(spec) == 1 and is_place(name := next(iter(spec))):
        return _at_place(name, spec[name] or {})
    if callable(spec) and not isinstance(spec, Config):
        return _checked(spec, getattr(spec, "__qualname__", repr(spec)))
    if isinstance(spec, str) and re.search(r"-v\d+$", spec):
        raise InputError(
            f"{spec} is an environment for control, not for a language model",
            hint=command_line("classical", "ppo", "--env", spec, "--steps", "100000"),
        )
    return builder("environment", read_part("environment", spec))


def is_question(make: MakeEnvironment) -> bool:
    """Whether episodes are one question and one answer, without a reward of the environment's own."""
    return make is Question or isinstance(getattr(make, "__self__", None), QuestionConfig)


def _at_place(place: str, values: Any) -> MakeEnvironment:
    """What makes the environment at `file.py:CLASS` or `module:CLASS`, with values of its arguments."""
    made = find(place, "environment")
    if isinstance(made, type) and issubclass(made, Config):
        return builder("environment", read_part("environment", {place: values}))
    if not isinstance(values, Mapping):
        raise InputError(
            f"environment {place!r}: {values!r} is no mapping of values", hint=f"{{{place}: {{key: value}}}}"
        )
    return _checked(made, place, values)


def _checked(made: Any, place: str, values: Mapping[str, Any] = MappingProxyType({})) -> MakeEnvironment:
    """A class, or a function that makes an environment, with values of its arguments; InputError for anything else."""
    if not callable(made):
        raise InputError(f"environment {place!r} is of type {type(made).__name__}, not a class", hint="name a class")
    try:
        if inspect.isclass(made):
            check_environment(made)
        inspect.signature(made).bind(**values)
    except TypeError as error:
        raise InputError(
            f"environment {place!r}: {error}",
            hint="it is called with the values that are given: {file.py:CLASS: {key: value}}",
        ) from error
    except ValueError:  # a builtin without a signature
        pass
    found: MakeEnvironment = functools.partial(made, **values) if values else made
    return found
