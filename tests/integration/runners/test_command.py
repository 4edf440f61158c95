"""Commands as real processes: workers that die, two that start at once, hosts that are not ours, hostile programs.

How often a step ran is counted in a file to which it appends a line.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from activities.adapters.runners import command, run_directory, wrapper
from activities.adapters.runners.command import MOST_LOG, CommandRunner
from activities.adapters.runners.run_directory import Here, RunDirectory
from activities.adapters.runners.settings import Allowed, RunnerSettings
from models.bringup.runs import TAIL_LENGTH, RunKey, Runner, RunOrder, RunPhase, RunReport
from models.errors import BadInput, Stuck, Unavailable
from tests.integration.runners import workers
from tests.waiting import PATIENCE, attempts, wait_until

HELD = """#!/bin/sh
echo "$1" >> "$2/ran"
while [ ! -e "$2/go" ]; do sleep 0.05; done
echo "$1" >> "$2/over"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(command, "_BEGINS", PATIENCE)
    yield tmp_path
    (tmp_path / "go").touch()
    for path in tmp_path.glob("runs/*/record.json"):
        with contextlib.suppress(ValueError):
            record = json.loads(path.read_bytes())
            if isinstance(record, dict) and "session" in record:
                killed(record)


def killed(record: dict[str, Any]) -> None:
    """All that is left of a run ends at once: halted first, so that none sees another end, or begins a new one."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for stat in run_directory.what_lives(record):
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(stat.pid, number)


def script(folder: Path, text: str, name: str = "step") -> str:
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def runner(folder: Path, here: Here | None = None, **settings: Any) -> CommandRunner:
    programs = [{"program": str(folder / "step")}, {"program": "/bin/sh"}, {"program": sys.executable}]
    allowed = {"programs": programs, "grace": "1s", **settings}
    return CommandRunner(Allowed(RunnerSettings.model_validate(allowed)), folder / "runs", here)


def order(*run: str, step: str = "nodes", limit: float = 300) -> RunOrder:
    key = RunKey(cluster="h100-new", attempt=1, step=step)
    return RunOrder(key=key, runner=Runner.COMMAND, run=run, limit=timedelta(seconds=limit))


def until(holds: Callable[[], object]) -> None:
    wait_until(lambda: bool(holds()), "it is so")


def ended(of: CommandRunner, what: RunOrder) -> RunReport:
    for _ in attempts("it has ended"):
        report = of.look(what)
        assert report is not None
        if report.phase.has_ended:
            return report
    raise AssertionError("unreachable")


def no_supervisor(path: Path) -> bool:
    """Return whether no supervisor of this run is there, nor about to start."""
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if str(path).encode() in process.read_bytes():
                return False
    return True


def lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def record_of(folder: Path, what: RunOrder) -> dict[str, Any]:
    record = RunDirectory(folder / "runs", what.key).record
    assert record is not None
    return record


def worker(what: str, folder: Path, program: str, *steps: str) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "tests.integration.runners.workers", what, str(folder), program, *steps]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_step_outlives_two_workers_that_are_killed_and_runs_once(folder: Path) -> None:
    program = script(folder, HELD)
    for _ in range(2):
        process = worker("follow", folder, program, "nodes")
        until(lambda: lines(folder / "ran"))
        assert process.stdout is not None
        assert process.stdout.readline() == f"{RunPhase.RUNNING}\n"
        assert process.stdout.readline() == "follows\n"
        os.killpg(process.pid, signal.SIGKILL)  # its whole session
        process.wait()
    assert not lines(folder / "over")
    (folder / "go").touch()
    report = ended(runner(folder), workers.order(program, "nodes", folder))
    assert report.phase is RunPhase.SUCCEEDED
    assert lines(folder / "ran") == lines(folder / "over") == ["nodes"]


@pytest.mark.nightly
def test_a_worker_that_is_killed_at_any_moment_of_its_start_leaves_no_second_run(folder: Path) -> None:
    program = script(folder, HELD)
    (folder / "go").touch()
    steps = [f"step-{number}" for number in range(12)]
    for number, step in enumerate(steps):
        process = worker("start", folder, program, step)
        time.sleep(number * 0.008)  # a start takes less than a tenth of a second
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        run = runner(folder)
        run.start(workers.order(program, step, folder))  # as its activity would be tried again
        assert ended(run, workers.order(program, step, folder)).phase is RunPhase.SUCCEEDED
    assert sorted(lines(folder / "ran")) == sorted(steps)


@pytest.mark.nightly
@pytest.mark.slow
def test_two_workers_that_start_the_same_key_at_the_same_moment_start_it_once(folder: Path) -> None:
    program = script(folder, HELD)
    (folder / "go").touch()
    steps = [f"step-{number}" for number in range(50)]
    both = [worker("race", folder, program, *steps) for _ in range(2)]
    for step in steps:
        (folder / f"now-{step}").touch()
        until(lambda step=step: step in lines(folder / "over"))  # type: ignore[misc]
    said = [process.communicate(timeout=60)[0].split() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert [len(answers) for answers in said] == [50, 50]
    assert sorted(lines(folder / "ran")) == sorted(steps)


def test_any_number_of_supervisors_run_a_step_once(folder: Path) -> None:
    what = order(script(folder, HELD), "nodes", str(folder))
    run = RunDirectory(folder / "runs", what.key)
    (folder / "go").touch()
    assert run.claim({"key": "k", "run": list(what.run), "host": "h", "limit": 60, "grace": 1, "most": 1000})
    line = [sys.executable, "-I", "-S", "-B", wrapper.__file__, str(run.path)]
    for process in [subprocess.Popen(line, start_new_session=True) for _ in range(8)]:
        process.wait()
    until(lambda: run.exit)
    until(lambda: no_supervisor(run.path))
    assert lines(folder / "ran") == ["nodes"]


def test_one_whose_supervisor_is_killed_runs_until_its_processes_are_gone(folder: Path) -> None:
    what, run = order(script(folder, HELD), "nodes", str(folder)), runner(folder)
    run.start(what)
    until(lambda: lines(folder / "ran"))
    supervisor = record_of(folder, what)["pid"]
    os.kill(supervisor, signal.SIGKILL)
    until(lambda: (stat := wrapper.stat_of(supervisor)) is None or not stat.lives)
    report = run.look(what)
    assert report is not None
    assert report.phase is RunPhase.RUNNING  # to say that it failed would let a second one begin beside it
    (folder / "go").touch()
    report = ended(run, what)
    assert report.phase is RunPhase.FAILED
    assert "ended without an exit status: its processes are gone" in report.said
    assert run.start(what).phase is RunPhase.FAILED
    assert lines(folder / "ran") == ["nodes"]


def test_one_whose_supervisor_is_killed_can_be_stopped(folder: Path) -> None:
    what, run = order("/bin/sh", "-c", "trap '' TERM; sleep 100; sleep 100"), runner(folder)
    run.start(what)
    os.kill(record_of(folder, what)["pid"], signal.SIGKILL)
    run.stop(what)
    assert ended(run, what).phase is RunPhase.FAILED
    assert not run_directory.what_lives(record_of(folder, what))


def test_one_whose_supervisor_was_killed_is_ended_after_its_limit_all_the_same(folder: Path) -> None:
    what, run = order("/bin/sh", "-c", "sleep 100; true", limit=1), runner(folder)
    run.start(what)
    record = record_of(folder, what)
    os.kill(record["pid"], signal.SIGKILL)
    path = RunDirectory(folder / "runs", what.key).path / "record.json"
    path.write_text(json.dumps({**record, "at": record["at"] - 3600}))
    assert ended(run, what).phase is RunPhase.FAILED
    assert not run_directory.what_lives(record)


def test_a_supervisor_that_is_told_to_end_ends_its_program_first(folder: Path) -> None:
    what, run = order(script(folder, HELD), "nodes", str(folder)), runner(folder)
    run.start(what)
    until(lambda: lines(folder / "ran"))
    os.kill(record_of(folder, what)["pid"], signal.SIGTERM)
    report = ended(run, what)
    assert (report.phase, report.said) == (RunPhase.FAILED, f"{folder / 'step'} was ended from outside, by SIGTERM")
    assert not lines(folder / "over")


@pytest.mark.parametrize("turn", range(3))
def test_a_supervisor_that_is_told_to_end_as_it_begins_hears_it(folder: Path, turn: int) -> None:
    """A machine that goes down tells all at once, and those of runs that have only just begun too."""
    what, run = order("/bin/sh", "-c", "sleep 100", step=f"step-{turn}"), runner(folder)
    record = RunDirectory(folder / "runs", what.key).path / "record.json"
    starting = Thread(target=run.start, args=[what])
    starting.start()
    while not record.exists():
        pass  # it is caught between its record and its program
    os.kill(record_of(folder, what)["pid"], signal.SIGTERM)
    starting.join()
    report = ended(run, what)
    assert (report.phase, report.said) == (RunPhase.FAILED, "/bin/sh was ended from outside, by SIGTERM")
    until(lambda: not run_directory.what_lives(record_of(folder, what)))


HALTED = """
import pathlib, sys
from activities.adapters.runners import wrapper
goes_on = wrapper.supervise
def supervise(*args):
    print("begun", flush=True)
    sys.stdin.readline()
    return goes_on(*args)
