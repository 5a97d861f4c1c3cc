"""`reinlm bench` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reinlm.training.benchmark import FIGURES

pytestmark = pytest.mark.no_cover

SMALL = ("--prompt-tokens", "4", "--max-new-tokens", "4", "--group-size", "2", "--batch-size", "4", "--turns", "1")


def test_the_table_shows_every_figure_and_files_hold_figures_and_trace(reinlm, place):
    said = reinlm("bench", "-m", "model", *SMALL, "--json", "f.json", "--profile", "t.json.gz", "-q")
    assert said.code == 0, said.err
    assert all(name in said.out for name in (*FIGURES, "machine/float32", "machine/bandwidth"))
    assert "4 answers in groups of 2" in said.out
    stored = json.loads(Path("f.json").read_text())
    assert stored["shape"]["batch_size"] == 4
    assert stored["shape"]["prompt_tokens"] == 4
    assert Path("t.json.gz").read_bytes()[:2] == b"\x1f\x8b"
    again = reinlm("bench", "-m", "model", *SMALL, "--json", "f.json")
    assert (again.code, len(again.errors)) == (2, 1)
    assert "f.json exists already" in again.err


def test_figures_go_to_standard_output_as_one_object_and_keys_win_over_flags(reinlm, place):
    said = reinlm("bench", "-m", "model", *SMALL, "--ignore-eos", "--json", "-", "-q", "rollout.max_new_tokens=3")
    assert said.code == 0, said.err
    found = json.loads(said.out)
    assert found["figures"].keys() == FIGURES.keys()
    assert found["figures"]["rollout/tokens"] == 4 * 3


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--batch-size", "5", "--group-size", "2"], "batch_size 5 is not a multiple"),
        (["--threads", "0"], "threads"),
        (["--data", "d.jsonl"], "--data"),
        (["--packing", "pad"], "training.packing"),
    ],
)
def test_bad_input_gets_one_line(words, told, reinlm, place):
    said = reinlm("bench", "-m", "model", *words)
    assert (said.code, len(said.errors)) == (2, 1)
    assert told in said.err


def test_a_verb_by_another_name_is_answered_with_bench(reinlm):
    assert "bench" in reinlm("benchmark", "-m", "model").err
