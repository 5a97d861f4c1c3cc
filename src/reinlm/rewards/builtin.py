"""The rewards that come with reinlm. Each is a small configuration that can be called like any reward function."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar

from pydantic import Field, field_validator, model_validator

from reinlm.config import Config
from reinlm.errors import InputError
from reinlm.parts import PARTS, part
from reinlm.records import Message


class Builtin(Config):
    """Base of the built-in rewards: scores each sample alone."""

    killable: ClassVar[bool] = False
    example: ClassVar[str] = ""
    """The values without which it cannot be, as an example in recipe syntax."""
    """Its check can hang, so a worker process makes it."""

    def build(self) -> Builtin:
        """Itself: the configuration is the function."""
        return self

    def columns(self, available: Sequence[str]) -> tuple[str, ...]:
        """The data columns that it reads; an `InputError` where one is missing."""
        return ()

    def score(self, text: str, length: int, columns: Mapping[str, Any]) -> float:
        """The reward of one answer of `length` tokens; `columns` holds this sample's values."""
        raise NotImplementedError

    def extract(self, text: str) -> Hashable | None:
        """What an answer says, to be compared with what others say: as `math` reads it; None where it cannot be read."""
        return _value(_parse(_final(text)))

    def __call__(
        self, completions: Sequence[Any], completion_ids: Sequence[Sequence[int]], **columns: Sequence[Any]
    ) -> list[float]:
        """A reward function as users write them."""
        return [
            self.score(answer_text(completion), len(ids), {name: values[index] for name, values in columns.items()})
            for index, (completion, ids) in enumerate(zip(completions, completion_ids, strict=True))
        ]


@part("reward", "exact_match")
class ExactMatch(Builtin):
    """1 where the answer equals the column `answer`, white space around both aside, else 0.

    Example:
        {"name": "exact_match", "column": "label", "ignore_case": True}
    """

    column: str = "answer"
    """Column of the data with the right answer."""
    ignore_case: bool = False
    """Upper and lower case are equal."""

    def columns(self, available: Sequence[str]) -> tuple[str, ...]:
        return (_existing(self.column, available),)

    def score(self, text: str, length: int, columns: Mapping[str, Any]) -> float:
        given, wanted = text.strip(), str(columns[self.column]).strip()
        return float(given.casefold() == wanted.casefold() if self.ignore_case else given == wanted)

    def extract(self, text: str) -> Hashable | None:
        said = text.strip()
        return (said.casefold() if self.ignore_case else said) or None


