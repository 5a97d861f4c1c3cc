"""Processes with limits, for code that the trainer must not run itself: reward functions, tools, programs.

    lane = Lane("reinlm.rewards.service")
    future = lane.submit(lambda worker: worker.call("load", {"key": 0, "source": source}, limit=60.0))

Messages are JSON in frames with a length, and each reply carries the number of its call: nothing that a process sends is
run here, and what is no reply to the call in flight is a `WorkerError`.
"""

from reinlm.sandbox.lanes import Lane
from reinlm.sandbox.plain import decode, encode
from reinlm.sandbox.worker import IN_WORKER, Overrun, Worker, WorkerError

__all__ = ["IN_WORKER", "Lane", "Overrun", "Worker", "WorkerError", "decode", "encode"]
