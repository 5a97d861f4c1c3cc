"""Environments by name: what a recipe's `environment` may say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reinlm.config import Config
from reinlm.environments.protocol import MakeEnvironment
from reinlm.environments.question import Question
from reinlm.errors import InputError
from reinlm.parts import load_imports, part, read_part


@part("environment", "question")
class QuestionConfig(Config):
    """One question, one answer."""

    def build(self) -> Question:
        return Question()


def make_environment(spec: Any) -> MakeEnvironment:
    """What makes the environment of an episode: from a name, {name: values}, `file.py:CLASS`, `module:CLASS`, or a class.

    Raises:
        InputError: an unknown name, values that do not fit, or a class that is not there.
    """
    if isinstance(spec, str) and ":" in spec:
        return _class(spec)
    if callable(spec):
        made: MakeEnvironment = spec
        return made
    config: Any = read_part("environment", spec)
    build: MakeEnvironment = config.build
    return build


def is_question(make: MakeEnvironment) -> bool:
    """Whether episodes are one question and one answer, without a reward of the environment's own."""
    return make is Question or isinstance(getattr(make, "__self__", None), QuestionConfig)


def _class(place: str) -> MakeEnvironment:
    file, _, name = place.rpartition(":")
    if file.endswith(".py") and not Path(file).expanduser().is_file():
        raise InputError(f"environment {place!r}: no such file: {file}", hint="write file.py:CLASS or module:CLASS")
    (module,) = load_imports([file])
    found = getattr(module, name, None)
    if not callable(found):
        raise InputError(f"environment {place!r}: {file} has no class {name!r}", hint="write file.py:CLASS")
    made: MakeEnvironment = found
    return made
