"""What an evaluation finds: `training/evaluation.py`, and `SFTRun.evaluate` on held-out demonstrations."""

from reinlm.runs.declarations import Metric, declare_metrics

METRICS = declare_metrics(
    Metric(
        "eval/{set}/accuracy",
        "fraction",
        "held-out answers that the verifier accepts, or held-out pairs whose better answer has the higher implicit reward; where "
        "rewards come from the environment alone, an episode cut off before "
        "its reward counts as not right",
        healthy="rises, then stays",
        bad="flat while `reward` rises: the reward rises without better answers, or training problems are memorised",
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
        bad="falls while accuracy rises: answers become less varied",
    ),
    Metric(
        "eval/{set}/reward",
        "reward",
        "mean weighted reward of the held-out answers",
        healthy="rises with `reward`",
        bad="falls behind `reward`: training problems are memorised",
    ),
    Metric(
        "eval/{set}/rewards/{name}",
        "reward",
        "mean of one reward function over the held-out answers",
        healthy="rises where it states your goal",
        bad="only the easy one (format, length) rises: its weight is too large",
    ),
    Metric(
        "eval/{set}/rewards/{name}/logged/{metric}",
        "the function's own",
        "mean of the values that a reward function logged with `log_metric` about the held-out answers",
        healthy="as `rewards/{name}/logged/{metric}`",
    ),
    Metric(
        "eval/{set}/clipped_ratio",
        "fraction",
        "held-out episodes that a limit cut off: length, turns, context, time or the environment's own",
        healthy="below 0.1",
        healthy_range=(None, 0.1),
        bad="high: raise that limit (`evaluation.max_new_tokens`, `rollout.max_turns`, …), or the model has forgotten to stop",
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
        "eval/{set}/unrewarded",
        "samples",
        "held-out answers without any reward (only where there are some)",
        healthy="0",
        healthy_range=(0.0, 0.0),
        bad="cut off by a limit: raise the limits, or the model has forgotten to stop",
    ),
    Metric(
        "eval/{set}/environment_errors",
        "samples",
        "held-out episodes that an error of the environment ended; they are in no other figure (only where there are some)",
        healthy="0",
        healthy_range=(0.0, 0.0),
        bad="correct the environment: what is left may be the easy episodes",
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
