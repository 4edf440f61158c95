"""Writes views as HTML: the page has the same sentences, tables and facts as the terminal."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote

from markupsafe import Markup, escape
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from models.fleet.command_rows import FLEET_ROWS
from models.fleet.state import FLEET
from models.lifecycle.command_rows import CommandRow
from models.requests.command_rows import REQUEST_ROWS
from models.rollout.command_rows import ROLLOUT_ROWS
from views.layout import Column, FactSheet, Grid, commands_in
from views.words import DECORATION, number

_CLASSES = {
    "bold": "strong",
    "red": "bad",
    "bold red": "bad strong",
    "yellow": "warn",
    "green": "good",
    "cyan": "soon",
    "blue": "soon",
    "magenta": "shadow",
    "dim": "dim",
}
_NAMES = ("ID",)
"""Columns whose numbers are names."""
_QUOTED = re.compile("`([a-z]+)`")
_COUNT = re.compile(r"(?<![\d,.])\d{4,15}(?![\d,.])")
_PAGES = {
    **{f"backstop fleet status --{show}": f"/rollout?show={show}" for show in ("all", "failed", "waiting")},
    **{f"backstop status --{flag}": f"/?show={flag.removeprefix('at-')}" for flag in ("needs", "at-risk", "held")},
}
_COMMANDS: Mapping[str, Mapping[str, CommandRow]] = {"": ROLLOUT_ROWS, "fleet": FLEET_ROWS, "request": REQUEST_ROWS}
_PLACEHOLDERS = ("CLUSTER", "ID")
_LINKS = {"CLUSTER": "/clusters/", "TEAM": "/teams/"}


def place(kind: str, *names: str) -> str:
    """Return a path of the console, with the names escaped."""
    return "/" + "/".join([kind, *(quote(name, safe="") for name in names)])


def markup(parts: Iterable[RenderableType], label: str = "") -> Markup:
    """Return all parts as blocks, one below the other; empty lines become the space between them.

    `label`: the tables' name for screen readers.
    """
    return Markup("\n").join(
        _part(part, label) for part in parts if not (isinstance(part, Text) and not part.plain.strip())
    )


def _part(part: RenderableType, label: str) -> Markup:
    if isinstance(part, Padding):
        return Markup('<div class="inner">{}</div>').format(_part(part.renderable, label))
    if isinstance(part, Grid):
        return table(part, label=label)
    if isinstance(part, FactSheet):
        return facts(part)
    if isinstance(part, Text):
        return Markup("<p>{}</p>").format(sentence(part))
    if isinstance(part, str):
        return Markup("<p>{}</p>").format(part)
    raise TypeError(f"the console has no HTML for {type(part).__name__}")


def group_digits(text: str) -> str:
    """Write a cell of counts with its digits in groups, as sentences do: 1,024/1,024, at most 2,352."""
    return _COUNT.sub(lambda digits: number(int(digits[0])), text)


def facts(sheet: FactSheet) -> Markup:
    rows = (Markup("<div><dt>{}</dt><dd>{}</dd></div>").format(name, sentence(text)) for name, text in sheet.rows)
    return Markup('<dl class="facts">{}</dl>').format(Markup("").join(rows))


def table(grid: Grid, caption: str = "", label: str = "") -> Markup:
    columns = [column for column in grid.columns if not grid.row_count or any(cell.plain for cell in column.cells)]
    head = Markup("").join(
        Markup('<th scope="col" class="{}">{}</th>').format(column.kind, _heading(column.name))
        if column.name
        else Markup("<td></td>")  # a heading that says nothing is none
        for column in columns
    )
    body = Markup("\n").join(
        Markup("<tr>{}</tr>").format(Markup("").join(_cell(column, column.cells[n]) for column in columns))
        for n in range(grid.row_count)
    )
    title = Markup("<caption>{}</caption>").format(caption) if caption else Markup("")
    return Markup(
        '<div class="scroll" tabindex="0" role="group" aria-label="{}"><table>{}<thead><tr>{}</tr></thead>'
        "<tbody>\n{}\n</tbody></table></div>"
    ).format(caption or label or "table", title, head, body)


def _heading(name: str) -> str:
    """Write a column's name as in a sentence, even if it came in capitals."""
    return " ".join("GPUs" if word.lower() == "gpus" else word for word in name.capitalize().split(" "))


