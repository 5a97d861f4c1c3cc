"""Which data, and how rows become prompts or examples."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator

from reinlm.config import Config
from reinlm.data.frames import is_list_of_sources, is_rows, rows_of
from reinlm.data.rows import listed
from reinlm.errors import InputError

Chat = Literal["auto", "always", "messages", "never"]
"""Which prompts are chats; see `DataConfig.chat`."""
_OWN_TEMPLATE_ARGUMENTS = {
    "tokenize",
    "add_generation_prompt",
    "continue_final_message",
    "return_dict",
    "return_tensors",
}


class DataConfig(Config):
    """Data and how to read them. A bare path or list of rows in its place means `path`.

    Example:
        DataConfig(path="train.jsonl", columns={"prompt": "problem", "completion": "solution"}, on_bad_row="skip")
    """

    path: str | list[Any]
    """A file (.jsonl, .json, .csv, each also .gz; .parquet), a data set folder, a Hugging Face data set's name, or a list
    of these. From Python also a list of rows (dicts), a Dataset or DatasetDict, a frame of pandas or polars, or a list of
    several."""
    split: str | None = None
    """Which split of a data set folder or name: `train` by default, or the only one. An error with plain files."""
    subset: str | None = None
    """The configuration of a Hugging Face data set that has several (`main` of openai/gsm8k). An error with files."""
    columns: dict[str, str] | None = None
    """Your columns under the names used here: `{prompt: problem, completion: solution}`. A value may also be a template
    over columns: `"{instruction}\\n{input}"`."""
    system_prompt: str | None = Field(default=None, min_length=1)
    """Put before chats that have no system message of their own. An error with plain text prompts."""
    prompt_template: str | None = None
    """A template around the prompt; it may name any column: `"Question: {prompt}\\nAnswer:"`. For text prompts."""
    chat: Chat = "auto"
    """auto: a text prompt becomes a user message if the tokenizer has a chat template, or is rendered as the checkpoint's
    training rendered it; always: it becomes a user message; messages: text is plain, only messages are chats; never: text
    is plain, messages are errors."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Passed to the chat template (`{enable_thinking: false}`). An error where no chat is rendered."""
    renderer: str = Field(default="template", pattern=r"^(template|renderers(:.+)?)$")
    """How chats are rendered as tokens. template: the tokenizer's chat template. renderers: the optional package of that name,
    by the tokenizer's name, or for the family of models behind a colon (`renderers:qwen3`). An error where no chat is
    rendered."""
    on_bad_row: Literal["stop", "skip"] = "stop"
    """A bad row stops the run, or is skipped and counted by reason."""
    on_long_prompt: Literal["stop", "skip"] = "stop"
    """A prompt or example over the limit of tokens stops the run, or is skipped and counted. Nothing is ever cut."""
    limit: int | None = Field(default=None, ge=1)
    """Read only the first rows, this many (wrong ones count too)."""
    weights: list[float] | None = None
    """The share of each source of a list in the training batches: `path: [easy.jsonl, hard.jsonl]`, `weights: [1, 3]`. An
    epoch is then as many rows as there are in all. Null: every row once in an epoch."""
    shuffle: bool = True
    """Whether each epoch of training has an order of its own, drawn from `seed`; false: the order of the rows."""
    sort_by: str | None = None
    """A curriculum: each epoch of training in ascending order of this column; equal values in the order that `shuffle` says."""

    _settled: bool = PrivateAttr(default=False)
    """Whether `auto` decided `chat`; see `settled_as`."""

    def settled_as(self, **changes: Any) -> DataConfig:
        """A copy in which `auto` has become something else: reward functions still receive text for prompts that are text."""
        copy = self.model_copy(update=changes)
        copy._settled = True
        return copy

    @property
    def settled(self) -> bool:
        """Whether `auto` decided what `chat` is."""
        return self._settled

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, value: Any) -> Any:
        if isinstance(value, DataConfig):
            return value
        section = {"path": value} if is_rows(value) else dict(value)
        if "path" not in section and {"prompt", "messages", "text", "question"} & section.keys():
            hint = "give rows, [{'prompt': …}, …], a data set, or datasets.Dataset.from_dict(columns)"
            raise InputError(f"a mapping of columns ({listed(section)}) is no data", hint=hint)
        if "path" in section:
            limit = section.get("limit")
            limit = limit if isinstance(limit, int) and not isinstance(limit, bool) else None
            section["path"], split = rows_of(section["path"], section.get("split"), limit)
            if split != section.get("split"):
                section["split"] = split
        return section

    @model_validator(mode="after")
    def _weights_have_sources(self) -> DataConfig:
        if self.weights is None:
            return self
        count = len(self.path) if isinstance(self.path, list) and is_list_of_sources(self.path) else 1
        if count < 2 or count != len(self.weights):
            raise ValueError(
                f"weights has {len(self.weights)} numbers for {count} sources: give one for each of a list"
            )
        if not all(weight > 0 for weight in self.weights):
            raise ValueError(f"weights {self.weights} must all be above 0: leave a source out instead")
        return self

    @field_validator("path")
    @classmethod
    def _no_empty_path(cls, value: str | list[Any]) -> str | list[Any]:
        if isinstance(value, str) and not value.strip():
            raise ValueError("must name a file or a data set")
        return value

    @field_validator("chat_template_kwargs")
    @classmethod
    def _free_arguments(cls, value: dict[str, Any]) -> dict[str, Any]:
        taken = sorted(_OWN_TEMPLATE_ARGUMENTS & value.keys())
        if taken:
            raise ValueError(f"{', '.join(taken)} cannot be set here: reinlm renders the template in its own way")
        return value

    @model_validator(mode="after")
    def _chat_options_need_chat(self) -> DataConfig:
        if self.chat == "never":
            for name in self.chat_options:
                raise ValueError(f"{name} has no effect with chat='never'; take one of the two out")
        return self

    @property
    def chat_options(self) -> list[str]:
        """The options set that only chats can follow."""
        options: dict[str, Any] = {"system_prompt": None, "chat_template_kwargs": {}, "renderer": "template"}
        return [name for name, unset in options.items() if getattr(self, name) != unset]


class JudgedDataConfig(DataConfig):
    """Judged answers and how to read them: pairs, rankings, labels, ratings or labelled steps.

    Example:
        JudgedDataConfig(path="pairs.jsonl", slices=["domain"], min_margin=0.5)
    """

    ratings: list[str] | None = None
    """Columns of numbers that rate `completion`, one for each criterion: `[helpfulness, correctness]`. Null: the column
    `ratings`, a mapping of criteria to numbers, or `rating`."""
    slices: list[str] = Field(default_factory=list)
    """Columns by whose values metrics are also reported: `[domain, annotator]`."""
    min_margin: float | None = None
    """Rows whose `margin` or `strength` is below this are left out and counted: ambiguous judgements."""
    max_similarity: float | None = Field(default=None, gt=0, lt=1)
    """Pairs whose answers are more alike than this are left out and counted: the share of token trigrams that both have, of those
    that either has, each counted as often as it stands."""
    on_long_prompt: Literal["stop", "skip", "cut"] = "stop"  # type: ignore[assignment]
    """A prompt with an answer over the limit of tokens stops the run, is skipped and counted, or has the beginning of its prompt
    left out, of all answers of a row alike; where the answers alone are too long it is skipped. Answers are never cut."""
