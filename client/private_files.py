"""Writes files that only their user can read: keys, logins."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def private_folder(folder: Path) -> None:
    """Make the folder. Only we can enter the parents that it makes, too (`mkdir -p` closes the last one alone)."""
    for each in (*reversed(folder.parents), folder):
        if not each.exists():
            each.mkdir(mode=0o700, exist_ok=True)


@contextmanager
def write_beside(path: Path, content: bytes) -> Iterator[Path]:
    """Yield a temporary file of the same folder with the content, under a random name, for the caller to put in place.

    It is removed afterwards unless it was put in place.
    """
    private_folder(path.parent)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # 0600, whatever the umask
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def write_private(path: Path, content: bytes) -> None:
    """Replace the file whole or not at all."""
    with write_beside(path, content) as part:
        part.replace(path)
