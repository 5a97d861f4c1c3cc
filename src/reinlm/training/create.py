"""The verb `create-model`: a small model with random weights, and a tokenizer trained on the data it will learn from."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from reinlm.config import Config
from reinlm.data import DataConfig, load_examples
from reinlm.data.columns import content_column
from reinlm.data.loading import Found, find_rows, refuse_order
from reinlm.data.tasks import PromptShaper
from reinlm.errors import InputError
from reinlm.models import Policy, character_tokenizer, load_policy, save_policy, tiny_model, train_tokenizer
from reinlm.models.modules import count_parameters
from reinlm.models.tiny import Family
from reinlm.training.config import as_section


class TokenizerConfig(Config):
    """The tokenizer. A bare kind in its place means `kind`."""

    kind: Literal["bpe", "characters"] = "bpe"
    """bpe: byte-level byte-pair encoding, which can encode every text; characters: those of the data and no others."""
    vocab_size: int = Field(1024, ge=258)
    """Tokens of the vocabulary at most, for bpe."""
    split_digits: bool = False
    """Every digit is a token, for bpe: numbers are spelled alike wherever they stand."""

    @model_validator(mode="after")
    def _of_bpe(self) -> Self:
        for name in ("vocab_size", "split_digits"):
            if self.kind == "characters" and self.changed(name):
                raise ValueError(f"{name} {getattr(self, name)} has no effect on a tokenizer of characters")
        return self


class CreateConfig(Config):
    """`reinlm create-model`: a model from scratch.

    Example:
        CreateConfig(data="train.jsonl", output="models/small", tokenizer="characters", layers=4)
    """

    data: DataConfig
    """The rows that `sft` will imitate (prompt and completion, messages, or text): the tokenizer is trained on them."""
    output: str
    """The model's folder."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    family: Family = "qwen3"
    """The architecture."""
    hidden_size: int = Field(128, ge=8)
    """Width of the model."""
    layers: int = Field(4, ge=1)
    """Transformer layers."""
    heads: int = Field(4, ge=1)
    """Attention heads; they divide hidden_size."""
    intermediate_size: int | None = Field(None, ge=1)
    """Width of the feed-forward layers; null: 4 · hidden_size."""
    context: int = Field(256, ge=2)
    """The maximum number of tokens, prompt included."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Of the weights."""

    @field_validator("data", mode="before")
    @classmethod
    def _data_path(cls, value: Any) -> Any:
        return as_section("path", value)

    @field_validator("tokenizer", mode="before")
    @classmethod
    def _tokenizer_kind(cls, value: Any) -> Any:
        return as_section("kind", value)

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        head, rest = divmod(self.hidden_size, self.heads)
        if rest or head % 2:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not an even multiple of heads {self.heads}: "
                f"take {2 * self.heads * max(1, head // 2)}"
            )
        return self

    @model_validator(mode="after")
    def _data_of_text(self) -> Self:
        if self.data.chat_options or self.data.chat == "always":
            named = next(iter(self.data.chat_options), "chat=always")
            raise ValueError(f"data.{named} has no effect: a model from scratch has no chat template; leave it out")
        if self.data.changed("on_long_prompt"):
            raise ValueError(
                "data.on_long_prompt has no effect: create-model reads every row, and counts those that do not fit"
            )
        return self


@dataclass(frozen=True)
class CreatedModel:
    """What `create-model` made.

    Example:
        CreatedModel(folder=Path("models/small"), policy=policy, parameters=1_100_000, rows=9171, longest=97, fitting=9171)
    """

    folder: Path
    policy: Policy
    parameters: int
    rows: int
    """Rows of the data."""
    longest: int
    """Tokens of the longest one, as `sft` reads it."""
    fitting: int
    """Rows that the context holds."""


def run_create(config: CreateConfig, *, overwrite: bool = False) -> CreatedModel:
    """Train the tokenizer, draw the weights, and write both to `config.output`.

    Raises:
        InputError: data that cannot be read, or a folder that exists, without `overwrite` or where it holds no model.
    """
    folder = Path(config.output)
    _check_output(folder, overwrite)
    refuse_order(config.data, "data")
    found = find_rows(config.data, "example")
    texts = list(_texts(found, PromptShaper(config.data)))
    settings = config.tokenizer
    if settings.kind == "characters":
        tokenizer = character_tokenizer("".join(sorted(set().union(*texts))))
    else:
        tokenizer = train_tokenizer(texts, settings.vocab_size, split_digits=settings.split_digits)
    model = tiny_model(
        config.family,
        vocab_size=len(tokenizer),
        hidden_size=config.hidden_size,
        layers=config.layers,
        heads=config.heads,
        intermediate_size=config.intermediate_size,
        context=config.context,
        seed=config.seed,
    )
    policy = load_policy((model, tokenizer))
    lengths = load_examples(config.data, tokenizer, found=found).lengths
    if folder.exists():
        shutil.rmtree(folder)
    save_policy(policy, folder)
    fitting = int((lengths <= config.context).sum())
    return CreatedModel(folder, policy, count_parameters(model).total, len(lengths), int(lengths.max()), fitting)


def _check_output(folder: Path, overwrite: bool) -> None:
    if not folder.exists():
        return
    if not overwrite:
        raise InputError(f"{folder} exists already", hint="give another output, or --overwrite (overwrite=True)")
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} holds no model, so it is not replaced", hint="give another output")


def _texts(found: Found, shaper: PromptShaper) -> Iterator[str]:
    """The text of each row, as `sft` reads it: prompt and completion one after the other."""
    for row in found.rows:
        parts = {name: content_column(row, name) for name in found.names}
        if not all(isinstance(part, str) for part in parts.values()):
            raise InputError(
                f"{row.where} is a chat, and a model from scratch has no chat template",
                hint="give prompt and completion, or text",
            )
        if "prompt" in parts:
            parts["prompt"] = shaper.shape(row, parts["prompt"])
        yield "".join(map(str, parts.values()))
