"""The verbs from Python; the command line calls these functions.

Every verb takes `recipe` (a YAML file or a mapping), the common arguments by name, and any further section of the
configuration as a keyword: `reinlm.rl(model, data, reward="math", rollout={"group_size": 16})`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

from reinlm.algorithms import Algorithm, PreferenceAlgorithm, preference_algorithm_spec, resolve_preference
from reinlm.api.arguments import (
    KINDS,
    arguments,
    check_flags,
    expand_short_keywords,
    given_keywords,
    one_of,
    read_prompts,
    split_model_argument,
)
from reinlm.api.evaluating import ONE, evaluation_arguments
from reinlm.api.keywords import DPOKeywords, RewardKeywords, RFTKeywords, RLKeywords, SFTKeywords
from reinlm.api.settings import composed_over, configuration, run_settings
from reinlm.api.trainers import DPOTrainer as DPOTrainer
from reinlm.api.trainers import RewardTrainer as RewardTrainer
from reinlm.api.trainers import RFTTrainer as RFTTrainer
from reinlm.api.trainers import RLTrainer as RLTrainer
from reinlm.api.trainers import SFTTrainer as SFTTrainer
from reinlm.config import Config
from reinlm.errors import InputError, unknown
from reinlm.grid import PlannedRun, plan, run_queue
from reinlm.importing import refuse_while_importing
from reinlm.loop import RunResult
from reinlm.recipe import merge_settings, read
from reinlm.runs.files import stamped_folder
from reinlm.runs.progress import Progress, silenced
from reinlm.training.benchmark import BenchConfig, Benchmark, run_bench
from reinlm.training.config import GenerateConfig, RLConfig, SFTConfig
from reinlm.training.create import CreateConfig, CreatedModel, run_create
from reinlm.training.dpo_config import DPOConfig
from reinlm.training.dpo_session import check_dpo
from reinlm.training.eval_config import EvalConfig
from reinlm.training.evaluating import run_evaluation
from reinlm.training.in_force import explanation, settings_tree
from reinlm.training.off_policy import run_algorithm
from reinlm.training.rejection import session as rejection
from reinlm.training.rejection.config import RFTConfig
from reinlm.training.reward_config import RewardModelConfig
from reinlm.training.rl_checks import check_settings, in_force, notes_before_a_model
from reinlm.training.verbs import Answers, run_generation

if TYPE_CHECKING:
    from reinlm.insight.compare import Comparison
    from reinlm.training.evaluation import Evaluation
    from reinlm.training.evaluation_table import Evaluations


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
    refuse_while_importing("reinlm.sft")
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
    refuse_while_importing("reinlm.rl")
    if seeds is not None:
        return _seeds("rl", model, data, keywords, seeds)
    return RLTrainer(model, data, **keywords).train()


@overload
def dpo(model: Any = None, data: Any = None, *, seeds: None = None, **keywords: Unpack[DPOKeywords]) -> RunResult: ...
@overload
def dpo(model: Any = None, data: Any = None, *, seeds: int, **keywords: Unpack[DPOKeywords]) -> Comparison: ...
def dpo(
    model: Any = None, data: Any = None, *, seeds: int | None = None, **keywords: Unpack[DPOKeywords]
) -> RunResult | Comparison:
    """Direct preference learning: DPO and its family. Arguments as in `DPOTrainer`; returns and raises as `sft` does."""
    refuse_while_importing("reinlm.dpo")
    if seeds is not None:
        return _seeds("dpo", model, data, keywords, seeds)
    return DPOTrainer(model, data, **keywords).train()


@overload
def reward(
    model: Any = None, data: Any = None, *, seeds: None = None, **keywords: Unpack[RewardKeywords]
) -> RunResult: ...
@overload
def reward(model: Any = None, data: Any = None, *, seeds: int, **keywords: Unpack[RewardKeywords]) -> Comparison: ...
def reward(
    model: Any = None, data: Any = None, *, seeds: int | None = None, **keywords: Unpack[RewardKeywords]
) -> RunResult | Comparison:
    """Train a reward model on judged answers. Arguments as in `RewardTrainer`; returns and raises as `sft` does."""
    refuse_while_importing("reinlm.reward")
    if seeds is not None:
        return _seeds("reward", model, data, keywords, seeds)
    return RewardTrainer(model, data, **keywords).train()


@overload
def rft(model: Any = None, data: Any = None, *, seeds: None = None, **keywords: Unpack[RFTKeywords]) -> RunResult: ...
@overload
def rft(model: Any = None, data: Any = None, *, seeds: int, **keywords: Unpack[RFTKeywords]) -> Comparison: ...
def rft(
    model: Any = None, data: Any = None, *, seeds: int | None = None, **keywords: Unpack[RFTKeywords]
) -> RunResult | Comparison:
    """Rejection sampling: sample answers, keep the good ones, imitate them. Arguments as in `RFTTrainer`; returns and raises as
    `sft` does."""
    refuse_while_importing("reinlm.rft")
    if seeds is not None:
        return _seeds("rft", model, data, keywords, seeds)
    return RFTTrainer(model, data, **keywords).train()


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
    **other: Any,
) -> Comparison:
    """Compare runs that exist, or run a grid of recipes × settings × seeds and compare what they reached.

    Args:
        runs_or_recipes: run folders (or folders of them), or recipes: YAML files or mappings.
        seeds: of recipes: so many runs of each, from the recipe's `seed` on.
        grid: of recipes: axes such as "algorithm=grpo,dapo"; every combination is run.
        metrics: logged metrics to compare; by default those of the evaluations, and the reward, loss or return.
        output: of run folders the page, nothing by default; of recipes the folder of the runs and the page. A queue that was
            stopped goes on when it is called again with the same output.
        verb: of recipes: "rl", "sft", "rft" or "dpo".
        changes: of recipes: overrides "key=value" of every run.

    Returns:
        A `Comparison`: `rows`, `groups`, `page`, and `frame()` where pandas is installed.

    Raises:
        InputError: anything that cannot be compared or run, named. RunError: where every run failed.

    Example:
        reinlm.compare("grpo.yaml", "dapo.yaml", seeds=3, output="runs/cmp").rows
    """
    from reinlm.insight.compare import compare_runs, write_page

    refuse_while_importing("reinlm.compare")
    check_flags(quiet=quiet)
    if other:
        name, value = next(iter(other.items()))
        key = next((f"{name}.{inner}={one}" for inner, one in value.items()), "") if isinstance(value, Mapping) else ""
        raise InputError(
            f"compare takes no {name}", hint=f"settings of all runs are changes=[{(key or f'{name}={value}')!r}]"
        )
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
        return _queue(verb, planned, output or stamped_folder("compare"), metrics, quiet, command)
    for name, value in (("seeds", seeds), ("grid", grid), ("changes", changes)):
        if value:
            raise InputError(
                f"{name} {value} has no effect: {given[0]} is no recipe", hint="give recipes (.yaml) to run"
            )
    comparison = compare_runs([str(item) for item in given], metrics=metrics)
    return replace(comparison, page=write_page(comparison, output)) if output else comparison


def _seeds(verb: str, model: Any, data: Any, keywords: Mapping[str, Any], seeds: Any) -> Comparison:
    """Several seeds of one configuration, as a queue of runs."""
    loaded, sections, options = arguments(verb, model, data, keywords)
    if loaded is not None:
        raise InputError(
            "seeds needs a model that each run loads for itself", hint="give a folder or a name in place of the model"
        )
    for name in ("resume", "overwrite", "callbacks"):
        if options.get(name):
            reason = "a queue of seeds goes on by itself" if name == "resume" else "each run of the queue has its own"
            raise InputError(f"{name} cannot be given with seeds: {reason}", hint=f"leave {name} out")
    tree = merge_settings(read(options.get("recipe")), sections)
    run = dict(tree.get("run") or {})
    output = run.pop("output", None) or stamped_folder(verb)
    planned = plan([{**tree, **({"run": run} if run else {})}], seeds=seeds)
    return _queue(verb, planned, output, (), options.get("quiet", False), options.get("command", ""))


def _queue(
    verb: str, planned: Sequence[PlannedRun], output: str | Path, metrics: Sequence[str], quiet: bool, command: str
) -> Comparison:
    """Run a queue of one of the verbs; every configuration is checked before the first run starts."""
    verbs: Mapping[str, tuple[Any, type[Config]]] = {
        "rl": (rl, RLConfig),
        "sft": (sft, SFTConfig),
        "dpo": (dpo, DPOConfig),
        "reward": (reward, RewardModelConfig),
        "rft": (rft, RFTConfig),
    }
    if verb not in verbs:
        raise unknown("verb of a comparison", verb, verbs)
    function, kind = verbs[verb]
    for run in planned:
        config = configuration(kind, run.tree, None)
        if isinstance(config, RLConfig):
            run_algorithm(config)

    def start(tree: dict[str, Any], resume: bool, overwrite: bool) -> Any:
        return function(recipe=tree, resume=resume, overwrite=overwrite, quiet=quiet, command=command)

    say = Progress(quiet=quiet).say
    return run_queue(planned, output, start, kind=verb, say=say, metrics=metrics)


@overload
def evaluate(model: list[Any] | dict[str, Any], data: Any = None, **keywords: Any) -> Evaluations: ...
@overload
def evaluate(model: Any, data: dict[str, Any], **keywords: Any) -> Any: ...
@overload
def evaluate(model: Any = None, data: Any = None, **keywords: Any) -> Evaluation: ...
def evaluate(
    model: Any = None,
    data: Any = None,
    *,
    reward: Any = None,
    recipe: str | Path | Mapping[str, Any] | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    **sections: Any,
) -> Evaluation | Evaluations:
    """Score a model, or several on several sets of prompts: accuracy with its interval, pass@k, length, loss on text.

    Args:
        model, data, reward, recipe, quiet: as in `reinlm.rl`. Several models are a mapping of names to them, or a list of
            folders; several sets a mapping of names to them.
        text: held-out text, or several by name, for the loss on it; `data` may then be left out.
        samples, temperature, max_new_tokens: keys of `evaluation`.
        against, judge: the win rate over another model, a run or a file of answers, by the reward, or by a function or object
            that sees both answers and says which is better.
        sections: further keys of `EvalConfig`, such as `evaluation={"samples": 8, "temperature": 0.7}`, `environment`,
            `rollout={"engine": …}` and `imports` as in `reinlm.rl`, and `output`, a JSONL file for all answers.
        overwrite: replace `output` where it exists.

    Returns:
        An `Evaluation`; of several models or sets an `Evaluations`, by (model, set).
    """
    refuse_while_importing("reinlm.evaluate")
    check_flags(overwrite=overwrite, quiet=quiet)
    sections = expand_short_keywords("eval", given_keywords("eval", sections))
    loaded, sections = evaluation_arguments(model, data, sections)
    given = {} if reward is None else {"reward": reward}
    with silenced(quiet=quiet):
        config = configuration(EvalConfig, merge_settings(read(recipe), {**sections, **given}), loaded or None)
        by_name = {next(iter(config.named_models)) if name == ONE else name: own for name, own in loaded.items()}
        return run_evaluation(config, loaded=by_name, overwrite=overwrite, say=Progress(quiet=quiet).say)


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
        best_of, reward: each answer is the best of so many by this reward.
        majority_vote: each answer is one that says what most of so many say.
        sections: further keys of `GenerateConfig`, such as `samples=4, sampling={"temperature": 0.7}`, and `environment`,
            `rollout={"engine": …}` and `imports` as in `reinlm.rl`.
    """
    refuse_while_importing("reinlm.generate")
    check_flags(quiet=quiet)
    sections = expand_short_keywords("generate", given_keywords("generate", sections))
    prompts = one_of("prompts", prompts, sections.pop("prompts", None), "prompt")
    loaded, sections = split_model_argument(model, None, None, sections, trains=False)
    if prompts is not None:
        sections["prompts"] = read_prompts(prompts)
    with silenced(quiet=quiet):
        config = configuration(GenerateConfig, merge_settings(read(recipe), sections), loaded)
        return run_generation(config, model=loaded, say=Progress(quiet=quiet).say)


