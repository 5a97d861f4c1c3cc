"""The verb `eval`: one or several models on one or several sets of prompts, and on held-out text."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from reinlm.config import read_recipe
from reinlm.data import DataConfig, load_tasks
from reinlm.data.loading import find_rows, refuse_order
from reinlm.data.prompts import settle
from reinlm.environments import MakeEnvironment, is_question
from reinlm.errors import InputError
from reinlm.models import ModelConfig, Policy, load_policy
from reinlm.models.loading import check_model_folder
from reinlm.places import CHECKPOINTS, checkpoint_note
from reinlm.records import ScoredGroup
from reinlm.rewards import RewardSet
from reinlm.rewards.judging import Judge, build_judge
from reinlm.rollouts import Sampling
from reinlm.rollouts.unrewarded import check_rewarded
from reinlm.runs.files import checked_file, write_json_lines
from reinlm.runs.schema import pack_groups
from reinlm.training.computing import Computing
from reinlm.training.diversity import diversity_metrics
from reinlm.training.episodes import EpisodeSetup, open_rewards, resolve_environment
from reinlm.training.eval_config import EvalConfig
from reinlm.training.evaluation import MAX_NEW_TOKENS, Evaluation, evaluate_tasks, evaluation_sampling, without_verdicts
from reinlm.training.evaluation_table import Evaluations
from reinlm.training.held_out import read_text, text_key, text_metrics
from reinlm.training.inputs import check_set, skipped_lines
from reinlm.training.prompts import prompt_line
from reinlm.training.setup import answer_limit, check_stops
from reinlm.training.win_rate import StoredAnswers, is_file_of_answers, judged_metrics, win_rate_metrics

Say = Callable[[str], None]
"""Shows a line to the user."""


def silent(text: str) -> None:
    """Says nothing."""


def run_evaluation(
    config: EvalConfig, *, loaded: Mapping[str, Any] | None = None, overwrite: bool = False, say: Say = silent
) -> Evaluation | Evaluations:
    """Score every model on every set and every held-out text: what the verb `eval` calls.

    With `config.output` every answer is written there. All models meet the same noise: answers depend on the seed,
    the prompt's place and the model alone.

    Args:
        loaded: models that are loaded already, by their names in `config.named_models`.

    Returns:
        One evaluation of `model` on `data`, on one text, or on both; else the table of `models`, `evaluation.data` and texts.

    Raises:
        InputError: where `config.output` exists, without `overwrite`, and models or data that cannot be used; what can be seen
            without a tokenizer before any model is loaded.
        RunError: no episode of a set has a reward. The answers so far are written before.
    """
    output, sets, models = _checked_output(config.output, overwrite), config.named_sets, config.named_models
    for name, data in sets.items():
        refuse_order(data, "data" if config.data is not None else f"evaluation.data.{name}")
    for name, data in config.text.data.items():
        refuse_order(data, text_key(name))
    environment = resolve_environment(
        config.environment, config.rollout, config.reward, needs_rewards=bool(sets) and config.judge is None
    )
    stored = None
    if config.against is not None and is_file_of_answers(config.against):
        stored = StoredAnswers(config.against)
    elif config.against is not None:
        check_model_folder(config.against, "against")
    if config.tabled or config.text.data:
        _check_all(config, loaded or {})
    found: dict[tuple[str, str], Evaluation] = {}
    texts: dict[tuple[str, str], Evaluation] = {}
    with contextlib.ExitStack() as stack:
        rewards = open_rewards(config.reward, stack)
        judge = None if config.judge is None else stack.enter_context(build_judge(config.judge))
        other: dict[str, dict[str, ScoredGroup]] = {}
        if config.against is not None and stored is None:
            other = _answers_of(config, environment, rewards, say)
        try:
            for name, model in models.items():
                scoring = _Scoring(config, model, (loaded or {}).get(name), environment, rewards, say, stored, judge)
                for title, data in config.text.data.items():
                    texts[name, title] = Evaluation(scoring.measured(data, title), (), ())
                for title, data in sets.items():
                    result = scoring.score(data, title)
                    if config.against is not None:
                        result = scoring.compared(result, other.get(title))
                    if config.diversity:
                        result = replace(result, metrics={**result.metrics, **diversity_metrics(result.groups)})
                    found[name, title] = result
                    where = f"evaluation of {name} on {title}" if config.tabled else "evaluation"
                    if judge is None or rewards is not None:
                        check_rewarded(
                            where,
                            result.groups,
                            result.messages,
                            functions=rewards is not None,
                            max_new_tokens=MAX_NEW_TOKENS,
                        )
                scoring.close()
        finally:
            if output is not None and found:
                write_json_lines(output, _answer_rows(found, named=config.tabled))
    return Evaluations(found | texts) if config.tabled else _joined([*found.values(), *texts.values()])


def _joined(found: Sequence[Evaluation]) -> Evaluation:
    """The evaluation of one model on one set, with the figures of its text behind its own; or on the text alone."""
    first, *others = found
    return replace(first, metrics={name: value for one in (first, *others) for name, value in one.metrics.items()})


class _Scoring:
    """One model, loaded, with the engine that samples from it."""

    def __init__(
        self,
        config: EvalConfig,
        model: ModelConfig,
        loaded: Any,
        environment: MakeEnvironment,
        rewards: RewardSet | None,
        say: Say,
        stored: StoredAnswers | None = None,
        judge: Judge | None = None,
    ) -> None:
        self.config, self.rewards, self.say, self.stored, self.judge = config, rewards, say, stored, judge
        self.policy = load_model(model, loaded, say)
        self.model, self.environment = model, environment
        self.setup: EpisodeSetup | None = None

    def measured(self, data: DataConfig, title: str) -> dict[str, float]:
        """The model's loss on a held-out text, before an engine takes memory."""
        examples = read_text(self.policy, data, find_rows(data, "example"), title)
        for line in skipped_lines(examples.skipped):
            self.say(f"text {title}: {line}")
        return text_metrics(self.policy, examples, title)

    def score(self, data: DataConfig, title: str, tag: str = "eval") -> Evaluation:
        """The model's answers to a set of prompts, scored."""
        policy, settings = self.policy, self.config.evaluation
        if self.setup is None:
            self.sampling, self.room = _sampling(self.config, self.model, policy, self.say)
            self.setup = EpisodeSetup(self.config.rollout, self.environment, policy, seed=self.config.seed)
        found = find_rows(data, "prompt")
        settled = settle(data, found, policy.tokenizer, policy.prompt_format)
        tasks = load_tasks(settled.config, policy.tokenizer, max_prompt_tokens=self.room, found=found)
        self.say(prompt_line(settled, found, tasks.items, policy))
        if self.rewards is not None and self.config.data is not None:
            self.rewards.check(tasks.items)
        elif self.rewards is not None:
            check_set(self.rewards, title, tasks.items)
        if self.judge is not None:
            self.judge.check(tasks.items)
        if self.stored is not None:
            self.stored.check(tasks.items)
        with Computing.chosen(policy.model).in_force():
            scored = evaluate_tasks(
                self.setup.episodes(settled.config, self.sampling),
                tasks.items,
                self.rewards,
                samples=settings.samples,
                tag=tag,
                correct_above=settings.correct_above,
                choosing=settings.choosing,
            )
        return scored if "correct_above" in settings.model_fields_set else without_verdicts(scored, self.rewards)

    def compared(self, result: Evaluation, theirs: Mapping[str, ScoredGroup] | None) -> Evaluation:
        """The evaluation with the win rate against the answers of another model; None: against those in a file."""
        if theirs is None:
            assert self.stored is not None
            theirs = self.stored.scored(result.groups, self.policy, self.rewards)
        if self.judge is None:
            return replace(result, metrics={**result.metrics, **win_rate_metrics(result.groups, theirs)})
        judged, own = judged_metrics(self.judge, result.groups, theirs), result.metrics
        if self.rewards is None:  # nothing else says how good the answers are
            unasked = ("unrewarded", "failed") if is_question(self.environment) else ()
            own = {**judged, **{name: value for name, value in own.items() if name not in unasked}}
        return replace(result, metrics={**own, **judged})

    def close(self) -> None:
        """Give back the memory of an engine that can."""
        if self.setup is not None and self.setup.engine.capabilities.sleeps:
            self.setup.engine.sleep()


