"""Batched tokenisation: the code for a row is one generator, and the texts of many rows go to the tokenizer in one call.

A *plan* is a generator that yields texts, is sent their token ids, and returns its result. The plans of many rows advance
together, and all texts that they yield in one step are tokenised together.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from reinlm.data.rows import BadRow, BadRows, Row
from reinlm.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T")
TokenIds = list[int]
Plan = Generator[Sequence[str], list[TokenIds], T]
"""A generator: yields texts, is sent the token ids of each (without special tokens), returns a T."""

_TOGETHER = 256  # plans that run side by side: enough for a tokenizer's threads, little memory


class Untokenizable(Exception):  # noqa: N818 - becomes the error of the row that holds the text
    """A text that the tokenizer cannot read: it holds a character outside an alphabet without an unknown token."""

    def __init__(self, text: str, message: str) -> None:
        super().__init__(message)
        self.text = text

    def in_row(self, row: Row) -> BadRow:
        """The error of the row: the column that holds the text is named where one does."""
        names = [name for name, value in row.columns.items() if isinstance(value, str) and value and value in self.text]
        place = f"column {names[0]!r}" if names else "the row"
        return BadRow(
            row.where, f"{place} cannot be tokenized", f": {self}", hint="a character is unknown to the tokenizer"
        )


class Encoder:
    """Converts texts to token ids without special tokens, many texts in one call."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    def __call__(self, texts: Sequence[str]) -> list[TokenIds | Untokenizable]:
        """The token ids of each text, or why it has none."""
        try:
            return [*self._together(texts)]
        except Exception:  # noqa: BLE001  the tokenizers library raises nothing narrower; the loop finds which text it is
            return [self._alone(text) for text in texts]

    def _together(self, texts: Sequence[str]) -> list[TokenIds]:
        """Use the batch call of the Rust tokenizer if it gives the same ids for the first text as the tokenizer itself.

        The call of the tokenizer itself also resets a truncation that its file or an earlier caller has set.
        """
        if not texts:
            return []
        first = self._one(texts[0])
        raw = getattr(self._tokenizer, "backend_tokenizer", None) if self._tokenizer.is_fast else None
        if raw is not None:
            found: list[TokenIds] = [item.ids for item in raw.encode_batch_fast(list(texts), add_special_tokens=False)]
            if found[0] == first:
                return found
        return [first, *(self._one(text) for text in texts[1:])]

    def _one(self, text: str) -> TokenIds:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _alone(self, text: str) -> TokenIds | Untokenizable:
        try:
            return self._one(text)
        except Exception as error:  # noqa: BLE001  as above
            return Untokenizable(text, str(error))


def run_plans(plans: Iterable[Plan[T]], encode: Encoder) -> Iterator[T | BadRow | Untokenizable | InputError]:
    """What each plan returned, or the error that it ended with, in the order of the plans."""
    remaining = iter(plans)
    while together := list(itertools.islice(remaining, _TOGETHER)):
        yield from _run_together(together, encode)


def usable(rows: Sequence[Row], plans: Iterable[Plan[T]], encode: Encoder, bad_rows: BadRows) -> Iterator[T]:
    """What the plans of `rows` returned; a row whose plan failed goes to `bad_rows`.

    Raises InputError for an option that cannot be used, and for a bad row where those stop the run.
    """
    for row, result in zip(rows, run_plans(plans, encode), strict=True):
        if isinstance(result, InputError):
            raise result
        if isinstance(result, BadRow | Untokenizable):
            bad_rows.add(result if isinstance(result, BadRow) else result.in_row(row))
        else:
            yield result


def _run_together(plans: list[Plan[T]], encode: Encoder) -> list[T | BadRow | Untokenizable | InputError]:
    results: dict[int, T | BadRow | Untokenizable | InputError] = {}
    waiting: dict[int, list[TokenIds] | None] = dict.fromkeys(range(len(plans)))
    while waiting:
        asked: dict[int, Sequence[str]] = {}
        for index, tokens in waiting.items():
            try:
                asked[index] = next(plans[index]) if tokens is None else plans[index].send(tokens)
            except StopIteration as done:
                results[index] = done.value
            except (BadRow, InputError) as error:
                results[index] = error
        encoded = iter(encode([text for texts in asked.values() for text in texts]))
        waiting = {}
        for index, texts in asked.items():
            answers = list(itertools.islice(encoded, len(texts)))
            failed = [answer for answer in answers if isinstance(answer, Untokenizable)]
            if failed:
                results[index] = failed[0]
            else:
                waiting[index] = [answer for answer in answers if not isinstance(answer, Untokenizable)]
    return [results[index] for index in range(len(plans))]
