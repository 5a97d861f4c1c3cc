"""Weights of tokens: from counts over the whole optimizer step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given

import oracles
from reinlm.objectives import (
    ConstantBudget,
    Counts,
    Layout,
    prompt_mean,
    sequence_mean,
    sequence_sum,
    token_mean,
)
from reinlm.objectives.ratios import widest
from strategies import padded_batches

# Vector 0: x = [[1,2,3,4],[5,6,·,·],[·,·,·,·]]
VECTOR = Layout.from_lengths([4, 2, 0])
X = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], dtype=torch.float64)
ALL: dict[Any, Any] = {
    "token": token_mean,
    "sequence": sequence_mean,
    "prompt": prompt_mean,
    "sum": sequence_sum,
    7: ConstantBudget(7),
}


def aggregate(weights, layout=VECTOR, x=X):
    return float((weights(layout, Counts.of(layout)) * x).sum())


@pytest.mark.parametrize(
    ("weights", "value"),
    [(token_mean, 3.5), (sequence_mean, 4.0), (sequence_sum, 10.5), (ConstantBudget(4), 1.75), (prompt_mean, 4.0)],
)
def test_vector_0_of_every_aggregation(weights, value):
    assert aggregate(weights) == pytest.approx(value, abs=1e-12)


def test_counts_tell_rows_from_sequences_and_empty_groups_from_full_ones():
    assert Counts.of(Layout.from_lengths([4, 2, 0, 0], group_size=2)) == Counts(tokens=6, sequences=2, rows=4, groups=1)


def test_counts_of_parts_add():
    assert Counts(1, 2, 3, 4) + Counts(10, 20, 30, 40) == Counts(11, 22, 33, 44)


def test_a_token_mean_over_micro_batches_is_not_the_mean_of_their_means():
    """[1, 2, 3] and [4]: 2.5 over the step, not 3.0."""
    step = Layout.from_lengths([3, 1])
    counts = Counts.of(step)
    total, means = 0.0, []
    for sequence, x in ((0, [1.0, 2.0, 3.0]), (1, [4.0])):
        part, _ = step.select(torch.tensor([sequence]))
        total += float((token_mean(part, counts) * torch.tensor(x)).sum())
        means.append(aggregate(token_mean, part, torch.tensor(x)))
    assert total == 2.5
    assert sum(means) / 2 == pytest.approx(3.0, abs=1e-12)


def test_two_answers_of_unequal_length_weigh_as_the_papers_say():
    """Ratio 1, A = [1, -1], lengths 2 and 4: GRPO 0, DAPO 1/3, Dr. GRPO (budget 8) 0.125."""
    layout = Layout.from_lengths([2, 4], group_size=2)
    losses = torch.tensor([-1.0, -1, 1, 1, 1, 1], dtype=torch.float64)
    assert aggregate(sequence_mean, layout, losses) == pytest.approx(0.0, abs=1e-15)
    assert aggregate(token_mean, layout, losses) == pytest.approx(1 / 3, abs=1e-9)
    assert aggregate(ConstantBudget(8), layout, losses) == pytest.approx(0.125, abs=1e-12)
    counts = Counts.of(layout)
    assert sequence_mean(layout, counts).tolist() == [0.25] * 2 + [0.125] * 4
    assert token_mean(layout, counts).tolist() == [1 / 6] * 6
    assert ConstantBudget(8)(layout, counts).tolist() == [1 / 16] * 6


def test_a_prompt_mean_weighs_prompts_the_same_and_tokens_within_them():
    layout = Layout.from_lengths([3, 1, 2, 0], group_size=2)
    assert prompt_mean(layout, Counts.of(layout)).tolist() == [1 / 8] * 4 + [1 / 4] * 2


@pytest.mark.parametrize("weights", ALL.values())
def test_an_empty_step_has_no_weights_and_divides_by_nothing(weights):
    for layout in (Layout.from_lengths([]), Layout.from_lengths([0, 0])):
        assert weights(layout, Counts.of(layout)).shape == (0,)


@pytest.mark.parametrize("weights", ALL.values())
def test_a_slice_under_the_counts_of_a_single_token_has_its_weight(weights):
    """Counts of one are not rounded up."""
    layout = Layout.from_lengths([1])
    assert weights(layout, Counts(1, 1, 1, 1)).tolist() == [1 / 7 if weights == ConstantBudget(7) else 1.0]


@given(padded_batches())
def test_weights_equal_the_formulas_over_padded_rows(batch):
    mask = torch.as_tensor(batch.mask)
    layout = Layout.from_mask(mask, torch.as_tensor(batch.groups))
    for name, weights in ALL.items():
        mine = weights(layout, Counts.of(layout))
        assert mine.dtype == torch.float64
        np.testing.assert_allclose(mine, oracles.token_weights(batch.mask, name, batch.groups)[batch.mask], rtol=1e-14)


@pytest.mark.parametrize("length", [0, -3])
def test_a_constant_budget_of_no_token_is_refused(length):
    with pytest.raises(ValueError, match=f"^a constant budget needs a length of at least 1 token, not {length}$"):
        ConstantBudget(length)


def test_a_constant_budget_of_one_token_is_the_sum_over_rows():
    assert ConstantBudget(1)(VECTOR, Counts.of(VECTOR)).tolist() == [1 / 3] * 6


def test_weights_are_exact_where_the_device_has_float64():
    found = {kind: widest(torch.device(kind)) for kind in ("cpu", "cuda", "mps")}
    assert found == {"cpu": torch.float64, "cuda": torch.float64, "mps": torch.float32}
    assert {rule(VECTOR, Counts.of(VECTOR)).dtype for rule in ALL.values()} == {torch.float64}


def test_weights_are_made_on_the_device_of_the_layout():
    with torch.device("meta"):
        made = [weights(VECTOR, Counts(6, 2, 3, 2)).device.type for weights in ALL.values()]
    assert set(made) == {"cpu"}
