"""Watching a policy: an episode as text, or as a video."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym

from reinlm.classical.agent import Agent
from reinlm.classical.environments import make
from reinlm.classical.evaluation import evaluate
from reinlm.errors import InputError


def show_text(agent: Agent, write: Callable[[str], None] = print, seed: int = 10_000) -> None:
    """One greedy episode, a frame of text a step. Raises InputError where the environment has no text."""
    _check(agent, "ansi", "text")

    def frame(rendered: Any) -> None:
        write(str(rendered))

    evaluate(agent, episodes=1, seed=seed, render=frame, render_mode="ansi")


def record_video(agent: Agent, folder: Path, seed: int = 10_000) -> Path:
    """One greedy episode as `episode.mp4` in a folder; the path of the file.

    Raises InputError where the environment draws no pictures, or what writes them is not installed.
    """
    _check(agent, "rgb_array", "video")
    try:
        world = gym.wrappers.RecordVideo(
            make(agent.env_like, **agent.env_arguments, render_mode="rgb_array"),
            str(folder),
            name_prefix="episode",
            episode_trigger=lambda _: True,
            disable_logger=True,
        )
        evaluate(agent, world, episodes=1, seed=seed)
        world.close()
    except (gym.error.DependencyNotInstalled, ImportError) as error:
        raise InputError(f"a video needs more than Gymnasium: {error}", hint='pip install "reinlm[video]"') from None
    written = folder / "episode-episode-0.mp4"
    return written.rename(folder / "episode.mp4")


def _check(agent: Agent, mode: str, what: str) -> None:
    if not isinstance(agent.env_like, str):
        raise InputError(f"{agent.env_name} is made already, so it is not made again with {what}")
    world = make(agent.env_like, **agent.env_arguments)
    modes = world.metadata.get("render_modes", [])
    world.close()
    if mode not in modes:
        others = {"ansi": "text", "rgb_array": "video"}
        known = sorted(others[found] for found in modes if found in others)
        raise InputError(
            f"{agent.env_name} has no {what}", hint=f"it has {', '.join(known)}" if known else "it draws nothing"
        )