def bench(
    model: Any = None,
    *,
    recipe: str | Path | Mapping[str, Any] | None = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    **sections: Any,
) -> Benchmark:
    """Measure how fast a model samples and trains on this machine, and how close that is to what the machine can do.

    Steps of reinforcement learning run on random prompts, through the engine and the learner of `reinlm.rl`, at a learning
    rate that changes no weight.

    Args:
        model, recipe, quiet: as in `reinlm.rl`.
        prompt_tokens, max_new_tokens, group_size, batch_size: keys of `rollout`.
        output: a JSON file for all figures; `profile`: a file for a trace, which a viewer such as Perfetto opens.
        overwrite: replace these files where they exist.
        sections: further keys of `BenchConfig`, such as `turns=3, threads=2, algorithm="dapo", training={"packing": "pad"}`.

    Raises:
        InputError: anything that cannot be used, named; a model that does not fit into memory, with how much it needs.

    Example:
        print(reinlm.bench("PATH_OR_NAME", prompt_tokens=256, max_new_tokens=64, turns=3))
    """
    refuse_while_importing("reinlm.bench")
    check_flags(overwrite=overwrite, quiet=quiet)
    sections = expand_short_keywords("bench", given_keywords("bench", sections))
    loaded, sections = split_model_argument(model, None, output, sections, trains=False)
    with silenced(quiet=quiet):
        config = configuration(BenchConfig, merge_settings(read(recipe), sections), loaded)
        return run_bench(config, model=loaded, overwrite=overwrite, say=Progress(quiet=quiet).say)


