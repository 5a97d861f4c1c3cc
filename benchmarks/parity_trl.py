"""Loss and gradient of reinlm beside those of an installed TRL, on random batches.

    python -m venv parity && . parity/bin/activate      # TRL brings its own versions: an environment of its own
    pip install trl pydantic pyyaml && pip install -e . --no-deps
    python benchmarks/parity_trl.py --seed 0 --batches 20 --json parity.json

Both sides get the same log-probabilities, advantages and masks; a third of the batches has rows without a token, a third has
holes where a tool spoke. TRL's side is TRL's own code: `GRPOTrainer._compute_loss`, on a trainer without model, data or
processes, and the statements of its rollout method that weigh samples of another engine; for judged answers
`parity_trl_preferences.py` says which. A row is "equal" where loss and
gradient with respect to the log-probabilities are at most 1e-5 apart on every batch. Where the two differ by convention, it is
named and taken out of TRL's side, and what is then left has to be at most 1e-5. Anything else is "DIFFERENT": exit status 1.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import math
import textwrap
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import reinlm

try:
    import trl
    from parity_trl_preferences import (
        JUDGED_CONVENTIONS,
        Judged,
        JudgedCase,
        judged_cases,
        judged_leaf,
        our_judged_loss,
        random_judged,
    )
    from trl.experimental.gmpo import GMPOTrainer
    from trl.trainer import grpo_trainer
except ImportError as error:
    raise SystemExit(f"TRL cannot be imported here ({error}); {__file__} says at its top how to set it up") from error

TOLERANCE = 1e-5

# ------------------------------------------------------------------------------------------------ batches


@dataclass(frozen=True)
class Batch:
    """B answers of up to T tokens, [B, T]. The gradient is that of `logprobs`; without `old` they are the old ones too (the
    first step of an update). `advantages` may be [B]. `answer` is False in padding, `chosen` where a tool wrote."""

    logprobs: Tensor
    old: Tensor | None
    ref: Tensor
    rollout: Tensor
    advantages: Tensor
    answer: Tensor
    chosen: Tensor

    @property
    def mask(self) -> Tensor:
        return self.answer & self.chosen

    def without_empty_rows(self) -> Batch:
        kept: dict[str, Any] = {name: None if x is None else x[self.mask.any(1)] for name, x in vars(self).items()}
        return Batch(**kept)


def random_batches(seed: int, count: int) -> Iterator[Batch]:
    """Of changing shape, and with policies that are nearly the same, or apart, or far apart."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    for number in range(count):
        rows, columns = (2 * int(torch.randint(1, high, (), generator=generator)) for high in (9, 16))
        lengths = torch.randint(1, columns + 1, (rows, 1), generator=generator)
        chosen = torch.ones(rows, columns, dtype=torch.bool)
        if number % 3 == 1:
            lengths[1:] *= torch.rand((rows - 1, 1), generator=generator) > 0.3
        if number % 3 == 2:
            chosen[:, 1:] = torch.rand((rows, columns - 1), generator=generator) > 0.3
        logprobs = -2 * normal(rows, columns).abs()
        apart = (0.001, 0.1, 0.6)[int(torch.randint(3, (), generator=generator))]
        old = logprobs + apart * (normal(rows, columns) + normal(rows, 1))
        yield Batch(
            logprobs=logprobs,
            old=old,
            ref=logprobs + 0.4 * normal(rows, columns),
            rollout=old + 0.2 * normal(rows, columns) + 0.1 * normal(rows, 1),
            advantages=normal(rows) * (torch.rand(rows, generator=generator) > 0.1),
            answer=torch.arange(columns) < lengths,
            chosen=chosen,
        )


def _advantage_per_token(batch: Batch) -> Batch:
    return replace(batch, advantages=batch.advantages[:, None] + batch.ref)


def _some_unknown(batch: Batch) -> Batch:
    """The sampler gives no log-probability for the second token of every third row."""
    rollout = batch.rollout.clone()
    rollout[::3, 1] = torch.nan
    return replace(batch, rollout=rollout)


# ------------------------------------------------------------------------------------------------ the two losses


@dataclass(frozen=True)
class Case:
    """One row: changes of a named algorithm, options of TRL's `GRPOConfig`, and what both are given.

    With `sampler` that is the sampler's log-probabilities too. Micro-batches are TRL's: reinlm's weights know the whole step.
    """

    algorithm: str
    setting: str
    changes: Mapping[str, Any]
    options: Mapping[str, Any]
    convention: Callable[[Case, Batch], Tensor] | None = None
    sampler: bool = False
    micro_batches: int = 1
    given: Callable[[Batch], Batch] = lambda batch: batch

    def but(self, **options: Any) -> Case:
        return replace(self, options={**self.options, **options})


