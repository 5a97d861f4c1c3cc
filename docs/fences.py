"""Formulas of the docs site: a `math` block in LaTeX becomes MathML, which browsers show without a script."""

from __future__ import annotations

from typing import Any

from latex2mathml.converter import convert


def math(source: str, language: str, css_class: str, options: dict[str, Any], md: Any, **_: Any) -> str:
    """The fence's text as a formula on a line of its own; the interface is that of pymdownx.superfences."""
    return f'<div class="math">{convert(source.strip(), display="block")}</div>'
