"""Step rewards by lines, separators and spans land on the token that completes the step's last character."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rewards_support import make_group

from reinlm.models import character_tokenizer
from reinlm.records import NO_TURN, Rollout, Segment, Task
from reinlm.rewards import StepRewards, build_rewards
from reinlm.rollouts.token_ends import token_ends


class Pieces:
    """A tokenizer of byte pieces; a character that is not complete shows as the replacement mark, as in byte-level BPE."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces

    def decode(self, ids: list[int], **_: Any) -> str:
        return b"".join(self.pieces[index] for index in ids).decode(errors="replace")


def answer(pieces: tuple[bytes, ...], text: str, stop: bool = False) -> tuple[Any, Rollout]:
    ids = [0, *range(1, len(pieces) + 1), *([len(pieces) + 1] if stop else [])]
    turns = [NO_TURN, *[0] * (len(ids) - 1)]
    columns = {"rollout_logprobs": np.zeros(len(ids) - 1), "version": np.zeros(len(ids) - 1)}
    segment = Segment(np.array(ids), np.array(turns), columns)
    rollout = Rollout(
        Task("a:1", "p"), (segment,), text, terminated=stop, truncated=not stop, reason="stop" if stop else "length"
    )
    return Pieces(b"p", *pieces, b""), rollout


@pytest.mark.parametrize(
    ("pieces", "text", "ends"),
    [
        ((b"ab", b"c\nd", b"e"), "abc\nde", [2, 5, 6]),
        (("é".encode()[:1], "é".encode()[1:], b"x"), "éx", [0, 1, 2]),
        (("€".encode()[:2], "€".encode()[2:] + b"\n", b"y"), "€\ny", [0, 2, 3]),
        ((b"a", "€".encode()[:2]), "a\N{REPLACEMENT CHARACTER}", [1, 2]),
        ((b"", b"a"), "a", [0, 1]),
    ],
)
def test_tokens_end_where_their_characters_are_complete(pieces: tuple[bytes, ...], text: str, ends: list[int]) -> None:
    tokenizer, rollout = answer(pieces, text)
    assert token_ends(tokenizer, frozenset(), rollout) == ends
    tokenizer, rollout = answer(pieces, text, stop=True)
    assert token_ends(tokenizer, frozenset({len(pieces) + 1}), rollout) == [*ends, ends[-1]]


def test_a_text_that_the_tokens_do_not_say_has_no_places() -> None:
    tokenizer, rollout = answer((b"ab",), "xy")
    assert token_ends(tokenizer, frozenset(), rollout) is None


@pytest.mark.parametrize(
    ("made", "characters"),
    [
        (StepRewards.from_lines("ab\n\ncd", [1.0, 2.0, None]), ((1, 1.0), (3, 2.0))),
        (StepRewards.from_lines("ab\r\ncd\n", lambda line: float(len(line))), ((1, 2.0), (5, 2.0))),
        (StepRewards.from_lines("", []), ()),
        (StepRewards.from_separator("a. bc. ", ". ", [1, 2]), ((0, 1), (4, 2))),
        (StepRewards.from_separator("a. bc. ", ". ", [1, 2, 3]), ((0, 1), (4, 2))),
        (StepRewards.from_separator("a. . b", ". ", [1, 2, 3]), ((0, 1), (4, 2), (5, 3))),
        (StepRewards.from_separator("", ". ", []), ()),
        (StepRewards.from_spans("abcd", [(0, 2, 1.0), (1, 4, 0.5), (0, 1, None)]), ((1, 1.0), (3, 0.5))),
    ],
)
def test_helpers_place_values_on_the_last_character_of_a_step(made: StepRewards, characters: Any) -> None:
    assert made.characters == characters


def test_a_wrong_number_of_values_and_a_span_outside_are_refused() -> None:
    with pytest.raises(ValueError, match="1 values for 2 lines"):
        StepRewards.from_lines("a\nb", [1.0])
    with pytest.raises(ValueError, match=r"the span \(1, 9\) is empty or outside the text of 2 characters"):
        StepRewards.from_spans("ab", [(1, 9, 1.0)])


def test_a_token_that_straddles_two_steps_is_the_last_of_the_first() -> None:
    tokenizer, rollout = answer((b"ab", b"c\nd", b"e"), "abc\nde")
    group = make_group("a:1", ["x"])
    group = type(group)(rollout.task, (rollout,))
    with build_rewards(
        lambda completions: [StepRewards.from_lines(text, [1.0, 0.5], outcome=2.0) for text in completions]
    ) as rewards:
        ends = lambda one: token_ends(tokenizer, frozenset(), one)  # noqa: E731
        (events,) = rewards.score([group], token_ends=ends).groups[0].events
    assert [(event.token, event.value) for event in events] == [(1, 1.0), (2, 0.5), (None, 2.0)]


def test_places_agree_with_a_real_tokenizer() -> None:
    tokenizer = character_tokenizer("0123456789+=")
    ids = tokenizer("12+3", add_special_tokens=False)["input_ids"]
    segment = Segment(
        np.array([ids[0], *ids]),
        np.array([NO_TURN, 0, 0, 0, 0]),
        {"rollout_logprobs": np.zeros(4), "version": np.zeros(4)},
    )
    rollout = Rollout(Task("a", "1"), (segment,), "12+3", terminated=False, truncated=True, reason="length")
    assert token_ends(tokenizer, frozenset(), rollout) == [1, 2, 3, 4]
