"""Finding the head of architectures that do more than a linear map, and refusing those that cannot be split."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Cohere2Config,
    CohereConfig,
    Gemma2Config,
    GraniteConfig,
    MambaConfig,
    OPTConfig,
)

from reinlm.errors import InputError
from reinlm.models.build import same_model
from reinlm.models.heads import resolve_packing, split_head, supports_packing
from reinlm.models.score import score
from reinlm.models.tiny import tiny_model

VOCAB = 19
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "initializer_range": 0.6,  # logits large enough for a soft cap or a scale to show
}
FEWER = {k: v for k, v in SHAPE.items() if k not in ("num_key_value_heads", "head_dim")}
BENT = {
    "gemma2": Gemma2Config(**SHAPE, final_logit_softcapping=3.0),
    "granite": GraniteConfig(**SHAPE, logits_scaling=8.0),
    "cohere": CohereConfig(**SHAPE, logit_scale=0.0625),
    "cohere2": Cohere2Config(**SHAPE, logit_scale=0.25),
}
OPT = OPTConfig(**FEWER, ffn_dim=48, word_embed_proj_dim=16)


def build(config: Any) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).double().eval()


@pytest.mark.parametrize(("name", "packing"), [(n, p) for n in BENT for p in ("pad", "pack")] + [("opt", "pad")])
def test_every_architecture_scores_as_its_own_logits_say(name: str, packing: Any) -> None:
    model = build((BENT | {"opt": OPT})[name])
    sequences, positions = [[3, 4, 5, 6, 7], [9, 8, 7]], [[1, 4], [2]]
    expected = torch.stack(
        [
            torch.log_softmax(model(torch.tensor([tokens])).logits[0, at - 1] / 0.9, -1)[tokens[at]]
            for tokens, where in zip(sequences, positions, strict=True)
            for at in where
        ]
    )
    actual = score(model, sequences, positions, temperature=0.9, packing=packing).logprobs
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", BENT)
def test_the_head_alone_would_be_wrong_where_logits_are_bent(name: str) -> None:
    model = build(BENT[name])
    split = split_head(model)
    hidden = split.backbone(torch.tensor([[3, 4, 5]]))[0]
    assert (split.head(hidden) - split.logits(hidden)).abs().max() > 0.1


def test_a_soft_cap_is_kept_where_logits_are_too_small_to_show_it() -> None:
    model = build(Gemma2Config(**(SHAPE | {"initializer_range": 1e-4}), final_logit_softcapping=30.0))
    split = split_head(model)
    assert split.logits(torch.full((32,), 1e9, dtype=torch.float64)).abs().max() <= 30.0


class _Reversed(torch.nn.Module):
    """A head's neighbour that no configuration names."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.config, self.base_model_prefix = model.model, model.config, "model"
        self.whole = model

    def get_output_embeddings(self) -> Any:
        return self.whole.get_output_embeddings()

    def get_input_embeddings(self) -> Any:
        return self.whole.get_input_embeddings()

    def forward(self, **inputs: Any) -> Any:
        out = self.whole(**inputs)
        out.logits = out.logits.flip(-1)
        return out


def test_a_model_whose_logits_are_not_its_heads_is_refused() -> None:
    model = _Reversed(tiny_model("qwen3", vocab_size=VOCAB))
    with pytest.raises(InputError, match="_Reversed: its logits are not its head applied to its backbone"):
        score(model, [[1, 2]], [[1]])


def test_a_module_without_a_head_is_refused() -> None:
    with pytest.raises(InputError, match="Qwen3Model is not a causal language model with a backbone and a head"):
        split_head(tiny_model("qwen3", vocab_size=VOCAB).model)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("MambaForCausalLM", MambaConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=1, state_size=4)),
        ("OPTForCausalLM", OPT),
        ("BloomForCausalLM", BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=1, n_head=2)),
    ],
)
def test_packing_is_refused_where_sequences_of_a_row_would_mix(name: str, config: Any) -> None:
    model = build(config)
    assert not supports_packing(model)
    with pytest.raises(InputError, match=f"{name} mixes sequences that share a row"):
        score(model, [[1, 2], [3, 4]], [[1], [1]], packing="pack")
    alone = torch.cat([score(model, [tokens], [[1]]).scored for tokens in ([1, 2], [3, 4, 5])])
    together = score(model, [[1, 2], [3, 4, 5]], [[1], [1]], packing="pad").logprobs
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-10)


def test_the_probe_leaves_every_module_in_its_mode() -> None:
    model = tiny_model("gpt2", vocab_size=VOCAB).train()
    model.transformer.h[0].eval()
    before = {name: module.training for name, module in model.named_modules()}
    split_head(model)
    assert supports_packing(model)
    assert {name: module.training for name, module in model.named_modules()} == before


def test_a_copy_is_not_run_for_what_its_source_has_been_tested_for() -> None:
    model: Any = tiny_model("qwen3", vocab_size=12, hidden_size=16, layers=1, heads=2)
    assert resolve_packing(model, "auto") == "share"
    copied: Any = same_model(model)
    calls: list[Any] = []
    copied.model.register_forward_pre_hook(lambda *given: calls.append(given))
    assert resolve_packing(copied, "auto") == "share"
    assert split_head(copied).finish is split_head(model).finish
    assert not calls
    fresh: Any = same_model(tiny_model("qwen3", vocab_size=12, hidden_size=16, layers=1, heads=2))
    fresh.model.register_forward_pre_hook(lambda *given: calls.append(given))
    assert resolve_packing(fresh, "auto") == "share"
    assert calls, "one whose source has not been tested is"
