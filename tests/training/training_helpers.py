"""Tiny runs for tests: a model of one layer that adds digits, rewards that a random model earns now and then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

import reinlm
from reinlm.algorithms import Algorithm
from reinlm.batches import TokenBatch, feedback, token_batch
from reinlm.config import build
from reinlm.data import DataConfig, build_renderer, load_tasks
from reinlm.loop import BatchPrepared, GroupScored, StepContext
from reinlm.loop.run import ALONE
from reinlm.models import Policy, character_tokenizer, load_policy, save_policy, tiny_model
from reinlm.records import Rollout, ScoredGroup
from reinlm.rewards import build_rewards
from reinlm.rollouts import Episodes, build_engine
from reinlm.runs import read_metrics, without_clocks
from reinlm.training.config import RLConfig
from reinlm.training.preparation import Prepared
from reinlm.training.rl import RLRun

ALPHABET = "0123456789+="
ROWS = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(6) for b in range(6)]
HELD_OUT = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(6, 9) for b in range(4)]
EXAMPLES = [{"prompt": row["prompt"], "completion": row["answer"]} for row in ROWS]

EVEN = {"name": "regex", "pattern": "[02468]$"}
"""An answer that ends in an even digit: a random model earns it often, and can learn it in a few steps."""


def tiny_policy(seed: int = 0, family: Any = "qwen3", dtype: torch.dtype = torch.float32, **changes: Any) -> Policy:
    """One layer of 32, with a character tokenizer."""
    tokenizer = character_tokenizer(ALPHABET)
    shape = {"hidden_size": 32, "layers": 1, "heads": 2, "context": 32} | changes
    model: Any = tiny_model(family, vocab_size=len(tokenizer), seed=seed, **shape)
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
    if "reward" in changes and not (isinstance(changes["reward"], dict) and "functions" in changes["reward"]):
        changes["reward"] = {"functions": changes["reward"], "time_limit": None}  # in this process: no worker to start
    settings = rl_settings(**changes)
    return reinlm.rl(model or pair(tiny_policy()), data, output=folder, quiet=True, **settings)


def run_sft(folder: Path, *, model: Any = None, data: Any = EXAMPLES, **changes: Any) -> Any:
    settings: dict[str, Any] = {
        "optimizer": {"learning_rate": 5e-3, "schedule": "constant"},
        "run": {"tensorboard": False},
    }
    return reinlm.sft(model or pair(tiny_policy()), data, output=folder, quiet=True, **(settings | changes))


def metrics(folder: Path) -> list[dict[str, Any]]:
    """The records of a run without what depends on the clock."""
    return [without_clocks(record) for record in read_metrics(Path(folder) / "metrics.jsonl")]


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def gradient(model: torch.nn.Module, keep: bool = False) -> torch.Tensor:
    """All gradients in one float64 vector; they are cleared, or kept."""
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters() if p.requires_grad]
    flat = torch.cat([part.flatten().double() for part in parts])
    if not keep:
        model.zero_grad(set_to_none=True)
    return flat


def rl_task(policy: Policy, algorithm: Algorithm, *, reward: Any = None, **changes: Any) -> RLRun:
    """What `reinlm.rl` drives, without its run folder, for looking at one step.

    One update a batch unless `training` says otherwise; `reference` is the path of another model.
    """
    changes["training"] = {"minibatches": 1, "passes": 1, **changes.get("training", {})}
    reference = changes.pop("reference", None)
    model = changes.pop("model", {"path": "tiny"})
    sections = {
        "model": model,
        "data": {"path": "none"},
        "reference": None if reference is None else {"path": str(reference)},
    }
    config = build(RLConfig, rl_settings(**changes) | sections)
    data = DataConfig(path=ROWS)
    tasks = load_tasks(data, policy.tokenizer, max_prompt_tokens=None).items
    assert config.reward is not None
    rewards = build_rewards(reward or config.reward, time_limit=None)
    engine = build_engine("in_process", policy)
    sampling = config.rollout.sampling(policy.stops)
    episodes = Episodes(engine, build_renderer(data, policy.tokenizer), sampling, seed=config.seed)
    return RLRun(config, algorithm, policy, tasks, episodes, rewards)


class Watched:
    """A run whose gradients, groups and batches are kept.

    The weights move as they always do, except with `still`: then their learning rate is 0.
    """

    def __init__(self, task: RLRun, still: bool = False) -> None:
        self.task = task
        self.gradients: list[torch.Tensor] = []
        """Of the policy, one for each optimizer step."""
        self.batches: list[BatchPrepared] = []
        self.sampled: list[list[ScoredGroup]] = []
        """Of each step, those that filters dropped included."""
        if still:
            task.scale_learning_rate(0.0)
        optimizer = task.updater.learner.optimizer
        assert optimizer is not None
        optimizer.torch.register_step_pre_hook(lambda *_: self.gradients.append(gradient(task.policy.model, keep=True)))

    def step(self, step: int) -> dict[str, float]:
        """One step and its metrics."""
        self.sampled.append([])
        return dict(self.task.step(step, StepContext(send=self._take)).metrics)

    def _take(self, event: Any) -> None:
        if isinstance(event, GroupScored):
            self.sampled[-1].append(event.group)
        elif isinstance(event, BatchPrepared):
            self.batches.append(event)


def prepared(task: RLRun, step: int = 1) -> tuple[list[ScoredGroup], TokenBatch, Prepared, dict[str, float]]:
    """Collect the groups of a step and prepare their batch, without an update."""
    groups = list(task.source.collect(step).kept)
    batch = token_batch(groups)
    return groups, batch, *task.updater.prepare(batch, feedback(groups, batch.layout))


def naive_loss(
    model: Any,
    rollouts: list[Rollout],
    advantages: list[float],
    *,
    temperature: float = 1.0,
    reference: Any = None,
    beta: float = 0.0,
    token_mean: bool = False,
) -> torch.Tensor:
    """GRPO on its own samples as the papers write it: whole logits, log_softmax, plain means, one answer at a time.

    sequence mean: 1/N Σ_i 1/|o_i| Σ_t (ratio_t A_i - β k3_t); token mean: Σ_it (…) / Σ_i |o_i|.
    """
    terms, lengths = [], []
    for rollout, advantage in zip(rollouts, advantages, strict=True):
        (segment,) = rollout.segments
        ids = torch.tensor(segment.token_ids[None], dtype=torch.long)
        start = len(segment) - rollout.length

        def logprobs(net: Any, ids: torch.Tensor = ids, start: int = start) -> torch.Tensor:
            table = torch.log_softmax(net(ids).logits[0].float() / temperature, dim=-1)
            return table[start - 1 : -1].gather(1, ids[0, start:, None])[:, 0]

        ours = logprobs(model)
        gain = (ours - ours.detach()).exp() * advantage
        if reference is not None:
            with torch.no_grad():
                theirs = logprobs(reference)
            gain = gain - beta * ((theirs - ours).exp() - (theirs - ours) - 1)
        terms.append(gain.sum() if token_mean else gain.mean())
        lengths.append(rollout.length)
    return -sum(terms, torch.tensor(0.0)) / (sum(lengths) if token_mean else len(terms))


def z_scores(rewards: list[float]) -> list[float]:
    """(R - mean) / (std + 1e-6), of a group."""
    values = np.array(rewards, dtype=np.float64)
    return list((values - values.mean()) / (values.std() + 1e-6))


def even(completions: list[str], **_: Any) -> list[float]:
    """The share of even digits: rewards of many sizes."""
    return [sum(c in "02468" for c in text) / max(len(text), 1) for text in completions]


def moved(policy: Any, before: dict[str, torch.Tensor]) -> bool:
    return any(not torch.equal(value, before[name]) for name, value in weights(policy.model).items())


def steps(task: Any, count: int) -> list[dict[str, float]]:
    return [dict(task.step(step, ALONE).metrics) for step in range(1, count + 1)]
