"""What people see of a fleet rollout is of one moment, and the same wherever they look."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from cli.main import run
from models.cluster.windows import Entry, Window, WindowKind
from models.fleet.messages import FleetStatus
from models.fleet.state import MemberState
from models.rollout.holds import Hold, HoldKind
from models.rollout.shown import Condition
from models.rollout.stages import Stage
from models.rollout.status import status_of
from tests.unit.cli_fakes import FakeBackstop, answering, status
from tests.unit.pure_world import World
from tests.unit.test_cli_fleet_rollout import NOON, fleet, status_at

HOUR = timedelta(hours=1)
CALM: dict[str, Any] = {"at_risk": (), "needs": "", "entered_at": NOON - HOUR, "rollout": "h100-0000/1"}
YEAR_END = Window(kind=WindowKind.FREEZE, starts=NOON - HOUR, ends=NOON + 900 * HOUR, reason="year end")


def frozen(*clusters: str) -> list[Entry]:
    return [
        Entry(id=n, cluster=c, window=YEAR_END, source="hold 1", declared_by="tpm") for n, c in enumerate(clusters, 1)
    ]


def output(capsys: pytest.CaptureFixture[str], *words: str, shown: FleetStatus, **door: Any) -> str:
    with answering(FakeBackstop(fleet=shown, **door)):
        assert run(["fleet", *words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("words", [("status",), ("status", "--all"), ("watch", "--once")])
def test_a_freeze_is_in_the_status_as_in_the_watch(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    hold = Hold(id="f", kind=HoldKind.FREEZE, reason="year end", actor="calendar", at=NOON, until=YEAR_END.ends)
    rollout = status(Stage.BUFFERED, **CALM, holds=(hold,))
    members = [m.cluster for m in status_at(fleet(8)).members]
    said = output(capsys, *words, shown=status_at(fleet(8)), statuses=[rollout], entries=frozen(*members))
    text = " ".join(said.split())
    assert "freeze until 2026-04-09 00:00:00Z, year end: all 8 clusters" in text
    assert "held: freeze, year end, until" in text


def test_a_window_of_some_clusters_names_those_that_are_not_through(capsys: pytest.CaptureFixture[str]) -> None:
    shown = status_at(fleet(8))
    through = tuple(
        m.model_copy(update={"state": MemberState.DONE}) if m.cluster == "h100-0001" else m for m in shown.members
    )
    said = output(
        capsys,
        "status",
        shown=shown.model_copy(update={"members": through}),
        statuses=[status(Stage.BUFFERED, **CALM, holds=())],
        entries=frozen("h100-0001", "h100-0002", "another"),
    )
    assert "year end: h100-0002\n" in said


@pytest.mark.parametrize("words", [("status", "--all"), ("watch", "--once"), ("status", "--json")])
def test_a_stage_and_what_it_waits_for_are_of_one_moment(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    """The fleet rollout has noted `planned`; the rollout itself is in `buffered` by now, and soaks there."""
    soak = Condition(name="soak", met=False, text="soak of 24h", until=NOON + 5 * HOUR)
    rollout = status(Stage.BUFFERED, **CALM, holds=(), waiting_for=(soak,))
    said = " ".join(output(capsys, *words, shown=status_at(fleet(8)), statuses=[rollout]).split())
    assert "soak of 24h, until 2026-03-02 17:00:00Z" in said
    assert "buffered" in said
    assert "planned" not in said


def test_another_rollout_of_the_cluster_says_nothing_of_this_one(capsys: pytest.CaptureFixture[str]) -> None:
    other = status(Stage.BUFFERED, **CALM | {"rollout": "h100-0000/2"}, holds=())
    said = output(capsys, "status", "--all", shown=status_at(fleet(8)), statuses=[other])
    assert "planned" in said
    assert "buffered" not in said


def test_no_next_look_lies_behind_the_moment_of_the_status() -> None:
    """A rollback whose inverses are through ends at once: nothing is waited for until a moment that is over."""
    world = World().start()
    over = world.r.but(stage=Stage.ROLLING_BACK)
    assert status_of(over, world.now).next_at is None
    assert status_of(world.r, world.now).next_at > world.now
