"""`reinlm algorithms`: the ladder in a terminal, as JSON and as the page in docs/."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import reinlm
from reinlm.algorithms import (
    ALGORITHMS,
    CARDS,
    PREFERENCE_CARDS,
    PREFERENCES,
    algorithm_spec,
    resolve,
    resolve_preference,
)
from reinlm.algorithms.ladder import algorithm_details, algorithms_page
from reinlm.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "algorithms.md"


def run(capsys, monkeypatch, *words, columns=100):
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit) as ended:
        main(["algorithms", *words])
    printed = capsys.readouterr()
    return ended.value.code, printed.out, printed.err


@pytest.mark.parametrize("columns", [80, 200])
def test_the_ladder_names_every_algorithm_whatever_the_terminals_width(capsys, monkeypatch, columns):
    code, out, _ = run(capsys, monkeypatch, columns=columns)
    assert code == 0
    assert [name for name in (*ALGORITHMS, *PREFERENCES) if f" {name} " not in out] == []
    assert max(len(line) for line in out.splitlines()) <= columns
    assert ("2507.18071" in out) == (columns == 200)


def test_one_algorithm_is_told_with_its_formula_and_what_differs(capsys, monkeypatch):
    code, out, _ = run(capsys, monkeypatch, "gspo", columns=160)
    assert code == 0
    for part in (CARDS["gspo"].equation, "in grpo", "clip 0.0003 0.0004", "clip 0.2 0.2", CARDS["gspo"].use):
        assert part in out
    assert "needs   group" in out
    code, out, _ = run(capsys, monkeypatch, "scaling_grpo", columns=160)
    assert "off_policy 0.1" in out
    code, out, _ = run(capsys, monkeypatch, "reinforce", columns=160)
    assert "nothing but rewards" in out


def test_json_rebuilds_the_algorithm(capsys, monkeypatch):
    code, out, _ = run(capsys, monkeypatch, "ppo_penalty", "--json")
    found = json.loads(out)
    assert code == 0
    assert resolve(found["choices"]) == reinlm.algorithm("ppo_penalty")
    assert found["needs"] == ["critic", "reference"]
    assert {change["choice"] for change in found["differs"]} == {"gate", "kl"}
    _, out, _ = run(capsys, monkeypatch, "--json")
    rows = json.loads(out)
    assert {row["name"] for row in rows if row["verb"] == "rl"} == set(ALGORITHMS)
    assert {row["name"] for row in rows if row["verb"] == "dpo"} == set(PREFERENCES)
    assert [row["critic"] for row in rows if row["name"] in ("ppo", "grpo")] == ["yes", "no"]


def test_an_algorithm_of_judged_answers_is_told_with_the_verb_that_takes_it(capsys, monkeypatch):
    code, out, _ = run(capsys, monkeypatch, "robust-DPO", columns=160)
    assert code == 0
    for part in (
        PREFERENCE_CARDS["robust_dpo"].equation,
        "in dpo",
        "label_smoothing",
        "needs   pairs, reference",
        "of dpo",
    ):
        assert part in out
    _, out, _ = run(capsys, monkeypatch, "kto", columns=160)
    assert "needs   labels, reference" in out
    _, out, _ = run(capsys, monkeypatch, "rpo", "--json")
    found = json.loads(out)
    assert (found["name"], found["verb"]) == ("dpo_sft", "dpo")
    assert resolve_preference(found["choices"]) == PREFERENCES["dpo_sft"]()
    assert {change["choice"]: change["to"] for change in found["differs"]} == {
        "beta": "0.01",
        "margin_weight": "",
        "sft_coefficient": "0.005",
        "sft_aggregation": "sequence_sum",
    }


def test_what_differs_is_all_that_differs():
    for name, card in CARDS.items():
        item = algorithm_details(name)
        changed = {change["choice"] for change in item["differs"]}
        if card.parent is None:
            assert changed == set()
            continue
        mine, theirs = algorithm_spec(ALGORITHMS[name]()), algorithm_spec(ALGORITHMS[card.parent]())
        other_updates = ALGORITHMS[name]().updates != ALGORITHMS[card.parent]().updates
        assert ("updates" in changed) is other_updates
        assert changed - {"updates"} == {kind for kind in mine if kind != "base" and mine[kind] != theirs[kind]}
        assert changed


def test_an_unknown_name_and_a_page_of_one_are_refused(capsys, monkeypatch):
    code, _, err = run(capsys, monkeypatch, "gspoo")
    assert (code, err.splitlines()[0]) == (2, "error: unknown algorithm 'gspoo'")
    assert "did you mean 'gspo'?" in err
    code, _, err = run(capsys, monkeypatch, "gspo", "--page")
    assert (code, err.splitlines()[0]) == (2, "error: --page prints the whole page")


def test_the_page_in_docs_is_what_the_command_prints(capsys, monkeypatch):
    _, out, _ = run(capsys, monkeypatch, "--page")
    assert out == algorithms_page()
    assert PAGE.read_text(encoding="utf-8") == out, "write it again: reinlm algorithms --page > docs/algorithms.md"
    for formula in [c.formula for c in CARDS.values()] + [c.formula for c in PREFERENCE_CARDS.values()]:
        assert formula.count("{") == formula.count("}")
        assert formula in out


@pytest.mark.parametrize(
    ("name", "updates"),
    [
        (
            "dapo",
            "16 a batch: 1 pass of 16 minibatches; fewer minibatches in small batches, with at least eight groups in each",
        ),
        ("ppo", "4 a batch: 4 passes of 1 minibatch"),
    ],
)
def test_a_card_says_the_updates_of_a_batch_and_where_they_are_fewer(reinlm, name, updates):
    assert f"updates {updates} use " in " ".join(reinlm("algorithms", name).out.split())
