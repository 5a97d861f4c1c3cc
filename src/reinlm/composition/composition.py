"""The fields of `Algorithm`, and which measurements they require from the trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reinlm.composition.compatibility import cautions, refuse_contradictions
from reinlm.composition.filters import GroupFilter
from reinlm.composition.functions import as_advantage, as_aggregation, as_gate, name_of
from reinlm.composition.shapers import Shaper
from reinlm.composition.terms import check_terms, term_needs
from reinlm.objectives import (
    KL,
    Advantage,
    Aggregation,
    Correction,
    Critic,
    EntropyBonus,
    EntropyTerm,
    Gate,
    KLTerm,
    Lagrange,
    LossTerm,
    OffPolicyMask,
    Ratio,
    Selection,
)
from reinlm.renamed import RenamedAttribute

KEEP, BEFORE, AFTER = "keep", "filter_before_baseline", "filter_after_baseline"
OVERLONG = (KEEP, BEFORE, AFTER)
"""The ways to treat truncated answers."""


@dataclass(frozen=True)
class Updates:
    """How often a paper updates on one collected batch: passes times minibatches.

    Example: DAPO's 16 updates of 512 answers each, of the 8,192 of a batch: Updates(passes=1, minibatches=16)
    """

    passes: int = 1
    """How often each answer is trained on."""
    minibatches: int = 1
    """Number of parts that a pass is split into; groups are not split."""

    def __post_init__(self) -> None:
        if self.passes < 1 or self.minibatches < 1:
            raise ValueError(
                f"updates: passes and minibatches are at least 1, not {self.passes} and {self.minibatches}"
            )


@dataclass(frozen=True)
class Composition:
    """The fields of `Algorithm`, each a value that can be swapped. Raises ValueError for choices that contradict one another."""

    name: str
    """Its name; a changed algorithm may have any."""
    advantage: Advantage
    """How good a token or answer was, and against which baseline; a function may stand here."""
    ratio: Ratio
    """How far the policy has moved: per token, turn or sequence, from the old weights or the sampler."""
    gate: Gate
    """How much of the movement counts; a function may stand here."""
    aggregation: Aggregation
    """How much each token weighs; a function may stand here."""
    kl: KL | tuple[KL, ...] | None = None
    """KL regularisation towards reference, old policy or teacher; a tuple for several anchors."""
    corrections: tuple[Correction, ...] = ()
    """Importance weights for samples of another policy, applied one after the other."""
    sequence_mask: OffPolicyMask | None = None
    """Masks sequences with negative advantage whose probability has fallen far."""
    selection: Selection | None = None
    """Separate treatment of tokens with a high covariance of log-probability and advantage."""
    entropy: EntropyBonus | None = None
    """A bonus for the entropy of each token."""
    terms: tuple[LossTerm, ...] = ()
    """Further per-token loss terms; see `loss_terms`."""
    constraints: tuple[Lagrange, ...] = ()
    """Bounds on the means of named rewards."""
    critic: Critic | None = None
    """The critic's loss; set exactly where the advantage needs a critic."""
    overlong: str = KEEP
    """Answers that a limit cut off: "keep" them; "filter_before_baseline": they are in no statistic and no loss;
    "filter_after_baseline": their rewards still shape the baseline, their tokens are in no loss."""
    shapers: tuple[Shaper, ...] = ()
    """Added to the rewards before the advantage."""
    filters: tuple[GroupFilter, ...] = ()
    """Decide which groups are trained on; dropped ones are replaced by new samples."""
    updates: Updates = Updates()
    """Updates per batch in its paper; the default of `training.passes` and `training.minibatches`. A paper's minibatches have
    at least eight groups each, so that small batches make fewer; a number that is given holds exactly."""
    source: str = ""
    """Paper and arXiv id."""
    base: str = ""
    """For a renamed algorithm the named one that it was made from; empty otherwise."""

    def __post_init__(self) -> None:
        if self.overlong not in OVERLONG:
            raise ValueError(f"overlong is one of {', '.join(OVERLONG)}, not {self.overlong!r}")
        object.__setattr__(self, "gate", as_gate(self.gate))
        object.__setattr__(self, "advantage", as_advantage(self.advantage))
        object.__setattr__(self, "aggregation", as_aggregation(self.aggregation))
        if not hasattr(self.ratio, "against"):
            raise ValueError(
                f"ratio: {name_of(self.ratio)} does not say what it is against; a ratio is a dataclass such as TokenRatio, "
                'with `against`, "old" or "rollout"'
            )
        check_terms(self.terms)
        refuse_contradictions(self)

    # ------------------------------------------------------------------------------------------ required measurements

    ties = RenamedAttribute("active_kl")

    @property
    def active_kl(self) -> tuple[KL, ...]:
        """Every KL in `kl` that is not switched off (coefficient 0 without a controller)."""
        given = self.kl if isinstance(self.kl, tuple) else () if self.kl is None else (self.kl,)
        return tuple(kl for kl in given if kl.active)

    def loss_terms(self, kl_coefficients: Sequence[float], entropy_coefficient: float | None) -> tuple[LossTerm, ...]:
        """The per-token loss terms beside the gate: every KL placed in the loss, the entropy bonus, `terms`.

        `kl_coefficients` has one entry for each of `active_kl`, those in the reward included; with
        `entropy_coefficient=None` there is no bonus.
        """
        ties = zip(self.active_kl, kl_coefficients, strict=True)
        kls = (KLTerm(kl, coefficient, self.ratio.against) for kl, coefficient in ties if kl.in_loss)
        bonus = () if self.entropy is None or entropy_coefficient is None else (EntropyTerm(entropy_coefficient),)
        return (*kls, *bonus, *self.terms)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings to show before a run: accepted choices that have less effect than expected."""
        return cautions(self)

    @property
    def needs_reference(self) -> bool:
        """Whether a reference model is needed."""
        return any(kl.anchor == "reference" for kl in self.active_kl) or "ref_logprobs" in self._needed_by_terms

    @property
    def needs_teacher(self) -> bool:
        """Whether a teacher model is needed."""
        return self.needs_teacher_logprobs or self.needs_teacher_full_kl

    @property
    def needs_ref_logprobs(self) -> bool:
        """Whether the reference's log-probabilities of the sampled tokens are needed, not only its full distribution."""
        in_reward = any(kl.anchor == "reference" and kl.estimator != "full" for kl in self.active_kl if not kl.in_loss)
        return in_reward or "ref_logprobs" in self._needed_by_terms

    @property
    def needs_teacher_logprobs(self) -> bool:
        """Whether the teacher's log-probabilities of the samples are needed, once a batch, at the sampling temperature.

        They go into `Feedback.teacher_logprobs` where the advantage needs a "teacher", and into `prepare`.
        """
        return "teacher" in self.advantage.needs or "teacher_logprobs" in self._needed_by_terms

    @property
    def needs_full_kl(self) -> bool:
        """Whether `loss` takes `full_kl`: of π_θ and the reference, in every forward pass of an update, with a gradient."""
        return self._full("reference", in_loss=True)

    @property
    def needs_full_kl_in_reward(self) -> bool:
        """Whether `adjust_rewards` takes `full_kl` of π_old and the reference: once per batch, without gradient.

        π_old is the policy before the first update of the batch; its `old_logprobs` are measured in the same pass.
        """
        return self._full("reference", in_loss=False)

    @property
    def needs_full_old_kl(self) -> bool:
        """Whether `loss` takes `full_old_kl`: KL(π_old ‖ π_θ), in every forward pass of an update, with a gradient to π_θ.

        π_old is the policy before the first update of the batch; where a batch makes one update its value is 0, and so is its
        gradient.
        """
        return self._full("old", in_loss=True)

    @property
    def needs_teacher_full_kl(self) -> bool:
        """Whether `loss` takes `full_teacher_kl`: of π_θ and the teacher, in every forward pass of an update, with a gradient."""
        return self._full("teacher", in_loss=True)

    @property
    def full_directions(self) -> Mapping[str, str]:
        """The direction of the full KL to each anchor, for `full_divergence(log π, log anchor, direction)` at each state.

        log π and log anchor are over the vocabulary, at the sampling temperature. One anchor has one direction.
        """
        return {kl.anchor: "forward" if kl.forward else "reverse" for kl in self.active_kl if kl.estimator == "full"}

    @property
    def needs_old_logprobs(self) -> bool:
        """Whether old log-probabilities are needed even with one update per batch, where they equal the current ones."""
        by_batch = any(
            (not kl.in_loss and kl.estimator != "full") or (kl.controller and kl.anchor == "reference")
            for kl in self.active_kl
        )
        by_advantage = {"importance", "teacher"} & self.advantage.needs
        return bool(
            by_batch or self.corrections or self.selection or by_advantage or "old_logprobs" in self._needed_by_terms
        )

    @property
    def needs_entropy(self) -> bool:
        """Whether `loss` takes the entropy of each token, with a gradient."""
        return "entropy" in self._needed_by_terms

    @property
    def needs_named_rewards(self) -> bool:
        """Whether `Feedback.named_rewards` and `reward_weights` are needed; with constraints, `advance` takes their means."""
        return bool(self.constraints) or "named_rewards" in self.advantage.needs

    @property
    def needs_columns(self) -> frozenset[str]:
        """Columns of each token that `prepare` takes by name."""
        return self._needed_by_terms - {"entropy", *KNOWN}

    @property
    def needs_final_logprobs(self) -> bool:
        """Whether the divergence from the old policy is measured again once an update is done."""
        return any(kl.anchor == "old" and kl.controller and kl.controller.needs_kl for kl in self.active_kl)

    @property
    def _needed_by_terms(self) -> frozenset[str]:
        return term_needs(self.loss_terms([kl.coefficient for kl in self.active_kl], 0.0))

    def _full(self, anchor: str, *, in_loss: bool) -> bool:
        return any(kl.estimator == "full" and kl.anchor == anchor and kl.in_loss == in_loss for kl in self.active_kl)


KNOWN = ("old_logprobs", "rollout_logprobs", "ref_logprobs", "teacher_logprobs")
"""Signals that a loss term may name in `needs`."""
