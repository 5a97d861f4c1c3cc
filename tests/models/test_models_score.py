"""`score` against the plain computation, and the memory that it may hold."""

from __future__ import annotations

import copy
import random
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from reinlm.errors import InputError
from reinlm.models import micro_batches, score
from reinlm.models.modules import disable_dropout
from reinlm.models.tiny import tiny_model

VOCAB = 23
SEQUENCES = [[3, 4, 5, 6, 7, 2], [2, 9], [8, 8, 8], [1, 20, 19, 18, 17, 16, 15, 14, 13]]
POSITIONS = [[2, 3, 5], [1], [], [1, 4, 8]]
FAMILIES = ["qwen3", "llama", "gpt2", "qwen3_moe"]


def _model(family: Any) -> Any:
    return tiny_model(family, vocab_size=VOCAB, hidden_size=32, layers=2, heads=2, seed=3)


_models = {(family, dtype): _model(family).to(dtype) for family in FAMILIES for dtype in (torch.float32, torch.float64)}
# Grouped matrix products, the default for experts, know no float64.
_models["qwen3_moe", torch.float64].set_experts_implementation("eager")


def naive(
    model: nn.Module, sequences: Sequence[Sequence[int]], positions: Sequence[Sequence[int]], temperature: float
) -> tuple[Tensor, Tensor]:
    """One forward a sequence, the whole softmax, no chunks: (log-probabilities, entropies)."""
    chosen, entropies = [], []
    for tokens, where in zip(sequences, positions, strict=True):
        logits = model(torch.tensor([list(tokens)])).logits[0] / temperature
        for position in where:
            row = logits[position - 1]
            logprobs = row - torch.logsumexp(row, 0)
            chosen.append(logprobs[tokens[position]])
            entropies.append(-(logprobs.exp() * logprobs).sum())
    return torch.stack(chosen), torch.stack(entropies)


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [
        torch.zeros_like(p) if g is None else g
        for p, g in zip(parameters, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True)
    ]


@pytest.mark.parametrize("packing", ["pad", "pack", "share"])
@pytest.mark.parametrize("family", FAMILIES)
def test_scores_equal_the_plain_computation(family: str, packing: Any) -> None:
    model = _models[family, torch.float64]
    logprobs, entropy = naive(model, SEQUENCES, POSITIONS, 0.7)
    scores = score(model, SEQUENCES, POSITIONS, temperature=0.7, entropy=True, chunk_tokens=3, packing=packing)
    torch.testing.assert_close(scores.scored, logprobs, rtol=0, atol=1e-12)
    torch.testing.assert_close(scores.entropy, entropy, rtol=0, atol=1e-12)
    assert scores.entropy is not None
    assert not scores.entropy.requires_grad


