"""The wheel in an environment of its own, far from this checkout: what it needs, it carries."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import typer
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).resolve().parents[2]
FLEET = "examples/fleet.yaml"
PACKAGES = ("models", "activities", "workflows", "workers", "client", "cli")

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def output(command: list[str], **settings: Any) -> str:
    """What the command says; it ends well."""
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command, check=False, capture_output=True, text=True, **settings
    )
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (built,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("dist")), versions=["standard"])
    return Path(built)


@dataclass(frozen=True)
class Installed:
    """The wheel in a virtual environment, and a person who works in an empty folder."""

    scripts: Path
    work: Path

    @property
    def environment(self) -> dict[str, str]:
        inherited = {"PATH": f"{self.scripts}:/usr/bin:/bin", "LANG": os.environ.get("LANG", "C.UTF-8")}
        return {**inherited, "HOME": str(self.work), "BACKSTOP_HOME": str(self.work / "state"), "COLUMNS": "120"}

    def command(self, *words: str) -> list[str]:
        return [str(self.scripts / "backstop"), *words]

    def run(self, *words: str, seconds: float = 60) -> str:
        """One command's output; it ends well."""
        return output(self.command(*words), cwd=self.work, env=self.environment, timeout=seconds)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Dependencies are those of the tests' own environment, without what makes this checkout importable there."""
    top = tmp_path_factory.mktemp("wheel")
    venv.create(top / "venv")
    scripts, work = top / "venv" / "bin", top / "work"
    work.mkdir()
    pip = [sys.executable, "-m", "pip", "--python", str(scripts / "python"), "install", "--no-deps", "--no-index"]
    output([*pip, "--quiet", str(wheel)])
    # The .pth of an editable install is read in the environment's own folder only, not in one that a .pth names.
    ours = next((top / "venv").glob("lib/python*/site-packages"))
    theirs = Path(typer.__file__).parents[1]
    (ours / "dependencies.pth").write_text(f"{theirs}\n")
    return Installed(scripts, work)


@pytest.fixture(scope="module")
def up(installed: Installed) -> Iterator[str]:
    """What `backstop up` has said once it is ready. It is stopped by its process id, and ends well."""
    log = installed.work / "up.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            installed.command("up", "--port", "0", "--ui-port", "0"),
            cwd=installed.work,
            env=installed.environment,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        ends = time.monotonic() + 90
        while "ready" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < ends, log.read_text()
            time.sleep(0.1)
        yield log.read_text()
    finally:
        process.send_signal(signal.SIGINT)
        try:
            code = process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert code == 0, log.read_text()


def test_the_wheel_carries_templates_migrations_and_the_example(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        files = set(archive.namelist())
        assert archive.read("workers/fleet.yaml") == (ROOT / FLEET).read_bytes()
    assert set(output(["git", "ls-files", *PACKAGES], cwd=ROOT).split()) <= files
    assert not [file for file in files if file.startswith(("tests/", "examples/", "benchmarks/", "docs/"))]


def test_its_modules_are_its_own(installed: Installed) -> None:
    files = ", ".join(f"{name}.__file__" for name in PACKAGES)
    script = f"import {', '.join(PACKAGES)}; print({files}, sep='\\n')"
    python = [str(installed.scripts / "python"), "-c", script]
    paths = [Path(line) for line in output(python, cwd=installed.work, env=installed.environment).splitlines()]
    assert len(paths) == len(PACKAGES)
    assert all(path.is_relative_to(installed.scripts.parent) for path in paths), paths


@pytest.mark.nightly
def test_up_runs_and_pages_are_written(installed: Installed, up: str) -> None:
    assert "embedded" in up
    work = installed.work
    (work / "fleet.yaml").write_bytes((ROOT / FLEET).read_bytes())
    installed.run("haircut", "--file", "fleet.yaml", "--html", "haircut.html")
    assert "<svg" in (work / "haircut.html").read_text()
    installed.run("fleet", "import", "fleet.yaml")
    installed.run("haircut", "--html", "of-the-ledger.html")
    assert (work / "of-the-ledger.html").stat().st_size > 1000
    installed.run("report", "--weekly", "--out", "status")
    (page,) = (work / "status").glob("status-*.html")
    assert "<html" in page.read_text()


@pytest.mark.nightly
def test_the_demo_tells_its_story_to_the_end(installed: Installed) -> None:
    story = installed.run("demo", seconds=300)
    assert "$ backstop audit h100-worked --verify" in story
    assert "Done in" in story
