"""Couplets: the rules by hand, with the ways around them, and the recipes on a text of a page."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from recipe_files import recipe_files

FOLDER = Path(__file__).parents[2] / "recipes" / "couplets"


load = recipe_files("couplets")
rewards = load("rewards")
GOOD = "The silver moon is rising in the night,\nAnd every star has lost a little light."
"""Two lines of ten syllables that rhyme."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A file that has the words of `GOOD`, in another order."""
    file = tmp_path_factory.mktemp("corpus") / "plays.txt"
    file.write_text(
        "\n".join(reversed(GOOD.split())) + "\nWe are not all alone unhappy here. Thee, the, weeping, going, heart."
    )
    return [str(file)]


def verdict(text: str, corpus: list[str]) -> float:
    (score,) = rewards.couplets([text], corpus)
    return float(score)


def test_two_good_lines_pass_every_rule(corpus: list[str]) -> None:
    assert verdict(GOOD, corpus) == 1
    scores = [rule([GOOD]) for rule in (rewards.form, rewards.metre, rewards.rhyme, rewards.repetition)]
    assert scores == [[1.0]] * 4
    assert rewards.verse([GOOD, GOOD.replace("light", "heart"), GOOD.replace("light", "lighted")], corpus) == [1, 1, 0]
    assert verdict(GOOD.replace("light", "heart"), corpus) == 0
    assert rewards.real_words([GOOD], corpus) == rewards.own_words([GOOD], corpus) == [1.0]


LINES = GOOD.split("\n")


@pytest.mark.parametrize(
    ("rule", "expected", "text"),
    [
        ("form", 1 / 2 / 2, LINES[0]),
        ("form", 1 / 2, GOOD[:-1]),
        ("form", 3 / 4, GOOD.replace("And", "and")),
        ("form", 2 / 3, GOOD + "\nAnd all is well."),
        ("form", 0, ""),
        ("metre", 1 / 2, LINES[0]),
        ("metre", 2 / 4, GOOD + "\nA\nB"),
        ("metre", 0, "The moon\nA star."),
        ("rhyme", 0, LINES[0]),
        ("rhyme", 0, GOOD.replace("light", "night")),
        ("rhyme", 0.2, GOOD.replace("light", "heart")),
        ("rhyme", 0.4, "I keep on weeping,\nAnd you are going."),
        ("rhyme", 1 / 2, GOOD + "\nO sun\nAnd star"),
        ("rhyme", 0, "One thee\nTwo the"),
        ("rhyme", 0, ""),
        ("repetition", 1 / 3, "Gentle gentle gentle"),
        ("repetition", 0, "Oh no"),
    ],
)
def test_a_rule_counts_what_its_docstring_says(rule: str, expected: float, text: str) -> None:
    assert getattr(rewards, rule)([text]) == [pytest.approx(expected)]


def test_invented_words_cost_five_times_their_share(corpus: list[str]) -> None:
    text = GOOD.replace("moon", "moonlet").replace("star", "starf")
    words = len(rewards.words_of(text))
    assert rewards.real_words([text, "Xyzzy plugh", ""], corpus) == [pytest.approx(1 - 5 * 2 / words), 0, 0]


def test_six_words_in_a_row_from_the_plays_are_a_copy(corpus: list[str]) -> None:
    copied, near = "But we are not all alone unhappy here", "But we are not all alone"
    assert rewards.own_words([copied, near], corpus) == [0, 1]


def test_variety_falls_where_answers_of_a_group_end_their_lines_alike() -> None:
    other = GOOD.replace("night", "hall").replace("light", "wall")
    assert rewards.variety([GOOD, other]) == [1, 1]
    assert rewards.variety([GOOD, GOOD, other]) == [0, 0, 1]
    assert rewards.variety([GOOD, GOOD.replace("night", "sight")]) == [1 / 2, 1 / 2]


@pytest.mark.parametrize(
    "text",
    [
        GOOD.replace("light", "night"),  # a word with itself
        GOOD.replace("night", "the").replace("light", "thee"),
        "The silver moon is rising and is weeping,\nAnd every star has lost a little going.",  # endings without a stress
        GOOD.replace("moon", "moonlet"),
        GOOD.replace("silver moon is rising", "moon is"),  # a short line
        GOOD + "\n" + GOOD,
        GOOD.replace("every star has lost a little", "we are not all alone unhappy here"),
        GOOD.replace("little", "silver"),
        "",
    ],
    ids=["same", "article", "suffix", "invented", "short", "four-lines", "copied", "repeated", "empty"],
)
def test_a_way_around_the_rules_is_not_accepted(text: str, corpus: list[str]) -> None:
    assert text != GOOD
    assert verdict(text, corpus) == 0


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("night", "light", True),
        ("love", "dove", True),
        ("moved", "loved", True),
        ("day", "away", True),
        ("crown", "down", True),
        ("king", "sing", True),
        ("flower", "power", True),
        ("glory", "story", True),
        ("making", "sleeping", False),
        ("lordly", "sweetly", False),
        ("light", "delight", False),
        ("self", "himself", False),
        ("thee", "me", False),
        ("tear", "tear", False),
        ("", "", False),
        ("sh", "th", False),
    ],
)
def test_words_rhyme_by_their_spelling(first: str, second: str, expected: bool) -> None:
    assert rewards.rhymes(first, second) is rewards.rhymes(second, first) is expected


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("Shall I compare thee to a summer's day?", 10),
        ("To be, or not to be: that is the question:", 11),
        ("Love loved loves, hated, graces", 7),
        ("gentle people male speed being", 8),
        ("o'er ne'er know't 'tis", 4),
        ("", 0),
    ],
)
def test_syllables_are_counted_by_vowels(line: str, count: int) -> None:
    assert rewards.syllables_of(line) == count


