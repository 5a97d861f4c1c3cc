"""Trainer state without pickle: a tree of plain values as JSON, its tensors beside it for safetensors.

What JSON cannot say is written as `{"$": kind, "v": value}`: tuples, bytes, floats that are not finite, dicts whose
keys are no text (Adam numbers its parameters), tensors, numpy values, and the frozen records of `reinlm.records`.
"""

from __future__ import annotations

import json
import math
import random
import struct
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reinlm import records

if TYPE_CHECKING:
    from torch import Tensor

_RECORDS = {
    name: kind
    for name, kind in vars(records).items()
    if isinstance(kind, type) and is_dataclass(kind) and kind.__module__ == records.__name__
}
_DTYPES = frozenset(
    [
        *("bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "float8_e4m3fn", "float8_e5m2"),
    ]
)


def pack_state(tree: Any) -> tuple[Any, dict[str, Tensor]]:
    """Split a state into a tree that `json` takes and its tensors, contiguous and on the CPU.

    Takes None, bool, int, float, str, bytes, list, tuple, dict, tensors, numpy arrays and scalars, and records, nested
    to any depth; `unpack_state` gives the same values and types back, floats and tensors to the last bit.

    Raises:
        TypeError: for anything else, naming where it stands.
    """
    packer = _Packer()
    return packer.pack(tree, "state"), packer.tensors


class _Packer:
    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._storages: set[int] = set()

    def pack(self, value: Any, where: str) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return value if math.isfinite(value) else _tag("float", struct.pack(">d", value).hex())
        if kind is bytes:
            return _tag("bytes", value.hex())
        if kind in (list, tuple):
            items = [self.pack(item, f"{where}.{index}") for index, item in enumerate(value)]
            return items if kind is list else _tag("tuple", items)
        if kind in (dict, OrderedDict):
            return self._pack_dict(value, where)
        if _RECORDS.get(kind.__name__) is kind:
            parts = {f.name: self.pack(getattr(value, f.name), f"{where}.{f.name}") for f in fields(value)}
            return _tag("record", [kind.__name__, parts])
        return self._pack_array(value, where)

    def _pack_dict(self, value: Mapping[Any, Any], where: str) -> Any:
        if all(type(key) is str for key in value) and "$" not in value:
            return {key: self.pack(item, f"{where}.{key}") for key, item in value.items()}
        pairs = value.items()
        return _tag("dict", [[self.pack(key, where), self.pack(item, f"{where}.{key}")] for key, item in pairs])

    def _pack_array(self, value: Any, where: str) -> Any:
        import numpy as np
        import torch

        if isinstance(value, torch.Tensor):
            return _tag("tensor", self._keep(value, where))
        if isinstance(value, np.ndarray | np.generic):
            array = np.ascontiguousarray(value).reshape(np.shape(value))
            if not array.flags.writeable:  # torch takes no memory that it may not write to
                array = array.copy()
            try:
                name = self._keep(torch.from_numpy(array), where)
            except TypeError:
                raise TypeError(f"{where}: cannot store a numpy value of type {array.dtype}") from None
            return _tag("array" if isinstance(value, np.ndarray) else "scalar", name)
        raise TypeError(f"{where}: cannot store a value of type {type(value).__name__}")

    def _keep(self, tensor: Tensor, where: str) -> str:
        if str(tensor.dtype).removeprefix("torch.") not in _DTYPES:
            raise TypeError(f"{where}: cannot store a tensor of type {tensor.dtype}")
        tensor = tensor.detach().to("cpu").contiguous()
        storage = tensor.untyped_storage().data_ptr()
        if storage in self._storages:  # safetensors refuses tensors that share memory
            tensor = tensor.clone()
        self._storages.add(tensor.untyped_storage().data_ptr())
        name = f"{where}#{len(self.tensors)}"
        self.tensors[name] = tensor
        return name


def unpack_state(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The state that `pack_state` split."""
    if isinstance(tree, list):
        return [unpack_state(item, tensors) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if "$" not in tree:
        return {key: unpack_state(item, tensors) for key, item in tree.items()}
    return _UNPACK[tree["$"]](tree["v"], tensors)


def _unpack_record(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    name, parts = value
    return _RECORDS[name](**{field: unpack_state(part, tensors) for field, part in parts.items()})


_UNPACK: dict[str, Callable[[Any, Mapping[str, Tensor]], Any]] = {
    "float": lambda value, _: struct.unpack(">d", bytes.fromhex(value))[0],
    "bytes": lambda value, _: bytes.fromhex(value),
    "tuple": lambda value, tensors: tuple(unpack_state(item, tensors) for item in value),
    "dict": lambda value, tensors: {unpack_state(k, tensors): unpack_state(v, tensors) for k, v in value},
    "record": _unpack_record,
    "tensor": lambda value, tensors: tensors[value],
    "array": lambda value, tensors: tensors[value].numpy(),
    "scalar": lambda value, tensors: tensors[value].numpy()[()],
}


def copy_state(tree: Any) -> Any:
    """A copy that shares no memory with what `pack_state` takes; tensors without gradient, on the CPU."""
    packed, tensors = pack_state(tree)
    return unpack_state(packed, {name: tensor.clone() for name, tensor in tensors.items()})


def _tag(kind: str, value: Any) -> dict[str, Any]:
    return {"$": kind, "v": value}


def write_state(folder: Path, state: Mapping[str, Any], name: str = "trainer_state") -> None:
    """Write a state into a folder as `NAME.json` and `NAME.safetensors`."""
    from safetensors.torch import save_file

    tree, tensors = pack_state(dict(state))
    (folder / f"{name}.json").write_text(json.dumps(tree, allow_nan=False), encoding="utf-8")
    save_file(tensors, folder / f"{name}.safetensors")


def check_tensors(file: Path) -> None:
    """Read the header of a safetensors file. Raises ValueError where it is damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt"):
            pass
    except SafetensorError as error:
        raise ValueError(str(error)) from None


def read_state(folder: Path, name: str = "trainer_state") -> dict[str, Any]:
    """The state that `write_state` wrote, tensors on the CPU. Raises ValueError or LookupError for damaged files."""
    from safetensors.torch import load_file

    tree = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    check_tensors(folder / f"{name}.safetensors")
    return dict(unpack_state(tree, load_file(folder / f"{name}.safetensors")))


def random_states() -> dict[str, Any]:
    """Every random state that this process holds: Python, numpy, torch on the CPU and on each accelerator."""
    import numpy as np
    import torch

    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state_all()
    if torch.backends.mps.is_available():
        states["mps"] = torch.mps.get_rng_state()
    return states


def restore_random_states(states: Mapping[str, Any]) -> None:
    """Set what `random_states` returned; warns where the accelerators are not those that it was taken from."""
    import numpy as np
    import torch

    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    saved = states.get("cuda", [])
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for device, state in enumerate(saved[:found]):
        torch.cuda.set_rng_state(state, device)
    if torch.backends.mps.is_available() and "mps" in states:
        torch.mps.set_rng_state(states["mps"])
    if len(saved) != found or ("mps" in states) != torch.backends.mps.is_available():
        warnings.warn(
            f"the checkpoint was written with {_devices(len(saved), 'mps' in states)}, this machine has "
            f"{_devices(found, torch.backends.mps.is_available())}: sampling will differ from the run it resumes",
            stacklevel=2,
        )


def _devices(cuda: int, mps: bool) -> str:
    return f"{cuda} CUDA devices" + (" and MPS" if mps else "")
