"""The contract of every runner: at most one run for a key, and any worker finds it again.

Commands are real processes; Buildkite and the service are servers of ours that behave as documented (servers.py). How
often something ran is counted by the program's own file and by the servers, never by the runner.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import pytest

from activities.adapters.runners import command
from activities.adapters.runners.run_directory import RunDirectory
from activities.adapters.runners.runners import Runners
from activities.adapters.runners.settings import Allowed, RunnerSettings
from models.bringup.runs import RunKey, Runner, RunOrder, RunPhase, RunReport
from models.errors import BadInput
from tests.integration.runners.servers import TOKEN, Buildkite, Service, now, serving
from tests.waiting import PATIENCE, attempts, wait_until

HOUR = timedelta(hours=1)
SCRIPT = """#!/bin/sh
echo "$1" >> "$2/ran"
while [ ! -e "$2/go-$1" ]; do sleep 0.05; done
echo "said at the end"
exit "$(cat "$2/go-$1")"
"""


class Bench(Protocol):
    """A runner, its world, and what the world says of it."""

    stops: bool
    """It can be told to end a run."""

    def worker(self) -> Runners:
        """Return the runners of another worker process, which remembers nothing."""
        ...

    def order(self, step: str, limit: timedelta = HOUR, attempt: int = 1) -> RunOrder: ...
    def foreign(self, step: str) -> RunOrder:
        """One that the worker's settings do not allow."""
        ...

    def end(self, order: RunOrder, well: bool) -> None: ...
    def over(self, order: RunOrder) -> bool:
        """Return whether the run has ended, by the system that runs it."""
        ...

    def grows_old(self, order: RunOrder) -> None:
        """Make the run an hour old, if the system that runs it keeps a time."""
        ...

    def ran(self, order: RunOrder) -> int:
        """Return how often it ran."""
        ...

    def forget(self, order: RunOrder) -> None: ...


def key(step: str, attempt: int) -> RunKey:
    return RunKey(cluster="h100-new", attempt=attempt, step=step)


@dataclass
class Commands:
    folder: Path
    stops = True

    def __post_init__(self) -> None:
        self.program = self.folder / "step.sh"
        self.program.write_text(SCRIPT)
        self.program.chmod(0o755)

    def worker(self) -> Runners:
        settings = RunnerSettings.model_validate({"programs": [{"program": str(self.program)}], "grace": "1s"})
        return Runners(Allowed(settings), self.folder / "runs")

    def order(self, step: str, limit: timedelta = HOUR, attempt: int = 1) -> RunOrder:
        run = (str(self.program), f"{step}-{attempt}", str(self.folder))
        return RunOrder(key=key(step, attempt), runner=Runner.COMMAND, run=run, limit=limit)

    def foreign(self, step: str) -> RunOrder:
        return RunOrder(key=key(step, 1), runner=Runner.COMMAND, run=("/bin/sh", "-c", "exit 0"), limit=HOUR)

    def end(self, order: RunOrder, well: bool) -> None:
        (self.folder / f"go-{order.run[1]}.new").write_text("0" if well else "3")
        (self.folder / f"go-{order.run[1]}.new").rename(self.folder / f"go-{order.run[1]}")

    def over(self, order: RunOrder) -> bool:
        return RunDirectory(self.folder / "runs", order.key).exit is not None

    def grows_old(self, order: RunOrder) -> None:
        """Its supervisor has a clock of its own, which is waited for."""

    def ran(self, order: RunOrder) -> int:
        file = self.folder / "ran"
        return file.read_text().split().count(order.run[1]) if file.exists() else 0

    def forget(self, order: RunOrder) -> None:
        (self.folder / "runs").rename(self.folder / "gone")


