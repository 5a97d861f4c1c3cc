"""DPO in one file: the whole path from a model and a judge to a better model, on a task that a laptop learns in a minute.

    python examples/minimal_dpo.py

A tiny model first imitates demonstrations of addition that often forget a carry, and imitates that too. Then it answers each
problem a few times, and a judge pairs a right answer y_w with a wrong one y_l. DPO (arXiv 2305.18290) learns from these pairs,
with no reward and no critic:

    minimise  -log σ( β h ),   h = [ log π_θ(y_w) - log π_ref(y_w) ] - [ log π_θ(y_l) - log π_ref(y_l) ]     `dpo_loss`

log π(y) is a sum over the tokens of the answer. `logprobs` are those of the policy being trained, the only ones with a
gradient; `ref_logprobs` are those of the model that answered, computed once a round. The gradient of a pair is β σ(-β h)
times that of raising log π_θ(y_w) and lowering log π_θ(y_l): a pair that is far enough apart teaches nothing more.

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
from torch.nn.functional import logsigmoid

from reinlm.data.arithmetic import ALPHABET, Addition, demonstrations, problems
from reinlm.models import character_tokenizer, tiny_model

JUDGED, SAMPLES = 300, 8  # problems of a round, and answers to each, among which are a right one and a wrong one
ROUND = 30  # updates before the newest model answers anew, and is the reference from then on
PAIRS = 32  # pairs in a batch
BETA = 1.0  # β: how strongly the reference holds
LEARNING_RATE = 1e-4
MAX_NEW_TOKENS = 6
SFT_STEPS, SFT_BATCH, SFT_RATE = 500, 64, 4e-3


# ---------------------------------------------------------------------------------------------- the mathematics


def token_logprobs(model: Any, ids: Tensor) -> Tensor:
    """log π(token_t | tokens before it) of every token but the first: ids [B, T] -> [B, T - 1]."""
    logits = model(input_ids=ids).logits[:, :-1]
    precise = torch.promote_types(logits.dtype, torch.float32)  # ratios of bfloat16 log-probabilities would be noise
    return torch.log_softmax(logits, dim=-1, dtype=precise).gather(-1, ids[:, 1:, None]).squeeze(-1)


def sequence_logprobs(logprobs: Tensor, mask: Tensor) -> Tensor:
    """log π(y) of each answer: the sum over its tokens, [B, T] and mask [B, T] -> [B]."""
    return logprobs.masked_fill(~mask, 0.0).sum(dim=1)


def dpo_loss(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor, beta: float = BETA) -> Tensor:
    """The objective above, the mean over pairs. All [B], log-probabilities of whole answers."""
    difference = (chosen - ref_chosen) - (rejected - ref_rejected)
    return -logsigmoid(beta * difference).mean()


# ---------------------------------------------------------------------------------------------- sampling and judging


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


def answers(tokenizer: Any, ids: Tensor, mask: Tensor) -> list[str]:
    """The chosen tokens as text, without the stop token."""
    rows = [row[1:][kept].tolist() for row, kept in zip(ids, mask, strict=True)]
    return [tokenizer.decode(row, skip_special_tokens=True) for row in rows]


def accuracy(model: Any, tokenizer: Any, held_out: Sequence[Addition], generator: torch.Generator) -> float:
    """The share of held-out problems answered right by sampling."""
    ids, mask = sample(model, encode(tokenizer, held_out), tokenizer.eos_token_id, generator)
    given = answers(tokenizer, ids, mask)
    return sum(text == problem.answer for text, problem in zip(given, held_out, strict=True)) / len(held_out)


def encode(tokenizer: Any, items: Sequence[Addition]) -> Tensor:
    """Prompts, which all have the same length here."""
    return torch.tensor([tokenizer(item.prompt, add_special_tokens=False)["input_ids"] for item in items])


def judge(model: Any, tokenizer: Any, asked: Sequence[Addition], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pairs of the model's own answers, right before wrong: ids [2 P, T] and masks, chosen and rejected in turn.

    A problem that it answered only right, or only wrong, gives no pair.
    """
    repeated = [problem for problem in asked for _ in range(SAMPLES)]
    ids, mask = sample(model, encode(tokenizer, repeated), tokenizer.eos_token_id, generator)
    right = [text == one.answer for text, one in zip(answers(tokenizer, ids, mask), repeated, strict=True)]
    places = []
    for start in range(0, len(right), SAMPLES):
        group = right[start : start + SAMPLES]
        if any(group) and not all(group):
            places += [start + group.index(True), start + group.index(False)]
    return ids[places], mask[places]


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


def dpo_step(
    model: Any, optimizer: torch.optim.Optimizer, ids: Tensor, mask: Tensor, ref: Tensor
) -> tuple[float, float]:
    """One update on pairs, chosen and rejected in turn; returns the loss and the share of pairs whose margin is above 0."""
    summed = sequence_logprobs(token_logprobs(model, ids), mask)
    loss = dpo_loss(summed[0::2], summed[1::2], ref[0::2], ref[1::2])
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    reward = BETA * (summed - ref).detach()  # what DPO takes for the reward of each answer
    return float(loss.detach()), float((reward[0::2] > reward[1::2]).float().mean())


def main(seed: int = 0, steps: int = 90) -> tuple[float, float]:
    """SFT, then DPO in rounds; returns the held-out accuracy before and after."""
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
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    for step in range(steps):
        if step % ROUND == 0:
            reference = copy.deepcopy(model).requires_grad_(False)
            ids, mask = judge(reference, tokenizer, draw.sample(train, JUDGED), generator)
            ref_logprobs = sequence_logprobs(token_logprobs(reference, ids), mask)
        chosen = torch.tensor(draw.choices(range(len(ids) // 2), k=PAIRS)) * 2
        part = torch.stack([chosen, chosen + 1], dim=1).flatten()
        loss, right = dpo_step(model, optimizer, ids[part], mask[part], ref_logprobs[part])
        if (step + 1) % 10 == 0:
            print(f"step {step + 1:3}: {len(ids) // 2} pairs, loss {loss:.3f}, {right:.0%} of the batch in order")
    after = accuracy(model, tokenizer, held_out, generator)
    print(f"after DPO: {after:.1%} right by sampling ({time.perf_counter() - started:.0f} s)")
    return before, after


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="DPO in one file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=90)
    arguments = parser.parse_args()
    main(arguments.seed, arguments.steps)
