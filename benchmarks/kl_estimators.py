"""The estimators of KL(π ‖ π_ref) against its exact value: expectation, variance, and the gradient of each as a loss.

    python benchmarks/kl_estimators.py

Everything is an exact sum over the three tokens of π = [.7, .2, .1], π_ref = [.5, .3, .2], sampled from π itself or from
μ = [.6, .25, .15]; nothing is drawn. A gradient is with respect to the logits of π, and "follows" says of which divergence it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from reinlm.objectives import full_kl, k1, k2, k3

PI, REF, MU = (torch.tensor(p, dtype=torch.float64) for p in ([0.7, 0.2, 0.1], [0.5, 0.3, 0.2], [0.6, 0.25, 0.15]))

Estimate = Callable[[Tensor], Tensor]
"""log π of every token -> what the loss of that token is."""


def ratio(logprobs: Tensor) -> Tensor:
    return (logprobs - MU.log()).exp()


def _tied(estimator: Callable[[Tensor, Tensor], Tensor], logprobs: Tensor) -> Tensor:
    return estimator(logprobs, REF.log())


def _weighted(estimate: Estimate, logprobs: Tensor, detached: bool = False) -> Tensor:
    rho = ratio(logprobs)
    return (rho.detach() if detached else rho) * estimate(logprobs)


ON_POLICY: dict[str, Estimate] = {f.__name__: (partial(_tied, f)) for f in (k1, k2, k3)}
OFF_POLICY: dict[str, Estimate] = {
    **ON_POLICY,
    **{f"sg[ρ]·{name}": (partial(_weighted, f, detached=True)) for name, f in ON_POLICY.items()},
    **{f"ρ·{name}": (partial(_weighted, f)) for name, f in ON_POLICY.items()},
}


def measure(estimate: Estimate, drawn_from: Tensor) -> tuple[float, float, Tensor]:
    """Expectation, variance and gradient of an estimate whose samples come from a fixed distribution."""
    logits = PI.log().requires_grad_()
    values = estimate(logits.log_softmax(0))
    mean = (drawn_from * values).sum()
    (gradient,) = torch.autograd.grad(mean, logits)
    variance = (drawn_from * (values.detach() - mean.detach()).square()).sum()
    return mean.item(), variance.item(), gradient


def divergences() -> dict[str, Tensor]:
    """Gradients that an estimator may follow."""
    logits = PI.log().requires_grad_()
    policy = logits.log_softmax(0)
    (reverse,) = torch.autograd.grad(full_kl(policy, REF.log()), logits, retain_graph=True)
    (forward,) = torch.autograd.grad(full_kl(REF.log(), policy), logits)
    return {"KL(π ‖ π_ref)": reverse, "KL(π_ref ‖ π)": forward, "nothing": torch.zeros(3, dtype=torch.float64)}


def main() -> None:
    print(f"exact KL(π ‖ π_ref) = {float(full_kl(PI.log(), REF.log())):.10f}\n")
    known = divergences()
    print("| samples of | loss | expectation | variance | gradient | follows |")
    print("|---|---|---|---|---|---|")
    for name, drawn, table in (("π", PI, ON_POLICY), ("μ", MU, OFF_POLICY)):
        for label, estimate in table.items():
            mean, variance, gradient = measure(estimate, drawn)
            follows = next((k for k, v in known.items() if torch.allclose(gradient, v, atol=1e-9)), "neither")
            shown = ", ".join(f"{g:.6f}" for g in gradient.tolist())
            print(f"| {name} | {label} | {mean:.7f} | {variance:.7f} | [{shown}] | {follows} |")


if __name__ == "__main__":
    main()
