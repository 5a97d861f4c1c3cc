"""Every command, snippet and recipe of the documentation is run, in a folder that holds what its readers bring.

`PATH_OR_NAME` there is a tiny chat model, `train.jsonl` and its siblings are a few rows in the form of GSM8K, and `runs/x` is a
finished run. Runs are cut to a step (`snippets.shortened`). Each page starts from a folder of its own; its blocks run in order.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import runpy
import shlex
import shutil
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet
from snippets import ROOT, RUN, SHOWN, Block, blocks, commands, outside_fences, pages, short_command, shortened
from typer.main import get_command

import reinlm
from reinlm.algorithms import of_judgements
from reinlm.cli import app, main
from reinlm.config import dump_yaml, merge, parse_yaml
from reinlm.models import character_tokenizer, load_policy, save_policy, tiny_model
from reinlm.parts import IMPORTED
from reinlm.program import command_line

pytestmark = pytest.mark.no_cover

TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
LETTERS = "".join(map(chr, range(32, 127))) + "\n"
QUESTIONS = [(a, b) for a in range(3, 13) for b in range(2, 6)]
PLAYS = "\n\n".join(
    f"{name}:\nI never saw the morning of the day,\nNor heard the birds that sing the night away."
    for name in LETTERS[33:73]
)
REFUSED = {"reinlm rl num_generations=8"}
"""Commands that a page shows for what they are answered with."""
WITHOUT_VLLM = importlib.util.find_spec("vllm") is None
"""Whether a server of vLLM is refused here; `tests/with_vllm` starts one."""
VERBS = set(get_command(app).commands)  # type: ignore[attr-defined]
OTHER_PROGRAMS = {"make", "pip", "git", "cd", ".", "bash", "python", "python3", ".venv/bin/mutmut"}
PLACEHOLDERS = {"WORD": "clip", "ENV": "CliffWalking-v1", "NAME": "ppo", "FOLDER": "runs/x", "RUN": "runs/x"}
"""Words in capitals that stand for what readers have."""


@pytest.fixture(scope="session")
def brought(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What readers bring: a model, data, and a finished run."""
    folder = tmp_path_factory.mktemp("brought")
    tokenizer = character_tokenizer(LETTERS)
    tokenizer.chat_template = TEMPLATE
    model = tiny_model("qwen3", vocab_size=len(tokenizer), hidden_size=32, layers=1, heads=2, context=2048)
    save_policy(load_policy((model, tokenizer)), folder / "untrained")
    rows = [
        {"question": f"Ann has {a} pears and buys {b}. How many?", "answer": f"{a}+{b}={a + b}\n#### {a + b}"}
        for a, b in QUESTIONS
    ]
    answered = [
        {"prompt": row["question"], "completion": row["answer"], "answer": row["answer"].split()[-1]} for row in rows
    ]
    own = [{"problem": row["question"], "solution": row["answer"]} for row in rows]
    graded = [{**row, "level": level} for level, row in enumerate(rows)]
    pairs = [
        {"prompt": row["question"], "chosen": row["answer"], "rejected": f"{row['answer']}0", "domain": "sums"}
        for row in rows
    ]
    files: dict[str, Any] = {"pairs": pairs, "held_out": pairs[:8]}
    models = ("6b_finetuning", "175b_finetuning")
    files["gsm8k_model_solutions"] = [
        {"question": row["question"]}
        | {name: {"solution": f"{row['answer']}{n}", "is_correct": n == 0} for n, name in enumerate(models)}
        for row in rows
    ]
    files |= {"gsm8k_train": rows, "gsm8k_test": rows, "train": answered, "test": answered, "problems": own}
    files |= {name: [{"text": row["answer"]} for row in rows] for name in ("wiki", "snippets")}
    for name, found in (files | {"easy": graded, "hard": graded}).items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found), encoding="utf-8")
    (folder / "tinyshakespeare.txt").write_text(PLAYS, encoding="utf-8")
    parquet.write_table(pyarrow.Table.from_pylist(answered), folder / "train.parquet")
    (folder / "rewards.py").write_text(
        "def score(completions, **columns):\n    return [0.0] * len(completions)\n\n"
        "async def judge(completion):\n    return 0.0\n"  # in place of one that asks a service
    )
    shutil.copytree(ROOT / "recipes", folder / "recipes")
    for recipe in (folder / "recipes").rglob("*.yaml"):
        recipe.write_text(shortened(recipe.read_text(encoding="utf-8")), encoding="utf-8")
    with contextlib.chdir(folder):
        short = [{"prompt": row["question"], "completion": str(place % 10)} for place, row in enumerate(rows)]
        tuned = reinlm.sft(
            "untrained",
            short,
            output="tuned",
            quiet=True,
            training={"steps": 40, "batch_size": 8},
            optimizer={"learning_rate": 1e-2},
        )
        for name in ("PATH_OR_NAME", "Qwen/Qwen3-0.6B"):
            save_policy(tuned.policy, Path(name))
        for name in ("untrained", "tuned"):
            shutil.rmtree(name)
        reinlm.rl(
            "PATH_OR_NAME",
            "gsm8k_train.jsonl",
            reward="math",
            output="runs/x",
            quiet=True,
            training={"steps": 1},
            rollout={"group_size": 2, "batch_size": 4, "max_new_tokens": 4},
        )
    for name in ("a", "b"):
        shutil.copytree(folder / "runs/x", folder / "runs" / name)
    for name in ("grpo", "dapo"):
        tree = {
            "model": "PATH_OR_NAME",
            "data": "gsm8k_train.jsonl",
            "reward": "math",
            "algorithm": name,
            "rollout": {"group_size": 4, "batch_size": 16, "max_new_tokens": 4},
            "training": {"steps": 1},
        }
        (folder / f"{name}.yaml").write_text(dump_yaml(tree), encoding="utf-8")
    return folder


