"""How cost grows: time and memory of sampling, scoring and an update at 1, 2, 4 and 8 times the size of each thing.

    python benchmarks/growth.py --output runs/growth          # some minutes; growth.md, growth.svg and growth.json
    python benchmarks/growth.py --check                       # fails where a cost grows more than 25 % faster than linear

What grows: sequences of a batch (in more groups), tokens of each answer, vocabulary, group size (in as many groups, so that
there are more sequences), tokens of each prompt. The phases are those of a step of `reinlm rl`: *sampling* (episodes, engine,
rewards), *scoring* (log-probabilities and entropies of all answers, without gradient), *update* (forward and backward passes,
optimizer).

A figure is cost(k) / (k · cost(1)): 1 is linear, less is what fixed costs make of it. They may hide what grows faster, so the
last doubling stands beside it, cost(8) / (2 · cost(4)). Time is that of the processor, on one thread: the median over `--turns`
turns of the ratio within a turn, in which smaller sizes come as often as makes them as much work as the largest. Memory is the
peak of a phase above what is held before it: of all tensors, as torch's profiler counts them, and of Python's objects and
arrays, as tracemalloc does; what libraries allocate inside of an operation is not in it. Answers have their full length.

Attention takes a product for each pair of tokens, so it is quadratic in lengths. The time in it, forward and backward, is
measured apart and left out of the ratios; its share stands beside them. Peaks of memory hold what it takes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from random_models import Row, alphabet, random_model
from torch import Tensor

from reinlm.algorithms import resolve
from reinlm.batches import feedback, token_batch
from reinlm.composition import Updates
from reinlm.models import Want, character_tokenizer, load_policy
from reinlm.models.matmul import fastest_backend, using_backend
from reinlm.models.prefix_sharing import PrefixTree
from reinlm.records import ScoredGroup, Task
from reinlm.rewards import RewardSet, TrainerState, build_rewards
from reinlm.rollouts import Episodes, build_engine
from reinlm.rollouts.slots import DecodeAttention
from reinlm.training.benchmark.config import BenchConfig, alternating
from reinlm.training.benchmark.run import RandomPrompts
from reinlm.training.rl import RLRun
from reinlm.training.setup import Phases

sys.path.insert(0, str(Path(__file__).parents[1] / "studies"))
from figures import Curve, Panel, picture, table

FACTORS = (1, 2, 4, 8)
ALLOWED = 1.25
"""Cost relative to linear at most."""
BASE = Row(
    "base",
    hidden=256,
    layers=2,
    heads=2,
    kv_heads=1,
    inner=1024,
    vocabulary=256,
    prompt=32,
    answer=32,
    answers=16,
    group=4,
)
"""Attention of two heads beside wide layers, so that its share is small."""

AXES: dict[str, Callable[[int], Row]] = {
    "sequences": lambda k: replace(BASE, answers=BASE.answers * k),
    "answer length": lambda k: replace(BASE, answer=BASE.answer * k),
    "vocabulary": lambda k: replace(BASE, vocabulary=8192 * k, hidden=128, inner=256),
    "group size": lambda k: replace(BASE, answers=BASE.answers * k, group=BASE.group // 2 * k),
    "prompt length": lambda k: replace(BASE, prompt=2 * BASE.prompt * k, answer=8, group=2),
}
"""By what grows: the shape at each factor. What grows has a large part in the cost at the base already: the head of a model of
small layers, the reading of prompts with few, short answers."""

# ------------------------------------------------------------------------------------------------ attention apart


@dataclass
class Clock:
    """Processor seconds and those on the wall, summed over stretches."""

    cpu: float = 0.0
    wall: float = 0.0
    _since: tuple[float, float] = field(default=(0.0, 0.0), repr=False)

    def start(self) -> None:
        self._since = (time.process_time(), time.perf_counter())

    def stop(self) -> None:
        self.cpu += time.process_time() - self._since[0]
        self.wall += time.perf_counter() - self._since[1]


class _Entered(torch.autograd.Function):
    """Changes nothing; its backward pass comes after that of attention."""

    @staticmethod
    def forward(ctx: Any, clock: Clock, *states: Tensor) -> tuple[Tensor, ...]:
        ctx.clock = clock
        return tuple(x.view_as(x) for x in states)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        ctx.clock.stop()
        return (None, *gradients)


class _Left(torch.autograd.Function):
    """Changes nothing; its backward pass comes before that of attention."""

    @staticmethod
    def forward(ctx: Any, clock: Clock, states: Tensor) -> Tensor:
        ctx.clock = clock
        return states.view_as(states)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        ctx.clock.start()
        return (None, *gradients)


@contextlib.contextmanager
def timed_attention(clock: Clock) -> Iterator[None]:
    """Add to the clock what attention takes within the context, in training and in the engine, forward and backward."""
    kept: list[tuple[Any, Any]] = [(kind, kind.__call__) for kind in (PrefixTree, DecodeAttention)]

    def timed(call: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def attention(
            self: Any, layer: int, query: Tensor, key: Tensor, value: Tensor, *others: Any, **named: Any
        ) -> Tensor:
            recorded = torch.is_grad_enabled() and query.requires_grad
            if recorded:
                query, key, value = _Entered.apply(clock, query, key, value)
            clock.start()
            found = call(self, layer, query, key, value, *others, **named)
            clock.stop()
            return _Left.apply(clock, found) if recorded else found

        return attention

    for kind, call in kept:
        kind.__call__ = timed(call)
    try:
        yield
    finally:
        for kind, call in kept:
            kind.__call__ = call


# ------------------------------------------------------------------------------------------------ what is measured


@dataclass(frozen=True)
class Cost:
    """Of one phase at one size: seconds of the processor and on the wall, and those of the processor in attention."""

    cpu: float
    wall: float
    attention: float

    @classmethod
    def mean(cls, costs: Sequence[Cost]) -> Cost:
        """Of the same phase at the same size."""
        return cls(*(statistics.fmean(getattr(x, f.name) for x in costs) for f in fields(cls)))


class Work:
    """The phases of a step at one size, on a model of random weights that no update changes."""

    def __init__(self, row: Row, rewards: RewardSet, seed: int) -> None:
        groups = row.answers // row.group
        config = BenchConfig(
            model={"path": "random"},
            algorithm="dr_grpo",
            rollout={
                "group_size": row.group,
                "batch_size": row.answers,
                "prompt_tokens": row.prompt,
                "max_new_tokens": row.answer,
                "max_running": max(256, row.answers),
            },
            seed=seed,
        )
        settings, algorithm = config.of_rl(), replace(resolve(config.algorithm), updates=Updates())
        loaded = load_policy((random_model(row, seed), character_tokenizer(alphabet(row))))
        policy = replace(loaded, stops=())
        engine = build_engine("in_process", policy, max_running=config.rollout.max_running)
        prompts = RandomPrompts(policy.tokenizer, count=groups, tokens=row.prompt, seed=seed)
        episodes = Episodes(engine, prompts, settings.rollout.sampling(policy.stops), seed=seed)
        tasks = [Task(f"prompt {number}", str(number)) for number in range(groups)]
        self.run = RLRun(settings, algorithm, policy, tasks, episodes, rewards, say=lambda _text: None)
        self.step = 0
        self.groups: Sequence[ScoredGroup] = ()

    def sampling(self) -> None:
        self.step += 1
        self.run.engine.update(None, self.step)
        self.groups = self.run.source.collect(self.step, TrainerState(), Phases()).sampled

    def scoring(self) -> None:
        self.run.updater.learner.forward(token_batch(self.groups), Want(entropy=True))

    def update(self) -> None:
        batch = token_batch(self.groups)
        prepared, _ = self.run.updater.prepare(batch, feedback(self.groups, batch.layout))
        self.run.updater.update(self.step, batch, prepared)

    @property
    def phases(self) -> dict[str, Callable[[], None]]:
        return {"sampling": self.sampling, "scoring": self.scoring, "update": self.update}

    def turn(self) -> dict[str, Cost]:
        """Each phase once, timed."""
        costs = {}
        for name, phase in self.phases.items():
            whole, attention = Clock(), Clock()
            with timed_attention(attention):
                whole.start()
                phase()
                whole.stop()
            costs[name] = Cost(whole.cpu, whole.wall, attention.cpu)
        return costs

    def peaks(self) -> dict[str, int]:
        """Bytes at the peak of each phase, above those that are held before it."""
        return {name: peak_bytes(phase) for name, phase in self.phases.items()}


def peak_bytes(call: Callable[[], None]) -> int:
    """The peak of tensors, plus that of Python's objects and arrays, while a function runs."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        tracemalloc.start()
        try:
            call()
            objects = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    events = profiler.profiler.kineto_results.events()
    held = tensors = 0
    for _, size in sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"):
        held += size
        tensors = max(tensors, held)
    return tensors + objects


