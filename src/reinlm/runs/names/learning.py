"""Whether the model gets better, by what it is trained for and by what it is not."""

from reinlm.runs.names.info import MetricInfo, Section

SECTION = Section(
    "Is it learning?",
    (
        MetricInfo(
            "eval/{set}/accuracy",
            "fraction",
            "held-out answers that the verifier accepts",
            healthy="rises, then stays",
            bad="flat while `reward` rises: the reward is being gamed, or training problems are learned by heart",
        ),
        MetricInfo(
            "eval/{set}/accuracy_low",
            "fraction",
            "lower end of the 95 % interval of the accuracy",
            healthy="close to the accuracy",
            bad="a wide interval: the set is too small to tell two runs apart",
        ),
        MetricInfo(
            "eval/{set}/accuracy_high",
            "fraction",
            "upper end of the 95 % interval of the accuracy",
            healthy="close to the accuracy",
            bad="a wide interval: the set is too small to tell two runs apart",
        ),
        MetricInfo(
            "eval/{set}/pass@{k}",
            "fraction",
            "held-out prompts with a right answer among k samples",
            healthy="rises, or stays while accuracy catches up",
            bad="falls while accuracy rises: the policy is losing its variety",
        ),
        MetricInfo(
            "eval/{set}/reward",
            "reward",
            "mean weighted reward of the held-out answers",
            healthy="rises with `reward`",
            bad="falls behind `reward`: training problems are learned by heart",
        ),
        MetricInfo(
            "eval/{set}/rewards/{name}",
            "reward",
            "mean of one reward function over the held-out answers",
            healthy="rises where it states your goal",
            bad="only the easy one (format, length) rises: its weight is too large",
        ),
        MetricInfo(
            "eval/{set}/clipped_ratio",
            "fraction",
            "held-out answers that the length limit cut off",
            healthy="below 0.1",
            healthy_range=(None, 0.1),
            bad="high: raise `evaluation.max_new_tokens`, or the model has forgotten to stop",
        ),
        MetricInfo(
            "eval/{set}/mean_token_accuracy",
            "fraction",
            "held-out demonstrations' tokens that were the first choice",
            healthy="rises",
            bad="falls while the training figure rises: overfitting",
        ),
        MetricInfo(
            "eval/{set}/mean_length",
            "tokens",
            "mean length of held-out answers",
            healthy="moves for a reason",
            bad="as `completions/mean_length`",
        ),
        MetricInfo(
            "eval/{set}/failed",
            "samples",
            "held-out answers left out because a reward function failed",
            healthy="0",
            healthy_range=(0.0, 0.0),
            bad="as `rewards/failed`",
        ),
        MetricInfo(
            "eval/{set}/unrewarded",
            "samples",
            "held-out answers without any reward, which `accuracy` leaves out (only where there are some)",
            healthy="0",
            healthy_range=(0.0, 0.0),
            bad="`accuracy` is that of the episodes that ended in time: raise the limits",
        ),
        MetricInfo(
            "eval/{set}/loss",
            "nats per token",
            "cross-entropy of held-out demonstrations",
            healthy="falls with `loss`",
            bad="turns upwards: overfitting, stop earlier or add data",
        ),
        MetricInfo(
            "eval/{set}/entropy",
            "nats per token",
            "entropy of the model at the tokens of held-out demonstrations",
            healthy="falls with `eval/{set}/loss`",
            bad="near zero while that loss rises: overfitting",
        ),
        MetricInfo(
            "reward",
            "reward",
            "mean weighted reward of the samples",
            healthy="rises",
            bad="flat from the start: no sample is ever right, see `frac_reward_zero_std`",
        ),
        MetricInfo(
            "rewards/{name}/mean",
            "reward",
            "mean of one reward function, before its weight",
            healthy="the one that states your goal rises",
            bad="only the easy one (format, length) rises: its weight is too large",
        ),
        MetricInfo(
            "rewards/{name}/std",
            "reward",
            "standard deviation of one reward function over the samples",
            healthy="above zero",
            bad="zero: the function is constant and teaches nothing",
        ),
        MetricInfo(
            "loss",
            "nats (SFT); none (RL)",
            "the objective that the optimizer minimises",
            healthy=(
                "SFT: falls quickly, then slowly. RL: small, around zero, without spikes; it is no measure of progress"
            ),
            bad=(
                "SFT: flat, the learning rate is too low or the data empty; rising, too high. RL: spikes, see "
                "`ratio/max`"
            ),
        ),
        MetricInfo(
            "mean_token_accuracy",
            "fraction",
            "trained tokens that were the model's first choice (SFT)",
            healthy="rises as `loss` falls",
            bad="stuck low: the data contradict each other, or the template is wrong",
        ),
        MetricInfo(
            "text/loss",
            "nats per token",
            "loss on data-set text that is trained on beside the samples (`text`)",
            healthy="falls, or stays where it was",
            bad="rises: the samples' loss pulls the model away from the text; raise `text.coefficient`",
        ),
    ),
)
