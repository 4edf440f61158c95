"""The book of deliveries, and turns to deliver: together they make a delivery happen once.

The book remembers deliveries across restarts. It alone cannot keep two workers apart that look into it at the same
moment, so each delivery is made in its turn: look, send and remember, without anybody else meanwhile.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from models.errors import Unavailable


class DeliveryBook(Protocol):
    """Records which notice went to which address. Addresses are the masked ones: no secret is kept."""

    def read_sent_times(self, keys: Sequence[str], address: str) -> dict[str, datetime]:
        """Return when notices went there, by key; one whose delivery is not recorded is left out."""

    def remember(self, keys: Sequence[str], address: str, at: datetime) -> None:
        """Write the deliveries to disk, all or none. The first time remembered stays."""


class Turns(Protocol):
    """Keeps two workers from delivering the same notice to the same address at the same time."""

    def take_turn(self, key: str, address: str) -> AbstractContextManager[None]:
        """Hold this pair, without anybody else meanwhile. A holder that dies gives it up. Errors: Unavailable."""


class SqliteBook:
    """A book in an SQLite file, for one machine. Every write is synced to disk before `remember` returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mine = _Mine()

    def read_sent_times(self, keys: Sequence[str], address: str) -> dict[str, datetime]:
        among = "SELECT key, at FROM deliveries WHERE address = ? AND key IN (SELECT value FROM json_each(?))"
        with self._open() as book:
            return {key: datetime.fromisoformat(at) for key, at in book.execute(among, (address, json.dumps(keys)))}

    def remember(self, keys: Sequence[str], address: str, at: datetime) -> None:
        with self._open() as book:
            book.execute(
                "INSERT INTO deliveries (key, address, at) SELECT value, ?, ? FROM json_each(?) WHERE true "
                "ON CONFLICT DO NOTHING",
                (address, at.astimezone(UTC).isoformat(), json.dumps(keys)),
            )

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Return the thread's own connection. Autocommit: one statement, one transaction.

        Opening takes longer than a delivery; it is done again only if the file has been replaced.
        """
        try:
            if self._mine.connection is None or self._mine.file != self._file_there():
                self._connect()
            assert self._mine.connection is not None
            yield self._mine.connection
        except (sqlite3.Error, OSError) as error:
            self._mine.connection = None
            raise Unavailable(f"the delivery book {self._path.name} cannot be used: {error}") from error

    def _connect(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        book = sqlite3.connect(self._path, timeout=30, isolation_level=None)
        # One sync for each line; a rollback journal takes four for the same promise.
        book.execute("PRAGMA journal_mode = WAL")
        book.execute("PRAGMA synchronous = FULL")
        book.execute(
            "CREATE TABLE IF NOT EXISTS deliveries (key TEXT NOT NULL, address TEXT NOT NULL, "
            "at TEXT NOT NULL, PRIMARY KEY (key, address)) WITHOUT ROWID"
        )
        self._mine.connection, self._mine.file = book, self._file_there()

    def _file_there(self) -> tuple[int, int] | None:
        try:
            file = self._path.stat()
        except FileNotFoundError:
            return None
        return file.st_dev, file.st_ino


class _Mine(threading.local):
    """A thread's connection and the file that it opened; closed with its thread."""

    connection: sqlite3.Connection | None = None
    file: tuple[int, int] | None = None


class FileTurns:
    """Turns by locked files in a folder, for threads and processes of one machine.

    Each pair has a file of its own during its turn, so nobody waits for another pair. A turn is waited for
    `patience_seconds`; then somebody else still has it, and the caller may come again.
    """

    def __init__(self, folder: Path, patience_seconds: float = 90.0) -> None:
        self._folder = folder
        self._patience_seconds = patience_seconds

    @contextmanager
    def take_turn(self, key: str, address: str) -> Iterator[None]:
        pair = hashlib.sha256(f"{key}\0{address}".encode()).hexdigest()
        path = self._folder / f"{pair}.lock"
        file = self._lock_path(path)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                path.unlink()  # still locked: a waiting caller sees that it is gone, and makes a new one
            os.close(file)  # which unlocks; so does the end of the process

    def _lock_path(self, path: Path) -> int:
        """Return the file at this path, locked by nobody else."""
        deadline = time.monotonic() + self._patience_seconds
        try:
            while True:
                file = self._open_file(path)
                try:
                    self._lock(file, deadline)
                    if os.path.samestat(os.fstat(file), path.stat()):
                        return file
                except FileNotFoundError:
                    pass  # the holder before us has removed it
                except BaseException:
                    os.close(file)
                    raise
                os.close(file)
        except OSError as error:
            raise Unavailable(f"the folder of locks for deliveries cannot be used: {error.strerror}") from error

    def _open_file(self, path: Path) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            return os.open(path, flags, 0o644)
        except FileNotFoundError:
            self._folder.mkdir(parents=True, exist_ok=True)
            return os.open(path, flags, 0o644)

    def _lock(self, file: int, deadline: float) -> None:
        while True:
            try:
                # The lock is the open file's, not the process's: two threads keep each other out as well.
                return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise Unavailable("another worker is still delivering the same notice") from None
                time.sleep(0.02)
