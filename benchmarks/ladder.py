"""The ladder: every named algorithm without a teacher, from one SFT checkpoint of the quickstart task, by seed.

    python benchmarks/ladder.py --output runs/ladder                        # all algorithms, seeds 0 1 2, two at a time
    python benchmarks/ladder.py --output runs/ladder --algorithms ppo gspo --seeds 0

Makes the checkpoint once (SFT on flawed demonstrations, seed 0), then trains each algorithm with four updates for each
batch of 256 answers, and judges it on 600 held-out problems by
sampling (four answers to each for the checkpoint, one for a trained model). Prints a table and writes `ladder.json`,
`ladder.md` and `ladder.svg` into the output folder. A run that is already there is not made again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

STEPS = 64
SETTINGS: dict[str, Any] = {
    "reward": "exact_match",
    "rollout": {"group_size": 8, "batch_size": 256, "max_new_tokens": 6, "max_running": 256},
    "optimizer": {"learning_rate": 4e-4, "warmup_steps": 3},
    "training": {"steps": STEPS, "minibatches": 4, "passes": 1},
    "run": {"save_every": 0, "rollouts_every": 0, "tensorboard": False},
}
SPECIAL: dict[str, dict[str, Any]] = {
    # A rate that the rule can follow: its coefficient moves once a batch.
    "ppo_penalty": {"optimizer": {"learning_rate": 2e-4, "warmup_steps": 10}},
}
"""Where an algorithm differs from the common settings."""


def main() -> None:
    arguments = _arguments()
    if arguments.one:
        name, seed = arguments.one
        _train(arguments.output, name, int(seed))
        return
    from reinlm.algorithms import algorithm, ladder

    names = arguments.algorithms or [card.name for card in ladder() if not algorithm(card.name).needs_teacher]
    before = _checkpoint(arguments.output)
    print(f"SFT checkpoint: {before['accuracy']:.3f} right by sampling")
    jobs = [(name, seed) for name in names for seed in arguments.seeds]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        results = list(pool.map(lambda job: _in_process(arguments.output, *job), jobs))
    table = _table(results, before)
    print(table)
    (arguments.output / "ladder.md").write_text(table + "\n", encoding="utf-8")
    (arguments.output / "ladder.json").write_text(json.dumps({"before": before, "runs": results}, indent=1))
    (arguments.output / "ladder.svg").write_text(_plot(results, before), encoding="utf-8")
    gap = [(r["accuracy"] - before["accuracy"]) / (1 - before["accuracy"]) for r in results]
    print(
        f"\nleast of the gap to 1.0 that a run closed: {min(gap):.2f}; longest run {max(r['seconds'] for r in results):.0f} s"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, default=Path("runs/ladder"))
    parser.add_argument("--algorithms", nargs="*")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side, one thread each")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "SEED"), help=argparse.SUPPRESS)
    return parser.parse_args()


def _checkpoint(output: Path) -> dict[str, float]:
    """The pinned SFT checkpoint and its accuracy; made by the quickstart's own stages."""
    found = output / "before.json"
    if not found.exists():
        import torch

        from reinlm import sft
        from reinlm.quickstart import SFT_SETTINGS, _write_data, _write_model

        torch.set_num_threads(1)
        output.mkdir(parents=True, exist_ok=True)
        files = _write_data(output, seed=0, control=False)
        model = _write_model(output / "model", seed=0)
        sft(str(model), str(files["demonstrations"]), output=output / "sft", overwrite=True, quiet=True, **SFT_SETTINGS)
        found.write_text(json.dumps(_judge(output / "sft" / "checkpoints" / "last", output, samples=4)))
    before: dict[str, float] = json.loads(found.read_text())
    assert abs(before["accuracy"] - 0.45) <= 0.05, f"the checkpoint is {before['accuracy']:.3f} right, not 0.45 ± 0.05"
    return before


def _judge(model: Path, output: Path, samples: int = 1) -> dict[str, float]:
    from reinlm import evaluate

    settings = {"temperature": 1.0, "max_new_tokens": 6, "samples": samples}
    data = str(output / "data" / "test.jsonl")
    found = evaluate(str(model), data, reward="exact_match", evaluation=settings, seed=0)
    return {key: found.metrics[key] for key in ("accuracy", "accuracy_low", "accuracy_high")}


