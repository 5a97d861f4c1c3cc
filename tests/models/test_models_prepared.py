"""Copies of a decoder's matrices for sampling: what the model's own layers compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from reinlm.models.decoder import LlamaForward, UnlessHooked, prepared, row_forward
from reinlm.models.matmul import MatmulBackend, using_backend
from reinlm.models.prefix_sharing import share_prefixes
from reinlm.models.prepared import PreparedLayer
from reinlm.models.tiny import tiny_model


def drawn_norms(model: nn.Module) -> nn.Module:
    """The same with weights of norms that are not 1."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 2.0)
    return model


@pytest.mark.parametrize("backend", ["blas", "onednn"])
@pytest.mark.parametrize("shape", ["qwen3", "llama"])
def test_copies_compute_what_the_layers_do_whatever_the_weights_of_the_norms(
    shape: Any, backend: MatmulBackend
) -> None:
    forward = row_forward(drawn_norms(tiny_model(shape, vocab_size=40, hidden_size=128)))
    assert isinstance(forward, UnlessHooked)
    row = share_prefixes([np.array([7, 8, 9, 10, 3]), np.array([7, 8, 4, 5])])
    ids = torch.tensor([7, 8, 9, 10, 3, 7, 8, 4, 5])[torch.from_numpy(row.tokens)]
    place = torch.device("cpu")
    with torch.no_grad(), using_backend(backend):
        copies = prepared(forward)
        assert isinstance(copies, UnlessHooked)
        assert isinstance(copies.lean, LlamaForward)
        assert all(isinstance(layer, PreparedLayer) for layer in copies.lean._prepared)
        positions = torch.from_numpy(row.positions)
        plain, fast = (each(ids, positions, row.tree(place)) for each in (forward.lean, copies))
    torch.testing.assert_close(fast, plain, rtol=0, atol=1e-5 * float(plain.abs().max()))


@pytest.mark.parametrize("shape", ["qwen3", "llama"])
def test_in_float64_an_engine_computes_what_the_model_does_to_the_last_digits(shape: Any) -> None:
    """Norms of transformers are float32 inside a float64 model: a pass that computes them in float64 is off by 1e-7."""
    model: Any = drawn_norms(tiny_model(shape, vocab_size=40, hidden_size=32)).double()
    forward = row_forward(model)
    assert isinstance(forward, UnlessHooked)
    ids = torch.tensor([7, 8, 9, 10, 3])
    row = share_prefixes([ids.numpy()])
    with torch.no_grad():
        found = prepared(forward)(ids, torch.arange(5), row.tree(torch.device("cpu")))
        expected = model.model(ids[None])[0][0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_a_layer_whose_norm_has_another_type_is_not_copied() -> None:
    model: Any = tiny_model("qwen3", vocab_size=40, hidden_size=32)
    layer = model.model.layers[0]
    assert PreparedLayer.of(layer) is not None
    layer.self_attn.q_norm.double()
    assert PreparedLayer.of(layer) is None
