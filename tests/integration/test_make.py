"""CI runs `make lint test`. `make nightly` has the other tests: only fuzzed ones are in both, and each is in one."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def command(target: str) -> str:
    """Return the commands that make would run if everything were set up."""
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


NIGHT = "-p tests.nightly_report --reruns 2"


def test_the_two_differ_in_their_marker_and_in_what_becomes_of_a_failure() -> None:
    by_day = command("test").replace('-m "not nightly"', f'{NIGHT} -m "nightly or fuzzed"')
    assert f"TRIES=all {by_day}" == command("nightly")


def test_ci_runs_lint_and_the_tests_of_the_gate_and_nothing_else() -> None:
    lines = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if not line.startswith("#")]
    assert [line for line in lines if "make" in line] == [
        '    echo "== make $target"',
        '    make "$target"',
        '    echo "== make $target passed in $((SECONDS - started)) s"',
    ]
    assert re.findall(r"for target in (.*); do", "\n".join(lines)) == ["lint test"]


TESTS_OF_A_NIGHT = """
from pathlib import Path

FIRST = Path(__file__).with_name("first")

def test_that_passes_when_it_is_tried_again():
    is_first = not FIRST.exists()
    FIRST.touch()
    assert not is_first

def test_that_passes(): pass

def test_other(): assert {holds}
"""


@pytest.mark.parametrize(("holds", "failed"), [(True, []), (False, ["failed  ::test_other"])])
def test_a_flaky_test_is_named_and_fails_the_night(tmp_path: Path, holds: bool, failed: list[str]) -> None:
    (tmp_path / "test_night.py").write_text(TESTS_OF_A_NIGHT.format(holds=holds))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *NIGHT.split(), "-c", ROOT / "pyproject.toml", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    table = [line for line in done.stdout.partition(" the night ")[2].splitlines()[1:] if line]
    counts = dict(line.split() for line in table[:4])
    assert counts == {"passed": str(2 - len(failed)), "failed": str(len(failed)), "flaky": "1", "skipped": "0"}
    named = [re.sub(r" \S*::", " ::", line) for line in table if line.startswith(("failed  ", "flaky   "))]
    assert [line for line in named if "::" in line] == [*failed, "flaky   ::test_that_passes_when_it_is_tried_again"]
    assert sum(" s  " in line for line in table) == 3, "the slowest"


@pytest.mark.nightly
def test_each_test_is_one_of_the_two() -> None:
    by_day, by_night = collected(command("test")), collected(command("nightly").removeprefix("TRIES=all "))
    fuzzed = collected(f'{sys.executable} -m pytest -m "fuzzed and not nightly"')
    assert fuzzed
    assert by_day & by_night == fuzzed
    assert by_day | by_night == collected(f"{sys.executable} -m pytest")
    assert 0 < len(by_night) < len(by_day)
