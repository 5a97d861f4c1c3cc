"""What an evaluation finds: `training/evaluation.py`, and `SFTRun.evaluate` on held-out demonstrations."""

from reinlm.runs.declarations import Metric, declare_metrics

METRICS = declare_metrics(
    Metric(
        "eval/{set}/accuracy",
        "fraction",
        "held-out answers that the verifier accepts",
        healthy="rises, then stays",
        bad="flat while `reward` rises: the reward is being gamed, or training problems are learned by heart",
    ),
    Metric(
        "eval/{set}/accuracy_low",
        "fraction",
        "lower end of the 95 % interval of the accuracy",
        healthy="close to the accuracy",
        bad="a wide interval: the set is too small to tell two runs apart",
    ),
    Metric(
        "eval/{set}/accuracy_high",
        "fraction",
        "upper end of the 95 % interval of the accuracy",
        healthy="close to the accuracy",
        bad="a wide interval: the set is too small to tell two runs apart",
    ),
    Metric(
        "eval/{set}/pass@{k}",
        "fraction",
        "held-out prompts with a right answer among k samples",
        healthy="rises, or stays while accuracy catches up",
        bad="falls while accuracy rises: the policy is losing its variety",
    ),
    Metric(
        "eval/{set}/reward",
        "reward",
        "mean weighted reward of the held-out answers",
        healthy="rises with `reward`",
        bad="falls behind `reward`: training problems are learned by heart",
    ),
    Metric(
        "eval/{set}/rewards/{name}",
        "reward",
        "mean of one reward function over the held-out answers",
        healthy="rises where it states your goal",
        bad="only the easy one (format, length) rises: its weight is too large",
    ),
    Metric(
        "eval/{set}/clipped_ratio",
        "fraction",
        "held-out answers that the length limit cut off",
        healthy="below 0.1",
        healthy_range=(None, 0.1),
        bad="high: raise `evaluation.max_new_tokens`, or the model has forgotten to stop",
    ),
    Metric(
        "eval/{set}/mean_token_accuracy",
        "fraction",
        "held-out demonstrations' tokens that were the first choice",
        healthy="rises",
        bad="falls while the training figure rises: overfitting",
    ),
    Metric(
        "eval/{set}/mean_length",
        "tokens",
        "mean length of held-out answers",
        healthy="moves for a reason",
        bad="as `completions/mean_length`",
    ),
    Metric(
        "eval/{set}/failed",
        "samples",
        "held-out answers left out because a reward function failed",
        healthy="0",
        healthy_range=(0.0, 0.0),
        bad="as `rewards/failed`",
    ),
    Metric(
        "eval/{set}/loss",
        "nats per token",
        "cross-entropy of held-out demonstrations",
        healthy="falls with `loss`",
        bad="turns upwards: overfitting, stop earlier or add data",
    ),
    Metric(
        "eval/{set}/entropy",
        "nats per token",
        "entropy of the model at the tokens of held-out demonstrations",
        healthy="falls with `eval/{set}/loss`",
        bad="near zero while that loss rises: overfitting",
    ),
    section="learning",
)
