"""An agent as a folder: settings as JSON, everything learned as safetensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from reinlm.classical.environments import EnvLike, recipe_of
from reinlm.classical.registry import find
from reinlm.errors import InputError
from reinlm.runs.files import write_json
from reinlm.runs.state import read_state, write_state

if TYPE_CHECKING:
    from reinlm.classical.agent import Agent

AGENT_FILE = "agent.json"
STATE = "agent_state"


def write_agent(agent: Agent, folder: Path) -> Path:
    """Write an agent's folder, which is made. Raises InputError where a file is in its place."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file, not a folder")
    folder.mkdir(parents=True, exist_ok=True)
    env, arguments = recipe_of(agent.env_like) or (None, {})
    described = {
        "algorithm": agent.name,
        "env": env,
        "env_arguments": {**arguments, **agent.env_arguments},
        "seed": agent.seed,
        "settings": agent.settings.model_dump(mode="json"),
    }
    write_json(folder / AGENT_FILE, described)
    write_state(folder, agent.state_dict(), STATE)
    return folder


def read_description(folder: Path) -> dict[str, Any]:
    """algorithm, env, env_arguments, seed and settings of a stored agent. Raises InputError for a folder without one."""
    try:
        return dict(json.loads((folder / AGENT_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        zipped = folder.with_suffix(".zip") if not folder.suffix else folder
        hint = (
            "a file of Stable-Baselines3 cannot be read"
            if zipped.is_file()
            else f"an agent is a folder with {AGENT_FILE}"
        )
        raise InputError(f"{folder} holds no agent", hint=hint) from None


def load(path: str | Path, env: EnvLike | None = None) -> Agent:
    """The agent in a folder that `Agent.save` wrote, or in a checkpoint of a run, whatever its algorithm.

    Args:
        path: the folder.
        env: what it goes on learning and is evaluated in, by default the environment of the stored id, in the middle of
            the episode that was saved. In another one, or one that is made already, an episode begins.

    Raises:
        InputError: for a folder that holds no agent, no `env` where no id is stored, and one that the agent does not fit.
    """
    folder = Path(path)
    described = read_description(folder)
    if env is None and described["env"] is None:
        raise InputError(
            f"the agent in {folder} was made with an environment, not with the id of one: give env",
            hint=f"load({str(path)!r}, env=…)",
        )
    settings: dict[str, Any] = dict(described["settings"])
    alone = isinstance(env, gym.Env) and settings.get("environments", 1) > 1
    if alone:
        if "rollout_steps" in settings:  # as many steps in a batch, one by one
            settings["rollout_steps"] *= settings["environments"]
        settings["environments"] = 1
    arguments = described["env_arguments"] if env is None else {}
    agent = find(described["algorithm"])(
        described["env"] if env is None else env, seed=described["seed"], env_arguments=arguments, **settings
    )
    state: Mapping[str, Any] = read_state(folder, STATE)
    try:
        agent.load_state_dict(state)
    except (RuntimeError, ValueError, KeyError, IndexError) as error:
        if env is None:
            raise
        raise InputError(
            f"the agent in {folder} does not fit {agent.env_name}: its observations or actions are others",
            hint=f"it learned in {described['env']}"
            if described["env"]
            else "give an environment like the one it learned in",
        ) from error
    return agent
