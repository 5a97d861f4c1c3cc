"""Reward functions that write to their worker's own connection: an error by name, and nothing runs in this process."""

from __future__ import annotations

from multiprocessing.connection import wait

import pytest
from rewards_support import make_group, values, write

from reinlm.errors import RunError
from reinlm.rewards import TrainerState, build_rewards

pytestmark = pytest.mark.no_cover

GROUPS = [make_group("a:1", ["x", "y"])]

TOOLS = """
import json, os, pickle, stat, struct, sys, threading, time

def sockets():
    return [fd for fd in range(3, 64) if open_socket(fd)]

def open_socket(fd):
    try:
        return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError:
        return False

def send(data):
    assert len(sockets()) == 1
    os.write(sockets()[0], data)

def frame(body):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"RLM1" + struct.pack(">Q", len(body)) + body

def number():
    place = sys._getframe()
    while place.f_code.co_name != "main":
        place = place.f_back
    return place.f_locals["number"]

def result(entries):
    return frame([number(), "value", {"entries": entries, "metrics": {}, "extra": {}}])

class Evil:
    def __reduce__(self):
        return os.system, ("touch " + MARK,)

def score(completions, trainer_state):
    if not trainer_state.global_step:
        ACTION
    return [1.0, 2.0]
"""

ACTIONS = {
    "text": ("send(b'hello')", "sent bytes that are no frame: b'hello"),
    "text to all descriptors": (
        "[os.write(fd, b'x' * 20) for fd in (1, *sockets())]",
        "sent bytes that are no frame: b'xxxx",
    ),
    "a pickle": ("send(pickle.dumps(Evil()))", "sent bytes that are no frame"),
    "a pickle in a frame": ("send(frame(pickle.dumps(Evil())))", "sent a frame that is no JSON"),
    "a pickle as the result": (
        "send(result(pickle.dumps(Evil(), 0).decode()))",
        "sent a reply of an unknown shape: '.*' instead of 2 entries",
    ),
    "the result, and then the worker's own": (
        "send(result([None, None]))",
        "sent (more than one reply|a reply to call 3 while call 4)",
    ),
    "the result twice": (
        "send(result([None, None]) * 2)",
        "sent more than one reply to a call",
    ),
    "a reply to another call": (
        "send(frame([number() + 1, 'value', [None, None]]))",
        "sent a reply to call 4 while call 3 was in flight",
    ),
    "a reply to an earlier call": (
        "send(frame([number() - 1, 'value', None]))",
        "sent a reply to call 2 while call 3 was in flight",
    ),
    "a reply to call true": ("send(frame([True, 'value', None]))", "sent a message of an unknown shape"),
    "a mapping": ("send(frame({'a': 1}))", "sent a message of an unknown shape: {'a': 1}"),
    "nothing": ("send(frame(b''))", "sent a frame that is no JSON: b''"),
    "endless nesting": ("send(frame(b'[' * 10**5))", "sent a frame that is no JSON"),
    "a frame without end": (
        "send(b'RLM1' + struct.pack('>Q', 2**40))",
        "sent a frame of 1099511627776 bytes, more than the limit",
    ),
    "one entry too few": (
        "send(result([None]))",
        r"sent a reply of an unknown shape: \[None\] instead of 2 entries",
    ),
    "no finite number": (
        "send(result([1.0, float('nan')]))",
        "sent a reply of an unknown shape: nan instead of an entry",
    ),
    "text for a number": ("send(result([1.0, '2']))", "sent a reply of an unknown shape: '2'"),
    "a step on no token": (
        "send(result([1.0, {'steps': [[0.5, 1.0]], 'characters': [], 'outcome': None}]))",
        "sent a reply of an unknown shape: {'characters'",
    ),
    "entries alone": (
        "send(frame([number(), 'value', [1.0, 2.0]]))",
        r"sent a reply of an unknown shape: \[1.0, 2.0\] ",
    ),
    "a metric that is no sum": (
        "send(frame([number(), 'value', {'entries': [1.0, 2.0], 'metrics': {'a': [1.0, 0]}, 'extra': {}}]))",
        "sent a reply of an unknown shape: {'entries'",
    ),
    "an error that is no text": ("send(frame([number(), 'raised', 3]))", "sent a message of an unknown shape"),
}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_what_is_no_reply_to_the_call_in_flight_fails_it(tmp_path, action, on_error):
    body, message = ACTIONS[action]
    mark = tmp_path / "mark"
    file = write(tmp_path, TOOLS.replace("MARK", repr(str(mark))).replace("ACTION", body))
    with build_rewards(f"{file}:score", on_error=on_error, time_limit=10) as rewards:
        if on_error == "stop":
            with pytest.raises(RunError, match=f"reward 'score' {message}.*a:1, answer 1 of 2"):
                rewards.score(GROUPS)
        else:
            scored = rewards.score(GROUPS)
            assert scored.failures == {"score": 2}
            assert values(scored) == [[], []]
        assert values(rewards.score(GROUPS, TrainerState(1))) == [[1.0], [2.0]]
    assert not mark.exists()


def test_bytes_between_two_calls_fail_the_next_one(tmp_path):
    file = write(
        tmp_path,
        TOOLS.replace("MARK", "''").replace(
            "ACTION", "n = number(); threading.Timer(0.2, lambda: send(frame([n, 'value', [None, None]]))).start()"
        ),
    )
    with build_rewards(f"{file}:score", time_limit=10) as rewards:
        assert values(rewards.score(GROUPS)) == [[1.0], [2.0]]
        pool = rewards._rewards[0].pool
        assert pool is not None
        channel = pool._workers[0]._channel
        assert channel is not None
        assert wait([channel], timeout=5)
        with pytest.raises(RunError, match=r"reward 'score' sent b'RLM1.*' while no call was in flight"):
            rewards.score(GROUPS, TrainerState(1))
        assert values(rewards.score(GROUPS, TrainerState(1))) == [[1.0], [2.0]]


def test_a_program_that_a_function_starts_does_not_inherit_the_connection(tmp_path):
    body = (
        "import os, subprocess, sys\n"
        "CODE = 'import os; print(sum(os.path.exists(f\"/dev/fd/{fd}\") for fd in range(3, 256)))'\n"
        "def score(completions):\n"
        "    with open(os.devnull) as unrelated:\n"
        "        run = subprocess.run([sys.executable, '-c', CODE], close_fds=False, capture_output=True, text=True)\n"
        "    return [float(run.stdout), 0.0]"
    )
    with build_rewards(f"{write(tmp_path, body)}:score") as rewards:
        assert values(rewards.score(GROUPS)) == [[0.0], [0.0]]
