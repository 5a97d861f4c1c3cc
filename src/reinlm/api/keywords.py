"""The keywords of the training verbs and trainers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from reinlm.algorithms import Algorithm, PreferenceAlgorithm

if TYPE_CHECKING:
    from reinlm.loop import Callback

Section = Mapping[str, Any]
"""A section of the configuration as a mapping."""


class RunKeywords(TypedDict, total=False):
    """Keywords of every training verb."""

    recipe: str | Path | Section
    """A YAML file or mapping; everything else overrides it."""
    output: str | Path
    """The run folder; by default a new one in `runs/`."""
    resume: bool
    """Continue from the newest checkpoint in `output`."""
    overwrite: bool
    """Replace an existing run in `output`."""
    quiet: bool
    """Show nothing: no progress, and no messages of the libraries below."""
    steps: int
    """`training.steps`."""
    eval_data: Any
    """Data that training never sees, or named sets: `evaluation.data`."""
    peft_config: Any
    """A `LoraConfig` of peft, or a mapping, for `model.lora`."""
    command: str
    """The command that started the run, for run.json."""
    callbacks: Sequence[Callback]
    """`reinlm.Callback` objects; they may log metrics, stop the run or change its learning rate."""
    optimizer: Section
    """`OptimizerConfig`: learning_rate, schedule, warmup_steps, …"""
    evaluation: Section
    """`EvaluationConfig`: data (as `data`, or named sets), every, samples, temperature, …"""
    run: Section
    """`RunConfig`: save_every, keep_last, trackers, …"""
    seed: int
    imports: str | list[str]
    """Files or modules that register parts: `["mine.py"]`, or a single one."""
    environment: Any
    """A name, {name: values}, "file.py:CLASS"; by default one question, one answer."""
    rollout: Section
    """`RolloutConfig` of rl: group_size, batch_size, max_new_tokens, temperature, …; `EvalRolloutConfig` of sft: engine, …;
    `RFTRolloutConfig` of rft; `OnlineRolloutConfig` of dpo"""


class SFTKeywords(RunKeywords, total=False):
    """Keywords of `reinlm.sft` and `reinlm.SFTTrainer`."""

    training: Section
    """`SFTTraining`: steps, epochs, batch_size, …"""
    reward: Any
    """Scores sampled answers in evaluation."""
    max_tokens: int


class RFTKeywords(RunKeywords, total=False):
    """Keywords of `reinlm.rft` and `reinlm.RFTTrainer`."""

    reward: Any
    """As in `RLKeywords`."""
    method: str
    """"rft", "raft", "rest_em" or "star": what holds where nothing else is given."""
    iterations: int
    start: str
    """"current" or "base": what each iteration learns from."""
    keep: Section
    """`KeepConfig`: rule, above, count, distinct, per_prompt, …"""
    answers: str
    """"model" or "data": whether answers are sampled."""
    hint: str
    """The prompt of a second try, such as "{prompt}(The answer is {answer}.) "."""
    training: Section
    """`RFTTraining`: steps, epochs, batch_size, … of the learning of each iteration."""


class DPOKeywords(RunKeywords, total=False):
    """Keywords of `reinlm.dpo` and `reinlm.DPOTrainer`."""

    algorithm: str | Section | PreferenceAlgorithm
    """A name ("ipo"), a mapping {"base": "dpo", "beta": 0.2}, or a `PreferenceAlgorithm`."""
    training: Section
    """`DPOTraining`: steps, epochs, batch_size, dropout, reference_cache, …"""
    reward: Any
    """As in `RLKeywords`: the data are prompts, and answers are sampled and judged in each step (online DPO)."""
    pairs: Section
    """`PairsConfig`: which of the sampled answers become pairs."""
    reference: Any
    """A path, a run, or `ReferenceConfig`: the reference model; by default the policy at the start of the run."""
    max_tokens: int


class RewardKeywords(RunKeywords, total=False):
    """Keywords of `reinlm.reward` and `reinlm.RewardTrainer`."""

    training: Section
    """`RewardTraining`: steps, epochs, batch_size, length, …"""
    loss: str | Section
    """A name ("bradley_terry"), or `RewardLossConfig`: margin_scale, label_smoothing, centering, …"""
    head: Section
    """`HeadConfig`: pooling, members, spread_penalty, weights, dropout."""
    normalize: Any
    """`NormalizeConfig`: path (or it alone), answers; None leaves scores as they are trained."""
    max_tokens: int


class RLKeywords(RunKeywords, total=False):
    """Keywords of `reinlm.rl` and `reinlm.RLTrainer`."""

    reward: Any
    """A name ("math"), a function f(prompts, completions, **columns) -> list of floats, "file.py:function", or a list of
    these with weights ({"name": …, "weight": 0.5})."""
    algorithm: str | Section | Algorithm
    """A name ("dapo"), a mapping {"base": "grpo", …}, or an `Algorithm`."""
    training: Section
    """`RLTraining`: steps, epochs, minibatches, passes, …"""
    critic: Section
    """`CriticConfig`, for algorithms with a critic."""
    reference: Any
    """A path, a run, or `ReferenceConfig`: the reference model of a KL; by default the policy at the start of the run."""
    teacher: Any
    """A path, a run, or `TeacherConfig`, for algorithms that learn from a teacher."""
    text: Any
    """Data, or `TextConfig`: data-set text to train on in addition to the sampled answers."""
    gold: Any
    """As `reward`, or `GoldConfig`: a score of evaluation answers beside the reward, which is not trained on."""
