"""What a value network begins with."""

import math

import pytest
import torch

from reinlm.classical.deep.dqn import DQN
from reinlm.errors import InputError


def test_weights_begin_orthogonal_with_biases_0() -> None:
    agent = DQN("CartPole-v1", seed=3, hidden=(16, 8))
    first, second, last = agent.online.layers
    torch.testing.assert_close(first.weight.T @ first.weight, 2 * torch.eye(4))
    torch.testing.assert_close(second.weight @ second.weight.T, 2 * torch.eye(8))
    torch.testing.assert_close(last.weight @ last.weight.T, torch.eye(2))
    assert all(not layer.bias.any() for layer in agent.online.layers)


def test_weights_begin_uniform_within_a_root_of_the_inputs_and_the_target_is_a_copy() -> None:
    agent = DQN("CartPole-v1", seed=3, hidden=(256, 64), weights="uniform")
    for layer, inputs in zip(agent.online.layers, (4, 256, 64), strict=True):
        bound = 1 / math.sqrt(inputs)
        assert 0.9 * bound < float(layer.weight.detach().abs().max()) <= bound
        assert 0.0 < float(layer.bias.detach().abs().max()) <= bound
    middle = agent.online.layers[1].weight.detach()
    assert float(middle.std()) == pytest.approx(1 / 16 / math.sqrt(3), rel=0.02)
    assert torch.equal(agent.target.layers[1].weight, middle)


def test_other_weights_are_refused() -> None:
    with pytest.raises(InputError, match="weights"):
        DQN("CartPole-v1", weights="zeros")
