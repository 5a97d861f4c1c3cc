"""Every key of every verb has an observable effect, or is refused by an error that names it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from matrix import Matrix, measure, problem
from matrix_data import fill

from reinlm.key_reference import EFFECTS
from reinlm.keys import Key

pytestmark = pytest.mark.no_cover

VERBS = ("rl", "sft", "rft", "dpo", "reward", "eval", "generate", "bench", "create-model")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("verb", VERBS)
def test_every_key_has_an_effect_or_is_refused(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = measure(verb, fill(tmp_path), monkeypatch)
    wrong = [text for key, effect in found.items() if (text := problem(verb, key, effect))]
    assert not wrong, "\n".join(wrong)
    written = json.loads(EFFECTS.read_text(encoding="utf-8"))[verb]
    changed = {key: (written.get(key), found.get(key)) for key in written | found if written.get(key) != found.get(key)}
    assert not changed, (
        f"{changed}\nrun `python tests/keys/effects.py`, then `reinlm keys --page > docs/configuration.md`"
    )


@pytest.mark.parametrize(
    ("key", "told"),
    [
        (Key("run.keep_last", "integer ≥ 1", "", {"rl": "2"}), "no effect, and no error: teach the matrix"),
        (Key("training.stepz", "integer ≥ 1", "", {"rl": "1"}), None),
        (Key("optimizer.learning_rate", "number", "", {"rl": "0.01"}), None),
    ],
)
def test_a_key_without_an_effect_is_told(
    key: Key, told: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without checkpoints `run.keep_last` does nothing; an unknown key is refused, and a learning rate changes weights."""
    monkeypatch.chdir(fill(tmp_path))
    monkeypatch.setattr("matrix.CONTEXTS", {"": {}})
    text = problem("rl", key.key, Matrix(tmp_path).trial("rl", key))
    assert (text is None) if told is None else (text is not None and told in text)
