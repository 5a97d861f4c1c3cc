"""What a couplet is rewarded for: every rule can be checked by eye.

A reward is a function of the answers (`completions`) and of any column of the data (`corpus`, the file of the plays), and
gives a number between 0 and 1 for each. `verse` and `couplets` are verdicts; the others say how far an answer is from
them, and some of them only close ways of being rewarded for something else.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

LINES = 2
SYLLABLES = range(9, 12)
COPIED = 6
"""So many words in a row that stand in the plays are a copy."""

NO_ENDS = frozenset({"the", "a", "an", "and", "or", "of", "to"})
"""Words that no verse ends with, and that rhyme with nothing."""

_WORD = re.compile(r"[A-Za-z]+(?:'[A-Za-z]+)*")
_VOWELS = re.compile(r"[aeiouy]+")
_UNSTRESSED_END = re.compile(
    r"[aeiouy]+[^aeiouy]+(?:ings?|e[rnd]s?|est|eth|ness|l?y|t?ies|ions?|ors?|ments?|ful|less)$"
)
_SILENT_E = re.compile(r"[aeiouy]+[^aeiouy]+e[sd]?$")
_LAST_VOWELS = re.compile(r"[aeiouy]+[^aeiouy]*$")


def verse(completions: Sequence[str], corpus: Sequence[str]) -> list[float]:
    """1 for an answer that follows all the rules but the rhyme, 0 for any other."""
    rules = [form(completions), metre(completions), repetition(completions)]
    rules += [real_words(completions, corpus), own_words(completions, corpus)]
    return [float(all(score == 1 for score in scores)) for scores in zip(*rules, strict=True)]


def couplets(completions: Sequence[str], corpus: Sequence[str]) -> list[float]:
    """1 for an answer that follows all the rules and rhymes, 0 for any other."""
    both = zip(verse(completions, corpus), rhyme(completions), strict=True)
    return [float(rules == rhyming == 1) for rules, rhyming in both]


def form(completions: Sequence[str]) -> list[float]:
    """Two lines that begin with a capital letter, the last one with a full stop, question or exclamation mark."""
    return [_form(lines_of(text)) for text in completions]


def _form(lines: Sequence[str]) -> float:
    count = min(len(lines), LINES) / max(len(lines), LINES)
    capitals = sum(line[:1].isupper() for line in lines) / len(lines)
    return count * (capitals + (lines[-1][-1:] in {".", "!", "?"})) / 2


def metre(completions: Sequence[str]) -> list[float]:
    """The share of lines of nine to eleven syllables; lines that lack or are too many count as wrong."""
    return [_share([syllables_of(line) in SYLLABLES for line in lines_of(text)], LINES) for text in completions]


def rhyme(completions: Sequence[str]) -> list[float]:
    """1 where the two lines rhyme; 0.4 or 0.2 where their last words end in the same two letters, or in the same one.

    The part of the way is paid because rhymes alone are too seldom to learn from.
    """
    return [_share([_rhyme(*pair) for pair in pairs_of(text)], LINES // 2) for text in completions]


def _rhyme(first: str, second: str) -> float:
    if rhymes(first, second):
        return 1.0
    if first == second or NO_ENDS & {first, second}:
        return 0.0
    return 0.4 if first[-2:] == second[-2:] else 0.2 if first[-1:] == second[-1:] else 0.0


def real_words(completions: Sequence[str], corpus: Sequence[str]) -> list[float]:
    """0 where a fifth of the words, or more, stand nowhere in the plays; 1 where all do."""
    known = _words_of_file(corpus[0])
    scores = []
    for text in completions:
        words = words_of(text)
        unknown = sum(word not in known for word in words) / max(len(words), 1)
        scores.append(max(0.0, 1 - 5 * unknown) if words else 0.0)
    return scores


def own_words(completions: Sequence[str], corpus: Sequence[str]) -> list[float]:
    """0 where six words in a row are copied from the plays."""
    copies = _runs_of_file(corpus[0])
    return [float(not any(run in copies for run in _runs(words_of(text)))) for text in completions]


def repetition(completions: Sequence[str]) -> list[float]:
    """The share of the words of four letters or more that are different from one another."""
    scores = []
    for text in completions:
        long = [word for word in words_of(text) if len(word) >= 4]
        scores.append(len(set(long)) / len(long) if long else 0.0)
    return scores


def variety(completions: Sequence[str]) -> list[float]:
    """The share of an answer's ends of lines that no other answer to the same prompt has.

    The answers to a prompt are scored in one call, so a reward can compare them.
    """
    ends = [{end_of(line) for line in lines_of(text)} for text in completions]
    used = Counter(end for words in ends for end in words)
    return [_share([used[end] == 1 for end in words], LINES) for words in ends]


# ------------------------------------------------------------------------------------------------ what the rules look at


def lines_of(text: str) -> list[str]:
    """The lines of an answer; an empty answer has one empty line."""
    return text.strip("\n").split("\n")


def words_of(text: str) -> list[str]:
    """The words of a text in lower case, with their apostrophes.

    >>> words_of("Know'st thou not--that?")
    ["know'st", 'thou', 'not', 'that']
    """
    return [word.lower() for word in _WORD.findall(text)]


def end_of(line: str) -> str:
    """The last word of a line, "" if it has none."""
    words = words_of(line)
    return words[-1] if words else ""


def pairs_of(text: str) -> list[tuple[str, str]]:
    """The last words of lines 1 and 2, 3 and 4, and so on."""
    ends = [end_of(line) for line in lines_of(text)]
    return list(zip(ends[::2], ends[1::2], strict=False))


def syllables_of(line: str) -> int:
    """The syllables of a line by a simple count of vowels: `e` is silent in `love`, `loved` and `loves`.

    >>> syllables_of("Shall I compare thee to a summer's day?")
    10
    """
    return sum(_syllables(word.replace("'", "")) for word in words_of(line))


def _syllables(word: str) -> int:
    count = len(_VOWELS.findall(word))
    silent = re.search(r"[^aeiouyl]e$|[aeiouy]le$|[^aeiouytd]ed$|[^aeiouysxzcgh]es$", word)
    return max(1, count - bool(silent) + bool(re.search(r"[aeiouy]ing$", word)))


def rhymes(first: str, second: str) -> bool:
    """Whether two words rhyme by their spelling: alike from the last stressed vowel on, and different before it.

    >>> rhymes("night", "light"), rhymes("making", "taking"), rhymes("making", "sleeping"), rhymes("light", "delight")
    (True, True, False, False)
    """
    if NO_ENDS & {first, second}:
        return False
    one, two = rhyme_part(first), rhyme_part(second)
    return bool(one) and one == two and _before(first, one) != _before(second, two)


def rhyme_part(word: str) -> str:
    """The end of a word from its last vowel on; endings without a stress (`-ing`, `-er`, `-y`) count with the vowel before.

    >>> rhyme_part("love"), rhyme_part("day"), rhyme_part("speaking")
    ('ove', 'ay', 'eaking')
    """
    letters = word.replace("'", "")
    for pattern in (_UNSTRESSED_END, _SILENT_E, _LAST_VOWELS):
        if found := pattern.search(letters):
            return found.group()
    return ""


def _before(word: str, part: str) -> str:
    return word.replace("'", "").removesuffix(part)[-1:]


def _share(passed: Sequence[float], expected: int) -> float:
    return sum(passed) / max(len(passed), expected)


def _runs(words: Sequence[str]) -> list[tuple[str, ...]]:
    return [tuple(words[start : start + COPIED]) for start in range(len(words) - COPIED + 1)]


@cache
def _words_of_file(file: str) -> frozenset[str]:
    return frozenset(words_of(Path(file).read_text(encoding="utf-8")))


@cache
def _runs_of_file(file: str) -> frozenset[tuple[str, ...]]:
    return frozenset(_runs(words_of(Path(file).read_text(encoding="utf-8"))))
