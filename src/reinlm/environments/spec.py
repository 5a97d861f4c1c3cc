"""Environments by name: the values of `environment` in a recipe."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from reinlm.config import Config
from reinlm.environments.protocol import MakeEnvironment, check_environment
from reinlm.environments.question import Question
from reinlm.errors import InputError
from reinlm.parts import builder, load_imports, part, read_part


@part("environment", "question")
class QuestionConfig(Config):
    """One question, one answer."""

    def build(self) -> Question:
        return Question()


def make_environment(spec: Any) -> MakeEnvironment:
    """The factory of environments for a name, {name: values}, `file.py:CLASS`, `module:CLASS`, or a class.

    Raises:
        InputError: an unknown name, values that do not fit, or a class that is not there.
    """
    if isinstance(spec, str) and ":" in spec:
        return _checked(_found(spec), spec)
    if callable(spec):
        return _checked(spec, getattr(spec, "__qualname__", repr(spec)))
    return builder("environment", read_part("environment", spec))


def is_question(make: MakeEnvironment) -> bool:
    """Whether episodes are one question and one answer, without a reward of the environment's own."""
    return make is Question or isinstance(getattr(make, "__self__", None), QuestionConfig)


def _found(place: str) -> Any:
    """The object at `file.py:CLASS` or `module:CLASS`."""
    file, _, name = place.rpartition(":")
    if file.endswith(".py") and not Path(file).expanduser().is_file():
        raise InputError(f"environment {place!r}: no such file: {file}", hint="write file.py:CLASS or module:CLASS")
    (module,) = load_imports([file])
    if not hasattr(module, name):
        raise InputError(f"environment {place!r}: {file} has no class {name!r}", hint="write file.py:CLASS")
    return getattr(module, name)


def _checked(made: Any, place: str) -> MakeEnvironment:
    """A class, or a function that makes an environment, without required arguments; InputError for anything else."""
    if not callable(made):
        raise InputError(f"environment {place!r} is of type {type(made).__name__}, not a class", hint="name a class")
    try:
        if inspect.isclass(made):
            check_environment(made)
        inspect.signature(made).bind()
    except TypeError as error:
        raise InputError(
            f"environment {place!r}: {error}",
            hint='it is called without arguments; @part("environment", NAME) on a configuration class gives it settings',
        ) from error
    except ValueError:  # a builtin without a signature
        pass
    found: MakeEnvironment = made
    return found
