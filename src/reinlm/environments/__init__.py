"""Environments: single questions, and users' environments of several turns. Imports no torch."""

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

renamed(__name__, {"arithmetic": "reinlm.data.arithmetic"})
