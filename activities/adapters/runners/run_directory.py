"""A run of a command, as its directory shows it: begun, alive, ended. wrapper.py says what each file is.

On this machine, the run lives if the process that supervises it does, or any other of its session. On another machine,
or in another container's process table, only the pulse shows it, and only if the directory is shared. So a run that
may still be running never counts as ended.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from activities.adapters.runners import wrapper
from models.bringup.runs import RunKey
from models.errors import Stuck, Unavailable

FRESH_SECONDS = 60.0
"""The greatest age, in seconds, at which a pulse counts as beating."""
_READ = 1 << 16


@dataclass(frozen=True)
class Here:
    """The host and process table whose processes this worker can see."""

    host: str = field(default_factory=lambda: platform.node() or "localhost")
    boot: str = field(default_factory=wrapper.boot_id)
    table: int = field(default_factory=wrapper.process_table)


class RunDirectory:
    """The directory of one run, named by a hash: a key's text is somebody else's, and may be no valid file name."""

    def __init__(self, runs_dir: Path, key: RunKey) -> None:
        self.path = runs_dir / hashlib.sha256(key.text.encode(errors="surrogatepass")).hexdigest()[:32]

    def claim(self, order: dict[str, Any]) -> bool:
        """Create the directory with this order, whole; False if it was there before. Errors: Unavailable."""
        own = self.path.with_name(f"{self.path.name}.{os.getpid()}.{os.urandom(6).hex()}")
        try:
            own.mkdir(mode=0o700, parents=True)
            wrapper.replace(own / "order.json", order)
            own.rename(self.path)  # one that is there is not empty, and refuses
        except OSError as error:
            with contextlib.suppress(OSError):
                (own / "order.json").unlink(missing_ok=True)
                own.rmdir()
            if self.path.is_dir():
                return False
            raise Unavailable(f"{self.path.parent} cannot be written to: {error.strerror}") from None
        return True

    @property
    def order(self) -> dict[str, Any] | None:
        return self._read("order.json")

    @property
    def record(self) -> dict[str, Any] | None:
        return self._read("record.json")

    @property
    def has_record(self) -> bool:
        """True if somebody runs it, or has given it up, whatever the record says."""
        return (self.path / "record.json").exists()

    @property
    def exit(self) -> dict[str, Any] | None:
        return self._read("exit.json")

    def give_up(self, why: str) -> bool:
        """Keep the run from ever being begun; return False if it has been begun, or given up before."""
        return wrapper.publish(self.path / "record.json", {"given_up": why})

    def ask_to_stop(self) -> None:
        (self.path / "stop").touch()

    def age_of(self, name: str) -> float | None:
        """Return the seconds since the file was written, by the clock of its file system; None if there is none."""
        now = self.path / f"now.{os.getpid()}.{os.urandom(6).hex()}"
        try:
            now.touch()
            return now.stat().st_mtime - (self.path / name).stat().st_mtime
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unavailable(f"{self.path} cannot be written to: {error.strerror}") from None
        finally:
            with contextlib.suppress(OSError):
                now.unlink()

    def beats(self) -> bool:
        age = self.age_of("pulse")
        return age is not None and age < FRESH_SECONDS

    def end_of_log(self) -> bytes:
        """Return the last bytes of the output."""
        tail = b""
        for name in ("log.new", "log.old", "log"):
            if len(tail) < _READ:
                tail = self._end_of(name, _READ - len(tail)) + tail
        return tail

    def _end_of(self, name: str, most: int) -> bytes:
        try:
            with (self.path / name).open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - most))
                return file.read(most)
        except OSError:
            return b""

    def _read(self, name: str) -> dict[str, Any] | None:
        """Return the file's content; None if there is no such file.

        Errors: Unavailable if it cannot be read now; Stuck if it will never be readable, as files are put into place
        whole.
        Neither is the same as no file.
        """
        try:
            content = json.loads((self.path / name).read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise Unavailable(f"{self.path / name} cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError):
            raise Stuck(f"{self.path / name} is damaged: it is not JSON") from None
        lacks = _find_lacking_field(name, content)
        if lacks:
            raise Stuck(f"{self.path / name} is damaged: it has no valid {lacks}")
        record: dict[str, Any] = content
        return record


_TEXT, _NUMBER, _COUNT = (str,), (int, float), (int,)
_FIELDS: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    "order.json": {"key": _TEXT, "run": (list,), "limit": _NUMBER, "grace": _NUMBER},
    "record.json": dict.fromkeys(("host", "boot"), _TEXT)
    | dict.fromkeys(("table", "pid", "session", "born"), _COUNT)
    | {"at": _NUMBER},
    "exit.json": {"code": (int, type(None)), "because": _TEXT, "error": _TEXT, "at": _NUMBER},
}
"""The fields of each file that are used."""


def _find_lacking_field(name: str, content: Any) -> str:
    """Return a field that is missing, or has another type; empty if there is none."""
    if not isinstance(content, dict):
        return "field"
    fields = {"given_up": _TEXT} if name == "record.json" and "given_up" in content else _FIELDS[name]
    return next((field for field, kinds in fields.items() if not _is_one_of(content.get(field, ...), kinds)), "")


def _is_one_of(value: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def what_lives(record: dict[str, Any]) -> list[wrapper.Stat]:
    """Return the processes of a run that still live here: its supervisor, and others of its session."""
    left = [stat for stat in _processes() if stat.session == record["session"] and stat.lives]
    if any(stat.pid == record["session"] for stat in left):
        return []  # our session's leader ended at the start: this is another session of the same number
    if any(stat.born < record["born"] for stat in left):
        return []
    return left


def _processes() -> list[wrapper.Stat]:
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [stat for stat in map(wrapper.stat_of, numbers) if stat is not None]
