"""The main process's side of one worker process: start it, call it, kill it when it overruns or sends what is no reply."""

from __future__ import annotations

import json
import os
import reprlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from typing import Any, NoReturn, TypeVar

from reinlm.errors import RunError
from reinlm.sandbox.descendants import kill_descendants
from reinlm.sandbox.frames import Frames, pack

IN_WORKER = "REINLM_WORKER"
"""Set in the environment of every worker: what starts workers inside one would start them without end."""

REPLY_LIMIT = 1 << 26
"""Bytes that a reply may have."""

_LOOK_INTERVAL = 0.2  # seconds between looks at whether a worker that says nothing still runs
_BOOT = "import sys, json; sys.path[:] = json.loads(sys.argv[3]); from reinlm.sandbox.child import main; main()"

T = TypeVar("T")


class WorkerError(Exception):
    """A call without a result, as the rest of a sentence: `ended its process with exit code 1`."""

    def __init__(self, text: str, hint: str | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.hint = hint


class OverrunError(WorkerError):
    """The call took longer than its limit, and the process was killed."""


class Worker:
    """One process that serves the methods of a module, started when it is first needed and again after it was killed.

    It belongs to one thread at a time; the event `stop` alone is set by others.

    Example:
        worker = Worker("reinlm.rewards.service")
        worker.start()
        entries = worker.call("call", {"key": 0, "arguments": arguments, "count": 8}, limit=60.0)
    """

    def __init__(self, service: str) -> None:
        """`service`: the name of a module with `METHODS`."""
        self.prepared: set[Hashable] = set()
        """What the caller has loaded into this process; empty again when a new one starts."""
        self.stop = threading.Event()
        """Set by any thread to end the call in flight, and the process."""
        self._service = service
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._lifeline = -1
        self._frames = Frames(REPLY_LIMIT)
        self._number = 0

    @property
    def running(self) -> bool:
        """Whether it has a process, which has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Make sure that the process runs and has sent nothing since its last call."""
        if self._channel is not None and self._process is not None:
            self._channel.setblocking(False)
            data = None
            with suppress(OSError):  # nothing to read
                data = self._channel.recv(64)
            if data:
                self._refuse(f"sent {reprlib.repr(data)} while no call was in flight")
            if data is not None or self._process.poll() is not None:  # it closed its socket, or ended
                self.kill()
        if self._process is None:
            self._spawn()

    def call(
        self, method: str, arguments: Mapping[str, Any], limit: float, read: Callable[[Any], T] = lambda value: value
    ) -> T:
        """What `read` makes of the method's result. Call `start` first: `prepared` then tells what is loaded.

        Args:
            arguments: keywords, each a value that `encode` gave.
            limit: seconds.
            read: checks the shape of the result, which is JSON of any shape; ValueError where it is wrong.

        Raises:
            OverrunError: no reply within the limit.
            WorkerError: the method raised, the process ended, or it sent something else than one reply to this call.
        """
        value = self._exchange(method, arguments, limit)
        try:
            result = read(value)
        except ValueError as error:
            self._refuse(f"sent a reply of an unknown shape: {error}")
        if self._frames:
            self._refuse("sent more than one reply to a call")
        self._exchange("ping", {}, limit)  # a second reply to the call comes before the reply to this one
        return result

    def kill(self) -> None:
        """End the process and the processes that it started, whatever they are doing.

        Off Linux a process that has left the worker's process group (`setsid`) is not among them.
        """
        if self._process is not None:
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGSTOP)  # it starts nothing more
                kill_descendants(self._process.pid)
            with suppress(ProcessLookupError, PermissionError):  # the group has no process left
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._channel is not None:
            self._channel.close()
        if self._lifeline >= 0:
            os.close(self._lifeline)
        self._channel, self._process, self._lifeline = None, None, -1
        self._frames = Frames(REPLY_LIMIT)
        self.prepared.clear()

    def close(self) -> None:
        """Let an idle process end by itself, then kill what is left."""
        if self._process is not None and self._channel is not None:
            self._channel.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=2.0)
        self.kill()

    def _spawn(self) -> None:
        self._channel, theirs = socket.socketpair()
        read, self._lifeline = os.pipe()
        paths = json.dumps([path for path in sys.path if isinstance(path, str)])
        command = [sys.executable, "-P", "-c", _BOOT, str(theirs.fileno()), str(read), paths, self._service]
        try:
            self._process = subprocess.Popen(  # noqa: S603  this interpreter, running this package
                command,
                pass_fds=(theirs.fileno(), read),
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a function prints stays out of what the command line prints
                start_new_session=True,
                env={"PYTHONHASHSEED": "0", **os.environ, IN_WORKER: "1"},  # sets keep their order from run to run
            )
        except OSError as error:
            self.kill()
            raise RunError(f"a worker process cannot be started: {error}") from error
        finally:
            theirs.close()
            os.close(read)

    def _exchange(self, method: str, arguments: Mapping[str, Any], limit: float) -> Any:
        """Send a call and take the reply that carries its number."""
        assert self._channel is not None
        self._number += 1
        message = pack([self._number, method, arguments])
        deadline = time.monotonic() + limit
        self._channel.settimeout(limit)
        try:
            self._channel.sendall(message)
        except TimeoutError:
            self._overrun(limit)
        except OSError:
            self._ended()
        try:
            number, kind, value = _read_reply(self._receive(deadline, limit))
        except ValueError as error:
            self._refuse(f"sent {error}")
        if number != self._number:
            self._refuse(f"sent a reply to call {number} while call {self._number} was in flight")
        if kind == "raised":
            raise WorkerError(f"raised {value}")
        return value

    def _receive(self, deadline: float, limit: float) -> bytes:
        assert self._channel is not None
        assert self._process is not None
        while (body := self._frames.take()) is None:
            patience = deadline - time.monotonic()
            if self.stop.is_set():
                self.kill()
                raise WorkerError("was interrupted")
            if patience <= 0:
                self._overrun(limit)
            self._channel.settimeout(min(patience, _LOOK_INTERVAL))
            try:
                data = self._channel.recv(1 << 20)
            except TimeoutError:
                if self._process.poll() is not None:
                    self._ended()  # a process that it started holds the socket open
                continue
            except OSError:
                data = b""
            if not data:
                self._ended()
            self._frames.feed(data)
        return body

    def _refuse(self, text: str) -> NoReturn:
        self.kill()
        raise WorkerError(text, hint="only reinlm may write to the worker's socket: the function must leave it alone")

    def _overrun(self, limit: float) -> NoReturn:
        self.kill()
        raise OverrunError(f"overran its time limit of {limit:g} s", hint="make it faster, or raise time_limit")

    def _ended(self) -> NoReturn:
        """Say how the process ended, or that it runs on without its socket."""
        assert self._process is not None
        try:
            code = self._process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            raise WorkerError("broke the connection to its worker process") from None
        finally:
            self.kill()
        if code < 0:
            hint = "the system kills processes when memory runs out" if -code == signal.SIGKILL else None
            raise WorkerError(f"was killed by signal {-code} together with its process", hint=hint)
        raise WorkerError(f"ended its process with exit code {code}")


def _read_reply(body: bytes) -> tuple[int, str, Any]:
    """`[NUMBER, "value", JSON]` or `[NUMBER, "raised", TEXT]`; ValueError shows anything else."""
    try:
        reply = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError(f"a frame that is no JSON: {reprlib.repr(body[:64])}") from None
    match reply:
        case [number, "value" | "raised" as kind, value] if type(number) is int:
            if kind == "value" or isinstance(value, str):
                return number, kind, value
    raise ValueError(f"a message of an unknown shape: {reprlib.repr(reply)}")
