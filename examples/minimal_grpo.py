"""GRPO in one file: the whole loop, top to bottom, on a task that a laptop learns in a minute.

    python examples/minimal_grpo.py

A tiny model first imitates demonstrations of addition that often forget a carry, and imitates that too. Then GRPO
(DeepSeekMath, arXiv 2402.03300) is told only whether a sampled answer is right, and unlearns it:

    for each prompt, sample a group of G answers o_1 … o_G from the policy           `sample`
    reward each, and compare it with its group: A_i = (R_i - mean R) / std R          `group_advantages`
    maximise  1/G Σ_i 1/|o_i| Σ_t [ min( r_t A_i, clip(r_t, 1-ε, 1+ε) A_i ) - β k3_t ]    `grpo_loss`
        with r_t = π_θ(o_t) / π_old(o_t)  and  k3_t = π_ref/π_θ - 1 - log(π_ref/π_θ)

Four log-probabilities of the same token stand side by side, named by who computed them: `logprobs` (the policy being
trained, the only one with a gradient), `old_logprobs` (the same weights before the first update of a batch),
`rollout_logprobs` (while sampling; here equal to the old ones) and `ref_logprobs` (the model before RL).

Everything is padded to [B, T] with a mask, which is easy to read. The library itself gathers the chosen tokens first, so
that there is nothing to mask; `tests/examples` shows that loss and gradient are the same.
"""

from __future__ import annotations

import argparse
import copy
import random
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from reinlm.data.arithmetic import ALPHABET, Addition, demonstrations, problems
from reinlm.models import character_tokenizer, tiny_model

GROUP_SIZE = 8  # G: answers to each prompt
PROMPTS = 32  # prompts in a batch
MINIBATCHES = 4  # updates made of each batch, so that r_t leaves 1
EPSILON = 0.2  # ε: the ratio counts from 1 - ε to 1 + ε
BETA = 0.04  # β: how strongly the reference pulls
LEARNING_RATE = 4e-4
MAX_NEW_TOKENS = 6
SFT_STEPS, SFT_BATCH, SFT_RATE = 500, 64, 4e-3


# ---------------------------------------------------------------------------------------------- the mathematics


def token_logprobs(model: Any, ids: Tensor) -> Tensor:
    """log π(token_t | tokens before it) of every token but the first: ids [B, T] -> [B, T - 1]."""
    logits = model(input_ids=ids).logits[:, :-1]
    precise = torch.promote_types(logits.dtype, torch.float32)  # ratios of bfloat16 log-probabilities would be noise
    return torch.log_softmax(logits, dim=-1, dtype=precise).gather(-1, ids[:, 1:, None]).squeeze(-1)


def group_advantages(rewards: Tensor, group_size: int = GROUP_SIZE) -> Tensor:
    """A_i = (R_i - mean) / (std + 1e-6) within each group of neighbours: [B] -> [B]. A group that agrees teaches nothing."""
    groups = rewards.view(-1, group_size)
    centred = groups - groups.mean(dim=1, keepdim=True)
    deviation = groups.std(dim=1, correction=0, keepdim=True)
    agree = groups.amax(1, keepdim=True) == groups.amin(1, keepdim=True)
    return torch.where(agree, 0.0, centred / (deviation + 1e-6)).flatten()


def grpo_loss(logprobs: Tensor, old_logprobs: Tensor, ref_logprobs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """The objective above, negated. All [B, T] but advantages [B]; the mask is True on the tokens of the answers.

    Every answer weighs the same, however long. What stands at masked places is replaced before it is used: infinity
    times zero would be NaN.
    """
    logprobs, old_logprobs, ref_logprobs = (x.masked_fill(~mask, 0.0) for x in (logprobs, old_logprobs, ref_logprobs))
    ratio = (logprobs - old_logprobs).exp()
    advantage = advantages[:, None]
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - EPSILON, 1 + EPSILON) * advantage)
    difference = ref_logprobs - logprobs
    k3 = difference.exp() - 1 - difference
    lengths = mask.sum(dim=1)
    per_answer = ((surrogate - BETA * k3) * mask).sum(dim=1) / lengths.clamp(min=1)
    return -per_answer.sum() / (lengths > 0).sum().clamp(min=1)


