"""A reward model as the reward of rl: read by tokens or by text, normalised, clipped, in a process of its own, resumed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from training_helpers import HELD_OUT, ROWS, metrics, pair, run_rl, run_sft, saved_model, tiny_policy

import reinlm
from reinlm.errors import InputError
from reinlm.models import ModelConfig, RewardHeads, character_tokenizer, load_reward_model, new_reward_model
from reinlm.rewards import RewardConfig, TrainerState, build_rewards
from reinlm.rewards.learned import LearnedReward, ModelReward
from reinlm.runs.folder import read_run

pytestmark = pytest.mark.no_cover

IDS = [{"ids": [3, 4, 5, 6, 1], "start": 3}, {"ids": [3, 4, 5, 7, 1], "start": 3}]
STATE = TrainerState(global_step=1, max_steps=4)


def reward_model(folder: Path, members: int = 1, **heads: Any) -> str:
    """A normalised reward model with heads as they were drawn."""
    source = ModelConfig(path=str(saved_model(folder / "base", seed=5)))
    model = new_reward_model(source, RewardHeads(members=members, **heads), seed=2)
    batch = model.batch([[n % 9 + 2, 12, n % 7 + 2, 1] for n in range(40)], [2] * 40)
    model.normalised(model.score(batch).reward).save(folder / "rm")
    return str(folder / "rm")


def logged_rewards(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line) for file in sorted(folder.glob("rollouts/*.jsonl")) for line in file.read_text().splitlines()
    ]


def test_answers_are_scored_by_their_tokens_as_the_model_scores_them(tmp_path: Path) -> None:
    path = reward_model(tmp_path, members=3)
    result = run_rl(tmp_path / "run", reward=path, training={"steps": 1}, run={"rollouts_every": 1})
    model, tokenizer = load_reward_model(path), tiny_policy().tokenizer
    rows = logged_rewards(result.folder)
    assert len(rows) == 16
    compared = 0
    for row in rows:
        ids = tokenizer(row["prompt"] + row["completion"])["input_ids"]
        ids += [tokenizer.eos_token_id] if row["terminated"] else []
        if len(ids) != len(row["prompt"]) + row["length"]:  # a padding token was sampled, which text does not show
            continue
        compared += 1
        expected = model.score(model.batch([ids], [len(row["prompt"])])).reward
        assert row["rewards"]["model"] == pytest.approx(float(expected), abs=1e-4)
    assert compared >= 4
    last = metrics(result.folder)[-1]
    assert last["rewards/model/logged/spread"] > 0
    assert last["rewards/model/logged/psi"] > 0
    assert 0 <= last["rewards/model/logged/outside"] <= 1


def test_answers_of_another_tokenizer_are_scored_by_their_text(tmp_path: Path) -> None:
    from reinlm.models import character_tokenizer, load_policy, save_policy, tiny_model

    tokenizer = character_tokenizer("+=9876543210")  # the same characters as other tokens
    other = tiny_model("qwen3", vocab_size=len(tokenizer), hidden_size=32, layers=1, heads=2, context=32)
    save_policy(load_policy((other, tokenizer)), tmp_path / "other")
    model = new_reward_model(ModelConfig(path=str(tmp_path / "other")), seed=2)
    model.save(tmp_path / "rm")
    result = run_rl(tmp_path / "run", reward=str(tmp_path / "rm"), training={"steps": 1}, run={"rollouts_every": 1})
    for row in logged_rewards(result.folder):
        ids = [*tokenizer(row["prompt"] + row["completion"])["input_ids"], tokenizer.eos_token_id]
        expected = model.score(model.batch([ids], [len(row["prompt"])])).reward
        assert row["rewards"]["model"] == pytest.approx(float(expected), abs=1e-4)


def test_scores_are_normalised_by_those_of_training_alone_and_clipped(tmp_path: Path) -> None:
    reward = ModelReward(path=reward_model(tmp_path), normalize=True, clip=0.5).build()
    assert isinstance(reward, LearnedReward)
    logged: dict[str, float] = {}
    arguments = (["123", "123"], ["4", "5"], IDS)
    raw = reward._scores(*arguments, logged.__setitem__)
    reward(*arguments, TrainerState(evaluating=True), logged.__setitem__)
    assert reward.moments.count == 0
    given = reward(*arguments, STATE, logged.__setitem__)
    assert reward.moments.count == 2
    expected = [0.5 if raw[0] > raw[1] else -0.5, -0.5 if raw[0] > raw[1] else 0.5]  # two values are 1 deviation apart
    assert given == pytest.approx(expected)
    assert logged["clipped"] == 1.0
    again = ModelReward(path=reward.config.path, normalize=True).build()
    assert isinstance(again, LearnedReward)
    again.load_state_dict(reward.state_dict())
    assert again.state_dict() == reward.state_dict()


def test_a_resumed_run_goes_on_with_the_statistics_of_its_reward_model(tmp_path: Path) -> None:
    reward = {"functions": {"model": {"path": reward_model(tmp_path), "normalize": True}}}
    whole = run_rl(tmp_path / "whole", reward=reward, training={"steps": 3})
    run_rl(tmp_path / "parts", reward=reward, training={"steps": 2})
    parts = reinlm.rl(
        pair(tiny_policy()), ROWS, output=tmp_path / "parts", resume=True, quiet=True, training={"steps": 3}
    )
    assert metrics(whole.folder)[-1] == metrics(parts.folder)[-1]


def test_a_process_of_its_own_gives_the_same_scores(tmp_path: Path) -> None:
    path = reward_model(tmp_path)
    here = run_rl(tmp_path / "here", reward={"functions": {"model": {"path": path}}}, training={"steps": 1})
    own = run_rl(
        tmp_path / "own",
        reward={"functions": {"model": {"path": path, "process": "own"}}, "time_limit": 60},
        training={"steps": 1},
    )
    assert metrics(here.folder)[0]["reward"] == pytest.approx(metrics(own.folder)[0]["reward"], abs=1e-5)


@pytest.mark.parametrize(("how", "expected"), [("last", 0.5), ("min", 0.25), ("mean", 0.375), ("product", 0.125)])
def test_steps_become_one_number(tmp_path: Path, how: Any, expected: float) -> None:
    reward = ModelReward(path=reward_model(tmp_path, reads="steps"), steps=how).build()
    chances = torch.tensor([0.25, 0.5])
    assert reward._of_steps(torch.logit(chances), [2]) == pytest.approx([expected])


def test_a_process_reward_model_scores_the_ends_of_steps(tmp_path: Path) -> None:
    reward = ModelReward(path=reward_model(tmp_path, reads="steps", separator="+")).build()
    plus = tiny_policy().tokenizer("+")["input_ids"][0]
    assert reward._step_ends([3, 4, plus, 5, plus, 6], 1) == [2, 4, 5]
    found = reward._scores(["12"], ["3+4"], [{"ids": [3, 4, 5, plus, 6], "start": 2}], {}.__setitem__)
    assert 0 < found[0] < 1


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"normalize": True, "process": "own"}, "running statistics"),
        ({"window": 9, "process": "own"}, "measures no drift"),
        ({"steps": "mean"}, "scores whole answers"),
        ({"offload": True}, "no effect on the CPU"),
    ],
)
def test_a_setting_without_an_effect_is_refused(tmp_path: Path, changes: Any, problem: str) -> None:
    spec = {"model": {"path": reward_model(tmp_path), **changes}}
    with pytest.raises(InputError, match=problem):
        build_rewards(spec, time_limit=None)


def test_a_path_stands_for_the_reward_and_one_that_is_nowhere_is_named(tmp_path: Path) -> None:
    path = reward_model(tmp_path)
    with build_rewards(RewardConfig(functions=path, time_limit=None)) as rewards:
        assert rewards.names == ("model",)
    with pytest.raises(InputError, match="nowhere/rm"):
        build_rewards("nowhere/rm", time_limit=None)


def test_evaluation_scores_with_a_reward_model_and_refuses_statistics_of_training(tmp_path: Path) -> None:
    path = reward_model(tmp_path)
    found = reinlm.evaluate(pair(tiny_policy()), HELD_OUT, reward=path, max_new_tokens=4, quiet=True)
    assert "rewards/model" in found.metrics
    with pytest.raises(InputError, match="normalize has no effect"):
        reinlm.evaluate(pair(tiny_policy()), HELD_OUT, reward={"model": {"path": path, "normalize": True}}, quiet=True)


# ------------------------------------------------------------------------------------------------ how a model is read


def notes(folder: Path, reward: str, **changes: Any) -> list[str]:
    run = run_rl(folder, reward=reward, training={"steps": 1}, **changes)
    return [note for note in read_run(run.folder)["notes"] if "reward model" in note]


def test_a_run_says_where_its_reward_model_has_another_template_or_tokenizer(tmp_path: Path) -> None:
    path = reward_model(tmp_path)
    assert notes(tmp_path / "same", path) == []
    tokenizer = tiny_policy().tokenizer
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    tokenizer.save_pretrained(path)
    (note,) = notes(tmp_path / "template", path)
    assert "another chat template: it scores prompts and answers as the policy renders them" in note
    (note,) = notes(tmp_path / "gold", "exact_match", gold=path, evaluation={"data": HELD_OUT})
    assert "another chat template" in note
    character_tokenizer("9876543210+=").save_pretrained(path)
    (note,) = notes(tmp_path / "tokens", path)
    assert "has another tokenizer than the policy: it scores answers by their text" in note


def test_prompts_that_a_reward_model_cuts_are_said_and_counted_and_long_answers_refused(tmp_path: Path) -> None:
    path = reward_model(tmp_path)
    settings = Path(path) / "config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"max_position_embeddings": 7}))
    (note,) = notes(tmp_path / "said", path)
    assert "reads 7 tokens: with the longest answers 36 of 36 prompts lose their beginning" in note
    shares = [record.get("rewards/model/logged/cut", 0.0) for record in metrics(tmp_path / "said")]
    longer = [len(row["prompt"]) + row["length"] > 7 for row in logged_rewards(tmp_path / "said")]
    assert shares == [sum(longer) / len(longer)]
    with pytest.raises(InputError, match=r"reads 7 tokens, and an answer of rollout\.max_new_tokens 8 would not fit"):
        notes(tmp_path / "refused", path, rollout={"max_new_tokens": 8})
    reward = ModelReward(path=path).build()
    with pytest.raises(InputError, match="an answer of 8 tokens is longer than the context of the reward model, 7"):
        reward._within_context([3] * 10, 2)
    assert reward._within_context([3, 4, 5, 6, 7, 8, 9, 10], 2) == ([4, 5, 6, 7, 8, 9, 10], 1)


def test_a_language_model_as_a_reward_and_a_reward_model_as_a_policy_are_answered_with_what_to_do(
    tmp_path: Path,
) -> None:
    path = reward_model(tmp_path)
    with pytest.raises(InputError, match="has no reward head: it is a language model") as raised:
        run_rl(tmp_path / "run", reward=str(tmp_path / "base"))
    assert "reinlm reward --model" in str(raised.value.hint)
    problem = "is a reward model (a sequence classifier), which writes no text, and a language model belongs here"
    with pytest.raises(InputError, match=re.escape(problem)):
        run_rl(tmp_path / "run", model=path)
    with pytest.raises(InputError, match="is a reward model"):
        run_sft(tmp_path / "run", model=path)
    with pytest.raises(InputError, match="is a reward model"):
        reinlm.generate(path, prompt="1+2=", quiet=True)
    with pytest.raises(InputError, match="is a reward model"):
        run_rl(tmp_path / "run", reference={"path": path})
