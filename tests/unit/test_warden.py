"""A test run that is killed takes its servers along."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE

RUN = """
import signal, subprocess, sys
from tests.warden import ends_with_us

server = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
with ends_with_us(server.pid):
    print("begun", flush=True)
    signal.pause()
"""
TWO = """
import signal, subprocess, sys
from tests.warden import ends_with_us

server = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
with ends_with_us(server.pid):
    pass
server.communicate()
print(server.returncode)
"""
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_ends_with_a_run_that_is_killed(name: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", RUN], stdout=subprocess.PIPE, text=True, cwd=ROOT) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "begun\n"
        run.send_signal(name)
        rest, _ = run.communicate(timeout=PATIENCE)  # the server holds the other end of this pipe while it lives
        assert (rest, run.returncode) == ("", -name)


def test_a_server_that_is_stopped_in_order_is_left_alone() -> None:
    ended = subprocess.run([sys.executable, "-c", TWO], capture_output=True, text=True, cwd=ROOT, check=True)
    assert ended.stdout == "0\n"
