"""PPO in one file: the whole loop with a critic, top to bottom, on a task that a laptop learns in a minute.

    python examples/minimal_ppo.py

A tiny model first imitates demonstrations of addition that often forget a carry, and imitates that too. Then PPO (arXiv
1707.06347; for language models 1909.08593) is told only whether a sampled answer is right, and unlearns it:

    sample an answer; its last token is rewarded, and every token pays  -β (log π_old - log π_ref)       `token_rewards`
    δ_t = r_t + γ V_(t+1) - V_t,   A_t = δ_t + γ λ A_(t+1),   returns R_t = A_t + V_t                   `gae`
    maximise  1/N Σ_t min( ρ_t A_t, clip(ρ_t, 1-ε, 1+ε) A_t ),   ρ_t = π_θ / π_old,  A whitened           `ppo_loss`
    minimise  c/N Σ_t ½ max( (V_t - R_t)², (V_old + clip(V_t - V_old, ±ε) - R_t)² )

V_t, the critic's value, is read from the state before token t. Log-probabilities are named by who computed them: `logprobs`
(trained, the only ones with a gradient), `old_logprobs` (the same weights before the first update) and `ref_logprobs`.
Everything is padded to [B, T] with a mask; `tests/examples` shows that loss and gradient are those of the library.
"""

from __future__ import annotations

import argparse
import copy
import random
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from reinlm.data.arithmetic import ALPHABET, Addition, demonstrations, problems
from reinlm.models import character_tokenizer, tiny_model

BATCH, MINIBATCHES, PASSES = 256, 4, 2  # answers of a batch, and the updates made of it
EPSILON, BETA = 0.2, 0.05  # ε: ratio and value count within this of the old ones; β: how strongly the reference pulls
GAMMA, LAMBDA = 1.0, 0.95  # γ, λ of generalised advantage estimation, arXiv 1506.02438
VALUE_COEFFICIENT = 0.5  # c
POLICY_RATE, CRITIC_RATE = 4e-4, 1e-3
MAX_NEW_TOKENS = 6
SFT_STEPS, SFT_BATCH, SFT_RATE = 500, 64, 4e-3


# ---------------------------------------------------------------------------------------------- the mathematics


def token_logprobs(model: Any, ids: Tensor) -> Tensor:
    """log π(token_t | tokens before it) of every token but the first: ids [B, T] -> [B, T - 1]."""
    logits = model(input_ids=ids).logits[:, :-1]
    return torch.log_softmax(logits, dim=-1).gather(-1, ids[:, 1:, None]).squeeze(-1)


def token_rewards(rewards: Tensor, old_logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor) -> Tensor:
    """-β (log π_old - log π_ref) at every token of an answer, and the answer's reward [B] at its last one: [B, T]."""
    last = mask & (mask.cumsum(dim=1) == mask.sum(dim=1, keepdim=True))
    return (last * rewards[:, None] - BETA * (old_logprobs - ref_logprobs)).masked_fill(~mask, 0.0)


