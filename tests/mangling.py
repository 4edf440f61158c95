"""Hypothesis strategies that spoil valid documents: structure first, then text, then bytes.

A generator of noise is refused at the first character. These start from what is right and change little, so
that what they make comes as deep into the product as bad input can.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import yaml
from hypothesis import strategies as st


def nested(depth: int, value: Any = 1) -> Any:
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


POISON: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, -5, 7.0, 0.5, -0.0, 1e20, 1e308, float("nan"), float("inf"), -float("inf")),
    *(10**7, 10**7 + 1, 2**31, 2**63, 2**64, 10**30, -(10**30), 10**4000),
    *("", " ", "x", "5", "-1", "0.15", "NaN", "1e999999999", "0e999999999", "1/3", "1/0", "3d", "1e300d", "-1d", "9w"),
    *(
        "x" * 201,
        "x" * 3000,
        "a,b",
        "a\nb",
        "a\tb",
        "a\0b",
        "\ud800",
        "a\udfff",
        "\u202eabc",
        "\u2028",
        "\x85",
        "\ufeff",
    ),
    *("é", "e\u0301", "🦀" * 50, "no", "~", "null", "<<", "*a", "&a", "!!int 5", "../../x", "%s{0}{{7*7}}", "';--"),
    *("2026-01-31T12:00:00Z", "2026-01-31", "2026-01-31T12:00:00", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00"),
    *("9999-12-31T23:59:59Z", "9999-12-31T23:59:59-12:00", "10000-01-01T00:00:00Z", "2026-02-30T00:00:00Z"),
    *([], {}, [[]], [1], ["x"], {"": 1}, {"\ud800": 1}, {"ramp": [0.1, 0.2]}, {"ramp": [nested(20)]}, {"health": {}}),
    *(nested(60), nested(150), nested(400), [0] * 500),
)


def places(document: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything inside."""
    inside = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    found = []
    for key, value in inside:
        found += [(*at, key), *places(value, (*at, key))]
    return found


def poison() -> st.SearchStrategy[Any]:
    return st.sampled_from(POISON).map(copy.deepcopy)


@st.composite
def spoilt(draw: st.DrawFn, document: Any, most: int = 3) -> Any:
    """The document with one to a few things deleted, doubled, moved, renamed, added or put in another type's place."""
    made = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, most))):
        found = places(made)
        if not found:
            break
        path = draw(st.sampled_from(found))
        parent = made
        for step in path[:-1]:
            parent = parent[step]
        _change(draw, made, parent, path[-1])
    return made


def _change(draw: st.DrawFn, made: Any, parent: Any, key: Any) -> None:
    how = draw(st.sampled_from(["put", "put", "put", "delete", "double", "swap", "add", "wrap", "name", "number"]))
    if how == "delete":
        del parent[key]
    elif how == "double" and isinstance(parent, list):
        parent.append(copy.deepcopy(parent[key]))
    elif how == "double":
        parent[f"{key}_"] = copy.deepcopy(parent[key])
    elif how == "swap":
        other = draw(st.sampled_from(places(made)))
        value: Any = made
        for step in other:
            value = value[step]
        parent[key] = copy.deepcopy(value)
    elif how == "add":
        target = parent[key] if isinstance(parent[key], dict | list) else parent
        if isinstance(target, list):
            target.append(draw(poison()))
        else:
            target[draw(st.sampled_from(["x", "gpu", "", "\ud800", "<<", "$schema", "k" * 2000]))] = draw(poison())
    elif how == "wrap":
        parent[key] = [parent[key]]
    elif how == "name":
        parent[key] = draw(st.text(max_size=12))
    elif how == "number":
        parent[key] = draw(st.integers(-3, 400) | st.floats())
    else:
        parent[key] = draw(poison())


SNIPPETS = (
    *("&a ", "*a", "<<: *a\n", "!!python/object:os.system ", "!!binary ", "!x ", "---\n", "...\n", "%YAML 1.1\n", "\t"),
    *(
        "\x00",
        "\x85",
        "{",
        "}",
        "[",
        "]",
        ":",
        "? ",
        "- ",
        "# ",
        "|\n",
        ">-\n",
        '"',
        "'",
        ",",
        "\ud800",
        "\\ud800",
        "\\u0000",
    ),
)


def as_text(draw: st.DrawFn, document: Any) -> str:
    if draw(st.booleans()):
        return json.dumps(document, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1])))
    try:
        return str(yaml.safe_dump(document, allow_unicode=draw(st.booleans()), sort_keys=False))
    except (yaml.YAMLError, RecursionError, ValueError):
        return json.dumps(document)


def as_bytes(draw: st.DrawFn, text: str) -> bytes:
    """The text in one of the encodings that editors write, now and then cut, patched or stirred."""
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        at = draw(st.integers(0, len(text)))
        match draw(st.sampled_from(["insert", "cut", "drop", "line"])):
            case "insert":
                text = text[:at] + draw(st.sampled_from(SNIPPETS)) + text[at:]
            case "cut":
                text = text[:at]
            case "drop":
                text = text[:at] + text[at + draw(st.integers(1, 9)) :]
            case "line":
                line = text[text.rfind("\n", 0, at) + 1 : text.find("\n", at) + 1]
                text = text[:at] + line + text[at:]
    match draw(st.sampled_from(["plain"] * 6 + ["bom", "crlf", "cr", "utf-16", "utf-16-le", "latin-1", "stirred"])):
        case "bom":
            return b"\xef\xbb\xbf" + text.encode(errors="surrogatepass")
        case "crlf":
            return text.replace("\n", "\r\n").encode(errors="surrogatepass")
        case "cr":
            return text.replace("\n", "\r").encode(errors="surrogatepass")
        case "utf-16" | "utf-16-le" | "latin-1" as codec:
            return text.encode(codec, errors="replace")
        case "stirred":
            raw = text.encode(errors="surrogatepass")
            at = draw(st.integers(0, len(raw)))
            return raw[:at] + draw(st.binary(max_size=4)) + raw[at + 2 :]
        case _:
            return text.encode(errors="surrogatepass")


@st.composite
def spoilt_files(draw: st.DrawFn, document: Any) -> bytes:
    """A YAML or JSON file of the document, more or less."""
    if draw(st.integers(0, 19)) == 0:
        return draw(st.binary(max_size=200))
    made = draw(spoilt(document)) if draw(st.integers(0, 9)) else document
    return as_bytes(draw, as_text(draw, made))
