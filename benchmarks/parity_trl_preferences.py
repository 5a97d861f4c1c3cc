"""Loss and gradient of reinlm's losses of judged answers beside those of an installed TRL; `parity_trl.py` prints the rows.

TRL's side is TRL's own code: `DPOTrainer._compute_loss`, `KTOTrainer._compute_loss`, `RewardTrainer.compute_loss`, and
`get_batch_loss_metrics` of its experimental CPO and ORPO trainers, on trainers without model, data or processes. The model is a
table of the batch's own numbers. The gradient is that of the policy's log-probabilities, of the scores for a reward model, and
of the logits where TRL's code wants them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
import trl
from torch import Tensor
from trl.experimental.cpo import CPOTrainer
from trl.experimental.orpo import ORPOTrainer

from reinlm.algorithms import preference_algorithm
from reinlm.objectives import BradleyTerry, Labelled, Pairs, Ranked

WORDS = 11
"""Words of the vocabulary where there are logits."""


@dataclass(frozen=True)
class Judged:
    """B pairs, the chosen answers first: [2B, T] after a prompt of two tokens; T counts the tokens that are predicted."""

    ids: Tensor
    logits: Tensor
    """[2B, T, words] of the policy, with the gradient."""
    ref: Tensor
    """[2B, T] log-probabilities of the reference."""
    other: Tensor
    """[2B] log-ratios of answers to other prompts."""
    answer: Tensor
    """[2B, T] bool: tokens of answers."""
    scores: Tensor
    """[2B] of a reward model, with the gradient."""
    margin: Tensor

    @property
    def logprobs(self) -> Tensor:
        return self.logits.log_softmax(-1).gather(-1, self.ids[:, 1:, None]).squeeze(-1)

    @property
    def sums(self) -> Tensor:
        return (self.logprobs * self.answer).sum(1)


def random_judged(seed: int, count: int) -> Iterator[Judged]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        pairs, columns = (int(torch.randint(2, high, (), generator=generator)) for high in (9, 24))
        rows, width = 2 * pairs, columns + 1
        lengths = torch.randint(1, columns, (rows, 1), generator=generator)
        places = torch.arange(columns)
        logits = 2 * torch.randn(rows, columns, WORDS, generator=generator)
        made = Judged(
            ids=torch.randint(WORDS, (rows, width), generator=generator),
            logits=logits,
            ref=-2 * torch.randn(rows, columns, generator=generator).abs(),
            other=torch.randn(rows, generator=generator),
            answer=(places >= 1) & (places < 1 + lengths),
            scores=torch.randn(rows, generator=generator),
            margin=torch.rand(pairs, generator=generator),
        )
        yield replace(made, ref=made.logprobs + 0.4 * made.ref)


# ------------------------------------------------------------------------------------------------ the two losses


@dataclass(frozen=True)
class JudgedCase:
    """One row: changes of a named algorithm, and TRL's trainer with its settings."""

    algorithm: str
    setting: str
    changes: Mapping[str, Any]
    trl: Callable[[JudgedCase, Judged], Tensor]
    settings: Mapping[str, Any]
    convention: Callable[[JudgedCase, Judged], Tensor] | None = None


def our_judged_loss(case: JudgedCase, batch: Judged) -> Tensor:
    """The mean over pairs or answers, as the trainer takes it of a whole step."""
    if case.algorithm == "reward model":
        pairs = len(batch.margin)
        scores = batch.scores.view(2, pairs).T.flatten()
        unit = torch.arange(pairs).repeat_interleave(2)
        return BradleyTerry(**case.changes)(Ranked(scores, unit, torch.arange(2).repeat(pairs), batch.margin)).mean()
    loss = preference_algorithm(case.algorithm, **case.changes).loss
    lengths, refs = batch.answer.sum(1), (batch.ref * batch.answer).sum(1)
    step: Any
    if loss.takes == "pairs":
        chosen, rejected = batch.sums.chunk(2)
        step = Pairs(chosen, rejected, *refs.chunk(2), *lengths.chunk(2))
    else:
        desirable = torch.arange(len(lengths)) < len(lengths) // 2
        step = Labelled(batch.sums, refs, lengths, desirable, batch.other)
    return loss(step, loss.prepare(step)).mean()


