"""Arguments and names that belong to other libraries, or that set nothing, are answered with what to write."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import reinlm
from tiny_runs import ROWS, trainer

ours: Any = reinlm
"""Without types: the calls are wrong by them."""


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: ours.rl("none", ROWS, reward="math", resume="x/step_4"),
            "resume is True or False, not 'x/step_4'.*as the model",
        ),
        (lambda: ours.sft("none", ROWS, overwrite="no"), "overwrite is True or False, not 'no'"),
        (lambda: ours.evaluate("none", ROWS, quiet=1), "quiet is True or False, not 1"),
        (lambda: ours.generate("none", "hi", quiet="yes"), "quiet is True or False"),
        (lambda: ours.generate("none", "hi", max_completion_length=5), "max_new_tokens=…"),
        (lambda: ours.generate("none", "hi", num_return_sequences=2), "samples=…"),
        (lambda: ours.evaluate("none", ROWS, num_return_sequences=2), "samples=…"),
        (lambda: ours.EarlyStopping("reward", early_stopping_patience=3), "patience here"),
        (lambda: ours.EarlyStopping(patience=3), "needs a metric"),
    ],
)
def test_an_argument_that_is_none_is_answered_with_what_to_write(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(reinlm.InputError, match=message):
        call()


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("GRPOTrainer", 'reinlm.RLTrainer, with algorithm="grpo"'),
        ("GRPOConfig", "give the options to reinlm.rl"),
        ("SFTConfig", "give the options to reinlm.sft"),
        ("KTOTrainer", 'reinlm.DPOTrainer, with algorithm="kto"'),
        ("RewardConfig", "give the options to reinlm.reward"),
        ("PPOTrainer", 'algorithm="ppo"'),
    ],
)
def test_a_class_of_trl_is_answered_with_what_to_use(name: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=instead):
        getattr(reinlm, name)
    assert not hasattr(reinlm, name)


def test_an_import_of_a_class_of_trl_says_what_to_use() -> None:
    done = subprocess.run([sys.executable, "-c", "from reinlm import GRPOTrainer"], capture_output=True, text=True)
    assert "ImportError: reinlm has no GRPOTrainer: use reinlm.rl" in done.stderr


def test_a_method_of_another_trainer_is_answered_with_what_to_use(tmp_path: Path) -> None:
    with trainer(tmp_path / "run") as other:
        with pytest.raises(AttributeError, match=r"save\(\) writes a checkpoint"):
            other.save_model()
        with pytest.raises(AttributeError, match="hf upload"):
            other.push_to_hub("me/it")
        assert not hasattr(other, "nothing_like_it")


def test_early_stopping_takes_the_name_that_tables_print_and_refuses_one_that_no_evaluation_logs(
    tmp_path: Path,
) -> None:
    how: dict[str, Any] = {"evaluation": {"data": {"eval": {"path": ROWS[:2]}}, "every": 1, "max_new_tokens": 4}}
    printed = reinlm.EarlyStopping("eval/reward", patience=9)
    with trainer(tmp_path / "run", callbacks=[printed], **how) as found:
        found.step()
    assert printed.best.value is not None
    wrong = reinlm.EarlyStopping("eval/eval/rewrad", patience=9)
    with (
        pytest.raises(reinlm.RunError, match="did you mean 'eval/eval/reward'"),
        trainer(tmp_path / "wrong", callbacks=[wrong], **how) as found,
    ):
        found.step()
    assert found.loop.done == 0


def beside(prompts: list[Any], completion: str) -> float:
    return 0.0


def compared(completions: list[str], answer: list[str]) -> list[float]:
    return [0.0 for _ in completions]


def rowed(completions: list[str], promt_row: list[str]) -> list[float]:
    return [0.0 for _ in completions]


@pytest.mark.parametrize(
    ("reward", "evaluated", "message"),
    [
        (
            beside,
            ROWS[:2],
            r"'completion' is one answer a call, and 'prompts' beside it.*write completions beside prompts",
        ),
        (compared, [{"prompt": "1+2="}], r"evaluation set 'held': .*needs the argument 'answer'"),
        (rowed, ROWS[:2], r"needs the argument 'promt_row'(?!.*did you mean)"),
    ],
)
def test_what_a_reward_lacks_is_said_with_its_set_and_its_cause(
    reward: Any, evaluated: list[Any], message: str, tmp_path: Path
) -> None:
    how: dict[str, Any] = {"evaluation": {"data": {"held": {"path": evaluated}}, "max_new_tokens": 4}}
    with pytest.raises(reinlm.InputError, match=message):
        trainer(tmp_path / "run", reward=reward, **how)


def test_a_file_named_as_a_module_is_answered_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scores_of_mine.py").write_text("def f(completions):\n    return [0.0 for _ in completions]\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(reinlm.InputError, match=r"write scores_of_mine\.py:f"):
        trainer(tmp_path / "run", reward="scores_of_mine:f")


def test_evaluation_data_stand_below_their_key() -> None:
    with pytest.raises(reinlm.InputError, match=r'evaluation=\{"data": …\}'):
        ours.rl("none", ROWS, reward="math", evaluation=ROWS)
