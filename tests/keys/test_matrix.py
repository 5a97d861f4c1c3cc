"""Every key of every verb has an observable effect, or is refused by an error that names it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from matrix import Matrix, row
from matrix_trials import OPEN

from reinlm.keys import VERBS, keys_of
from reinlm.models import load_policy, save_policy
from tiny_runs import ALPHABET, EXAMPLES, ROWS, saved, tiny

REWARDS = """
def graded(completions, **columns):
    completions = [text if isinstance(text, str) else text[-1]["content"] for text in completions]
    return [sum(int(c) for c in text if c.isdigit()) / (9.0 * max(len(text), 1)) for text in completions]


def calls(completions, **columns):
    return [float(len(completions)) + i for i, text in enumerate(completions)]


def fails(completions, prompts, **columns):
    if any("12" in prompt for prompt in prompts):
        raise ValueError("no")
    return [float(i) for i, text in enumerate(completions)]
"""
CHAT = (
    "{% for m in messages %}{{ 'u' if m.role[0] == 'u' else 'a' }}:{{ m.content }}{% endfor %}"
    "{% if enable_thinking is defined %}+{% endif %}a:"
)
"""A chat template over the characters of the model."""
TURNS = """
import time


class Turns:
    wait, wrong = 0.0, False

    def reset(self, task):
        self.turn = 0
        return None

    def step(self, action):
        time.sleep(self.wait)
        if self.wrong:
            raise ValueError("no")
        self.turn += 1
        return "+1=", float(len(action.text)), self.turn == 3, False, {}


class Uneven(Turns):
    made = 0

    def __init__(self):
        Uneven.made += 1
        self.wait = 0.05 * (Uneven.made % 2)


class Fails(Turns):
    wrong = True
"""
MINE = 'open("imported.txt", "w").close()'


def fill(folder: Path) -> Path:
    """The model and the data of all trials."""
    saved(folder / "model")
    saved(folder / "other_model", seed=1)
    easy = [{**line, "answer": "A"[n % 8 :] or "1", "completion": "1"} for n, line in enumerate(ROWS)]
    rows: dict[str, list[Any]] = {"easy": easy, "prompts": ROWS, "examples": EXAMPLES, "held_out": EXAMPLES[:4]}
    for name, lines in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "other.jsonl").write_text("".join(json.dumps(line) + "\n" for line in EXAMPLES[::-1]))
    (folder / "others.jsonl").write_text("".join(json.dumps(line) + "\n" for line in ROWS[::-1]))
    chat = tiny(alphabet=ALPHABET + "u:a", chat_template=CHAT)
    save_policy(load_policy(chat), folder / "chat_model")
    (folder / "long.jsonl").write_text(
        (folder / "prompts.jsonl").read_text() + json.dumps({"prompt": "1" * 90, "answer": "1"}) + "\n"
    )
    (folder / "bad.jsonl").write_text((folder / "prompts.jsonl").read_text() + "{}\n")
    for name, text in (("rewards.py", REWARDS), ("turns.py", TURNS), *((f"mine_{verb}.py", MINE) for verb in VERBS)):
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    "verb",
    ["eval", "generate", *(pytest.param(verb, marks=pytest.mark.slow) for verb in ("sft", "rl"))],
)
def test_every_key_has_an_effect_or_is_refused(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(fill(tmp_path))
    matrix = Matrix(tmp_path)
    wrong = [
        problem
        for key in keys_of(verb)
        if key.key not in OPEN.get(verb, ()) and (problem := row(verb, key, matrix.trial(verb, key)))
    ]
    assert not wrong, "\n".join(wrong)
