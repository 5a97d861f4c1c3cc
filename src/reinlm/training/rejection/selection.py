"""Which of the sampled answers are kept, and why the others are not; pure functions of scored groups."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from reinlm.records import Content, Rollout, ScoredGroup

Distinct = Literal["text", "equations", "off"]
Why = Literal["kept", "reward", "not best", "duplicate", "per_prompt", "truncated", "empty", "error", "no reward"]
REASONS: tuple[Why, ...] = (
    *("reward", "not best", "duplicate", "per_prompt", "truncated", "empty", "error", "no reward"),
)
"""Why an answer is not kept."""


@dataclass(frozen=True)
class KeepRule:
    """Which answers of a prompt are kept.

    Example: the two highest rewards of each prompt, if they are more than 0:
        KeepRule(rule="best", above=0.0, count=2)
    """

    rule: Literal["above", "best"] = "above"
    """"above": every answer whose reward is more than the bound; "best": the `count` highest rewards of each prompt."""
    above: float | None = 0.5
    """The bound of the weighted sum of rewards, for both rules; None: none."""
    count: int = 1
    """Of "best": answers of each prompt."""
    distinct: Distinct = "text"
    """What two answers of a prompt must differ in for both to be kept: see `same_answer_key`."""
    per_prompt: int | None = None
    """Answers of a prompt that are kept at most: the highest rewards, of equal ones the first."""
    truncated: bool = False
    """Whether answers that a limit cut off may be kept."""


@dataclass(frozen=True)
class Verdict:
    """What became of one answer.

    Example: an answer with the text of the first one of its prompt:
        Verdict("duplicate", of=0)
    """

    why: Why
    of: int | None = None
    """Of a duplicate: the number of the answer that is kept in its place."""

    @property
    def kept(self) -> bool:
        """Whether the answer is learned from."""
        return self.why == "kept"


def select(group: ScoredGroup, rule: KeepRule) -> tuple[Verdict, ...]:
    """A verdict for each answer of a prompt.

    Answers that cannot be learned from come out first: episodes that an error ended, empty and truncated ones, and those
    without a reward. The rest stand in the order of their rewards, of equal ones in the order in which they were sampled,
    and are kept as far as they are distinct and the rule and `per_prompt` allow. All equal under "best": the first.

    Sources: RAFT, arXiv 2304.06767 (best); rejection-sampling fine-tuning, arXiv 2308.01825 (distinct right answers);
    ReST-EM, arXiv 2312.06585 (a limit for each prompt).
    """
    rollouts, returns = group.group.rollouts, group.returns
    found = [_unusable(rollout, reward, rule) for rollout, reward in zip(rollouts, returns, strict=True)]
    ranked = sorted((i for i, verdict in enumerate(found) if verdict is None), key=lambda i: (-_known(returns[i]), i))
    most = rule.count if rule.rule == "best" else math.inf if rule.per_prompt is None else rule.per_prompt
    over: Why = "not best" if rule.rule == "best" else "per_prompt"
    seen: dict[str, int] = {}
    for i in ranked:
        key = str(i) if rule.distinct == "off" else same_answer_key(rollouts[i].completion, rule.distinct)
        if rule.above is not None and not _known(returns[i]) > rule.above:
            found[i] = Verdict("reward")
        elif key in seen:
            found[i] = Verdict("duplicate", of=seen[key])
        elif len(seen) >= most:
            found[i] = Verdict(over)
        else:
            seen[key] = i
            found[i] = Verdict("kept")
    return tuple(verdict for verdict in found if verdict is not None)


def _unusable(rollout: Rollout, reward: float | None, rule: KeepRule) -> Verdict | None:
    if rollout.failed:
        return Verdict("error")
    if not rollout.length or not text_of_answer(rollout.completion).strip():
        return Verdict("empty")
    if rollout.truncated and not rule.truncated:
        return Verdict("truncated")
    return Verdict("no reward") if reward is None or math.isnan(reward) else None


def _known(reward: float | None) -> float:
    return -math.inf if reward is None else reward


def text_of_answer(completion: Content) -> str:
    """The text of an answer; of messages those of the assistant, one a line."""
    if isinstance(completion, str):
        return completion
    return "\n".join(str(message.get("content") or "") for message in completion if message["role"] == "assistant")


_EQUATION = re.compile(r"[0-9.$%+\-*/×÷()^ ]*[0-9)]\s*=\s*[-$]?[0-9][0-9.,]*")


def same_answer_key(completion: Content, distinct: Distinct) -> str:
    """What two answers share that count as one.

    "text": the words of the answer, without differences in case, white space and Unicode forms. "equations": the equations in
    their order (`3*4=12`), as arXiv 2308.01825 §3.3 compares solutions; an answer without one is compared by its text.

    Example:
        >>> same_answer_key("So  3 * 4 = 12 apples.", "equations") == same_answer_key("We get 3*4=12.", "equations")
        True
        >>> same_answer_key("Yes,  it is", "text") == same_answer_key("yes, it is ", "text")
        True
    """
    text = unicodedata.normalize("NFKC", text_of_answer(completion))
    if distinct == "equations":
        found = [re.sub(r"[\s$,]", "", equation).rstrip(".") for equation in _EQUATION.findall(text)]
        if found:
            return "equations:" + ";".join(found)
    return " ".join(text.casefold().split())


def selection_metrics(groups: Sequence[ScoredGroup], verdicts: Sequence[Sequence[Verdict]]) -> dict[str, float]:
    """How many answers are kept, of how many prompts, and why the others are not."""
    every = [verdict for row in verdicts for verdict in row]
    counts = Counter(verdict.why for verdict in every)
    rewards = [
        reward
        for group, row in zip(groups, verdicts, strict=True)
        for reward, verdict in zip(group.returns, row, strict=True)
        if verdict.kept and reward is not None
    ]
    metrics = {
        "rft/kept": float(counts["kept"]),
        "rft/kept_ratio": counts["kept"] / max(len(every), 1),
        "rft/prompts_with_kept": sum(any(v.kept for v in row) for row in verdicts) / max(len(verdicts), 1),
    }
    if rewards:
        metrics["rft/kept_reward"] = math.fsum(rewards) / len(rewards)
    return metrics | {f"rft/rejected/{why.replace(' ', '_')}": float(counts[why]) for why in REASONS if counts[why]}
