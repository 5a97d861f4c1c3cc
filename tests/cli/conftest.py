"""One tiny model and its data, and the command line called as a user would."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest_cli import FAST_RL

from reinlm.cli import main
from reinlm.data.arithmetic import ALPHABET, demonstrations, problems
from reinlm.models import character_tokenizer, load_policy, save_policy, tiny_model


@dataclass
class Outcome:
    code: int
    out: str
    err: str

    @property
    def errors(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("error: ")]

    @property
    def hints(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("hint: ")]


@pytest.fixture(scope="session")
def material(tmp_path_factory) -> Path:
    """`model/`, `d.jsonl` (prompt, completion, answer) in one folder."""
    folder = tmp_path_factory.mktemp("material")
    tokenizer = character_tokenizer(ALPHABET)
    model = tiny_model("qwen3", vocab_size=len(tokenizer), hidden_size=32, layers=1, heads=2, context=32)
    save_policy(load_policy((model, tokenizer)), folder / "model")
    rows = demonstrations(problems(64, 0), 0.5, 0)
    (folder / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def place(material, tmp_path, monkeypatch) -> Path:
    """An empty working folder with links to the material."""
    (tmp_path / "model").symlink_to(material / "model")
    (tmp_path / "d.jsonl").symlink_to(material / "d.jsonl")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def reinlm(place, capfd):
    """Call the command line in this process."""

    def call(*words: str) -> Outcome:
        capfd.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([*words])
        out, err = capfd.readouterr()
        return Outcome(int(stop.value.code or 0), out, err)

    return call


@pytest.fixture
def rl(reinlm):
    """`reinlm rl` on the tiny model into `out`, with what is given added."""

    def call(*words: str, model: str = "model", data: str = "d.jsonl", reward: str = "exact_match") -> Outcome:
        given = ["--steps", "2"] if not any(word in ("--steps", "--resume") for word in words) else []
        return reinlm("rl", *FAST_RL, "-m", model, "-d", data, "-r", reward, "-o", "out", "-q", *given, *words)

    return call
