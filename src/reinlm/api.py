"""The verbs from Python; the command line calls these functions.

Every verb takes `recipe` (a YAML file or a mapping), the common arguments by name, and any further section of the
configuration as a keyword: `reinlm.rl(model, data, reward="math", rollout={"group_size": 16})`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, overload

from reinlm.algorithms import ALGORITHMS, Algorithm, algorithm_spec, resolve
from reinlm.config import Config, build, merge
from reinlm.data.frames import is_rows, rows_of
from reinlm.errors import InputError, unknown
from reinlm.grid import PlannedRun, plan, run_queue
from reinlm.insight.tracker import ReportTracker
from reinlm.loop import RunResult
from reinlm.models import Policy
from reinlm.models.loading import add_adapter, lora_config, refuse_no_model
from reinlm.parts import load_imports
from reinlm.recipe import (
    PYTHON,
    Settings,
    over,
    read,
    read_run,
    refuse_placeholders,
    refuse_resolved,
    refuse_two_lengths,
)
from reinlm.runs.folder import check_resumable
from reinlm.runs.progress import Progress, hushed
from reinlm.sources import leaves
from reinlm.training.config import EvalConfig, GenerateConfig, RLConfig, SFTConfig
from reinlm.training.create import CreateConfig, CreatedModel, run_create
from reinlm.training.in_force import explanation, settings_tree
from reinlm.training.rl_checks import check_settings
from reinlm.training.sessions import RLSession, Session, SFTSession
from reinlm.training.verbs import Answers, run_evaluation, run_generation

if TYPE_CHECKING:
    from reinlm.insight.compare import Comparison
    from reinlm.loop import Callback
    from reinlm.training.evaluation import Evaluation

_ConfigT = TypeVar("_ConfigT", bound=Config)

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
    """Prompts that training never sees, or named sets of them: `evaluation.data`."""
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
    """`RolloutConfig` of rl: group_size, batch_size, max_new_tokens, temperature, …; `EvalRolloutConfig` of sft: engine, …"""


class SFTKeywords(RunKeywords, total=False):
    """Keywords of `reinlm.sft` and `reinlm.SFTTrainer`."""

    training: Section
    """`SFTTraining`: steps, epochs, batch_size, …"""
    reward: Any
    """Scores sampled answers in evaluation."""
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


class SFTTrainer(SFTSession):
    """Supervised fine-tuning, ready to run: `train()`, or `step()` by step; `evaluate()`, `save()`.

    Args:
        model: a Hugging Face folder or name, a loaded model, a pair (model, tokenizer), or a run: its folder, its result or
            the result's policy.
        data: a file, a data set's name or object, a frame of pandas or polars, or a list of rows with prompt+completion,
            messages or text.
        keywords: see `SFTKeywords`; any key of `SFTConfig` by its section.

    Raises:
        InputError: anything that cannot be used, named.

    Example:
        trainer = reinlm.SFTTrainer("PATH_OR_NAME", "train.jsonl", optimizer={"learning_rate": 1e-4})
        trainer.train()
    """

    def __init__(self, model: Any = None, data: Any = None, **keywords: Unpack[SFTKeywords]) -> None:
        loaded, sections, options = _arguments(self.kind, model, data, keywords)
        with _settings(self.kind, sections, options) as tree, hushed(quiet=options.get("quiet", False)):
            super().__init__(_config(SFTConfig, tree, loaded), model=loaded, sources=tree.sources, **_session(options))


class RLTrainer(RLSession):
    """Reinforcement learning, ready to run: `train()`, or `step()` by step; `evaluate()`, `save()`.

    Args:
        model: as in `SFTTrainer`.
        data: likewise, with `prompt` or `messages`, and further columns that the reward functions read.
        keywords: see `RLKeywords`; any key of `RLConfig` by its section.

    Raises:
        InputError: anything that cannot be used, named.

    Example:
        with reinlm.RLTrainer("PATH_OR_NAME", "train.jsonl", reward="math", algorithm="dapo") as trainer:
            while not trainer.over:
                print(trainer.step()["reward"])
    """

    def __init__(self, model: Any = None, data: Any = None, **keywords: Unpack[RLKeywords]) -> None:
        loaded, sections, options = _arguments(self.kind, model, data, keywords)
        given = sections.get("algorithm")
        if isinstance(given, type):
            raise InputError(
                f"algorithm: the class {given.__name__} is none", hint='give a name, or reinlm.algorithm("grpo")'
            )
        composed = given if isinstance(given, Algorithm) else None
        if composed is not None:
            del sections["algorithm"]
        with _settings(self.kind, sections, options) as tree, hushed(quiet=options.get("quiet", False)):
            if composed is not None:
                tree = _composed_over(tree, composed)
            config = _config(RLConfig, tree, loaded)
            super().__init__(
                config,
                algorithm=composed or resolve(config.algorithm),
                model=loaded,
                sources=tree.sources,
                **_session(options),
            )


@overload
def sft(model: Any = None, data: Any = None, *, seeds: None = None, **keywords: Unpack[SFTKeywords]) -> RunResult: ...
@overload
def sft(model: Any = None, data: Any = None, *, seeds: int, **keywords: Unpack[SFTKeywords]) -> Comparison: ...
def sft(
    model: Any = None, data: Any = None, *, seeds: int | None = None, **keywords: Unpack[SFTKeywords]
) -> RunResult | Comparison:
    """Supervised fine-tuning: imitate completions. Arguments as in `SFTTrainer`.

    Returns:
        The run's folder, its summary and the trained policy; with `seeds=N` the comparison of N runs, from `seed` on, in
        folders of their own below `output`, where a call that was stopped goes on.

    Raises:
        InputError: anything that cannot be used, named. RunError: a run that cannot go on.
    """
    if seeds is not None:
        return _seeds("sft", model, data, keywords, seeds)
    return SFTTrainer(model, data, **keywords).train()


@overload
def rl(model: Any = None, data: Any = None, *, seeds: None = None, **keywords: Unpack[RLKeywords]) -> RunResult: ...
@overload
def rl(model: Any = None, data: Any = None, *, seeds: int, **keywords: Unpack[RLKeywords]) -> Comparison: ...
def rl(
    model: Any = None, data: Any = None, *, seeds: int | None = None, **keywords: Unpack[RLKeywords]
) -> RunResult | Comparison:
    """Reinforcement learning of a language model. Arguments as in `RLTrainer`; returns and raises as `sft` does."""
    if seeds is not None:
        return _seeds("rl", model, data, keywords, seeds)
    return RLTrainer(model, data, **keywords).train()


def compare(
    *runs_or_recipes: str | Path | Mapping[str, Any],
    seeds: int | None = None,
    grid: str | Sequence[str] = (),
    metrics: str | Sequence[str] = (),
    output: str | Path | None = None,
    verb: str = "rl",
    changes: Sequence[str] = (),
    quiet: bool = False,
    command: str = "",
) -> Comparison:
    """Compare runs that exist, or run a grid of recipes × settings × seeds and compare what they reached.

    Args:
        runs_or_recipes: run folders (or folders of them), or recipes: YAML files or mappings.
        seeds: of recipes: so many runs of each, from the recipe's `seed` on.
        grid: of recipes: axes such as "algorithm=grpo,dapo"; every combination is run.
        metrics: logged metrics to compare; by default those of the evaluations, and the reward, loss or return.
        output: of run folders the page, nothing by default; of recipes the folder of the runs and the page. A queue that was
            stopped goes on when it is called again with the same output.
        verb: of recipes: "rl" or "sft".
        changes: of recipes: overrides "key=value" of every run.

    Returns:
        A `Comparison`: `rows`, `groups`, `page`, and `frame()` where pandas is installed.

    Raises:
        InputError: anything that cannot be compared or run, named. RunError: where every run failed.

    Example:
        reinlm.compare("grpo.yaml", "dapo.yaml", seeds=3, output="runs/cmp").rows
    """
    from reinlm.insight.compare import compare_runs, write_page

    given = list(runs_or_recipes)
    metrics, grid = ([value] if isinstance(value, str) else list(value) for value in (metrics, grid))
    if not given:
        raise InputError("nothing to compare", hint="give run folders, or recipes to run")
    recipes = [item for item in given if isinstance(item, Mapping) or Path(item).suffix in (".yaml", ".yml")]
    if recipes and len(recipes) < len(given):
        folder = next(item for item in given if item not in recipes)
        raise InputError(
            f"{folder} is no recipe, and recipes are given beside it", hint="give run folders alone, or recipes alone"
        )
    if recipes:
        trees = [item if isinstance(item, Mapping) else str(item) for item in recipes]
        planned = plan(trees, grid=grid, changes=changes, seeds=1 if seeds is None else seeds)
        return _queue(
            verb, planned, output or f"runs/compare-{time.strftime('%Y%m%d-%H%M%S')}", metrics, quiet, command
        )
    for name, value in (("seeds", seeds), ("grid", grid), ("changes", changes)):
        if value:
            raise InputError(
                f"{name} {value} has no effect: {given[0]} is no recipe", hint="give recipes (.yaml) to run"
            )
    comparison = compare_runs([str(item) for item in given], metrics=metrics)
    return replace(comparison, page=write_page(comparison, output)) if output else comparison


def _seeds(verb: str, model: Any, data: Any, keywords: Mapping[str, Any], seeds: Any) -> Comparison:
    """Several seeds of one configuration, as a queue of runs."""
    loaded, sections, options = _arguments(verb, model, data, keywords)
    if loaded is not None:
        raise InputError(
            "seeds needs a model that each run loads for itself", hint="give a folder or a name in place of the model"
        )
    for name in ("resume", "overwrite", "callbacks"):
        if options.get(name):
            reason = "a queue of seeds goes on by itself" if name == "resume" else "each run of the queue has its own"
            raise InputError(f"{name} cannot be given with seeds: {reason}", hint=f"leave {name} out")
    tree = over(read(options.get("recipe")), sections)
    run = dict(tree.get("run") or {})
    output = run.pop("output", None) or f"runs/{verb}-{time.strftime('%Y%m%d-%H%M%S')}"
    planned = plan([{**tree, **({"run": run} if run else {})}], seeds=seeds)
    return _queue(verb, planned, output, (), options.get("quiet", False), options.get("command", ""))


def _queue(
    verb: str, planned: Sequence[PlannedRun], output: str | Path, metrics: Sequence[str], quiet: bool, command: str
) -> Comparison:
    """Run a queue of one of the verbs; every configuration is checked before the first run starts."""
    verbs: Mapping[str, tuple[Any, type[Config]]] = {"rl": (rl, RLConfig), "sft": (sft, SFTConfig)}
    if verb not in verbs:
        raise unknown("verb of a comparison", verb, verbs)
    function, kind = verbs[verb]
    for run in planned:
        config = _config(kind, run.tree, None)
        if isinstance(config, RLConfig):
            resolve(config.algorithm)

    def start(tree: dict[str, Any], resume: bool, overwrite: bool) -> Any:
        return function(recipe=tree, resume=resume, overwrite=overwrite, quiet=quiet, command=command)

    say = Progress(quiet=quiet).say
    return run_queue(planned, output, start, kind=verb, say=say, metrics=metrics)


def evaluate(
    model: Any = None,
    data: Any = None,
    *,
    reward: Any = None,
    recipe: str | Path | Mapping[str, Any] | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    **sections: Any,
) -> Evaluation:
    """Score a model: accuracy with its interval, pass@k, length.

    Args:
        model, data, reward, recipe, quiet: as in `reinlm.rl`.
        samples, temperature, max_new_tokens: keys of `evaluation`.
        sections: further keys of `EvalConfig`, such as `evaluation={"samples": 8, "temperature": 0.7}`, `environment`,
            `rollout={"engine": …}` and `imports` as in `reinlm.rl`, and `output`, a JSONL file for all answers.
        overwrite: replace `output` where it exists.
    """
    sections = _spread("eval", _given("eval", sections))
    loaded, sections = _objects(model, data, sections.pop("output", None), sections, trains=False)
    given = {} if reward is None else {"reward": reward}
    with hushed(quiet=quiet):
        config = _config(EvalConfig, over(read(recipe), {**sections, **given}), loaded)
        return run_evaluation(config, model=loaded, overwrite=overwrite, say=Progress(quiet=quiet).say)


def generate(
    model: Any = None,
    prompts: Any = None,
    *,
    recipe: str | Path | Mapping[str, Any] | None = None,
    quiet: bool = False,
    **sections: Any,
) -> Answers:
    """Sample answers: one `Generated` for each prompt (a text or a chat, or a list of them).

    Args:
        model, recipe, quiet: as in `reinlm.rl`.
        prompts: also `prompt=…`.
        temperature, max_new_tokens: keys of `sampling`; `system`: of `system_prompt`.
        sections: further keys of `GenerateConfig`, such as `samples=4, sampling={"temperature": 0.7}`, and `environment`,
            `rollout={"engine": …}` and `imports` as in `reinlm.rl`.
    """
    sections = _spread("generate", _given("generate", sections))
    prompts = _one_of("prompts", prompts, sections.pop("prompts", None), "prompt")
    loaded, sections = _objects(model, None, None, sections, trains=False)
    if prompts is not None:
        sections["prompts"] = _prompts(prompts)
    with hushed(quiet=quiet):
        config = _config(GenerateConfig, over(read(recipe), sections), loaded)
        return run_generation(config, model=loaded, say=Progress(quiet=quiet).say)


def explain(verb: str, model: Any = None, data: Any = None, **keywords: Any) -> str:
    """Every key that would be in force, with its value and what gave it, as YAML with comments; runs and loads nothing.

    What it returns is a recipe that says the same. A value without another source is a default.

    Args:
        verb: "sft", "rl", "eval" or "generate".
        model, data, keywords: as in `reinlm.rl` and its kin; of generate `prompts` is a keyword.

    Raises:
        InputError: an unknown verb, and settings that the verb would refuse before it reads a file.

    Example:
        print(reinlm.explain("rl", "PATH_OR_NAME", "train.jsonl", reward="math", algorithm="dapo"))
    """
    if verb not in _KINDS:
        raise unknown("verb", verb, _KINDS)
    kind = _KINDS[verb]
    loaded, sections, options = _arguments(verb, model, data, keywords)
    given = sections.get("algorithm")
    composed = sections.pop("algorithm") if isinstance(given, Algorithm) else None
    with _settings(verb, sections, options) as tree:
        tree = tree if composed is None else _composed_over(tree, composed)
        config = _config(kind, tree, loaded)
        if isinstance(config, RLConfig):
            check_settings(config, composed or resolve(config.algorithm))
        return explanation(settings_tree(config, composed), tree.sources)


_TRAINING = ("sft", "rl")
_KINDS: dict[str, type[Config]] = {"sft": SFTConfig, "rl": RLConfig, "eval": EvalConfig, "generate": GenerateConfig}


def _composed_over(tree: Settings, composed: Algorithm) -> Settings:
    """Settings with a composed algorithm in place of the one that they name."""
    spec = algorithm_spec(composed)
    named = ALGORITHMS.get(spec["base"])
    its_own = dict(leaves({"algorithm": algorithm_spec(named())})) if named else {}
    sources = {path: source for path, source in tree.sources.items() if path[0] != "algorithm"}
    for path, value in leaves({"algorithm": spec}):
        if path not in its_own or its_own[path] != value or path[1] == "base":
            sources[path] = PYTHON
    return Settings({**tree, "algorithm": spec}, sources)


def create_model(
    data: Any = None,
    *,
    output: str | Path | None = None,
    recipe: str | Path | Mapping[str, Any] | None = None,
    overwrite: bool = False,
    **sections: Any,
) -> CreatedModel:
    """A small model with random weights and a tokenizer trained on the data, written to `output`.

    Args:
        data, recipe: as in `reinlm.sft`; the rows are those that sft will imitate.
        output: the model's folder.
        overwrite: replace the model that `output` holds.
        sections: further keys of `CreateConfig`, such as `tokenizer={"vocab_size": 2048}`, `layers=4, hidden_size=256`.
    """
    _, sections = _objects(None, data, output, sections, trains=False)
    return run_create(_config(CreateConfig, over(read(recipe), sections), None), overwrite=overwrite)


def _prompts(given: Any) -> list[Any]:
    """A list of prompts; a single text, chat or row becomes a list of one, and a column or a frame a list of its values."""
    if isinstance(given, Mapping) and "prompt" not in given and not _has_role(given):
        raise InputError(
            f"prompts: a row needs the key 'prompt', and this one has {', '.join(map(str, given)) or 'none'}",
            hint="give a text, {'prompt': text}, or a list of them",
        )
    if isinstance(given, str | Mapping) or (isinstance(given, list) and given and _has_role(given[0])):
        return [[given] if _has_role(given) else given]
    if hasattr(given, "columns") or hasattr(given, "column_names"):
        given, _ = rows_of(given)
    if not isinstance(given, Iterable):
        raise InputError(f"prompts: {given!r} is no prompt", hint="give a text, a chat, or a list of them")
    prompts = list(given)
    if not prompts:
        raise InputError("prompts: the list is empty", hint="give a text, a chat, or a list of them")
    return prompts


def _has_role(value: Any) -> bool:
    return isinstance(value, Mapping) and "role" in value


def _objects(
    model: Any, data: Any, output: Any, sections: Mapping[str, Any], *, trains: bool
) -> tuple[Any, dict[str, Any]]:
    """Put the common arguments into their sections; of a loaded model the configuration holds only the name.

    Args:
        trains: whether the model will be trained; a run's result then stands for its checkpoint, else for its policy.
    """
    refuse_resolved(sections)
    merged = dict(sections)
    adapter = lora_config(peft) if (peft := merged.pop("peft_config", None)) is not None else None
    loaded = None
    if isinstance(model, RunResult):
        model, loaded = str(model.folder), None if trains else model.policy
    elif model is not None and not isinstance(model, str | Path | Mapping | Config):
        if isinstance(model, Session):
            raise InputError(f"a {type(model).__name__} stands where a model belongs", hint="give trainer.policy")
        refuse_no_model(model)
        loaded = model if adapter is None else add_adapter(model, adapter)
        inner = model.model if isinstance(model, Policy) else model[0] if isinstance(model, tuple) else model
        model = getattr(getattr(inner, "config", None), "_name_or_path", "") or f"<{type(inner).__name__}>"
    elif isinstance(model, Mapping) and any(hasattr(value, "requires_grad") for value in model.values()):
        raise InputError("weights alone are no model", hint="give the model that has them, as (model, tokenizer)")
    if model is not None:
        merged["model"] = model
    if adapter is not None and loaded is None:
        own = merged.get("model")
        section = own if isinstance(own, Mapping) else {} if own is None else {"path": own}
        merged["model"] = {**section, "lora": adapter.model_dump()}
    if data is not None:
        merged["data"] = data if isinstance(data, Config) or not is_rows(data) else {"path": data}
    if output is not None:
        merged = over(merged, {"run": {"output": str(output)}} if trains else {"output": str(output)})
    return loaded, merged


SHORT: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "sft": {"steps": ("training", "steps"), "eval_data": ("evaluation", "data")},
    "rl": {"steps": ("training", "steps"), "eval_data": ("evaluation", "data")},
    "eval": {name: ("evaluation", name) for name in ("samples", "temperature", "max_new_tokens")},
    "generate": {
        **{name: ("sampling", name) for name in ("temperature", "max_new_tokens")},
        "system": ("system_prompt",),
        "prompt": ("prompts",),
    },
}
"""verb -> keyword that stands for a key inside a section -> that key. The flags of the command line have the same names."""


def _spread(verb: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords with those of `SHORT` at the keys that they stand for.

    Raises InputError where a value is given by both names.
    """
    tree = {name: value for name, value in given.items() if name not in SHORT[verb]}
    for name, path in SHORT[verb].items():
        if name not in given:
            continue
        value = given[name]
        if name == "eval_data" and (is_rows(value) or isinstance(value, Config) or "path" in value):
            value = {"eval": value if not is_rows(value) else {"path": value}}
        section = tree.get(path[0])
        if len(path) == 1:
            tree[path[0]] = _one_of(path[0], tree.get(path[0]), value, name)
            continue
        if isinstance(section, Mapping) and path[1] in section:
            raise InputError(f"{name} and {'.'.join(path)} are the same, and both are given", hint="give one of them")
        tree = merge(tree, {path[0]: {path[1]: value}})
    return tree


