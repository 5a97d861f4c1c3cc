"""Convert rows to tasks, to which environments are reset, for sampling and evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from reinlm.data.batching import Plan, usable
from reinlm.data.columns import Kind, Template, content_column, messages_column, require_column
from reinlm.data.config import DataConfig
from reinlm.data.loading import Found, drop_long, find_rows
from reinlm.data.prompts import settle
from reinlm.data.rendering import UNKNOWN_CHARACTERS, Renderer, build_renderer
from reinlm.data.rows import BadRow, BadRows, Loaded, Row
from reinlm.data.sources import source_name
from reinlm.errors import InputError
from reinlm.records import Content, Message, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_tasks(
    config: DataConfig,
    tokenizer: PreTrainedTokenizerBase | Renderer,
    *,
    max_prompt_tokens: int | None = None,
    found: Found | None = None,
) -> Loaded[Task]:
    """The tasks of a data set, in the order of its rows.

    A task's content comes from the column `prompt` (text or chat messages), or from `messages`, whose trailing
    assistant messages are removed: the policy is to write them. All other columns are in `Task.columns`.
    Prompts are tokenised only to find invalid and too long ones; no tokens are kept.

    Args:
        config: the data; see `DataConfig`.
        tokenizer: the model's, or the renderer that episodes will use.
        max_prompt_tokens: the most tokens a prompt may have; None for no limit.
        found: the rows, where they were read before (`find_rows`), to be used once.

    Raises:
        InputError: data, columns, rows or options that cannot be used, or prompts over the limit, as `config` says.
    """
    rows, names, bad_rows, shaper, renderer = prepare_rows(config, "prompt", tokenizer, found)
    config, source = shaper.config, source_name(config.path)
    plans = (_task_plan(row, names[0], shaper, renderer) for row in rows)
    tasks: list[Task] = []
    lengths: list[int] = []
    for task, length in usable(rows, plans, renderer.encode, bad_rows):
        tasks.append(task)
        lengths.append(length)
    bad_rows.require_some(tasks, source)
    skipped = dict(bad_rows.counts)
    if max_prompt_tokens is not None:
        places, on_long = [task.id for task in tasks], config.on_long_prompt
        kept = drop_long(lengths, places, limit=max_prompt_tokens, what="prompts", on_long=on_long, source=source)
        if len(kept) < len(tasks):
            skipped[f"longer than {max_prompt_tokens} tokens"] = len(tasks) - len(kept)
        tasks = [tasks[index] for index in kept]
    return Loaded(tuple(tasks), skipped)


class Prepared(NamedTuple):
    """The rows of a data set with what turns them into tokens."""

    rows: Sequence[Row]
    names: tuple[str, ...]
    """The columns that serve the kind of row."""
    bad_rows: BadRows
    shaper: PromptShaper
    """Of the settled configuration: `shaper.config`."""
    renderer: Renderer


def prepare_rows(
    config: DataConfig, kind: Kind, tokenizer: PreTrainedTokenizerBase | Renderer, found: Found | None = None
) -> Prepared:
    """Read the rows of a data set, settle its options by them, and check the options' columns.

    Args:
        found: the rows, where they were read before.

    Raises:
        InputError: data, columns, rows or options that cannot be used, as `config` says.
    """
    found = find_rows(config, kind) if found is None else found
    shaper = PromptShaper(settle(config, found, tokenizer).config)
    shaper.check_columns({name for row in found.rows for name in row.columns}, source_name(config.path))
    return Prepared(found.rows, found.names, found.bad_rows, shaper, build_renderer(shaper.config, tokenizer))


class PromptShaper:
    """Applies the options `prompt_template`, `chat` and `system_prompt` to the prompt of a row.

    An option without effect on a prompt raises InputError.
    """

    def __init__(self, config: DataConfig) -> None:
        self.config = config
        self._chat_options = config.chat_options
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
        for name in self._chat_options:
            hint = "set chat: always to make user messages of text prompts, or take it out"
            raise InputError(f"{name} is set, but {where} is plain text", hint=hint)


def _task_plan(row: Row, name: str, shaper: PromptShaper, renderer: Renderer) -> Plan[tuple[Task, int]]:
    """The task of a row, and how many tokens its prompt has."""
    if name == "messages":
        content: Content = _without_answer(row.where, messages_column(row, name))
    else:
        content = content_column(row, name)
        if not isinstance(content, str) and content[-1]["role"] == "assistant":
            raise BadRow(row.where, "column 'prompt' ends with an assistant message", hint="end with the user's turn")
    from_text = isinstance(content, str) and shaper.config.settled
    content = shaper.shape(row, content)
    ids = yield from renderer.prompt_plan(row.where, content)
    if len(ids) <= renderer.front_length:
        raise BadRow(row.where, f"column {name!r} has no tokens", hint=UNKNOWN_CHARACTERS)
    others = {key: value for key, value in row.columns.items() if key != name}
    return Task(id=row.where, content=content, columns=others, from_text=from_text), len(ids)


def _without_answer(where: str, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    end = len(messages)
    while end and messages[end - 1]["role"] == "assistant":
        end -= 1
    if not end or messages[end - 1]["role"] not in ("user", "tool"):
        raise BadRow(where, "column 'messages' has no user message to answer")
    return messages[:end]