def _answers_of(
    config: EvalConfig, environment: MakeEnvironment, rewards: RewardSet | None, say: Say
) -> dict[str, dict[str, ScoredGroup]]:
    """What `config.against` answers to every set, by the set and the id of the task; with noise of its own."""
    assert config.against is not None
    first = next(iter(config.named_models.values()))
    model = first.model_copy(update={"path": config.against, "revision": None})
    scoring = _Scoring(config, model, None, environment, rewards, say)
    found = {title: scoring.score(data, title, tag="against") for title, data in config.named_sets.items()}
    scoring.close()
    return {title: {group.group.task.id: group for group in one.groups} for title, one in found.items()}


def _check_all(config: EvalConfig, loaded: Mapping[str, Any]) -> None:
    """Raise InputError for a set or a model of several that cannot be used, before the first is scored."""
    for name, model in config.named_models.items():
        if name not in loaded:
            check_model_folder(model.path, f"models.{name}" if config.models else "model.path")
    for data in config.named_sets.values():
        find_rows(data, "prompt")
    for data in config.text.data.values():
        find_rows(data, "example")


def _sampling(config: EvalConfig, model: ModelConfig, policy: Policy, say: Say) -> tuple[Sampling, int | None]:
    """How answers are sampled, and the longest prompt in tokens; None: no limit."""
    sampling = evaluation_sampling(config.evaluation, policy.stops, config.rollout)
    given = config.evaluation.max_new_tokens is not None
    if not given and (length := _answer_length(model.path)):
        sampling = replace(sampling, max_new_tokens=length)
        say(f"answers of up to {length} tokens, as in the run of the model; {MAX_NEW_TOKENS} sets another length")
    check_stops(policy, config.rollout.stop_token_ids, "rollout.stop_token_ids")
    return answer_limit(policy, sampling, MAX_NEW_TOKENS, given=given)


