"""Steps that are programs of this host. wrapper.py supervises them; this starts it, reads what it writes, and stops it.

Any number of supervisors may be started for one key: the one that publishes its record runs the program, the others
end. So a start that is repeated, or that two workers make at once, is one run; and a start whose worker died on the way
is either completed by the next one, or given up by publishing another record first.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from activities.adapters.runners import wrapper
from activities.adapters.runners.printed_text import one_line, tail_of
from activities.adapters.runners.run_directory import Here, RunDirectory, what_lives
from activities.adapters.runners.settings import Allowed
from models.base import duration_text
from models.bringup.runs import RunOrder, RunPhase, RunReport
from models.errors import BadInput, Stuck, Unavailable

MOST_LOG = 5_000_000
"""Bytes of a log that are kept at its beginning, and as many at its end."""
_BEGINS = 10.0
"""Seconds that a start waits for the supervisor's record."""
_OTHERS_BEGIN = 1.0
"""Seconds that a start waits for the record of another worker's supervisor before it starts its own."""
_GIVEN_UP_AFTER = 60.0
"""Seconds without a record after which no supervisor can still be starting."""
_SLEEP = 0.02
_WRAPPER = Path(wrapper.__file__)


class CommandRunner:
    """The commands of one host. `here`: identifies the processes that this worker can see."""

    def __init__(self, allowed: Allowed, runs_dir: Path, here: Here | None = None) -> None:
        self._allowed = allowed
        self._runs_dir = runs_dir
        self._here = here or Here()

    def start(self, order: RunOrder) -> RunReport:
        self._allowed.check_program(order.run)
        if not (self._here.boot and self._here.table):
            raise BadInput("the command runner works only on Linux: this host does not list its processes in /proc")
        run = RunDirectory(self._runs_dir, order.key)
        ours = run.claim(self._order_document(order))
        if not ours and self._has_begun(run, _OTHERS_BEGIN):
            return self._report(run, order)
        self._launch(run)
        if not self._has_begun(run, _BEGINS):
            raise Unavailable(
                f"the supervisor of {_shown_name(order)} has not started within {_BEGINS:g} s on {self._host}"
            )
        return self._report(run, order)

    def look(self, order: RunOrder) -> RunReport | None:
        run = RunDirectory(self._runs_dir, order.key)
        if run.exit is not None:
            return self._report(run, order)
        if run.order is None:
            return None
        if not run.has_record:
            if (run.age_of("order.json") or 0.0) < _GIVEN_UP_AFTER:
                return RunReport(phase=RunPhase.RUNNING, said=f"is being started on {self._host}", host=self._host)
            run.give_up("the run never began: the worker that was starting it died")
        return self._report(run, order)

    def stop(self, order: RunOrder) -> RunReport | None:
        """Stop the run. A key without a trace is never begun from now on, however late a start of it comes."""
        run = RunDirectory(self._runs_dir, order.key)
        run.claim(self._order_document(order))
        if not run.has_record:
            run.give_up("stopped")
        run.ask_to_stop()
        return self._report(run, order)

    @property
    def _host(self) -> str:
        return self._here.host

    @property
    def _grace(self) -> float:
        return self._allowed.settings.grace.total_seconds()

    def _order_document(self, order: RunOrder) -> dict[str, Any]:
        return {
            "key": order.key.text,
            "run": list(order.run),
            "host": self._host,
            "limit": order.limit.total_seconds(),
            "grace": self._grace,
            "most": MOST_LOG,
        }

    def _launch(self, run: RunDirectory) -> None:
        """Start a supervisor in a session of its own, without a parent. Errors: Unavailable."""
        line = [*self._allowed.settings.launcher, sys.executable, "-I", "-S", "-B", str(_WRAPPER), str(run.path)]
        environment = self._allowed.program_environment(BACKSTOP_RUN=run.order["key"] if run.order else "")
        try:
            with (run.path / "supervisor.err").open("ab") as errors:
                done = subprocess.run(
                    line,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    cwd="/",
                    start_new_session=True,
                    timeout=_BEGINS,
                    check=False,
                )
        except subprocess.TimeoutExpired:
            raise Unavailable(f"{line[0]} did not start a supervisor within {_BEGINS:g} s") from None
        except OSError as error:
            raise Unavailable(f"{line[0]} cannot be run: {error.strerror}") from None
        if done.returncode:
            last_words = one_line((run.path / "supervisor.err").read_bytes()[-1000:])
            raise Unavailable(f"{line[0]} did not start a supervisor: {last_words or f'exit status {done.returncode}'}")

    @staticmethod
    def _has_begun(run: RunDirectory, seconds: float) -> bool:
        ends = time.monotonic() + seconds
        while not run.has_record:
            if time.monotonic() >= ends:
                return False
            time.sleep(_SLEEP)
        return True

    def _report(self, run: RunDirectory, order: RunOrder) -> RunReport:
        # In this order: a run that ends between the two reads counts as running once more, and never as lost.
        try:
            record, alive = run.record or {}, False
        except Stuck as error:
            return self._without_record(run, order, error)
        if "given_up" in record:
            phase = RunPhase.STOPPED if record["given_up"] == "stopped" else RunPhase.FAILED
            sentence = "it was stopped before it began" if phase is RunPhase.STOPPED else record["given_up"]
            return RunReport(phase=phase, said=sentence, host=self._host)
        if run.exit is None:
            alive = self._is_alive(run, record)
        ended = run.exit
        teller = _Teller(run, order, record)
        if ended is not None:
            return teller.ended_report(ended)
        if alive:
            if time.time() - record["at"] > order.limit.total_seconds() + _GIVEN_UP_AFTER + self._grace:
                run.ask_to_stop()  # its supervisor would have, but is gone; the program still runs
            return teller.running_report((run.path / "stop").exists())
        return teller.lost_report(rebooted=record["boot"] != self._here.boot)

    def _without_record(self, run: RunDirectory, order: RunOrder, error: Stuck) -> RunReport:
        """Report on a run by its other files. Errors: Stuck if they say nothing."""
        ended = run.exit
        if ended is not None:
            return _Teller(run, order, {"host": self._host, "at": ended["at"]}).ended_report(ended)
        if not run.beats():
            raise Stuck(f"{_shown_name(order)} has stopped reporting, and it is unknown how it ended: {error.message}")
        return RunReport(
            phase=RunPhase.RUNNING, said=f"{_shown_name(order)} still reports that it runs, but {error.message}"
        )

    def _is_alive(self, run: RunDirectory, record: dict[str, Any]) -> bool:
        """Return whether the run lives. Errors: Unavailable if only another machine could say."""
        if (record["host"], record["boot"], record["table"]) == (self._host, self._here.boot, self._here.table):
            return _is_alive_here(run, record)
        if run.beats():
            return True
        if record["host"] == self._host and record["boot"] != self._here.boot:
            return False  # this machine has rebooted since, so its processes are gone
        raise Unavailable(
            f"the run was started on host {one_line(record['host'])} and has stopped reporting: {self._host} "
            "cannot see its processes, so check on that host whether it still runs"
        )


