"""Peak memory of the log-probability step of reinlm beside that of an installed TRL, a process for each side.

    python benchmarks/memory_trl.py            # in the environment of speed_trl.py

Eight sequences of 1,024 tokens, a vocabulary of 151,936. TRL's side is what its loss calls: the fused head of its
`GRPOTrainer`, which works on 4,096 tokens by 32,768 entries of the vocabulary at a time, through
`_get_per_token_logps_and_entropies`. Both sides compute the entropy too, as in training, and the backward pass of the mean
log-probability. The figure is the largest resident size less that before the step.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import psutil  # type: ignore[import-untyped]
import torch
from random_models import Row, random_model
from transformers import PreTrainedModel

from reinlm.batches import TokenBatch
from reinlm.models import TokenModel, Want

try:
    import trl
    from trl.trainer.utils import add_fused_lm_head
except ImportError as error:
    raise SystemExit(f"TRL cannot be imported here ({error}); speed_trl.py says at its top how to set it up") from error

MEMORY = Row("memory", layers=2, vocabulary=151_936)


MEMORY_SEQUENCES, MEMORY_TOKENS = 8, 1024


def our_logprobs(model: PreTrainedModel, ids: torch.Tensor) -> Callable[[], torch.Tensor]:
    scorer = TokenModel(model, packing="auto")
    batch = TokenBatch.of(ids.tolist(), [list(range(1, ids.shape[1]))] * len(ids))
    return lambda: scorer(batch, Want(entropy=True)).scored


def trl_logprobs(model: PreTrainedModel, ids: torch.Tensor) -> Callable[[], torch.Tensor]:
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    one_process = SimpleNamespace(autocast=contextlib.nullcontext, is_main_process=True)
    trainer: Any = SimpleNamespace(accelerator=one_process)
    mask, scored, method = torch.ones_like(ids), ids.shape[1] - 1, trl.GRPOTrainer._get_per_token_logps_and_entropies
    return lambda: method(trainer, model, ids, mask, scored, compute_entropy=True)[0]


SIDES = {"trl": trl_logprobs, "reinlm": our_logprobs}


def peak_of(side: str, arguments: argparse.Namespace) -> None:
    """What a process of its own runs: prints the bytes, the seconds and the mean log-probability of one side."""
    model = random_model(MEMORY, arguments.seed).train()
    ids = torch.randint(2, MEMORY.vocabulary, (MEMORY_SEQUENCES, MEMORY_TOKENS))
    SIDES[side](copy.deepcopy(model), ids[:1, :8])().mean().backward()  # libraries load their code
    logprobs = SIDES[side](model, ids)
    before, started = psutil.Process().memory_info().rss, time.perf_counter()
    mean = logprobs().mean()
    mean.backward()
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(json.dumps({"bytes": peak - before, "seconds": seconds, "mean": mean.item()}))


def measure_memory(arguments: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for _ in range(arguments.turns):
        for side, results in found.items():
            command = [sys.executable, __file__, "--peak-of", side, "--threads", str(arguments.threads)]
            command += ["--seed", str(arguments.seed)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            results.append(json.loads(done.stdout.splitlines()[-1]))
    means = {side: results[0]["mean"] for side, results in found.items()}
    if abs(means["trl"] - means["reinlm"]) > 1e-4 * abs(means["trl"]):
        raise SystemExit(f"the mean log-probabilities differ: {means}")
    medians = {
        side: {name: statistics.median(result[name] for result in results) for name in ("bytes", "seconds")}
        for side, results in found.items()
    }
    ratio = medians["reinlm"]["bytes"] / medians["trl"]["bytes"]
    return {"name": "memory", **medians, "ratio": round(ratio, 3), "shape": asdict(MEMORY)}


def show_memory(row: dict[str, Any]) -> list[dict[str, Any]]:
    print("| side | peak, MiB | seconds | reinlm / TRL |\n|---|---|---|---|")
    for side in SIDES:
        ratio = f"{row['ratio']:.2f}" if side == "reinlm" else ""
        print(f"| {side} | {row[side]['bytes'] / 2**20:.0f} | {row[side]['seconds']:.2f} | {ratio} |")
    return [row]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=5, help="of each side")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures there too")
    parser.add_argument("--peak-of", choices=tuple(SIDES), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.turns < 1:
        parser.error("--turns is at least 1")
    torch.set_num_threads(arguments.threads)
    if arguments.peak_of:
        peak_of(arguments.peak_of, arguments)
        return
    rows = show_memory(measure_memory(arguments))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
