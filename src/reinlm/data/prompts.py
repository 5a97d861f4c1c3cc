"""How the prompts of a data set are rendered: what `chat: auto` stands for, and what a checkpoint remembers of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from reinlm.config import Config, build
from reinlm.data.columns import Template
from reinlm.data.config import DataConfig
from reinlm.data.loading import Found
from reinlm.data.rendering import Renderer
from reinlm.data.rows import one_line
from reinlm.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BY_TEMPLATE = "the tokenizer has a chat template; chat=never leaves text as it is"
WITHOUT_TEMPLATE = "the tokenizer has no chat template"
BY_CHECKPOINT = "as this checkpoint was trained; chat=always or chat=never decides otherwise"


class PromptFormat(Config):
    """How a model's prompts were rendered in training; saved beside its weights.

    Example:
        PromptFormat(chat="always", system_prompt="Answer with a number.")
    """

    chat: Literal["always", "messages"]
    """always: text is a user message; messages: text is plain, messages are chats."""
    system_prompt: str | None = None
    prompt_template: str | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    renderer: str = "template"


@dataclass(frozen=True)
class Settled:
    """A data configuration whose `chat` is no longer `auto`, and why it is what it is.

    Example:
        Settled(DataConfig(path="a.jsonl", chat="always"), "the tokenizer has a chat template")
    """

    config: DataConfig
    reason: str = ""
    """Empty where the configuration says it."""


def settle(
    config: DataConfig,
    found: Found,
    tokenizer: PreTrainedTokenizerBase | Renderer,
    remembered: Mapping[str, Any] | None = None,
) -> Settled:
    """What `chat: auto` stands for with these rows, this tokenizer and this model.

    Text prompts become user messages where the tokenizer has a chat template, unless the model's own training rendered them
    otherwise. Whole texts (column `text`) stay as they are. Every other value of `chat` is kept.

    Args:
        remembered: a `PromptFormat` as a mapping: how the model was trained. Options that `config` does not set are taken
            from it.

    Raises:
        InputError: a text prompt that would become a user message already holds a special token of the chat template.
    """
    if config.chat != "auto":
        return Settled(config)
    if found.names == ("text",):
        return Settled(config.settled_as(chat="messages"))
    templated = has_template(tokenizer) or config.renderer != "template"
    if remembered:
        known = build(PromptFormat, remembered)
        chosen = config.settled_as(**_inherited(config, known, found))
        reason = BY_CHECKPOINT if templated else WITHOUT_TEMPLATE
    else:
        chosen = config.settled_as(chat="always" if templated else "messages")
        reason = BY_TEMPLATE if templated else WITHOUT_TEMPLATE
    if chosen.chat == "always":
        _refuse_rendered(chosen, found, tokenizer)
    return Settled(chosen, reason)


def record(config: DataConfig, found: Found, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any] | None:
    """What a checkpoint remembers of the prompts it was trained on; None for texts that hold rendered chats.

    Args:
        config: as `settle` returned it.
    """
    if found.names == ("text",):
        marks = template_marks(tokenizer)
        rendered = any(mark in str(row.columns.get("text")) for row in found.rows for mark in marks)
        return None if rendered else PromptFormat(chat="messages").model_dump()
    chats = config.chat == "always" or all(
        not isinstance(_content(row.columns, found.names), str) for row in found.rows
    )
    template = config.prompt_template
    own = template is not None and Template(template, "prompt_template").columns == ["prompt"]
    options = {name: getattr(config, name) for name in ("system_prompt", "chat_template_kwargs", "renderer") if chats}
    kept = PromptFormat(chat="always" if chats else "messages", prompt_template=template if own else None, **options)
    return kept.model_dump()


def describe(settled: Settled, found: Found, first: str) -> str:
    """One line on how prompts are rendered, with the first one as the model reads it."""
    texts = any(isinstance(_content(row.columns, found.names), str) for row in found.rows)
    if found.names == ("text",):
        return f"texts: whole, as they are; the first begins with {one_line(first, 120)!r}"
    if not texts:
        how = "chat messages in the chat template"
    elif settled.config.chat == "always":
        how = "text as a user message in the chat template"
    else:
        how = "plain text"
    reason = f" ({settled.reason})" if settled.reason and texts else ""
    return f"prompts: {how}{reason}; the first is {shortened(first)!r}"


def has_template(tokenizer: PreTrainedTokenizerBase | Renderer) -> bool:
    """Whether chats can be rendered without further settings."""
    if isinstance(tokenizer, Renderer):
        return tokenizer.name != "template" or has_template(tokenizer.tokenizer)
    return bool(getattr(tokenizer, "chat_template", None))


def template_marks(tokenizer: PreTrainedTokenizerBase | Renderer) -> list[str]:
    """Special tokens that the chat template itself writes, such as `<|im_start|>`; BOS and EOS by name are not among them."""
    inner: Any = tokenizer.tokenizer if isinstance(tokenizer, Renderer) else tokenizer
    template = str(getattr(inner, "chat_template", None) or "")
    special = {token.content for token in inner.added_tokens_decoder.values() if token.special}
    return sorted(token for token in special if token in template)


def shortened(text: str, width: int = 400) -> str:
    """`text` with its middle left out where it is longer than `width` characters."""
    half = width // 2
    return text if len(text) <= width else f"{text[:half]} … {text[-half:]}"


def _inherited(config: DataConfig, known: PromptFormat, found: Found) -> dict[str, Any]:
    """The options of the checkpoint's training that `config` leaves open, and that all of these prompts can follow."""
    names = []
    if all(isinstance(_content(row.columns, found.names), str) for row in found.rows):
        names += ["prompt_template"]
    if known.chat == "always":
        names += ["system_prompt", "chat_template_kwargs", "renderer"]
    return {"chat": known.chat} | {name: getattr(known, name) for name in names if not config.changed(name)}


def _content(columns: Mapping[str, Any], names: Sequence[str]) -> Any:
    return columns.get(names[0]) if names else None


def _refuse_rendered(config: DataConfig, found: Found, tokenizer: PreTrainedTokenizerBase | Renderer) -> None:
    marks = template_marks(tokenizer)
    texts = [("prompt_template", config.prompt_template or "")]
    texts += [(row.where, value) for row in found.rows if isinstance(value := _content(row.columns, found.names), str)]
    for where, text in texts:
        mark = next((mark for mark in marks if mark in text), None)
        if mark is not None:
            raise InputError(
                f"{where}: the text holds {mark!r} of the chat template, and would be put into that template once more",
                hint="set data.chat=never where prompts are rendered already, or data.chat=always to do it all the same",
            )
