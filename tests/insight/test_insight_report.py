from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from insight_runs import HOSTILE, group, make_quickstart, make_run, sample

from reinlm.errors import InputError
from reinlm.insight.charts import CHARTS, MOST_POINTS, charts
from reinlm.insight.report import write_report
from reinlm.metrics import METRICS
from reinlm.runs.declarations import Metric, write_metrics_info
from reinlm.runs.folder import RunFolder
from reinlm.runs.metrics import MetricsLog, read_metrics
from reinlm.runs.schema import RolloutLog


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_quickstart(tmp_path_factory.mktemp("runs") / "quickstart")


def page_without_scripts(path: Path) -> str:
    return re.sub(r"<script>.*?</script>", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)


def figures(path: Path) -> dict[str, dict[str, Any]]:
    found = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', path.read_text(encoding="utf-8"))
    return {chart["title"]: chart for chart in map(json.loads, found)}


def cells(path: Path) -> list[list[str]]:
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', page_without_scripts(path))
    return [[name, *re.findall(r"<td[^>]*>(.*?)</td>", rest)] for name, rest in rows]


def test_a_report_needs_nothing_from_anywhere_else(quickstart: Path) -> None:
    page = page_without_scripts(write_report(quickstart))
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!#|data:)""", page.replace("src=x", ""))
    assert "default-src 'none'" in page


def test_the_headline_shows_before_after_and_change(quickstart: Path) -> None:
    assert cells(write_report(quickstart)) == [
        [
            "Accuracy, sampling",
            "43.0 % <small>41.0–45.0 %</small>",
            "95.1 % <small>94.1–96.0 %</small>",
            "+52.1 points",
        ],
        ["Accuracy, greedy", "93.0 %", "97.2 %", "+4.2 points"],
    ]
    assert "<dt>train seconds</dt><dd>84.2</dd>" in page_without_scripts(quickstart / "report.html")


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


def test_every_logged_metric_is_in_exactly_one_chart() -> None:
    records = [{"step": 1, "time": 1.0, "loss": 1.0, "eval/a/accuracy": 0.5, "eval/a/accuracy_low": 0.4}]
    records[0] |= {"eval/a/accuracy_high": 0.6, "eval/b/accuracy": 0.7, "my/own": 2.0, "kl": math.nan, "epoch": 0.5}
    shown = {chart["title"]: [curve["label"] for curve in chart["curves"]] for chart in charts(records, "rl", METRICS)}
    assert shown == {
        "Held-out accuracy": ["a", "b"],
        "Policy loss": ["loss"],
        "my/own": ["my/own"],
        "epoch": ["epoch"],
    }


def test_a_curve_holds_its_points_its_band_and_gaps_where_a_value_was_not_finite() -> None:
    low, high = "eval/{}/accuracy_low", "eval/{}/accuracy_high"
    records: list[dict[str, Any]] = [
        {"step": 0, "eval/x/accuracy": 0.5, low.format("x"): 0.4, high.format("x"): 0.6},
        {"step": 5},
        {"step": 10, "eval/x/accuracy": math.inf, low.format("x"): 0.5, high.format("x"): 0.7},
    ]
    (chart,) = charts(records, "rl", METRICS)
    curve = {"label": "x", "x": [0, 10], "y": [0.5, None], "low": [0.4, 0.5], "high": [0.6, 0.7]}
    assert chart["curves"] == [curve]
    assert chart["form"] == "percent"


def test_the_loss_means_another_thing_in_another_kind_of_run() -> None:
    records = [{"step": 1, "loss": 1.0}]
    assert [[chart["title"] for chart in charts(records, kind, METRICS)] for kind in ("sft", "rl", "mine")] == [
        ["Loss"],
        ["Policy loss"],
        ["loss"],
    ]


def test_a_long_run_is_averaged_in_stretches() -> None:
    records = [{"step": step, "entropy": float(step % 3)} for step in range(3 * MOST_POINTS)]
    (chart,) = charts(records, "rl", METRICS)
    assert chart["curves"][0]["x"] == [3 * index + 2 for index in range(MOST_POINTS)]
    assert chart["curves"][0]["y"] == [1.0] * MOST_POINTS


def test_a_run_that_has_just_begun_has_a_report(tmp_path: Path) -> None:
    make_run(tmp_path / "run", "rl", 0).close()
    page = page_without_scripts(write_report(tmp_path / "run"))
    assert "No step has been logged yet." in page
    assert "not finished" in page


