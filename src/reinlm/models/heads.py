"""Split a causal language model into backbone and head, and check the split against the model itself.

Chunked log-probabilities need backbone and head separately. Some architectures transform the logits after the head
(Gemma's soft cap, Granite's and Cohere's scale), as their configuration says. A forward pass of a few tokens checks that
`head` after `backbone` equals the model.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from reinlm.errors import InputError
from reinlm.models.modules import attention_windows, training_mode
from reinlm.models.packed import Packing
from reinlm.models.prefix_sharing import share_prefixes
from reinlm.models.row_attention import RecordedAttention, attended_by, install

Finish = Callable[[Tensor], Tensor]
_SCALES = ("logits_scaling", "logit_scale", "lm_head_multiplier")
_SOFT_CAPS = ("final_logit_softcapping", "output_logit_soft_cap")
_PROBE = 7  # tokens; the last two stand for padding
_finishes: WeakKeyDictionary[nn.Module, Finish] = WeakKeyDictionary()
_packs: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
_shares: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


@dataclass(frozen=True)
class Split:
    """A model split in two: `logits(backbone(input_ids)[0])` equals `model(input_ids).logits`."""

    backbone: nn.Module
    """Maps `input_ids` [B, T] to hidden states [B, T, H], the first field of its output."""
    head: nn.Module
    """Maps hidden states [..., H] to raw logits [..., V]."""
    finish: Finish
    """The transformation of raw logits: identity, scale, or soft cap."""

    @property
    def vocabulary(self) -> int:
        """V: how many logits the head yields."""
        return int(cast("Tensor", self.head.weight).shape[0])

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits in float32 (float64 for a float64 model): [..., H] -> [..., V]."""
        raw = self.head(hidden)
        return self.finish(raw if raw.dtype == torch.float64 else raw.float())


def split_head(model: nn.Module) -> Split:
    """Find backbone, head and what follows the head, through LoRA wrappers too.

    The first call on a model runs it on seven tokens, and raises InputError where its logits are not those of head
    after backbone, or depend on later tokens.
    """
    lm = unwrap(model)
    backbone = getattr(lm, getattr(lm, "base_model_prefix", "") or "model", None)
    head = lm.get_output_embeddings() if hasattr(lm, "get_output_embeddings") else None
    if backbone is None or head is None:
        raise InputError(
            f"{type(lm).__name__} is not a causal language model with a backbone and a head",
            hint="load it with transformers.AutoModelForCausalLM",
        )
    if model not in _finishes:
        _finishes[model] = _find_finish(model, backbone, head)
    return Split(backbone, head, _finishes[model])


def split_backbone(model: nn.Module) -> Split:
    """As `split_head`; of a model without a language head, such as a sequence classifier, the backbone and no head.

    The first call runs it on seven tokens, and raises InputError where it looks ahead, as an encoder does.
    """
    lm = unwrap(model)
    if lm.get_output_embeddings() is not None:
        return split_head(model)
    backbone = getattr(lm, lm.base_model_prefix, None)
    if backbone is None:
        raise InputError(f"{type(lm).__name__} has no backbone named {lm.base_model_prefix!r}")
    split = Split(backbone, nn.Identity(), identity)
    if model not in _finishes:
        with quietly(model):
            ids = probe(model)
            whole, part = (backbone(input_ids=tokens)[0] for tokens in (ids, ids[:, :-2]))
        if not close(whole[:, :-2], part, whole.dtype):
            raise InputError(
                f"{type(lm).__name__} looks ahead, and only decoders can be read at the last token of an answer",
                hint="take a decoder, such as a reward model of Llama, Qwen or Mistral",
            )
        _finishes[model] = identity
    return split


def supports_packing(model: nn.Module) -> bool:
    """Whether sequences laid end to end in one row, with restarting positions, do not attend to each other. Tested once."""
    if model not in _packs:
        _packs[model] = _try_packing(model, split_backbone(model))
    return _packs[model]


def supports_sharing(model: nn.Module) -> bool:
    """Whether what sequences share at their beginning can be computed once, by `prefix_sharing`. Tested once."""
    if unwrap(model).config._attn_implementation != "sdpa":  # which may be changed at any time
        return False
    if model not in _shares:
        _shares[model] = _try_sharing(model, split_backbone(model))
    return _shares[model]


def resolve_packing(model: nn.Module, asked: Packing | Literal["auto"]) -> Packing:
    """The layout that "auto" stands for: shared prefixes where the model can, packed rows with flash attention, else padded.

    Raises InputError for another layout that the model cannot take.
    """
    name, attention = type(unwrap(model)).__name__, getattr(unwrap(model).config, "_attn_implementation", None)
    if asked == "auto":
        if supports_sharing(model):
            return "share"
        return "pack" if "flash" in str(attention) and supports_packing(model) else "pad"
    if asked == "pack" and not supports_packing(model):
        raise InputError(f"{name} mixes sequences that share a row", hint="use training.packing=pad")
    if asked == "share" and not supports_sharing(model):
        raise InputError(
            f"{name} with attention {attention!r} cannot share prefixes: it needs SDPA, over keys and values alone",
            hint="use training.packing=pad, or training.packing=pack with flash attention",
        )
    return asked


