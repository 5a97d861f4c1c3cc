"""Rewards that are objects: a state in checkpoints, and a note about what none holds."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from rewards_support import make_group, values, write

import reinlm
from reinlm.errors import InputError, RunError
from reinlm.rewards import build_rewards
from reinlm.rewards.states import lost_attribute
from reinlm.runs import read_metrics, without_clocks
from tiny_runs import ROWS, SETTINGS, tiny

GROUP = make_group("a:1", ["x", "y"])


class Counter:
    """The more answers it has seen, the more it gives."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, completions: list[str]) -> list[float]:
        self.seen += len(completions)
        return [float(self.seen + index) for index, _ in enumerate(completions)]


class Kept(Counter):
    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


def run(folder: Path, reward: Any, steps: int, **more: Any) -> list[dict[str, Any]]:
    settings = {**SETTINGS, "training": {"steps": steps}, "run": {**SETTINGS["run"], "output": str(folder)}}
    reinlm.rl(tiny(), data=ROWS, reward=reward, **{"quiet": True, **settings, **more})
    return [without_clocks(record) for record in read_metrics(folder / "metrics.jsonl")]


def test_a_resumed_run_goes_on_with_the_state_of_its_rewards(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", Kept(), 3)
    run(tmp_path / "parts", Kept(), 1)
    assert run(tmp_path / "parts", Kept(), 3, resume=True) == whole


def test_an_object_of_a_file_with_a_state_runs_in_this_process_and_keeps_it(tmp_path: Path) -> None:
    body = (
        "import os\nclass Kept:\n    def __init__(self, start=0): self.seen = start\n"
        "    def __call__(self, completions):\n        self.seen += 1\n        return [self.seen, os.getpid()]\n"
        "    def state_dict(self): return {'seen': self.seen}\n"
        "    def load_state_dict(self, state): self.seen = state['seen']\nkept = Kept()\n"
    )
    file = write(tmp_path, body)
    for spec in (f"{file}:kept", {f"{file}:Kept": {"start": 0}}):
        with build_rewards(spec) as rewards:
            assert values(rewards.score([GROUP])) == [[1.0], [float(os.getpid())]]
            (name,) = rewards.names
            assert rewards.state_dict() == {name: {"seen": 1}}
            rewards.load_state_dict({name: {"seen": 6}})
            assert values(rewards.score([GROUP]))[0] == [7.0]
            assert rewards.lost == ()
            with pytest.raises(InputError, match="had rewards with state that are not given: other"):
                rewards.load_state_dict({"other": {}})


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ([1], r"returned a state_dict: \[1\] is no dict"),
        ({"a": object()}, "returned a state_dict: state.a"),
        (None, ""),
    ],
)
def test_a_state_that_no_checkpoint_holds_is_named(state: Any, message: str) -> None:
    class Odd(Kept):
        def state_dict(self) -> Any:
            return state if state is not None else 1 / 0

        def load_state_dict(self, state: Any) -> None:
            raise ValueError("no")

    with build_rewards(Odd()) as rewards:
        with pytest.raises(RunError, match=message or "reward 'Odd' failed in state_dict: ZeroDivisionError"):
            rewards.state_dict()
        with pytest.raises(RunError, match="reward 'Odd' failed in load_state_dict: ValueError: no"):
            rewards.load_state_dict({"Odd": {}})


def test_one_half_of_a_state_is_refused() -> None:
    class Half(Counter):
        def state_dict(self) -> dict[str, Any]:
            return {}

    with pytest.raises(InputError, match="reward 'Half': it has state_dict and no load_state_dict") as caught:
        build_rewards(Half())
    assert caught.value.hint == "write load_state_dict too"


class Fixed:
    def __init__(self) -> None:
        self.scale, self.names = 2.0, ["a"]

    def __call__(self, completions: list[str]) -> list[float]:
        found = {}
        found["n"] = self.scale
        return [found["n"] for _ in completions if self.names]


class Appends(Fixed):
    def __call__(self, completions: list[str]) -> list[float]:
        self.names.append("b")
        return [0.0 for _ in completions]


class Sets(Fixed):
    def __call__(self, completions: list[str]) -> list[float]:
        self._note(len(completions))
        return [0.0 for _ in completions]

    def _note(self, count: int) -> None:
        self.last = count


class Draws(Fixed):
    def __init__(self) -> None:
        self.generator = random.Random(0)


@pytest.mark.parametrize(
    ("made", "attribute"),
    [
        (Counter(), "seen"),
        (Appends(), "names"),
        (Sets(), "last"),
        (Draws(), "generator"),
        (Fixed(), None),
        (Kept(), None),
    ],
)
def test_what_an_object_visibly_changes_is_found(made: Any, attribute: str | None) -> None:
    assert lost_attribute(made) == attribute


def test_a_resumed_run_says_which_state_it_begins_anew(tmp_path: Path, capfd: Any) -> None:
    file = write(
        tmp_path,
        "class C:\n    def __call__(self, completions):\n        self.n = 1\n        return [1.0, 2.0]\nc = C()",
    )
    for reward in (Counter(), f"{file}:c"):
        with build_rewards(reward) as rewards:
            (line,) = rewards.lost
            assert "which no checkpoint holds" in line
    for steps, notes in (1, 0), (2, 1):
        run(tmp_path / "run", Counter(), steps, quiet=False, resume=steps > 1)
        captured = capfd.readouterr()
        said = [line for line in (captured.out + captured.err).splitlines() if "which no checkpoint holds" in line]
        assert len(said) == notes
        assert all("note: reward 'Counter' is an object that changes its 'seen'" in line for line in said)


def test_a_state_that_no_checkpoint_holds_ends_a_run_before_its_first_step(tmp_path: Path) -> None:
    class Odd(Kept):
        def state_dict(self) -> dict[str, Any]:
            return {"made": object()}

    with pytest.raises(RunError, match=r"reward 'Odd' returned a state_dict: state\.made: cannot store"):
        run(tmp_path / "run", Odd(), 1)
    assert not (tmp_path / "run").exists()
