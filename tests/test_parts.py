"""Parts by name: registered beside their class, read from a recipe, and brought along in a user's own file."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import Field

import reinlm
from reinlm.config import Config
from reinlm.errors import InputError
from reinlm.parts import PARTS, load_imports, name_of_part, part, part_spec, read_part
from tiny_runs import ROWS, change, local, metrics, run_rl, settings, tiny, trainer, weights


@pytest.fixture(autouse=True)
def kind() -> Any:
    """A kind of part for one test: a lamp with a brightness, and a bell without values."""

    @part("gadget", "lamp")
    class Lamp(Config):
        brightness: int = Field(3, ge=1)

    @part("gadget", "bell")
    class Bell(Config):
        pass

    yield Lamp
    del PARTS["gadget"]


# ---------------------------------------------------------------------------------------------------- names and values


def test_a_name_stands_for_the_defaults_and_a_mapping_changes_them() -> None:
    assert read_part("gadget", "lamp").model_dump() == {"brightness": 3}
    assert read_part("gadget", {"lamp": {"brightness": 5}}).model_dump() == {"brightness": 5}
    assert read_part("gadget", {"lamp": None}).model_dump() == {"brightness": 3}


def test_a_part_is_spelled_as_a_recipe_says_it(kind: Any) -> None:
    assert part_spec("gadget", kind(brightness=5)) == {"lamp": {"brightness": 5}}
    assert part_spec("gadget", read_part("gadget", "bell")) == "bell"
    assert name_of_part("gadget", kind()) == "lamp"
    assert read_part("gadget", kind(brightness=4)) == kind(brightness=4)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("lamb", ["gadget", "'lamb'", "lamp", "bell"]),
        ({"lamp": {"brightness": 0}}, ["gadget lamp", "brightness", "0"]),
        ({"lamp": {"bright": 2}}, ["gadget lamp", "bright"]),
        ({"lamp": [2]}, ["gadget.lamp", "[2]", "{lamp: {key: value}}"]),
        ({"lamp": {}, "bell": {}}, ["gadget", "lamp, bell"]),
        (7, ["gadget", "7", "lamp, bell"]),
    ],
)
def test_what_names_no_part_or_does_not_fit_it_is_refused_with_what_is_allowed(spec: Any, says: list[str]) -> None:
    with pytest.raises(InputError) as refused:
        read_part("gadget", spec)
    text = f"{refused.value.message} {refused.value.hint}"
    assert all(word in text for word in says), text


def test_one_name_stands_for_one_class() -> None:
    with pytest.raises(ValueError, match="gadget 'lamp' is registered twice"):

        @part("gadget", "lamp")
        class Lantern(Config):
            pass


# ---------------------------------------------------------------------------------------------------- users' files

MINE = '''
"""One part of every kind that a recipe may name."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from reinlm.config import Config
from reinlm.environments import StepResult
from reinlm.objectives import Gated, choice
from reinlm.parts import part
from reinlm.records import Column, declare_column
from reinlm.rollouts.engines import InProcessConfig
from reinlm.schedules import schedule

declare_column(Column("mine_mark", "float32", meaning="1 for the first token of an answer"))


@part("environment", "mine_digits")
class Digits(Config):
    """How many digits the answer has, by `points`."""

    points: float = 1.0

    def build(self):
        return Counting(self.points)


class Counting:
    name = "digits"

    def __init__(self, points=1.0):
        self.points = points

    def reset(self, task):
        return None

    def step(self, action):
        return StepResult(reward=self.points * sum(c.isdigit() for c in action.text), terminated=True)


@part("optimizer", "mine_sign")
class Sign(Config):
    def build(self, groups, config):
        class SignDescent(torch.optim.SGD):
            def step(self, closure=None):
                for group in self.param_groups:
                    for weight in group["params"]:
                        if weight.grad is not None:
                            weight.grad.sign_()
                return super().step(closure)

        return SignDescent(groups, lr=config.learning_rate)


@schedule("mine_half")
def half(done):
    """1, then 1/2 from the middle on."""
    return 1.0 if done < 0.5 else 0.5


