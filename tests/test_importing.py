"""A script is imported for the parts that it holds: it may define and register, and what trains or writes is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import reinlm
from reinlm.errors import InputError
from reinlm.importable import find, load_imports
from reinlm.rewards import build_rewards
from tiny_runs import ROWS, local, settings, tiny

CALLS = {
    "reinlm.rl": "reinlm.rl('model', {rows}, output={folder!r}, overwrite=True)",
    "reinlm.sft": "reinlm.sft('model', {rows}, output={folder!r}, overwrite=True, seeds=2)",
    "reinlm.RLTrainer": "reinlm.RLTrainer('model', {rows}, output={folder!r}, overwrite=True)",
    "reinlm.SFTTrainer": "reinlm.SFTTrainer('model', {rows}, output={folder!r}, overwrite=True)",
    "reinlm.evaluate": "reinlm.evaluate('model', {rows}, reward='math')",
    "reinlm.generate": "reinlm.generate('model', 'hello')",
    "reinlm.compare": "reinlm.compare({folder!r}, output='page.html')",
    "reinlm.create_model": "reinlm.create_model({rows}, output={folder!r}, overwrite=True)",
    "reinlm.save_policy": "reinlm.save_policy(None, {folder!r})",
    "run_classical": "from reinlm.classical.run import run_classical; run_classical(None, overwrite=True)",
    "ValueIteration.learn": "from reinlm.classical import ValueIteration as A; A('reinlm/Gridworld4x4-v0').learn(1)",
    "ValueIteration.save": "from reinlm.classical import ValueIteration as A; A('reinlm/Gridworld4x4-v0').save({folder!r})",
    "reinlm.classical.evaluate": "from reinlm.classical import evaluate; evaluate(print)",
    "RunFolder.create": "from reinlm.quickstart import run_quickstart; run_quickstart({folder!r}, overwrite=True)",
}


def script(folder: Path, call: str, name: str = "script.py") -> Path:
    """A file with a reward, a gate and a call that no guard stands before, in line 4."""
    file = folder / name
    file.write_text(
        "import reinlm\ndef digits(completions): return [1.0 for _ in completions]\n"
        f"def soft(ratio, advantages): return -ratio * advantages\n{call}\n"
    )
    return file


@pytest.mark.parametrize("verb", CALLS)
def test_a_file_that_is_imported_for_its_parts_cannot_train_sample_or_write(tmp_path: Path, verb: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    file = script(tmp_path, CALLS[verb].format(folder=str(tmp_path / "run"), rows=ROWS))
    for load in (lambda: find(f"{file}:soft", "gate"), lambda: load_imports(file)):
        with pytest.raises(InputError) as refused:
            load()
        assert refused.value.message.endswith(f"{file} is imported for its parts, and {file}:4 calls {verb}"), (
            refused.value.message
        )
        assert refused.value.hint == 'put what runs below `if __name__ == "__main__":`'
    assert [child.name for child in (tmp_path / "run").iterdir()] == ["run.json"]


def test_a_call_in_a_function_or_in_a_file_beside_it_is_named_by_the_statement_of_a_file_that_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script(tmp_path, "def main(): reinlm.generate('m', 'p')\nmain()", "unguarded.py")
    script(tmp_path, "", "guarded.py").write_text("import unguarded\n")
    with pytest.raises(
        InputError, match=r"guarded.py is imported for its parts, and unguarded.py:5 calls reinlm.generate"
    ):
        load_imports("guarded.py")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        InputError, match=r"^gate 'unguarded:soft': unguarded is imported .* unguarded.py:5 calls reinlm.generate"
    ):
        find("unguarded:soft", "gate")


@pytest.mark.parametrize("named", ["{file}:digits", "of_rewards:digits"])
def test_the_process_of_a_reward_refuses_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file = script(tmp_path, f"reinlm.create_model({ROWS}, output={str(tmp_path / 'made')!r})", "of_rewards.py")
    with pytest.raises(InputError, match=r"reward 'digits': .*of_rewards.py:4 calls reinlm.create_model"):
        build_rewards(named.format(file=file))
    assert not (tmp_path / "made").exists()


def test_a_file_that_defines_and_registers_is_imported_and_verbs_run_afterwards(tmp_path: Path) -> None:
    call = "if __name__ == '__main__': reinlm.rl('model', [])\nreinlm.algorithm('grpo', gate=soft)"
    gate: Any = find(f"{script(tmp_path, call)}:soft", "gate")
    algorithm = {"base": "grpo", "gate": gate}
    result = reinlm.rl(
        model=tiny(), data=ROWS, reward=local(lambda completions: [1.0 for _ in completions]),
        algorithm=algorithm, output=tmp_path / "run", quiet=True, **{**settings(), "run": {"save_every": 0}},
    )  # fmt: skip
    assert result.summary["steps"] == 2
