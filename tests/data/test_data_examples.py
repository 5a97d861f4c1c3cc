"""Examples: answers and one stop token are trained, and what precedes them is what sampling would feed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from data_tokenizers import CHATML, LLAMA, THINKING, build_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from reinlm.data import DataConfig, Renderer, load_examples
from reinlm.errors import InputError

REAL = Path(os.environ.get("REINLM_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
USER = {"role": "user", "content": "What is two plus three?"}
FIVE = {"role": "assistant", "content": "The answer is five."}
PLAIN = build_tokenizer()
CHATS = {"chatml": (build_tokenizer(CHATML), "<|im_end|>"), "llama": (build_tokenizer(LLAMA), "<|eot|>")}
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1).filter(str.strip)


def load(tokenizer, rows, max_tokens=None, **options):
    return load_examples(DataConfig(path=rows, **options), tokenizer, max_tokens=max_tokens)


def trained_ids(example):
    return example.token_ids[example.trained].tolist()


def marked(tokenizer, example):
    """The example as text, trained stretches in double brackets."""
    out, inside = "", False
    for token, trained in zip(example.token_ids, example.trained, strict=True):
        if trained != inside:
            out, inside = out + ("[[" if trained else "]]"), trained
        out += tokenizer.decode([token])
    return out + ("]]" if inside else "")


def test_the_completion_and_one_eos_are_trained_and_the_prompt_is_not(tokenizer):
    (example,) = load(tokenizer, [{"prompt": "12+30=", "completion": "42"}])
    assert marked(tokenizer, example) == "<s>12+30=[[42</s>]]"
    assert example.id == "data[0]"


def test_an_eos_that_the_user_wrote_is_not_doubled(tokenizer):
    (example,) = load(tokenizer, [{"prompt": "12+30=", "completion": "42</s>"}])
    assert marked(tokenizer, example) == "<s>12+30=[[42</s>]]"


@settings(deadline=None, max_examples=100)
@given(TEXTS, TEXTS)
def test_trained_tokens_decode_to_the_completion_and_stop_after_the_prompt_that_sampling_feeds(prompt, completion):
    row = {"prompt": prompt, "completion": completion}
    (example,) = load(PLAIN, [row])
    trained = trained_ids(example)
    assert PLAIN.decode(trained[:-1]) == completion
    assert trained[-1] == PLAIN.eos_token_id
    before = example.token_ids[: len(example.token_ids) - len(trained)]
    assert before.tolist() == Renderer(PLAIN).prompt(prompt, "here")


@pytest.mark.parametrize("style", CHATS)
@settings(deadline=None, max_examples=60)
@given(TEXTS.map(str.strip), TEXTS.map(str.strip))
def test_in_a_chat_too_the_answer_and_the_end_of_its_turn_are_trained(style, question, answer):
    tokenizer, stop = CHATS[style]
    row = {"prompt": question, "completion": answer}
    (example,) = load(tokenizer, [row], chat="always")
    trained = trained_ids(example)
    assert str(tokenizer.decode(trained[:-1])).strip() == answer.strip()
    assert tokenizer.decode(trained[-1:]) == stop
    before = example.token_ids[: len(example.token_ids) - len(trained)]
    assert before.tolist() == Renderer(tokenizer).prompt(({"role": "user", "content": question},), "here")


def test_a_token_that_would_span_the_seam_is_split_there(tokenizer):
    assert tokenizer.tokenize("12") == ["12"]
    (example,) = load(tokenizer, [{"prompt": "1", "completion": "2+3"}])
    assert marked(tokenizer, example) == "<s>1[[2+3</s>]]"


def test_a_tokenizer_that_marks_the_start_of_a_text_does_not_mark_the_answer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(["</s>", "▁", "1", "2", "="])}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    raw.decoder = decoders.Metaspace(prepend_scheme="first")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="</s>")
    (example,) = load(tokenizer, [{"prompt": "1=", "completion": "2"}])
    assert tokenizer.convert_ids_to_tokens(example.token_ids.tolist()) == ["▁", "1", "=", "2", "</s>"]


def test_every_assistant_turn_is_trained_and_nothing_else(chatml, llama):
    chat = [{"role": "system", "content": "Be kind."}, USER, FIVE, USER, FIVE, USER]
    (example,) = load(chatml, [{"messages": chat}])
    user = "<|im_start|>user\nWhat is two plus three?<|im_end|>\n<|im_start|>assistant\n"
    assert marked(chatml, example) == (
        f"<|im_start|>system\nBe kind.<|im_end|>\n{user}[[The answer is five.<|im_end|>]]\n"
        f"{user}[[The answer is five.<|im_end|>]]"
    )
    (example,) = load(llama, [{"messages": [USER, FIVE, USER, FIVE]}])
    user = "<|head|>user\n\nWhat is two plus three?<|eot|><|head|>assistant\n\n"
    assert marked(llama, example) == f"<s>{user}[[The answer is five.<|eot|>]]{user}[[The answer is five.<|eot|>]]"


def test_a_completion_in_messages_leaves_the_assistant_turns_of_the_prompt_untrained(chatml):
    short = {"role": "assistant", "content": "five"}
    (example,) = load(chatml, [{"prompt": [USER, FIVE, USER], "completion": [short]}])
    assert chatml.decode(trained_ids(example)) == "five<|im_end|>"
    (wrapped,) = load(chatml, [{"prompt": "Two?", "completion": [short]}])
    assert marked(chatml, wrapped) == "<|im_start|>user\nTwo?<|im_end|>\n<|im_start|>assistant\n[[five<|im_end|>]]"
    (text,) = load(chatml, [{"prompt": [USER], "completion": "five"}])
    assert chatml.decode(trained_ids(text)) == "five<|im_end|>"


def test_a_template_that_cuts_thoughts_out_is_followed_as_sampling_meets_it(thinking):
    first = {"role": "assistant", "content": "so 2+3</think>5"}
    second = {"role": "assistant", "content": "again</think>6"}
    examples = load(thinking, [{"messages": [USER, first, USER, second]}])
    assert [example.id for example in examples] == ["data[0]", "data[0]#2"]
    question = "<|head|>What is two plus three?<|im_start|>"
    assert marked(thinking, examples[0]) == f"<s>{question}<think>\n[[so 2+3</think>5</s>]]"
    assert marked(thinking, examples[1]) == f"<s>{question}5</s>{question}<think>\n[[again</think>6</s>]]"


def test_a_template_without_an_end_of_turn_gets_eos_and_an_example_a_turn(bare):
    examples = load(bare, [{"messages": [USER, FIVE, USER, FIVE]}])
    asked = "user: What is two plus three?\nassistant: "
    assert [marked(bare, example) for example in examples] == [
        f"{asked}[[The answer is five.</s>]]",
        f"{asked}The answer is five.\n{asked}[[The answer is five.</s>]]",
    ]


def test_an_opening_that_an_option_adds_is_part_of_the_prompt(chatml):
    (example,) = load(chatml, [{"messages": [USER, FIVE]}], chat_template_kwargs={"no_thinking": True})
    assert marked(chatml, example).endswith("assistant\n<think></think>[[The answer is five.<|im_end|>]]")


def test_a_whole_text_is_trained_but_for_what_nothing_predicts(tokenizer):
    (example,) = load(tokenizer, [{"text": "12+30=42"}])
    assert marked(tokenizer, example) == "<s>[[12+30=42</s>]]"


def test_without_bos_the_first_token_of_a_text_is_not_trained():
    from transformers import PreTrainedTokenizerFast

    raw = build_tokenizer().backend_tokenizer
    raw.post_processor = None
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="</s>")
    (example,) = load(tokenizer, [{"text": "12+30=42"}])
    assert marked(tokenizer, example) == "12[[+30=42</s>]]"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chat": "always"}, r"chat: always is set, but data\[0\] is a whole text without a prompt"),
        ({"prompt_template": "{text}"}, r"prompt_template is set, but data\[0\] is a whole text"),
        ({"system_prompt": "x"}, r"system_prompt is set, but data\[0\] is plain text"),
    ],
)
def test_options_for_prompts_are_errors_with_whole_texts(chatml, options, message):
    with pytest.raises(InputError, match=message):
        load(chatml, [{"text": "a"}], **options)


def test_a_prompt_template_is_an_error_with_messages_and_works_with_completions(chatml, tokenizer):
    with pytest.raises(InputError, match=r"data\[0\]: prompt_template needs text prompts, and this row is a chat"):
        load(chatml, [{"messages": [USER, FIVE], "prompt": "x"}], prompt_template="{prompt}")
    (example,) = load(tokenizer, [{"prompt": "2+3", "completion": " 5"}], prompt_template="Q: {prompt}\nA:")
    assert marked(tokenizer, example) == "<s>Q: 2+3\nA:[[ 5</s>]]"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"messages": [USER]}, "no assistant message to train on"),
        ({"messages": [FIVE]}, "the chat begins with an assistant message"),
        ({"prompt": "a", "completion": ""}, "column 'completion' is empty"),
        ({"prompt": "a", "completion": 3}, "column 'completion' is neither text nor chat messages but int"),
        ({"prompt": "a", "completion": [USER]}, "no assistant message to train on"),
    ],
)
def test_a_row_without_an_answer_to_train_on_is_bad(chatml, row, message):
    with pytest.raises(InputError, match=rf"^data\[0\]: {message}"):
        load(chatml, [row])


def test_bad_rows_are_skipped_and_counted(chatml):
    loaded = load(chatml, [{"messages": [USER]}, {"messages": [USER, FIVE]}], on_bad_row="skip")
    assert [example.id for example in loaded] == ["data[1]"]
    assert loaded.skipped == {"no assistant message to train on": 1}


def test_long_examples_stop_or_are_skipped_and_never_cut(tokenizer):
    rows = [{"prompt": "1", "completion": "7" * 20}, {"prompt": "1", "completion": "2"}]
    message = r"data: 1 of 2 examples are longer than 4 tokens \(the longest, data\[0\], has 23\)"
    with pytest.raises(InputError, match=message):
        load(tokenizer, rows, max_tokens=4)
    loaded = load(tokenizer, rows, max_tokens=4, on_long_prompt="skip")
    assert [marked(tokenizer, example) for example in loaded] == ["<s>1[[2</s>]]"]
    assert loaded.skipped == {"longer than 4 tokens": 1}
    assert load(tokenizer, rows, max_tokens=23).skipped == {}


def test_a_tokenizer_without_eos_is_named():
    from transformers import PreTrainedTokenizerFast

    endless = PreTrainedTokenizerFast(tokenizer_object=build_tokenizer().backend_tokenizer)
    with pytest.raises(InputError, match="the tokenizer has no EOS token"):
        load(endless, [{"prompt": "a", "completion": "b"}])


def test_a_template_that_leaves_answers_out_is_named():
    silent = build_tokenizer(
        "{% for m in messages %}{% if m['role'] == 'user' %}{{ m['content'] }}{% endif %}{% endfor %}"
    )
    with pytest.raises(InputError, match=r"data\[0\]: the chat template leaves the answer out"):
        load(silent, [{"messages": [USER, FIVE]}])


def test_an_answer_without_content_that_the_template_rewrites_is_named():
    template = THINKING.replace("m['content'].split", "(m['content'] or 'call').split")
    calling = build_tokenizer(template)
    call = {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}]}
    with pytest.raises(InputError, match=r"data\[0\]: the chat template rewrites an answer without content"):
        load(calling, [{"messages": [USER, call]}])


@pytest.mark.parametrize("column", ["prompt", "completion", "text"])
def test_characters_that_the_tokenizer_lacks_are_named_by_column(column):
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE(vocab={"1": 0, "</s>": 1}, merges=[]))
    raw.add_special_tokens(["</s>"])
    digits = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="</s>")
    row = {"text": "x"} if column == "text" else {"prompt": "1", "completion": "1", column: "x"}
    with pytest.raises(InputError, match=rf"data\[0\]: column '{column}' has no tokens"):
        load(digits, [row])


def test_gsm8k_trains_on_its_answers_without_conversion(tokenizer):
    file = REAL / "gsm8k_test.jsonl"
    if not file.is_file():
        pytest.skip(f"GSM8K's file is not at {file}; set REINLM_SHARED_DATA to its folder")
    loaded = load(tokenizer, str(file), limit=200)
    assert len(loaded) == 200
    assert tokenizer.decode(trained_ids(loaded[1])) == (
        "It takes 2/2=<<2/2=1>>1 bolt of white fiber\n"
        "So the total amount of fabric is 2+1=<<2+1=3>>3 bolts of fabric\n#### 3</s>"
    )
