"""Keeps what a worker knows of fronts: their public keys, and whether every command needs one's ticket.

Both are kept in memory, as validators do no I/O, and asked for again every few seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from client.front_key_files import read_book
from models.access.signing import PublicKey
from models.errors import BackstopError, BadInput

log = logging.getLogger("backstop.worker")
_EVERY_SECONDS = 5.0


class KeysKept:
    """Returns the keys by id when called, from memory: validators do no I/O. Errors: BadInput for an invalid book."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._keys = read_book(path).by_id

    def __call__(self) -> Mapping[str, PublicKey]:
        return self._keys

    def read_again(self) -> None:
        """Read the book again; a missing or invalid one leaves the old keys: it must not open the door."""
        try:
            self._keys = read_book(self._path).by_id
        except BadInput as error:
            log.warning(
                "could not read the public keys of fronts again, so the earlier ones stay in use: %s", error.message
            )


class TicketsWanted:
    """Knows whether every command needs a ticket: from the first access file on, and then for good.

    `configured`: returns whether there is one; None: every command needs one from the beginning.
    """

    def __init__(self, configured: Callable[[], bool] | None = None) -> None:
        self._configured = configured
        self._known: bool | None = True if configured is None else None

    def is_known(self) -> bool:
        """Return the last answer. Until the ledger has answered, every command needs a ticket."""
        return self._known is not False

    def now(self) -> bool:
        """Return whether every command needs a ticket. Errors: Unavailable."""
        if not self._known and self._configured is not None:
            self._known = self._configured()
        return bool(self._known)

    def ask_again(self) -> None:
        try:
            self.now()
        except BackstopError as error:
            log.warning("could not read whether an access file is in force: %s", error.message)


@asynccontextmanager
async def renew_keys(keys: KeysKept | None, wanted: TicketsWanted) -> AsyncIterator[None]:
    """Within, learn a change of the book or a first access file seconds later."""
    if keys is None:
        yield
        return

    async def renew() -> None:
        while True:
            await asyncio.sleep(_EVERY_SECONDS)
            await asyncio.to_thread(keys.read_again)
            await asyncio.to_thread(wanted.ask_again)

    task = asyncio.create_task(renew())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
