"""What stands beside a key in baseline and trial: what the key needs to mean anything."""

from __future__ import annotations

from typing import Any

from matrix_trials import GRADED, STOPS

Tree = dict[str, Any]

_EVAL: Tree = {"data": {"eval": {"path": "others.jsonl"}}, "max_new_tokens": 4}
_TWICE: Tree = {"columns": {"rejected": "{chosen}{chosen}"}}
_JUDGED_EVAL: Tree = {"data": {"eval": {"path": "others.jsonl"}}}
_CHAT: Tree = {"path": "chat_model"}
_SGD: Tree = {"name": "sgd", "options": {"momentum": 0.5}}
_PLAIN_SGD: Tree = {"optimizer": {"name": "sgd"}}
"""Where all that differs is rounding, by which adamw divides."""
_ONE_TOKEN: Tree = {"rollout": {"group_size": 4, "batch_size": 64, "max_new_tokens": 1}}
_SAMPLES: Tree = {"evaluation": {"samples": 16, "max_new_tokens": 1}}
_TURNS: Tree = {"environment": "turns.py:Turns"}
_STEPS: Tree = {"training": {"steps": 2}}
_STEEP: Tree = {"model": {"path": "steep_model"}}
_CRITIC: Tree = {"algorithm": "ppo", **_STEPS, "optimizer": {"learning_rate": 0.1}}
_TEXT: Tree = {"text": {"data": {"path": "examples.jsonl"}, "batch_size": 4}}
_FLAKY: Tree = {"functions": ["rewards.py:flaky"], "time_limit": None}
_PICKY: Tree = {"reward": {"functions": ["rewards.py:picky"], "on_reward_error": "skip"}}
_WAITS: Tree = {"reward": {"functions": ["rewards.py:waits"]}}
_MATCH: Tree = {"functions": {"exact_match": {}}}
_EASY_EVAL: Tree = {
    "evaluation": {"data": {"eval": {"path": "easy.jsonl"}}, "samples": 8, "max_new_tokens": 1},
}
_GOLD: Tree = {
    "evaluation": {**_EVAL, "every": 1},
    "training": {"steps": 3},
    "optimizer": {"learning_rate": 0.1},
}
_APART: Tree = {"reward": [{"name": "rewards.py:graded", "weight": -1.0}], "proxy_rise": 1e-6, "gold_fall": 1e-6}
"""A gold score that falls where the reward rises."""
_LATE: Tree = {"functions": ["rewards.py:late"], "time_limit": None}
_FROZEN: Tree = {
    "imports": ["parts.py"],
    "rollout": {"engine": "frozen"},
    **_STEPS,
    "optimizer": {"learning_rate": 0.1},
}
"""The sampler stays behind the policy."""
_ONLINE: Tree = {
    "data": {"path": "prompts.jsonl"},
    "reward": GRADED,
    "rollout": {"group_size": 4, "batch_size": 8, "max_new_tokens": 4, "stop_strings": STOPS},
    "training": {"steps": 1},
    "run": {"rollouts_every": 1},
}
"""dpo on answers that it samples."""


def _tracker(service: str, **settings: Any) -> Tree:
    return {"run": {"trackers": [{service: settings}]}}


def _of_data(section: str, wrap: Any) -> dict[str, Tree]:
    """The contexts of a section of data; `wrap` puts its values where they belong."""
    chat = {
        f"{section}.{name}": {"model": _CHAT} for name in ("system_prompt", "chat_template_kwargs", "renderer", "chat")
    }
    return {
        **chat,
        f"{section}.on_bad_row": wrap({"path": "bad.jsonl"}),
        f"{section}.on_long_prompt": wrap({"path": "long.jsonl"}),
        f"{section}.weights": wrap({"path": ["all.jsonl", "more.jsonl"]}),
        f"{section}.split": wrap({"path": "saved"}),
    }


def _advantage(name: str, base: str, **values: Any) -> Tree:
    return {"algorithm": {"base": base, "advantage": {name: values}}}


