"""One process of the sharded test of judged answers: two steps of dpo and two of a reward model, and what they measured.

Run as `python sharded_judged_worker.py VERBS FOLDER RANK RANKS RENDEZVOUS`; the folder gets `result.pt`.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from sharded_worker import BUDGET, Watched, shard

from reinlm.algorithms import resolve_preference
from reinlm.data import JudgedDataConfig, load_judged
from reinlm.loop.run import ALONE
from reinlm.models import RewardHeads, TokenModel, character_tokenizer, load_policy, new_reward_model, tiny_model
from reinlm.models.modules import whole
from reinlm.runs import without_clocks
from reinlm.training.dpo import DPORun
from reinlm.training.dpo_config import DPOConfig
from reinlm.training.optimizer import Optimizer
from reinlm.training.reward_config import RewardModelConfig
from reinlm.training.reward_training import RewardRun

ALPHABET = "0123456789+="
LENGTHS = ((17, 9), (1, 20), (12, 2), (3, 1), (6, 19), (2, 2))
"""Of the answers of each pair: with 24 tokens a micro-batch a step of three pairs makes an odd number of them or two."""


def policy() -> Any:
    """A model in float64 with its tokenizer."""
    tokenizer = character_tokenizer(ALPHABET)
    model: Any = tiny_model(
        "qwen3", vocab_size=len(tokenizer), hidden_size=16, layers=2, heads=2, intermediate_size=32, context=64, seed=3
    )
    return load_policy((model.double(), tokenizer))


def pairs() -> list[dict[str, str]]:
    drawn = random.Random(0)
    sides = [["".join(drawn.choices(ALPHABET, k=length)) for length in both] for both in LENGTHS]
    return [{"prompt": f"{n}=", "chosen": one, "rejected": two} for n, (one, two) in enumerate(sides)]


def made(verb: str, ranks: int, found: dict[str, list[Any]]) -> tuple[Any, TokenModel]:
    """The run of a verb with its model, sharded where there are several ranks; `found` gets what is watched."""
    settings: dict[str, Any] = {
        "model": "tiny",
        "data": pairs(),
        "training": {"steps": 2, "batch_size": 3, "micro_batch_tokens": BUDGET},
        "optimizer": {"learning_rate": 1e-2},
    }
    loaded = policy()
    judged = load_judged(JudgedDataConfig(path=pairs()), loaded.tokenizer)
    run: Any
    if verb == "dpo":
        config = DPOConfig.model_validate({**settings, "algorithm": {"base": "dpo", "beta": 0.5}})
        run = DPORun(config, resolve_preference(config.algorithm), loaded, judged, {})
    else:
        of_reward = RewardModelConfig.model_validate({**settings, "head": {"members": 2}, "normalize": None})
        reward = new_reward_model((loaded.model, loaded.tokenizer), RewardHeads(members=2))  # type: ignore[arg-type]
        run = RewardRun(of_reward, reward, judged, {})
    holder = run.updater if verb == "dpo" else run
    model = holder.learner.model
    if ranks > 1:
        shard(model, ranks)
    optimizer = Optimizer(model.parameters(), run.config.optimizer, 2)
    holder.learner = Watched(model, optimizer, micro_batch_tokens=BUDGET)
    holder.learner.found = found
    return run, model


def main(verbs: str, folder: str, rank: int, ranks: int, rendezvous: str) -> None:
    torch.set_num_threads(1)
    if ranks > 1:
        dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=ranks)
    found: dict[str, Any] = {"metrics": [], "gradients": [], "passes": [], "weights": {}}
    for verb in verbs.split(","):
        run, model = made(verb, ranks, found)
        found["metrics"] += [dict(without_clocks(run.step(step, ALONE).metrics)) for step in range(2)]
        found["weights"] |= {f"{verb}.{n}": whole(p).detach().clone() for n, p in model.named_parameters()}
    torch.save(found, Path(folder) / f"result{rank}.pt")
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
