"""Placeholders: `{cluster}` in a recipe's texts is replaced by the entry's value; nothing else is interpreted.

A value goes into one argument, or one segment of a URL; no shell reads it. Braces without a name in them stay, so that
a PromQL query keeps its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic.fields import FieldInfo

from models.texts import brief

_PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9_]*)\}")
_URL = re.compile(r"https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(?P<path>(/[^?#]*)?)([?#].*)?")
_RESERVED = re.compile(r"[^A-Za-z0-9_.~-]")
"""Characters that are not "unreserved" in RFC 3986, 2.3."""
_DOT, _SLASH = re.compile("%2e", re.IGNORECASE), re.compile("%2f", re.IGNORECASE)
URL_FIELDS = ("url", "status_url", "http")
"""Fields of a recipe whose text is a URL."""
LATER = "id"
"""The placeholder for the run's id from the first answer. The runner fills it into a status URL."""
RUN_KEY = "key"
"""The placeholder for the key of the start. Backstop fills it into a status URL at the start."""


def spelling_of(pattern: str, in_words: str) -> tuple[AfterValidator, FieldInfo]:
    """Return the annotations that check a text's spelling. `in_words`: the rule, for the error message."""
    whole = re.compile(pattern)

    def check(text: str) -> str:
        if whole.fullmatch(text) is None:
            raise ValueError(f"must be {in_words}, not {brief(text)}")
        return text

    return AfterValidator(check), Field(json_schema_extra={"pattern": f"^{pattern}$"})


Value = Annotated[
    str,
    *spelling_of(
        r"[A-Za-z0-9_./:+,=][A-Za-z0-9_./:+,=-]{0,199}",
        "up to 200 letters, digits or characters of _./:+,=- and must not begin with a dash",
    ),
]
"""A value for a placeholder: no blanks, no quotes, and no dash at its beginning."""

Place = tuple[str | int, ...]


def placeholders(text: str) -> list[str]:
    """Return the names in braces, in their order."""
    return _PLACEHOLDER.findall(text)


def fill_text(text: str, values: Mapping[str, str]) -> str:
    """Replace each placeholder by its value. Errors: KeyError for one without a value (refused at entry)."""

    def value(match: re.Match[str]) -> str:
        return match[0] if match[1] == LATER else values[match[1]]

    return _PLACEHOLDER.sub(value, text)


def fill_url(text: str, values: Mapping[str, str]) -> str:
    """Replace placeholders by percent-encoded values: none ends the host, segment or parameter it is in."""
    return fill_text(text, {name: _RESERVED.sub(_percent, value) for name, value in values.items()})


def _percent(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode())


def leads_aside(path: str) -> bool:
    """Return whether a segment of the path is `.` or `..`: percent-encoding keeps dots, and `%2e` is one."""
    return not {".", ".."}.isdisjoint(_DOT.sub(".", path).split("/"))


def url_fault(text: str, values: Mapping[str, str]) -> str:
    """Explain why no request may go to the URL once these values fill it; empty if it may.

    This is stricter than the client that sends it: many servers decode `%2F` before they follow `..`.
    """
    url = fill_url(text, values)
    match = _URL.fullmatch(url)
    if match is None:
        places = "one label of the host name, the port (digits), one path segment or the value of one parameter"
        return f"would be {brief(url)}: a value may fill only {places}"
    if leads_aside(_SLASH.sub("/", match["path"])):
        return f"would be {brief(url)}: remove `..` and `.` from the path, which lead to another place on the host"
    return ""


def unfilled_placeholders(texts: Iterable[tuple[Place, str]], values: Mapping[str, str]) -> Iterator[tuple[Place, str]]:
    """Yield the placeholders that the values do not fill, each with its place."""
    for place, text in texts:
        for name in placeholders(text):
            if name not in values and not (name in (LATER, RUN_KEY) and place[-1] == "status_url"):
                yield place, name
