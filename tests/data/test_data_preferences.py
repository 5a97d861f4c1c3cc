"""Judged rows: what each layout becomes, and what malformed ones get."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from data_tokenizers import CHATML, build_tokenizer

from reinlm.data import Judged, JudgedDataConfig, Renderer, load_judged
from reinlm.errors import InputError

PLAIN, CHAT = build_tokenizer(), build_tokenizer(CHATML)
ASK = {"role": "user", "content": "12+30="}
GOOD, BAD = {"role": "assistant", "content": "42"}, {"role": "assistant", "content": "41"}
PAIR = {"prompt": "12+30=", "chosen": "42", "rejected": "41"}
TRANSCRIPT = "\n\nHuman: 12+30=\n\nAssistant: 42 it is.\n\nHuman: Sure?\n\nAssistant:"
HH = {"chosen": f"{TRANSCRIPT} Sure as can be.", "rejected": f"{TRANSCRIPT} Sure as night."}


def load(rows, tokenizer=PLAIN, max_tokens=None, **options):
    return load_judged(JudgedDataConfig(path=rows, **options), tokenizer, max_tokens=max_tokens)


def sides(judged, tokenizer=PLAIN):
    """Every sequence as (prompt, answer) in text."""
    return [
        (tokenizer.decode(one.token_ids[~one.trained]), tokenizer.decode(one.token_ids[one.trained]))
        for one in judged.examples
    ]


PLAIN_PAIR = [("<s>12+30=", "42</s>"), ("<s>12+30=", "41</s>")]
CHAT_PAIR = [
    ("<|im_start|>user\n12+30=<|im_end|>\n<|im_start|>assistant\n", f"{text}<|im_end|>") for text in ("42", "41")
]


@pytest.mark.parametrize(
    ("row", "tokenizer", "expected"),
    [
        (PAIR, PLAIN, PLAIN_PAIR),
        (PAIR, CHAT, CHAT_PAIR),
        ({"prompt": [ASK], "chosen": [GOOD], "rejected": [BAD]}, CHAT, CHAT_PAIR),
        ({"prompt": [ASK], "chosen": "42", "rejected": "41"}, CHAT, CHAT_PAIR),
        ({"prompt": "12+30=", "chosen": [ASK, GOOD], "rejected": [ASK, BAD]}, CHAT, CHAT_PAIR),
        ({"prompt": [ASK], "chosen": [ASK, GOOD], "rejected": [ASK, BAD]}, CHAT, CHAT_PAIR),
        ({"chosen": [ASK, GOOD], "rejected": [ASK, BAD]}, CHAT, CHAT_PAIR),
        ({"question": "12+30=", "chosen": "42", "rejected": "41"}, PLAIN, PLAIN_PAIR),
        ({"question": "12+30=", "response_j": "42", "response_k": "41"}, PLAIN, PLAIN_PAIR),
        ({"chosen": "12+30=42", "rejected": "12+30=51"}, PLAIN, [("<s>12+30=", "42</s>"), ("<s>12+30=", "51</s>")]),
        ({"chosen": "Say yes", "rejected": "Say no"}, CHAT, [("<s>Say", " yes</s>"), ("<s>Say", " no</s>")]),
    ],
)
def test_a_pair_becomes_two_answers_to_one_prompt(row, tokenizer, expected):
    judged = load([row], tokenizer)
    assert judged.kind == "pairs"
    assert sides(judged, tokenizer) == expected
    assert judged.unit.tolist() == [0, 0]
    assert judged.rank.tolist() == [0, 1]
    assert judged.ids == ["data[0]"]


def test_a_transcript_is_split_at_its_last_answer_and_becomes_a_chat_where_text_does():
    plain = sides(load([HH]))
    assert plain == [
        (f"<s>{TRANSCRIPT}", " Sure as can be.</s>"),
        (f"<s>{TRANSCRIPT}", " Sure as night.</s>"),
    ]
    messages = [
        ASK, {"role": "assistant", "content": "42 it is."}, {"role": "user", "content": "Sure?"},
    ]  # fmt: skip
    prompt = CHAT.decode(Renderer(CHAT).prompt(tuple(messages), "here"))
    assert sides(load([HH], CHAT), CHAT) == [
        (prompt, "Sure as can be.<|im_end|>"),
        (prompt, "Sure as night.<|im_end|>"),
    ]


def test_the_sides_begin_with_the_same_tokens_and_a_unit_is_a_group():
    judged = load([PAIR, {**PAIR, "prompt": "1+1="}])
    batch = judged.batch([1, 0])
    assert batch.layout.groups == 2
    assert batch.layout.group_of_episode.tolist() == [0, 0, 1, 1]
    assert batch.tokens == int(judged.examples.trained.sum())
    first, second = judged.take([1]).examples
    size = int(np.argmax(first.trained))
    assert first.token_ids[:size].tolist() == second.token_ids[:size].tolist()


def test_a_ranking_stands_best_first_and_keeps_its_ties():
    judged = load([{"prompt": "1+1=", "answers": ["3", "2", "two"], "ranks": [9, 1, 1]}])
    assert judged.kind == "rankings"
    assert [answer for _, answer in sides(judged)] == ["2</s>", "two</s>", "3</s>"]
    assert judged.rank.tolist() == [0, 0, 1]
    assert load([{"prompt": "1+1=", "answers": ["2", "3"]}]).rank.tolist() == [0, 1]
    assert load([{**PAIR, "tie": True}, {**PAIR, "prompt": "1+2=", "tie": False}]).rank.tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("ranks", [[0.9, 0.1], [0, 1], [-1, 2], [1.5, 1.5]])
def test_scores_are_not_taken_for_ranks(ranks: list[float]) -> None:
    with pytest.raises(InputError, match="column 'ranks' holds what is no rank") as raised:
        load([{"prompt": "1+1=", "answers": ["3", "2"], "ranks": ranks}])
    assert "1 is the best" in str(raised.value.hint)


def test_labels_ratings_margins_weights_and_slices_stand_beside_their_answers():
    labels = load(
        [{"prompt": "1+1=", "completion": "2", "label": True}, {"prompt": "1+1=", "completion": "3", "label": 0}]
    )
    assert labels.kind == "labels"
    assert labels.label.tolist() == [True, False]
    rated = load([
        {"prompt": "1+1=", "completion": "2", "ratings": {"true": 5, "kind": 1.5}},
        {"prompt": "1+1=", "completion": "3", "ratings": {"true": 0, "kind": None}},
    ])  # fmt: skip
    assert rated.kind == "ratings"
    assert rated.ratings["true"].tolist() == [5, 0]
    assert rated.ratings["kind"][0] == 1.5
    assert np.isnan(rated.ratings["kind"][1])
    named = load([{"prompt": "1+1=", "completion": "2", "helpful": 4, "true": 3}], ratings=["helpful", "true"])
    assert {name: values.tolist() for name, values in named.ratings.items()} == {"helpful": [4], "true": [3]}
    assert load([{"prompt": "1+1=", "completion": "2", "rating": 4}]).ratings["rating"].tolist() == [4]
    pairs = load([{**PAIR, "strength": 2, "weight": 3, "domain": "sums"}, {**PAIR, "strength": 1, "weight": 1, "domain": 7}],
                 slices=["domain"])  # fmt: skip
    assert pairs.margin.tolist() == [2, 1]
    assert pairs.weight.tolist() == [3, 1]
    assert pairs.slices["domain"].tolist() == ["sums", "7"]
    other = pairs.take([1])
    assert (other.margin.tolist(), other.weight.tolist(), other.slices["domain"].tolist()) == ([1], [1], ["7"])


def test_a_step_ends_at_the_token_of_its_line_break():
    judged = load([
        {"prompt": "1+1=", "completions": ["one", "two three"], "labels": [True, False]},
        {"prompt": "2+2=", "completions": ["four"], "labels": [1]},
    ])  # fmt: skip
    assert judged.kind == "steps"
    steps = judged.steps
    assert steps.sequence.tolist() == [0, 0, 1]
    assert steps.label.tolist() == [True, False, True]
    texts = [
        PLAIN.decode(judged.examples[owner].token_ids[: end + 1])
        for owner, end in zip(steps.sequence, steps.end, strict=True)
    ]
    assert texts == ["<s>1+1=one\n", "<s>1+1=one\ntwo three\n", "<s>2+2=four\n"]
    other = judged.take([1, 0]).steps
    assert (other.sequence.tolist(), other.label.tolist()) == ([0, 1, 1], [True, True, False])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**PAIR, "rejected": "  "}, "column 'rejected' is empty"),
        ({**PAIR, "rejected": [BAD]}, "one of chosen and rejected is text and the other chat messages"),
        ({"chosen": "yes", "rejected": "no"}, "share no prompt"),
        ({"chosen": [GOOD], "rejected": [BAD]}, "share no prompt"),
        ({"chosen": "12+30=", "rejected": "12+30=51"}, "column 'chosen' is all prompt"),
        ({"chosen": HH["chosen"], "rejected": "\n\nHuman: 1\n\nAssistant: 2"}, "answer different transcripts"),
        ({"chosen": HH["chosen"], "rejected": TRANSCRIPT}, "column 'rejected' ends with an empty answer"),
        ({"prompt": "1+1=", "answers": ["2"]}, "fewer than two answers"),
        ({"prompt": "1+1=", "answers": []}, "column 'answers' is empty"),
        ({"prompt": "1+1=", "answers": "2"}, "not a list of answers but str"),
        ({"prompt": "1+1=", "answers": ["2", "3"], "ranks": [1]}, "one rank to each answer"),
        ({"prompt": "1+1=", "completion": "2", "label": "yes"}, "neither true nor false but 'yes'"),
        ({"prompt": "1+1=", "completion": "2", "rating": float("nan")}, "not finite: nan"),
        ({"prompt": "1+1=", "completion": "2", "rating": "5"}, "not a number but str"),
        ({"prompt": "1+1=", "completion": "2", "ratings": 5}, "not a mapping of criteria"),
        ({"prompt": "1+1=", "completion": "2", "ratings": {}}, "column 'ratings' is empty"),
        ({"prompt": "1+1=", "completions": ["2"], "labels": [True, False]}, "one label to each step"),
        ({"prompt": "1+1=", "completions": [[GOOD]], "labels": [True]}, "steps that are not text"),
        ({**PAIR, "margin": "much"}, "column 'margin' is not a number"),
        ({**PAIR, "weight": 0}, "column 'weight' is not above 0"),
        ({"prompt": [ASK], "chosen": [{"role": "user", "content": "x"}, GOOD], "rejected": [BAD]}, "not the prompt's"),
    ],
)  # fmt: skip
def test_a_malformed_judgement_stops_the_run(row, message):
    with pytest.raises(InputError) as caught:
        load([row], CHAT)
    assert caught.value.message.startswith("data[0]: ")
    assert message in caught.value.message


def test_malformed_judgements_are_left_out_and_counted_where_the_user_says_so():
    judged = load([{**PAIR, "rejected": ""}, PAIR, {**PAIR, "margin": 1}], on_bad_row="skip")
    assert judged.ids == ["data[2]"]  # `margin` is a column of the data now
    assert judged.skipped == {"column 'rejected' is empty": 1, "column 'margin' is missing": 1}


def test_layouts_options_and_lengths_that_do_not_fit_are_named():
    with pytest.raises(InputError, match="no column 'rejected'"):
        load([{"prompt": "1", "chosen": "2"}])
    for option in ("ratings", "slices"):
        with pytest.raises(InputError, match=f"data.{option} names column 'helpful'"):
            load([{"prompt": "1", "completion": "2", "rating": 2}], **{option: ["helpful"]})
    with pytest.raises(InputError, match="1 of 2 pairs are longer than 12 tokens"):
        load([PAIR, {**PAIR, "rejected": "41" * 9}], max_tokens=12)
    kept = load([PAIR, {**PAIR, "rejected": "41" * 9}], max_tokens=12, on_long_prompt="skip")
    assert kept.ids == ["data[0]"]
    assert kept.skipped == {"longer than 12 tokens": 1}


def test_units_are_numbered_without_a_gap():
    judged = load([PAIR, PAIR])
    with pytest.raises(ValueError, match="without a gap"):
        Judged("pairs", judged.examples, unit=np.array([0, 0, 2, 2]), ids=["a", "b"], rank=judged.rank)
    with pytest.raises(ValueError, match="3 units and 4 ranks for 4 sequences"):
        Judged("pairs", judged.examples, unit=np.array([0, 0, 1]), ids=["a", "b"], rank=judged.rank)
    assert torch.equal(judged.batch([0]).layout.group_of_episode, torch.tensor([0, 0]))


def test_a_margin_that_some_rows_lack_is_refused_with_the_row_that_lacks_it():
    rows: list[dict[str, Any]] = [
        {**PAIR, "margin": 1.0},
        {**PAIR, "prompt": "1+2="},
        {**PAIR, "prompt": "1+3=", "margin": None},
    ]
    with pytest.raises(InputError, match=r"data\[1\]: column 'margin' is missing, which other rows have") as caught:
        load(rows)
    assert str(caught.value.hint).startswith("give it in every row, or in none")
    with pytest.raises(InputError, match=r"data\[2\]: column 'margin' is null, which other rows have"):
        load([rows[0], {**rows[0], "prompt": "1+2="}, rows[2]])
