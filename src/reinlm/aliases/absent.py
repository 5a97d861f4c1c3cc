"""Names of the field that this version does not have: messages say so instead of guessing another name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from reinlm.errors import InputError, plain_name
from reinlm.program import command_line

_VERBS = "`rl` improves a model against a reward, `sft` imitates completions"

VERBS: Mapping[str, str] = {
    "run": "a recipe of several stages has no verb in this version; each stage is one command",
    **dict.fromkeys(("candidates", "annotate", "judge", "preferences"), "this version collects no preferences"),
    **dict.fromkeys(
        ("online-dpo", "iterative-dpo"),
        "`dpo` with a reward and prompts samples answers, has them judged, and learns from their pairs",
    ),
    "doctor": "this version has no diagnosis command; the report shows every curve",
    "view": "this version has no viewer; the report is a page that a browser opens",
    "serve": "this version serves no model; `checkpoints/last` is a folder that every server of Hugging Face models loads",
}
"""Verb -> why it is not there."""

TRL_NAMES: Mapping[str, str] = {
    **dict.fromkeys(
        ("GRPOTrainer", "RLOOTrainer", "PPOTrainer"), 'use reinlm.rl, or reinlm.RLTrainer, with algorithm="{}"'
    ),
    **dict.fromkeys(
        ("GRPOConfig", "RLOOConfig", "PPOConfig"),
        'give the options to reinlm.rl: rollout={{"group_size": 8}}, optimizer={{…}}, with algorithm="{}"; '
        "`{keys}` finds an option by its name there",
    ),
    "SFTConfig": "give the options to reinlm.sft: training={{…}}, optimizer={{…}}; `{keys}` finds an option by its name there",
    "RewardConfig": "give the options to reinlm.reward: loss={{…}}, training={{…}}, optimizer={{…}}",
    **dict.fromkeys(
        ("KTOTrainer", "ORPOTrainer", "CPOTrainer", "BCOTrainer"),
        'use reinlm.dpo, or reinlm.DPOTrainer, with algorithm="{}"',
    ),
    "OnlineDPOTrainer": "use reinlm.dpo, or reinlm.DPOTrainer, with reward=… and prompts as data",
    "OnlineDPOConfig": (
        "give the options to reinlm.dpo: reward=…, rollout={{…}}, pairs={{…}}, training={{…}}, optimizer={{…}}"
    ),
    **dict.fromkeys(
        ("DPOConfig", "KTOConfig", "ORPOConfig", "CPOConfig", "BCOConfig"),
        'give the options to reinlm.dpo: algorithm={{"base": "{}", "beta": 0.1}}, training={{…}}, optimizer={{…}}',
    ),
    "WinRateCallback": "use reinlm.evaluate(model, data, against=…, judge=…) with the same judge",
    "EarlyStoppingCallback": 'use reinlm.EarlyStopping("reward", patience=3)',
    "TrainerCallback": "use reinlm.Callback",
}
"""What one imports from TRL and transformers -> what to use; `{}` stands for the algorithm, `{keys}` for a command."""


class Instead(NamedTuple):
    """What to use in place of a name of Stable-Baselines3."""

    models: str | None
    """For a language model, in full; None for what is of control alone."""
    classical: str | None
    """For a classical agent, as it is called in `reinlm.classical`; None for what is no name there."""


SB3_NAMES: Mapping[str, Instead] = {
    "BaseCallback": Instead(
        "use reinlm.Callback; a classical agent has learn(log=f), which calls f(metrics)",
        "learn(log=f), which calls f(metrics)",
    ),
    "EvalCallback": Instead(
        "evaluation={'every': 50} of reinlm.rl, with eval_data; a classical agent has the settings eval_freq and "
        "n_eval_episodes",
        "the settings eval_freq and n_eval_episodes",
    ),
    "CheckpointCallback": Instead(
        "run={'save_every': 50} of reinlm.rl; a classical agent has agent.save(path), and its run keeps the newest checkpoint",
        "agent.save(path), also within learn(log=f); a run of the command line keeps its newest checkpoint",
    ),
    "StopTrainingOnRewardThreshold": Instead(
        "use reinlm.EarlyStopping; learn(log=f) of a classical agent ends where f returns False",
        "learn(log=f), which ends where f returns False",
    ),
    "evaluate_policy": Instead(
        "use reinlm.evaluate, or reinlm.classical.evaluate for a classical agent",
        "evaluate",
    ),
    "eval": Instead("use reinlm.evaluate", None),
    **dict.fromkeys(("make_vec_env", "DummyVecEnv", "SubprocVecEnv"), Instead(None, "PPO(id, environments=8)")),
    "VecNormalize": Instead(None, "the settings normalize_observations and normalize_rewards"),
    "Monitor": Instead(None, "agent.episodes, which has every return"),
    **dict.fromkeys(("SAC", "TD3", "DDPG"), Instead(None, "PPO for continuous actions")),
    "QRDQN": Instead(None, "DQN"),
    "RecurrentPPO": Instead(None, "PPO; networks have no memory"),
    "MaskablePPO": Instead(None, "PPO; actions have no masks"),
}
"""What one imports from Stable-Baselines3 and types out of habit -> what to use."""

CLASSICAL_NAMES: Mapping[str, str] = {name: one.classical for name, one in SB3_NAMES.items() if one.classical}
"""Those that may be looked for in `reinlm.classical` -> what to use there."""


def name_instead(name: str) -> str | None:
    """What to use in place of a class or function of TRL, transformers or Stable-Baselines3; None for any other name.

    Example:
        >>> name_instead("GRPOTrainer")
        'use reinlm.rl, or reinlm.RLTrainer, with algorithm="grpo"'
        >>> name_instead("SAC")
        'for control, reinlm.classical has PPO for continuous actions'
    """
    if name in SB3_NAMES:
        models, classical = SB3_NAMES[name]
        return models or f"for control, reinlm.classical has {classical}"
    text = TRL_NAMES.get(name)
    algorithm = name.removesuffix("Trainer").removesuffix("Config").lower()
    return None if text is None else text.format(algorithm, keys=command_line("keys", "NAME"))


def absent_verb(name: str) -> InputError | None:
    """The error for a verb of the field that is not there; None for any other name."""
    return _absent("command", name, VERBS, _VERBS)


def _absent(kind: str, name: str, known: Mapping[str, str], hint: str) -> InputError | None:
    plain = {plain_name(key): key for key in known}
    key = plain.get(plain_name(name))
    return None if key is None else InputError(f"there is no {kind} {name!r}: {known[key]}", hint=hint)
