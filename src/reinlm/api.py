"""The verbs, from Python: what the command line calls.

Every verb takes `recipe` (a YAML file or a mapping), the common arguments by name, and any further section of the
configuration as a keyword: `reinlm.rl(model, data, reward="math", rollout={"group_size": 16})`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack

from reinlm.algorithms import Algorithm, describe, resolve
from reinlm.config import Config, build, merge, read_recipe
from reinlm.insight.tracker import ReportTracker
from reinlm.parts import load_imports
from reinlm.runs.progress import Progress
from reinlm.training.config import EvalConfig, GenerateConfig, RLConfig, SFTConfig
from reinlm.training.sessions import RLSession, SFTSession
from reinlm.training.verbs import Generated, run_evaluation, run_generation

if TYPE_CHECKING:
    from reinlm.loop import Callback, RunResult
    from reinlm.training.evaluation import Evaluation

_ConfigT = TypeVar("_ConfigT", bound=Config)

Section = Mapping[str, Any]
"""A section of the configuration: its keys and values."""


class RunKeywords(TypedDict, total=False):
    """What every training verb takes by name."""

    recipe: str | Path | Section
    """A YAML file or mapping; everything else overrides it."""
    output: str | Path
    """The run's folder; by default a new one in `runs/`."""
    resume: bool
    """Go on from the newest checkpoint in `output`."""
    overwrite: bool
    """Start anew in `output`."""
    quiet: bool
    """No progress."""
    command: str
    """How the run was started, for its folder."""
    callbacks: Sequence[Callback]
    """Objects that watch the run, and may log metrics, stop it or change its learning rate (`reinlm.Callback`)."""
    optimizer: Section
    """`OptimizerConfig`: learning_rate, schedule, warmup_steps, …"""
    evaluation: Section
    """`EvaluationConfig`: data, every, samples, temperature, …"""
    run: Section
    """`RunConfig`: save_every, keep_last, trackers, …"""
    seed: int
    imports: list[str]
    """Files or modules whose parts the recipe names: `["mine.py"]`."""


class SFTKeywords(RunKeywords, total=False):
    """What `reinlm.sft` and `reinlm.SFTTrainer` take by name."""

    training: Section
    """`SFTTraining`: steps, epochs, batch_size, …"""
    reward: Any
    """Scores sampled answers in evaluation."""
    max_tokens: int


class RLKeywords(RunKeywords, total=False):
    """What `reinlm.rl` and `reinlm.RLTrainer` take by name."""

    reward: Any
    """A name ("math"), a function f(prompts, completions, **columns) -> list of floats, "file.py:function", or a list of
    these with weights ({"name": …, "weight": 0.5})."""
    algorithm: str | Section | Algorithm
    """A name ("dapo"), a mapping {"base": "grpo", …}, or an `Algorithm`."""
    environment: Any
    """A name, {name: values}, "file.py:CLASS"; by default one question, one answer."""
    rollout: Section
    """`RolloutConfig`: group_size, batch_size, max_new_tokens, temperature, …"""
    training: Section
    """`RLTraining`: steps, epochs, minibatches, passes, …"""
    critic: Section
    """`CriticConfig`, for algorithms with a critic."""
    reference: Section
    """`ReferenceConfig`: the model that a KL ties the policy to, where it is not the policy as the run begins."""
    teacher: Section
    """`TeacherConfig`, for algorithms that learn from a teacher."""
    text: Section
    """`TextConfig`: data-set text that is trained on beside the sampled answers."""


class SFTTrainer(SFTSession):
    """Supervised fine-tuning, ready to run: `train()`, or `step()` by step; `evaluate()`, `save()`.

    Args:
        model: a Hugging Face folder or name, a loaded model, or a pair (model, tokenizer).
        data: a file, a data set's name, or a list of rows with prompt+completion, messages or text.
        keywords: see `SFTKeywords`; any key of `SFTConfig` by its section.

    Raises:
        InputError: anything that cannot be used, named.

    Example:
        trainer = reinlm.SFTTrainer("PATH_OR_NAME", "train.jsonl", optimizer={"learning_rate": 1e-4})
        trainer.train()
    """

    def __init__(self, model: Any = None, data: Any = None, **keywords: Unpack[SFTKeywords]) -> None:
        loaded, sections, options = _arguments(model, data, keywords)
        super().__init__(_training_config(SFTConfig, sections, options), model=loaded, **_session(options))


class RLTrainer(RLSession):
    """Reinforcement learning, ready to run: `train()`, or `step()` by step; `evaluate()`, `save()`.

    Args:
        model: a Hugging Face folder or name, a loaded model, or a pair (model, tokenizer).
        data: a file, a data set's name, or a list of rows with `prompt` or `messages`, and further columns that the reward
            functions read.
        keywords: see `RLKeywords`; any key of `RLConfig` by its section.

    Raises:
        InputError: anything that cannot be used, named.

    Example:
        with reinlm.RLTrainer("PATH_OR_NAME", "train.jsonl", reward="math", algorithm="dapo") as trainer:
            while not trainer.over:
                print(trainer.step()["reward"])
    """

    def __init__(self, model: Any = None, data: Any = None, **keywords: Unpack[RLKeywords]) -> None:
        loaded, sections, options = _arguments(model, data, keywords)
        given = sections.get("algorithm")
        composed = given if isinstance(given, Algorithm) else None
        if composed is not None:
            sections["algorithm"] = describe(composed)
        config = _training_config(RLConfig, sections, options)
        super().__init__(config, algorithm=composed or resolve(config.algorithm), model=loaded, **_session(options))


