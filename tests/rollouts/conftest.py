"""Tiny models with peaked distributions, and a byte-level tokenizer trained on the spot."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

from reinlm.rollouts.hf_engine import HFEngine
from reinlm.rollouts.protocol import Completion, Request, Sampling

VOCABULARY = 300
PAD, EOS = 0, 1
CONTEXT = 48

ModelMaker = Callable[..., PreTrainedModel]


def _config(shape: str, **changes: object) -> PreTrainedConfig:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    common = {"vocab_size": VOCABULARY, "pad_token_id": PAD, "eos_token_id": None, "bos_token_id": None}
    rotary = {**sizes, **common, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": CONTEXT}
    if shape == "gpt2":
        return GPT2Config(
            n_embd=32, n_layer=2, n_head=4, n_positions=CONTEXT, initializer_range=0.4, **common, **changes
        )
    kinds = {"qwen3": Qwen3Config, "llama": LlamaConfig, "mistral": MistralConfig}
    if shape == "mistral":
        rotary["sliding_window"] = 5
    return kinds[shape](**{**rotary, "initializer_range": 0.4, **changes})


@pytest.fixture(scope="session")
def make_model() -> ModelMaker:
    """Builds a model of a shape (qwen3, llama, gpt2, mistral with a sliding window), in evaluation mode."""

    def make(shape: str = "qwen3", **changes: object) -> PreTrainedModel:
        torch.manual_seed(7)
        return AutoModelForCausalLM.from_config(_config(shape, **changes)).eval()

    return make


@pytest.fixture
def model(make_model: ModelMaker) -> PreTrainedModel:
    """A fresh Qwen3 shape."""
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


RAGGED = [(5, 6, 7), (8,), (9, 10, 11, 12, 13, 14, 15), (20, 21), (30, 31, 32, 33, 34), (40, 41, 42, 43)]


def requests(
    sampling: Sampling, prompts: list[tuple[int, ...]] = RAGGED, samples: int = 1, seed: int = 0
) -> list[Request]:
    """`samples` requests a prompt, named "prompt/sample"."""
    return [Request(f"{i}/{k}", prompt, sampling, seed) for i, prompt in enumerate(prompts) for k in range(samples)]


def drain(engine: HFEngine) -> dict[str, Completion]:
    """Step until nothing is in flight."""
    done: dict[str, Completion] = {}
    while engine.in_flight:
        for completion in engine.step():
            assert completion.id not in done
            done[completion.id] = completion
    return done


def run(engine: HFEngine, asked: list[Request]) -> dict[str, Completion]:
    """Submit and drain."""
    engine.submit(asked)
    return drain(engine)
