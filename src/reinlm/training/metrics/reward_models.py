"""What `reinlm reward` logs: `training/reward_training.py` and `training/reward_report.py`."""

from reinlm.runs.declarations import Metric, declare_metrics

_LENGTH = "far from it: the model scores length"
_END = {"low": "lower", "high": "upper"}
_HIGHER = "rises, and the interval excludes 0.5"
_FIGURES = {
    "auc": (
        "fraction",
        "chance that a better answer has a higher score than a worse one, over all prompts; ties count half",
    ),
    "ece": (
        "fraction",
        "expected calibration error of the chance σ(difference) in ten bins, which chance alone keeps above 0",
    ),
    "brier": ("squared fraction", "mean squared error of the chance σ(difference); a coin has 0.25"),
}
_PARTS = {
    f"accuracy_{name}": f"accuracy on held-out pairs whose better answer is {text} than the other"
    for name, text in (("shorter", "shorter"), ("equal", "neither longer nor shorter"), ("longer", "longer"))
}
_GAPS = (("accuracy", "fraction"), ("loss", "nats"))

METRICS = declare_metrics(
    Metric(
        "score/mean",
        "score",
        "mean score of the answers of a step, before it is normalised",
        healthy="near 0",
        bad="far from 0: set `loss.centering`",
    ),
    Metric(
        "score/spread",
        "score",
        "standard deviation of the members of an ensemble about their mean, per answer",
        healthy="below the margin",
        bad="as large as the margin: the members do not know",
    ),
    Metric(
        "score/accuracy",
        "fraction",
        "neighbours of a pair or ranking in the right order (ties count half); labels or steps whose score has the right sign",
        healthy="rises above 0.5",
        bad="1.0 while the held-out accuracy stays: judgements are memorised",
    ),
    Metric(
        "score/margin",
        "score",
        "mean difference of score between neighbours of a pair or ranking, the better one first",
        healthy="rises, and levels off",
        bad="grows without end: judgements are memorised",
    ),
    Metric(
        "length_slope",
        "score per standard deviation of length",
        "the coefficient of an answer's length that is fitted beside the score and left out of it (`training.length: term`)",
        healthy="near 0",
        bad="large: the judgements prefer length",
    ),
    Metric(
        "eval/{set}/score/mean",
        "score",
        "mean score of the held-out answers, before it is normalised",
        healthy="near that of training",
    ),
    Metric(
        "eval/{set}/score/spread",
        "score",
        "mean standard deviation of an ensemble's members on the held-out answers",
        healthy="near that of training",
        bad="far above it: the held-out answers are of another kind",
    ),
    *(
        Metric(f"eval/{{set}}/{name}", unit, text, healthy="rises" if name == "auc" else "falls")
        for name, (unit, text) in _FIGURES.items()
    ),
    *(
        Metric(
            f"eval/{{set}}/{name}_{end}",
            unit,
            f"{_END[end]} end of the 95 % interval over prompts (bias-corrected bootstrap): {text}",
            healthy="close to the figure itself",
        )
        for name, (unit, text) in _FIGURES.items()
        for end in ("low", "high")
    ),
    Metric("eval/{set}/ties", "fraction", "held-out pairs with equal scores", healthy="near 0"),
    Metric(
        "eval/{set}/accuracy_strict", "fraction", "the accuracy with ties counted as wrong (TRL's)", healthy=_HIGHER
    ),
    *(
        Metric(f"eval/{{set}}/{name}", "fraction", text, healthy="as the accuracy of the whole set", bad=_LENGTH)
        for name, text in _PARTS.items()
    ),
    *(
        Metric(
            f"eval/{{set}}/{name}_{end}",
            "fraction",
            f"{_END[end]} end of Wilson's 95 % interval over prompts: {text}",
        )
        for name, text in _PARTS.items()
        for end in _END
    ),
    *(
        Metric(
            f"eval/{{set}}/accuracy_{end}/{{slice}}",
            "fraction",
            f"{_END[end]} end of Wilson's 95 % interval over prompts: accuracy of one slice",
        )
        for end in _END
    ),
    *(
        Metric(
            f"eval/{{set}}/loss_{end}",
            "nats",
            f"{_END[end]} end of the 95 % interval of the held-out loss over prompts",
        )
        for end in _END
    ),
    Metric("eval/{set}/longer", "fraction", "held-out pairs whose better answer is the longer one", healthy="near 0.5"),
    *(
        Metric(
            f"eval/{{set}}/gap_{name}",
            unit,
            f"{name} of the first 256 units of the training data less that of the first held-out set",
            healthy="near 0",
            bad="moves away from 0: the judgements are memorised",
        )
        for name, unit in _GAPS
    ),
    *(
        Metric(
            f"eval/{{set}}/gap_{name}_{end}",
            unit,
            f"{_END[end]} end of the 95 % interval of that difference (Newcombe)",
        )
        for name, unit in _GAPS
        for end in _END
    ),
    section="learning",
)
