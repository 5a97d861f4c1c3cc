"""The worker's side: take a call, answer it, take the next.

It runs as `python -c "…; main()" SOCKET LIFELINE PATHS SERVICE`, so that the user's main program is never imported.
Calls are `[NUMBER, METHOD, ARGUMENTS]`, replies `[NUMBER, "value", JSON]` or `[NUMBER, "raised", TEXT]`, on a socket of
their own: what a function prints goes to standard error.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from reinlm.errors import error_line
from reinlm.plain import decode
from reinlm.sandbox.descendants import adopt_orphans, kill_descendants
from reinlm.sandbox.frames import Frames, pack

Methods = Mapping[str, Callable[..., Any]]
"""What a service module names `METHODS`: functions of plain keywords that return JSON values."""


def main() -> None:
    """Serve until the other side closes the socket."""
    channel, lifeline = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    for descriptor in (channel.fileno(), lifeline):
        os.set_inheritable(descriptor, False)  # programs that a function starts have no part in them
    end_with(lifeline)
    adopt_orphans()
    methods: Methods = {"ping": lambda: None, **importlib.import_module(sys.argv[4]).METHODS}
    frames, own = Frames(), os.getpid()
    while (body := _receive(channel, frames)) is not None:
        number, method, arguments = json.loads(body)
        reply = pack([number, *_answer(methods[method], arguments)])
        if os.getpid() != own:  # a child that the function forked came back from it too: only one may answer
            os._exit(0)
        channel.sendall(reply)
    kill_descendants(own)


def end_with(lifeline: int) -> None:
    """End this process group when the other end of the pipe `lifeline` closes: the main process has ended.

    A process that a function started in a session of its own (`setsid`) is not in the group, and is left running.

    On Linux the kernel does it, by a signal, even while C code holds the interpreter lock; elsewhere a thread does.
    """
    if sys.platform == "linux":
        signal.signal(signal.SIGIO, signal.SIG_DFL)
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    else:
        threading.Thread(target=_watch, args=(lifeline,), daemon=True).start()


def _answer(method: Callable[..., Any], arguments: Mapping[str, Any]) -> tuple[str, Any]:
    try:
        return "value", method(**decode(arguments))
    except BaseException as error:  # noqa: BLE001 - sys.exit() too is reported, and the worker goes on
        return "raised", error_line(error)


def _receive(channel: socket.socket, frames: Frames) -> bytes | None:
    """The body of the next frame, or None where the other side is gone."""
    while (body := frames.take()) is None:
        data = channel.recv(1 << 20)
        if not data:
            return None
        frames.feed(data)
    return body


def _watch(lifeline: int) -> None:
    os.read(lifeline, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)
