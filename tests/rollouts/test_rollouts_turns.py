"""Episodes of several turns: what is in a segment, what was chosen, what was earned, and with which probability."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from rollout_helpers import EOS, LINES, PAD, ScriptedEngine
from transformers import PreTrainedTokenizerFast

from reinlm.algorithms import algorithm
from reinlm.batches import feedback, token_batch
from reinlm.data.rendering import Renderer
from reinlm.environments import Action, Question, StepResult
from reinlm.errors import InputError, RunError
from reinlm.models import TokenModel
from reinlm.models.tiny import character_tokenizer, tiny_model
from reinlm.records import Rollout, RolloutGroup, ScoredGroup, Segment, Task, total
from reinlm.rollouts.episode import Limits, run_episode
from reinlm.rollouts.groups import Episodes, sample_groups
from reinlm.rollouts.hf_engine import HFEngine
from reinlm.rollouts.protocol import Sampling
from reinlm.training.learner import Learner

ALPHABET = "abcdefghijklmnopqrstuvwxyz:\n0123456789"
SAMPLING = Sampling(max_new_tokens=9, temperature=1.3, stop_token_ids=(EOS,))
CHAT = Task("data[0]", ({"role": "user", "content": "go"},))
TEXT = Task("data[1]", "go:")


@pytest.fixture(scope="module")
def characters() -> PreTrainedTokenizerFast:
    return character_tokenizer(ALPHABET, chat_template=LINES)


class Tools:
    """Three turns: a tool says a little, then two messages, then the end."""

    name = "tools"

    def __init__(self, fails_at: int | None = None) -> None:
        self.fails_at = fails_at
        self.seen: list[Action] = []
        self.closed = 0

    def reset(self, task: Task) -> None:
        return None

    def step(self, action: Action) -> StepResult:
        turn = len(self.seen)
        self.seen.append(action)
        if turn == self.fails_at:
            raise ValueError("the tool\nbroke")
        if turn == 0:
            return StepResult(({"role": "tool", "content": "ab"},), {"called": 0.5, "cost": -0.25})
        if turn == 1:
            return StepResult([{"role": "tool", "content": "cdefgh"}, {"role": "user", "content": "end"}])
        return StepResult("bye", 1.0, True)

    async def close(self) -> None:
        self.closed += 1


BREAKS = f"{__file__}:{Tools.step.__code__.co_firstlineno + 4}"
"""Where an environment of this class that fails does so."""

SCRIPT = {"e": "x1", "e/1": "y", "e/2": "zzz"}


def play(
    tokenizer: Any,
    environment: Any,
    script: Mapping[str, Any] = SCRIPT,
    *,
    task: Task = CHAT,
    context: int | None = None,
    rewrites: bool = False,
    **limits: Any,
) -> Rollout:
    engine = ScriptedEngine(tokenizer, script, context)
    renderer = Renderer(tokenizer, {"short": True} if rewrites else None)
    main = run_episode(
        engine, environment, task, name="e", renderer=renderer, sampling=SAMPLING, limits=Limits(**limits)
    )
    return asyncio.run(main)


def picture(segment: Segment) -> tuple[str, str]:
    """The tokens as characters, EOS as $; below each the turn in which it was chosen, or a dash."""
    characters = {EOS: "$", **{index + 2: character for index, character in enumerate(ALPHABET)}}
    tokens = "".join(characters[token].replace("\n", "|") for token in segment.token_ids.tolist())
    return tokens, "".join("-" if turn < 0 else str(turn) for turn in segment.turns.tolist())


def earned(rollout: Rollout) -> list[tuple[str, float, int | None]]:
    return [(event.name, event.value, event.token) for event in rollout.events]


FIRST = ("u:go|a:" "x1$" "t:ab|a:" "y$", "-------" "000" "-------" "11")  # fmt: skip
EPISODES: dict[str, tuple[Any, ...]] = {
    "finished": (
        {},
        {},
        (FIRST[0] + "t:cdefgh|u:end|a:" "zzz$", FIRST[1] + "-----------------" "2222"),
        [("called", 0.5, 2), ("cost", -0.25, 2), ("tools", 1.0, 8)],
        (True, False, "environment"),
    ),
    "turns": ({}, {"max_turns": 2}, FIRST, [("called", 0.5, 2), ("cost", -0.25, 2)], (False, True, "turns")),
    "context": ({}, {"context": 36}, FIRST, [("called", 0.5, 2), ("cost", -0.25, 2)], (False, True, "context")),
    "error": (
        {"fails_at": 1},
        {"on_environment_error": "skip"},
        FIRST,
        [("called", 0.5, 2), ("cost", -0.25, 2)],
        (False, False, f"environment Tools, task data[0]: step raised ValueError: the tool broke ({BREAKS})"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", EPISODES)
def test_tokens_turns_and_rewards_of_an_episode_are_those_worked_out_by_hand(
    case: str, characters: PreTrainedTokenizerFast
) -> None:
    made, limits, expected, rewards, ending = EPISODES[case]
    environment = Tools(**made)
    rollout = play(characters, environment, **limits)
    (segment,) = rollout.segments
    assert picture(segment) == expected
    assert [int(flag) for flag in segment.chosen] == [int(mark != "-") for mark in expected[1]]
    assert earned(rollout) == rewards
    assert (rollout.terminated, rollout.truncated, rollout.reason) == ending
    assert rollout.failed is (case == "error")
    assert environment.closed == 1
    chosen = sum(mark != "-" for mark in expected[1])
    parts = [np.arange(1, count + 1) / -8 for count in (3, 2, 4)]
    assert segment.columns["rollout_logprobs"].tolist() == np.concatenate(parts)[:chosen].tolist()
    assert segment.columns["version"].tolist() == [3] * chosen
    assert segment.sampling == SAMPLING.settings


def test_advantages_over_turns_are_those_worked_out_by_hand(characters: PreTrainedTokenizerFast) -> None:
    """What is still to come from each token on: 0.5 - 0.25 on the third token, 1 on the ninth; the failed episode has none."""
    rollouts = tuple(play(characters, Tools(**made), **limits) for made, limits, *_ in EPISODES.values())
    events = tuple(() if rollout.failed else rollout.events for rollout in rollouts)
    groups = [ScoredGroup(RolloutGroup(CHAT, rollouts), events)]
    batch = token_batch(groups)
    earned = feedback(groups, batch.layout)
    reinforce = algorithm("reinforce")
    advantages = reinforce.advantage(earned)
    by_hand = [[1.25] * 3 + [1.0] * 6, [0.25] * 3 + [0.0] * 2, [0.25] * 3 + [0.0] * 2, [0.0] * 5]
    assert advantages.tolist() == pytest.approx([value for row in by_hand for value in row], abs=1e-12)
    assert reinforce.trained(earned).tolist() == [True, True, True, False]
    assert batch.layout.count("turn").tolist() == [3, 2, 4, 3, 2, 3, 2, 3, 2]
    assert batch.layout.count("episode").tolist() == [9, 5, 5, 5]
    assert earned.truncated is not None
    assert earned.truncated.tolist() == [False, True, True, False]
    assert batch.positions.tolist()[:9] == [7, 8, 9, 17, 18, 36, 37, 38, 39]


def test_the_completion_of_a_chat_is_what_follows_the_tasks_messages(characters: PreTrainedTokenizerFast) -> None:
    environment = Tools()
    assert play(characters, environment).completion == (
        {"role": "assistant", "content": "x1"},
        {"role": "tool", "content": "ab"},
        {"role": "assistant", "content": "y"},
        {"role": "tool", "content": "cdefgh"},
        {"role": "user", "content": "end"},
        {"role": "assistant", "content": "zzz"},
    )
    assert [action.text for action in environment.seen] == ["x1", "y", "zzz"]
    assert environment.seen[1].message == {"role": "assistant", "content": "y"}
    assert environment.seen[1].token_ids.tolist() == [ALPHABET.index("y") + 2, EOS]


def test_what_the_model_gave_no_answer_to_is_no_part_of_the_completion(characters: PreTrainedTokenizerFast) -> None:
    chat = play(characters, Tools(), context=36)
    assert chat.completion == play(characters, Tools()).completion[:3]
    text = play(characters, Count(), {"e": "abc", "e/1": "d"}, task=TEXT, context=13)
    assert (text.reason, text.completion) == ("context", "abc3:d")


def test_a_template_that_rewrites_earlier_turns_begins_a_new_segment(characters: PreTrainedTokenizerFast) -> None:
    rollout = play(characters, Tools(), rewrites=True)
    again = "u:go|a:" "x$" "t:ab|a:"  # fmt: skip
    assert [picture(segment) for segment in rollout.segments] == [
        ("u:go|a:x1$", "-------000"),
        (again + "y$", "-" * 16 + "11"),
        (again + "y$" "t:cdefgh|u:end|a:" "zzz$", "-" * 35 + "2222"),
    ]  # fmt: skip
    assert (rollout.length, rollout.turns) == (9, 3)
    assert earned(rollout)[-1] == ("tools", 1.0, 8)
    assert rollout.completion == play(characters, Tools()).completion
    cut = play(characters, Tools(), rewrites=True, context=35)
    assert cut.segments == rollout.segments[:2]
    assert (cut.truncated, cut.reason) == (True, "context")


class Count:
    """Over text: says each answer's length in letters, until one is empty."""

    def __init__(self, kind: type = str) -> None:
        self.kind = kind

    async def reset(self, task: Task) -> Any:
        return self._said("in:") if self.kind is not str else None

    async def step(self, action: Action) -> tuple[Any, ...]:
        done = not action.text
        return self._said(f"{len(action.text)}:"), float(len(action.token_ids)), False, done, {"reason": "silence"}

    def _said(self, text: str) -> Any:
        return text if self.kind is str else np.array([ALPHABET.index(c) + 2 for c in text])


