"""Leaves addresses that lately took long to fail alone for a while, so that they do not hold up others' notices.

A receiver that refuses at once costs nothing, and is always tried. One that lets us wait until the delivery's time is
over costs a sender all that time: after the first such try the address is not tried for half a minute, then for twice
as long, up to five. Its notices wait meanwhile, and their sender tries them again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from models.errors import BackstopError, Unavailable

_LONG_SECONDS = 3.0
"""A failure that took longer than this marks the address as slow."""
_FIRST_SECONDS, _LAST_SECONDS = 30.0, 300.0
_KEPT = 10_000


@dataclass(frozen=True)
class _Pause:
    seconds: float
    ends: float
    """The end of the pause on the monotonic clock, in seconds."""


class SlowAddresses:
    """The slow addresses of one process; a restart tries each once more. Thread-safe."""

    def __init__(self) -> None:
        self._pauses: dict[str, _Pause] = {}
        self._lock = threading.Lock()

    @contextmanager
    def try_address(self, address: str) -> Iterator[None]:
        """Try the address within. Errors: Unavailable while it is left alone."""
        with self._lock:
            pause = self._pauses.get(address)
        began = time.monotonic()
        if pause is not None and began < pause.ends:
            raise Unavailable(f"it did not answer in time: Backstop tries it again in {pause.ends - began:.0f} s")
        try:
            yield
        except BackstopError:
            if time.monotonic() - began >= _LONG_SECONDS:
                self._leave_alone(address, pause)
            raise
        with self._lock:
            self._pauses.pop(address, None)

    def _leave_alone(self, address: str, last: _Pause | None) -> None:
        seconds = _FIRST_SECONDS if last is None else min(2 * last.seconds, _LAST_SECONDS)
        with self._lock:
            if len(self._pauses) >= _KEPT:
                self._pauses.clear()
            self._pauses[address] = _Pause(seconds, time.monotonic() + seconds)
