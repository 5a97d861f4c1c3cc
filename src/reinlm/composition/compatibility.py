"""Checks of combined choices: contradictions raise an error with the reason, doubtful ones give a warning."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from reinlm.composition.functions import function_in, name_of
from reinlm.objectives import (
    GDPO,
    KL,
    GroupRank,
    GroupStandardize,
    NoAdvantage,
    NStep,
    PooledRatio,
    TeacherLogRatio,
    VTrace,
    Whitened,
    token_mean,
)

if TYPE_CHECKING:
    from reinlm.composition.composition import Composition


def refuse_contradictions(algorithm: Composition) -> None:
    """Raise ValueError, with the reason, for the first contradiction."""
    for check in (_ratio_and_aggregation, _ratio_and_corrections, _ties, _rewards, _critic, _nothing):
        check(algorithm)


def _ratio_and_aggregation(algorithm: Composition) -> None:
    if not isinstance(algorithm.ratio, PooledRatio):
        return
    if algorithm.aggregation is token_mean and not algorithm.ratio.allow_token_mean:
        raise ValueError(
            "one ratio a sequence under a token mean lets long answers weigh more than short ones; "
            "take aggregation=sequence_mean, or ratio=token, or ask for it with ratio={sequence: {allow_token_mean: "
            "true}}"
        )
    if algorithm.aggregation is not token_mean and algorithm.ratio.allow_token_mean:
        raise ValueError("allow_token_mean has no effect, because the aggregation is not token_mean; leave it out")


def _ratio_and_corrections(algorithm: Composition) -> None:
    if algorithm.ratio.against == "rollout" and algorithm.corrections:
        raise ValueError(
            "a ratio against the sampler already holds the correction for the sampler, so corrections would count it "
            "twice; take ratio against old, or corrections=[]"
        )
    if "importance" in algorithm.advantage.needs and (algorithm.corrections or algorithm.ratio.against == "rollout"):
        raise ValueError(
            f"{VTrace.__name__} already weighs by the ratio of policy and sampler, so a second correction would count it "
            "twice; take corrections=[] and a ratio against old"
        )


def _ties(algorithm: Composition) -> None:
    for anchor in ("reference", "old", "teacher"):
        to_anchor = [kl for kl in algorithm.active_kl if kl.anchor == anchor]
        if len(to_anchor) > 1 and not is_pair(to_anchor):
            raise ValueError(
                f"two KL terms tie the policy to the same {anchor} policy, so the tie counts twice; keep it in the reward "
                "or in the loss (a full KL may stand in both, with all its values equal)"
            )
        alone = [kl for kl in to_anchor if kl.estimator == "full" and not kl.in_loss]
        if len(to_anchor) == 1 and alone and not alone[0].allow_reward_alone:
            raise ValueError(
                "a full KL in the reward alone does not depend on the token that was chosen, so it pulls at nothing at its "
                "own state; add the same KL in the loss, or ask for it with allow_reward_alone: true"
            )
        if len(to_anchor) > 1 and any(kl.allow_reward_alone for kl in to_anchor):
            raise ValueError("allow_reward_alone has no effect, because the KL stands in the loss too; leave it out")
    for kl in algorithm.active_kl:
        if kl.placement == "token_reward" and not algorithm.advantage.sums_rewards:
            raise ValueError(
                f"a KL in the reward of every token needs an advantage that sums rewards over time (returns, gae, n_step, "
                f"vtrace), and {name_of(algorithm.advantage)} compares whole answers; "
                "place it in the sequence_reward or in the loss"
            )


def is_pair(ties: list[KL]) -> bool:
    """Whether the two are the same full KL in the reward and in the loss, which together are the exact gradient."""
    if len(ties) != 2 or ties[0].estimator != "full" or ties[0].in_loss == ties[1].in_loss:
        return False
    first, second = (replace(kl, placement="loss", allow_reward_alone=False) for kl in ties)
    return first == second


def _rewards(algorithm: Composition) -> None:
    advantage, name = algorithm.advantage, name_of(algorithm.advantage)
    if not advantage.reads_rewards:
        idle = {
            "a KL in the sequence_reward": any(kl.placement == "sequence_reward" for kl in algorithm.active_kl),
            "a constraint": bool(algorithm.constraints),
            "a shaper": bool(algorithm.shapers) and "named_rewards" not in advantage.needs,
        }
        for what, given in idle.items():
            if given:
                raise ValueError(
                    f"{what} changes the sum of rewards, which advantage {name} does not read; leave it out"
                )
    if algorithm.constraints and "greedy" in advantage.needs:
        raise ValueError(
            f"a constraint changes the rewards of samples, not of the greedy answer that {name} compares with"
        )
    bounded = [constraint.reward for constraint in algorithm.constraints]
    if len(bounded) != len(set(bounded)):
        raise ValueError(f"two constraints bound the same reward: {', '.join(bounded)}")


def _nothing(algorithm: Composition) -> None:
    if isinstance(algorithm.advantage, TeacherLogRatio) and any(kl.anchor == "teacher" for kl in algorithm.active_kl):
        raise ValueError(
            "the advantage follows the KL to the teacher by samples, and the loss over the vocabulary, so it counts twice; "
            "take advantage=none beside the KL to the teacher, or kl=null"
        )
    in_loss = any(kl.in_loss for kl in algorithm.active_kl) or algorithm.terms or algorithm.entropy
    if isinstance(algorithm.advantage, NoAdvantage) and not in_loss:
        raise ValueError("there is nothing to learn: no advantage, no KL in the loss, no entropy bonus and no term")


def _critic(algorithm: Composition) -> None:
    needed = "critic" in algorithm.advantage.needs
    name = name_of(algorithm.advantage)
    if needed and algorithm.critic is None:
        raise ValueError(
            f"advantage {name} needs the values of a critic, and there is none; set algorithm.critic=critic"
        )
    if algorithm.critic is not None and not needed:
        raise ValueError(f"a critic has no effect: advantage {name} does not use its values; set algorithm.critic=null")


_DIVIDES = (Whitened, GroupStandardize, GroupRank, GDPO)
_CUTS = (NStep, VTrace)


def cautions(algorithm: Composition) -> tuple[str, ...]:
    """Warnings about accepted choices that have less effect than expected, one sentence each."""
    found = []
    for kl in algorithm.active_kl:
        if kl.allow_reward_alone:
            found.append(
                "a full KL in the reward alone lacks the pull at each token's own state, and for answers of one token has no "
                "effect; add the same KL in the loss for the exact gradient"
            )
        if not kl.in_loss and kl.estimator in {"k2", "k3"}:
            found.append(
                f"{kl.estimator} as a constant in the reward does not follow the divergence that it estimates: near the "
                "reference it hardly pulls at all; k1 follows it"
            )
    if is_pair([kl for kl in algorithm.active_kl if kl.anchor == "reference"]) and not _rewards_undivided(algorithm):
        found.append(
            "a full KL in reward and loss is the exact gradient where γ = λ = 1 and advantages are not divided; "
            f"{name_of(algorithm.advantage)} discounts, cuts or divides them"
        )
    return tuple(found)


def _rewards_undivided(algorithm: Composition) -> bool:
    """Whether the advantage is the reward minus a baseline, without discounting, cutting or scaling."""
    advantage = algorithm.advantage
    fractions = (getattr(advantage, "gamma", 1.0), getattr(advantage, "gae_lambda", 1.0))
    return fractions == (1.0, 1.0) and not isinstance(advantage, _DIVIDES + _CUTS)


def idle_choices(
    algorithm: Composition, updates: int, replay: bool = False, more: str = "training.minibatches or training.passes"
) -> list[str]:
    """Warnings about choices that cannot act in a run of this many updates per batch; replayed answers have ratios of their own.

    `more` is the setting that makes more updates.

    Nothing is said of a gate from outside the library: it may act where the ratio is 1.
    """
    if updates > 1 or replay or algorithm.ratio.against == "rollout":
        return []
    found = []
    gate = type(algorithm.gate).__name__
    if gate != "NoGate" and type(function_in(algorithm.gate)).__module__.startswith("reinlm."):
        found.append(
            f"with one update a batch every ratio is 1, so that the gate {gate} does nothing; {more} makes more updates"
        )
    if any(kl.anchor == "old" for kl in algorithm.active_kl):
        found.append("with one update a batch the KL to the old policy is 0 and has no gradient")
    return found