def our_loss(case: Case, batch: Batch) -> Tensor:
    objective = reinlm.algorithm(case.algorithm, **case.changes).objective(
        batch.logprobs,
        batch.logprobs.detach() if batch.old is None else batch.old,
        batch.advantages,
        batch.mask,
        ref_logprobs=batch.ref,
        rollout_logprobs=batch.rollout if case.sampler else None,
        entropy=-batch.logprobs,  # a stand-in that has a gradient
    )
    return objective.loss


def trl_loss(case: Case, batch: Batch, trusted: Tensor | None = None) -> Tensor:
    """Summed over micro-batches, as gradients are. The sampler's weights count where `trusted`; by default everywhere."""
    trainer, rows = _trainer(case), len(batch.mask)
    inputs = {
        "prompt_ids": torch.zeros(rows, 1, dtype=torch.long),
        "prompt_mask": torch.ones(rows, 1, dtype=torch.long),
        "completion_ids": torch.zeros(batch.mask.shape, dtype=torch.long),
        "completion_mask": batch.answer.long(),
        "tool_mask": batch.chosen.long(),
        "advantages": batch.advantages,
        "old_per_token_logps": batch.old,
        "ref_per_token_logps": batch.ref,
    }
    if case.sampler:
        inputs["sampling_per_token_logps"] = batch.rollout
        if trainer.vllm_importance_sampling_correction:
            inputs["importance_sampling_ratio"] = _trl_ratio(trainer, inputs) * (1 if trusted is None else trusted)
    losses = []
    for index in torch.arange(rows).chunk(case.micro_batches):
        part = {name: None if x is None else x[index] for name, x in inputs.items()}
        logprobs = batch.logprobs[index]
        trainer._get_per_token_logps_and_entropies = lambda *_, x=logprobs, **__: (x, -x, None)
        losses.append(trainer._compute_loss(None, part | {"num_items_in_batch": batch.mask.sum()}))
    return torch.stack(losses).sum()


def _trainer(case: Case) -> Any:
    """What TRL's loss reads of a trainer, and no more."""
    options: dict[str, Any] = {"output_dir": "unused", "report_to": "none", "use_cpu": True, "bf16": False}
    options |= {"use_vllm": case.sampler, "vllm_importance_sampling_correction": False}
    config = trl.GRPOConfig(gradient_accumulation_steps=case.micro_batches, **{**options, **case.options})
    trainer: Any = object.__new__(GMPOTrainer if case.algorithm == "gmpo" else grpo_trainer.GRPOTrainer)
    one_process = {"num_processes": 1, "sync_gradients": True, "gather": lambda x: x, "reduce": lambda x, reduction: x}
    vars(trainer).update(
        {f.name: getattr(config, f.name) for f in fields(config)},
        args=config,
        epsilon_low=config.epsilon,
        epsilon_high=config.epsilon if config.epsilon_high is None else config.epsilon_high,
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(**one_process),
        current_gradient_accumulation_steps=case.micro_batches,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=config.entropy_coef != 0.0,
        _metrics={"train": defaultdict(list)},
    )
    return trainer


def _trl_ratio(trainer: Any, inputs: Mapping[str, Any]) -> Tensor:
    """By the statements of TRL's rollout method that make this variable: they stand in no function of their own."""
    name = "vllm_importance_sampling_ratio"
    method = ast.parse(textwrap.dedent(inspect.getsource(trainer._generate_and_score_completions)))
    for node in ast.walk(method):  # the outermost comes first
        if isinstance(node, ast.If) and any(ast.unparse(line).startswith(f"{name} = ") for line in node.body):
            variables = {"self": trainer, **inputs}
            exec(compile(ast.Module([node], []), grpo_trainer.__file__, "exec"), vars(grpo_trainer), variables)
            return variables[name]
    raise SystemExit(f"TRL {trl.__version__} makes no {name} where this script looks for it")


# ------------------------------------------------------------------------------------------------ conventions
# Where both sides are right in their own way: TRL's loss with one such difference taken out of it. The docstring is printed.