# ---------------------------------------------------------------------------------------------- sampling


@torch.no_grad()
def sample(model: Any, prompts: Tensor, stop: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Answers at temperature 1: ids [B, P + N] with prompts in front, which of them were chosen, and their log π."""
    ids, done = prompts, torch.zeros(len(prompts), dtype=torch.bool)
    chosen, rollout_logprobs = [], []
    for _ in range(MAX_NEW_TOKENS):
        logprobs = torch.log_softmax(model(input_ids=ids).logits[:, -1].float(), dim=-1)
        token = torch.multinomial(logprobs.exp(), 1, generator=generator)
        chosen.append(~done)
        rollout_logprobs.append(logprobs.gather(-1, token).squeeze(-1))
        ids = torch.cat([ids, token], dim=1)
        done = done | (token.squeeze(-1) == stop)  # what follows a stop token is padding
    before = torch.zeros(len(prompts), prompts.shape[1] - 1)
    mask = torch.cat([before.bool(), torch.stack(chosen, dim=1)], dim=1)
    return ids, mask, torch.cat([before, torch.stack(rollout_logprobs, dim=1)], dim=1)


def answers(tokenizer: Any, ids: Tensor, mask: Tensor) -> list[str]:
    """The chosen tokens as text, without the stop token."""
    rows = [row[1:][kept].tolist() for row, kept in zip(ids, mask, strict=True)]
    return [tokenizer.decode(row, skip_special_tokens=True) for row in rows]


def accuracy(model: Any, tokenizer: Any, held_out: Sequence[Addition], generator: torch.Generator) -> float:
    """The share of held-out problems answered right by sampling."""
    ids, mask, _ = sample(model, encode(tokenizer, held_out), tokenizer.eos_token_id, generator)
    given = answers(tokenizer, ids, mask)
    return sum(text == problem.answer for text, problem in zip(given, held_out, strict=True)) / len(held_out)


def encode(tokenizer: Any, items: Sequence[Addition]) -> Tensor:
    """Prompts, which all have the same length here."""
    return torch.tensor([tokenizer(item.prompt, add_special_tokens=False)["input_ids"] for item in items])


# ---------------------------------------------------------------------------------------------- training


def imitate(model: Any, tokenizer: Any, rows: Sequence[dict[str, str]], draw: random.Random) -> None:
    """Supervised fine-tuning: raise log π of the demonstrated answers."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=SFT_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, SFT_RATE, total_steps=SFT_STEPS, pct_start=0.05)
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


def grpo_step(
    model: Any,
    reference: Any,
    tokenizer: Any,
    optimizer: torch.optim.Optimizer,
    batch: Sequence[Addition],
    generator: torch.Generator,
) -> float:
    """Sample, reward, compare, and make a few updates; returns the mean reward."""
    repeated = [problem for problem in batch for _ in range(GROUP_SIZE)]
    ids, mask, _ = sample(model, encode(tokenizer, repeated), tokenizer.eos_token_id, generator)
    given = answers(tokenizer, ids, mask)
    rewards = torch.tensor([float(text == problem.answer) for text, problem in zip(given, repeated, strict=True)])
    advantages = group_advantages(rewards)
    with torch.no_grad():
        old_logprobs, ref_logprobs = token_logprobs(model, ids), token_logprobs(reference, ids)
    for part in torch.arange(len(ids)).view(MINIBATCHES, -1):  # whole groups: neighbours stay together
        logprobs = token_logprobs(model, ids[part])
        loss = grpo_loss(logprobs, old_logprobs[part], ref_logprobs[part], advantages[part], mask[part])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return float(rewards.mean())


def main(seed: int = 0, steps: int = 60) -> tuple[float, float]:
    """SFT, then GRPO; returns the held-out accuracy before and after."""
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
    reference = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    for step in range(1, steps + 1):
        reward = grpo_step(model, reference, tokenizer, optimizer, draw.sample(train, PROMPTS), generator)
        if step % 10 == 0:
            print(f"step {step:3}: mean reward {reward:.2f}")
    after = accuracy(model, tokenizer, held_out, generator)
    print(f"after GRPO: {after:.1%} right by sampling ({time.perf_counter() - started:.0f} s)")
    return before, after


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="GRPO in one file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    main(arguments.seed, arguments.steps)
