"""What is measured once on a machine, and kept in a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from reinlm.models.measured import forget_measurements, machine, measured_once, measurements_file


class Measure:
    """A measurement that counts how often it is made."""

    def __init__(self, found: str) -> None:
        self.found, self.made = found, 0

    def __call__(self) -> str:
        self.made += 1
        return self.found


@pytest.fixture(autouse=True)
def nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget_measurements()
    yield
    forget_measurements()


def test_a_machine_is_measured_once() -> None:
    measure, other = Measure("fast"), Measure("slow")
    for _ in range(3):
        forget_measurements()
        assert measured_once("product", ("fast", "slow"), measure) == "fast"
        assert measured_once("sum", ("fast", "slow"), other) == "slow"
    assert (measure.made, other.made) == (1, 1)
    assert json.loads(measurements_file().read_text()) == {machine(): {"product": "fast", "sum": "slow"}}


def test_in_one_process_the_file_is_read_once() -> None:
    assert measured_once("product", ("fast", "slow"), measure := Measure("fast")) == "fast"
    measurements_file().unlink()
    assert measured_once("product", ("fast", "slow"), measure) == "fast"
    assert measure.made == 1


@pytest.mark.parametrize(
    "text", ["", "[1]", '{"a": 3}', "{", '{"MACHINE": {"product": "warp"}}', '{"other": {"product": "slow"}}']
)
def test_a_file_that_does_not_know_it_is_added_to_or_written_anew(text: str) -> None:
    measurements_file().parent.mkdir()
    measurements_file().write_text(text.replace("MACHINE", machine()))
    assert measured_once("product", ("fast", "slow"), Measure("fast")) == "fast"
    written = json.loads(measurements_file().read_text())
    assert written[machine()] == {"product": "fast"}
    assert ("other" in written) == ("other" in text)


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert measured_once("product", ("fast", "slow"), Measure("slow")) == "slow"
