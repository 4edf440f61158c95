"""Prints tables, sentences and JSON to the screen or a pipe, whatever they mean.

A terminal gets what fits it (views/layout.py). A pipe gets all of the text: no colour codes, no wrapping, no cut-off
cells. Text that people or other systems wrote is printed with its control characters spelt out, so that it can neither
break a row nor control the terminal.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from models.errors import BadInput
from views.layout import FactSheet, Grid, wrap_lines
from views.words import ENDLESS, clean


class PipeClosed(Exception):
    """The reader of our output has closed the pipe."""


def console(width: int | None = None) -> Console:
    """Return the terminal, or one of this width, beyond which Rich does not print."""
    return Console(file=sys.stdout, markup=False, emoji=False, highlight=False, width=width)


def show(*parts: RenderableType, wide: bool | None = None) -> None:
    """Print the parts one below the other. `wide`: all columns, on any terminal; None: the command has no -o."""
    if wide is not None:
        for grid in _grids(parts):
            grid.listed = True
    if sys.stdout.isatty():
        # A group: Rich joins texts that it is given by themselves, and wraps them its own way.
        console(ENDLESS if wide else None).print(Group(*parts), crop=False)
    else:
        _write("".join(f"{text.rstrip()}\n" for part in parts for text in _plain(part)))


def is_live() -> bool:
    """Return whether a picture can be redrawn in place."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


class Picture:
    """Parts that are redrawn in place, like Rich's live display, but lines that the terminal wraps are counted."""

    def __init__(self) -> None:
        self._drawn = 0
        """How many rows of the terminal the last picture takes."""

    @property
    def size(self) -> tuple[int, int]:
        """Return the columns and rows of the terminal."""
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


def report_left_out(why: Mapping[str, str]) -> None:
    """Report on standard error the clusters that the answer leaves out, and why."""
    for _, sentence in sorted(why.items()):
        to_stderr(f"left out: {clean(sentence)}")


def _write(text: str) -> None:
    """Write all of the text at once. Errors: PipeClosed."""
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
    """Return the part's lines as text, at their full width."""
    if isinstance(part, Padding):
        for text in _plain(part.renderable):
            yield " " * part.left + text
    elif isinstance(part, Text | str):
        yield str(part)
    elif isinstance(part, Grid | FactSheet):
        yield from (text.plain for text in part.lines(ENDLESS))
    else:
        raise TypeError(f"a bug in Backstop: {type(part).__name__} has no form for a pipe")


def show_json(answer: Any) -> None:
    """Print one JSON document."""
    _write(json.dumps(answer, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def show_yaml(*answers: Any) -> None:
    """Print the same documents as YAML."""
    import yaml

    texts = (yaml.safe_dump(answer, sort_keys=False, allow_unicode=True, width=ENDLESS) for answer in answers)
    _write("---\n".join(texts))


def show_names(names: Iterable[str]) -> None:
    """Print each name once, one a line."""
    _write("".join(f"{clean(name)}\n" for name in dict.fromkeys(names)))


def show_json_line(answer: Any) -> None:
    """Print one JSON document in one line."""
    _write(json.dumps(answer, ensure_ascii=False, allow_nan=False) + "\n")


def show_exactly(text: str) -> None:
    """Print a text that a program reads, such as a diff; a terminal gets its control characters spelt out."""
    _write("".join(f"{clean(line)}\n" for line in text.splitlines()) if sys.stdout.isatty() else text)


def write(file: str, option: str, text: str) -> None:
    """Write the text to the file, gzipped where its name ends so, or to standard output for a dash.

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
    """Yield a function that takes how many are done of how many, and shows a bar on a terminal, nothing in a pipe."""
    from rich.progress import Progress

    err = Console(file=sys.stderr)
    with Progress(console=err, transient=True, disable=not sys.stderr.isatty()) as bars:
        task = bars.add_task(what, total=total)
        yield lambda done, of: bars.update(task, completed=done, total=of)


@contextmanager
def show_waiting(what: str) -> Iterator[None]:
    """Show on a terminal what the command waits for, until it is over."""
    if not sys.stderr.isatty():
        yield
        return
    with Console(file=sys.stderr).status(what):
        yield


def complain(sentence: str) -> None:
    """Print one sentence on standard error: in a pipe one line, at a terminal wrapped, a command on its own line."""
    to_stderr(f"backstop: {clean(sentence)}")


def to_stderr(text: str) -> None:
    shown = wrap_lines(Text(text), Console(file=sys.stderr).width) if sys.stderr.isatty() else (Text(text),)
    sys.stderr.write("".join(f"{one.plain}\n" for one in shown))
