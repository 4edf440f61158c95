"""A command line at a terminal: a real process on a pseudo-terminal, that reads what is typed to its questions."""

from __future__ import annotations

import asyncio
import os
import pty
import select
import subprocess
import sys
import termios
from collections.abc import Mapping
from pathlib import Path

from client.connection import NAMESPACE

PATIENCE = 60.0
ASKS = "[y/N]"


def environment(address: str, home: Path) -> dict[str, str]:
    return {
        **os.environ,
        "TEMPORAL_ADDRESS": address,
        "TEMPORAL_NAMESPACE": NAMESPACE,
        "BACKSTOP_HOME": str(home),
        "BACKSTOP_ACTOR": "tpm",
        "COLUMNS": "200",
        "LINES": "60",
        "TERM": "dumb",
    }


class Terminal:
    """One command. `until` waits for what it shows, `types` answers it, `ended` is its exit code."""

    def __init__(self, words: tuple[str, ...], environment: Mapping[str, str], folder: Path | None = None) -> None:
        self._ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (60, 200))
        program = (sys.executable, "-m", "cli.main", *words)
        self._process = subprocess.Popen(
            program, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=folder
        )
        os.close(theirs)
        self.shown = ""

    async def until(self, text: str) -> str:
        """Wait until this is shown; return all that is. Fails if the command ends before."""
        while text not in self.shown:
            assert await asyncio.to_thread(self._reads), f"it ended without {text!r}: {self.shown}"
        return self.shown

    def types(self, text: str) -> None:
        os.write(self._ours, f"{text}\n".encode())

    async def ended(self) -> int:
        while await asyncio.to_thread(self._reads):
            pass
        os.close(self._ours)
        return await asyncio.to_thread(self._process.wait, PATIENCE)

    def _reads(self) -> bool:
        """Read more of the output; return False if there is no more to come."""
        assert select.select([self._ours], [], [], PATIENCE)[0], f"it shows nothing more: {self.shown}"
        try:
            more = os.read(self._ours, 65536)
        except OSError:  # as Linux says that nobody has the other end any more
            return False
        self.shown += more.decode(errors="replace").replace("\r\n", "\n")
        return bool(more)