# ------------------------------------------------------------------------------------------------ how it grows


@dataclass(frozen=True)
class Line:
    """How the cost of a phase grows with one thing; a list has an entry for each of `FACTORS`."""

    axis: str
    phase: str
    seconds: list[float]
    """Of the processor, medians; attention included."""
    wall: list[float]
    attention: list[float]
    """Its share of the seconds."""
    time: list[float]
    """Relative to linear, attention aside."""
    all_time: list[float]
    """Relative to linear, attention included."""
    bytes: list[int]
    memory: list[float]
    """Relative to linear."""

    def above(self) -> list[str]:
        """What grows faster than allowed."""
        found = []
        for what, values in (("time", self.time), ("memory", self.memory)):
            named = {f"at {factor}x": value for factor, value in zip(FACTORS, values, strict=True)}
            named[f"from {FACTORS[-2]}x to {FACTORS[-1]}x"] = values[-1] / values[-2]
            found += [
                f"{self.axis}, {self.phase}, {what}: {value:.2f} times linear {where}, more than {ALLOWED}"
                for where, value in named.items()
                if value > ALLOWED
            ]
        return found


def measure(axis: str, turns: int, seed: int, rewards: RewardSet) -> list[Line]:
    """A line for each phase."""
    works = [Work(AXES[axis](factor), rewards, seed) for factor in FACTORS]
    with using_backend(fastest_backend(works[0].run.policy.model)):  # as in a run
        for work in works:
            work.turn()
        found = [turn(works) for _ in range(turns)]
        peaks = [work.peaks() for work in works]
    return [
        line(axis, phase, [[c[phase] for c in turn] for turn in found], [p[phase] for p in peaks]) for phase in peaks[0]
    ]


