"""Log-probabilities of the reference on data that are known before training: computed once, and kept by content."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from reinlm.data import Examples
from reinlm.errors import InputError
from reinlm.models import Anchor
from reinlm.models.modules import whole
from reinlm.training.judged_step import examples_batch
from reinlm.training.learner import Learner

if TYPE_CHECKING:
    from jaxtyping import Float

    from reinlm.records import Array

_TOGETHER = 512  # sequences whose log-probabilities are in memory twice


@dataclass(frozen=True, eq=False)
class KnownLogprobs:
    """log π_ref of every trained token of some examples.

    Example: two examples, of 2 and of 1 trained tokens:
        KnownLogprobs(np.array([-1.0, -0.5, -2.0], np.float32), offsets=np.array([0, 2, 3]))
    """

    values: Array
    """[trained tokens] float32, or float64 of a float64 model."""
    offsets: Array
    """[examples + 1] int64: example i has the values from `offsets[i]` up to `offsets[i + 1]`."""

    def take(self, examples: Array) -> Float[Tensor, " tokens"]:
        """Those of some examples, in the order given."""
        parts = [self.values[self.offsets[index] : self.offsets[index + 1]] for index in examples.tolist()]
        return torch.from_numpy(np.concatenate([self.values[:0], *parts]))


def known_logprobs(
    learner: Learner, anchor: Anchor, examples: Examples, folder: Path | None, say: Callable[[str], None]
) -> KnownLogprobs:
    """Those of the anchor, from a file in `folder` that was made from the same tokens and weights, or computed and put there.

    Raises InputError for a file that holds something else.
    """
    counted = np.concatenate([[0], np.cumsum(examples.trained)])
    offsets = np.asarray(counted[examples.offsets], np.int64)
    file = None if folder is None else folder / f"{content_hash(learner, anchor, examples)}.npy"
    if file is not None and file.is_file():
        say(f"reference: log-probabilities of {len(examples)} answers read from {file}")
        return KnownLogprobs(_read(file, int(offsets[-1])), offsets)
    parts = []
    for start in range(0, len(examples), _TOGETHER):
        batch = examples_batch(examples[start : start + _TOGETHER])
        parts.append(learner.forward(batch, anchor=anchor).scored.numpy())
    values = np.concatenate(parts)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}.tmp")
        with partial.open("wb") as stream:
            np.save(stream, values)
        partial.replace(file)
    return KnownLogprobs(values, offsets)


def _read(file: Path, count: int) -> Array:
    try:
        values: Array = np.load(file, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"{file} holds no log-probabilities: {error}", hint="remove the file") from error
    if values.shape != (count,) or values.dtype.kind != "f" or not bool(np.isfinite(values).all()):
        raise InputError(
            f"{file} holds {values.dtype} of shape {values.shape}, and {count} log-probabilities are needed",
            hint="remove the file",
        )
    return values


_OF_THE_FILE = ("_name_or_path", "transformers_version")
"""What a configuration says of the folder it was read from, and not of the model."""


def content_hash(learner: Learner, anchor: Anchor, examples: Examples) -> str:
    """A hash of what determines log-probabilities: the tokens, the reference's configuration and weights, and the type that it
    computes in."""
    digest = hashlib.sha256(f"{learner.autocast} {anchor.adapter}".encode())
    config: Any = anchor.model.lm.config
    known = {name: value for name, value in config.to_dict().items() if name not in _OF_THE_FILE}
    digest.update(json.dumps(known, sort_keys=True, default=str).encode())
    for column in (examples.token_ids, examples.trained, examples.offsets):
        digest.update(np.ascontiguousarray(column).tobytes())
    for name, weight in anchor.model.lm.named_parameters():
        if anchor.adapter is None or "lora_" not in name:  # those of an adapter that is switched off do not matter
            flat = whole(weight).detach().cpu().contiguous().flatten()
            digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
            digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]
