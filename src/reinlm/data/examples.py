"""Rows to examples, for supervised fine-tuning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from reinlm.data.columns import content_column, messages_column, text_column
from reinlm.data.config import DataConfig
from reinlm.data.loading import drop_long, typed_rows
from reinlm.data.prompts import UNKNOWN_CHARACTERS, PromptShaper
from reinlm.data.rendering import Renderer, Untokenizable
from reinlm.data.rows import BadRow, BadRows, Loaded, Row
from reinlm.data.sources import describe
from reinlm.errors import InputError
from reinlm.records import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Example:
    """Tokens to imitate, and which of them count.

    Example: a prompt of 3 tokens, then an answer of 2 that ends with the stop token 1:
        Example(id="train.jsonl:1", token_ids=(5, 6, 7, 9, 1), trained=(False, False, False, True, True))
    """

    id: str
    """Where it comes from. Unique within a data set."""
    token_ids: tuple[int, ...]
    trained: tuple[bool, ...]
    """True for the tokens of answers, their stop token included. Same length; the first one is never trained."""


def load_examples(
    config: DataConfig, tokenizer: PreTrainedTokenizerBase, *, max_tokens: int | None = None
) -> Loaded[Example]:
    """The examples of a data set, in the order of its rows.

    - `prompt`+`completion` (each text or chat messages): the completion is trained.
    - `messages`: every assistant message is trained. What precedes each is exactly what sampling would feed there; so a
      chat whose template rewrites earlier turns (cuts out old thoughts, say) becomes several examples, one for each
      stretch that grows without rewriting: `train.jsonl:7`, `train.jsonl:7#2`, …
    - `text`: every token is trained but the first, which nothing predicts, and special tokens in front.

    Args:
        config: the data; see `DataConfig`.
        tokenizer: the model's.
        max_tokens: the most tokens an example may have; None for no limit. Longer ones are never cut.

    Raises:
        InputError: data, columns, rows or options that cannot be used, or examples over the limit, as `config` says.
    """
    source, bad_rows, shaper = describe(config.path), BadRows(config.on_bad_row), PromptShaper(config)
    rows, names = typed_rows(config, "example", bad_rows)
    shaper.check_columns({name for row in rows for name in row.columns}, source)
    renderer = Renderer(tokenizer, config.chat_template_kwargs)
    examples: list[Example] = []
    for row in rows:
        try:
            examples += _examples(row, names, shaper, renderer)
        except BadRow as bad:
            bad_rows.add(bad)
        except Untokenizable as text:
            bad_rows.add(text.in_row(row))
    bad_rows.require_some(examples, source)
    skipped = dict(bad_rows.counts)
    if max_tokens is not None:
        lengths, places = [len(example.token_ids) for example in examples], [example.id for example in examples]
        on_long = config.on_long_prompt
        kept = drop_long(lengths, places, limit=max_tokens, what="examples", on_long=on_long, source=source)
        if len(kept) < len(examples):
            skipped[f"longer than {max_tokens} tokens"] = len(examples) - len(kept)
        examples = [examples[index] for index in kept]
    return Loaded(tuple(examples), skipped)


def _examples(row: Row, names: tuple[str, ...], shaper: PromptShaper, renderer: Renderer) -> list[Example]:
    if names == ("text",):
        return [_text_example(row, shaper, renderer)]
    if names == ("messages",):
        return _chat_examples(row.where, shaper.chat(row, messages_column(row, "messages")), 0, renderer)
    completion = content_column(row, "completion")
    prompt = shaper.shape(row, content_column(row, "prompt"), as_chat=not isinstance(completion, str))
    if isinstance(prompt, str) and isinstance(completion, str):
        before, after = renderer.text_prompt(prompt), renderer.text_answer(prompt, completion)
        if len(before) <= renderer.front_length:
            raise BadRow(row.where, "column 'prompt' has no tokens", hint=UNKNOWN_CHARACTERS)
        if len(after) < 2:
            raise BadRow(row.where, "column 'completion' has no tokens", hint=UNKNOWN_CHARACTERS)
        return [_example(row.where, before, after)]
    answer = ({"role": "assistant", "content": completion},) if isinstance(completion, str) else completion
    return _chat_examples(row.where, (*prompt, *answer), len(prompt), renderer)


def _text_example(row: Row, shaper: PromptShaper, renderer: Renderer) -> Example:
    if shaper.template is not None or shaper.config.chat == "always":
        option = "prompt_template" if shaper.template is not None else "chat: always"
        raise InputError(f"{option} is set, but {row.where} is a whole text without a prompt", hint="take it out")
    shaper.refuse_chat_options(row.where)
    front = renderer.front_length
    ids = renderer.whole_text(text_column(row, "text"))
    if len(ids) < front + 2:
        raise BadRow(row.where, "column 'text' has no tokens", hint=UNKNOWN_CHARACTERS)
    start = max(front, 1)
    return _example(row.where, ids[:start], ids[start:])


def _example(where: str, before: list[int], answer: list[int]) -> Example:
    return Example(where, (*before, *answer), (False,) * len(before) + (True,) * len(answer))


def _chat_examples(where: str, messages: tuple[Message, ...], first: int, renderer: Renderer) -> list[Example]:
    """One example for each stretch that grows without rewriting; assistant messages from `first` on are trained."""
    turns = [index for index in range(first, len(messages)) if messages[index]["role"] == "assistant"]
    if not turns:
        raise BadRow(where, "no assistant message to train on")
    stretches: list[tuple[list[int], list[bool]]] = []
    for index in turns:
        if index == 0:
            raise BadRow(
                where, "the chat begins with an assistant message", hint="something must come before the answer"
            )
        before = renderer.chat_prompt(where, messages[:index])
        answer = renderer.chat_answer(where, messages[:index], messages[index])
        known, trained = stretches[-1] if stretches else ([], [])
        if not known or before[: len(known)] != known:
            known, trained = [], []
            stretches.append((known, trained))
        trained += [False] * (len(before) - len(known)) + [True] * len(answer)
        known += before[len(known) :] + answer
    return [
        Example(f"{where}#{number}" if number > 1 else where, tuple(ids), tuple(trained))
        for number, (ids, trained) in enumerate(stretches, start=1)
    ]
