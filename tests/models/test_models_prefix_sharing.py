"""Prefix sharing against padded rows: the same log-probabilities and gradients over random trees, and fewer tokens."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Llama4TextConfig,
    Ministral3Config,
    MistralConfig,
    MistralForCausalLM,
    Qwen2MoeConfig,
    Qwen3Config,
)

from reinlm.batches import TokenBatch
from reinlm.errors import InputError
from reinlm.models import TokenModel, Want, micro_batches_sharing, score
from reinlm.models.chosen_logprobs import chosen_logprobs
from reinlm.models.decoder import BackboneForward, LlamaForward, UnlessHooked, row_forward
from reinlm.models.heads import resolve_packing
from reinlm.models.modules import attention_windows
from reinlm.models.prefix_sharing import share_prefixes
from reinlm.models.tiny import tiny_model

VOCABULARY = 23
FAMILIES = ["qwen3", "llama", "gpt2", "qwen3_moe", "mistral"]


def _model(family: Any) -> Any:
    if family == "mistral":  # groups of heads, and a window shorter than the sequences
        torch.manual_seed(3)
        sizes: dict[str, Any] = {
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
        }
        config = MistralConfig(vocab_size=VOCABULARY, num_key_value_heads=2, sliding_window=6, head_dim=8, **sizes)
        return MistralForCausalLM(config).eval().double()
    model = tiny_model(family, vocab_size=VOCABULARY, hidden_size=32, layers=2, heads=2, seed=3).double()
    if family == "qwen3_moe":  # grouped matrix products, the default for experts, know no float64
        model.set_experts_implementation("eager")
    return model


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {family: _model(family) for family in FAMILIES}


@pytest.fixture(autouse=True, scope="module")
def exact_norms() -> Iterator[None]:
    """Norms in float64: transformers computes them, and the routing of experts, in float32, whose rounding is another one
    where rows are laid out in another way."""

    def exact(self: Any, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("qwen3", "llama", "qwen3_moe", "mistral"):
            module = __import__(f"transformers.models.{name}.modeling_{name}", fromlist=["_"])
            kind = next(value for key, value in vars(module).items() if key.endswith("RMSNorm"))
            patch.setattr(kind, "forward", exact)
        yield


def random_tree(seed: int, groups: int = 3) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts with several answers, answers that go on in further turns, a sequence twice, and one within another."""
    draw = random.Random(seed)

    def some(low: int, high: int) -> list[int]:
        return [draw.randrange(VOCABULARY) for _ in range(draw.randint(low, high))]

    sequences, positions = [], []
    for _ in range(groups):
        prompt = some(1, 9)
        for _ in range(draw.randint(1, 4)):
            sequence = list(prompt)
            for _ in range(draw.randint(1, 3)):  # turns, each a sequence of its own
                start = len(sequence)
                sequence = sequence + some(1, 8)
                sequences.append(sequence)
                positions.append(
                    sorted(draw.sample(range(start, len(sequence)), draw.randint(0, len(sequence) - start)))
                )
    sequences += [sequences[0], sequences[-1]]
    positions += [[len(sequences[0]) - 1], []]
    order = list(range(len(sequences)))
    draw.shuffle(order)
    return [sequences[i] for i in order], [positions[i] for i in order]


def measured(model: nn.Module, tree: Any, packing: Any) -> tuple[Tensor, list[Tensor]]:
    """Log-probabilities, and the gradient of a sum that weighs each of them, and each entropy, on its own."""
    model.zero_grad()
    found = score(model, *tree, entropy="grad", temperature=0.8, packing=packing, chunk_tokens=5)
    assert found.entropy is not None
    weights = torch.linspace(-1, 1, len(found.scored), dtype=torch.float64)
    ((weights * found.scored).sum() + 0.1 * (weights.flip(0) * found.entropy).sum()).backward()
    return found.scored.detach(), [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_random_trees_have_the_logprobs_and_gradients_of_padded_rows(
    family: str, checkpointing: bool, models: dict[str, Any]
) -> None:
    model = models[family]
    if checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    model.train(checkpointing)
    for seed in range(4):
        tree = random_tree(seed)
        expected, theirs = measured(model, tree, "pad")
        found, ours = measured(model, tree, "share")
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9 if family == "qwen3_moe" else 1e-11)
    if checkpointing:
        model.activation_checkpointing_disable()
    model.eval()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
def test_in_other_types_they_are_equal_up_to_rounding(dtype: torch.dtype, tolerance: float) -> None:
    model: Any = tiny_model("qwen3", vocab_size=VOCABULARY, hidden_size=32, layers=2, heads=2, seed=3)
    model = model.to(dtype)
    tree = random_tree(7)
    expected, theirs = measured(model, tree, "pad")
    found, ours = measured(model, tree, "share")
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)
    norm = torch.cat([x.flatten() for x in theirs]).norm().item()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance * norm)


