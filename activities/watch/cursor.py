"""The cursor of the watch: a short hash of each cluster and its signalled state, as heartbeats carry it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
from collections.abc import Iterable, Set

_DIGEST_BYTES = 6
"""With 10,000 clusters a new mark passes for an old one with odds of 1 to 28,000,000,000, in an 80 kB cursor."""


def digest(cluster: str, mark: str) -> bytes:
    return hashlib.blake2b(f"{cluster}\0{mark}".encode(), digest_size=_DIGEST_BYTES).digest()


def cursor_of(told_marks: Iterable[bytes]) -> str:
    """Pack the marks for the heartbeat: in full they would be a megabyte for 10,000 clusters."""
    return base64.b64encode(b"".join(told_marks)).decode()


def told_of(cursor: object) -> Set[bytes]:
    """Unpack a cursor; anything else is an empty one. Earlier versions kept the marks themselves by cluster."""
    if isinstance(cursor, dict):
        return {digest(cluster, str(mark)) for cluster, mark in cursor.items()}
    if not isinstance(cursor, str):
        return set()
    with contextlib.suppress(ValueError):
        digests = base64.b64decode(cursor, validate=True)
        return {digests[at : at + _DIGEST_BYTES] for at in range(0, len(digests), _DIGEST_BYTES)}
    return set()
