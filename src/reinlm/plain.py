"""Convert plain data of a fixed list of types to JSON and back.

JSON's own values are encoded as themselves. A value of another listed type is `{"$": TYPE, "v": CONTENT}`; so is a mapping
whose keys are not all text, or that has the key `$` itself.
"""

from __future__ import annotations

import base64
import io
import json
import sys
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from reinlm.errors import InputError

_TAG = "$"
_AS_THEY_ARE = frozenset({type(None), bool, float, str})
_LARGE = 1 << 1024  # Python refuses to write and read integers of many thousand digits in decimal


def encode(value: Any) -> Any:
    """`value` as JSON values from which `decode` makes an equal value of the same types.

    Types, exactly and not their subclasses: None, bool, int, float, str, list, dict, tuple, set, frozenset, bytes,
    datetime, date, time, timedelta, Decimal, UUID, NumPy arrays and scalars, pandas
    timestamps. Time zones are fixed offsets or ZoneInfo.

    Raises:
        InputError: a value of any other type, which the message names, or infinite nesting.
    """
    try:
        return _encode(value)
    except RecursionError:
        raise InputError("it is nested too deeply, or contains itself") from None


def decode(value: Any) -> Any:
    """The value that `encode` was given; ValueError names a type that is not in the list."""
    if isinstance(value, list):
        return value if _same(value) else [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if _TAG not in value:
        return {key: decode(item) for key, item in value.items()}
    kind = value[_TAG]
    if not isinstance(kind, str) or kind not in _DECODERS:
        raise ValueError(f"unknown type {kind!r}")
    return _DECODERS[kind](decode(value["v"]))


def _encode(value: Any) -> Any:
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if kind is int:
        return value if abs(value) < _LARGE else {_TAG: "int", "v": hex(value)}
    if kind is list:
        return value if _same(value) else [_encode(item) for item in value]
    if kind is dict:
        if all(type(key) is str for key in value) and _TAG not in value:
            return {key: _encode(item) for key, item in value.items()}
        return {_TAG: "dict", "v": [[_encode(key), _encode(item)] for key, item in value.items()]}
    if kind in _ENCODERS:
        name, encoder = _ENCODERS[kind]
        return {_TAG: name, "v": encoder(value)}
    numpy = sys.modules.get("numpy")  # a value of its types exists only where it is loaded
    if numpy is not None and kind is numpy.ndarray:
        if value.dtype == object:
            return {_TAG: "objects", "v": [list(value.shape), [_encode(item) for item in value.ravel().tolist()]]}
        return {_TAG: "array", "v": _array_text(value)}
    if numpy is not None and isinstance(value, numpy.generic) and not value.dtype.hasobject:
        return {_TAG: "scalar", "v": _array_text(value)}
    pandas = sys.modules.get("pandas")  # Parquet columns in nanoseconds are read as its type
    if pandas is not None and kind is pandas.Timestamp:
        zone = _encode_zone(value.tzinfo)
        utc = value if zone is None else value.tz_convert("UTC").tz_localize(None)
        return {_TAG: "timestamp", "v": [utc.isoformat(), value.unit, zone]}
    raise _no_plain_value(kind)


def _same(values: list[Any]) -> bool:
    """Whether a list is JSON as it stands, found without a call for each token id: text alone, or small integers."""
    kinds = set(map(type, values))
    if kinds == {int}:
        return bool(max(max(values), -min(values)) < _LARGE)
    return kinds <= _AS_THEY_ARE


def _no_plain_value(kind: type) -> InputError:
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return InputError(
        f"a value of the type {name} cannot be sent to another process",
        hint="use text, numbers, lists, mappings, bytes, dates or NumPy arrays of them",
    )


def _encode_set(values: Any) -> list[Any]:
    """In an order that does not depend on the hash seed of this process."""
    return sorted((_encode(value) for value in values), key=json.dumps)


def _encode_zone(zone: tzinfo | None) -> Any:
    if zone is None:
        return None
    if type(zone) is timezone:
        offset = zone.utcoffset(None)
        return [offset.days, offset.seconds, offset.microseconds]
    if type(zone) is ZoneInfo and zone.key:
        return zone.key
    raise _no_plain_value(type(zone))


def _decode_zone(value: Any) -> tzinfo | None:
    if value is None:
        return None
    return ZoneInfo(value) if isinstance(value, str) else timezone(timedelta(*value))


def _encode_clock(value: datetime | time) -> list[Any]:
    return [value.replace(tzinfo=None).isoformat(), value.fold, _encode_zone(value.tzinfo)]


def _decode_clock(kind: type[datetime] | type[time]) -> Callable[[Any], Any]:
    return lambda value: kind.fromisoformat(value[0]).replace(fold=value[1], tzinfo=_decode_zone(value[2]))


def _decode_timestamp(value: Any) -> Any:
    import pandas as pd

    text, unit, zone = value
    time = pd.Timestamp(text).as_unit(unit)
    return time if zone is None else time.tz_localize("UTC").tz_convert(_decode_zone(zone))


def _array_text(value: Any) -> str:
    """An array in NumPy's own file format, which keeps its type, order and shape."""
    import numpy as np

    file = io.BytesIO()
    np.save(file, value, allow_pickle=False)
    return base64.b64encode(file.getvalue()).decode()


def _decode_array(text: str) -> Any:
    import numpy as np

    return np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False)


def _decode_objects(value: Any) -> Any:
    import numpy as np

    shape, items = value
    array = np.empty(len(items), dtype=object)
    for index, item in enumerate(items):
        array[index] = item
    return array.reshape(shape)


_ENCODERS: dict[type, tuple[str, Callable[[Any], Any]]] = {
    tuple: ("tuple", lambda value: [_encode(item) for item in value]),
    set: ("set", _encode_set),
    frozenset: ("frozenset", _encode_set),
    bytes: ("bytes", lambda value: base64.b64encode(value).decode()),
    datetime: ("datetime", _encode_clock),
    time: ("time", _encode_clock),
    date: ("date", date.isoformat),
    timedelta: ("timedelta", lambda value: [value.days, value.seconds, value.microseconds]),
    Decimal: ("decimal", str),
    UUID: ("uuid", str),
}

_DECODERS: dict[str, Callable[[Any], Any]] = {
    "int": lambda text: int(text, 16),
    "dict": dict,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "bytes": base64.b64decode,
    "datetime": _decode_clock(datetime),
    "time": _decode_clock(time),
    "date": date.fromisoformat,
    "timedelta": lambda value: timedelta(*value),
    "timestamp": _decode_timestamp,
    "decimal": Decimal,
    "uuid": UUID,
    "array": _decode_array,
    "scalar": lambda text: _decode_array(text)[()],
    "objects": _decode_objects,
}
