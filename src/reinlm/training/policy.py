"""The policy of a training run: how it is loaded, saved and taken back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
    return load_policy(config.model_copy(update={"dtype": "float32"}) if config.dtype == "auto" else config)
