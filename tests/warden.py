"""Ends the servers of a test run that was killed: no fixture of such a run is torn down."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_WARDEN = "import os, signal, sys; sys.stdin.buffer.read(); os.kill(int(sys.argv[1]), signal.SIGTERM)"


@contextmanager
def ends_with_us(pid: int) -> Iterator[None]:
    """Inside it that process gets SIGTERM once this one has ended, in whatever way.

    The warden reads a pipe that nobody else holds. It has a session of its own, so that what is sent to our group
    does not reach it.
    """
    command = [sys.executable, "-I", "-c", _WARDEN, str(pid)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as warden:
        try:
            yield
        finally:
            warden.kill()