@pytest.mark.parametrize("kind", [str, np.ndarray])
def test_an_episode_over_text_or_tokens_extends_the_text(kind: type, characters: PreTrainedTokenizerFast) -> None:
    rollout = play(characters, Count(kind), {"e": "abc", "e/1": "d", "e/2": ""}, task=TEXT)
    (segment,) = rollout.segments
    start = "go:" if kind is str else "in:"
    assert picture(segment) == (start + "abc$" "3:" "d$" "1:" "$", "---" "0000" "--" "11" "--" "2")  # fmt: skip
    assert rollout.completion == "abc3:d1:"
    assert (rollout.terminated, rollout.truncated, rollout.reason) == (False, True, "silence")
    assert earned(rollout) == [("Count", 4.0, 3), ("Count", 2.0, 5), ("Count", 1.0, 6)]


def test_a_reset_that_says_something_takes_the_place_of_the_tasks_content(characters: PreTrainedTokenizerFast) -> None:
    class Greets(Question):
        async def reset(self, task: Task) -> str:
            return "hi"

    script = {"e": "yes"}
    assert picture(play(characters, Greets(), script).segments[0])[0] == "u:hi|a:yes$"
    assert picture(play(characters, Greets(), script, task=TEXT).segments[0])[0] == "hiyes$"


