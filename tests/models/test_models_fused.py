"""Written-out backward passes are those of autograd, and the last layer computes what is read alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from reinlm.batches import TokenBatch
from reinlm.models import TokenModel, Want, fused, tiny_model
from reinlm.models.prefix_sharing import share_prefixes


def test_rms_norm_and_its_gradients_are_those_of_the_formula() -> None:
    x = torch.randn(5, 3, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(8, dtype=torch.float64, requires_grad=True)
    expected = weight * x / (x.pow(2).mean(-1, keepdim=True) + 0.1).sqrt()
    torch.testing.assert_close(fused.rms_norm(x, weight, 0.1), expected, rtol=0, atol=1e-13)
    with torch.no_grad():
        torch.testing.assert_close(fused.rms_norm(x, weight, 0.1), expected, rtol=0, atol=1e-13)
    assert torch.autograd.gradcheck(lambda a, b: fused.rms_norm(a, b, 0.1), (x, weight))


@pytest.mark.parametrize("frozen", ["none", "gate_proj", "input"])
def test_a_gated_mlp_in_chunks_and_its_gradients_are_those_of_autograd(
    frozen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "CACHED_STATES", 4 * 12)  # four rows a chunk: of ten rows the last chunk has two
    mlp: Any = tiny_model("qwen3", vocab_size=9, hidden_size=8, layers=1, heads=2, intermediate_size=12).double()
    mlp = mlp.model.layers[0].mlp
    x = torch.randn(10, 8, dtype=torch.float64, requires_grad=frozen != "input")
    for name, weight in mlp.named_parameters():
        weight.requires_grad_(not name.startswith(frozen))
    assert fused.takes_mlp(x, mlp)
    assert not fused.takes_mlp(x.float(), mlp)
    found, expected = fused.gated_mlp(x, mlp), mlp(x)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)
    inputs = [part for part in (x, *mlp.parameters()) if part.requires_grad]
    each = torch.linspace(-1, 1, 80, dtype=torch.float64).view(10, 8)
    ours, theirs = (torch.autograd.grad((y * each).sum(), inputs) for y in (found, expected))
    assert len(ours) == {"none": 4, "gate_proj": 3, "input": 3}[frozen]
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_the_last_layer_computes_the_states_that_are_read_and_of_others_keys_and_values_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model: Any = tiny_model("qwen3", vocab_size=20, hidden_size=16, layers=2, heads=2, seed=1)
    rows: list[int] = []
    plain = F.scaled_dot_product_attention

    def counted(query: Any, *rest: Any, **options: Any) -> Any:
        rows.append(query.shape[0] * query.shape[2])
        return plain(query, *rest, **options)

    scorer = TokenModel(model, packing="share", value_head=nn.Linear(16, 1, bias=False))
    prompt = list(range(12))
    batch = TokenBatch.of([[*prompt, 1, 2], [*prompt, 3, 4]], [[13], [13]])
    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    scorer(batch, Want(values=True))
    assert rows == [2 * 13, 2 * 1]  # padded to the prompt with a token; then the two states before the scored tokens


def test_an_ending_keeps_of_each_sequence_what_is_read_and_follows() -> None:
    row = share_prefixes([np.array([5, 6, 7, 8]), np.array([5, 6, 9])])  # the row 5 6 7 8 9
    kept, ending = row.ending(np.array([False, False, True, False, True]))
    assert kept.tolist() == [2, 3, 4]
    assert ending.index.tolist() == [-1, -1, 0, 1, -1, -1, 2]
    found = [(queries.tolist(), keys.tolist(), shared.tolist()) for queries, keys, shared in ending.blocks]
    assert found == [([[0, 1], [2, -1]], [[0, 1, 2, 3], [0, 1, 4, -1]], [2, 2])]
