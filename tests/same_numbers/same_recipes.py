"""Short runs whose every number is kept in `recorded/`, so that a change of structure can show that it changed nothing else.

A run here takes 5 steps of a model of about 5000 weights in float64, where another order of summation changes the last of
16 digits alone; a tolerance of 1e-5 then tells rounding from another computation. Rows are given in Python, because the
sampler's noise belongs to the row's name, and `data[3]` is the same name on every machine. The weights come from NumPy, so
that neither torch's random numbers nor the models' initialisation is part of what is compared. Every option whose default
might move is spelled out.

What each run covers, beside sampling, scoring, several micro-batches a step, AdamW with warm-up, a cosine, weight decay and
a clipped gradient, and an evaluation at the start and the end:

- `sft`: the loss of demonstrations, in training and in evaluation; rows side by side.
- `sft_packed`: the same with packed rows, and evaluation by sampled answers and a reward.
- `grpo`: one update a batch, advantages of graded rewards, a KL to the reference (k3) in the loss, two weighted rewards.
- `grpo_several`: minibatches and passes, so ratios other than 1 and tokens at the clip; packed rows.
- `gspo`: one ratio a sequence; several updates a batch, most tokens beyond the clip.
- `dapo`: groups dropped by a filter and sampled anew, in several attempts; the overlong shaper; answers that were cut off
  kept out of the loss; a token mean.
- `ppo_own`: a critic with its own backbone and optimizer, minibatches and passes, values of states where answers were cut
  off, a KL in the reward of every token.
- `ppo_shared`: a critic on the policy's backbone, whose first step is warm-up.
- `ppo_penalty`: a divergence from the old policy in the loss, whose coefficient moves; an own critic.
- `replay`: groups of earlier steps mixed into each batch.
- `lora`: an adapter, with the base model as the reference; the adapter's weights are compared.
- `lora_critic`: an adapter for the policy and another for the critic.
- `gradient_checkpointing`: `grpo_several` with layers computed again in the backward pass, and with a KL.
- `greedy_baseline`: the reward of a greedy answer as the baseline.
- `loop_options`: the rest of what surrounds an update: a reference that moves, the KL over the whole vocabulary, an early
  end of a batch's updates, a learning rate that follows the KL, an entropy bonus with a target, weights for the sampler,
  a mask for punished answers, selected tokens; sampling at a temperature and with a stop string, greedy evaluation.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import reinlm
from reinlm.loop import RunResult
from reinlm.models import character_tokenizer, tiny_model
from reinlm.runs import load_state, read_metrics, without_clocks

STEPS = 5
ALPHABET = "0123456789+="
OPERANDS = (1, 3, 4, 7, 12, 25)
ROWS = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in OPERANDS for b in OPERANDS]
HELD_OUT = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in (2, 5, 18) for b in (6, 31)]
EXAMPLES = [{"prompt": row["prompt"], "completion": row["answer"]} for row in ROWS]
HELD_OUT_EXAMPLES = [{"prompt": row["prompt"], "completion": row["answer"]} for row in HELD_OUT]

RECORDED = Path(__file__).with_name("recorded")


# ------------------------------------------------------------------------------------------------ rewards


def graded(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """Between 0 and 1: how large the digits are, with a share for the first character being right."""
    return [
        0.7 * sum(int(c) for c in text if c.isdigit()) / (9.0 * max(len(text), 1)) + 0.3 * (text[:1] == wanted[:1])
        for text, wanted in zip(completions, answer, strict=True)
    ]


def even_end(completions: list[str], **_: Any) -> list[float]:
    """1 where the answer ends in an even digit, else 0."""
    return [float(text[-1:] in set("02468")) for text in completions]


# ------------------------------------------------------------------------------------------------ model and options


def tiny(seed: int = 0) -> tuple[Any, Any]:
    """A model of two layers in float64, and its tokenizer. Matrices from NumPy, norms and biases near 1 and 0."""
    tokenizer = character_tokenizer(ALPHABET)
    shape: Any = {"hidden_size": 16, "layers": 2, "heads": 2, "intermediate_size": 32, "context": 32, "tie": True}
    model: Any = tiny_model("qwen3", vocab_size=len(tokenizer), init_std=0.02, rope_theta=10000.0, seed=0, **shape)
    model = model.to(torch.float64)
    draw(model.named_parameters(), seed)
    return model.eval(), tokenizer


@torch.no_grad()
def draw(parameters: Any, seed: int) -> None:
    """Weights from NumPy's generator, by name: matrices of deviation 0.25, vectors as they are, give or take 0.05."""
    noise = np.random.default_rng(seed)
    for _, weight in sorted(parameters):
        drawn = torch.from_numpy(noise.standard_normal(tuple(weight.shape)))
        weight.copy_(0.25 * drawn if weight.dim() > 1 else weight + 0.05 * drawn)