@dataclass
class Builds:
    site: Buildkite
    folder: Path
    stops = True

    def worker(self) -> Runners:
        access = {"organization": "acme", "pipelines": ["bootstrap"], "url": f"{self.site.url}/v2", "token": "BK"}
        allowed = Allowed(RunnerSettings.model_validate({"buildkite": access}), {"BK": TOKEN})
        return Runners(allowed, self.folder)

    def order(self, step: str, limit: timedelta = HOUR, attempt: int = 1) -> RunOrder:
        values = {"CLUSTER": "h100-new"}
        return RunOrder(
            key=key(step, attempt), runner=Runner.BUILDKITE, pipeline="bootstrap", values=values, limit=limit
        )

    def foreign(self, step: str) -> RunOrder:
        return self.order(step).but(pipeline="teardown")

    def end(self, order: RunOrder, well: bool) -> None:
        (build,) = self.site.of(order.key.text)
        self.site.move("bootstrap", build["number"], state="passed" if well else "failed")

    def over(self, order: RunOrder) -> bool:
        (build,) = self.site.of(order.key.text)
        return build["finished_at"] is not None

    def grows_old(self, order: RunOrder) -> None:
        (build,) = self.site.of(order.key.text)
        self.site.move("bootstrap", build["number"], created_at=now(HOUR))

    def ran(self, order: RunOrder) -> int:
        return len(self.site.of(order.key.text))

    def forget(self, order: RunOrder) -> None:
        self.site.builds.clear()


@dataclass
class Services:
    site: Service
    folder: Path
    stops: bool = field(default=False)

    def worker(self) -> Runners:
        settings = {"hosts": [{"origin": self.site.url}], "networks": ["127.0.0.0/8"]}
        return Runners(Allowed(RunnerSettings.model_validate(settings)), self.folder)

    def order(self, step: str, limit: timedelta = HOUR, attempt: int = 1) -> RunOrder:
        return RunOrder(
            key=key(step, attempt),
            runner=Runner.HTTP,
            url=f"{self.site.url}/runs",
            status_url=f"{self.site.url}/by-key/{{key}}",
            field="state.name",
            succeeded=("done",),
            failed=("broken",),
            values={"cluster": "h100-new"},
            limit=limit,
        )

    def foreign(self, step: str) -> RunOrder:
        return self.order(step).but(url=f"http://127.0.0.1:{self.site.port + 1}/runs")

    def end(self, order: RunOrder, well: bool) -> None:
        self.site.runs[order.key.text]["state"] = {"name": "done" if well else "broken"}

    def over(self, order: RunOrder) -> bool:
        return bool(self.site.runs[order.key.text]["state"] != {"name": "working"})

    def grows_old(self, order: RunOrder) -> None:
        """Do nothing: this system keeps no time."""

    def ran(self, order: RunOrder) -> int:
        return int(order.key.text in self.site.runs)

    def forget(self, order: RunOrder) -> None:
        self.site.runs.clear()


