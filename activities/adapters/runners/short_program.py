"""A program that answers while somebody waits: a check. It has a time limit, and what it prints is kept in part."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

_PIECE = 1 << 16
_TICK = 0.1
_DRAIN = 1.0
"""Seconds beyond its time for what is in its pipes already."""


@dataclass(frozen=True)
class Ended:
    """How it went. `code`: None where it was killed, as its time was over."""

    code: int | None
    output: bytes
    """The last of what it wrote to its standard output."""
    printed: bytes
    """The last of what it wrote there and to its standard error, in the order that it came."""
    whole: bool
    """Nothing was printed before that."""


def ran(run: Sequence[str], environment: Mapping[str, str], seconds: float, most: int) -> Ended:
    """It has ended, and its group is gone where its time was over. Errors: OSError where it cannot be run."""
    ends = time.monotonic() + seconds
    child = subprocess.Popen(
        list(run),
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        cwd="/",
        start_new_session=True,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    with child.stdout as output, child.stderr as errors:
        kept = _Kept(output, errors, most)
        try:
            while child.poll() is None and time.monotonic() < ends:
                kept.take(min(_TICK, max(0.0, ends - time.monotonic())))
            # What it has started may hold its pipes open for ever: only what is there is taken.
            while child.returncode is not None and time.monotonic() < ends + _DRAIN and kept.take(0):
                pass
            return Ended(child.returncode, bytes(kept.output), bytes(kept.printed), kept.whole)
        finally:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()


class _Kept:
    """What came out of the two pipes, the last `most` bytes of each kind."""

    def __init__(self, output: IO[bytes], errors: IO[bytes], most: int) -> None:
        self.output, self.printed = bytearray(), bytearray()
        self.whole = True
        self._most = most
        self._opened: list[tuple[IO[bytes], bool]] = [(output, True), (errors, False)]

    def take(self, seconds: float) -> bool:
        """What comes within so many seconds is kept; False: nothing came."""
        ready, _, _ = select.select([pipe for pipe, _ in self._opened], [], [], seconds)
        for pipe, is_output in [each for each in self._opened if each[0] in ready]:
            piece = os.read(pipe.fileno(), _PIECE)
            if not piece:
                self._opened.remove((pipe, is_output))
            self._keep(self.printed, piece)
            if is_output:
                self._keep(self.output, piece)
        return bool(ready)

    def _keep(self, kept: bytearray, piece: bytes) -> None:
        kept += piece
        if len(kept) > self._most:
            self.whole = False
            del kept[: -self._most]
