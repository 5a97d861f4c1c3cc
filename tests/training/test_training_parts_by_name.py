"""Parts given as objects in Python stand in config.yaml by the place where they are; it runs again, and resumes."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import reinlm
from reinlm.config import read_recipe
from reinlm.importable import IMPORTED, find, place_of, written
from reinlm.objectives import CHOICES
from reinlm.schedules import SCHEDULES
from tiny_runs import ROWS, graded, local, metrics, saved, settings

pytestmark = pytest.mark.no_cover

MINE = """
import functools
from dataclasses import dataclass

import torch

import beside_parts_of_a_test
from reinlm.config import Config
from reinlm.environments import StepResult
from reinlm.objectives import Gated, choice
from reinlm.rollouts.engines import InProcessConfig
from reinlm.schedules import schedule


def soft_clip(ratio, advantages):
    return -torch.tanh(2 * (ratio - 1)) / 2 * advantages


def median_baseline(rewards, group, groups):
    medians = torch.stack([rewards[group == number].nanmedian() for number in range(groups)])
    return rewards - medians[group]


@dataclass(frozen=True)
class Tanh:
    scale: float = 1.0

    def __call__(self, log_ratio, logprobs, signals):
        nowhere = torch.zeros_like(log_ratio, dtype=torch.bool)
        moved = torch.tanh(self.scale * (log_ratio.exp() - 1)) / self.scale
        return Gated(-moved * signals.advantages, nowhere, nowhere)


@choice("filter", "varied_of_a_test")
@dataclass(frozen=True)
class Varied:
    least: int = 1

    def __call__(self, group):
        return len(group.events) >= self.least


@dataclass(frozen=True)
class Drift:
    coefficient: float = 0.01
    needs = frozenset({"ref_logprobs"})

    def __call__(self, logprobs, signals, distribution):
        return self.coefficient * (logprobs - signals.ref_logprobs).square()


@schedule("squared_of_a_test")
def squared(done):
    return (1 - done) ** 2


def cubed(done):
    return (1 - done) ** 3


class Digits:
    def __init__(self, scale):
        self.scale = scale

    def __call__(self, completions, **columns):
        return [self.scale * sum(c.isdigit() for c in text) for text in completions]


digits = Digits(0.25)


@dataclass
class Near:
    scale: float = 1.0

    def __call__(self, completions, answer):
        return [1 / (1 + self.scale * abs(len(a) - len(b))) for a, b in zip(completions, answer)]


class Guess:
    name = "guess"

    def __init__(self, bonus=0.5):
        self.bonus = bonus

    def reset(self, task):
        self.answer = task.columns["answer"]
        return None

    def step(self, action):
        return StepResult(reward=self.bonus * len(action.text) + float(action.text == self.answer), terminated=True)


larger = functools.partial(Guess, bonus=2.0)


class GuessConfig(Config):
    bonus: float = 1.0

    def build(self):
        return Guess(self.bonus)