def _answer_rows(found: Mapping[tuple[str, str], Evaluation], *, named: bool) -> list[dict[str, Any]]:
    """Every answer with its rewards; of several models or sets with their names before it."""
    return [
        {**({"model": model, "set": title} if named else {}), **row}
        for (model, title), evaluation in found.items()
        for row in pack_groups(evaluation.groups)[0]
    ]


def _answer_length(path: str) -> int | None:
    """Tokens that an answer may have in the evaluations of the run whose checkpoint this is, from its config.yaml; else None."""
    folder = Path(path).expanduser().resolve()
    file = folder.parent.parent / "config.yaml"
    if folder.parent.name != CHECKPOINTS or not (folder / "checkpoint.json").is_file() or not file.is_file():
        return None
    settings = read_recipe(file)
    found = [(settings.get(section) or {}).get("max_new_tokens") for section in ("evaluation", "rollout")]
    return next((int(value) for value in found if value), None)


def load_model(config: ModelConfig, model: Any, say: Say) -> Policy:
    """The loaded model, or the configured one, with a line on which checkpoint that is."""
    if model is not None:
        return load_policy(model)
    if note := checkpoint_note(config.path):
        say(note)
    return load_policy(config)


def _checked_output(name: str | None, overwrite: bool) -> Path | None:
    if not name:
        if overwrite:
            raise InputError("overwrite has no effect without an output", hint="give output, or leave overwrite out")
        return None
    return checked_file(name, overwrite=overwrite)
