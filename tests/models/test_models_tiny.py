"""Tiny models and tokenizers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from reinlm.errors import InputError
from reinlm.models.modules import count_parameters, disable_dropout
from reinlm.models.tiny import character_tokenizer, tiny_model, train_tokenizer

ALPHABET = "0123456789+= \n\té√."
_characters = character_tokenizer(ALPHABET)
_bytes = train_tokenizer(["the cat sat on the mat"] * 20, 300)


@pytest.mark.parametrize("family", ["qwen3", "llama", "gpt2", "qwen3_moe"])
def test_a_tiny_model_is_its_seed_and_leaves_the_global_one_alone(family: Any) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, again, other = (tiny_model(family, vocab_size=20, seed=seed) for seed in (7, 7, 8))
    assert torch.equal(torch.rand(3), expected)
    weights = [torch.cat([p.flatten() for p in model.parameters()]) for model in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert first.config.model_type == family
    assert first.config.eos_token_id is None
    assert first.get_output_embeddings().weight is first.get_input_embeddings().weight


def test_tiny_qwen3_has_the_parameters_that_its_shape_says() -> None:
    model = tiny_model("qwen3", vocab_size=20, hidden_size=64, layers=3, heads=4, intermediate_size=100, context=50)
    layer = 4 * 64 * 64 + 3 * 64 * 100 + 2 * 64 + 2 * 16  # attention, gated MLP, two norms, norms of query and key
    assert count_parameters(model) == (20 * 64 + 3 * layer + 64,) * 2
    assert model.config.max_position_embeddings == 50
    model.model.embed_tokens.weight.requires_grad_(False)
    assert count_parameters(model).trainable == 3 * layer + 64


def test_tiny_gpt2_has_no_dropout() -> None:
    model = tiny_model("gpt2", vocab_size=20).train()
    ids = torch.tensor([[3, 4, 5, 6]])
    assert torch.equal(model(ids).logits, model(ids).logits)


def test_a_family_that_is_not_there_is_named_with_the_nearest() -> None:
    with pytest.raises(InputError, match="unknown family 'qwen'") as caught:
        tiny_model("qwen", vocab_size=20)  # type: ignore[arg-type]
    assert "did you mean 'qwen3'?" in str(caught.value.hint)


def test_heads_must_divide_the_hidden_size() -> None:
    with pytest.raises(InputError, match="hidden_size 64 is not a multiple of heads 5"):
        tiny_model("llama", vocab_size=20, heads=5)


@given(st.text(alphabet=ALPHABET))
def test_characters_are_tokens_and_come_back(text: str) -> None:
    ids = _characters(text).input_ids
    assert ids == [ALPHABET.index(character) + 2 for character in text]
    assert _characters.decode(ids) == text


def test_a_character_tokenizer_knows_its_special_tokens() -> None:
    assert (_characters.pad_token_id, _characters.eos_token_id, len(_characters)) == (0, 1, len(ALPHABET) + 2)
    assert _characters.decode([4, 1, 0], skip_special_tokens=True) == "2"


def test_a_character_outside_the_alphabet_is_an_error() -> None:
    with pytest.raises(Exception, match="Missing \\[UNK\\] token"):
        _characters("x")


@pytest.mark.parametrize("alphabet", ["", "abca"])
def test_an_alphabet_names_every_character_once(alphabet: str) -> None:
    with pytest.raises(InputError, match="empty or names a character twice"):
        character_tokenizer(alphabet)


@given(st.text())
def test_bytes_write_every_text_and_come_back(text: str) -> None:
    if "<pad>" in text or "<eos>" in text:
        return
    assert _bytes.decode(_bytes(text).input_ids) == text


def test_training_a_tokenizer_merges_what_is_frequent() -> None:
    assert len(_bytes("the cat sat on the mat").input_ids) < 12
    assert (_bytes.pad_token_id, _bytes.eos_token_id) == (0, 1)
    assert len(_bytes) <= 300


def test_special_tokens_and_chat_template_are_taken() -> None:
    template = "{% for m in messages %}<|turn|>{{ m.content }}{% endfor %}"
    tokenizer = train_tokenizer(["a b"], 300, special_tokens=["<|turn|>"], chat_template=template)
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=True, return_dict=False)
    assert ids == [2, *tokenizer("a").input_ids]
    assert character_tokenizer("ab", chat_template=template).chat_template == template


def test_a_vocabulary_that_cannot_hold_all_bytes_is_refused() -> None:
    with pytest.raises(InputError, match="vocab_size 258 is below 259: 256 bytes and 3 special tokens"):
        train_tokenizer(["a"], 258, special_tokens=["<x>"])


def test_dropout_off_makes_training_mode_compute_what_evaluation_does() -> None:
    config = LlamaConfig(
        vocab_size=20, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        attention_dropout=0.5,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.model.layers[0].mlp.down_proj = nn.Sequential(model.model.layers[0].mlp.down_proj, nn.Dropout(0.5))
    ids = torch.tensor([[3, 4, 5, 6, 7]])
    expected = model.eval()(ids).logits
    assert not torch.equal(model.train()(ids).logits, expected)
    disable_dropout(model)
    assert torch.equal(model(ids).logits, expected)