def tiny_lora(seed: int = 0) -> tuple[Any, Any]:
    """The same model under an adapter of rank 2, neither of whose matrices is 0."""
    import peft

    model, tokenizer = tiny(seed)
    adapter = peft.LoraConfig(
        r=2, lora_alpha=4, lora_dropout=0.0, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM"
    )
    adapted = peft.get_peft_model(model, adapter).to(torch.float64)
    draw(((name, weight) for name, weight in adapted.named_parameters() if "lora_" in name), seed + 1)
    return adapted.eval(), tokenizer


OPTIMIZER: dict[str, Any] = {
    "learning_rate": 4e-3,
    "schedule": "cosine",
    "warmup_steps": 2,
    "final_fraction": 0.1,
    "betas": (0.9, 0.99),
    "epsilon": 1e-8,
    "weight_decay": 0.01,
    "max_grad_norm": 0.5,
    "max_skipped": 5,
}
CRITIC_OPTIMIZER = OPTIMIZER | {"learning_rate": 8e-3, "schedule": "constant", "warmup_steps": 0, "max_grad_norm": 1.0}
FASTER = {"learning_rate": 2e-2}
RUN: dict[str, Any] = {"save_every": 0, "keep_last": 1, "rollouts_every": 0, "tensorboard": False}
EVALUATION: dict[str, Any] = {
    "data": {"held_out": HELD_OUT},
    "every": 0,
    "samples": 2,
    "temperature": 0.8,
    "top_p": 1.0,
    "top_k": 0,
    "max_new_tokens": 5,
    "correct_above": 0.5,
}
TRAINING: dict[str, Any] = {
    "steps": STEPS,
    "micro_batch_tokens": 48,
    "packing": "pad",
    "logprob_chunk": 16,
    "autocast": "off",
}
RL: dict[str, Any] = {
    "reward": {"functions": graded, "time_limit": None, "on_reward_error": "stop"},
    "rollout": {
        "group_size": 4,
        "batch_size": 16,
        "max_running": 8,
        "max_new_tokens": 6,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "stop_token_ids": (),
        "stop_strings": (),
    },
    "training": {
        **TRAINING,
        "minibatches": 1,
        "passes": 1,
        "target_kl": None,
        "kl_learning_rate": None,
        "reference_refresh": None,
        "replay": None,
    },
    "optimizer": OPTIMIZER,
    "evaluation": EVALUATION,
    "run": RUN,
    "seed": 3,
}
SFT: dict[str, Any] = {
    "training": {**TRAINING, "batch_size": 12},
    "optimizer": OPTIMIZER,
    "evaluation": {"data": {"held_out": HELD_OUT_EXAMPLES}, "every": 0},
    "run": RUN,
    "seed": 3,
    "max_tokens": None,
}

STANDARDIZE = {"group_standardize": {"epsilon": 1e-6, "bessel": False}}
CLIP = {"clip": {"low": 0.2, "high": 0.2, "dual": None}}
K3 = {"estimator": "k3", "coefficient": 0.1, "anchor": "reference", "placement": "loss", "controller": None}
K1_TOKEN = {"estimator": "k1", "coefficient": 0.05, "anchor": "reference", "placement": "token_reward"}
GAE = {
    "gae": {
        "discount": 0.99,
        "smoothing": 0.9,
        "critic_smoothing": None,
        "length_adaptive": None,
        "bootstrap_truncated": True,
    }
}
PLAIN: dict[str, Any] = {
    "advantage": STANDARDIZE,
    "ratio": {"token": {"against": "old"}},
    "gate": CLIP,
    "weights": "sequence_mean",
    "kl": K3,
    "corrections": [],
    "sequence_mask": None,
    "selection": None,
    "entropy": None,
    "critic": None,
    "overlong": "keep",
    "shapers": [],
    "filters": [],
}
"""Every choice of an algorithm; GRPO's."""
ACTOR_CRITIC: dict[str, Any] = {
    "advantage": {"whitened": {"advantage": GAE, "by": "token", "bessel": False}},
    "weights": "token_mean",
    "kl": K1_TOKEN,
    "critic": {"clip": 0.2, "coefficient": 0.5},
}


