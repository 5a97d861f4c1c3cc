"""Small networks, what a policy may be a distribution over, and all parameters in one vector."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from reinlm.objectives import full_entropy, full_kl


class MLP(nn.Module):
    """Linear layers with tanh (or ReLU) between them; orthogonal weights of gain √2, the last layer's `last_gain`, biases 0.

    Without `last_gain` weights and biases are as PyTorch makes them: uniform in ±1/√inputs.
    """

    def __init__(self, sizes: Sequence[int], last_gain: float | None, relu: bool = False) -> None:
        super().__init__()
        layers = [nn.Linear(wide, narrow) for wide, narrow in pairwise(sizes)]
        if last_gain is not None:
            for layer in layers:
                nn.init.orthogonal_(layer.weight, last_gain if layer is layers[-1] else math.sqrt(2.0))
                nn.init.zeros_(layer.bias)
        self.relu = relu
        self.layers = nn.ModuleList(layers)
        self.weights = [(layer.weight, layer.bias) for layer in layers]

    def forward(self, x: Tensor) -> Tensor:
        """[*batch, inputs] to [*batch, outputs]; without a module call for each layer, which costs more than it computes."""
        *hidden, (weight, bias) = self.weights
        for inner_weight, inner_bias in hidden:
            x = F.linear(x, inner_weight, inner_bias)
            x = torch.relu(x) if self.relu else torch.tanh(x)
        return F.linear(x, weight, bias)

    def player(self) -> Callable[[np.ndarray], np.ndarray]:
        """`forward` in NumPy, on the same weights (which must be on the CPU), as they are and as they will be.

        For a handful of rows it is several times as fast; the results are the same to rounding.
        """
        *hidden, (weight, bias) = [(weight.detach().numpy().T, bias.detach().numpy()) for weight, bias in self.weights]

        def play(x: np.ndarray) -> np.ndarray:
            for inner_weight, inner_bias in hidden:
                x = x @ inner_weight + inner_bias
                x = np.maximum(x, 0.0) if self.relu else np.tanh(x)
            return x @ weight + bias

        return play


@dataclass(frozen=True)
class Categorical:
    """A distribution over finitely many actions."""

    log_distribution: Tensor
    """[*batch, A]"""

    def sample(self, noise: Tensor) -> Tensor:
        """[*batch] actions; `noise` [*batch, A] is drawn from a standard Gumbel distribution."""
        return (self.log_distribution + noise).argmax(-1)

    def mode(self) -> Tensor:
        return self.log_distribution.argmax(-1)

    def logprob(self, actions: Tensor) -> Tensor:
        return self.log_distribution.gather(-1, actions[..., None]).squeeze(-1)

    def entropy(self) -> Tensor:
        return full_entropy(self.log_distribution)

    def kl_from(self, old: Any) -> Tensor:
        """KL(old ‖ self), [*batch]."""
        return full_kl(old.log_distribution, self.log_distribution)

    def at(self, rows: Tensor) -> Categorical:
        """The same distributions at some rows of the batch."""
        return Categorical(self.log_distribution[rows])

    def detach(self) -> Categorical:
        return Categorical(self.log_distribution.detach())


@dataclass(frozen=True)
class Gaussian:
    """Independent normal distributions over the parts of a continuous action."""

    mean: Tensor
    """[*batch, D]"""
    log_std: Tensor
    """[D], the same in every state."""

    @property
    def normal(self) -> Normal:
        return Normal(self.mean, self.log_std.exp().expand_as(self.mean), validate_args=False)

    def sample(self, noise: Tensor) -> Tensor:
        """[*batch, D] actions, not clipped; `noise` [*batch, D] is standard normal."""
        return self.mean + self.log_std.exp() * noise

    def mode(self) -> Tensor:
        return self.mean

    def logprob(self, actions: Tensor) -> Tensor:
        return self.normal.log_prob(actions).sum(-1)

    def entropy(self) -> Tensor:
        return self.normal.entropy().sum(-1)

    def kl_from(self, old: Any) -> Tensor:
        """KL(old ‖ self), [*batch]."""
        return kl_divergence(old.normal, self.normal).sum(-1)

    def at(self, rows: Tensor) -> Gaussian:
        """The same distributions at some rows of the batch."""
        return Gaussian(self.mean[rows], self.log_std)

    def detach(self) -> Gaussian:
        return Gaussian(self.mean.detach(), self.log_std.detach().clone())


Distribution = Categorical | Gaussian


class Actor(nn.Module):
    """Observations [*batch, O] to a distribution over actions: an MLP, and for continuous ones a log-deviation that does not
    depend on the state."""

    def __init__(self, inputs: int, action_space: spaces.Space[Any], hidden: Sequence[int]) -> None:
        super().__init__()
        self.discrete = isinstance(action_space, spaces.Discrete)
        self.outputs = (
            int(action_space.n) if isinstance(action_space, spaces.Discrete) else math.prod(action_space.shape or ())
        )
        self.body = MLP([inputs, *hidden, self.outputs], last_gain=0.01)
        if not self.discrete:
            self.log_std = nn.Parameter(torch.zeros(self.outputs))

    def forward(self, observations: Tensor) -> Distribution:
        out = self.body(observations)
        return Categorical(torch.log_softmax(out, -1)) if self.discrete else Gaussian(out, self.log_std)

    def player(self) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        """(observations [B, O], noise [B, A or D]) to sampled actions, in NumPy and with the weights as they are now."""
        body = self.body.player()
        deviation = 1.0 if self.discrete else self.log_std.detach().exp().numpy()

        def play(observations: np.ndarray, noise: np.ndarray) -> np.ndarray:
            out = body(observations) + deviation * noise
            return out.argmax(-1) if self.discrete else out

        return play

    def noise(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        """What `sample` turns into actions, [*shape, A or D]."""
        if self.discrete:
            return -torch.empty(*shape, self.outputs).exponential_(generator=generator).log()
        return torch.randn(*shape, self.outputs, generator=generator)


class Critic(nn.Module):
    """Observations [*batch, O] to values [*batch]."""

    def __init__(self, inputs: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.body = MLP([inputs, *hidden, 1], last_gain=1.0)

    def forward(self, observations: Tensor) -> Tensor:
        values: Tensor = self.body(observations).squeeze(-1)
        return values


class Flat:
    """All parameters of some modules as views of one vector, and their gradients of another.

    One optimizer call then moves everything, and a whole policy can be copied, stepped and restored as a vector.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        parameters = [parameter for module in modules for parameter in module.parameters()]
        self.vector = nn.Parameter(torch.cat([parameter.detach().reshape(-1) for parameter in parameters]))
        self.vector.grad = torch.zeros_like(self.vector)
        self.parameters = parameters
        start = 0
        for parameter in parameters:
            end = start + parameter.numel()
            parameter.data = self.vector.data[start:end].view_as(parameter)
            parameter.grad = self.vector.grad[start:end].view_as(parameter)
            start = end

    def step(self, loss: Tensor, optimizer: torch.optim.Optimizer, max_grad_norm: float | None) -> Tensor:
        """Backward, clip the norm of the gradient, step; the norm before clipping."""
        assert self.vector.grad is not None
        self.vector.grad.zero_()
        loss.backward()
        norm = torch.linalg.vector_norm(self.vector.grad)
        if max_grad_norm is not None:
            self.vector.grad.mul_((max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
        optimizer.step()
        return norm

    def copy_from(self, other: Tensor) -> None:
        """Take the values of another vector, in place."""
        self.vector.data.copy_(other)
