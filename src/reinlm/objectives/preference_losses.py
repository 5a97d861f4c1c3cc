"""The losses of direct preference learning as pure functions: DPO and its family, of each pair or of each labelled answer.

Shapes: P pairs, S labelled answers. Of the completion of a prompt, `log_ratio` is a = Σ_t (log π_θ - log π_ref) over its tokens,
`difference` is h = a_chosen - a_rejected of a pair, and `mean` stands for a mean over tokens. σ is the logistic function. The
reference is a constant. Nothing here averages over pairs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

_LOG_2 = math.log(2.0)


def mean_logprobs(logprobs: Float[Tensor, " answers"], length: Int[Tensor, " answers"]) -> Float[Tensor, " answers"]:
    """Σ_t log π / max(1, |y|): an empty answer has 0.

    Args:
        logprobs: [S] sums over the tokens of each answer, log-probabilities or log-ratios.
        length: [S] tokens of each.
    """
    return logprobs / length.clamp(min=1)


def dpo_loss(difference: Float[Tensor, " pairs"], beta: float, offset: Tensor | float = 0.0) -> Float[Tensor, " pairs"]:
    """-log σ(β h - offset), with ∂/∂a_chosen = -β σ(offset - β h). DPO, arXiv 2305.18290 eq. 7.

    `offset` [P] is the margin by which the pair shall win (ODPO, arXiv 2402.10571). Of means over tokens it is DPO with length
    normalisation (Tülu 3, arXiv 2411.15124), and of log-probabilities in place of log-ratios the loss of CPO and SimPO.
    """
    return -logsigmoid(beta * difference - offset)


def conservative_dpo_loss(
    difference: Float[Tensor, " pairs"], beta: float, label_smoothing: float
) -> Float[Tensor, " pairs"]:
    """-(1-ε) log σ(β h) - ε log σ(-β h), least at β h = log((1-ε)/ε): a share ε of the labels is wrong.

    cDPO, E. Mitchell, "A note on DPO with noisy preferences" (2023).
    """
    scaled = beta * difference
    return -(1.0 - label_smoothing) * logsigmoid(scaled) - label_smoothing * logsigmoid(-scaled)


def robust_dpo_loss(
    difference: Float[Tensor, " pairs"], beta: float, label_smoothing: float
) -> Float[Tensor, " pairs"]:
    """[-(1-ε) log σ(β h) + ε log σ(-β h)] / (1-2ε): unbiased where a share ε < ½ of the labels is flipped; may be negative.

    Robust DPO, arXiv 2403.00409 eq. 11.
    """
    scaled = beta * difference
    flipped = -(1.0 - label_smoothing) * logsigmoid(scaled) + label_smoothing * logsigmoid(-scaled)
    return flipped / (1.0 - 2.0 * label_smoothing)


def ipo_loss(difference: Float[Tensor, " pairs"], beta: float) -> Float[Tensor, " pairs"]:
    """(h - 1/(2β))², with β for the paper's τ: the difference shall be 1/(2β), and no more. IPO, arXiv 2310.12036 eq. 17."""
    return (difference - 1.0 / (2.0 * beta)).square()


def hinge_loss(difference: Float[Tensor, " pairs"], beta: float, margin: float = 1.0) -> Float[Tensor, " pairs"]:
    """max(0, margin - β h). Of log-ratios RSO, arXiv 2309.06657; of log-probabilities the first term of SLiC-HF, 2305.10425."""
    return torch.relu(margin - beta * difference)


def log_odds(mean_logprob: Float[Tensor, " answers"]) -> Float[Tensor, " answers"]:
    """log(P / (1-P)) of P = exp(mean log-probability ≤ 0), without cancellation near P = 0 and P = 1.

    P is at most 1 - ε of the dtype, where the gradient is 0.
    """
    logp = mean_logprob.clamp(max=-torch.finfo(mean_logprob.dtype).eps)
    near = (-torch.expm1(logp.clamp(min=-_LOG_2))).log()  # each branch is given only what it can bear: no NaN gradient
    far = torch.log1p(-logp.clamp(max=-_LOG_2).exp())
    return logp - torch.where(logp > -_LOG_2, near, far)


def odds_ratio_loss(
    chosen_mean: Float[Tensor, " pairs"], rejected_mean: Float[Tensor, " pairs"]
) -> Float[Tensor, " pairs"]:
    """-log σ(log odds_chosen - log odds_rejected), of mean log-probabilities. ORPO, arXiv 2403.07691 eq. 7."""
    return -logsigmoid(log_odds(chosen_mean) - log_odds(rejected_mean))


def kto_loss(
    log_ratio: Float[Tensor, " answers"],
    desirable: Bool[Tensor, " answers"],
    beta: float,
    baseline: Tensor | float,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Float[Tensor, " answers"]:
    """λ_D (1 - σ(β(a - z0))) of a desirable answer, λ_U (1 - σ(β(z0 - a))) of another. KTO, arXiv 2402.01306 eq. 8.

    `baseline` is z0, a constant: `kto_baseline`.
    """
    excess = beta * (log_ratio - baseline)
    return torch.where(desirable, desirable_weight * torch.sigmoid(-excess), undesirable_weight * torch.sigmoid(excess))


def kto_baseline(mismatched: Float[Tensor, " answers"]) -> Float[Tensor, ""]:
    """z0 = max(0, mean of the log-ratios of answers to other prompts), without gradient. KTO, arXiv 2402.01306 §4.1.

    Raises ValueError where there is none.
    """
    if not len(mismatched):
        raise ValueError("KTO's baseline needs the log-ratio of at least one answer to another prompt")
    return mismatched.detach().mean().clamp(min=0.0)


def bco_loss(
    reward: Float[Tensor, " answers"], desirable: Bool[Tensor, " answers"], shift: Tensor | float
) -> Float[Tensor, " answers"]:
    """-log σ(βa - δ) of a desirable answer, -log σ(δ - βa) of another: a binary classifier. BCO, arXiv 2404.04656 eq. 9.

    Args:
        reward: [S] β a.
        shift: δ, a constant, halfway between the mean rewards of both classes.
    """
    excess = reward - shift
    return -logsigmoid(torch.where(desirable, excess, -excess))


def bco_pair_loss(
    chosen: Float[Tensor, " pairs"], rejected: Float[Tensor, " pairs"], beta: float
) -> Float[Tensor, " pairs"]:
    """-log σ(β a_chosen) - log σ(-β a_rejected): BCO of pairs, without a shift (arXiv 2404.04656)."""
    return -logsigmoid(beta * chosen) - logsigmoid(-beta * rejected)


def apo_zero_loss(
    chosen: Float[Tensor, " pairs"], rejected: Float[Tensor, " pairs"], beta: float
) -> Float[Tensor, " pairs"]:
    """1 - σ(β a_chosen) + σ(β a_rejected): raises the chosen, lowers the rejected, each by itself. APO, arXiv 2408.06266."""
    return torch.sigmoid(-beta * chosen) + torch.sigmoid(beta * rejected)


def sppo_hard_loss(
    chosen: Float[Tensor, " pairs"], rejected: Float[Tensor, " pairs"], beta: float
) -> Float[Tensor, " pairs"]:
    """(a_chosen - 1/(2β))² + (a_rejected + 1/(2β))², for judgements that are certain. SPPO, arXiv 2405.00675 eq. 4.7."""
    return (chosen - 0.5 / beta).square() + (rejected + 0.5 / beta).square()
