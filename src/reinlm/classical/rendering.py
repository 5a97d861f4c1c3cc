"""Watching a policy: an episode as text, or as a video."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym

from reinlm.classical.agent import Agent
from reinlm.classical.environments import EnvLike, make, name_of
from reinlm.classical.evaluation import evaluate
from reinlm.errors import InputError
from reinlm.program import install

_MODES = {"text": "ansi", "video": "rgb_array"}
"""What is asked for -> Gymnasium's render mode."""


def show_text(agent: Agent, write: Callable[[str], None] = print, seed: int = 10_000) -> None:
    """One greedy episode, a frame of text a step. Raises InputError where the environment has no text."""
    check_rendering(agent.env_like, agent.env_arguments, "text")

    def frame(rendered: Any) -> None:
        write(str(rendered))

    evaluate(agent, episodes=1, seed=seed, render=frame, render_mode="ansi")


def record_video(agent: Agent, folder: Path, seed: int = 10_000) -> Path:
    """One greedy episode as `episode.mp4` in a folder; the path of the file.

    Raises InputError where the environment draws no pictures, or what writes them is not installed.
    """
    check_rendering(agent.env_like, agent.env_arguments, "video")
    frames = (
        folder / "episode"
    )  # a folder of its own, which does not exist: in another one the recorder warns of overwriting
    try:
        world = gym.wrappers.RecordVideo(
            make(agent.env_like, **agent.env_arguments, render_mode="rgb_array"),
            str(frames),
            name_prefix="episode",
            episode_trigger=lambda _: True,
            disable_logger=True,
        )
        evaluate(agent, world, episodes=1, seed=seed)
        world.close()
    except (gym.error.DependencyNotInstalled, ImportError) as error:
        raise _no_video(error) from None
    written = (frames / "episode-episode-0.mp4").replace(folder / "episode.mp4")
    shutil.rmtree(frames)
    return written


def _no_video(error: Exception) -> InputError:
    return InputError(f"a video needs more than Gymnasium: {error}", hint=install("video"))


def check_rendering(env: EnvLike, arguments: Mapping[str, Any], what: str) -> None:
    """Raise InputError where an environment cannot be shown as `what`, "text" or "video": its first frame is drawn."""
    if not isinstance(env, str):
        raise InputError(f"{name_of(env)} is made already, so it is not made again with {what}")
    world = make(env, **arguments)
    modes = world.metadata.get("render_modes", [])
    world.close()
    if _MODES[what] not in modes:
        known = sorted(name for name, mode in _MODES.items() if mode in modes)
        raise InputError(f"{env} has no {what}", hint=f"it has {', '.join(known)}" if known else "it draws nothing")
    try:
        if what == "video":
            importlib.import_module("moviepy")
        world = make(env, **arguments, render_mode=_MODES[what])
        world.reset(seed=0)
        world.render()
        world.close()
    except (gym.error.DependencyNotInstalled, ImportError) as error:
        raise _no_video(error) from None
