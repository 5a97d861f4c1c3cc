"""Where the text of an answer lies among its tokens: what rewards on lines and spans are placed by."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from reinlm.records import Rollout

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PARTIAL = "\N{REPLACEMENT CHARACTER}"
"""What tokenizers show for bytes that are no whole character."""


def token_ends(tokenizer: PreTrainedTokenizerBase, stops: Collection[int], rollout: Rollout) -> list[int] | None:
    """For each token that the policy chose: how many characters of the answer's text are complete with it.

    The answer's text is the completion, of a chat the content of its last message: tokens of earlier turns have 0 there.
    None where that text is not what the tokens say, as where a renderer takes thoughts out of it.

    Args:
        stops: ids whose token, at the end of a turn, is no part of its text.
    """
    turns = _turns(rollout)
    if isinstance(rollout.completion, str):
        text, placed = rollout.completion, turns
    else:
        content = rollout.completion[-1].get("content") if rollout.completion else None
        text, placed = content if isinstance(content, str) else "", turns[-1:]
    ends = [0] * sum(len(turn) for turn in turns[: len(turns) - len(placed)])
    start = 0
    for turn in placed:
        body = turn[:-1] if turn and turn[-1] in stops else turn
        said = _decode(tokenizer, body)
        inside = _ends(tokenizer, body, said)
        place = text.find(said, start)
        if place < 0 and text and text in said:  # a renderer that trims the content
            place = start - said.index(text)
        elif place < 0 or inside is None:
            return None
        assert inside is not None
        turn_ends = [min(max(place + end, 0), len(text)) for end in inside]
        start = min(max(place + len(said), 0), len(text))
        ends += turn_ends + [start] * (len(turn) - len(body))
    return ends


def _turns(rollout: Rollout) -> list[list[int]]:
    """The token ids of each turn of the policy."""
    turns: dict[int, list[int]] = {}
    for segment in rollout.segments:
        for token, turn in zip(segment.token_ids.tolist(), segment.turns.tolist(), strict=True):
            if turn >= 0:
                turns.setdefault(turn, []).append(token)
    return [turns[turn] for turn in sorted(turns)]


def _ends(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], text: str) -> list[int] | None:
    """For each token the characters of `text` that are complete with it; None where the tokens do not say `text`.

    Token by token with a few before it, since a token's text depends on those; all of them again where that does not add up.
    """
    ends = _by_window(tokenizer, ids, text)
    if ends is None:
        ends = [_common(_decode(tokenizer, ids[: count + 1]), text) for count in range(len(ids))]
        for place in range(1, len(ends)):
            ends[place] = max(ends[place], ends[place - 1])
    return ends if not ids or ends[-1] == len(text) else None


def _by_window(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], text: str) -> list[int] | None:
    ends: list[int] = []
    done = first = read = 0
    for count in range(1, len(ids) + 1):
        before, now = _decode(tokenizer, ids[first:read]), _decode(tokenizer, ids[first:count])
        new = now[len(before) :]
        if new and not now.endswith(_PARTIAL):
            if not now.startswith(before) or not text.startswith(new, done):
                return None
            done += len(new)
            first, read = read, count
        ends.append(done)
    if ends and done < len(text):
        if set(text[done:]) != {_PARTIAL}:  # else: bytes at the end that are no character
            return None
        ends[-1] = len(text)
    return ends


def _decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def _common(part: str, text: str) -> int:
    """How many characters `part`, of the first tokens, has of `text`."""
    if text.startswith(part):
        return len(part)
    return next(place for place, character in enumerate(part) if text[place : place + 1] != character)
