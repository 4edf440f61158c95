"""A front at its own sockets: which users may come in, and that no other front takes its place. No Temporal runs."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import shutil
import tempfile
from pathlib import Path

import pytest
from temporalio.client import Client

from client.connection import NAMESPACE
from models.errors import Unavailable
from tests.e2e.front_world import front_of

OTHER = "nobody"
"""A user that every system has, and who is not us."""


@pytest.fixture
async def nowhere() -> Client:
    """It connects when it is first used, which no test here does."""
    return await Client.connect("127.0.0.1:1", namespace=NAMESPACE, lazy=True)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "own"])
async def test_another_user_of_the_machine_is_who_the_kernel_says(nowhere: Client, shared: bool) -> None:
    folder = Path(tempfile.mkdtemp(prefix="backstop-front-"))  # pytest's own folders are closed to others
    os.chmod(folder, 0o755)
    socket = folder / "front.sock"
    uid = pwd.getpwnam(OTHER).pw_uid
    code = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        "s.sendall(b'GET /api/v1/whoami HTTP/1.1\\r\\nhost: x\\r\\nconnection: close\\r\\n\\r\\n');"
        "print(b''.join(iter(lambda: s.recv(9999), b'')).decode().partition('\\r\\n\\r\\n')[2])"
    )
    try:
        async with front_of(nowhere, socket, shared=shared):
            assert oct(socket.stat().st_mode & 0o777) == ("0o666" if shared else "0o600")
            done = await asyncio.create_subprocess_exec(
                *("/usr/bin/python3", "-c", code, str(socket)), user=uid, group=uid, cwd="/", stdout=-1, stderr=-1
            )
            out, err = await done.communicate()
        if shared:
            found = json.loads(out)
            assert (found["name"], found["proof"], found["how"]) == (f"user:{OTHER}", "peer", "this machine")
        else:
            assert b"PermissionError" in err
    finally:
        shutil.rmtree(folder)


async def test_a_second_front_is_refused_at_the_first_ones_socket(nowhere: Client, tmp_path: Path) -> None:
    socket, second = tmp_path / "front.sock", tmp_path / "second.sock"
    async with front_of(nowhere, socket):
        async with front_of(nowhere, second):
            assert second.exists()
            with pytest.raises(Unavailable, match="another front already listens"):
                async with front_of(nowhere, socket):
                    pass
        assert not second.exists()
        assert socket.exists()
