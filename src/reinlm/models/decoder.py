"""A lean forward pass of the common decoders on one row of tokens, for sampling, scoring and training.

`row_forward` reads the weights of a Hugging Face model where they are, so it follows every update. Its projections are the
model's own modules, adapters included; norms and rotary embeddings take few operations. Dropout and gradient checkpointing
are not in it: `UnlessHooked.as_trained` says when it computes what the model does.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.activations import SiLUActivation

from reinlm.models.fused import gated_mlp, rms_norm, takes_mlp
from reinlm.models.heads import Split, close, probe, quietly, split_head, supports_sharing, unwrap
from reinlm.models.matmul import MIN_ROWS, current_backend, onednn_linear, onednn_linear_with
from reinlm.models.modules import has_dropout
from reinlm.models.packed import Ending
from reinlm.models.prefix_sharing import share_prefixes
from reinlm.models.prepared import PreparedLayer, rotate
from reinlm.models.row_attention import LayerSettings, RecordedAttention, RowAttention, attended_by, check_sdpa

if TYPE_CHECKING:
    from jaxtyping import Float, Int

MAX_PREPARED = 2**28
"""Bytes of the layers of a model whose matrices are copied for sampling; of a larger one the matrices themselves are read."""
_POSITIONS = 256
"""Positions of a part of the table of rotary embeddings."""
RowForward = Callable[["Int[Tensor, ' row']", "Int[Tensor, ' row']", RowAttention], "Float[Tensor, ' row hidden']"]
"""(token ids [T], positions [T], attention) -> hidden states [T, H], for the head."""


def prepared(forward: RowForward) -> RowForward:
    """A forward pass that is faster with few rows, and reads the weights as they are now: for as long as nothing updates them."""
    return forward.prepared() if isinstance(forward, UnlessHooked) else forward


def row_forward(model: nn.Module) -> RowForward | None:
    """The fastest forward pass on a row that computes what the model does; None where it takes no `RowAttention`.

    A model that is sharded goes through its own forward pass, which gathers its weights.
    """
    if not supports_sharing(model):
        return None
    own = BackboneForward(split_head(model).backbone)
    if any(hasattr(weight, "full_tensor") for weight in model.parameters()):
        return own
    return _lean(model, split_head(model), own) or own


class BackboneForward:
    """The model's own forward pass."""

    def __init__(self, backbone: nn.Module) -> None:
        self._backbone = backbone

    def __call__(self, ids: Tensor, positions: Tensor, attention: RowAttention) -> Tensor:
        """As `RowForward`."""
        check_sdpa(self._backbone)
        states: Tensor = self._backbone(
            input_ids=ids[None], position_ids=positions[None], use_cache=False, **attended_by(attention, ids.device)
        )[0]
        return states[0]


class LlamaForward:
    """Llama, Mistral, Qwen2, Qwen3 and their mixtures of experts: RMSNorm, rotary positions, gated MLP.

    Args:
        prepared: by layer, copies of its matrices; without them the model's own modules are called.
    """

    def __init__(
        self,
        backbone: Any,
        settings: Sequence[LayerSettings],
        prepared: Sequence[PreparedLayer | None] | None = None,
    ) -> None:
        self._backbone = backbone
        self._settings = settings
        self._rotary = _Rotary(backbone.rotary_emb)
        self._prepared = prepared or [None] * len(settings)

    def prepared(self) -> LlamaForward:
        """The same, faster with few rows: a layer's query, key and value are one product, and its matrices lie as oneDNN reads
        them. The copies do not follow later updates of the weights."""
        if sum(weight.nbytes for weight in self._backbone.layers.parameters()) > MAX_PREPARED:
            return self
        return LlamaForward(
            self._backbone, self._settings, [PreparedLayer.of(layer) for layer in self._backbone.layers]
        )

    def __call__(self, ids: Tensor, positions: Tensor, attention: RowAttention, ending: Ending | None = None) -> Tensor:
        """As `RowForward`; with an `ending` the states of what it keeps alone."""
        backbone = self._backbone
        x = backbone.embed_tokens(ids)
        cos, sin = self._rotary(x, positions)
        for number, (layer, asked, own) in enumerate(zip(backbone.layers, self._settings, self._prepared, strict=True)):
            if ending is not None and number == len(self._settings) - 1:
                heads = _heads(layer, x, cos, sin, ending.kept)
                x, attention = F.embedding(ending.kept, x), ending.tree
            else:
                heads = _heads(layer, x, cos, sin) if own is None else own.heads(x, cos, sin)
            query, key, value = (z.transpose(0, 1)[None] for z in heads)
            y = attention(number, query, key, value, asked)[0].flatten(1)
            x = _added(x, layer.self_attn.o_proj, y) if own is None else own.out.added(y, x)
            x = _gated(layer, x) if own is None or own.mlp is None else own.mlp(x)
        return _rms_norm(backbone.norm, x)


