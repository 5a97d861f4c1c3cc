from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from rewards_support import make_group, values

from reinlm.errors import InputError, RunError
from reinlm.rewards import build_rewards
from reinlm.rewards.builtin import Length, answer_text

pytestmark = pytest.mark.no_cover

DATA = Path(os.environ.get("REINLM_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))


@pytest.fixture(scope="module")
def maths():
    with build_rewards("math", time_limit=20) as rewards:
        yield rewards


@pytest.mark.parametrize(
    ("gold", "answer", "value"),
    [
        ("18", "The answer is 18.", 1.0),
        ("18", "The answer is 19.", 0.0),
        ("18", "", 0.0),
        ("18", "I cannot tell", 0.0),
        (18, "\\boxed{18}", 1.0),
        (0.5, "It is $\\frac{1}{2}$", 1.0),
        ("16 - 7 = <<16-7=9>>9\n9 * 2 = 18\n#### 18", "so \\boxed{18}", 1.0),
        ("first #### 7, then\n#### 1,234", "We get 1234.", 1.0),
        ("first #### 7, then\n#### 1,234", "We get 7.", 0.0),
        ("18", "2 * 9 = 18\n#### 18", 1.0),
        ("18", "18 - 1 = 17\n#### 17", 0.0),
        ("18", "#### 18\nQuestion: what is 3 + 4?", 1.0),
        ("18", "#### 17\n#### 18", 1.0),
        ("18", "#### Step 2: multiply\n9 * 2 = 18", 1.0),
        ("18", "#### 9 eggs in 1 nest\nso \\boxed{18}", 1.0),
        ("18", "9 * 2 = 18\n####", 1.0),
        ("\\frac{3}{4}", "#### \\frac{6}{8}", 1.0),
        ("x^2+1", "\\boxed{1+x^2}", 1.0),
        ("So we have $a=3$, hence \\boxed{3}.", "it is \\boxed{3}", 1.0),
        ("So we have\nafter all\nthe number 3", "\\boxed{3}", 1.0),
        ("5%", "#### 5%", 1.0),
        ("$12", "#### $12.00", 1.0),
    ],
)
def test_math_compares_values_not_text(maths, gold, answer, value):
    assert values(maths.score([make_group("a:1", [answer], answer=gold)])) == [[value]]


def test_math_reads_the_column_solution_where_there_is_no_answer(maths):
    assert values(maths.score([make_group("a:1", ["7", "8"], solution="7")])) == [[1.0], [0.0]]
    both = make_group("a:1", ["7", "8"], solution="7", answer="8")
    assert values(maths.score([both])) == [[0.0], [1.0]]


def test_math_reads_the_last_message_of_a_chat(maths):
    parts = [{"type": "text", "text": "it is "}, {"type": "text", "text": "\\boxed{8}"}]
    chats = [
        (
            {"role": "assistant", "content": "8"},
            {"role": "tool", "content": "-"},
            {"role": "assistant", "content": "9"},
        ),
        ({"role": "assistant", "content": parts},),
        ({"role": "assistant", "content": None},),
    ]
    group = make_group("a:1", chats, content=({"role": "user", "content": "4+4?"},), answer="8")
    assert values(maths.score([group])) == [[0.0], [1.0], [0.0]]
    assert answer_text(()) == ""


def test_math_scores_the_same_off_the_main_thread(maths):
    found: list[object] = []
    group = make_group("a:1", ["#### 4", "#### 5"], answer="4")
    thread = threading.Thread(target=lambda: found.append(values(maths.score([group]))))
    thread.start()
    thread.join()
    assert found == [[[1.0], [0.0]]]


def test_math_without_a_time_limit_scores_off_the_main_thread_in_this_process():
    found: list[object] = []
    with build_rewards("math", time_limit=None) as rewards:
        group = make_group("a:1", ["#### 4", "#### 5"], answer="4")
        thread = threading.Thread(target=lambda: found.append(values(rewards.score([group]))))
        thread.start()
        thread.join()
    assert found == [[[1.0], [0.0]]]


def test_a_gold_answer_without_a_value_is_an_error_that_names_it(maths):
    with pytest.raises(
        RunError, match=r"reward 'math' raised ValueError: the gold answer '####' .*a\.jsonl:4, answer 1 of 1"
    ):
        maths.score([make_group("a.jsonl:4", ["3"], answer="####")])


def test_math_agrees_with_the_verdicts_on_real_solutions_of_gsm8k():
    if not (DATA / "gsm8k_model_solutions.jsonl").is_file():
        pytest.skip(f"no GSM8K model solutions in {DATA}")
    with (DATA / "gsm8k_model_solutions.jsonl").open() as solutions, (DATA / "gsm8k_test.jsonl").open() as problems:
        pairs = [(json.loads(next(solutions)), json.loads(next(problems))) for _ in range(100)]
    models = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")
    groups = [
        make_group(f"gsm8k:{number}", [given[model]["solution"] for model in models], answer=problem["answer"])
        for number, (given, problem) in enumerate(pairs)
    ]
    verdicts = [given[model]["is_correct"] for given, _ in pairs for model in models]
    with build_rewards("math") as rewards:
        found = [value == 1.0 for (value,) in values(rewards.score(groups))]
    wrong = [number for number, (ours, theirs) in enumerate(zip(found, verdicts, strict=True)) if ours != theirs]
    assert wrong == []  # on the whole file, 5276 solutions, they agree on every one too
    assert 100 < sum(found) < 300


def test_exact_match_ignores_white_space_around_the_answer_only():
    group = make_group("a:1", [" Yes\n", "yes", "Yes sir"], answer="Yes ", label=7)
    with build_rewards(["exact_match", {"exact_match": {"ignore_case": True}}]) as rewards:
        assert values(rewards.score([group])) == [[1.0, 1.0], [0.0, 1.0], [0.0, 0.0]]
    with build_rewards({"name": "exact_match", "column": "label"}) as rewards:
        assert values(rewards.score([make_group("a:1", ["7", "8"], label=7)])) == [[1.0], [0.0]]


@pytest.mark.parametrize(
    ("options", "text", "value"),
    [
        ({"pattern": "[0-9]+"}, "about 12", 1.0),
        ({"pattern": "[0-9]+"}, "about", 0.0),
        ({"pattern": "a.b"}, "a\nb", 1.0),
        ({"pattern": "[0-9]+", "full": True}, " 12\n", 1.0),
        ({"pattern": "[0-9]+", "full": True}, "about 12", 0.0),
        ({"pattern": "= ([0-9]+)", "column": "answer"}, "= 41, no: = 42", 1.0),
        ({"pattern": "= ([0-9]+)", "column": "answer"}, "= 42, no: = 41", 0.0),
        ({"pattern": "[0-9]+", "column": "answer"}, "so 42", 1.0),
        ({"pattern": "[0-9]+", "column": "answer"}, "so", 0.0),
        ({"pattern": "x|([0-9]+)", "column": "answer"}, "42 x", 0.0),
        ({"pattern": "([0-9]+) eggs", "column": "answer", "full": True}, "42 eggs", 1.0),
    ],
)
def test_regex(options, text, value):
    with build_rewards({"regex": options}, time_limit=None) as rewards:
        assert values(rewards.score([make_group("a:1", [text], answer="42")])) == [[value]]


def test_format_wants_thought_and_answer_and_nothing_else():
    texts = [
        "<think>\nhm\n</think>\n<answer>4</answer>",
        "<think>hm</think> 4",
        "well <think>hm</think><answer>4</answer>",
    ]
    with build_rewards("format") as rewards:
        assert values(rewards.score([make_group("a:1", texts)])) == [[1.0], [0.0], [0.0]]


def test_length_with_a_margin_is_the_soft_overlong_punishment():
    reward = Length(max=10, margin=4)
    assert [reward.score("", n, {}) for n in range(5, 13)] == [0, 0, -0.25, -0.5, -0.75, -1, -1, -1]
    paper = Length(max=20480, margin=4096)
    assert [paper.score("", n, {}) for n in (16384, 16385, 17408, 20480, 20481)] == [0, -1 / 4096, -0.25, -1, -1]
    assert [Length(max=10).score("", n, {}) for n in (10, 11)] == [0, -1]


def test_length_with_a_target_falls_on_both_sides_to_minus_one():
    reward = Length(target=4)
    assert [reward.score("", n, {}) for n in (0, 3, 4, 5, 8, 100)] == [-1, -0.25, 0, -0.25, -1, -1]


def test_length_counts_the_tokens_that_the_policy_chose():
    with build_rewards({"length": {"target": 4}}) as rewards:
        assert values(rewards.score([make_group("a:1", ["any"], tokens=3), make_group("a:2", ["any"], tokens=4)])) == [
            [-0.25],
            [0],
        ]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("length", {}, "exactly one of target and max"),
        ("length", {"target": 3, "max": 4}, "exactly one of target and max"),
        ("length", {"target": 3, "margin": 4}, "margin goes with max"),
        ("length", {"max": 3, "margin": 4}, r"margin \(4\) is more than max \(3\)"),
        ("length", {"max": 0}, "max"),
        ("regex", {}, "'pattern' is required"),
        ("regex", {"pattern": "(a"}, "pattern: not a regular expression: missing \\)"),
        ("regex", {"patern": "a"}, "unknown key 'patern'.*did you mean 'pattern'"),
        ("math", {"colum": "x"}, "unknown key 'colum'.*did you mean 'column'"),
        ("maths", {}, "unknown reward 'maths'.*did you mean 'math'"),
    ],
)
def test_wrong_options_are_refused(name, options, message):
    with pytest.raises(InputError, match=message):
        build_rewards({"name": name, **options})


