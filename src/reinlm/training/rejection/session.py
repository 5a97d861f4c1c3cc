"""The trainer of rft without its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reinlm.data.loading import row_order
from reinlm.environments import is_question
from reinlm.errors import InputError
from reinlm.records import Task
from reinlm.sources import IN_FORCE, Key
from reinlm.training.base_session import Session
from reinlm.training.episodes import resolve_environment
from reinlm.training.inputs import RFTInputs
from reinlm.training.rejection.config import METHODS, RFTConfig
from reinlm.training.rejection.run import RFTRun
from reinlm.training.rejection.stored import StoredAnswers


class RFTSession(Session):
    """Rejection sampling; see `reinlm.rft` for what it takes."""

    kind = "rft"
    config: RFTConfig
    run: RFTRun

    def _check(self) -> None:
        config = self.config
        sampled = config.answers == "model"
        self.environment = resolve_environment(config.environment, config.rollout, config.reward, needs_rewards=sampled)
        for name in ("rollouts_every", "rollouts_max"):
            if config.run.changed(name) and config.run.rollouts_every:
                raise InputError(
                    f"run.{name} has no effect: rft writes every answer to samples/", hint=f"leave run.{name} out"
                )
        if config.hint is not None and not is_question(self.environment):
            raise InputError(
                "hint has no place in an environment of several turns: it stands in the prompt of one question",
                hint="leave hint out, or take the environment 'question'",
            )

    def _why_start(self) -> str | None:
        if self.config.begins != "base" or self.config.rounds == 1:
            return None
        return f"each iteration of {self.config.method} learns from it as it was before training"

    def _in_force(self) -> dict[Key, str]:
        return in_force(self.config)

    def _read(self) -> RFTInputs:
        self._inputs = RFTInputs(self.config)
        return self._inputs

    def _make(
        self, loaded: tuple[Sequence[Task], dict[str, Sequence[Task]], int | None, StoredAnswers | None]
    ) -> RFTRun:
        tasks, sets, room, stored = loaded
        config = self.config
        setup = self._setup(config.rollout, self.environment)
        episodes = setup.episodes(config.data, config.rollout.sampling(self.policy.stops))

        def order(ids: Sequence[str], seed: int) -> Any:
            return row_order(config.data, self._inputs.found, ids, seed=seed)

        rule = config.rule
        kept = f"the best {rule.count} of each prompt" if rule.rule == "best" else f"rewards above {rule.above:g}"
        answers = f"{config.rounds} × {config.rollout.group_size} answers to each of"
        if stored is not None:
            answers = "the stored answers to"
        self.progress.say(
            f"{config.method} ({METHODS[config.method].source}): {answers} {len(tasks)} prompts, {kept}; learning begins from "
            f"the {config.begins} weights"
        )
        return RFTRun(
            config,
            self.policy,
            tasks,
            episodes,
            self.rewards,
            self._evaluator(setup, sets, config.rollout),
            folder=self.path / "samples",
            order=order,
            room=room,
            stored=stored,
            say=self.progress.say,
        )


def in_force(config: RFTConfig) -> dict[Key, str]:
    """What stands for settings that are null in this run, by path: comments for config.yaml."""
    rule = config.rule
    found: dict[Key, object] = {
        ("iterations",): config.rounds,
        ("start",): config.begins,
        ("keep", "rule"): rule.rule,
        ("keep", "distinct"): rule.distinct,
        ("keep", "above"): "none" if rule.above is None else rule.above,
    }
    if rule.rule == "best":
        found["keep", "count"] = rule.count
    else:
        found["keep", "per_prompt"] = "none" if rule.per_prompt is None else rule.per_prompt
    given = {("iterations",): config.iterations, ("start",): config.start}
    return {
        path: f"{IN_FORCE}{value}"
        for path, value in found.items()
        if (given[path] if path in given else getattr(config.keep, path[-1])) is None
    }
