"""Names of Stable-Baselines3 that are no settings here: policies, arguments, attributes; and what to write.

`reinlm.aliases.SB3` pairs those that are; `reinlm.aliases.absent` has what one imports.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from reinlm.errors import InputError, nearest

POLICIES = ("MlpPolicy", "MultiInputPolicy")
"""Accepted before the environment: the only networks here are linear layers, over observations in a row."""

SYMBOLS = {
    "alpha": ("step_size", "learning_rate"),
    "learning_rate": ("step_size",),
    "gamma": ("discount",),
    "lam": ("smoothing",),
    "lambda": ("smoothing",),
    "n_envs": ("environments",),
    "n_steps": ("rollout_steps", "n"),
    "target_kl": ("target_kl", "divergence"),
}
"""Symbols of textbooks, and names of Stable-Baselines3 that are several of our settings: the first that an algorithm has."""

AS_IT_IS = {
    "use_sde": (False, "noise is drawn for every step: there is no state-dependent exploration"),
    "sde_sample_freq": (-1, "noise is drawn for every step: there is no state-dependent exploration"),
    "stats_window_size": (100, "the online return is the mean of the last 100 episodes"),
    "rollout_buffer_class": (None, "batches have one form"),
    "rollout_buffer_kwargs": (None, "batches have one form"),
    "replay_buffer_class": (None, "the memory draws uniformly; capacity is its size"),
    "replay_buffer_kwargs": (None, "the memory draws uniformly; capacity is its size"),
    "optimize_memory_usage": (False, "the memory holds both observations of a transition; capacity is its size"),
    "sub_sampling_factor": (1, "trpo's step uses the whole batch"),
    "use_rms_prop": (True, "a2c has RMSprop; actor_critic has Adam"),
    "rms_prop_eps": (1e-5, "a2c has RMSprop with epsilon 1e-5"),
    "tensorboard_log": (None, "reinlm classical --tensorboard, or ClassicalConfig(tensorboard=True), writes its files"),
    "clip_range_vf": (
        None,
        "write value_clip={}, which clips as the paper's code does: the larger of both losses counts",
    ),
    "_init_setup_model": (True, "an agent is made whole"),
}
"""Arguments without a setting here: the value that describes what happens anyway, which is accepted, and why no other is."""

OF_LEARN = {
    "total_timesteps": "learn(total_timesteps=100_000), or --steps 100000",
    "steps": "learn(100_000), or --steps 100000",
    "episodes": "learn(episodes=1000), or --episodes 1000",
    "verbose": "--quiet for less",
    "seed": "--seed 0",
    "env_arguments": "env.KEY=VALUE",
    "env_kwargs": "env_arguments={…}, or env.KEY=VALUE at the command line",
    "callback": "learn(log=f), which calls f(metrics)",
    "progress_bar": "learn(steps, progress_bar=True)",
    "log_interval": "learn(log=f), which calls f(metrics) about a hundred times",
    "eval_env": "evaluate(agent, env)",
}
"""What belongs to `learn`, `evaluate` or a flag, and is given as a setting."""

ATTRIBUTES = {
    "num_timesteps": "steps",
    "get_env": "env",
    "set_env": "load(path, env=…)",
    "policy": "actor and critic, or online and target of dqn",
    "policy_class": "modules()",
    "n_envs": "count",
    "n_steps": "settings.rollout_steps",
    "get_parameters": "state_dict()",
    "set_parameters": "load_state_dict(state)",
    "get_vec_normalize_env": "settings.normalize_observations",
    "ep_info_buffer": "episodes",
    "logger": "learn(log=f)",
    "set_logger": "learn(log=f)",
    "replay_buffer": "memory",
    "rollout_buffer": "collect()",
    "q_net": "online",
    "q_net_target": "target",
    "exploration_rate": "epsilon",
    "train": "learn(steps)",
    "collect_rollouts": "collect()",
}
"""Attributes of a model there -> here."""

TABLES = ("Q", "Q_table", "q_table", "qtable", "q_values", "table")
"""What others call the table of action values."""

EVALUATE = {
    "return_episode_rewards": "evaluate(…).returns and .lengths are of each episode",
    "callback": "evaluate(render=f) calls f with what the environment renders, after every step",
    "reward_threshold": "compare evaluate(…).mean_return with it",
    "warn": "leave it out: nothing but the environment's own reward is counted",
    "n_episodes": "write episodes=100",
}
"""Arguments of `evaluate_policy` there, and what to do here."""

LEARN = {
    "callback": "learn(log=f) calls f(metrics) about a hundred times, and ends where it returns False",
    "log_interval": "learn(log=f) calls f(metrics) about a hundred times",
    "reset_num_timesteps": "a second call counts on, and its schedules start again",
    "tb_log_name": "reinlm classical --tensorboard writes TensorBoard's files",
}
"""Arguments of `learn` there, and what to do here."""


def check_learn(log: Any, others: Mapping[str, Any]) -> None:
    """Raise InputError for a `log` that is no function, and for arguments of `learn` that it does not take."""
    if log is not None and not callable(log):
        raise InputError(f"log is a function of the metrics, not {log!r:.60}", hint="learn(1000, log=print)")
    for name, value in others.items():
        if name == "callback" and value is None:
            continue
        if name == "callback":
            best = "; eval_freq keeps the best weights" if "Eval" in type(value).__name__ else ""
            raise InputError(f"learn has no callback {type(value).__name__}", hint=f"{LEARN[name]}{best}")
        raise InputError(f"learn has no {name}", hint=LEARN.get(name, "it has steps, episodes, log and progress_bar"))


def check_evaluate(others: Mapping[str, Any], arguments: Collection[str]) -> None:
    """Raise InputError for arguments of `evaluate` that it does not take, and that its environment is not made with either."""
    known = ("policy", "env", "episodes", "n_eval_episodes", "seed", "deterministic", "render")
    for name in others:
        near = None if name in arguments else nearest(name, known)
        if name in EVALUATE or near is not None:
            raise InputError(f"evaluate has no {name}", hint=EVALUATE.get(name) or f"did you mean {near}?")


def check_predict(observation: Any, deterministic: Any, others: Mapping[str, Any]) -> None:
    """Raise InputError for arguments of `predict` that it does not take; those of recurrent policies may be None there.

    Raises it too for what `reset` gives in place of an observation, and for what is no truth value.
    """
    for name, value in others.items():
        if name not in ("state", "episode_start", "mask"):
            raise InputError(f"predict has no {name}", hint="it has observation and deterministic")
        if value is not None:
            raise InputError(f"predict takes no {name}: networks here have no memory", hint=f"leave {name} out")
    if isinstance(observation, tuple) and len(observation) == 2 and isinstance(observation[1], dict):
        raise InputError(
            "reset gives (observation, info), and predict takes an observation",
            hint="write observation, info = env.reset()",
        )
    if not isinstance(deterministic, bool | np.bool_):
        raise InputError(
            f"deterministic is True or False, not {deterministic!r:.60}",
            hint="predict(observation, deterministic=True)",
        )


def check_load(others: Mapping[str, Any]) -> None:
    """Raise InputError for arguments of `load` that it does not take, or that ask for what it does not do."""
    for name, value in others.items():
        if name == "device" and str(value) not in ("cpu", "auto"):
            raise InputError(f"device={str(value)!r} is not supported: agents act on the CPU", hint="leave device out")
        if name == "print_system_info" and value:
            raise InputError("load prints no system_info", hint="`reinlm --version` prints the version")
        if name == "custom_objects" and value:
            raise InputError("load takes no custom_objects: nothing in the folder is pickled", hint="leave them out")
        if name not in ("device", "print_system_info", "custom_objects", "force_reset"):
            raise InputError(
                f"load takes no {name}: an agent keeps the settings that it was saved with", hint="it has path and env"
            )


def no_attribute(agent: object, name: str) -> Any:
    """Raise AttributeError with the name that an attribute of a model there, or of a textbook's table, has here."""
    if name in TABLES and "q" in vars(agent):
        raise AttributeError(
            f"{type(agent).__name__} has no attribute {name!r}; the table of action values is q [S, A]"
        )
    there = f"; what Stable-Baselines3 calls {name} is {ATTRIBUTES[name]} here" if name in ATTRIBUTES else ""
    raise AttributeError(f"{type(agent).__name__} has no attribute {name!r}{there}")


class Action(int):
    """A discrete action; one who unpacks it as (action, state) is told that it stands alone."""

    def __iter__(self) -> Any:
        raise InputError(
            "predict gives the action alone, without a state", hint="write action = agent.predict(observation)"
        )
