"""Messages on a stream of bytes: a mark, the length of the body, and the body as JSON."""

from __future__ import annotations

import json
import reprlib
import struct
from typing import Any

_MARK = b"RLM1"
_HEADER = struct.Struct(">4sQ")


def pack(message: Any) -> bytes:
    """`message`, JSON values alone, as one frame; TypeError or ValueError where it is not."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return _HEADER.pack(_MARK, len(body)) + body


class Frames:
    """The bodies of the frames in a stream, which may arrive in pieces."""

    def __init__(self, limit: int | None = None) -> None:
        """`limit`: bytes that a body may have; None for any number."""
        self._limit = limit
        self._bytes = bytearray()

    def __bool__(self) -> bool:
        """Whether bytes are left that no frame has taken."""
        return bool(self._bytes)

    def feed(self, data: bytes) -> None:
        """Add what was received."""
        self._bytes += data

    def take(self) -> bytes | None:
        """The next body, or None until it is complete; ValueError says what came that is no frame."""
        if not _MARK.startswith(self._bytes[: len(_MARK)]):
            raise ValueError(f"bytes that are no frame: {reprlib.repr(bytes(self._bytes[:64]))}")
        if len(self._bytes) < _HEADER.size:
            return None
        length = _HEADER.unpack_from(self._bytes)[1]
        if self._limit is not None and length > self._limit:
            raise ValueError(f"a frame of {length} bytes, more than the limit of {self._limit}")
        end = _HEADER.size + length
        if len(self._bytes) < end:
            return None
        body = bytes(self._bytes[_HEADER.size : end])
        del self._bytes[:end]
        return body
