"""Peak memory of the log-probability step of reinlm beside that of an installed TRL, a process for each side.

    python benchmarks/memory_trl.py            # GRPO's and DPO's, in the environment of speed_trl.py
    python benchmarks/memory_trl.py --work dpo

A vocabulary of 151,936, a model of two layers. The figure is the largest resident size less that before the step, which is
one forward and one backward pass of both sides over the same sequences:

- grpo: eight sequences of 1,024 tokens. TRL's side is what its loss calls: the fused head of its `GRPOTrainer`, which works on
  4,096 tokens by 32,768 entries of the vocabulary at a time, through `_get_per_token_logps_and_entropies`. Both sides compute
  the entropy too, as in training, and the backward pass of the mean log-probability.
- dpo: four pairs of answers of 32 to 512 tokens to shared prompts of 128, as in speed_trl_judged.py. TRL's side is the forward
  pass of `DPOTrainer._compute_loss` on what its collator gives, with the outputs of the fused head that its trainer takes; both
  sides make the backward pass of DPO's loss at β = 0.1 and a reference of 0.
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
from dataclasses import asdict, dataclass
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
    from trl.trainer.dpo_trainer import DataCollatorForPreference
    from trl.trainer.utils import add_fused_lm_head
except ImportError as error:
    raise SystemExit(f"TRL cannot be imported here ({error}); speed_trl.py says at its top how to set it up") from error

MEMORY = Row("memory", layers=2, vocabulary=151_936)


MEMORY_SEQUENCES, MEMORY_TOKENS = 8, 1024
PAIRS, PROMPT, SHORTEST, LONGEST = 4, 128, 32, 512
BETA = 0.1


@dataclass(frozen=True)
class Sequences:
    """Token ids, and where in each the first scored token stands: equal ones for GRPO, for DPO chosen and rejected in turn."""

    ids: list[list[int]]
    start: int

    @classmethod
    def equal(cls) -> Sequences:
        """Random sequences of one length, all but the first token scored."""
        return cls(torch.randint(2, MEMORY.vocabulary, (MEMORY_SEQUENCES, MEMORY_TOKENS)).tolist(), 1)

    @classmethod
    def pairs(cls) -> Sequences:
        """Random prompts, each with two answers."""
        ids = []
        for _ in range(PAIRS):
            prompt = torch.randint(2, MEMORY.vocabulary, (PROMPT,)).tolist()
            for size in torch.randint(SHORTEST, LONGEST + 1, (2,)).tolist():
                ids.append([*prompt, *torch.randint(2, MEMORY.vocabulary, (size,)).tolist()])
        return cls(ids, PROMPT)


def ours(model: PreTrainedModel, given: Sequences, want: Want) -> Callable[[], torch.Tensor]:
    """The log-probabilities of what is scored: [tokens]."""
    scorer = TokenModel(model, packing="auto")
    batch = TokenBatch.of(given.ids, [list(range(given.start, len(ids))) for ids in given.ids])
    return lambda: scorer(batch, want).scored


def our_mean(model: PreTrainedModel, given: Sequences) -> Callable[[], torch.Tensor]:
    logprobs = ours(model, given, Want(entropy=True))
    return lambda: logprobs().mean()


def our_dpo(model: PreTrainedModel, given: Sequences) -> Callable[[], torch.Tensor]:
    logprobs, sizes = ours(model, given, Want()), [len(ids) - given.start for ids in given.ids]

    def loss() -> torch.Tensor:
        sums = torch.stack([part.sum() for part in logprobs().split(sizes)])
        return dpo_loss(sums[::2], sums[1::2])

    return loss


def dpo_loss(chosen: torch.Tensor, rejected: torch.Tensor) -> torch.Tensor:
    """The mean over pairs of -log σ(β (log π(chosen) - log π(rejected)))."""
    return -torch.nn.functional.logsigmoid(BETA * (chosen - rejected)).mean()


def trl_dpo(model: PreTrainedModel, given: Sequences) -> Callable[[], torch.Tensor]:
    add_fused_lm_head(model, outputs=("log_probs", "entropy", "mean_logits", "is_top1"))
    rows = [
        {
            "prompt_ids": chosen[: given.start],
            "chosen_ids": chosen[given.start :],
            "rejected_ids": rejected[given.start :],
        }
        for chosen, rejected in zip(given.ids[::2], given.ids[1::2], strict=True)
    ]
    inputs = DataCollatorForPreference(pad_token_id=0)(rows)
    mask = inputs.pop("completion_mask")
    labels = inputs["input_ids"].masked_fill(mask == 0, -100)

    def loss() -> torch.Tensor:
        found: Any = model(**inputs, labels=labels, use_cache=False, fused_lm_head=True)
        return dpo_loss(*found.log_probs[:, 1 - mask.shape[1] :].sum(1).chunk(2))

    return loss


def trl_mean(model: PreTrainedModel, given: Sequences) -> Callable[[], torch.Tensor]:
    ids = torch.tensor(given.ids)
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    one_process = SimpleNamespace(autocast=contextlib.nullcontext, is_main_process=True)
    trainer: Any = SimpleNamespace(accelerator=one_process)
    mask, scored, method = torch.ones_like(ids), ids.shape[1] - 1, trl.GRPOTrainer._get_per_token_logps_and_entropies
    return lambda: method(trainer, model, ids, mask, scored, compute_entropy=True)[0].mean()


SIDES = {"trl": {"grpo": trl_mean, "dpo": trl_dpo}, "reinlm": {"grpo": our_mean, "dpo": our_dpo}}
WORKS = tuple(SIDES["trl"])


def peak_of(side: str, arguments: argparse.Namespace) -> None:
    """What a process of its own runs: prints the bytes, the seconds and the value of one side."""
    work = arguments.work[0]
    step = SIDES[side][work]
    model = random_model(MEMORY, arguments.seed).train()
    given = Sequences.pairs() if work == "dpo" else Sequences.equal()
    small = Sequences([ids[: given.start + 8] for ids in given.ids[:2]], given.start)
    step(copy.deepcopy(model), small)().backward()  # libraries load their code
    value = step(model, given)
    before, started = psutil.Process().memory_info().rss, time.perf_counter()
    found = value()
    found.backward()
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(json.dumps({"bytes": peak - before, "seconds": seconds, "value": found.item()}))


def measure_memory(work: str, arguments: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for _ in range(arguments.turns):
        for side, results in found.items():
            command = [sys.executable, __file__, "--peak-of", side, "--threads", str(arguments.threads)]
            command += ["--seed", str(arguments.seed), "--work", work]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            results.append(json.loads(done.stdout.splitlines()[-1]))
    values = {side: results[0]["value"] for side, results in found.items()}
    if abs(values["trl"] - values["reinlm"]) > 1e-4 * abs(values["trl"]):
        raise SystemExit(f"{work}: what the two sides compute differs: {values}")
    medians = {
        side: {name: statistics.median(result[name] for result in results) for name in ("bytes", "seconds")}
        for side, results in found.items()
    }
    ratio = medians["reinlm"]["bytes"] / medians["trl"]["bytes"]
    return {"name": work, **medians, "ratio": round(ratio, 3), "shape": asdict(MEMORY)}


def show_memory(rows: list[dict[str, Any]]) -> None:
    print("| work | side | peak, MiB | seconds | reinlm / TRL |\n|---|---|---|---|---|")
    for row in rows:
        for side in SIDES:
            ratio = f"{row['ratio']:.2f}" if side == "reinlm" else ""
            found = row[side]
            print(f"| {row['name']} | {side} | {found['bytes'] / 2**20:.0f} | {found['seconds']:.2f} | {ratio} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", nargs="+", choices=WORKS, default=WORKS)
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
    rows = [measure_memory(work, arguments) for work in arguments.work]
    show_memory(rows)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
