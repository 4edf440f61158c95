"""What commands about the front itself answer as JSON."""

from __future__ import annotations

from cli.json_answer import JsonAnswer


class Whoami(JsonAnswer, schema="whoami"):
    """Who one is, to whom, and how that is proven."""

    name: str
    proof: str
    how: str
    groups: tuple[str, ...] = ()
    to: str
