"""Schedules against numbers worked out by hand."""

import pytest

from reinlm.schedules import scheduled


def test_shapes_at_their_ends_in_the_middle_and_beyond() -> None:
    assert [scheduled("linear", done) for done in (-1.0, 0.0, 0.25, 1.0, 7.0)] == [1.0, 1.0, 0.75, 0.0, 0.0]
    assert scheduled("linear", 0.5, 0.1) == pytest.approx(0.55)
    assert scheduled("cosine", 1 / 3, 0.2) == pytest.approx(0.2 + 0.8 * 0.75)
    assert scheduled("constant", 0.9, 0.1) == 1.0
    with pytest.raises(ValueError, match="unknown schedule 'step'"):
        scheduled("step", 0.5)
