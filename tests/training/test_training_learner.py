"""The learner on the public interface: what it computes is what plain autograd computes, however it is split."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import logsigmoid
from training_helpers import gradient, weights

from reinlm.batches import TokenBatch
from reinlm.errors import RunError
from reinlm.models import Outputs, TokenModel, Want, tiny_model
from reinlm.objectives import Loss, Metrics
from reinlm.training.learner import Learner, LossFunction, MicroBatch
from reinlm.training.optimizer import Optimizer, OptimizerConfig

BETA = 0.3
VOCAB = 14


def lm(seed: int = 0, dtype: torch.dtype = torch.float64) -> Any:
    shape: dict[str, Any] = {"vocab_size": VOCAB, "hidden_size": 16, "layers": 1, "heads": 2, "context": 32}
    model: Any = tiny_model("gpt2", seed=seed, **shape)
    return model.to(dtype).eval()


def learner(model: Any, budget: int = 10**6, packing: Any = "pad", **options: Any) -> Learner:
    settings = OptimizerConfig(learning_rate=1e-2, max_skipped=3)
    model = TokenModel(model, packing=packing)
    return Learner(model, Optimizer(model.parameters(), settings, 10), micro_batch_tokens=budget, **options)


# ------------------------------------------------------------------------------------------------ a loss of pairs


def pairs(chosen: list[list[int]], rejected: list[list[int]], prompt: int) -> TokenBatch:
    """Neighbours are a pair, chosen first; what follows the prompt is scored."""
    sequences = [one for pair in zip(chosen, rejected, strict=True) for one in pair]
    return TokenBatch.of(sequences, [range(prompt, len(one)) for one in sequences], group_size=2)


def paired_loss(reference: Tensor, count: int) -> LossFunction:
    """-Σ log σ(β ((lp_c - ref_c) - (lp_r - ref_r))) / pairs: direct preference optimisation, arXiv 2305.18290 eq. 7."""

    def loss(outputs: Outputs, part: MicroBatch) -> Loss:
        layout = part.batch.layout
        gains = layout.sum(outputs.scored, by="sequence") - reference[part.sequences]
        chosen, rejected = gains[0::2], gains[1::2]
        margin = chosen - rejected
        sums = {"accuracy": ((margin.detach() > 0).sum(), torch.tensor(float(len(margin))))}
        return Loss(-logsigmoid(BETA * margin).sum() / count, Metrics(sums))

    return loss


def drawn_pairs(seed: int, count: int) -> TokenBatch:
    generator = torch.Generator().manual_seed(seed)

    def answers() -> list[list[int]]:
        sizes = torch.randint(1, 8, (count,), generator=generator).tolist()
        return [torch.randint(1, VOCAB, (3 + size,), generator=generator).tolist() for size in sizes]

    return pairs(answers(), answers(), prompt=3)


def plain_logprobs(model: Any, batch: TokenBatch) -> list[Tensor]:
    """Of every sequence, with the whole softmax and one forward pass each."""
    found = []
    owner = batch.layout.index("sequence")
    for number in range(batch.sequences):
        ids, places = torch.tensor([batch.ids(number)]), batch.positions[owner == number]
        table = torch.log_softmax(model(ids).logits[0], -1)
        found.append(table[places - 1].gather(1, ids[0, places, None])[:, 0])
    return found


@pytest.mark.parametrize("packing", ["pad", "pack"])
@pytest.mark.parametrize("budget", [1, 40, 10**6])
def test_a_loss_of_pairs_has_the_gradient_of_plain_autograd(budget: int, packing: Any) -> None:
    policy, reference = lm(0), lm(1)
    batch = drawn_pairs(seed=4, count=5)
    frozen = learner(reference).forward(batch).scored
    mine = learner(policy, budget, packing)
    found = mine.forward_backward(batch, paired_loss(batch.layout.sum(frozen, by="sequence"), 5), unit="group")
    actual = gradient(policy)
    with torch.no_grad():
        theirs = torch.stack([one.sum() for one in plain_logprobs(reference, batch)])
    gains = torch.stack([one.sum() for one in plain_logprobs(policy, batch)]) - theirs
    margin = gains[0::2] - gains[1::2]
    expected = -logsigmoid(BETA * margin).mean()
    expected.backward()
    assert found.loss == pytest.approx(expected.item(), abs=1e-12)
    assert found.metrics.means() == {"accuracy": pytest.approx(float((margin > 0).double().mean()))}
    torch.testing.assert_close(actual, gradient(policy), rtol=0, atol=1e-12)


def test_a_loss_of_pairs_raises_the_chosen_answers() -> None:
    policy = lm()
    batch = drawn_pairs(seed=4, count=5)
    mine = learner(policy, budget=30)
    reference = batch.layout.sum(mine.forward(batch).scored, by="sequence")
    losses = []
    for _ in range(5):
        losses.append(mine.forward_backward(batch, paired_loss(reference, 5), unit="group").loss)
        mine.optim_step()
    assert losses[0] == pytest.approx(math.log(2.0), abs=1e-12)
    assert losses == sorted(losses, reverse=True)
    assert mine.weights().version == 5


# ------------------------------------------------------------------------------------------------ micro-batches


@st.composite
def grouped(draw: st.DrawFn) -> tuple[TokenBatch, int]:
    """Groups of two ragged sequences, some without a scored token, in a drawn order; and a budget."""
    count = draw(st.integers(1, 5))
    lengths = draw(st.lists(st.integers(0, 9), min_size=2 * count, max_size=2 * count))
    sequences = [[1 + i % (VOCAB - 1)] * (2 + length) for i, length in enumerate(lengths)]
    batch = TokenBatch.of(sequences, [range(2, 2 + length) for length in lengths], group_size=2)
    return batch.select(torch.tensor(draw(st.permutations(range(2 * count))))), draw(st.integers(1, 90))


MODEL = TokenModel(lm())


@given(grouped(), st.sampled_from(["pad", "pack"]), st.sampled_from(["sequence", "episode", "group"]))
def test_units_are_never_split_and_every_sequence_comes_once(drawn: Any, packing: Any, unit: Any) -> None:
    batch, budget = drawn
    mine = Learner(TokenModel(MODEL.lm, packing=packing), micro_batch_tokens=budget)
    parts: list[MicroBatch] = []

    def loss(outputs: Outputs, part: MicroBatch) -> Loss:
        parts.append(part)
        return Loss(outputs.scored.sum(), Metrics({}))

    mine.forward_backward(batch, loss, unit=unit)
    seen = [number for part in parts for number in part.sequences.tolist()]
    assert sorted(seen) == torch.nonzero(batch.layout.count("sequence")).flatten().tolist()
    group = batch.layout.group_of_episode[batch.layout.episode_of_sequence]
    together = [set(group[part.sequences].tolist()) for part in parts]
    if unit == "group":
        assert sum(map(len, together)) == len(set().union(*together))
    for part in parts:
        assert [part.batch.ids(i) for i in range(part.batch.sequences)] == [batch.ids(i) for i in part.sequences]
        sizes = part.batch.lengths.tolist()
        cost = len(sizes) * max(sizes) if packing == "pad" else sum(sizes)
        units = len(set(group[part.sequences].tolist())) if unit == "group" else len(sizes)
        assert cost <= budget or units == 1
    MODEL.zero_grad()


def squared(count: int) -> LossFunction:
    """Σ (log π)² / N, and each token's share."""

    def loss(outputs: Outputs, part: MicroBatch) -> Loss:
        each = outputs.scored.square()
        sums = {"squares": (each.detach().sum(), torch.tensor(float(len(each))))}
        return Loss(each.sum() / count, Metrics(sums, {"largest": each.detach().max()}), {"squares": each.detach()})

    return loss