def copy_findings(source: nn.Module, made: nn.Module) -> None:
    """What was tested of `source` is taken to hold for `made`, a model of the same configuration, weights, types and device."""
    tables: tuple[WeakKeyDictionary[nn.Module, Any], ...] = (_finishes, _packs, _shares)
    for tested in tables:
        if source in tested:
            tested[made] = tested[source]


def unwrap(model: nn.Module) -> Any:
    """The Hugging Face model inside an adapter's wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]


def _find_finish(model: nn.Module, backbone: nn.Module, head: nn.Module) -> Finish:
    with quietly(model):
        ids = probe(model)
        expected = model(input_ids=ids[:, :-2], use_cache=False).logits
        hidden = backbone(input_ids=ids, use_cache=False)[0][:, :-2]
        for finish in _candidates(unwrap(model).config.get_text_config()):
            if close(Split(backbone, head, finish).logits(hidden), expected, hidden.dtype):
                return finish
    raise InputError(
        f"{type(unwrap(model)).__name__}: its logits are not its head applied to its backbone, token after token",
        hint="models that look ahead, or bend their logits in a way that their configuration does not name, "
        "cannot be scored in chunks",
    )


def _candidates(config: Any) -> Iterator[Finish]:
    """Transformations in the configuration come first, since near zero a soft cap equals the identity within rounding."""
    for name in _SOFT_CAPS:
        if cap := getattr(config, name, None):
            yield _SoftCap(cap)
    for name in _SCALES:
        if scale := getattr(config, name, None):  # the same name divides in one architecture and multiplies in another
            yield _Scale(1.0 / scale)
            yield _Scale(scale)
    yield identity


@dataclass(frozen=True)
class _SoftCap:
    cap: float

    def __call__(self, logits: Tensor) -> Tensor:
        return torch.tanh(logits / self.cap) * self.cap


@dataclass(frozen=True)
class _Scale:
    factor: float

    def __call__(self, logits: Tensor) -> Tensor:
        return logits * self.factor


def identity(logits: Tensor) -> Tensor:
    return logits


def _try_packing(model: nn.Module, split: Split) -> bool:
    if "position_ids" not in inspect.signature(split.backbone.forward).parameters:
        return False
    with quietly(model):
        ids = probe(model)
        positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3]], device=ids.device)
        packed = split.backbone(input_ids=ids, position_ids=positions, use_cache=False)[0]
        apart = [split.backbone(input_ids=part, use_cache=False)[0] for part in (ids[:, :3], ids[:, 3:])]
        return close(split.logits(packed), split.logits(torch.cat(apart, dim=1)), packed.dtype)


def _try_sharing(model: nn.Module, split: Split) -> bool:
    """Whether a few tokens are scored the same, and attention is told of each window that the configuration names.

    What differs only far into a sequence cannot be seen on a few tokens: chunks of attention, and windows that a model
    writes into the mask alone, which a row does without.
    """
    windows = attention_windows(unwrap(model).config.get_text_config())
    if windows is None:
        return False
    install()
    with quietly(model):
        ids = probe(model)[0]
        sequences = [ids, torch.cat([ids[:3], ids[:2]]), ids[1:4]]  # the first two share three tokens
        row = share_prefixes([sequence.cpu().numpy() for sequence in sequences])
        tokens = torch.cat(sequences)[torch.from_numpy(row.tokens).to(ids.device)]
        recorded = RecordedAttention(row.tree(ids.device))
        try:
            found = split.backbone(
                input_ids=tokens[None],
                position_ids=torch.from_numpy(row.positions).to(ids.device)[None],
                use_cache=False,
                **attended_by(recorded, ids.device),
            )[0]
        except (TypeError, ValueError, RuntimeError):  # a forward pass without position_ids, or attention of its own
            return False
        together = found[0, torch.from_numpy(row.index).to(ids.device)]
        apart = [split.backbone(input_ids=part[None], use_cache=False)[0][0] for part in sequences]
        told = tuple(settings.window for settings in recorded.layers)
        return told == windows and close(split.logits(together), split.logits(torch.cat(apart)), together.dtype)


def probe(model: nn.Module) -> Tensor:
    rows = unwrap(model).get_input_embeddings().weight.shape[0]
    device = next(model.parameters()).device
    return torch.arange(_PROBE, device=device).add(rows // 2).remainder(rows)[None]


def close(actual: Tensor, expected: Tensor, dtype: torch.dtype, at_most: float = 0.05) -> bool:
    """Equal up to the rounding of a model's `dtype`, and up to `at_most`, relative to the largest entry."""
    tolerance = min(at_most, 8 * math.sqrt(torch.finfo(dtype).eps))
    return bool((actual - expected).abs().max() <= tolerance * expected.abs().max())


@contextmanager
def quietly(model: nn.Module) -> Iterator[None]:
    """No gradient, no dropout, no autocast; every module's mode as it was afterwards."""
    device = next(model.parameters()).device.type
    with training_mode(model, False), torch.no_grad(), torch.autocast(device, enabled=False):
        yield
