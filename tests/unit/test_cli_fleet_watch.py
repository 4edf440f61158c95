"""`fleet watch`: a tree that is drawn again in place, one line for each change in a pipe, and when it ends."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from cli.main import run
from models.errors import Refusal, Unavailable
from models.fleet.messages import FleetStatus
from models.fleet.state import FleetStage, MemberState
from models.rollout.stages import Stage
from models.rollout.status_models import Condition
from tests.unit.cli_fakes import FakeBackstop, answering, status
from tests.unit.test_cli_fleet_rollout import NOON, fleet, status_at
from views.fleet_rollout_tree import FleetSeen, tree_parts

HOUR = timedelta(hours=1)
LONG = "a-cluster-with-a-name-that-is-forty-long"
CALM: dict[str, Any] = {
    "holds": (),
    "at_risk": (),
    "needs": "",
    "entered_at": NOON - HOUR,
    "rollout": "h100-0000/1",
}


@dataclass
class Looked(FakeBackstop):
    """Fleet statuses are given one by one, the last for ever; an error among them is raised."""

    looks: list[FleetStatus | BaseException] = field(default_factory=list)

    async def fleet_status(self) -> FleetStatus:
        found = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        if isinstance(found, BaseException):
            raise found
        return found


def at(n: int, changes: dict[str, dict[str, Any]] | None = None, **more: Any) -> FleetStatus:
    made = status_at(fleet(n))
    members = tuple(m.model_copy(update=(changes or {}).get(m.cluster, {})) for m in made.members)
    return made.model_copy(update={"members": members, **more})


DONE = {"h100-0000": {"state": MemberState.DONE, "stage": "monitored"}}
ENDED: dict[str, Any] = {"stage": FleetStage.DONE, "waits_for": "every wave is through", "needs": ""}


def watched(looks: Sequence[Any], *words: str, **more: Any) -> int:
    soak = Condition(name="soak", met=False, text="soak of 24h", until=NOON + 5 * HOUR)
    rollouts: list[Any] = [status(Stage.BUFFERED, **CALM, waiting_for=(soak,))]
    with answering(Looked(looks=[*looks], statuses=rollouts, **more)):
        return run(["fleet", "watch", "--every", "0.1", *words])


def test_each_change_is_one_line_until_the_fleet_has_ended(capsys: pytest.CaptureFixture[str]) -> None:
    held = {"h100-0004": {"held": "a freeze", "held_until": NOON + HOUR}}
    looks = [at(8), at(8), at(8, DONE), at(8, DONE | held), at(8, DONE | held, **ENDED), Refusal("nobody looks again")]
    assert watched(looks) == 0
    lines = [re.sub(r"^\d\d:\d\d:\d\dZ  ", "", text) for text in capsys.readouterr().out.splitlines()]
    assert lines == [
        "fleet: running; 1 of the pilot wave is under way",
        "h100-0000 (pilot): buffered; soak of 24h, until 2026-03-02 17:00:00Z",
        "h100-0000 (pilot): monitored",
        "h100-0004 (1 unallocated): waiting; a freeze (until 2026-03-02 13:00:00Z)",
        "fleet: done; every wave is through",
    ]


def test_a_server_that_is_away_is_waited_for_and_a_refusal_is_an_end(capsys: pytest.CaptureFixture[str]) -> None:
    away = Unavailable("no worker is running")
    assert watched([at(4), away, away, Refusal("the fleet rollout has ended")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines.count("no answer: no worker is running") == 1
    assert lines[-1] == "the fleet rollout has ended"
    assert watched([away]) == 1
    assert watched([Refusal("there is no fleet rollout")]) == 3


def test_ctrl_c_ends_it_quietly(capsys: pytest.CaptureFixture[str]) -> None:
    assert watched([at(4), KeyboardInterrupt()]) == 130
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2
    assert err == ""


def test_json_is_a_document_for_each_change(capsys: pytest.CaptureFixture[str]) -> None:
    assert watched([at(4), at(4), at(4, DONE), at(4, DONE, **ENDED)], "--json") == 0
    documents = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert [d["members"][0]["state"] for d in documents] == ["running", "done", "done"]
    assert [d["stage"] for d in documents] == ["running", "running", "done"]
    assert watched([at(4)], "--once", "--json") == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "backstop.fleet-status/1"


def test_the_tree_has_waves_as_branches_and_clusters_as_leaves(capsys: pytest.CaptureFixture[str]) -> None:
    needy = {"h100-0004": {"needs": "paused by oncall: backstop resume h100-0004", "state": MemberState.RUNNING}}
    assert watched([at(8, needy)], "--once") == 0
    lines = capsys.readouterr().out.splitlines()
    begins = lines.index("") + 1
    tree = [re.sub(r"(?<=\S) {2,}", "  ", re.sub(r"\d+[smhd](?=  |$)", "AGO", text)) for text in lines[begins:]]
    assert tree == [
        "├─ pilot  0 of 1 monitored, 1 under way",
        "│  └─ ●  h100-0000  buffered  AGO  soak of 24h, until 2026-03-02 17:00:00Z",
        "├─ 1 unallocated  0 of 1 monitored, 1 waiting",
        "│  └─ ●  h100-0004  running  paused by oncall: backstop resume h100-0004",
        "├─ 2 unscheduled  0 of 2 monitored, 2 waiting",
        "│  ├─ ○  h100-0001  waiting",
        "│  └─ ○  h100-0005  waiting",
        "├─ 3 idle  0 of 2 monitored, 2 waiting",
        "│  ├─ ○  h100-0002  waiting",
        "│  └─ ○  h100-0006  waiting",
        "└─ 4 busy  0 of 2 monitored, 2 waiting",
        "   ├─ ○  h100-0003  waiting",
        "   └─ ○  h100-0007  waiting",
    ]


# --- on a terminal -----------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def screen_of(written: str, width: int) -> list[str]:
    """Return the content of a terminal of this width after these characters, as xterm reads those that we use."""
    rows, y, x = [""], 0, 0
    for code, move, char in re.findall(r"\x1b\[([\d;?]*)([A-Za-z])|(.)", written, re.DOTALL):
        if move == "A":
            y = max(0, y - int(code or 1))
        elif move == "J":
            rows = [*rows[:y], rows[y][:x]]
        elif char == "\r":
            x = 0
        elif char == "\n":
            y, x = y + 1, 0
        elif char:
            if x == width:
                y, x = y + 1, 0
            rows += [""] * (y + 1 - len(rows))
            rows[y] = rows[y][:x].ljust(x) + char + rows[y][x + 1 :]
            x += 1
        rows += [""] * (y + 1 - len(rows))
    return [row.rstrip() for row in rows]


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, looks: Sequence[Any], columns: int, rows: int = 60) -> str:
    terminal = Terminal()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", terminal)
        patched.setenv("COLUMNS", str(columns))
        patched.setenv("LINES", str(rows))
        patched.setenv("TERM", "xterm")
        assert watched(looks) == 0
    return terminal.getvalue()


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_the_picture_is_drawn_anew_in_place(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """This holds also below commands longer than the terminal is wide: nothing of an earlier picture is left."""
    command = f"backstop resolve {LONG} --hold objection-research --reason 'research has agreed to Monday'"
    one = {"h100-0000": {"cluster": LONG, "needs": f"held: {command}"}}
    last = at(4, one, **ENDED)
    written = on_a_terminal(monkeypatch, [at(4, one), at(8, one), Unavailable("no worker is running"), last], columns)
    alone = on_a_terminal(monkeypatch, [last], columns)
    assert "No answer: no worker is running" in written
    ago = re.compile(r"\b\d+[smhd]\b")
    assert [ago.sub("", t) for t in screen_of(written, columns)] == [ago.sub("", t) for t in screen_of(alone, columns)]
    assert command in re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", written), "it is not cut"
    assert "".join(text.strip("│ ") for text in screen_of(alone, columns)).count("backstop resolve") == 1
    assert written.endswith("\x1b[?25h"), "the cursor is back"


@pytest.mark.parametrize("rows", [24, 40])
def test_a_large_fleet_fits_the_screen_and_what_is_hidden_is_counted(rows: int) -> None:
    from rich.console import Console, Group

    seen = FleetSeen(at(1000, {"h100-0500": {"needs": "look at it", "state": MemberState.RUNNING}}))
    out = io.StringIO()
    Console(file=out, width=80).print(Group(*tree_parts(seen, NOON + HOUR, (80, rows))))
    lines = out.getvalue().splitlines()
    assert len(lines) <= rows
    assert any("h100-0500" in text for text in lines), "who needs a person comes first"
    shown = sum(bool(re.search(r"─ [●○✔✖-]  ", text)) for text in lines)
    hidden = sum(int(found) for found in re.findall(r"and (\d+) more", out.getvalue()))
    assert shown + hidden == 1000


WHY = "health is unknown since 2026-11-20 10:00Z: mend the health source of this cluster, which holds the launch"


def test_of_a_fleet_that_has_ended_nothing_waits_any_more() -> None:
    from rich.console import Console, Group

    ended = {"h100-0001": {"state": MemberState.ENDED, "stage": "aborted", "started_at": NOON}}
    seen = FleetSeen(at(4, ended).but(stage=FleetStage.ABORTED))
    out = io.StringIO()
    Console(file=out, width=100).print(Group(*tree_parts(seen, NOON + HOUR)))
    said = out.getvalue()
    assert "waiting" not in said
    assert "never started" in said
    (aborted,) = [text for text in said.splitlines() if "h100-0001" in text]
    assert aborted.rstrip().endswith("aborted"), "since when is not known"


@pytest.mark.parametrize("rows", [14, 24, 40])
@pytest.mark.parametrize("clusters", [8, 60])
@pytest.mark.parametrize("columns", [60, 80, 200])
def test_what_clusters_wait_for_pushes_no_line_off_the_screen(rows: int, clusters: int, columns: int) -> None:
    """Each waits for something in a hundred characters, and one for a command that is longer than a line."""
    from rich.console import Console, Group

    names = [f"h100-{n:04d}" for n in range(clusters)]
    command = f"backstop resolve {names[4]} --hold objection-research --reason 'research has agreed to Monday'"
    long: dict[str, Any] = {name: {"held": WHY} for name in names[1:]}
    seen = FleetSeen(at(clusters, {**long, names[4]: {"needs": f"objected: {command}"}}))
    out = io.StringIO()
    Console(file=out, width=columns).print(Group(*tree_parts(seen, NOON + HOUR, (columns, rows))), crop=False)
    lines = out.getvalue().splitlines()
    assert sum(max(1, -(-len(text) // columns)) for text in lines) < rows, out.getvalue()
    waves = [text for text in lines if re.match(r"[├└]─ ", text)]
    assert len(waves) == 5
    leaves = [text for text in lines if re.search(r"─ [●○✔✖-]  ", text)]
    assert rows < 24 or len(leaves) >= 5
    words = {word.rstrip(",;:") for word in f"{WHY} objected: {command} …".split()}
    assert command in out.getvalue() or "backstop resolve" not in out.getvalue(), "whole or not at all"
    for text in leaves:
        assert {word.rstrip(",;:") for word in text.partition(" waiting ")[2].split()} <= words, "no word is broken"
