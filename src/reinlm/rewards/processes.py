"""The main process's side of the workers: start them, give them calls, kill those that overrun."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

from reinlm.errors import InputError, RunError
from reinlm.rewards.functions import Parameters, Source
from reinlm.rewards.values import Entry, Failure, describe
from reinlm.rewards.worker import IN_WORKER, receive, send

LOAD_LIMIT = 300.0
"""Seconds that a worker may take to start and import a function; a reward model may have to be read from disk."""

_LOOK_INTERVAL = 0.2  # seconds between looks at whether a worker that says nothing still lives
_BOOT = "import sys, json; sys.path[:] = json.loads(sys.argv[3]); from reinlm.rewards.worker import main; main()"

Outcome = Parameters | InputError | Failure | list[Entry] | None


@dataclass(frozen=True)
class Job:
    """One call of one function; without `arguments` the function is only loaded."""

    key: int
    """Which function: equal keys mean equal sources."""
    source: Source
    lane: str
    """Jobs of a lane share its processes."""
    limit: float
    """Seconds, from when the function is loaded."""
    arguments: Mapping[str, Any] | None = None
    count: int = 0


class Pool:
    """Worker processes in lanes: `width[lane]` processes for a lane, one for a lane that `width` does not name.

    A lane of one process keeps what its function keeps in its module from call to call.
    """

    def __init__(self, width: Mapping[str, int]) -> None:
        self._width = dict(width)
        self._slots: dict[str, list[_Slot]] = {}
        self._lock = threading.Lock()
        self._owner = os.getpid()

    def run(self, jobs: Sequence[Job], *, stop_early: bool = False) -> list[Outcome]:
        """The outcome of every job, in the jobs' order whichever finishes first.

        With `stop_early` the first failure ends it; what was not finished by then is None.
        """
        outcomes: list[Outcome] = [None] * len(jobs)
        queues: dict[str, deque[int]] = {}
        for index, job in enumerate(jobs):
            queues.setdefault(job.lane, deque()).append(index)
        with self._lock:
            slots = [slot for lane, queue in queues.items() for slot in self._lane(lane, len(queue))]
            try:
                self._drive(jobs, queues, outcomes, stop_early)
            finally:
                for slot in slots:
                    if slot.busy:  # stopped early or interrupted: its answer would be taken for that of the next call
                        slot.kill()
        return outcomes

    def close(self) -> None:
        """End all workers. A process forked from the owner leaves them alone."""
        if os.getpid() == self._owner:
            for slots in self._slots.values():
                for slot in slots:
                    slot.close()
        self._slots.clear()

    def _lane(self, lane: str, jobs: int) -> list[_Slot]:
        slots = self._slots.setdefault(lane, [])
        while len(slots) < min(self._width.get(lane, 1), jobs):
            slots.append(_Slot())
        return slots

    def _drive(
        self,
        jobs: Sequence[Job],
        queues: Mapping[str, deque[int]],
        outcomes: list[Outcome],
        stop_early: bool,
    ) -> None:
        running: dict[_Slot, int] = {}
        while True:
            for lane, queue in queues.items():
                for slot in self._slots[lane]:
                    if queue and slot not in running:
                        running[slot] = queue.popleft()
                        slot.begin(jobs[running[slot]])
            if not running:
                return
            patience = min(slot.deadline for slot in running) - time.monotonic()
            channels = [slot.channel for slot in running if slot.channel is not None]
            wait(channels, timeout=max(0.0, min(patience, _LOOK_INTERVAL)))
            for slot in list(running):
                if slot.advance():
                    outcome = outcomes[running.pop(slot)] = slot.outcome
                    if stop_early and isinstance(outcome, Failure):
                        return


class _Slot:
    """One worker process, started when it is first needed and again after it had to be killed."""

    def __init__(self) -> None:
        self.channel: socket.socket | None = None
        self.busy = False
        self.deadline = 0.0
        self.outcome: Outcome = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = -1
        self._loaded: set[int] = set()
        self._job = Job(-1, Source("builtin", ""), "", 0.0)
        self._loading = False

    def begin(self, job: Job) -> None:
        """Give it a job; `advance` tells when it is done."""
        self._job, self.busy = job, True
        if self._process is not None and self._process.poll() is not None:
            self.kill()  # it died between two calls
        if self._process is None:
            self._start()
        self.busy = True
        self._loading = job.key not in self._loaded or job.arguments is None
        if self._loading:
            self._send(("load", job.key, job.source), LOAD_LIMIT)
        else:
            self._send(("call", job.key, job.arguments, job.count), job.limit)

    def advance(self) -> bool:
        """Take what the worker has said; True once `outcome` is the job's."""
        if not self.busy:  # the job could not even be sent
            return True
        assert self.channel is not None
        assert self._process is not None
        if wait([self.channel], timeout=0):
            return self._hear()
        if self._process.poll() is not None and not wait([self.channel], timeout=0):
            return self._finish(self._epitaph())
        if time.monotonic() > self.deadline:
            limit = LOAD_LIMIT if self._loading else self._job.limit
            doing = "did not finish importing within" if self._loading else "overran its time limit of"
            self.kill()
            return self._finish(Failure(f"{doing} {limit:g} s", hint="make it faster, or raise time_limit"))
        return False

    def kill(self) -> None:
        """End the process and the processes that it started, whatever they are doing."""
        if self._process is not None:
            self._kill_group()
            self._process.wait()
        self._forget()

    def close(self) -> None:
        """Let an idle worker leave in good order, then make sure."""
        if self._process is not None and self.channel is not None and not self.busy:
            self.channel.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=2.0)
        self.kill()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        read, self._lifeline = os.pipe()
        self.channel = ours
        paths = json.dumps([path for path in sys.path if isinstance(path, str)])
        command = [sys.executable, "-P", "-c", _BOOT, str(theirs.fileno()), str(read), paths]
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
            raise RunError(f"a reward worker cannot be started: {error}") from error
        finally:
            theirs.close()
            os.close(read)

    def _send(self, message: Any, limit: float) -> None:
        assert self.channel is not None
        self.deadline = time.monotonic() + limit
        self.channel.settimeout(limit)
        try:
            send(self.channel, message)
        except OSError:
            self.kill()
            self._finish(Failure("lost its worker process while it was given its samples"))
        except Exception as error:  # noqa: BLE001 - pickle raises what the columns' own classes raise
            self._finish(Failure(f"cannot be given its arguments: {describe(error)}", hint="columns must be picklable"))

    def _hear(self) -> bool:
        assert self.channel is not None
        try:
            body = receive(self.channel)
        except OSError:
            body = None
        if body is None:
            return self._finish(self._epitaph())
        message = pickle.loads(body)  # noqa: S301  replaced by a closed format in the commits that follow
        if self._loading and isinstance(message, Parameters):
            self._loaded.add(self._job.key)
            self._loading = False
            if self._job.arguments is not None:
                self._send(("call", self._job.key, self._job.arguments, self._job.count), self._job.limit)
                return not self.busy
        return self._finish(message)

    def _finish(self, outcome: Outcome) -> bool:
        self.outcome, self.busy, self.deadline = outcome, False, 0.0
        return True

    def _epitaph(self) -> Failure:
        assert self._process is not None
        try:
            code = self._process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:  # it lives on, and has closed the socket
            return Failure("broke the connection to its worker process")
        finally:
            self.kill()
        if code < 0:
            hint = "the system kills processes when memory runs out" if -code == signal.SIGKILL else None
            return Failure(f"was killed by signal {-code} together with its process", hint=hint)
        return Failure(f"ended its process with exit code {code}")

    def _kill_group(self) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError, PermissionError):  # nobody is left in the group
            os.killpg(self._process.pid, signal.SIGKILL)

    def _forget(self) -> None:
        if self.channel is not None:
            self.channel.close()
        if self._lifeline >= 0:
            os.close(self._lifeline)
        self.channel, self._process, self._lifeline, self.busy = None, None, -1, False
        self._loaded.clear()
