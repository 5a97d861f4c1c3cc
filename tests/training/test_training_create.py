"""`create-model`: a model from scratch whose tokenizer knows the data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import reinlm
from reinlm.errors import InputError

ROWS: list[dict[str, Any]] = [
    {"prompt": "Ann has 12 pens. ", "completion": "12+30=42"},
    {"prompt": "Bob has 7 pens. ", "completion": "7+7=14"},
] * 20
SMALL: dict[str, Any] = {"hidden_size": 16, "layers": 1, "heads": 2, "context": 24}


def create(folder: Path, **changes: Any) -> Any:
    return reinlm.create_model(changes.pop("data", ROWS), output=folder, **{**SMALL, **changes})


def test_a_created_model_is_what_sft_and_generate_take(tmp_path: Path) -> None:
    made = create(tmp_path / "model", tokenizer={"vocab_size": 300})
    assert (made.rows, made.parameters) == (40, sum(p.numel() for p in made.policy.model.parameters()))
    run = reinlm.sft(
        str(made.folder),
        ROWS,
        output=tmp_path / "run",
        quiet=True,
        max_tokens=made.longest,
        optimizer={"learning_rate": 1e-2},
        training={"steps": 30, "batch_size": 8},
    )
    first, *_, last = (json.loads(line)["loss"] for line in (run.folder / "metrics.jsonl").read_text().splitlines())
    assert last < first / 2
    (answer,) = reinlm.generate(str(made.folder), ["Ann has"], sampling={"max_new_tokens": 3})
    assert len(answer.completions) == 1


def test_the_shape_and_the_seed_are_those_asked_for(tmp_path: Path) -> None:
    made, again, other = (create(tmp_path / str(n), seed=s, family="llama") for n, s in enumerate((1, 1, 2)))
    config = made.policy.model.config
    assert (config.model_type, config.hidden_size, config.num_hidden_layers) == ("llama", 16, 1)
    assert (config.num_attention_heads, config.intermediate_size, made.policy.context_length) == (2, 64, 24)
    weights = [next(model.policy.model.parameters()).tolist() for model in (made, again, other)]
    assert weights[0] == weights[1] != weights[2]


def test_the_tokenizer_knows_what_the_prompt_template_adds(tmp_path: Path) -> None:
    made = create(tmp_path / "model", tokenizer="characters", data={"path": ROWS, "prompt_template": "#{prompt}"})
    assert "#" in made.policy.tokenizer.get_vocab()
    assert made.longest == len("#Ann has 12 pens. 12+30=42") + 1


def test_rows_are_counted_against_the_context(tmp_path: Path) -> None:
    made = create(tmp_path / "model", tokenizer="characters", context=25)
    assert (made.longest, made.fitting) == (len("Ann has 12 pens. 12+30=42") + 1, 20)


@pytest.mark.parametrize(("split", "expected"), [(False, 1), (True, 2)])
def test_digits_are_tokens_of_their_own_on_request(tmp_path: Path, split: bool, expected: int) -> None:
    rows = [{"text": "12"}] * 50
    tokenizer = {"vocab_size": 300, "split_digits": split}
    made = reinlm.create_model(rows, output=tmp_path / "model", tokenizer=tokenizer, **SMALL)
    assert len(made.policy.tokenizer("12")["input_ids"]) == expected
    assert made.policy.tokenizer.decode(made.policy.tokenizer("a 12.")["input_ids"]) == "a 12."


def test_characters_are_those_of_the_data(tmp_path: Path) -> None:
    made = create(tmp_path / "model", tokenizer="characters")
    assert len(made.policy.tokenizer) == 2 + len(set("".join(row["prompt"] + row["completion"] for row in ROWS)))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokenizer": {"kind": "characters", "vocab_size": 300}}, "vocab_size 300 has no effect"),
        ({"tokenizer": {"kind": "characters", "split_digits": True}}, "split_digits True has no effect"),
        ({"tokenizer": "bytes"}, "tokenizer"),
        ({"heads": 3}, "hidden_size 16 is not an even multiple of heads 3"),
        ({"heads": 16}, "hidden_size 16 is not an even multiple of heads 16"),
        ({"family": "qwen"}, "family"),
        ({"data": {"path": ROWS, "system_prompt": "Be kind."}}, "chat template"),
        ({"data": {"path": [{"text": "a"}], "prompt_template": "{text}"}}, "prompt_template is set"),
        ({"data": {"path": [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}]}}, "chat"),
        ({"data": {"path": ROWS, "on_long_prompt": "skip"}}, "on_long_prompt has no effect"),
        ({"data": {"path": [{"question": "a"}]}}, "column"),
        ({"size": 3}, "size"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)  # fmt: skip
def test_what_cannot_be_made_is_one_line_and_no_folder(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    settings = {"data": ROWS, **SMALL, **changes}
    with pytest.raises(InputError, match=said) as caught:
        reinlm.create_model(settings.pop("data"), output=tmp_path / "model", **settings)
    assert "\n" not in caught.value.message
    assert not (tmp_path / "model").exists()


def test_a_model_is_replaced_on_request_and_other_folders_never(tmp_path: Path) -> None:
    create(tmp_path / "model")
    with pytest.raises(InputError, match="exists already"):
        create(tmp_path / "model")
    assert create(tmp_path / "model", layers=2, overwrite=True).policy.model.config.num_hidden_layers == 2
    (tmp_path / "letters").mkdir()
    with pytest.raises(InputError, match="holds no model"):
        create(tmp_path / "letters", overwrite=True)
