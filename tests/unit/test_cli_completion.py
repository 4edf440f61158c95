"""The shell's completions for the next word: commands as typer has them, names as commands have seen them, at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer._completion_shared import get_completion_script

from cli import completion
from cli import completion_names as names
from cli.completion_tree import make_tree
from cli.main import run
from models.rollout.stages import Stage
from tests.unit.cli_fakes import WORKED, FakeBackstop, answering, status
from tests.unit.test_cli_request import asked
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
TREE = make_tree()
KNOWN: dict[str, Any] = {
    "clusters": {"h100-pods": "monitored", "h100-worked": "", "a100-lab": "stuck"},
    "teams": ["evals", "research"],
    "holds": {"h100-pods": ["drift", "objection-research"]},
    "windows": {"h100-pods": ["7", "12"]},
    "requests": {"q-1": "a c1 asked"},
}


class Clock:
    """A clock by which names grow old."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(names, "time", clock)
    return clock


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BACKSTOP_HOME", str(tmp_path))
    monkeypatch.setattr(names, "folder", lambda: str(tmp_path / "completion"))
    return tmp_path / "completion"


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("stat", ["status"]),
        ("fleet st", ["status"]),
        ("status h100-", ["h100-pods", "h100-worked"]),
        ("status --stage=x --open h100-p", ["h100-pods"]),
        ("status --stage roll", ["rolling_back", "rolled_back"]),
        ("status --wave ", ["unallocated", "unscheduled", "idle", "busy"]),
        ("status -o ", ["table", "wide", "json", "yaml", "name"]),
        ("status --nee", ["--needs"]),
        ("ack h100-pods --team r", ["research"]),
        ("why e", ["evals"]),
        ("why evals --cluster a", ["a100-lab"]),
        ("resolve h100-pods --hold ", ["drift", "objection-research"]),
        ("resolve a100-lab --hold ", []),
        ("resolve --hold ", ["drift", "objection-research"]),
        ("calendar end h100-pods ", ["12", "7"]),
        ("calendar end a100-lab ", []),
        ("flex d", ["divide"]),
        ("flex h100-w", ["h100-worked"]),
        ("flex h100-worked --mo", ["--mode"]),
        ("fleet skip h100-pods a", ["a100-lab"]),
        ("status h100-pods a", []),
        ("request show q", ["q-1"]),
        ("request re", ["research"]),
        ("status --owner ", []),
        ("plan --file ", []),
        ("nonsense ", []),
    ],
)
def test_the_next_word_is_offered(typed: str, words: list[str]) -> None:
    *before, begun = typed.split(" ")
    assert [word for word, _ in completion.offers_for(TREE, KNOWN, before, begun)] == words


def test_every_command_and_option_of_ours_is_in_the_tree() -> None:
    from tests.unit.test_cli_docs import COMMANDS

    for name, command in COMMANDS.items():
        node = TREE
        for word in name.split():
            node = node["commands"][word]
        assert {option for p in command.params for option in p.opts if option.startswith("-")} <= {*node["options"]}
        assert node["help"] == command.help.strip().splitlines()[0]


def test_a_stage_is_said_beside_its_cluster() -> None:
    assert completion.offers_for(TREE, KNOWN, ["status"], "a") == [("a100-lab", "stuck")]
    assert {*completion.offers_for(TREE, {}, ["status", "--stage"], "")} == {(stage.value, "") for stage in Stage}


# --- names -------------------------------------------------------------------------------------------------


def test_commands_keep_the_names_that_they_see(kept: Path, clock: Clock) -> None:
    with answering(FakeBackstop(statuses=[status()], requests_open=[asked()])):
        assert run(["fleet", "show", "--json"]) == 0
        assert run(["status", WORKED.name, "--json"]) == 0
        assert run(["status", "--json"]) == 0
    known = names.kept_names()
    assert known["teams"] == ["research"]
    assert known["clusters"][WORKED.name] == "planned"
    assert known["clusters"]["cluster-with-a-rather-long-name-000000"] == "monitored"
    assert known["holds"] == {WORKED.name: ["paused"]}
    assert names.age() == 0
    clock.now += 60
    assert names.age() == 60
    (file,) = kept.glob("names-*.json")
    assert file.stat().st_mode & 0o077 == 0, "names are nobody else's"


def test_names_of_one_temporal_are_not_offered_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    names.note_stages({"here": "planned"})
    monkeypatch.setenv("TEMPORAL_ADDRESS", "elsewhere:7233")
    assert names.kept_names() == {}


def test_a_cluster_that_is_gone_is_forgotten() -> None:
    names.note_fleet({"a": "", "b": ""}, [])
    names.note_holds("b", ["drift"])
    names.note_fleet({"a": "planned"}, ["t"])
    assert (names.kept_names()["clusters"], names.kept_names()["holds"]) == ({"a": "planned"}, {})


@pytest.mark.parametrize("broken", ["", "[1]", "{", "\x00", "[" * 100_000])
def test_a_broken_file_is_no_file(kept: Path, broken: str) -> None:
    kept.mkdir()
    Path(names.file()).write_text(broken)
    assert names.kept_names() == {}
    names.note_stages({"a": "planned"})
    assert names.kept_names() == {"clusters": {"a": "planned"}}