@part("engine", "mine_marking")
class MarkingConfig(InProcessConfig):
    def build(self, policy, *, autocast=None, max_running=256):
        return Marking(super().build(policy, autocast=autocast, max_running=max_running))


class Marking:
    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    @property
    def capabilities(self):
        known = self.inner.capabilities
        return replace(known, columns=(*known.columns, "mine_mark"))

    async def generate(self, request):
        completion = await self.inner.generate(request)
        mark = np.zeros(len(completion.token_ids), np.float32)
        mark[:1] = 1.0
        return replace(completion, columns={**completion.columns, "mine_mark": mark})


@choice("term", "mine_first")
@dataclass(frozen=True)
class First:
    """coefficient · mark_t · log π(y_t)."""

    coefficient: float = 1.0
    needs = frozenset({"mine_mark"})

    def __call__(self, logprobs, signals, outputs):
        return self.coefficient * signals.columns["mine_mark"] * logprobs


@choice("gate", "mine_double")
@dataclass(frozen=True)
class Double:
    """-2 r A."""

    def __call__(self, log_ratio, logprobs, signals):
        nowhere = torch.zeros(log_ratio.shape, dtype=torch.bool)
        return Gated(-2.0 * log_ratio.exp() * signals.advantages, nowhere, nowhere)