def sft(model: Any = None, data: Any = None, **keywords: Unpack[SFTKeywords]) -> RunResult:
    """Supervised fine-tuning: imitate completions. Arguments as in `SFTTrainer`.

    Returns:
        The run's folder, its summary and the trained policy.

    Raises:
        InputError: anything that cannot be used, named. RunError: a run that cannot go on.
    """
    return SFTTrainer(model, data, **keywords).train()


def rl(model: Any = None, data: Any = None, **keywords: Unpack[RLKeywords]) -> RunResult:
    """Reinforcement learning of a language model. Arguments as in `RLTrainer`; returns and raises as `sft` does."""
    return RLTrainer(model, data, **keywords).train()


def evaluate(
    model: Any = None,
    data: Any = None,
    *,
    reward: Any = None,
    recipe: str | Path | Mapping[str, Any] | None = None,
    **sections: Any,
) -> Evaluation:
    """Score a model: accuracy with its interval, pass@k, length.

    Args:
        model, data, reward, recipe: as in `reinlm.rl`.
        sections: further keys of `EvalConfig`, such as `evaluation={"samples": 8, "temperature": 0.7}`.
    """
    loaded, sections = _objects(model, data, sections.pop("output", None), sections, run=False)
    given = {} if reward is None else {"reward": reward}
    return run_evaluation(_config(EvalConfig, recipe, {**sections, **given}), model=loaded)


def generate(
    model: Any = None,
    prompts: Any = None,
    *,
    recipe: str | Path | Mapping[str, Any] | None = None,
    **sections: Any,
) -> list[Generated]:
    """Sample answers: one `Generated` for each prompt (a text or a chat, or a list of them).

    Args:
        sections: further keys of `GenerateConfig`, such as `samples=4, sampling={"temperature": 0.7}`.
    """
    loaded, sections = _objects(model, None, None, sections, run=False)
    if prompts is not None:
        sections["prompts"] = [prompts] if isinstance(prompts, str) else list(prompts)
    return run_generation(_config(GenerateConfig, recipe, sections), model=loaded)


def _objects(
    model: Any, data: Any, output: Any, sections: Mapping[str, Any], run: bool = True
) -> tuple[Any, dict[str, Any]]:
    """Put the common arguments where the configuration has them; a loaded model travels beside it, by name inside it."""
    merged = dict(sections)
    loaded = None
    if model is not None:
        if not isinstance(model, str | Path | Mapping):
            loaded = model
            inner = model[0] if isinstance(model, tuple) else model
            model = getattr(getattr(inner, "config", None), "_name_or_path", "") or f"<{type(inner).__name__}>"
        merged["model"] = model if isinstance(model, Mapping) else {"path": str(model)}
    if data is not None:
        merged["data"] = data if isinstance(data, Mapping) else {"path": data}
    if output is not None:
        merged = merge(merged, {"run": {"output": str(output)}} if run else {"output": str(output)})
    return loaded, merged


def _resumed(recipe: Any, sections: Mapping[str, Any]) -> Any:
    """What a resumed run starts from: the configuration that its folder holds, under what is given anew."""
    tree = _read(recipe)
    output = (sections.get("run") or tree.get("run") or {}).get("output")
    saved = Path(output) / "config.yaml" if output else None
    if saved is None or not saved.is_file():
        return tree
    old = read_recipe(saved)
    reward = sections.get("reward", tree.get("reward"))
    if isinstance(reward, Mapping) and not reward.keys() <= (old.get("reward") or {}).keys():
        del old["reward"]  # one function, such as {"name": "regex", "pattern": "#"}, stands for the whole section
    return merge(old, tree)


def _read(recipe: Any) -> dict[str, Any]:
    tree = {} if recipe is None else dict(recipe) if isinstance(recipe, Mapping) else read_recipe(recipe)
    for key in ("model", "data"):
        if isinstance(tree.get(key), str | list):
            tree[key] = {"path": tree[key]}
    return tree


_OPTIONS = ("recipe", "resume", "overwrite", "quiet", "command", "callbacks")


def _arguments(model: Any, data: Any, keywords: Mapping[str, Any]) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """A loaded model beside the configuration, the sections of the configuration, and what is no part of it."""
    options = {name: keywords[name] for name in _OPTIONS if keywords.get(name) is not None}
    given = {name: value for name, value in keywords.items() if name not in _OPTIONS and value is not None}
    loaded, sections = _objects(model, data, given.pop("output", None), given)
    return loaded, sections, options


def _session(options: Mapping[str, Any]) -> dict[str, Any]:
    """What a session takes; a report is left behind however the run ends."""
    return {
        "resume": options.get("resume", False),
        "overwrite": options.get("overwrite", False),
        "command": options.get("command", ""),
        "callbacks": options.get("callbacks", ()),
        "progress": Progress(quiet=options.get("quiet", False)),
        "reports": [ReportTracker()],
    }


def _training_config(kind: type[_ConfigT], sections: Mapping[str, Any], options: Mapping[str, Any]) -> _ConfigT:
    recipe = options.get("recipe")
    return _config(kind, _resumed(recipe, sections) if options.get("resume") else recipe, sections)


def _config(kind: type[_ConfigT], recipe: Any, sections: Mapping[str, Any]) -> _ConfigT:
    """Validate; the parts of the user's own files are known before."""
    tree = merge(_read(recipe), sections)
    load_imports(tree.get("imports") or [])
    return build(kind, tree)
