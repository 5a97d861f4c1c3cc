"""The worker process: loads reward functions and calls them, one frame in, one frame out.

It runs as `python -c "…; main()" SOCKET LIFELINE`, so that the user's main program is never imported. Frames travel
on a socket of their own: what a function prints goes to standard error and can corrupt nothing.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from typing import Any

from reinlm.errors import InputError
from reinlm.rewards.functions import file_of, invoke, load, parameters_of
from reinlm.rewards.values import Failure, describe, read_result

IN_WORKER = "REINLM_REWARD_WORKER"
"""Set in the environment of every worker: building rewards inside one would start workers without end."""

_HEADER = struct.Struct(">Q")


def send(channel: socket.socket, message: Any) -> None:
    """Write one frame: 8 bytes of length, then the pickled message."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    channel.sendall(_HEADER.pack(len(body)) + body)


def receive(channel: socket.socket) -> bytes | None:
    """The body of the next frame, or None where the other side is gone."""
    header = _exactly(channel, _HEADER.size)
    return None if header is None else _exactly(channel, _HEADER.unpack(header)[0])


def main() -> None:
    """Serve until the other side closes the socket."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    die_with(int(sys.argv[2]))
    functions: dict[int, Callable[..., Any]] = {}
    own = os.getpid()
    while (body := receive(channel)) is not None:
        answer = _answer(functions, body)
        if os.getpid() != own:  # a child that the function forked came back from it too: only one may answer
            os._exit(0)
        send(channel, answer)


def die_with(lifeline: int) -> None:
    """End this process and its children when the other end of the pipe `lifeline` closes: the main process is gone.

    On Linux the kernel does it, by a signal, even while C code holds the interpreter lock; elsewhere a thread does.
    """
    if sys.platform == "linux":
        signal.signal(signal.SIGIO, signal.SIG_DFL)
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    else:
        threading.Thread(target=_watch, args=(lifeline,), daemon=True).start()


def _watch(lifeline: int) -> None:
    os.read(lifeline, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _answer(functions: dict[int, Callable[..., Any]], body: bytes) -> Any:
    """`("load", key, source)` gives the function's parameters; `("call", key, arguments, count)` its entries."""
    file = None
    loading = False
    try:
        what, key, *rest = pickle.loads(body)  # noqa: S301  sent by the trainer
        loading = what == "load"
        if loading:
            functions[key] = load(*rest)
            return parameters_of(functions[key])
        arguments, count = rest
        file = file_of(functions[key])
        return read_result(invoke(functions[key], arguments), count)
    except BaseException as error:  # noqa: BLE001 - sys.exit() too is reported, and the worker lives on
        return error if loading and isinstance(error, InputError) else Failure(f"raised {describe(error, file)}")


def _exactly(channel: socket.socket, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        part = channel.recv(min(count - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)
