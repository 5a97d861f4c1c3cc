"""Keywords that the command line has as flags, results that fit back in, and how results are shown."""

from __future__ import annotations

import inspect
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.main import get_command

import reinlm
from reinlm.api.arguments import SHORT
from reinlm.api.keywords import RLKeywords, SFTKeywords
from reinlm.cli.tables import print_result
from reinlm.config import read_recipe
from reinlm.loop import RunResult
from tiny_runs import EXAMPLES, ROWS, graded, local, metrics, saved, settings, tiny

pytestmark = pytest.mark.no_cover

SMALL: dict[str, Any] = {"samples": 2, "max_new_tokens": 3}
OF_PRINTING = {"explain", "json", "debug", "help"}
"""Flags that say how the command line prints; Python returns results and raises errors."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def model(folder: Path) -> str:
    return saved(folder / "model")


@pytest.fixture(scope="module")
def run(folder: Path, model: str) -> RunResult:
    how = settings(evaluation={"max_new_tokens": 4, "data": ROWS[:4]})
    return reinlm.rl(model, ROWS, reward=local(graded), output=folder / "run", quiet=True, **how)


def flags(verb: str) -> set[str]:
    from reinlm.cli.app import app

    command = get_command(app).commands[verb]  # type: ignore[attr-defined]
    return {
        name.removeprefix("--")
        for option in command.params
        for name in option.opts
        if name.startswith("--") and not getattr(option, "hidden", False)
    }


@pytest.mark.parametrize("verb", ["sft", "rl", "eval", "generate"])
def test_every_flag_is_a_keyword_of_the_same_name(verb: str) -> None:
    import reinlm.cli.commands
    from reinlm.training.config import GenerateConfig
    from reinlm.training.eval_config import EvalConfig

    function: Any = {"sft": reinlm.sft, "rl": reinlm.rl, "eval": reinlm.evaluate, "generate": reinlm.generate}[verb]
    keywords = {"sft": SFTKeywords, "rl": RLKeywords}.get(verb)
    known = {*inspect.signature(function).parameters, *SHORT[verb]}
    kinds: dict[str, Any] = {"eval": EvalConfig, "generate": GenerateConfig}
    known |= keywords.__annotations__.keys() if keywords else kinds[verb].model_fields.keys()
    assert {name.replace("-", "_") for name in flags(verb) - OF_PRINTING} <= known


def test_the_console_and_a_notebook_show_the_same_figures(run: RunResult, capsys: pytest.CaptureFixture[str]) -> None:
    print_result(run)
    cells = [line.strip("│ ").split() for line in capsys.readouterr().out.splitlines() if "│" in line]
    words = [[cell for cell in row if cell != "│"] for row in cells]
    table = run.before_after()
    assert [tuple(row) for row in words if row and "/" in row[0]] == table
    assert {name for name, _, _ in table} >= {"eval/accuracy", "eval/mean_length"}
    assert all(f"{name}" in repr(run) and before in repr(run) for name, before, _ in table)


def test_short_keywords_are_the_keys_that_they_stand_for(folder: Path, model: str) -> None:
    how = settings(evaluation={"max_new_tokens": 4})
    steps = how.pop("training")["steps"]
    common: dict[str, Any] = {"reward": local(graded), "quiet": True}
    short = reinlm.rl(model, ROWS, output=folder / "short", steps=steps, eval_data=ROWS[:4], **how, **common)
    how["evaluation"] |= {"data": {"eval": ROWS[:4]}}
    whole = reinlm.rl(model, ROWS, output=folder / "whole", training={"steps": steps}, **how, **common)
    assert metrics(short.folder) == metrics(whole.folder)
    tuned = reinlm.sft(model, EXAMPLES, output=folder / "sft", steps=1, eval_data={"held": EXAMPLES[:2]}, quiet=True)
    assert tuned.summary["steps"] == 1
    assert "held/loss" in tuned.summary["after"]
    found = [
        reinlm.evaluate(model, ROWS, reward=local(graded), quiet=True, **given)
        for given in (
            {**SMALL, "temperature": 0.5, "top_k": 2},
            {"evaluation": {**SMALL, "temperature": 0.5, "top_k": 2}},
        )
    ]
    assert found[0].metrics == found[1].metrics
    answers = [
        reinlm.generate(model, prompt="1+2=", quiet=True, **given)
        for given in (
            {"max_new_tokens": 3, "temperature": 0.5, "top_p": 0.9, "samples": 2},
            {"sampling": {"max_new_tokens": 3, "temperature": 0.5, "top_p": 0.9}, "samples": 2},
        )
    ]
    assert answers[0] == answers[1]
    assert len(answers[0][0].completions) == 2


@pytest.mark.parametrize(
    ("verb", "given", "message"),
    [
        (reinlm.rl, {"steps": 1, "training": {"steps": 2}}, "steps and training.steps are the same"),
        (reinlm.evaluate, {"samples": 1, "evaluation": {"samples": 2}}, "samples and evaluation.samples are the same"),
        (reinlm.generate, {"prompt": "1", "prompts": ["2"]}, "prompt and prompts are the same"),
    ],
)
def test_a_value_that_is_given_twice_is_refused(verb: Any, given: Any, message: str, model: str) -> None:
    with pytest.raises(reinlm.InputError, match=message):
        verb(model, **given)


def test_a_run_stands_wherever_a_model_does(folder: Path, run: RunResult) -> None:
    last = run.folder / "checkpoints" / "last"
    given = (run, run.policy, str(last), run.folder, run.folder / "checkpoints", {"path": run.folder})
    scored = [reinlm.evaluate(model, ROWS, reward=local(graded), quiet=True, **SMALL).metrics for model in given]
    assert all(metrics == scored[0] for metrics in scored)
    asked = [reinlm.generate(model, ["1+2=", "3+4="], quiet=True, max_new_tokens=3) for model in given]
    assert all(answers == asked[0] for answers in asked)
    before = {name: value.clone() for name, value in run.policy.model.state_dict().items()}
    further = reinlm.rl(run, ROWS, reward=local(graded), output=folder / "further", quiet=True, **settings())
    assert read_recipe(further.folder / "config.yaml")["model"]["path"] == str(last)
    assert all(torch.equal(value, before[name]) for name, value in run.policy.model.state_dict().items())
    again = reinlm.rl(str(last), ROWS, reward=local(graded), output=folder / "again", quiet=True, **settings())
    assert metrics(further.folder) == metrics(again.folder)


def test_a_run_may_be_a_reference_and_says_which_checkpoint_it_is(
    folder: Path, run: RunResult, capsys: pytest.CaptureFixture[str]
) -> None:
    how = settings(algorithm={"base": "grpo", "kl": {"coefficient": 0.1}})
    reinlm.rl(run.folder, ROWS, reward=local(graded), reference=run, output=folder / "tied", **how)
    said = capsys.readouterr().err
    assert f"model: {run.folder}/checkpoints/last, after step 2 of its run" in said.replace("\n", " ")
    assert read_recipe(folder / "tied" / "config.yaml")["reference"]["path"].endswith("run/checkpoints/last")


# ------------------------------------------------------------------------------------------------ how results are shown


class Balanced(HTMLParser):
    """Collects the texts of well-formed HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.tags: set[str] = set()
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        assert not {"src", "href"} & {name for name, _ in attrs}
        if tag not in ("br", "polyline"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("br", "polyline"):
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_metrics_are_a_frame_where_pandas_is_installed_and_rows_where_not(
    run: RunResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = run.rows
    assert [row["step"] for row in rows] == [0, 1, 2]
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert run.metrics == rows
    monkeypatch.undo()
    pandas = pytest.importorskip("pandas")
    frame = run.metrics
    assert isinstance(frame, pandas.DataFrame)
    assert frame["reward"].dropna().tolist() == [row["reward"] for row in rows if "reward" in row]


def test_results_print_as_tables_and_show_a_curve(run: RunResult) -> None:
    text = repr(run)
    assert text.startswith("rl: 2 steps in ")
    assert "eval/accuracy" in text
    assert str(run.folder / "report.html") in text
    page = Balanced(run._repr_html_())
    assert {"table", "svg", "polyline"} <= page.tags
    scored = reinlm.evaluate(run, ROWS, reward=local(graded), quiet=True, **SMALL)
    assert repr(scored).startswith("16 prompts\nreward")  # which is no verdict
    assert "1+2=" in Balanced(scored._repr_html_()).texts
    answers = reinlm.generate(run, ["1+2=", "3+4="], quiet=True, max_new_tokens=3, samples=2)
    assert repr(answers).splitlines()[0] == "1+2="
    assert repr(answers).count("→") == 4
    assert {"1+2=", "3+4="} <= set(Balanced(answers._repr_html_()).texts)
    assert Balanced(answers[0]._repr_html_()).texts.count("3+4=") == 0
    chosen = reinlm.algorithm("dapo")
    assert "clip 0.2 0.28" in str(chosen)
    assert "clip 0.2 0.28" in Balanced(chosen._repr_html_()).texts


QUIET = """
import sys
sys.path.insert(0, {tests!r})
import reinlm
from tiny_runs import ROWS, EXAMPLES, graded, local, settings
run = reinlm.rl({model!r}, ROWS, reward=local(graded), output={output!r}, quiet=True, **settings())
reinlm.sft(run, EXAMPLES, output={output!r} + "-sft", quiet=True, steps=1, peft_config={{"rank": 2}})
reinlm.evaluate(run.folder, ROWS, reward=local(graded), quiet=True, samples=2, max_new_tokens=3)
reinlm.generate(run.folder, "1+2=", quiet=True, max_new_tokens=3)
with reinlm.RLTrainer({model!r}, ROWS, reward=local(graded), output={output!r} + "-steps", quiet=True, **settings()) as trainer:
    trainer.step()
"""


def test_quiet_calls_print_nothing(tmp_path: Path, model: str) -> None:
    code = QUIET.format(tests=str(Path(__file__).parents[1]), model=model, output=str(tmp_path / "run"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# ------------------------------------------------------------------------------------------------ peft's own configuration


def test_a_configuration_of_peft_is_an_adapter_on_a_named_and_on_a_loaded_model(folder: Path, model: str) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    own = {"rank": 2, "alpha": 4, "target_modules": ["q_proj", "v_proj"]}
    common: dict[str, Any] = {"reward": local(graded), "quiet": True, **settings()}
    ways: dict[str, Any] = {
        "ours": {"model": {"path": model, "lora": own}},
        "theirs": {"model": {"path": model, "lora": config}},
        "keyword": {"model": model, "peft_config": config},
    }
    found = {name: reinlm.rl(data=ROWS, output=folder / name, **given, **common) for name, given in ways.items()}
    assert metrics(found["ours"].folder) == metrics(found["theirs"].folder) == metrics(found["keyword"].folder)
    lora = read_recipe(folder / "theirs" / "config.yaml")["model"]["lora"]
    assert lora == {"rank": 2, "alpha": 4.0, "dropout": 0.0, "target_modules": ["q_proj", "v_proj"]}
    loaded = reinlm.rl(tiny(), ROWS, peft_config=config, output=folder / "loaded", **common)
    trained = {name for name, weight in loaded.policy.model.named_parameters() if weight.requires_grad}
    assert trained
    assert all(".lora_" in name for name in trained)