def _in_process(output: Path, name: str, seed: int) -> dict[str, Any]:
    """One run in a process and a thread of its own."""
    result = output / f"{name}-{seed}.json"
    if not result.exists():
        command = [sys.executable, __file__, "--output", str(output), "--one", name, str(seed)]
        done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{name}, seed {seed}:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(result.read_text())
    print(f"{name} {seed}: {found['accuracy']:.3f} after {found['seconds']:.0f} s", flush=True)
    return found


def _train(output: Path, name: str, seed: int) -> None:
    import torch

    from reinlm import rl
    from reinlm.runs import read_metrics

    torch.set_num_threads(1)
    started = time.perf_counter()
    run = rl(
        str(output / "sft" / "checkpoints" / "last"),
        str(output / "data" / "train.jsonl"),
        output=output / f"{name}-{seed}",
        algorithm=name,
        seed=seed,
        quiet=True,
        overwrite=True,
        **{**SETTINGS, **SPECIAL.get(name, {})},
    )
    seconds = time.perf_counter() - started
    steps = [record for record in read_metrics(run.folder / "metrics.jsonl") if "reward" in record]
    kl, entropy = _distance(run.policy, output, seed)
    found = {
        "name": name,
        "seed": seed,
        **_judge(run.folder / "checkpoints" / "last", output),
        "seconds": seconds,
        "samples_to_80": _samples_to(steps, 0.8),
        "clip_fraction": statistics.fmean(step["clip_ratio/region_mean"] for step in steps if "ratio/max" in step),
        "moved": statistics.fmean(step["ratio/moved"] for step in steps if "ratio/moved" in step),
        "ratio_max": max(step["ratio/max"] for step in steps if "ratio/max" in step),
        "entropy": entropy,
        "kl": kl,
        "rewards": [step["reward"] for step in steps],
        "kl_old": [step["kl/old"] for step in steps if "kl/old" in step],
        "explained_variance": [step["explained_variance"] for step in steps if "explained_variance" in step],
    }
    (output / f"{name}-{seed}.json").write_text(json.dumps(found))


def _distance(policy: Any, output: Path, seed: int) -> tuple[float, float]:
    """KL from the SFT checkpoint and entropy, in nats a token: exact at each position, on the policy's own answers."""
    import torch

    from reinlm.batches import token_batch
    from reinlm.data import DataConfig, build_renderer, load_tasks
    from reinlm.models import Anchor, TokenModel, Want, load_policy
    from reinlm.rollouts import Episodes, SamplingConfig, build_engine, sample_groups
    from reinlm.training.learner import Learner

    data = DataConfig(path=str(output / "data" / "test.jsonl"))
    tasks = load_tasks(data, policy.tokenizer).items
    sampling = SamplingConfig(max_new_tokens=6).sampling(policy.stops)
    renderer = build_renderer(data, policy.tokenizer)
    episodes = Episodes(build_engine("in_process", policy), renderer, sampling, seed=seed)
    batch = token_batch(sample_groups(episodes, tasks, group_size=1, tag="kl").groups)
    reference = Anchor(TokenModel(load_policy(str(output / "sft" / "checkpoints" / "last")).model))
    want = Want(entropy=True, full_kl={"reference": "reverse"})
    found = Learner(TokenModel(policy.model)).forward(batch, want, anchors={"reference": reference})
    assert found.entropy is not None
    return float(torch.mean(found.full_kl["reference"])), float(torch.mean(found.entropy))


def _samples_to(steps: Sequence[dict[str, float]], level: float) -> int | None:
    """Answers sampled until the mean reward of five steps first reaches the level."""
    total = 0
    for end, step in enumerate(steps):
        total += int(step["samples"])
        window = steps[max(0, end - 4) : end + 1]
        if len(window) == 5 and statistics.fmean(s["reward"] for s in window) >= level:
            return total
    return None


def _table(results: Sequence[dict[str, Any]], before: dict[str, float]) -> str:
    lines = [
        f"From {before['accuracy']:.3f} [{before['accuracy_low']:.3f}, {before['accuracy_high']:.3f}] right by sampling, "
        f"{STEPS} steps of 256 answers, four updates each.",
        "",
        "| algorithm | accuracy after, by seed | mean | 95 % of the worst | samples to 80 % | seconds | clipped "
        "| ratio off 1 by more than 1 % | largest ratio | entropy | KL from SFT |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(result["name"] for result in results):
        runs = [result for result in results if result["name"] == name]
        worst = min(runs, key=lambda run: run["accuracy"])
        reached = [run["samples_to_80"] for run in runs]
        seconds = ", ".join(f"{run['seconds']:.0f}" for run in runs)
        lines.append(
            f"| {name} | {', '.join(format(run['accuracy'], '.3f') for run in runs)} "
            f"| {_mean(runs, 'accuracy'):.3f} | [{worst['accuracy_low']:.3f}, {worst['accuracy_high']:.3f}] "
            f"| {', '.join('not' if n is None else str(n) for n in reached)} "
            f"| {seconds} | {_mean(runs, 'clip_fraction'):.4f} | {_mean(runs, 'moved'):.3f} "
            f"| {max(run['ratio_max'] for run in runs):.1f} | {_mean(runs, 'entropy'):.3f} | {_mean(runs, 'kl'):.3f} |"
        )
    return "\n".join(lines)


def _mean(runs: Sequence[dict[str, Any]], key: str) -> float:
    return statistics.fmean(run[key] for run in runs)


# ------------------------------------------------------------------------------------------------ the plot

WIDE, HIGH, COLUMNS = 230, 150, 4


def _plot(results: Sequence[dict[str, Any]], before: dict[str, float]) -> str:
    """A panel for each algorithm: mean reward of five steps against steps, a line a seed, the checkpoint dashed."""
    names = list(dict.fromkeys(result["name"] for result in results))
    rows = math.ceil(len(names) / COLUMNS)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{COLUMNS * WIDE}" height="{rows * HIGH}" '
        'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
    ]
    for index, name in enumerate(names):
        left, top = index % COLUMNS * WIDE + 34, index // COLUMNS * HIGH + 22
        parts.append(_panel(name, [r["rewards"] for r in results if r["name"] == name], before["accuracy"], left, top))
    return "\n".join([*parts, "</svg>", ""])


def _panel(name: str, curves: Sequence[Sequence[float]], start: float, left: float, top: float) -> str:
    wide, high = WIDE - 48, HIGH - 46

    def point(step: float, value: float) -> str:
        return f"{left + wide * step / STEPS:.1f},{top + high * (1 - (value - 0.3) / 0.7):.1f}"

    parts = [f'<text x="{left}" y="{top - 7}" font-weight="bold">{name}</text>']
    for value in (0.4, 0.6, 0.8, 1.0):
        a, b = point(0, value), point(STEPS, value)
        parts.append(f'<polyline points="{a} {b}" stroke="#ddd" fill="none"/>')
        parts.append(
            f'<text x="{left - 5}" y="{float(a.split(",")[1]) + 4}" text-anchor="end" fill="#555">{value}</text>'
        )
    dashed = f'points="{point(0, start)} {point(STEPS, start)}" stroke="#888" stroke-dasharray="4 3" fill="none"'
    parts.append(f"<polyline {dashed}/>")
    for colour, curve in zip(("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd"), curves, strict=False):
        smooth = [statistics.fmean(curve[max(0, i - 4) : i + 1]) for i in range(len(curve))]
        points = " ".join(point(i + 1, value) for i, value in enumerate(smooth))
        parts.append(f'<polyline points="{points}" stroke="{colour}" stroke-width="1.5" fill="none"/>')
    for step in (0, STEPS):
        x = point(step, 0.3).split(",")[0]
        parts.append(f'<text x="{x}" y="{top + high + 14}" text-anchor="middle" fill="#555">{step}</text>')
    return "\n".join(parts)


if __name__ == "__main__":
    main()
