"""Tiny runs through the public interface: a model of one layer in float64 that adds digits, and quick rewards."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file

import reinlm
from reinlm.loop import RunResult
from reinlm.models import character_tokenizer, save_policy, tiny_model
from reinlm.models.loading import load_policy
from reinlm.runs import read_metrics, without_clocks

ALPHABET = "0123456789+="
ROWS = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in (1, 3, 4, 7) for b in (2, 5, 8, 12)]
EXAMPLES = [{"prompt": row["prompt"], "completion": row["answer"]} for row in ROWS]

SETTINGS: dict[str, Any] = {
    "rollout": {"group_size": 4, "batch_size": 8, "max_new_tokens": 4},
    "training": {"steps": 2},
    "optimizer": {"name": "sgd", "learning_rate": 0.1, "max_grad_norm": None},
    "run": {"save_every": 0, "rollouts_every": 0, "trackers": []},
    "seed": 3,
}


def graded(completions: list[str], **_: Any) -> list[float]:
    """Between 0 and 1: how large the digits are."""
    return [sum(int(c) for c in text if c.isdigit()) / (9.0 * max(len(text), 1)) for text in completions]


def length(completions: list[str], **_: Any) -> list[float]:
    """Characters."""
    return [float(len(text)) for text in completions]


def tiny(seed: int = 0, alphabet: str = ALPHABET, **tokenizer: Any) -> tuple[Any, Any]:
    """A model in float64 and its tokenizer; matrices of deviation 0.3, from NumPy."""
    characters = character_tokenizer(alphabet, **tokenizer)
    shape: dict[str, Any] = {"hidden_size": 16, "layers": 1, "heads": 2, "intermediate_size": 32, "context": 64}
    model: Any = tiny_model("qwen3", vocab_size=len(characters), seed=0, **shape).double()
    noise = np.random.default_rng(seed)
    with torch.no_grad():
        for _, weight in sorted(model.named_parameters()):
            drawn = torch.from_numpy(noise.standard_normal(tuple(weight.shape)))
            weight.copy_(0.3 * drawn if weight.dim() > 1 else weight + 0.05 * drawn)
    return model.eval(), characters


def saved(folder: Path, seed: int = 0, alphabet: str = ALPHABET) -> str:
    """The same as a Hugging Face directory; its path."""
    save_policy(load_policy(tiny(seed, alphabet)), folder)
    return str(folder)


def settings(**changes: Any) -> dict[str, Any]:
    """`SETTINGS` with some of its values replaced, sections key by key."""
    merged = copy.deepcopy(SETTINGS)
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), dict)
        merged[key] = {**merged[key], **value} if both else value
    return merged


def local(reward: Any) -> dict[str, Any]:
    """Reward functions in this process: no worker to start."""
    return {"functions": reward, "time_limit": None}


def trainer(folder: Path, model: Any = None, data: Any = ROWS, reward: Any = graded, **changes: Any) -> Any:
    """`reinlm.RLTrainer` for a tiny run; `reward=None` leaves reward functions out."""
    if reward is not None:
        changes["reward"] = local(reward)
    return reinlm.RLTrainer(model or tiny(), data, output=folder, **({"quiet": True} | settings(**changes)))


def run_rl(folder: Path, model: Any = None, data: Any = ROWS, reward: Any = graded, **changes: Any) -> RunResult:
    result: RunResult = trainer(folder, model, data, reward, **changes).train()
    return result


def metrics(folder: Path) -> list[dict[str, Any]]:
    """Every line of a run's metrics without what depends on the clock."""
    return [without_clocks(row) for row in read_metrics(Path(folder) / "metrics.jsonl")]


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def change(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> torch.Tensor:
    """What training added to all weights, in one vector."""
    return torch.cat([(after[name] - value).flatten() for name, value in before.items()])


def log_softmax(model: Any, ids: list[int], temperature: float = 1.0) -> torch.Tensor:
    """log π(· | the tokens before) at every position of one sequence, [T - 1, V], with a gradient."""
    return torch.log_softmax(model(torch.tensor([ids])).logits[0, :-1] / temperature, dim=-1)


def answers(folder: Path, step: int = 1) -> list[tuple[list[int], list[int], float]]:
    """From the rollout log: (token ids, places of the chosen ones, temperature) of every answer, in order."""
    columns = load_file(Path(folder) / f"rollouts/step_{step}.safetensors")
    found, start = [], 0
    for line in (Path(folder) / f"rollouts/step_{step}.jsonl").read_text().splitlines():
        for segment in json.loads(line)["segments"]:
            part = slice(start, start := start + segment["tokens"])
            ids, turns = columns["token_ids"][part].tolist(), columns["turns"][part]
            found.append((ids, np.flatnonzero(turns >= 0).tolist(), segment["sampling"]["temperature"]))
    return found


def distributions(model: Any, told: list[tuple[list[int], list[int], float]]) -> tuple[torch.Tensor, torch.Tensor]:
    """log π(· | state) at every chosen token of the answers, [N, V], with a gradient; and the chosen tokens [N]."""
    tables, chosen = [], []
    for ids, places, temperature in told:
        tables.append(log_softmax(model, ids, temperature)[[place - 1 for place in places]])
        chosen += [ids[place] for place in places]
    return torch.cat(tables), torch.tensor(chosen)


def descent(model: Any, loss: torch.Tensor, rate: float) -> torch.Tensor:
    """What one step of plain gradient descent adds to all weights, in one vector."""
    named = [weight for _, weight in model.named_parameters()]
    return torch.cat([-rate * gradient.flatten() for gradient in torch.autograd.grad(loss, named)])
