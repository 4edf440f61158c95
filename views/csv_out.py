"""CSV that is written for people: spreadsheets open it, and take a cell that begins with = + - or @ for a formula.

Names come from whoever names a team or a cluster. So text that begins so gets an apostrophe before it, as a spreadsheet
itself would write it, and a number does not. Backstop's own readers take the apostrophe away again
(client/inputs/csv_table.py).
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence

_FORMULA = re.compile(r"'*[=+\-@\t\n]")


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    """A line for each row; the first is the header."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([_inert(cell) for cell in row] for row in rows)
    return out.getvalue()


def _inert(cell: object) -> object:
    """Errors: none. A text that is a number stays one. A carriage return, which Python would not quote, ends no row."""
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
