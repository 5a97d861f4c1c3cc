"""Run folders as training leaves them, filled with plausible figures."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np

from reinlm.records import RewardEvent, Rollout, RolloutGroup, ScoredGroup, Segment, Task
from reinlm.runs.folder import RunFolder
from reinlm.runs.metrics import MetricsLog

HOSTILE = '</script><script>window.hacked = 1</script><img src=x onerror="window.hacked = 2"> {{ 7 * 7 }} \ud800'


def sft_record(step: int, noise: random.Random) -> dict[str, float]:
    loss = 0.25 + 1.9 * math.exp(-step / 40) + noise.gauss(0, 0.03)
    record = {"loss": loss, "mean_token_accuracy": 1 - loss / 3, "learning_rate": 3e-3 * (1 - step / 200)}
    record |= {"grad_norm": 0.4 + abs(noise.gauss(0, 0.2)), "epoch": step / 100, "step_time": 0.11}
    record |= {"time/update": 0.1, "tokens_per_second": 9000 + noise.gauss(0, 200)}
    return record | ({"eval/held_out/loss": loss + 0.02} if step % 50 == 0 else {})


def rl_record(step: int, noise: random.Random) -> dict[str, float]:
    skill = 1 - 0.55 * math.exp(-step / 25)
    record = {
        "loss": noise.gauss(0, 0.01),
        "reward": skill + noise.gauss(0, 0.03),
        "rewards/exact_match/mean": skill + noise.gauss(0, 0.03),
        "rewards/format/mean": min(1.0, skill + 0.1),
        "reward_std": 0.4 * (1 - skill) + 0.05,
        "frac_reward_zero_std": skill * 0.7,
        "completions/mean_length": 5 + noise.gauss(0, 0.05),
        "completions/min_length": 4.0,
        "completions/max_length": 6.0,
        "completions/mean_terminated_length": 5.0,
        "completions/clipped_ratio": abs(noise.gauss(0, 0.01)),
        "entropy": 0.4 * math.exp(-step / 60) + abs(noise.gauss(0, 0.01)),
        "kl": 0.001 * step,
        "approx_kl": abs(noise.gauss(0.004, 0.002)),
        "clip_ratio/low_mean": abs(noise.gauss(0.002, 0.001)),
        "clip_ratio/high_mean": abs(noise.gauss(0.004, 0.002)),
        "clip_ratio/region_mean": abs(noise.gauss(0.006, 0.002)),
        "ratio/mean": 1 + noise.gauss(0, 0.001),
        "ratio/max": 1.3 + abs(noise.gauss(0, 0.2)),
        "sampling/logprob_difference/mean": 2e-7 * (1 + noise.random()),
        "sampling/logprob_difference/max": 3e-6 * (1 + noise.random()),
        "sampling/importance_ratio/mean": 1.0,
        "grad_norm": math.nan if step == 30 else 0.3 + abs(noise.gauss(0, 0.1)),
        "learning_rate": 1e-4,
        "num_tokens": 1280.0 * step,
        "groups/dropped": float(step % 5),
        "my/own_metric": noise.random(),
        "time/rollout": 0.5 + noise.random() * 0.1,
        "time/reward": 0.02,
        "time/score": 0.08,
        "time/update": 0.25,
    }
    if step % 20 == 0:
        record |= {
            "eval/held_out/accuracy": skill,
            "eval/held_out/pass@1": skill,
            "eval/held_out/pass@8": min(1.0, skill + 0.2),
        }
        record |= {"eval/held_out/accuracy_low": skill - 0.04, "eval/held_out/accuracy_high": min(1.0, skill + 0.03)}
        record |= {"time/evaluate": 1.5}
    return record


def make_run(path: Path, kind: str, steps: int) -> RunFolder:
    config = {"model": "tiny", "data": {"path": "train.jsonl"}, "note": HOSTILE, "hub_token": "hf_secret"}
    run = RunFolder.create(
        path, kind=kind, config=config, command=["reinlm", kind, "--model", "tiny", "--note", HOSTILE]
    )
    log, noise = MetricsLog(path), random.Random(0)
    for step in range(steps):
        log.append(step, (sft_record if kind == "sft" else rl_record)(step, noise))
    return run


def sample(prompt: Any, completion: Any, reward: float, end: str = "stop") -> dict[str, Any]:
    return {"prompt": prompt, "completion": completion, "reward": reward, "end": end}


def group(content: Any, completion: Any, reward: float, end: str = "stop", *, truncated: bool = False) -> ScoredGroup:
    """A group of one answer of one token, as a run logs it."""
    task = Task("a:1", content)
    segment = Segment(np.array([1, 2]), np.array([-1, 0]))
    rollout = Rollout(task, (segment,), completion, terminated=not truncated, truncated=truncated, reason=end)
    return ScoredGroup(RolloutGroup(task, (rollout,)), ((RewardEvent("score", reward),),))


def make_quickstart(folder: Path) -> Path:
    """A folder of two finished runs, with hostile text wherever a user's or a model's text can stand."""
    make_run(folder / "sft", "sft", 200).close()
    with make_run(folder / "rl", "rl", 121) as run:
        run.write_samples(
            before=[
                sample("123+456=", "976", 0.0),
                sample("7+8=", HOSTILE, 0.0),
                sample("1+1=", "2222222222", 0.0, "length"),
            ],
            after=[sample("123+456=", "975", 1.0), sample("7+8=", "51", 1.0), sample("1+1=", "2", 1.0)],
        )
        summary: Any = {"accuracy_before": 0.43, "accuracy_after": 0.951, "greedy_before": 0.93, "greedy_after": 0.972}
        summary |= {"accuracy_before_interval": [0.41, 0.45], "accuracy_after_interval": [0.941, 0.96]}
        run.write_summary(summary | {"train_seconds": 84.2, "samples_per_second": 412.0, "problems": 512})
    return folder
