"""Opens files whose names people hand in: a pipe or a device must hold nobody up."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def regular_file(path: Path | str, flags: int = 0) -> Iterator[tuple[BinaryIO, os.stat_result]]:
    """Open the file for reading; yield it and its status. Errors: OSError, also for what is no file."""
    # Not blocking, or a FIFO would wait for its other end; its type is checked once it is open.
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    status = os.fstat(opened)
    if not stat.S_ISREG(status.st_mode):
        os.close(opened)
        raise OSError(errno.EINVAL, "it is no file")
    with open(opened, "rb") as file:
        yield file, status
