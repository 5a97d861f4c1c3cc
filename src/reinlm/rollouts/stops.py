"""Stop strings, looked for in the text as it grows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"


class TokenText:
    """The text of tokens: windows of an answer, and single tokens (kept, for they come again)."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._pieces: dict[int, str] = {}

    def window(self, token_ids: Sequence[int]) -> str:
        """The text of these tokens, special tokens included."""
        return str(
            self._tokenizer.decode(list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )

    def piece(self, token_id: int) -> str:
        """The text of one token alone."""
        if token_id not in self._pieces:
            self._pieces[token_id] = self.window([token_id])
        return self._pieces[token_id]


class StopStrings:
    """Checks after each token whether it completed one of the strings.

    Only the tail of the answer is decoded, and only when the new token can hold the last character of a string. Every
    token stands for at least one byte, so as many tokens as the longest string has bytes reach back to its start; the
    few more cover a character that is split over tokens, and tokenizers that drop a leading space.
    """

    def __init__(self, strings: tuple[str, ...], text: TokenText) -> None:
        self._strings = strings
        self._text = text
        self._window = max(len(string.encode()) for string in strings) + 4
        self._last = {string[-1] for string in strings}
        # A lone token may lose its space and what is not ASCII may be split: such ends are looked for every time.
        self._always = any(last.isspace() for last in self._last)

    def completed(self, token_ids: Sequence[int]) -> bool:
        """Whether the last of these tokens completed a stop string."""
        piece = self._text.piece(token_ids[-1])
        if not (self._always or _UNFINISHED in piece or any(last in piece for last in self._last)):
            return False
        tail = self._text.window(token_ids[-self._window :])
        return any(string in tail for string in self._strings)


class StopTexts:
    """The `StopStrings` of requests, each made once."""

    def __init__(self, tokenizer: Any) -> None:
        self._text = TokenText(tokenizer)
        self._made: dict[tuple[str, ...], StopStrings] = {}

    def of(self, strings: tuple[str, ...]) -> StopStrings | None:
        """Those of these strings; None for none."""
        if strings and strings not in self._made:
            self._made[strings] = StopStrings(strings, self._text)
        return self._made.get(strings)
