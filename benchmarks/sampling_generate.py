"""The in-process engine beside transformers' own sampling: `model.generate`, and its continuous batching.

    python benchmarks/sampling_generate.py                          # 64 and 256 sequences, all sides
    python benchmarks/sampling_generate.py --sides generate reinlm

Random weights in the Qwen3 shape of the row `ragged` (3.2 M, vocabulary 64), float32, prompts of 16 tokens in groups of 8,
answers of at most 128 that end by an EOS token, temperature 1. Sides take turns, after one turn that is not counted; ratios are
medians over turns. Continuous batching (`model.generate_batch`) returns log-probabilities as the engine does, and its cache
just holds all sequences, which is faster than its default.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from random_models import RAGGED, Row, alphabet, random_model, random_prompts
from transformers import ContinuousBatchingConfig, GenerationConfig

from reinlm.models import character_tokenizer
from reinlm.models.matmul import fastest_backend, using_backend
from reinlm.rollouts import HFEngine, Request, Sampling

END = 1
PAGE = 16
"""Tokens of a page of the cache of continuous batching."""
Lengths = Sequence[int]


@dataclass(frozen=True)
class Batch:
    """One batch that was sampled: seconds on the wall and of the processor, and the mean length of its answers."""

    seconds: float
    processor: float
    length: float


class Work:
    """What is sampled: a model, and the token ids of the prompts of a row."""

    def __init__(self, row: Row, seed: int) -> None:
        self.row, self.seed = row, seed
        self.model, self.tokenizer = random_model(row, seed), character_tokenizer(alphabet(row))
        self.prompts = [tuple(self.tokenizer(text)["input_ids"]) for text in random_prompts(row, seed)]
        self.config = GenerationConfig(
            do_sample=True,
            top_k=0,
            top_p=1.0,
            temperature=1.0,
            max_new_tokens=row.answer,
            pad_token_id=0,
            eos_token_id=END,
        )


def generate(work: Work) -> Callable[[int], Lengths]:
    """`model.generate` on all sequences at once, none of which needs padding."""
    ids = torch.tensor(work.prompts).repeat_interleave(work.row.group, 0)
    model: Any = copy.deepcopy(work.model)

    def sample(_turn: int) -> Lengths:
        with torch.inference_mode():
            out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=work.config)
        ends = out[:, work.row.prompt :] == END
        found: list[int] = torch.where(ends.any(1), ends.int().argmax(1) + 1, ends.shape[1]).tolist()
        return found

    return sample


def continuous(work: Work) -> Callable[[int], Lengths]:
    """`model.generate_batch`."""
    model: Any = copy.deepcopy(work.model)
    prompts = [list(prompt) for prompt in work.prompts for _ in range(work.row.group)]
    pages = -(-(work.row.prompt + work.row.answer) // PAGE)
    settings: dict[str, Any] = {
        "page_size": PAGE,
        "num_blocks": pages * len(prompts) + 1,
        "max_batch_tokens": len(prompts) * work.row.prompt,
    }

    def sample(turn: int) -> Lengths:
        config = ContinuousBatchingConfig(return_logprobs=True, seed=work.seed + turn, **settings)
        out = model.generate_batch(prompts, generation_config=work.config, continuous_batching_config=config)
        return [len(answer.generated_tokens) for answer in out.values()]

    return sample


def engine(work: Work) -> Callable[[int], Lengths]:
    """reinlm's, as in a step of training: matrix products by what is faster, and what it remembers of prompts is void."""
    own = HFEngine(copy.deepcopy(work.model), work.tokenizer, pad_id=0)
    backend = fastest_backend(work.model)
    sampling = Sampling(max_new_tokens=work.row.answer, stop_token_ids=(END,))

    def sample(turn: int) -> Lengths:
        own.update(None, turn)
        own.submit(
            Request(f"{turn}/{number}/{sample}", prompt, sampling, work.seed)
            for number, prompt in enumerate(work.prompts)
            for sample in range(work.row.group)
        )
        with using_backend(backend):
            return [len(completion.token_ids) for completion in _completions(own)]

    return sample


def _completions(own: HFEngine) -> Iterator[Any]:
    while own.in_flight:
        yield from own.step()


SIDES: dict[str, Callable[[Work], Callable[[int], Lengths]]] = {
    "generate": generate,
    "continuous batching": continuous,
    "reinlm": engine,
}


def timed(sample: Callable[[int], Lengths], turn: int, expected: int) -> Batch:
    """One batch. Raises RuntimeError where a side did not return all answers."""
    wall, processor = time.perf_counter(), time.process_time()
    lengths = sample(turn)
    found = Batch(time.perf_counter() - wall, time.process_time() - processor, statistics.fmean(lengths or [0]))
    if len(lengths) != expected:
        raise RuntimeError(f"{len(lengths)} of {expected} answers came back")
    return found


def measure(sequences: int, sides: Sequence[str], turns: int, warmup: int, seed: int) -> dict[str, list[Batch]]:
    """The batches of each side, in turns."""
    work = Work(replace(RAGGED, answers=sequences), seed)
    samplers = {side: SIDES[side](work) for side in sides}
    found: dict[str, list[Batch]] = {side: [] for side in sides}
    for turn in range(warmup + turns):
        for side, sample in samplers.items():
            found[side].append(timed(sample, turn, sequences))
    return {side: batches[warmup:] for side, batches in found.items()}


def rows(sequences: int, found: dict[str, list[Batch]]) -> Iterator[str]:
    """Lines of a table in Markdown; the ratio is that of a side's seconds to those of the last side."""
    *_, last = found.values()
    for side, batches in found.items():
        seconds, processor = (statistics.median(getattr(b, name) for b in batches) for name in ("seconds", "processor"))
        ratio = statistics.median(own.seconds / other.seconds for own, other in zip(batches, last, strict=True))
        length = statistics.fmean(b.length for b in batches)
        speed = sequences * length / seconds
        yield f"| {sequences} | {side} | {seconds:.3f} | {processor:.3f} | {speed:,.0f} | {length:.1f} | {ratio:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sequences", type=int, nargs="+", default=[64, 256], help="a multiple of 8 each")
    parser.add_argument("--sides", nargs="+", choices=tuple(SIDES), default=list(SIDES))
    parser.add_argument("--turns", type=int, default=5, help="of each side")
    parser.add_argument("--warmup", type=int, default=1, help="turns of each side that are not counted")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures there too")
    arguments = parser.parse_args()
    if arguments.turns < 1 or any(count < 1 or count % RAGGED.group for count in arguments.sequences):
        parser.error(f"--turns is at least 1, --sequences a multiple of {RAGGED.group}")
    torch.set_num_threads(arguments.threads)
    print(f"| sequences | side | seconds | processor seconds | tokens/s | mean length | / {arguments.sides[-1]} |")
    print("|---|---|---|---|---|---|---|")
    written = []
    for count in arguments.sequences:
        found = measure(count, arguments.sides, arguments.turns, arguments.warmup, arguments.seed)
        for text in rows(count, found):
            print(text, flush=True)
        written.append({"sequences": count, "batches": {side: [asdict(b) for b in own] for side, own in found.items()}})
    if arguments.json:
        arguments.json.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