def empty_rows(case: Case, batch: Batch) -> Tensor:
    """TRL's mean over sequences divides by all rows, those without a scored token too; reinlm by the rows that have one.
    Equal once TRL's batch is without empty rows."""
    return trl_loss(case, batch.without_empty_rows())


def mean_of_means(case: Case, batch: Batch) -> Tensor:
    """TRL's bnpo averages the token means of micro-batches, so that a token of a short micro-batch weighs more; reinlm's
    token mean divides by the tokens of the optimizer step. Equal once TRL divides so too (the normaliser of its dapo)."""
    return trl_loss(case.but(loss_type="dapo"), batch)


def entropy_of_tokens(case: Case, batch: Batch) -> Tensor:
    """TRL's entropy bonus is a mean over the tokens of a micro-batch, whatever the loss; reinlm's has the weights of the
    loss. Equal once every row that is not empty is a micro-batch of its own."""
    return empty_rows(replace(case, micro_batches=int(batch.mask.any(1).sum())), batch)


def ratio_of_kl(case: Case, batch: Batch) -> Tensor:
    """TRL multiplies k3 by the ratio of the policy's gate, which is the sequence's under a sequence ratio; reinlm's
    k3_unbiased by the token's, as arXiv 2512.02556 eq. 7 does. Equal once TRL's KL is that of its token level."""
    by_token = case.but(importance_sampling_level="token")
    kl = trl_loss(by_token, batch) - trl_loss(by_token.but(beta=0.0), batch)
    return trl_loss(case.but(beta=0.0), batch) + kl


def unknown_weight(case: Case, batch: Batch) -> Tensor:
    """A token without a log-probability from the sampler (NaN) has weight 1 in TRL's correction, and 0 in reinlm's.
    Equal once TRL's weight there is 0."""
    return trl_loss(case, batch, trusted=batch.rollout.isfinite())


CONVENTIONS = (empty_rows, mean_of_means, entropy_of_tokens, ratio_of_kl, unknown_weight, *JUDGED_CONVENTIONS)

# ------------------------------------------------------------------------------------------------ the rows

Part = tuple[dict[str, Any], dict[str, Any]]
"""The same thing as reinlm says it, changing the named algorithm, and as TRL's configuration says it."""

