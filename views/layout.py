"""Fits sentences and tables to a terminal: what is left out, shortened or wrapped, and what never is.

A table that is wider than the terminal changes in this order: the least important columns are left out, and named below
it; text goes below its row; names are shortened in the middle, as far as all cells of the column that differ still do;
and at last each row becomes a few lines of its own. Numbers and short words are never cut. A command that is meant to
be pasted is neither wrapped nor cut: where a sentence does not fit one line, the command has a line of its own, which
the terminal may let overflow. docs/adr/0042.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.text import Text

GAP = 2
"""Cells between two columns."""
ELLIPSIS = "…"
_LEAST_NAME = 9
"""The fewest cells of a shortened name: four at each end."""
_LEAST_PROSE = 24
"""The fewest cells for text beside other columns; with fewer, text goes below its row."""
_INDENT = 4
_WORD = r"""(?:'[^']*'|"[^"]*"|[^\s'"`])+"""
_COMMAND = re.compile(rf"`(backstop {_WORD}(?: {_WORD})*)`|(?<![\w/.`-])(backstop [a-z]{_WORD}(?: {_WORD})*)")

ColumnKind = Literal["name", "number", "word", "prose"]
_KINDS: dict[str, ColumnKind] = {">": "number", "=": "word", "~": "prose"}


# --- sentences ---------------------------------------------------------------------------------


def commands_in(text: str) -> list[tuple[int, int]]:
    """Return the spans of a sentence's commands: in backquotes, or up to the next punctuation."""
    spans, at = [], 0
    while match := _COMMAND.search(text, at):
        start, end = match.span(1) if match[1] else (match.start(), _ending(text, *match.span()))
        spans.append((start, end))
        at = max(end, match.end() if match[1] else end)
    return spans


def _ending(text: str, start: int, end: int) -> int:
    """Return the end of a command without backquotes: before the punctuation that ends one of its words."""
    for word in re.finditer(_WORD, text[start:end]):
        if word[0].startswith("("):
            return start + word.start() - 1
        bare = word[0].rstrip(",;:)")
        bare = bare if bare.endswith("...") else bare.rstrip(".")
        if bare != word[0]:
            return start + word.start() + len(bare)
    return end