wrapper.supervise = supervise
wrapper.main(pathlib.Path(sys.argv[1]))
"""
"""A supervisor that is kept waiting between its record and its program."""


def test_one_that_is_seen_as_it_begins_beats_already(folder: Path) -> None:
    """A reader of the shared folder takes a record without a pulse for a run that is over, or cut off."""
    what, home = order("/bin/sh", "-c", "exit 0"), runner(folder)
    run = RunDirectory(folder / "runs", what.key)
    assert run.claim(home._order_document(what))
    line = [sys.executable, "-c", HALTED, str(run.path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(line, start_new_session=True, **pipes) as supervisor:  # type: ignore[call-overload]
        assert supervisor.stdout.readline() == "begun\n"
        for here in (Here(Here().host, "another-boot", Here().table), *OTHERS.values()):
            report = runner(folder, here).look(what)
            assert report is not None
            assert report.phase is RunPhase.RUNNING
        supervisor.communicate("go\n", timeout=PATIENCE)
    assert ended(home, what).phase is RunPhase.SUCCEEDED


@pytest.mark.parametrize("text", ["sleep 1000 & sleep 1000", "trap '' TERM; sleep 1000 & sleep 1000; sleep 1000"])
def test_of_one_that_was_stopped_nothing_is_left(folder: Path, text: str) -> None:
    what, run = order("/bin/sh", "-c", text), runner(folder)
    run.start(what)
    until(lambda: len(run_directory.what_lives(record_of(folder, what))) >= 4)
    run.stop(what)
    assert ended(run, what).phase is RunPhase.STOPPED
    until(lambda: not run_directory.what_lives(record_of(folder, what)))  # and none has slept its thousand


def test_one_that_was_killed_with_all_its_processes_has_failed(folder: Path) -> None:
    what, run = order(script(folder, HELD), "nodes", str(folder)), runner(folder)
    run.start(what)
    until(lambda: lines(folder / "ran"))
    killed(record_of(folder, what))
    assert "ended without an exit status" in ended(run, what).said


def test_a_process_of_the_same_number_is_not_taken_for_the_run(folder: Path) -> None:
    what, run = order("/bin/sh", "-c", "exec sleep 100"), runner(folder)
    run.start(what)
    record = record_of(folder, what)
    until(lambda: len(run_directory.what_lives(record)) == 2)
    killed(record)
    path = RunDirectory(folder / "runs", what.key).path / "record.json"
    mine = wrapper.stat_of(os.getpid())
    assert mine is not None
    path.write_text(json.dumps({**record, "pid": mine.pid, "session": mine.pid}))
    assert ended(run, what).phase is RunPhase.FAILED


def test_after_the_host_began_anew_its_runs_have_failed(folder: Path) -> None:
    what, run = order("/bin/sh", "-c", "sleep 100"), runner(folder)
    run.start(what)
    place = Here()
    later = runner(folder, Here(place.host, "another-boot", place.table))
    report = later.look(what)
    assert report is not None
    assert report.phase is RunPhase.RUNNING  # its pulse beats: another machine of this name has it
    killed(record_of(folder, what))
    silent(folder, what)
    report = later.look(what)
    assert report is not None
    assert report.phase is RunPhase.FAILED
    assert report.said == "/bin/sh ended without an exit status: its host has rebooted"


def silent(folder: Path, what: RunOrder) -> None:
    """Its pulse has stopped a while ago."""
    then = time.time() - 2 * run_directory.FRESH_SECONDS
    os.utime(RunDirectory(folder / "runs", what.key).path / "pulse", (then, then))


OTHERS = {
    "another host": Here("elsewhere", "another-boot", 1),
    "another host that says it has the same boot": Here("elsewhere", wrapper.boot_id(), wrapper.process_table()),
    "another container of this host": Here(Here().host, wrapper.boot_id(), wrapper.process_table() + 1),
}


@pytest.mark.parametrize("here", OTHERS.values(), ids=list(OTHERS))
def test_another_host_follows_by_the_shared_folder_and_never_starts_a_second_one(folder: Path, here: Here) -> None:
    what = order(script(folder, HELD), "nodes", str(folder))
    home, other = runner(folder), runner(folder, here)
    home.start(what)
    until(lambda: lines(folder / "ran"))
    for report in (other.look(what), other.start(what)):
        assert report is not None
        assert (report.phase, report.host) == (RunPhase.RUNNING, Here().host)
    supervisor = record_of(folder, what)["pid"]
    os.kill(supervisor, signal.SIGSTOP)  # not to be heard of: frozen, or cut off
    until(lambda: (stat := wrapper.stat_of(supervisor)) is not None and stat.state == "T")  # it beats no more
    silent(folder, what)
    for ask in (other.look, other.start):
        with pytest.raises(Unavailable, match=f"started on host {Here().host} and has stopped reporting"):
            ask(what)
    os.kill(supervisor, signal.SIGCONT)
    (folder / "go").touch()
    assert ended(home, what).phase is RunPhase.SUCCEEDED
    report = other.look(what)
    assert report is not None
    assert report.phase is RunPhase.SUCCEEDED
    assert lines(folder / "ran") == ["nodes"]


def test_another_host_stops_one_by_the_shared_folder(folder: Path) -> None:
    what = order(script(folder, HELD), "nodes", str(folder))
    runner(folder).start(what)
    report = runner(folder, OTHERS["another host"]).stop(what)
    assert report is not None
    assert ended(runner(folder), what).phase is RunPhase.STOPPED


def test_a_host_without_the_folder_knows_of_no_run(folder: Path) -> None:
    what = order(script(folder, HELD), "nodes", str(folder))
    runner(folder).start(what)
    elsewhere = CommandRunner(Allowed(), folder / "another-home", OTHERS["another host"])
    assert elsewhere.look(what) is None


SPOILT = [b"", b"{", b"null", b"[]", b"7", b'"x"', b"{}", b'{"host": "h1"}', b'{"given_up": 1}', b"\xff\xfe\x00"]


@pytest.mark.parametrize("content", SPOILT)
def test_one_whose_record_is_spoilt_is_not_taken_for_running_or_gone(folder: Path, content: bytes) -> None:
    what, run = order(script(folder, HELD), "nodes", str(folder)), runner(folder)
    run.start(what)
    until(lambda: lines(folder / "ran"))
    record, path = record_of(folder, what), RunDirectory(folder / "runs", what.key).path
    (path / "record.json").write_bytes(content)
    report = run.look(what)
    assert report is not None
    assert report.phase is RunPhase.RUNNING  # its pulse beats, and that is what is said
    assert report.said.startswith(
        f"{folder / 'step'} still reports that it runs, but {path / 'record.json'} is damaged: it "
    )
    killed(record)
    silent(folder, what)
    for ask in (run.look, run.start, run.stop, runner(folder, OTHERS["another host"]).look):
        with pytest.raises(Stuck, match=r"/step has stopped reporting, .*: .*/record\.json is damaged: it "):
            ask(what)
    assert lines(folder / "ran") == ["nodes"]


def finished(folder: Path, *run: str) -> tuple[RunOrder, CommandRunner, Path]:
    """A run that has ended, who looks at it, and its directory."""
    what, worker_of_it = order(*run), runner(folder, programs=[{"program": run[0]}])
    worker_of_it.start(what)
    ended(worker_of_it, what)
    return what, worker_of_it, RunDirectory(folder / "runs", what.key).path


@pytest.mark.parametrize("content", SPOILT)
def test_how_one_ended_is_told_though_what_came_before_is_spoilt(folder: Path, content: bytes) -> None:
    what, run, path = finished(folder, "/bin/sh", "-c", "exit 3")
    for name in ("record.json", "order.json"):
        (path / name).write_bytes(content)
        report = run.look(what)
        assert report is not None
        assert (report.phase, report.said, report.code) == (RunPhase.FAILED, "/bin/sh failed with exit status 3", 3)


@pytest.mark.parametrize("content", SPOILT)
def test_one_whose_end_is_spoilt_waits_for_a_person(folder: Path, content: bytes) -> None:
    what, run, path = finished(folder, "/bin/true")
    (path / "exit.json").write_bytes(content)
    with pytest.raises(Stuck, match=r"exit\.json is damaged: it "):
        run.look(what)


def test_what_cannot_be_read_now_is_not_spoilt(folder: Path) -> None:
    what, run, path = finished(folder, "/bin/true")
    (path / "exit.json").unlink()
    (path / "exit.json").mkdir()  # as a file server answers in a bad hour
    with pytest.raises(Unavailable, match=r"exit\.json cannot be read: Is a directory"):
        run.look(what)


def test_a_start_that_died_on_its_way_is_made_good_or_given_up(folder: Path) -> None:
    program = script(folder, HELD)
    (folder / "go").touch()
    first, second = (order(program, step, str(folder), step=step) for step in ("one", "two"))
    run = runner(folder)
    for what in (first, second):
        RunDirectory(folder / "runs", what.key).claim(run._order_document(what))  # and there the worker died
        report = run.look(what)
        assert report is not None
        assert report.said == f"is being started on {Here().host}"
    run.start(first)
    assert ended(run, first).phase is RunPhase.SUCCEEDED
    then = time.time() - 120
    os.utime(RunDirectory(folder / "runs", second.key).path / "order.json", (then, then))
    report = run.look(second)
    assert report is not None
    assert (report.phase, report.said) == (RunPhase.FAILED, "the run never began: the worker that was starting it died")
    assert run.start(second) == report  # nor does it begin later
    assert lines(folder / "ran") == ["one"]


def test_a_host_that_cannot_tell_its_processes_runs_none(folder: Path) -> None:
    with pytest.raises(BadInput, match="only on Linux"):
        runner(folder, Here("mac", "", 0)).start(order("/bin/sh"))


def test_one_that_is_stopped_before_it_began_never_begins(folder: Path) -> None:
    what, run = order(script(folder, HELD), "nodes", str(folder)), runner(folder)
    report = run.stop(what)
    assert report is not None
    assert report.phase is RunPhase.STOPPED
    assert run.start(what).phase is RunPhase.STOPPED  # a start that was late
    until(lambda: no_supervisor(RunDirectory(folder / "runs", what.key).path))
    assert not lines(folder / "ran")


def test_what_it_has_started_in_the_background_does_not_keep_it_open(folder: Path) -> None:
    what, run = order("/bin/sh", "-c", "sleep 300 & echo started"), runner(folder)
    run.start(what)
    report = ended(run, what)
    assert (report.phase, report.tail) == (RunPhase.SUCCEEDED, "started")


def test_what_it_wrote_last_is_kept_however_long_the_machine_stalls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its supervisor comes to read when it has ended, and each piece takes an hour of its clock."""
    late = [0.0]
    clock, keeps = time.monotonic, wrapper.Log.write
    pid = tmp_path / "pid"

    def stalls(log: wrapper.Log, data: bytes) -> None:
        until(lambda: (stat := wrapper.stat_of(int(pid.read_text()))) is None or not stat.lives)
        late[0] += 3600.0
        keeps(log, data)

    monkeypatch.setattr(time, "monotonic", lambda: clock() + late[0])
    monkeypatch.setattr(wrapper.Log, "write", stalls)
    monkeypatch.setattr(wrapper, "_PIECE", 1000)
    text = f"echo $$ > {pid}; sleep 300 & echo $! > {pid}.sleeps; head -c 30000 /dev/zero | tr '\\0' x; printf end"
    what = {"run": ["/bin/sh", "-c", text], "limit": 1e9, "grace": 1.0, "most": MOST_LOG}
    assert wrapper.supervise(tmp_path, what, wrapper.Terminated())["code"] == 0
    os.kill(int((tmp_path / "pid.sleeps").read_text()), signal.SIGKILL)
    assert (tmp_path / "log").read_bytes() == b"x" * 30000 + b"end"


