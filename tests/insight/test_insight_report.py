from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from insight_runs import HOSTILE, group, make_run, sample
from report_pages import cells, figures, page_without_scripts

from reinlm.errors import InputError
from reinlm.insight.charts import charts
from reinlm.insight.compare import compare_runs
from reinlm.insight.report import write_report
from reinlm.metrics import METRICS
from reinlm.runs.folder import RunFolder
from reinlm.runs.metrics import MetricsLog
from reinlm.runs.schema import RolloutLog


def test_a_report_needs_nothing_from_anywhere_else(quickstart: Path) -> None:
    page = page_without_scripts(write_report(quickstart))
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!#|data:)""", page.replace("src=x", ""))
    assert "default-src 'none'" in page


def test_the_headline_shows_before_after_and_change(quickstart: Path) -> None:
    assert cells(write_report(quickstart)) == [
        [
            "Accuracy, sampling",
            "43.0 % | 41.0–45.0 %",
            "95.1 % | 94.1–96.0 %",
            "+52.1 points",
        ],
        ["Accuracy, greedy", "93.0 %", "97.2 %", "+4.2 points"],
    ]
    assert "<dt>train time</dt><dd>84.2 s</dd>" in page_without_scripts(quickstart / "report.html")


def test_stages_stand_in_the_order_of_their_creation_or_as_asked_for(quickstart: Path) -> None:
    titles = r"<h2>(Super\w+|Rein\w+)"
    assert re.findall(titles, page_without_scripts(write_report(quickstart))) == ["Supervised", "Reinforcement"]
    asked = write_report(quickstart, stages=["rl", "sft"])
    assert re.findall(titles, page_without_scripts(asked)) == ["Reinforcement", "Supervised"]


def test_configuration_command_and_versions_are_shown_and_no_secret(quickstart: Path) -> None:
    page = page_without_scripts(write_report(quickstart))
    assert "path: train.jsonl" in page
    assert "reinlm rl --model tiny" in page
    assert "<dt>torch</dt>" in page
    assert "hf_secret" not in page


def test_answers_to_one_prompt_stand_side_by_side_and_a_cut_off_one_says_so(quickstart: Path) -> None:
    page = page_without_scripts(write_report(quickstart))
    rows = re.findall(r'<article class="sample">(.*?)</article>', page, flags=re.DOTALL)
    assert [re.findall("<pre[^>]*>(.*?)</pre>", row)[0] for row in rows] == ["123+456=", "7+8=", "1+1="]
    assert re.findall("<pre[^>]*>(.*?)</pre>", rows[0]) == ["123+456=", "976", "975"]
    assert ["cut off" in row for row in rows] == [False, False, True]


def test_hostile_text_is_escaped_everywhere(quickstart: Path) -> None:
    page = write_report(quickstart).read_text(encoding="utf-8")
    assert HOSTILE not in page
    assert "<script>window.hacked" not in page
    assert "{{ 7 * 7 }}" in page


def test_a_run_that_has_just_begun_has_a_report(tmp_path: Path) -> None:
    make_run(tmp_path / "run", "rl", 0).close()
    page = page_without_scripts(write_report(tmp_path / "run"))
    assert "No step has been logged." in page
    assert "not finished" in page


def test_a_killed_run_has_a_report_of_its_whole_lines(tmp_path: Path) -> None:
    make_run(tmp_path, "rl", 41).close()
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-30])
    path = write_report(tmp_path)
    assert figures(path)["Entropy of the policy"]["curves"][0]["x"][-1] == 39
    ends = ["45.0 % | 41.0–48.0 % | step 0", "75.3 % | 71.3–78.3 % | step 20"]
    assert cells(path) == [["eval/held_out/accuracy", *ends, "+30.3 points"]]


def test_without_a_second_evaluation_the_headline_is_what_the_curves_began_and_ended_with(tmp_path: Path) -> None:
    make_run(tmp_path, "sft", 40).close()
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    first, last = (sum(row["loss"] for row in part) / 4 for part in (rows[:4], rows[-4:]))
    assert cells(write_report(tmp_path)) == [
        ["eval/held_out/loss", f"{rows[0]['eval/held_out/loss']:.4g} | step 0", "", ""],
        [
            "Loss",
            f"{first:.4g} | steps 0 to 3",
            f"{last:.4g} | steps 36 to 39",
            f"{last - first:+.4g}",
        ],
    ]