@pytest.mark.parametrize(
    ("answer", "ending"),
    [
        ("yes", (True, False, "stop")),
        (("ye", "length"), (False, True, "length")),
        (("ye", "context"), (False, True, "context")),
    ],
)
def test_a_question_is_terminated_by_its_stop_and_truncated_by_a_limit(
    answer: Any, ending: tuple[bool, bool, str], characters: PreTrainedTokenizerFast
) -> None:
    text = play(characters, Question(), {"e": answer}, task=TEXT)
    chat = play(characters, Question(), {"e": answer}, task=CHAT)
    for rollout in (text, chat):
        assert (rollout.terminated, rollout.truncated, rollout.reason) == ending
        assert rollout.events == ()
    said = "yes" if ending[0] else "ye"
    assert (text.completion, chat.completion) == (said, ({"role": "assistant", "content": said},))


def test_the_environment_never_sees_an_answer_that_was_cut_off(characters: PreTrainedTokenizerFast) -> None:
    environment = Tools()
    rollout = play(characters, environment, {"e": "x1", "e/1": ("yyy", "length")})
    assert [action.text for action in environment.seen] == ["x1"]
    assert earned(rollout) == [("called", 0.5, 2), ("cost", -0.25, 2)]
    assert (rollout.length, rollout.reason, environment.closed) == (6, "length", 1)


