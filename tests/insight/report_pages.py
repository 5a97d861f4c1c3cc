"""What a report page holds, read from its markup."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any


def page_without_scripts(path: Path) -> str:
    return re.sub(r"<script>.*?</script>", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)


def plain(markup: str) -> str:
    """The text of markup, in one line."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", markup)).split())


def figures(path: Path) -> dict[str, dict[str, Any]]:
    """By title: the points, the unit on the axis, whether a healthy range is shaded, and the caption."""
    found = {}
    for figure in re.findall("<figure>(.*?)</figure>", path.read_text(encoding="utf-8"), flags=re.DOTALL):
        (points,) = re.findall(r'<script type="application/json">(.*?)</script>', figure)
        unit = re.search(r'<text class="unit" x="2"[^>]*>(.*?)</text>', figure)
        shown = {"unit": plain(unit[1]) if unit else "none", "healthy": figure.count('class="healthy"')}
        caption = plain(re.findall("<figcaption>(.*?)</figcaption>", figure, flags=re.DOTALL)[0])
        found[plain(re.findall("<h3>(.*?)</h3>", figure)[0])] = json.loads(points) | shown | {"caption": caption}
    return found


def cells(path: Path) -> list[list[str]]:
    (table,) = re.findall(r'<table class="headline">(.*?)</table>', page_without_scripts(path), flags=re.DOTALL)
    spaced = table.replace("<small>", " | ")
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', spaced)
    return [[plain(cell) for cell in (name, *re.findall(r"<td[^>]*>(.*?)</td>", rest))] for name, rest in rows]