def test_the_result_of_a_curve_is_that_of_compare(tmp_path: Path) -> None:
    for seed in (0, 1):
        with RunFolder.create(tmp_path / str(seed), kind="rl", config={"seed": seed}, command="x"):
            log = MetricsLog(tmp_path / str(seed))
            for step in range(25):
                log.append(step, {"reward": float(step**2 + seed)})
    first, second = compare_runs([tmp_path], metrics=["reward"]).rows[0]["values"]
    assert (first, second) == pytest.approx(((22**2 + 23**2 + 24**2) / 3, (22**2 + 23**2 + 24**2) / 3 + 1))
    (row,) = cells(write_report(tmp_path / "0"))
    assert row == ["Reward", "1.667 | steps 0 to 2", f"{first:.4g} | steps 22 to 24", f"+{first - 5 / 3:.4g}"]


@pytest.mark.parametrize("graded", [True, False])
def test_where_rewards_are_no_verdicts_the_report_leads_with_them(graded: bool, tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, kind="rl", config={}, command="x"):
        log = MetricsLog(tmp_path)
        for step in range(3):
            values = {"eval/a/accuracy": 0.1 * step, "eval/a/reward": 5.0 * step}
            log.append(step, dict(reversed([*values.items()])) if graded else values)
    path = write_report(tmp_path)
    names = ["eval/a/reward", "eval/a/accuracy"]
    assert [name for name, *_ in cells(path)] == (names if graded else names[::-1])
    titles = ["Mean reward, by function", "Held-out accuracy"]
    assert [*figures(path)] == (titles if graded else titles[::-1])


def test_a_run_that_was_evaluated_once_has_neither_a_later_value_nor_a_change(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, kind="rl", config={}, command="x"):
        MetricsLog(tmp_path).append(0, {"eval/gsm8k/accuracy": 0.5})
    page = page_without_scripts(write_report(tmp_path))
    assert cells(tmp_path / "report.html") == [["eval/gsm8k/accuracy", "50.0 % | step 0"]]
    assert re.findall('<th scope="col"[^>]*>(.*?)</th>', page)[:2] == ["", "only value"]
    assert not {"last value", "change"} & set(re.findall("<th[^>]*>(.*?)</th>", page))


def test_a_loss_that_is_0_by_construction_is_not_shown(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, kind="rl", config={}, command="x"):
        log = MetricsLog(tmp_path)
        for step in (1, 2, 3):
            log.append(step, {"loss": 1e-9 * step, "reward": 0.1 * step, "entropy": 0.5, "mine": step})
    path = write_report(tmp_path)
    assert cells(path) == [["Reward", "0.1 | step 1", "0.3 | step 3", "+0.2"]]
    assert list(figures(path)) == ["Mean reward, by function", "mine"]
    page = page_without_scripts(path)
    assert "Policy loss" not in page
    (constant,) = re.findall('<details class="constant">(.*?)</details>', page, flags=re.DOTALL)
    assert "Entropy of the policy" in constant
    assert '<td class="number">0.5</td>' in constant


def test_curves_come_before_answers_and_changed_answers_first(tmp_path: Path) -> None:
    with make_run(tmp_path, "rl", 3) as run:
        before = [sample("same", "1", 0.0), sample("reworded", "1", 0.0), sample("solved", "1", 0.0)]
        after = [sample("same", "1", 0.0), sample("reworded", "2", 0.0), sample("solved", "2", 1.0)]
        run.write_samples(before=before, after=after)
    page = page_without_scripts(write_report(tmp_path))
    assert re.findall('<pre class="prompt"[^>]*>(.*?)</pre>', page) == ["solved", "reworded", "same"]
    assert page.index("<svg") < page.index('<article class="sample">')


def test_figures_and_answers_of_two_stages_are_labelled_by_their_names(quickstart: Path) -> None:
    page = page_without_scripts(write_report(quickstart))
    assert re.findall('<th scope="col"[^>]*>(.*?)</th>', page)[:4] == ["", "after sft", "after rl", "change"]
    assert set(sides(quickstart / "report.html")) == {"after sft", "after rl"}


def test_a_sample_shows_the_right_answer_and_is_marked_by_its_verdict(tmp_path: Path) -> None:
    with make_run(tmp_path, "rl", 1) as run:
        wrong = sample("a", "x", 0.5) | {"correct": False, "answer": "<42>"}
        run.write_samples(after=[wrong, sample("b", "y", -0.5) | {"correct": True}])
    page = page_without_scripts(write_report(tmp_path))
    assert re.findall("right answer: <code>(.*?)</code>", page) == ["&lt;42&gt;"]
    assert re.findall('badge (good|bad)">(.*?)<', page) == [("bad", "reward 0.5"), ("good", "reward -0.5")]


