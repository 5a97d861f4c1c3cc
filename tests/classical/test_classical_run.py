"""`reinlm classical`: figures, files, pictures, bad words, and runs that are killed and go on."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reinlm.classical import QLearning, ValueIteration, catalogue, load
from reinlm.classical.pictures import picture
from reinlm.classical.run import ClassicalConfig, run_classical
from reinlm.classical.seeds import write_mean_curve
from reinlm.cli import main
from reinlm.errors import InputError
from reinlm.runs import MetricsLog, Progress, read_metrics, without_clocks
from reinlm.runs.declarations import find_metric, read_metrics_info

pytestmark = pytest.mark.no_cover

FIELDS = {"algorithm", "env", "seeds", "mean_return", "std_return", "greedy_return", "steps", "episodes", "seconds"}


def call(capsys: Any, *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["classical", *words])
    found = capsys.readouterr()
    return int(left.value.code or 0), found.out, found.err


@pytest.fixture(autouse=True)
def _threads() -> Any:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_output_ends_with_one_json_object(capsys: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = ["sarsa", "--env", "CliffWalking-v1", "--episodes", "150", "--seeds", "2", "--evaluate", "3", "--json"]
    code, out, err = call(capsys, *words, "--output", str(folder), "epsilon=0.2")
    assert code == 0, err
    summary = json.loads(out.strip().splitlines()[-1])
    assert summary.keys() >= FIELDS
    assert (summary["algorithm"], summary["env"], summary["seeds"]) == ("sarsa", "CliffWalking-v1", 2)
    assert summary["episodes"] == 150
    runs = summary["runs"]
    assert [run["seed"] for run in runs] == [0, 1]
    online = [run["online_return"] for run in runs]
    assert summary["mean_return"] == pytest.approx(np.mean(online))
    assert summary["std_return"] == pytest.approx(np.std(online, ddof=1))
    assert summary["steps"] == max(run["steps"] for run in runs)
    assert json.loads((folder / "summary.json").read_text()) == summary
    agents = [load(folder / "seeds" / str(seed) / "checkpoints" / "last") for seed in (0, 1)]
    assert [agent.episodes.recent() for agent in agents] == online
    assert agents[0].settings.epsilon == 0.2
    assert not np.array_equal(agents[0].q, agents[1].q)  # type: ignore[attr-defined]


def test_the_folder_holds_a_mean_curve_that_is_described_a_picture_and_a_report(capsys: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    code, out, _ = call(
        capsys,
        "q_learning",
        "-e",
        "CliffWalking-v1",
        "--episodes",
        "100",
        "--seeds",
        "2",
        "-o",
        str(folder),
        "-q",
        "--tensorboard",
    )
    assert code == 0
    assert "greedy return" in out
    assert "→" in out
    rows = read_metrics(folder / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 101))
    inner = [read_metrics(folder / "seeds" / str(seed) / "metrics.jsonl") for seed in (0, 1)]
    for row, first, second in zip(rows, *inner, strict=True):
        assert row["return"] == pytest.approx((first["return"] + second["return"]) / 2)
        assert row["return/low_seed"] == min(first["return"], second["return"])
    carried = read_metrics_info(folder)
    assert [name for row in rows for name in row if name != "step" and find_metric(name, carried) is None] == []
    assert len(list((folder / "seeds" / "0" / "tensorboard").iterdir())) == 1
    assert (folder / "picture.svg").read_text().startswith("<svg")
    page = (folder / "report.html").read_text()
    assert "Classical reinforcement learning" in page
    assert "data:image/svg+xml;base64," in page
    assert re.search(r"<dt>greedy return</dt><dd>-[\d,.]+</dd>", page)  # no percentage


def test_a_planner_needs_no_budget_and_has_no_online_return(capsys: Any, tmp_path: Path) -> None:
    code, out, _ = call(capsys, "value_iteration", "--env", "CliffWalking-v1", "-o", str(tmp_path / "run"), "--json")
    assert code == 0
    summary = json.loads(out.strip().splitlines()[-1])
    assert summary["mean_return"] is None
    assert summary["greedy_return"] == -13.0
    assert summary["steps"] == summary["episodes"] == 0


def test_arguments_of_the_environment_reach_it(capsys: Any, tmp_path: Path) -> None:
    words = ["q_learning", "--env", "FrozenLake-v1", "env.is_slippery=false", "env.map_name=8x8", "--episodes", "20"]
    code, _, err = call(capsys, *words, "-o", str(tmp_path / "run"), "-q")
    assert code == 0, err
    agent = load(tmp_path / "run" / "seeds" / "0" / "checkpoints" / "last")
    assert isinstance(agent, QLearning)
    assert agent.states == 64
    assert len(agent.env.unwrapped.P[0][0]) == 1  # type: ignore[attr-defined]


def test_the_learned_policy_is_shown_as_text(capsys: Any, tmp_path: Path) -> None:
    words = ["value_iteration", "--env", "CliffWalking-v1", "--render", "text", "-o", str(tmp_path / "run")]
    code, out, _ = call(capsys, *words)
    assert code == 0
    assert out.count(" C  C  C ") >= 14
    code, _, err = call(
        capsys, "ppo", "--env", "CartPole-v1", "--steps", "512", "--render", "text", "-o", str(tmp_path / "b")
    )
    assert code == 2
    assert "error: CartPole-v1 has no text" in err
    assert "hint: it has video" in err


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (
            ["td", "--env", "FrozenLake-v1", "--episodes", "20"],
            [r"^V, the value of the policy that was followed: every legal action with the same probability$"],
        ),
        (
            ["td", "--env", "Taxi-v4", "--episodes", "2"],
            [r"^V, the value of the policy", r"^0: -?\d\.\d{3}  1: ", r"  99: \S+$", r"^… and 400 further states$"],
        ),
        (
            ["value_iteration", "--env", "FrozenLake-v1", "--evaluate", "1"],
            [
                r"^the start is worth 0\.824 in the model, which has no limit of steps; FrozenLake-v1 ends .* after 100 steps"
            ],
        ),
    ],
)
def test_what_the_values_are_of_is_said(words: list[str], lines: list[str], capsys: Any, tmp_path: Path) -> None:
    code, out, err = call(capsys, *words, "-q", "-o", str(tmp_path / "run"))
    assert code == 0, err
    for line in lines:
        assert re.search(line, out, re.MULTILINE), out


def test_the_list_names_every_algorithm(capsys: Any) -> None:
    code, out, _ = call(capsys, "--list")
    assert code == 0
    assert all(f"\n{card.name} " in f"\n{out}" for card in catalogue())
    code, out, _ = call(capsys, "--list", "--json")
    assert [card["name"] for card in json.loads(out)] == [card.name for card in catalogue()]


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        ([], "which algorithm?", "--list"),
        (["sarsa"], "in which environment?", "--env"),
        (["ppoo", "--env", "CartPole-v1", "--steps", "9"], "unknown classical algorithm 'ppoo'", "did you mean 'ppo'"),
        (["ppo", "--env", "CartPole-v1"], "ppo learns for --steps or for --episodes: give one of them", ""),
        (["ppo", "--env", "CartPole-v1", "--steps", "9"], "ppo learns from 512 steps at a time", "give more steps"),
        (["ppo", "--env", "CartPole-v1", "--steps", "0"], "steps", ""),
        (["ppo", "--env", "Taxi-v3", "--steps", "9"], "environment 'Taxi-v3' was retired", "successor is 'Taxi-v4'"),
        (["sarsa", "--env", "CartPole-v1", "--steps", "9"], "sarsa cannot act in CartPole-v1", "use dqn"),
        (
            ["value_iteration", "--env", "FrozenLake-v1", "is_slippery=false"],
            "is_slippery is an argument of FrozenLake-v1",
            "env.is_slippery=false",
        ),
        (["ppo", "--env", "CartPole-v1", "--steps", "9", "n_step=32"], "unknown key 'n_step'", "'n_steps'"),
        (["sarsa", "--env", "Taxi-v4", "--steps", "9", "alhpa=1"], "unknown key 'alhpa'", ""),
        (["sarsa", "--env", "Taxi-v4", "--steps", "9", "env=3"], "an argument of the environment is env.NAME", ""),
        (["sarsa", "--env", "Taxi-v4", "--steps", "9", "--render", "gif"], "--render is text or video, not 'gif'", ""),
        (["value_iteration", "--env", "CartPole-v1"], "cannot act in CartPole-v1", ""),
        (["value_iteration", "--env", "Taxi-v4", "--steps", "9"], "value_iteration takes no steps", ""),
        (["step_size=1", "--env", "Taxi-v4", "--steps", "9"], "step_size=1", ""),
        (["sarsa", "--env", "Taxi-v4", "--steps", "9", "--resume"], "--resume needs the run's folder", "--output"),
    ],
)
def test_bad_words_are_one_line_that_can_be_acted_on(
    capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], error: str, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = call(capsys, *words)
    lines = err.strip().splitlines()
    assert code == 2
    assert lines[0].startswith("error: ")
    assert error in lines[0]
    assert hint in err
    assert len(lines) <= 2
    assert list(tmp_path.iterdir()) == []  # nothing was written


def test_a_folder_that_exists_is_kept_unless_it_may_go(capsys: Any, tmp_path: Path) -> None:
    words = ["sarsa", "--env", "CliffWalking-v1", "--episodes", "20", "-q", "-o", str(tmp_path / "run")]
    assert call(capsys, *words)[0] == 0
    code, _, err = call(capsys, *words)
    assert code == 2
    assert "--resume to go on" in err
    assert call(capsys, *words, "--overwrite")[0] == 0
    code, _, err = call(capsys, *words, "--resume", "step_size=0.7")
    assert code == 2
    assert "changed configuration" in err


# ------------------------------------------------------------------------------------------------ resume


def test_a_finished_run_that_is_resumed_has_nothing_to_do_and_says_so(capsys: Any, tmp_path: Path) -> None:
    words = ["td", "--env", "FrozenLake-v1", "--episodes", "5", "-o", str(tmp_path / "run")]
    _, first, err = call(capsys, *words)
    assert "nothing to do" not in err
    code, again, err = call(capsys, "--resume", "-o", str(tmp_path / "run"))
    assert code == 0
    assert "run is finished; a longer run is one of its own, in another folder" in " ".join(err.split())
    assert again == first


def comparable(folder: Path) -> Any:
    curves = [[without_clocks(row) for row in read_metrics(path)] for path in sorted(folder.rglob("metrics.jsonl"))]
    summary = json.loads((folder / "summary.json").read_text())
    del summary["seconds"]
    for run in summary["runs"]:
        del run["seconds"]
    return curves, summary


@pytest.mark.parametrize(
    ("name", "env", "budget", "settings"),
    [
        ("q_learning", "CliffWalking-v1", {"episodes": 200}, {}),
        ("a2c", "CartPole-v1", {"steps": 6400}, {}),
        (
            "dqn",
            "CartPole-v1",
            {"steps": 3000},
            {"hidden": [16], "learning_starts": 200, "train_every": 8, "updates": 1},
        ),
    ],
)
def test_a_run_that_stops_in_the_middle_ends_as_one_that_did_not(
    name: str,
    env: str,
    budget: dict[str, int],
    settings: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def config(folder: str) -> ClassicalConfig:
        return ClassicalConfig(
            algorithm=name,
            env=env,
            seeds=2,
            evaluation_episodes=3,
            settings=settings,
            output=str(tmp_path / folder),
            **budget,
        )

    run_classical(config("straight"))

    from reinlm.classical.agent import Agent

    real, calls = Agent.advance, []

    def dies(self: Agent, until: int) -> dict[str, float]:
        calls.append(until)
        if len(calls) in (37, 137):  # in the first seed, and again in the second
            raise KeyboardInterrupt
        return real(self, until)

    monkeypatch.setattr(Agent, "advance", dies)
    for attempt in range(2):
        with pytest.raises(KeyboardInterrupt, match="reinlm classical --resume --output"):
            run_classical(config("killed"), resume=attempt > 0)
    run_classical(config("killed"), resume=True)
    assert comparable(tmp_path / "killed") == comparable(tmp_path / "straight")


@pytest.mark.slow
def test_a_killed_process_goes_on_to_the_same_end(tmp_path: Path) -> None:
    def words(folder: str) -> list[str]:
        base = [
            sys.executable,
            "-m",
            "reinlm.cli",
            "classical",
            "ppo",
            "--env",
            "CartPole-v1",
            "--steps",
            "60000",
            "-q",
        ]
        return [*base, "--evaluate", "3", "-o", str(tmp_path / folder)]

    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(words("straight"), check=True, env=environment, capture_output=True)
    process = subprocess.Popen(words("killed"), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    checkpoints = tmp_path / "killed" / "seeds" / "0" / "checkpoints"
    while not (checkpoints / "last").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    subprocess.run([*words("killed"), "--resume"], check=True, env=environment, capture_output=True)
    assert comparable(tmp_path / "killed") == comparable(tmp_path / "straight")


# ------------------------------------------------------------------------------------------------ pictures


def test_the_picture_of_a_cliff_points_along_its_edge() -> None:
    agent = ValueIteration("CliffWalking-v1")
    agent.begin()
    agent.advance(1)
    drawn = picture(agent)
    assert drawn is not None
    assert drawn.arrows[2] == ["→"] * 11 + ["↓"]
    assert drawn.arrows[3][0] == "↑"
    assert drawn.marks[3] == ["S", *["C"] * 10, "G"]
    np.testing.assert_allclose(drawn.values[2], -np.arange(12, 0, -1.0))
    assert drawn.text().splitlines()[4].split() == ["→"] * 11 + ["↓"]
    assert drawn.svg().count("<rect") == 48
    assert drawn.svg().count('fill="#ddd"') == 11  # ten cells of the cliff, and the goal


def test_there_is_no_picture_of_what_is_no_grid() -> None:
    assert picture(QLearning("Taxi-v4")) is None
    assert picture(QLearning("Blackjack-v1")) is None


def test_figures_that_are_not_finite_are_null() -> None:
    from reinlm.classical.seeds import _json_number

    assert _json_number(math.nan) is None
    assert _json_number(2) == 2


def test_a_video_says_what_is_missing_or_is_written(tmp_path: Path) -> None:
    from reinlm.classical.rendering import record_video

    agent = QLearning("CliffWalking-v1").learn(episodes=200)
    try:
        import moviepy  # noqa: F401
        import pygame  # noqa: F401
    except ImportError:
        with pytest.raises(InputError, match=r"\.\[video\]"):
            record_video(agent, tmp_path)
    else:
        assert record_video(agent, tmp_path).stat().st_size > 1000
    with pytest.raises(InputError, match=r"has no video .it has text"):
        record_video(QLearning("reinlm/MaximizationBias-v0"), tmp_path)


# ------------------------------------------------------------------------------------------------ the x of the curves


def test_a_line_of_metrics_stands_at_the_steps_that_were_made(tmp_path: Path, capsys: Any) -> None:
    """Batches of 64: of 1,000 steps the fifteen that fit are made, each is a line, and every tenth of the run is saved."""
    config = ClassicalConfig(
        algorithm="a2c",
        env="CartPole-v1",
        steps=1000,
        evaluation_episodes=1,
        settings={"environments": 8, "rollout_steps": 8, "hidden": [4]},
        output=str(tmp_path / "run"),
    )
    result = run_classical(config, progress=Progress())
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(64, 961, 64))
    assert all(row["env_steps"] == row["step"] and "policy_loss" in row for row in rows)
    assert result.summary["steps"] == 960
    assert "classical 960/960" in capsys.readouterr().err
    seen: list[float] = []
    result.agents[0].learn(1000, log=lambda metrics: seen.append(metrics["env_steps"]))
    assert seen == list(range(960 + 64, 1921, 64))


def test_records_of_seeds_whose_episodes_end_at_different_steps_share_a_line(tmp_path: Path) -> None:
    """Lines every 10 of 25 steps: 13 and 17 lie in one stretch; only the second seed has something between 20 and 25."""
    for seed, records in enumerate(([(13, 1.0), (25, 4.0)], [(17, 3.0), (21, 5.0), (25, 8.0)])):
        (tmp_path / str(seed)).mkdir()
        log = MetricsLog(tmp_path / str(seed))
        for step, value in records:
            log.append(step, {"return": value})
    write_mean_curve(tmp_path, [tmp_path / "0", tmp_path / "1"], goal=25, stride=10)
    rows = [{k: v for k, v in row.items() if k != "time"} for row in read_metrics(tmp_path / "metrics.jsonl")]
    assert rows == [
        {"step": 15, "return": 2.0, "return/low_seed": 1.0, "return/high_seed": 3.0},
        {"step": 21, "return": 5.0, "return/low_seed": 5.0, "return/high_seed": 5.0},
        {"step": 25, "return": 6.0, "return/low_seed": 4.0, "return/high_seed": 8.0},
    ]