def test_a_killed_run_has_a_report_of_its_whole_lines(tmp_path: Path) -> None:
    make_run(tmp_path, "rl", 41).close()
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-30])
    path = write_report(tmp_path)
    assert figures(path)["Entropy"]["curves"][0]["x"][-1] == 39
    assert cells(path) == [["eval/held_out/accuracy", "45.0 %", "75.3 %", "+30.3 points"]]


def test_without_evaluations_the_headline_is_what_the_curves_began_and_ended_with(tmp_path: Path) -> None:
    make_run(tmp_path, "sft", 40).close()
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert cells(write_report(tmp_path)) == [
        ["Loss", f"{rows[0]['loss']:.4g}", f"{rows[-1]['loss']:.4g}", f"{rows[-1]['loss'] - rows[0]['loss']:+.4g}"]
    ]


def test_the_summary_of_a_single_run_gives_its_evaluations_before_and_after(tmp_path: Path) -> None:
    with make_run(tmp_path, "rl", 1) as run:
        before = {
            "step": 0,
            "gsm8k/accuracy": 0.5,
            "gsm8k/accuracy_low": 0.4,
            "gsm8k/accuracy_high": 0.6,
            "gsm8k/pass@2": 0.7,
        }
        after = {"step": 9, "gsm8k/accuracy": 0.75, "gsm8k/reward": 1.0}
        run.write_summary({"before": before, "after": after, "train_seconds": 12_345.6, "stopped": "patience"})
    assert cells(write_report(tmp_path)) == [
        ["gsm8k/accuracy", "50.0 % <small>40.0–60.0 %</small>", "75.0 %", "+25.0 points"]
    ]
    page = page_without_scripts(tmp_path / "report.html")
    assert re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", page)[:2] == [
        ("train seconds", "12,346"),
        ("stopped early", "patience"),
    ]


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


def sides(path: Path) -> list[str]:
    return [text.strip() for text in re.findall(r'<p class="side">([^<]*)', page_without_scripts(path))]


def test_answers_are_labelled_by_the_step_that_they_were_sampled_at(tmp_path: Path) -> None:
    with make_run(tmp_path, "rl", 3) as run:
        log = RolloutLog(tmp_path)
        log.write(1, [group("a", "x", 0.0)], {})
        assert sides(write_report(tmp_path)) == ["sampled in step 1"]
        log.write(2, [group("a", "y", 0.0)], {})
        assert sides(write_report(tmp_path)) == ["sampled in step 1", "sampled in step 2"]
        run.write_samples(before=[sample("a", "x", 0.0) | {"step": 0}], after=[sample("a", "y", 0.0) | {"step": 1000}])
        assert sides(write_report(tmp_path)) == ["before training", "after step 1,000"]
        run.write_samples(before=[sample("a", "x", 0.0)], after=[sample("a", "y", 0.0)])
        assert sides(write_report(tmp_path)) == ["before", "after"]


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


def test_a_chart_reads_unit_meaning_and_bounds_from_the_declaration_of_its_metric() -> None:
    (chart,) = charts([{"step": 1, "completions/clipped_ratio": 0.5}], "rl", METRICS)
    info = METRICS["completions/clipped_ratio"]
    assert (chart["title"], chart["unit"]) == ("Answers cut off", info.unit)
    assert chart["meaning"].lower() == f"{info.meaning}.".lower()
    assert (chart["healthy"], chart["unhealthy"]) == (f"{info.healthy}.", f"{info.bad}.")
    assert chart["curves"][0]["healthy"] == [0.1]


def test_units_and_bounds_are_those_of_the_folder_or_else_of_the_table_that_is_given(tmp_path: Path) -> None:
    logged = {"completions/clipped_ratio": 0.5, "mine/margin": 1.0}
    own = Metric("mine/margin", "nats", "distance to the next answer", healthy_range=(0.0, None))
    run = make_run(tmp_path, "rl", 0)
    MetricsLog(tmp_path).append(1, logged)
    write_metrics_info(tmp_path, [own])
    given = {own.name: replace(own, unit="points"), "completions/clipped_ratio": METRICS["completions/clipped_ratio"]}
    alone, both = (figures(write_report(run.path, metrics=table)) for table in (None, given))
    (run.path / "metrics_info.json").unlink()
    earlier = figures(write_report(run.path))

    def shown(page: dict[str, dict[str, Any]]) -> dict[str, tuple[str, Any]]:
        return {title: (chart["unit"], chart["curves"][0].get("healthy")) for title, chart in page.items()}

    assert shown(alone) == {"Answers cut off": ("none", None), "mine/margin": ("nats", [0.0])}
    assert shown(both) == {"Answers cut off": ("fraction", [0.1]), "mine/margin": ("nats", [0.0])}
    assert shown(earlier) == {"Answers cut off": ("none", None), "mine/margin": ("none", None)}
    assert alone["mine/margin"]["meaning"] == "Distance to the next answer."
    assert earlier["mine/margin"]["meaning"] == "Its unit and meaning are not declared."
    assert ", in none" not in page_without_scripts(run.path / "report.html")


