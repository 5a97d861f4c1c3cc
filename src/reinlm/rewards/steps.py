"""`StepRewards`: process rewards, on parts of an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

StepValues = Sequence[float | None] | Callable[[str], float | None]
"""A value for each step in their order, or a function of a step's text. None: no reward on that step."""


@dataclass(frozen=True)
class StepRewards:
    """Rewards on parts of one answer: an entry of the list that a reward function returns.

    A step's reward lands on one token: for a place in the text, on the token that completes its last character. A token that
    reaches over the end of a step into the next one is that step's last; a character of several tokens is complete with its
    last one. Lightman et al., "Let's Verify Step by Step", arXiv 2305.20050.

    Example: two steps that end on the 4th and 12th token that the policy chose, and a reward of the whole answer:
        StepRewards([(3, 0.5), (11, 1.0)], outcome=1.0)

    Example: a reward for every line:
        StepRewards.from_lines(text, [float("=" in line) for line in text.splitlines()])
    """

    steps: Sequence[tuple[int, float]] = ()
    """(index among the chosen tokens of the answer, from 0; value)."""
    outcome: float | None = None
    """A reward of the whole answer beside the steps, or None for none."""
    characters: Sequence[tuple[int, float]] = ()
    """(index of a character in the answer's text, from 0; value)."""

    @classmethod
    def from_spans(
        cls, text: str, spans: Iterable[tuple[int, int, float | None]], *, outcome: float | None = None
    ) -> StepRewards:
        """Steps as (start, end, value), with `text[start:end]` as the step; they may overlap and leave gaps.

        Args:
            text: the answer, as the function received it (of a chat: the content of its last message).

        Raises:
            ValueError: a span that is empty or outside the text.
        """
        characters = []
        for start, end, value in spans:
            if not 0 <= start < end <= len(text):
                raise ValueError(f"the span ({start}, {end}) is empty or outside the text of {len(text)} characters")
            if value is not None:
                characters.append((end - 1, value))
        return cls((), outcome, tuple(characters))

    @classmethod
    def from_lines(cls, text: str, values: StepValues, *, outcome: float | None = None) -> StepRewards:
        """A step for each line of `text.splitlines()`; a line's last character is the one before its line break.

        An empty line has no such character, so that its reward lands on its line break. The last line of an answer that was
        cut off is a step like any other.

        Raises:
            ValueError: another number of values than of lines.
        """
        places, start = [], 0
        for whole in text.splitlines(keepends=True):
            (line,) = whole.splitlines()
            places.append((start, start + len(line), start + len(whole)))
            start += len(whole)
        return cls._at(text, places, values, "lines", outcome)

    @classmethod
    def from_separator(
        cls, text: str, separator: str, values: StepValues, *, outcome: float | None = None
    ) -> StepRewards:
        """A step for each part of `text.split(separator)`, whose last character is the one before the separator.

        The reward of an empty part lands on the separator that ends it. What stands behind the last separator is a step only
        where it is not empty.

        Raises:
            ValueError: an empty separator, or another number of values than of parts.
        """
        if not separator:
            raise ValueError("the separator is empty")
        places, start = [], 0
        for part in text.split(separator):
            end = start + len(part)
            places.append((start, end, min(end + len(separator), len(text))))
            start = end + len(separator)
        if places[-1][0] == places[-1][1]:  # nothing behind the last separator
            places.pop()
            if not callable(values) and len(values) == len(places) + 1:
                values = values[:-1]
        return cls._at(text, places, values, f"parts between {separator!r}", outcome)

    @classmethod
    def _at(
        cls, text: str, places: Sequence[tuple[int, int, int]], values: StepValues, what: str, outcome: float | None
    ) -> StepRewards:
        """Steps at (start, end, end with what separates it from the next one)."""
        given = [values(text[start:end]) for start, end, _ in places] if callable(values) else list(values)
        if len(given) != len(places):
            raise ValueError(f"{len(given)} values for {len(places)} {what}: give one for each, None for no reward")
        ends = [end if end > start else whole for start, end, whole in places]
        return cls(
            (), outcome, tuple((end - 1, value) for end, value in zip(ends, given, strict=True) if value is not None)
        )
