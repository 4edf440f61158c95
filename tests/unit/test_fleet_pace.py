"""The pace of a fleet rollout that is under way, and how each of its commands is undone."""

from __future__ import annotations

import re
import shlex
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from cli.options import settings_given
from models.fleet.commands import FleetCommand, FleetCommandRequest, obey, refusal
from models.fleet.gates import rest_until
from models.fleet.state import BREAKER, FleetRollout, FleetStage, Member, MemberState, Pace, Wave
from models.fleet.status import status_of
from models.fleet.undo_lines import fleet_undo_line
from models.lifecycle.command_rows import NEVER
from models.lifecycle.holds import HoldKind
from tests.property.test_fleet_machine import Fleet, prospect

DAY, HOUR = timedelta(days=1), timedelta(hours=1)


def refused(fleet: Fleet, **pace: Any) -> str:
    why = refusal(fleet.f, "pace", FleetCommandRequest(actor="tpm", reason="why", pace=pace))
    assert why is not None
    return why


@pytest.mark.parametrize(
    ("pace", "said"),
    [
        ({}, "pace needs KEY=VALUE: its settings are parallel, pilot_soak"),
        ({"paralel": 3}, "pace has no setting paralel: its settings are parallel"),
        ({"parallel": 0}, "parallel"),
        ({"bake": "soon"}, "bake"),
        ({"max_failed": 2}, "max_failed"),
        ({"budget_per_hour": 0}, "budget_per_hour must be at least 1, not 0: nothing would start"),
        ({"budget_per_day": 100}, "budget_per_hour must be at most 100 (budget_per_day), not 512"),
        ({"recheck": "0s"}, "recheck must be at least 1s, not 0s"),
        ({"parallel": 10, "bake": "24h"}, "nothing would change: parallel is 10, bake is 24h already"),
    ],
)
def test_a_pace_that_makes_no_sense_is_refused_by_its_field(pace: dict[str, Any], said: str) -> None:
    assert refused(Fleet([prospect(0)], Pace()), **pace).startswith(said)


def test_a_reason_is_needed() -> None:
    request = FleetCommandRequest(actor="tpm", pace={"parallel": 3})
    assert refusal(Fleet([prospect(0)], Pace()).f, "pace", request) == "pace needs a reason"


def test_more_at_once_start_at_once_and_the_audit_says_from_what_to_what() -> None:
    fleet = Fleet([prospect(n) for n in range(5)], Pace(parallel=1))
    assert len(fleet.started) == 1
    assert fleet.say("pace", pace={"parallel": 3, "budget_per_day": 5000})
    assert len(fleet.started) == 3
    (entry,) = [e for e in fleet.f.outbox if e.data.get("command") == "pace"]
    assert entry.text == "pace parallel 1 -> 3, budget_per_day 4096 -> 5000 by tpm"
    assert (entry.data["pace"], entry.reason) == ({"parallel": 3, "budget_per_day": 5000}, "as it goes")
    assert status_of(fleet.f, fleet.now).pace.parallel == 3


def test_fewer_at_once_start_none_until_there_is_room() -> None:
    fleet = Fleet([prospect(n) for n in range(5)], Pace(parallel=3))
    assert fleet.say("pace", pace={"parallel": 1})
    for name in ("c0000/1", "c0001/1"):
        for _ in range(3):
            fleet.goes_on(name)
        assert len(fleet.started) == 3
    for _ in range(3):
        fleet.goes_on("c0002/1")
    assert len(fleet.started) == 4


@pytest.mark.parametrize(("bake", "over"), [("6h", timedelta(hours=6)), ("1h", timedelta(hours=2)), ("4d", 4 * DAY)])
def test_a_bake_that_is_running_ends_so_long_after_it_began(bake: str, over: timedelta) -> None:
    """It began two hours ago: a bake of six hours ends in four; one of an hour is over now."""
    fleet = Fleet([prospect(0, Wave.IDLE), prospect(1)], Pace(bake=DAY))
    for _ in range(3):
        fleet.goes_on("c0000/1")
    began = fleet.now
    fleet.passes(2 * HOUR)
    assert rest_until(fleet.f) == began + DAY
    assert fleet.say("pace", pace={"bake": bake})
    if bake == "1h":
        assert len(fleet.started) == 2
        return
    assert rest_until(fleet.f) == began + over
    fleet.passes(over - 2 * HOUR - timedelta(seconds=1))
    assert len(fleet.started) == 1
    fleet.passes(timedelta(seconds=1))
    assert len(fleet.started) == 2


