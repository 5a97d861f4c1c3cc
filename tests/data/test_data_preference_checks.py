"""Judged answers as a whole: contradictions, filters, cut prompts, and what is said of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from data_tokenizers import build_tokenizer

from reinlm.data import JudgedDataConfig, load_judged
from reinlm.data.preference_checks import circles, describe, similarity
from reinlm.errors import InputError

PLAIN = build_tokenizer()


def pair(chosen, rejected, prompt="12+30=", **more):
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected, **more}


def load(rows, max_tokens=None, **options):
    return load_judged(JudgedDataConfig(path=rows, **options), PLAIN, max_tokens=max_tokens)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([pair("42", "42")], "data[0]: chosen and rejected are equal"),
        ([pair("42</s>", "42")], "data[0]: two of its answers have the same tokens"),
        ([{"prompt": "1", "answers": ["2", "3", "2"]}], "data[0]: the ranking repeats an answer"),
        ([pair("42", "41"), pair("1", "2"), pair("41", "42")], "data[0]: the same pair is judged both ways, also in data[2]"),
        (
            [pair("42", "41"), pair("1", "2"), pair("41", "42", tie=True)],
            "data[0]: the same pair is judged a tie and no tie, also in data[2]",
        ),
        (
            [{"prompt": "1", "completion": "2", "label": label} for label in (True, False)],
            "data[0]: the same answer has both labels, also in data[1]",
        ),
    ],
)  # fmt: skip
def test_what_contradicts_itself_stops_the_run_or_is_left_out_and_counted(rows, message):
    with pytest.raises(InputError) as caught:
        load(rows)
    assert caught.value.message == message
    fine = rows[0] | ({"completion": "9"} if "completion" in rows[0] else {})
    fine |= (
        {"chosen": "7", "rejected": "8"} if "chosen" in fine else {"answers": ["7", "8"]} if "answers" in fine else {}
    )
    kept = load([*rows, fine], on_bad_row="skip")
    assert f"data[{len(rows)}]" in kept.ids
    assert sum(kept.skipped.values()) == len(rows) + 1 - len(kept)
    assert message.partition(": ")[2].partition(", also")[0] in kept.skipped


def test_ties_in_both_orders_contradict_nothing():
    assert len(load([pair("42", "41", tie=True), pair("41", "42", tie=True)])) == 2


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([pair("1", "2"), pair("2", "3"), pair("1", "3")], []),
        ([pair("7", "8"), pair("1", "2"), pair("2", "3"), pair("3", "1"), pair("3", "4")], [1, 2, 3]),
        ([pair("1", "2"), pair("2", "3"), pair("3", "1", prompt="9=")], []),
        ([pair("1", "2", tie=True), pair("2", "3", tie=True), pair("1", "3")], [0, 1, 2]),
        ([pair("1", "2", tie=True), pair("2", "3", tie=True), pair("3", "1", tie=True)], []),
        ([{"prompt": "1=", "answers": ["5", "6", "7"]}, {"prompt": "1=", "answers": ["7", "8", "5"]}], [0, 1]),
    ],
)
def test_judgements_that_go_in_a_circle_are_counted_with_examples(rows, found):
    judged = load(rows)
    assert circles(judged) == found
    lines = [line for line in describe(judged) if line.startswith("circles: ")]
    assert len(lines) == bool(found)
    if found:
        assert lines[0].startswith(f"circles: {len(found)} of {len(rows)} {judged.kind} contradict")
        assert f"such as data[{found[0]}], data[{found[1]}]" in lines[0]


def test_a_long_chain_is_followed_without_recursion():
    answers = [str(1000 + number) for number in range(3000)]
    rows = [pair(better, worse) for better, worse in itertools.pairwise(answers)]
    assert circles(load(rows)) == []
    assert len(circles(load([*rows, pair(answers[-1], answers[0])]))) == 3000


@pytest.mark.parametrize(
    ("chosen", "rejected", "expected"),
    [
        ("7", "77", 1 / 2),  # 7 </s> against 7 7, 7 </s>
        ("7", "8", 0.0),
        ("77777", "7777", 3 / 4),  # one trigram, 3 and 2 times, with one that ends the answer
    ],
)
def test_short_and_repeating_answers_are_alike_only_as_far_as_they_are_equal(chosen, rejected, expected):
    assert similarity(load([pair(chosen, rejected)])).tolist() == pytest.approx([expected])


def test_similarity_is_the_share_of_common_trigrams():
    judged = load([pair("12345678", "1234567x"), pair("abcdefg", "12345678"), pair("4", "5")])
    answers = [[*one.token_ids[one.trained].tolist()] for one in judged.examples[:2]]
    left, right = ({tuple(ids[i : i + 3]) for i in range(len(ids) - 2)} for ids in answers)
    found = similarity(judged)
    assert found[0] == pytest.approx(len(left & right) / len(left | right))
    assert found[0] > found[1] == 0.0


def test_ambiguous_and_similar_pairs_are_left_out_and_counted():
    rows = [pair("12345678", "1234567x", margin=2), pair("abcdefg", "12345678", margin=0.5), pair("7", "x", margin=1)]
    judged = load(rows, min_margin=1.0)
    assert (judged.ids, judged.skipped) == (["data[0]", "data[2]"], {"margin below 1": 1})
    judged = load(rows, max_similarity=0.3)
    assert (judged.ids, judged.skipped) == (["data[1]", "data[2]"], {"answers more alike than 0.3": 1})
    with pytest.raises(InputError, match=r"no row is left: 3 × margin below 9"):
        load(rows, min_margin=9.0)
    with pytest.raises(InputError, match="has neither"):
        load([pair("1", "2")], min_margin=1.0)
    with pytest.raises(InputError, match=r"data\.max_similarity has no effect"):
        load([{"prompt": "1", "completion": "2", "label": True}], max_similarity=0.5)


def test_a_prompt_is_cut_from_the_left_on_both_sides_alike():
    prompt = "".join(chr(97 + index) for index in range(20))
    judged = load([pair("42", "41xyz", prompt=prompt), pair("1", "x" * 30), pair("1", "2")], 16, on_long_prompt="cut")
    assert judged.ids == ["data[0]", "data[2]"]
    assert (judged.shortened, judged.skipped) == (1, {"longer than 16 tokens": 1})
    first, second = judged.examples[:2]
    assert len(second) == 16
    prompts = [one.token_ids[~one.trained].tolist() for one in (first, second)]
    assert prompts[0] == prompts[1]
    assert PLAIN.decode(prompts[0]) == "<s>" + prompt[-(len(prompts[0]) - 1) :]
    assert PLAIN.decode(first.token_ids[first.trained]) == "42</s>"


def test_the_ends_of_steps_move_with_a_cut_prompt():
    row = {"prompt": "abcdefghijklmnop", "completions": ["1", "2"], "labels": [True, False]}
    judged = load([row], 12, on_long_prompt="cut")
    ends = judged.examples[0].token_ids[judged.steps.end].tolist()
    assert PLAIN.decode(ends) == "\n\n"
    assert judged.steps.end[-1] == len(judged.examples[0]) - 1 == 11


def test_what_is_said_of_the_data_has_counts_and_examples():
    rows = [pair("1234567890123", "1234567890123x", margin=1, domain="sums"), pair("7", "abcdef", margin=3, domain="sums"),
            pair("7", "abcdef", margin=3, domain="words")]  # fmt: skip
    lines = describe(load(rows, slices=["domain"]))
    assert lines[0].startswith("length: the best answers have ")
    assert lines[0].endswith("; the best is the longer one in 0%")
    assert "near-duplicates: 1 of 3 pairs" in lines[1] or similarity(load(rows))[0] < 0.9
    assert "margin: 1 to 3, median 3 (data.min_margin leaves small ones out)" in lines
    assert "repeated: 1 of 3 pairs say what an earlier row says, such as data[2]" in lines
    assert lines[-1] == "by domain: sums 2, words 1"
    labels = load([{"prompt": "1", "completion": str(n), "label": n > 2} for n in range(8)])
    assert describe(labels) == ["labels: 5 good, 3 bad"]
    assert np.isfinite(similarity(labels)).all()
