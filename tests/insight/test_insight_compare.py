"""Runs side by side: groups, intervals, curves and the page."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import reinlm
from reinlm.cli.compare import print_comparison
from reinlm.errors import InputError
from reinlm.insight.compare import compare_runs, overlaid, write_page
from reinlm.intervals import mean_interval, t_quantile
from reinlm.runs.folder import RunFolder
from reinlm.runs.metrics import MetricsLog


def write_run(path: Path, values: list[float], *, seed: int = 0, kind: str = "rl", **config: Any) -> Path:
    """A finished run whose reward takes these values, evaluated at its end."""
    with RunFolder.create(path, kind=kind, config={"seed": seed, **config}, command="x") as run:
        log = MetricsLog(path)
        for step, value in enumerate(values, 1):
            final = {"eval/test/accuracy": value} if step == len(values) else {}
            log.append(step, {"reward": value, **final})
        run.write_summary({"ended": "finished"})
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two algorithms, three seeds of one and two of the other."""
    folder = tmp_path_factory.mktemp("runs")
    for seed, last in enumerate((0.5, 0.6, 0.7)):
        write_run(folder / f"grpo{seed}", [0.1, last], seed=seed, algorithm="grpo", rollout={"group_size": 4})
    for seed, last in enumerate((0.8, 0.9)):
        config: dict[str, Any] = {"algorithm": {"base": "dapo"}, "rollout": {"group_size": 4}}
        write_run(folder / f"dapo{seed}", [0.2, last], seed=seed, **config)
    return folder


def test_runs_that_differ_in_their_seed_alone_are_a_group_named_by_what_differs(runs: Path) -> None:
    found = compare_runs([runs])
    assert {label: [run.seed for run in group] for label, group in found.groups.items()} == {
        "algorithm=dapo": [0, 1],
        "algorithm=grpo": [0, 1, 2],
    }
    assert found.metrics == ("eval/test/accuracy", "reward")


def test_a_row_has_the_mean_over_seeds_and_the_interval_of_student(runs: Path) -> None:
    (row,) = (r for r in compare_runs([runs]).rows if r["metric"] == "eval/test/accuracy" and "grpo" in r["group"])
    assert row["values"] == [0.5, 0.6, 0.7]
    half = 4.302653 * 0.1 / math.sqrt(3)
    assert (row["mean"], row["low"], row["high"]) == pytest.approx((0.6, 0.6 - half, 0.6 + half), abs=1e-6)


@pytest.mark.parametrize(
    ("freedom", "value"), [(1, 12.7062), (2, 4.30265), (9, 2.26216), (30, 2.04227), (120, 1.97993)]
)
def test_quantiles_are_those_of_published_tables(freedom: int, value: float) -> None:
    assert t_quantile(freedom) == pytest.approx(value, abs=1e-4)


def test_one_run_has_no_interval() -> None:
    assert mean_interval([0.3]) == (0.3, None, None)


def test_a_metric_of_training_is_judged_by_the_last_tenth_of_its_values(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.0] * 18 + [0.4, 0.6])
    write_run(tmp_path / "b", [0.0] * 20, seed=1)
    (row,) = compare_runs([tmp_path / "a", tmp_path / "b"], metrics=["reward"]).rows
    assert row["values"] == pytest.approx([0.5, 0.0])


def test_a_mean_curve_has_the_steps_that_all_runs_of_its_group_have(tmp_path: Path) -> None:
    write_run(tmp_path / "long", [0.2, 0.4, 0.6])
    write_run(tmp_path / "short", [0.4, 0.2], seed=1)
    (group,) = compare_runs([tmp_path]).groups.values()
    curve = overlaid(group, "reward")
    assert curve is not None
    assert curve["x"] == [1, 2]
    assert curve["y"] == pytest.approx([0.3, 0.3])
    assert (curve["low"], curve["high"]) == ([0.2, 0.2], [0.4, 0.4])


