"""The point of the package: what trains a language model trains CartPole. No formula stands here twice."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from classical_helpers import Counter

import reinlm.classical
from reinlm import objectives
from reinlm.algorithms import algorithm
from reinlm.classical import PPO, PPOPenalty, catalogue
from reinlm.classical.deep.on_policy import Batch
from reinlm.classical.registry import MODULES
from reinlm.models import TokenModel

FOLDER = Path(reinlm.classical.__file__).parent
FILES = sorted(FOLDER.rglob("*.py"))


def module(name: str) -> ModuleType:
    return importlib.import_module(f"reinlm.classical.{name}")


def test_the_language_models_score_and_the_categorical_policy_have_one_entropy_and_one_divergence() -> None:
    networks = module("deep.networks")
    scoring = importlib.import_module("reinlm.models.token_model")
    assert scoring.full_entropy is networks.full_entropy is objectives.full_entropy
    assert scoring.full_divergence is objectives.full_divergence
    assert networks.full_kl is objectives.full_kl
    old, new = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(1)).log_softmax(-1)
    assert torch.equal(objectives.full_divergence(new, old, "reverse"), objectives.full_kl(new, old))
    assert torch.equal(objectives.full_divergence(new, old, "forward"), objectives.full_kl(old, new))
    assert TokenModel is scoring.TokenModel


def test_ppos_loss_on_cartpole_is_the_language_models_on_the_same_numbers() -> None:
    """One step of CartPole is one answer of one token: gate, aggregation and value loss of `reinlm.algorithm("ppo")`."""
    agent = PPO(
        "CartPole-v1", seed=3, environments=4, rollout_steps=16, normalize_advantages=False, entropy_coefficient=0.0
    )
    batch = agent.prepare(agent.collect())
    with torch.no_grad():
        agent.flat.vector.add_(0.15 * torch.randn(agent.flat.vector.shape, generator=torch.Generator().manual_seed(0)))
    loss, _ = agent.loss(batch, clip=0.2)

    steps = len(batch.advantages)
    layout = objectives.Layout.from_lengths([1] * steps)
    ppo = algorithm("ppo", kl=())
    signals = objectives.Signals(
        layout=layout,
        advantages=batch.advantages,
        weights=torch.full((steps,), 1.0 / steps),
        old_logprobs=batch.old_logprobs,
    )
    logprobs = agent.actor(batch.observations).logprob(batch.actions)
    theirs = ppo.loss(logprobs, signals, ppo.initial_state()).value
    values = objectives.value_loss(agent.critic(batch.observations), batch.returns)
    assert loss.detach() == pytest.approx(float(theirs + 0.5 * values.mean()), rel=1e-6)
    ratio = (logprobs - batch.old_logprobs).exp()
    assert float((ratio - 1).abs().max()) > 0.2  # so that the clip has something to do


def test_gae_is_called_with_the_true_successors(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def spy(*arguments: torch.Tensor, **settings: Any) -> torch.Tensor:
        seen["arguments"], seen["settings"] = arguments, settings
        return objectives.gae(*arguments, **settings)

    on_policy = module("deep.on_policy")
    monkeypatch.setattr(on_policy, "gae", spy)
    agent = PPO("CartPole-v1", environments=2, rollout_steps=8, discount=0.9, smoothing=0.7)
    rollout = agent.collect()
    batch = agent.prepare(rollout)
    assert seen["settings"] == {"gamma": 0.9, "gae_lambda": 0.7}
    expected = objectives.gae(
        rollout.rewards,
        rollout.values,
        rollout.next_values,
        rollout.terminated,
        rollout.truncated,
        gamma=0.9,
        gae_lambda=0.7,
    )
    torch.testing.assert_close(batch.advantages, expected.flatten())
    torch.testing.assert_close(batch.returns, (expected + rollout.values).flatten())
    assert isinstance(batch, Batch)


def test_every_algorithm_is_told_of_and_its_file_is_short() -> None:
    names = [card.name for card in catalogue()]
    assert len(names) == len(set(names)) == 16
    assert all(card.equation and card.source and card.use for card in catalogue())
    assert [name for name in MODULES if not (FOLDER / f"{name.replace('.', '/')}.py").is_file()] == []
    long = {path.name: count for path in FILES if (count := len(path.read_text(encoding="utf-8").splitlines())) > 250}
    assert long == {}


def test_the_equation_stands_in_the_docstring_of_every_algorithm() -> None:
    for card in catalogue():
        doc = inspect.getdoc(reinlm.classical.find(card.name)) or ""
        assert len(doc) > 80, card.name
        assert any(sign in doc for sign in ("←", "=", "min(", "max mean", "δ")), card.name


# ------------------------------------------------------------------------------------------------ by numbers
# What follows calls no function of the objectives to compare with: a fault in a shared function shows here too.


def plain_gae(
    rewards: list[float], values: list[float], following: list[float], ends: list[str], g: float, lam: float
) -> list[float]:
    advantages, carried = [], 0.0
    for r, v, f, end in reversed(list(zip(rewards, values, following, ends, strict=True))):
        delta = r + (0.0 if end == "terminated" else g * f) - v
        carried = delta + (g * lam * carried if end == "" else 0.0)
        advantages.append(carried)
    return advantages[::-1]


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_advantages_on_a_control_task_are_those_of_a_plain_loop(end: str) -> None:
    agent = PPO(
        lambda: Counter(3, truncates=end == "truncated"),
        environments=1,
        rollout_steps=5,
        discount=0.9,
        smoothing=0.8,
        normalize_rewards=False,
        hidden=(4,),
        seed=2,
    )
    rollout = agent.collect()
    ends = ["", "", end, "", ""]
    rewards, values, following = (x[:, 0].tolist() for x in (rollout.rewards, rollout.values, rollout.next_values))
    expected = plain_gae(rewards, values, following, ends, 0.9, 0.8)
    np.testing.assert_allclose(agent.prepare(rollout).advantages.numpy(), expected, rtol=1e-5)


def test_ppos_loss_and_figures_are_those_of_a_plain_loop() -> None:
    agent = PPO("CartPole-v1", seed=3, environments=4, rollout_steps=16, entropy_coefficient=0.01, value_clip=0.1)
    batch = agent.prepare(agent.collect())
    with torch.no_grad():
        agent.flat.vector.add_(0.2 * torch.randn(agent.flat.vector.shape, generator=torch.Generator().manual_seed(1)))
        log_p = agent.actor(batch.observations).log_distribution.double().numpy()
        values = agent.critic(batch.observations).double().numpy()
    loss, figures = agent.loss(batch, clip=0.2)
    assert figures is not None
    old, raw, returns, old_values = (
        getattr(batch, name).double().numpy() for name in ("old_logprobs", "advantages", "returns", "old_values")
    )
    advantages = (raw - raw.mean()) / np.sqrt(raw.var(ddof=1) + 1e-8)
    logprobs = log_p[np.arange(len(raw)), batch.actions.numpy()]
    ratio = np.exp(logprobs - old)
    clipped = np.minimum(ratio * advantages, np.clip(ratio, 0.8, 1.2) * advantages)
    moved = old_values + np.clip(values - old_values, -0.1, 0.1)
    value_losses = np.maximum((values - returns) ** 2, (moved - returns) ** 2) / 2
    entropy = -(np.exp(log_p) * log_p).sum(-1)
    expected = -clipped.mean() + 0.5 * value_losses.mean() - 0.01 * entropy.mean()
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-4)
    kl = (np.exp(logprobs - old) - 1 - (logprobs - old)).mean()
    stopped = (clipped < ratio * advantages - 1e-9).mean()
    np.testing.assert_allclose(
        figures.numpy(), [-clipped.mean(), value_losses.mean(), entropy.mean(), kl, stopped], rtol=1e-3, atol=1e-6
    )
    assert 0.1 < stopped < 0.9


def test_ppo_penaltys_loss_is_that_of_a_plain_loop() -> None:
    agent = PPOPenalty(
        "CartPole-v1", seed=3, environments=4, rollout_steps=16, coefficient=2.0, normalize_advantages=False
    )
    batch = agent.prepare(agent.collect())
    with torch.no_grad():
        old = agent.actor(batch.observations).detach()
        before = old.log_distribution.double().numpy()
        agent.flat.vector.add_(0.2 * torch.randn(agent.flat.vector.shape, generator=torch.Generator().manual_seed(1)))
        after = agent.actor(batch.observations).log_distribution.double().numpy()
        values = agent.critic(batch.observations).double().numpy()
    loss, _ = agent.loss(batch, old)
    chosen = batch.actions.numpy()
    ratio = np.exp(after[np.arange(64), chosen] - batch.old_logprobs.double().numpy())
    kl = (np.exp(before) * (before - after)).sum(-1)
    value_losses = (values - batch.returns.double().numpy()) ** 2 / 2
    expected = -(ratio * batch.advantages.double().numpy()).mean() + 2.0 * kl.mean() + 0.5 * value_losses.mean()
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-4)
    assert kl.mean() > 0.01
