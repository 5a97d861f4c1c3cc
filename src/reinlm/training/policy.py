"""The policy of a training run: how it is loaded, saved and taken back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reinlm.errors import InputError
from reinlm.models import ModelConfig, Policy, load_policy, restore_policy, save_policy


class TrainsPolicy:
    """What every run that trains a policy brings to the loop: how its checkpoints are written and taken back."""

    policy: Policy

    def save(self, folder: Path) -> None:
        """Write the policy as a Hugging Face directory."""
        save_policy(self.policy, folder)

    def restore(self, folder: Path) -> None:
        """Take the weights back, bit for bit."""
        restore_policy(self.policy, folder)


def training_policy(config: ModelConfig, model: Any = None) -> Policy:
    """The policy to train: a loaded model as it is, else the configured one, with float32 weights for "auto".

    Weights in bfloat16 lose updates smaller than 1/256 of a weight without a word, which at the learning rates of RL is
    nearly all of them; so "auto" keeps float32 weights here and computes in bfloat16 under autocast.
    """
    if model is not None:
        return load_policy(model)
    return load_policy(trained_config(config))


def trained_config(config: ModelConfig) -> ModelConfig:
    """The same model with float32 weights for "auto", as it is trained."""
    return config.model_copy(update={"dtype": "float32"}) if config.dtype == "auto" else config


def same_tokens(key: str, path: str, model: ModelConfig, policy: Policy) -> Policy:
    """Another model, loaded as the policy was. Raises InputError where it reads other tokens."""
    source = training_policy(model.model_copy(update={"path": path, "lora": None}))
    check_tokens(key, path, source, policy)
    return source


def check_tokens(key: str, path: str, source: Policy, policy: Policy) -> None:
    """Raises InputError where a model reads other tokens than the policy."""
    if source.tokenizer.get_vocab() != policy.tokenizer.get_vocab():
        raise InputError(
            f"{key} {path} reads other tokens than the policy", hint="take a model with the same tokenizer"
        )