@part("reward", "regex")
class Regex(Builtin):
    """1 where the pattern is found in the answer, else 0. `.` matches line breaks too.

    With `column`, the last match must also say what that column holds: its first group, or all of it where there is
    no group, is compared with the column's value as text, white space aside.

    Example:
        {"name": "regex", "pattern": "#### (-?[0-9]+)", "column": "answer"}
    """

    killable: ClassVar[bool] = True

    example: ClassVar[str] = "pattern: '####'"

    pattern: str
    """A regular expression of Python."""
    full: bool = False
    """The pattern must match the whole answer, white space around it aside."""
    column: str | None = None
    """Column that the last match must equal; null: any match is right."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from error
        return pattern

    def columns(self, available: Sequence[str]) -> tuple[str, ...]:
        return () if self.column is None else (_existing(self.column, available),)

    def score(self, text: str, length: int, columns: Mapping[str, Any]) -> float:
        pattern = re.compile(self.pattern, re.DOTALL)
        if self.full:
            match = pattern.fullmatch(text.strip())
        elif self.column is None:
            match = pattern.search(text)
        else:
            match = _last(pattern, text)
        if match is None or self.column is None:
            return float(match is not None)
        said = match.group(1 if pattern.groups else 0)
        return float(said is not None and said.strip() == str(columns[self.column]).strip())

    def extract(self, text: str) -> Hashable | None:
        if self.column is None:
            return super().extract(text)
        pattern = re.compile(self.pattern, re.DOTALL)
        match = pattern.fullmatch(text.strip()) if self.full else _last(pattern, text)
        said = None if match is None else match.group(1 if pattern.groups else 0)
        return None if said is None else said.strip()


@part("reward", "format")
class Format(Regex):
    """`regex` with the format of DeepSeek-R1 (arXiv 2501.12948): `<think>…</think> <answer>…</answer>`, no more.

    Example:
        "format"
    """

    example: ClassVar[str] = ""

    pattern: str = r"<think>.*?</think>\s*<answer>.*?</answer>"
    full: bool = True


@part("reward", "length")
class Length(Builtin):
    """A reward in [-1, 0] for n, the number of tokens that the policy chose. Takes either `target` or `max`.

    `target`: -min(1, |n - target| / target).
    `max` with `margin`: 0 up to max - margin, then falling linearly to -1 at max, and -1 beyond: the soft overlong
    punishment of DAPO (arXiv 2503.14476, eq. 13). Without a margin: 0 up to max, -1 beyond.

    Example:
        {"name": "length", "max": 2048, "margin": 512, "weight": 0.5}
    """

    example: ClassVar[str] = "target: 100"

    target: int | None = Field(default=None, ge=1)
    """The best length in tokens."""
    max: int | None = Field(default=None, ge=1)
    """The longest length in tokens."""
    margin: int = Field(default=0, ge=0)
    """Tokens below `max` over which the reward falls to -1."""

    @model_validator(mode="after")
    def _one_of(self) -> Length:
        if (self.target is None) == (self.max is None):
            raise ValueError("give exactly one of target and max, in tokens")
        if self.max is None and self.margin:
            raise ValueError("margin goes with max")
        if self.max is not None and self.margin > self.max:
            raise ValueError(f"margin ({self.margin}) is more than max ({self.max})")
        return self

    def score(self, text: str, length: int, columns: Mapping[str, Any]) -> float:
        if self.target is not None:
            return -min(1.0, abs(length - self.target) / self.target)
        import torch

        from reinlm.objectives import soft_overlong_penalty

        assert self.max is not None
        return float(soft_overlong_penalty(torch.tensor([length]), self.max, self.margin))


@part("reward", "math")
class Math(Builtin):
    r"""1 where math-verify finds the answer equal to the gold answer, else 0; an answer that cannot be read is 0.

    Gold is the column `answer`, or `solution` where there is no `answer`. A gold text with `####` (GSM8K) counts
    from the last one on. The answer is what stands after a last `####`, else what math-verify extracts: `\boxed{…}`,
    "the answer is …", the last number.

    Example:
        {"name": "math", "column": "ground_truth"}
    """

    killable: ClassVar[bool] = True

    column: str | None = None
    """Column of the gold answer; null: `answer`, or `solution` where there is no `answer`."""

    def columns(self, available: Sequence[str]) -> tuple[str, ...]:
        if self.column is not None:
            return (_existing(self.column, available),)
        return (
            ("solution",)
            if "answer" not in available and "solution" in available
            else (_existing("answer", available),)
        )

    def score(self, text: str, length: int, columns: Mapping[str, Any]) -> float:
        from math_verify import verify

        (value,) = columns.values()
        gold = _gold(str(value))
        # Its own time limits are alarms, which fail off the main thread: the worker's limit replaces them.
        return float(verify(gold, _parse(_final(text)), timeout_seconds=None))


BUILTIN: Mapping[str, type[Config]] = MappingProxyType(PARTS["reward"])
"""The rewards that a recipe may name."""


def answer_text(completion: Any) -> str:
    """The text of a completion: itself, or the content of its last message, whose text parts are joined."""
    if isinstance(completion, str):
        return completion
    messages: Sequence[Message] = completion
    content = messages[-1].get("content") if messages else None
    if isinstance(content, str) or content is None:
        return content or ""
    return "".join(part.get("text", "") for part in content)


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return next(iter(deque(pattern.finditer(text), maxlen=1)), None)


def _value(parsed: Sequence[Any]) -> Hashable | None:
    """What math-verify read, so that equal numbers are equal: ten digits of a number, else the expression as text."""
    if not parsed:
        return None
    try:
        return f"{float(parsed[0]):.10g}"
    except (TypeError, ValueError, OverflowError):
        return str(parsed[0])


def _existing(column: str, available: Sequence[str]) -> str:
    if column not in available:
        raise InputError(
            f"it needs the column {column!r}, which the data does not have",
            hint=f"columns: {', '.join(available) or 'none'}; name another one with the option column=…, or map yours",
        )
    return column


_MARK = re.compile(r"####[ \t]*([^\n]*)")
_NUMBER = re.compile(r"[-+]?\$?[-+]?[\d,]*\.?\d+\s?\\?%?\.?")
_DELIMITED = re.compile(r"\$|\\boxed|\\\(|\\\[")


def _final(text: str) -> str:
    """The part of an answer to read: its last `#### N`, unless that is a Markdown heading; else all of it."""
    marks = list(_MARK.finditer(text))
    if not marks:
        return text
    said, rest = marks[-1].group(1).strip(), text[marks[-1].end() :]
    if "\\boxed" in rest or not said:
        return text
    return _delimit(said) if not rest.strip() or _NUMBER.fullmatch(said) else text


def _delimit(text: str) -> str:
    if _NUMBER.fullmatch(text):
        return text.rstrip(".")
    return text if _DELIMITED.search(text) or "\n" in text else f"\\boxed{{{text}}}"


@lru_cache(maxsize=1024)
def _gold(text: str) -> list[Any]:
    value = text.rpartition("####")[2].strip()
    parsed = _parse(_delimit(value))
    if not parsed:
        raise ValueError(f"the gold answer {text[-80:]!r} has no mathematical value")
    return parsed


def _parse(text: str) -> list[Any]:
    from math_verify import parse

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its time limits are off; they are replaced
    parsed: list[Any] = parse(text, parsing_timeout=None)
    return parsed
