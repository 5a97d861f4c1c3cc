"""Speed of reinlm beside that of an installed TRL, in one process that alternates between the two.

    python -m venv speed && . speed/bin/activate        # TRL brings its own versions: an environment of its own
    pip install trl && pip install -e .
    python benchmarks/speed_trl.py                                  # whole GRPO steps, all four rows; --rows ragged for one
    python benchmarks/speed_trl.py --work sampling                  # as sampling_generate.py, with the transformers of TRL
    python benchmarks/speed_trl.py --work ppo                       # PPO with a critic beside GRPO, both reinlm's

Figures are medians of `--turns` turns (5), after one of each side that is not counted; `--threads` are torch's (2).

Both sides have the same random weights in the Qwen3 shape, float32, SDPA, prompts, group size, limits, reward function, and one
optimizer step for each batch, at a learning rate of 1e-15, which changes no weight. There is no KL. reinlm's step is
`RLTrainer.step()`. TRL's is what passes between two calls of `on_step_end` in `GRPOTrainer.train()`; of that, sampling is
`_generate_and_score_completions`. Answers end at the EOS token, one of the vocabulary: with 64 tokens they are ragged. Exit
status 1 where the two sides' answers are not of the same mean length within a fifth.

TRL's settings are those that were the fastest on the CPU: micro-batches of 16 answers, but all 64 at once where answers are short
(`--micro-batch`; all at once take twice as long in the row `wide`); no gradient checkpointing, autocast, logging or pass for old
log-probabilities; `generate` with its dynamic cache; the fused AdamW. `--trl` changes them: its static cache, its continuous
batching and `torch_compile` were no faster, as in `--trl '{"use_transformers_continuous_batching": true}'`. reinlm's settings are
its defaults.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import sampling_generate
import torch
import transformers
from random_models import RAGGED, ROWS, Row, alphabet, random_model, random_prompts
from transformers import PreTrainedModel, PrinterCallback, TrainerCallback

import reinlm
from reinlm.models import character_tokenizer

try:
    import trl
    from datasets import Dataset
except ImportError as error:
    raise SystemExit(f"TRL cannot be imported here ({error}); {__file__} says at its top how to set it up") from error

LEARNING_RATE = 1e-15
"""Less than half the spacing of float32 at any weight that is not almost 0, and one that both libraries accept."""
APART = 0.2
"""How far the mean lengths of the two sides may be apart."""

# ------------------------------------------------------------------------------------------------ what is measured


PPO: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "a critic of its own, one pass": ({"base": "ppo", "kl": None}, {"passes": 1}, {}),
    "the critic shares the backbone, one pass": (
        {"base": "ppo", "kl": None},
        {"passes": 1},
        {"critic": {"backbone": "shared"}},
    ),
    "as it stands: four passes, KL to a reference": ("ppo", {}, {}),
}
"""Algorithm, section `training` and further sections."""


def odd_characters(prompts: Sequence[str], completions: Sequence[str], **columns: Any) -> list[float]:
    """A reward that costs next to nothing, and differs within a group."""
    return [sum(ord(character) % 2 for character in text) / (len(text) + 1) for text in completions]


@dataclass(frozen=True)
class Turn:
    """One step, or one batch that was sampled: seconds, and the mean length of its answers."""

    seconds: float
    sampling: float
    update: float
    """With the pass for old log-probabilities, where there is one."""
    length: float


def medians(turns: Sequence[Turn]) -> dict[str, float]:
    """Of each field; the length is a mean. `other` is neither sampling nor update."""
    found = {
        name: statistics.median(getattr(turn, name) for turn in turns) for name in ("seconds", "sampling", "update")
    }
    found["other"] = statistics.median(turn.seconds - turn.sampling - turn.update for turn in turns)
    found["length"] = statistics.fmean(turn.length for turn in turns)
    return {name: round(value, 4) for name, value in found.items()}


# ------------------------------------------------------------------------------------------------ whole steps


@contextlib.contextmanager
def our_steps(
    row: Row, model: PreTrainedModel, seed: int, steps: int, algorithm: Any, training: Any, sections: Any
) -> Iterator[Callable[[], Turn]]:
    """A function that makes one step of `reinlm.RLTrainer`. It can be called `steps` times."""
    with (
        tempfile.TemporaryDirectory() as folder,
        reinlm.RLTrainer(
            (model, character_tokenizer(alphabet(row))),
            [{"prompt": prompt} for prompt in random_prompts(row, seed)],
            reward=odd_characters,
            algorithm=algorithm,
            rollout={"group_size": row.group, "batch_size": row.answers, "max_new_tokens": row.answer},
            training={"steps": steps + 1, **training},  # the last step would save the model
            optimizer={"learning_rate": LEARNING_RATE},
            run={"save_every": 0, "rollouts_every": 0, "trackers": []},
            seed=seed,
            output=str(Path(folder) / "run"),
            quiet=True,
            **sections,
        ) as trainer,
    ):

        def step() -> Turn:
            started = time.perf_counter()
            metrics = trainer.step()
            seconds = time.perf_counter() - started
            update = metrics["time/update"] + metrics["time/score"]
            return Turn(seconds, metrics["time/rollout"], update, metrics["completions/mean_length"])

        yield step


GRPO = {"base": "grpo", "kl": None}


class TimedGRPOTrainer(trl.GRPOTrainer):
    """TRL's trainer, which notes how long sampling took and what came of it."""

    sampling = length = 0.0

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        started = time.perf_counter()
        batch = super()._generate_and_score_completions(inputs)
        self.sampling = time.perf_counter() - started
        self.length = batch["completion_mask"].sum(1).float().mean().item()
        return batch


