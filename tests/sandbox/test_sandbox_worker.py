from __future__ import annotations

import asyncio
import gc
import os
import time

import pytest

from reinlm.errors import RunError
from reinlm.plain import decode, encode
from reinlm.sandbox.pool import WorkerPool, end_kept
from reinlm.sandbox.worker import OverrunError, Worker, WorkerError

SERVICE = "sandbox_support"


@pytest.fixture
def worker():
    worker = Worker(SERVICE)
    worker.start()
    yield worker
    worker.close()


@pytest.fixture
def pool():
    pool = WorkerPool(SERVICE)
    yield pool
    pool.close()


def call(method, limit=10.0, **arguments):
    """A task that makes one call."""

    def task(worker):
        worker.start()
        return worker.call(method, arguments, limit)

    return task


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_arguments_arrive_decoded_and_results_come_back(worker):
    name, value = worker.call("same", {"value": encode((1, b"\xff"))}, limit=10)
    assert name == "tuple"
    assert decode(value) == (1, b"\xff")


def test_what_a_method_raises_is_told_and_the_process_lives_on(worker):
    pid = worker.call("pid", {}, limit=10)
    with pytest.raises(WorkerError, match="raised ValueError: boom"):
        worker.call("fail", {"text": "boom"}, limit=10)
    assert worker.call("pid", {}, limit=10) == pid


def test_a_process_that_ended_is_told_and_replaced_with_nothing_prepared(worker):
    worker.prepared.add("a")
    worker.start()
    assert worker.prepared == {"a"}
    with pytest.raises(WorkerError, match="ended its process with exit code 5"):
        worker.call("leave", {"status": 5}, limit=10)
    worker.start()
    assert worker.prepared == set()
    assert worker.call("sleep", {"seconds": 0, "value": 3}, limit=10) == 3


def test_a_call_that_overruns_is_killed(worker):
    pid = worker.call("pid", {}, limit=10)
    start = time.monotonic()
    with pytest.raises(OverrunError, match=r"overran its time limit of 0.3 s"):
        worker.call("sleep", {"seconds": 60}, limit=0.3)
    assert time.monotonic() - start < 5
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_arguments_that_nobody_reads_are_given_up_at_the_limit(worker):
    os.kill(worker.call("pid", {}, limit=10), 19)  # SIGSTOP
    with pytest.raises(OverrunError, match=r"overran its time limit of 0.3 s"):
        worker.call("same", {"value": "x" * 10_000_000}, limit=0.3)


def test_a_result_that_read_refuses_ends_the_process(worker):
    def read(value):
        raise ValueError(f"{value} instead of 4")

    pid = worker.call("pid", {}, limit=10)
    with pytest.raises(WorkerError, match="sent a reply of an unknown shape: 3 instead of 4"):
        worker.call("sleep", {"seconds": 0, "value": 3}, 10, read)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_pool_of_one_runs_its_tasks_in_order_in_one_process(pool, tmp_path):
    path = tmp_path / "notes"
    futures = [pool.submit(call("note", path=str(path), text=str(number))) for number in range(50)]
    pids = {pool.submit(call("pid")).result() for _ in range(3)}
    assert all(future.done() for future in futures)
    assert path.read_text().split() == [str(number) for number in range(50)]
    assert len(pids) == 1


def test_a_pool_of_two_runs_two_tasks_at_a_time():
    pool = WorkerPool(SERVICE, width=2)
    try:
        pids = [pool.submit(call("pid")).result() for _ in range(3)]
        assert len(set(pids)) == 1  # the second process starts when there is work for it
        start = time.monotonic()
        for future in [pool.submit(call("sleep", seconds=1.0)) for _ in range(2)]:
            future.result()
        assert time.monotonic() - start < 1.9
    finally:
        pool.close()


def test_a_task_that_is_cancelled_in_the_queue_never_runs_and_one_that_runs_is_ended(pool, tmp_path):
    pid = pool.submit(call("pid")).result()
    path = tmp_path / "notes"
    path.touch()
    running = pool.submit(call("sleep", seconds=60, limit=60))
    queued = pool.submit(call("note", path=str(path), text="never"))
    after = pool.submit(call("pid"))
    while not running.running():
        time.sleep(0.01)
    pool.cancel(queued)
    pool.cancel(running)
    with pytest.raises(WorkerError, match="was interrupted"):
        running.result(timeout=5)
    assert after.result(timeout=10) != pid
    assert path.read_text() == ""
    pool.cancel(after)  # done: nothing to end
    assert pool.submit(call("sleep", seconds=0, value=1)).result(timeout=10) == 1


def test_the_event_loop_is_free_while_a_pool_works(pool):
    async def main():
        ticks = 0
        future = asyncio.wrap_future(pool.submit(call("sleep", seconds=0.5, value="done")))
        while not future.done():
            await asyncio.sleep(0.01)
            ticks += 1
        return ticks, await future

    ticks, value = asyncio.run(main())
    assert value == "done"
    assert ticks > 10


def test_closing_ends_the_call_in_flight_and_cancels_those_in_the_queue():
    pool = WorkerPool(SERVICE)
    pid = pool.submit(call("pid")).result()
    running = pool.submit(call("sleep", seconds=60, limit=60))
    queued = pool.submit(call("pid"))
    while not running.running():
        time.sleep(0.01)
    start = time.monotonic()
    pool.close()
    assert time.monotonic() - start < 5
    with pytest.raises(WorkerError, match="was interrupted"):
        running.result()
    assert queued.cancelled()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_closing_from_a_thread_of_the_pool_itself_does_not_wait_for_it():
    pool = WorkerPool(SERVICE)
    pool.submit(lambda worker: pool.close()).result(timeout=10)


def test_a_pool_keeps_no_object_of_a_task_that_is_done(pool):
    import weakref

    class Thing:
        pass

    thing = Thing()
    gone = weakref.ref(thing)
    pool.submit(lambda worker, thing=thing: None).result()
    del thing
    deadline = time.monotonic() + 5
    while gone() is not None and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert gone() is None


def test_a_forked_process_cannot_use_the_pool(pool):
    assert pool.submit(call("sleep", seconds=0, value=1)).result() == 1
    child = os.fork()
    if child == 0:
        try:
            pool.submit(call("pid"))
        except RunError:
            os._exit(3)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


def test_a_pool_that_keeps_its_processes_leaves_them_to_the_next_one():
    end_kept()
    pids = []
    for _ in range(2):
        pool = WorkerPool(SERVICE, width=2, keep=True)
        pids.append(pool.submit(call("pid")).result())
        pool.close()
    assert pids[0] == pids[1]
    other = WorkerPool(SERVICE)
    assert other.submit(call("pid")).result() != pids[0]
    other.close()
    assert alive(pids[0])
    end_kept()
    assert not alive(pids[0])


def test_a_process_in_a_call_is_not_kept():
    end_kept()
    pool = WorkerPool(SERVICE, keep=True)
    pid = pool.submit(call("pid")).result()
    future = pool.submit(call("sleep", 60.0, seconds=60))
    time.sleep(0.2)
    pool.close()
    assert future.done()
    assert not alive(pid)
    again = WorkerPool(SERVICE, keep=True)
    assert again.submit(call("pid")).result() != pid
    again.close()
    end_kept()
