"""A chat of up to three turns with a tool, in which environment, tool and reward take any time; and tiny runs of it."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import reinlm
from reinlm.environments import Action, StepResult
from tiny_runs import local, settings, tiny

LETTERS = "abcdefghijklmnopqrstuvwxyz:\n0123456789+="
LINES = (
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}"
    "{% if m.role == 'assistant' %}<eos>{% else %}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)
"""A chat template: a role's first letter, a colon, the content, and a line break, or EOS for an assistant's."""
TASKS = [{"messages": [{"role": "user", "content": f"go{number}"}]} for number in range(8)]

clock = random.SystemRandom()
SLOWEST = 0.004


class Tools:
    """Each turn a tool counts letters, one call in a thread and one in a coroutine; the third turn is the last."""

    name = "tools"
    before_step: Callable[[], None] = staticmethod(lambda: None)
    """Called before each turn is answered."""

    def __init__(self) -> None:
        self.turn = 0

    def reset(self, task: Any) -> None:
        time.sleep(clock.uniform(0, SLOWEST))

    async def step(self, action: Action) -> StepResult:
        type(self).before_step()
        self.turn += 1
        told = await self.count(action.text)
        if self.turn == 3:
            return StepResult(reward={"letters": told / 8}, terminated=True)
        return StepResult([{"role": "tool", "content": f"{told}"}], reward={"asked": 0.1 * told})

    async def count(self, text: str) -> int:
        await asyncio.sleep(clock.uniform(0, SLOWEST))
        return sum(c.isalpha() for c in text)


def short(completions: list[Any], **_: Any) -> list[float]:
    """1/(messages): slow, and at any pace."""
    time.sleep(clock.uniform(0, SLOWEST))
    return [1.0 / len(completion) for completion in completions]


def options(**changes: Any) -> dict[str, Any]:
    return settings(
        **{
            "environment": Tools,
            "algorithm": "reinforce",
            "rollout": {"batch_size": 8, "max_new_tokens": 5, "stop_strings": list("aeiou02468"), "max_turns": 4},
            "training": {"steps": 3, "minibatches": 2},
            "optimizer": {"name": "adamw", "learning_rate": 0.01},
            "run": {"rollouts_every": 1},
            **changes,
        }
    )


def play(folder: Path, callbacks: Any = (), resume: bool = False, **changes: Any) -> Any:
    model, tokenizer = tiny(alphabet=LETTERS, chat_template=LINES)
    return reinlm.rl(
        (model.to(torch.float32), tokenizer),  # in float64 the bits that are kept do not show the order of a sum
        TASKS,
        reward=local(short),
        output=folder,
        callbacks=callbacks,
        resume=resume,
        quiet=True,
        **options(**changes),
    )


def killed_in_step(folder: Path, step: int, turns: int) -> None:
    """What a process of its own runs: it kills itself in the middle of an episode of this step, after some turns."""
    torch.set_num_threads(1)
    left = [-1]

    class Bomb(reinlm.Callback):
        def on_step_started(self, event: Any, control: Any) -> None:
            if event.step == step:
                left[0] = turns

    def count_down() -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), 9)

    Tools.before_step = staticmethod(count_down)
    play(folder, [Bomb()], run={"save_every": 1, "rollouts_every": 1})
