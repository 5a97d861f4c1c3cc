"""Helpers for whole models."""

from __future__ import annotations

import pytest
from torch import nn

from reinlm.models import training_mode


def parts() -> nn.Sequential:
    """A model of parts within parts, one of which has two places, and one place that is empty."""
    twice = nn.Dropout(0.5)
    model = nn.Sequential(nn.Sequential(twice, nn.Linear(2, 2)), nn.ModuleList([nn.Identity(), twice]))
    model.register_module("nothing", None)
    return model


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("other", ["", "0", "0.0", "1.0"])
def test_every_part_is_in_the_mode_within_and_in_its_own_again_after_it(training: bool, other: str) -> None:
    model = parts().train(training)
    model.get_submodule(other).train(not training)
    before = [module.training for module in model.modules()]
    for asked in (True, False):
        with training_mode(model, asked):
            assert {module.training for module in model.modules()} == {asked}
        assert [module.training for module in model.modules()] == before
