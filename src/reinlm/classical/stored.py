"""An agent as a folder: settings as JSON, everything learned as safetensors."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from reinlm.classical.environments import EnvLike, recipe_of
from reinlm.classical.registry import CARDS, find
from reinlm.classical.stand_in import StandIn, describe_space, read_space
from reinlm.errors import InputError
from reinlm.importing import refuse_while_importing
from reinlm.runs.files import write_json
from reinlm.runs.state import read_state, write_state

if TYPE_CHECKING:
    from reinlm.classical.agent import Agent

AGENT_FILE = "agent.json"
STATE = "agent_state"


def write_agent(agent: Agent, folder: Path) -> Path:
    """Write an agent's folder, which is made. Raises InputError where a file is in its place."""
    refuse_while_importing(f"{type(agent).__name__}.save")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file, not a folder")
    folder.mkdir(parents=True, exist_ok=True)
    env, arguments = recipe_of(agent.env_like) or (None, {})
    described: dict[str, Any] = {
        "algorithm": agent.name,
        "env": env,
        "env_arguments": {**arguments, **agent.env_arguments},
        "seed": agent.seed,
        "settings": agent.settings.model_dump(mode="json"),
    }
    if env is None:
        described |= {"env_name": agent.env_name, "spaces": _spaces(agent)}
    write_json(folder / AGENT_FILE, described)
    write_state(folder, agent.state_dict(), STATE)
    return folder


def _spaces(agent: Agent) -> list[dict[str, Any] | None]:
    """Of the observations and actions of an agent's environment, before they are flattened."""
    env: Any = agent.env  # type: ignore[attr-defined]
    one: Any = env.envs[0] if isinstance(env, gym.vector.SyncVectorEnv) else env
    one = one.env if isinstance(one, gym.wrappers.FlattenObservation) else one
    return [describe_space(one.observation_space), describe_space(one.action_space)]


def read_description(folder: Path) -> dict[str, Any]:
    """algorithm, env, env_arguments, seed and settings of a stored agent. Raises InputError for a folder without one."""
    try:
        return dict(json.loads((folder / AGENT_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        zipped = folder.with_suffix(".zip") if not folder.suffix else folder
        hint = f"an agent is a folder with {AGENT_FILE}"
        if zipped.is_file():
            hint = "a file of Stable-Baselines3 cannot be read"
        elif (folder.with_suffix("") / AGENT_FILE).is_file():
            hint = f"there is one in the folder {folder.with_suffix('')}"
        raise InputError(f"{folder} holds no agent", hint=hint) from None


def agent_folder(path: str | Path) -> Path:
    """The folder of the agent that a path means: of a run of one seed its newest checkpoint, else the path itself.

    Raises InputError for a run of several seeds, or without a checkpoint.
    """
    folder = Path(path).expanduser()
    if (folder / AGENT_FILE).is_file() or not (folder / "run.json").is_file():
        return folder
    if (folder / "checkpoints").is_dir():
        return folder / "checkpoints" / "last"
    found = sorted(folder.glob("seeds/*/checkpoints/last"))
    if not found:
        raise InputError(f"{folder} is a run without a checkpoint of a classical agent")
    if len(found) > 1:
        raise InputError(f"{folder} is a run of {len(found)} seeds, each with an agent", hint=f"take one: {found[0]}")
    return found[0]


def _stand_in(folder: Path, path: str | Path, described: Mapping[str, Any]) -> StandIn:
    """The spaces of the environment that an agent was made with, where they are stored and suffice to act."""
    observations, actions = described.get("spaces") or (None, None)
    if observations is None or actions is None or CARDS[described["algorithm"]].family == "model":
        raise InputError(
            f"the agent in {folder} was made with an environment, not with the id of one: give env",
            hint=f"load({str(path)!r}, env=…)",
        )
    return StandIn(described["env_name"], read_space(observations), read_space(actions), str(path))


def load(path: str | Path, env: EnvLike | None = None) -> Agent:
    """The agent in a folder that `Agent.save` wrote, or in a checkpoint of a run, whatever its algorithm.

    Args:
        path: the folder; of a run with one seed its own folder too, which stands for the newest checkpoint.
        env: what it goes on learning and is evaluated in, by default the environment of the stored id, in the middle of
            the episode that was saved. In another one, or one that is made already, an episode begins. Where no id is
            stored and none is given, the agent predicts, and can neither learn nor be evaluated.

    Raises:
        InputError: for a folder that holds no agent, no `env` where neither an id nor its spaces are stored, and one that the
            agent does not fit.
    """
    folder = agent_folder(path)
    described = read_description(folder)
    kind = find(described["algorithm"])
    if env is None and described["env"] is None:
        env = _stand_in(folder, path, described)
    settings: dict[str, Any] = dict(described["settings"])
    alone = isinstance(env, gym.Env) and settings.get("environments", 1) > 1
    if alone:
        if "rollout_steps" in settings:  # as many steps in a batch, one by one
            settings["rollout_steps"] *= settings["environments"]
        settings["environments"] = 1
    arguments = described["env_arguments"] if env is None else {}
    try:
        given = described["env"] if env is None else env
        agent = kind(given, seed=described["seed"], env_arguments=arguments, **settings)
    except InputError as error:
        if env is not None or ":" not in described["env"]:
            raise
        raise InputError(error.message, hint=f"load({str(path)!r}, env=…) takes the environment itself") from None
    state: Mapping[str, Any] = read_state(folder, STATE)
    try:
        with warnings.catch_warnings():
            if isinstance(env, StandIn):  # no episode of it goes on
                warnings.filterwarnings("ignore", message="the state of .* cannot be saved")
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
