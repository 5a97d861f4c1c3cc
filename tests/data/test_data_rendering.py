"""Prompts, answers read back, and conversations that go on without tokenising sampled text again."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from data_tokenizers import BARE, CHATML, LLAMA, THINKING, build_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from reinlm.data import DataConfig, Renderer, build_renderer
from reinlm.errors import InputError
from reinlm.models import character_tokenizer

QWEN = (
    "{% set last = namespace(user=-1) %}"
    "{% for m in messages %}{% if m['role'] == 'user' %}{% set last.user = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ 'user' if m['role'] == 'tool' else m['role'] }}\n"
    "{{ m['content'] if m['role'] != 'assistant' or loop.index0 > last.user else m['content'].split('</think>')[-1] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Keeps the thoughts of answers after the last user message, and cuts them out of those before, as Qwen3's does."""

FINAL = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    "{{ '</s>' if loop.last and m['role'] == 'assistant' else '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Ends the last answer with another token than the answers before it, as gpt-oss's does."""

TEMPLATES = {"chatml": CHATML, "llama": LLAMA, "thinking": THINKING, "qwen": QWEN, "bare": BARE, "final": FINAL}
RENDERERS = {name: Renderer(build_tokenizer(template)) for name, template in TEMPLATES.items()}
STOPS = {"chatml": "<|im_end|>", "llama": "<|eot|>", "thinking": "</s>", "qwen": "<|im_end|>", "final": "</s>"}
USER = {"role": "user", "content": "What is two plus three?"}
MORE = {"role": "user", "content": "Sure?"}
TOOL = {"role": "tool", "content": "5"}


def ids_of(renderer, text):
    return renderer.tokenizer(text, add_special_tokens=False)["input_ids"]


def turn(style, sampled, before=(USER,), new=(MORE,)):
    """The history after an answer of this text, the answer as parsed, and what extends the history."""
    renderer = RENDERERS[style]
    tokens = ids_of(renderer, sampled)
    history = renderer.prompt(before, "here") + tokens
    answer = renderer.parse(before, tokens, frozenset(ids_of(renderer, STOPS.get(style, "</s>"))))
    return renderer, history, answer, renderer.extension("here", before, history, answer, list(new))


def text_of(renderer, ids):
    return renderer.tokenizer.decode(ids, skip_special_tokens=False)


def test_what_the_template_writes_behind_the_stop_token_comes_before_the_next_message():
    renderer, _, answer, extension = turn("chatml", "five<|im_end|>")
    assert answer == {"role": "assistant", "content": "five"}
    assert text_of(renderer, extension) == "\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n"


def test_an_answer_that_was_cut_off_gets_the_end_of_its_turn():
    renderer, _, answer, extension = turn("chatml", "fiv")
    assert answer["content"] == "fiv"
    assert text_of(renderer, extension) == "<|im_end|>\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n"


def test_bos_is_not_written_again():
    renderer, history, _, extension = turn("llama", "five<|eot|>", new=({"role": "system", "content": "Hm"}, MORE))
    assert text_of(renderer, extension) == (
        "<|head|>system\n\nHm<|eot|><|head|>user\n\nSure?<|eot|><|head|>assistant\n\n"
    )
    assert (history + extension).count(renderer.tokenizer.bos_token_id) == 1


def test_spaces_that_the_template_trims_stay_as_they_were_sampled():
    renderer, history, _, extension = turn("llama", " five \n<|eot|>")
    assert text_of(renderer, history + extension).endswith(
        "assistant\n\n five \n<|eot|><|head|>user\n\nSure?<|eot|><|head|>assistant\n\n"
    )


@pytest.mark.parametrize("style", ["thinking", "qwen"])
def test_thoughts_that_the_template_drops_begin_a_new_segment(style):
    assert turn(style, "so 2+3</think>5" + STOPS[style])[3] is None


def test_thoughts_stay_through_tool_messages_and_are_dropped_at_the_next_user_message():
    renderer, history, answer, extension = turn("qwen", "I ask</think>add<|im_end|>", new=[TOOL])
    messages = (USER, answer, TOOL)
    assert text_of(renderer, history + extension) == renderer.chat_text("here", messages, prompt=True)
    tokens = ids_of(renderer, "five<|im_end|>")
    final = renderer.parse(messages, tokens, frozenset(tokens[-1:]))
    assert renderer.extension("here", messages, history + extension + tokens, final, [MORE]) is None
    assert renderer.extension("here", messages, history + extension + tokens, final, [TOOL]) is not None


def test_a_template_that_opens_answers_in_another_way_than_it_writes_them_begins_a_new_segment():
    assert turn("thinking", "5</s>")[3] is None  # the prompt opened <think>, the finished turn has none


def test_an_answer_that_ended_with_another_token_than_the_template_writes_begins_a_new_segment():
    assert turn("chatml", "five</s>")[3] is None
    assert turn("final", "five</s>")[3] is None


def test_without_an_end_of_turn_an_answer_that_was_cut_off_goes_on_and_one_that_ended_does_not():
    renderer, history, _, extension = turn("bare", "five")
    assert text_of(renderer, history + extension).endswith("assistant: five\nuser: Sure?\nassistant: ")
    assert turn("bare", "five</s>")[3] is None


def test_an_answer_with_more_than_its_text_begins_a_new_segment():
    template = CHATML.replace("{{ m['content'] }}", "{{ m['content'] }}{{ m['tool_calls'] }}")
    renderer = Renderer(build_tokenizer(template))
    call = {"role": "assistant", "content": "five", "tool_calls": [1]}
    history = renderer.prompt((USER,), "here") + ids_of(renderer, "five[1]<|im_end|>")
    assert renderer.extension("here", (USER,), history, call, [MORE]) is None


WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)
CLEAN = WORDS.map(str.strip).filter(lambda text: text and "<" not in text)
ROLES = st.sampled_from(["user", "system", "tool"])
MESSAGES: st.SearchStrategy[list[Any]] = st.lists(st.builds(dict, role=ROLES, content=CLEAN), min_size=1, max_size=3)


@pytest.mark.parametrize("style", ["chatml", "llama", "qwen", "bare"])
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_a_history_reads_as_the_template_writes_all_messages_and_begins_with_what_was_sampled(style, data):
    renderer, conversation = RENDERERS[style], (USER,)
    history = renderer.prompt(conversation, "here")
    for _ in range(data.draw(st.integers(1, 3))):
        sampled = ids_of(renderer, data.draw(CLEAN) + data.draw(st.sampled_from(["", STOPS.get(style, "")])))
        history = history + sampled
        answer = renderer.parse(conversation, sampled, frozenset(ids_of(renderer, STOPS.get(style, "</s>"))))
        new = tuple(data.draw(MESSAGES))
        if style == "llama":
            new = tuple({**message, "role": "user"} for message in new)  # its template refuses tools
        extension = renderer.extension("here", conversation, history, answer, new)
        assert extension is not None
        history, conversation = history + extension, (*conversation, answer, *new)
        assert text_of(renderer, history) == renderer.chat_text("here", conversation, prompt=True)


@given(CLEAN, CLEAN)
@settings(deadline=None, max_examples=40)
def test_text_goes_on_with_its_tokens_alone(sampled, new):
    renderer = Renderer(build_tokenizer(closing=True))
    history = renderer.prompt("12+30=", "here") + ids_of(renderer, sampled)
    extension = renderer.extension("here", "12+30=", history, sampled, new)
    assert text_of(renderer, history + extension) == f"<s>12+30={sampled}{new}"


def test_parsing_leaves_out_the_stop_token_and_special_tokens_and_keeps_spaces():
    renderer = RENDERERS["chatml"]
    ids = ids_of(renderer, " a , b<|head|> .\n<|im_end|>")
    stop = frozenset(ids[-1:])
    assert renderer.parse("text", ids, stop) == " a , b .\n"
    assert renderer.parse((USER,), ids, stop) == {"role": "assistant", "content": " a , b .\n"}
    digit = ids_of(renderer, "5")
    assert renderer.parse("text", digit, frozenset(digit)) == ""
    assert renderer.parse("text", [], stop) == ""


@pytest.mark.parametrize(
    ("before", "answer", "new", "message"),
    [
        ("text", "a", [MORE], "a text goes on with text, a chat with messages"),
        ((USER,), {"role": "assistant", "content": "a"}, "b", "a text goes on with text, a chat with messages"),
        ((USER,), {"role": "assistant", "content": "a"}, [{"role": "assistant", "content": "b"}], "an assistant mess"),
    ],
)
def test_what_cannot_follow_is_refused(before, answer, new, message):
    with pytest.raises(InputError, match=f"task 7: {message}"):
        RENDERERS["chatml"].extension("task 7", before, [1], answer, new)


def test_errors_in_an_episode_name_where():
    llama = RENDERERS["llama"]
    history = llama.prompt((USER,), "task 7") + ids_of(llama, "five<|eot|>")
    with pytest.raises(InputError, match="task 7: the chat template refuses the messages: no tool here"):
        llama.extension("task 7", (USER,), history, {"role": "assistant", "content": "five"}, [TOOL])
    with pytest.raises(InputError, match="task 7: the prompt has no tokens"):
        llama.prompt("", "task 7")
    with pytest.raises(InputError, match="task 7: chat messages need a chat template"):
        Renderer(build_tokenizer()).prompt((USER,), "task 7")


def test_a_renderer_is_told_by_its_template():
    digest = hashlib.sha256(CHATML.encode()).hexdigest()
    assert RENDERERS["chatml"].identity == {"name": "template", "version": "1", "template_sha256": digest}
    assert RENDERERS["llama"].identity["template_sha256"] != digest
    assert Renderer(build_tokenizer()).identity["template_sha256"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"renderer": "Renderers"}, "renderer: .*should match pattern"),
        ({"renderer": "renderers:"}, "renderer: .*should match pattern"),
        ({"renderer": "renderers", "chat": "never"}, "renderer has no effect with chat='never'"),
    ],
)
def test_a_renderer_that_is_none_is_refused(options, message):
    from reinlm.config import build

    with pytest.raises(InputError, match=message):
        build(DataConfig, {"path": "a", **options})


def test_without_a_name_the_template_renders(chatml):
    assert type(build_renderer(DataConfig(path="a"), chatml)) is Renderer


def test_a_prompt_that_is_asked_for_again_is_the_same_and_no_other() -> None:
    """The latest text is kept; a change of what was returned, of the vocabulary or of the messages shows."""
    tokenizer = character_tokenizer("abc1")
    renderer = build_renderer(DataConfig(path="d.jsonl"), tokenizer)
    first = renderer.prompt("abc", "row 1")
    expected = list(first)
    first.append(99)
    assert renderer.prompt("abc", "row 2") == expected
    assert renderer.prompt("ab", "row 3") == expected[:2]
    tokenizer.add_tokens(["ab"])
    assert renderer.prompt("ab", "row 4") != expected[:2]


def test_messages_that_are_equal_to_python_alone_are_rendered_each() -> None:
    tokenizer = character_tokenizer("1truefals.0{}")
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] | tojson }}{% endfor %}"
    renderer = build_renderer(DataConfig(path="d.jsonl"), tokenizer)
    prompts = [renderer.prompt(({"role": "user", "content": value},), "row") for value in (1, True, 1.0)]
    assert len({tuple(prompt) for prompt in prompts}) == 3
