"""`make test` and `make nightly` share all tests between them: only fuzzed ones are run twice, and none never."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def command(target: str) -> str:
    """What make would type, were everything set up."""
    setting = (f"VENV={sys.prefix}", "JOBS=0", "ARGS=")
    done = subprocess.run(
        ["make", "--dry-run", "--old-file=setup", "--old-file=packages", *setting, target],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))},
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = done.stdout.splitlines()
    return line


def collected(typed: str) -> set[str]:
    done = subprocess.run(
        [*shlex.split(typed), "--collect-only", "--quiet", "-p", "no:cacheprovider"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {line for line in done.stdout.splitlines() if line.startswith("tests/")}


def test_the_two_differ_only_in_their_marker() -> None:
    by_day = command("test").replace('-m "not nightly"', '-m "nightly or fuzzed"').replace("-n 4", "-n 2")
    assert f"TRIES=all {by_day}" == command("nightly")
    assert "for target in lint test nightly; do" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.nightly
def test_each_test_is_one_of_the_two() -> None:
    by_day, by_night = collected(command("test")), collected(command("nightly").removeprefix("TRIES=all "))
    fuzzed = collected(f'{sys.executable} -m pytest -m "fuzzed and not nightly"')
    assert fuzzed
    assert by_day & by_night == fuzzed
    assert by_day | by_night == collected(f"{sys.executable} -m pytest")
    assert 0 < len(by_night) < len(by_day)
