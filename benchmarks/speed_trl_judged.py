"""Steps of DPO and of a reward model beside those of an installed TRL, in one process that alternates between the two.

    OMP_NUM_THREADS=2 python benchmarks/speed_trl_judged.py                    # both works; an environment as for speed_trl.py
    OMP_NUM_THREADS=2 python benchmarks/speed_trl_judged.py --work dpo --micro-batch 8

Both sides have the same random weights in the Qwen3 shape (3.2 M parameters, vocabulary 64), float32 and SDPA, the same 16
pairs a step, prompts of 128 tokens, answers of 32 to 512, and a learning rate that changes no weight. The reference's
log-probabilities are computed before the first step on both sides. TRL's micro-batches are of 2 pairs, which was the fastest
of 1, 2, 4, 8 and 16; its optimizer is the fused AdamW; it logs nothing. Figures are medians of `--turns` turns (5), after two
of each side that are not counted.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from random_models import RAGGED, alphabet, random_model
from transformers import PrinterCallback, Qwen3ForSequenceClassification, TrainerCallback

import reinlm
from reinlm.models import character_tokenizer

try:
    import trl
    from datasets import Dataset
except ImportError as error:
    raise SystemExit(f"TRL cannot be imported here ({error}); benchmarks/speed_trl.py says how to set it up") from error

LEARNING_RATE = 1e-15
PAIRS, PROMPT, SHORTEST, LONGEST = 16, 128, 32, 512


def pairs(count: int, seed: int) -> list[dict[str, str]]:
    """Random prompts, each with two random answers."""
    draw, letters = random.Random(seed), alphabet(RAGGED)

    def text(length: int) -> str:
        return "".join(draw.choices(letters, k=length))

    return [
        {
            "prompt": text(PROMPT),
            "chosen": text(draw.randint(SHORTEST, LONGEST)),
            "rejected": text(draw.randint(SHORTEST, LONGEST)),
        }
        for _ in range(count)
    ]


class Alternating(TrainerCallback):
    """After each step of TRL, with its clock standing still, makes one of ours."""

    def __init__(self, ours: Callable[[], Any]) -> None:
        self.make = ours
        self.ours: list[float] = []
        self.theirs: list[float] = []
        self.since = 0.0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.since = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.theirs.append(time.perf_counter() - self.since)
        started = time.perf_counter()
        self.make()
        self.ours.append(time.perf_counter() - started)
        self.since = time.perf_counter()


def measure(work: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """The medians of both sides for one work."""
    steps = arguments.turns + arguments.warmup
    rows = pairs(PAIRS * (steps + 1), arguments.seed)
    model, tokenizer = random_model(RAGGED, arguments.seed), character_tokenizer(alphabet(RAGGED))
    make = reinlm.DPOTrainer if work == "dpo" else reinlm.RewardTrainer
    with (
        tempfile.TemporaryDirectory() as folder,
        make(
            (copy.deepcopy(model), tokenizer),
            rows,
            training={"steps": steps + 1, "batch_size": PAIRS},  # the last step would save the model
            optimizer={"learning_rate": LEARNING_RATE},
            run={"save_every": 0, "trackers": []},
            seed=arguments.seed,
            output=str(Path(folder) / "run"),
            quiet=True,
        ) as ours,
    ):
        turns = Alternating(ours.step)
        trainer = theirs(work, model, tokenizer, rows, folder, steps, arguments, turns)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    found = [statistics.median(side[arguments.warmup :]) for side in (turns.theirs, turns.ours)]
    return {
        "work": work,
        "TRL": round(found[0], 3),
        "reinlm": round(found[1], 3),
        "ratio": round(found[0] / found[1], 2),
    }


def theirs(
    work: str, model: Any, tokenizer: Any, rows: Any, folder: str, steps: int, arguments: Any, callback: Any
) -> Any:
    """TRL's trainer of a work."""
    shared = {
        "output_dir": folder,
        "max_steps": steps,
        "per_device_train_batch_size": arguments.micro_batch,
        "gradient_accumulation_steps": PAIRS // arguments.micro_batch,
        "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "optim": "adamw_torch_fused",
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "max_length": PROMPT + LONGEST + 1,
        "seed": arguments.seed,
    }
    data = Dataset.from_list(rows)
    if work == "dpo":
        config = trl.DPOConfig(**shared, precompute_ref_log_probs=True)
        return trl.DPOTrainer(model, args=config, train_dataset=data, processing_class=tokenizer, callbacks=[callback])
    settings = copy.deepcopy(model.config)
    settings.num_labels = 1
    classifier = Qwen3ForSequenceClassification(settings)
    classifier.model.load_state_dict(model.model.state_dict())
    return trl.RewardTrainer(
        classifier,
        args=trl.RewardConfig(**shared),
        train_dataset=data,
        processing_class=tokenizer,
        callbacks=[callback],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", nargs="+", choices=("dpo", "reward"), default=("dpo", "reward"))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--micro-batch", type=int, choices=(1, 2, 4, 8, 16), default=2, help="pairs in one of TRL's")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", category=FutureWarning)
    torch.set_num_threads(arguments.threads)
    about = {module.__name__: module.__version__ for module in (reinlm, trl, transformers, torch)}
    print(
        json.dumps(
            {**about, "turns": arguments.turns, "threads": arguments.threads, "micro_batch": arguments.micro_batch}
        )
    )
    for work in arguments.work:
        print(json.dumps(measure(work, arguments)), flush=True)


if __name__ == "__main__":
    main()
