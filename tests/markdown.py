"""Reads the tables and sections of our own documents, so that tests can hold them against the code."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"

Row = dict[str, str]


def tables(text: str) -> list[list[Row]]:
    """Return every table as rows by column heading, in the order of the text."""
    found: list[list[Row]] = []
    lines = iter(text.splitlines())
    for line in lines:
        if not line.startswith("|"):
            continue
        headings = _cells(line)
        next(lines)  # the line of dashes
        rows: list[Row] = []
        for row in lines:
            if not row.startswith("|"):
                break
            rows.append(dict(zip(headings, _cells(row), strict=True)))
        found.append(rows)
    return found


def table(path: Path, *headings: str) -> list[Row]:
    """Return the rows of all tables of a document that have exactly these headings."""
    chosen = [row for rows in tables(path.read_text()) for row in rows if tuple(row) == headings]
    assert chosen, f"{path.name} has no table {headings}"
    return chosen


def sections(text: str, level: int) -> dict[str, str]:
    """Return the text under each heading of a level, up to the next heading of that level or above."""
    parts = re.split(rf"^(#{{1,{level}}}) (.+)$", text, flags=re.MULTILINE)
    marks, titles, bodies = parts[1::3], parts[2::3], parts[3::3]
    return {title: body for mark, title, body in zip(marks, titles, bodies, strict=True) if len(mark) == level}


def code(cell: str) -> list[str]:
    """Return what stands between backquotes."""
    return re.findall(r"`([^`]+)`", cell)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]
