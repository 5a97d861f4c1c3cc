"""Ids that Gymnasium does not have: the successor of one that was retired, or the nearest one."""

from __future__ import annotations

import difflib
import re

import gymnasium as gym

from reinlm.errors import InputError

MOVED = {
    "lunarlandercontinuous-v2": "LunarLander-v3 with continuous=True",
    "frozenlake8x8-v0": "FrozenLake8x8-v1",
    "pong": "ALE/Pong-v5 (pip install ale-py)",
    "breakout": "ALE/Breakout-v5 (pip install ale-py)",
    "spaceinvaders": "ALE/SpaceInvaders-v5 (pip install ale-py)",
    "copy": None,
    "guessinggame": None,
    "hottercolder": None,
    "kellycoinflip": None,
    "nchain": None,
    "offswitchcartpole": None,
    "roulette": None,
}
"""What Gym once had under another name (lower case), and its successor; None: it was retired without one."""


def no_such(env: str, error: Exception) -> InputError:
    """The error for an id that cannot be made."""
    known = list(gym.registry)
    family = re.sub(r"-v\d+$", "", env).lower()
    for key in (env.lower(), family, re.sub(r"(noframeskip|deterministic)$", "", family)):
        if key in MOVED:
            successor = MOVED[key]
            hint = f"its successor is {successor}" if successor else "it was retired without a successor"
            return InputError(f"environment {env!r} is no longer part of Gymnasium", hint=hint)
    versions = [name for name in known if re.sub(r"-v\d+$", "", name).lower() == family]
    if versions:
        newest = max(versions, key=lambda name: int(name.rpartition("-v")[2]))
        if env.lower() != newest.lower():
            return InputError(f"environment {env!r} was retired or never existed", hint=f"its successor is {newest!r}")
        return InputError(f"environment {env!r} cannot be made: {error}", hint=f"did you mean {newest!r}?")
    spelled = {name.lower(): name for name in known}
    near = [repr(spelled[key]) for key in difflib.get_close_matches(env.lower(), spelled, n=3, cutoff=0.6)]
    hint = f"did you mean {near[0]}?" if near else "ids are those of Gymnasium, such as CartPole-v1"
    if near[1:]:
        hint += f" Also near: {', '.join(near[1:])}"
    if env.endswith(".py"):
        hint = f"name the class in the file: {env}:CLASS"
    return InputError(f"unknown environment {env!r}", hint=hint)
