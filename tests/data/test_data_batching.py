"""Many rows in one call of the tokenizer give what each row gives alone, and errors keep to their rows."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pytest
from data_row_by_row import RowByRow
from data_tokenizers import BARE, CHATML, LLAMA, THINKING, build_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from reinlm.data import DataConfig, Examples, load_examples, load_tasks
from reinlm.data.batching import _TOGETHER, Encoder, Untokenizable
from reinlm.errors import InputError


def characters():
    """A token a character of a small alphabet, as the tiny models have."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.WordLevel({token: i for i, token in enumerate(["</s>", *"0123456789+= ab"])}))
    raw.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    raw.add_special_tokens(["</s>"])
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="</s>")


PLAIN = {"bpe": build_tokenizer(), "closing": build_tokenizer(closing=True), "characters": characters()}
STYLES = {"chatml": CHATML, "llama": LLAMA, "thinking": THINKING, "bare": BARE}
CHATS = {name: build_tokenizer(template) for name, template in STYLES.items()}
WORDS = st.text("0123456789+= ab", min_size=1, max_size=12).filter(str.strip)
TURN = st.tuples(WORDS, st.one_of(WORDS, st.builds("{}</think>{}".format, WORDS, WORDS))).map(
    lambda pair: [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]
)
ROWS = {
    "text": st.builds(dict, text=WORDS),
    "prompt": st.builds(dict, prompt=WORDS, completion=WORDS),
    "chat": st.lists(TURN, min_size=1, max_size=3).map(lambda turns: {"messages": [*chain.from_iterable(turns)]}),
}


def assert_equal_to_rows_alone(tokenizer, rows):
    alone = [example for row in rows for example in RowByRow(tokenizer).examples(row)]
    batched = load_examples(DataConfig(path=rows), tokenizer)
    assert [(e.token_ids.tolist(), e.trained.tolist()) for e in batched] == alone


@pytest.mark.parametrize("kind", ["text", "prompt"])
@pytest.mark.parametrize("name", PLAIN)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_batched_texts_equal_rows_alone(name, kind, data):
    assert_equal_to_rows_alone(PLAIN[name], data.draw(st.lists(ROWS[kind], min_size=1, max_size=6)))


@pytest.mark.parametrize("style", CHATS)
@settings(deadline=None, max_examples=40)
@given(st.lists(ROWS["chat"], min_size=1, max_size=5))
def test_batched_chats_equal_rows_alone(style, rows):
    assert_equal_to_rows_alone(CHATS[style], rows)


def test_more_rows_than_run_together_keep_their_order(tokenizer):
    rows = [{"prompt": f"{index}+", "completion": str(index)} for index in range(2 * _TOGETHER + 3)]
    assert_equal_to_rows_alone(tokenizer, rows)


def test_a_truncation_in_the_tokenizer_s_file_cuts_nothing():
    tokenizer = build_tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(3)
    (example,) = load_examples(DataConfig(path=[{"text": "12+30=42" * 5}]), tokenizer)
    assert tokenizer.decode(example.token_ids) == f"<s>{'12+30=42' * 5}</s>"


def test_a_tokenizer_whose_batch_call_says_something_else_is_asked_text_by_text(tokenizer):
    class Shouting:
        """Tokenises in upper case, which its Rust tokenizer knows nothing of."""

        is_fast = True
        backend_tokenizer = tokenizer.backend_tokenizer

        def __call__(self, text, **options):
            return tokenizer(text.upper(), **options)

    texts = ["question", "answer"]
    shouting: Any = Shouting()
    assert Encoder(shouting)(texts) == [tokenizer(t.upper(), add_special_tokens=False)["input_ids"] for t in texts]


def lacking_x():
    """Raises for a character that is not in its alphabet, as word-level models without an unknown token do."""
    tokenizer = characters()
    assert isinstance(Encoder(tokenizer)(["x"])[0], Untokenizable)
    return tokenizer


def test_a_text_that_cannot_be_read_is_a_bad_row_of_its_own():
    rows = [{"prompt": "1", "completion": "2"}, {"prompt": "1", "completion": "x"}, {"prompt": "3", "completion": "4"}]
    with pytest.raises(InputError, match=r"data\[1\]: column .* cannot be tokenized"):
        load_examples(DataConfig(path=rows), lacking_x())
    kept = load_examples(DataConfig(path=rows, on_bad_row="skip"), lacking_x())
    assert kept.ids == ["data[0]", "data[2]"]
    assert sum(kept.skipped.values()) == 1
    with pytest.raises(InputError, match=r"data\[1\]: column 'prompt' cannot be tokenized"):
        load_tasks(DataConfig(path=[{"prompt": "1"}, {"prompt": "x"}]), lacking_x())


def test_of_several_wrong_rows_the_first_is_named_whatever_is_wrong_with_it(chatml):
    untold = [{"role": "assistant", "content": "5"}]
    rows = [{"messages": [{"role": "user", "content": "a"}]}, {"messages": untold}]
    with pytest.raises(InputError, match=r"^data\[0\]: no assistant message"):
        load_examples(DataConfig(path=rows), chatml)
    with pytest.raises(InputError, match=r"^data\[0\]: the chat begins with an assistant"):
        load_examples(DataConfig(path=rows[::-1]), chatml)


COLUMNS = Examples(["a", "b", "c"], np.array([5, 6, 7, 8, 9]), np.array([0, 1, 0, 1, 1], bool), np.array([0, 2, 3, 5]))


def test_an_example_is_a_view_of_its_stretch():
    assert [example.token_ids.tolist() for example in COLUMNS] == [[5, 6], [7], [8, 9]]
    assert COLUMNS[-1].trained.tolist() == [True, True]
    assert np.shares_memory(COLUMNS[0].token_ids, COLUMNS.token_ids)
    assert (COLUMNS.lengths.tolist(), len(COLUMNS[2]), COLUMNS.nbytes) == ([2, 1, 2], 2, 5 * 4 + 5 + 4 * 8)
    with pytest.raises(IndexError):
        COLUMNS[3]
    with pytest.raises(ValueError, match="read-only"):
        COLUMNS.token_ids[0] = 1


@given(st.lists(st.integers(0, 2), max_size=6))
def test_taking_examples_equals_taking_them_one_by_one(indices):
    taken = COLUMNS.take(indices)
    assert [(e.id, e.token_ids.tolist(), e.trained.tolist()) for e in taken] == [
        (COLUMNS[i].id, COLUMNS[i].token_ids.tolist(), COLUMNS[i].trained.tolist()) for i in indices
    ]
    assert [e.id for e in COLUMNS[1:]] == ["b", "c"]


def test_columns_that_do_not_belong_together_are_refused():
    with pytest.raises(ValueError, match="2 ids, 2 offsets that end at 1, 1 token ids and 1 flags do not belong"):
        Examples(["a", "b"], np.array([1]), np.array([True]), np.array([0, 1]))
