"""The JSON answers of commands about the front itself."""

from __future__ import annotations

from cli.json_answer_base import JsonAnswer


class Whoami(JsonAnswer, schema="whoami"):
    """The caller's identity, the front, and the proof."""

    name: str
    proof: str
    how: str
    groups: tuple[str, ...] = ()
    to: str
