"""Files that are their user's alone: keys, logins."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def private_folder(folder: Path) -> None:
    """It is there; what of its way was missing nobody but us can enter (`mkdir -p` closes the last one alone)."""
    for each in (*reversed(folder.parents), folder):
        if not each.exists():
            each.mkdir(mode=0o700, exist_ok=True)


@contextmanager
def written_beside(path: Path, content: bytes) -> Iterator[Path]:
    """The content stands in a file of the same folder, under a name that nobody guesses, to be put in place.

    What is not put in place is gone afterwards.
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
    """Whole or not at all, in place of what stood there."""
    with written_beside(path, content) as part:
        part.replace(path)
