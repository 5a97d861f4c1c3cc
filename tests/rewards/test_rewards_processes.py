"""What user functions do to a worker process, and what becomes of the processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from rewards_support import make_group, values, write

from reinlm.errors import InputError, RunError
from reinlm.rewards import TrainerState, build_rewards, calls

pytestmark = pytest.mark.no_cover

GROUPS = [make_group("a:1", ["x", "y"], column="c")]


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid: int, seconds: float = 10.0) -> bool:
    """Whether it ends within some seconds."""
    deadline = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("while True: pass", "overran its time limit of 0.5 s"),
        ("import re; re.match('(a+)+$', 'a' * 60 + 'b')", "overran its time limit of 0.5 s"),
        ("import time; time.sleep(60)", "overran its time limit of 0.5 s"),
        ("import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)", "overran its time limit of 0.5 s"),
        ("import sys; sys.exit(0)", "raised SystemExit: 0 "),
        ("import os; os._exit(0)", "ended its process with exit code 0"),
        ("import os; os.kill(os.getpid(), 9)", "was killed by signal 9"),
        ("import os; os.closerange(3, 100); import time; time.sleep(60)", "broke the connection"),
        ("import os; os.fork() or __import__('time').sleep(60); os._exit(7)", "ended its process with exit code 7"),
        ("raise type('Odd', (Exception,), {'__str__': lambda self: 1 / 0})()", "raised Odd: .*cannot be printed"),
        ("raise type('Bare', (BaseException,), {'__reduce__': None})('hm')", "raised Bare: hm"),
        ("return [lambda: 0, 1.0]", "returned <function"),
        ("return [1.0]", "returned 1 values for 2 samples"),
        ("return [float('nan'), 1.0]", "returned nan for a:1, answer 1 of 2"),
        ("return open('/dev/null')", "returned <_io.TextIOWrapper.* instead of a list of 2 values"),
    ],
)
def test_a_failure_is_named_and_the_next_call_works(tmp_path, body, message):
    file = write(
        tmp_path,
        f"def score(completions, trainer_state):\n    if trainer_state.global_step: return [1.0, 2.0]\n    {body}",
    )
    with build_rewards(f"{file}:score", time_limit=0.5) as rewards:
        with pytest.raises(RunError, match=f"reward 'score' {message}") as caught:
            rewards.score(GROUPS)
        caught.match("a:1, answer 1 of 2")
        assert values(rewards.score(GROUPS, TrainerState(1))) == [[1.0], [2.0]]


def test_skipped_failures_are_counted_call_by_call(tmp_path):
    file = write(tmp_path, "import os\ndef score(completions): os._exit(1)\ndef fine(completions): return [1.0, 2.0]")
    with build_rewards([f"{file}:score", f"{file}:fine"], on_error="skip") as rewards:
        for _ in range(2):
            scored = rewards.score(GROUPS)
            assert values(scored) == [[], []]
            assert scored.failures == {"score": 2, "fine": 0}
            assert scored.messages == {
                "score": "reward 'score' ended its process with exit code 1 for a:1, answer 1 of 2"
            }


def test_prints_do_not_disturb_the_answers_nor_standard_output(tmp_path, capfd):
    body = (
        "import os, subprocess\ndef score(completions):\n    print('loud', flush=True)\n    os.write(1, b'raw')\n"
        "    subprocess.run(['echo', 'child'])\n    return [1.0, 2.0]"
    )
    with build_rewards(f"{write(tmp_path, body)}:score") as rewards:
        assert values(rewards.score(GROUPS)) == [[1.0], [2.0]]
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "loud" in captured.err


def test_a_child_that_comes_back_from_the_function_too_does_not_answer(tmp_path):
    body = "import os\ndef score(completions, column):\n    os.fork()\n    return [float(c) for c in column]"
    with build_rewards(f"{write(tmp_path, body)}:score") as rewards:
        for value in (1.0, 2.0, 3.0):
            assert values(rewards.score([make_group("a:1", ["x"], column=value)])) == [[value]]


def test_hashes_of_text_are_the_same_in_every_worker(tmp_path):
    file = write(tmp_path, "def score(completions): return [hash('a') % 10**9, hash('b') % 10**9]")
    with build_rewards([f"{file}:score"] * 2) as rewards:
        assert all(first == second for first, second in values(rewards.score(GROUPS)))


def test_input_finds_nothing_to_read(tmp_path):
    file = write(tmp_path, "def score(completions): return [input(), 1.0]")
    with build_rewards(f"{file}:score", time_limit=20) as rewards, pytest.raises(RunError, match="EOFError"):
        rewards.score(GROUPS)


def test_a_function_keeps_its_module_from_call_to_call(tmp_path):
    body = "CALLS = []\ndef score(completions):\n    CALLS.append(1)\n    return [len(CALLS)] * 2"
    file = write(tmp_path, body)
    with build_rewards([f"{file}:score", f"{file}:score"]) as rewards:
        assert [values(rewards.score(GROUPS)) for _ in range(3)] == [[[n, n]] * 2 for n in (1, 2, 3)]


def test_workers_load_no_torch(tmp_path):
    file = write(
        tmp_path, "import sys\ndef score(completions): return ['torch' in sys.modules, 'transformers' in sys.modules]"
    )
    with build_rewards(f"{file}:score") as rewards:
        assert values(rewards.score(GROUPS)) == [[0.0], [0.0]]


def test_large_columns_travel(tmp_path):
    file = write(tmp_path, "def score(completions, column): return [len(text) for text in column]")
    with build_rewards(f"{file}:score") as rewards:
        assert values(rewards.score([make_group("a:1", ["x", "y"], column="c" * 3_000_000)])) == [[3e6], [3e6]]


def test_a_column_of_a_type_that_cannot_be_sent_is_an_error_that_names_both(tmp_path):
    file = write(tmp_path, "def score(completions, column): return [0, 0]\ndef blind(completions): return [1, 2]")
    groups = [make_group("a:1", ["x", "y"], column=threading.Lock())]
    message = "reward 'score': it cannot be given the column 'column': a value of the type _thread.lock cannot be sent"
    with build_rewards(f"{file}:score") as rewards:
        with pytest.raises(InputError, match=message):
            rewards.check([group.task for group in groups])
        with pytest.raises(InputError, match=message):
            rewards.score(groups)
        assert values(rewards.score(GROUPS)) == [[0.0], [0.0]]
    with build_rewards(f"{file}:blind") as rewards:
        rewards.check([group.task for group in groups])
        assert values(rewards.score(groups)) == [[1.0], [2.0]]


def test_rewards_run_at_the_same_time(tmp_path):
    body = (
        "import time\ndef first(completions):\n    time.sleep(1)\n    return [1, 1]\n"
        "def second(completions):\n    time.sleep(1)\n    return [2, 2]"
    )
    file = write(tmp_path, body)
    with build_rewards([f"{file}:first", f"{file}:second"]) as rewards:
        start = time.monotonic()
        assert values(rewards.score(GROUPS)) == [[1.0, 2.0]] * 2
        assert time.monotonic() - start < 1.9


def test_a_worker_that_died_between_two_calls_is_replaced(tmp_path):
    file = write(tmp_path, "import os\ndef score(completions): return [os.getpid(), 0]")
    with build_rewards(f"{file}:score") as rewards:
        (pid,), _ = values(rewards.score(GROUPS))
        os.kill(int(pid), signal.SIGKILL)
        assert gone(int(pid))
        (other,), _ = values(rewards.score(GROUPS))
        assert other != pid


def test_an_import_that_hangs_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(calls, "LOAD_LIMIT", 2.0)
    file = write(tmp_path, "while True: pass")
    with pytest.raises(ValueError, match="reward 'score': did not finish importing within 2 s"):
        build_rewards(f"{file}:score")


def test_interrupting_a_call_leaves_no_stale_answer(tmp_path, monkeypatch):
    file = write(
        tmp_path,
        "import time\ndef score(completions, column):\n    time.sleep(0.5)\n    return [float(c) for c in column]",
    )
    with build_rewards(f"{file}:score") as rewards:
        timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            rewards.score([make_group("a:1", ["x"], column=1)])
        assert values(rewards.score([make_group("a:1", ["x"], column=2)])) == [[2.0]]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("busy", ["while True: pass", "import re; re.match('(a+)+$', 'a' * 60 + 'b')", "return [1.0]"])
@pytest.mark.parametrize("guarded", [False, True])
def test_no_process_outlives_a_main_program_that_is_killed(tmp_path, busy, guarded):
    """The main program is an unguarded script: workers must not run it again."""
    folder = tmp_path / "pids"
    folder.mkdir()
    note = f"open({str(folder)!r} + '/' + str(PID), 'w').close()"
    file = write(
        tmp_path,
        "import os, subprocess\ndef score(completions):\n"
        f"    {note.replace('PID', 'os.getpid()')}\n    child = subprocess.Popen(['sleep', '600'])\n"
        f"    {note.replace('PID', 'child.pid')}\n    {busy}",
    )
    script = (
        f"import sys, time\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from rewards_support import make_group\nfrom reinlm.rewards import build_rewards\n"
        f"rewards = build_rewards({file + ':score'!r})\nrewards.score([make_group('a:1', ['x'])])\ntime.sleep(600)\n"
    )
    if guarded:
        script = "if __name__ == '__main__':\n    " + script.replace("\n", "\n    ")
    main = subprocess.Popen([sys.executable, write(tmp_path, script, "script.py")])
    deadline = time.monotonic() + 30
    while len(list(folder.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    main.kill()
    main.wait()
    pids = [int(path.name) for path in folder.iterdir()]
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_close_ends_the_workers_and_their_children(tmp_path):
    body = "import os, subprocess\ndef score(completions): return [os.getpid(), subprocess.Popen(['sleep', '600']).pid]"
    with build_rewards([f"{write(tmp_path, body)}:score", {"regex": {"pattern": "x"}}]) as rewards:
        pids = [int(events[0]) for events in values(rewards.score(GROUPS))]
        assert all(alive(pid) for pid in pids)
    assert all(gone(pid) for pid in pids)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("ends", ["closed", "killed"])
def test_what_a_function_starts_in_a_session_of_its_own_ends_with_the_worker(tmp_path, ends):
    """A child that called setsid, and a grandchild whose parent has ended already."""
    note = tmp_path / "pid"
    body = (
        "import subprocess, time\n"
        "def score(completions, trainer_state):\n"
        "    child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "    orphan = subprocess.run(['setsid', 'sh', '-c', 'sleep 600 >/dev/null 2>&1 & echo $!'], capture_output=True)\n"
        f"    open({str(note)!r}, 'w').write(f'{{child.pid}} {{int(orphan.stdout)}}')\n"
        "    time.sleep(600 * trainer_state.global_step)\n"
        "    return [0.0 for _ in completions]"
    )
    with build_rewards(f"{write(tmp_path, body)}:score", time_limit=3, on_error="skip") as rewards:
        failures = rewards.score(GROUPS, TrainerState(int(ends == "killed"))).failures
        assert failures["score"] == (2 if ends == "killed" else 0)
        pids = [int(pid) for pid in note.read_text().split()]
        assert ends == "killed" or all(alive(pid) for pid in pids)
    assert all(gone(pid) for pid in pids)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_set_that_is_forgotten_ends_its_workers(tmp_path):
    file = write(tmp_path, "import os\ndef score(completions): return [os.getpid(), 0]")
    rewards = build_rewards(f"{file}:score")
    (pid,), _ = values(rewards.score(GROUPS))
    del rewards
    assert gone(int(pid))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_copy_of_the_main_process_leaves_the_workers_alone(tmp_path):
    file = write(tmp_path, "import os\ndef score(completions): return [os.getpid(), 0]")
    with build_rewards(f"{file}:score") as rewards:
        (before,), _ = values(rewards.score(GROUPS))
        child = os.fork()
        if child == 0:
            rewards.close()
            os._exit(0)
        os.waitpid(child, 0)
        (after,), _ = values(rewards.score(GROUPS))
        assert after == before


def test_the_main_program_may_come_from_standard_input(tmp_path):
    """As in a REPL: there is no main file to import, and a function of `__main__` runs in place."""
    write(tmp_path, "def score(completions): return [0.5 for _ in completions]")
    script = (
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from rewards_support import make_group, values\nfrom reinlm.rewards import build_rewards\n"
        "def here(completions): return [0.25 for _ in completions]\n"
        "with build_rewards(['mine.py:score', here, 'math']) as rewards:\n"
        "    print(values(rewards.score([make_group('a:1', ['4'], answer='4')])))\n"
    )
    done = subprocess.run(
        [sys.executable, "-"], input=script, capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.stdout.strip() == "[[0.5, 0.25, 1.0]]", done.stderr
    assert done.stderr == ""
