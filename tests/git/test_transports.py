"""The same effect over each way to a repository: git's own SSH protocol, and HTTPS as a forge serves it."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from activities.adapters.ledger.facade import Ledger
from models.rollout.effects import EffectKind
from tests.git.world import Forge, GitSystem, git
from tests.kubernetes.test_connections import certificate


class Backend(BaseHTTPRequestHandler):
    """git's own CGI program behind HTTPS, as a forge runs it."""

    root: Path
    requests: list[str]

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        self.requests.append(f"{self.command} {path}")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        terms = {"GIT_PROJECT_ROOT": str(self.root), "GIT_HTTP_EXPORT_ALL": "1"}
        asked = {"PATH_INFO": path, "QUERY_STRING": query, "REQUEST_METHOD": self.command, "REMOTE_USER": "backstop"}
        headers = {
            "CONTENT_TYPE": self.headers.get("Content-Type") or "",
            "CONTENT_LENGTH": str(len(body)),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol") or "",
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding") or "",
        }
        done = subprocess.run(
            ["git", "http-backend"], input=body, env={**terms, **asked, **headers}, capture_output=True, check=True
        )
        head, _, rest = done.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self.send_response(int(fields.pop("Status", "200").split()[0]))
        for name, value in fields.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        self.wfile.write(rest)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def https(forge: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of the forge's repository."""
    authority, context = certificate(tmp_path)
    monkeypatch.setenv("GIT_SSL_CAINFO", str(authority))
    Backend.root, Backend.requests = forge.bare.parent, []
    with ThreadingHTTPServer(("127.0.0.1", 0), Backend) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"https://127.0.0.1:{server.server_address[1]}/{forge.bare.name}"
        server.shutdown()


@pytest.fixture
def ssh(forge: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of the forge's repository; a program in place of ssh runs what git asks the other machine to run."""
    program = tmp_path / "ssh"
    program.write_text(f'#!/bin/sh\nfor last; do :; done\necho "$last" >> {tmp_path}/asked\nexec sh -c "$last"\n')
    program.chmod(0o755)
    monkeypatch.setenv("GIT_SSH_COMMAND", str(program))
    return f"ssh://backstop@forge.example.org{forge.bare}"


@pytest.mark.parametrize("way", ["https", "ssh"])
def test_an_effect_is_one_commit_over_each_way_to_the_repository(
    way: str, request: pytest.FixtureRequest, forge: Forge, ledger: Ledger, tmp_path: Path
) -> None:
    site = GitSystem(forge, ledger, tmp_path / "worker", repository=request.getfixturevalue(way))
    before = int(git(forge.bare, "rev-list", "--count", "main"))
    site.apply(EffectKind.GRANT, 1, ("a", 24, 20), rollout="request/q-1")
    assert site.there() == (20, 16)
    assert int(git(forge.bare, "rev-list", "--count", "main")) == before + 1
    forge.edit("gpus: 20", "gpus: 22")
    assert {one.team: one.gpus for one in site.git.read("h100").quotas} == {"a": 22, "b": 16}
    if way == "https":
        assert f"POST /{forge.bare.name}/git-receive-pack" in Backend.requests
    else:
        asked = (tmp_path / "asked").read_text()
        assert "git-receive-pack" in asked
        assert "git-upload-pack" in asked
