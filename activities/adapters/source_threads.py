"""Reads each source in a thread of its own, so that a slow or broken one delays no other.

A source has one reading at a time. A round waits for all sources together no longer than `patience`, and not at all for
one that was late the last time; a late answer counts when it arrives. A source's error is kept as one sentence, its
fault, until some time after it was last seen.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta

from activities.clock import Clock, utc_now
from models.errors import BackstopError
from models.texts import brief

log = logging.getLogger(__name__)
WAITED = timedelta(seconds=5)
_STANDS = timedelta(minutes=10)
"""How long a fault is reported after it was last seen, so that a fault that comes and goes is reported as one."""
_LONGEST = 300


def sentence(error: Exception) -> str:
    """Describe the error, short enough to travel."""
    text = error.message if isinstance(error, BackstopError) else f"{type(error).__name__}: {brief(str(error))}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


class Faults:
    """The faults of sources, for some time after each was last seen."""

    def __init__(self, now: Clock = utc_now) -> None:
        self._now = now
        self._seen: dict[tuple[str, str], tuple[datetime, str]] = {}

    def note_fault(self, what: str, name: str, text: str) -> None:
        """Note that `what` of this source is wrong now."""
        before = self._seen.get((name, what))
        if before is None or before[1] != text:
            log.warning("%s, %s: %s", name, what, text)
        self._seen[name, what] = self._now(), text

    def recent_faults(self) -> dict[str, str]:
        """Return the faults by source, each with the time when it was last seen."""
        since = self._now() - _STANDS
        texts_of: dict[str, list[str]] = {}
        for (name, what), (at, text) in sorted(self._seen.copy().items()):
            if at >= since:
                texts_of.setdefault(name, []).append(f"{what}: {text} (at {at:%H:%M:%SZ})")
        return {name: "; ".join(texts) for name, texts in texts_of.items()}


class SourceThreads:
    """Reads sources in parallel; `wrong` gets each fault. `patience` None: no round waits, so none is late."""

    def __init__(self, wrong: Callable[[str, str], object], patience: timedelta | None = WAITED) -> None:
        self._wrong = wrong
        self._patience = None if patience is None else patience.total_seconds()
        self._under_way: dict[str, threading.Thread] = {}
        self._late: set[str] = set()
        self._failed: dict[str, str] = {}
        self._lock = threading.Lock()

    def read(self, readings: Mapping[str, Callable[[], object]]) -> dict[str, str]:
        """Read each source; return the fault of those that failed or are not finished yet. Errors: none."""
        with self._lock:
            begun = {
                name: threading.Thread(target=self._read_one, args=(name, reading), daemon=True, name=f"reads {name}")
                for name, reading in readings.items()
                if name not in self._under_way
            }
            self._under_way.update(begun)
        for thread in begun.values():
            thread.start()
        self._wait(name for name in readings if name not in self._late)
        late = dict.fromkeys(readings.keys() & self._under_way.keys(), self._no_answer)
        return {name: text for name, text in {**self._failed, **late}.items() if text and name in readings}

    @property
    def _no_answer(self) -> str:
        return "" if self._patience is None else f"no answer within {self._patience:g} s"

    def _wait(self, names: Iterable[str]) -> None:
        if self._patience is None:
            return
        ends = time.monotonic() + self._patience
        for name in names:
            thread = self._under_way.get(name)
            if thread is not None:
                thread.join(max(0.0, ends - time.monotonic()))
                if thread.is_alive():
                    self._late.add(name)
                    self._wrong(name, f"{self._no_answer}, and Backstop no longer waits for the answer")

    def _read_one(self, name: str, reading: Callable[[], object]) -> None:
        try:
            reading()
            self._late.discard(name)
            self._failed.pop(name, None)
        except Exception as error:  # whatever fails here must not stop the others
            if not isinstance(error, BackstopError):
                log.exception("%s could not be read", name)
            self._failed[name] = sentence(error)
            self._wrong(name, sentence(error))
        finally:
            with self._lock:
                self._under_way.pop(name, None)
