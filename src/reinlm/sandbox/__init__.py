"""Processes with limits, for code that the trainer must not run itself: reward functions, tools, programs.

    pool = WorkerPool("reinlm.rewards.service")
    future = pool.submit(lambda worker: worker.call("load", {"key": 0, "source": source}, limit=60.0))

Messages are JSON in frames with a length, and each reply carries the number of its call: nothing that a process sends is
run here, and what is no reply to the call in flight is a `WorkerError`. `pool` has the queues, `worker` one process,
`plain` the encoding of arguments, `frames` the messages, `child` what the process runs. This file imports none of them,
so that a worker starts in a tenth of a second.
"""