def options(base: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """`base` with some of its values replaced, sections key by key."""
    merged = copy.deepcopy(dict(base))
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = {**merged[key], **value} if both else value
    return merged


def run_rl(folder: Path, base: str, choices: dict[str, Any], *, model: Any = None, **changes: Any) -> RunResult:
    """`reinlm.rl` with an algorithm whose every choice is spelled out."""
    algorithm = {"base": base, **PLAIN, **choices}
    settings = options(RL, **changes)
    return reinlm.rl(model or tiny(), ROWS, algorithm=algorithm, output=folder, quiet=True, **settings)


def run_sft(folder: Path, **changes: Any) -> RunResult:
    return reinlm.sft(tiny(), EXAMPLES, output=folder, quiet=True, **options(SFT, **changes))


def both_rewards(weight: float) -> dict[str, Any]:
    """The graded reward, and the one of 0 and 1 with this weight."""
    functions = [{"name": graded, "weight": 1.0}, {"name": even_end, "weight": weight}]
    return {"functions": functions, "time_limit": None, "on_reward_error": "stop"}


# ------------------------------------------------------------------------------------------------ the runs


def sft(folder: Path) -> RunResult:
    return run_sft(folder)


def sft_packed(folder: Path) -> RunResult:
    return run_sft(folder, reward=RL["reward"], evaluation=EVALUATION, training={"packing": "pack"})


def grpo(folder: Path) -> RunResult:
    return run_rl(folder, "grpo", {}, reward=both_rewards(0.5))


def grpo_several(folder: Path) -> RunResult:
    return run_rl(folder, "grpo", {"kl": None}, training={"minibatches": 2, "passes": 2, "packing": "pack"})


def gspo(folder: Path) -> RunResult:
    choices = {
        "ratio": {"sequence": {"against": "old", "allow_token_mean": False}},
        "gate": {"clip": {"low": 3e-4, "high": 4e-4, "dual": None}},
        "kl": None,
    }
    return run_rl(folder, "gspo", choices, training={"minibatches": 2, "passes": 2})


def dapo(folder: Path) -> RunResult:
    choices = {
        "gate": {"clip": {"low": 0.2, "high": 0.28, "dual": None}},
        "weights": "token_mean",
        "kl": None,
        "overlong": "filter_after_baseline",
        "shapers": [{"soft_overlong": {"max_length": 6, "cache": 4}}],
        "filters": [{"mixed_outcomes": {"reward": "even_end"}}],
    }
    return run_rl(
        folder, "dapo", choices, reward=both_rewards(1.0), rollout={"max_attempts": 3}, training={"minibatches": 2}
    )


def ppo_own(folder: Path) -> RunResult:
    return run_rl(
        folder,
        "ppo",
        ACTOR_CRITIC,
        training={"minibatches": 2, "passes": 2},
        critic={"backbone": "own", "path": None, "warmup_steps": 0, "optimizer": CRITIC_OPTIMIZER},
    )


def ppo_shared(folder: Path) -> RunResult:
    return run_rl(
        folder,
        "ppo",
        ACTOR_CRITIC,
        training={"minibatches": 2},
        critic={"backbone": "shared", "path": None, "warmup_steps": 1, "optimizer": CRITIC_OPTIMIZER},
    )


def ppo_penalty(folder: Path) -> RunResult:
    old = {
        "estimator": "k3",
        "coefficient": 1.0,
        "anchor": "old",
        "placement": "loss",
        "controller": {"schulman": {"target": 0.004, "per": "token"}},
    }
    return run_rl(
        folder,
        "ppo_penalty",
        ACTOR_CRITIC | {"gate": "none", "kl": [K1_TOKEN, old]},
        training={"minibatches": 2, "passes": 2},
        critic={"backbone": "own", "path": None, "warmup_steps": 0, "optimizer": CRITIC_OPTIMIZER},
    )


def replay(folder: Path) -> RunResult:
    return run_rl(folder, "grpo", {}, training={"minibatches": 2, "replay": {"groups": 2, "age": 2}})


def lora(folder: Path) -> RunResult:
    return run_rl(folder, "grpo", {}, model=tiny_lora(), training={"minibatches": 2}, optimizer=FASTER)


def lora_critic(folder: Path) -> RunResult:
    return run_rl(
        folder,
        "ppo",
        ACTOR_CRITIC,
        model=tiny_lora(),
        training={"minibatches": 2},
        optimizer=FASTER,
        critic={"backbone": "own", "path": None, "warmup_steps": 1, "optimizer": CRITIC_OPTIMIZER},
    )


def gradient_checkpointing(folder: Path) -> RunResult:
    model, tokenizer = tiny()
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    return run_rl(
        folder,
        "grpo",
        {},
        model=(model, tokenizer),
        recipe={"model": {"path": "tiny", "gradient_checkpointing": True}},
        training={"minibatches": 2, "passes": 2},
    )


def greedy_baseline(folder: Path) -> RunResult:
    return run_rl(folder, "grpo", {"advantage": "greedy_baseline", "kl": None}, training={"minibatches": 2})


def loop_options(folder: Path) -> RunResult:
    choices = {
        "kl": {
            "estimator": "full",
            "coefficient": 0.05,
            "anchor": "reference",
            "placement": "loss",
            "controller": None,
        },
        "corrections": [{"truncated": {"cap": 2.0, "floor": 0.0, "level": "token"}}],
        "sequence_mask": {"off_policy": {"threshold": 0.002}},
        "selection": {"kl_cov": {"fraction": 0.1, "coefficient": 1.0}},
        "entropy": {"coefficient": 0.02, "target": 2.3, "step": 0.005, "low": 0.0, "high": 1.0},
    }
    return run_rl(
        folder,
        "grpo",
        choices,
        rollout={"temperature": 1.2, "stop_strings": ("=",)},
        evaluation={"temperature": 0.0, "samples": 1},
        training={
            "minibatches": 2,
            "passes": 3,
            "target_kl": 0.004,
            "kl_learning_rate": 0.002,
            "reference_refresh": {"every": 2, "mix": 0.6},
        },
    )


RECIPES: dict[str, Callable[[Path], RunResult]] = {
    made.__name__: made
    for made in (
        sft,
        sft_packed,
        grpo,
        grpo_several,
        gspo,
        dapo,
        ppo_own,
        ppo_shared,
        ppo_penalty,
        replay,
        lora,
        lora_critic,
        gradient_checkpointing,
        greedy_baseline,
        loop_options,
    )
}


# ------------------------------------------------------------------------------------------------ what a run leaves


def metrics(result: RunResult) -> list[dict[str, Any]]:
    """Every line of the run's metrics without what depends on the clock; NaN is None."""
    rows = [without_clocks(row) for row in read_metrics(result.folder / "metrics.jsonl")]
    return [{name: None if value != value else value for name, value in row.items()} for row in rows]


def weights(result: RunResult) -> dict[str, torch.Tensor]:
    """The policy's final weights (of one with an adapter, the adapters alone), and what a critic learned, under `critic/`."""
    model = result.policy.model
    adapted = hasattr(model, "peft_config")
    found: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, value in model.state_dict().items():
        if value.data_ptr() not in seen and (not adapted or "lora_" in name):
            found[name] = value.detach().clone()
        seen.add(value.data_ptr())  # the embedding is the head as well: one of the two names is enough
    critic = learned_by_critic(load_state(result.folder / "checkpoints" / f"step_{STEPS}"))
    return found | {f"critic/{name}": value.detach().clone() for name, value in critic.items()}


def learned_by_critic(state: Any) -> dict[str, torch.Tensor]:
    """The mapping that holds a value head, wherever the trainer's state has it; empty where there is no critic."""
    if not isinstance(state, Mapping):
        return {}
    if "head.weight" in state:
        return dict(state)
    return next((found for value in state.values() if (found := learned_by_critic(value))), {})
