"""A rule that nobody states, learned from judgements of which 10 % are wrong: the reward model, and then every way to use it.

    python benchmarks/hidden_rule.py --output runs/hidden_rule                # three seeds, all methods; some minutes each
    python benchmarks/hidden_rule.py --output runs/one --seeds 0 --only dpo

A model of 0.15 million parameters writes up to ten letters after a prompt of four. The rule gives an answer the mean of its
letters' worths, which the judgements follow but for one pair in ten; how long an answer is says nothing. From one SFT checkpoint
of random letters:

- the reward model learns from 3,000 pairs of its answers; it is compared with the rule on held-out pairs whose worths differ;
- dpo, ipo, kto and simpo learn from the same pairs, rft (two rounds) from the best of 8 by the reward model, ppo and grpo online;
- a method wins on a held-out prompt where the rule prefers its answer to that of the SFT model, both sampled at temperature 1; a
  tie counts one half.

Seconds are of the method alone on one thread, megabytes the most that its process held. `distinct` is the share of different
ones among the pairs of neighbouring letters in its answers; `text_loss` the loss in nats a token on held-out SFT text (`sft` is
that of the start).
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import string
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import reinlm
from reinlm.models import character_tokenizer, load_policy, save_policy, score, tiny_model

LETTERS = string.ascii_lowercase[:16]
LONGEST = 10
PAIRS, HELD_OUT, WRONG = 3000, 300, 0.1
METHODS = ("dpo", "ipo", "kto", "simpo", "rft", "ppo", "grpo")
BASE = Path("sft") / "checkpoints" / "last"
LEAST = {"reward": 0.85, "dpo": 0.65, "ipo": 0.65, "kto": 0.65, "simpo": 0.65, "rft": 0.65, "ppo": 0.75, "grpo": 0.75}
"""The accuracy of the reward model and the win rates that have to be reached; exit status 1 where one is not."""
# β of KTO: at 0.1 this learning rate takes both likelihoods far down, and of one seed in three to answers of one or two letters.
PREFERENCE: dict[str, dict[str, Any]] = {
    "dpo": {"optimizer": {"learning_rate": 5e-4}},
    "ipo": {"optimizer": {"learning_rate": 5e-4}},
    "kto": {"algorithm": {"base": "kto", "beta": 0.3}, "optimizer": {"learning_rate": 5e-4}},
    "simpo": {"optimizer": {"learning_rate": 5e-4}},
}
ONLINE: dict[str, Any] = {
    "rollout": {"group_size": 8, "batch_size": 256, "max_new_tokens": LONGEST + 1},
    "optimizer": {"learning_rate": 1e-3},
    "training": {"steps": 40},
}


def worth(text: str) -> float:
    """The rule: the mean worth of the letters, which lies between -1 and 1; -1 of an empty answer."""
    worths = [1.0 if letter in "aeinp" else -1.0 if letter in "bcdfg" else 0.0 for letter in text if letter in LETTERS]
    return statistics.fmean(worths) if worths else -1.0


def prompts(count: int, seed: int) -> list[str]:
    """So many prompts of four letters and an equals sign."""
    draw = random.Random(seed)
    return ["".join(draw.choices(LETTERS, k=4)) + "=" for _ in range(count)]


def demonstrations(count: int, seed: int) -> list[dict[str, str]]:
    """Prompts with random letters as answers, five to ten of them."""
    draw = random.Random(seed + 1)
    return [
        {"prompt": prompt, "completion": "".join(draw.choices(LETTERS, k=draw.randint(5, LONGEST)))}
        for prompt in prompts(count, seed)
    ]


def answers(model: Path, asked: Sequence[str], samples: int, seed: int) -> list[Sequence[str]]:
    """Answers of a model to prompts, sampled at temperature 1."""
    found = reinlm.generate(
        str(model),
        prompts=list(asked),
        samples=samples,
        seed=seed,
        max_new_tokens=LONGEST + 1,
        temperature=1.0,
        quiet=True,
    )
    return [one.completions for one in found]


def judged(model: Path, count: int, seed: int, wrong: float) -> list[dict[str, str]]:
    """Pairs of the model's answers that the rule tells apart, of which a share is judged wrongly."""
    draw = random.Random(seed + 2)
    asked = prompts(count, seed + 3)
    rows = []
    for prompt, (first, second) in zip(asked, answers(model, asked, 2, seed), strict=True):
        if not (first and second) or worth(first) == worth(second):
            continue
        chosen, rejected = (first, second) if worth(first) > worth(second) else (second, first)
        if draw.random() < wrong:
            chosen, rejected = rejected, chosen
        rows.append({"prompt": prompt, "chosen": chosen, "rejected": rejected})
    return rows


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def prepare(folder: Path, seed: int) -> None:
    """The SFT model and the judged pairs of a seed."""
    folder.mkdir(parents=True)
    tokenizer = character_tokenizer(LETTERS + "=")
    model = tiny_model(
        "qwen3",
        vocab_size=len(tokenizer),
        hidden_size=64,
        layers=2,
        heads=4,
        intermediate_size=128,
        context=32,
        seed=seed,
    )
    save_policy(load_policy((model, tokenizer)), folder / "model")
    write(folder / "held_out_text.jsonl", demonstrations(500, seed + 100))
    reinlm.sft(
        str(folder / "model"),
        write(folder / "text.jsonl", demonstrations(4000, seed)),
        optimizer={"learning_rate": 3e-3},
        training={"steps": 150, "batch_size": 64},
        output=str(folder / "sft"),
        seed=seed,
        quiet=True,
    )
    base = folder / BASE
    write(folder / "pairs.jsonl", judged(base, PAIRS, seed + 1000, WRONG))
    write(folder / "held_out_pairs.jsonl", judged(base, 1000, seed + 2000, 0.0))


