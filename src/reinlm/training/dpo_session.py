"""The trainer of dpo without its arguments: what it reads, checks and hands to the loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from reinlm.algorithms import PREFERENCES, PreferenceAlgorithm, resolve_preference
from reinlm.data import Judged, JudgedDataConfig, load_judged
from reinlm.data.loading import Found, find_rows
from reinlm.data.preferences import find_judged
from reinlm.data.rows import counted
from reinlm.errors import InputError
from reinlm.loop import Callback
from reinlm.models import Policy
from reinlm.models.loading import check_model_folder
from reinlm.models.modules import has_dropout
from reinlm.records import Task
from reinlm.rewards import RewardSet
from reinlm.runs import Progress
from reinlm.training.base_session import Session
from reinlm.training.dpo import DPORun
from reinlm.training.dpo_config import DPOConfig
from reinlm.training.episodes import resolve_environment
from reinlm.training.inputs import Inputs, PromptInputs, refuse_orders, say_judged
from reinlm.training.judged_step import usable_units
from reinlm.training.likelihoods import FallingLikelihoods
from reinlm.training.online_dpo import OnlineDPORun
from reinlm.training.sessions import following_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class DPOInputs(Inputs):
    """The judged rows of a run, and the path of its reference.

    Raises InputError for data, columns, rows or a model folder that cannot be used.
    """

    def __init__(self, config: DPOConfig, algorithm: PreferenceAlgorithm) -> None:
        refuse_orders(config)
        if config.reference is not None:
            check_model_folder(config.reference.path, "reference.path")
        self.algorithm = algorithm
        try:
            self.found = find_judged(config.data)
        except InputError as error:
            raise _or_online(error, config) from error
        self.held_out = {name: find_judged(data) for name, data in config.evaluation.data.items()}

    def load(
        self, config: DPOConfig, policy: Policy, rewards: RewardSet | None, progress: Progress
    ) -> tuple[Judged, dict[str, Judged]]:
        """The judged answers to train on, and those of each evaluation set; `config` says how prompts are rendered."""
        limit = config.max_tokens or policy.context_length

        def load(data: Any, found: Found, name: str) -> Judged:
            judged = load_judged(data, policy.tokenizer, max_tokens=limit, found=found)
            say_judged(progress, name, judged)
            judged, tied = usable_units(judged, self.algorithm.takes, self.algorithm.name)
            if tied:
                progress.say(
                    f"{name}: skipped {counted(tied, 'ties')}, which {self.algorithm.name} learns nothing from"
                )
            if self.algorithm.loss.needs_margin and judged.margin is None:
                raise InputError(
                    f"{name}: algorithm {self.algorithm.name} reads the margin of each pair, and there is no column margin",
                    hint="give a column margin or strength, or set algorithm.margin_weight=0",
                )
            return judged

        judged = load(config.data, self.found, "data")
        sets = {
            name: load(data, self.held_out[name], f"evaluation.data.{name}")
            for name, data in cast("Mapping[str, Any]", config.evaluation.data).items()
        }
        return judged, sets


def _or_online(error: InputError, config: DPOConfig) -> InputError:
    """The error for rows without judgements; where they are prompts, with what samples and judges answers to them."""
    try:
        find_rows(config.data, "prompt")
    except InputError:
        return error
    if " has no column " not in error.message:
        return error
    return InputError(
        f"{error.message}, and nothing judges answers to its prompts",
        hint=f"{error.hint}; or give a reward, --reward file.py:function, which judges answers that the model samples (online "
        "DPO)",
    )


class DPOSession(Session):
    """Learning from judged answers, or from sampled ones; see `reinlm.dpo` for what it takes."""

    kind = "dpo"
    config: DPOConfig
    run: DPORun | OnlineDPORun
    preference: PreferenceAlgorithm

    def __init__(self, config: DPOConfig, *, algorithm: PreferenceAlgorithm | None = None, **options: Any) -> None:
        self.preference = algorithm or resolve_preference(config.algorithm)
        super().__init__(config, **options)

    def _check(self) -> None:
        check_dpo(self.config, self.preference)
        self.environment = resolve_environment(
            self.config.environment, self.config.rollout, self.config.reward, needs_rewards=self.config.online
        )

    def _watches(self) -> list[Callback]:
        return [FallingLikelihoods()]

    def _why_start(self) -> str | None:
        if self.config.reference is not None or not self.preference.needs_reference:
            return None
        return f"the reference of {self.preference.name} is the model as it was before training"

    def _read(self) -> Inputs:
        return PromptInputs(self.config) if self.config.online else DPOInputs(self.config, self.preference)

    def _make(self, loaded: Any) -> DPORun | OnlineDPORun:
        if self.config.training.dropout and not has_dropout(self.policy.model):
            raise InputError(
                "training.dropout has no effect: every dropout of the model is 0",
                hint="leave it out, or set model.lora.dropout",
            )
        run = self._online(*loaded) if self.config.online else self._offline(*loaded)
        for text in self.notes:
            self.progress.say(f"note: {text}")
        return run

    def _offline(self, judged: Judged, held_out: Mapping[str, Judged]) -> DPORun:
        self.progress.say(f"{self.preference.name}: {self.preference.loss}, {counted(len(judged), judged.kind)}")
        self.notes += balance_notes(self.preference, judged)
        return DPORun(self.config, self.preference, self.policy, judged, held_out, self._order, self.progress.say)

    def _online(self, tasks: Sequence[Task], sets: dict[str, Sequence[Task]], _: Any) -> OnlineDPORun:
        config = self.config
        copied = following_model(config, self.policy)
        sampled = self.policy if copied is None else replace(self.policy, model=cast("PreTrainedModel", copied.model))
        setup = self._setup(config.rollout, self.environment, sampled)
        run = OnlineDPORun(
            config,
            self.preference,
            self.policy,
            tasks,
            setup.episodes(config.data, config.rollout.sampling(self.policy.stops)),
            self.rewards,
            self._evaluator(setup, sets, config.rollout),
            self._order,
            self.progress.say,
            copied,
        )
        if self.rewards is not None:
            self.rewards.state_dict()  # a state that no checkpoint can hold ends the run before its first step
            self.notes += self.rewards.lost if self.resumed else ()
        prompts, size = config.rollout.groups, config.rollout.group_size
        updates = "1 update" if run.updates == 1 else f"{run.updates} updates"
        self.progress.say(
            f"{self.preference.name}, online: {self.preference.loss}; each step samples {size} answers to {prompts} of "
            f"{len(tasks)} prompts, and makes {updates} of their pairs"
        )
        return run


def balance_notes(algorithm: PreferenceAlgorithm, judged: Judged) -> list[str]:
    """What to know of the two classes of labelled answers; KTO wants λ_D n_D / (λ_U n_U) between 1 and 4/3 (arXiv 2402.01306).

    Raises InputError where there is one class alone.
    """
    if algorithm.takes != "labels" or judged.label is None:
        return []
    good = int(judged.label.sum())
    bad = len(judged.label) - good
    if not good or not bad:
        raise InputError(
            f"all {len(judged)} answers are labelled {'good' if good else 'bad'}, and {algorithm.name} needs both",
            hint="give answers of both labels, or imitate good ones with reinlm sft",
        )
    balance = getattr(algorithm.loss, "balance", None)
    if balance is None or 1.0 <= (ratio := balance(good, bad)) <= 4.0 / 3.0:
        return []
    return [
        f"{good} answers are labelled good and {bad} bad: weighed, {ratio:.2f} to 1, where KTO's paper has 1 to 4/3; "
        "algorithm.desirable_weight and algorithm.undesirable_weight balance them"
    ]


_OF_SAMPLED = (
    "samples",
    "temperature",
    "top_p",
    "top_k",
    "max_new_tokens",
    "correct_above",
    "best_of",
    "majority_vote",
)
_OF_JUDGED = ("ratings", "slices", "min_margin", "max_similarity")


def check_dpo(config: DPOConfig, algorithm: PreferenceAlgorithm) -> None:
    """Refuse settings without an effect, before anything is loaded."""
    settings, reads = config.training, algorithm.needs_reference
    given = {
        "reference": config.reference,
        "training.reference_cache": settings.reference_cache,
        "training.reference_refresh": settings.reference_refresh,
    }
    for name, value in given.items():
        if value is not None and not reads:
            raise InputError(f"{name} has no effect: {algorithm.name} reads no reference", hint=f"leave {name} out")
    if settings.reference_refresh is not None:
        if settings.reference_cache is not None:
            raise InputError(
                "training.reference_cache has no effect with training.reference_refresh: the reference moves",
                hint="leave one of them out",
            )
        if config.model.lora is not None and config.reference is None:
            raise InputError(
                "training.reference_refresh: a policy with a LoRA adapter has its own backbone as the reference",
                hint="set training.reference_refresh=null, or train without model.lora",
            )
    if config.model.lora is not None and config.model.lora.changed("dropout") and not settings.dropout:
        raise InputError(
            f"model.lora.dropout {config.model.lora.dropout} has no effect: dropout is off in dpo",
            hint="set training.dropout=true",
        )
    if config.online:
        _check_online(config, algorithm)
    else:
        _check_offline(config)


def _check_online(config: DPOConfig, algorithm: PreferenceAlgorithm) -> None:
    """Refuse what only judged answers of the data follow, and a loss of labels."""
    if algorithm.takes != "pairs":
        pairwise = [name for name, made in PREFERENCES.items() if made().takes == "pairs"]
        raise InputError(
            f"algorithm {algorithm.name} learns from labelled answers, and sampled answers become pairs",
            hint=f"take a loss of pairs: {', '.join(pairwise)}; or leave reward out, and give labelled answers",
        )
    refused = {"training.reference_cache": config.training.reference_cache is not None}
    refused["max_tokens"] = config.max_tokens is not None
    for where, data in _sets(config).items():
        refused |= {f"{where}.{name}": data.changed(name) for name in _OF_JUDGED}
        refused[f"{where}.on_long_prompt"] = data.on_long_prompt == "cut"
    for name, changed in refused.items():
        if changed:
            what = "rollout.max_new_tokens limits answers" if name == "max_tokens" else f"leave {name} out"
            raise InputError(
                f"{name} has no effect with a reward: answers are sampled in each step, and none is read", hint=what
            )
    if config.rollout.temperature == 0:
        raise InputError(
            f"rollout.temperature 0 gives {config.rollout.group_size} equal answers to a prompt, and no pair",
            hint="set rollout.temperature=1.0; evaluation may be greedy",
        )


def _check_offline(config: DPOConfig) -> None:
    """Refuse what only sampled answers follow."""
    sections = {"rollout": config.rollout, "pairs": config.pairs}
    refused = {f"{part}.{name}": one.changed(name) for part, one in sections.items() for name in type(one).model_fields}
    refused |= {f"evaluation.{name}": config.evaluation.changed(name) for name in _OF_SAMPLED}
    for name, changed in refused.items():
        if changed:
            raise InputError(
                f"{name} has no effect without a reward: the answers are those of the data, and none is sampled",
                hint=f"leave {name} out, or give reward=… and prompts (online DPO)",
            )
    for name, data in _sets(config).items():
        if data.ratings is not None:
            raise InputError(
                f"{name}.ratings has no effect: dpo learns from pairs, rankings or labels",
                hint="make pairs of the ratings, or train a reward model on them",
            )
    for name in ("rollouts_every", "rollouts_max"):
        if config.run.changed(name) and config.run.rollouts_every:
            raise InputError(
                f"run.{name} has no effect: dpo on judged answers has no rollouts to write",
                hint=f"leave run.{name} out",
            )


def _sets(config: DPOConfig) -> dict[str, JudgedDataConfig]:
    """The data of a run by the key that names them."""
    return {"data": config.data, **{f"evaluation.data.{name}": one for name, one in config.evaluation.data.items()}}
