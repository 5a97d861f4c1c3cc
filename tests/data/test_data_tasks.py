"""Tasks: what the model reads of them, and what reward functions receive."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from data_tokenizers import build_tokenizer

from reinlm.data import DataConfig, Renderer, build_renderer, load_tasks
from reinlm.errors import InputError
from reinlm.models import character_tokenizer

REAL = Path(os.environ.get("REINLM_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
USER = {"role": "user", "content": "What is two plus three?"}
FIVE = {"role": "assistant", "content": "five"}


def load(tokenizer, rows, max_prompt_tokens=None, **options):
    return load_tasks(DataConfig(path=rows, **options), tokenizer, max_prompt_tokens=max_prompt_tokens)


def read(tokenizer, task, **options):
    """What the model reads of a task, as text."""
    renderer = build_renderer(DataConfig(path="any", **options), tokenizer)
    return tokenizer.decode(renderer.prompt(task.content, task.id))


def test_a_text_prompt_stays_text_with_one_bos_and_its_other_columns(tokenizer):
    (task,) = load(tokenizer, [{"prompt": "12+30=", "answer": "42", "level": 3}])
    assert task.id == "data[0]"
    assert task.content == "12+30="
    assert task.columns == {"answer": "42", "level": 3}
    assert read(tokenizer, task) == "<s>12+30="
    assert not hasattr(task, "token_ids")


def test_a_tokenizer_that_closes_texts_does_not_end_the_prompt():
    closing = build_tokenizer(closing=True)
    (task,) = load(closing, [{"prompt": "12+30="}])
    assert read(closing, task) == "<s>12+30="


def test_a_prompt_that_writes_bos_itself_gets_no_second_one(tokenizer):
    (task,) = load(tokenizer, [{"prompt": "<s>12+30="}])
    assert read(tokenizer, task) == "<s>12+30="


def test_messages_are_rendered_by_the_chat_template_up_to_the_answer(chatml, llama):
    (task,) = load(chatml, [{"prompt": [USER]}])
    assert task.content == (USER,)
    assert read(chatml, task) == ("<|im_start|>user\nWhat is two plus three?<|im_end|>\n<|im_start|>assistant\n")
    (task,) = load(llama, [{"prompt": [USER]}])
    assert read(llama, task) == ("<s><|head|>user\n\nWhat is two plus three?<|eot|><|head|>assistant\n\n")


def test_closing_assistant_messages_are_taken_off_the_messages_column(chatml):
    chat = [USER, FIVE, USER, FIVE, FIVE]
    (task,) = load(chatml, [{"messages": chat, "answer": "5"}])
    assert task.content == (USER, FIVE, USER)
    assert task.columns == {"answer": "5"}
    with pytest.raises(InputError, match=r"data\[0\]: column 'messages' has no user message to answer"):
        load(chatml, [{"messages": [{"role": "system", "content": "x"}, FIVE]}])


def test_a_prompt_that_ends_with_the_assistant_is_bad(chatml):
    with pytest.raises(InputError, match=r"data\[0\]: column 'prompt' ends with an assistant message"):
        load(chatml, [{"prompt": [USER, FIVE]}])


def test_chat_always_wraps_text_as_a_user_message_after_the_system_prompt(chatml):
    (task,) = load(chatml, [{"prompt": "Hi"}], chat="always", system_prompt="Be brief.")
    assert task.content == ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"})
    assert read(chatml, task) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_chat_keeps_its_own_system_message(chatml):
    own = {"role": "system", "content": "Mine."}
    first, second = load(chatml, [{"prompt": [own, USER]}, {"prompt": [USER]}], system_prompt="Yours.")
    assert first.content == (own, USER)
    assert second.content == ({"role": "system", "content": "Yours."}, USER)


def test_template_arguments_reach_the_chat_template(chatml):
    (task,) = load(chatml, [{"prompt": [USER]}], chat_template_kwargs={"no_thinking": True})
    assert read(chatml, task, chat_template_kwargs={"no_thinking": True}).endswith(
        "<|im_start|>assistant\n<think></think>"
    )


def test_a_prompt_template_may_name_any_column(tokenizer, chatml):
    rows = [{"prompt": "2+3?", "unit": "apples"}]
    options = {"prompt_template": "Question ({unit}): {prompt}\nAnswer:"}
    (task,) = load(tokenizer, rows, **options)
    assert task.content == "Question (apples): 2+3?\nAnswer:"
    assert read(tokenizer, task) == "<s>Question (apples): 2+3?\nAnswer:"
    (chat,) = load(chatml, rows, chat="always", **options)
    assert chat.content == ({"role": "user", "content": "Question (apples): 2+3?\nAnswer:"},)


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (
            [{"prompt": "a"}],
            {"chat": "messages", "system_prompt": "x"},
            r"system_prompt is set, but data\[0\] is plain text",
        ),
        (
            [{"prompt": "a"}],
            {"chat": "messages", "chat_template_kwargs": {"a": 1}},
            r"chat_template_kwargs is set, but data\[0\] is plain text",
        ),
        ([{"prompt": "a"}, {"prompt": [USER]}], {"chat": "never"}, r"data\[1\]: chat messages, but chat is 'never'"),
        ([{"prompt": [USER]}], {"prompt_template": "{prompt}"}, r"data\[0\]: prompt_template needs text prompts"),
        ([{"prompt": "a"}], {"prompt_template": "{promt}"}, r"prompt_template names column 'promt', which data does"),
    ],
)
def test_an_option_without_effect_or_place_is_an_error(chatml, rows, options, message):
    with pytest.raises(InputError, match=message):
        load(chatml, rows, on_bad_row="skip", **options)


def test_messages_need_a_tokenizer_with_a_chat_template(tokenizer):
    with pytest.raises(InputError, match=r"data\[0\]: chat messages need a chat template, and the tokenizer has none"):
        load(tokenizer, [{"prompt": [USER]}], on_bad_row="skip")


def test_messages_that_the_template_refuses_are_a_bad_row(llama):
    tool = {"role": "tool", "content": "5"}
    with pytest.raises(InputError, match=r"data\[1\]: the chat template refuses the messages: no tool here"):
        load(llama, [{"prompt": [USER]}, {"prompt": [USER, tool]}])
    loaded = load(llama, [{"prompt": [USER]}, {"prompt": [USER, tool]}], on_bad_row="skip")
    assert loaded.skipped == {"the chat template refuses the messages": 1}


def test_long_prompts_stop_with_how_many_and_the_longest(tokenizer):
    rows = [{"prompt": "x"}, {"prompt": "7" * 10}, {"prompt": "7" * 30}]
    message = r"data: 2 of 3 prompts are longer than 4 tokens \(the longest, data\[2\], has 31\)"
    with pytest.raises(InputError, match=message) as caught:
        load(tokenizer, rows, max_prompt_tokens=4)
    assert "data.on_long_prompt=skip" in str(caught.value.hint)
    assert len(load(tokenizer, rows, max_prompt_tokens=31)) == 3


def test_long_prompts_can_be_skipped_and_are_counted_beside_bad_rows(tokenizer):
    rows = [{"prompt": "7" * 9}, {"prompt": ""}, {"prompt": "x"}, {"prompt": "7" * 10}]
    loaded = load(tokenizer, rows, max_prompt_tokens=5, on_long_prompt="skip", on_bad_row="skip")
    assert [task.id for task in loaded.items] == ["data[2]"]
    assert loaded.skipped == {"column 'prompt' is empty": 1, "longer than 5 tokens": 2}
    with pytest.raises(InputError, match=r"3 of 3 prompts are longer than 1 tokens"):
        load(tokenizer, rows, max_prompt_tokens=1, on_long_prompt="skip", on_bad_row="skip")


def one_character_tokenizer(character, *, refuses=False):
    """Knows one character; writes BOS in front and EOS behind. Other characters it leaves out, or `refuses` by an error."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<s>": 0, character: 1, "</s>": 2}
    raw = Tokenizer(models.WordLevel(vocabulary) if refuses else models.BPE(vocab=vocabulary, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    raw.add_special_tokens(["<s>", "</s>"])
    raw.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    return PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="</s>")


def test_a_prompt_of_characters_that_the_tokenizer_lacks_is_bad():
    with pytest.raises(InputError, match=r"data\[1\]: column 'prompt' has no tokens"):
        load(one_character_tokenizer("1"), [{"prompt": "11"}, {"prompt": "x"}])


@pytest.mark.parametrize("unknown", ["left out", "refused"])
@pytest.mark.parametrize("character", ["1", "x"])
def test_the_tokens_in_front_are_found_for_any_alphabet(unknown, character):
    renderer = Renderer(one_character_tokenizer(character, refuses=unknown == "refused"))
    assert renderer.prompt(2 * character, "here") == [0, 1, 1]


def test_an_alphabet_without_special_tokens_in_front_has_none():
    assert Renderer(character_tokenizer("ab")).prompt("ba", "here") == [3, 2]


def test_gsm8k_loads_without_conversion(tokenizer):
    file = REAL / "gsm8k_test.jsonl"
    if not file.is_file():
        pytest.skip(f"GSM8K's file is not at {file}; set REINLM_SHARED_DATA to its folder")
    loaded = load_tasks(DataConfig(path=str(file), chat="auto"), tokenizer)
    first = json.loads(file.read_text(encoding="utf-8").splitlines()[0])
    assert len(loaded) == 1319
    assert loaded[0].content == first["question"]
    assert loaded[0].columns == first
    assert loaded[-1].id == f"{file}:1319"
    assert read(tokenizer, loaded[0]) == "<s>" + first["question"]


def test_columns_are_the_row_s_own_values_and_not_copies_of_them(tokenizer):
    long = ["x"] * 1000
    (task,) = load(tokenizer, [{"prompt": "1", "cases": long}])
    assert task.columns["cases"] is long


def test_a_renderer_may_stand_for_the_tokenizer_but_not_with_other_options(chatml):
    config = DataConfig(path=[{"prompt": [USER]}], chat_template_kwargs={"no_thinking": True})
    assert len(load_tasks(config, build_renderer(config, chatml))) == 1
    with pytest.raises(
        InputError, match=r"chat_template_kwargs=\{'no_thinking': True\} is set, but the renderer given has"
    ):
        load_tasks(config, Renderer(chatml))
