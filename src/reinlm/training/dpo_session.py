"""The trainer of dpo without its arguments: what it reads, checks and hands to the loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from reinlm.algorithms import PreferenceAlgorithm, resolve_preference
from reinlm.data import Judged, load_judged
from reinlm.data.loading import Found
from reinlm.data.preference_checks import describe
from reinlm.data.preferences import find_judged
from reinlm.errors import InputError
from reinlm.models import Policy
from reinlm.models.loading import check_model_folder
from reinlm.models.modules import has_dropout
from reinlm.rewards import RewardSet
from reinlm.runs import Progress
from reinlm.training.base_session import Session
from reinlm.training.dpo import DPORun
from reinlm.training.dpo_config import DPOConfig
from reinlm.training.inputs import Inputs, refuse_orders, say_skipped
from reinlm.training.judged_step import usable_units


class DPOInputs(Inputs):
    """The judged rows of a run, and the path of its reference.

    Raises InputError for data, columns, rows or a model folder that cannot be used.
    """

    def __init__(self, config: DPOConfig, algorithm: PreferenceAlgorithm) -> None:
        refuse_orders(config)
        if config.reference is not None:
            check_model_folder(config.reference.path)
        self.algorithm = algorithm
        self.found = find_judged(config.data)
        self.held_out = {name: find_judged(data) for name, data in config.evaluation.data.items()}

    def load(
        self, config: DPOConfig, policy: Policy, rewards: RewardSet | None, progress: Progress
    ) -> tuple[Judged, dict[str, Judged]]:
        """The judged answers to train on, and those of each evaluation set; `config` says how prompts are rendered."""
        limit = config.max_tokens or policy.context_length

        def load(data: Any, found: Found, name: str) -> Judged:
            judged = load_judged(data, policy.tokenizer, max_tokens=limit, found=found)
            say_skipped(progress, judged.skipped)
            judged, tied = usable_units(judged, self.algorithm.takes, self.algorithm.name)
            if judged.shortened:
                progress.say(f"{name}: left out the beginning of the prompts of {judged.shortened} {judged.kind}")
            for line in describe(judged):
                progress.say(f"{name}, {line}")
            if tied:
                progress.say(f"{name}: skipped {tied} ties, which {self.algorithm.name} learns nothing from")
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


class DPOSession(Session):
    """Learning from judged answers; see `reinlm.dpo` for what it takes."""

    kind = "dpo"
    config: DPOConfig
    run: DPORun
    preference: PreferenceAlgorithm

    def __init__(self, config: DPOConfig, *, algorithm: PreferenceAlgorithm | None = None, **options: Any) -> None:
        self.preference = algorithm or resolve_preference(config.algorithm)
        super().__init__(config, **options)

    def _check(self) -> None:
        check_dpo(self.config, self.preference)

    def _why_start(self) -> str | None:
        if self.config.reference is not None or not self.preference.needs_reference:
            return None
        return f"the reference of {self.preference.name} is the model as it was before training"

    def _read(self) -> DPOInputs:
        return DPOInputs(self.config, self.preference)

    def _make(self, loaded: tuple[Judged, dict[str, Judged]]) -> DPORun:
        judged, held_out = loaded
        if self.config.training.dropout and not has_dropout(self.policy.model):
            raise InputError(
                "training.dropout has no effect: every dropout of the model is 0",
                hint="leave it out, or set model.lora.dropout",
            )
        self.progress.say(f"{self.preference.name}: {self.preference.loss}, {len(judged)} {judged.kind}")
        self.notes += balance_notes(self.preference, judged)
        run = DPORun(self.config, self.preference, self.policy, judged, held_out, self._order, self.progress.say)
        for text in self.notes:
            self.progress.say(f"note: {text}")
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
    sets = {"data": config.data, **{f"evaluation.data.{name}": one for name, one in config.evaluation.data.items()}}
    for name, data in sets.items():
        if getattr(data, "ratings", None) is not None:
            raise InputError(
                f"{name}.ratings has no effect: dpo learns from pairs, rankings or labels",
                hint="make pairs of the ratings, or train a reward model on them",
            )
    for name in ("rollouts_every", "rollouts_max"):
        if config.run.changed(name) and config.run.rollouts_every:
            raise InputError(f"run.{name} has no effect: dpo has no rollouts to write", hint=f"leave run.{name} out")
