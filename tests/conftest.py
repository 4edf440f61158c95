"""What all tests share."""

from __future__ import annotations

import os
from pathlib import Path, PurePath
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from tests.tried import SAID, TRIED

TESTS = Path(__file__).parent
FIRST = ("slurm", "chaos", "e2e", "property", "integration", "replay", "unit")
"""Long files first: whoever is through takes the next, and at the end none waits long for the other."""
ALONE = ("slurm",)
"""Folders whose tests share what is started once for all of them."""

# CI runs the same examples each time, so that a change is judged by what it changed. On a laptop every run
# looks elsewhere: that is where new cases are found; a case that was found joins the tests by hand.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI") == "true":
    settings.load_profile("ci")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        folder = item.path.relative_to(TESTS).parts[0]
        return (*FIRST, folder).index(folder)

    items.sort(key=rank)


class ByFile(LoadScopeScheduling):
    """Each file, or folder that shares a service, runs in one process: `make test` has two, as most tests wait."""

    def _split_scope(self, nodeid: str) -> str:
        path = PurePath(nodeid.partition("::")[0])
        return path.parts[1] if path.parts[1] in ALONE else str(path)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)


def pytest_sessionfinish(session: pytest.Session) -> None:
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output.update(tried=dict(TRIED), said=dict(SAID))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    told = getattr(node, "workeroutput", {})
    TRIED.update(told.get("tried", {}))
    SAID.update(told.get("said", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for _, text in sorted(SAID.items()):
        terminalreporter.write_line(text)
    for what, count in sorted(TRIED.items()):
        terminalreporter.write_line(f"tried: {count} {what}")
