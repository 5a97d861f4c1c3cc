"""One process of the sharded test: three updates of GRPO or PPO on ragged answers, and what they measured.

Run as `python sharded_worker.py ALGORITHM FOLDER RANK RANKS RENDEZVOUS [CHECKPOINT]`; the folder gets `result.pt`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from reinlm.algorithms import algorithm as named
from reinlm.batches import feedback, token_batch
from reinlm.models import ModelConfig, TokenModel, ValueModel, character_tokenizer, load_policy, tiny_model
from reinlm.models.modules import whole
from reinlm.records import NO_TURN, RewardEvent, Rollout, RolloutGroup, ScoredGroup, Segment, Task
from reinlm.runs.state import read_state, write_state
from reinlm.training.anchors import Anchors
from reinlm.training.critic import CriticModel
from reinlm.training.learner import Learner, Pass
from reinlm.training.optimizer import Optimizer, OptimizerConfig
from reinlm.training.update import Updater, UpdateSettings

# Answer lengths of each group, step by step: with 24 tokens a micro-batch the first step makes three micro-batches, an odd
# number for two ranks; the second makes one, so that the second rank has no scored token at all.
STEPS = ([[17, 9], [1, 20]], [[2, 1], [3, 1]], [[12, 1], [6, 19]])
BUDGET = 24


def groups(step: int) -> list[ScoredGroup]:
    """Random answers and rewards of one step, the same in every process."""
    rng = np.random.default_rng(step)
    made = []
    for number, lengths in enumerate(STEPS[step]):
        task = Task(f"data[{number}]", "question")
        rollouts, events = [], []
        prompt = rng.integers(1, 19, 3)
        for length in lengths:
            ids = np.concatenate([prompt, rng.integers(1, 19, length)])
            columns = {"rollout_logprobs": np.log(rng.uniform(0.1, 1, length)), "version": np.full(length, 2 * step)}
            turns = np.array([NO_TURN] * 3 + [0] * length)
            rollouts.append(Rollout(task, (Segment(ids, turns, columns),), "", True, False, "stop"))
            events.append((RewardEvent("reward", float(rng.normal())),))
        made.append(ScoredGroup(RolloutGroup(task, tuple(rollouts)), tuple(events)))
    return made


def shard(model: TokenModel, ranks: int) -> None:
    """Every layer by itself, then the rest; gradients are summed over ranks, because weights come from the whole step."""
    mesh = init_device_mesh("cpu", (ranks,))
    units: list[Any] = [m for m in model.modules() if type(m).__name__.endswith("DecoderLayer")]
    for unit in [*units, model]:
        fully_shard(unit, mesh=mesh)
        unit.set_gradient_divide_factor(1.0)


class Watched(Learner):
    """Keeps the gradient of every optimizer step, and how many passes of this rank held a scored token."""

    found: dict[str, list[Any]]

    def forward_backward(self, batch: Any, loss_fn: Any, **options: Any) -> Pass:
        passes = 0

        def counted(outputs: Any, part: Any) -> Any:
            nonlocal passes
            passes += 1
            return loss_fn(outputs, part)

        result = super().forward_backward(batch, counted, **options)
        self.found["passes"].append(passes)
        return result

    def optim_step(self, last_checkpoint: str = "none yet") -> dict[str, float]:
        gradients = {n: whole(p.grad).clone() for n, p in self.model.named_parameters() if p.grad is not None}
        self.found["gradients"].append(gradients)
        return super().optim_step(last_checkpoint)


def build(name: str, ranks: int, found: dict[str, list[Any]]) -> Updater:
    """Policy, reference and critic in float64, on shared prefixes and with gradient checkpointing, sharded where there are
    several ranks; `found` gets what is watched."""
    lm = tiny_model("qwen3", vocab_size=20, hidden_size=16, layers=2, heads=2, intermediate_size=32, context=64, seed=3)
    model: Any = lm.double()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    policy = TokenModel(model, packing="share")
    algorithm = named(name)
    loaded = load_policy((policy.lm, character_tokenizer("0123456789+=")))
    anchors = Anchors(algorithm, loaded, policy, config=ModelConfig(path="tiny"))
    value = ValueModel(policy) if algorithm.critic is not None else None
    parts = [policy, *(anchor.model for anchor in anchors.by_name.values()), *([value.model] if value else [])]
    if ranks > 1:
        for part in parts:
            shard(part, ranks)
    settings = OptimizerConfig(learning_rate=1e-2, weight_decay=0.1)

    def learner(model: TokenModel) -> Learner:
        optimizer = Optimizer(model.parameters(), settings, 6)
        watched = Watched(model, optimizer, micro_batch_tokens=BUDGET)
        watched.found = found
        return watched

    critic = CriticModel(value, learner(value.model)) if value else None
    return Updater(algorithm, learner(policy), UpdateSettings(minibatches=1, passes=2), critic=critic, anchors=anchors)


def weights(updater: Updater) -> dict[str, torch.Tensor]:
    models = {"policy": updater.learner.model, **({"critic": updater.critic.learner.model} if updater.critic else {})}
    return {f"{role}.{n}": whole(p).detach().clone() for role, m in models.items() for n, p in m.named_parameters()}


def main(name: str, folder: str, rank: int, ranks: int, rendezvous: str, checkpoint: str | None = None) -> None:
    torch.set_num_threads(1)
    if ranks > 1:
        dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=ranks)
    found: dict[str, Any] = {"metrics": [], "gradients": [], "passes": []}
    updater = build(name, ranks, found)
    first = 0
    if checkpoint:
        state = read_state(Path(checkpoint))
        for role, model in {"policy": updater.learner.model, **_critic_model(updater)}.items():
            model.load_state_dict(
                {n: state["weights"][f"{role}.{n}"] for n, _ in model.named_parameters()}, strict=False
            )
        updater.load_state_dict(state["updater"])
        first = 2
    for step in range(first, len(STEPS)):
        if step == 2 and ranks > 1:
            state = {"weights": weights(updater), "updater": updater.state_dict()}
            if rank == 0:
                write_state(Path(folder), state)
        batch = token_batch(groups(step))
        prepared, before = updater.prepare(batch, feedback(groups(step), batch.layout))
        updated = updater.update(step, batch, prepared)
        found["metrics"].append({**before, **updated.metrics})
    found["weights"] = weights(updater)
    torch.save(found, Path(folder) / f"result{rank}.pt")
    if ranks > 1:
        dist.destroy_process_group()


def _critic_model(updater: Updater) -> dict[str, TokenModel]:
    return {"critic": updater.critic.learner.model} if updater.critic else {}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])
