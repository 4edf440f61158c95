"""The wheel in an environment of its own, far from this checkout: what it needs, it carries."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import typer
from hatchling.builders.wheel import WheelBuilder

from hatch_vendor import integrity, is_there

ROOT = Path(__file__).resolve().parents[2]
FLEET = "examples/fleet.yaml"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
PACKAGES = ("models", "activities", "workflows", "workers", "client", "views", "cli")
APP = "backstop/_app"
THEIRS = """import models, cli; print(models.WHOSE, cli.WHOSE)"""
CITED = re.compile(r"\bdocs/[\w/.-]*\w|\bexamples/[\w.-]*\w")

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def output(command: list[str], **settings: Any) -> str:
    """Return the command's output; it must succeed."""
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
    # Somebody else's packages of our names, one of them imported before any program begins.
    (ours / "models").mkdir()
    (ours / "models" / "__init__.py").write_text("WHOSE = 'theirs'\n")
    (ours / "cli.py").write_text("WHOSE = 'theirs'\n")
    (ours / "theirs.pth").write_text("import models\n")
    return Installed(scripts, work)


@pytest.fixture(scope="module")
def up(installed: Installed) -> Iterator[str]:
    """Yield the output of `backstop up` once it is ready. It is stopped by its process id, and must exit well."""
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


@pytest.mark.nightly
def test_the_wheel_takes_one_name_and_carries_all_that_it_needs(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        files = set(archive.namelist())
    tracked = output(["git", "ls-files", *PACKAGES, "docs", "examples"], cwd=ROOT).split()
    assert {f"{APP}/{path}" for path in tracked} <= files
    assert {path.split("/")[0] for path in files} == {"backstop", f"backstop-{VERSION}.dist-info"}
    assert {path.split("/")[2] for path in files if path.startswith(APP)} <= {*PACKAGES, "web", "docs", "examples"}


@pytest.mark.nightly
def test_it_carries_what_the_console_draws_with(wheel: Path) -> None:
    pin = json.loads((ROOT / "web" / "console" / "vendor.json").read_text())
    if not is_there(pin):
        pytest.skip("nothing was fetched: the registry is away")
    with ZipFile(wheel) as archive:
        for name, right in pin["files"].items():
            data = archive.read(f"{APP}/web/console/static/vendor/{Path(name).name}")
            assert integrity(data, right) == right
        assert archive.read(f"{APP}/web/console/templates/base.html")


@pytest.mark.nightly
def test_what_help_and_errors_cite_is_in_the_wheel(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        files = set(archive.namelist())
    sources = [path for room in PACKAGES for path in (ROOT / room).rglob("*.py")]
    cited = {found for path in sources for found in CITED.findall(path.read_text())}
    assert {"docs/commands.md", "docs/fleet-file.md", "examples/fleet.yaml"} <= cited
    shipped = {path.removeprefix(f"{APP}/") for path in files}
    for name in sorted(cited):
        there = [path for path in shipped if path == name or path.startswith((f"{name}-", f"{name}/", f"{name}."))]
        assert there, f"{name} is cited and not in the wheel"


@pytest.mark.nightly
def test_its_readme_is_its_description_and_leads_nowhere_dead(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        metadata = archive.read(f"backstop-{VERSION}.dist-info/METADATA").decode()
    headers, _, description = metadata.partition("\n\n")
    assert "Description-Content-Type: text/markdown" in headers
    assert description.startswith((ROOT / "README.md").read_text().partition("\n")[0])
    assert "`backstop docs concepts`" in description
    links = re.findall(r"\]\(([^)]*)\)", description)
    assert [link for link in links if not link.startswith("https://")] == []


@pytest.mark.nightly
def test_somebody_elses_models_and_cli_are_theirs_and_ours_are_ours(installed: Installed) -> None:
    python = str(installed.scripts / "python")

    def said(*words: str) -> str:
        return output([python, *words], cwd=installed.work, env=installed.environment)

    assert said("-c", THEIRS) == "theirs theirs\n"
    (installed.work / "fleet.yaml").write_bytes((ROOT / FLEET).read_bytes())
    for begin in (installed.command(), [python, "-m", "backstop"]):
        plan = output([*begin, "plan", "--file", "fleet.yaml"], cwd=installed.work, env=installed.environment)
        assert "6 clusters; 152 GPUs cut" in plan
    assert installed.run("--version") == f"backstop {VERSION}\n"
    assert installed.run("docs", "fleet-file") == (ROOT / "docs" / "fleet-file.md").read_text()
    installed.run("migrate")  # a program of the workers', with migrations that are found by their place
    names = ", ".join(f"{name}.__file__" for name in PACKAGES)
    ours = said("-c", f"import backstop; backstop.at_home(); import {', '.join(PACKAGES)}; print({names}, sep='\\n')")
    top = installed.scripts.parent
    assert [Path(line).relative_to(top).parts[-4:-1] for line in ours.splitlines()] == [
        ("backstop", "_app", name) for name in PACKAGES
    ]
    assert said("-c", THEIRS) == said("-c", f"import backstop; {THEIRS}") == "theirs theirs\n"


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
    (approved,) = re.findall(r"\$ (backstop approve h100-worked --plan \w+)", story)
    assert approved in (ROOT / "README.md").read_text()
