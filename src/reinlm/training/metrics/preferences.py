"""What `reinlm dpo` logs of judged answers, in a step and in evaluation."""

from reinlm.runs.declarations import Metric, declare_metrics

_SIDES = {
    "chosen": "the better answers, or those labelled good",
    "rejected": "the worse answers, or those labelled bad",
}
_HEALTHY = {"chosen": "rises, or falls much less than that of the rejected", "rejected": "falls"}


def _of_sides(prefix: str) -> list[Metric]:
    found = []
    for side, who in _SIDES.items():
        found += [
            Metric(
                f"{prefix}rewards/{side}",
                "nats",
                f"mean implicit reward of {who}: the loss's beta times what it compares",
                healthy=_HEALTHY[side],
                bad="chosen falls together with rejected: the margin grows, and the probability goes to other answers"
                if side == "chosen"
                else "",
            ),
            Metric(
                f"{prefix}logprobs/{side}",
                "nats per answer",
                f"mean log-probability of {who}, summed over the tokens of each",
                healthy=_HEALTHY[side],
            ),
            Metric(
                f"{prefix}log_ratios/{side}",
                "nats per answer",
                f"mean log-ratio to the reference of {who}, summed over the tokens of each",
                healthy=_HEALTHY[side],
                bad="far below 0 on both sides: take dpo_sft, a larger beta or a lower learning rate"
                if side == "chosen"
                else "",
            ),
        ]
    return [
        *found,
        Metric(
            f"{prefix}rewards/margins",
            "nats",
            "mean implicit reward of the better answers, less that of the worse",
            healthy="rises, and levels off",
            bad="grows without end on training data while the held-out accuracy stays: pairs are memorised",
        ),
        Metric(
            f"{prefix}kl/answers",
            "nats per token",
            "k3 of policy and reference on the judged answers, which the policy did not sample",
            healthy="below 1",
            bad="far above: the policy has left the reference; raise beta, or add algorithm.kl",
        ),
    ]


_STEP = declare_metrics(
    *_of_sides(""),
    Metric(
        "rewards/accuracies",
        "fraction",
        "pairs whose better answer has the higher implicit reward, one within 1e-4 of the other counting half; of labelled "
        "answers the share of (good, bad) pairs that are ordered so",
        healthy="rises above 0.5",
        bad="1.0 on training data, and no more than before on held-out ones: pairs are memorised",
    ),
    Metric(
        "pairs",
        "pairs",
        "pairs of sampled answers that a step learned from",
        healthy="as many as prompts, or more with pairs.choose=all",
        bad="falls to few: answers tie, see `groups/dropped`; sample more to each prompt, or take a finer reward",
    ),
    Metric(
        "pairs/reward_margin",
        "reward",
        "mean reward of the better of two sampled answers, less that of the worse",
        healthy="well above 0",
        bad="near 0: the judge hardly tells answers apart; raise `rollout.group_size`, or set `pairs.min_margin`",
    ),
    Metric("completions/chosen_length", "tokens", "mean length of the better answers, or those labelled good"),
    Metric(
        "completions/rejected_length",
        "tokens",
        "mean length of the worse answers, or those labelled bad",
        healthy="near that of the chosen",
        bad="much shorter: a model can learn to write more in place of better",
    ),
    section="learning",
)
_EVALUATION = declare_metrics(
    *_of_sides("eval/{set}/"),
    Metric(
        "eval/{set}/accuracy/{slice}",
        "fraction",
        "held-out pairs of one slice (`data.slices`) that are ordered rightly",
        healthy="near the accuracy of the whole set",
        bad="far below it: the slice has other preferences, or too few pairs",
    ),
    section="learning",
)
METRICS = (*_STEP, *_EVALUATION)