# ------------------------------------------------------------------------------------------------ the recipes

PLAYS = "\n\n".join(f"{name}:\n" + "\n".join(LINES[: 1 + number % 2]) for number, name in enumerate("ABCDEFGHIJ" * 3))
SMALL = ("hidden_size=16", "heads=2", "layers=1", "intermediate_size=16", "tokenizer.vocab_size=300")


def command_line(*words: str) -> None:
    from reinlm.cli import main

    with pytest.raises(SystemExit) as ended:
        main([*words])
    assert not ended.value.code


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the recipes in it, as in a clone."""
    monkeypatch.syspath_prepend(FOLDER)
    (tmp_path / "recipes").symlink_to(FOLDER.parent)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_recipes_run_from_a_text_to_a_model(place: Path) -> None:
    Path("plays.txt").write_text(PLAYS)
    load("prepare").prepare(Path("plays.txt"), Path("runs/couplets"))
    rows = [json.loads(line) for line in Path("runs/couplets/text.jsonl").read_text().splitlines()]
    assert rows[0] == {"text": f"A:\n{LINES[0]}"}
    assert len(rows) == 27
    shown = [json.loads(line) for line in Path("runs/couplets/demonstrations.jsonl").read_text().splitlines()]
    assert shown == [{"prompt": f"{name}:\n", "completion": GOOD} for name in "BDFHJ" * 2 + "BDF"]
    prompts, held_out = (Path(f"runs/couplets/{name}.jsonl").read_text() for name in ("prompts", "held_out"))
    assert not set(prompts.splitlines()) & set(held_out.splitlines())
    command_line("create-model", "recipes/couplets/model.yaml", *SMALL)
    for stage in ("language", "sft"):
        command_line("sft", f"recipes/couplets/{stage}.yaml", "--steps", "2", "training.batch_size=4", "-q")
    command_line(
        "rl", "recipes/couplets/rl.yaml", "--steps", "2", "-q",
        "rollout.batch_size=8", "rollout.group_size=4", "rollout.max_new_tokens=8", "evaluation.samples=1",
    )  # fmt: skip
    records = [json.loads(line) for line in Path("runs/couplets/rl/metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [0, 1, 2]
    names = ("verse", "form", "metre", "real_words", "own_words", "repetition", "variety")
    assert all(0 <= records[1][f"rewards/{name}/mean"] <= 1 for name in names)


def test_long_speeches_become_passages_of_four_lines_under_the_same_name(place: Path) -> None:
    text = "A:\n1\n2\n3\n4\n5\n\nno name\n\nB C:\n6"
    assert list(load("prepare").read_passages(text)) == ["A:\n1\n2\n3\n4", "A:\n5", "B C:\n6"]


SHARED = Path(os.environ.get("REINLM_SHARED_DATA") or FOLDER.parents[1] / "../shared/data").resolve()
TEXT = SHARED / "tinyshakespeare.txt"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not TEXT.is_file(), reason=f"no tinyshakespeare.txt in {SHARED}")
def test_a_model_from_scratch_learns_the_rules_of_verse(place: Path) -> None:
    load("prepare").prepare(TEXT, Path("runs/couplets"))
    command_line("create-model", "recipes/couplets/model.yaml")
    command_line("sft", "recipes/couplets/language.yaml", "-q")
    command_line("sft", "recipes/couplets/sft.yaml", "-q")
    command_line("rl", "recipes/couplets/rl.yaml", "-q", "evaluation.samples=4")
    summary = json.loads(Path("runs/couplets/rl/summary.json").read_text())
    before, after = (
        {name: summary[when][f"held_out/rewards/{name}"] for name in BOUNDS} for when in ("before", "after")
    )
    for name, (start, end) in BOUNDS.items():
        assert before[name] < start < end < after[name], (name, before, after)


BOUNDS = {"form": (0.75, 0.85), "metre": (0.72, 0.78), "real_words": (0.55, 0.7)}
"""On held-out speakers: more than any model after SFT has, and less than any after RL."""
