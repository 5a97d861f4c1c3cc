"""The losses of direct preference learning as frozen choices, which a recipe names: DPO and its family.

The formulas stand in `reinlm.objectives.preference_losses`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from reinlm.objectives import preference_losses as formulas
from reinlm.objectives.judged import Labelled, Pairs
from reinlm.objectives.preferences import (
    NONE,
    Constants,
    Imitation,
    LabelLoss,
    PairLoss,
    ReferenceRewards,
    require,
    require_not_negative,
    require_smoothing,
)
from reinlm.objectives.registry import choice

if TYPE_CHECKING:
    from jaxtyping import Float


@choice("preference", "dpo")
@dataclass(frozen=True)
class DPO(ReferenceRewards):
    """-log σ(β h - margin_weight · margin). DPO, arXiv 2305.18290; with a margin weight ODPO, arXiv 2402.10571."""

    beta: float = 0.1
    """How strongly the reference holds; more than 0."""
    margin_weight: float = 0.0
    """Weight of the judged margin of each pair, by which the chosen answer shall win; at least 0."""

    def __post_init__(self) -> None:
        require("dpo", beta=self.beta)
        require_not_negative("dpo", margin_weight=self.margin_weight)

    @property
    def needs_margin(self) -> bool:
        return self.margin_weight > 0.0

    def __call__(self, part: Pairs, constants: Constants = NONE) -> Float[Tensor, " pairs"]:
        if not self.needs_margin:
            return formulas.dpo_loss(part.difference, self.beta)
        if part.margin is None:
            raise ValueError("dpo: margin_weight needs the margin of each pair, and the pairs have none")
        return formulas.dpo_loss(part.difference, self.beta, self.margin_weight * part.margin)


@choice("preference", "cdpo")
@dataclass(frozen=True)
class ConservativeDPO(ReferenceRewards):
    """-(1-ε) log σ(β h) - ε log σ(-β h): a share ε of the labels is wrong. cDPO, E. Mitchell (2023)."""

    beta: float = 0.1
    """How strongly the reference holds; more than 0."""
    label_smoothing: float = 0.1
    """ε, at least 0 and below ½."""

    def __post_init__(self) -> None:
        require("cdpo", beta=self.beta)
        require_smoothing("cdpo", self.label_smoothing)

    def __call__(self, part: Pairs, constants: Constants = NONE) -> Float[Tensor, " pairs"]:
        return formulas.conservative_dpo_loss(part.difference, self.beta, self.label_smoothing)


@choice("preference", "robust_dpo")
@dataclass(frozen=True)
class RobustDPO(ReferenceRewards):
    """[-(1-ε) log σ(β h) + ε log σ(-β h)] / (1-2ε): unbiased under flipped labels. arXiv 2403.00409."""

    beta: float = 0.1
    """How strongly the reference holds; more than 0."""
    label_smoothing: float = 0.1
    """ε, at least 0 and below ½."""

    def __post_init__(self) -> None:
        require("robust_dpo", beta=self.beta)
        require_smoothing("robust_dpo", self.label_smoothing)

    def __call__(self, part: Pairs, constants: Constants = NONE) -> Float[Tensor, " pairs"]:
        return formulas.robust_dpo_loss(part.difference, self.beta, self.label_smoothing)


@choice("preference", "ipo")
@dataclass(frozen=True)
class IPO(ReferenceRewards):
    """(h - 1/(2β))², with β for the paper's τ. IPO, arXiv 2310.12036."""

    beta: float = 0.1
    """τ of the paper; more than 0."""
    length_normalized: bool = False
    """Whether h compares mean log-ratios of a token, as TRL does, in place of their sums, as the paper does."""

    def __post_init__(self) -> None:
        require("ipo", beta=self.beta)

    def __call__(self, part: Pairs, constants: Constants = NONE) -> Float[Tensor, " pairs"]:
        chosen, rejected = part.mean_log_ratios if self.length_normalized else part.log_ratios
        return formulas.ipo_loss(chosen - rejected, self.beta)


