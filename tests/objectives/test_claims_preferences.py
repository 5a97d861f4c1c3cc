"""Claims about learning from judgements, settled on a world whose every answer can be listed."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from reinlm.algorithms import preference_algorithm
from reinlm.objectives import Pairs

WORDS, LENGTH = 3, 3
ANSWERS = torch.tensor(list(itertools.product(range(WORDS), repeat=LENGTH)))
"""[27, 3]: all answers of three tokens from three words."""


def answer_logprobs(tables: list[Tensor]) -> Tensor:
    """log π of every answer [27] under tables of logits: a row for each text so far."""
    total = torch.zeros(len(ANSWERS), dtype=torch.float64)
    state = torch.zeros(len(ANSWERS), dtype=torch.long)
    for t, table in enumerate(tables):
        total = total + table.log_softmax(-1)[state, ANSWERS[:, t]]
        state = state * WORDS + ANSWERS[:, t]
    return total


def tables(generator: torch.Generator) -> list[Tensor]:
    return [torch.randn(WORDS**t, WORDS, generator=generator, dtype=torch.float64) for t in range(LENGTH)]


@pytest.mark.parametrize(
    ("name", "values", "flipped"),
    [
        ("dpo", {"beta": 0.5}, 0.0),
        ("dpo", {"beta": 2.0}, 0.0),
        ("robust_dpo", {"beta": 0.5, "label_smoothing": 0.2}, 0.2),
    ],
)
def test_the_trained_policy_is_the_reference_reweighed_by_the_reward(name: str, values: dict, flipped: float) -> None:
    """Judgements as Bradley and Terry have them, P(y ≻ y') = σ(r - r'), a share of which may be flipped where the loss knows."""
    generator = torch.Generator().manual_seed(0)
    reference = answer_logprobs(tables(generator))
    rewards = torch.randn(len(ANSWERS), generator=generator, dtype=torch.float64)
    first, second = torch.tensor([(i, j) for i in range(27) for j in range(27) if i != j]).T
    truth = torch.sigmoid(rewards[first] - rewards[second])
    judged = (1.0 - flipped) * truth + flipped * (1.0 - truth)
    loss = preference_algorithm(name, **values).loss
    policy = [table.requires_grad_() for table in tables(generator)]
    optimizer = torch.optim.LBFGS(policy, max_iter=400, tolerance_grad=1e-10, line_search_fn="strong_wolfe")
    lengths = torch.full_like(first, LENGTH)

    def step() -> Tensor:
        optimizer.zero_grad()
        logprobs = answer_logprobs(policy)
        pairs = Pairs(logprobs[first], logprobs[second], reference[first], reference[second], lengths, lengths)
        value = (judged * loss(pairs, loss.prepare(pairs))).sum() / judged.sum()
        value.backward()
        return value

    before = answer_logprobs(policy).detach().exp()
    optimizer.step(step)
    optimum = (reference + rewards / values["beta"]).softmax(0)
    assert float((before - optimum).abs().max()) > 0.05
    torch.testing.assert_close(answer_logprobs(policy).detach().exp(), optimum, atol=1e-3, rtol=0)


def test_dpo_widens_the_difference_although_both_answers_become_less_likely() -> None:
    """Two answers that share their first token: the gradient of DPO on tables where a third answer takes the probability."""
    logits = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64, requires_grad=True)
    features = torch.tensor([[1.0, 0.0, 0.0], [1.4, 0.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    start = (features @ logits).log_softmax(0).detach()
    length = torch.tensor([1])
    optimizer = torch.optim.SGD([logits], lr=1.0)
    loss = preference_algorithm("dpo", beta=1.0).loss
    for _ in range(20):
        optimizer.zero_grad()
        logprobs = (features @ logits).log_softmax(0)
        loss(Pairs(logprobs[:1], logprobs[1:2], start[:1], start[1:2], length, length), {}).sum().backward()
        optimizer.step()
    moved = (features @ logits).log_softmax(0).detach() - start
    assert moved[0] > moved[1]
    assert moved[0] < 0.0
    assert moved[2] > 0.0
