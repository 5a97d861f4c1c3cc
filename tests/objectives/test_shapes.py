"""The shapes in the signatures hold at run time: a wrong one raises."""

from __future__ import annotations

import os

import pytest
import torch
from jaxtyping import TypeCheckError

from reinlm.objectives import Feedback, Layout, gae, group_center, k2

pytestmark = pytest.mark.skipif("MUTANT_UNDER_TEST" in os.environ, reason="shapes are not checked while mutants run")

LAYOUT = Layout.from_lengths([3, 1], group_size=2)
NUMBERS = torch.zeros(2, dtype=torch.float64)
STEPS = torch.zeros(4)
FLAGS = torch.zeros(4, dtype=torch.bool)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: k2(torch.zeros(3), torch.zeros(2)),
        lambda: Feedback(LAYOUT, torch.zeros(2, 1)),
        lambda: Feedback(LAYOUT, NUMBERS, step_rewards=torch.zeros(2), step_tokens=torch.tensor([1])),
        lambda: Feedback(LAYOUT, NUMBERS, truncated=torch.zeros(2)),
        lambda: LAYOUT.sum(torch.zeros(4, 2), by="turn"),
        lambda: LAYOUT.sum(torch.zeros(4, dtype=torch.long), by="turn"),
        lambda: group_center(torch.zeros(3), torch.zeros(2, dtype=torch.long), 1),
        lambda: gae(STEPS, torch.zeros(3), STEPS, FLAGS, FLAGS, gamma=1.0, gae_lambda=1.0),
        lambda: gae(STEPS, STEPS, STEPS, STEPS, FLAGS, gamma=1.0, gae_lambda=1.0),
    ],
)
def test_a_wrong_shape_or_kind_raises(wrong):
    with pytest.raises(TypeCheckError, match="Type-check error"):
        wrong()