def turn(works: Sequence[Work]) -> list[dict[str, Cost]]:
    """Each phase at each size; what is small is done several times and averaged, in between what is large."""
    most = FACTORS[-1]
    costs: list[list[dict[str, Cost]]] = [[] for _ in works]
    for number in range(most):
        for work, factor, into in zip(works, FACTORS, costs, strict=True):
            if number % factor == 0:
                into.append(work.turn())
    return [{phase: Cost.mean([cost[phase] for cost in into]) for phase in into[0]} for into in costs]


def line(axis: str, phase: str, turns: Sequence[Sequence[Cost]], peaks: Sequence[int]) -> Line:
    """From the costs of every turn, by factor."""

    def medians(of: Callable[[Cost], float]) -> list[float]:
        return [round(statistics.median(of(turn[place]) for turn in turns), 4) for place in range(len(FACTORS))]

    def relative(of: Callable[[Cost], float]) -> list[float]:
        return [
            round(statistics.median(of(turn[place]) / of(turn[0]) for turn in turns) / factor, 3)
            for place, factor in enumerate(FACTORS)
        ]

    return Line(
        axis,
        phase,
        seconds=medians(lambda cost: cost.cpu),
        wall=medians(lambda cost: cost.wall),
        attention=medians(lambda cost: cost.attention / cost.cpu),
        time=relative(lambda cost: cost.cpu - cost.attention),
        all_time=relative(lambda cost: cost.cpu),
        bytes=list(peaks),
        memory=[round(size / peaks[0] / factor, 3) for size, factor in zip(peaks, FACTORS, strict=True)],
    )


