"""Commands that wait for a second person, for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from models.access.second_persons import SHOWN_DIGITS
from models.texts import some_of
from views.fleet_rollout import PACE_WORDS
from views.words import line, moment, row, space_name, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from models.access.second_persons import Countersigned, Waiting

NO_UNDO = "Backstop cannot undo it."
_WORDS = {
    "actor": "given by",
    "import_id": "import",
    "parts": "parts that the file came in",
    "how": "what to do about a change by others",
    "plan_hash": "plan",
    "undo": "also undo what it has done",
}
"""The words for fields of commands whose names do not explain them."""
_WRAPPERS = ("arguments", "terms")
"""Fields that only contain other fields."""
_EMPTY: tuple[object, ...] = ("", None, [], {}, False)


def given_words(done: Countersigned) -> tuple[str, str]:
    """Return two sentences: what was done, by whom, and how to undo it."""
    undo = done.undo or NO_UNDO
    return f"Given by {done.by}, countersigned by {done.second}: {done.said}.", f"Undo: {undo}"


def waiting_parts(waiting: Sequence[Waiting]) -> list[RenderableType]:
    """Return a line for each waiting command."""
    if not waiting:
        return [line("Nothing waits for a second person.")]
    rows = table("HASH", "~WHAT IT WOULD DO", "~GIVEN BY", "=UNTIL", "~WHO COULD", least=["WHO COULD"])
    for one in waiting:
        what = f"{one.what} ({one.second} is countersigning it)" if one.second else one.what
        row(rows, one.hash[:SHOWN_DIGITS], what, one.by, moment(one.until), some_of(one.could, 3) or "nobody by name")
    return [rows, line("backstop countersign give HASH shows one command in full, and asks first.")]


def whole_parts(one: Waiting) -> list[RenderableType]:
    """Return everything that the command would do."""
    why = f": {one.reason}" if one.reason else ""
    state = {"given": f"{one.second} has already countersigned it.", "withdrawn": "It was withdrawn."}
    return [
        line((f"To {one.what}", "bold"), f", given by {one.by}, {one.at:%Y-%m-%d %H:%MZ}{why}"),
        *(line(text) for text in _lines(_beside_title(one))),
        *(line(f"  - {text}") for text in one.changes),
        line(state.get(one.ended) or f"It waits until {one.until:%Y-%m-%d %H:%MZ} ({one.hash})."),
    ]


def _beside_title(one: Waiting) -> dict[str, object]:
    """Return the message without what the first line says: the deed and who gave it."""
    return {name: each for name, each in one.message.items() if name != "kind" and (name, each) != ("actor", one.by)}


def _lines(value: object, path: str = "") -> list[str]:
    """Return each value of a command after its name in words: `Entry, nodes: 8`. Empty values are left out."""
    if isinstance(value, dict):
        return [text for name, each in value.items() for text in _lines(each, _path(path, name))]
    if isinstance(value, list) and any(isinstance(each, dict | list) for each in value):
        return [text for number, each in enumerate(value, 1) for text in _lines(each, f"{path} {number}")]
    if value in _EMPTY:
        return []
    shown = ", ".join(map(str, value)) if isinstance(value, list) else "yes" if value is True else value
    return [f"  {path[:1].upper()}{path[1:]}: {shown}"]


def _path(path: str, name: str) -> str:
    if name in _WRAPPERS:
        return path
    words = PACE_WORDS.get(name) or _WORDS.get(name) or space_name(name).replace("gpus", "GPUs").replace("gpu ", "GPU ")
    inside = words if words[:2].isupper() else f"{words[:1].lower()}{words[1:]}"
    return f"{path}, {inside}" if path else words
