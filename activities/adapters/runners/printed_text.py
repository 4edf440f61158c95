"""Makes output of programs and services fit to be kept and read: no escape codes, no control characters, cut short."""

from __future__ import annotations

import re
import unicodedata

from models.bringup.runs import TAIL_LENGTH

_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # colours, cursor
    r"|(?:\x1b[\]PX^_]|\x9d)[^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # titles, links, Buildkite's times of lines
    r"|\x1b[ -/]*[0-~]?"
)
"""Control sequences (ECMA-48). No match crosses a line's end, so text after an unfinished sequence is kept."""
_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Zl", "Zp"))
_SENTENCE = 300


def clean_lines(printed: bytes | str) -> str:
    """Return lines of plain text. Bytes that are not UTF-8 show as U+FFFD."""
    text = printed.decode(errors="replace") if isinstance(printed, bytes) else printed
    text = _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n").replace("\t", " ")
    return "".join(char for char in text if char == "\n" or unicodedata.category(char) not in _HIDDEN)


def tail_of(printed: bytes | str) -> str:
    """Return the last lines, as many as may travel; the end of a longer line."""
    text = clean_lines(printed).strip()
    if len(text) <= TAIL_LENGTH:
        return text
    end = text[-TAIL_LENGTH:]
    _, newline, rest = end.partition("\n")
    return rest if newline and text[-TAIL_LENGTH - 1] != "\n" and rest.strip() else end


def one_line(printed: bytes | str, most: int = _SENTENCE) -> str:
    """Return the beginning as one line."""
    text = " ".join(clean_lines(printed[: 10 * most]).split())
    return text if len(text) <= most else f"{text[:most]} ..."


def last_line(printed: bytes | str) -> str:
    """Return the last line that is not empty; empty if there is none."""
    lines = tail_of(printed).splitlines()
    return one_line(lines[-1]) if lines else ""
