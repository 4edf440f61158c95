"""Fixtures and hooks of all tests."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path, PurePath
from typing import Any

import anyio.abc  # noqa: F401 - parses itself: in a thread beside pytest's parsing CPython 3.11 fails (gh-106905)
import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests.compiled_once import create_engine
from tests.servers import *  # noqa: F403 - fixtures
from tests.tried import SAID, TRIED, examples

TESTS = Path(__file__).parent
gc.disable()  # what is imported and collected stays: to look it through again and again takes a third of collecting
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a second thread of each process only waits for its turn, busily
LONG = (
    "e2e/test_resets.py",
    "loop/test_failed_calls.py",
    "e2e/test_bench_fleet.py",
    "chaos/test_chaos.py",
    "slurm",
    "loop/test_failed_effects.py",
    "e2e/test_crashes.py",
    "e2e/test_rollout_story.py",
    "e2e/test_long_time.py",
    "e2e/test_races.py",
    "property/test_explored.py",
    "e2e",
    "browser",
    "git",
    "oidc",
    "loop",
    "property",
    "hostile",
    "kubernetes",
    "integration",
    "replay",
    "unit",
)
"""Files and folders, the longest first: whoever is through takes the next, and at the end none waits long.

A folder that is not named comes first of all.
"""
BY_DAY = 6
"""Of the tables of rubbish each so many-th row is thrown by day."""
TOGETHER = ("slurm",)
"""Folders whose tests share what is started once for all of them."""
APART = ("loop/test_failed_effects.py",)
"""Files whose tests share what is started once for each database."""
DATABASES = ("sqlite", "postgresql")

# CI runs the same examples each time, so that a change is judged by what it changed. On a laptop every run
# looks elsewhere: that is where new cases are found; a case that was found joins the tests by hand.
# None is timed, nor how long its inputs take to make: a machine may be slow.
_UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", _UNTIMED, derandomize=True)
settings.register_profile("laptop", _UNTIMED)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "laptop")


@pytest.fixture(scope="session", autouse=True)
def _names_stay_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the names for the shell's completion out of the home of the person who tests."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("cli.completion_names.folder", lambda: str(tmp_path_factory.getbasetemp() / "completion"))
        yield


@pytest.fixture(scope="session", autouse=True)
def _compiled_once() -> Iterator[None]:
    """Statements are compiled once for each database, not for each test."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sqlalchemy.create_engine", create_engine)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Every second process collects from the end: what one has compiled by then, the other reads."""
    report = yield
    if isinstance(collector, pytest.Directory) and os.environ.get("PYTEST_XDIST_WORKER", "")[-1:] in tuple("13579"):
        report.result.reverse()
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    @functools.cache
    def rank(path: Path) -> int:
        path = path.relative_to(TESTS)
        return next((n for n, long in enumerate(LONG) if path.is_relative_to(long)), -1)

    items.sort(key=lambda item: (rank(item.path), item.path))
    for item in items:  # a file may say of its own tests which are for `make nightly`
        chosen = getattr(getattr(item, "module", None), "nightly", None)
        if chosen is not None and chosen(item):
            item.add_marker(pytest.mark.nightly)
        if getattr(getattr(item, "module", None), "examples", None) is examples:
            item.add_marker(pytest.mark.fuzzed)
    rows = (i for i in items if "rubbish" in getattr(i, "fixturenames", ()) and i.get_closest_marker("fuzzed") is None)
    for number, item in enumerate(rows):
        if number % BY_DAY:  # as of fuzzed tests: some by day, each by night
            item.add_marker(pytest.mark.nightly)


def pytest_collection_finish() -> None:
    gc.freeze()  # nor while the tests run
    gc.set_threshold(20_000)
    gc.enable()


class ByFile(LoadScopeScheduling):
    """A scheduler that runs each file, or folder with a common service, in one process."""

    def _split_scope(self, nodeid: str) -> str:
        path = PurePath(nodeid.partition("::")[0]).relative_to(TESTS.name)
        if path.parts[0] in TOGETHER:
            return path.parts[0]
        if str(path) in APART:
            return f"{path} {[name for name in DATABASES if name in nodeid.partition('[')[2]]}"
        return str(path)


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
