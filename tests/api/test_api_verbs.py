"""The verbs from Python: whatever a user may give as model, data, reward and algorithm."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import reinlm
from reinlm.algorithms import algorithm, resolve
from reinlm.config import read_recipe
from reinlm.models import character_tokenizer, tiny_model
from reinlm.objectives import Clip, token_mean
from reinlm.runs import read_metrics, without_clocks

pytestmark = pytest.mark.no_cover

ROWS = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(4) for b in range(4)]
EXAMPLES = [{"prompt": row["prompt"], "completion": row["answer"]} for row in ROWS]
SMALL: dict[str, Any] = {
    "rollout": {"group_size": 4, "batch_size": 8, "max_new_tokens": 3},
    "training": {"steps": 2},
    "optimizer": {"learning_rate": 1e-2},
    "run": {"tensorboard": False},
    "quiet": True,
}


def tiny(seed: int = 0) -> tuple[Any, Any]:
    tokenizer = character_tokenizer("0123456789+=")
    shape: dict[str, Any] = {"hidden_size": 32, "layers": 1, "heads": 2, "context": 24}
    return tiny_model("qwen3", vocab_size=len(tokenizer), seed=seed, **shape), tokenizer


def metrics(result: Any) -> list[dict[str, Any]]:
    return [without_clocks(record) for record in read_metrics(result.folder / "metrics.jsonl")]


def test_rl_takes_a_loaded_model_rows_a_closure_and_an_algorithm(tmp_path: Path) -> None:
    asked: list[str] = []

    def odd(prompts: list[str], completions: list[str], answer: list[str], **_: Any) -> list[float]:
        assert [row["answer"] for prompt in prompts for row in ROWS if row["prompt"] == prompt] == answer
        asked.extend(prompts)
        return [float(text[-1:] in tuple("13579")) for text in completions]

    model, tokenizer = tiny()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    chosen = algorithm("grpo", kl=None, gate=Clip(0.1, 0.3), aggregation=token_mean, name="mine")
    result = reinlm.rl((model, tokenizer), ROWS, reward=odd, algorithm=chosen, output=tmp_path / "run", **SMALL)
    assert result.policy.model is model
    assert any(not torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert len(asked) == 16
    config = read_recipe(tmp_path / "run" / "config.yaml")
    assert resolve(config["algorithm"]) == chosen
    assert (tmp_path / "run" / "report.html").is_file()


def test_a_model_that_knows_where_it_came_from_needs_no_tokenizer(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model, tokenizer = tiny()
    reinlm.save_policy(reinlm.load_policy((model, tokenizer)), tmp_path / "model")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    by_object = reinlm.rl(loaded, ROWS, reward="exact_match", output=tmp_path / "object", **SMALL)
    by_path = reinlm.rl(tmp_path / "model", ROWS, reward="exact_match", output=tmp_path / "path", **SMALL)
    assert metrics(by_object) == metrics(by_path)


def test_several_rewards_add_with_their_weights(tmp_path: Path) -> None:
    def count(completions: list[str], **_: Any) -> list[float]:
        return [float(len(text)) for text in completions]

    rewards = [count, {"name": "exact_match", "weight": 4.0}, {"name": count, "weight": -0.5, "label": "shorter"}]
    result = reinlm.rl(tiny(), ROWS, reward=rewards, output=tmp_path / "run", **SMALL)
    for record in metrics(result):
        parts = record["rewards/count/mean"], record["rewards/exact_match/mean"], record["rewards/shorter/mean"]
        assert parts[0] == parts[2]
        assert record["reward"] == pytest.approx(parts[0] + 4.0 * parts[1] - 0.5 * parts[2])
    rows = [json.loads(line) for line in (result.folder / "rollouts" / "step_1.jsonl").read_text().splitlines()]
    assert rows[0]["rewards"]["count"] == len(rows[0]["completion"])


def test_an_async_reward_gives_what_the_plain_one_gives(tmp_path: Path) -> None:
    def plain(completions: list[str], **_: Any) -> list[float]:
        return [text.count("7") / 3 for text in completions]

    async def later(completions: list[str], **_: Any) -> list[float]:
        await asyncio.sleep(0.001)
        return plain(completions)

    found = [
        reinlm.rl(tiny(), ROWS, reward={"name": f, "label": "sevens"}, output=tmp_path / f.__name__, **SMALL)
        for f in (plain, later)
    ]
    assert metrics(found[0]) == metrics(found[1])


TRL_REWARD = '''
def reward_len(completions, **kwargs):
    """Straight from TRL's documentation, with a target that fits."""
    return [-abs(2 - len(completion)) for completion in completions]


