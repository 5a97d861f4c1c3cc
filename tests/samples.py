"""Small rollouts and groups for tests, written out by hand."""

from __future__ import annotations

from reinlm.records import End, Prompt, RewardEvent, Rollout, RolloutGroup, ScoredGroup, Segment


def segment(pattern: str, end: End = "stop") -> Segment:
    """A segment by a picture: `p` a token of the prompt or of a tool, `a` a token that the policy chose.

    Token ids count from 10, log-probabilities from -0.1 in steps of -0.1.
    """
    chosen = tuple(letter == "a" for letter in pattern)
    count = sum(chosen)
    return Segment(
        token_ids=tuple(range(10, 10 + len(pattern))),
        chosen=chosen,
        rollout_logprobs=tuple(-0.1 * (i + 1) for i in range(count)),
        versions=(0,) * count,
        end=end,
    )


def scored(
    *answers: tuple[list[str] | str, list[RewardEvent]], where: str = "data[0]", end: End = "stop"
) -> ScoredGroup:
    """A group from pairs (segments as pictures, events)."""
    prompt = Prompt(id=where, content="1+1=", token_ids=(10,))
    rollouts = []
    for pictures, _ in answers:
        pictures = [pictures] if isinstance(pictures, str) else pictures
        rollouts.append(Rollout(prompt, tuple(segment(p, end) for p in pictures), completion="2"))
    return ScoredGroup(RolloutGroup(prompt, tuple(rollouts)), tuple(tuple(events) for _, events in answers))


def reward(value: float, name: str = "math", token: int | None = None, weight: float = 1.0) -> RewardEvent:
    return RewardEvent(name=name, value=value, token=token, weight=weight)