@pytest.mark.parametrize("packing", ["pad", "pack", "share"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_equal_the_plain_computation(family: str, dtype: torch.dtype, tolerance: float, packing: Any) -> None:
    model = _models[family, dtype]
    weights = torch.tensor([0.3, -1.0, 2.0, 0.5, 1.0, -0.2, 0.7], dtype=dtype)
    logprobs, entropy = naive(model, SEQUENCES, POSITIONS, 1.3)
    expected = gradients(model, (weights * logprobs).sum() + 0.1 * entropy.sum())
    scores = score(model, SEQUENCES, POSITIONS, temperature=1.3, entropy="grad", chunk_tokens=2, packing=packing)
    assert scores.entropy is not None
    actual = gradients(model, (weights * scores.scored).sum() + 0.1 * scores.entropy.sum())
    norm = torch.cat([g.flatten() for g in expected]).norm()
    for got, want in zip(actual, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=tolerance * norm.item())


def test_a_head_with_bias_of_its_own_gets_its_gradients() -> None:
    model = copy.deepcopy(_models["gpt2", torch.float64])
    model.config.tie_word_embeddings = False
    generator = torch.Generator().manual_seed(0)
    model.lm_head = nn.Linear(32, VOCAB, bias=True).double()
    with torch.no_grad():
        model.lm_head.bias.copy_(torch.randn(VOCAB, generator=generator))
    expected = gradients(model, naive(model, SEQUENCES, POSITIONS, 1.0)[0].sum())
    actual = gradients(model, score(model, SEQUENCES, POSITIONS, chunk_tokens=2).scored.sum())
    head = [name for name, _ in model.named_parameters()].index("lm_head.bias")
    assert expected[head].abs().max() > 0.1
    for got, want in zip(actual, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-10)


class _LiveLogits(TorchDispatchMode):
    """The most rows of logits that are alive at once, counted by storage. 32 rows are the head's weight, turned."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, int] = {}
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor) and tensor.shape[-1:] == (VOCAB,) and len(tensor) != 32:
                self._add(tensor.untyped_storage(), tensor.numel() // VOCAB)
        return out

    def _add(self, storage: Any, rows: int) -> None:
        key = storage._cdata
        if key not in self.alive:
            self.alive[key] = rows
            weakref.finalize(storage, self.alive.pop, key, None)
            self.most = max(self.most, sum(self.alive.values()))


def _record_saved(sizes: list[int]) -> Any:
    def pack(tensor: Tensor) -> Tensor:
        if tensor.shape[-1:] == (VOCAB,):
            sizes.append(tensor.numel() // VOCAB)
        return tensor

    return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)


@pytest.mark.parametrize("entropy", [False, True, "grad"])
def test_no_logits_are_saved_for_the_backward_pass(entropy: Any) -> None:
    model = _models["qwen3", torch.float32]
    sequences = [[(7 * i + j) % VOCAB for j in range(33)] for i in range(8)]
    sizes: list[int] = []
    with _record_saved(sizes):
        score(model, sequences, [range(1, 33)] * 8, entropy=entropy, chunk_tokens=16)
    assert sizes == []
    with _record_saved(sizes):
        naive(model, sequences, [range(1, 33)] * 8, 1.0)
    assert max(sizes) >= 1  # the hooks do see logits where they are saved


@pytest.mark.parametrize("temperature", [1.0, 0.8])
def test_logits_never_outlive_their_chunk_forward_or_backward(temperature: float) -> None:
    model = _models["gpt2", torch.float32]
    sequences = [[(7 * i + j) % VOCAB for j in range(33)] for i in range(8)]
    positions = [list(range(1, 33))] * 8  # 256 tokens

    def most(chunk: int) -> int:
        score(model, sequences, positions)  # the probe of the first call is not measured
        with _LiveLogits() as live:
            scores = score(model, sequences, positions, entropy=True, chunk_tokens=chunk, temperature=temperature)
            gradients(model, scores.scored.sum())
        return live.most

    assert most(8) <= 8 * 5
    assert most(256) >= 256


def test_padding_and_later_tokens_never_matter() -> None:
    model = _models["llama", torch.float64]
    alone = score(model, [[3, 4, 5]], [[1, 2]]).scored
    for longer in ([7] * 12, [0, 1] * 6):
        among = score(model, [longer, [3, 4, 5, *longer]], [[11], [1, 2]]).scored
        torch.testing.assert_close(among[1:], alone, rtol=0, atol=1e-12)


_batches = st.lists(
    st.lists(st.integers(0, VOCAB - 1), min_size=2, max_size=12).flatmap(
        lambda tokens: st.tuples(
            st.just(tokens), st.lists(st.integers(1, len(tokens) - 1), min_size=1, unique=True).map(sorted)
        )
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=15, deadline=None)
@given(
    batch=_batches,
    family=st.sampled_from(["qwen3", "gpt2"]),
    budget=st.integers(1, 40),
    chunk=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_splitting_packing_and_order_leave_logprobs_where_they_are(
    batch: Any, family: str, budget: int, chunk: int, seed: int
) -> None:
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        model = _models[family, dtype]
        with torch.no_grad():
            whole = score(model, *zip(*batch, strict=True), entropy=True)
            expected = list(zip(*_split(batch, whole.logprobs, whole.entropy), strict=True))
            shuffled = list(range(len(batch)))
            random.Random(seed).shuffle(shuffled)
            for packing in ("pad", "pack"):
                for part in micro_batches([len(batch[i][0]) for i in shuffled], budget, packing):
                    some = [batch[shuffled[i]] for i in part]
                    got = score(model, *zip(*some, strict=True), entropy=True, chunk_tokens=chunk, packing=packing)
                    for i, pair in zip(part, zip(*_split(some, got.logprobs, got.entropy), strict=True), strict=True):
                        torch.testing.assert_close(pair, expected[shuffled[i]], rtol=0, atol=tolerance)


def _split(batch: Any, *flat: Tensor | None) -> list[tuple[Tensor, ...]]:
    return [tensor.split([len(where) for _, where in batch]) for tensor in flat if tensor is not None]


def test_bfloat16_models_take_the_softmax_in_float32() -> None:
    model = copy.deepcopy(_models["qwen3", torch.float32]).bfloat16()
    scores = score(model, SEQUENCES, POSITIONS, entropy=True)
    with torch.no_grad():
        logits = model(torch.tensor([SEQUENCES[0]])).logits[0, 1].float()
    assert scores.scored.dtype == torch.float32
    torch.testing.assert_close(scores.scored[0], torch.log_softmax(logits, 0)[SEQUENCES[0][2]], rtol=0, atol=2e-2)
    exact, _ = naive(_models["qwen3", torch.float32], SEQUENCES, POSITIONS, 1.0)
    torch.testing.assert_close(scores.scored, exact, rtol=0, atol=5e-2)


def test_autocast_reaches_backbone_and_head_but_not_the_softmax() -> None:
    model = _models["qwen3", torch.float32]
    exact = score(model, SEQUENCES, POSITIONS).scored
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = score(model, SEQUENCES, POSITIONS, chunk_tokens=2)
    assert scores.scored.dtype == torch.float32
    assert 0 < (scores.scored - exact).abs().max() < 5e-2
    assert all(g.isfinite().all() for g in gradients(model, scores.scored.sum()))


def test_gradient_checkpointing_in_training_mode_changes_nothing() -> None:
    model = copy.deepcopy(_models["qwen3", torch.float64])
    expected = gradients(model, score(model, SEQUENCES, POSITIONS).scored.sum())
    model.activation_checkpointing_enable()
    disable_dropout(model.train())
    calls = []
    model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    actual = gradients(model, score(model, SEQUENCES, POSITIONS).scored.sum())
    assert len(calls) == 2  # forward, and again in backward
    for got, want in zip(actual, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


def test_entropy_of_a_token_that_cannot_be_drawn_is_finite() -> None:
    model = copy.deepcopy(_models["gpt2", torch.float64])
    model.config.tie_word_embeddings = False
    model.lm_head = nn.Linear(32, VOCAB, bias=True).double()
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.bias.fill_(-torch.inf)[:4] = 0.0
    # The probe cannot compare infinities, so the finite twin is split first and the bias set after.
    scores_of = score(_finite_first(model), [[3, 1]], [[1]], entropy="grad")
    torch.testing.assert_close(scores_of.entropy, torch.tensor([4.0], dtype=torch.float64).log())
    assert scores_of.entropy is not None
    assert all(g.isfinite().all() for g in gradients(model.transformer, scores_of.entropy.sum()))


def _finite_first(model: Any) -> Any:
    bias = model.lm_head.bias.detach().clone()
    with torch.no_grad():
        model.lm_head.bias.zero_()
        score(model, [[3, 1]], [[1]])
        model.lm_head.bias.copy_(bias)
    return model


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("inf"), float("nan")])
def test_a_temperature_without_a_distribution_is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match=f"temperature must be above 0 and finite to score with, not {temperature}"):
        score(_models["qwen3", torch.float32], SEQUENCES, POSITIONS, temperature=temperature)


@pytest.mark.parametrize(
    ("sequences", "positions", "message"),
    [
        ([[1, 2], [3, 4, 5]], [[1], [0]], "sequence 1 has 3 tokens and cannot be scored at position 0"),
        ([[1, 2], [3, 4, 5]], [[2], [1]], "sequence 0 has 2 tokens and cannot be scored at position 2"),
        ([[1, 2]], [[1], [1]], "1 sequences need as many lists of positions, not 2"),
        ([[1, 2]], [[]], "there is no token to score"),
        ([], [], "there is no token to score"),
    ],
)
def test_positions_that_do_not_fit_are_named(sequences: Any, positions: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        score(_models["qwen3", torch.float32], sequences, positions)


def test_a_chunk_of_no_tokens_is_refused() -> None:
    with pytest.raises(InputError, match="chunk_tokens must be at least 1, not 0"):
        score(_models["qwen3", torch.float32], SEQUENCES, POSITIONS, chunk_tokens=0)


def test_micro_batches_by_hand() -> None:
    assert micro_batches([3, 9, 4, 4], 12) == [[1], [2, 3, 0]]  # 9, then 3 rows of 4
    assert micro_batches([3, 9, 4, 4], 12, "pack") == [[1], [2, 3, 0]]  # 9, then 4 + 4 + 3
    assert micro_batches([3, 9, 4, 4], 13, "pack") == [[1, 2], [3, 0]]  # 9 + 4, then 4 + 3
    assert micro_batches([20, 2, 2], 4) == [[0], [1, 2]]  # longer than the budget: alone
    assert micro_batches([], 4) == []


@given(
    lengths=st.lists(st.integers(1, 50), max_size=40),
    budget=st.integers(1, 120),
    packing=st.sampled_from(["pad", "pack"]),
)
def test_micro_batches_hold_every_sequence_once_within_the_budget(
    lengths: list[int], budget: int, packing: Any
) -> None:
    batches = micro_batches(lengths, budget, packing)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        sizes = [lengths[i] for i in batch]
        cost = len(batch) * max(sizes) if packing == "pad" else sum(sizes)
        assert cost <= budget or len(batch) == 1


def test_micro_batches_need_a_budget() -> None:
    with pytest.raises(InputError, match="budget_tokens must be at least 1, not 0"):
        micro_batches([1], 0)