def _is_alive_here(run: RunDirectory, record: dict[str, Any]) -> bool:
    supervisor = wrapper.stat_of(record["pid"])
    if supervisor is not None and supervisor.born == record["born"] and supervisor.lives:
        return True
    left = what_lives(record)
    age = run.age_of("stop")
    if left and age is not None:  # its supervisor, which would obey `stop`, is gone
        order = run.order or {}
        number = signal.SIGKILL if age > order.get("grace", 0.0) else signal.SIGTERM
        for stat in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(stat.pid, number)
    return bool(left)


class _Teller:
    """Reports on a run in words."""

    def __init__(self, run: RunDirectory, order: RunOrder, record: dict[str, Any]) -> None:
        self._run = run
        self._order = order
        self._record = record
        self._what = _shown_name(order)

    def running_report(self, stopping: bool) -> RunReport:
        sentence = f"{self._what} {'is being stopped' if stopping else 'runs'} on {self._record['host']}"
        return self._make_report(RunPhase.RUNNING, sentence)

    def lost_report(self, rebooted: bool) -> RunReport:
        why = "its host has rebooted" if rebooted else "its processes are gone"
        return self._make_report(RunPhase.FAILED, f"{self._what} ended without an exit status: {why}")

    def ended_report(self, ended: dict[str, Any]) -> RunReport:
        code, because, at = ended["code"], ended["because"], _time(ended["at"])
        if ended["error"]:
            return self._make_report(
                RunPhase.FAILED, f"{self._what} cannot be run: {one_line(ended['error'])}", None, at
            )
        if because == "stopped":
            return self._make_report(RunPhase.STOPPED, f"{self._what} was stopped", code, at)
        if because == "limit":
            limit = duration_text(self._order.limit)
            return self._make_report(
                RunPhase.FAILED, f"{self._what} did not end within {limit}, and was stopped", code, at
            )
        if because == "terminated":
            return self._make_report(RunPhase.FAILED, f"{self._what} was ended from outside, by SIGTERM", code, at)
        if code == 0:
            return self._make_report(RunPhase.SUCCEEDED, f"{self._what} ended well", code, at)
        how = f"was killed by {_signal_name(-code)}" if code < 0 else f"failed with exit status {code}"
        return self._make_report(RunPhase.FAILED, f"{self._what} {how}", code, at)

    def _make_report(
        self, phase: RunPhase, sentence: str, code: int | None = None, ended_at: datetime | None = None
    ) -> RunReport:
        host = str(self._record["host"])
        return RunReport(
            phase=phase,
            said=sentence,
            code=code,
            tail=tail_of(self._run.end_of_log()),
            link=f"{host}:{self._run.path}/log",
            host=host,
            started_at=_time(self._record["at"]),
            ended_at=ended_at,
        )


def _shown_name(order: RunOrder) -> str:
    return one_line(order.run[0]) if order.run else "the command"


def _time(seconds: float) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=round(seconds, 3))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
