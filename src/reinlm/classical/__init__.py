"""The classical algorithms, on the functions that train language models: `PPO("CartPole-v1", seed=0).learn(100_000)`."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reinlm.classical.agent import Agent
    from reinlm.classical.deep.actor_critic import A2C, ActorCritic
    from reinlm.classical.deep.dqn import DQN
    from reinlm.classical.deep.ppo import PPO
    from reinlm.classical.deep.ppo_penalty import PPOPenalty
    from reinlm.classical.deep.reinforce import REINFORCE
    from reinlm.classical.deep.trpo import TRPO
    from reinlm.classical.evaluation import Evaluated, evaluate
    from reinlm.classical.registry import catalogue, find
    from reinlm.classical.stored import load
    from reinlm.classical.tabular.double_q_learning import DoubleQLearning
    from reinlm.classical.tabular.dynamic_programming import PolicyIteration, ValueIteration
    from reinlm.classical.tabular.expected_sarsa import ExpectedSARSA
    from reinlm.classical.tabular.monte_carlo import MonteCarlo
    from reinlm.classical.tabular.off_policy_monte_carlo import OffPolicyMonteCarlo
    from reinlm.classical.tabular.q_learning import QLearning
    from reinlm.classical.tabular.sarsa import SARSA
    from reinlm.classical.tabular.td import TD

_WHERE = {
    "Agent": "agent",
    "load": "stored",
    "catalogue": "registry",
    "find": "registry",
    "Evaluated": "evaluation",
    "evaluate": "evaluation",
    "PolicyIteration": "tabular.dynamic_programming",
    "ValueIteration": "tabular.dynamic_programming",
    "MonteCarlo": "tabular.monte_carlo",
    "OffPolicyMonteCarlo": "tabular.off_policy_monte_carlo",
    "TD": "tabular.td",
    "SARSA": "tabular.sarsa",
    "ExpectedSARSA": "tabular.expected_sarsa",
    "QLearning": "tabular.q_learning",
    "DoubleQLearning": "tabular.double_q_learning",
    "DQN": "deep.dqn",
    "REINFORCE": "deep.reinforce",
    "A2C": "deep.actor_critic",
    "ActorCritic": "deep.actor_critic",
    "TRPO": "deep.trpo",
    "PPO": "deep.ppo",
    "PPOPenalty": "deep.ppo_penalty",
}

__all__ = [
    "A2C",
    "DQN",
    "PPO",
    "REINFORCE",
    "SARSA",
    "TD",
    "TRPO",
    "ActorCritic",
    "Agent",
    "DoubleQLearning",
    "Evaluated",
    "ExpectedSARSA",
    "MonteCarlo",
    "OffPolicyMonteCarlo",
    "PPOPenalty",
    "PolicyIteration",
    "QLearning",
    "ValueIteration",
    "catalogue",
    "evaluate",
    "find",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        from reinlm.aliases.absent import CLASSICAL_NAMES

        if name not in CLASSICAL_NAMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        text = f"{__name__} has no {name}: use {CLASSICAL_NAMES[name]}"
        # `from reinlm.classical import NAME` replaces the text of an AttributeError; `hasattr` needs one
        imported = sys._getframe(1).f_code.co_name == "_handle_fromlist"
        raise ImportError(text, name=__name__) if imported else AttributeError(text)
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
