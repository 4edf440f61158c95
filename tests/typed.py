"""Command lines as people read them, taken by the real command line: what each would send."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
from collections.abc import Iterable
from functools import lru_cache
from unittest.mock import patch

from models.rollout.commands import CommandRequest
from models.rollout.stages import Command

_LINE = re.compile(r"backstop [a-z]+(?: (?:'[^']*'|\"[^\"]*\"|[^\s,;:()]+))*")


def lines_in(texts: Iterable[str]) -> list[str]:
    """Every command that is printed in these texts."""
    return [line.rstrip(".") if not line.endswith("...") else line for text in texts for line in _LINE.findall(text)]


@lru_cache(maxsize=10_000)
def typed(line: str, actor: str) -> tuple[str, Command, CommandRequest] | None:
    """Cluster, command and request that the command line makes of it; None for one that only looks.

    Errors: AssertionError where it is refused as it stands.
    """
    from cli.main import run
    from tests.unit.cli_fakes import FakeBackstop, answering

    output = io.StringIO()
    with (
        patch.dict(os.environ, {"BACKSTOP_ACTOR": actor}),
        answering(FakeBackstop()) as door,
        patch("cli.consent.can_ask", lambda **_: True),  # a person types it, who is shown what it leads to and says yes
        patch("typer.confirm", lambda _: True),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(output),
    ):
        code = run(shlex.split(line)[1:])
    sent = [asked for asked in door.asked if asked[0] == "command"]
    if sent:
        assert code == 0, (line, output.getvalue())
        _, cluster, command, request = sent[-1]
        return cluster, command, request
    assert code != 2, (line, output.getvalue())
    return None
