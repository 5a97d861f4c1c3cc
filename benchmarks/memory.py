"""Bytes a parameter that a run of `reinlm rl` keeps: weights, gradients, optimizer state, reference and critic.

    python benchmarks/memory.py

Trains a model of 3 M parameters for two steps on the CPU in each arrangement, and adds up every tensor that is alive before an
optimizer steps, each storage once. Sampled answers and caches are small beside the weights and are counted with them.
"""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

import reinlm
from reinlm.models import character_tokenizer, tiny_model

ROWS = [{"prompt": f"{a}+1=", "answer": str(a + 1)} for a in range(8)]
ARRANGEMENTS: dict[str, dict[str, Any]] = {
    "rloo without KL: no reference, no critic": {"algorithm": {"base": "rloo", "kl": None}},
    "grpo: with a reference": {"algorithm": "grpo"},
    "ppo: reference and critic of its own": {"algorithm": "ppo"},
    "ppo: the critic shares the backbone": {"algorithm": "ppo", "critic": {"backbone": "shared"}},
    "rloo without KL, LoRA of rank 8": {
        "algorithm": {"base": "rloo", "kl": None},
        "model": {"path": "<model>", "lora": {"rank": 8}},
    },
    "grpo, LoRA of rank 8": {"algorithm": "grpo", "model": {"path": "<model>", "lora": {"rank": 8}}},
    "ppo, LoRA of rank 8": {"algorithm": "ppo", "model": {"path": "<model>", "lora": {"rank": 8}}},
}


def alive() -> int:
    """Bytes of all tensors that are alive, each storage once."""
    storages = {}
    for found in gc.get_objects():
        if issubclass(type(found), torch.Tensor):
            for tensor in (found, found.grad if found.is_leaf else None):
                if tensor is not None:
                    storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return sum(storages.values())


def main() -> None:
    tokenizer = character_tokenizer("0123456789+=")
    model = tiny_model(
        "qwen3", vocab_size=len(tokenizer), hidden_size=256, layers=4, heads=4, intermediate_size=768, context=64
    )
    count = sum(weight.numel() for weight in model.parameters())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        reinlm.save_policy(reinlm.load_policy((model, tokenizer)), path)
        del model
        print(f"{count:,} parameters in float32\n\n| arrangement | bytes a parameter |\n|---|---|")
        for place, (name, settings) in enumerate(ARRANGEMENTS.items()):
            gc.collect()
            seen: list[int] = []
            hook = register_optimizer_step_pre_hook(lambda *_, seen=seen: seen.append(alive()))
            given: dict[str, Any] = {"model": {"path": str(path)}} | settings
            given["model"] = given["model"] | {"path": str(path)}
            reinlm.rl(
                data=ROWS,
                reward="exact_match",
                output=Path(folder) / f"run{place}",
                rollout={"group_size": 2, "batch_size": 16, "max_new_tokens": 2},
                training={"steps": 2},
                run={"save_every": 0, "trackers": []},
                quiet=True,
                **given,
            )
            hook.remove()
            print(f"| {name} | {max(seen) / count:.1f} |")


if __name__ == "__main__":
    main()
