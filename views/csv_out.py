"""Writes CSV for people: spreadsheets open it, and take a cell that begins with = + - or @ for a formula.

Anybody may name a team or a cluster. So such a text gets an apostrophe before it, as a spreadsheet itself would write
it; a number does not. Backstop's own readers remove the apostrophe again (client/inputs/csv_table.py).
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence

_FORMULA = re.compile(r"'*[=+\-@\t\n]")


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    """Return a line for each row; the first is the header."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([_inert(cell) for cell in row] for row in rows)
    return out.getvalue()


def _inert(cell: object) -> object:
    """Return the cell in a form that no spreadsheet takes for a formula. A numeric text stays.

    A carriage return, which Python would not quote, becomes a line feed, so that it ends no row.
    """
    if not isinstance(cell, str):
        return cell
    cell = cell.replace("\r", "\n")
    if not _FORMULA.match(cell):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell
