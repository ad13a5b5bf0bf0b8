"""The table of results: as text, and as JSON in results.json."""

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results.json"
PAGE = Path(__file__).parents[1] / "docs" / "design" / "performance.md"
FIGURES = re.compile(r"<!-- figures -->\n```\n.*?```\n", re.DOTALL)
LEFT_ALIGNED = (0, 2)


@dataclass(frozen=True)
class Row:
    """One figure: its name and value, the limit that bare SQL or a peer reached in the same run, and the target.

    With a limit, `ratio` is value / limit. A target is a lower bound of the ratio where more is better, and an upper
    bound of the value where less is better.
    """

    name: str
    value: float
    unit: str
    limit: float | None = None
    ratio: float | None = None
    target: float | None = None
    met: bool | None = None


def plain_row(name: str, value: float, unit: str) -> Row:
    return Row(name, value, unit)


def row_against_limit(name: str, value: float, unit: str, limit: float, target: float | None = None) -> Row:
    """Return a figure and the limit that it is compared with; more is better."""
    ratio = value / limit
    return Row(name, value, unit, limit, ratio, target, None if target is None else ratio >= target)


def row_below_target(name: str, value: float, unit: str, target: float, limit: float | None = None) -> Row:
    """Return a figure that should stay below a target; less is better."""
    return Row(name, value, unit, limit, None if limit is None else value / limit, target, value < target)


def format_table(rows: Iterable[Row]) -> str:
    """Return the rows as a text table with a header."""
    lines = [("what", "value", "unit", "limit", "ratio", "target", "met")]
    for row in rows:
        met = "" if row.met is None else ("yes" if row.met else "NO")
        lines.append(
            (
                row.name,
                _format_number(row.value),
                row.unit,
                _format_number(row.limit),
                _format_number(row.ratio),
                _format_number(row.target),
                met,
            )
        )
    widths = [max(len(line[n]) for line in lines) for n in range(7)]
    with_rule = [lines[0], tuple("-" * width for width in widths), *lines[1:]]
    return "\n".join(_format_line(line, widths) for line in with_rule)


def save(rows: Iterable[Row], path: Path = RESULTS) -> None:
    body: dict[str, Any] = {"rows": [asdict(row) for row in rows]}
    path.write_text(json.dumps(body, indent=2) + "\n")


def replace_figures(rows: Iterable[Row], page: str) -> str:
    """Return the page with its table replaced."""
    return FIGURES.sub(lambda _: f"<!-- figures -->\n```\n{format_table(rows)}\n```\n", page)


def _format_line(cells: tuple[str, ...], widths: list[int]) -> str:
    padded = enumerate(zip(cells, widths, strict=True))
    texts = [cell.ljust(width) if n in LEFT_ALIGNED else cell.rjust(width) for n, (cell, width) in padded]
    return "  ".join(texts).rstrip()


def _format_number(value: float | None) -> str:
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"