@settings(max_examples=15)
@given(grouped(), st.sampled_from(["pad", "pack"]))
def test_loss_gradient_and_metrics_do_not_depend_on_the_micro_batch(drawn: Any, packing: Any) -> None:
    batch, budget = drawn
    if not batch.tokens:
        return
    found = []
    for size in (budget, 10**6):
        mine = Learner(TokenModel(MODEL.lm, packing=packing), micro_batch_tokens=size)
        made = mine.forward_backward(batch, squared(batch.tokens))
        found.append((made, gradient(MODEL)))
    (split, one), (whole, other) = found
    assert split.loss == pytest.approx(whole.loss, rel=1e-12)
    assert split.metrics.means() == pytest.approx(whole.metrics.means(), rel=1e-12)
    torch.testing.assert_close(one, other, rtol=0, atol=1e-11)
    expected = learner(MODEL.lm).forward(batch).scored.square()
    torch.testing.assert_close(split.tokens["squares"].double(), expected, rtol=1e-6, atol=1e-6)
    assert split.metrics.means()["largest"] == pytest.approx(float(expected.max()), rel=1e-12)


@pytest.mark.parametrize("packing", ["pad", "pack"])
@pytest.mark.parametrize("budget", [1, 30, 10**6])
def test_forward_gives_the_plain_models_log_probabilities_and_no_gradient(budget: int, packing: Any) -> None:
    policy = lm()
    batch = drawn_pairs(seed=1, count=4)
    found = learner(policy, budget, packing).forward(batch, Want(entropy=True))
    expected = torch.cat(plain_logprobs(policy, batch)).detach()
    torch.testing.assert_close(found.scored, expected, rtol=0, atol=1e-12)
    assert found.scored.requires_grad is False
    assert found.entropy is not None
    assert found.likeliest is not None
    assert found.entropy.shape == found.likeliest.shape == expected.shape
    assert float(found.entropy.min()) > 0.0


