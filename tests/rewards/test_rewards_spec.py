from __future__ import annotations

import functools
import os

import pytest
from rewards_support import longer_is_better, make_group, slowly, values, write

from reinlm.config import build
from reinlm.errors import InputError
from reinlm.parts import PARTS, load_imports
from reinlm.rewards import RewardConfig, build_rewards
from reinlm.rewards.spec import read_spec


class Judge:
    def __call__(self, completions):
        return [3.0 for _ in completions]


def test_every_form_of_a_reward_is_found_with_its_name_and_weight(tmp_path):
    file = write(tmp_path, "def half(completions): return [0.5 for _ in completions]")
    spec = [
        "exact_match",
        {"name": "length", "target": 4, "weight": 0.1},
        {"length": {"max": 1, "weight": 2, "label": "short"}},
        {"exact_match": None},
        f"{file}:half",
        "rewards_support:longer_is_better",
        longer_is_better,
        {"name": slowly, "weight": -1},
        lambda completions: [1 for _ in completions],
        functools.partial(longer_is_better, unused=1),
        Judge(),
    ]
    names = (
        *("exact_match", "length", "short", "exact_match_2", "half", "longer_is_better", "longer_is_better_2"),
        *("slowly", "lambda", "longer_is_better_3", "Judge"),
    )
    with build_rewards(spec) as rewards:
        assert rewards.names == names
        assert rewards.weights == dict.fromkeys(names, 1.0) | {"length": 0.1, "short": 2.0, "slowly": -1.0}
        (events,) = rewards.score([make_group("a:1", ["yes"], answer="yes")]).groups[0].events
    assert [event.name for event in events] == list(names)
    assert [event.value for event in events] == [1, -0.25, -1, 1, 0.5, 3, 3, 0.25, 1, 3, 3]
    assert [event.weight for event in events] == [rewards.weights[name] for name in names]


def test_the_weighted_sum_is_the_reward_of_the_answer():
    spec = [{"name": "exact_match", "weight": 2.0}, {"name": "length", "target": 4, "weight": 0.5}]
    with build_rewards(spec) as rewards:
        assert rewards.score([make_group("a:1", ["yes", "no"], answer="yes")]).groups[0].returns == (1.875, -0.125)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("exact_mach", "unknown reward 'exact_mach'.*did you mean 'exact_match'.*file.py:function"),
        ([], "no reward is given"),
        (7, "7 is not a reward"),
        ({"name": 7}, "7 is not a reward"),
        ({"math": 0.5}, "does not say which one it is"),
        ({"weight": 0.5, "label": "x"}, "does not say which one it is"),
        ({"name": "math", "weight": "much"}, "reward 'math': weight must be a finite number, not 'much'"),
        ({"name": "math", "weight": float("nan")}, "reward 'math': weight must be a finite number, not nan"),
        ({"name": "math", "weight": True}, "reward 'math': weight must be a finite number, not True"),
        ({"name": "math", "label": ""}, "reward 'math': label must be text"),
        ({"name": "math", "colunm": "x"}, "reward 'math': unknown key 'colunm'.*'column'"),
        ({"name": longer_is_better, "scale": 2}, "reward 'longer_is_better': unknown key 'scale'"),
        ([{"math": {"label": "m"}}, {"length": {"max": 1, "label": "m"}}], "two rewards have the label 'm'"),
        ("rewards.py", "names a file and no function.*rewards.py:FUNCTION"),
        ("nowhere.py:score", "reward 'nowhere.py:score': no such file: nowhere.py"),
        ("nowhere.py:", "'nowhere.py:' cannot be read"),
        (":score", "':score' cannot be read"),
    ],
)
def test_what_cannot_be_read_is_named(spec, message):
    with pytest.raises(InputError, match=message):
        build_rewards(spec)