@pytest.mark.parametrize(
    ("text", "said", "code"),
    [
        ("exit 3", "/bin/sh failed with exit status 3", 3),
        ("kill -9 $$", "/bin/sh was killed by SIGKILL", -9),
        ("trap 'exit 0' TERM; kill -s TERM $$; sleep 9 & wait", "/bin/sh ended well", 0),
    ],
)
def test_how_it_ended_is_said(folder: Path, text: str, said: str, code: int) -> None:
    run, what = runner(folder), order("/bin/sh", "-c", text)
    run.start(what)
    report = ended(run, what)
    assert (report.said, report.code) == (said, code)


def test_a_program_that_is_not_there_has_failed(folder: Path) -> None:
    run, what = runner(folder), order(str(folder / "step"))
    run.start(what)
    report = ended(run, what)
    assert (report.phase, report.code) == (RunPhase.FAILED, None)
    assert report.said == f"{folder / 'step'} cannot be run: No such file or directory"


def test_arguments_arrive_as_they_are(folder: Path) -> None:
    given = [
        "-rf",
        "--",
        "it's",
        '"quoted"',
        "two\nlines",
        "$HOME `id` ; | & > x",
        "",
        " ",
        "\\",
        "*",
        "Ünïcode \N{FIRE}",
    ]
    text = f"import json,sys; json.dump(sys.argv[1:], open({str(folder / 'given')!r}, 'w'))"
    run, what = runner(folder), order(sys.executable, "-c", text, *given)
    run.start(what)
    assert ended(run, what).phase is RunPhase.SUCCEEDED
    assert json.loads((folder / "given").read_text()) == given


