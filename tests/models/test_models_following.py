"""A model that follows another one: its weights are its own, until it is told to take the other's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from reinlm.errors import InputError
from reinlm.models import FollowingModel, character_tokenizer, tiny_model
from reinlm.models.lora import LoraConfig, adapted

TOKENS = len(character_tokenizer("0123456789"))
IDS = torch.arange(5)[None]


def model(family: Any = "qwen3") -> Any:
    return tiny_model(family, vocab_size=TOKENS, hidden_size=16, layers=2, heads=2, context=32, seed=1)


def moved(lm: Any) -> Any:
    with torch.no_grad():
        for weight in lm.parameters():
            if weight.requires_grad:
                weight.add_(0.1)
    return lm


def logits(lm: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = lm(IDS).logits
    return found


@pytest.mark.parametrize("family", ["qwen3", "llama", "gpt2"])
def test_it_computes_with_the_weights_that_it_took_last(family: str) -> None:
    lm = model(family)
    random = torch.random.get_rng_state()
    following = FollowingModel(lm)
    assert torch.equal(torch.random.get_rng_state(), random)
    before = logits(lm)
    assert torch.equal(logits(following.model), before)
    moved(lm)
    assert torch.equal(logits(following.model), before)
    following.follow()
    assert torch.equal(logits(following.model), logits(lm))
    assert not torch.equal(logits(lm), before)


def test_tied_weights_are_held_once_and_follow_together() -> None:
    lm = model()
    assert lm.get_output_embeddings().weight is lm.get_input_embeddings().weight
    following = FollowingModel(lm)
    copied: Any = following.model
    assert copied.get_output_embeddings().weight is copied.get_input_embeddings().weight
    assert following.nbytes == sum(weight.nbytes for weight in lm.parameters())


def test_of_an_adapted_model_the_adapter_alone_is_copied() -> None:
    lm: Any = adapted(model(), LoraConfig(rank=2))
    trained = {name: weight for name, weight in lm.named_parameters() if weight.requires_grad}
    following = FollowingModel(lm)
    assert following.nbytes == sum(weight.nbytes for weight in trained.values())
    for name, weight in following.model.named_parameters():
        assert (weight is lm.get_parameter(name)) == (name not in trained), name
    before = logits(lm)
    moved(lm)
    assert torch.equal(logits(following.model), before)
    following.follow()
    assert torch.equal(logits(following.model), logits(lm))
    assert not torch.equal(logits(lm), before)


def test_its_mode_is_its_own() -> None:
    lm = model()
    following = FollowingModel(lm)
    lm.train()
    assert not any(part.training for part in following.model.modules())


def test_weights_that_were_kept_are_taken_back() -> None:
    lm = model()
    following = FollowingModel(lm)
    kept, before = following.weights(), logits(lm)
    moved(lm)
    following.follow()
    following.load(kept)
    assert torch.equal(logits(following.model), before)


def test_a_model_whose_copy_computes_something_else_is_refused() -> None:
    lm = model()
    lm.model.layers[0].register_forward_hook(lambda _module, _inputs, output: output + 1.0)
    with pytest.raises(
        InputError, match="Qwen3ForCausalLM cannot be copied: a model of its configuration and weights computes"
    ):
        FollowingModel(lm)


def test_a_model_that_its_configuration_does_not_describe_is_refused() -> None:
    lm = model()
    lm.config.intermediate_size = 99
    with pytest.raises(InputError, match=r"Qwen3ForCausalLM cannot be copied: .*gate_proj.weight of shape \(99, 16\)"):
        FollowingModel(lm)