class Broken:
    """Returns what it was made with."""

    def __init__(self, result: Any, first: Any = None) -> None:
        self.result = result
        self.first = first

    def reset(self, task: Task) -> Any:
        return self.first

    def step(self, action: Action) -> Any:
        return self.result() if callable(self.result) else self.result


def hang() -> None:
    time.sleep(5)


@pytest.mark.parametrize(
    ("environment", "kind", "culprit"),
    [
        (Broken("text"), InputError, "step returned a str, not .observation, reward, terminated, truncated, info."),
        (Broken(StepResult(7)), InputError, "step returned an observation of type int"),  # type: ignore[arg-type]
        (Broken(StepResult("a", "1")), InputError, "step returned a reward of type str"),  # type: ignore[arg-type]
        (Broken(StepResult("a", float("nan"))), InputError, "step returned a reward of nan"),
        (Broken(StepResult("a", {"x": None})), InputError, "step returned a reward of type NoneType"),  # type: ignore[dict-item]
        (Broken(StepResult("a", None, 1)), InputError, "step returned terminated of type int"),  # type: ignore[arg-type]
        (Broken(StepResult()), InputError, "step returned no observation, though the episode goes on"),
        (Broken(StepResult(np.array([2]))), InputError, "turn 1 cannot be read: token ids, and the episode is a chat"),
        (Broken(StepResult("Ä")), InputError, "the observation of turn 1 cannot be read"),
        (Broken(None, first=3.5), InputError, "reset returned an observation of type float"),
        (Broken(lambda: dict[str, Any]()["key"]), RunError, "step raised KeyError: 'key'"),
        (Broken(lambda: exit(3)), RunError, "step raised RuntimeError: SystemExit: 3"),
        (Broken(hang), RunError, "step took longer than 0.2 s"),
    ],
)
def test_an_environment_that_fails_is_named_with_the_task_or_skipped(
    environment: Any, kind: type[InputError | RunError], culprit: str, characters: PreTrainedTokenizerFast
) -> None:
    started = time.monotonic()
    with pytest.raises(kind, match=f"environment Broken, task data.0.: .*{culprit}") as caught:
        play(characters, environment, environment_time_limit=0.2)
    assert "\n" not in str(caught.value)
    assert "on_environment_error=skip" in (caught.value.hint or "")
    rollout = play(characters, environment, environment_time_limit=0.2, on_environment_error="skip")
    assert time.monotonic() - started < 4
    assert rollout.failed
    assert rollout.reason == caught.value.message
    begun = environment.first is None
    assert [picture(segment)[0] for segment in rollout.segments] == (["u:go|a:x1$"] if begun else [])
    assert rollout.completion == (({"role": "assistant", "content": "x1"},) if begun else ())


@pytest.mark.parametrize(
    ("environment", "turn"), [(Broken(None, first=np.array([99999])), 0), (Broken(StepResult(np.array([99999]))), 1)]
)
def test_token_ids_outside_the_vocabulary_are_the_environments_fault(
    environment: Any, turn: int, characters: PreTrainedTokenizerFast
) -> None:
    vocabulary = len(characters)
    says = f"environment Broken, task data.1.: the observation of turn {turn} .* 99999 .* vocabulary of {vocabulary}"
    with pytest.raises(InputError, match=says):
        play(characters, environment, task=TEXT)
    assert play(characters, environment, task=TEXT, on_environment_error="skip").failed


