"""Tables and curves of results, as text and as HTML."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from reinlm.display import cut, figure, figures, html_table, svg_curve, text_table


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("eval/test/accuracy", 0.4104, "41.0%"),
        ("pass@8", 0.5, "50.0%"),
        ("clipped_ratio", 0.0625, "6.2%"),
        ("eval/test/reward", 0.123456, "0.1235"),
        ("mean_length", 1234.5, "1234"),
        ("loss", 1e-7, "1e-07"),
    ],
)
def test_shares_are_percentages_and_other_figures_have_four_digits(name: str, value: float, shown: str) -> None:
    assert figure(name, value) == shown


def test_an_accuracy_has_its_interval_beside_it() -> None:
    found = figures({"accuracy": 0.5, "accuracy_low": 0.25, "accuracy_high": 0.75, "reward": 1.0})
    assert found == [("accuracy", "50.0% (25.0% to 75.0%, 95 %)"), ("reward", "1")]


def test_columns_of_figures_stand_to_the_right_and_texts_to_the_left() -> None:
    assert text_table([("name", "n"), ("a", "10"), ("long", "9")]) == "name   n\na     10\nlong   9"


def test_html_escapes_every_text() -> None:
    page = ET.fromstring(html_table([("<b>", "&"), ("x<y", "1")], caption='"<i>"'))
    assert [cell.text for cell in page.iter("th")] == ["<b>", "&"]
    assert [cell.text for cell in page.iter("td")] == ["x<y", "1"]
    assert page.findtext("caption") == '"<i>"'


def test_a_curve_goes_from_the_lower_left_to_the_upper_right_and_a_flat_one_is_drawn() -> None:
    assert svg_curve([(0, 1.0)], "reward") == ""
    line = next(
        node for node in ET.fromstring(svg_curve([(0, 0.0), (10, 1.0)], "a<b")).iter() if "points" in node.attrib
    )
    (x0, y0), (x1, y1) = (map(float, point.split(",")) for point in line.attrib["points"].split())
    assert (x0, x1, y0, y1) == (34.0, 386.0, 128.0, 22.0)
    flat = ET.fromstring(svg_curve([(0, 2.0), (1, 2.0)], ""))
    assert "nan" not in ET.tostring(flat, encoding="unicode")


def test_a_long_text_is_cut_on_one_line() -> None:
    assert cut("a\n b", 3) == "a b"
    assert cut("abcdef", 4) == "abc…"