@pytest.mark.parametrize(
    ("body", "name", "message"),
    [
        ("def score(completions): ...", "scores", "no function 'scores'.*did you mean 'score'"),
        ("def other(completions): ...", "score", "no function 'score'.*functions there: other"),
        ("score = 3", "score", "'score' in .*mine.py is not a function but int"),
        ("def score(:", "score", r"mine.py cannot be imported: SyntaxError: .*mine.py:1\)"),
        ("x = 1\nraise RuntimeError('no key')", "score", r"cannot be imported: RuntimeError: no key \(.*mine.py:2\)"),
        ("import sys; sys.exit(3)", "score", "cannot be imported: SystemExit: 3"),
        ("import os; os._exit(3)", "score", "ended its process with exit code 3"),
        ("def score(completions, /): ...", "score", "positional-only"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_before_any_training(tmp_path, body, name, message):
    file = write(tmp_path, body)
    with pytest.raises(InputError, match=f"reward '{name}': .*{message}"):
        build_rewards(f"{file}:{name}")


def test_a_file_that_starts_a_run_of_its_own_is_told_to_guard_it(tmp_path):
    body = "from reinlm.rewards import build_rewards\ndef score(completions): ...\nbuild_rewards('format')"
    file = write(tmp_path, body)
    with pytest.raises(
        InputError, match=r"reward 'score': .*rewards are built while a reward function is being imported"
    ):
        build_rewards(f"{file}:score")


@pytest.mark.parametrize("limit", [None, 10])
def test_a_module_that_does_not_exist_is_named(limit):
    with pytest.raises(InputError, match="reward 'score': no_such_module cannot be imported: ModuleNotFoundError"):
        build_rewards("no_such_module:score", time_limit=limit)


def test_a_file_may_import_what_stands_beside_it(tmp_path):
    write(tmp_path, "BONUS = 0.75", name="reward_neighbour.py")
    body = "import dataclasses\nfrom reward_neighbour import BONUS\n@dataclasses.dataclass\nclass Point:\n    x: int\n"
    file = write(tmp_path, body + "def score(completions): return [BONUS * Point(1).x for _ in completions]")
    with build_rewards(f"{file}:score") as rewards:
        assert values(rewards.score([make_group("a:1", ["x"])])) == [[0.75]]


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"functions": "maht"}, "functions: unknown reward 'maht'"),
        ({"functions": "math", "time_limit": 0}, "time_limit"),
        ({"functions": "math", "workers": 0}, "workers"),
        ({"functions": "math", "on_reward_error": "ignore"}, "on_reward_error"),
        ({"functions": "math", "timelimit": 3}, "unknown key 'timelimit'.*time_limit"),
        ({}, "'functions' is required"),
    ],
)
def test_a_recipe_is_checked(tree, message):
    with pytest.raises(InputError, match=message):
        build(RewardConfig, tree)


def test_a_wrong_argument_from_python_is_an_input_error():
    with pytest.raises(InputError, match="time_limit"):
        build_rewards("math", time_limit=-1)


def test_the_configuration_brings_its_own_settings():
    config = build(
        RewardConfig, {"functions": [{"length": {"target": 4}}], "on_reward_error": "skip", "time_limit": None}
    )
    with build_rewards(config) as rewards:
        assert rewards.names == ("length",)


def test_functions_are_written_to_a_file_by_name():
    config = RewardConfig(functions=["math", {"name": longer_is_better, "weight": 0.5}])
    wanted = ["math", {"name": "tests/rewards/rewards_support.py:longer_is_better", "weight": 0.5}]
    assert config.model_dump(mode="json")["functions"] == wanted
    assert [choice.name for choice in read_spec(wanted)] == ["math", "longer_is_better"]
    assert config.model_dump()["functions"][1]["name"] is longer_is_better


PARTS_OF_A_FILE = """
import os
from reinlm.config import Config
from reinlm.parts import part

@part("reward", "close_of_a_test")
class Close(Config):
    scale: float = 1.0

    def build(self):
        if self.scale == 0:
            raise ValueError("scale 0")
        if self.scale == -1:
            return 3
        return lambda completions, answer: [
            self.scale / (1 + abs(int(text) - int(right))) if os.getpid() != PID else -1.0
            for text, right in zip(completions, answer)
        ]

@part("reward", "unbuilt_of_a_test")
class Unbuilt(Config):
    pass
"""


@pytest.fixture
def parts_of_a_file(tmp_path):
    load_imports([write(tmp_path, PARTS_OF_A_FILE.replace("PID", str(os.getpid())), "parts.py")])
    yield
    for name in ("close_of_a_test", "unbuilt_of_a_test"):
        del PARTS["reward"][name]


@pytest.mark.parametrize(
    "spec",
    [
        {"close_of_a_test": {"scale": 2.0, "weight": 0.5, "label": "near"}},
        {"name": "close_of_a_test", "scale": 2.0, "weight": 0.5, "label": "near"},
    ],
)
def test_a_reward_of_a_users_file_is_a_part_with_values_and_runs_in_a_worker(parts_of_a_file, spec):
    group = make_group("a:1", ["4", "7"], answer="4")
    with build_rewards([spec, "close_of_a_test"]) as rewards:
        assert rewards.names == ("near", "close_of_a_test")
        scored = rewards.score([group])
        assert values(scored, "near") == [[2.0], [0.5]]
        assert scored.groups[0].returns == (2.0, 0.5)
    with build_rewards(spec, time_limit=None) as rewards:
        assert values(rewards.score([group])) == [[-1.0], [-1.0]]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("close_of_a_tst", "unknown reward 'close_of_a_tst'.*did you mean 'close_of_a_test'.*name one: .*exact_match"),
        ({"close_of_a_test": {"scal": 2}}, "reward 'close_of_a_test': unknown key 'scal'.*did you mean 'scale'"),
        ({"close_of_a_test": {"scale": "x"}}, "reward 'close_of_a_test': scale: .*given: 'x'"),
        ({"close_of_a_test": {"scale": 0}}, r"'close_of_a_test': build raised ValueError: scale 0 \(.*parts.py:12\)"),
        ({"close_of_a_test": {"scale": -1}}, "reward 'close_of_a_test': build returned a int, not a function"),
        ("unbuilt_of_a_test", "reward 'unbuilt_of_a_test': Unbuilt has no method 'build'"),
    ],
)
def test_a_part_that_cannot_be_had_is_named(parts_of_a_file, spec, message):
    with pytest.raises(InputError, match=message):
        build_rewards(spec)