def test_rollouts_stand_in_where_no_samples_were_set_apart(tmp_path: Path) -> None:
    make_run(tmp_path, "rl", 3).close()
    log = RolloutLog(tmp_path)
    chat = ({"role": "user", "content": "hello <b>"},)
    log.write(1, [group(chat, "first", 0.0), group("only before", "x", 0.5)], {})
    assert '<pre tabindex="0">first</pre>' in page_without_scripts(write_report(tmp_path))
    log.write(2, [group(chat, ({"role": "assistant", "content": "last"},), 1.0, "environment")], {})
    page = page_without_scripts(write_report(tmp_path))
    rows = re.findall(r'<article class="sample">(.*?)</article>', page, flags=re.DOTALL)
    assert [re.findall("<pre[^>]*>(.*?)</pre>", row) for row in rows] == [
        ["user: hello &lt;b&gt;", "first", "assistant: last"],
        ["only before", "x"],
    ]
    assert "badge open" not in rows[0]  # the task has come to its end


def test_rollouts_of_different_prompts_are_one_card_each_and_not_said_to_be_the_same(tmp_path: Path) -> None:
    make_run(tmp_path, "rl", 3).close()
    log = RolloutLog(tmp_path)
    log.write(1, [group("early", "x", 0.0), group("early", "y", 0.0)], {})
    log.write(2, [group(f"{n}+1", f"{n} {reward}", reward) for n in range(4) for reward in (1.0, 1.0, 0.0)], {})
    page = page_without_scripts(write_report(tmp_path))
    assert re.findall('<pre class="prompt"[^>]*>(.*?)</pre>', page) == ["0+1", "1+1", "2+1", "3+1"]
    assert re.findall("reward ([01])<", page) == ["0", "1", "0", "1"]
    assert "to the same prompts" not in page
    assert "to different prompts, each with when" in page


def sides(path: Path) -> list[str]:
    return [text.strip() for text in re.findall(r'<p class="side">([^<]*)', page_without_scripts(path))]


def test_answers_are_labelled_by_the_step_that_they_were_sampled_at(tmp_path: Path) -> None:
    with make_run(tmp_path, "rl", 3) as run:
        log = RolloutLog(tmp_path)
        log.write(1, [group("a", "x", 0.0)], {})
        assert sides(write_report(tmp_path)) == ["step 1, before the first update"]
        log.write(2, [group("a", "y", 0.0)], {})
        assert sides(write_report(tmp_path)) == ["step 1, before the first update", "step 2, before its update"]
        run.write_samples(before=[sample("a", "x", 0.0) | {"step": 0}], after=[sample("a", "y", 0.0) | {"step": 1000}])
        assert sides(write_report(tmp_path)) == ["before the first update", "after step 1,000"]
        run.write_samples(before=[sample("a", "x", 0.0)], after=[sample("a", "y", 0.0)])
        assert sides(write_report(tmp_path)) == ["before", "after"]


CHANGED = """
algorithm:
  base: dapo  # --algorithm
  gate:
    clip:
      low: 0.2  # dapo
      high: 0.3  # algorithm.gate.clip.high=0.3
  kl:
    estimator: k2  # recipe r.yaml
    coefficient: 0.04  # default of kl
  aggregation: token_mean  # Python
"""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (CHANGED, "dapo, clip.high=0.3, kl.estimator=k2, aggregation=token_mean"),
        ("algorithm: dapo  # --algorithm\n", "dapo"),
        ("algorithm:\n  base: dapo\n  overlong: keep\n", "dapo"),
    ],
)
def test_a_report_names_the_choices_that_were_changed_beside_the_algorithm(
    text: str, shown: str, tmp_path: Path
) -> None:
    with RunFolder.create(tmp_path, kind="rl", config={}, command="x"):
        (tmp_path / "config.yaml").write_text(text)
    assert f"<span>algorithm <code>{shown}</code></span>" in write_report(tmp_path).read_text().replace("<wbr>", "")


@pytest.mark.parametrize("kind", ["sft", "rl"])
def test_speed_and_entropy_of_sft_are_of_training(kind: str) -> None:
    records = [{"step": step, "time": 1.0, "entropy": 0.5 / step, "tokens_per_second": 10.0 * step} for step in (1, 2)]
    titles = {"sft": ["Entropy of the model", "Tokens trained on per second"]}
    drawn = charts(records, kind, METRICS)
    assert [chart["title"] for chart in drawn] == titles.get(
        kind, ["Entropy of the policy", "Generated tokens per second"]
    )
    assert ("exploration" in json.dumps(drawn)) == (kind == "rl")


def test_notes_stand_above_the_sample_answers(tmp_path: Path) -> None:
    config: dict[str, Any] = {"model": "tiny"}
    with RunFolder.create(tmp_path, kind="rl", config=config, command="x", notes=["every ratio is 1"]) as run:
        run.write_samples(after=[sample("a", "y", 0.0)])
    page = page_without_scripts(write_report(tmp_path))
    assert page.count("every ratio is 1") == 1
    assert page.index("every ratio is 1") < page.index('<section id="samples">')


