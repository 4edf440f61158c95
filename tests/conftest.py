"""What all tests share."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from tests.tried import TRIED

# CI runs the same examples each time, so that a change is judged by what it changed. On a laptop every run
# looks elsewhere: that is where new cases are found; a case that was found joins the tests by hand.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI") == "true":
    settings.load_profile("ci")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for what, count in sorted(TRIED.items()):
        terminalreporter.write_line(f"tried: {count} {what}")
