"""Loss and gradient beside TRL's, on random batches: equal to 1e-5, or the difference in convention has a name.

TRL is no dependency; it wants an environment of its own:

    python -m venv /tmp/trl && /tmp/trl/bin/pip install trl pydantic pyyaml && /tmp/trl/bin/pip install --no-deps -e .
    /tmp/trl/bin/python benchmarks/parity_trl.py

What runs on the other side is TRL's own `GRPOTrainer._compute_loss`, on a trainer without a model whose log-probabilities
are the random ones. Exit status 1 where two losses differ by more than 1e-5 and no convention explains it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import reinlm

try:
    import trl
    from trl import GRPOTrainer
except ImportError as error:
    raise SystemExit(
        f"{error}: install TRL in an environment of its own, as the first lines of this file say"
    ) from None

LIMIT = 1e-5
LONGEST = 12


@dataclass(frozen=True)
class Row:
    """One comparison: our changes to a named algorithm, TRL's settings, and how their conventions meet."""

    title: str
    name: str
    changes: dict[str, Any] = field(default_factory=dict)
    theirs: dict[str, Any] = field(default_factory=dict)
    convention: str = ""
    translate: Callable[[Tensor, Any], Tensor] = lambda loss, batch: loss
    """TRL's loss in our convention."""


def drop_empty(loss: Tensor, batch: Any) -> Tensor:
    """TRL's mean over sequences counts those without a token; ours does not."""
    rows = len(batch.mask)
    return loss * rows / max(int((batch.mask.sum(1) > 0).sum()), 1)