@pytest.mark.parametrize("name", ["math", "exact_match", {"regex": {"pattern": "a", "column": "answer"}}])
def test_a_missing_column_is_named_with_the_columns_there_are(name):
    group = make_group("a:1", ["4"], question="2+2", gold="4")
    with build_rewards(name) as rewards, pytest.raises(InputError) as caught:
        rewards.score([group])
    assert "needs the column 'answer'" in caught.value.message
    assert "question, gold" in (caught.value.hint or "")


def test_a_row_without_a_value_in_a_needed_column_is_named():
    groups = [make_group("a:1", ["4"], answer="4"), make_group("a:2", ["4"], answer=None)]
    with (
        build_rewards("exact_match") as rewards,
        pytest.raises(InputError, match=r"'exact_match': a:2 has no value .*'answer'"),
    ):
        rewards.check([group.task for group in groups])


def test_a_regex_that_never_ends_is_killed_and_the_other_answers_keep_their_scores():
    hostile = "a" * 60 + "!"
    group = make_group("a:1", ["aaa", hostile, "b"])
    with build_rewards({"regex": {"pattern": "(a+)+$"}}, time_limit=1, on_error="skip", workers=1) as rewards:
        start = time.monotonic()
        scored = rewards.score([group])
        assert time.monotonic() - start < 30
        assert values(scored) == [[1.0], [], [0.0]]
        assert scored.failures == {"regex": 1}
        assert "overran its time limit of 1 s for a:1, answer 2 of 3" in scored.messages["regex"]
        assert values(rewards.score([make_group("a:2", ["a"])])) == [[1.0]]
    with build_rewards({"regex": {"pattern": "(a+)+$"}}, time_limit=0.5) as rewards:
        with pytest.raises(RunError, match=r"'regex' overran its time limit of 0.5 s for a:1, answer 2 of 3"):
            rewards.score([group])
        assert values(rewards.score([make_group("a:2", ["a"])])) == [[1.0]]


def test_scores_are_the_same_whatever_the_number_of_workers():
    numbers = random.Random(0)
    answers = [f"#### {numbers.randrange(4)}" for _ in range(60)]
    groups = [make_group(f"a:{n}", answers[4 * n : 4 * n + 4], answer=str(n % 4)) for n in range(15)]
    wanted = [[float(answer == f"#### {n // 4 % 4}")] for n, answer in enumerate(answers)]
    state = random.getstate()
    for workers in (1, 3):
        with build_rewards({"regex": {"pattern": "#### (.*)", "column": "answer"}}, workers=workers) as rewards:
            assert values(rewards.score(groups)) == wanted
    assert random.getstate() == state


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("reinlm.rewards.service", {"torch", "math_verify", "transformers", "numpy"}),  # what a worker process loads
        (
            "reinlm.rewards.building",
            {"torch", "math_verify", "transformers"},
        ),  # it reads records, which are NumPy arrays
    ],
)
def test_importing_rewards_loads_neither_torch_nor_the_maths_checker(module, heavy):
    code = f"import sys, {module}\nprint(sorted({heavy} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert found == "[]"
