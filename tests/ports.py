"""Ports for servers that tests start."""

from __future__ import annotations

import contextlib
import random
import socket

_CHANCE = random.SystemRandom()  # whoever seeds the common one would have two test processes pick the same


def free_port() -> int:
    """Free now, and so low that nobody is given it by chance before its server binds it."""
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            port = _CHANCE.randrange(20_000, 30_000)
            probe.bind(("127.0.0.1", port))
            return port
