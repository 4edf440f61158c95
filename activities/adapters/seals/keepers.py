"""Keeps seals in a file, one JSON document a line, or in a Git repository that has the same file.

Both only grow. The next seal removes a line that a crash cut off: it was never confirmed.
"""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from activities.regular_files import regular_file
from models.errors import BadInput, Unavailable
from models.seals import SealedSeal, seals_in

FILE_NAME = "seals.txt"
_GIT_SECONDS = 60
_MOST_FILE = 2**31
_ENVIRONMENT = ("PATH", "HOME", "LANG", "TMPDIR")


class Keeper(Protocol):
    """A place for seals. `place`: their file."""

    name: str
    place: Path

    def kept_seals(self) -> list[SealedSeal]:
        """Return its seals, in order. Errors: Unavailable; BadInput for a file that is none of seals."""

    def append(self, seals: Sequence[SealedSeal]) -> None:
        """Write the seals to its disk, after those that it has. Errors: Unavailable."""


def read_seals(path: Path) -> list[SealedSeal]:
    """Read a file of seals, or the one in a folder. Errors: BadInput naming the line, Unavailable."""
    place = path / FILE_NAME if path.is_dir() else path
    try:
        with regular_file(place) as (file, status):
            if status.st_size > _MOST_FILE:
                raise BadInput(f"{place} is too large to be a file of seals")
            content = file.read()
    except OSError as error:
        raise Unavailable(f"{place} (seals) cannot be read: {error.strerror}") from None
    return seals_in(content, str(place))


@contextmanager
def lock_keeper(keeper: Path) -> Iterator[None]:
    """Keep other workers of this machine from updating these seals meanwhile. Errors: Unavailable."""
    try:
        keeper.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(keeper.with_name(f".{keeper.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Unavailable(f"seals cannot be written to {keeper}: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


class FileKeeper:
    """A file that only its user may read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.name = str(path)
        self.place = path

    def kept_seals(self) -> list[SealedSeal]:
        return read_seals(self._path) if self._path.exists() else []

    def append(self, seals: Sequence[SealedSeal]) -> None:
        lines = b"".join(seal.model_dump_json().encode() + b"\n" for seal in seals)
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
            with open(os.open(self._path, flags, 0o600), "r+b", buffering=0) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise Unavailable(f"{self._path} is not a regular file: seals cannot be written to it")
                fcntl.flock(file, fcntl.LOCK_EX)
                end = _whole_lines(file.fileno())
                file.truncate(end)
                file.seek(end)
                left = lines
                while left:
                    left = left[file.write(left) :]
                os.fsync(file.fileno())
        except OSError as error:
            raise Unavailable(f"seals cannot be written to {self._path}: {error.strerror}") from None


class GitKeeper:
    """A folder that is a Git repository, or becomes one: a commit for each append. To push it is the owner's job."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = FileKeeper(folder / FILE_NAME)
        self.place = folder / FILE_NAME
        self.name = f"{folder} (git)"

    def kept_seals(self) -> list[SealedSeal]:
        return self._file.kept_seals()

    def append(self, seals: Sequence[SealedSeal]) -> None:
        if not (self._folder / ".git").exists():
            try:
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise Unavailable(f"the folder of seals {self._folder} cannot be created: {error.strerror}") from None
            self._git("init", "--quiet")
        self._file.append(seals)
        self._git("add", "--", FILE_NAME)
        numbers = ", ".join(str(seal.seal.number) for seal in seals[-3:])
        who = ("-c", "user.name=backstop", "-c", "user.email=backstop@localhost", "-c", "commit.gpgsign=false")
        self._git(*who, "-c", "core.hooksPath=/dev/null", "commit", "--quiet", "-m", f"seal {numbers}", "--", FILE_NAME)

    def _git(self, *arguments: str) -> None:
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        try:
            done = subprocess.run(
                ["git", "-C", str(self._folder), *arguments],
                capture_output=True,
                timeout=_GIT_SECONDS,
                check=False,
                env={**environment, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"},
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"git cannot be run for the seals: {type(error).__name__}") from None
        if done.returncode:
            last_words = " ".join(done.stderr.decode(errors="replace").split())[-200:]
            raise Unavailable(f"git failed in the folder of seals {self._folder}: {last_words or 'it gave no reason'}")


def _whole_lines(file: int) -> int:
    """Count the bytes up to the last newline."""
    end = os.fstat(file).st_size
    while end:
        begin = max(0, end - 65_536)
        at = os.pread(file, end - begin, begin).rfind(b"\n")
        if at >= 0:
            return begin + at + 1
        end = begin
    return 0


def keepers_of(places: Sequence[Path]) -> list[Keeper]:
    """Return a keeper for each place: a file if its name ends in .txt, else a folder with a Git repository."""
    return [FileKeeper(place) if place.suffix == ".txt" else GitKeeper(place) for place in places]
