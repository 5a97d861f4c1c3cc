"""All tables of option names, and what to write for an option with a value."""

from __future__ import annotations

from collections.abc import Mapping

from reinlm.aliases.alias import Alias
from reinlm.aliases.sb3 import SB3
from reinlm.aliases.trl import TRL
from reinlm.aliases.verl import VERL

_CLIP = {"*": "algorithm.gate.clip={}"}

WRITE: Mapping[str, Mapping[str, str]] = {
    "clip": _CLIP,
    "clip_range": _CLIP,
    "cliprange": _CLIP,
    "epsilon": _CLIP,
    "bf16": {"true": "training.autocast=bfloat16"},
    "fp16": {"true": "model.dtype=float16"},
    "loss_type": {
        name: f"--algorithm {name} (from Python algorithm={name!r})"
        for name in ("grpo", "dr_grpo", "dapo", "cispo", "sapo")
    },
    "optim": dict.fromkeys(("adamw_torch", "adamw_torch_fused", "adamw_hf"), "optimizer.name=adamw"),
    "packing": {"true": "training.packing=pack"},
    "padding_free": {"true": "training.packing=pack"},
    "use_vllm": {"true": "rollout.engine=vllm"},
    "vllm_mode": {"colocate": "rollout.engine=vllm", "server": "rollout.engine=vllm_server"},
    "actor_rollout_ref.rollout.name": {"vllm": "rollout.engine=vllm", "hf": "rollout.engine=in_process"},
    "use_peft": {"true": "model.lora.rank=16"},
    "use_cpu": {"true": "model.device=cpu"},
    "scale_rewards": {
        "true": "algorithm.advantage=group_standardize",
        "group": "algorithm.advantage=group_standardize",
        "false": "algorithm.advantage=group_center",
        "none": "algorithm.advantage=group_center",
    },
}
"""Option of another library -> its value in lower case, or * for any -> what to write here, with {} for the value."""

OTHER: Mapping[str, Alias] = {
    "config": Alias(None, "options are sections here: optimizer={...}, rollout={...}, or recipe=FILE.yaml"),
    "tokenizer": Alias("model.path", "the tokenizer comes with the model; from Python a pair (model, tokenizer)"),
    "model_name": Alias("model.path"),
    "model_id": Alias("model.path"),
    "lr": Alias("optimizer.learning_rate"),
    "max_new_tokens": Alias("rollout.max_new_tokens"),
    "max_tokens": Alias("rollout.max_new_tokens", "of an answer; of an example of sft it is max_tokens"),
    "dataset": Alias("data.path"),
    "eval_data": Alias("evaluation.data"),
    "reward_fn": Alias("reward"),
    "reward_function": Alias("reward"),
    "rewards": Alias("reward"),
    "algo": Alias("algorithm"),
    "clip": Alias("algorithm.gate.clip.low", "and algorithm.gate.clip.high"),
    "kl": Alias("algorithm.kl"),
    "clip_higher": Alias("algorithm.gate.clip.high"),
    "dynamic_sampling": Alias("algorithm.filters", "mixed_outcomes"),
    "rollout.n": Alias("rollout.group_size"),
    **dict.fromkeys(
        ("reward.weights", "reward.weight", "reward_weight"),
        Alias(
            "reward.functions",
            "each reward has its own weight: reward.functions.NAME.weight=0.5, or {name: NAME, weight: 0.5}",
        ),
    ),
    **dict.fromkeys(("max_retries", "num_retries"), Alias("reward.retries")),
    "timeout": Alias("reward.time_limit"),
    "rollout.timeout": Alias("rollout.episode_time_limit"),
    **dict.fromkeys(("on_error", "on_failure"), Alias("reward.on_reward_error")),
}
"""Names that are common without being those of one library."""

ALIASES: Mapping[str, Mapping[str, Alias]] = {"TRL": TRL, "verl": VERL, "Stable-Baselines3": SB3, "": OTHER}
"""By library; under "" what belongs to none."""