def test_content_of_the_task_that_cannot_be_read_is_not_the_environments_fault(
    characters: PreTrainedTokenizerFast,
) -> None:
    with pytest.raises(InputError, match=r"data\[0\]: cannot be tokenized") as caught:
        play(characters, Question(), task=Task("data[0]", "Ä"), on_environment_error="skip")
    assert "environment" not in str(caught.value)


def test_an_episode_whose_time_is_up_is_truncated_and_closed(characters: PreTrainedTokenizerFast) -> None:
    class Slow(Tools):
        async def step(self, action: Action) -> StepResult:  # type: ignore[override]
            if self.seen:
                await asyncio.sleep(5)
            return super().step(action)

    environment = Slow()
    rollout = play(characters, environment, episode_time_limit=0.2)
    assert (rollout.terminated, rollout.truncated, rollout.reason) == (False, True, "time")
    assert [picture(segment) for segment in rollout.segments] == [FIRST]
    assert environment.closed == 1


def test_an_error_of_the_engine_is_never_skipped(characters: PreTrainedTokenizerFast) -> None:
    environment = Tools()
    with pytest.raises(KeyError, match="e/1"):
        play(characters, environment, {"e": "x"}, on_environment_error="skip")
    assert environment.closed == 1


@pytest.mark.parametrize(("max_turns", "end", "turns"), [(None, "context", 3), (2, "turns", 2)])
@pytest.mark.parametrize("packing", ["pad", "pack"])
def test_the_samplers_logprobs_are_the_learners_over_all_turns(
    max_turns: int | None, end: str, turns: int, packing: Any, characters: PreTrainedTokenizerFast
) -> None:
    """Episodes with different ends, in one ragged batch, against the learner and a plain forward over each whole segment."""
    model = tiny_model("qwen3", vocab_size=len(characters), hidden_size=32, context=64, init_std=0.3, seed=3)
    engine = HFEngine(model, characters, pad_id=PAD, max_batch=3)
    made = iter([None, 1, None, None])
    letters = tuple(range(2, 22))
    sampling = replace(SAMPLING, max_new_tokens=24, stop_token_ids=(EOS, *letters))
    renderer = Renderer(characters)
    episodes = Episodes(
        engine,
        renderer,
        sampling,
        lambda: Tools(next(made)),
        limits=Limits(on_environment_error="skip", max_turns=max_turns),
    )
    tasks = [CHAT, Task("long", ({"role": "user", "content": "a" * 40},))]
    found = sample_groups(episodes, tasks, group_size=2, tag="t")
    rollouts = [rollout for group in found.groups for rollout in group.group.rollouts]
    assert [rollout.reason for rollout in rollouts] == [
        "environment" if turns == 3 else end,
        f"environment Tools, task data[0]: step raised ValueError: the tool broke ({BREAKS})",
        end,
        end,
    ]
    assert [rollout.turns for rollout in rollouts[:2]] == [turns, 2]
    batch = token_batch(found.groups)
    learner = Learner(TokenModel(model, packing=packing), None, micro_batch_tokens=100)
    scored = learner.forward(batch).scored
    assert batch.columns["rollout_logprobs"].numpy() == pytest.approx(scored.numpy(), abs=1e-4)
    for rollout in rollouts:
        (segment,) = rollout.segments
        with torch.no_grad():
            logits = model(torch.tensor(segment.token_ids[None], dtype=torch.long)).logits[0].double() / 1.3
        places = torch.tensor(segment.positions)
        ids = torch.tensor(segment.token_ids, dtype=torch.long)[places]
        expected = logits[places - 1].log_softmax(-1)[torch.arange(len(ids)), ids]
        assert segment.columns["rollout_logprobs"] == pytest.approx(expected.numpy(), abs=1e-4)
    assert [total(events) for events in found.groups[0].events] == [1.25 if max_turns is None else 0.25, None]
