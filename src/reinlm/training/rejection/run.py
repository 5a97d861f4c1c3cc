"""Rejection sampling: an iteration samples answers, keeps some, and imitates them; a step is one update."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reinlm.batches import example_batch
from reinlm.data import Examples, RowOrder
from reinlm.loop import BatchPrepared, GroupScored, StepContext, StepReport, Updated
from reinlm.models import Policy, TokenModel, Want
from reinlm.objectives.best_of_n import best_of_n_kl
from reinlm.records import Content, ScoredGroup, Segment, Task
from reinlm.rewards import RewardSet, TrainerState
from reinlm.rollouts import Episodes, EventLoop
from reinlm.rollouts.unrewarded import check_rewarded
from reinlm.training.evaluation import Evaluator, reward_names
from reinlm.training.learner import Learner
from reinlm.training.ledger import Resident, policy_of
from reinlm.training.optimizer import Optimizer
from reinlm.training.policy import TrainsPolicy
from reinlm.training.rejection.config import RFTConfig
from reinlm.training.rejection.sampling import PartSampler, Samples, hinted_tasks
from reinlm.training.rejection.selection import Verdict, select, selection_metrics
from reinlm.training.rejection.store import SampleStore, fingerprint
from reinlm.training.rejection.stored import StoredAnswers
from reinlm.training.sampled import sampled_metrics, unrewarded_metrics, usage_metrics
from reinlm.training.setup import Phases, autocast, total_steps
from reinlm.training.sft import sft_loss

MakeOrder = Callable[[Sequence[str], int], RowOrder]
"""(ids of the kept answers, seed) -> the order in which they are learned from."""


@dataclass
class Round:
    """One round of learning: the examples that are left to learn from."""

    examples: Examples
    order: RowOrder
    learner: Learner
    steps: int
    """Updates of the round."""
    made: int = 0
    """Updates made so far."""


class RFTRun(TrainsPolicy):
    """What `reinlm rft` runs. A round of learning is one pass of an iteration over what one bound keeps.

    The first step of an iteration samples, the first one of a round selects; every step makes one update of `batch_size`
    examples. Each round has an optimizer of its own, with the schedule over its steps.

    Args:
        tasks: the prompts, in the order of the data.
        folder: where samples and selections are written.
        order: gives the order of learning.
        stored: answers that stand in place of sampled ones.
        room: tokens that a prompt may have; None: no limit.
    """

    kind = "rft"

    def __init__(
        self,
        config: RFTConfig,
        policy: Policy,
        tasks: Sequence[Task],
        episodes: Episodes,
        rewards: RewardSet | None,
        evaluator: Evaluator | None,
        *,
        folder: Path,
        order: MakeOrder,
        room: int | None,
        stored: StoredAnswers | None = None,
        say: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.config = config
        self.policy = policy
        self.tasks = tasks
        self.rewards = rewards
        self.evaluator = evaluator
        self.folder = folder
        self.model = TokenModel(
            policy.model, packing=config.training.packing, chunk_tokens=config.training.logprob_chunk
        )
        self.rounds = config.rounds * len(config.bounds)
        """Rounds of learning in all."""
        self.tokens = 0
        self._loop = EventLoop()
        self._sampler = PartSampler(
            episodes,
            rewards,
            group_size=config.rollout.group_size,
            batch_size=config.rollout.batch_size,
            loop=self._loop,
            stored=stored,
        )
        self._stored = stored
        self._episodes = episodes
        self._order = order
        self._room = room
        self._say = say
        self._lengths: list[int] = []
        """Updates of the rounds begun so far."""
        self._updates = 0
        """Updates made in earlier rounds."""
        self._round: Round | None = None
        self._samples: Samples | None = None
        again = config.begins == "base" and config.rounds > 1
        self._base = {name: weight.detach().clone() for name, weight in self._trained()} if again else {}

    def _trained(self) -> list[tuple[str, torch.nn.Parameter]]:
        return [(name, weight) for name, weight in self.policy.model.named_parameters() if weight.requires_grad]

    @property
    def total_steps(self) -> int:
        """Updates in all: of rounds that are not begun, as many as they have at most."""
        return sum(self._lengths) + (self.rounds - len(self._lengths)) * self._most

    @property
    def _most(self) -> int:
        """Updates that a round has at most: where every prompt has all the answers that may be kept."""
        rule, size = self.config.rule, self.config.rollout.group_size
        sizes = [size] * len(self.tasks)
        if self._stored is not None:
            sizes = [len(group.rollouts) for group in self._stored.groups.values()]
        limit = rule.count if rule.rule == "best" else rule.per_prompt
        return self._updates_of(sum(sizes if limit is None else [min(limit, size) for size in sizes]))

    def _updates_of(self, examples: int) -> int:
        settings = self.config.training
        return total_steps(settings, examples, min(settings.batch_size, examples))

    @property
    def version(self) -> int:
        """Optimizer steps made in all rounds."""
        return self._updates + (self._round.learner.version if self._round else 0)

    # ------------------------------------------------------------------------------------------ a step

    def step(self, step: int, context: StepContext) -> StepReport:
        phases = Phases()
        metrics: dict[str, float] = {}
        if self._round is None:
            metrics, kept = self._begin(step, context, phases)
            if not len(kept):
                return StepReport({**metrics, **phases.seconds}, stop=self._nothing(metrics))
        assert self._round is not None
        metrics |= self._update(step, context, phases, self._round)
        metrics["rft/iteration"] = float(1 + (len(self._lengths) - 1) // len(self.config.bounds))
        if self._round.made == self._round.steps:
            self._updates += self._round.learner.version
            self._round = None
        return StepReport({**metrics, **phases.seconds})

    def _nothing(self, metrics: Mapping[str, float]) -> str:
        iteration, passed = divmod(len(self._lengths) - 1, len(self.config.bounds))
        bound = self.config.bounds[passed]
        above = "" if bound is None else f" with a reward above {bound:g}"
        return f"iteration {iteration + 1} kept no answer{above}: nothing to learn from"

    def _update(self, step: int, context: StepContext, phases: Phases, now: Round) -> dict[str, float]:
        size = min(self.config.training.batch_size, len(now.examples))
        chosen = now.examples.take(now.order.take(size))
        batch = example_batch(chosen.token_ids, chosen.trained, chosen.offsets)
        context.send(BatchPrepared(step, batch.sequences, batch.tokens))
        with phases("update"):
            found = now.learner.forward_backward(batch, sft_loss(batch.tokens), want=Want(entropy=True))
            measured = now.learner.optim_step(context.last_checkpoint)
        metrics = {**found.metrics.means(), **measured}
        context.send(Updated(step, metrics))
        now.made += 1
        self.tokens += batch.tokens
        return metrics | {
            "epoch": now.order.epochs,
            "num_tokens": float(self.tokens),
            "tokens_per_second": batch.tokens / phases.seconds["time/update"],
        }

    # ------------------------------------------------------------------------------------------ sample and select

    def _begin(self, step: int, context: StepContext, phases: Phases) -> tuple[dict[str, float], Examples]:
        """Begin the next round of learning: sample where it is the first of its iteration, select, make the learner."""
        number = len(self._lengths)
        iteration, passed = divmod(number, len(self.config.bounds))
        rule = replace(self.config.rule, above=self.config.bounds[passed])
        metrics: dict[str, float] = {}
        store = self._store(iteration, fresh=passed == 0)
        if self._samples is None or passed == 0:
            self._samples = self._sample(step, iteration, store, phases)
            if passed == 0:
                metrics = self._sampled(self._samples)
                for group in self._samples.groups:
                    context.send(GroupScored(step, group))
                if self._base and iteration:
                    self._back_to_base()
        samples = self._samples
        groups = [*samples.groups, *samples.hinted]
        verdicts = [select(group, rule) for group in groups]
        metrics |= selection_metrics(samples.groups, verdicts[: len(samples.groups)])
        if samples.hinted:
            metrics |= self._hinted_metrics(verdicts[len(samples.groups) :])
        examples = self._examples(groups, verdicts)
        self._write(store, passed + 1, groups, verdicts, len(samples.groups))
        steps = self._updates_of(len(examples)) if len(examples) else 0
        self._lengths.append(steps)
        if steps:
            order = self._order(examples.ids, self.config.seed + number)
            self._round = Round(examples, order, self._learner(steps), steps)
        if passed + 1 == len(self.config.bounds):
            self._samples = None
        read = f", {samples.read} parts of them read from {store.folder}" if samples.read else ""
        self._say(
            f"iteration {iteration + 1} of {self.config.rounds}: {len(examples)} of "
            f"{sum(len(group.events) for group in groups)} answers kept{read}"
        )
        return metrics, examples

    def _store(self, iteration: int, *, fresh: bool) -> SampleStore:
        """The folder of an iteration's samples; those of other weights are removed at its begin."""
        folder = self.folder / f"iteration_{iteration + 1}"
        return SampleStore(folder, fingerprint(self.policy.model) if fresh else None)

    def _sample(self, step: int, iteration: int, store: SampleStore, phases: Phases) -> Samples:
        samples = Samples()
        state = TrainerState(global_step=step - 1, max_steps=self.total_steps, epoch=float(iteration))
        collect = partial(
            self._sampler.collect, into=samples, store=store, state=state, version=self.version, phases=phases
        )
        collect(self.tasks, name="part", tag=str(iteration))
        check_rewarded(
            f"iteration {iteration + 1}", samples.groups, samples.messages, functions=self.rewards is not None
        )
        if self.config.hint is not None:
            rule = self.config.rule
            missed = [group.group.task for group in samples.groups if not any(v.kept for v in select(group, rule))]
            tasks, long = hinted_tasks(missed, self.config.hint, self._prompt_tokens, self._room)
            if long:
                self._say(f"note: {long} prompts are too long with their hint, and have no second try")
            collect(tasks, name="hinted", tag=f"{iteration}/hint", hinted=True)
        return samples

    def _prompt_tokens(self, task: Task) -> int:
        return len(self._episodes.renderer.prompt(task.content, task.id))

    def _sampled(self, samples: Samples) -> dict[str, float]:
        names = reward_names(samples.groups, self.rewards)
        metrics = sampled_metrics(samples.groups, names) | usage_metrics(samples.usage)
        metrics |= unrewarded_metrics(samples.groups) | {"rewards/failed": float(samples.failures)}
        rule = self.config.rule
        if rule.rule == "best" and rule.count == 1 and self._stored is None:
            metrics["rft/kl_bound"] = best_of_n_kl(self.config.rollout.group_size)
        for name, text in samples.messages.items():
            self._say(f"note: reward {name}: {text}")
        return metrics

    def _hinted_metrics(self, verdicts: Sequence[Sequence[Verdict]]) -> dict[str, float]:
        kept = sum(verdict.kept for row in verdicts for verdict in row)
        return {"rft/hinted": float(sum(map(len, verdicts))), "rft/hinted_kept": float(kept)}

    def _back_to_base(self) -> None:
        with torch.no_grad():
            for name, weight in self._trained():
                weight.copy_(self._base[name])

    def _examples(self, groups: Sequence[ScoredGroup], verdicts: Sequence[Sequence[Verdict]]) -> Examples:
        """The kept answers as examples, prompt by prompt; those to a hinted prompt after the prompt without its hint."""
        own = {task.id: task for task in self.tasks}
        place = {task.id: number for number, task in enumerate(self.tasks)}
        ids: list[str] = []
        tokens: list[Any] = []
        trained: list[Any] = []
        pairs = sorted(zip(groups, verdicts, strict=True), key=lambda pair: place[pair[0].group.task.id])
        for group, row in pairs:
            task = own[group.group.task.id]
            for sample, (rollout, verdict) in enumerate(zip(group.group.rollouts, row, strict=True)):
                for part, segment in enumerate(rollout.segments if verdict.kept else ()):
                    token_ids, chosen = self._without_hint(segment, group.group.task.content, task)
                    ids.append(f"{task.id}#{sample}" + (f".{part}" if part else ""))
                    tokens.append(token_ids)
                    trained.append(chosen)
        offsets = np.cumsum([0, *(len(part) for part in tokens)], dtype=np.int64)
        return Examples(
            ids,
            np.concatenate(tokens) if tokens else np.zeros(0, np.int32),
            np.concatenate(trained) if trained else np.zeros(0, np.bool_),
            offsets,
        )

    def _without_hint(self, segment: Segment, content: Content, task: Task) -> tuple[Any, Any]:
        if content == task.content:
            return segment.token_ids, segment.chosen
        prompt = np.array(self._episodes.renderer.prompt(task.content, task.id), np.int32)
        answer = segment.chosen_ids
        flags = np.concatenate([np.zeros(len(prompt), np.bool_), np.ones(len(answer), np.bool_)])
        return np.concatenate([prompt, answer]), flags

    def _write(
        self,
        store: SampleStore,
        number: int,
        groups: Sequence[ScoredGroup],
        verdicts: Sequence[Sequence[Verdict]],
        first: int,
    ) -> None:
        """What was kept and why, and the kept answers as rows that `reinlm sft` reads."""
        own = {task.id: task for task in self.tasks}
        rows = [
            {
                "task_id": group.group.task.id,
                "sample": sample,
                "hinted": place >= first,
                "kept": verdict.kept,
                "why": verdict.why if verdict.of is None else f"duplicate of sample {verdict.of}",
                "reward": reward,
                "prompt": own[group.group.task.id].content,
                "completion": rollout.completion,
            }
            for place, (group, row) in enumerate(zip(groups, verdicts, strict=True))
            for sample, (rollout, reward, verdict) in enumerate(
                zip(group.group.rollouts, group.returns, row, strict=True)
            )
        ]
        store.write_rows(f"selection_{number}", rows)
        names = ("prompt", "completion", "reward", "task_id", "sample")
        store.write_rows(f"kept_{number}", [{name: row[name] for name in names} for row in rows if row["kept"]])

    def _learner(self, steps: int) -> Learner:
        settings = self.config.training
        return Learner(
            self.model,
            Optimizer(self.policy.model.parameters(), self.config.optimizer, steps),
            micro_batch_tokens=settings.micro_batch_tokens,
            autocast=autocast(settings, self.policy),
        )

    # ------------------------------------------------------------------------------------------ the rest

    def set_learning_rate(self, value: float) -> None:
        if self._round is not None and self._round.learner.optimizer is not None:
            self._round.learner.optimizer.set_rate(value)

    def scale_learning_rate(self, factor: float) -> None:
        if self._round is not None and self._round.learner.optimizer is not None:
            self._round.learner.optimizer.scale *= factor

    def evaluate(self, step: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
        if self.evaluator is None:
            return {}, []
        state = TrainerState(global_step=step, max_steps=self.total_steps)
        return self.evaluator.evaluate(state, version=self.version)

    def residents(self) -> list[Resident]:
        """The models in memory; each round of learning has an optimizer of its own."""
        optimizer = Optimizer(self.policy.model.parameters(), self.config.optimizer, 1)
        start = [Resident("policy at the start", list(self._base.values()))] if self._base else []
        return [policy_of(self.policy.model, optimizer), *start]

    def state_dict(self) -> dict[str, Any]:
        now = self._round
        learning = None
        if now is not None:
            examples = now.examples
            learning = {
                "ids": list(examples.ids),
                "arrays": [np.array(x) for x in (examples.token_ids, examples.trained, examples.offsets)],
                "order": now.order.state_dict(),
                "optimizer": now.learner.state_dict(),
                "made": now.made,
            }
        return {
            "lengths": list(self._lengths),
            "updates": self._updates,
            "tokens": self.tokens,
            "rewards": {} if self.rewards is None else self.rewards.state_dict(),
            "round": learning,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._lengths = list(state["lengths"])
        self._updates, self.tokens = int(state["updates"]), int(state["tokens"])
        if self.rewards is not None:
            self.rewards.load_state_dict(state["rewards"])
        self._samples, self._round = None, None
        learning = state["round"]
        if learning is not None:
            examples = Examples(learning["ids"], *learning["arrays"])
            order = self._order(examples.ids, self.config.seed + len(self._lengths) - 1)
            order.load_state_dict(learning["order"])
            steps = self._lengths[-1]
            self._round = Round(examples, order, self._learner(steps), steps, int(learning["made"]))
            self._round.learner.load_state_dict(learning["optimizer"])
