from __future__ import annotations

import functools

import pytest
import typer


@pytest.fixture(scope="session", autouse=True)
def _one_command_line() -> None:
    """The tree of commands is made once: a program makes it once too, and making it is most of a short command."""
    pytest.MonkeyPatch().setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
