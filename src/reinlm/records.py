"""One noun a stage: what flows from a prompt to an update.

    Prompt -> Rollout -> RolloutGroup -> ScoredGroup -> TrainBatch -> update

Every record is frozen, and a later stage never overwrites an earlier one's field. This module imports no torch when it
is loaded, so that reward workers and data tools stay light.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from reinlm.objectives import Feedback, Layout

Message = Mapping[str, Any]
"""A chat message as Hugging Face writes it: `{"role": "user", "content": "2+2?"}`."""

End = Literal["stop", "length", "environment", "error"]
"""Why a segment ended: the model said stop, a limit cut it off, the task ended, or something broke."""


@dataclass(frozen=True)
class Prompt:
    """One question to the policy, as the user wrote it and as the model reads it.

    Example:
        Prompt(id="train.jsonl:1", content="12+30=", token_ids=(5, 6, 14, 7, 4, 15), columns={"answer": "42"})
    """

    id: str
    """Where it comes from, for error messages: `FILE:LINE` or `data[INDEX]`. Unique within a data set."""
    content: str | tuple[Message, ...]
    """Plain text, or chat messages: what reward functions receive in `prompts`."""
    token_ids: tuple[int, ...]
    """What the model reads: the text or the rendered chat template, with its special tokens."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Every other column of the row; they reach reward functions by name."""


@dataclass(frozen=True)
class Segment:
    """A stretch of tokens that the model really saw in one context: prompt, answers, tool output in between.

    Example: a prompt of 3 tokens, then an answer of 2 that ended by the stop token 1:
        Segment(token_ids=(5, 6, 7, 9, 1), chosen=(False, False, False, True, True),
                rollout_logprobs=(-0.7, -0.1), versions=(4, 4), end="stop")
    """

    token_ids: tuple[int, ...]
    """Ids as they were read and sampled, never tokenised again from text; no padding."""
    chosen: tuple[bool, ...]
    """True where the policy chose the token. Same length as `token_ids`; the first one is never chosen."""
    rollout_logprobs: tuple[float, ...]
    """The sampler's log-probability of each chosen token, under the distribution that it was sampled from."""
    versions: tuple[int, ...]
    """The policy version that chose each chosen token: the number of updates made before it."""
    end: End

    def __post_init__(self) -> None:
        count = sum(self.chosen)
        if len(self.chosen) != len(self.token_ids):
            raise ValueError(f"chosen has {len(self.chosen)} entries for {len(self.token_ids)} tokens")
        if len(self.rollout_logprobs) != count or len(self.versions) != count:
            raise ValueError(
                f"{count} chosen tokens need as many rollout_logprobs ({len(self.rollout_logprobs)}) "
                f"and versions ({len(self.versions)})"
            )
        if self.chosen and self.chosen[0]:
            raise ValueError("the first token of a segment cannot be chosen: nothing stands before it")

    @property
    def positions(self) -> tuple[int, ...]:
        """Where the chosen tokens stand in `token_ids`."""
        return tuple(index for index, chosen in enumerate(self.chosen) if chosen)

    @property
    def chosen_ids(self) -> tuple[int, ...]:
        """The ids of the chosen tokens, the stop token included."""
        return tuple(token for token, chosen in zip(self.token_ids, self.chosen, strict=True) if chosen)


@dataclass(frozen=True)
class Rollout:
    """One episode: what the policy did with a prompt, in one or more segments.

    Example:
        Rollout(prompt=prompt, segments=(segment,), completion="42")
    """

    prompt: Prompt
    segments: tuple[Segment, ...]
    completion: str | tuple[Message, ...]
    """What reward functions receive in `completions`: text without special tokens, or assistant messages for a chat."""

    @property
    def end(self) -> End:
        """Why the episode ended: the end of its last segment."""
        return self.segments[-1].end

    @property
    def truncated(self) -> bool:
        """A limit cut it off. Never the same thing as having finished."""
        return self.end == "length"

    @property
    def length(self) -> int:
        """The number of tokens that the policy chose."""
        return sum(len(segment.rollout_logprobs) for segment in self.segments)


@dataclass(frozen=True)
class RolloutGroup:
    """All rollouts of one prompt: the group that group baselines compare within."""

    prompt: Prompt
    rollouts: tuple[Rollout, ...]


@dataclass(frozen=True)
class RewardEvent:
    """One reward: where it lands, which one it is, and its value before weights.

    Example: a verifier's verdict on the whole answer, and a process reward on the 12th chosen token:
        RewardEvent(name="math", value=1.0), RewardEvent(name="steps", value=0.5, token=11)
    """

    name: str
    value: float
    token: int | None = None
    """Index among the episode's chosen tokens; None for the episode as a whole."""
    weight: float = 1.0


