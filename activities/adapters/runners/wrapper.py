"""Supervises one program to its end, whatever becomes of the worker that started it.

Run as a program of its own (`wrapper.py DIRECTORY`), in a session of its own, with the standard library alone: it is
independent of a worker that dies, is upgraded or removed meanwhile. The directory holds all that is known of the run:
a reader needs neither this process nor the worker.

    order.json    what to run: there before we begin
    record.json   who supervises it: host, boot, process and its start. Its publisher runs the program, or has given
                  the run up: it is linked into place, which only one process can do
    pulse         touched every few seconds while we live
    log           the first bytes of the output; log.old and log.new: the last ones
    stop          somebody wants it to end
    exit.json     how it ended: renamed into place when all is over
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

TICK = 0.5
"""Seconds between two looks at the program and at whether it should end."""
BEAT = 5.0
"""Seconds between two beats of the pulse."""
_PIECE = 1 << 16
_AGAIN = 5.0


class Stat(NamedTuple):
    """A process, as /proc/PID/stat has it. `born`: ticks since the machine began; with the pid it names a process."""

    pid: int
    state: str
    group: int
    session: int
    born: int

    @property
    def lives(self) -> bool:
        return self.state not in "ZX"


def stat_of(pid: int) -> Stat | None:
    """Return the process of this number now; None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # before it stands a name, with anything in it
    return Stat(pid, fields[0], int(fields[2]), int(fields[3]), int(fields[19]))


def boot_id() -> str:
    """Return the id of this machine's present boot; empty if it is no Linux, and cannot say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def process_table() -> int:
    """Identify the process table that we see: a container has its own, on the same boot. 0: it cannot say."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def publish(path: Path, content: dict[str, Any]) -> bool:
    """Write the file whole, unless there is one; return False if another one was first."""
    own = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(6).hex()}")
    _write(own, content)
    try:
        os.link(own, path)
    except FileExistsError:
        return own.stat().st_nlink == 2  # NFS: the answer was lost, and the call sent again
    finally:
        own.unlink()
    return True


def replace(path: Path, content: dict[str, Any]) -> None:
    """Write the file whole, in place of the former one."""
    own = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(6).hex()}")
    _write(own, content)
    own.replace(path)


def _write(path: Path, content: dict[str, Any]) -> None:
    with path.open("w") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())


class Log:
    """The first `most` bytes of an output, and its last ones: `most` at least, and twice as many at most."""

    def __init__(self, directory: Path, most: int) -> None:
        self._directory = directory
        self._most = most
        self._file = (directory / "log").open("wb", buffering=0)
        self._room = most

    def write(self, data: bytes) -> None:
        """Write the data. Errors: none. A full disk loses it, and the program runs on."""
        with contextlib.suppress(OSError):
            while len(data) > self._room:
                self._file.write(data[: self._room])
                data = data[self._room :]
                self._turn()
            self._file.write(data)
            self._room -= len(data)

    def _turn(self) -> None:
        self._file.close()
        new = self._directory / "log.new"
        if new.exists():
            new.replace(self._directory / "log.old")
        self._file = new.open("wb", buffering=0)
        self._room = self._most


