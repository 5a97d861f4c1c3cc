"""Whole runs from the command line that sample with vLLM, in the trainer's process and from a server."""

from __future__ import annotations

import itertools
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from test_vllm_server import recipe, serving
from vllm_helpers import CACHE, tiny_policy

import reinlm
from reinlm.models import save_policy

ENGINE = f"{{vllm: {{enforce_eager: true, engine_args: {{kv_cache_memory_bytes: {CACHE}}}}}}}"


def called(line: list[str]) -> str:
    """The command's standard output; it must succeed."""
    done = subprocess.run(line, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def check(run: Path, line: list[str]) -> None:
    """The sampler's log-probabilities are the trainer's at each step, and evaluation saw the weights after the last update."""
    found = rows(run)
    steps = [row for row in found if "sampling/logprob_difference/mean" in row]
    assert [row["step"] for row in steps] == [1, 2, 3]
    assert max(row["sampling/logprob_difference/max"] for row in steps) < 1e-3
    assert min(row["grad_norm"] for row in steps) > 0
    evaluated = [row["eval/eval/reward"] for row in found if "eval/eval/reward" in row]
    words = dict(itertools.pairwise(line))
    own = reinlm.evaluate(
        str(run / "checkpoints/last"),
        words["-d"],
        reward=words["-r"],
        temperature=0.0,
        max_new_tokens=8,
        quiet=True,
    )
    assert evaluated[-1] == pytest.approx(own.metrics["reward"])
    assert len(set(evaluated)) > 1


EVALUATED = {"evaluation.temperature": 0, "evaluation.every": 1}


@pytest.mark.parametrize("lora", [False, True])
def test_a_run_in_the_trainers_process(folder: Path, tmp_path: Path, lora: bool) -> None:
    more: dict[str, Any] = {"model.lora.rank": 4} if lora else {}
    line = recipe(folder, "", tmp_path, **{"rollout.engine": ENGINE}, **EVALUATED, **more)
    line += [f"evaluation.data={tmp_path / 'data.jsonl'}"]
    called(line)
    check(tmp_path / "run", line)


def test_a_run_from_a_server(folder: Path, tmp_path: Path) -> None:
    with serving(folder, tmp_path / "log") as (url, _):
        line = recipe(folder, url, tmp_path, **EVALUATED)
        line += [f"evaluation.data={tmp_path / 'data.jsonl'}"]
        called(line)
        check(tmp_path / "run", line)


def test_a_run_in_the_trainers_process_can_be_repeated(folder: Path, tmp_path: Path) -> None:
    found = []
    for name in ("a", "b"):
        line = recipe(folder, "", tmp_path, **{"rollout.engine": ENGINE})
        line[line.index("-o") + 1] = str(tmp_path / name)
        called(line)
        found.append([(row.get("reward"), row.get("grad_norm")) for row in rows(tmp_path / name)])
    assert found[0] == found[1]


def test_a_model_whose_weights_vllm_does_not_take_is_refused_or_sampled_alike(tmp_path: Path) -> None:
    save_policy(tiny_policy("qwen3_moe"), tmp_path / "moe")
    line = recipe(tmp_path / "moe", "", tmp_path, **{"rollout.engine": ENGINE})
    done = subprocess.run(line, capture_output=True, text=True, timeout=600)
    if done.returncode == 0:
        assert max(row["sampling/logprob_difference/max"] for row in rows(tmp_path / "run")) < 1e-3
        return
    assert done.returncode == 2
    assert "away from the trainer's on average" in done.stderr
    assert "rollout.engine=in_process" in done.stderr
