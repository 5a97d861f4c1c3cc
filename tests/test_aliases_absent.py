"""Verbs, algorithms and names of the field that are not there: the message says why, and what to use."""

from __future__ import annotations

import pytest

from reinlm.aliases.absent import (
    CLASSICAL_NAMES,
    SB3_NAMES,
    TRL_NAMES,
    absent_verb,
    name_instead,
)
from reinlm.classical import __all__ as classical_names
from reinlm.cli.app import ORDER


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (absent_verb("serve"), "there is no command 'serve': this version serves no model"),
    ],
)
def test_what_is_not_there_is_said_with_the_reason_however_it_is_spelt(error, message: str) -> None:
    assert error.message.startswith(message)
    assert error.hint


def test_what_is_there_is_not_called_absent() -> None:
    assert [name for name in ORDER if absent_verb(name)] == []
    assert not set(classical_names) & CLASSICAL_NAMES.keys()


@pytest.mark.parametrize("name", [*TRL_NAMES, *SB3_NAMES])
def test_every_name_has_an_answer_with_all_its_places_filled(name: str) -> None:
    said = str(name_instead(name))
    assert "{}" not in said
    assert "{keys}" not in said
    if name.startswith(("GRPO", "RLOO", "PPO")):
        assert f'algorithm="{name[:4].lower().removesuffix("t").removesuffix("c")}"' in said


def test_other_names_have_none() -> None:
    assert name_instead("AutoModel") is None