def test_every_sequence_is_scored_at_its_own_temperature() -> None:
    policy = lm()
    batch = replace(drawn_pairs(seed=1, count=1), temperature=torch.tensor([0.5, 2.0], dtype=torch.float64))
    expected = []
    for number, temperature in enumerate((0.5, 2.0)):
        ids = torch.tensor([batch.ids(number)])
        table = torch.log_softmax(policy(ids).logits[0] / temperature, -1)
        expected.append(table[2:-1].gather(1, ids[0, 3:, None])[:, 0])
    torch.testing.assert_close(learner(policy).forward(batch).scored, torch.cat(expected).detach(), rtol=0, atol=1e-12)


# ------------------------------------------------------------------------------------------------ steps and modes


def test_a_batch_without_a_scored_token_is_no_pass_and_moves_nothing() -> None:
    policy = lm()
    mine = learner(policy)
    batch = TokenBatch.of([[1, 2, 3], [4, 5]], [[], []])
    found = mine.forward(batch, Want(entropy=True, values=True))
    assert (found.scored.tolist(), found.entropy.tolist(), found.values.tolist()) == ([], [], [])  # type: ignore[union-attr]
    before = weights(policy)
    made = mine.forward_backward(batch, squared(1))
    assert (made.loss, made.metrics.means(), dict(made.tokens)) == (0.0, {}, {})
    assert mine.optim_step()["updates/skipped"] == 0
    assert all(torch.equal(value, before[name]) for name, value in weights(policy).items())


@pytest.mark.parametrize("gradient_too", [True, False])
def test_a_loss_that_is_not_finite_is_skipped_and_counted(gradient_too: bool) -> None:
    policy = lm()
    mine = learner(policy, budget=1)
    batch = drawn_pairs(seed=2, count=2)
    before = weights(policy)

    def spoiled(outputs: Outputs, part: MicroBatch) -> Loss:
        found = squared(batch.tokens)(outputs, part)
        if 2 not in part.sequences.tolist():
            return found
        return replace(found, value=found.value * math.inf if gradient_too else found.value + math.inf)

    for count in (1, 2):
        mine.forward_backward(batch, spoiled)
        assert mine.optim_step()["updates/skipped"] == count
        assert all(torch.equal(value, before[name]) for name, value in weights(policy).items())
    mine.forward_backward(batch, squared(batch.tokens))
    good = mine.optim_step()
    assert good["updates/skipped"] == 2
    assert good["grad_norm"] > 0.0
    assert any(not torch.equal(value, before[name]) for name, value in weights(policy).items())
    assert mine.weights().version == 1
    for _ in range(2):
        mine.forward_backward(batch, spoiled)
        mine.optim_step()
    mine.forward_backward(batch, spoiled)
    with pytest.raises(RunError, match="3 updates in a row were not finite"):
        mine.optim_step()


@pytest.mark.parametrize("train_mode", [True, False])
@pytest.mark.parametrize("before", [True, False])
def test_every_modules_mode_comes_back_whatever_it_was(before: bool, train_mode: bool) -> None:
    policy = lm().train(before)
    policy.transformer.h[0].mlp.train(not before)
    modes = {name: module.training for name, module in policy.named_modules()}
    seen: list[bool] = []
    policy.transformer.h[0].mlp.register_forward_hook(lambda module, *_: seen.append(module.training))
    mine = learner(policy, train_mode=train_mode)
    seen.clear()
    batch = drawn_pairs(seed=3, count=1)
    mine.forward(batch)
    mine.forward_backward(batch, squared(batch.tokens))
    assert seen == [False, train_mode]

    def fails(outputs: Outputs, part: MicroBatch) -> Loss:
        raise KeyError("a mistake in a loss")

    with pytest.raises(KeyError) as kept:  # somebody may hold on to the error, as a debugger does
        mine.forward_backward(batch, fails)
    assert {name: module.training for name, module in policy.named_modules()} == modes
    assert kept.type is KeyError


def test_gradients_of_several_passes_add_until_the_step_and_can_be_forgotten() -> None:
    policy = lm()
    mine = learner(policy)
    batch = drawn_pairs(seed=3, count=1)
    mine.forward_backward(batch, squared(batch.tokens))
    once = gradient(policy)
    for _ in range(2):
        mine.forward_backward(batch, squared(batch.tokens))
    torch.testing.assert_close(gradient(policy), 2 * once, rtol=1e-12, atol=1e-14)
    mine.forward_backward(batch, squared(batch.tokens))
    mine.zero_grad()
    assert all(weight.grad is None for weight in policy.parameters())


@pytest.mark.parametrize("limit", [1, 5000, 10**9])
def test_weights_come_in_buckets_that_hold_every_tensor_once(limit: int) -> None:
    policy = lm()
    buckets = list(learner(policy).weights(limit).buckets)
    assert all(len(bucket) == 1 or sum(v.nbytes for v in bucket.values()) <= limit for bucket in buckets)
    found = {name: value for bucket in buckets for name, value in bucket.items()}
    assert sum(map(len, buckets)) == len(found)
    assert all(torch.equal(found[name], value) for name, value in policy.state_dict().items())
    assert found.keys() == policy.state_dict().keys()