@pytest.mark.parametrize("argument", ["a\0b", "\ud800"])
def test_arguments_that_no_program_can_be_given_are_refused(folder: Path, argument: str) -> None:
    with pytest.raises(BadInput, match="must be valid text"):
        runner(folder).start(order("/bin/sh", argument))


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (("/bin/cat", "/etc/shadow"), "may not run /bin/cat"),
        (("sh", "-c", "id"), "may not run sh"),
        (("/opt/../bin/sh",), "may not run /opt/../bin/sh"),
        ((), "has no program"),
        (("/usr/bin/env", "apply"), "with plan as first arguments, but the command has apply"),
        (("/usr/bin/env", "planned"), "with plan as first arguments, but the command has planned"),
        (("/usr/bin/env",), "with plan as first arguments, but the command has none"),
        (("/usr/bin/env\x1b[2J",), r"may not run /usr/bin/env:"),
    ],
)
def test_a_program_that_is_not_listed_is_not_run(folder: Path, run: tuple[str, ...], says: str) -> None:
    programs = [{"program": "/bin/sh"}, {"program": "/usr/bin/env", "first": ["plan"]}]
    with pytest.raises(BadInput, match=says):
        runner(folder, programs=programs).start(order(*run))
    assert not (folder / "runs").exists()


def test_a_program_gets_no_variable_of_the_worker_that_is_not_named(folder: Path) -> None:
    programs = [{"program": "/bin/sh"}]
    settings = RunnerSettings.model_validate({"programs": programs, "pass_environment": ["KUBECONFIG"]})
    environment = {"PATH": os.environ["PATH"], "KUBECONFIG": "/k", "BUILDKITE_TOKEN": "secret", "HOME": "/root"}
    run, what = CommandRunner(Allowed(settings, environment), folder / "runs"), order("/bin/sh", "-c", "env")
    run.start(what)
    names = {line.partition("=")[0] for line in ended(run, what).tail.splitlines()}
    assert names - {"PWD", "OLDPWD", "SHLVL", "_"} <= {"PATH", "HOME", "KUBECONFIG", "BACKSTOP_RUN", "LC_CTYPE"}
    assert {"KUBECONFIG", "BACKSTOP_RUN"} <= names
    for file in (folder / "runs").glob("*/*"):
        assert b"secret" not in file.read_bytes()