@pytest.fixture(params=["command", "buildkite", "http"])
def bench(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(command, "_BEGINS", PATIENCE)
    with ExitStack() as stack:
        if request.param == "command":
            commands = Commands(tmp_path)
            yield commands
            for each in (tmp_path / "ran").read_text().split() if (tmp_path / "ran").exists() else ():
                (tmp_path / f"go-{each}").write_text("0")  # nothing is left of what was held
        elif request.param == "buildkite":
            site = Buildkite()
            stack.enter_context(serving(site))
            yield Builds(site, tmp_path)
        else:
            service = Service()
            stack.enter_context(serving(service))
            yield Services(service, tmp_path)


def ended(runner: Runners, order: RunOrder) -> RunReport:
    for _ in attempts("it has ended"):
        report = runner.look(order)
        assert report is not None
        if report.phase.has_ended:
            return report
    raise AssertionError("unreachable")


def begun(bench: Bench, order: RunOrder) -> None:
    wait_until(lambda: bench.ran(order) > 0, "it has begun")


def test_a_start_that_is_repeated_starts_once(bench: Bench) -> None:
    order = bench.order("nodes")
    for worker in (bench.worker(), bench.worker()):
        for _ in range(3):
            assert worker.start(order).phase is RunPhase.RUNNING
    begun(bench, order)
    assert bench.ran(order) == 1
    bench.end(order, well=True)
    assert ended(bench.worker(), order).phase is RunPhase.SUCCEEDED
    assert bench.worker().start(order).phase is RunPhase.SUCCEEDED
    assert bench.ran(order) == 1


def test_a_key_without_a_trace_has_no_report_and_looking_starts_nothing(bench: Bench) -> None:
    order = bench.order("nodes")
    assert bench.worker().look(order) is None
    assert bench.ran(order) == 0


def test_a_run_that_ends_while_nobody_looks_is_found(bench: Bench) -> None:
    order = bench.order("nodes")
    bench.worker().start(order)
    begun(bench, order)
    bench.end(order, well=True)
    wait_until(lambda: bench.over(order), "it has ended")
    report = ended(bench.worker(), order)
    assert report.phase is RunPhase.SUCCEEDED
    assert report.said


def test_one_that_fails_has_failed_for_everybody(bench: Bench) -> None:
    order = bench.order("nodes")
    bench.worker().start(order)
    bench.end(order, well=False)
    report = ended(bench.worker(), order)
    assert report.phase is RunPhase.FAILED
    assert bench.worker().start(order).phase is RunPhase.FAILED
    begun(bench, order)
    assert bench.ran(order) == 1


def test_another_attempt_is_a_run_of_its_own(bench: Bench) -> None:
    first, second = bench.order("nodes"), bench.order("nodes", attempt=2)
    undo = bench.order("nodes/undo")
    worker = bench.worker()
    worker.start(first)
    assert worker.look(second) is None
    worker.start(second)
    assert worker.look(undo) is None
    bench.end(first, well=False)
    assert ended(worker, first).phase is RunPhase.FAILED
    report = worker.look(second)
    assert report is not None
    assert report.phase is RunPhase.RUNNING
    bench.end(second, well=True)
    assert ended(worker, second).phase is RunPhase.SUCCEEDED


def test_one_that_is_stopped_ends_and_is_not_started_again(bench: Bench) -> None:
    order = bench.order("nodes")
    worker = bench.worker()
    worker.start(order)
    begun(bench, order)
    report = bench.worker().stop(order)
    assert report is not None
    if not bench.stops:
        assert report.phase is RunPhase.RUNNING
        assert "end it there" in report.said
        return
    assert ended(bench.worker(), order).phase is RunPhase.STOPPED
    assert worker.start(order).phase is RunPhase.STOPPED
    assert bench.ran(order) == 1
    again = worker.stop(order)
    assert again is not None
    assert again.phase is RunPhase.STOPPED


def test_what_has_ended_is_not_stopped_any_more(bench: Bench) -> None:
    order = bench.order("nodes")
    worker = bench.worker()
    worker.start(order)
    bench.end(order, well=True)
    ended(worker, order)
    report = worker.stop(order)
    assert report is not None
    assert report.phase is RunPhase.SUCCEEDED
    assert ended(worker, order).phase is RunPhase.SUCCEEDED


def test_one_that_takes_longer_than_its_limit_is_ended_and_has_failed(bench: Bench) -> None:
    order = bench.order("nodes", limit=timedelta(seconds=1))
    bench.worker().start(order)
    bench.grows_old(order)
    if not bench.stops:  # it goes on, and to say that it has failed would let a second one begin beside it
        going_on = bench.worker().look(order)
        assert going_on is not None
        assert going_on.phase is RunPhase.RUNNING
        return
    report = ended(bench.worker(), order)
    assert report.phase is RunPhase.FAILED
    assert "did not end within 1s" in report.said


def test_a_runner_that_forgets_its_run_knows_of_none(bench: Bench) -> None:
    order = bench.order("nodes")
    worker = bench.worker()
    worker.start(order)
    begun(bench, order)
    bench.forget(order)
    assert worker.look(order) is None


def test_what_the_settings_do_not_list_does_not_begin(bench: Bench) -> None:
    order = bench.foreign("nodes")
    with pytest.raises(BadInput, match="BACKSTOP_RUNNERS"):
        bench.worker().start(order)
    assert bench.ran(order) == 0
