"""`TokenModel`: the only forward pass. It takes a batch of tokens and returns per-token outputs of the scored tokens.

All training and scoring uses `TokenModel.forward`, so sharding, compilation, packing and adapters are handled in one place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from reinlm.batches import TokenBatch
from reinlm.errors import InputError
from reinlm.models.chosen_logprobs import CACHED_ELEMENTS, chosen_logprobs, is_plain
from reinlm.models.decoder import UnlessHooked, trained_forward
from reinlm.models.heads import Split, identity, resolve_packing, split_head
from reinlm.models.packed import Packing, Rows, filler, lay_out
from reinlm.models.row_attention import check_sdpa
from reinlm.objectives import full_divergence, full_entropy

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

Entropy = bool | Literal["grad"]
Direction = Literal["reverse", "forward"]

CHUNK_ELEMENTS = 2**27
"""Default number of logits per chunk on a GPU: 512 MiB of float32, 883 tokens of a vocabulary of 152,000."""
NO_ADAPTER = ""
"""As the adapter in `Anchor` and `TokenModel.using`: the base model without adapter."""


@dataclass(frozen=True)
class Want:
    """Which outputs a forward pass computes.

    Example: log-probabilities, and their entropy with a gradient:
        Want(entropy="grad")
    """

    logprobs: bool = True
    entropy: Entropy = False
    """True: without gradient; "grad": with gradient."""
    values: bool = False
    """The value of the state before each token, from the value head."""
    full_kl: Mapping[str, Direction] = field(default_factory=dict)
    """Anchor names: the KL over the whole vocabulary to each, with a gradient."""
    hidden: bool = False
    """The hidden states [N, H] that predict the scored tokens, for a KL to this model."""

    def __post_init__(self) -> None:
        if not self.logprobs and (self.entropy or self.full_kl):
            raise InputError("entropy and full_kl are measured with the log-probabilities", hint="leave logprobs=True")


VALUES = Want(logprobs=False, values=True)
HIDDEN = Want(logprobs=False, hidden=True)


@dataclass(frozen=True)
class Outputs:
    """Per-token outputs of a forward pass, each [N] in the order of the batch; None if not requested.

    Floats are float32, or float64 of a float64 model.
    """

    logprobs: Float[Tensor, " tokens"] | None = None
    """Log-probability of each scored token, at the sampling temperature of its sequence."""
    entropy: Float[Tensor, " tokens"] | None = None
    """Entropy in nats of the distribution at each scored token, at the same temperature."""
    likeliest: Bool[Tensor, " tokens"] | None = None
    """Whether each token had the highest probability. Computed together with the entropy."""
    values: Float[Tensor, " tokens *outputs"] | None = None
    """[N], or [N, M] of a value head with M outputs."""
    full_kl: Mapping[str, Float[Tensor, " tokens"]] = field(default_factory=dict)
    """KL in nats over the whole vocabulary, at the same temperature, by the anchor's name."""
    hidden: Float[Tensor, " tokens hidden"] | None = None

    @property
    def scored(self) -> Float[Tensor, " tokens"]:
        """The log-probabilities. Raises ValueError if they were not requested."""
        if self.logprobs is None:
            raise ValueError("the forward pass was not asked for log-probabilities")
        return self.logprobs

    def map(self, change: Callable[[Tensor], Tensor]) -> Outputs:
        """Apply a function to every tensor."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "full_kl"}
        changed: dict[str, Any] = {name: None if x is None else change(x) for name, x in plain.items()}
        return Outputs(**changed, full_kl={name: change(x) for name, x in self.full_kl.items()})

    def nothing(self) -> Float[Tensor, ""]:
        """A scalar 0 that depends on every output, for a backward pass that contributes nothing (collectives need one)."""
        floats = (self.logprobs, self.entropy, self.values, self.hidden, *self.full_kl.values())
        known = [x for x in floats if x is not None]
        return torch.stack([x.sum() * 0.0 for x in known if x.requires_grad]).sum()


@dataclass(frozen=True)
class Anchor:
    """Another model with the same vocabulary for a KL: reference, teacher, or old policy."""

    model: TokenModel
    adapter: str | None = None
    """The adapter of the model to use; `NO_ADAPTER` for the base model; None for a model without adapters."""


class TokenModel(nn.Module):
    """A language model whose forward pass measures scored tokens.

        logprob_t = log softmax(logits_{t-1} / temperature)[token_t]        entropy_t = -Σ_v p_v log p_v

    The head runs only on the states of scored tokens, chunk by chunk. The backward pass recomputes the logits of a chunk,
    so only one [chunk, vocabulary] tensor exists at a time. Tokens after the last scored one are not computed. Runs under
    the caller's autocast; the softmax is float32 (float64 for a float64 model).

    Args:
        lm: a Hugging Face causal language model (or a PEFT model around one), or with `value_head` a backbone alone.
        value_head: maps hidden states [N, H] to values [N, 1], or several [N, M].
        packing: "pad" runs one row a sequence; "pack" one row with all sequences end to end, which pays with flash
            attention; "share" one row in which what sequences share at their beginning is computed once; "auto"
            the best that the model can take.
        chunk_tokens: scored tokens per chunk; by default so many that a chunk has `CHUNK_ELEMENTS` logits, on a CPU
            `chosen_logprobs.CACHED_ELEMENTS`.

    Raises:
        InputError: a model whose logits are not its head applied to its backbone, or one that cannot take the packing.
    """

    def __init__(
        self,
        lm: nn.Module,
        *,
        value_head: nn.Module | None = None,
        packing: Packing | Literal["auto"] = "pad",
        chunk_tokens: int | None = None,
        backbone_only: bool = False,
    ) -> None:
        super().__init__()
        if chunk_tokens is not None and chunk_tokens < 1:
            raise InputError(f"chunk_tokens must be at least 1, not {chunk_tokens}")
        self.lm = lm
        self.value_head = value_head
        self.chunk_tokens = chunk_tokens
        self._fill = filler(lm)
        self._split: Split | None = (
            None if backbone_only else split_head(lm)
        )  # tested here, before the model may be sharded
        self.asked_packing: Packing | Literal["auto"] = packing
        self.packing: Packing = _given(packing) if backbone_only else resolve_packing(lm, packing)
        self._lean: UnlessHooked | None = None
        if self.packing == "share":
            self._lean = trained_forward(lm, self._split or Split(lm, nn.Identity(), identity))

    @property
    def split(self) -> Split:
        """Backbone and head. Raises InputError for a backbone alone."""
        if self._split is None:
            raise InputError("a backbone alone has no log-probabilities")
        return self._split

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return next(self.parameters()).dtype

    @property
    def _chunk_elements(self) -> int:
        return CACHED_ELEMENTS if self.device.type == "cpu" else CHUNK_ELEMENTS

    def using(self, adapter: str | None) -> AbstractContextManager[None]:
        """Use this adapter within the context, which must include the backward pass; None changes nothing."""
        return nullcontext() if adapter is None else _adapter(self.lm, adapter)

    def forward(self, batch: TokenBatch, want: Want, anchors: Mapping[str, Anchor] | None = None) -> Outputs:
        """Compute the outputs in `want` for the scored tokens of `batch`.

        The caller sets training or evaluation mode. Anchors run without gradient, in their own forward pass.

        Raises:
            InputError: nothing to score, a position outside its sequence, temperature 0, values without a head, or a
                divergence from an anchor that is not given.
        """
        _check_temperature(batch)
        rows = lay_out(batch, self.packing, self._fill, self.device, after_last=not want.logprobs)
        hidden = self._hidden(rows)
        values = _values(self.value_head, hidden) if want.values else None
        if not want.logprobs:
            return Outputs(values=values, hidden=hidden if want.hidden else None)
        others = {name: _anchor(name, anchors or {}) for name in want.full_kl}
        return self._measured(rows, hidden, values, want, batch, others)

    def _hidden(self, rows: Rows) -> Float[Tensor, " tokens hidden"]:
        backbone = self.lm if self._split is None else self._split.backbone
        if rows.tree is not None:
            check_sdpa(backbone)
            if self._lean is not None and (lean := self._lean.as_trained) is not None:
                ids, positions = rows.inputs["input_ids"][0], rows.inputs["position_ids"][0]
                scored = rows.scored if rows.ending is None else rows.ending.scored
                return lean(ids, positions, rows.tree, rows.ending).index_select(0, scored)
        states: Tensor = backbone(**rows.inputs, use_cache=False)[0]
        return rows.gather(states)

    def _measured(
        self,
        rows: Rows,
        hidden: Float[Tensor, " tokens hidden"],
        values: Float[Tensor, " tokens"] | None,
        want: Want,
        batch: TokenBatch,
        anchors: Mapping[str, Anchor],
    ) -> Outputs:
        split = self.split
        if not anchors and is_plain(split.head) and split.finish is identity and not hasattr(self, "unshard"):
            size = self.chunk_tokens or max(1, self._chunk_elements // split.vocabulary)
            chosen, of_chosen, first = chosen_logprobs(
                hidden, split.head, rows.targets, rows.temperature, size=size, entropy=bool(want.entropy)
            )
            if of_chosen is not None and want.entropy != "grad":
                of_chosen = of_chosen.detach()
            return Outputs(chosen, of_chosen, first, values, {}, hidden if want.hidden else None)
        parts = [hidden, rows.targets]
        if rows.temperature is not None:
            parts.append(rows.temperature)
        for anchor in anchors.values():
            with torch.no_grad(), anchor.model.using(anchor.adapter):
                parts.append(anchor.model(batch, HIDDEN).hidden)
        measure = partial(_measure, split, anchors, want=want, warm=rows.temperature is not None)
        if torch.is_grad_enabled():
            measure = partial(checkpoint, measure, use_reentrant=False, preserve_rng_state=self.training)
        size = self.chunk_tokens or max(1, CHUNK_ELEMENTS // split.vocabulary)
        chunks = [measure(*chunk) for chunk in zip(*(part.split(size) for part in parts), strict=True)]
        logprobs, entropy, likeliest, *kls = (None if c[0] is None else torch.cat(c) for c in zip(*chunks, strict=True))
        found = {name: kl for name, kl in zip(anchors, kls, strict=True) if kl is not None}
        return Outputs(logprobs, entropy, likeliest, values, found, hidden if want.hidden else None)


def _measure(
    split: Split,
    anchors: Mapping[str, Anchor],
    hidden: Float[Tensor, " tokens hidden"],
    targets: Int[Tensor, " tokens"],
    *others: Float[Tensor, " tokens ..."],
    want: Want,
    warm: bool,
) -> tuple[Float[Tensor, " tokens"] | Bool[Tensor, " tokens"] | None, ...]:
    """One chunk of C tokens: log-probabilities, entropies, first choices, and a divergence from each anchor.

    `others` are the temperatures [C] where `warm`, then the hidden states [C, H] of each anchor.
    """
    temperature = others[0][:, None] if warm else None
    logprobs = _log_softmax(split, hidden, temperature)
    chosen = logprobs.gather(-1, targets[:, None]).squeeze(-1)
    divergences = []
    for (name, anchor), states in zip(anchors.items(), others[warm:], strict=True):
        with torch.no_grad(), anchor.model.using(anchor.adapter):
            frozen = _log_softmax(anchor.model.split, states, temperature)
        divergences.append(full_divergence(logprobs, frozen, want.full_kl[name]))
    if not want.entropy:
        return chosen, None, None, *divergences
    # After `chosen`, so that the backward pass, which runs the chunk again up to the last tensor that it needs, skips
    # an entropy without gradient.
    with torch.set_grad_enabled(torch.is_grad_enabled() and want.entropy == "grad"):
        likeliest = chosen.detach() >= logprobs.detach().amax(-1)
        return chosen, full_entropy(logprobs), likeliest, *divergences


def _log_softmax(
    split: Split, hidden: Float[Tensor, " tokens hidden"], temperature: Float[Tensor, " tokens 1"] | None
) -> Float[Tensor, " tokens vocabulary"]:
    logits = split.logits(hidden)
    return torch.log_softmax(logits if temperature is None else logits / temperature.to(logits.dtype), dim=-1)


def _given(packing: Packing | Literal["auto"]) -> Packing:
    if packing == "auto":
        raise ValueError(
            "a backbone alone cannot be tried out: resolve_packing of its language model says what it takes"
        )
    return packing


def _values(value_head: nn.Module | None, hidden: Float[Tensor, " tokens hidden"]) -> Float[Tensor, " tokens *outputs"]:
    if value_head is None:
        raise InputError("the model has no value head")
    values: Tensor = value_head(hidden.to(next(value_head.parameters()).dtype)).squeeze(-1)
    return values if values.dtype == torch.float64 else values.float()


def _anchor(name: str, anchors: Mapping[str, Anchor]) -> Anchor:
    if name not in anchors:
        raise InputError(f"full_kl: no anchor {name!r} is given", hint=f"given are: {', '.join(anchors) or 'none'}")
    return anchors[name]


def _check_temperature(batch: TokenBatch) -> None:
    if batch.temperature is None:
        return
    wrong = ~((batch.temperature > 0.0) & (batch.temperature < math.inf))
    if bool(wrong.any()):
        raise InputError(
            f"temperature must be above 0 and finite to score with, not {float(batch.temperature[wrong][0])}",
            hint="a greedy answer has no distribution: score it at temperature 1",
        )


@contextmanager
def _adapter(lm: Any, name: str) -> Iterator[None]:
    """Use an adapter of a PEFT model, or none, within the context; afterwards restore requires_grad of all adapters."""
    if name == NO_ADAPTER:
        with lm.disable_adapter():
            yield
        return
    before = lm.active_adapter
    trained = [weight for weight in lm.parameters() if weight.requires_grad]
    lm.set_adapter(name)
    try:
        yield
    finally:
        lm.set_adapter(before)
        for weight in trained:
            weight.requires_grad_(True)