def test_where_nothing_can_be_kept_nobody_minds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "folder", lambda: "/proc/none")
    names.note_stages({"a": "planned"})
    assert names.kept_names() == {}


# --- the shell ---------------------------------------------------------------------------------------------


def told(kept: Path, shell: str, typed: str, **more: str) -> subprocess.CompletedProcess[str]:
    words = ["backstop", *typed.split(" ")]
    asked_by = {
        "_BACKSTOP_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": "\n".join(words),
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": " ".join(words),
    }
    environment = {**os.environ, **asked_by, "PYTHONPATH": str(ROOT), **more}
    program = [sys.executable, *(["-X", "importtime"] if "importtime" in more else []), "-m", "cli.main"]
    return subprocess.run(program, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.fixture
def fresh() -> None:
    names.note_fleet({"h100-pods": "monitored", "a:b": "", "x$(touch y)": "", "a b": "", "e\x1b[31m": ""}, ["evals"])
    names.write(os.path.join(names.folder(), "commands.json"), {"stamp": completion._stamp(), "tree": TREE})


def test_a_completion_imports_nothing_heavy_and_asks_nobody(kept: Path, fresh: None) -> None:
    done = told(kept, "bash", "status h1", importtime="1", TEMPORAL_ADDRESS="")
    assert done.returncode == 0
    loaded = {text.rsplit("|", 1)[-1].strip().split(".")[0] for text in done.stderr.splitlines() if "|" in text}
    assert "cli" in loaded
    heavy = {"typer", "rich", "pydantic", "temporalio", "asyncio", "socket", "client", "yaml", "logging"}
    assert loaded & heavy == set()


@pytest.mark.parametrize(
    ("shell", "typed", "said"),
    [
        ("bash", "status h", "h100-pods\n"),
        ("fish", "status h", "h100-pods\tmonitored\n"),
        ("zsh", "status h", '_arguments \'*: :(("h100-pods":"monitored"))\'\n'),
        ("zsh", "status a", "_arguments '*: :((\"a\\\\:b\"))'\n"),
        ("zsh", "plan --file ", "_files\n"),
        ("bash", "status x", ""),
        ("bash", "status e", ""),
    ],
)
def test_each_shell_is_answered_in_its_way(kept: Path, fresh: None, shell: str, typed: str, said: str) -> None:
    """Names that a shell would have to quote are left to be typed: `x$(touch y)` is somebody else's text."""
    environment = {name: os.environ[name] for name in ("TEMPORAL_ADDRESS",) if name in os.environ}
    assert told(kept, shell, typed, **environment).stdout == said


def test_bash_completes_by_the_script_that_is_installed(kept: Path, fresh: None, tmp_path: Path) -> None:
    shim = tmp_path / "bin" / "backstop"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m cli.main "$@"\n')
    shim.chmod(0o755)
    script = get_completion_script(prog_name="backstop", complete_var=completion.ASKED_BY, shell="bash")
    ask = 'COMP_WORDS=(backstop status h10); COMP_CWORD=2; _backstop_completion backstop; echo "${COMPREPLY[@]}"'
    environment = {**os.environ, "PATH": f"{shim.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", f"{script}\n{ask}"], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "h100-pods\n"


def test_old_names_are_looked_up_aside_and_not_at_every_tab(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], clock: Clock, fresh: None
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(completion, "_PAUSE_SECONDS", 10**6)  # by the files' own time: three looks of any length
    monkeypatch.setattr(os, "posix_spawn", lambda *given, **more: started.append((given, more)))
    monkeypatch.setenv(completion.ASKED_BY, "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "backstop\nstatus\n")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert completion.answer() == 0
    assert started == [], "they are fresh"
    clock.now += 3600
    for _ in range(3):
        assert completion.answer() == 0
    ((program, more),) = started
    assert completion.ASKED_BY not in program[2], "or it would answer a shell in its turn"
    assert more["setsid"]
    assert capsys.readouterr().out.split("\n")[:2] == ["a:b", "h100-pods"]


def test_the_look_aside_keeps_all_names(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    async def ask(question: Any) -> Any:
        return (asked(),)

    door = FakeBackstop()
    door.ask = ask  # type: ignore[method-assign]
    with answering(door):
        exec(completion._LOOK.format(main="cli.main"), {})
    assert (WORKED.name in names.kept_names()["clusters"], [*names.kept_names()["requests"]]) == (True, ["q-1"])
    assert names.age() == 0


@pytest.fixture
def edited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "_stamp", lambda: ["elsewhere", 1.0, 2.0])


def test_commands_are_read_anew_when_our_sources_change(kept: Path, edited: None) -> None:
    kept.mkdir()
    names.write(str(kept / "commands.json"), {"stamp": ["old"], "tree": {"commands": {}}})
    assert completion._tree() == TREE
    assert names.read(str(kept / "commands.json"))["stamp"] == ["elsewhere", 1.0, 2.0]
