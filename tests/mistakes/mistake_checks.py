"""What the tests of mistakes share."""

from __future__ import annotations

from typing import Any

import pytest

import reinlm
from tiny_runs import ROWS


def refused_by_rl(given: dict[str, Any], message: str, hint: str) -> None:
    """`reinlm.rl` answers with one line before it looks for a model: the message and its hint hold these words."""
    with pytest.raises(reinlm.InputError) as error:
        reinlm.rl("no/such/model", ROWS, **{"reward": "exact_match", "quiet": True, **given})
    assert message in error.value.message
    assert "\n" not in error.value.message
    assert hint in (error.value.hint or "")
