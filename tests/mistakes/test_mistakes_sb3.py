"""Words of Stable-Baselines3 where a language model is trained: each is answered with what to write."""

from __future__ import annotations

from typing import Any

import pytest

import reinlm
import reinlm.api
from reinlm.cli import main
from reinlm.insight.charts import charts
from reinlm.metrics import METRICS
from reinlm.program import command_line

WORDS: dict[str, str] = {
    "rl n_steps=5": "a step has rollout.batch_size of them",
    "rl eval_freq=10": "eval_freq is evaluation.every",
    "rl policy_kwargs={}": "a language model has its shape already",
    "rl --total-timesteps 4": "write training.steps=4",
    "rl --environment CartPole-v1 --model x --data y --reward math": "classical ppo --env CartPole-v1 --steps 100000",
    "ppo --env CartPole-v1 --steps 9": "it is a classical algorithm: reinlm classical ppo --env CartPole-v1 --steps 9",
    "ppo --data train.jsonl": "an algorithm is an option: reinlm rl --algorithm ppo",
    "generate --deterministic": "write --temperature 0",
    "eval --deterministic": "write evaluation.temperature=0",
}


@pytest.mark.parametrize("words", WORDS)
def test_a_word_of_stable_baselines_gets_ours(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(words.split())
    err = capsys.readouterr().err
    assert left.value.code == 2
    assert len(err.splitlines()) == 2
    assert WORDS[words].replace("reinlm ", f"{command_line()} ") in err


def test_keys_finds_ours_by_theirs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["keys", "total_timesteps"])
    assert capsys.readouterr().out.startswith("training.steps\n")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("PPO", "use reinlm.classical.PPO for control, or reinlm.rl for a language model"),
        ("EvalCallback", "evaluation={'every': 50} of reinlm.rl"),
        ("CheckpointCallback", "run={'save_every': 50} of reinlm.rl"),
        ("BaseCallback", "use reinlm.Callback"),
        ("evaluate_policy", "use reinlm.evaluate, or reinlm.classical.evaluate"),
        ("eval", "use reinlm.evaluate"),
        ("make_vec_env", "for control, reinlm.classical has PPO(id, environments=8)"),
    ],
)
def test_what_one_imports_there_is_named_here(name: str, said: str) -> None:
    with pytest.raises(AttributeError) as raised:
        getattr(reinlm, name)
    assert said in str(raised.value)


def test_a_trainer_is_trained_and_names_that_are_nowhere_stay_unknown() -> None:
    trainer: Any = object.__new__(reinlm.api.RLTrainer)
    with pytest.raises(AttributeError, match=r"train\(\) runs it to its end"):
        trainer.learn(1000)
    for name in ("load_it", "evaluated", "Evaluator"):
        with pytest.raises(AttributeError, match=f"^module 'reinlm' has no attribute '{name}'$"):
            getattr(reinlm, name)


def test_the_charts_of_a_classical_run_are_of_actions() -> None:
    records = [{"step": step, "entropy": 1.0 / step, "clip_ratio/region_mean": 0.1 * step} for step in (1, 2)]
    texts = {
        kind: " ".join(str(value) for figure in charts(records, kind, METRICS) for value in figure.values())
        for kind in ("rl", "classical")
    }
    assert "token" not in texts["classical"].lower()
    assert "Actions outside the clip range" in texts["classical"]
    assert "nats per action" in texts["classical"]
    assert texts["rl"].replace("token", "action").replace("Token", "Action") == texts["classical"]
