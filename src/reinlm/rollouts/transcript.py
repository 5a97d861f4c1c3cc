"""The state of a running episode: its context in tokens, and its finished segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from reinlm.environments import Action, Observation
from reinlm.errors import InputError
from reinlm.records import NO_TURN, Array, Content, Message, RewardEvent, Segment, Task
from reinlm.rollouts.protocol import Completion, Sampling

if TYPE_CHECKING:
    from reinlm.data.rendering import Renderer


class Transcript:
    """Observations and answers in turns, as tokens and as text or messages. No token is ever tokenised again.

    An observation extends the tokens of the context. Where the chat template rewrites earlier turns, so that it cannot,
    the segment ends and another begins with the prompt that the template makes of all messages.
    """

    def __init__(self, task: Task, renderer: Renderer, sampling: Sampling) -> None:
        self.task = task
        self.context: list[int] = []
        """The tokens that the model reads next."""
        self.chosen = 0
        """The tokens that the policy chose so far, over all segments."""
        self._renderer = renderer
        self._sampling = sampling
        self._stops = frozenset(sampling.stop_token_ids)
        self._content: Content = task.content  # all that the context says; before the last answer, where one is open
        self._answer: str | Message = ""
        self._turns: list[int] = []
        self._columns: dict[str, list[Array]] = {}
        self._segments: list[Segment] = []
        self._written: list[str | Message] = []
        self._unread: list[str | Message] = []

    def begin(self, observation: Observation) -> None:
        """Take the first observation; None is the task's own content.

        Raises InputError for content that cannot be turned into tokens, and for token ids outside the vocabulary.
        """
        if isinstance(observation, np.ndarray):
            self._content = self._decoded(observation)
            self._start(observation.tolist())
            return
        if observation is not None:
            as_chat = isinstance(observation, str) and not isinstance(self.task.content, str)
            self._content = (_user(str(observation)),) if as_chat else _content(observation)
        self._start(self._renderer.prompt(self._content, self.task.id))

    def answer(self, completion: Completion, turn: int) -> Action:
        """Take a turn of the model."""
        ids = completion.token_ids
        answer = self._renderer.parse(self._content, ids.tolist(), self._stops)
        self.context += ids.tolist()
        self._turns += [turn] * len(ids)
        self.chosen += len(ids)
        for name, values in completion.columns.items():
            self._columns.setdefault(name, []).append(values)
        self._answer = answer
        self._written += [*self._unread, answer]
        self._unread = []
        if isinstance(answer, str):
            return Action(answer, ids)
        return Action(str(answer.get("content") or ""), ids, answer)

    def observe(self, observation: Observation) -> None:
        """Take what the environment said to the last turn.

        Raises InputError for messages to an episode over text, for token ids to a chat or outside the vocabulary, and
        what the renderer raises.
        """
        before, answer = self._content, self._answer
        if isinstance(before, str):
            new, ids = self._text(before, str(answer), observation)
            self._content = before + str(answer) + new
            self._unread = [new]
        else:
            messages, ids = self._messages(before, answer, observation)
            self._content = (*before, _message(answer), *messages)
            self._unread = list(messages)
        if ids is None:
            self._close()
            self._start(self._renderer.prompt(self._content, self.task.id))
        else:
            self.context += ids
            self._turns += [NO_TURN] * len(ids)

    def events(self, reward: float | Mapping[str, float] | None, name: str) -> list[RewardEvent]:
        """The rewards of a step, on the last token of its turn."""
        if reward is None:
            return []
        named = reward if isinstance(reward, Mapping) else {name: reward}
        return [RewardEvent(name, value, token=self.chosen - 1) for name, value in named.items()]

    def finish(self) -> tuple[tuple[Segment, ...], Content]:
        """The segments, and what reward functions receive as the completion.

        An observation that the model gave no answer to is in neither.
        """
        self._close()
        text = isinstance(self._content, str)
        return tuple(self._segments), "".join(map(str, self._written)) if text else tuple(map(_message, self._written))

    # ------------------------------------------------------------------------------------------ tokens

    def _start(self, ids: list[int]) -> None:
        self.context = list(ids)
        self._turns = [NO_TURN] * len(ids)
        self._columns = {}

    def _close(self) -> None:
        """Make a segment of the context up to the last chosen token; of a prompt alone where there is nothing else."""
        end = max((place + 1 for place, turn in enumerate(self._turns) if turn != NO_TURN), default=0)
        if not end and (self._segments or not self.context):
            return
        ids, turns = self.context[: end or None], self._turns[: end or None]
        columns = {name: np.concatenate(parts) for name, parts in self._columns.items()}
        self._segments.append(
            Segment(np.array(ids, np.int32), np.array(turns, np.int16), columns, self._sampling.settings)
        )
        self._start([])

    def _decoded(self, ids: Array) -> str:
        vocabulary = self._renderer.vocabulary
        if len(ids) and ids.max() >= vocabulary:
            raise InputError(f"token id {ids.max()} is outside the tokenizer's vocabulary of {vocabulary}")
        return str(self._renderer.parse("", ids.tolist(), frozenset()))

    def _text(self, before: str, answer: str, observation: Observation) -> tuple[str, list[int] | None]:
        if isinstance(observation, np.ndarray):
            return self._decoded(observation), observation.tolist()
        if not isinstance(observation, str):
            raise InputError("messages, and the episode is one over text")
        return observation, self._renderer.extension(self.task.id, before, self.context, answer, observation)

    def _messages(
        self, before: tuple[Message, ...], answer: str | Message, observation: Observation
    ) -> tuple[tuple[Message, ...], list[int] | None]:
        if isinstance(observation, np.ndarray) or observation is None:
            raise InputError("token ids, and the episode is a chat")
        new = (_user(observation),) if isinstance(observation, str) else tuple(observation)
        return new, self._renderer.extension(self.task.id, before, self.context, answer, new)


def _content(observation: str | Sequence[Message]) -> Content:
    return observation if isinstance(observation, str) else tuple(observation)


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _message(answer: str | Message) -> Message:
    assert not isinstance(answer, str)
    return answer
