"""`reinlm bench`: steps of reinforcement learning on random prompts, timed, and set against what the machine can do."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reinlm.algorithms import Algorithm, resolve
from reinlm.batches import token_batch
from reinlm.data import Renderer
from reinlm.display import text_table
from reinlm.errors import InputError, RunError
from reinlm.loop import BatchPrepared, Event, GroupScored, StepContext
from reinlm.models import Policy, disable_dropout, load_policy
from reinlm.models.loading import empty_model, model_device
from reinlm.models.matmul import current_backend
from reinlm.models.modules import count_parameters
from reinlm.models.threads import using_threads
from reinlm.places import checkpoint_note
from reinlm.records import ScoredGroup, Task
from reinlm.rewards import RewardSet, build_rewards
from reinlm.rollouts import Episodes, build_engine
from reinlm.runs.files import checked_file, write_json
from reinlm.training.benchmark.config import WARM_UP, BenchConfig, alternating
from reinlm.training.benchmark.figures import FIGURES
from reinlm.training.benchmark.machine import (
    Machine,
    forget_peak,
    free_memory,
    measure_machine,
    memory_held,
    peak_memory,
    synchronize,
)
from reinlm.training.benchmark.memory import GIB, MemoryNeeds, check_memory, memory_needs
from reinlm.training.benchmark.work import (
    SampledGroup,
    model_work,
    sampling_seconds,
    training_work,
)
from reinlm.training.computing import Computing
from reinlm.training.config import RLConfig
from reinlm.training.rl import RLRun
from reinlm.training.rl_checks import check_settings
from reinlm.training.setup import autocast, prompt_room, seed_everything

STANDARD_OUTPUT = "-"


@dataclass(frozen=True)
class Benchmark:
    """The result of `reinlm.bench`.

    Example:
        reinlm.bench("PATH_OR_NAME", turns=3).figures["rollout/tokens_per_second"]
    """

    figures: dict[str, float]
    """By name, as `reinlm.training.benchmark.figures.FIGURES` says: medians over the turns."""
    turns: tuple[dict[str, float], ...]
    """The figures of every measured step, with the norm of its gradient."""
    shape: dict[str, Any]
    """What was measured: parameters, dtypes, tokens and answers."""
    machine: Machine
    memory: MemoryNeeds

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {"schema": 1, **asdict(self)}

    def rows(self) -> list[tuple[str, str]]:
        """(figure, value with its unit) of every figure, then the peaks of the machine."""
        peaks = [(f"machine/{name}", f"{flops / 1e9:,.0f} Gflop/s") for name, flops in self.machine.flops.items()]
        bandwidth = ("machine/bandwidth", f"{self.machine.bandwidth / 1e9:,.1f} GB/s")
        return [*((name, shown(name, value)) for name, value in self.figures.items()), *peaks, bandwidth]

    def __str__(self) -> str:
        return text_table([("figure", "value"), *self.rows()])


def shown(name: str, value: float) -> str:
    """A figure as text."""
    unit = FIGURES[name].unit
    if unit == "share":
        return f"{value:.1%}"
    if unit == "bytes":
        return f"{value / GIB:.2f} GiB"
    if unit == "operations":
        return f"{value / 1e9:,.1f} G"
    return f"{value:,.3f} {unit}" if unit == "s" else f"{value:,.0f} {unit}"


class RandomPrompts(Renderer):
    """Tasks whose content is a number: the number of a prompt of random tokens, none of them special."""

    def __init__(self, tokenizer: Any, *, count: int, tokens: int, seed: int) -> None:
        super().__init__(tokenizer)
        special = set(tokenizer.all_special_ids)
        ids = np.array([token for token in sorted(tokenizer.get_vocab().values()) if token not in special])
        self._ids = np.random.default_rng(seed).choice(ids, (count, tokens))

    def prompt(self, content: Any, where: str) -> list[int]:
        """The tokens of the prompt of this number."""
        ids: list[int] = self._ids[int(content)].tolist()
        return ids


def run_bench(
    config: BenchConfig, *, model: Any = None, overwrite: bool = False, say: Callable[[str], None] = lambda _text: None
) -> Benchmark:
    """Measure a model. What the verb `bench` calls; a model that is given in Python keeps its weights.

    Raises:
        InputError: files that exist, without `overwrite`; settings that contradict one another; a model that does not fit
            into memory; all before weights are loaded.
    """
    output, profile = _files(config, overwrite)
    rl = config.of_rl()
    algorithm = resolve(rl.algorithm)
    if algorithm.needs_teacher:
        raise InputError(f"{algorithm.name} learns from a teacher, and bench has none", hint="take another algorithm")
    check_settings(rl, algorithm)
    if model is None and (note := checkpoint_note(config.model.path)):
        say(note)
    seed_everything(config.seed)
    with using_threads(config.threads):
        memory, held = _memory(config, algorithm, model)
        say(f"memory  about {memory.total / GIB:.3g} GiB")
        policy = load_policy(config.model if model is None else model)
        with (
            Computing.chosen(policy.model, config.threads).in_force(),
            build_rewards(alternating, time_limit=None) as rewards,
        ):
            steps = _Steps(config, rl, algorithm, policy, rewards, say)
            found = steps.measure(memory, held)
            if profile is not None:
                steps.trace(profile)
                say(f"trace  {profile}")
    if output is not None:
        write_json(output, found.to_json())
    return found


def _files(config: BenchConfig, overwrite: bool) -> tuple[Path | None, Path | None]:
    """The files for figures and for the trace."""
    names = (None if config.output == STANDARD_OUTPUT else config.output, config.profile)
    if overwrite and not any(names):
        raise InputError(
            "overwrite has no effect without a file", hint="give output or profile, or leave overwrite out"
        )
    output, profile = (None if name is None else checked_file(name, overwrite=overwrite) for name in names)
    if output is not None and profile is not None and output.absolute() == profile.absolute():
        raise InputError(f"output and profile are both {output}", hint="give two files")
    return output, profile


def _memory(config: BenchConfig, algorithm: Algorithm, model: Any) -> tuple[MemoryNeeds, int]:
    """What a step takes, and what is held beside it before the model is loaded.

    Raises InputError where the step takes more than there is; a model that is loaded already has its weights.
    """
    if model is None:
        device, counted, has = model_device(config.model), empty_model(config.model), 0
    else:
        policy = load_policy(model)
        device, counted = policy.device, policy.model
        has = sum(weight.nbytes for weight in counted.parameters())
    needs = memory_needs(counted, model_work(counted), config, algorithm)
    check_memory(config.model.path, needs, free_memory(device) + has, device)
    return needs, max(memory_held(device) - has, 0)


class _Steps:
    """Steps of a run on random prompts."""

    def __init__(
        self,
        config: BenchConfig,
        rl: RLConfig,
        algorithm: Algorithm,
        policy: Policy,
        rewards: RewardSet,
        say: Callable[[str], None],
    ) -> None:
        self.config, self.algorithm, self.say = config, algorithm, say
        rollout = config.rollout
        room = prompt_room(policy, rollout.max_new_tokens, "rollout.max_new_tokens")
        if room is not None and rollout.prompt_tokens > room:
            raise InputError(
                f"rollout.prompt_tokens {rollout.prompt_tokens} and rollout.max_new_tokens {rollout.max_new_tokens} exceed "
                f"the context of {policy.context_length} tokens",
                hint=f"set rollout.prompt_tokens to {room} or less",
            )
        disable_dropout(policy.model)
        self.policy = replace(policy, stops=()) if rollout.ignore_eos else policy
        self.device = policy.device
        self.work = model_work(policy.model)
        computed = autocast(rl.training, policy)
        self.computed = computed or policy.model.dtype
        self.machine = measure_machine(self.device, (torch.float32, torch.bfloat16, self.computed))
        engine = build_engine(rollout.engine, policy, autocast=computed, max_running=rollout.max_running)
        if algorithm.needs_columns - set(engine.capabilities.columns):
            raise InputError(f"{algorithm.name} reads columns that engine {rollout.engine!r} does not give")
        prompts = RandomPrompts(policy.tokenizer, count=rollout.groups, tokens=rollout.prompt_tokens, seed=config.seed)
        episodes = Episodes(engine, prompts, rl.rollout.sampling(self.policy.stops), seed=config.seed)
        tasks = [Task(f"prompt {number}", str(number)) for number in range(rollout.groups)]
        self.run = RLRun(rl, algorithm, self.policy, tasks, episodes, rewards, say=say)
        self.made = 0

    def measure(self, memory: MemoryNeeds, held: int) -> Benchmark:
        """The figures of all turns, after the steps that warm up; `held` are bytes that are not the model's."""
        for _ in range(WARM_UP):
            self._step()
        forget_peak(self.device)
        turns = []
        for number in range(self.config.turns):
            turns.append(self._step())
            self.say(f"turn {number + 1}/{self.config.turns}  {turns[-1]['time/step']:.3f} s")
        peak = {"memory/peak": peak_memory(self.device), "memory/held": held, "memory/needed": memory.total}
        medians = {name: statistics.median(turn[name] for turn in turns) for name in turns[0] if name in FIGURES}
        figures = {**medians, **{name: float(size) for name, size in peak.items()}}
        return Benchmark({name: figures[name] for name in FIGURES}, tuple(turns), self._shape(), self.machine, memory)

    def trace(self, file: Path) -> None:
        """Write the trace of one step."""
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self.device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        with torch.profiler.profile(activities=activities) as profiler:
            self._step()
        profiler.export_chrome_trace(str(file))

    def _step(self) -> dict[str, float]:
        """One step, with its figures."""
        self.made += 1
        sampled: list[ScoredGroup] = []
        trained: list[ScoredGroup] = []

        def take(event: Event) -> None:
            if isinstance(event, GroupScored):
                sampled.append(event.group)
            elif isinstance(event, BatchPrepared):
                trained.extend(event.groups)

        synchronize(self.device)
        started = time.perf_counter()
        report = self.run.step(self.made, StepContext(send=take))
        synchronize(self.device)
        seconds = time.perf_counter() - started
        if not trained:
            raise RunError(f"a step trained on nothing: {report.stop or 'no answer has a token'}")
        phases = {name: report.metrics.get(name, 0.0) for name in FIGURES if name.startswith("time/")}
        return self._figures({**phases, "time/step": seconds}, sampled, trained) | {
            "answers": float(report.metrics["samples"]),
            "mean_length": float(report.metrics["completions/mean_length"]),
            "grad_norm": float(report.metrics.get("grad_norm", 0.0)),
        }

    def _figures(
        self, seconds: Mapping[str, float], sampled: Sequence[ScoredGroup], trained: Sequence[ScoredGroup]
    ) -> dict[str, float]:
        tokens = sum(rollout.length for group in sampled for rollout in group.group.rollouts)
        peak = self.machine.flops[str(self.computed).removeprefix("torch.")]
        floor = sampling_seconds(
            self.work,
            [_lengths(group) for group in sampled],
            slots=self.config.rollout.max_running,
            flops=peak,
            bandwidth=self.machine.bandwidth,
        )
        batch = token_batch(trained)
        once = training_work(self.work, batch)
        flops = once.flops
        if self.algorithm.critic is not None:  # its backbone is a copy of the policy's
            flops += training_work(replace(self.work, head=0, head_trained=0), batch).flops
        flops *= self.run.updates.passes
        return {
            **seconds,
            "rollout/tokens": float(tokens),
            "rollout/tokens_per_second": tokens / seconds["time/rollout"],
            "rollout/roofline": floor / seconds["time/rollout"],
            "step/tokens_per_second": tokens / seconds["time/step"],
            "training/tokens": float(once.tokens),
            "training/flops": float(flops),
            "training/tokens_per_second": once.scored / seconds["time/update"],
            "training/roofline": flops / seconds["time/update"] / peak,
        }

    def _shape(self) -> dict[str, Any]:
        """What was measured."""
        rollout, model = self.config.rollout, self.policy.model
        return {
            "model": self.config.model.path,
            "parameters": count_parameters(model).total,
            "trainable": count_parameters(model).trainable,
            "matrices": self.work.body + self.work.head,
            "dtype": str(model.dtype).removeprefix("torch."),
            "computed_in": str(self.computed).removeprefix("torch."),
            "packing": self.run.model.packing,
            "matmul": current_backend(),
            "algorithm": self.algorithm.name,
            "passes": self.run.updates.passes,
            "minibatches": self.run.updates.minibatches,
            **{name: getattr(rollout, name) for name in type(rollout).model_fields if name != "engine"},
        }


def _lengths(group: ScoredGroup) -> SampledGroup:
    """The tokens of a group's prompt and of each of its answers."""
    rollouts = group.group.rollouts
    prompt = sum(len(segment) for segment in rollouts[0].segments) - rollouts[0].length
    return SampledGroup(prompt, tuple(rollout.length for rollout in rollouts))
