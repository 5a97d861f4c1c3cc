"""The exact rules of Gymnasium's Blackjack-v1, as a table of outcomes."""

from __future__ import annotations

from functools import cache
from itertools import product

Outcomes = list[tuple[float, int, float, bool]]

CARDS = {card: (4 if card == 10 else 1) / 13 for card in range(1, 11)}
"""card -> probability, from an infinite deck; 1 is an ace, and 10 stands for four cards."""
SUMS, DEALERS, ACES = 32, 11, 2
NATURAL = 31
"""The sum, empty otherwise, at whose rows an ace and a ten stand as the first two cards: they may count more than 21."""


def row(total: int, dealer: int, ace: bool) -> int:
    """The row of an observation (sum, dealer's card, usable ace)."""
    return (total * DEALERS + dealer) * ACES + int(ace)


def shown() -> list[int]:
    """For each row the row that its observation is: a natural looks like any other 21 with an ace."""
    rows = list(range(SUMS * DEALERS * ACES))
    for dealer in CARDS:
        rows[row(NATURAL, dealer, True)] = row(21, dealer, True)
    return rows


def table(natural: bool, sab: bool) -> tuple[dict[int, dict[int, Outcomes]], list[float]]:
    """(P[row][action], probability of each row at the start). Actions: 0 stick, 1 hit."""
    outcomes: dict[int, dict[int, Outcomes]] = {}
    for dealer in CARDS:
        for ace, total in product((False, True), range(4, 22)):
            if not ace or total >= 12:
                outcomes[row(total, dealer, ace)] = {0: _stick(total, dealer), 1: _hit(total, dealer, ace)}
        outcomes[row(NATURAL, dealer, True)] = {
            0: _stick_natural(dealer, natural=natural, sab=sab),
            1: _hit(21, dealer, True),
        }
    start = [0.0] * (SUMS * DEALERS * ACES)
    for (first, p), (second, q), (dealer, d) in product(CARDS.items(), CARDS.items(), CARDS.items()):
        ace = 1 in (first, second)
        total = NATURAL if {first, second} == {1, 10} else first + second + 10 * ace
        start[row(total, dealer, ace)] += p * q * d
    return outcomes, start


def _hit(total: int, dealer: int, ace: bool) -> Outcomes:
    outcomes: Outcomes = []
    for card, p in CARDS.items():
        new, usable = total + card, ace
        if card == 1 and not ace and new + 10 <= 21:
            new, usable = new + 10, True
        elif new > 21 and usable:
            new, usable = new - 10, False
        bust = new > 21
        outcomes.append((p, 0 if bust else row(new, dealer, usable), -1.0 if bust else 0.0, bust))
    return outcomes


def _stick(total: int, dealer: int) -> Outcomes:
    chances = {-1.0: 0.0, 0.0: 0.0, 1.0: 0.0}
    for score, p in _dealer(dealer, dealer == 1).items():
        chances[float(total > score) - float(total < score)] += p
    return [(p, 0, reward, True) for reward, p in chances.items()]


def _stick_natural(dealer: int, natural: bool, sab: bool) -> Outcomes:
    if sab:  # wins against everything but another natural
        other = CARDS[10] if dealer == 1 else CARDS[1] if dealer == 10 else 0.0
        return [(1.0 - other, 0, 1.0, True), (other, 0, 0.0, True)]
    won = 1.5 if natural else 1.0
    return [(p, end, won if reward == 1.0 else reward, over) for p, end, reward, over in _stick(21, dealer)]


@cache
def _dealer(hard: int, ace: bool, cards: int = 1) -> dict[int, float]:
    """score -> probability of a dealer who holds a hard sum, draws below 17 and counts 0 above 21."""
    total = hard + 10 if ace and hard + 10 <= 21 else hard
    if cards > 1 and total >= 17:
        return {total if total <= 21 else 0: 1.0}
    scores: dict[int, float] = {}
    for card, p in CARDS.items():
        for score, q in _dealer(hard + card, ace or card == 1, cards + 1).items():
            scores[score] = scores.get(score, 0.0) + p * q
    return scores