NOT_COMPARABLE = "not comparable: "
EMPTY = "TRL's mean over sequences counts those without a token as 0, ours leaves them out; equal after × B / B'"
ROWS = [
    Row("grpo, β = 0", "grpo", {"kl": None}, {"loss_type": "grpo"}, EMPTY, drop_empty),
    Row("grpo, k3", "grpo", {}, {"loss_type": "grpo", "beta": 0.04}, EMPTY, drop_empty),
    Row(
        "grpo, importance-weighted k3",
        "grpo",
        {"kl": {"estimator": "k3_unbiased"}},
        {"loss_type": "grpo", "beta": 0.04, "use_bias_correction_kl": True},
        EMPTY,
        drop_empty,
    ),
    Row("grpo, δ = 1.5", "grpo", {"kl": None, "gate": {"clip": [0.2, 0.2, 1.5]}}, {"delta": 1.5}, EMPTY, drop_empty),
    Row("dr_grpo", "dr_grpo", {"weights": {"constant_budget": LONGEST}}, {"loss_type": "dr_grpo"}),
    Row("dapo", "dapo", {}, {"loss_type": "dapo", "epsilon_high": 0.28}),
    Row("dapo, all of one batch (bnpo)", "dapo", {}, {"loss_type": "bnpo", "epsilon_high": 0.28}),
    Row("cispo, cap 1.3", "cispo", {"gate": {"truncated_weight": 1.3}}, {"loss_type": "cispo", "epsilon_high": 1.3}),
    Row("sapo", "sapo", {}, {"loss_type": "sapo"}, EMPTY, drop_empty),
    Row(
        "gspo",
        "gspo",
        {},
        {"importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
        EMPTY,
        drop_empty,
    ),
    Row(
        "gspo, importance-weighted k3",
        "gspo",
        {"kl": {"estimator": "k3_unbiased", "coefficient": 0.04}},
        {
            "importance_sampling_level": "sequence",
            "epsilon": 3e-4,
            "epsilon_high": 4e-4,
            "beta": 0.04,
            "use_bias_correction_kl": True,
        },
        NOT_COMPARABLE + "TRL weighs each token's k3 by the ratio of its sequence, we by its own, as eq. 7 of "
        "arXiv 2512.02556 does",
    ),
    Row(
        "off-policy mask, δ = 0.05",
        "grpo",
        {"kl": None, "sequence_mask": {"threshold": 0.05}},
        {"off_policy_mask_threshold": 0.05},
        EMPTY,
        drop_empty,
    ),
    Row(
        "off-policy mask with k3",
        "scaling_grpo",
        {"kl": {"coefficient": 0.04}, "sequence_mask": {"threshold": 0.05}},
        {"off_policy_mask_threshold": 0.05, "beta": 0.04, "use_bias_correction_kl": True},
        EMPTY,
        drop_empty,
    ),
    *(
        Row(
            f"dapo, {mode}",
            "dapo",
            {"corrections": ours},
            {"loss_type": "dapo", "epsilon_high": 0.28, "correction": mode},
        )
        for mode, ours in (
            ("token_truncate", {"truncated": 1.05}),
            ("token_mask", {"masked": [0.0, 1.05]}),
            ("sequence_truncate", {"truncated": {"cap": 1.05, "level": "sequence"}}),
            ("sequence_mask", {"masked": [0.0, 1.05, "sequence"]}),
        )
    ),
]


def random_batch(generator: torch.Generator) -> SimpleNamespace:
    """Right-padded rows, one of them sometimes without a token; float64."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    rows = int(torch.randint(2, 7, (), generator=generator))
    lengths = torch.randint(0, LONGEST + 1, (rows,), generator=generator)
    lengths[0] = max(int(lengths[0]), 1)
    old = -normal(rows, LONGEST).abs()
    return SimpleNamespace(
        mask=torch.arange(LONGEST) < lengths[:, None],
        logprobs=old + 0.2 * normal(rows, LONGEST),
        old=old,
        ref=old + 0.3 * normal(rows, LONGEST),
        rollout=old + 0.05 * normal(rows, LONGEST),
        advantages=normal(rows),
    )


def ours(row: Row, batch: SimpleNamespace) -> tuple[Tensor, Tensor]:
    """Loss and gradient with respect to the log-probabilities."""
    logprobs = batch.logprobs.clone().requires_grad_()
    found = reinlm.algorithm(row.name, **row.changes).objective(
        logprobs,
        batch.old,
        batch.advantages,
        batch.mask,
        ref_logprobs=batch.ref,
        rollout_logprobs=batch.rollout,
    )
    found.loss.backward()
    assert logprobs.grad is not None
    return found.loss.detach(), logprobs.grad


def theirs(row: Row, batch: SimpleNamespace) -> tuple[Tensor, Tensor]:
    """What TRL's trainer computes from the same numbers, translated."""
    logprobs = batch.logprobs.clone().requires_grad_()
    settings = {"loss_type": "grpo", "beta": 0.0, "epsilon": 0.2, "epsilon_high": 0.2} | row.theirs
    trainer = _trainer(settings, logprobs)
    mask = batch.mask.to(torch.float64)
    tokens = torch.zeros(batch.mask.shape, dtype=torch.long)
    inputs = {
        "prompt_ids": tokens[:, :1],
        "prompt_mask": torch.ones_like(tokens[:, :1]),
        "completion_ids": tokens,
        "completion_mask": mask,
        "advantages": batch.advantages,
        "old_per_token_logps": batch.old,
        "ref_per_token_logps": batch.ref,
        "sampling_per_token_logps": batch.rollout,
        "num_items_in_batch": mask.sum(),
    }
    if mode := settings.get("correction"):
        inputs["importance_sampling_ratio"] = _importance(mode, batch, cap=1.05)
    loss = row.translate(trainer._compute_loss(trainer.model, inputs), batch)
    loss.backward()
    assert logprobs.grad is not None
    return loss.detach(), logprobs.grad


def _importance(mode: str, batch: SimpleNamespace, cap: float) -> Tensor:
    """As `GRPOTrainer._generate_and_score_completions` forms it, where it is not a function that could be called."""
    difference = (batch.old - batch.rollout) * batch.mask
    if mode.startswith("sequence"):
        difference = difference.sum(-1, keepdim=True)
    ratio = difference.exp()
    return ratio.clamp(max=cap) if mode.endswith("truncate") else ratio.masked_fill(ratio > cap, 0.0)


def _trainer(settings: dict[str, Any], logprobs: Tensor) -> Any:
    """A GRPOTrainer that was never constructed: just what `_compute_loss` reads."""
    trainer: Any = object.__new__(GRPOTrainer)
    trainer.__dict__.update(
        model=SimpleNamespace(training=True),
        args=SimpleNamespace(
            delta=settings.get("delta"),
            use_bias_correction_kl=settings.get("use_bias_correction_kl", False),
            sapo_temperature_pos=1.0,
            sapo_temperature_neg=1.05,
            steps_per_generation=1,
        ),
        accelerator=SimpleNamespace(
            num_processes=1,
            gather=lambda x: x,
            gather_for_metrics=lambda x: x,
            reduce=lambda x, reduction: x,
        ),
        loss_type=settings["loss_type"],
        beta=settings["beta"],
        epsilon_low=settings["epsilon"],
        epsilon_high=settings["epsilon_high"],
        importance_sampling_level=settings.get("importance_sampling_level", "token"),
        off_policy_mask_threshold=settings.get("off_policy_mask_threshold"),
        use_vllm="correction" in settings,
        vllm_importance_sampling_correction=True,
        top_entropy_quantile=1.0,
        max_completion_length=LONGEST,
        current_gradient_accumulation_steps=1,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list), "eval": defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *given, **options: (logprobs, torch.zeros_like(logprobs), None),
    )
    return trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", help="write the rows there")
    arguments = parser.parse_args()
    print(f"reinlm {reinlm.__version__} against TRL {trl.__version__}, {arguments.batches} batches a row\n")
    print(f"{'':32} {'|loss - loss|':>14} {'|grad - grad|':>14}  verdict")
    results = []
    for row in ROWS:
        generator = torch.Generator().manual_seed(arguments.seed)
        loss_gap = gradient_gap = 0.0
        for _ in range(arguments.batches):
            batch = random_batch(generator)
            (loss, gradient), (other, slope) = ours(row, batch), theirs(row, batch)
            loss_gap = max(loss_gap, float((loss - other).abs()))
            gradient_gap = max(gradient_gap, float((gradient - slope).abs().max()))
        equal = max(loss_gap, gradient_gap) <= LIMIT
        explained = row.convention.startswith(NOT_COMPARABLE)
        verdict = (f"equal: {row.convention}" if row.convention else "equal") if equal else "DIFFERENT"
        verdict = row.convention if explained else verdict
        print(f"{row.title:32} {loss_gap:14.1e} {gradient_gap:14.1e}  {verdict}")
        results.append({"row": row.title, "loss": loss_gap, "gradient": gradient_gap, "verdict": verdict})
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)
    sys.exit(any(result["verdict"] == "DIFFERENT" for result in results))


if __name__ == "__main__":
    main()
