from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reinlm.sandbox.frames import Frames, pack

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.lists(JSON, max_size=4), st.integers(1, 30))
def test_messages_arrive_in_order_however_the_stream_is_cut(messages, size):
    stream = b"".join(pack(message) for message in messages)
    frames, taken = Frames(), []
    for start in range(0, len(stream), size):
        frames.feed(stream[start : start + size])
        while (body := frames.take()) is not None:
            taken.append(json.loads(body))
    assert taken == messages
    assert not frames


@pytest.mark.parametrize("data", [b"x", b"RLM2", b"\0\0\0\0\0\0\0\x01", b"RLx" * 9])
def test_the_first_byte_that_is_no_frame_is_refused(data):
    frames = Frames()
    frames.feed(data)
    with pytest.raises(ValueError, match="bytes that are no frame: b'"):
        frames.take()


def test_a_frame_beyond_the_limit_is_refused_before_its_body_arrives():
    frames = Frames(limit=10)
    frames.feed(pack("12345678"))
    assert frames.take() == b'"12345678"'
    frames.feed(b"RLM1" + struct.pack(">Q", 11))
    with pytest.raises(ValueError, match="a frame of 11 bytes, more than the limit of 10"):
        frames.take()
