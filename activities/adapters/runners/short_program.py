"""Runs a program that answers while somebody waits: a check. It has a time limit, and the end of its output is kept."""

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

from activities.adapters.runners.wrapper import in_pipe

_PIECE = 1 << 16
_TICK = 0.1


@dataclass(frozen=True)
class Ended:
    """The end of a program. `code`: None if it was killed, because its time was over."""

    code: int | None
    output: bytes
    """The end of its standard output."""
    printed: bytes
    """The end of its standard output and standard error together, in the order printed."""
    whole: bool
    """True if `printed` is all that the program printed."""


def run_program(run: Sequence[str], environment: Mapping[str, str], seconds: float, most: int) -> Ended:
    """Run the program to its end, or kill its group when its time is over. Errors: OSError if it cannot be run."""
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
            # All its output is there by now. Its children may hold the pipes open for ever.
            if child.returncode is not None:
                kept.take_rest()
            return Ended(child.returncode, bytes(kept.output), bytes(kept.printed), kept.whole)
        finally:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()


class _Kept:
    """The output of the two pipes, the last `most` bytes of each kind."""

    def __init__(self, output: IO[bytes], errors: IO[bytes], most: int) -> None:
        self.output, self.printed = bytearray(), bytearray()
        self.whole = True
        self._most = most
        self._opened: list[tuple[IO[bytes], bool]] = [(output, True), (errors, False)]

    def take(self, seconds: float) -> None:
        """Keep the output that comes within so many seconds."""
        ready, _, _ = select.select([pipe for pipe, _ in self._opened], [], [], seconds)
        for pipe, is_output in [each for each in self._opened if each[0] in ready]:
            if not self._take(pipe, is_output, _PIECE):
                self._opened.remove((pipe, is_output))

    def take_rest(self) -> None:
        """Keep the output that is in the pipes now, and nothing that is written later."""
        for pipe, is_output in self._opened:
            left = in_pipe(pipe.fileno())
            while left > 0:
                left -= self._take(pipe, is_output, min(left, _PIECE))

    def _take(self, pipe: IO[bytes], is_output: bool, most: int) -> int:
        piece = os.read(pipe.fileno(), most)
        self._keep(self.printed, piece)
        if is_output:
            self._keep(self.output, piece)
        return len(piece)

    def _keep(self, kept: bytearray, piece: bytes) -> None:
        kept += piece
        if len(kept) > self._most:
            self.whole = False
            del kept[: -self._most]