@pytest.mark.parametrize(
    ("bake", "said"),
    [
        (
            "6h",
            (
                "bake 24h -> 6h; in force at once: by the new length the running bake ends "
                "2026-03-02 06:00:00Z; "
                "rollouts that are"
            ),
        ),
        (
            "1h",
            (
                "bake 24h -> 1h; in force at once: by the new length the running bake has already ended; "
                "rollouts that are under way keep"
            ),
        ),
    ],
)
def test_it_says_from_when_it_counts(bake: str, said: str) -> None:
    fleet = Fleet([prospect(0, Wave.IDLE), prospect(1)], Pace(bake=DAY))
    for _ in range(3):
        fleet.goes_on("c0000/1")
    fleet.passes(2 * HOUR)
    request = FleetCommandRequest(actor="tpm", reason="why", pace={"bake": bake})
    assert obey(fleet.f, "pace", request, fleet.now)[1].startswith(said)


def test_a_smaller_share_of_failures_trips_the_breaker_at_once() -> None:
    fleet = Fleet([prospect(n) for n in range(5)], Pace(parallel=2, max_failed="0.5", breaker_clusters=1))  # type: ignore[arg-type]
    for rollout in ("c0000/1", "c0001/1"):
        fleet.goes_on(rollout)
    fleet.falls("c0000/1")
    assert not fleet.f.holds
    assert fleet.say("pace", pace={"max_failed": "0.1"})
    assert fleet.f.hold("breaker") is not None


# --- the undo of each command ---------------------------------------------------------------------


def commands_of(said: str) -> list[list[str]]:
    return [
        shlex.split(found)[2:] for found in re.findall(r"backstop fleet (?:'[^']*'|(?! and backstop)[^(,'])+", said)
    ]


def say_as_typed(fleet: Fleet, words: list[str]) -> bool:
    name, *rest = words
    given: dict[str, Any] = {}
    while rest and rest[-1] != "...":
        rest.pop()
    assert rest[-2:] == ["--reason", "..."]
    rest = rest[:-2]
    if "--undo" in rest:
        rest.remove("--undo")
        given["undo"] = True
    if "--wave" in rest:
        at = rest.index("--wave")
        given["wave"] = list(Wave)[int(rest[at + 1])]
        del rest[at : at + 2]
    if name == "pace":
        given["pace"] = settings_given("KEY=VALUE", rest)
    elif rest:
        given["clusters"] = tuple(rest)
    return fleet.say(name, **given)


@pytest.mark.parametrize(
    ("command", "given"),
    [
        ("pause", {}),
        ("skip", {"clusters": ("c0002", "c0003")}),
        ("skip", {"clusters": ("c0000", "c0002")}),
        ("move", {"clusters": ("c0002", "c0003"), "wave": Wave.UNALLOCATED}),
        ("move", {"clusters": ("c0004", "c0003"), "wave": Wave.BUSY}),
        ("pace", {"pace": {"parallel": 2, "bake": "1h"}}),
        ("pace", {"pace": {"max_failed": "0.25"}}),
        ("resume", {}),
        ("promote", {}),
        ("abort", {"undo": True}),
    ],
)
def test_the_undo_that_is_printed_is_taken(command: str, given: dict[str, Any]) -> None:
    fleet = Fleet(
        [prospect(0, Wave.IDLE), prospect(1, Wave.IDLE), prospect(2, Wave.IDLE), prospect(3), prospect(4)],
        Pace(parallel=1),
    )
    fleet.say("skip", clusters=("c0004",))
    if command == "resume":
        fleet.say("pause")
    if command == "promote":
        fleet.say("skip", clusters=("c0001", "c0002"))
        for _ in range(3):
            fleet.goes_on("c0000/1")
    before = fleet.f
    assert fleet.say(command, **given)
    said = fleet.undo_line
    typed = commands_of(said)
    assert typed or said.startswith(NEVER), said
    for words in typed:
        assert say_as_typed(fleet, words), (said, words)
    if said.startswith("Undo"):
        assert fleet.f.pace == before.pace
        named = [m for m in before.members.values() if not m.rollout and m.cluster in given.get("clusters", ())]
        after = [fleet.f.members[m.cluster] for m in named]
        assert [(m.wave, m.state) for m in after] == [(m.wave, m.state) for m in named]


THEIRS = "a cluster with a rollout cannot be added again"
LIFTS_BREAKER = "`backstop fleet resume` would also lift hold breaker"


