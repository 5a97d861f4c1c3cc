"""What users type for the weight of a reward and for its settings in a wrong place is answered with what to type."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import Any

import pytest

import reinlm
from reinlm.cli import main
from reinlm.config import parse_yaml
from reinlm.errors import InputError
from reinlm.rewards import build_rewards
from tiny_runs import ROWS, tiny

WEIGHT = "is reward.functions; each reward has its own weight: reward.functions.NAME.weight=0.5, or {name: NAME, weight: 0.5}"


def explained(words: str, folder: Path, monkeypatch: Any, capsys: Any) -> Any:
    """The settings that `reinlm rl WORDS --explain` prints, or its error and hint."""
    monkeypatch.chdir(folder)
    Path("rewards.py").write_text("def f(completions): return [1.0 for _ in completions]")
    Path("d.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')
    with contextlib.suppress(SystemExit):
        main(["rl", "--data", "d.jsonl", *shlex.split(words), "--explain"])
    said = capsys.readouterr()
    return said.err or said.out


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("reward.max_retries=5", "hint: max_retries is reward.retries"),
        ("reward.timeout=5", "hint: timeout is reward.time_limit"),
        ("reward.on_error=skip", "hint: on_error is reward.on_reward_error"),
        ("run.max_retries=5", "hint: max_retries is reward.retries"),
        ("rollout.timeout=5", "hint: rollout.timeout is rollout.episode_time_limit"),
        ("--timeout 5", "hint: write reward.time_limit=5: "),
        ("reward.functions.math.timeout=5", "hint: timeout is reward.time_limit; it holds for all rewards"),
        ("reward.functions.math.retries=5", "hint: the key is reward.retries; it holds for all rewards"),
        ("reward='{name: rewards.py:f, on_error: skip}'", "hint: on_error is reward.on_reward_error; it holds for all"),
        ("reward.weight=0.5", f"reward.weight {WEIGHT}"),
        ("--reward-weight 0.5", f"reward_weight {WEIGHT}"),
        ("data.weight=0.5", "hint: did you mean 'data.weights'?"),
        ("--reward math:.5", "--reward math reward.functions.math.weight=.5, or in a recipe {name: math, weight: .5}"),
        ("--reward 2*math", "--reward math reward.functions.math.weight=2, or in a recipe {name: math, weight: 2}"),
        ("--reward rewards.py:f=0.5", "--reward rewards.py:f reward.functions.f.weight=0.5, or in a recipe {name: rew"),
        ("--reward f:0.5", "--reward FILE.py:f reward.functions.f.weight=0.5, or in a recipe {name: FILE.py:f, weight"),
        (
            "--reward '{math: {weight: 2}}'",
            "hint: --reward takes a name or a place: write reward='{math: {weight: 2}}'",
        ),
        ("--reward math,format", "hint: write --reward math --reward format, or reward='[math, format]'"),
        ("--reward f,g", "hint: name one: exact_match"),
        ("--reward rewards.py:", "hint: write file.py:function or package.module:function"),
    ],
)
def test_a_hint_names_what_to_type(words: str, hint: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    reward = "" if words.startswith(("--reward ", "reward=")) else "--reward math "
    said = explained(f"-m tiny {reward}{words}", tmp_path, monkeypatch, capsys)
    assert hint in said
    assert len(said.splitlines()) == 2


@pytest.mark.parametrize(
    ("words", "functions"),
    [
        ("--reward math reward.functions.math.weight=0.5", {"math": {"weight": 0.5}}),
        ("--reward rewards.py:f reward.functions.f.weight=0.5", {"rewards.py:f": {"weight": 0.5}}),
        (
            "--reward rewards.py:f --reward math reward.functions.f.weight=2 reward.functions.math.weight=0.5",
            [{"rewards.py:f": {"weight": 2}}, {"math": {"weight": 0.5}}],
        ),
        (
            "reward='{name: rewards.py:f, label: g}' reward.functions.f.weight=2",
            {"name": "rewards.py:f", "label": "g", "weight": 2},
        ),
        ("--reward rewards.py:math reward.functions.math.weight=2", {"math": {"weight": 2}}),
        ("--reward rewards.py:f --reward other.py:f reward.functions.math.weight=2", {"math": {"weight": 2}}),
    ],
)
def test_what_the_hints_say_sets_the_weight(
    words: str, functions: Any, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    (tmp_path / "other.py").write_text("def f(completions): ...")
    said = explained(f"-m tiny {words}", tmp_path, monkeypatch, capsys)
    assert parse_yaml(said, "explained")["reward"]["functions"] == functions
    if functions == {"rewards.py:f": {"weight": 0.5}}:
        assert "weight: 0.5  # reward.functions.f.weight=0.5" in said


@pytest.mark.parametrize(
    ("spec", "message", "hint"),
    [
        ("length", "reward 'length': give exactly one of target and max", 'write reward="{length: {target: 100}}"'),
        ("regex", "reward 'regex': 'pattern' is required", "write reward=\"{regex: {pattern: '####'}}\""),
        ({"length": {"max": 3, "margin": 9}}, r"reward 'length': margin \(9\) is more than max", None),
    ],
)
def test_values_of_a_reward_that_do_not_fit_are_named_by_the_reward_alone(spec: Any, message: str, hint: Any) -> None:
    with pytest.raises(InputError, match=f"^{message}") as caught:
        build_rewards(spec)
    assert caught.value.hint == hint


def test_an_evaluation_names_a_failing_reward_once() -> None:
    calls: list[int] = []

    def f(completions: list[str]) -> list[float]:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("no")
        return [1.0 for _ in completions]

    reward = {"functions": f, "on_reward_error": "skip", "retries": 0, "time_limit": None}
    found = reinlm.evaluate(tiny(), ROWS, reward=reward, quiet=True)
    assert [note.partition(": ")[0] for note in found.notes] == ["reward 'f' raised ValueError"]
