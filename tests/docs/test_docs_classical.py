"""The page on the classical algorithms: the names and settings that it says are taken."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import reinlm.classical
from reinlm.classical import DQN, PPO

PAGE = (Path(__file__).parents[2] / "docs" / "classical.md").read_text(encoding="utf-8")


def test_the_names_of_the_page_are_taken_and_its_settings_exist() -> None:
    (row,) = (line for line in PAGE.splitlines() if line.startswith("| `n_steps`"))
    names = [name for name in re.findall(r"`(\w+)`", row.split("|")[1]) if not name.endswith("_")]
    values = {
        "net_arch": [8],
        "gamma": 0.9,
        "gae_lambda": 0.9,
        "clip_range": 0.1,
        "ent_coef": 0.1,
        "tau": 0.5,
        "target_kl": 0.1,
        "normalize_advantage": False,
    }
    for name in names:
        kinds = (PPO, DQN)
        found = [kind for kind in kinds if kind.Settings().model_dump() != _with(kind, name, values.get(name, 7))]
        assert found, name
    assert {"eval_freq", "n_eval_episodes", "double", "n"} <= DQN.Settings.model_fields.keys()
    assert DQN.Settings().eval_freq == 5000
    assert "environments=8" in PAGE
    assert PPO.Settings().environments == 8
    assert "Agent" in dir(reinlm.classical)


def _with(kind: Any, name: str, value: Any) -> Any:
    from reinlm.classical.sb3 import settings_of

    given = settings_of(kind, None, {name: value})
    known = {key: inner for key, inner in given.items() if key in kind.Settings.model_fields and key != "environments"}
    return kind.Settings(**known).model_dump()
