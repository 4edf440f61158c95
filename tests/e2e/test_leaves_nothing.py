"""Stopping `backstop up`, or killing a process that tells a story with it, leaves no processes and no state behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from backstop.program import program
from tests.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.nightly]
STORY = """
import asyncio
from workers.demo_harness import on_stage, say

async def main():
    async with on_stage("tpm") as story:
        say(f"home {story.home}")
        await asyncio.sleep(600)

asyncio.run(main())
"""


def processes_of(home: Path) -> list[str]:
    """Command lines of all processes that name this folder, or were started with it: /proc is the witness."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words, environment = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
            living = (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except (OSError, IndexError):
            continue
        if living and str(home).encode() in words + environment:
            found.append(f"{entry.name}: {words.replace(bytes(1), b' ').decode()}")
    return found


MOMENTS: dict[str, Callable[[Path], bool]] = {
    "at-once": lambda home: True,
    "temporal-begins": lambda home: any("start-dev" in line for line in processes_of(home)),
    "temporal-answers": lambda home: (home / "temporal.json").exists(),
    "front-begins": lambda home: any("web.serve" in line for line in processes_of(home)),
    "front-listens": lambda home: (home / "front.sock").exists(),
    "ready": lambda home: "ready" in (home / "up.log").read_text(),
}


@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_signal_at_any_moment_of_up_leaves_no_process(tmp_path: Path, moment: str, name: signal.Signals) -> None:
    environment = {**os.environ, "BACKSTOP_HOME": str(tmp_path), "BACKSTOP_PORT": "0", "BACKSTOP_UI_PORT": "0"}
    with (tmp_path / "up.log").open("wb") as log:
        up = subprocess.Popen(program("workers.up"), env=environment, stdout=log, stderr=log, start_new_session=True)
        wait_until(lambda: MOMENTS[moment](tmp_path), moment)
        up.send_signal(name)
        time.sleep(0.1)
        up.send_signal(name)  # whoever is impatient presses twice
        up.wait(PATIENCE)
    wait_until(lambda: processes_of(tmp_path) == [], "nothing of it runs")
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")}
    assert left.isdisjoint({"temporal.json", "front.sock", "front.json"})
    assert "Traceback" not in (tmp_path / "up.log").read_text()


@pytest.mark.parametrize("name", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_story_whose_teller_is_killed_leaves_nothing_behind(name: signal.Signals) -> None:
    teller = subprocess.Popen([sys.executable, "-c", STORY], stdout=subprocess.PIPE, text=True)
    assert teller.stdout is not None
    home = next(Path(line.removeprefix("home ").strip()) for line in teller.stdout if line.startswith("home "))
    assert home.is_relative_to(tempfile.gettempdir())
    assert len(processes_of(home)) >= 3
    teller.send_signal(name)
    teller.wait(PATIENCE)
    wait_until(lambda: processes_of(home) == [] and not home.exists(), "nothing of it runs, and its folder is gone")
