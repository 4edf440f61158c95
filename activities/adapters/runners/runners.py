"""The runners of a worker behind one port, each for the orders that name it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from activities.adapters.runners.buildkite import BuildkiteRunner
from activities.adapters.runners.command import CommandRunner
from activities.adapters.runners.http import HttpRunner
from activities.adapters.runners.run_directory import Here
from activities.adapters.runners.settings import Allowed
from activities.clock import Clock, utc_now
from activities.ports.bringup import RunnerPort
from models.bringup.runs import Runner, RunOrder, RunReport
from models.errors import BadInput, Unavailable


class Runners:
    """All runners. `runs_dir`: keeps the runs of commands; if hosts share it, each can follow another one's runs."""

    def __init__(self, allowed: Allowed, runs_dir: Path, here: Here | None = None, now: Clock = utc_now) -> None:
        self.here = here or Here()
        """The host and processes of this worker; runs are noted under `here.host`."""
        self._by_name: Mapping[Runner, RunnerPort] = {
            Runner.COMMAND: CommandRunner(allowed, runs_dir, self.here),
            Runner.BUILDKITE: BuildkiteRunner(allowed, now=now),
            Runner.HTTP: HttpRunner(allowed),
        }

    def start(self, order: RunOrder) -> RunReport:
        return self._by_name[order.runner].start(order)

    def look(self, order: RunOrder) -> RunReport | None:
        return _ask(self._by_name[order.runner].look, order)

    def stop(self, order: RunOrder) -> RunReport | None:
        return _ask(self._by_name[order.runner].stop, order)


def _ask(ask: Callable[[RunOrder], RunReport | None], order: RunOrder) -> RunReport | None:
    """Ask, and raise Unavailable if the worker's present settings forbid it: that says nothing about the run."""
    try:
        return ask(order)
    except BadInput as error:
        raise Unavailable(error.message) from None
