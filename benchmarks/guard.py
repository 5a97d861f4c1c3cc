"""Did the library become slower? A few ratios of one run, against those in ratios.json: `make bench`.

    python benchmarks/guard.py            # fails where a ratio fell by more than 30 %
    python benchmarks/guard.py --write    # writes the measured ratios to ratios.json

Each ratio compares two ways to compute the same thing, on the same model in the same minute: seconds differ between machines
and with what else a machine does, ratios hardly. Each is the median over rounds that take both ways in turn, on one thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

import reinlm
from reinlm.models import character_tokenizer, load_policy, save_policy, tiny_model
from reinlm.models.matmul import fastest_backend, using_backend

FILE = Path(__file__).parent / "ratios.json"
ALLOWED = 0.7
"""A ratio may fall to this share of the committed one."""
RAGGED: dict[str, Any] = {"prompt_tokens": 16, "max_new_tokens": 96, "group_size": 8, "batch_size": 64}
LONG_PROMPTS: dict[str, Any] = {"prompt_tokens": 128, "max_new_tokens": 32, "group_size": 8, "batch_size": 32}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="write the measured ratios to ratios.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(small_model(Path(folder)), arguments.rounds)
    if arguments.write:
        FILE.write_text(json.dumps({name: round(value, 2) for name, value in measured.items()}, indent=2) + "\n")
    committed = json.loads(FILE.read_text())
    print(f"{'ratio':<58} {'here':>6} {'committed':>10}")
    for name, value in measured.items():
        print(f"{name:<58} {value:6.2f} {committed.get(name, float('nan')):10.2f}")
    if slower := fallen(measured, committed):
        sys.exit("\n".join(slower))


def fallen(measured: dict[str, float], committed: dict[str, float]) -> list[str]:
    """A line for each committed ratio that was not measured, or fell by more than is allowed."""
    lines = []
    for name, before in committed.items():
        value = measured.get(name)
        if value is None:
            lines.append(f"{name}: not measured; python benchmarks/guard.py --write where it is gone for good")
        elif value < ALLOWED * before:
            lines.append(f"{name}: {value:.2f}, less than {ALLOWED:.0%} of {before:.2f}")
    return lines


def small_model(folder: Path) -> str:
    """A model of 0.8 million parameters with 64 tokens, whose answers end by themselves after some 60 tokens."""
    tokenizer = character_tokenizer("".join(chr(ord("0") + number) for number in range(62)))
    model = tiny_model("qwen3", vocab_size=len(tokenizer), hidden_size=128, layers=3, heads=4, context=256)
    save_policy(load_policy((model, tokenizer)), folder / "model")
    return str(folder / "model")


def measure(model: str, rounds: int) -> dict[str, float]:
    """Every ratio by its name."""

    def update(packing: str, shape: dict[str, Any]) -> Callable[[], float]:
        return lambda: bench(model, shape, packing)["training/tokens_per_second"]

    pairs: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {
        "update: prompts of 128, shared over padded": (update("share", LONG_PROMPTS), update("pad", LONG_PROMPTS)),
        "update: ragged answers, shared over padded": (update("share", RAGGED), update("pad", RAGGED)),
        "sampling: ragged answers, the engine over model.generate": (
            lambda: bench(model, RAGGED)["rollout/tokens_per_second"],
            lambda: generated(model, RAGGED),
        ),
    }
    return {name: statistics.median(ours() / other() for _ in range(rounds)) for name, (ours, other) in pairs.items()}


def bench(model: str, shape: dict[str, Any], packing: str = "auto") -> dict[str, float]:
    """The figures of one step without a KL."""
    return reinlm.bench(model, **shape, turns=1, algorithm="dr_grpo", training={"packing": packing}, quiet=True).figures


def generated(model: str, shape: dict[str, Any]) -> float:
    """Tokens a second of transformers' `generate`, up to the end of each answer."""
    policy = load_policy(model)
    lm: Any = policy.model
    prompts = torch.randint(4, 60, (shape["batch_size"] // shape["group_size"], shape["prompt_tokens"]))
    ids = prompts.repeat_interleave(shape["group_size"], 0)
    tokens, seconds = 0, 1.0
    for _ in range(2):  # the first is a warm-up
        started = time.perf_counter()
        with torch.no_grad(), using_backend(fastest_backend(lm)):  # the products of both sides alike
            answers = lm.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                top_k=0,
                max_new_tokens=shape["max_new_tokens"],
                eos_token_id=policy.stops[0],
                pad_token_id=policy.pad_id,
            )[:, shape["prompt_tokens"] :]
        seconds = time.perf_counter() - started
        ended = (answers == policy.stops[0]).long().cumsum(1) - (answers == policy.stops[0]).long()
        tokens = int((ended == 0).sum())
    return tokens / seconds


if __name__ == "__main__":
    main()