class Alternating(TrainerCallback):
    """Between two steps of TRL, with its clock standing still, makes one of ours."""

    def __init__(self, ours: Callable[[], Turn]) -> None:
        self.make = ours
        self.trainer: Any = None
        self.ours: list[Turn] = []
        self.theirs: list[Turn] = []
        self.since = 0.0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.since = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        seconds = time.perf_counter() - self.since
        sampling = self.trainer.sampling
        self.theirs.append(Turn(seconds, sampling, seconds - sampling, self.trainer.length))
        self.ours.append(self.make())
        self.since = time.perf_counter()


def trl_trainer(
    row: Row, model: PreTrainedModel, folder: str, steps: int, arguments: argparse.Namespace, callback: Alternating
) -> TimedGRPOTrainer:
    micro_batch = arguments.micro_batch or row.micro_batch
    config = {
        "output_dir": folder,
        "max_steps": steps,
        "num_generations": row.group,
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": row.answers // micro_batch,
        "max_completion_length": row.answer,
        "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "loss_type": "grpo",
        "epsilon": 0.2,
        "beta": 0.0,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "optim": "adamw_torch_fused",
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "seed": arguments.seed,
    }
    trainer = TimedGRPOTrainer(
        model,
        odd_characters,
        trl.GRPOConfig(**{**config, **arguments.trl}),
        Dataset.from_dict({"prompt": random_prompts(row, arguments.seed)}),
        processing_class=character_tokenizer(alphabet(row)),
        callbacks=[callback],
    )
    trainer.remove_callback(PrinterCallback)
    callback.trainer = trainer
    return trainer


def measure_steps(row: Row, arguments: argparse.Namespace) -> dict[str, Any]:
    model, steps = random_model(row, arguments.seed), arguments.turns + arguments.warmup
    ours = our_steps(row, copy.deepcopy(model), arguments.seed, steps, GRPO, {}, {})
    with tempfile.TemporaryDirectory() as folder, ours as step:
        turns = Alternating(step)
        trl_trainer(row, model, folder, steps, arguments, turns).train()
    return compared(row.name, turns.theirs[arguments.warmup :], turns.ours[arguments.warmup :], asdict(row))


