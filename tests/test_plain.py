from __future__ import annotations

import collections
import datetime as dt
import enum
import json
import math
import subprocess
import sys
import threading
from decimal import Decimal
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from reinlm.errors import InputError
from reinlm.plain import decode, encode


def travelled(value):
    """`value` as another process gets it."""
    return decode(json.loads(json.dumps(encode(value))))


def alike(one, other):
    """Equal in type and value; NaN equals NaN, 0.0 is not -0.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or (
            one == other and math.copysign(1, one) == math.copysign(1, other)
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, dict):
        return len(one) == len(other) and all(map(alike, one.items(), other.items()))  # in their order
    if isinstance(one, np.ndarray | np.generic):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        return alike(one.tolist(), other.tolist()) if one.dtype == object else one.tobytes() == other.tobytes()
    return one == other


ZONES = (
    st.none() | st.timezones() | st.builds(dt.timezone, st.timedeltas(dt.timedelta(hours=-23), dt.timedelta(hours=23)))
)
HASHABLE = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(st.characters())
    | st.binary()
    | st.dates()
    | st.datetimes(timezones=ZONES, allow_imaginary=False)
    | st.times(timezones=st.just(dt.UTC))
    | st.timedeltas()
    | st.decimals(allow_nan=False)
    | st.uuids()
)
ARRAYS = hnp.arrays(
    hnp.scalar_dtypes() | hnp.unicode_string_dtypes() | hnp.byte_string_dtypes(),
    hnp.array_shapes(min_dims=0, min_side=0),
)
PLAIN = st.recursive(
    HASHABLE
    | st.floats()
    | st.integers(-(10**5000), 10**5000)
    | st.frozensets(HASHABLE, max_size=3)
    | st.sets(HASHABLE, max_size=3)
    | ARRAYS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.just("$"), inner, max_size=4)
        | st.dictionaries(HASHABLE, inner, max_size=3)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=5), st.lists(PLAIN, max_size=4), max_size=4))
def test_columns_of_plain_data_arrive_unchanged(columns):
    assert alike(travelled(columns), columns)


@pytest.mark.parametrize(
    "value",
    [
        {"$": "bytes", "v": "AAAA"},
        {"$": "os.system"},
        [1, True, 2.0],
        [1, 10**5000],
        [-(10**5000)],
        "\ud800",
        {1: "a", "1": "b", None: "c", (1, 2): "d"},
        {"a", ("b", 1)},
        np.float32(0.1),
        np.float64(0.1),
        np.str_("text"),
        np.datetime64("2024-05-01", "ns"),
        np.asarray([[1, 2], [3, 4]], order="F"),
        np.array([b"a"], dtype=object),
        np.array([["a", None], [{"b": 1}, (2,)]], dtype=object),
        np.array([[1, 2], [3]], dtype=object),
        Decimal("-0.00"),
        UUID(int=3),
        dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
        dt.time(1, 2, 3, 4, dt.timezone(dt.timedelta(hours=-2))),
        pd.Timestamp("2024-05-01 12:00:00.123456789"),
        pd.Timestamp("2024-10-27 01:30", tz="UTC").tz_convert(ZoneInfo("Europe/Berlin")),
        pd.Timestamp("2024-05-01", tz=dt.UTC).as_unit("s"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_that_are_easily_lost_arrive_unchanged(value):
    arrived = travelled(value)
    assert alike(arrived, value)
    if isinstance(value, dt.datetime):
        assert (arrived.fold, arrived.isoformat()) == (value.fold, value.isoformat())
    if isinstance(value, pd.Timestamp):
        assert arrived.unit == value.unit


class Colour(enum.IntEnum):
    RED = 1


class Point(collections.namedtuple("Point", "x y")):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (threading.Lock(), "_thread.lock"),
        (Colour.RED, "Colour"),
        (Point(1, 2), "Point"),
        (collections.OrderedDict(a=1), "collections.OrderedDict"),
        (torch.tensor(1.0), "torch.Tensor"),
        (object(), "the type object"),
        (1j, "the type complex"),
        (np.array([object()], dtype=object), "the type object"),
        (np.ma.masked_array([1, 2]), "MaskedArray"),
        (dt.datetime(2024, 1, 1, tzinfo=type("Zone", (dt.tzinfo,), {})()), "Zone"),
    ],
)
def test_a_value_of_another_type_is_refused_by_its_name(value, name):
    with pytest.raises(InputError, match=f"{name} cannot be sent to another process"):
        encode([{"deep": (value,)}])


def test_a_value_that_contains_itself_is_refused():
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(InputError, match="nested too deeply"):
        encode(loop)


@pytest.mark.parametrize("value", [{"$": "os.system", "v": "x"}, {"$": ["a"], "v": 1}])
def test_a_type_that_is_not_in_the_list_is_not_read(value):
    with pytest.raises(ValueError, match="unknown type"):
        decode(value)


def test_an_array_of_pickles_is_not_read():
    import base64
    import io

    file = io.BytesIO()
    np.save(file, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle"):
        decode({"$": "array", "v": base64.b64encode(file.getvalue()).decode()})


def test_sets_are_written_in_the_same_order_under_every_hash_seed():
    code = "from reinlm.plain import encode; print(encode({'a', 'b', 'c', 'd', ('e', 1)}))"
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
        ).stdout
        for seed in "123"
    }
    assert len(said) == 1
    assert b"'$': 'set'" in said.pop()