def test_rows_are_a_pandas_frame_where_it_is_installed(runs: Path) -> None:
    pytest.importorskip("pandas")
    frame = compare_runs([runs], metrics=["reward"]).frame()
    assert list(frame["group"]) == ["algorithm=dapo", "algorithm=grpo"]
    assert list(frame["runs"]) == [2, 3]


def test_the_page_says_what_its_intervals_and_bands_are(runs: Path, tmp_path: Path) -> None:
    page = write_page(compare_runs([runs]), tmp_path / "page.html").read_text()
    assert "Student&#39;s 95 % interval" in page or "Student's 95 % interval" in page
    assert "the band reaches from its lowest to its highest run" in page
    assert page.count("<figure>") == 2
    assert len(re.findall('class="band"', page)) == 4
    assert len(page) < 2_000_000


PPO = """
seed: {seed}
algorithm:
  base: ppo  # --algorithm
  gate:
    clip:
      low: 0.2  # ppo
      high: {high}
  kl:
    estimator: k1  # ppo
    coefficient: 0.05  # ppo
  critic:
    critic:
      clip: 0.2  # ppo
"""
GRPO = """
seed: {seed}
algorithm:
  base: grpo
  gate:
    clip:
      low: 0.2  # grpo
      high: 0.2  # grpo
  kl:
    estimator: k3  # grpo
    coefficient: 0.04  # grpo
  shapers: []  # grpo
"""
LONG = GRPO + "optimizer:\n  warmup_steps: 3\n  learning_rate: 0.001\nevaluation:\n  every: 10\n  max_new_tokens: 6\n"


def write_configured(path: Path, text: str, **values: Any) -> Path:
    write_run(path, [0.5])
    (path / "config.yaml").write_text(text.format(**{"seed": 0, "high": "0.2  # ppo", **values}))
    return path


@pytest.mark.parametrize(
    ("texts", "names", "settings"),
    [
        ((PPO, GRPO), ["algorithm=ppo", "algorithm=grpo"], []),
        (
            (PPO, PPO.replace("{high}", "0.3")),
            ["algorithm.gate.clip.high=0.2", "algorithm.gate.clip.high=0.3"],
            [],
        ),
        (
            (PPO.replace("{high}", "0.3"), GRPO),
            ["algorithm=ppo, algorithm.gate.clip.high=0.3", "algorithm=grpo"],
            [],
        ),
        (  # the last parts of keys where the whole ones are too long
            (LONG, LONG.replace("high: 0.2  # grpo", "high: 0.3").replace("0.001", "0.01").replace(": 6", ": 7")),
            [
                "high=0.2, learning_rate=0.001, max_new_tokens=6",
                "high=0.3, learning_rate=0.01, max_new_tokens=7",
            ],
            [],
        ),
        (
            (PPO, LONG),
            ["a", "b"],
            [
                "algorithm",
                "optimizer.warmup_steps",
                "optimizer.learning_rate",
                "evaluation.every",
                "evaluation.max_new_tokens",
            ],
        ),
    ],
)
def test_a_group_is_named_without_what_its_algorithm_implies(
    texts: tuple[str, str], names: list[str], settings: list[str], tmp_path: Path
) -> None:
    folders = [write_configured(tmp_path / name, text) for name, text in zip("ab", texts, strict=True)]
    found = compare_runs(folders)
    assert [*found.groups] == names
    assert [*found.settings] == settings
    page = write_page(found, tmp_path / "page.html").read_text()
    assert ("Settings that differ" in page) == bool(settings)


IN_FORCE = "algorithm: {}\ntraining:\n  minibatches: {}\n  passes: null  # in force: 1\n"


def noted(path: Path, values: list[float], text: str, notes: list[str]) -> Path:
    write_run(path, values)
    (path / "config.yaml").write_text(text)
    run = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**run, "notes": notes}))
    return path