def test_what_starts_the_supervisor_may_be_something_else(folder: Path) -> None:
    run, what = runner(folder, launcher=["/usr/bin/nice", "-n", "7"]), order("/bin/sh", "-c", "nice")
    run.start(what)
    assert ended(run, what).tail == str(min(19, os.nice(0) + 7))
    broken = order("/bin/sh", "-c", "nice", step="other")
    with pytest.raises(Unavailable, match="did not start a supervisor"):
        runner(folder, launcher=["/bin/false"]).start(broken)
    runner(folder).start(broken)
    assert ended(run, broken).phase is RunPhase.SUCCEEDED


HOSTILE = (
    r"\033[31mred\033[0m \033]0;title\007 bell\007 \377\376 nul\000 \302\233\062J "
    r"zero\342\200\213width \r\nover\rwrite\n"
)


def test_hostile_output_is_cleaned(folder: Path) -> None:
    what, run = order("/bin/sh", "-c", f"printf '{HOSTILE}'"), runner(folder)
    run.start(what)
    tail = ended(run, what).tail
    assert tail == "red  bell \ufffd\ufffd nul  zerowidth \nover\nwrite"


def test_of_a_log_its_last_whole_lines_travel(folder: Path) -> None:
    what, run = order("/bin/sh", "-c", "seq 1 5000"), runner(folder)
    run.start(what)
    tail = ended(run, what).tail.splitlines()
    assert len("\n".join(tail)) <= TAIL_LENGTH
    assert tail == [str(number) for number in range(5001 - len(tail), 5001)]
    assert len(tail) > 300


