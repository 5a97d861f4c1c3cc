"""The verbs, from Python: what the command line calls.

Every verb takes `recipe` (a YAML file or a mapping), the common arguments by name, and any further section of the
configuration as a keyword: `reinlm.rl(model, data, reward="math", rollout={"group_size": 16})`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from reinlm.config import Config, build, merge, read_recipe

if TYPE_CHECKING:
    from reinlm.loop import Callback, RunResult
    from reinlm.training.evaluation import Evaluation
    from reinlm.training.verbs import Generated

_ConfigT = TypeVar("_ConfigT", bound=Config)


def sft(
    model: Any = None,
    data: Any = None,
    *,
    recipe: str | Path | Mapping[str, Any] | None = None,
    output: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    command: str | None = None,
    callbacks: Sequence[Callback] = (),
    **sections: Any,
) -> RunResult:
    """Supervised fine-tuning: imitate completions.

    Args:
        model: a Hugging Face folder or name, a loaded model, or a pair (model, tokenizer).
        data: a file, a data set's name, or a list of rows with prompt+completion, messages or text.
        recipe: a YAML file or mapping; everything else overrides it.
        output: the run's folder; by default a new one in `runs/`.
        resume: go on from the newest checkpoint in `output`.
        overwrite: start anew in `output`.
        callbacks: objects that watch the run, and may log metrics, stop it or change its learning rate (`reinlm.Callback`).
        sections: further keys of `SFTConfig`, such as `optimizer={"learning_rate": 1e-4}`.

    Returns:
        The run's folder, its summary and the trained policy.

    Raises:
        InputError: anything that cannot be used, named. RunError: a run that cannot go on.
    """
    from reinlm.training.config import SFTConfig
    from reinlm.training.sft import train_sft

    loaded, sections = _objects(model, data, output, sections)
    config = _config(SFTConfig, _resumed(recipe, sections) if resume else recipe, sections)
    options: dict[str, Any] = {"command": command, "resume": resume, "overwrite": overwrite, "callbacks": callbacks}
    return _train(train_sft, config, quiet, model=loaded, **options)


def rl(
    model: Any = None,
    data: Any = None,
    *,
    reward: Any = None,
    algorithm: Any = None,
    recipe: str | Path | Mapping[str, Any] | None = None,
    output: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    command: str | None = None,
    callbacks: Sequence[Callback] = (),
    **sections: Any,
) -> RunResult:
    """Reinforcement learning of a language model.

    Args:
        model, data, recipe, output, resume, overwrite, callbacks: as in `reinlm.sft`; rows have `prompt` or `messages`, and
            further columns that the reward functions read.
        reward: a name ("math"), a function f(prompts, completions, **columns) -> list of floats, "file.py:function", or a
            list of these with weights ({"name": …, "weight": 0.5}).
        algorithm: a name ("dapo"), a mapping {"base": "grpo", …}, or an `Algorithm`.
        sections: further keys of `RLConfig`, such as `rollout={"group_size": 16}`.
    """
    from reinlm.algorithms import Algorithm
    from reinlm.algorithms.choices import describe
    from reinlm.training.config import RLConfig
    from reinlm.training.rl import train_rl

    loaded, sections = _objects(model, data, output, sections)
    composed = algorithm if isinstance(algorithm, Algorithm) else None
    given = {"reward": reward, "algorithm": describe(composed) if composed else algorithm}
    sections = {**sections, **{name: value for name, value in given.items() if value is not None}}
    config = _config(RLConfig, _resumed(recipe, sections) if resume else recipe, sections)
    options: dict[str, Any] = {"command": command, "resume": resume, "overwrite": overwrite, "callbacks": callbacks}
    return _train(train_rl, config, quiet, model=loaded, algorithm=composed, **options)


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
    from reinlm.training.config import EvalConfig
    from reinlm.training.verbs import run_evaluation

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
    from reinlm.training.config import GenerateConfig
    from reinlm.training.verbs import run_generation

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


def _config(kind: type[_ConfigT], recipe: Any, sections: Mapping[str, Any]) -> _ConfigT:
    return build(kind, merge(_read(recipe), sections))


def _train(
    train: Callable[..., RunResult], config: Any, quiet: bool, *, command: str | None, **options: Any
) -> RunResult:
    """Train; a report is left behind however the run ends."""
    from reinlm.insight.tracker import ReportTracker
    from reinlm.runs.progress import Progress

    return train(config, command=command or "", progress=Progress(quiet=quiet), reports=[ReportTracker()], **options)
