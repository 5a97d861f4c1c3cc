"""Convert rows to SFT examples: all tokens of a data set in flat arrays."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, overload

import numpy as np

from reinlm.data.batching import Plan, TokenIds, usable
from reinlm.data.columns import content_column, messages_column, text_column
from reinlm.data.config import DataConfig
from reinlm.data.loading import Found, drop_long
from reinlm.data.rendering import UNKNOWN_CHARACTERS, Renderer
from reinlm.data.rows import BadRow, Row
from reinlm.data.sources import source_name
from reinlm.data.tasks import PromptShaper, prepare_rows
from reinlm.errors import InputError
from reinlm.records import Array, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, eq=False)
class Example:
    """The tokens of one SFT example with their loss mask: a view into `Examples`.

    Example: a prompt of 3 tokens, then an answer of 2 that ends with the stop token 1:
        Example(id="train.jsonl:1", token_ids=np.array([5, 6, 7, 9, 1], np.int32), trained=np.array([0, 0, 0, 1, 1], bool))
    """

    id: str
    """Its origin, such as FILE:LINE. Unique within a data set."""
    token_ids: Array
    """[n] int32."""
    trained: Array
    """[n] bool, the loss mask: True for tokens of answers with their stop tokens; never for the first token."""

    def __len__(self) -> int:
        """The number of tokens."""
        return len(self.token_ids)


@dataclass(frozen=True, eq=False)
class Examples(Sequence[Example]):
    """All examples concatenated in flat arrays: 5 bytes per token, no Python object per example.

    Example: two examples, of 5 and of 2 tokens:
        Examples(ids=["a.jsonl:1", "a.jsonl:2"], token_ids=np.array([5, 6, 7, 9, 1, 5, 1], np.int32),
                 trained=np.array([0, 0, 0, 1, 1, 0, 1], bool), offsets=np.array([0, 5, 7]))
    """

    ids: Sequence[str]
    """The origin of each."""
    token_ids: Array
    """[tokens] int32."""
    trained: Array
    """[tokens] bool, the loss mask."""
    offsets: Array
    """[examples + 1] int64: example i has the tokens from `offsets[i]` up to `offsets[i + 1]`."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """How many rows were left out, by reason."""

    def __post_init__(self) -> None:
        for name, dtype in (("token_ids", np.int32), ("trained", np.bool_), ("offsets", np.int64)):
            column = np.ascontiguousarray(getattr(self, name), dtype=dtype).view()
            column.flags.writeable = False
            object.__setattr__(self, name, column)
        sizes = len(self.token_ids), len(self.trained), int(self.offsets[-1])
        if len(self.offsets) != len(self.ids) + 1 or len(set(sizes)) > 1 or self.offsets[0] != 0:
            raise ValueError(
                f"{len(self.ids)} ids, {len(self.offsets)} offsets that end at {sizes[2]}, {sizes[0]} token ids and "
                f"{sizes[1]} flags do not belong together"
            )

    def __len__(self) -> int:
        """How many examples there are."""
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> Examples: ...
    def __getitem__(self, index: int | slice) -> Example | Examples:
        if isinstance(index, slice):
            return self.take(range(*index.indices(len(self))))
        place = range(len(self))[index]  # negative ones count from the end, others out of range raise IndexError
        span = slice(int(self.offsets[place]), int(self.offsets[place + 1]))
        return Example(self.ids[place], self.token_ids[span], self.trained[span])

    @property
    def lengths(self) -> Array:
        """[examples] int64: tokens of each."""
        return np.diff(self.offsets)

    @property
    def nbytes(self) -> int:
        """Memory of the arrays in bytes."""
        return int(self.token_ids.nbytes + self.trained.nbytes + self.offsets.nbytes)

    def take(self, indices: Sequence[int]) -> Examples:
        """The examples with these indices, in this order, copied; `skipped` is kept."""
        chosen = np.asarray(indices, np.int64)
        lengths = self.lengths[chosen]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        tokens = np.arange(offsets[-1]) + np.repeat(self.offsets[:-1][chosen] - offsets[:-1], lengths)
        ids = [self.ids[index] for index in chosen]
        return Examples(ids, self.token_ids[tokens], self.trained[tokens], offsets, self.skipped)


class Piece(NamedTuple):
    """An example before it is copied into the arrays.

    Example:
        Piece("train.jsonl:1", [5, 6, 9, 1], b"\0\0\1\1")
    """

    id: str
    token_ids: TokenIds
    trained: bytes
    """The loss mask: 0 or 1 for each token."""


def load_examples(
    config: DataConfig,
    tokenizer: PreTrainedTokenizerBase | Renderer,
    *,
    max_tokens: int | None = None,
    found: Found | None = None,
    key: str = "data",
) -> Examples:
    """The examples of a data set, in the order of its rows.

    - `prompt`+`completion` (each text or chat messages): the completion is trained.
    - `messages`: every assistant message is trained. The tokens before each are exactly those of sampling. A chat whose
      template rewrites earlier turns (removes old thoughts, for example) therefore becomes several examples, one for each
      part that is not rewritten: `train.jsonl:7`, `train.jsonl:7#2`, …
    - `text`: every token is trained except the first, which has no context, and leading special tokens.

    Args:
        config: the data; see `DataConfig`.
        tokenizer: the model's, or a renderer around it.
        max_tokens: the most tokens an example may have; None for no limit. Longer ones are never cut.
        found: the rows, where they were read before (`find_rows`), to be used once.
        key: the section of the settings that `config` is, for hints.

    Raises:
        InputError: data, columns, rows or options that cannot be used, or examples over the limit, as `config` says.
    """
    rows, names, bad_rows, shaper, renderer = prepare_rows(config, "example", tokenizer, found)
    config, source = shaper.config, source_name(config.path)
    plans = (_examples_plan(row, names, shaper, renderer) for row in rows)
    examples = columns_of(usable(rows, plans, renderer.encode, bad_rows))
    bad_rows.require_some(examples, source)
    skipped = dict(bad_rows.counts)
    if max_tokens is not None:
        lengths, on_long = examples.lengths.tolist(), config.on_long_prompt
        kept = drop_long(
            lengths, examples.ids, limit=max_tokens, what="examples", on_long=on_long, source=source, key=key
        )
        if len(kept) < len(examples):
            skipped[f"longer than {max_tokens} tokens"] = len(examples) - len(kept)
            examples = examples.take(kept)
    return replace(examples, skipped=skipped)


def columns_of(found: Iterable[Sequence[Piece]]) -> Examples:
    """The examples of all rows in flat arrays, in their order."""
    ids: list[str] = []
    token_ids, trained, offsets = array("i"), bytearray(), array("q", [0])
    for pieces in found:
        for piece in pieces:
            ids.append(piece.id)
            token_ids.extend(piece.token_ids)
            trained += piece.trained
            offsets.append(len(trained))
    # Copies: the growing arrays have unused capacity.
    flags = np.array(trained, np.uint8).view(np.bool_)
    return Examples(ids, np.array(token_ids, np.int32), flags, np.array(offsets, np.int64))


def _examples_plan(row: Row, names: tuple[str, ...], shaper: PromptShaper, renderer: Renderer) -> Plan[list[Piece]]:
    if names == ("text",):
        return [(yield from _text_plan(row, shaper, renderer))]
    if names == ("messages",):
        chat = shaper.chat(row, messages_column(row, "messages"))
        return (yield from chat_plan(row.where, chat, 0, renderer))
    completion = content_column(row, "completion")
    prompt = shaper.shape(row, content_column(row, "prompt"), as_chat=not isinstance(completion, str))
    if isinstance(prompt, str) and isinstance(completion, str):
        before, after = yield from renderer.text_turn_plan(prompt, completion)
        if len(before) <= renderer.front_length:
            raise BadRow(row.where, "column 'prompt' has no tokens", hint=UNKNOWN_CHARACTERS)
        if len(after) < 2:
            raise BadRow(row.where, "column 'completion' has no tokens", hint=UNKNOWN_CHARACTERS)
        return [piece(row.where, before, after)]
    answer = ({"role": "assistant", "content": completion},) if isinstance(completion, str) else completion
    return (yield from chat_plan(row.where, (*prompt, *answer), len(prompt), renderer))


def _text_plan(row: Row, shaper: PromptShaper, renderer: Renderer) -> Plan[Piece]:
    if shaper.template is not None or shaper.config.chat == "always":
        option = "prompt_template" if shaper.template is not None else "chat: always"
        raise InputError(f"{option} is set, but {row.where} is a whole text without a prompt", hint="take it out")
    shaper.refuse_chat_options(row.where)
    front = renderer.front_length
    ids = yield from renderer.text_plan(text_column(row, "text"))
    if len(ids) < front + 2:
        raise BadRow(row.where, "column 'text' has no tokens", hint=UNKNOWN_CHARACTERS)
    start = max(front, 1)
    return piece(row.where, ids[:start], ids[start:])


def piece(where: str, before: TokenIds, answer: TokenIds) -> Piece:
    """An example whose tokens before the answer are not trained."""
    return Piece(where, before + answer, bytes(len(before)) + b"\1" * len(answer))


def chat_plan(where: str, messages: tuple[Message, ...], first: int, renderer: Renderer) -> Plan[list[Piece]]:
    """One example for each part that the template does not rewrite; assistant messages from `first` on are trained."""
    turns = [index for index in range(first, len(messages)) if messages[index]["role"] == "assistant"]
    if not turns:
        raise BadRow(where, "no assistant message to train on")
    stretches: list[tuple[TokenIds, bytearray]] = []
    for index in turns:
        if index == 0:
            raise BadRow(
                where, "the chat begins with an assistant message", hint="something must come before the answer"
            )
        before, answer = yield from renderer.chat_turn_plan(where, messages[:index], messages[index])
        known, trained = stretches[-1] if stretches else ([], bytearray())
        if not known or before[: len(known)] != known:
            known, trained = [], bytearray()
            stretches.append((known, trained))
        trained += bytes(len(before) - len(known)) + b"\1" * len(answer)
        known += before[len(known) :] + answer
    return [
        Piece(f"{where}#{number}" if number > 1 else where, ids, bytes(trained))
        for number, (ids, trained) in enumerate(stretches, start=1)
    ]