def test_a_row_holds_what_sequences_share_once() -> None:
    row = share_prefixes([np.array(ids) for ids in ([5, 6, 8, 9], [5, 6, 7], [3], [5, 6, 7])])
    assert np.concatenate([[5, 6, 8, 9], [5, 6, 7], [3], [5, 6, 7]])[row.tokens].tolist() == [3, 5, 6, 7, 8, 9]
    assert row.positions.tolist() == [0, 0, 1, 2, 2, 3]
    assert row.index.tolist() == [1, 2, 4, 5, 1, 2, 3, 0, 1, 2, 3]


@settings(max_examples=30)
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=7), min_size=1, max_size=12))
def test_a_row_has_one_token_for_every_different_beginning(sequences: list[list[int]]) -> None:
    row = share_prefixes([np.array(ids) for ids in sequences])
    beginnings = {tuple(ids[: end + 1]) for ids in sequences for end in range(len(ids))}
    assert len(row.tokens) == len(beginnings)
    flat = [(tuple(ids[: end + 1])) for ids in sequences for end in range(len(ids))]
    places = dict(zip(flat, row.index.tolist(), strict=True))
    assert [places[beginning] for beginning in flat] == row.index.tolist()
    assert len(set(places.values())) == len(beginnings)
    for beginning, place in places.items():
        assert row.positions[place] == len(beginning) - 1


@settings(max_examples=30)
@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=7), min_size=1, max_size=12),
    st.integers(1, 30),
    st.integers(1, 3),
)
def test_micro_batches_hold_every_sequence_once_within_the_budget(
    sequences: list[list[int]], budget: int, unit: int
) -> None:
    ids = [np.array(sequence) for sequence in sequences]
    units = [list(range(first, min(first + unit, len(ids)))) for first in range(0, len(ids), unit)]
    batches = micro_batches_sharing(ids, budget, None if unit == 1 else units)
    assert sorted(index for batch in batches for index in batch) == list(range(len(ids)))
    for batch in batches:
        owners = {index // unit for index in batch}
        assert {index for index in range(len(ids)) if index // unit in owners} == set(batch)
        assert len(share_prefixes([ids[i] for i in batch]).tokens) <= budget or len(owners) == 1


def test_answers_of_a_prompt_go_into_one_micro_batch() -> None:
    prompts = [np.full(10, token) for token in range(4)]
    answers = [np.concatenate([prompts[i % 4], [9, i]]) for i in range(16)]
    batches = micro_batches_sharing(answers, 2 * (10 + 4 * 2))
    assert [sorted({index % 4 for index in batch}) for batch in batches] == [[0, 1], [2, 3]]


def test_a_backbone_computes_shared_tokens_once(models: dict[str, Any]) -> None:
    model = models["llama"]
    scorers = [TokenModel(model, packing=packing) for packing in ("share", "pack", "pad")]
    read: list[int] = []
    handle = model.model.layers[0].mlp.register_forward_hook(
        lambda _m, args, _o: read.append(args[0].shape[:-1].numel())
    )
    prompt = list(range(12))
    sequences = [[*prompt, 1, 2, answer] for answer in range(8)]
    batch = TokenBatch.of(sequences, [[12, 13, 14]] * 8)
    for scorer in scorers:
        scorer(batch, Want())
    handle.remove()
    assert read == [14, 8 * 14, 8 * 14]  # the last token of a sequence is only scored


def test_auto_shares_where_it_can_and_says_by_name_where_it_cannot() -> None:
    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "head_dim": 8,
    }
    soft_capped = Gemma2ForCausalLM(Gemma2Config(vocab_size=VOCABULARY, num_key_value_heads=1, **sizes)).eval()
    assert resolve_packing(soft_capped, "auto") == "pad"
    with pytest.raises(InputError, match="Gemma2ForCausalLM with attention 'eager' cannot share prefixes"):
        resolve_packing(soft_capped, "share")
    for attention, expected in (("sdpa", "share"), ("eager", "pad")):
        config = Qwen3Config(vocab_size=VOCABULARY, num_key_value_heads=1, **sizes)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
        assert resolve_packing(model, "auto") == expected
        assert resolve_packing(model, "pad") == "pad"
        assert TokenModel(model, packing="auto").packing == expected


SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
}


def _random(config: Any) -> Any:
    torch.manual_seed(1)
    return AutoModelForCausalLM.from_config(config).eval()


