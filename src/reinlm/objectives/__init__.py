"""The mathematics: pure functions and small frozen choices on flat tensors over the tokens that a policy chose.

This package imports torch alone. Shapes: N tokens, T turns, S sequences, E episodes, G prompt groups.
"""

from typing import Any

from reinlm.objectives.acceptance import AcceptAbove, AcceptBest, best_of_group
from reinlm.objectives.advantages import Advantage, Feedback
from reinlm.objectives.aggregation import (
    Aggregation,
    ConstantBudget,
    Counts,
    prompt_mean,
    sequence_mean,
    sequence_sum,
    token_mean,
)
from reinlm.objectives.best_of_n import best_of_n_kl
from reinlm.objectives.coefficients import (
    Controller,
    EntropyBonus,
    Linear,
    Measured,
    SchulmanRule,
    TargetBand,
    ZieglerRule,
)
from reinlm.objectives.constraints import Lagrange, penalize
from reinlm.objectives.corrections import (
    Correction,
    GeometricFilter,
    K3Filter,
    Masked,
    OffPolicyMask,
    SelfNormalized,
    Truncated,
    admissible_rollouts,
    correct,
    decoupled_mix,
    effective_sample_size,
    kept_logprobs,
)
from reinlm.objectives.distillation import NoAdvantage, TeacherLogRatio
from reinlm.objectives.earlier import warn_renamed
from reinlm.objectives.gates import (
    Clip,
    Gate,
    Gated,
    GeometricMean,
    NoGate,
    Soft,
    TruncatedWeight,
    clip_surrogate,
    soft_gate,
    surrogate,
)
from reinlm.objectives.groups import (
    GDPO,
    GreedyBaseline,
    GroupCenter,
    GroupRank,
    GroupStandardize,
    LeaveOneOut,
    LengthWeighted,
    group_center,
    group_rank,
    group_standardize,
    leave_one_out,
    length_weighted_center,
    process_advantages,
    whiten,
)
from reinlm.objectives.kl import KL, f3, full_divergence, full_entropy, full_kl, k1, k2, k3
from reinlm.objectives.layout import LEVELS, Layout, Level
from reinlm.objectives.ratios import (
    PooledRatio,
    Ratio,
    SequenceProductRatio,
    SequenceRatio,
    SequenceTokenRatio,
    TokenRatio,
    TurnRatio,
    exponent,
)
from reinlm.objectives.registry import CHOICES, choice, nested
from reinlm.objectives.returns import gae, lambda_returns, n_step_returns, td_errors, vtrace
from reinlm.objectives.selection import ClipCov, KLCov, Selection, covariance
from reinlm.objectives.shaping import missing_end_penalty, soft_overlong_penalty
from reinlm.objectives.signals import Loss, Metrics, Signals
from reinlm.objectives.temporal import (
    GAE,
    NStep,
    Returns,
    VTrace,
    Whitened,
    adaptive_lambda,
    discounted_returns,
)
from reinlm.objectives.terms import EntropyTerm, KLTerm, LossTerm, NegativeLogLikelihood, PolicyDistribution
from reinlm.objectives.trust_region import conjugate_gradient, full_step, line_search
from reinlm.objectives.values import Critic, explained_variance, value_loss

__all__ = [
    "CHOICES",
    "GAE",
    "GDPO",
    "KL",
    "LEVELS",
    "AcceptAbove",
    "AcceptBest",
    "Advantage",
    "Aggregation",
    "Clip",
    "ClipCov",
    "ConstantBudget",
    "Controller",
    "Correction",
    "Counts",
    "Critic",
    "EntropyBonus",
    "EntropyTerm",
    "Feedback",
    "Gate",
    "Gated",
    "GeometricFilter",
    "GeometricMean",
    "GreedyBaseline",
    "GroupCenter",
    "GroupRank",
    "GroupStandardize",
    "K3Filter",
    "KLCov",
    "KLTerm",
    "Lagrange",
    "Layout",
    "LeaveOneOut",
    "LengthWeighted",
    "Level",
    "Linear",
    "Loss",
    "LossTerm",
    "Masked",
    "Measured",
    "Metrics",
    "NStep",
    "NegativeLogLikelihood",
    "NoAdvantage",
    "NoGate",
    "OffPolicyMask",
    "PolicyDistribution",
    "PooledRatio",
    "Ratio",
    "Returns",
    "SchulmanRule",
    "Selection",
    "SelfNormalized",
    "SequenceProductRatio",
    "SequenceRatio",
    "SequenceTokenRatio",
    "Signals",
    "Soft",
    "TargetBand",
    "TeacherLogRatio",
    "TokenRatio",
    "Truncated",
    "TruncatedWeight",
    "TurnRatio",
    "VTrace",
    "Whitened",
    "ZieglerRule",
    "adaptive_lambda",
    "admissible_rollouts",
    "best_of_group",
    "best_of_n_kl",
    "choice",
    "clip_surrogate",
    "conjugate_gradient",
    "correct",
    "covariance",
    "decoupled_mix",
    "discounted_returns",
    "effective_sample_size",
    "explained_variance",
    "exponent",
    "f3",
    "full_divergence",
    "full_entropy",
    "full_kl",
    "full_step",
    "gae",
    "group_center",
    "group_rank",
    "group_standardize",
    "k1",
    "k2",
    "k3",
    "kept_logprobs",
    "lambda_returns",
    "leave_one_out",
    "length_weighted_center",
    "line_search",
    "missing_end_penalty",
    "n_step_returns",
    "nested",
    "penalize",
    "process_advantages",
    "prompt_mean",
    "sequence_mean",
    "sequence_sum",
    "soft_gate",
    "soft_overlong_penalty",
    "surrogate",
    "td_errors",
    "token_mean",
    "value_loss",
    "vtrace",
    "whiten",
]


def _earlier(name: str) -> Any:
    if name != "adaptive_smoothing":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warn_renamed(__name__, name, "adaptive_lambda")
    return adaptive_lambda


globals()["__getattr__"] = _earlier  # a type checker takes every name for one of a module that defines it
