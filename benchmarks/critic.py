"""What a critic knows after its warm-up: explained variance on a fixed batch of the SFT policy's answers.

    python benchmarks/ladder.py --output runs/ladder --algorithms ppo --seeds 0     # makes the checkpoint
    python benchmarks/critic.py --output runs/ladder

Trains PPO's critic alone (`critic.warmup_steps` is the whole run), on Monte Carlo returns (VC-PPO, arXiv 2503.01491), then
reads it back from the run's checkpoint and judges it on 1,600 answers that it never saw. Beside it stands the best that any
critic can do: the exact chance that the policy finishes right from each state.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from reinlm import rl
from reinlm.batches import token_batch
from reinlm.data import DataConfig, build_renderer, load_tasks
from reinlm.models import VALUES, Policy, TokenModel, ValueModel, load_policy, score
from reinlm.objectives import explained_variance
from reinlm.rollouts import Episodes, SamplingConfig, build_engine, sample_groups
from reinlm.runs import load_state
from reinlm.training.learner import Learner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, default=Path("runs/ladder"))
    parser.add_argument("--steps", type=int, default=190)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = str(arguments.output / "sft" / "checkpoints" / "last")
    run = rl(
        model,
        str(arguments.output / "data" / "train.jsonl"),
        output=arguments.output / f"critic-{arguments.seed}",
        algorithm={
            "base": "ppo",
            "advantage": {"whitened": {"gae": {"critic_lambda": 1.0, "bootstrap_truncated": False}}},
            "critic": {"clip": None, "coefficient": 1.0},
        },
        reward="exact_match",
        rollout={"group_size": 4, "batch_size": 512, "max_new_tokens": 6, "max_running": 512},
        critic={
            "warmup_steps": arguments.steps,
            "optimizer": {"learning_rate": 2e-3, "schedule": "cosine", "warmup_steps": 300},
        },
        training={"steps": arguments.steps, "minibatches": 4, "passes": 4},
        run={"save_every": 0, "rollouts_every": 0, "tensorboard": False},
        seed=arguments.seed,
        quiet=True,
        overwrite=True,
    )
    policy = load_policy(model)
    critic = ValueModel(TokenModel(policy.model))
    critic.restore(load_state(run.folder / "checkpoints" / f"step_{arguments.steps}")["run"]["critic"]["weights"])
    values, best, returns = _judge(policy, critic, arguments.output)
    print(f"{arguments.steps} steps, {run.summary['train_seconds']:.0f} s of training")
    print(f"explained variance of the critic     {float(explained_variance(values, returns)):.3f}")
    print(f"of the exact chance to finish right  {float(explained_variance(best, returns)):.3f}")


def _judge(policy: Policy, critic: ValueModel, folder: Path) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The critic's values, the best values and the returns, of every token of the fixed batch."""
    data = DataConfig(path=str(folder / "data" / "test.jsonl"), limit=400)
    tasks = load_tasks(data, policy.tokenizer, max_prompt_tokens=None).items
    sampling = SamplingConfig(max_new_tokens=6).sampling(policy.stops)
    episodes = Episodes(build_engine("in_process", policy), build_renderer(data, policy.tokenizer), sampling, seed=0)
    groups = sample_groups(episodes, tasks, group_size=4, tag="fixed").groups
    best: list[float] = []
    returns: list[float] = []
    for group in groups:
        tokenizer: Any = policy.tokenizer
        right = [*tokenizer.convert_tokens_to_ids(list(group.group.task.columns["answer"])), policy.stops[0]]
        first = group.group.rollouts[0].segments[0]
        prompt = first.token_ids[~first.chosen].tolist()
        with torch.no_grad():
            positions = list(range(len(prompt), len(prompt) + len(right)))
            logprobs = score(policy.model, [[*prompt, *right]], [positions]).scored
        chances = logprobs.flip(0).cumsum(0).flip(0).exp().tolist()
        for rollout in group.group.rollouts:
            (segment,) = rollout.segments
            chosen = segment.chosen_ids.tolist()
            returns += [float(chosen == right)] * len(chosen)
            best += [chances[t] if t < len(right) and chosen[:t] == right[:t] else 0.0 for t in range(len(chosen))]
    values = Learner(critic.model, adapter=critic.adapter).forward(token_batch(groups), VALUES).values
    assert values is not None
    return values.double(), torch.tensor(best).double(), torch.tensor(returns).double()


if __name__ == "__main__":
    main()