def test_windows_and_chunks_that_stand_in_the_mask_alone_are_padded() -> None:
    """Longer than the tokens on which a model is tried, so that only the configuration tells of them."""
    experts: dict[str, Any] = {
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 8,
    }
    windowed: dict[str, Any] = {"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 2}
    assert resolve_packing(_random(Qwen2MoeConfig(**SIZES, **experts)), "auto") == "share"
    hidden = _random(Qwen2MoeConfig(**SIZES, **experts, **windowed))
    assert resolve_packing(hidden, "auto") == "pad"
    with pytest.raises(InputError, match="cannot share prefixes"):
        resolve_packing(hidden, "share")
    llama4: dict[str, Any] = {"num_local_experts": 2, "intermediate_size_mlp": 32, "attention_chunk_size": 12}
    assert attention_windows(Llama4TextConfig(**SIZES, **llama4)) is None
    told = _random(MistralConfig(**SIZES, sliding_window=12))
    assert resolve_packing(told, "auto") == "share"
    long = [[*range(20), 3], [*range(18), 5, 4]]
    found, expected = (score(told, long, [[20], [18, 19]], packing=packing).scored for packing in ("share", "pad"))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_a_lean_forward_serves_the_architectures_that_it_names() -> None:
    """Ministral 3 has the modules of Llama, and scales queries far into a sequence alone."""
    served = row_forward(_random(MistralConfig(**SIZES)))
    assert isinstance(served, UnlessHooked)
    assert type(served.lean) is LlamaForward
    assert type(row_forward(_random(Ministral3Config(**SIZES)))) is BackboneForward


def test_a_lean_forward_that_computes_something_else_is_not_taken() -> None:
    """As of a class of its own that calls itself a Llama."""

    def doubled(self: Any, x: Tensor) -> Tensor:
        return 2 * self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    model = _random(MistralConfig(**SIZES))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(model.model.norm), "forward", doubled)
        assert type(row_forward(model)) is BackboneForward


def test_a_window_holds_where_nothing_is_shared() -> None:
    model = _random(MistralConfig(**SIZES, sliding_window=5))
    found, expected = (
        score(model, [list(range(20))], [[12, 19]], packing=packing).scored for packing in ("share", "pad")
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_attention_that_is_changed_later_is_refused_or_padded() -> None:
    model = _random(MistralConfig(**SIZES))
    scorer = TokenModel(model, packing="share")
    batch = TokenBatch.of([[1, 2, 3]], [[1, 2]])
    expected = scorer(batch, Want()).scored
    model.set_attn_implementation("eager")
    with pytest.raises(InputError, match="was changed to 'eager'"):
        scorer(batch, Want())
    torch.testing.assert_close(TokenModel(model, packing="auto")(batch, Want()).scored, expected, rtol=0, atol=1e-5)


def test_attention_dropout_acts_on_a_shared_row() -> None:
    model = _random(MistralConfig(**SIZES, attention_dropout=0.5))
    scorer = TokenModel(model, packing="share")
    batch = TokenBatch.of([list(range(12)), [*range(8), 3, 2]], [[9, 10, 11], [8, 9]])
    still = scorer(batch, Want()).scored
    torch.testing.assert_close(scorer(batch, Want()).scored, still, rtol=0, atol=0)
    model.train()
    torch.manual_seed(0)
    assert (scorer(batch, Want()).scored - scorer(batch, Want()).scored).abs().max() > 1e-3


@pytest.mark.parametrize("scale", [0.1, 30.0])
def test_a_token_that_is_impossible_leaves_gradients_finite(scale: float) -> None:
    torch.manual_seed(0)
    head = nn.Linear(8, 11)
    with torch.no_grad():
        head.bias[4] = -torch.inf
    hidden, targets = torch.randn(6, 8, requires_grad=True), torch.tensor([0, 1, 2, 3, 5, 6])
    logprobs, entropies, _ = chosen_logprobs(hidden, head, targets, None, size=4, entropy=True)
    assert entropies is not None
    found = torch.autograd.grad(logprobs.sum() + scale * entropies.sum(), [hidden, head.weight])
    every = head(hidden)[:, [*range(4), *range(5, 11)]].log_softmax(-1)
    plain = every.gather(-1, torch.tensor([0, 1, 2, 3, 4, 5])[:, None]).sum() - scale * (every.exp() * every).sum()
    for one, other in zip(found, torch.autograd.grad(plain, [hidden, head.weight]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_hooks_on_the_head_are_called() -> None:
    model = _random(MistralConfig(**SIZES))
    scorer = TokenModel(model, packing="share")
    called: list[str] = []
    model.lm_head.register_full_backward_hook(lambda *_: called.append("backward"))
    scorer(TokenBatch.of([[1, 2, 3]], [[1, 2]]), Want()).scored.sum().backward()
    assert called == ["backward"]