def test_a_chart_is_described_by_the_first_of_its_metrics_that_the_run_has() -> None:
    held_out = "eval/{set}/clipped_ratio"
    (chart,) = charts([{"step": 1, "eval/a/clipped_ratio": 0.5}], "sft", {held_out: METRICS[held_out]})
    assert (chart["title"], chart["unit"]) == ("Answers cut off", "fraction")
    assert chart["meaning"] == (
        "Held-out episodes that a limit cut off: length, turns, context, time or the environment's own."
    )


def test_every_chart_names_metrics_that_are_declared() -> None:
    named = [n for c in CHARTS for s in c.series for n in (s.metric, s.low, s.high) if n is not None]
    assert [name for name in named if name not in METRICS] == ["time/{name}"]


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


def find_chromium() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.skipif(find_chromium() is None, reason="needs chromium on the PATH")
def test_a_browser_draws_every_chart_and_runs_no_hostile_text(quickstart: Path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs the Python package playwright")
    path = write_report(quickstart)
    requests, complaints = [], []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme="dark")
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(path.as_uri())
        page.locator(".plot").first.scroll_into_view_if_needed()
        page.wait_for_function("() => document.querySelector('.plot').dataset.drawn")
        far_below = page.evaluate("[...document.querySelectorAll('.plot')].at(-1).dataset.drawn")
        for summary in page.locator("summary").all():
            summary.click()
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        paths = page.evaluate(
            "[...document.querySelectorAll('.plot')].map((plot) => plot.querySelectorAll('.scatterlayer path').length)"
        )
        plot = page.locator("figure", has_text="Gradient norm").first.locator(".plot")
        curves = "(plot) => plot.data.map((curve) => curve.y)"
        smoothed = plot.evaluate(curves)
        plot.scroll_into_view_if_needed()
        page.locator("#smoothing").fill("0")
        page.wait_for_function("(plot) => plot.data.length === 1", arg=plot.element_handle())
        unsmoothed = plot.evaluate(curves)
        width = page.evaluate("document.documentElement.scrollWidth")
        hacked = page.evaluate("window.hacked")
        title = page.locator("h1").inner_text()
        browser.close()
    assert complaints == []
    assert requests == [path.as_uri()]
    assert hacked is None
    assert far_below is None, "a chart is drawn only as it comes near the window"
    assert title == "quickstart"
    assert width == 390, "a phone scrolls in one direction alone"
    assert len(paths) == page_without_scripts(path).count("data-chart=")
    assert min(paths) >= 1
    records = read_metrics(quickstart / "sft" / "metrics.jsonl")
    raw = [record["grad_norm"] for record in records]
    assert smoothed[0] == unsmoothed[0] == raw
    assert smoothed[1][:2] == pytest.approx([raw[0], (0.6 * 0.4 * raw[0] + 0.4 * raw[1]) / 0.64])


@pytest.mark.skipif(find_chromium() is None, reason="needs chromium on the PATH")
def test_the_axis_of_steps_has_whole_plain_numbers(tmp_path: Path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs the Python package playwright")
    ticks = {}
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        for last in (2, 4000):
            with RunFolder.create(tmp_path / str(last), kind="rl", config={}, command="x"):
                log = MetricsLog(tmp_path / str(last))
                log.append(1, {"entropy": 0.5})
                log.append(last, {"entropy": 0.4})
            page = browser.new_page()
            page.goto(write_report(tmp_path / str(last)).as_uri())
            page.wait_for_function("() => document.querySelector('.plot').dataset.drawn")
            ticks[last] = {text for text in page.locator(".plot").first.locator(".xtick").all_text_contents() if text}
        browser.close()
    assert ticks[2] == {"1", "2"}
    assert {"1,000", "4,000"} <= ticks[4000]
