"""Tiny runs for tests: a model of one layer that adds digits, rewards that a random model earns now and then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

import reinlm
from reinlm.models import Policy, character_tokenizer, load_policy, save_policy, tiny_model
from reinlm.runs import read_metrics, without_clocks

ALPHABET = "0123456789+="
ROWS = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(6) for b in range(6)]
HELD_OUT = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(6, 9) for b in range(4)]
EXAMPLES = [{"prompt": row["prompt"], "completion": row["answer"]} for row in ROWS]

EVEN = {"name": "regex", "pattern": "[02468]$"}
"""An answer that ends in an even digit: a random model earns it often, and can learn it in a few steps."""


def tiny_policy(seed: int = 0, family: str = "qwen3", dtype: torch.dtype = torch.float32, **changes: Any) -> Policy:
    """One layer of 32, with a character tokenizer."""
    tokenizer = character_tokenizer(ALPHABET)
    shape = {"hidden_size": 32, "layers": 1, "heads": 2, "context": 32} | changes
    model = tiny_model(family, vocab_size=len(tokenizer), seed=seed, **shape)
    return load_policy((model.to(dtype), tokenizer))


def pair(policy: Policy) -> tuple[Any, Any]:
    return policy.model, policy.tokenizer


def saved_model(folder: Path, **options: Any) -> Path:
    """The same model as a Hugging Face directory."""
    save_policy(tiny_policy(**options), folder)
    return folder


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def rl_settings(**changes: Any) -> dict[str, Any]:
    """A recipe of `rl` for the tiny task: four groups of four, quick to sample, quick to move."""
    settings: dict[str, Any] = {
        "reward": {"functions": EVEN, "time_limit": None},
        "algorithm": "grpo",
        "rollout": {"group_size": 4, "batch_size": 16, "max_new_tokens": 4},
        "training": {"steps": 3},
        "optimizer": {"learning_rate": 5e-3},
        "run": {"tensorboard": False},
    }
    for key, value in changes.items():
        old = settings.get(key)
        settings[key] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
    return settings


def run_rl(folder: Path, *, model: Any = None, data: Any = ROWS, **changes: Any) -> Any:
    settings = rl_settings(**changes)
    return reinlm.rl(model or pair(tiny_policy()), data, output=folder, quiet=True, **settings)


def run_sft(folder: Path, *, model: Any = None, data: Any = EXAMPLES, **changes: Any) -> Any:
    settings = {"optimizer": {"learning_rate": 5e-3}, "run": {"tensorboard": False}} | changes
    return reinlm.sft(model or pair(tiny_policy()), data, output=folder, quiet=True, **settings)


def metrics(folder: Path) -> list[dict[str, Any]]:
    """The records of a run without what depends on the clock."""
    return [without_clocks(record) for record in read_metrics(Path(folder) / "metrics.jsonl")]


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def gradient(model: torch.nn.Module) -> torch.Tensor:
    """All gradients in one float64 vector; they are cleared."""
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters() if p.requires_grad]
    flat = torch.cat([part.flatten().double() for part in parts])
    model.zero_grad(set_to_none=True)
    return flat
