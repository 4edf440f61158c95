"""What reaches the screen or a pipe: tables, sentences, JSON. Nothing here knows what they mean.

A pipe gets no colour codes, no wrapping and no cut-off cells: its console is as wide as need be. Text that
people or other systems wrote is shown with its control characters spelt out, so that it can neither break a
row nor speak to the terminal.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_UNBOUNDED = 100_000


def console() -> Console:
    """Standard output as it is now: a terminal with its width, or anything else without limits."""
    terminal = sys.stdout.isatty()
    return Console(
        file=sys.stdout,
        width=None if terminal else _UNBOUNDED,
        force_terminal=None if terminal else False,
        markup=False,
        emoji=False,
        highlight=False,
    )


def show(*parts: RenderableType) -> None:
    """The parts one below the other."""
    out = console()
    if out.is_terminal:
        for part in parts:
            # Where not even the numbers fit, the terminal breaks the lines; we would cut the numbers.
            least = _least_width(part) if isinstance(part, Table) else 0
            where = console()
            where.width = max(least, out.width)
            where.print(part)
        return
    with out.capture() as captured:
        for part in parts:
            out.print(part)
    # A table fills its last column with spaces.
    out.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().split("\n")[:-1]))
    out.file.flush()


def _least_width(part: Table) -> int:
    """With every number and short word whole, and room for a little of each name."""
    widths = (
        max((Text.assemble(cell).cell_len for cell in (column.header, *column.cells)), default=0)  # type: ignore[arg-type]
        if column.no_wrap
        else column.min_width or 0
        for column in part.columns
    )
    return sum(width + 2 for width in widths)


def show_json(answer: Any) -> None:
    """One JSON document."""
    sys.stdout.write(json.dumps(answer, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def show_json_line(answer: Any) -> None:
    """One JSON document in one line, at once."""
    sys.stdout.write(json.dumps(answer, ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()


def complain(sentence: str) -> None:
    """One sentence on standard error."""
    sys.stderr.write(f"backstop: {clean(sentence)}\n")


def clean(text: object) -> str:
    """In one line, with control characters spelt out."""
    return "".join(
        " " if char == "\n" else char.encode("unicode_escape").decode() if _speaks(char) else char for char in str(text)
    )


def _speaks(char: str) -> bool:
    """Control and format characters: escape codes, and marks that reverse what is read."""
    return unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def table(*columns: str) -> Table:
    """Columns by name. A name that begins with > is of numbers, with = of short words: neither is wrapped."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        if column.startswith(">"):
            made.add_column(column[1:], justify="right", no_wrap=True)
        elif column.startswith("="):
            made.add_column(column[1:], no_wrap=True)
        else:
            made.add_column(column, overflow="fold", min_width=min(len(column), 8))
    return made


def row(into: Table, *cells: object, style: str = "") -> None:
    """None is shown as a dash."""
    into.add_row(*(Text("-" if cell is None else clean(cell), style=style) for cell in cells))


def line(*parts: str | tuple[str, str]) -> Text:
    """Pieces of text, each with a style or without."""
    return Text.assemble(*((clean(p), "") if isinstance(p, str) else (clean(p[0]), p[1]) for p in parts))


def indented(parts: Iterable[RenderableType]) -> list[RenderableType]:
    return [Padding(part, (0, 0, 0, 2), expand=False) for part in parts]


def moment(at: datetime | None) -> str:
    """An instant in UTC, to the second."""
    return "-" if at is None else f"{at:%Y-%m-%d %H:%M:%SZ}"


def span(length: timedelta) -> str:
    """Roughly how long: 40s, 12m, 5h, 3d."""
    seconds = max(0, int(length.total_seconds()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"