@pytest.fixture
def run(brought: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> Iterator[Callable[[Block], str]]:
    """Run one block, and the commands that it prints; say what kind it was, or why it was not run."""
    place = tmp_path / "here"
    shutil.copytree(brought, place, symlinks=True)
    for shared in ("docs", "examples", "studies", "benchmarks"):
        (place / shared).symlink_to(ROOT / shared)
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(str(place))
    scope: dict[str, Any] = {"reinlm": reinlm, "__name__": "snippet"}
    modules = set(sys.modules)

    def command(words: list[str], printed: bool = False) -> str:
        text = shlex.join(words)
        if ">" in words:
            words = words[: words.index(">")]
        if words[0] == "python" and words[1].startswith("recipes/"):
            monkeypatch.syspath_prepend(Path(words[1]).parent)
            monkeypatch.setattr(sys, "argv", words[1:])
            runpy.run_path(words[1], run_name="__main__")
            return "commands"
        if Path(words[0]).name != "reinlm":
            return _set_up(words)
        given = [PLACEHOLDERS.get(word, word) for word in words[1:]]
        if len(given) == 1 and given[0] in VERBS:  # the verb is spoken of, not called
            given = [*given, "--help"]
        for folder in _outputs(given):
            shutil.rmtree(folder, ignore_errors=True)
        capfd.readouterr()
        with pytest.raises(SystemExit) as stop:
            main(short_command(given))
        out, err = capfd.readouterr()
        if text in REFUSED or (given[0] == "vllm-serve" and "--help" not in given and WITHOUT_VLLM):
            assert stop.value.code == 2, text
            assert "hint: " in err
        else:
            assert not stop.value.code, f"{text}\n{out}\n{err}"
        said = (
            [] if printed or "--help" in given else re.findall(r"(?:^|[\s`])((?:\S*/)?reinlm [a-z][^`\n]*)", out + err)
        )
        for line in said:
            if shlex.split(line)[1] in VERBS:
                command(shlex.split(line), printed=True)
        return "commands"

    def python(block: Block) -> str:
        for folder in re.findall(r"output=\"([^\"]+)\"", block.body):
            shutil.rmtree(folder, ignore_errors=True)
        source = shortened(block.body)
        exec(compile(source, block.where, "exec"), scope)
        return "snippets"

    def recipe(block: Block) -> str:
        tree = parse_yaml(shortened(block.body), block.where)
        if of_judgements(tree.get("algorithm")):
            own = {"model": "PATH_OR_NAME", "data": "pairs.jsonl", "training": {"steps": 1}}
            reinlm.dpo(recipe=merge(own, tree), output="runs/recipe", overwrite=True, quiet=True)
            return "recipes"
        base: dict[str, Any] = {
            "model": "PATH_OR_NAME",
            "data": "train.jsonl",
            "rollout": {"group_size": 4, "batch_size": 16, "max_new_tokens": 4},
            "training": {"steps": 1},
        }
        if "environment" not in tree:
            base["reward"] = "math"
        base = {key: value for key, value in base.items() if isinstance(value, dict) or key not in tree}
        tree = merge(merge(base, tree), {"training": {"steps": 1}})
        shutil.rmtree("runs/recipe", ignore_errors=True)
        train = reinlm.rft if "method" in tree else reinlm.rl
        train(recipe=tree, output="runs/recipe", quiet=True)
        return "recipes"

    def run_block(block: Block) -> str:
        if block.reason:
            return f"{block.where}: {block.reason}"
        if block.title:
            Path(block.title).write_text(block.body, encoding="utf-8")
            for name in [name for name in sys.modules if name.startswith(IMPORTED)]:
                del sys.modules[name]
        if block.title and block.language == "python":  # a recipe or a command after it uses it
            return "snippets"
        if block.language == "sh":
            return "\n".join(command(words) for words in commands(block.body))
        return {"python": python, "yaml": recipe}[block.language](block)

    yield run_block
    for name in set(sys.modules) - modules:
        if name.startswith(IMPORTED) or str(getattr(sys.modules[name], "__file__", "")).startswith(str(place)):
            del sys.modules[name]


def _set_up(words: list[str]) -> str:
    """Commands of the shell and of other programs: what they name exists, and they are listed."""
    text = shlex.join(words)
    assert words[0] in OTHER_PROGRAMS, text
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE), text
    if words[0] == "python" and words[1] == "-m":
        assert importlib.util.find_spec(words[2]), text
    elif words[0] == "python":
        assert (ROOT / words[1]).is_file(), text
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for word in words:
        for package, extra in re.findall(r"^([^\[]*)\[([\w,]+)\]$", word):
            assert package == ".", f"{text}: reinlm is installed from a clone"
            assert set(extra.split(",")) <= set(extras), text
    return f"{text}: not a command of reinlm"


def _outputs(words: list[str]) -> list[str]:
    after = [words[place + 1] for place, word in enumerate(words[:-1]) if word in ("--output", "-o")]
    return [] if "--resume" in words or "--overwrite" in words else after


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_a_page_runs_as_it_stands(page: Path, run: Callable[[Block], str], record_property: Any) -> None:
    count: Counter[str] = Counter()
    for block in blocks(page):
        assert block.language in RUN + SHOWN, f"{block.where}: a fence says its language, not {block.language!r}"
        if block.language in RUN:
            for kind in run(block).splitlines():
                count[kind] += 1
    record_property("documentation", dict(count))


def test_no_command_is_indented_in_place_of_a_fence() -> None:
    """Blocks by indentation would be neither run nor listed."""
    indented = re.compile(r"^ {4,}(?:reinlm|python|pip|make|bash) .*", re.MULTILINE)
    assert not {page.name: found for page in pages() if (found := indented.findall(outside_fences(page)))}


def test_commands_in_help_texts_run(run: Callable[[Block], str], capfd: Any, record_property: Any) -> None:
    found = 0
    for name in get_command(app).commands:  # type: ignore[attr-defined]
        with pytest.raises(SystemExit):
            main([name, "--help"])
        shown = capfd.readouterr().out.replace(command_line(), "reinlm")
        for line in re.findall(r"^ *(reinlm [a-z].*?) *$", shown, re.MULTILINE):
            run(Block(f"reinlm {name} --help", 1, "sh", line))
            found += 1
    assert found
    record_property("documentation", {"commands": found})