class Terminated:
    """Records a SIGTERM. It listens before the run has a record, so that none is lost."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._hear)

    def _hear(self, _: int, __: FrameType | None) -> None:
        self.asked = True


class Ending:
    """Ends the program on demand or when its time is over: SIGTERM to its group, SIGKILL after the grace."""

    def __init__(self, directory: Path, group: int, limit: float, grace: float, terminated: Terminated) -> None:
        self.because = ""
        self._stop = directory / "stop"
        self._group = group
        self._over_at = time.monotonic() + limit
        self._grace = grace
        self._kill_at = 0.0
        self._terminated = terminated

    def look(self) -> None:
        now = time.monotonic()
        if not self.because:
            self.because = self._reason(now)
            if self.because:
                self._kill_at = now + self._grace
                self._signal(signal.SIGTERM)
        elif now >= self._kill_at:
            self._signal(signal.SIGKILL)

    def _reason(self, now: float) -> str:
        if self._terminated.asked:
            return "terminated"
        if self._stop.exists():
            return "stopped"
        return "limit" if now >= self._over_at else ""

    def finish(self) -> None:
        """Leave no process in the group of a program that was made to end."""
        while self.because and self._signal(0):
            time.sleep(0.05)
            if time.monotonic() >= self._kill_at:
                self._signal(signal.SIGKILL)
                break

    def _signal(self, number: int) -> bool:
        try:
            os.killpg(self._group, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True


class Beats:
    """The pulse, and when it is time to look around."""

    def __init__(self, directory: Path) -> None:
        self._pulse = directory / "pulse"
        self._pulse.touch()
        self._beat_at = self._look_at = 0.0

    def is_due(self) -> bool:
        now = time.monotonic()
        if now >= self._beat_at:
            self._beat_at = now + BEAT
            with contextlib.suppress(OSError):
                self._pulse.touch()
        if now < self._look_at:
            return False
        self._look_at = now + TICK
        return True


def supervise(directory: Path, order: dict[str, Any], terminated: Terminated) -> dict[str, Any]:
    """Run the program, unless we were asked to end; return how it ended."""
    if terminated.asked:
        return {"code": None, "because": "terminated", "error": ""}
    beats, log = Beats(directory), Log(directory, order["most"])
    reading, writing = os.pipe()
    try:
        # Its own group in our session: even without us, the session shows what is left of the run.
        child = subprocess.Popen(
            order["run"], stdin=subprocess.DEVNULL, stdout=writing, stderr=writing, cwd="/", process_group=0
        )
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return {"code": None, "because": "", "error": why}
    finally:
        os.close(writing)
    os.set_blocking(reading, False)
    ending, opened = Ending(directory, child.pid, order["limit"], order["grace"], terminated), True
    while child.poll() is None:
        ready, _, _ = select.select([reading] if opened else [], [], [], TICK)
        opened = opened and (not ready or _take_piece(reading, log))
        if beats.is_due():
            ending.look()
    ending.finish()
    # All its output is there by now. Its children may hold the pipe open, and write to it, for ever.
    left = in_pipe(reading)
    while left > 0:
        piece = os.read(reading, min(left, _PIECE))
        log.write(piece)
        left -= len(piece)
    return {"code": child.returncode, "because": ending.because, "error": ""}


def in_pipe(reading: int) -> int:
    """Return the number of bytes that can be read from it now."""
    return int.from_bytes(fcntl.ioctl(reading, termios.FIONREAD, bytes(4)), sys.byteorder)


def _take_piece(reading: int, log: Log) -> bool:
    """Write a piece of the output to the log; return False if there will be no more."""
    try:
        data = os.read(reading, _PIECE)
    except BlockingIOError:
        return True
    log.write(data)
    return bool(data)


def main(directory: Path) -> None:
    terminated = Terminated()
    signal.signal(signal.SIGHUP, lambda *_: None)  # handlers: the program would inherit an ignored signal
    signal.signal(signal.SIGINT, lambda *_: None)
    order = json.loads((directory / "order.json").read_text())
    own = stat_of(os.getpid())
    assert own is not None
    record = {
        "host": order["host"],
        "boot": boot_id(),
        "table": process_table(),
        "pid": own.pid,
        "session": own.session,
        "born": own.born,
        "key": order["key"],
        "run": order["run"],
        "at": time.time(),
    }
    (directory / "pulse").touch()  # before the record: a run that has visibly begun has a pulse
    if not publish(directory / "record.json", record):
        return  # another one runs it, or it was given up
    ended = supervise(directory, order, terminated)
    while directory.exists():  # somebody may have to make room first
        with contextlib.suppress(OSError):
            replace(directory / "exit.json", {**ended, "at": time.time()})
            break
        time.sleep(_AGAIN)


if __name__ == "__main__":
    with contextlib.suppress(PermissionError):  # the launcher may have done it
        os.setsid()
    if os.fork():  # no worker is our parent, so none need reap us
        os._exit(0)
    main(Path(sys.argv[1]))
