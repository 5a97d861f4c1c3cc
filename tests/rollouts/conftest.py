"""Tiny models with peaked distributions, and a byte-level tokenizer trained on the spot."""

from __future__ import annotations

import pytest
import torch
from rollout_helpers import CONTEXT, PAD, VOCABULARY, ModelMaker
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from reinlm.rollouts.hf_engine import HFEngine


def _config(shape: str, **changes: object) -> PreTrainedConfig:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    common = {"vocab_size": VOCABULARY, "pad_token_id": PAD, "eos_token_id": None, "bos_token_id": None}
    rotary = {**sizes, **common, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": CONTEXT}
    if shape == "gpt2":
        return GPT2Config(
            n_embd=32, n_layer=2, n_head=4, n_positions=CONTEXT, initializer_range=0.4, **common, **changes
        )
    kinds = {"qwen2": Qwen2Config, "qwen3": Qwen3Config, "llama": LlamaConfig, "mistral": MistralConfig}
    if shape == "mistral":
        rotary["sliding_window"] = 5
    return kinds[shape](**{**rotary, "initializer_range": 0.4, **changes})


@pytest.fixture(scope="session")
def make_model() -> ModelMaker:
    """Builds a model of a shape (qwen3, llama, gpt2, mistral with a sliding window), in evaluation mode."""

    def make(shape: str = "qwen3", attention: str = "sdpa", **changes: object) -> PreTrainedModel:
        torch.manual_seed(7)
        return AutoModelForCausalLM.from_config(_config(shape, **changes), attn_implementation=attention).eval()

    return make


@pytest.fixture
def transformers_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines use the cache of transformers, as for models whose attention takes no other."""
    monkeypatch.setattr("reinlm.rollouts.hf_engine.row_forward", lambda _: None)


@pytest.fixture(params=["prompts copied", "prompts shared", "transformers' cache"])
def every_cache(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test runs with each way of keeping keys and values."""
    if request.param == "transformers' cache":
        request.getfixturevalue("transformers_cache")
    monkeypatch.setattr("reinlm.rollouts.slots.SHARED_FROM", 2 if request.param == "prompts shared" else 1000)


@pytest.fixture
def model(every_cache: None, make_model: ModelMaker) -> PreTrainedModel:
    """A fresh Qwen3 shape, tried with every cache."""
    return make_model()


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with a few merges; characters outside ASCII take several tokens."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<pad>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(["the end of the story, the answer is forty two"] * 4, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>")


@pytest.fixture
def engine(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> HFEngine:
    return HFEngine(model, tokenizer, pad_id=PAD)
