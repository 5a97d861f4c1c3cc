"""What `chat: auto` stands for, and what a checkpoint remembers of the prompts it was trained on."""

from __future__ import annotations

from typing import Any

import pytest

from reinlm.data import DataConfig, PromptFormat, Renderer, load_examples, load_tasks
from reinlm.data.loading import find_rows
from reinlm.data.prompts import describe, record, settle
from reinlm.errors import InputError

USER = {"role": "user", "content": "2+3?"}
CHAT = "<|im_start|>user\n2+3?<|im_end|>\n<|im_start|>assistant\n"
ROWS = [{"prompt": "2+3?", "completion": "five"}]


def data(rows: Any = ROWS, **options: Any) -> DataConfig:
    return DataConfig(path=rows, **options)


def read(tokenizer: Any, rows: Any = ROWS, **options: Any) -> str:
    """The first prompt as the model reads it."""
    (task, *_) = load_tasks(data(rows, **options), tokenizer)
    return str(tokenizer.decode(Renderer(tokenizer).prompt(task.content, "here")))


def imitated(tokenizer: Any, rows: Any = ROWS, **options: Any) -> tuple[str, str]:
    """All that an example holds, and what of it is trained."""
    (example, *_) = load_examples(data(rows, **options), tokenizer)
    return tokenizer.decode(example.token_ids), tokenizer.decode(example.token_ids[example.trained])


@pytest.mark.parametrize(
    ("chat", "with_template", "without"),
    [("auto", CHAT, "<s>2+3?"), ("never", "<s>2+3?", "<s>2+3?"), ("messages", "<s>2+3?", "<s>2+3?")],
)
def test_text_is_a_user_message_where_there_is_a_template_unless_told_otherwise(
    chatml: Any, tokenizer: Any, chat: str, with_template: str, without: str
) -> None:
    assert read(chatml, chat=chat) == with_template
    assert read(tokenizer, chat=chat) == without
    answer = "five<|im_end|>" if with_template == CHAT else "five</s>"
    assert imitated(chatml, chat=chat) == (with_template + answer, answer)
    assert imitated(tokenizer, chat=chat) == (without + "five</s>", "five</s>")


def test_always_needs_a_template_and_a_whole_text_stays_as_it_is(chatml: Any, tokenizer: Any) -> None:
    assert read(chatml, chat="always") == CHAT
    with pytest.raises(InputError, match="need a chat template"):
        read(tokenizer, chat="always")
    assert imitated(chatml, [{"text": "2+3 is five"}]) == ("<s>2+3 is five</s>", "2+3 is five</s>")


@pytest.mark.parametrize(
    ("rows", "options", "where"),
    [
        ([{"prompt": "a"}, {"prompt": CHAT}], {}, r"data\[1\]"),
        ([{"prompt": "a"}], {"prompt_template": "<|im_start|>user\n{prompt}<|im_end|>"}, "prompt_template"),
    ],
)
def test_a_prompt_that_is_rendered_already_is_refused_until_one_says_what_is_meant(
    chatml: Any, tokenizer: Any, rows: Any, options: Any, where: str
) -> None:
    with pytest.raises(
        InputError, match=rf"{where}: the text holds '<\|im_(start|end)\|>' of the chat template"
    ) as caught:
        read(chatml, rows, **options)
    assert "chat=never" in str(caught.value.hint)
    assert "chat=always" in str(caught.value.hint)
    assert read(chatml, rows[-1:], chat="never") == f"<s>{rows[-1]['prompt']}"
    assert read(chatml, rows[-1:], chat="always").startswith("<|im_start|>user\n")
    assert read(tokenizer, rows[-1:]) == f"<s>{rows[-1]['prompt']}"


def kept(tokenizer: Any, rows: Any = ROWS, **options: Any) -> Any:
    config = data(rows, **options)
    found = find_rows(config, "example")
    return record(settle(config, found, tokenizer).config, found, tokenizer)


def test_a_checkpoint_remembers_the_rendering_of_its_training(chatml: Any, tokenizer: Any) -> None:
    plain = PromptFormat(chat="messages").model_dump()
    assert kept(chatml, chat="never") == kept(chatml, chat="messages") == kept(tokenizer) == plain
    told = {"system_prompt": "Add.", "prompt_template": "Q: {prompt}", "chat_template_kwargs": {"no_thinking": True}}
    assert kept(chatml, **told) == PromptFormat(chat="always", **told).model_dump()
    assert kept(chatml, [{"messages": [USER, {"role": "assistant", "content": "5"}]}]) == kept(chatml)
    assert kept(chatml, prompt_template="{completion} {prompt}")["prompt_template"] is None
    assert kept(chatml, [{"text": "2+3"}]) == plain
    assert kept(chatml, [{"text": CHAT}]) is None


def settled(tokenizer: Any, remembered: Any, rows: Any = ROWS, **options: Any) -> DataConfig:
    config = data(rows, **options)
    return settle(config, find_rows(config, "prompt"), tokenizer, remembered).config


def test_what_is_remembered_holds_until_told_otherwise(chatml: Any) -> None:
    told = {"system_prompt": "Add.", "prompt_template": "Q: {prompt}", "chat_template_kwargs": {"no_thinking": True}}
    memory = kept(chatml, **told)
    found = settled(chatml, memory)
    assert {name: getattr(found, name) for name in told} == told
    assert found.chat == "always"
    assert settled(chatml, memory, system_prompt="Other.").system_prompt == "Other."
    assert settled(chatml, memory, chat="always").system_prompt is None
    assert settled(chatml, memory, chat="never") == data(chat="never")
    assert settled(chatml, memory, [{"prompt": [USER]}]).prompt_template is None
    assert settled(chatml, kept(chatml, chat="never")).chat == "messages"
    with pytest.raises(InputError, match="chat"):
        settled(chatml, {"chat": "sometimes"})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "text as a user message in the chat template (the tokenizer has a chat template; chat=never leaves"),
        ({"chat": "always"}, "text as a user message in the chat template; the first is 'x'"),
        ({"chat": "never"}, "plain text; the first is 'x'"),
    ],
)
def test_one_line_says_how_prompts_are_rendered(chatml: Any, options: Any, said: str) -> None:
    config = data(**options)
    found = find_rows(config, "prompt")
    assert said in describe(settle(config, found, chatml), found, "x")