# ------------------------------------------------------------------------------------------------ what is written


def as_table(lines: Sequence[Line]) -> str:
    """Markdown."""
    header = ("what grows", "phase", "seconds at 1x, 8x", "attention at 1x, 8x", "time: 2x", "4x", "8x", "last doubling",
              "with attention, 8x", "MiB at 1x, 8x", "memory: 2x", "4x", "8x", "last doubling")  # fmt: skip
    rows = []
    for x in lines:
        seconds, share = f"{x.seconds[0]:.3f}, {x.seconds[-1]:.3f}", f"{x.attention[0]:.0%}, {x.attention[-1]:.0%}"
        sizes = f"{x.bytes[0] / 2**20:.1f}, {x.bytes[-1] / 2**20:.1f}"
        times, memory = ([f"{v:.2f}" for v in (*values[1:], values[-1] / values[-2])] for values in (x.time, x.memory))
        rows.append((x.axis, x.phase, seconds, share, *times, f"{x.all_time[-1]:.2f}", sizes, *memory))
    return table(header, rows)


def as_figure(lines: Sequence[Line]) -> str:
    """A panel for each thing that grows: time solid, memory dashed, by phase; and the line above which growth is a finding."""
    panels = []
    for axis in dict.fromkeys(x.axis for x in lines):
        own = [x for x in lines if x.axis == axis]
        curves = [Curve("25 % above linear", [(FACTORS[0], ALLOWED), (FACTORS[-1], ALLOWED)], colour="#999")]
        for x, colour in zip(own, ("#1f77b4", "#2ca02c", "#ff7f0e"), strict=False):
            curves.append(Curve(x.phase, list(zip(FACTORS, x.time, strict=True)), dots=True, colour=colour))
            curves.append(Curve("", list(zip(FACTORS, x.memory, strict=True)), dots=True, dashed=True, colour=colour))
        title = f"{axis}: cost relative to linear (memory dashed)"
        panels.append(Panel(title, "times as large", curves, FACTORS, (0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2)))
    return picture(panels, columns=3)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--axes", nargs="+", choices=tuple(AXES), default=tuple(AXES), help="what grows")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="a folder for growth.md, growth.svg and growth.json")
    parser.add_argument(
        "--check", action="store_true", help="exit status 1 where a cost grows more than 25 %% faster than linear"
    )
    arguments = parser.parse_args()
    if arguments.turns < 1:
        parser.error("--turns is at least 1")
    torch.set_num_threads(1)
    lines: list[Line] = []
    with build_rewards(alternating, time_limit=None) as rewards:
        for axis in arguments.axes:
            lines += measure(axis, arguments.turns, arguments.seed, rewards)
            print(as_table(lines[-3:]), flush=True)
    if arguments.output:
        write(arguments.output, lines)
    if arguments.check and (above := [text for line in lines for text in line.above()]):
        sys.exit("\n".join(above))


def write(folder: Path, lines: Sequence[Line]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "growth.md").write_text(as_table(lines) + "\n", encoding="utf-8")
    (folder / "growth.svg").write_text(as_figure(lines), encoding="utf-8")
    found: Mapping[str, Any] = {
        "factors": FACTORS,
        "shapes": {axis: asdict(shape(1)) for axis, shape in AXES.items()},
        "lines": [asdict(line) for line in lines],
    }
    (folder / "growth.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