GRPO: Part = {"kl": None}, {"loss_type": "grpo", "epsilon": 0.2}
BNPO: Part = {"kl": None, "aggregation": "token_mean"}, {"loss_type": "bnpo", "epsilon": 0.2}
BUDGET: Part = {"aggregation": {"constant_budget": 32}}, {"loss_type": "dr_grpo", "max_completion_length": 32}
DAPO: Part = {}, {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28}
CISPO: Part = {}, {"loss_type": "cispo", "epsilon_high": 5.0}
SAPO: Part = {}, {"loss_type": "sapo", "sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05}
GSPO: Part = {}, {"loss_type": "grpo", "epsilon": 3e-4, "epsilon_high": 4e-4, "importance_sampling_level": "sequence"}
GMPO: Part = {}, {"epsilon": 0.4}  # of log-ratios
LUSPO: Part = {"aggregation": "sequence_sum"}, {"loss_type": "luspo"}
BY_LENGTH: Part = (
    {"ratio": {"sequence": {"allow_token_mean": True}}, "aggregation": "token_mean"},
    {"loss_type": "dapo"},
)
DELTA: Part = {"gate": {"clip": [0.2, 0.28, 1.5]}}, {"delta": 1.5}
K3: Part = {"kl": {"estimator": "k3", "coefficient": 0.1}}, {"beta": 0.1, "use_bias_correction_kl": False}
K3_RATIO: Part = {"kl": {"estimator": "k3_unbiased", "coefficient": 0.1}}, {"beta": 0.1, "use_bias_correction_kl": True}
BONUS: Part = {"entropy": {"coefficient": 0.01}}, {"entropy_coef": 0.01}
MASK: Part = {"sequence_mask": {"threshold": 0.1}}, {"off_policy_mask_threshold": 0.1}
SCALING: Part = {}, {**GRPO[1], **MASK[1], "beta": 0.001, "use_bias_correction_kl": True}


def _row(algorithm: str, setting: str, *parts: Part, **more: Any) -> Case:
    changes, options = ({key: value for part in parts for key, value in part[side].items()} for side in (0, 1))
    return Case(algorithm, setting, changes, options, **more)


def _corrected(mode: str, low: float | None, high: float) -> Part:
    """One of TRL's modes, token or sequence, truncate or mask; `low` None is its default."""
    level, kind = mode.split("_")
    bounds = {"truncate": ("truncated", "floor", "cap"), "mask": ("masked", "low", "high")}[kind]
    correction = {bounds[0]: {bounds[1]: low or 0.0, bounds[2]: high, "level": level}}
    limits = {"vllm_importance_sampling_clip_min": low, "vllm_importance_sampling_clip_max": high}
    switches = {"vllm_importance_sampling_correction": True, "vllm_importance_sampling_mode": mode}
    return {"corrections": [correction]}, limits | switches


def cases() -> Iterator[Case]:
    yield _row("grpo", "no KL", GRPO, convention=empty_rows)
    yield _row("grpo", "no KL, first step", GRPO, given=lambda batch: replace(batch, old=None), convention=empty_rows)
    yield _row("grpo", "no KL, an advantage a token", GRPO, given=_advantage_per_token, convention=empty_rows)
    yield _row("grpo", "k3", GRPO, K3, convention=empty_rows)
    yield _row("grpo", "k3 × ratio", GRPO, K3_RATIO, convention=empty_rows)
    yield _row("grpo", "entropy bonus", GRPO, BONUS, convention=entropy_of_tokens)
    yield _row("grpo", "token mean (bnpo)", BNPO)
    yield _row("grpo", "token mean (bnpo), 2 micro-batches", BNPO, micro_batches=2, convention=mean_of_means)
    yield _row("dr_grpo", "budget 32", BUDGET)
    yield _row("dr_grpo", "budget 32, 2 micro-batches", BUDGET, micro_batches=2)
    yield _row("dapo", "clip 0.2/0.28", DAPO)
    yield _row("dapo", "2 micro-batches", DAPO, micro_batches=2)
    yield _row("dapo", "third clip at 1.5 (delta)", DAPO, DELTA)
    yield _row("dapo", "k3", DAPO, K3)
    yield _row("dapo", "k3 × ratio", DAPO, K3_RATIO)
    yield _row("dapo", "entropy bonus", DAPO, BONUS)
    yield _row("cispo", "cap 5", CISPO)
    yield _row("sapo", "τ 1.0/1.05", SAPO, convention=empty_rows)
    yield _row("gspo", "clip 3e-4/4e-4", GSPO, convention=empty_rows)
    yield _row("gspo", "sequence sum (luspo)", GSPO, LUSPO, convention=empty_rows)
    yield _row("gspo", "token mean", GSPO, BY_LENGTH)
    yield _row("gspo", "token mean, k3", GSPO, BY_LENGTH, K3)
    yield _row("gspo", "token mean, k3 × ratio", GSPO, BY_LENGTH, K3_RATIO, convention=ratio_of_kl)
    yield _row("gspo_token", "clip 3e-4/4e-4", GSPO, convention=empty_rows)
    yield _row("gmpo", "width 0.4", GMPO, convention=empty_rows)
    yield _row("gmpo", "width 0.4, k3", GMPO, K3, convention=empty_rows)
    yield _row("dapo", "off-policy mask, by old policy", DAPO, MASK)
    yield _row("dapo", "off-policy mask, by sampler", DAPO, MASK, sampler=True)
    unknown: dict[str, Any] = {"sampler": True, "given": _some_unknown}
    yield _row("dapo", "off-policy mask, sampler with NaN", DAPO, MASK, **unknown)
    yield _row("scaling_grpo", "k3 × ratio, off-policy mask, by sampler", SCALING, sampler=True, convention=empty_rows)
    for mode in ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"):
        yield _row("dapo", f"{mode} to 1.2", DAPO, _corrected(mode, None, 1.2), sampler=True)
        yield _row("dapo", f"{mode} to 0.8–1.2, k3", DAPO, K3, _corrected(mode, 0.8, 1.2), sampler=True)
        yield _row(
            "dapo", f"{mode}, sampler with NaN", DAPO, _corrected(mode, 0.8, 1.2), convention=unknown_weight, **unknown
        )
    capped = _corrected("sequence_mask", None, 1.2)
    yield _row("cispo", "sequence_mask to 1.2", CISPO, capped, sampler=True)
    yield _row("gspo", "sequence_mask to 1.2", GSPO, capped, sampler=True, convention=empty_rows)


# ------------------------------------------------------------------------------------------------ the table


def compare(case: Any, batches: Sequence[Any]) -> dict[str, Any]:
    """The row of a case: both losses where they are furthest apart, and the largest differences over all batches."""
    mine, other = (our_judged_loss, case.trl) if isinstance(case, JudgedCase) else (our_loss, trl_loss)
    row: dict[str, Any] = {"algorithm": case.algorithm, "setting": case.setting, "loss": 0.0, "trl": 0.0}
    row |= {"loss_difference": 0.0, "gradient_difference": 0.0, "convention": None, "verdict": "equal"}
    apart, left = 0, 0.0
    for batch in batches if isinstance(case, JudgedCase) else map(case.given, batches):
        ours, theirs = _with_gradient(mine, case, batch), _with_gradient(other, case, batch)
        loss, gradient = _differences(ours, theirs)
        apart += max(loss, gradient) > TOLERANCE
        if loss >= row["loss_difference"]:
            row |= {"loss": ours[0], "trl": theirs[0], "loss_difference": loss}
        row["gradient_difference"] = max(row["gradient_difference"], gradient)
        if case.convention is not None:
            left = max(left, *_differences(ours, _with_gradient(case.convention, case, batch)))
    if apart and case.convention is not None and left <= TOLERANCE:
        number = CONVENTIONS.index(case.convention) + 1
        row["verdict"] = f"convention {number}: {apart} of {len(batches)} batches; {left:.0e} without it"
        row |= {"convention": number, "difference_without_convention": left}
    elif apart:
        row["verdict"] = f"DIFFERENT: {apart} of {len(batches)} batches"
    return row


def _with_gradient(loss: Callable[[Any, Any], Tensor], case: Any, batch: Batch | Judged) -> tuple[float, Tensor]:
    name = judged_leaf(case) if isinstance(case, JudgedCase) else "logprobs"
    leaf = getattr(batch, name).clone().requires_grad_()
    value = loss(case, replace(batch, **{name: leaf}))
    return value.item(), torch.autograd.grad(value, leaf)[0]


def _differences(ours: tuple[float, Tensor], theirs: tuple[float, Tensor]) -> tuple[float, float]:
    """Of the losses, and the largest of the gradients; infinite where a side is not finite."""
    found = abs(ours[0] - theirs[0]), (ours[1] - theirs[1]).abs().max().item()
    return found if all(map(math.isfinite, found)) else (math.inf, math.inf)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batches", type=int, default=20, help="at least 3, so that there are empty rows and holes")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the table there too")
    arguments = parser.parse_args()
    if arguments.batches < 3:
        parser.error(f"--batches is at least 3, not {arguments.batches}")
    warnings.filterwarnings("ignore", category=FutureWarning)
    torch.set_default_dtype(getattr(torch, arguments.dtype))
    about = {module.__name__: module.__version__ for module in (reinlm, trl, torch)}
    about |= {"seed": arguments.seed, "batches": arguments.batches, "dtype": arguments.dtype}
    print(", ".join(f"{name} {value}" for name, value in about.items()), end="\n\n")
    layout = "{:<12} {:<39} {:>10} {:>10} {:>8} {:>12}  {}"
    print(layout.format("algorithm", "setting", "loss ours", "loss TRL", "|Δ loss|", "max |Δ grad|", "verdict"))
    batches, rows = list(random_batches(arguments.seed, arguments.batches)), []
    judged = list(random_judged(arguments.seed, arguments.batches))
    for case, given in [(case, batches) for case in cases()] + [(case, judged) for case in judged_cases()]:
        rows.append(row := compare(case, given))
        losses = f"{row['loss']:.6f}", f"{row['trl']:.6f}"
        differences = f"{row['loss_difference']:.0e}", f"{row['gradient_difference']:.0e}"
        print(layout.format(case.algorithm, case.setting, *losses, *differences, row["verdict"]), flush=True)
    print("\nLosses are of the batch where they are furthest apart; the gradients' difference is over all batches.")
    numbers = sorted({row["convention"] for row in rows} - {None})
    named = {number: " ".join((CONVENTIONS[number - 1].__doc__ or "").split()) for number in numbers}
    print("\n".join(f"convention {number}: {text}" for number, text in named.items()))
    if arguments.json:
        report = {**about, "tolerance": TOLERANCE, "conventions": named, "rows": rows}
        arguments.json.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    different = [f"{row['algorithm']}, {row['setting']}" for row in rows if row["verdict"].startswith("DIFFERENT")]
    if different:
        raise SystemExit(f"\nfurther apart than {TOLERANCE:.0e}, by no named convention: {'; '.join(different)}")


if __name__ == "__main__":
    main()
