"""Choices that contradict one another, refused with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reinlm.objectives import PooledRatio, VTrace, token_mean

if TYPE_CHECKING:
    from reinlm.algorithms.algorithm import Algorithm


def refuse_contradictions(algorithm: Algorithm) -> None:
    """Raise ValueError, with a sentence that says why, for the first contradiction."""
    for check in (_ratio_and_weights, _ratio_and_corrections, _ties, _critic):
        check(algorithm)


def _ratio_and_weights(algorithm: Algorithm) -> None:
    if not isinstance(algorithm.ratio, PooledRatio):
        return
    if algorithm.weights is token_mean and not algorithm.ratio.allow_token_mean:
        raise ValueError(
            "one ratio a sequence under a token mean lets long answers weigh more than short ones; "
            "take weights=sequence_mean, or ratio=token, or ask for it with ratio={sequence: {allow_token_mean: "
            "true}}"
        )
    if algorithm.weights is not token_mean and algorithm.ratio.allow_token_mean:
        raise ValueError("allow_token_mean has no effect, because the weights are not token_mean; leave it out")


def _ratio_and_corrections(algorithm: Algorithm) -> None:
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


def _ties(algorithm: Algorithm) -> None:
    anchors = [kl.anchor for kl in algorithm.ties]
    for anchor in ("reference", "old"):
        if anchors.count(anchor) > 1:
            raise ValueError(
                f"two KL terms tie the policy to the same {anchor} policy, so the tie counts twice; "
                "keep it in the reward or in the loss"
            )
    for kl in algorithm.ties:
        if kl.placement == "token_reward" and not algorithm.advantage.sums_rewards:
            raise ValueError(
                f"a KL in the reward of every token needs an advantage that sums rewards over time (returns, gae, n_step, "
                f"vtrace), and {type(algorithm.advantage).__name__} compares whole answers; "
                "place it in the sequence_reward or in the loss"
            )


def _critic(algorithm: Algorithm) -> None:
    needed = "critic" in algorithm.advantage.needs
    name = type(algorithm.advantage).__name__
    if needed and algorithm.critic is None:
        raise ValueError(f"advantage {name} needs the values of a critic, and there is none; set critic=critic")
    if algorithm.critic is not None and not needed:
        raise ValueError(f"a critic has no effect: advantage {name} does not use its values; set critic=null")