class Sentence(Text):
    """A sentence, which is wrapped between words but not inside a command."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for text in wrap_lines(self, options.max_width):
            yield from _print_segments(console, text)


def _print_segments(console: Console, text: Text) -> Iterator[Segment]:
    yield from text.render(console)
    yield Segment.line()


def wrap_lines(sentence: Text, width: int) -> Iterator[Text]:
    """Yield its lines. Only a line of a single command or a longer word is wider than `width`."""
    if cell_len(sentence.plain) <= width or not sentence.plain.strip():
        yield sentence
        return
    indent = len(sentence.plain) - len(sentence.plain.lstrip(" "))
    for part, command in _apart(_glue(sentence, width // 2)):
        if command:
            yield Text(" " * (indent + GAP)) + part if part.plain.strip() != sentence.plain.strip() else sentence
            continue
        for text in _between_words(part, width - indent):
            text.plain = text.plain.replace(_GLUE, " ")
            if text.plain.strip():
                yield Text(" " * indent) + text


def _between_words(text: Text, width: int) -> Iterator[Text]:
    """Yield its lines. A longer word has a line to itself, and is not broken as Rich would."""
    ends, used = [], 0
    for word in re.finditer(r"\S+\s*|\s+", text.plain):
        if used and used + cell_len(word[0].rstrip()) > width:
            ends.append(word.start())
            used = 0
        used += cell_len(word[0])
    for line in text.divide(ends):
        line.rstrip()
        yield line


_GLUE = "\ue000"
"""Replaces a blank at which a line may not end."""


def _glue(sentence: Text, most: int) -> Text:
    """Join the words of short commands in backquotes: a sentence names them and nobody pastes them."""
    plain = sentence.plain
    for start, end in commands_in(plain):
        if plain[start - 1 : start] == "`" == plain[end : end + 1] and end - start <= most:
            plain = plain[:start] + plain[start:end].replace(" ", _GLUE) + plain[end:]
    glued = sentence.copy()
    glued.plain = plain
    return glued


def _apart(sentence: Text) -> Iterator[tuple[Text, bool]]:
    """Yield its pieces in order, each with whether it is a command, without punctuation around a command."""
    at, plain = 0, sentence.plain
    for start, end in commands_in(plain):
        quoted = plain[start - 1 : start] == "`" == plain[end : end + 1]
        before, after = (start - 1, end + 1) if quoted else (start, end)
        yield _piece(sentence, at, before), False
        yield sentence[start:end], True
        at = after + len(plain[after:]) - len(plain[after:].lstrip(",;.:"))
    yield _piece(sentence, at, len(plain)), False


_LEFT_OVER = re.compile(r"(?:[ ,;]|\.(?=\s|$))*")
"""Blanks and marks after a command that has its own line; `./fleet.yaml` begins with none."""


def _piece(sentence: Text, start: int, end: int) -> Text:
    """Return a piece without blanks around it, and without a bracket whose other half is beyond a command."""
    text = sentence.plain[start:end]
    if text.count("(") > text.count(")"):
        opened = start + text.rindex("(")
        before, after = _piece(sentence, start, opened), _piece(sentence, opened + 1, end)
        return before + Text(" ") + after if before.plain.strip() else after
    if text.count(")") > text.count("("):
        start += text.index(")") + 1
    start += len(_LEFT_OVER.match(sentence.plain[start:end])[0])  # type: ignore[index]  # it matches nothing, too
    return sentence[start:end] if start < end else Text()


# --- tables ------------------------------------------------------------------------------------


@dataclass(eq=False)
class Column:
    name: str
    kind: ColumnKind
    cells: list[Text] = field(default_factory=list)

    @property
    def natural(self) -> int:
        return max(cell_len(self.name), *(cell_len(c.plain) for c in self.cells), 0)

    def least(self, names: set[str]) -> int:
        """Return the width at which its names still differ from all `names`; its whole width if it has no names."""
        if self.kind != "name":
            return self.natural
        texts = {cell.plain for cell in self.cells}
        least = max(cell_len(self.name), min(_LEAST_NAME, self.natural))
        widths = range(least, self.natural)
        # Whole, where a name has the mark in it itself: it looks like the short form of another.
        return next((w for w in widths if _is_apart(texts, names, w)), self.natural)


def _is_apart(texts: set[str], names: set[str], width: int) -> bool:
    """Return whether each short form can stand for one of the names alone."""
    short_forms = {shorten_cells(text, width) for text in texts}
    whole = (name for name in names if cell_len(name) <= width)
    # Where each character takes a cell, two names that fit one form have the same form.
    uneven = [text for text in texts if not text.isascii() and cell_len(text) > width]
    return (
        len(short_forms) == len(texts)
        and sum(shorten_cells(name, width) in short_forms for name in names) == len(texts)
        and not any(_form(name, width) in short_forms for name in whole)
        and all(sum(_may_be(_form(text, width), name) for name in names) == 1 for text in uneven)
    )


def _may_be(form: str, name: str) -> bool:
    start, _, end = form.partition(ELLIPSIS)
    return name.startswith(start) and name.endswith(end)


def shorten_cells(text: str, width: int) -> str:
    """Shorten the text in the middle, to `width` cells; a text that fits stays."""
    return text if cell_len(text) <= width else _form(text, width)


def _form(text: str, width: int) -> str:
    tail = (width - 1) // 2
    return _upto(text, width - 1 - tail) + ELLIPSIS + _upto(text[::-1], tail)[::-1]


def _upto(text: str, cells: int) -> str:
    if text.isascii():
        return text[:cells]
    taken, used = "", 0
    for char in text:
        used += cell_len(char)
        if used > cells:
            break
        taken += char
    return taken


@dataclass(frozen=True)
class Fit:
    """A way to draw a table: the columns side by side, each with its width, and the others."""

    columns: tuple[tuple[Column, int], ...]
    below: tuple[Column, ...] = ()
    """Columns of text that go below each row."""
    left_out: tuple[Column, ...] = ()
    records: bool = False
    """Whether each row is drawn as several lines."""


@dataclass
class Grid:
    """Rows under named columns. `least`: names of columns that go first where there is no room."""

    columns: list[Column]
    least: tuple[str, ...] = ()
    header: bool = True
    hint: bool = True
    """Whether a line below names the columns that had no room."""
    listed: bool = False
    """Whether the command takes `-o wide`, which shows all columns."""
    single: bool = False
    """Whether each row is one line: text is cut off, before a command that has no room."""
    margin: str = " " * _INDENT
    """What a line below a row begins with."""

    @staticmethod
    def of(names: Sequence[str], least: Sequence[str] = ()) -> Grid:
        """Return a grid without rows. A name begins with > for numbers, = for short words, ~ for text that wraps."""
        kinds = [(n[1:], _KINDS[n[0]]) if n[:1] in _KINDS else (n, "name") for n in names]
        return Grid([Column(name, kind) for name, kind in kinds], tuple(least))

    @property
    def row_count(self) -> int:
        return len(self.columns[0].cells)

    def add_row(self, *cells: Text) -> None:
        for column, cell in zip(self.columns, cells, strict=True):
            column.cells.append(cell)

    def fit(self, width: int) -> Fit:
        whole = [(column, column.natural) for column in self.columns]
        if _side_by_side(whole) <= width:
            return Fit(tuple(whole))
        tries = list(self._tries())
        for fit in tries:
            if _side_by_side(fit.columns) <= width:
                full = self._with_what_fits(fit, width)
                return replace(full, columns=_widen(full.columns, width))
        narrowed = _narrow(tries[-1].columns, width)
        if narrowed is None and self.single:
            names = tuple((c, w) for c, w in tries[-1].columns if c.kind != "prose")
            return Fit(_narrow(names, width) or names)
        return Fit(tuple(whole), records=True) if narrowed is None else replace(tries[-1], columns=narrowed)

    def _tries(self) -> Iterator[Fit]:
        """Yield fewer and fewer columns, first with all text beside them, then with it below."""
        wanted = [(column, self._measure(column)) for column in self.columns]
        prose = tuple(column for column in self.columns if column.kind == "prose")
        for below in dict.fromkeys(((), () if self.single else prose)):
            for n in range(len(self.least) + 1):
                left_out = tuple(column for column in self.columns if column.name in self.least[:n])
                shown = tuple((c, w) for c, w in wanted if c not in left_out and c not in below)
                yield Fit(shown, tuple(c for c in below if c not in left_out), left_out)

    def _with_what_fits(self, fit: Fit, width: int) -> Fit:
        """Put back what fits: a wide column may leave room for a narrow one that was removed before it."""
        for column in sorted(fit.left_out, key=lambda c: -self.least.index(c.name)):
            shown = {c.name for c, _ in fit.columns} | {column.name}
            fuller = tuple((c, self._measure(c)) for c in self.columns if c.name in shown)
            if _side_by_side(fuller) <= width:
                fit = replace(fit, columns=fuller, left_out=tuple(c for c in fit.left_out if c is not column))
        return fit

    def _measure(self, column: Column) -> int:
        return min(column.natural, _LEAST_PROSE) if self.single and column.kind == "prose" else _measure_column(column)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        widest = _side_by_side([(c, c.natural) for c in self.columns])
        return Measurement(min(widest, options.max_width), min(widest, options.max_width))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for text in self.lines(options.max_width):
            yield from _print_segments(console, text)

    def lines(self, width: int) -> Iterator[Text]:
        fit = self.fit(width)
        if fit.records:
            yield from self._records(width)
            return
        if self.header:
            heads = [Text(c.name, style="bold") for c, _ in fit.columns]
            yield from _beside(fit.columns, heads)
        for n in range(self.row_count):
            cells = [_beginning(c.cells[n], w) if self.single else c.cells[n] for c, w in fit.columns]
            yield from _beside(fit.columns, cells, self.margin)
            for column in fit.below:
                if column.cells[n].plain not in ("", "-"):
                    label = f"{column.name.lower()}: " if column.name and len(fit.below) > 1 else ""
                    yield from _indent(Text(label) + column.cells[n], self.margin, width)
        if fit.left_out and self.hint:
            names = ", ".join(c.name for c in self.columns if c in fit.left_out)
            them = "it" if len(fit.left_out) == 1 else "them"
            how = "-o wide" if self.listed else f"a wider terminal shows {them}"
            yield from wrap_lines(Text(f"No room for {names}: {how}", style="dim"), width)

    def _records(self, width: int) -> Iterator[Text]:
        """Yield each row as a list of its cells, with an empty line between two."""
        labels = max(cell_len(c.name) for c in self.columns)
        for n in range(self.row_count):
            if n:
                yield Text()
            for column in self.columns:
                label = Text(column.name.ljust(labels + GAP), style="bold")
                yield from _label_lines(label, column.cells[n], labels + GAP, width)


_Widths = tuple[tuple[Column, int], ...]


def _side_by_side(columns: Sequence[tuple[Column, int]]) -> int:
    return sum(width for _, width in columns) + GAP * max(0, len(columns) - 1)


def _measure_column(column: Column) -> int:
    """Return the width at which nothing is lost: no word of a text, and so no name in it, is broken."""
    if column.kind != "prose":
        return column.natural
    prose = (part.plain for cell in column.cells for part, command in _apart(cell) if not command)
    longest = max((cell_len(word) for text in prose for word in text.split()), default=0)
    return min(column.natural, max(_LEAST_PROSE, cell_len(column.name), longest))


def _narrow(columns: _Widths, width: int) -> _Widths | None:
    """Shorten names, the widest first, until the columns fit; None if they cannot."""
    over = _side_by_side(columns) - width
    if over <= 0:
        return columns
    names = {cell.plain for column, _ in columns if column.kind == "name" for cell in column.cells}
    least = [column.least(names) for column, _ in columns]
    widths = [w for _, w in columns]
    if sum(widths) - sum(least) < over:
        return None
    for _ in range(over):
        widths[max((n for n in range(len(widths)) if widths[n] > least[n]), key=widths.__getitem__)] -= 1
    return tuple((column, w) for (column, _), w in zip(columns, widths, strict=True))


def _widen(columns: _Widths, width: int) -> _Widths:
    """Give the free cells to text columns, the most to the one that lacks the most."""
    widths = [w for _, w in columns]
    for _ in range(width - _side_by_side(columns)):
        lacks = [column.natural - w for (column, _), w in zip(columns, widths, strict=True)]
        if max(lacks) > 0:
            widths[lacks.index(max(lacks))] += 1
    return tuple((column, w) for (column, _), w in zip(columns, widths, strict=True))


def _beside(columns: Sequence[tuple[Column, int]], cells: Sequence[Text], margin: str = "") -> Iterator[Text]:
    """Yield one row: as many lines as its longest text. Commands that do not fit into their cell come below it."""
    blocks, commands = [], []
    for (column, width), cell in zip(columns, cells, strict=True):
        if column.kind != "prose" or cell_len(cell.plain) <= width:
            short = shorten_cells(cell.plain, width) if column.kind == "name" else cell.plain
            blocks.append([cell if short == cell.plain else Text(short, style=cell.style)])
            continue
        block: list[Text] = []
        for part, command in _apart(cell):
            if command and cell_len(part.plain) > width:
                commands.append(part)
            elif part.plain.strip():
                block += [text for text in _between_words(part, width) if text.plain.strip()]
        blocks.append(block or [Text()])
    for n in range(max(map(len, blocks))):
        row = Text()
        for at, ((column, width), block) in enumerate(zip(columns, blocks, strict=True)):
            text = block[n] if n < len(block) else Text()
            text.rstrip()
            fill = " " * max(0, width - cell_len(text.plain))
            row += Text(" " * GAP * bool(at))
            row += Text(fill) + text if column.kind == "number" else text + Text(fill)
        row.rstrip()
        yield row
    yield from (Text(margin) + command for command in commands)


def _beginning(cell: Text, width: int) -> Text:
    """Return as many of its words as fit; a command or a name is there whole or not at all."""
    if cell_len(cell.plain) <= width:
        return cell
    commands = [(start, end) for start, end in commands_in(cell.plain)]
    ends = [
        word.end()
        for word in re.finditer(r"\S+", cell.plain)
        if cell_len(cell.plain[: word.end()]) + GAP <= width
        and not any(start < word.end() < end for start, end in commands)
    ]
    text = cell[: ends[-1]] if ends else Text()
    text.plain = text.plain.rstrip(" ,;:`(")
    return text + Text(f" {ELLIPSIS}" if text.plain else ELLIPSIS, style=cell.style)


def _indent(cell: Text, margin: str, width: int) -> Iterator[Text]:
    for text in wrap_lines(cell, width - cell_len(margin)):
        yield Text(margin) + text


def _label_lines(label: Text, cell: Text, indent: int, width: int) -> Iterator[Text]:
    """Yield a label and its text beside it; further lines are below the text."""
    shown = list(wrap_lines(cell, width - indent)) or [Text()]
    yield label + shown[0]
    yield from (Text(" " * indent) + text for text in shown[1:])


@dataclass
class FactSheet:
    """Names on the left, sentences on the right."""

    rows: list[tuple[str, Text]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for text in self.lines(options.max_width):
            yield from _print_segments(console, text)

    def lines(self, width: int) -> Iterator[Text]:
        labels = max((cell_len(name) for name, _ in self.rows), default=0) + GAP
        for name, text in self.rows:
            yield from _label_lines(Text(name.ljust(labels), "dim"), text, labels, width)


Fitted = Text | Grid | FactSheet
"""A part that knows its lines at a width."""


def height(parts: Iterable[Fitted], width: int) -> int:
    """Count the terminal's rows for sentences, tables and fact sheets, with those that it wraps by itself."""
    lines = (
        text for part in parts for text in (wrap_lines(part, width) if isinstance(part, Text) else part.lines(width))
    )
    return sum(max(1, -(-cell_len(text.plain) // width)) for text in lines)