class Engine(InProcessConfig):
    pass
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The file above, imported as a user's program imports what lies beside it."""
    (tmp_path / "mine_of_a_test.py").write_text(MINE, encoding="utf-8")
    (tmp_path / "beside_parts_of_a_test.py").write_text("", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("mine_of_a_test")
    forget()


def forget() -> None:
    """As in another process: the file is not imported, and nothing of it is registered."""
    for name in [name for name in sys.modules if name == "mine_of_a_test" or name.startswith(IMPORTED)]:
        del sys.modules[name]
    CHOICES["filter"].pop("varied_of_a_test", None)
    SCHEDULES.pop("squared_of_a_test", None)


Given = Callable[[Any], dict[str, Any]]
PLACE = "mine_of_a_test.py:"
TURNS: dict[str, Any] = {
    "reward": None,
    "rollout": {"max_new_tokens": 16, "stop_strings": ["1", "2"]},
    "optimizer": {"learning_rate": 0.001},
}
CASES: list[tuple[Given, tuple[str, ...], Any]] = [
    (lambda m: {"algorithm": {"gate": m.soft_clip}}, ("algorithm", "gate"), f"{PLACE}soft_clip"),
    (lambda m: {"algorithm": {"advantage": m.median_baseline}}, ("algorithm", "advantage"), f"{PLACE}median_baseline"),
    (lambda m: {"algorithm": reinlm.algorithm("dapo", gate=m.Tanh(3))}, ("algorithm", "gate"), {f"{PLACE}Tanh": {"scale": 3}}),
    (lambda m: {"algorithm": {"terms": [m.Drift(0.2)]}}, ("algorithm", "terms"), [{f"{PLACE}Drift": {"coefficient": 0.2}}]),
    (lambda m: {"algorithm": {"filters": [m.Varied(2)]}}, ("imports",), ["mine_of_a_test.py"]),
    (lambda m: {"optimizer": {"schedule": "squared_of_a_test"}}, ("imports",), ["mine_of_a_test.py"]),
    (lambda m: {"optimizer": {"schedule": m.cubed}}, ("optimizer", "schedule"), f"{PLACE}cubed"),
    (lambda m: {"reward": local(m.digits)}, ("reward", "functions"), {"name": f"{PLACE}digits", "label": "Digits"}),
    (lambda m: {"reward": local([(m.Near(2.0), 0.5), graded])}, ("reward", "functions"), None),
    (lambda m: {**TURNS, "environment": m.Guess}, ("environment",), f"{PLACE}Guess"),
    (lambda m: {**TURNS, "environment": m.larger}, ("environment",), f"{PLACE}larger"),
    (lambda m: {**TURNS, "environment": m.GuessConfig(bonus=3)}, ("environment",), {f"{PLACE}GuessConfig": {"bonus": 3.0}}),
    (lambda m: {"rollout": {"engine": m.Engine()}}, ("rollout", "engine"), f"{PLACE}Engine"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "key", "wanted"), CASES, ids=[str(n) for n in range(len(CASES))])
def test_a_run_whose_config_is_run_again_has_the_same_metrics(
    given: Given, key: tuple[str, ...], wanted: Any, mine: ModuleType, tmp_path: Path
) -> None:
    model = saved(tmp_path / "model")
    how: dict[str, Any] = {
        "reward": local(graded),
        "training": {"steps": 2, "minibatches": 2},
        "run": {"save_every": 1},
    }
    how = settings(**{**how, **given(mine)})
    reinlm.rl(model, ROWS[:4], output=tmp_path / "first", quiet=True, **how)
    config = read_recipe(tmp_path / "first" / "config.yaml")
    found: Any = config
    for name in key:
        found = found[name]
    if wanted is not None:
        assert found == wanted
    forget()
    again = reinlm.rl(recipe=tmp_path / "first" / "config.yaml", output=tmp_path / "again", quiet=True)
    assert again.summary["steps"] == 2
    assert metrics(tmp_path / "again") == metrics(tmp_path / "first")


def test_a_run_with_objects_resumes_without_them(mine: ModuleType, tmp_path: Path) -> None:
    model = saved(tmp_path / "model")
    how = settings(
        reward=local(mine.digits),
        algorithm={"gate": mine.Tanh(2.0), "advantage": mine.median_baseline},
        training={"steps": 2, "minibatches": 2},
        run={"save_every": 1},
    )
    reinlm.rl(model, ROWS[:4], output=tmp_path / "whole", quiet=True, **how)
    with reinlm.RLTrainer(model, ROWS[:4], output=tmp_path / "run", quiet=True, **how) as begun:
        begun.step()
    forget()
    reinlm.rl(output=tmp_path / "run", resume=True, quiet=True)
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")


def test_a_run_of_an_earlier_version_resumes_with_its_objects(mine: ModuleType, tmp_path: Path) -> None:
    """An earlier config.yaml names a gate by its class, and functions by a placeholder."""
    model = saved(tmp_path / "model")
    how = settings(
        reward=local(graded), algorithm={"gate": mine.Tanh(2.0)}, training={"steps": 2}, run={"save_every": 1}
    )
    with reinlm.RLTrainer(model, ROWS[:4], output=tmp_path / "run", quiet=True, **how) as begun:
        begun.step()
    file = tmp_path / "run" / "config.yaml"
    text = file.read_text(encoding="utf-8")
    place = place_of(graded)
    assert f"{PLACE}Tanh:" in text
    assert str(place) in text
    file.write_text(
        text.replace(f"{PLACE}Tanh:", "Tanh:").replace(str(place), "<tiny_runs.graded given in Python>"),
        encoding="utf-8",
    )
    with pytest.raises(reinlm.InputError, match=r"Tanh\.scale: 2\.0 -> 3\.0"):
        reinlm.RLTrainer(
            output=tmp_path / "run", resume=True, quiet=True, **{**how, "algorithm": {"gate": mine.Tanh(3.0)}}
        )
    assert reinlm.rl(output=tmp_path / "run", resume=True, quiet=True, **how).summary["steps"] == 2


def test_a_recipe_names_a_function_by_its_place_on_the_command_line(mine: ModuleType, tmp_path: Path) -> None:
    from reinlm.cli import main

    model = saved(tmp_path / "model")
    (tmp_path / "d.csv").write_text("prompt,answer\n1+2=,3\n4+5=,9\n", encoding="utf-8")
    words = [
        "--model",
        model,
        "--data",
        "d.csv",
        "--reward",
        "exact_match",
        "rollout.group_size=2",
        "rollout.batch_size=4",
    ]
    words += ["rollout.max_new_tokens=3", "training.steps=1", "run.trackers=[]"]
    forget()
    words += ["--output", "out", "algorithm.gate=mine_of_a_test.py:soft_clip"]
    words += ["algorithm.advantage={whitened: {advantage: mine_of_a_test.py:median_baseline}}"]
    with pytest.raises(SystemExit) as ended:
        main(["rl", *words])
    assert not ended.value.code
    tree = read_recipe("out/config.yaml")["algorithm"]
    assert tree["gate"] == f"{PLACE}soft_clip"
    assert tree["advantage"]["whitened"]["advantage"] == f"{PLACE}median_baseline"


def test_what_a_script_defines_is_named_by_its_file_and_what_a_notebook_defines_is_not(tmp_path: Path) -> None:
    code = "from reinlm.importable import written\ndef f(): pass\nclass C: pass\nobject_ = C()\n"
    code += "print(written(f), written(C), written(object_), written(C()), written(lambda: 0), sep='|')"
    (tmp_path / "script.py").write_text(code, encoding="utf-8")

    def said(*words: str) -> list[str]:
        ran = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=True)
        return ran.stdout.strip().split("|")

    gone = ["<__main__.C given in Python>", "<__main__.<lambda> given in Python>"]
    assert said("script.py") == ["script.py:f", "script.py:C", "script.py:object_", *gone]
    named = ["<__main__.f given in Python>", "<__main__.C given in Python>", "<__main__.C given in Python>"]
    assert said("-c", code) == [*named, *gone]


def test_a_name_gives_the_same_object_back(mine: ModuleType) -> None:
    for made in (mine.soft_clip, mine.digits, mine.larger, mine.Guess):
        assert find(written(made), "part") is made
    assert find("math:floor", "part")(1.5) == 1
    assert written(importlib.import_module("math").floor) == "math:floor"
