"""Ports for servers that tests start."""

from __future__ import annotations

import contextlib
import os
import random
import socket

_CHANCE = random.SystemRandom()  # a seeded one would give the same port twice
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_PORTS = range(20_000, 30_000)[_WORKER % 10 :: 10]
"""Each test process has its own: between the look at a port and its server's start nobody else takes it."""


def free_port() -> int:
    """Free now, and so low that nobody is given it by chance before its server binds it."""
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            port = _CHANCE.choice(_PORTS)
            probe.bind(("127.0.0.1", port))
            return port