@dataclass(frozen=True)
class ScoredGroup:
    """A group with its rewards: for every rollout the events that it earned. No event means no term, not zero."""

    group: RolloutGroup
    events: tuple[tuple[RewardEvent, ...], ...]
    baseline: float | None = None
    """The outcome reward of the policy's greedy answer to the prompt, where an algorithm asks for it."""

    def __post_init__(self) -> None:
        if len(self.events) != len(self.group.rollouts):
            raise ValueError(
                f"{len(self.group.rollouts)} rollouts need as many tuples of events, not {len(self.events)}"
            )
        for index, (rollout, earned) in enumerate(zip(self.group.rollouts, self.events, strict=True)):
            for event in earned:
                if event.token is not None and not 0 <= event.token < rollout.length:
                    raise ValueError(
                        f"{self.group.prompt.id}, sample {index}: reward {event.name!r} lands on token {event.token} "
                        f"of an answer of {rollout.length} tokens"
                    )

    @property
    def rewards(self) -> tuple[float | None, ...]:
        """The weighted outcome reward of every rollout; None where no term is left."""
        return tuple(outcome(events) for events in self.events)


def outcome(events: Sequence[RewardEvent], name: str | None = None) -> float | None:
    """Σ weight · value over the events (of that name), or None where there is none."""
    terms = [event.weight * event.value for event in events if name is None or event.name == name]
    return sum(terms) if terms else None


@dataclass(frozen=True)
class TrainBatch:
    """Everything that one collection of groups says to the trainer, flat over the N tokens that the policy chose.

    Tensors live on the CPU. `train_batch` makes one from scored groups.
    """

    sequences: tuple[tuple[int, ...], ...]
    """S stretches of token ids as the model saw them, prompts included."""
    positions: tuple[tuple[int, ...], ...]
    """Where in its sequence every scored token stands, in order."""
    rollout_logprobs: Float[Tensor, " tokens"]
    feedback: Feedback
    """Rewards by episode and token, with the layout that says which token belongs where."""

    @property
    def layout(self) -> Layout:
        return self.feedback.layout


def train_batch(groups: Sequence[ScoredGroup], shaping: Sequence[float] | None = None) -> TrainBatch:
    """Flatten scored groups. `shaping` is added to the outcome reward of each rollout that has one.

    An episode with step rewards alone has the outcome reward 0; one without any event has NaN, out of every statistic.
    Raises ValueError where `shaping` has not one number for each rollout.
    """
    import torch

    from reinlm.objectives import Feedback

    rollouts = [rollout for group in groups for rollout in group.group.rollouts]
    events = [item for group in groups for item in group.events]
    segments = [segment for rollout in rollouts for segment in rollout.segments]
    rewards = []
    step_rewards: list[float] = []
    step_tokens: list[int] = []
    start = 0
    for rollout, earned, added in zip(
        rollouts, events, [0.0] * len(rollouts) if shaping is None else shaping, strict=True
    ):
        whole = [event.weight * event.value for event in earned if event.token is None]
        rewards.append(sum(whole, start=added) if earned else float("nan"))
        for event in earned:
            if event.token is not None:
                step_rewards.append(event.weight * event.value)
                step_tokens.append(start + event.token)
        start += rollout.length
    feedback = Feedback(
        layout=_layout(groups),
        rewards=torch.tensor(rewards, dtype=torch.float64),
        step_rewards=torch.tensor(step_rewards, dtype=torch.float64) if step_rewards else None,
        step_tokens=torch.tensor(step_tokens, dtype=torch.long) if step_rewards else None,
        truncated=torch.tensor([rollout.truncated for rollout in rollouts], dtype=torch.bool),
        baseline_rewards=torch.tensor(
            [float("nan") if group.baseline is None else group.baseline for group in groups], dtype=torch.float64
        ),
    )
    logprobs = [value for segment in segments for value in segment.rollout_logprobs]
    return TrainBatch(
        sequences=tuple(segment.token_ids for segment in segments),
        positions=tuple(segment.positions for segment in segments),
        rollout_logprobs=torch.tensor(logprobs, dtype=torch.float32),
        feedback=feedback,
    )


def _layout(groups: Sequence[ScoredGroup]) -> Layout:
    """Token ⊂ turn ⊂ segment ⊂ rollout ⊂ group."""
    import torch

    from reinlm.objectives import Layout

    rollouts = [rollout for group in groups for rollout in group.group.rollouts]
    segments = [segment for rollout in rollouts for segment in rollout.segments]
    turn_of_token: list[int] = []
    sequence_of_turn: list[int] = []
    for index, segment in enumerate(segments):
        before = -1
        for place in segment.positions:
            if before < 0 or place != before + 1:
                sequence_of_turn.append(index)
            turn_of_token.append(len(sequence_of_turn) - 1)
            before = place
    return Layout(
        turn_of_token=torch.tensor(turn_of_token, dtype=torch.long),
        sequence_of_turn=torch.tensor(sequence_of_turn, dtype=torch.long),
        episode_of_sequence=torch.tensor([e for e, r in enumerate(rollouts) for _ in r.segments], dtype=torch.long),
        group_of_episode=torch.tensor([g for g, group in enumerate(groups) for _ in group.events], dtype=torch.long),
        groups=len(groups),
    )
