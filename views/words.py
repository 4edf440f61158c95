"""Pieces of text, for a screen or a page: sentences, tables, times and numbers.

Text that people or other systems wrote is shown with its control characters spelt out, so that it can neither break a
row nor control a terminal.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from models.texts import count_text, gpus_text
from views.layout import Grid, Sentence

DECORATION = "decoration"
"""The style of a part that repeats visually what the words beside it say. A page hides it from screen readers."""
ENDLESS = 100_000
"""A width in which everything fits."""
count, gpus = count_text, gpus_text


def number(count: int) -> str:
    """Return a count with its digits in groups: 2,352."""
    return f"{count:,}"


def none_of(many: int, what: str) -> Text:
    """Say that a filter has left nothing."""
    return line(f"The only {what} does not match." if many == 1 else f"None of {count(many, what)} matches.")


def clean(text: object) -> str:
    """Return the text in one line, with control characters spelt out."""
    plain = str(text)
    if plain.isprintable():  # nearly all of what is shown, and nothing that speaks is
        return plain
    return "".join(
        " " if char == "\n" else char.encode("unicode_escape").decode() if _speaks(char) else char for char in plain
    )


def _speaks(char: str) -> bool:
    """Return whether it is a control or format character: an escape code, or a mark that reverses the text."""
    return unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def table(*columns: str, least: Sequence[str] = ()) -> Grid:
    """Make a table. A column's name begins with > for numbers, = for short words, ~ for text that may be wrapped; other
    columns have names. `least`: those that go first where there is no room."""
    return Grid.of(columns, least)


def row(into: Grid, *cells: object, style: str = "") -> None:
    """Add a row. None is shown as a dash. Numbers have no groups: programs that read a table count with them."""
    into.add_row(*(Text("-" if cell is None else clean(cell), style=style) for cell in cells))


def line(*parts: str | tuple[str, str]) -> Text:
    """Join pieces of text, each with a style or without."""
    return Sentence.assemble(*((clean(p), "") if isinstance(p, str) else (clean(p[0]), p[1]) for p in parts))


def lost_line(lost: str) -> Text:
    """Warn that Temporal stopped it, and that the lines below show its last known state."""
    return line((f"{lost}. The lines below show its last known state.", "red"))


def indent(parts: Iterable[RenderableType]) -> list[RenderableType]:
    return [Padding(part, (0, 0, 0, 2), expand=False) for part in parts]


def moment(at: datetime | None) -> str:
    """Return an instant in UTC, to the second."""
    return "-" if at is None else f"{at:%Y-%m-%d %H:%M:%SZ}"


def span(length: timedelta) -> str:
    """Return a rough duration: 40s, 12m, 5h, 3d."""
    seconds = max(0, int(length.total_seconds()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def space_name(name: str) -> str:
    """Return a name of ours, such as a stage's, as words inside a sentence."""
    return name.replace("_", " ")
