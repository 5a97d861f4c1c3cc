"""What a solution with a calculator's marks is rewarded for: every sum can be checked by hand.

Solutions of GSM8K mark their sums: `48/2 = <<48/2=24>>24`. A reward is a function of the answers (`completions`) and of any
column of the data (`prompts`, the question), and gives a number between 0 and 1 for each. `calculation` is the verdict
that counts; the others say how far an answer is from it.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

SUMS = 2
"""So many marked sums are asked for."""
TOLERANCE = 0.01

_MARK = re.compile(r"<<([^<>=]*)=([^<>=]*)>>(-?[\d.,]*\d)?")
_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?|\.\d+")
_FINAL = re.compile(r"\n#### (-?[\d.,]*\d)$")
_OPERATORS: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


@dataclass(frozen=True)
class Sum:
    """One marked sum.

    Example:
        Sum(expression="48/2", operands=(48.0, 2.0), stated=24.0, value=24.0, written=True)
    """

    expression: str
    operands: tuple[float, ...]
    stated: float | None
    """The result that the mark gives; None where it is no number."""
    value: float | None
    """The result by arithmetic; None where the expression cannot be read."""
    written: bool
    """The number behind the mark is the stated result."""

    @property
    def readable(self) -> bool:
        """There is a sum, and a number for its result."""
        return self.value is not None and self.stated is not None and len(self.operands) > 1

    @property
    def right(self) -> bool:
        """The stated result is the value, within a hundredth."""
        return self.stated is not None and self.value is not None and abs(self.stated - self.value) < TOLERANCE

    @property
    def easy(self) -> bool:
        """It is no work: fewer than two operands, or one of them is 0 or 1."""
        return len(self.operands) < 2 or any(operand in (0, 1) for operand in self.operands)


def calculation(prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
    """1 for an answer that follows all the rules, 0 for any other."""
    rules = (arithmetic(completions), grounded(prompts, completions), written(completions), final(completions))
    return [float(all(score == 1 for score in scores)) for scores in zip(*rules, strict=True)]


def marks(completions: Sequence[str]) -> list[float]:
    """The share of marks `<<…=…>>` that hold a sum of two operands or more and a number; at least two are asked for."""
    return [_share([found.readable for found in _distinct(text)], text) for text in completions]


def arithmetic(completions: Sequence[str]) -> list[float]:
    """The share of marked sums that are right, neither easy nor a repetition; at least two are asked for."""
    return [_share([found.right and not found.easy for found in _distinct(text)], text) for text in completions]


def grounded(prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
    """The share of marked sums whose operands stand in the question or are earlier results."""
    scores = []
    for prompt, text in zip(prompts, completions, strict=True):
        known = numbers_in(prompt)
        flags = []
        for found in _distinct(text):
            flags.append(known.issuperset(found.operands) and bool(found.operands))
            if found.stated is not None:
                known = known | {found.stated}
        scores.append(_share(flags, text))
    return scores


def written(completions: Sequence[str]) -> list[float]:
    """The share of marked sums whose result is written once more behind the mark: `<<48/2=24>>24`."""
    return [_share([found.written for found in _distinct(text)], text) for text in completions]


def final(completions: Sequence[str]) -> list[float]:
    """1 where the last line is `#### ` and the result of the last marked sum."""
    scores = []
    for text in completions:
        sums, end = sums_in(text), _FINAL.search(text)
        scores.append(float(bool(sums) and end is not None and _number(end.group(1)) == sums[-1].stated))
    return scores


# ------------------------------------------------------------------------------------------------ what the rules look at


def sums_in(text: str) -> list[Sum]:
    """The marked sums of an answer, in order.

    >>> [(found.expression, found.stated, found.right) for found in sums_in("half is <<48/2=24>>24, more <<48+24=71>>71")]
    [('48/2', 24.0, True), ('48+24', 71.0, False)]
    """
    found = []
    for expression, result, behind in _MARK.findall(text):
        stated = _number(result)
        operands = tuple(_number(number) or 0.0 for number in _NUMBER.findall(expression))
        written = stated is not None and _number(behind) == stated
        found.append(Sum(expression.strip(), operands, stated, value_of(expression), written))
    return found


def value_of(expression: str) -> float | None:
    """The value of a sum of numbers with + - * / and brackets; None for anything else.

    >>> value_of("(5+3)*2"), value_of("7/0"), value_of("2**9")
    (16.0, None, None)
    """
    try:
        return _evaluated(ast.parse(expression.strip().replace(",", ""), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def numbers_in(text: str) -> frozenset[float]:
    """The numbers of a text.

    >>> sorted(numbers_in("$1,200 for 3.5 hours"))
    [3.5, 1200.0]
    """
    return frozenset(float(number.replace(",", "")) for number in _NUMBER.findall(text))


def _distinct(text: str) -> list[Sum]:
    """The marked sums, each expression once."""
    return list({found.expression: found for found in reversed(sums_in(text))}.values())[::-1]


def _share(passed: Sequence[bool], text: str) -> float:
    """Of all marks, repeated and unreadable ones too."""
    return sum(passed) / max(text.count("<<"), SUMS)


def _number(text: str) -> float | None:
    try:
        return float(text.strip().replace(",", ""))
    except ValueError:
        return None


def _evaluated(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return float(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluated(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_evaluated(node.left), _evaluated(node.right))
    raise ValueError(ast.dump(node))
