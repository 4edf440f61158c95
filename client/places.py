"""Where Backstop keeps its state on this machine. Imports nothing that takes time."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """BACKSTOP_HOME, else the user's state folder."""
    named = os.environ.get("BACKSTOP_HOME")
    if named:
        return Path(named)
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(base) / "backstop"


def embedded_file() -> Path:
    """Where `backstop up` says which address it serves."""
    return home() / "temporal.json"


def ledger_url() -> str:
    """BACKSTOP_LEDGER_URL, else the file that `backstop up` keeps."""
    return os.environ.get("BACKSTOP_LEDGER_URL") or f"sqlite:///{home() / 'ledger.db'}"


def front_socket() -> Path:
    """Where the front listens on this machine: BACKSTOP_SOCKET, else beside the state of `backstop up`."""
    return Path(os.environ.get("BACKSTOP_SOCKET") or home() / "front.sock")


def front_file(socket: Path) -> Path:
    """Where the front says which Temporal it speaks to."""
    return socket.with_suffix(".json")


def login_file() -> Path:
    """What `backstop login` keeps; nobody else can read it."""
    return home() / "login.json"
