"""Results as small tables: text for a console, HTML and an inline SVG for a notebook. Nothing is loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

Rows = Sequence[Sequence[str]]

WIDTH, HEIGHT, MARGIN = 420, 150, 34


def text_table(rows: Rows) -> str:
    """Columns side by side: figures to the right, texts to the left.

    Example:
        >>> print(text_table([("", "before", "after"), ("accuracy", "41.0%", "97.0%")]))
                  before  after
        accuracy   41.0%  97.0%
    """
    widths = [
        max(len(row[index]) for row in rows if index < len(row)) for index in range(max(map(len, rows), default=0))
    ]
    right = {
        index for index in range(len(widths)) if all(_is_figure(row[index]) for row in rows[1:] if index < len(row))
    }
    lines = []
    for row in rows:
        cells = [cell.rjust(widths[i]) if i in right else cell.ljust(widths[i]) for i, cell in enumerate(row)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _is_figure(cell: str) -> bool:
    return cell[:1].isdigit() or cell[:1] in "-"


def html_table(rows: Rows, caption: str = "") -> str:
    """An HTML table whose first row is the head; every text is escaped."""
    head, *body = rows
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    style = ' style="text-align:left;white-space:pre-wrap"'
    lines = "".join("<tr>" + "".join(f"<td{style}>{escape(cell)}</td>" for cell in row) + "</tr>" for row in body)
    return f"<table>{title}<thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table>"


def svg_curve(points: Sequence[tuple[float, float]], label: str) -> str:
    """A line through (step, value) as an SVG element, with the ends of both axes written; empty for fewer than two points."""
    if len(points) < 2:
        return ""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)
    across, up = (right - left) or 1.0, (high - low) or 1.0
    path = " ".join(
        f"{MARGIN + (x - left) / across * (WIDTH - 2 * MARGIN):.1f},{HEIGHT - 22 - (y - low) / up * (HEIGHT - 44):.1f}"
        for x, y in points
    )
    texts = (
        (MARGIN - 4, HEIGHT - 20, "end", f"{low:.3g}"),
        (MARGIN - 4, 26, "end", f"{high:.3g}"),
        (MARGIN, HEIGHT - 6, "start", f"step {left:g}"),
        (WIDTH - MARGIN, HEIGHT - 6, "end", f"{right:g}"),
        (WIDTH / 2, 12, "middle", label),
    )
    words = "".join(
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="10" fill="currentColor">{escape(text)}</text>'
        for x, y, anchor, text in texts
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-label="{escape(label, quote=True)}">'
        f'<polyline fill="none" stroke="#3366cc" stroke-width="1.5" points="{path}"/>{words}</svg>'
    )


def figure(name: str, value: float) -> str:
    """A metric as text: shares as percentages, others with four digits."""
    shares = ("accuracy", "clipped_ratio", "win_rate", "tie_rate", "position_consistency", "first_position")
    share = name.endswith(shares) or any(kind in name for kind in ("pass@", "best_of@", "maj@"))
    return f"{value:.1%}" if share else f"{value:.4g}"


def figures(metrics: Mapping[str, float]) -> list[tuple[str, str]]:
    """(name, value) of every metric, an accuracy or a win rate with its interval on the same line."""
    rows = []
    for name, value in metrics.items():
        if name.endswith(("accuracy_low", "accuracy_high", "win_rate_low", "win_rate_high")):
            continue
        shown = figure(name, value)
        if f"{name}_low" in metrics:
            low, high = metrics[f"{name}_low"], metrics[f"{name}_high"]
            shown = f"{shown} ({low:.1%} to {high:.1%}, 95 %)"
        rows.append((name, shown))
    return rows


def cut(text: str, width: int = 60) -> str:
    """`text` on one line, cut at `width` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= width else flat[: width - 1] + "…"