def gae(rewards: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Whitened advantages, and returns, of each token, from the last one back: [B, T]. Nothing comes after the last token."""
    advantages = torch.zeros_like(rewards)
    next_advantage, next_value = torch.zeros(len(rewards)), torch.zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        delta = rewards[:, t] + GAMMA * next_value - values[:, t]
        here = delta + GAMMA * LAMBDA * next_advantage
        advantages[:, t] = torch.where(mask[:, t], here, 0.0)
        next_advantage = torch.where(mask[:, t], here, next_advantage)
        next_value = torch.where(mask[:, t], values[:, t], next_value)
    mean, variance = advantages[mask].mean(), advantages[mask].var(correction=0)
    return (advantages - mean) * torch.rsqrt(variance + 1e-8), advantages + values


def ppo_loss(logprobs: Tensor, values: Tensor, old: dict[str, Tensor], mask: Tensor) -> Tensor:
    """The two objectives above as one loss. `old` has old_logprobs, values, advantages and returns; all [B, T]."""
    ratio = (logprobs - old["old_logprobs"])[mask].exp()
    advantages, returns, old_values = (old[name][mask] for name in ("advantages", "returns", "values"))
    policy = -torch.minimum(ratio * advantages, ratio.clamp(1 - EPSILON, 1 + EPSILON) * advantages)
    clipped = old_values + (values[mask] - old_values).clamp(-EPSILON, EPSILON)
    value = torch.maximum((values[mask] - returns).square(), (clipped - returns).square()) / 2
    return (policy + VALUE_COEFFICIENT * value).mean()


class Critic(nn.Module):
    """A value head on a copy of the policy's backbone."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.backbone = copy.deepcopy(policy.get_decoder())
        self.head = nn.Linear(policy.config.hidden_size, 1)
        nn.init.zeros_(self.head.weight)

    def forward(self, ids: Tensor) -> Tensor:
        """The value of the state before every token but the first: [B, T] -> [B, T - 1]."""
        states = self.backbone(input_ids=ids).last_hidden_state[:, :-1]
        return self.head(states).squeeze(-1)


# ---------------------------------------------------------------------------------------------- sampling


@torch.no_grad()
def sample(model: Any, prompts: Tensor, stop: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Answers at temperature 1: ids [B, P + N] with prompts in front, and which of all tokens but the first were chosen."""
    ids, done, chosen = prompts, torch.zeros(len(prompts), dtype=torch.bool), []
    for _ in range(MAX_NEW_TOKENS):
        probabilities = torch.softmax(model(input_ids=ids).logits[:, -1].float(), dim=-1)
        token = torch.multinomial(probabilities, 1, generator=generator)
        chosen.append(~done)
        ids = torch.cat([ids, token], dim=1)
        done = done | (token.squeeze(-1) == stop)  # what follows a stop token is padding
    return ids, torch.cat([torch.zeros(len(prompts), prompts.shape[1] - 1).bool(), torch.stack(chosen, dim=1)], dim=1)


def accuracy(model: Any, tokenizer: Any, held_out: Sequence[Addition], generator: torch.Generator) -> float:
    """The share of held-out problems answered right by sampling."""
    ids, mask = sample(model, encode(tokenizer, held_out), tokenizer.eos_token_id, generator)
    return float(right(tokenizer, ids, mask, held_out).mean())


def right(tokenizer: Any, ids: Tensor, mask: Tensor, asked: Sequence[Addition]) -> Tensor:
    """1 for each answer that is right, else 0: [B]."""
    rows = [row[1:][kept].tolist() for row, kept in zip(ids, mask, strict=True)]
    texts = [tokenizer.decode(row, skip_special_tokens=True) for row in rows]
    return torch.tensor([float(text == one.answer) for text, one in zip(texts, asked, strict=True)])


def encode(tokenizer: Any, items: Sequence[Addition]) -> Tensor:
    """Prompts, which all have the same length here."""
    return torch.tensor([tokenizer(item.prompt, add_special_tokens=False)["input_ids"] for item in items])


# ---------------------------------------------------------------------------------------------- training


def imitate(model: Any, tokenizer: Any, rows: Sequence[dict[str, str]], draw: random.Random) -> None:
    """Supervised fine-tuning: raise log π of the demonstrated answers."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=SFT_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, SFT_RATE, SFT_STEPS, pct_start=0.05)
    for _ in range(SFT_STEPS):
        batch = draw.sample(rows, SFT_BATCH)
        texts = [row["prompt"] + row["completion"] + tokenizer.eos_token for row in batch]
        ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts])
        start = len(tokenizer(batch[0]["prompt"], add_special_tokens=False)["input_ids"]) - 1
        loss = -token_logprobs(model, ids)[:, start:].mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


def ppo_step(
    model: Any, critic: Critic, reference: Any, tokenizer: Any, optimizer: Any, batch: Any, generator: torch.Generator
) -> float:
    """Sample, reward, estimate advantages, and make a few updates; returns the mean reward."""
    ids, mask = sample(model, encode(tokenizer, batch), tokenizer.eos_token_id, generator)
    rewards = right(tokenizer, ids, mask, batch)
    with torch.no_grad():
        old = {"old_logprobs": token_logprobs(model, ids), "values": critic(ids)}
        paid = token_rewards(rewards, old["old_logprobs"], token_logprobs(reference, ids), mask)
        old["advantages"], old["returns"] = gae(paid, old["values"], mask)
    for _ in range(PASSES):
        for part in torch.randperm(len(ids), generator=generator).view(MINIBATCHES, -1):
            slices = {name: x[part] for name, x in old.items()}
            ppo_loss(token_logprobs(model, ids[part]), critic(ids[part]), slices, mask[part]).backward()
            nn.utils.clip_grad_norm_([*model.parameters(), *critic.parameters()], 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return float(rewards.mean())


def main(seed: int = 0, steps: int = 20) -> tuple[float, float]:
    """SFT, then PPO; returns the held-out accuracy before and after."""
    torch.set_num_threads(1)  # a model this small gains nothing from a second one
    torch.manual_seed(seed)
    generator, draw = torch.Generator().manual_seed(seed), random.Random(seed)
    tokenizer = character_tokenizer(ALPHABET)
    shape: Any = {"hidden_size": 128, "layers": 2, "heads": 4, "intermediate_size": 256, "context": 32}
    model: Any = tiny_model("qwen3", vocab_size=len(tokenizer), seed=seed, init_std=0.08, rope_theta=100.0, **shape)
    held_out = problems(400, seed=seed)
    train = problems(6000, seed=seed + 1, exclude=held_out)
    started = time.perf_counter()
    imitate(model, tokenizer, demonstrations(train, 0.52, seed), draw)
    before = accuracy(model, tokenizer, held_out, generator)
    print(f"after SFT: {before:.1%} right by sampling ({time.perf_counter() - started:.0f} s)")
    reference, critic = copy.deepcopy(model).requires_grad_(False), Critic(model)
    groups = [
        {"params": module.parameters(), "lr": rate} for module, rate in ((model, POLICY_RATE), (critic, CRITIC_RATE))
    ]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
    for step in range(1, steps + 1):
        reward = ppo_step(model, critic, reference, tokenizer, optimizer, draw.sample(train, BATCH), generator)
        print(f"step {step:3}: mean reward {reward:.2f}")
    after = accuracy(model, tokenizer, held_out, generator)
    print(f"after PPO: {after:.1%} right by sampling ({time.perf_counter() - started:.0f} s)")
    return before, after


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="PPO in one file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=20)
    main(**vars(parser.parse_args()))
