"""A gold score beside the reward: measured on evaluation answers alone, and a warning where the two go apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from training_helpers import EVEN, HELD_OUT, ROWS, jsonl, metrics, pair, run_rl, saved_model, tiny_policy

import reinlm
from reinlm.cli import main
from reinlm.errors import InputError, RunError
from reinlm.loop import Control, Evaluated
from reinlm.runs.folder import read_run
from reinlm.training.gold import GoldConfig, GoldWatch


def longer(completions: list[str], **_: Any) -> list[float]:
    return [float(len(text)) for text in completions]


def shorter(completions: list[str], **_: Any) -> list[float]:
    return [-float(len(text)) for text in completions]


def told(watch: GoldWatch, evaluations: list[tuple[float, float]], name: str = "test", begin: int = 0) -> list[Any]:
    """What the watch asks for at each of the evaluations (reward, gold), ten steps apart: the warnings and why to stop."""
    found = []
    for index, (proxy, gold) in enumerate(evaluations):
        control = Control()
        measured = {f"eval/{name}/reward": proxy, f"eval/{name}/gold": gold, f"eval/{name}/accuracy": 0.5}
        watch.on_evaluated(Evaluated(10 * (begin + index), measured, []), control)
        asked = control._take()
        found.append((len(asked.warnings), asked.stop is not None))
    return found


def watch(**changes: Any) -> GoldWatch:
    settings = {"proxy_rise": 0.5, "gold_fall": 0.25, "evaluations": 2, **changes}
    return GoldWatch(GoldConfig(reward="math", **settings), ["test"])


QUIET, WARNED = (0, False), (1, False)


@pytest.mark.parametrize(
    ("evaluations", "expected"),
    [
        (
            [(0.0, 1.0), (0.25, 0.875), (0.5, 0.75)],
            [QUIET, QUIET, WARNED],
        ),  # exactly the set amounts, over two evaluations
        ([(0.0, 1.0), (0.5, 0.5)], [QUIET, QUIET]),  # over one alone
        ([(0.0, 1.0), (0.25, 0.875), (0.499, 0.75)], [QUIET] * 3),  # the reward has risen by less
        ([(0.0, 1.0), (0.25, 0.875), (0.5, 0.751)], [QUIET] * 3),  # the gold score has fallen by less
        ([(1.0, 1.0), (0.5, 0.5), (0.0, 0.0)], [QUIET] * 3),  # both fall
        ([(0.0, 0.0), (0.5, 0.5), (1.0, 1.0)], [QUIET] * 3),  # both rise
        ([(0.0, 1.0), (0.5, 1.0), (0.6, 0.75), (1.0, 0.75)], [QUIET] * 2 + [WARNED, QUIET]),  # one event, one warning
    ],
)
def test_it_warns_where_the_reward_rises_and_the_gold_score_falls_by_the_set_amounts(
    evaluations: list[tuple[float, float]], expected: list[Any]
) -> None:
    assert told(watch(), evaluations) == expected


def test_the_next_warning_comes_after_the_gold_score_was_back_where_it_fell_from() -> None:
    fall = [(0.0, 1.0), (0.5, 0.5), (1.0, 0.0)]
    again = [(1.5, -0.5), (0.0, 0.999), (0.0, 1.0), (0.5, 1.0), (0.5, 0.75)]
    found = told(watch(), fall + again)
    assert found == [QUIET, QUIET, WARNED, QUIET, QUIET, QUIET, QUIET, WARNED]


def test_the_warning_names_both_scores_and_the_highest_gold_score() -> None:
    asked, one = Control(), watch(stop=True)
    told(one, [(0.0, 0.5), (0.25, 1.0), (0.5, 0.75)])
    one.on_evaluated(Evaluated(30, {"eval/test/reward": 0.75, "eval/test/gold": 0.25}, []), asked)
    requests = asked._take()
    (warning,) = requests.warnings
    for part in ("set test", "since step 10", "from 0.25 to 0.75", "from 1 to 0.25", "highest: 1 at step 10"):
        assert part in warning
    assert requests.stop == f"gold.stop: {warning}"


def test_each_set_is_watched_alone_and_an_evaluation_without_a_score_is_left_out() -> None:
    one = GoldWatch(GoldConfig(reward="math", proxy_rise=0.5, gold_fall=0.5, evaluations=1), ["a", "b"])
    assert told(one, [(0.0, 1.0)], "a") == [QUIET]
    assert told(one, [(9.0, -9.0)], "b") == [QUIET]
    control = Control()
    one.on_evaluated(Evaluated(5, {"eval/a/reward": 9.0, "eval/a/accuracy": 1.0}, []), control)
    assert told(one, [(1.0, 0.0)], "a", begin=1) == [WARNED]


def test_gold_functions_that_score_no_answer_end_the_run_at_its_first_evaluation(tmp_path: Path) -> None:
    def nothing(completions: list[str], **_: Any) -> list[None]:
        return [None] * len(completions)

    def broken(completions: list[str], **_: Any) -> list[float]:
        return [float("nan")] * len(completions)

    how: dict[str, Any] = {"reward": {"functions": longer, "time_limit": None}, "evaluation": {"data": HELD_OUT}}
    with pytest.raises(RunError, match=r"evaluation set eval: the gold functions gave no answer a score"):
        run_rl(tmp_path / "none", model=pair(tiny_policy()), data=ROWS, **how, gold=nothing)
    with pytest.raises(RunError, match=r"gold: reward 'broken' returned nan"):
        run_rl(tmp_path / "nan", model=pair(tiny_policy()), data=ROWS, **how, gold=broken)
    skipped = how | {"reward": how["reward"] | {"on_reward_error": "skip"}, "training": {"steps": 1}}
    run_rl(tmp_path / "skip", model=pair(tiny_policy()), data=ROWS, **skipped, gold=broken)
    assert metrics(tmp_path / "skip")[0]["eval/eval/gold_failed"] > 0


def test_the_watch_goes_on_from_its_state() -> None:
    evaluations = [(0.0, 1.0), (0.25, 0.9), (0.5, 0.7), (0.75, 0.5), (0.2, 1.0), (0.4, 1.0), (0.8, 0.7)]
    whole, first = watch(), watch()
    expected = told(whole, evaluations)
    for cut in range(len(evaluations)):
        before, after = watch(), watch()
        told(before, evaluations[:cut])
        after.load_state_dict(json.loads(json.dumps(before.state_dict())))
        assert told(after, evaluations[cut:], begin=cut) == expected[cut:]
    assert expected != told(first, evaluations[3:])


def test_the_gold_score_is_logged_warned_of_and_drawn_and_nothing_is_trained_on_it(tmp_path: Path) -> None:
    evaluation = {"data": HELD_OUT, "every": 2, "samples": 4}
    settings: dict[str, Any] = {"reward": longer, "training": {"steps": 8}, "evaluation": evaluation}
    gold = {"reward": [shorter, {**EVEN, "weight": 0.0}], "evaluations": 2}
    plain, run = run_rl(tmp_path / "plain", **settings), run_rl(tmp_path / "gold", gold=gold, **settings)
    for before, after in zip(metrics(plain.folder), metrics(run.folder), strict=True):
        extra = {name: value for name, value in after.items() if "/gold" in name}
        assert {name: value for name, value in after.items() if name not in extra} == before
        if extra:
            assert after["eval/eval/gold"] == pytest.approx(-after["eval/eval/reward"])
            assert after["eval/eval/gold_rewards/shorter"] == after["eval/eval/gold"]
            assert 0 <= after["eval/eval/gold_rewards/regex"] <= 1
    (finding,) = read_run(run.folder)["findings"]
    assert finding["message"].startswith("evaluation set eval: since step")
    page = (run.folder / "report.html").read_text()
    assert "Held-out reward and gold score" in page
    assert f"step {finding['step']}: evaluation set eval" in page
    sample = json.loads((run.folder / "samples.json").read_text())["after"][0]
    assert sample["gold"] == -len(sample["completion"])
    assert read_run(plain.folder)["findings"] == []
    assert "Held-out reward and gold score" not in (plain.folder / "report.html").read_text()


def test_the_run_stops_where_it_is_asked_to(tmp_path: Path) -> None:
    gold = {"reward": shorter, "evaluations": 1, "stop": True}
    run = run_rl(
        tmp_path / "run", reward=longer, gold=gold, training={"steps": 8}, evaluation={"data": HELD_OUT, "every": 2}
    )
    assert run.summary["ended"] == "stopped"
    assert run.summary["steps"] < 8
    assert run.summary["stopped"].startswith("gold.stop: evaluation set eval")


def test_a_resumed_run_warns_as_the_whole_one_does_and_once(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "reward": longer,
        "gold": {"reward": shorter, "evaluations": 2},
        "evaluation": {"data": HELD_OUT, "every": 1},
    }
    whole = run_rl(tmp_path / "whole", training={"steps": 4}, **settings)
    findings = read_run(whole.folder)["findings"]
    assert findings
    for steps in (1, findings[0]["step"]):
        folder = tmp_path / f"parts{steps}"
        run_rl(folder, training={"steps": steps}, **settings)
        (folder / "run.json").write_text(
            json.dumps(
                read_run(folder) | {"findings": [*read_run(folder)["findings"], {"step": steps + 1, "message": "x"}]}
            )
        )  # of a step that was killed before its checkpoint
        parts = reinlm.rl(
            pair(tiny_policy()),
            ROWS,
            output=folder,
            resume=True,
            training={"steps": 4},
            reward=longer,
            gold={"reward": shorter},
            quiet=True,
        )
        assert metrics(parts.folder) == metrics(whole.folder)
        assert read_run(parts.folder)["findings"] == findings


def test_the_command_line_takes_a_gold_rule_and_its_amounts(tmp_path: Path, capsys: Any) -> None:
    model = saved_model(tmp_path / "model")
    data, held_out = jsonl(tmp_path / "train.jsonl", ROWS), jsonl(tmp_path / "test.jsonl", HELD_OUT)
    words = ["rl", "--model", str(model), "--data", str(data), "--reward", "exact_match", "--eval-data", str(held_out)]
    words += ["--output", str(tmp_path / "run"), "--steps", "1", "rollout.batch_size=16", "rollout.group_size=4"]
    words += ["rollout.max_new_tokens=3", "run.tensorboard=false", "evaluation.every=1"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "gold={regex: {pattern: '[02468]$'}}", "gold.evaluations=2", "gold.reward.regex.weight=2.0"])
    assert ended.value.code == 0
    last = metrics(tmp_path / "run")[-1]
    assert last["eval/eval/gold"] == 2.0 * last["eval/eval/gold_rewards/regex"]
    assert "gold.evaluations 2: the run has 1 after the first" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"gold": "math"}, "gold has no effect without evaluation.data"),
        ({"gold": {"reward": "math", "stop": True}, "evaluation": {"data": HELD_OUT}}, "gold.stop True has no effect"),
        (
            {"gold": {"reward": "math", "proxy_rise": 0}, "evaluation": {"data": HELD_OUT, "every": 1}},
            "gold.proxy_rise",
        ),
        ({"gold": {"reward": "math", "gold_fall": -1}, "evaluation": {"data": HELD_OUT, "every": 1}}, "gold.gold_fall"),
        (
            {"gold": {"reward": "math", "evaluations": 0}, "evaluation": {"data": HELD_OUT, "every": 1}},
            "gold.evaluations",
        ),
        ({"gold": "maths", "evaluation": {"data": HELD_OUT, "every": 1}}, "unknown reward 'maths'"),
        ({"gold": {"reward": "math", "patience": 2}, "evaluation": {"data": HELD_OUT}}, "unknown key 'gold.patience'"),
        ({"gold": {"stop": True}, "evaluation": {"data": HELD_OUT, "every": 1}}, "gold.reward"),
        (
            {"gold": {"exact_match": {"column": "solution"}}, "evaluation": {"data": HELD_OUT, "every": 1}},
            "evaluation set 'eval': gold: reward 'exact_match': it needs the column 'solution'",
        ),
        (
            {"gold": {"model": {"path": "rm", "normalize": True}}, "evaluation": {"data": HELD_OUT}},
            "gold.reward.model.normalize has no effect",
        ),
        (
            {"reward": {"model": {"path": "rm", "normalize": True}}, "gold": "math", "evaluation": {"data": HELD_OUT}},
            "leave normalize out",
        ),
    ],
)
def test_a_gold_score_that_cannot_be_measured_is_refused(tmp_path: Path, changes: Any, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        run_rl(tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


def test_a_gold_score_without_a_reward_is_refused(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"algorithm": "distill", "evaluation": {"data": HELD_OUT, "every": 1}, "steps": 1}
    teacher = {"path": str(saved_model(tmp_path / "teacher"))}
    with pytest.raises(InputError, match="gold has no reward to be compared with"):
        reinlm.rl(pair(tiny_policy()), ROWS, gold="exact_match", teacher=teacher, output=tmp_path / "run", **settings)


def test_a_resumed_run_keeps_its_gold_score_and_may_change_when_it_warns(tmp_path: Path) -> None:
    evaluation = {"data": HELD_OUT, "every": 1}
    run_rl(tmp_path / "run", reward=longer, gold=shorter, evaluation=evaluation, training={"steps": 1})

    def go_on(gold: Any) -> Any:
        options: dict[str, Any] = {"output": tmp_path / "run", "resume": True, "quiet": True, "steps": 4}
        return reinlm.rl(pair(tiny_policy()), ROWS, reward=longer, gold=gold, **options)

    with pytest.raises(InputError, match=r"with a changed configuration: gold\.reward"):
        go_on({"reward": longer})
    go_on({"reward": shorter, "evaluations": 4, "proxy_rise": 1e-3, "gold_fall": 1e-3})
    assert [finding["step"] for finding in read_run(tmp_path / "run")["findings"]] == [4]