@pytest.mark.parametrize(
    ("command", "clusters", "said"),
    [
        ("move", ("after",), "It cannot be undone: no cluster can be moved to after the last wave."),
        ("move", ("pilot",), "It cannot be undone: the pilots are over."),
        (
            "move",
            ("idle", "after"),
            (
                "Undo: backstop fleet move idle --wave 3 {} (not for after: no cluster can be moved to after the "
                "last wave)"
            ),
        ),
        (
            "move",
            ("after", "pilot"),
            "It cannot be undone: after: no cluster can be moved to after the last wave; pilot: the pilots are over.",
        ),
        ("skip", ("after",), "It cannot be undone: no cluster can be moved to after the last wave."),
        ("skip", ("open",), f"It cannot be undone: {THEIRS}."),
        (
            "skip",
            ("open", "open-2", "idle"),
            f"Undo: backstop fleet move idle --wave 3 {{}} (not for open open-2: {THEIRS})",
        ),
        ("pause", (), "Undo: backstop fleet resume {}"),
        ("pause failed", (), "Undo: backstop fleet resume {} (earlier failures then no longer count)"),
        (
            "pause failed breaker",
            (),
            f"The pause cannot be lifted alone: {LIFTS_BREAKER}, and earlier failures would no longer count.",
        ),
    ],
)
def test_an_undo_of_a_fleets_command_says_what_it_leaves_and_what_it_would_lift(
    command: str, clusters: tuple[str, ...], said: str
) -> None:
    now = datetime(2026, 3, 2, 12, tzinfo=UTC)
    waves = {"pilot": Wave.PILOT, "idle": Wave.IDLE, "after": Wave.AFTER, "open": Wave.IDLE, "open-2": Wave.IDLE}
    members = {name: Member(cluster=name, wave=wave) for name, wave in waves.items()}
    for name in ("open", "open-2"):
        members[name] = members[name].but(rollout=f"{name}/1", state=MemberState.RUNNING)
    running: dict[str, Any] = {"stage": FleetStage.RUNNING, "plan_hash": "h", "approved_by": "tpm", "entered_at": now}
    fleet_rollout = FleetRollout(
        id="f", owner="tpm", launched_at=now, pace=Pace(), wave=Wave.IDLE, members=members, **running
    )
    name, *beside = command.split()
    if "failed" in beside:
        fleet_rollout = fleet_rollout.but(members={**members, "open": members["open"].but(failed_at=now)})
    if "breaker" in beside:
        fleet_rollout = fleet_rollout.add_hold(BREAKER, HoldKind.BREAKER, "2 of 5 rolled back", now)
    wave = Wave.BUSY if name == "move" else None
    request = FleetCommandRequest(actor="tpm", reason="r", clusters=clusters, wave=wave)
    assert refusal(fleet_rollout, cast("FleetCommand", name), request) is None
    after, _ = obey(fleet_rollout, cast("FleetCommand", name), request, now)
    line = fleet_undo_line(fleet_rollout, after, cast("FleetCommand", name), request)
    assert line == said.format("--reason '...'")
    for words in commands_of(line) if line.startswith("Undo") else ():
        typed = [w for w in words[1:] if not w.startswith("-") and w in members]
        again = FleetCommandRequest(actor="tpm", reason="r", clusters=tuple(typed), wave=Wave.IDLE)
        assert refusal(after, cast("FleetCommand", words[0]), again) is None


@pytest.mark.parametrize(
    ("clusters", "said"),
    [
        (("c0001",), "1 cluster is skipped"),
        (("c0000", "c0001"), "2 clusters are skipped; a rollout that is open there goes on"),
    ],
)
def test_a_skip_says_that_a_rollout_goes_on_once_and_only_where_there_is_one(
    clusters: tuple[str, ...], said: str
) -> None:
    fleet = Fleet([prospect(0), prospect(1)], Pace(parallel=1))
    assert [c for c, m in fleet.f.members.items() if m.rollout] == ["c0000"]
    fleet.say("skip", clusters=clusters)
    assert fleet.said == said
    assert "goes on" not in fleet.undo_line


def test_an_approval_is_undone_by_an_abort_that_undoes() -> None:
    fleet = Fleet([prospect(0)], Pace())
    (words,) = commands_of(fleet_undo_line(fleet.f, fleet.f, "approve", FleetCommandRequest(actor="tpm")))
    assert words[:2] == ["abort", "--undo"]
    assert say_as_typed(fleet, words)
    assert fleet.f.stage is FleetStage.ABORTED
    assert fleet.f.members["c0000"].state is not MemberState.WAITING