def _one_of(name: str, value: Any, other: Any, short: str) -> Any:
    if value is not None and other is not None:
        raise InputError(f"{short} and {name} are the same, and both are given", hint="give one of them")
    return other if value is None else value


def _given(verb: str, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords without those that are None; an unknown name stays whatever its value, and is refused where it is read."""
    known = {*_KINDS[verb].model_fields, *SHORT[verb], "output", "peft_config"}
    return {name: value for name, value in keywords.items() if value is not None or name not in known}


_OPTIONS = ("recipe", "resume", "overwrite", "quiet", "command", "callbacks")


def _arguments(
    verb: str, model: Any, data: Any, keywords: Mapping[str, Any]
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Split arguments into a loaded model or None, the sections of the configuration, and all other keywords."""
    options = {name: keywords[name] for name in _OPTIONS if keywords.get(name) is not None}
    given = _spread(verb, _given(verb, {n: value for n, value in keywords.items() if n not in _OPTIONS}))
    loaded, sections = _objects(model, data, given.pop("output", None), given, trains=verb in _TRAINING)
    return loaded, sections, options


def _session(options: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords of a `Session`. Adds the callback that writes the report when the run ends."""
    return {
        "resume": options.get("resume", False),
        "overwrite": options.get("overwrite", False),
        "command": options.get("command", ""),
        "callbacks": options.get("callbacks", ()),
        "progress": Progress(quiet=options.get("quiet", False)),
        "reports": [ReportTracker()],
    }


@contextlib.contextmanager
def _settings(kind: str, sections: Mapping[str, Any], options: Mapping[str, Any]) -> Iterator[Settings]:
    """The settings of a run: the recipe, overridden by keywords; on resume config.yaml, overridden by both.

    Within the context the working directory of a resumed run is the one in which the run was started
    (`resolved.directory` in its config.yaml, if it exists), because relative paths refer to it.

    Raises:
        InputError: a folder to resume in that holds no run of this kind ("sft", "rl").
    """
    tree = over(read(options.get("recipe")), sections)
    run = tree.get("run")
    output = run.get("output") if isinstance(run, Mapping) else None
    if not output or not options.get("resume"):
        yield tree
        return
    check_resumable(output, kind)
    if not (Path(output) / "config.yaml").is_file():
        yield tree
        return
    old = read_run(output)
    begun = (old.get("resolved") or {}).get("directory")
    old = _other_length(old, tree)
    if begun is None or not Path(begun).is_dir() or Path(begun).samefile(Path.cwd()):
        yield over(old, tree)
        return
    source = tree.sources.get(("run", "output"), "")
    tree = over(tree, {"run": {"output": str(Path(output).absolute())}}, source)
    with contextlib.chdir(begun):
        yield over(old, tree)


def _other_length(old: Settings, given: Mapping[str, Any]) -> Settings:
    """The settings of a run that is resumed, without its `training.epochs` where `steps` are given, and the other way round."""
    training = given.get("training")
    one = {"steps": "epochs", "epochs": "steps"}
    gone = {one[name] for name in one if isinstance(training, Mapping) and training.get(name) is not None}
    kept = {name: value for name, value in (old.get("training") or {}).items() if name not in gone}
    sources = {path: source for path, source in old.sources.items() if path[1:] not in [(name,) for name in gone]}
    return Settings({**old, "training": kept}, sources)


def _config(kind: type[_ConfigT], tree: Mapping[str, Any], loaded: Any) -> _ConfigT:
    """Import the files under `imports`, then validate.

    Args:
        loaded: a model that is given beside the configuration, or None.
    """
    model = {} if loaded is None else {"model": None}
    refuse_placeholders({**tree, **model})
    refuse_two_lengths(tree)
    load_imports(tree.get("imports") or [])
    return build(kind, tree)
