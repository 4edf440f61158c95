"""All that Backstop stores on a machine is readable only by its own user."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest


def modes(folder: Path) -> dict[str, int]:
    return {str(p.relative_to(folder)): stat.S_IMODE(p.lstat().st_mode) for p in sorted(folder.rglob("*"))}


def migrate(home: Path) -> None:
    """Migrate as from a shell, with the usual umask."""
    environment = {**os.environ, "BACKSTOP_HOME": str(home), "BACKSTOP_LEDGER_URL": ""}
    command = [sys.executable, "-m", "workers.migrate"]
    subprocess.run(command, env=environment, check=True, umask=0o022, capture_output=True)


def test_a_new_ledger_is_private(tmp_path: Path) -> None:
    home = tmp_path / "state"
    migrate(home)
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert modes(home)["ledger.db"] == 0o600
    assert all(mode & 0o077 == 0 for mode in modes(home).values())


@pytest.mark.nightly
def test_what_an_earlier_backstop_left_open_is_closed_and_nothing_else_is_touched(tmp_path: Path) -> None:
    left = {
        "ledger.db": (0o644, 0o600),
        "notices.jsonl": (0o644, 0o600),
        "temporal/temporal.db": (0o644, 0o600),
        "notices.jsonl.book": (0o640, 0o640),  # somebody chose it
        "my-own.txt": (0o644, 0o644),
    }
    (tmp_path / "temporal").mkdir(mode=0o755)
    for name, (before, _) in left.items():
        (tmp_path / name).touch()
        (tmp_path / name).chmod(before)
    migrate(tmp_path)
    found = modes(tmp_path)
    assert {name: found[name] for name in left} == {name: after for name, (_, after) in left.items()}
    assert found["temporal"] == 0o700
