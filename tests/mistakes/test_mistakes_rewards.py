"""What people write by mistake in reward functions: one line says what to write instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reinlm.errors import ReinlmError
from reinlm.records import NO_TURN, Rollout, RolloutGroup, Segment, Task
from reinlm.rewards import build_rewards

FILE = """
import asyncio, math
import numpy as np

def scalar(completions): return 1.0
def tensor_scalar(completions): return np.float32(1.0)
def text(completions): return "1.0"
def texts(completions): return ["1.0", "2.0"]
def mapping(completions): return {"score": 1.0}
def nothing(completions): sum(map(len, completions))
def short(completions): return [1.0]
def nested(completions): return [[1.0], [2.0]]
def entries(completions): return [{"score": 1.0}, {"score": 2.0}]
def generator(completions): yield from (1.0 for _ in completions)
async def async_generator(completions): yield 1.0
def generated(completions): return (1.0 for _ in completions)
def nan(completions): return [math.nan, 1.0]
def unordered(completions): return {1.0, 2.0}
def unawaited(completions): return [asyncio.sleep(0, 1.0) for _ in completions]
def one_list(completion): return [1.0 for _ in completion]
def response(response): return [1.0]
def responses(responses): return [1.0]
def label(completions, anwser): return [1.0, 2.0]
def absent(completions, ground_truths): return [1.0, 2.0]
def positional(completions, /): return [1.0, 2.0]
def other(data_source, solution_str, ground_truth): return 1.0
def environments(completions, environments): return [1.0, 2.0]
def logs(completions, log_metric):
    log_metric("a b", 1.0)
    return [1.0, 2.0]
class Judge:
    def __call__(self, completions): return [1.0, 2.0]
VALUE = 3
"""

CASES = {
    "scalar": "returned 1.0 instead of a list of 2 values.*one number for each answer, not one number for all",
    "tensor_scalar": "instead of a list of 2 values.*not one number for all",
    "text": "returned '1.0' instead of a list.*float\\(text\\) makes one of text",
    "texts": "returned '1.0'.*float\\(text\\) makes one of text",
    "mapping": "instead of a list.*return a list of numbers",
    "nothing": "returned None instead of a list.*end the function with `return`",
    "short": "returned 1 values for 2 samples.*one number for each entry of `completions`",
    "nested": "returned \\[1.0\\].*one number for each answer",
    "entries": "returned {'score': 1.0}.*return the number alone",
    "generator": "it is a generator.*return a list of numbers instead of `yield`",
    "async_generator": "it is a generator.*return a list",
    "generated": "the function is a generator: return a list",
    "nan": "returned nan.*return a finite number, or None",
    "unordered": "a set has no order: return a list",
    "unawaited": "await it: make the function `async def`",
    "one_list": "returned \\[1.0.*return one number, or take `completions`",
    "response": "needs the argument 'response'.*did you mean 'completions'",
    "responses": "needs the argument 'responses'.*did you mean 'completions'",
    "label": "needs the argument 'anwser'.*did you mean 'answer'",
    "absent": "needs the argument 'ground_truths', which is no column.*columns: answer",
    "positional": "positional-only arguments.*remove the '/'",
    "environments": "an environment's own rewards count without a function",
    "logs": "log_metric takes a name of letters, digits",
    "Judge": "Judge is a class.*give an instance of it: Judge\\(…\\)",
    "VALUE": "is not a function but int",
    "scalr": "has no function 'scalr'.*did you mean 'scalar'",
}


def group(**columns: Any) -> RolloutGroup:
    task = Task("data[0]", "1+1=", columns)
    columns_of_tokens = {"rollout_logprobs": np.zeros(1), "version": np.zeros(1)}
    segment = Segment(np.array([1, 2]), np.array([NO_TURN, 0]), columns_of_tokens)
    made = (Rollout(task, (segment,), text, terminated=True, truncated=False, reason="stop") for text in ("2", "3"))
    return RolloutGroup(task, tuple(made))


def one_line(error: ReinlmError) -> None:
    assert "\n" not in str(error)
    assert error.hint
    assert "Traceback" not in str(error)


@pytest.fixture(scope="module")
def file(tmp_path_factory: Any) -> str:
    path = tmp_path_factory.mktemp("mistakes") / "mine.py"
    path.write_text(FILE)
    return str(path)


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_is_answered_with_what_to_write_from_python(name: str, file: str) -> None:
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(FILE, scope)
    if name not in scope or name == "VALUE":
        with pytest.raises(ReinlmError, match=f"(?s){CASES[name]}"):
            build_rewards(f"{file}:{name}")
        return
    with (
        pytest.raises(ReinlmError, match=f"(?s){CASES[name]}") as caught,
        build_rewards(scope[name], time_limit=None) as made,
    ):
        made.score([group(answer="2")])
    one_line(caught.value)


def test_the_same_is_said_of_functions_in_files(file: str) -> None:
    for name in ("scalar", "unawaited", "one_list", "label"):
        with pytest.raises(ReinlmError, match=f"(?s){CASES[name]}") as caught, build_rewards(f"{file}:{name}") as made:
            made.score([group(answer="2")])
        one_line(caught.value)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mine.py:score", r"no such file: mine.py.*looked for .*/mine.py"),
        ("mine.py", r"names a file and no function.*write mine.py:FUNCTION"),
        ("mine:", r"cannot be read.*write file.py:function"),
        ("mth", r"unknown reward 'mth'.*did you mean 'math'"),
        (3, r"3 is not a reward.*give a name, a function"),
        ([], r"no reward is given"),
    ],
)
def test_places_that_do_not_exist_say_where_was_looked(
    spec: Any, message: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ReinlmError, match=f"(?s){message}"):
        build_rewards(spec)


def test_a_client_without_its_key_is_an_error_before_the_run(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.delenv("SOME_JUDGE_KEY", raising=False)
    path = tmp_path / "judge.py"
    path.write_text(
        "import os\nKEY = os.environ['SOME_JUDGE_KEY']\ndef judge(completions): return [1.0] * len(completions)\n"
    )
    with pytest.raises(ReinlmError, match=r"cannot be imported: KeyError: 'SOME_JUDGE_KEY' \(.*judge.py:2\)"):
        build_rewards(f"{path}:judge")


def test_verl_s_function_needs_a_gold_column_and_takes_the_usual_ones() -> None:
    def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> Any:
        return {"score": float(solution_str == ground_truth), "length": len(solution_str)}

    with build_rewards(compute_score) as made:
        for columns in ({"answer": "2"}, {"reward_model": {"ground_truth": "2"}}, {"ground_truth": "2", "answer": "3"}):
            scored = made.score([group(**columns)])
            assert [event.value for events in scored.groups[0].events for event in events] == [1.0, 0.0]
            assert scored.usage["compute_score"].metrics == {"length": (2.0, 2)}
        with pytest.raises(ReinlmError, match=r"needs the argument 'ground_truth'.*columns: other"):
            made.score([group(other=1)])


@pytest.mark.parametrize(
    "result",
    [np.array([0.0, 1.0]), torch.tensor([0.0, 1.0]), [False, True], (0, 1), [np.float32(0), torch.tensor(1.0)]],
    ids=["array", "tensor", "bools", "tuple", "scalars"],
)
def test_what_means_the_same_is_taken(result: Any) -> None:
    with build_rewards(lambda completions: result, time_limit=None) as made:
        events = made.score([group()]).groups[0].events
    assert [event.value for one in events for event in one] == [0.0, 1.0]