def _kl(**values: Any) -> Tree:
    return {"algorithm": {"kl": values}}


CONTEXTS: dict[str, dict[str, Tree]] = {
    "": {
        "model.lora.": {"model": {"lora": {"rank": 2}}},
        **_of_data("data", lambda values: {"data": values}),
        "evaluation": {"evaluation": _EVAL},
        "evaluation.data": {"evaluation": {"data": None, "max_new_tokens": None}},
        "evaluation.best_of": {"evaluation": {"samples": 4}},
        "evaluation.majority_vote": {"evaluation": {"samples": 4}},
        "evaluation.data.eval": {"evaluation": _EVAL},
        **_of_data("evaluation.data.eval", lambda values: {"evaluation": {"data": {"eval": values}}}),
        "data.max_similarity": {"data": _TWICE},
        "evaluation.data.eval.max_similarity": {"evaluation": {"data": {"eval": _TWICE}}},
        "reward.call": {"reward": {"functions": ["rewards.py:calls"]}},
        "reward.on_reward_error": {"reward": {"functions": ["rewards.py:fails"]}},
        "reward.retries": {"reward": {**_FLAKY, "retries": 1, "retry_delay": 0.0}},
        "reward.retry_delay": {"reward": {**_LATE, "retry_delay": 0.0}, "data": {"limit": 2}},
        "reward.one_by_one": _PICKY,
        "reward.concurrency": _WAITS,
        "reward.max_failed_steps": {"reward": {"functions": ["rewards.py:never"], "on_reward_error": "skip"}},
        "reward.workers": {"reward": {"functions": {"regex": {"pattern": "1"}}, "time_limit": 60.0}},
        "reward.functions.regex": {"reward": {"functions": {"regex": {"pattern": "[02468]"}}}},
        "reward.functions.model": {"reward": {"functions": {"model": {"path": "reward_model"}}}},
        "reward.functions.model.process": {"reward": {"time_limit": 60.0}},
        "reward.functions.length": {"reward": {"functions": {"length": {"max": 2, "margin": 1}}}},
        "reward.functions.length.target": {"reward": {"functions": [{"length": {"target": 1}}]}},
        "reward.functions.exact_match.ignore_case": {"model": _CHAT, "data": {"chat": "messages"}},
        "reward.functions.format": {"reward": {"functions": {"format": {"pattern": "[0-9+=]+"}}}},
        "reward.functions.format.full": {"reward": {"functions": {"format": {"pattern": "1"}}}},
        "rollout.engine": {"imports": ["parts.py"]},
        "rollout.max_turns": _TURNS,
        "rollout.order": {"environment": "turns.py:Uneven"},
        "rollout.episode_time_limit": {**_TURNS, "rollout": {"order": "arrival"}},
        "rollout.environment_time_limit": {
            "environment": "turns.py:Uneven",
            "rollout": {"on_environment_error": "skip"},
        },
        "rollout.on_environment_error": {"environment": "turns.py:Fails"},
        "optimizer.options": {"optimizer": {"name": "sgd"}, **_STEPS},
        "optimizer.options.nesterov": {"optimizer": _SGD},
        "optimizer.betas": _STEPS,
        "optimizer.final_fraction": {"optimizer": {"schedule": "linear"}, **_STEPS},
        "optimizer.schedule": _STEPS,
        "optimizer.max_skipped": _STEEP,
        "evaluation.every": _STEPS,
        "evaluation.stop_at": {"evaluation": {"every": 1}, "reward": GRADED, **_STEPS},
        "evaluation.patience": {"evaluation": {"every": 1}, "training": {"steps": 4}},
        "run.save_every": {"run": {"keep_last": 5}, **_STEPS},
        "run.keep_last": {"run": {"save_every": 1}, "training": {"steps": 3}},
        "run.rollouts_max": {"run": {"rollouts_every": 1}},
        "run.tensorboard": {"run": {"trackers": None, "tensorboard": False}},
        "run.trackers.trackio": _tracker("trackio", name="one"),
        "run.trackers.trackio.name": _tracker("trackio", name="one"),
        "run.trackers.wandb": _tracker("wandb", mode="offline"),
        "training.epochs": {"training": {"steps": None}},
    },
    "rl": {
        "algorithm.advantage.gae": {**_advantage("gae", "ppo"), **_STEPS, "optimizer": {"learning_rate": 0.1}},
        "algorithm.advantage.n_step": {
            **_advantage("n_step", "ppo", n=2),
            **_STEPS,
            "optimizer": {"learning_rate": 0.1},
        },
        "algorithm.advantage.vtrace": {**_advantage("vtrace", "ppo"), **_FROZEN},
        "algorithm.advantage.whitened": {"algorithm": {"advantage": {"whitened": {"advantage": "group_center"}}}},
        "algorithm.advantage.gdpo": _advantage("gdpo", "grpo"),
        "algorithm.advantage.gdpo.bessel": _advantage("gdpo", "grpo", epsilon=0.5),
        "algorithm.advantage.returns": _advantage("returns", "reinforce"),
        "algorithm.gate.clip": {"optimizer": {"learning_rate": 0.1}},
        "algorithm.gate.clip.dual": {"optimizer": {"learning_rate": 0.1}, "training": {"passes": 4}},
        "algorithm.kl": _kl(coefficient=0.1),
        "algorithm.kl.controller": {**_STEPS, "reference": {"path": "other_model"}},
        "algorithm.kl.controller.linear": _kl(controller={"linear": {"final": 0.2, "batches": 2}}),
        "algorithm.kl.controller.schulman": _kl(controller={"schulman": {"target": 2.0}}),
        "algorithm.kl.controller.ziegler": _kl(controller={"ziegler": {"target": 2.0, "horizon": 100}}),
        "algorithm.kl.controller.band": _kl(controller={"band": {"low": 0.0, "high": 1e-9}}),
        "algorithm.kl.controller.band.low": _kl(controller={"band": {"low": 0.5, "high": 2.0}}),
        "algorithm.kl.controller.band.per": _kl(controller={"band": {"low": 0.5, "high": 2.0}}),
        "algorithm.kl.direction": _kl(estimator="full"),
        "algorithm.kl.allow_reward_alone": _kl(estimator="full", placement="sequence_reward"),
        "algorithm.advantage.gae.bootstrap_truncated": {"rollout": {"stop_strings": []}},
        "algorithm.advantage.n_step.bootstrap_truncated": {"rollout": {"stop_strings": []}},
        "algorithm.ratio.turn": {"algorithm": {"ratio": {"turn": {}}}, **_FROZEN},
        "algorithm.ratio.turn.allow_token_mean": {"algorithm": {"aggregation": "token_mean"}},
        "algorithm.ratio.sequence": {"algorithm": {"ratio": {"sequence": {}}}, **_FROZEN},
        "algorithm.ratio.sequence.allow_token_mean": {"algorithm": {"aggregation": "token_mean"}},
        "algorithm.ratio.sequence_product": {"algorithm": {"ratio": {"sequence_product": {}}}, **_FROZEN},
        "algorithm.ratio.sequence_product.allow_token_mean": {"algorithm": {"aggregation": "token_mean"}},
        "algorithm.ratio.sequence_token": {"algorithm": {"ratio": {"sequence_token": {}}}, **_FROZEN},
        "algorithm.ratio.sequence_token.allow_token_mean": {"algorithm": {"aggregation": "token_mean"}},
        "algorithm.ratio.token": _FROZEN,
        "algorithm.corrections": _FROZEN,
        "algorithm.constraints": {"reward": {**GRADED, "functions": ["rewards.py:graded", "rewards.py:halves"]}},
        "algorithm.constraints.lagrange": {
            "algorithm": {"constraints": {"lagrange": {"reward": "graded", "limit": 0.1}}},
            **_STEPS,
        },
        "algorithm.filters": {"rollout": {"batch_size": 16}},
        "algorithm.filters.mixed_outcomes": {
            "algorithm": {"filters": {"mixed_outcomes": {}}},
            "reward": {**GRADED, "functions": ["rewards.py:graded", "rewards.py:halves"]},
        },
        "algorithm.updates.minibatches": {
            "training": {"minibatches": None},
            "rollout": {"batch_size": 32, "group_size": 2},
        },
        "algorithm.sequence_mask": _FROZEN,
        "algorithm.entropy": {"algorithm": {"entropy": {"coefficient": 0.2}}},
        "algorithm.entropy.step": {"algorithm": {"entropy": {"target": 9.0}}, **_STEPS},
        "algorithm.entropy.target": _STEPS,
        "algorithm.entropy.low": {
            "algorithm": {"entropy": {"target": 1.5, "step": 0.5}},
            "rollout": {"temperature_end": 0.1},
            "training": {"steps": 3},
        },
        "algorithm.entropy.high": {"algorithm": {"entropy": {"target": 9.0, "step": 2.0}}, **_STEPS},
        "algorithm.critic": _CRITIC,
        "critic": {**_CRITIC, "critic": {}},
        "critic.optimizer.learning_rate": {"critic": {"optimizer": {"learning_rate": 0.01}}},
        "critic.optimizer.options": {"critic": {"optimizer": {"name": "sgd", "learning_rate": 0.01}}},
        "critic.optimizer.options.nesterov": {"critic": {"optimizer": _SGD}},
        "critic.optimizer.final_fraction": {"critic": {"optimizer": {"schedule": "linear"}}},
        "critic.optimizer.max_skipped": {"reward": {**GRADED, "functions": ["rewards.py:huge"]}},
        "reference": {"algorithm": "grpo"},
        "teacher": {"algorithm": "distill", "teacher": {"path": "model"}},
        "text.": _TEXT,
        **_of_data("text.data", lambda values: {"text": {"data": values}}),
        "text.loss": _STEPS,
        "text.direction": {"text": {"loss": "kl"}, **_STEPS},
        "training.kl_learning_rate": _STEPS,
        "training.reference_refresh": {"training": {"steps": 3}, "optimizer": {"learning_rate": 0.1}},
        "training.reference_refresh.mix": {"training": {"reference_refresh": {"every": 1}}},
        "training.reference_refresh.every": {"training": {"reference_refresh": {"every": 2}}},
        "training.replay": {"training": {"steps": 3}},
        "training.replay.groups": {"training": {"replay": {"groups": 1}}},
        "training.replay.age": {"training": {"replay": {"groups": 2}}},
        "gold": _GOLD,
        "gold.": {"gold": {**_APART, "evaluations": 1}},
        "rollout.max_attempts": {"algorithm": "dapo", "reward": {**GRADED, "functions": ["rewards.py:equal"]}},
        "rollout.temperature_end": _STEPS,
        "rollout.max_new_tokens_end": _STEPS,
        "rollout.schedule": {"rollout": {"temperature_end": 0.5}, "training": {"steps": 4}},
        "reward.functions.exact_match": {**_ONE_TOKEN, "data": {"path": "easy.jsonl"}, "reward": _MATCH},
        "reward.functions.math": {**_ONE_TOKEN, "data": {"path": "easy.jsonl"}, "reward": {"functions": {"math": {}}}},
    },
    "sft": {
        "reward": {"evaluation": _EVAL},
        "reward.": {"reward": GRADED, "rollout": {"stop_strings": STOPS}},
        "reward.one_by_one": {**_PICKY, "evaluation": {"samples": 8}},
        "reward.concurrency": {**_WAITS, "evaluation": {"samples": 8}},
        "reward.functions.exact_match": {**_EASY_EVAL, "reward": _MATCH},
        "reward.functions.model.micro_batch_tokens": {"evaluation": {"samples": 8}},
        "reward.functions.math": {**_EASY_EVAL, "reward": {"functions": {"math": {}}}},
        "reward.functions.exact_match.ignore_case": {
            "model": _CHAT,
            "evaluation": {"data": {"eval": {"chat": "messages"}}},
        },
        "reward.retry_delay": {
            "reward": {**_LATE, "retry_delay": 0.0},
            "evaluation": {"data": {"eval": {"limit": 2}}},
        },
        "rollout": {"evaluation": _EVAL, "reward": GRADED, "rollout": {"stop_strings": STOPS}},
        "environment": {"evaluation": _EVAL, "reward": GRADED},
        "evaluation": {"evaluation": _EVAL, "reward": GRADED},
        "optimizer.schedule": {"training": {"steps": 4}},
        "run.rollouts_max": {},
        "max_tokens": {"data": {"on_long_prompt": "skip"}},
    },
    "rft": {
        "keep.count": {"keep": {"rule": "best"}},
        "keep.distinct": {"rollout": {"group_size": 8, "max_new_tokens": 1}},
        "hint": {"keep": {"above": 0.5}},
        "optimizer.schedule": {"training": {"steps": 4}},
        "start": {"iterations": 2},
        "optimizer.max_skipped": {**_STEEP, "iterations": 2},
        "evaluation.patience": {"iterations": 2, "evaluation": {"every": 1}, "training": {"steps": 4}},
        "run.rollouts_max": {},
        "reward.functions.exact_match": {**_ONE_TOKEN, "data": {"path": "easy.jsonl"}, "reward": _MATCH},
        "reward.functions.math": {**_ONE_TOKEN, "data": {"path": "easy.jsonl"}, "reward": {"functions": {"math": {}}}},
    },
    "dpo": {
        "evaluation": {"evaluation": _JUDGED_EVAL},
        "evaluation.data": {"evaluation": {"data": None}},
        "evaluation.data.eval": {"evaluation": _JUDGED_EVAL},
        "evaluation.every": {"training": {"steps": 3}},
        "evaluation.stop_at": {"evaluation": {"every": 1}, "training": {"steps": 3}},
        "evaluation.patience": {
            "evaluation": {"every": 1},
            "training": {"steps": 4},
            "optimizer": {"learning_rate": 1e-12},
        },
        **dict.fromkeys(
            ("reward", "rollout", "pairs", "environment", "run.rollouts_every", "run.rollouts_max"), _ONLINE
        ),
        **{
            f"evaluation.{name}": {**_ONLINE, "evaluation": _EVAL}
            for name in ("samples", "temperature", "top_p", "top_k", "max_new_tokens", "correct_above")
        },
        **{
            f"evaluation.{name}": {**_ONLINE, "evaluation": {**_EVAL, "samples": 4}}
            for name in ("best_of", "majority_vote")
        },
        "reward.functions.exact_match": {**_ONE_TOKEN, "data": {"path": "easy.jsonl"}, "reward": _MATCH},
        "reward.functions.math": {**_ONE_TOKEN, "data": {"path": "easy.jsonl"}, "reward": {"functions": {"math": {}}}},
        "rollout.max_attempts": {"reward": {**GRADED, "functions": ["rewards.py:equal"]}},
        "rollout.temperature_end": _STEPS,
        "rollout.max_new_tokens_end": _STEPS,
        "rollout.async_level": {"training": {"steps": 3}},
        "rollout.schedule": {"rollout": {"temperature_end": 0.5}, "training": {"steps": 4}},
        "algorithm.label_smoothing": {"algorithm": "cdpo"},
        "algorithm.length_normalized": {"algorithm": "ipo"},
        "algorithm.sft_coefficient": {"algorithm": "dpo_sft"},
        "algorithm.sft_aggregation": {"algorithm": "dpo_sft"},
        "algorithm.gamma": {"algorithm": "simpo"},
        "model.gradient_checkpointing": _PLAIN_SGD,
        "training.packing": _PLAIN_SGD,
        "training.logprob_chunk": _PLAIN_SGD,
        "algorithm.delta": {"algorithm": "slic"},
        "algorithm.desirable_weight": {"algorithm": "kto"},
        "algorithm.undesirable_weight": {"algorithm": "kto"},
        "optimizer.schedule": {"training": {"steps": 4}},
        "max_tokens": {"data": {"on_long_prompt": "skip"}},
        "training.dropout": {"model": {"path": "noisy_model"}, "training": {"packing": "pad"}},
        "training.reference_refresh": {"training": {"steps": 3}, "optimizer": {"learning_rate": 0.1}},
        "training.reference_refresh.mix": {"training": {"reference_refresh": {"every": 1}}},
        "training.reference_refresh.every": {"training": {"reference_refresh": {"every": 2}}},
    },
    "reward": {
        "evaluation": {"evaluation": _JUDGED_EVAL},
        "evaluation.data": {"evaluation": {"data": None}},
        "evaluation.data.eval": {"evaluation": _JUDGED_EVAL},
        "evaluation.patience": {
            "evaluation": {"every": 1},
            "training": {"steps": 4},
            "optimizer": {"learning_rate": 1e-12},
        },
        "data.ratings": {"data": {"path": "rated_twice.jsonl"}},
        "evaluation.data.eval.ratings": {
            "data": {"path": "rated_twice.jsonl"},
            "evaluation": {"data": {"eval": {"path": "rated_twice.jsonl"}}},
        },
        "optimizer.max_skipped": {"data": {"path": "far.jsonl"}},
        "training.micro_batch_tokens": _PLAIN_SGD,
        "model.gradient_checkpointing": _PLAIN_SGD,
        "run.rollouts_max": {},
        "loss.top": {"data": {"path": "ranked.jsonl"}},
        "loss.tie": {"data": {"path": "tied.jsonl"}},
        "head.spread_penalty": {"head": {"members": 3}},
        "head.weights": {"data": {"path": "rated.jsonl"}},
        "max_tokens": {"data": {"on_long_prompt": "skip"}},
    },
    "eval": {
        "evaluation": {},
        "evaluation.data": {"data": None},
        "evaluation.data.eval": {"data": None, "evaluation": _EVAL},
        "models": {"model": None},
        "text.data": {"text": {"data": {}}},
        "text.data.eval": {"text": {"data": {"eval": {"path": "examples.jsonl"}}}},
        **_of_data("text.data.eval", lambda values: {"text": {"data": {"eval": values}}}),
        "judge": {"against": "other_model"},
        "judge.": {"judge": {"function": "rewards.py:longer"}},
        "judge.batch_size": {"judge": {"function": "rewards.py:odd"}},
        "judge.retries": {"judge": {"function": "rewards.py:flaky_judge", "retries": 1, "retry_delay": 0.0}},
        "judge.retry_delay": {"judge": {"function": "rewards.py:late_judge", "retry_delay": 0.0, "time_limit": None}},
        "diversity": {"evaluation": {"samples": 2}},
        "models.eval": {"models": {"eval": {"path": "model"}}},
        "reward.one_by_one": {**_PICKY, "evaluation": {"samples": 8}},
        "reward.concurrency": {**_WAITS, "evaluation": {"samples": 8}},
        "reward.functions.model.micro_batch_tokens": {"evaluation": {"samples": 8}},
        "reward.functions.exact_match": {**_SAMPLES, "data": {"path": "easy.jsonl"}, "reward": _MATCH},
        "reward.functions.math": {**_SAMPLES, "data": {"path": "easy.jsonl"}, "reward": {"functions": {"math": {}}}},
    },
    "create-model": {
        f"data.{name}": {} for name in ("system_prompt", "chat_template_kwargs", "renderer", "chat", "on_long_prompt")
    },
    "generate": {
        "chat": {"model": _CHAT},
        "system_prompt": {"model": _CHAT},
        "best_of": {"best_of": 2, "reward": GRADED},
        "reward": {"best_of": 2, "reward": GRADED},
    },
}
"""By verb, and for all: beside the keys below a prefix."""
