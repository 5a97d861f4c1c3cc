"""The files of the matrix of keys: models, rows, reward functions and environments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import torch

from reinlm.keys import VERBS
from reinlm.models import ModelConfig, load_policy, new_reward_model, save_policy, tiny_model
from tiny_runs import ALPHABET, EXAMPLES, ROWS, saved, tiny

REWARDS = """
import asyncio
import time


def graded(completions, **columns):
    completions = [text if isinstance(text, str) else text[-1]["content"] for text in completions]
    return [sum(int(c) for c in text if c.isdigit()) / (9.0 * max(len(text), 1)) for text in completions]


def calls(completions, **columns):
    return [float(len(completions)) + i for i, text in enumerate(completions)]


def fails(completions, prompts, **columns):
    if any("12" in prompt for prompt in prompts):
        raise ValueError("no")
    return [float(i) for i, text in enumerate(completions)]


def halves(completions, **columns):
    return [0.5 * (i % 2) for i, text in enumerate(completions)]


def equal(completions, **columns):
    return [0.0 for text in completions]


def huge(completions, **columns):
    return [1e25 * len(text) * (i % 2 - 0.5) for i, text in enumerate(completions)]


def picky(completions, **columns):
    if any("1" in text for text in completions):
        raise ValueError("no")
    return [float(len(text)) for text in completions]


def never(completions, **columns):
    raise ValueError("no")


tried = 0


def flaky(completions, **columns):
    global tried
    tried += 1
    if tried % 3:
        raise ConnectionError("503")
    return [float(len(text)) for text in completions]


failed_at = None


def late(completions, **columns):
    global failed_at
    if failed_at is None:
        failed_at = time.monotonic()
        raise ConnectionError("503")
    waited, failed_at = time.monotonic() - failed_at > 0.1, None
    return [float(waited) for text in completions]


def longer(prompts, completions):
    return [0.5 if len(a) == len(b) else float(len(b) > len(a)) for a, b in completions]


def second(prompts, completions):
    return ["second" for pair in completions]


def odd(prompts, completions):
    return [len(prompts) % 2 for pair in completions]


def flaky_judge(prompts, completions):
    return [min(value, 1.0) for value in flaky(prompts)]


def late_judge(prompts, completions):
    return late(prompts)


running = 0


async def waits(completion, **columns):
    global running
    running += 1
    await asyncio.sleep(0)
    together, running = running, running - 1
    return float(together)
"""
CHAT = (
    "{% for m in messages %}{{ 'u' if m.role[0] == 'u' else 'a' }}:{{ m.content }}{% endfor %}"
    "{% if enable_thinking is defined %}+{% endif %}a:"
)
"""A chat template over the characters of the model."""
TURNS = """
import time


class Turns:
    wait, wrong = 0.0, False

    def reset(self, task):
        self.turn = 0
        return None

    def step(self, action):
        time.sleep(self.wait)
        if self.wrong:
            raise ValueError("no")
        self.turn += 1
        return "+1=", float(len(action.text)), self.turn == 3, False, {}


class Uneven(Turns):
    made = 0

    def __init__(self):
        Uneven.made += 1
        self.wait = 0.05 * (Uneven.made % 2)


class Fails(Turns):
    wrong = True
"""
PARTS = """
import copy

from reinlm.config import Config
from reinlm.parts import part
from reinlm.rollouts.hf_engine import HFEngine


@part("engine", "pair")
class Pair(Config):
    def build(self, policy, *, autocast=None, max_running=256):
        return HFEngine(policy.model, policy.tokenizer, pad_id=policy.pad_id, context_length=policy.context_length, max_batch=2)


@part("engine", "frozen")
class Frozen(Config):
    def build(self, policy, *, autocast=None, max_running=256):
        model = copy.deepcopy(policy.model)
        return HFEngine(model, policy.tokenizer, pad_id=policy.pad_id, context_length=policy.context_length, max_batch=64)