def test_identical_groups_the_runs_notes_and_updates_that_differ_are_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    idle, low = "the gate does nothing", "the rate is low"
    folders = [
        noted(tmp_path / "a", [0.1, 0.5], IN_FORCE.format("grpo", "null  # in force: 1"), [idle, low]),
        noted(tmp_path / "b", [0.1, 0.5], IN_FORCE.format("gspo", "null  # in force: 1"), [idle, low]),
        noted(tmp_path / "c", [0.1, 0.6], IN_FORCE.format("dapo", "null  # in force: 8"), [low]),
        noted(tmp_path / "d", [], IN_FORCE.format("ppo", "null"), [low]),
    ]
    found = compare_runs(folders)
    identical = "groups algorithm=grpo and algorithm=gspo are identical in every figure"
    assert found.identical == (identical,)
    assert found.notes == (f"algorithm=grpo, algorithm=gspo: {idle}", low)
    counts = {"algorithm=grpo": "1 (1 × 1)", "algorithm=gspo": "1 (1 × 1)", "algorithm=dapo": "8 (1 × 8)"}
    assert found.updates == counts | {"algorithm=ppo": ""}
    page = write_page(found, tmp_path / "page.html").read_text().replace("<wbr>", "")
    assert [page.count(text) for text in (identical, idle, low, "8 (1 × 8)")] == [1, 1, 1, 1]
    monkeypatch.setenv("COLUMNS", "80")
    print_comparison(found)
    said = " ".join(capsys.readouterr().out.split())
    assert [said.count(text) for text in (identical, idle, low, "algorithm=dapo: 8 (1 × 8)")] == [1, 1, 1, 1]
    assert "reward: of training, mean of the last 1/10 of the logged values" in said
    assert compare_runs(folders[:2]).updates == {}


def test_settings_that_differ_are_readable_at_80_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    print_comparison(
        compare_runs([write_configured(tmp_path / name, text) for name, text in (("a", PPO), ("b", LONG))])
    )
    said = capsys.readouterr().out
    assert "evaluation.max_new_tokens" in said
    assert "…" not in said


def test_a_setting_given_to_compare_by_keyword_is_answered_with_changes() -> None:
    with pytest.raises(InputError, match="compare takes no training") as caught:
        reinlm.compare("a.yaml", training={"steps": 3})
    assert "changes=['training.steps=3']" in str(caught.value.hint)
    with pytest.raises(InputError, match="compare takes no seed") as caught:
        reinlm.compare("a.yaml", seed=3)
    assert "changes=['seed=3']" in str(caught.value.hint)


def test_the_seeds_in_a_classical_run_folder_count(tmp_path: Path) -> None:
    for name, base in (("ppo", 100.0), ("a2c", 50.0)):
        write_run(tmp_path / name, [base], kind="classical", algorithm=name, seeds=2)
        for seed in (0, 1):
            write_run(tmp_path / name / "seeds" / str(seed), [base + seed], kind="classical", algorithm=name, seeds=2)
    found = compare_runs([tmp_path / "ppo", tmp_path / "a2c"], metrics=["reward"])
    assert [(row["group"], row["runs"], row["seeds"]) for row in found.rows] == [
        ("algorithm=ppo", 2, [0, 1]),
        ("algorithm=a2c", 2, [0, 1]),
    ]
    assert found.rows[0]["low"] < 100.5 < found.rows[0]["high"]


def test_a_folder_that_is_missing_is_answered_with_what_runs_a_grid(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        compare_runs(["grpo", "ppo"])
    assert "--grid algorithm=grpo,ppo" in str(caught.value.hint)


def find_chromium() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.skipif(find_chromium() is None, reason="needs chromium on the PATH")
def test_a_phone_shows_the_page_without_scrolling_sideways(runs: Path, tmp_path: Path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs the Python package playwright")
    path, complaints = write_page(compare_runs([runs]), tmp_path / "page.html"), []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 390, "height": 800})
        page.on("console", lambda message: complaints.append(message.text))
        page.goto(path.absolute().as_uri())
        page.locator("figure svg").last.hover()
        readout = page.locator("figure output").last.inner_text()
        width = page.evaluate("document.documentElement.scrollWidth")
        browser.close()
    assert (complaints, width) == ([], 390)
    assert re.fullmatch(r"step \d: algorithm=dapo [\d.]+ \([\d.]+ to [\d.]+\), algorithm=grpo .*", readout)
