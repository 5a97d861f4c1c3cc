"""Three-digit addition that a tiny model can learn: the task of the quickstart.

All numbers have fixed width and least significant digit first, operands as well as the sum: 123 + 456 = 579 reads
`321+654=9750`. Digit k of the sum then depends on the digits at two fixed distances and on the previous carry,
a rule that a model of 0.6 M parameters learns from a few thousand problems. With the most significant digit first, the
model would have to compute all carries before the first digit.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reinlm.errors import InputError

DIGITS = 3
"""Digits of an operand; the sum has one more."""
ALPHABET = "0123456789+="
"""Every character that prompts and answers use."""
_NUMBERS = 10**DIGITS
_PAIRS = _NUMBERS * (_NUMBERS + 1) // 2


@dataclass(frozen=True)
class Addition:
    """One problem.

    Example:
        >>> Addition(123, 456).prompt, Addition(123, 456).answer
        ('321+654=', '9750')
    """

    first: int
    """In [0, 999]."""
    second: int
    """In [0, 999]."""

    @property
    def prompt(self) -> str:
        return f"{_written(self.first, DIGITS)}+{_written(self.second, DIGITS)}="

    @property
    def answer(self) -> str:
        return _written(self.first + self.second, DIGITS + 1)

    @property
    def pair(self) -> tuple[int, int]:
        """The operands without their order: 1+2 and 2+1 are the same problem to a held-out set."""
        return min(self.first, self.second), max(self.first, self.second)

    def row(self) -> dict[str, str]:
        """As a row of data: `{"prompt": "321+654=", "answer": "9750"}`."""
        return {"prompt": self.prompt, "answer": self.answer}


def problems(count: int, seed: int, exclude: Iterable[Addition] = ()) -> list[Addition]:
    """`count` problems drawn uniformly without replacement, none of them in `exclude`, not even with operands swapped.

    Args:
        count: how many, at most 500,500 less those excluded.
        seed: the same seed and arguments give the same problems.
        exclude: problems that are not drawn, such as the held-out set.

    Raises:
        InputError: fewer problems than `count` are left.
    """
    taken = {problem.pair for problem in exclude}
    if not 0 <= count <= _PAIRS - len(taken):
        raise InputError(f"cannot draw {count} problems", hint=f"between 0 and {_PAIRS - len(taken)} are left")
    rng = random.Random(seed)
    # Of count + |taken| distinct pairs at most |taken| are excluded, so one draw is always enough.
    pairs = (_pair(rank) for rank in rng.sample(range(_PAIRS), count + len(taken)))
    free = [pair for pair in pairs if pair not in taken][:count]
    return [Addition(*pair) if rng.random() < 0.5 else Addition(pair[1], pair[0]) for pair in free]


def demonstrations(problems: Sequence[Addition], forget_rate: float, seed: int) -> list[dict[str, str]]:
    """Demonstrations with errors: each carry is forgotten with probability `forget_rate`.

    Above one half most carries are wrong, so a model that imitates such answers well makes the error under greedy
    decoding. Rows are `{"prompt": "521+654=", "completion": "1750", "answer": "1850"}`.

    Raises:
        InputError: forget_rate is outside [0, 1].
    """
    if not 0.0 <= forget_rate <= 1.0:
        raise InputError(f"forget_rate must be in [0, 1], not {forget_rate}")
    rng = random.Random(seed)

    def worked(problem: Addition) -> str:
        carry, digits = 0, ""
        for first, second in zip(_written(problem.first, DIGITS), _written(problem.second, DIGITS), strict=True):
            total = int(first) + int(second) + carry
            digits += str(total % 10)
            carry = int(total >= 10 and rng.random() >= forget_rate)
        return digits + str(carry)

    return [{**problem.row(), "completion": worked(problem)} for problem in problems]


def _written(number: int, width: int) -> str:
    return f"{number:0{width}d}"[::-1]


def _pair(rank: int) -> tuple[int, int]:
    """The rank-th of the pairs (a, b) with a ≤ b, counted by b: (0,0), (0,1), (1,1), (0,2), …"""
    larger = (math.isqrt(8 * rank + 1) - 1) // 2
    return rank - larger * (larger + 1) // 2, larger