@pytest.mark.parametrize(
    ("summary", "badge", "fact"),
    [
        ({"steps": 1}, 'good">finished', None),
        ({"stopped": "patience"}, 'open">stopped early', ("stopped early", "patience")),
        ({"ended": "stopped", "stopped": "x", "message": "x"}, 'open">stopped early', ("stopped early", "x")),
        ({"ended": "interrupted", "message": "after step 2"}, 'open">interrupted', ("interrupted", "after step 2")),
        ({"ended": "failed", "message": "gone <away>"}, 'bad">failed', ("failed", "gone &lt;away&gt;")),
    ],
)
def test_a_report_says_how_the_run_ended_and_why(summary: Any, badge: str, fact: Any, tmp_path: Path) -> None:
    with make_run(tmp_path, "rl", 1) as run:
        run.write_summary(summary)
    page = page_without_scripts(write_report(tmp_path))
    assert f'<span class="badge {badge}</span>' in page
    facts = re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", page)
    assert (fact in facts) if fact else not {"stopped early", "failed"} & {name for name, _ in facts}


def test_an_episode_of_several_turns_reads_turn_by_turn(tmp_path: Path) -> None:
    make_run(tmp_path, "rl", 1).close()
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 2}}}
    turns = (
        {"role": "assistant", "content": None, "reasoning_content": "a sum", "tool_calls": [call]},
        {"role": "tool", "content": [{"type": "text", "text": "4"}]},
        {"role": "assistant", "content": "It is 4."},
        {"role": "user", "content": "Sure?"},
    )
    RolloutLog(tmp_path).write(
        1, [group(({"role": "user", "content": "2+2?"},), turns, 0.0, "turns", truncated=True)], {}
    )
    page = page_without_scripts(write_report(tmp_path))
    (row,) = re.findall(r'<article class="sample">(.*?)</article>', page, flags=re.DOTALL)
    assert re.findall("<pre[^>]*>(.*?)</pre>", row, flags=re.DOTALL) == [
        "user: 2+2?",
        "assistant, thinking: a sum\n→ add({&#34;a&#34;: 2, &#34;b&#34;: 2})\n\n"
        "tool: 4\n\nassistant: It is 4.\n\nuser: Sure?",
    ]
    assert '<span class="badge open">cut off: turns</span>' in row


@pytest.mark.parametrize(
    ("ending", "badge"),
    [
        ({"end": "solved", "terminated": True, "truncated": False}, None),
        ({"end": "stop", "terminated": True, "truncated": False}, None),
        ({"end": "turns", "terminated": False, "truncated": True}, "cut off: turns"),
        ({"end": "step raised KeyError", "terminated": False, "truncated": False}, "step raised KeyError"),
        ({"end": "length"}, "cut off"),
    ],
)
def test_an_episode_that_came_to_its_end_has_no_badge(
    tmp_path: Path, ending: dict[str, Any], badge: str | None
) -> None:
    run = make_run(tmp_path, "rl", 0)
    row = {"prompt": "1+1=", "completion": "2", "reward": 1.0, **ending}
    run.write_samples(before=[row], after=[row])
    page = page_without_scripts(write_report(run.path))
    (article,) = re.findall(r'<article class="sample">(.*?)</article>', page, flags=re.DOTALL)
    assert re.findall(r'<span class="badge open">(.*?)</span>', article) == ([badge] * 2 if badge else [])


def test_answers_to_other_prompts_are_shown_in_turn(tmp_path: Path) -> None:
    with make_run(tmp_path, "rl", 1) as run:
        run.write_samples(
            before=[sample("a", "1", 0), sample("b", "2", 0)], after=[sample("c", "3", 1), sample("d", "4", 1)]
        )
    page = page_without_scripts(write_report(tmp_path))
    assert re.findall('<pre class="prompt"[^>]*>(.*?)</pre>', page) == ["a", "c", "b", "d"]


def test_a_very_long_answer_is_cut_and_says_by_how_much(tmp_path: Path) -> None:
    with make_run(tmp_path, "rl", 1) as run:
        run.write_samples(before=[], after=[sample("a", "x" * 21_500, 1.0)])
    assert "… (1,500 characters more)" in page_without_scripts(write_report(tmp_path))


def test_what_is_no_run_or_damaged_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a run folder"):
        write_report(tmp_path)
    run = make_run(tmp_path / "run", "rl", 1)
    run.close()
    (run.path / "summary.json").write_text("{")
    with pytest.raises(InputError, match=r"summary\.json: not valid JSON"):
        write_report(run.path)