@choice("preference", "hinge")
@dataclass(frozen=True)
class Hinge(ReferenceRewards):
    """max(0, 1 - β h). RSO, arXiv 2309.06657."""

    beta: float = 0.05
    """How strongly the reference holds; more than 0."""

    def __post_init__(self) -> None:
        require("hinge", beta=self.beta)

    def __call__(self, part: Pairs, constants: Constants = NONE) -> Float[Tensor, " pairs"]:
        return formulas.hinge_loss(part.difference, self.beta)


@choice("preference", "dpo_norm")
@dataclass(frozen=True)
class NormalizedDPO(PairLoss):
    """-log σ(β (a_chosen/|y_chosen| - a_rejected/|y_rejected|)). Length-normalised DPO, Tülu 3, arXiv 2411.15124."""

    beta: float = 5.0
    """How strongly the reference holds, by mean log-ratios of a token, not their sums; more than 0. Tülu 3 has 5."""

    def __post_init__(self) -> None:
        require("dpo_norm", beta=self.beta)

    def __call__(self, part: Pairs, constants: Constants = NONE) -> Float[Tensor, " pairs"]:
        chosen, rejected = part.mean_log_ratios
        return formulas.dpo_loss(chosen - rejected, self.beta)

    def rewards(self, part: Pairs) -> tuple[Tensor, Tensor]:
        chosen, rejected = part.mean_log_ratios
        return self.beta * chosen.detach(), self.beta * rejected.detach()


@choice("preference", "apo_zero")
@dataclass(frozen=True)
class APOZero(ReferenceRewards):
    """1 - σ(β a_chosen) + σ(β a_rejected). APO-zero, arXiv 2408.06266."""

    beta: float = 0.1
    """How strongly the reference holds; more than 0."""

    def __post_init__(self) -> None:
        require("apo_zero", beta=self.beta)

    def __call__(self, part: Pairs, constants: Constants = NONE) -> Float[Tensor, " pairs"]:
        return formulas.apo_zero_loss(*part.log_ratios, self.beta)


@choice("preference", "sppo")
@dataclass(frozen=True)
class SPPO(ReferenceRewards):
    """(a_chosen - 1/(2β))² + (a_rejected + 1/(2β))². SPPO with certain judgements, arXiv 2405.00675."""

    beta: float = 0.1
    """1/η of the paper; more than 0."""

    def __post_init__(self) -> None:
        require("sppo", beta=self.beta)

    def __call__(self, part: Pairs, constants: Constants = NONE) -> Float[Tensor, " pairs"]:
        return formulas.sppo_hard_loss(*part.log_ratios, self.beta)


@choice("preference", "bco_pair")
@dataclass(frozen=True)
class BCOPair(ReferenceRewards):
    """-log σ(β a_chosen) - log σ(-β a_rejected): the binary classifier of BCO on pairs, arXiv 2404.04656."""

    beta: float = 0.1
    """How strongly the reference holds; more than 0."""

    def __post_init__(self) -> None:
        require("bco_pair", beta=self.beta)

    def __call__(self, part: Pairs, constants: Constants = NONE) -> Float[Tensor, " pairs"]:
        return formulas.bco_pair_loss(*part.log_ratios, self.beta)


@choice("preference", "dpo_sft")
@dataclass(frozen=True)
class DPOWithSFT(ReferenceRewards, Imitation):
    """-log σ(β h) + sft_coefficient · NLL(chosen). DPO with imitation of the chosen answer: RPO, arXiv 2405.16436."""

    beta: float = 0.01
    """How strongly the reference holds; more than 0."""
    sft_coefficient: float = 0.005
    """η of arXiv 2405.16436, α of Iterative RPO; at least 0."""
    sft_aggregation: str = "sequence_sum"
    """"sequence_sum", "sequence_mean" or "token_mean": how the likelihood of the chosen answers is averaged."""

    def __post_init__(self) -> None:
        require("dpo_sft", beta=self.beta)
        self._check_sft("dpo_sft")

    def __call__(self, part: Pairs, constants: Constants = NONE) -> Float[Tensor, " pairs"]:
        return formulas.dpo_loss(part.difference, self.beta) + self.imitation(part, constants)


