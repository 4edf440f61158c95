"""What reaches the screen or a pipe: tables, sentences, JSON. Nothing here knows what they mean.

A terminal gets Rich's tables. A pipe gets their text: no colour codes, no wrapping, no cut-off cells. Text that
people or other systems wrote is shown with its control characters spelt out, so that it can neither break a
row nor speak to the terminal.
"""

from __future__ import annotations

import gzip
import json
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from models.errors import BadInput


class PipeClosed(Exception):
    """Whoever read our output has left."""


def console(least_width: int = 0) -> Console:
    """The terminal, or one with room for what would not fit: it breaks lines then, and cuts nothing."""
    out = Console(file=sys.stdout, markup=False, emoji=False, highlight=False)
    out.width = max(out.width, least_width)
    return out


def show(*parts: RenderableType) -> None:
    """The parts one below the other."""
    if sys.stdout.isatty():
        for part in parts:
            console(_least_width(part)).print(part)
    else:
        _write("".join(f"{text.rstrip()}\n" for part in parts for text in _plain(part)))


def left_out(why: Mapping[str, str]) -> None:
    """To whoever reads along, beside the answer: clusters that it is not about, and why."""
    for _, sentence in sorted(why.items()):
        print(f"left out: {clean(sentence)}", file=sys.stderr)


def _write(text: str) -> None:
    """All of it, at once. Errors: PipeClosed."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise PipeClosed from None


def _plain(part: RenderableType) -> Iterator[str]:
    """The part's lines as text, as wide as they are."""
    if isinstance(part, Table):
        columns = [[_text(cell) for cell in column.cells] for column in part.columns]
        if part.show_header:
            columns = [[_text(c.header), *cells] for c, cells in zip(part.columns, columns, strict=True)]
        widths = [max(map(cell_len, cells)) if cells else 0 for cells in columns]
        justify = [column.justify for column in part.columns]
        for cells in zip(*columns, strict=True):
            yield "  ".join(_padded(*each) for each in zip(cells, widths, justify, strict=True))
    elif isinstance(part, Padding):
        for text in _plain(part.renderable):
            yield " " * part.left + text
    else:
        yield _text(part)


def _text(part: RenderableType) -> str:
    return part.plain if isinstance(part, Text) else str(part)


def _padded(text: str, width: int, justify: str) -> str:
    fill = " " * (width - cell_len(text))
    return fill + text if justify == "right" else text + fill


def _least_width(part: RenderableType) -> int:
    """A table's with every number and short word whole, and room for a little of each name."""
    if not isinstance(part, Table):
        return 0
    return sum(
        2
        + max(
            column.min_width or 0,
            *(cell_len(_text(cell)) if column.no_wrap else 0 for cell in (column.header, *column.cells)),
        )
        for column in part.columns
    )


def show_json(answer: Any) -> None:
    """One JSON document."""
    _write(json.dumps(answer, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def show_json_line(answer: Any) -> None:
    """One JSON document in one line."""
    _write(json.dumps(answer, ensure_ascii=False, allow_nan=False) + "\n")


def count(number: int, what: str) -> str:
    """1 week, 2,352 hours."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def write(file: str, option: str, text: str) -> None:
    """All of it, gzipped where the name ends so, to standard output for a dash.

    Errors: BadInput naming the option and the file.
    """
    if file == "-":
        _write(text)
        return
    try:
        raw = text.encode()
        Path(file).write_bytes(gzip.compress(raw, mtime=0) if file.endswith(".gz") else raw)
    except OSError as error:
        raise BadInput(f"{option} {file}: cannot be written: {error.strerror}") from None


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int, int], object]]:
    """To be told how many are done, of how many: a bar on a terminal's standard error, and nothing in a pipe."""
    from rich.progress import Progress

    err = Console(file=sys.stderr)
    with Progress(console=err, transient=True, disable=not sys.stderr.isatty()) as bars:
        task = bars.add_task(what, total=total)
        yield lambda done, of: bars.update(task, completed=done, total=of)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Says on a terminal what is waited for, while it lasts."""
    if not sys.stderr.isatty():
        yield
        return
    with Console(file=sys.stderr).status(what):
        yield


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
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        if column.startswith(">"):
            grid.add_column(column[1:], justify="right", no_wrap=True)
        elif column.startswith("="):
            grid.add_column(column[1:], no_wrap=True)
        else:
            grid.add_column(column, overflow="fold", min_width=min(len(column), 8))
    return grid


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
