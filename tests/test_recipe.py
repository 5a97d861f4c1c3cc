"""One tree of settings from recipe, flags and overrides: what stands for what, what replaces what, what a file cannot hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reinlm.config import redact
from reinlm.errors import InputError
from reinlm.recipe import Settings, over, override, read, refuse_placeholders, refuse_two_lengths
from reinlm.sources import annotate
from reinlm.training.sections import SFTTraining


@pytest.mark.parametrize(
    ("tree", "words", "expected"),
    [
        ({"algorithm": "dapo"}, ["algorithm.kl.coefficient=0.1"], {"algorithm": {"base": "dapo", "kl": {"coefficient": 0.1}}}),
        ({}, ["algorithm.kl.coefficient=0.1"], {"algorithm": {"kl": {"coefficient": 0.1}}}),
        ({"algorithm": {"base": "dapo", "kl": None}}, ["algorithm=gspo"], {"algorithm": "gspo"}),
        ({"reward": "math"}, ["reward.time_limit=5"], {"reward": {"functions": "math", "time_limit": 5}}),
        ({"reward": {"functions": "math", "time_limit": 5}}, ["reward=format"],
         {"reward": {"functions": "format", "time_limit": 5}}),
        (
            {"reward": {"functions": {"name": "regex", "pattern": "#"}}},
            ["reward={name: exact_match}"],
            {"reward": {"functions": {"name": "exact_match"}}},
        ),
        ({"reward": {"name": "regex", "pattern": "#"}}, ["reward.workers=3"],
         {"reward": {"functions": {"name": "regex", "pattern": "#"}, "workers": 3}}),
        ({"model": "a"}, ["model.lora.rank=4"], {"model": {"path": "a", "lora": {"rank": 4}}}),
        ({}, ["text=t.jsonl", "teacher=t", "reference=r", "data=[a.jsonl, b.jsonl]"],
         {"text": {"data": "t.jsonl"}, "teacher": {"path": "t"}, "reference": {"path": "r"},
          "data": {"path": ["a.jsonl", "b.jsonl"]}}),
        ({}, ["text=t.jsonl", "text.data.limit=5"], {"text": {"data": {"path": "t.jsonl", "limit": 5}}}),
        ({"text": {"data": {"path": "t.jsonl", "limit": 5}}}, ["text=u.jsonl"],
         {"text": {"data": {"path": "u.jsonl", "limit": 5}}}),
        ({"evaluation": {"data": {"old": "o.jsonl"}}}, ["evaluation.data.new=[n.jsonl, m.jsonl]", "evaluation.data.new.limit=5"],
         {"evaluation": {"data": {"old": {"path": "o.jsonl"}, "new": {"path": ["n.jsonl", "m.jsonl"], "limit": 5}}}}),
        ({"evaluation": {"data": {"new": {"limit": 5}}}}, ["evaluation.data.new=n.jsonl"],
         {"evaluation": {"data": {"new": {"path": "n.jsonl", "limit": 5}}}}),
        ({"evaluation": {"data": {"path": "n.jsonl"}}}, ["evaluation.data.split=test"],
         {"evaluation": {"data": {"path": "n.jsonl", "split": "test"}}}),
        ({"environment": {"guess": {"tries": 2}}}, ["environment={other: {}}"], {"environment": {"other": {}}}),
        ({"environment": {"guess": {"tries": 2, "x": 1}}}, ["environment.guess.tries=3"],
         {"environment": {"guess": {"tries": 3, "x": 1}}}),
        ({"algorithm": {"base": "grpo", "gate": {"clip": {"low": 0.1}}}}, ["algorithm.gate.soft.positive=1.5"],
         {"algorithm": {"base": "grpo", "gate": {"soft": {"positive": 1.5}}}}),
    ],
)  # fmt: skip
def test_what_comes_later_is_laid_over_what_it_changes(tree: Any, words: list[str], expected: Any) -> None:
    assert override(read(tree), words) == expected


def test_the_later_of_two_trees_wins_and_neither_is_changed() -> None:
    first, second = {"data": "a.jsonl", "seed": 1}, {"data": {"limit": 5}, "seed": 2}
    assert over(first, second) == {"data": {"path": "a.jsonl", "limit": 5}, "seed": 2}
    assert (first, second) == ({"data": "a.jsonl", "seed": 1}, {"data": {"limit": 5}, "seed": 2})


@pytest.mark.parametrize(("recipe", "told"), [([1], r"recipe: \[1\]"), (5, "recipe: 5"), ("no.yaml", "no such recipe")])
def test_what_is_no_recipe_is_named(recipe: Any, told: str) -> None:
    with pytest.raises(InputError, match=told):
        read(recipe)


def test_what_a_run_writes_down_cannot_be_set() -> None:
    with pytest.raises(InputError, match="'resolved' cannot be set"):
        override({}, ["resolved.renderer=x"])


@pytest.mark.parametrize(
    "key", ["hub_token", "token", "api_key", "apikey", "API-KEY", "password", "client_secret", "access_key"]
)
def test_a_secret_is_hidden_and_a_hidden_one_is_asked_for_again(key: str) -> None:
    hidden = redact({"environment": {"judge": {key: "s3cret", "nothing": None}}})
    assert hidden == {"environment": {"judge": {key: "***", "nothing": None}}}
    with pytest.raises(InputError, match=rf"environment\.judge\.{key} is '\*\*\*'") as caught:
        refuse_placeholders(hidden)
    assert f"environment.judge.{key}=VALUE" in str(caught.value.hint)
    refuse_placeholders(over(hidden, {"environment": {"judge": {key: "again"}}}))


@pytest.mark.parametrize(
    "key", ["eos_token", "pad_token", "bos_token", "image_token", "decoder_start_token", "eos_token_id", "per_token"]
)
def test_what_a_tokenizer_calls_a_token_is_no_secret(key: str) -> None:
    tree = {"chat_template_kwargs": {key: "</s>"}, "stop_strings": ["***"]}
    assert redact(tree) == tree
    refuse_placeholders(tree)


def test_a_hidden_tokenizer_word_of_an_earlier_file_is_refused_and_rows_are_left_alone() -> None:
    with pytest.raises(InputError, match=r"data\.chat_template_kwargs\.eos_token is '\*\*\*'"):
        refuse_placeholders({"data": {"chat_template_kwargs": {"eos_token": "***"}}})
    rows = {"data": {"path": [{"prompt": "1+1=", "token": "x"}]}}
    assert redact(rows) == rows
    refuse_placeholders({"data": {"path": [{"prompt": "1+1=", "token": "***"}]}})


@pytest.mark.parametrize(
    ("tree", "key"),
    [
        ({"reward": {"functions": "<mine.score given in Python>"}}, "reward.functions"),
        ({"reward": {"functions": ["math", {"name": "<mine.<lambda> given in Python>"}]}}, "reward.functions.name"),
        ({"data": {"path": "<90 rows given in Python, sha256 0123>"}}, "data.path"),
        ({"environment": "<mine.Game given in Python>"}, "environment"),
        ({"model": {"path": "<Qwen3ForCausalLM>"}}, "model.path"),
    ],
)
def test_what_was_given_in_python_is_asked_for_again(tree: Any, key: str) -> None:
    with pytest.raises(InputError, match=f"{key} was given in Python") as caught:
        refuse_placeholders(tree)
    assert "give it again" in str(caught.value.hint)


@pytest.mark.parametrize(
    "tree",
    [
        override({"training": {"steps": 5}}, ["training.epochs=1"]),
        over(Settings(), {"training": {"steps": 5, "epochs": 1.0}}),
        over(Settings(), {"training": SFTTraining(steps=5, epochs=1.0)}),
    ],
)
def test_steps_and_epochs_are_refused_together_also_where_one_equals_its_default(tree: Settings) -> None:
    with pytest.raises(InputError, match=r"training.steps 5 and training.epochs 1(\.0)? both say how long the run is"):
        refuse_two_lengths(tree)


def test_the_epochs_that_a_run_writes_down_without_being_given_them_do_not_count(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    text = annotate("training:\n  steps: 5\n  epochs: 1.0\n", {("training", "steps"): "--steps"})
    file.write_text(f"# reinlm 1\n{text}")
    refuse_two_lengths(read(str(file)))
    refuse_two_lengths(override(read(str(file)), ["training.steps=null", "training.epochs=2"]))
    with pytest.raises(InputError, match="both say"):
        refuse_two_lengths(override(read(str(file)), ["training.epochs=1"]))