# ---------------------------------------------------------------------------------------------- without a reference


@choice("preference", "slic")
@dataclass(frozen=True)
class SLiC(Imitation):
    """max(0, δ - (log π(chosen) - log π(rejected))) + sft_coefficient · NLL(chosen). SLiC-HF, arXiv 2305.10425."""

    delta: float = 1.0
    """δ, by how many nats the chosen answer shall be likelier; more than 0."""
    sft_coefficient: float = 0.5
    """λ of the paper; at least 0."""
    sft_aggregation: str = "sequence_mean"
    """"sequence_sum", "sequence_mean" or "token_mean": how the likelihood of the chosen answers is averaged."""

    needs_reference = False

    def __post_init__(self) -> None:
        require("slic", delta=self.delta)
        self._check_sft("slic")

    def __call__(self, part: Pairs, constants: Constants = NONE) -> Float[Tensor, " pairs"]:
        chosen, rejected = part.sums
        return formulas.hinge_loss(chosen - rejected, 1.0, self.delta) + self.imitation(part, constants)

    def rewards(self, part: Pairs) -> tuple[Tensor, Tensor]:
        chosen, rejected = part.sums
        return chosen.detach(), rejected.detach()


@choice("preference", "orpo")
@dataclass(frozen=True)
class ORPO(Imitation):
    """sft_coefficient · NLL(chosen) - β log σ(log odds(chosen) - log odds(rejected)). ORPO, arXiv 2403.07691."""

    beta: float = 0.1
    """λ of the paper; more than 0."""
    sft_coefficient: float = 1.0
    """The paper has 1; at least 0."""
    sft_aggregation: str = "sequence_mean"
    """"sequence_sum", "sequence_mean" or "token_mean": how the likelihood of the chosen answers is averaged."""

    needs_reference = False

    def __post_init__(self) -> None:
        require("orpo", beta=self.beta)
        self._check_sft("orpo")

    def __call__(self, part: Pairs, constants: Constants = NONE) -> Float[Tensor, " pairs"]:
        return self.beta * formulas.odds_ratio_loss(*part.means) + self.imitation(part, constants)

    def rewards(self, part: Pairs) -> tuple[Tensor, Tensor]:
        chosen, rejected = part.means
        return self.beta * chosen.detach(), self.beta * rejected.detach()


@choice("preference", "simpo")
@dataclass(frozen=True)
class SimPO(PairLoss):
    """-log σ(β (mean log π(chosen) - mean log π(rejected)) - γ). SimPO, arXiv 2405.14734."""

    beta: float = 2.0
    """The paper has 2 to 2.5; more than 0."""
    gamma: float = 1.0
    """The target margin γ; the paper has γ/β from 0.3 to 0.8; at least 0."""

    needs_reference = False

    def __post_init__(self) -> None:
        require("simpo", beta=self.beta)
        require_not_negative("simpo", gamma=self.gamma)

    def __call__(self, part: Pairs, constants: Constants = NONE) -> Float[Tensor, " pairs"]:
        chosen, rejected = part.means
        return formulas.dpo_loss(chosen - rejected, self.beta, self.gamma)

    def rewards(self, part: Pairs) -> tuple[Tensor, Tensor]:
        chosen, rejected = part.means
        return self.beta * chosen.detach(), self.beta * rejected.detach()