def _heads(layer: Any, x: Tensor, cos: Tensor, sin: Tensor, kept: Tensor | None = None) -> Sequence[Tensor]:
    """Query, key and value [T, heads, size] of the inputs [T, H] of a layer; the queries of `kept` [K] alone."""
    attention, y = layer.self_attn, _rms_norm(layer.input_layernorm, x)
    asking = y if kept is None else F.embedding(kept, y)
    query, key, value = (
        _linear(project, z).unflatten(-1, (-1, attention.head_dim))
        for project, z in ((attention.q_proj, asking), (attention.k_proj, y), (attention.v_proj, y))
    )
    if (norm := getattr(attention, "q_norm", None)) is not None:
        query, key = _rms_norm(norm, query), _rms_norm(attention.k_norm, key)
    half = sin.shape[-1] // 2
    of_queries = (cos, sin) if kept is None else (cos[kept], sin[kept])
    return rotate(query, *of_queries, half), rotate(key, cos, sin, half), value


class _Rotary:
    """Rotary embeddings of positions, read from a table on a CPU, where making them takes longer than a layer's norms.

    Embeddings whose frequencies follow the length of a sequence are made anew each time.
    """

    def __init__(self, embed: Any) -> None:
        self._embed = embed
        self._fixed = getattr(embed, "rope_type", None) in ("default", "linear", "llama3", "yarn")
        self._table: tuple[Tensor, Tensor] | None = None

    def __call__(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [T, 1, size] of positions [T], in the type of x; the first half of the sines is negative."""
        if not (self._fixed and x.is_cpu):
            return self._made(x, positions)
        if self._table is None or self._table[0].dtype != x.dtype:
            self._table = self._made(x, torch.arange(_POSITIONS))
        last = int(positions.max())
        while (count := len(self._table[0])) <= last:  # in equal parts, whatever was asked for before
            part = self._made(x, torch.arange(count, count + _POSITIONS))
            self._table = torch.cat([self._table[0], part[0]]), torch.cat([self._table[1], part[1]])
        cos, sin = self._table
        return cos[positions], sin[positions]

    def _made(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = self._embed(x, positions[None])
        half = sin.shape[-1] // 2
        return cos[0, :, None], torch.cat((-sin[0, :, None, :half], sin[0, :, None, half:]), dim=-1)


class GPT2Forward:
    """GPT-2: LayerNorm, learned positions, one projection for query, key and value."""

    def __init__(self, backbone: Any, settings: Sequence[LayerSettings]) -> None:
        self._backbone = backbone
        self._settings = settings

    def __call__(self, ids: Tensor, positions: Tensor, attention: RowAttention, ending: Ending | None = None) -> Tensor:
        """As `LlamaForward`."""
        backbone = self._backbone
        x = backbone.wte(ids) + backbone.wpe(positions)
        for number, (layer, asked) in enumerate(zip(backbone.h, self._settings, strict=True)):
            own = layer.attn
            parts = own.c_attn(layer.ln_1(x)).split(own.split_size, dim=-1)
            if ending is not None and number == len(self._settings) - 1:
                parts = (F.embedding(ending.kept, parts[0]), *parts[1:])
                x, attention = F.embedding(ending.kept, x), ending.tree
            query, key, value = (part.unflatten(-1, (-1, own.head_dim)).transpose(0, 1)[None] for part in parts)
            x = x + own.c_proj(attention(number, query, key, value, asked)[0].flatten(1))
            x = x + layer.mlp(layer.ln_2(x))
        found: Tensor = backbone.ln_f(x)
        return found


def trained_forward(model: nn.Module, split: Split) -> UnlessHooked | None:
    """The lean forward pass of a model, to train and to score with; None where it has none or is sharded."""
    if any(hasattr(weight, "full_tensor") for weight in model.parameters()):
        return None
    return _lean(model, split, BackboneForward(split.backbone))


class UnlessHooked:
    """A lean forward pass, and the model's own while a module has a hook, which the lean one might not call.

    The embeddings are left out: every pass calls them, and gradient checkpointing hooks them.
    """

    def __init__(self, lean: LlamaForward | GPT2Forward, own: BackboneForward, backbone: Any) -> None:
        self.lean = lean
        self._backbone = backbone
        self._own = own
        others = (module for module in backbone.modules() if module is not backbone.get_input_embeddings())
        self._hooks = [hooks for module in others for hooks in (module._forward_hooks, module._forward_pre_hooks)]

    def __call__(self, ids: Tensor, positions: Tensor, attention: RowAttention) -> Tensor:
        """As `RowForward`."""
        return (self._own if any(self._hooks) else self.lean)(ids, positions, attention)

    @property
    def as_trained(self) -> LlamaForward | GPT2Forward | None:
        """The lean pass, where it computes what the model does in its mode: no hook, no dropout, no gradient checkpointing."""
        training = self._backbone.training
        others = training and (has_dropout(self._backbone) or _checkpoints(self._backbone))
        return None if others or any(self._hooks) else self.lean

    def prepared(self) -> UnlessHooked:
        """With the lean forward pass on copies of its matrices, where it makes any."""
        if any(self._hooks) or not isinstance(self.lean, LlamaForward):
            return self
        other = copy.copy(self)
        other.lean = self.lean.prepared()
        return other


def _checkpoints(backbone: nn.Module) -> bool:
    return any(getattr(module, "gradient_checkpointing", False) for module in backbone.modules())


def _by_onednn(x: Tensor, *layers: Any) -> bool:
    """Whether products with the weights of these layers are oneDNN's own: plain ones without a gradient, in float32 on a CPU."""
    return (
        current_backend() == "onednn"
        and not torch.is_grad_enabled()
        and x.is_cpu
        and x.dtype is torch.float32
        and x.shape[0] >= MIN_ROWS
        and all(type(layer) is nn.Linear and layer.weight.dtype is torch.float32 for layer in layers)
    )


def _linear(layer: Any, x: Tensor) -> Tensor:
    found: Tensor = onednn_linear(x, layer.weight, layer.bias) if _by_onednn(x, layer) else layer(x)
    return found


def _added(x: Tensor, layer: Any, y: Tensor) -> Tensor:
    """x + layer(y)."""
    if _by_onednn(y, layer):
        return onednn_linear_with(y, x, layer.weight, layer.bias, "add")
    found: Tensor = x + layer(y)
    return found


def _gated(layer: Any, x: Tensor) -> Tensor:
    """x + mlp(norm(x)); a mixture of experts gives a tuple, its router's scores behind its states."""
    mlp, y = layer.mlp, _rms_norm(layer.post_attention_layernorm, x)
    gate, up, down = parts = [getattr(mlp, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    if gate and up and _by_onednn(y, *parts) and isinstance(mlp.act_fn, nn.SiLU | SiLUActivation):
        gated = onednn_linear(y, gate.weight, gate.bias, "swish")
        return _added(x, down, onednn_linear_with(y, gated, up.weight, up.bias, "mul"))
    if torch.is_grad_enabled() and takes_mlp(y, mlp):
        return x + gated_mlp(y, mlp)
    found = mlp(y[None])
    of_rows: Tensor = (found[0] if isinstance(found, tuple) else found)[0]
    return x + of_rows


def _rms_norm(norm: Any, x: Tensor) -> Tensor:
    """In float64 as transformers computes it, which is in float32: sampling and scoring agree."""
    same = x.dtype is norm.weight.dtype
    if same and x.dtype is torch.float32:
        return rms_norm(x, norm.weight, norm.variance_epsilon)
    # Under autocast what comes out has the type that transformers gives it.
    if not same or x.dtype is torch.float64 or torch.is_grad_enabled():
        return norm(x)  # type: ignore[no-any-return]
    size = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    scale = size.square_().mul_(1.0 / x.shape[-1]).add_(norm.variance_epsilon).rsqrt_()
    normal: Tensor = (x * scale).to(x.dtype).mul_(norm.weight)
    return normal


_FORWARDS: dict[str, type[LlamaForward | GPT2Forward]] = {
    **dict.fromkeys(("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"), LlamaForward),
    "gpt2": GPT2Forward,
}
"""By `model_type`: architectures of the same modules may differ where a few tokens do not show it."""


def _lean(model: nn.Module, split: Split, own: BackboneForward) -> UnlessHooked | None:
    """The lean forward pass of the model's architecture, if both compute the same on a few tokens."""
    kind = _FORWARDS.get(unwrap(model).config.model_type)
    if kind is None:
        return None
    with quietly(model):
        ids = probe(model)[0]
        row = share_prefixes([ids.cpu().numpy()])
        tree, positions = row.tree(ids.device), torch.from_numpy(row.positions).to(ids.device)
        recorded = RecordedAttention(tree)
        expected = split.logits(own(ids, positions, recorded))
        lean = kind(split.backbone, recorded.layers)
        try:
            found = lean(ids, positions, tree)
        except (AttributeError, TypeError, ValueError, RuntimeError):  # another version of its modules
            return None
        rounding = 1e-4 if torch.finfo(found.dtype).bits >= 32 else 0.05
        if not close(split.logits(found), expected, found.dtype, rounding):
            return None
    return UnlessHooked(lean, own, split.backbone)