def measure_ppo(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    row, steps = RAGGED, arguments.turns + arguments.warmup
    for name, (algorithm, training, sections) in PPO.items():
        model = random_model(row, arguments.seed)
        given: Any = ((GRPO, {}, {}), (algorithm, training, sections))
        with contextlib.ExitStack() as stack:
            grpo, ppo = (
                stack.enter_context(our_steps(row, copy.deepcopy(model), arguments.seed, steps, *settings))
                for settings in given
            )
            turns = [(grpo(), ppo()) for _ in range(steps)][arguments.warmup :]
        yield compared(name, [ppo for _, ppo in turns], [grpo for grpo, _ in turns], asdict(row))


# ------------------------------------------------------------------------------------------------ sampling


def measure_sampling(answers: int, arguments: argparse.Namespace) -> dict[str, Any]:
    found = sampling_generate.measure(
        answers, ("generate", "reinlm"), arguments.turns, arguments.warmup, arguments.seed
    )
    theirs, ours = ([Turn(b.seconds, b.seconds, 0.0, b.length) for b in batches] for batches in found.values())
    return compared(f"{answers} sequences", theirs, ours, asdict(replace(RAGGED, answers=answers)))


# ------------------------------------------------------------------------------------------------ what is printed


def compared(name: str, first: Sequence[Turn], second: Sequence[Turn], shape: Mapping[str, Any]) -> dict[str, Any]:
    """The medians of the two sides and the ratio of their seconds. `first` is TRL, `generate` or PPO."""
    a, b = medians(first), medians(second)
    return {
        "name": name,
        "first": a,
        "second": b,
        "ratio": round(a["seconds"] / b["seconds"], 3),
        "comparable": abs(a["length"] - b["length"]) <= APART * max(a["length"], b["length"]),
        "turns": [[turn.seconds for turn in side] for side in (first, second)],
        "shape": dict(shape),
    }


def show(rows: Iterator[dict[str, Any]], sides: tuple[str, str]) -> list[dict[str, Any]]:
    """Print rows of `compared` as they come."""
    print(f"| row | side | seconds | sampling | update | other | mean length | {sides[0]} / {sides[1]} |")
    print("|---|---|---|---|---|---|---|---|")
    shown = []
    for row in rows:
        shown.append(row)
        for side, key in zip(sides, ("first", "second"), strict=True):
            m = row[key]
            parts = " | ".join(f"{m[name]:.3f}" for name in ("seconds", "sampling", "update", "other"))
            ratio = f"{row['ratio']:.2f}" if key == "second" else ""
            print(f"| {row['name']} | {side} | {parts} | {m['length']:.1f} | {ratio} |", flush=True)
    return shown


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    if arguments.work == "sampling":
        return show((measure_sampling(answers, arguments) for answers in (64, 256)), ("generate", "reinlm"))
    if arguments.work == "ppo":
        return show(measure_ppo(arguments), ("ppo", "grpo"))
    chosen = [row for row in ROWS if row.name in arguments.rows]
    return show((measure_steps(row, arguments) for row in chosen), ("TRL", "reinlm"))


def main() -> None:
    names = [row.name for row in ROWS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", choices=("step", "sampling", "ppo"), default="step")
    parser.add_argument("--rows", nargs="+", choices=names, default=names, help="of the work `step`")
    parser.add_argument("--turns", type=int, default=5, help="of each side")
    parser.add_argument("--warmup", type=int, default=1, help="turns of each side that are not counted")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--micro-batch", type=int, choices=(8, 16, 32, 64), help="answers in one of TRL's")
    parser.add_argument("--trl", type=json.loads, default={}, metavar="JSON", help="further values of GRPOConfig")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the table there too")
    arguments = parser.parse_args()
    if arguments.turns < 1 or arguments.warmup < 0:
        parser.error("--turns is at least 1, and --warmup at least 0")
    warnings.filterwarnings("ignore", category=FutureWarning)
    torch.set_num_threads(arguments.threads)
    about: dict[str, Any] = {module.__name__: module.__version__ for module in (reinlm, trl, transformers, torch)}
    about |= {name: getattr(arguments, name) for name in ("work", "turns", "threads", "seed")}
    about |= {"micro_batch": arguments.micro_batch} if arguments.micro_batch else {}
    about |= {"options": arguments.trl} if arguments.trl else {}
    print(", ".join(f"{name} {value}" for name, value in about.items()), end="\n\n")
    rows = measure(arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    if apart := [row["name"] for row in rows if not row.get("comparable", True)]:
        raise SystemExit(f"\nanswers of the two sides are not of comparable length: {', '.join(apart)}")


if __name__ == "__main__":
    main()