def accuracy(prompts, completions, completion_ids, trainer_state, answer):
    assert len(prompts) == len(completions) == len(completion_ids) == len(answer)
    return [1.0 if c.strip() == a else 0.0 for c, a in zip(completions, answer)] if trainer_state.max_steps else None
'''


def test_reward_functions_written_for_trl_work_from_their_file(tmp_path: Path) -> None:
    (tmp_path / "my_rewards.py").write_text(TRL_REWARD)
    rewards = [f"{tmp_path / 'my_rewards.py'}:reward_len", f"{tmp_path / 'my_rewards.py'}:accuracy", "exact_match"]
    result = reinlm.rl(tiny(), ROWS, reward=rewards, output=tmp_path / "run", **SMALL)
    rows = [json.loads(line) for line in (result.folder / "rollouts" / "step_1.jsonl").read_text().splitlines()]
    assert [row["rewards"]["reward_len"] for row in rows] == [-abs(2 - len(row["completion"])) for row in rows]
    assert [row["rewards"]["accuracy"] for row in rows] == [row["rewards"]["exact_match"] for row in rows]


def test_sft_then_rl_then_evaluate_then_generate(tmp_path: Path) -> None:
    common: dict[str, Any] = {"quiet": True, "run": {"tensorboard": False}, "optimizer": {"learning_rate": 1e-2}}
    tuned = reinlm.sft(tiny(), EXAMPLES, output=tmp_path / "sft", training={"steps": 150, "batch_size": 16}, **common)
    last = tuned.folder / "checkpoints" / "last"
    greedy = {"temperature": 0, "max_new_tokens": 3}
    learned = reinlm.evaluate(str(last), ROWS, reward="exact_match", evaluation=greedy)
    assert learned.metrics["accuracy"] >= 0.9
    answers = reinlm.generate(str(last), [row["prompt"] for row in ROWS], sampling=greedy)
    right = [answer.completions[0] == row["answer"] for answer, row in zip(answers, ROWS, strict=True)]
    assert sum(right) / len(right) == learned.metrics["accuracy"]
    assert {answer.ends for answer in answers} == {("stop",)}
    improved = reinlm.rl(str(last), ROWS, reward="exact_match", algorithm="gspo", output=tmp_path / "rl", **SMALL)
    assert improved.summary["steps"] == 2


def test_generate_takes_one_text_several_samples_and_a_seed() -> None:
    model = tiny()
    first, again, other = (
        reinlm.generate(model, "1+1=", samples=5, seed=seed, sampling={"max_new_tokens": 6}) for seed in (0, 0, 1)
    )
    assert [answer.prompt for answer in first] == ["1+1="]
    assert len(set(first[0].completions)) > 1
    assert first == again
    assert first != other


def test_evaluate_writes_every_answer(tmp_path: Path) -> None:
    settings = {"samples": 2, "max_new_tokens": 3}
    output = tmp_path / "answers.jsonl"
    found = reinlm.evaluate(tiny(), ROWS, reward="exact_match", evaluation=settings, output=output)
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["prompt"] for row in rows] == [row["prompt"] for row in ROWS for _ in range(2)]
    assert sum(row["reward"] for row in rows) / len(rows) == found.metrics["accuracy"]
    with pytest.raises(reinlm.InputError, match="no such folder"):
        reinlm.evaluate(tiny(), ROWS, reward="exact_match", output=tmp_path / "nowhere" / "answers.jsonl")


def test_a_checkpoint_is_evaluated_with_answers_as_long_as_in_its_run(tmp_path: Path, capsys: Any) -> None:
    model = reinlm.rl(tiny(), ROWS, reward="exact_match", output=tmp_path / "run", **SMALL).folder
    capsys.readouterr()

    def longest(model: Any, **changes: Any) -> int:
        found = reinlm.evaluate(str(model), ROWS, reward="exact_match", **changes)
        return max(rollout.length for group in found.groups for rollout in group.group.rollouts)

    assert longest(model) == 3
    assert "answers of up to 3 tokens, as in the run of the model" in " ".join(capsys.readouterr().err.split())
    assert longest(model, max_new_tokens=5) == 5
    copied = tmp_path / "copied"
    shutil.copytree(model / "checkpoints" / "last", copied)
    assert longest(copied) > 5
    settings = {**SMALL, "evaluation": {"every": 2, "data": ROWS[:2], "max_new_tokens": 2}}
    own = reinlm.rl(tiny(), ROWS, reward="exact_match", output=tmp_path / "own", **settings)
    assert longest(own.folder) == 2


@pytest.mark.parametrize("key", ["every", "stop_at", "patience"])
def test_evaluate_refuses_what_only_a_run_can_do(key: str) -> None:
    with pytest.raises(reinlm.InputError, match=f"evaluation: {key} belongs to training"):
        reinlm.evaluate(tiny(), ROWS, reward="exact_match", evaluation={key: 1})


# ------------------------------------------------------------------------------------------------ resume


def interrupted_after(step: int) -> Any:
    def even(completions: list[str], trainer_state: Any, **_: Any) -> list[float]:
        if trainer_state.global_step >= step:
            raise RuntimeError("the power went")
        return [float(any(c in "02468" for c in text)) for text in completions]

    return even


@pytest.mark.parametrize("as_mapping", [False, True])
def test_a_run_is_resumed_from_python(as_mapping: bool, tmp_path: Path) -> None:
    def reward(step: int) -> Any:
        function = interrupted_after(step)
        return {"name": function, "label": "even"} if as_mapping else function

    settings = SMALL | {"training": {"steps": 5}, "run": {"save_every": 2, "tensorboard": False}}
    with pytest.raises(reinlm.RunError, match="the power went"):
        reinlm.rl(tiny(), ROWS, reward=reward(3), output=tmp_path / "run", **settings)
    assert (tmp_path / "run" / "report.html").is_file()
    resumed = reinlm.rl(tiny(), ROWS, reward=reward(9), output=tmp_path / "run", resume=True, **settings)
    whole = reinlm.rl(tiny(), ROWS, reward=reward(9), output=tmp_path / "whole", **settings)
    assert metrics(resumed) == metrics(whole)
    assert all(
        torch.equal(a, b)
        for a, b in zip(resumed.policy.model.parameters(), whole.policy.model.parameters(), strict=True)
    )


def test_a_resumed_run_takes_its_settings_from_its_folder_and_names_what_was_changed(tmp_path: Path) -> None:
    model, tokenizer = tiny()
    reinlm.save_policy(reinlm.load_policy((model, tokenizer)), tmp_path / "model")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    regex = {"name": "regex", "pattern": "[02468]"}
    settings = SMALL | {"run": {"save_every": 1, "tensorboard": False}}
    first = reinlm.rl(tmp_path / "model", tmp_path / "rows.jsonl", reward=regex, output=tmp_path / "run", **settings)
    again = reinlm.rl(output=tmp_path / "run", resume=True, quiet=True)
    assert again.summary == first.summary
    same = reinlm.rl(reward=regex, output=tmp_path / "run", resume=True, quiet=True)
    assert same.summary == first.summary
    with pytest.raises(reinlm.InputError, match=r"rollout\.group_size: 4 -> 2"):
        reinlm.rl(output=tmp_path / "run", resume=True, quiet=True, rollout={"group_size": 2})
    with pytest.raises(reinlm.InputError, match="resume needs the run's folder"):
        reinlm.rl(tmp_path / "model", tmp_path / "rows.jsonl", reward=regex, resume=True, quiet=True)


# ------------------------------------------------------------------------------------------------ what cannot be used


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward": "exactmatch"}, "unknown reward 'exactmatch'"),
        ({"algorithm": "gpro"}, "unknown algorithm 'gpro'"),
        ({"rollout": {"group_size": 3, "batch_size": 8}}, "batch_size 8 is not a multiple of group_size 3"),
        ({"rollout": {"groupsize": 3}}, "unknown key 'rollout.groupsize'"),
        ({"training": {"minibatches": 3}}, "minibatches 3 does not divide the 2 groups"),
        ({"rollout": {"group_size": 1, "batch_size": 8, "max_new_tokens": 3}}, "compares the answers within a group"),
        ({"rollout": {"temperature": 0}}, "temperature 0 cannot be trained on"),
        ({"rollout": {"max_new_tokens": 24}}, "leaves no room for a prompt"),
        ({"rollout": {"group_size": 4, "batch_size": 128, "max_new_tokens": 3}}, "a batch of 32 groups needs as many"),
    ],
)
def test_what_cannot_be_used_is_named_and_leaves_no_folder(changes: Any, message: str, tmp_path: Path) -> None:
    settings = SMALL | {"reward": "exact_match"} | changes
    with pytest.raises(ValueError, match=message):
        reinlm.rl(tiny(), ROWS, output=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_importing_the_package_and_its_command_line_imports_nothing_heavy() -> None:
    import subprocess

    heavy = "{'torch', 'transformers', 'plotly', 'pandas'}"
    code = f"import sys, reinlm, reinlm.cli; dir(reinlm); print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
