"""`backstop serve` by its settings alone: a process that takes what Slack signs, and starts with no secret in clear."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

import httpx

from tests.e2e.slack_world import SECRET, WORKSPACE, slack_signature
from tests.ports import free_port

ROOT = Path(__file__).parents[2]


def settings(home: Path, **more: str) -> dict[str, str]:
    (home / "secrets").mkdir(exist_ok=True)
    (home / "secrets" / "slack-signing").write_text(f"{SECRET}\n")
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("BACKSTOP_")},
        "BACKSTOP_HOME": str(home),
        "TEMPORAL_ADDRESS": f"127.0.0.1:{free_port()}",
        "BACKSTOP_SECRETS": str(home / "secrets"),
        "BACKSTOP_SLACK_SIGNING_SECRET": "secret:slack-signing",
        **more,
    }


@contextmanager
def front(environment: dict[str, str], port: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "web.serve", "--listen", f"127.0.0.1:{port}"]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(90)


def test_a_front_takes_what_slack_signs_and_nothing_else(tmp_path: Path) -> None:
    port = free_port()
    with front(settings(tmp_path), port) as process:
        assert process.stdout is not None
        while "ready" not in (line := process.stdout.readline()):
            assert line, "it ended"
        answer_at = "https://hooks.slack.com/commands/1/2/3"
        fields = {"user_id": "U1", "team_id": WORKSPACE, "text": "why x", "response_url": answer_at}
        body, now = urlencode(fields).encode(), str(int(time.time()))
        headers = {"content-type": "application/x-www-form-urlencoded", "x-slack-request-timestamp": now}
        url = f"http://127.0.0.1:{port}/slack/command"
        unsigned = httpx.post(url, content=body, headers=headers, timeout=90)
        assert (unsigned.status_code, unsigned.json()["title"]) == (401, "Slack did not send this.")
        signed = httpx.post(
            url, content=body, headers={**headers, "x-slack-signature": slack_signature(SECRET, now, body)}, timeout=90
        )
        assert signed.status_code == 200
        said = signed.json()["text"]
        assert said == "Looking…" or said.startswith("Not possible: ")


def test_a_secret_in_clear_starts_nothing_and_is_not_repeated(tmp_path: Path) -> None:
    environment = settings(tmp_path, BACKSTOP_SLACK_SIGNING_SECRET=SECRET)
    for module in ("web.serve", "workers.main"):
        done = subprocess.run(
            [sys.executable, "-m", module],
            cwd=ROOT,
            env=environment,
            text=True,
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 2, done.stderr
        assert "BACKSTOP_SLACK_SIGNING_SECRET must be secret:NAME" in done.stderr
        assert SECRET not in done.stderr + done.stdout
