"""What reaches the screen or a pipe: tables, sentences, JSON. Nothing here knows what they mean.

A terminal gets what fits it (cli/layout.py). A pipe gets all of the text: no colour codes, no wrapping, no cut-off
cells. Text that people or other systems wrote is shown with its control characters spelt out, so that it can neither
break a row nor speak to the terminal.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from cli.layout import FactSheet, Grid, Sentence
from models.errors import BadInput


class PipeClosed(Exception):
    """Whoever read our output has left."""


ENDLESS = 100_000
"""A width that everything fits."""


def console() -> Console:
    """The terminal."""
    return Console(file=sys.stdout, markup=False, emoji=False, highlight=False)


def show(*parts: RenderableType, wide: bool | None = None) -> None:
    """The parts one below the other. `wide`: all of them, however wide the terminal is; None: nobody can ask for it."""
    if wide is not None:
        for grid in _grids(parts):
            grid.listed = True
    if sys.stdout.isatty():
        # A group: Rich joins texts that it is given by themselves, and wraps them its own way.
        console().print(Group(*parts), crop=False, width=ENDLESS if wide else None)
    else:
        _write("".join(f"{text.rstrip()}\n" for part in parts for text in _plain(part)))


def live() -> bool:
    """Whether a picture can be drawn anew in place."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


class Picture:
    """Parts that are drawn anew in place. Unlike Rich's own live display it knows of lines that the terminal wraps
    by itself: commands, which are never cut.
    """

    def __init__(self) -> None:
        self._drawn = 0
        """Rows of the terminal that the last picture takes."""

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows of the terminal."""
        return console().size

    def draw(self, *parts: RenderableType) -> None:
        screen = console()
        with screen.capture() as captured:
            screen.print(Group(*parts), crop=False)
        text = captured.get()
        plain = Text.from_ansi(text).plain.rstrip("\n")
        _write((f"\x1b[{self._drawn}A\r\x1b[J" if self._drawn else "") + text)
        self._drawn = sum(max(1, -(-cell_len(each) // screen.width)) for each in plain.split("\n"))

    def __enter__(self) -> Self:
        _write("\x1b[?25l")
        return self

    def __exit__(self, *_: object) -> None:
        _write("\x1b[?25h")


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


def _grids(parts: Iterable[RenderableType]) -> Iterator[Grid]:
    for part in parts:
        inner = part.renderable if isinstance(part, Padding) else part
        if isinstance(inner, Grid):
            yield inner


def _plain(part: RenderableType) -> Iterator[str]:
    """The part's lines as text, as wide as they are."""
    if isinstance(part, Padding):
        for text in _plain(part.renderable):
            yield " " * part.left + text
    elif isinstance(part, Text | str):
        yield str(part)
    elif isinstance(part, Grid | FactSheet):
        yield from (text.plain for text in part.lines(ENDLESS))
    else:
        raise TypeError(f"nobody has said how {type(part).__name__} is written into a pipe")


def show_json(answer: Any) -> None:
    """One JSON document."""
    _write(json.dumps(answer, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def show_yaml(*answers: Any) -> None:
    """The same documents as YAML."""
    import yaml

    texts = (yaml.safe_dump(answer, sort_keys=False, allow_unicode=True, width=ENDLESS) for answer in answers)
    _write("---\n".join(texts))


def show_names(names: Iterable[str]) -> None:
    """Each once, one a line."""
    _write("".join(f"{clean(name)}\n" for name in dict.fromkeys(names)))


def show_json_line(answer: Any) -> None:
    """One JSON document in one line."""
    _write(json.dumps(answer, ensure_ascii=False, allow_nan=False) + "\n")


def count(number: int, what: str) -> str:
    """1 week, 2,352 hours."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def none_of(many: int, what: str) -> Text:
    """Where a filter has left nothing."""
    return line(f"The only {what} is not like that." if many == 1 else f"None of {many:,} {what}s is like that.")


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


def table(*columns: str, least: Sequence[str] = ()) -> Grid:
    """Columns by name: > begins one of numbers, = one of short words, ~ one of text that may be wrapped; others have
    names. `least`: those that go first where there is no room.
    """
    return Grid.of(columns, least)


def row(into: Grid, *cells: object, style: str = "") -> None:
    """None is shown as a dash."""
    into.add_row(*(Text("-" if cell is None else clean(cell), style=style) for cell in cells))


def line(*parts: str | tuple[str, str]) -> Text:
    """Pieces of text, each with a style or without."""
    return Sentence.assemble(*((clean(p), "") if isinstance(p, str) else (clean(p[0]), p[1]) for p in parts))


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