def explain(verb: str, model: Any = None, data: Any = None, **keywords: Any) -> str:
    """Every key that would be in force, with its value and what gave it, as YAML with comments; runs and loads nothing.

    What it returns is a recipe that says the same. A value without another source is a default.

    Args:
        verb: "sft", "rl", "rft", "dpo", "eval", "generate" or "bench".
        model, data, keywords: as in `reinlm.rl` and its kin; of generate `prompts` is a keyword.

    Raises:
        InputError: an unknown verb, and settings that the verb would refuse before it reads a file.

    Example:
        print(reinlm.explain("rl", "PATH_OR_NAME", "train.jsonl", reward="math", algorithm="dapo"))
    """
    if verb not in KINDS:
        raise unknown("verb", verb, KINDS)
    kind = KINDS[verb]
    loaded, sections, options = arguments(verb, model, data, keywords)
    given = sections.get("algorithm")
    composed = sections.pop("algorithm") if isinstance(given, Algorithm) else None
    if isinstance(given, PreferenceAlgorithm):
        sections["algorithm"] = preference_algorithm_spec(given)
    with run_settings(verb, sections, options) as tree:
        tree = tree if composed is None else composed_over(tree, composed)
        config = configuration(kind, tree, loaded, resume=options.get("resume"))
        nulls, notes, algorithm = {}, [], None
        if isinstance(config, DPOConfig):
            check_dpo(config, resolve_preference(config.algorithm))
        if isinstance(config, RLConfig):
            algorithm = run_algorithm(config, composed)
            check_settings(config, algorithm)
            nulls = in_force(config, algorithm)
            notes = notes_before_a_model(config, algorithm, tree.sources)
        if isinstance(config, RFTConfig):
            nulls = rejection.in_force(config)
        return explanation(settings_tree(config, algorithm), tree.sources, nulls, notes)


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
    refuse_while_importing("reinlm.create_model")
    check_flags(overwrite=overwrite)
    _, sections = split_model_argument(None, data, output, sections, trains=False)
    return run_create(configuration(CreateConfig, merge_settings(read(recipe), sections), None), overwrite=overwrite)
