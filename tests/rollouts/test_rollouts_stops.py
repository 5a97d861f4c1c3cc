"""Stop strings over tokens that do not line up with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from reinlm.rollouts.stops import StopStrings, TokenText


def completed_at(strings: tuple[str, ...], ids: list[int], tokenizer: PreTrainedTokenizerFast) -> int | None:
    """The number of tokens after which the first string is complete, fed one at a time."""
    stops = StopStrings(strings, TokenText(tokenizer))
    return next((n for n in range(1, len(ids) + 1) if stops.completed(ids[:n])), None)


@pytest.mark.parametrize(
    ("text", "strings"),
    [
        ("the answer is ####42 and more", ("####4",)),
        ("one\n\nHuman: two", ("\n\nHuman:",)),
        ("naïve café, s'il vous plaît", ("é",)),
        ("smile 🙂 and go on", ("🙂",)),
        ("日本語です", ("語",)),
        ("a long way to go before the very last words of this sentence.", ("before the very last words of this",)),
        ("ends in space here", ("in ",)),
        ("first of several", ("zzz", "of", "several")),
        ("the end", ("the end",)),
    ],
)
def test_the_token_that_completes_the_string_is_found(
    text: str, strings: tuple[str, ...], tokenizer: PreTrainedTokenizerFast
) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    expected = next(n for n in range(1, len(ids) + 1) if any(s in tokenizer.decode(ids[:n]) for s in strings))
    assert completed_at(strings, ids, tokenizer) == expected


def test_a_string_that_never_comes_never_stops(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = tokenizer.encode("almost ###, but # not # quite # there", add_special_tokens=False)
    assert completed_at(("####",), ids, tokenizer) is None


def test_a_special_token_can_be_a_stop_string(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = [*tokenizer.encode("the end", add_special_tokens=False), tokenizer.eos_token_id, 70]
    assert completed_at(("<eos>",), ids, tokenizer) == len(ids) - 1


def test_a_tokenizer_that_drops_a_leading_space_still_finds_it() -> None:
    """A lone "▁b" decodes to "b" at the start of a text, as in Llama's first tokenizers."""
    vocabulary = {"▁a": 0, "▁b": 1, "▁": 2, "c": 3, "<unk>": 4}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core)
    assert tokenizer.decode([1]) == "b"
    assert completed_at((" b",), [0, 0, 3, 1, 3], tokenizer) == 4
    assert completed_at(("a ",), [3, 0, 2, 3], tokenizer) == 3


def test_tokens_that_cannot_end_a_string_cost_no_window(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = TokenText(tokenizer)
    stops = StopStrings(("####",), text)
    ids = tokenizer.encode("the answer is forty two", add_special_tokens=False)
    decoded: list[int] = []
    window = text.window

    def counted(ids: Sequence[int]) -> Any:
        decoded.append(len(ids))
        return window(ids)

    monkeypatch.setattr(text, "window", counted)
    for _ in range(2):
        assert not any(stops.completed(ids[:n]) for n in range(1, len(ids) + 1))
    assert decoded == [1] * len(set(ids))