def _trainer(kind: type, **settings: Any) -> Any:
    """What TRL's loss reads of a trainer, and no more."""
    trainer: Any = object.__new__(kind)
    vars(trainer).update(
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(device="cpu", gather=lambda x: x, gather_for_metrics=lambda x: x),
        aux_loss_enabled=False,
        precompute_ref_logps=True,
        is_encoder_decoder=False,
        label_smoothing=0.0,
        _metrics={"train": defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
    )
    vars(trainer).update(settings)
    return trainer


def _outputs(batch: Judged) -> Callable[..., Any]:
    masked = batch.logprobs * batch.answer
    nothing = torch.zeros_like(masked)
    return lambda **_: SimpleNamespace(
        log_probs=masked, entropy=nothing, mean_logits=nothing, is_top1=nothing.bool(), log_sum_sq_probs=nothing
    )


def _inputs(batch: Judged) -> dict[str, Tensor]:
    mask = torch.cat([torch.zeros(len(batch.ids), 1), batch.answer.float()], dim=1).long()
    return {"input_ids": batch.ids, "attention_mask": torch.ones_like(batch.ids), "completion_mask": mask}


_DPO = {"ld_alpha": None, "f_divergence_type": "reverse_kl", "use_weighting": False}


def _references(batch: Judged) -> dict[str, Tensor]:
    chosen, rejected = (batch.ref * batch.answer).sum(1).chunk(2)
    return {"ref_chosen_logps": chosen, "ref_rejected_logps": rejected}


def trl_dpo(case: JudgedCase, batch: Judged) -> Tensor:
    trainer = _trainer(trl.DPOTrainer, **_DPO, **case.settings)
    return trainer._compute_loss(_outputs(batch), _references(batch) | _inputs(batch), False)


def trl_kto(case: JudgedCase, batch: Judged) -> Tensor:
    trainer = _trainer(trl.KTOTrainer, loss_type="kto", calculate_KL=True, **case.settings)
    trainer._compute_kl_logps = lambda *_: batch.other
    label = torch.arange(len(batch.ids)) < len(batch.ids) // 2
    refs = {"ref_logps": (batch.ref * batch.answer).sum(1), "ref_KL_logps": torch.zeros_like(batch.other)}
    return trainer._compute_loss(_outputs(batch), _inputs(batch) | {"label": label} | refs, False)


def trl_reward(case: JudgedCase, batch: Judged) -> Tensor:
    margin = case.settings.get("margin", False)
    trainer = _trainer(trl.RewardTrainer, args=SimpleNamespace(center_rewards_coefficient=case.settings.get("center")))
    inputs = {"attention_mask": torch.ones_like(batch.ids)} | ({"margin": batch.margin} if margin else {})
    return trainer.compute_loss(lambda **_: SimpleNamespace(logits=batch.scores[:, None]), inputs)


def _concatenated(kind: type, case: JudgedCase, batch: Judged, labels: Tensor | None = None) -> Tensor:
    trainer = _trainer(kind, **{"alpha": 0.0, "loss_type": "sigmoid", **case.settings})
    full = torch.cat([batch.logits, torch.zeros(len(batch.ids), 1, WORDS)], dim=1)
    inputs = _inputs(batch)
    own = batch.ids.masked_fill(inputs["completion_mask"] == 0, -100)
    filled = {"concatenated_input_ids": batch.ids, "concatenated_labels": own}
    attention = inputs["attention_mask"] if labels is None else (labels != -100).long()
    trainer.concatenated_inputs = lambda *_, **__: filled | {"concatenated_attention_mask": attention}
    trainer.padding_value = trainer.pad_token_id = 0
    model = lambda *_, **__: SimpleNamespace(logits=full)  # noqa: E731
    return trainer.get_batch_loss_metrics(model, {"chosen_labels": own[: len(own) // 2]})[0]


def trl_cpo(case: JudgedCase, batch: Judged) -> Tensor:
    return _concatenated(CPOTrainer, case, batch)


def trl_orpo(case: JudgedCase, batch: Judged) -> Tensor:
    return _concatenated(ORPOTrainer, case, batch)


# ------------------------------------------------------------------------------------------------ conventions


def prompt_imitated(case: JudgedCase, batch: Judged) -> Tensor:
    """TRL's ORPO imitates the prompt with the chosen answer; reinlm's the answer alone. Equal once TRL's likelihood counts
    the answer alone."""
    answers = batch.ids.masked_fill(_inputs(batch)["completion_mask"] == 0, -100)
    return _concatenated(ORPOTrainer, case, batch, answers)


def ipo_of_sums(case: JudgedCase, batch: Judged) -> Tensor:
    """TRL's IPO compares mean log-ratios of a token; reinlm's sums of whole answers, as arXiv 2310.12036 does, and means with
    length_normalized=true. Equal once TRL divides by 1."""
    trainer = _trainer(trl.DPOTrainer, **_DPO, **case.settings)
    one = torch.zeros_like(batch.ids).index_fill(1, torch.tensor([0]), 1)
    return trainer._compute_loss(_outputs(batch), _references(batch) | _inputs(batch) | {"completion_mask": one}, False)


JUDGED_CONVENTIONS = (prompt_imitated, ipo_of_sums)


def judged_cases() -> Iterator[JudgedCase]:
    def dpo(algorithm: str, kind: str, setting: str, changes: Mapping[str, Any], **more: Any) -> JudgedCase:
        settings = {"loss_types": [kind], "loss_weights": [1.0], "beta": 0.1, **more}
        return JudgedCase(algorithm, setting, changes, trl_dpo, settings)

    beta = {"beta": 0.1}
    yield dpo("dpo", "sigmoid", "β 0.1 (sigmoid)", beta)
    yield dpo("dpo", "sigmoid", "β 2", {"beta": 2.0}, beta=2.0)
    smooth = {"label_smoothing": 0.2}
    yield dpo("robust_dpo", "robust", "β 0.1, ε 0.2 (robust)", beta | smooth, **smooth)
    yield dpo("ipo", "ipo", "β 0.1, mean of tokens (ipo)", beta | {"length_normalized": True})
    yield replace(dpo("ipo", "ipo", "β 0.1, sums", beta), convention=ipo_of_sums)
    yield dpo("hinge", "hinge", "β 0.1", beta)
    yield dpo("bco_pair", "bco_pair", "β 0.1", beta)
    yield dpo("sppo", "sppo_hard", "β 0.1 (sppo_hard)", beta)
    yield dpo("apo_zero", "apo_zero", "β 0.1", beta)
    yield dpo("dpo_norm", "sigmoid_norm", "β 5 (sigmoid_norm)", {"beta": 5.0}, beta=5.0)
    both = {"loss_types": ["sigmoid", "sft"], "loss_weights": [1.0, 0.5], "beta": 0.1}
    sft = {"sft_coefficient": 0.5, "sft_aggregation": "token_mean"}
    yield JudgedCase("dpo_sft", "β 0.1, η 0.5 (sigmoid + sft)", beta | sft, trl_dpo, both)
    weights = {"desirable_weight": 1.2, "undesirable_weight": 0.8}
    yield JudgedCase("kto", "β 0.1, λ 1.2 and 0.8", beta | weights, trl_kto, beta | weights)
    yield JudgedCase("cpo", "β 0.1, α 1", beta | {"sft_aggregation": "token_mean"}, trl_cpo, beta | {"cpo_alpha": 1.0})
    simpo = {"beta": 2.0, "loss_type": "simpo", "simpo_gamma": 1.0, "cpo_alpha": 0.0}
    yield JudgedCase("simpo", "β 2, γ 1", {}, trl_cpo, simpo)
    yield JudgedCase("orpo", "λ 0.1", {"sft_aggregation": "token_mean"}, trl_orpo, beta, convention=prompt_imitated)
    yield JudgedCase("reward model", "Bradley–Terry", {}, trl_reward, {})
    yield JudgedCase("reward model", "margin", {"margin_weight": 1.0}, trl_reward, {"margin": True})
    yield JudgedCase("reward model", "centred 0.01", {"centering": 0.01}, trl_reward, {"center": 0.01})


def judged_leaf(case: JudgedCase) -> str:
    """The field of a batch whose gradient is compared."""
    return "scores" if case.algorithm == "reward model" else "logits"
