"""What computes a run on a CPU: how many threads, and what multiplies matrices. Chosen when it begins and kept on resume."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, get_args

import torch
from torch import nn

from reinlm.errors import InputError
from reinlm.models.matmul import MatmulBackend, fastest_backend, has_onednn, using_backend
from reinlm.models.measured import measurements_file
from reinlm.models.threads import MIN_MATRIX, largest_matrix, threads_for, using_threads


@dataclass(frozen=True)
class Computing:
    """Threads of torch, and what computes float32 products.

    Example:
        with Computing.chosen(model).in_force():
            model(ids)
    """

    threads: int
    matmul: MatmulBackend

    @classmethod
    def chosen(cls, model: nn.Module, threads: int | None = None) -> Computing:
        """What is fastest for a model on this machine, as it was measured once; `threads` names their number."""
        count = threads or threads_for(model)
        with using_threads(count):
            return cls(count, fastest_backend(model))

    @classmethod
    def as_begun(cls, resolved: Mapping[str, Any], model: nn.Module, say: Callable[[str], None]) -> Computing:
        """What `resolved` of a run's config.yaml names, so that the run goes on bit for bit; what this machine lacks is said.

        Raises InputError for values that no run writes.
        """
        threads, matmul = resolved.get("threads"), resolved.get("matmul", "blas")
        if threads is not None and not (type(threads) is int and threads >= 1):
            raise InputError(f"resolved.threads in config.yaml is {threads!r}", hint="a number of threads, 1 or more")
        if matmul not in get_args(MatmulBackend):
            raise InputError(
                f"resolved.matmul in config.yaml is {matmul!r}", hint=f"allowed: {', '.join(get_args(MatmulBackend))}"
            )
        if matmul == "onednn" and not has_onednn():
            say(
                "note: the run was begun with oneDNN's matrix products, which this PyTorch lacks: last bits will differ"
            )
            matmul = "blas"
        most = torch.get_num_threads()
        if threads is not None and threads > most:
            say(f"note: the run was begun with {threads} threads, and torch has {most} here: last bits may differ")
        return cls(threads_for(model) if threads is None else min(threads, most), matmul)

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        """Compute so within the context."""
        with using_threads(self.threads), using_backend(self.matmul):
            yield

    def line(self, model: nn.Module) -> str | None:
        """For the console, where there was something to choose."""
        most = torch.get_num_threads()
        if most == 1 or largest_matrix(model) < MIN_MATRIX:
            return None
        if self.threads > 1:
            return f"{self.threads} threads"
        again = f"to measure it again, remove {measurements_file()}"
        return f"1 thread: {most} were not faster when this machine was measured; {again}"

    def to_json(self) -> dict[str, Any]:
        """For `resolved` in config.yaml."""
        return asdict(self)
