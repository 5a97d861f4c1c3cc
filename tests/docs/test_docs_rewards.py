"""The page about rewards: its recipes are read, and every function on it scores answers, one of them in a run."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import yaml

import reinlm
from reinlm.config import build
from reinlm.rewards import RewardConfig
from tiny_runs import ROWS, metrics, settings, tiny

PAGE = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text(encoding="utf-8")


def test_the_recipes_are_read(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rewards.py").write_text("def judge(completions): ...\n\n\ndef score(completions): ...")
    one, weighted, two = (yaml.safe_load(text)["reward"] for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
    assert len(build(RewardConfig, one).functions) == 3
    assert [dict(choice)["weight"] for choice in build(RewardConfig, weighted).functions[1:]] == [0.5]
    assert build(RewardConfig, two).retries == 6


def test_every_function_on_the_page_scores_answers_in_one_run(tmp_path: Path, monkeypatch: Any) -> None:
    scope: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        if "reinlm.rl(" not in code:  # a whole run: test_docs_executed makes it
            exec(code, scope)
    scope["ask"] = lambda text: {"score": float(len(text))}  # there is no judge at hand
    names = ["close", "short", "compute_score", "judge", "steps", "watched"]
    changes = settings(run={"rollouts_every": 1}, training={"steps": 1})
    os.chdir(tmp_path)
    reinlm.rl(
        tiny(), ROWS, reward={"functions": [scope[name] for name in names], "time_limit": None}, output=tmp_path / "run",
        quiet=True, **changes,
    )  # fmt: skip
    (row,) = metrics(tmp_path / "run")
    assert {name for name in names if f"rewards/{name}/mean" in row} >= {
        "short",
        "compute_score",
        "judge",
        "steps",
        "watched",
    }
    assert {
        "rewards/judge/logged/characters",
        "rewards/watched/logged/empty",
        "rewards/compute_score/logged/empty",
    } <= set(row)
    rows = [json.loads(line) for line in (tmp_path / "run" / "rollouts" / "step_1.jsonl").read_text().splitlines()]
    assert all(entry["logged"]["first"] == entry["completion"][:1] for entry in rows)
    assert any(event["token"] is not None for entry in rows for event in entry["events"]) == any(
        "=" in entry["completion"] for entry in rows
    )