def test_a_full_disk_does_not_end_a_step(folder: Path) -> None:
    log = wrapper.Log(folder, 10)
    log._file.close()
    log._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    log.write(b"lost")


def test_a_log_keeps_its_beginning_and_its_end(folder: Path) -> None:
    log, text = wrapper.Log(folder, 1000), b"".join(b"%06d\n" % n for n in range(5000))
    for start in range(0, len(text), 777):
        log.write(text[start : start + 777])
    kept = [(folder / name).read_bytes() for name in ("log", "log.old", "log.new")]
    assert text.startswith(kept[0])
    assert text.endswith(kept[1] + kept[2])
    assert len(kept[0]) == len(kept[1]) == 1000
    assert len(kept[2]) <= 1000


@pytest.mark.nightly
@pytest.mark.slow
def test_a_gigabyte_of_output_costs_neither_disk_nor_memory(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    what, run = order("/bin/sh", "-c", "yes 0123456789 | head -c 1000000000; echo; echo the end"), runner(folder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    run.start(what)
    peak = 0
    while (report := run.look(what)) is not None and not report.phase.has_ended:
        status = Path(f"/proc/{record_of(folder, what)['pid']}/status")
        found = (
            [line for line in status.read_text().splitlines() if line.startswith("VmHWM")] if status.exists() else []
        )
        peak = max([peak, *(int(line.split()[1]) for line in found)])
        time.sleep(0.1)
    assert report is not None
    assert report.phase is RunPhase.SUCCEEDED
    assert report.tail.endswith("the end")
    disk = sum(file.stat().st_size for file in RunDirectory(folder / "runs", what.key).path.iterdir())
    ours = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    with capsys.disabled():
        print(
            f"\n1 GB of output: {time.monotonic() - began:.1f} s, {disk / 1e6:.1f} MB of disk, "
            f"supervisor {peak / 1e3:.1f} MB at most, worker {ours / 1e3:+.1f} MB"
        )
    assert disk < 3 * MOST_LOG + 100_000
    assert peak < 50_000  # KB: of Python alone it is ten
    assert ours < 20_000