@choice("preference", "cpo")
@dataclass(frozen=True)
class CPO(Imitation):
    """-log σ(β (log π(chosen) - log π(rejected))) + sft_coefficient · NLL(chosen). CPO, arXiv 2401.08417."""

    beta: float = 0.1
    """Of the log-probabilities, as that of DPO is of log-ratios; more than 0."""
    sft_coefficient: float = 1.0
    """α; at least 0."""
    sft_aggregation: str = "sequence_mean"
    """"sequence_sum", "sequence_mean" or "token_mean": how the likelihood of the chosen answers is averaged."""

    needs_reference = False

    def __post_init__(self) -> None:
        require("cpo", beta=self.beta)
        self._check_sft("cpo")

    def __call__(self, part: Pairs, constants: Constants = NONE) -> Float[Tensor, " pairs"]:
        chosen, rejected = part.sums
        return formulas.dpo_loss(chosen - rejected, self.beta) + self.imitation(part, constants)

    def rewards(self, part: Pairs) -> tuple[Tensor, Tensor]:
        chosen, rejected = part.sums
        return self.beta * chosen.detach(), self.beta * rejected.detach()


# ---------------------------------------------------------------------------------------------- labelled answers


@choice("preference", "kto")
@dataclass(frozen=True)
class KTO(LabelLoss):
    """λ_D (1 - σ(β(a - z0))) of desirable answers, λ_U (1 - σ(β(z0 - a))) of others. KTO, arXiv 2402.01306.

    z0 = max(0, mean log-ratio of answers to other prompts of the step), a constant.
    """

    beta: float = 0.1
    """How strongly the reference holds; more than 0."""
    desirable_weight: float = 1.0
    """λ_D; more than 0. The paper wants λ_D n_D / (λ_U n_U) between 1 and 4/3: `balance`."""
    undesirable_weight: float = 1.0
    """λ_U; more than 0."""

    needs_mismatched = True

    def __post_init__(self) -> None:
        require(
            "kto", beta=self.beta, desirable_weight=self.desirable_weight, undesirable_weight=self.undesirable_weight
        )

    def balance(self, desirable: int, undesirable: int) -> float:
        """λ_D n_D / (λ_U n_U) of a data set; infinite without an undesirable answer."""
        weighed = self.undesirable_weight * undesirable
        return self.desirable_weight * desirable / weighed if weighed else float("inf")

    def prepare(self, step: Labelled, before: Constants = NONE) -> Constants:
        if step.mismatched is None:
            raise ValueError("kto needs the log-ratios of answers to other prompts of the step")
        return {"z0": float(formulas.kto_baseline(step.mismatched))}

    def __call__(self, part: Labelled, constants: Constants) -> Float[Tensor, " answers"]:
        weights = self.desirable_weight, self.undesirable_weight
        return formulas.kto_loss(part.log_ratio, part.desirable, self.beta, constants["z0"], *weights)

    def rewards(self, part: Labelled) -> Tensor:
        return self.beta * part.log_ratio.detach()


@choice("preference", "bco")
@dataclass(frozen=True)
class BCO(LabelLoss):
    """-log σ(βa - δ) of desirable answers, -log σ(δ - βa) of others. BCO, arXiv 2404.04656.

    δ is halfway between the mean rewards βa of both classes, over all steps of the run so far; that of one class as long as the
    other has not been seen.
    """

    beta: float = 0.01
    """How strongly the reference holds; more than 0."""

    needs_step_logprobs = True

    def __post_init__(self) -> None:
        require("bco", beta=self.beta)

    def prepare(self, step: Labelled, before: Constants = NONE) -> Constants:
        rewards = self.rewards(step).double()
        constants: dict[str, float] = {}
        means: list[float] = []
        for name, chosen in (("desirable", step.desirable), ("undesirable", ~step.desirable)):
            count = before.get(f"{name}_count", 0.0) + float(chosen.sum())
            total = before.get(f"{name}_total", 0.0) + float(rewards[chosen].sum())
            constants |= {f"{name}_count": count, f"{name}_total": total}
            means += [total / count] if count else []
        return {**constants, "delta": sum(means) / max(len(means), 1)}

    def __call__(self, part: Labelled, constants: Constants) -> Float[Tensor, " answers"]:
        return formulas.bco_loss(self.beta * part.log_ratio, part.desirable, constants["delta"])

    def rewards(self, part: Labelled) -> Tensor:
        return self.beta * part.log_ratio.detach()