'''


def forget() -> None:
    """Take the parts of `MINE` out of every register again."""
    from reinlm.objectives import CHOICES
    from reinlm.records import COLUMNS
    from reinlm.schedules import SCHEDULES

    for names in (*PARTS.values(), *CHOICES.values(), SCHEDULES, COLUMNS):
        for name in [name for name in names if name.startswith("mine_")]:
            del names[name]
    for name in [name for name in sys.modules if name.startswith("reinlm_imports_")]:
        del sys.modules[name]


@pytest.fixture
def mine(tmp_path: Path) -> Any:
    path = tmp_path / "mine.py"
    path.write_text(MINE, encoding="utf-8")
    yield str(path)
    forget()


TURN = {"max_new_tokens": 12, "stop_strings": ["=", "+"]}
"""Answers that mostly end by themselves; an environment is not stepped with others."""
NAMED: dict[str, Any] = {
    "algorithm": {"base": "grpo", "kl": None, "gate": "mine_double", "terms": [{"mine_first": 0.5}]},
    "environment": {"mine_digits": {"points": 2.0}},
    "optimizer": {"name": "mine_sign", "learning_rate": 0.02, "schedule": "mine_half", "final_fraction": 0.0},
    "rollout": {"engine": "mine_marking", **TURN},
    "training": {"steps": 3},
}


def test_parts_of_a_users_file_make_a_run_and_its_config_is_a_recipe_for_the_same_run(
    mine: str, tmp_path: Path
) -> None:
    model = tiny()
    before = weights(model[0])
    first = run_rl(tmp_path / "first", model, reward=None, imports=[mine], **NAMED)
    rows = [row for row in metrics(first.folder) if row["step"]]
    assert [row["learning_rate"] for row in rows] == [0.02, 0.01, 0.01]  # mine_half at 0, 1/2 and 1
    assert max(row["rewards/digits/mean"] for row in rows) > 2.0  # two points for each of several digits
    moved = change(before, weights(model[0])).abs()
    assert ((moved / 0.01 - (moved / 0.01).round()).abs() < 1e-9).all()  # a sum of ± rates: signs alone
    config = yaml.safe_load((first.folder / "config.yaml").read_text())
    assert config["environment"] == NAMED["environment"]
    assert config["imports"] == [mine]

    recipe = tmp_path / "again.yaml"
    config["data"], config["run"]["output"] = {"path": ROWS}, str(tmp_path / "second")
    recipe.write_text(yaml.safe_dump(config))
    again = reinlm.rl(tiny(), recipe=recipe, quiet=True)
    assert metrics(again.folder) == metrics(first.folder)


def test_a_column_of_an_engine_reaches_a_loss_term(mine: str, tmp_path: Path) -> None:
    """One declaration, and the loss changes by coefficient · Σ_t w_t mark_t log π(y_t)."""
    from safetensors.numpy import load_file

    def losses(**changes: Any) -> tuple[float, Any]:
        algorithm = {"base": "grpo", "kl": None, "aggregation": "token_mean", **changes}
        result = run_rl(
            tmp_path / str(len(changes)),
            imports=[mine],
            algorithm=algorithm,
            rollout={"engine": "mine_marking"},
            training={"steps": 1},
            run={"rollouts_every": 1},
        )
        return metrics(result.folder)[-1]["loss"], load_file(result.folder / "rollouts/step_1.safetensors")

    without, _ = losses()
    with_it, columns = losses(terms=[{"mine_first": 0.5}])
    mark, logprobs = columns["column/mine_mark"], columns["update/logprobs"]
    assert mark.sum() == 8  # one for each answer
    assert with_it - without == pytest.approx(0.5 * float((mark * logprobs).sum()) / len(mark), rel=1e-5)


def test_a_term_whose_column_the_engine_does_not_offer_is_refused_before_anything_is_sampled(
    mine: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"mine_mark.*in_process"):
        trainer(tmp_path / "run", imports=[mine], algorithm={"base": "grpo", "terms": ["mine_first"]})


def test_a_class_of_a_file_is_an_environment_without_being_registered(mine: str, tmp_path: Path) -> None:
    result = run_rl(tmp_path / "run", reward=None, environment=f"{mine}:Counting", rollout=TURN, training={"steps": 1})
    assert metrics(result.folder)[-1]["rewards/digits/mean"] > 0


def test_a_file_is_imported_once_whatever_it_is_called(mine: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (one,), (other,) = load_imports([mine]), load_imports(["./mine.py"])
    assert one is other


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1\n\nraise ValueError('no lamp')\n", r"broken\.py raises ValueError: no lamp \(broken\.py:3\)"),
        ("def f():\n    return 1 / 0\n\nf()\n", r"raises ZeroDivisionError: division by zero \(broken\.py:2\)"),
        ("x = (\n", r"raises SyntaxError: .*\(broken\.py:1\)"),
        ("import sys\nsys.exit('bye')\n", r"raises SystemExit: bye \(broken\.py:2\)"),
    ],
)
def test_a_file_that_raises_is_named_with_its_line_and_can_be_mended(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(InputError, match=says):
        reinlm.rl(tiny(), ROWS, reward=local("length"), imports=[str(path)], **settings())
    path.write_text("x = 2\n")
    (module,) = load_imports([str(path)])
    assert module.x == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1\n\nraise ValueError('no lamp')\n", r"mine_broken raises ValueError: no lamp \(mine_broken\.py:3\)"),
        ("x = (\n", r"mine_broken raises SyntaxError: .*\(mine_broken\.py:1\)"),
        ("def f():\n    import sys\n    sys.exit(3)\nf()\n", r"raises SystemExit: 3 \(mine_broken\.py:3\)"),
    ],
)
def test_a_module_that_raises_is_named_with_its_line(text: str, says: str, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "mine_broken.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=says):
        load_imports("mine_broken")


@pytest.mark.parametrize("name", ["", ".mine", "mine..parts"])
def test_what_is_no_name_of_a_module_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"imports: '{re.escape(name)}' is no name of a module"):
        load_imports([name])


def test_a_choice_of_a_file_that_raised_may_be_registered_again(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    text = "from reinlm.objectives import choice\n@choice('gate', 'mine_again')\nclass Again: pass\n"
    path.write_text(text + "1 / 0\n")
    with pytest.raises(InputError, match=r"broken\.py:4"):
        load_imports([str(path)])
    path.write_text(text)
    load_imports([str(path)])
    forget()


def test_a_place_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such file: .*nowhere\.py"):
        load_imports([str(tmp_path / "nowhere.py")])
    with pytest.raises(InputError, match="cannot import no_such_module_of_mine"):
        load_imports(["no_such_module_of_mine"])
    assert load_imports(["json"]) == [importlib.import_module("json")]
