"""`up`, `worker`, `migrate`, `demo`: this process becomes the program."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.main import run

PROGRAM = Path(__file__).parents[2] / "backstop" / "program.py"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str], dict[str, str]]]:
    found: list[tuple[str, list[str], dict[str, str]]] = []

    def execve(path: str, arguments: list[str], environment: dict[str, str]) -> None:
        found.append((path, arguments, environment))

    monkeypatch.setattr(os, "execve", execve)
    return found


@pytest.mark.parametrize(
    ("command", "module", "more", "settings"),
    [
        (["up"], "workers.up", [], {}),
        (
            ["up", "--port", "0", "--ui-port", "8080"],
            "workers.up",
            [],
            {"BACKSTOP_PORT": "0", "BACKSTOP_UI_PORT": "8080"},
        ),
        (["up", "--home", "/x"], "workers.up", [], {"BACKSTOP_HOME": "/x"}),
        (["worker", "--trace"], "workers.main", [], {"BACKSTOP_TRACE": "console"}),
        (["serve"], "web.serve", [], {}),
        (["serve", "--listen", "127.0.0.1:0"], "web.serve", ["--listen", "127.0.0.1:0"], {}),
        (["migrate"], "workers.migrate", [], {}),
        (["migrate", "--from", "./state"], "workers.migrate", ["./state"], {}),
        (["backup", "/copy", "--home", "/x"], "workers.backup", ["/copy"], {"BACKSTOP_HOME": "/x"}),
        (["demo", "--fast", "x"], "workers.demo", ["--fast", "x"], {}),
    ],
)
def test_the_program_runs_with_what_was_given(
    started: list[Any], command: list[str], module: str, more: list[str], settings: dict[str, str]
) -> None:
    assert run(command) == 0
    ((path, arguments, environment),) = started
    assert path == sys.executable
    # -P: a folder `models` or `workers` where the user stands must not be imported instead of ours
    assert arguments == [sys.executable, "-P", str(PROGRAM), module, *more]
    assert environment == {**os.environ, **settings}


def test_a_program_that_cannot_start_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def execve(*_: object) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(os, "execve", execve)
    assert run(["up"]) == 1
    assert capsys.readouterr().err.endswith("cannot be started: No such file or directory\n")
