"""Names as Slurm takes them, and as the ledger keeps those of limits that are no team's."""

from __future__ import annotations

import re

from models.errors import Refusal

POOL, QOS = "pool:", "qos:"
_PLAIN = re.compile(r"[\w.@+-]{1,100}", re.ASCII)


def is_quotable(name: str) -> bool:
    """Return whether it is one word to sacctmgr."""
    return _PLAIN.fullmatch(name) is not None


def plain_name(name: str) -> str:
    """Return the name if it is one word to sacctmgr. Errors: Refusal."""
    if not is_quotable(name):
        raise Refusal(f"{name!r} cannot be a name in Slurm: only letters, digits and . _ @ + - are allowed")
    return name