def train(method: str, folder: Path, seed: int) -> Path:
    """Run one method; the folder of its model."""
    base, pairs, output = str(folder / BASE), str(folder / "pairs.jsonl"), folder / method
    common: dict[str, Any] = {"output": str(output), "seed": seed, "quiet": True}
    if method == "reward":
        reinlm.reward(
            base,
            pairs,
            eval_data=str(folder / "held_out_pairs.jsonl"),
            optimizer={"learning_rate": 1e-3},
            training={"epochs": 2, "batch_size": 64},
            **common,
        )
    elif method in PREFERENCE:
        settings = {"algorithm": method, "training": {"epochs": 2, "batch_size": 64}, **PREFERENCE[method]}
        reinlm.dpo(base, pairs, **settings, **common)
    else:
        tasks = [{"prompt": prompt} for prompt in prompts(1000, seed + 4000)]
        reward = {"model": {"path": str(folder / "reward" / "checkpoints" / "best")}}
        if method == "rft":
            reinlm.rft(
                base,
                tasks,
                reward=reward,
                method="raft",
                iterations=2,
                rollout=ONLINE["rollout"],
                optimizer={"learning_rate": 1e-3},
                **common,
            )
        else:
            reinlm.rl(base, tasks, reward=reward, algorithm=method, **ONLINE, **common)
    return output / "checkpoints" / "last"


def measure(method: str, folder: Path, seed: int) -> dict[str, Any]:
    """Run a method in this process, and judge what it made."""
    started = time.perf_counter()
    model = train(method, folder, seed)
    found: dict[str, Any] = {"seconds": time.perf_counter() - started}
    found["megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if method == "reward":
        after = json.loads((folder / "reward" / "summary.json").read_text())["after"]
        return found | {name: after[f"eval/{name}"] for name in ("accuracy", "accuracy_shorter", "accuracy_longer")}
    asked = prompts(HELD_OUT, seed + 5000)
    ours, theirs = ([texts[0] for texts in answers(path, asked, 1, seed + 6000)] for path in (model, folder / BASE))
    wins = [(worth(a) > worth(b)) + 0.5 * (worth(a) == worth(b)) for a, b in zip(ours, theirs, strict=True)]
    bigrams = [text[place : place + 2] for text in ours for place in range(len(text) - 1)]
    found |= {
        "win_rate": statistics.fmean(wins),
        "length": statistics.fmean(map(len, ours)),
        "distinct": len(set(bigrams)) / max(1, len(bigrams)),
    }
    return found | {"text_loss": text_loss(model, folder / "held_out_text.jsonl")}


def text_loss(model: Path, file: Path) -> float:
    """Nats a token of the completions."""
    policy = load_policy(str(model))
    sequences, places = [], []
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        prompt, completion = (
            policy.tokenizer(row[name], add_special_tokens=False)["input_ids"] for name in ("prompt", "completion")
        )
        sequences.append([*prompt, *completion, policy.stops[0]])
        places.append(list(range(len(prompt), len(sequences[-1]))))
    with torch.no_grad():
        return -float(score(policy.model, sequences, places).scored.mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="a new folder")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        seed, method = arguments.measure.split(":")
        print(json.dumps(measure(method, arguments.output, int(seed))))
        return
    failed = []
    for seed in arguments.seeds:
        folder = arguments.output / str(seed)
        prepare(folder, seed)
        print(
            seed, "sft", json.dumps({"text_loss": text_loss(folder / BASE, folder / "held_out_text.jsonl")}), flush=True
        )
        for method in ("reward", *arguments.only):
            command = [sys.executable, __file__, "--output", str(folder), "--measure", f"{seed}:{method}"]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            line = done.stdout.strip().splitlines()[-1]
            print(seed, method, line, flush=True)
            rate = json.loads(line).get("win_rate", json.loads(line).get("accuracy"))
            if rate < LEAST[method]:
                failed.append(f"seed {seed}: {method} reaches {rate:.3f}, and has to reach {LEAST[method]}")
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
