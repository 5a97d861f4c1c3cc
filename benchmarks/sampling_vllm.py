"""Sampling with the in-process engine beside vLLM's CPU build, in one process that alternates between them.

    bash tests/with_vllm/environment.sh
    OMP_NUM_THREADS=1 .venv-vllm/bin/python benchmarks/sampling_vllm.py             # with torch.compile, vLLM's default
    OMP_NUM_THREADS=1 .venv-vllm/bin/python benchmarks/sampling_vllm.py --eager

All have the same random weights in the Qwen3 shape of the first row (3.2 M parameters, vocabulary 64), float32, and the same
prompts of 16 tokens, each for a group of 8 answers. Every answer has all of its tokens, drawn at temperature 1, with their
log-probabilities. `vllm` is `vllm.LLM.generate` in this process; `vllm engine` is reinlm's engine of that name around it.
OMP_NUM_THREADS are the threads of all. Figures are medians of `--turns` turns, after one that is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import torch
from random_models import RAGGED, alphabet, random_model, random_prompts

from reinlm.models import Policy, character_tokenizer, load_policy, save_policy
from reinlm.models.matmul import fastest_backend, using_backend
from reinlm.rollouts import Engine, HFEngine, Request, Sampling
from reinlm.rollouts.vllm_engine import VllmEngine

CACHE = 1 << 29
"""Bytes of vLLM's key-value cache."""


def through_engine(engine: Engine, prompts: list[tuple[int, ...]], tokens: int) -> Callable[[int], int]:
    """A function that samples every prompt once with an engine of reinlm's, and counts the tokens."""
    sampling = Sampling(max_new_tokens=tokens)

    async def together(turn: int) -> int:
        calls = [engine.generate(Request(f"{turn}/{k}", prompt, sampling)) for k, prompt in enumerate(prompts)]
        return sum(len(answer.token_ids) for answer in await asyncio.gather(*calls))

    return lambda turn: asyncio.run(together(turn))


def with_vllm(folder: str, prompts: list[tuple[int, ...]], tokens: int, eager: bool) -> Callable[[int], int]:
    """The same with `vllm.LLM`."""
    import vllm
    from vllm.inputs import TokensPrompt

    model = vllm.LLM(
        folder,
        dtype="float32",
        skip_tokenizer_init=True,
        enforce_eager=eager,
        kv_cache_memory_bytes=CACHE,
        max_num_seqs=len(prompts),
        generation_config="vllm",
        logprobs_mode="processed_logprobs",
        disable_log_stats=True,
    )
    asked = [TokensPrompt(prompt_token_ids=list(prompt)) for prompt in prompts]

    def sample(turn: int) -> int:
        settings = [
            vllm.SamplingParams(max_tokens=tokens, ignore_eos=True, logprobs=0, detokenize=False, seed=1000 * turn + k)
            for k in range(len(asked))
        ]
        answers = model.generate(asked, settings, use_tqdm=False)
        return sum(len(answer.outputs[0].token_ids) for answer in answers)

    return sample


def policy_of(seed: int) -> Policy:
    model = random_model(RAGGED, seed)
    model.config.architectures = [type(model).__name__]
    return load_policy((model, character_tokenizer(alphabet(RAGGED))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32, help="of each answer")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--eager", action="store_true", help="vLLM without torch.compile")
    options = parser.parse_args()

    policy = policy_of(options.seed)
    encode = policy.tokenizer.encode
    drawn = [tuple(encode(text)) for text in random_prompts(RAGGED, options.seed)]
    prompts = [drawn[k // RAGGED.group % len(drawn)] for k in range(options.sequences)]
    backend = fastest_backend(policy.model)
    own = HFEngine(policy.model, policy.tokenizer, pad_id=policy.pad_id, max_batch=options.sequences)
    other = VllmEngine(
        policy,
        dtype=torch.float32,
        max_running=options.sequences,
        enforce_eager=options.eager,
        engine_args={"kv_cache_memory_bytes": CACHE},
    )
    with tempfile.TemporaryDirectory() as folder:
        save_policy(policy, folder)
        sides = {
            "reinlm": through_engine(own, prompts, options.tokens),
            "vllm": with_vllm(folder, prompts, options.tokens, options.eager),
            "vllm engine": through_engine(other, prompts, options.tokens),
        }
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for turn in range(options.turns + 1):
            for name, sample in sides.items():
                with using_backend(backend if name == "reinlm" else "blas"):  # as in a run
                    started = time.perf_counter()
                    count = sample(turn)
                    took = time.perf_counter() - started
                assert count == options.sequences * options.tokens, f"{name}: {count} tokens"
                if turn:
                    seconds[name].append(took)
    found = {name: statistics.median(taken) for name, taken in seconds.items()}
    ratios = {f"{name} / reinlm": round(found[name] / found["reinlm"], 2) for name in found if name != "reinlm"}
    shape = vars(options) | {"threads": torch.get_num_threads(), "torch": torch.__version__, "backend": backend}
    print(json.dumps({**shape, "seconds": {name: round(value, 4) for name, value in found.items()}, **ratios}))


if __name__ == "__main__":
    main()