def _cell(column: Column, text: Text) -> Markup:
    if column.kind == "number" and column.name not in _NAMES:
        text = Text(
            group_digits(text.plain), text.style, spans=text.spans if text.plain == group_digits(text.plain) else []
        )
    styled = _CLASSES.get(str(text.style), "")
    classes = f"{column.kind} {styled}".strip()
    inner = sentence(Text(text.plain)) if styled else sentence(text)
    if column.name in _LINKS and text.plain not in ("", "-"):
        href = "/rollout" if text.plain == FLEET else f"{_LINKS[column.name]}{quote(text.plain, safe='')}"
        inner = Markup('<a href="{}">{}</a>').format(href, inner)
    return Markup('<td class="{}">{}</td>').format(classes, inner)


def sentence(text: Text) -> Markup:
    """Write a sentence: its styles become classes, and its commands code."""
    pieces = list[Markup]()
    for start, end, style in _runs(text):
        piece = _with_code(text.plain, start, end)
        if style == DECORATION:
            piece = Markup('<span class="bars" aria-hidden="true">{}</span>').format(piece)
        named = _CLASSES.get(style, "")
        pieces.append(Markup('<span class="{}">{}</span>').format(named, piece) if named else piece)
    return Markup("").join(pieces)


def _runs(text: Text) -> Sequence[tuple[int, int, str]]:
    """Return its pieces in order, each with its style. Our styles never overlap."""
    pieces, at = list[tuple[int, int, str]](), 0
    for span in sorted(text.spans):
        if span.start > at:
            pieces.append((at, span.start, str(text.style)))
        if span.end > max(at, span.start):
            pieces.append((max(at, span.start), span.end, str(span.style)))
        at = max(at, span.end)
    if at < len(text.plain):
        pieces.append((at, len(text.plain), str(text.style)))
    return pieces


def _with_code(plain: str, start: int, end: int) -> Markup:
    """Write a piece of the text; commands that are whole in it become links or code, without their quotes.

    One that has a page here is a link to it, because readers of pages have no terminal.
    """
    pieces, at = list[Markup](), start
    for first, last in commands_in(plain):
        if first < start or last > end:
            continue
        quoted = plain[first - 1 : first] == "`" == plain[last : last + 1]
        before, after = (first - 1, last + 1) if quoted else (first, last)
        ahead, typed = plain[at:before], plain[first:last]
        href, label = _page_of(typed)
        if label and ahead.lower().endswith(f"{label.lower()}: "):  # the sentence has just said it: that is the link
            ahead, label = ahead[: -len(label) - 2], ahead[-len(label) - 2 : -2]
        link = Markup('<a href="{}">{}</a>').format(href, label) if href else Markup("<code>{}</code>").format(typed)
        pieces += [_with_buttons(ahead), link]
        at = after
    return Markup("").join([*pieces, _with_buttons(plain[at:end])])


def _page_of(typed: str) -> tuple[str, str]:
    """Return the path and the words of a link to a command's page; empty: it has none."""
    if typed in _PAGES:
        return _PAGES[typed], "show them"
    if typed == "backstop request list":
        return "/requests", "the requests"
    try:
        words = shlex.split(typed)[1:]
    except ValueError:  # a reason of somebody's that only looks like a command
        return "", ""
    lifecycle = words.pop(0) if words[:1] in (["fleet"], ["request"]) else ""
    command, name, *_ = *words, "", ""
    if (lifecycle, command) == ("fleet", "status"):
        return "/rollout", "the fleet rollout"
    if (lifecycle, command) == ("", "status") and _names_one(name):
        return place("clusters", name), name
    row = _COMMANDS[lifecycle].get(command)
    if row is None or not (lifecycle == "fleet" or _names_one(name)):
        return "", ""
    return {
        "": place("clusters", name, command),
        "fleet": place("rollout", command),
        "request": place("requests", name),
    }[lifecycle], row.label


def _names_one(name: str) -> bool:
    """Return whether the name is one, and neither an option nor a placeholder."""
    return bool(name) and not name.startswith("-") and name not in _PLACEHOLDERS


def _with_buttons(plain: str) -> Markup:
    """Write a piece without commands; a word in backquotes is a button's name here, and stands out without them."""
    parts = _QUOTED.split(plain)
    return Markup("").join(Markup("<b>{}</b>").format(t) if n % 2 else escape(t) for n, t in enumerate(parts))
