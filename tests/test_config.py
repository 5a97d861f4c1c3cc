"""Configuration: what a resolved config.yaml says again, and what unknown keys are answered with."""

from __future__ import annotations

import pytest

from reinlm.config import Config, build
from reinlm.errors import InputError
from reinlm.training.optimizer import OptimizerConfig


@pytest.mark.parametrize("config", [OptimizerConfig(name="sgd", options={"momentum": 0.9}), OptimizerConfig()])
def test_what_a_run_resolved_can_be_read_again(config: Config) -> None:
    assert build(type(config), config.model_dump()) == config


def test_a_setting_that_the_optimizer_does_not_have_is_refused() -> None:
    with pytest.raises(InputError, match="betas has no effect on the optimizer sgd"):
        build(OptimizerConfig, {"name": "sgd", "betas": [0.8, 0.9]})
