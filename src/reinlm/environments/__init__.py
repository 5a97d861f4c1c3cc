"""Environments: single questions, and users' environments of several turns. Imports no torch."""

from typing import TYPE_CHECKING

from reinlm.environments.protocol import Action, Environment, MakeEnvironment, Observation, StepResult
from reinlm.environments.question import Question
from reinlm.environments.spec import is_question, make_environment
from reinlm.renamed import renamed

__all__ = [
    "Action",
    "Environment",
    "MakeEnvironment",
    "Observation",
    "Question",
    "StepResult",
    "is_question",
    "make_environment",
]

if not TYPE_CHECKING:  # a type checker would take any name for one that exists
    __getattr__ = renamed(__name__, {"arithmetic": "reinlm.data.arithmetic"})
