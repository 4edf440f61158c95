"""The table of rights for docs/access.md, made of models/access/rights.py.

`python -m tests.docs.rights_table docs/access.md` writes it again; a test fails when that is needed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from models.access.rights import RIGHTS, Right, Second, Where
from models.access.roles import Role

_REACHES = {Where.CLUSTER: "the cluster", Where.TEAM: "the team", Where.FLEET: "the fleet", Where.ANY: ""}


def rights_table() -> str:
    """Return a row for each right, with all its keys."""
    lines = ["| commands | may | who | bounded by | second person |", "|---|---|---|---|---|"]
    keys_by: dict[str, list[str]] = {}
    for key, right in _rows():
        who = "anybody with a role" if right.roles == tuple(Role) else " or ".join(right.roles)
        second = "" if right.second is Second.NONE else right.second
        keys_by.setdefault(f"| {right.to} | {who} | {_REACHES[right.where]} | {second} |", []).append(f"`{key}`")
    return "\n".join([*lines, *(f"| {', '.join(keys)} {rest}" for rest, keys in keys_by.items())])


def _rows() -> Iterator[tuple[str, Right]]:
    for key, right in RIGHTS.items():
        yield key, right
        for meant in right.case.values():
            yield key, meant


def with_rights(text: str) -> str:
    """Return the document with the table between `<!-- rights -->` and `<!-- end -->` made again."""
    return re.sub(
        r"(<!-- rights -->\n).*?(<!-- end -->)", lambda m: f"{m[1]}{rights_table()}\n{m[2]}", text, flags=re.DOTALL
    )


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(with_rights(path.read_text(encoding="utf-8")), encoding="utf-8")