"""
MINE = 'open("imported.txt", "w").close()'


def steep() -> tuple[Any, Any]:
    """A model with ordinary logits and gradients that overflow: a tiny scale before a huge head."""
    _, characters = tiny()
    model: Any = tiny_model(
        "qwen3", vocab_size=len(characters), hidden_size=16, layers=1, heads=2, context=64, tie=False
    )
    with torch.no_grad():
        model.model.norm.weight.mul_(1e-30)
        model.lm_head.weight.mul_(1e30)
    return model, characters


def judged(row: dict[str, str]) -> dict[str, Any]:
    """A row with a right answer and a wrong one."""
    number = int(row["answer"])
    margin, domain = float(1 + number % 3), "odd" if number % 2 else "even"
    return {**row, "chosen": row["answer"], "rejected": str(number + 1), "margin": margin, "domain": domain}


def _of_reward_models() -> dict[str, list[Any]]:
    """Judged answers by file: ties, rankings, ratings, and margins that no score can have."""
    pairs = [judged(row) for row in ROWS]
    rated: list[dict[str, Any]] = [{"prompt": row["prompt"], "completion": row["answer"]} for row in ROWS]
    return {
        "tied": [{**pair, "tie": n % 2 == 0} for n, pair in enumerate(pairs)],
        "far": [{**pair, "margin": 1e39} for pair in pairs],
        "ranked": [{"prompt": row["prompt"], "answers": [row["answer"], "0", "00"]} for row in ROWS],
        "rated": [{**row, "ratings": {"helpful": n % 4, "short": n % 3}} for n, row in enumerate(rated)],
        "rated_twice": [{**row, "rating": n % 4, "good": n % 3} for n, row in enumerate(rated)],
    }


def fill(folder: Path) -> Path:
    """The model and the data of all trials."""
    saved(folder / "model")
    saved(folder / "other_model", seed=1)
    save_policy(load_policy(steep()), folder / "steep_model")
    for name, seed in (("reward_model", 1), ("other_reward_model", 2)):
        reward = new_reward_model(ModelConfig(path=str(folder / "model")), seed=seed)
        batch = reward.batch([[n % 9 + 2, 12, n % 7 + 2] for n in range(20)], [1] * 20)
        reward.normalised(reward.score(batch).reward).save(folder / name)
    easy = [{**line, "answer": "A" if n % 2 else "1", "completion": "1"} for n, line in enumerate(ROWS)]
    rows: dict[str, list[Any]] = {"easy": easy, "prompts": ROWS, "examples": EXAMPLES, "held_out": EXAMPLES[:4]}
    for name, lines in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "other.jsonl").write_text("".join(json.dumps(line) + "\n" for line in EXAMPLES[::-1]))
    (folder / "others.jsonl").write_text("".join(json.dumps(line) + "\n" for line in map(judged, ROWS[::-1])))
    (folder / "few.jsonl").write_text("".join(json.dumps(line) + "\n" for line in map(judged, ROWS[:3])))
    (folder / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in map(judged, ROWS)))
    chat = tiny(alphabet=ALPHABET + "u:a", chat_template=CHAT)
    save_policy(load_policy(chat), folder / "chat_model")
    every = [{**judged(line), "completion": line["answer"]} for line in ROWS]
    noisy: Any = tiny()
    noisy[0].config.attention_dropout = 0.5
    save_policy(load_policy(noisy), folder / "noisy_model")
    rows = {
        "all": every,
        "more": every[::-1],
        "long": [*every, {**every[0], "prompt": "1" * 90}],
        "bad": [*every, {}],
        **_of_reward_models(),
    }
    for name, lines in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    datasets.DatasetDict(
        {"train": datasets.Dataset.from_list(every), "test": datasets.Dataset.from_list(every[:4])}
    ).save_to_disk(folder / "saved")
    for name, text in (
        ("rewards.py", REWARDS),
        ("turns.py", TURNS),
        ("parts.py", PARTS),
        *((f"mine_{verb}.py", MINE) for verb in VERBS),
    ):
        (folder / name).write_text(text)
    return folder
