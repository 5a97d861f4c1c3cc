"""What a policy acts in: questions of one turn, and users' environments of several. Needs no torch."""

from reinlm.environments.protocol import Action, Environment, MakeEnvironment, Observation, StepResult
from reinlm.environments.question import Question
from reinlm.environments.spec import is_question, make_environment

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
