"""Paths of Backstop's state on this machine. Imports nothing that takes time."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """Return BACKSTOP_HOME, else the user's state folder."""
    named = os.environ.get("BACKSTOP_HOME")
    if named:
        return Path(named)
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(base) / "backstop"


def embedded_file() -> Path:
    """Return the file in which `backstop up` notes its address."""
    return home() / "temporal.json"


def ledger_url() -> str:
    """Return BACKSTOP_LEDGER_URL, else the database file that `backstop up` keeps."""
    return os.environ.get("BACKSTOP_LEDGER_URL") or f"sqlite:///{home() / 'ledger.db'}"


def front_socket() -> Path:
    """Return the front's socket on this machine: BACKSTOP_SOCKET, else the one beside the state of `backstop up`."""
    return Path(os.environ.get("BACKSTOP_SOCKET") or home() / "front.sock")


def front_file(socket: Path) -> Path:
    """Return the file in which the front notes its Temporal."""
    return socket.with_suffix(".json")


def login_file() -> Path:
    """Return the file of `backstop login`; nobody else can read it."""
    return home() / "login.json"
