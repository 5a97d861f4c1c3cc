"""Rows to prompts, for sampling and evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reinlm.data.columns import Template, content_column, messages_column, require_column
from reinlm.data.config import DataConfig
from reinlm.data.loading import drop_long, typed_rows
from reinlm.data.rendering import Renderer, Untokenizable
from reinlm.data.rows import BadRow, BadRows, Loaded, Row
from reinlm.data.sources import describe
from reinlm.errors import InputError
from reinlm.records import Message, Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

UNKNOWN_CHARACTERS = "the tokenizer knows none of its characters"
Content = str | tuple[Message, ...]


def load_prompts(
    config: DataConfig, tokenizer: PreTrainedTokenizerBase, *, max_prompt_tokens: int | None = None
) -> Loaded[Prompt]:
    """The prompts of a data set, in the order of its rows, as the model reads them.

    A prompt comes from the column `prompt` (text or chat messages), or from `messages`, whose closing assistant
    messages are taken off: they are the answer that the policy is asked for. All other columns are in `Prompt.columns`.

    Args:
        config: the data; see `DataConfig`.
        tokenizer: the model's.
        max_prompt_tokens: the most tokens a prompt may have; None for no limit.

    Raises:
        InputError: data, columns, rows or options that cannot be used, or prompts over the limit, as `config` says.
    """
    source, bad_rows, shaper = describe(config.path), BadRows(config.on_bad_row), PromptShaper(config)
    rows, names = typed_rows(config, "prompt", bad_rows)
    shaper.check_columns({name for row in rows for name in row.columns}, source)
    renderer = Renderer(tokenizer, config.chat_template_kwargs)
    prompts: list[Prompt] = []
    for row in rows:
        try:
            prompts.append(_prompt(row, names[0], shaper, renderer))
        except BadRow as bad:
            bad_rows.add(bad)
        except Untokenizable as text:
            bad_rows.add(text.in_row(row))
    bad_rows.require_some(prompts, source)
    skipped = dict(bad_rows.counts)
    if max_prompt_tokens is not None:
        lengths, places = [len(prompt.token_ids) for prompt in prompts], [prompt.id for prompt in prompts]
        on_long = config.on_long_prompt
        kept = drop_long(lengths, places, limit=max_prompt_tokens, what="prompts", on_long=on_long, source=source)
        if len(kept) < len(prompts):
            skipped[f"longer than {max_prompt_tokens} tokens"] = len(prompts) - len(kept)
        prompts = [prompts[index] for index in kept]
    return Loaded(tuple(prompts), skipped)


class PromptShaper:
    """Turns a row's prompt into what the options make of it: in a template, as a chat, with a system prompt.

    An option that a prompt leaves without effect raises InputError.
    """

    def __init__(self, config: DataConfig) -> None:
        self.config = config
        self.template = (
            Template(config.prompt_template, "prompt_template") if config.prompt_template is not None else None
        )

    def check_columns(self, present: set[str], source: str) -> None:
        """Raises InputError when the prompt template names a column that no row has."""
        for name in self.template.columns if self.template else ():
            require_column(name, present, source, "prompt_template")

    def shape(self, row: Row, content: Content, *, as_chat: bool = False) -> Content:
        """The prompt of `row`; `as_chat` makes a chat of plain text, as an answer in messages asks for."""
        if not isinstance(content, str):
            return self.chat(row, content)
        if self.template is not None:
            content = self.template.fill(row)
        if self.config.chat == "always" or as_chat:
            return self.with_system(row, ({"role": "user", "content": content},))
        self.refuse_chat_options(row.where)
        return content

    def chat(self, row: Row, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """The messages of a chat, after the system prompt. Raises InputError for options that only text can follow."""
        if self.template is not None:
            raise InputError(f"{row.where}: prompt_template needs text prompts, and this row is a chat")
        return self.with_system(row, messages)

    def with_system(self, row: Row, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """The messages after the system prompt, where one is set and they have none of their own."""
        if self.config.chat == "never":
            hint = "set chat: auto, or give plain text"
            raise InputError(f"{row.where}: chat messages, but chat is 'never'", hint=hint)
        system = self.config.system_prompt
        if system is None or messages[0]["role"] in ("system", "developer"):
            return messages
        return ({"role": "system", "content": system}, *messages)

    def refuse_chat_options(self, where: str) -> None:
        """Raises InputError when an option for chats is set, and a row is plain text."""
        for name in ("system_prompt", "chat_template_kwargs"):
            if getattr(self.config, name):
                hint = "set chat: always to make user messages of text prompts, or take it out"
                raise InputError(f"{name} is set, but {where} is plain text", hint=hint)


def _prompt(row: Row, name: str, shaper: PromptShaper, renderer: Renderer) -> Prompt:
    if name == "messages":
        content: Content = _without_answer(row.where, messages_column(row, name))
    else:
        content = content_column(row, name)
        if not isinstance(content, str) and content[-1]["role"] == "assistant":
            raise BadRow(row.where, "column 'prompt' ends with an assistant message", hint="end with the user's turn")
    content = shaper.shape(row, content)
    token_ids = renderer.text_prompt(content) if isinstance(content, str) else renderer.chat_prompt(row.where, content)
    if len(token_ids) <= renderer.front_length:
        raise BadRow(row.where, f"column {name!r} has no tokens", hint=UNKNOWN_CHARACTERS)
    others = {key: value for key, value in row.columns.items() if key != name}
    return Prompt(id=row.where, content=content, token_ids=tuple(token_ids), columns=others)


def _without_answer(where: str, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    end = len(messages)
    while end and messages[end - 1]["role"] == "assistant":
        end -= 1
    if not end or messages[end - 1]["role"] not in ("user", "tool"):
        raise BadRow(where, "column 'messages' has no user message to answer")
    return messages[:end]
