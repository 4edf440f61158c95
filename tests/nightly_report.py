"""The last lines of `make nightly`, as a pytest plugin: passed, failed, flaky, skipped, the slowest, minutes.

A test that failed and passed when it was tried again (`--reruns`) is flaky. A night with a flaky test has failed.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

import pytest

SLOWEST = 10


@dataclass
class Night:
    """The outcome of each test, by its id; seconds are of all its tries, set-up and tear-down included."""

    began: float = field(default_factory=time.monotonic)
    outcomes: dict[str, str] = field(default_factory=dict)
    tried_again: set[str] = field(default_factory=set)
    seconds: Counter[str] = field(default_factory=Counter)

    def take(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration  # type: ignore[assignment]
        outcome: str = report.outcome
        if outcome == "rerun":
            self.tried_again.add(report.nodeid)
        elif (
            report.failed or (report.when == "call" and self.outcomes.get(report.nodeid) != "failed") or report.skipped
        ):
            self.outcomes[report.nodeid] = outcome

    def those(self, outcome: str) -> list[str]:
        """Ids of the tests that ended so; a flaky one has not passed."""
        flaky = sorted(test for test in self.tried_again if self.outcomes.get(test) == "passed")
        if outcome == "flaky":
            return flaky
        return sorted(test for test, ended in self.outcomes.items() if ended == outcome and test not in flaky)

    def lines(self) -> list[str]:
        """The table."""
        counts = {outcome: self.those(outcome) for outcome in ("passed", "failed", "flaky", "skipped")}
        told = [f"{outcome:8}{len(tests):6}" for outcome, tests in counts.items()]
        told.append(f"{'minutes':8}{(time.monotonic() - self.began) / 60:6.1f}")
        told += [f"{outcome:8}{test}" for outcome in ("failed", "flaky") for test in counts[outcome]]
        return told + [f"{seconds:6.0f} s  {test}" for test, seconds in self.seconds.most_common(SLOWEST)]


NIGHT = Night()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    NIGHT.take(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.exitstatus == pytest.ExitCode.OK and NIGHT.those("flaky"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section("the night")
    for line in NIGHT.lines():
        terminalreporter.write_line(line)
