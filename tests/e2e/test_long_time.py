"""Weeks and months of one rollout on virtual time: four weeks by hand, daily breaches, long clocks, long outages.

tests/e2e/skipping.py says how the clocks are kept together, and plays the whole year.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from models.lifecycle.holds import HoldKind
from models.rollout.stages import Command, Stage
from models.rollout.state import Rollout
from tests.e2e.skipping import ANSWER, SETUP, SUGGESTED, Played, check, monitored, play, playing
from tests.e2e.world import eventually, team

pytestmark = pytest.mark.slow

LATE = 3 / 60
"""Hours by which anything may be late: the real seconds that people, calls and a noisy machine take."""


@pytest.fixture
async def played(sqlite_ledger_url: str, tmp_path: Path) -> AsyncIterator[Played]:
    async with playing(sqlite_ledger_url, tmp_path) as found:
        yield found


def two_teams(name: str, windows: list[dict[str, Any]], **policy: Any) -> dict[str, Any]:
    """361 GPUs, 319 healthy, 345 promised: C = min(floor(0.85 * 361), 319 - 8) = 306, haircut 39.

    Unscheduled are 20 + 15, all of it goes. Of busy 180 and 130 four more, by Webster 180, 130, 60, 43.3: two each.
    So alpha 200 - 22 = 178 and beta 145 - 17 = 128.
    """
    return {
        "name": name,
        "gpus_per_node": 8,
        "islands": [{"name": "main", "total_gpus": 361, "healthy_gpus": 319}],
        "policy": policy,
        "quotas": [team("alpha", 200, busy=180), team("beta", 145, busy=130)],
        "windows": windows,
    }


def healthy(gpus: int) -> dict[str, tuple[int, int]]:
    return {"main": (361, gpus)}


@pytest.mark.nightly
async def test_four_weeks_pass_as_computed_by_hand(played: Played) -> None:
    """Defaults: notice 3d, soaks 24h and 3d, breach_after 10m, recover_after 6h. Hours from the launch."""
    sql, day = played.sql, 24
    began = played.began

    def window(kind: str, starts: float, ends: float, **more: Any) -> dict[str, Any]:
        hours = {"starts": began + timedelta(hours=starts), "ends": began + timedelta(hours=ends)}
        return {"kind": kind, "reason": f"{kind} of the story", **{k: t.isoformat() for k, t in hours.items()}, **more}

    await played.opened(
        two_teams(
            "weeks",
            [
                window("freeze", 2 * day + 12, 4 * day + 12),
                window("maintenance", 10 * day + 12, 12 * day + 6, gpus=24),
                window("freeze", 13 * day, 14 * day),  # while monitored: of no consequence
            ],
            acks="all",
            safety_poll="4h",
        ),
        healthy(319),
    )
    name = played.name
    await played.to(1)
    await played.approve(name)

    # The notice is over at 1 + 72 h; the freeze keeps the gate shut until day 4, 12:00.
    await played.to(3 * day)
    assert [c.name for c in (await played.status(name)).waiting_for] == ["notice", "holds"]
    await played.to(3 * day + 2)
    status = await played.status(name)
    assert [c.name for c in status.waiting_for] == ["holds"]
    assert [h.kind for h in status.holds] == [HoldKind.FREEZE]
    await played.to(4 * day + 13)
    assert sql.gpus(name) == {"alpha": 178, "beta": 128}
    assert set(sql.modes(name).values()) == {"soft"}

    # The soak is over at day 5, 12:00. The objection is resolved at day 6, 06:00; the last acknowledgement comes 08:00.
    await played.to(4 * day + 18)
    await played.say(name, Command.ACK, actor="a-lead", team="alpha")
    await played.to(4 * day + 20)
    await played.say(name, Command.OBJECT, actor="b-lead", team="beta")
    await played.to(6 * day + 6)
    assert (await played.status(name)).stage is Stage.BUFFERED
    await played.say(name, Command.RESOLVE, hold="objection-beta")
    await played.to(6 * day + 8)
    assert set(sql.modes(name).values()) == {"soft"}
    await played.say(name, Command.ACK, actor="b-lead", team="beta")

    # A pause from day 7 to 8 restarts the soak: over at day 11; the maintenance holds until day 12, 06:00.
    await played.to(7 * day)
    assert sql.mode(name) == "hard"
    await played.say(name, Command.PAUSE)
    await played.to(8 * day)
    await played.say(name, Command.RESUME)
    await played.changed(10 * day + 12, healthy(295))
    await played.to(11 * day + 12)
    status = await played.status(name)
    assert (status.stage, status.breach_of) == (Stage.ENFORCED, ())
    assert [h.kind for h in status.holds] == [HoldKind.MAINTENANCE]
    assert sum(r.quota_gpus - r.backing_gpus for r in status.at_risk) == 306 - 295
    await played.changed(12 * day + 4, healthy(319))

    # 29 GPUs go at day 15, 06:00: a breach ten minutes later. They return at 18:00, six hours before the next attempt.
    await played.changed(15 * day + 6, healthy(290))
    await played.to(15 * day + 17)
    assert sum(sql.gpus(name).values()) == 290
    assert set(sql.modes(name).values()) == {"soft"}
    await played.changed(15 * day + 18, healthy(319))

    # Nine bad minutes at day 21 are no breach.
    await played.changed(21 * day, healthy(290))
    await played.changed(21 * day + 9 / 60, healthy(319))
    await played.to(28 * day)
    assert sql.gpus(name) == {"alpha": 178, "beta": 128}
    assert sql.mode(name) == "hard"
    state = await played.handle(name).query("state", result_type=Rollout)
    assert state.seen is not None
    assert state.seen.windows == ()  # those that are over are not carried along for ever
    await played.say(name, Command.CLOSE)
    assert (await played.ended(name))["stage"] == "closed"

    breach, again = 15 * day + 6 + 10 / 60, 15 * day + 18 + 6
    by_hand = [
        ("buffered", 4 * day + 12),
        ("enforced", 6 * day + 8),
        ("monitored", 12 * day + 6),
        ("rolling_back", breach),
        ("rolled_back", breach),
        ("planned", again),  # inside the envelope, told and acknowledged: its gate is open
        ("buffered", again),
        ("enforced", again + 24),
        ("monitored", again + 24 + 72),
        ("closed", 28 * day),
    ]
    assert_timeline(played.transitions(), by_hand)
    times = sql.rows("SELECT kind, at FROM receipts WHERE rollout = ? ORDER BY counter", f"{name}/1")
    stays = iter(sql.effects(f"{name}/1"))
    wanted = next(stays)
    landed = []
    for kind, at in times:
        if kind == wanted:
            landed.append((kind, played.hours(at)))
            wanted = next(stays, "")
    assert_timeline(
        landed,
        [
            *(("reserve", 4 * day + 12), ("set_soft", 4 * day + 12), ("harden", 6 * day + 8), ("follow", 12 * day + 6)),
            *((kind, breach) for kind in ANSWER),
            *(("reserve", again), ("set_soft", again), ("harden", again + 24), ("follow", again + 24 + 72)),
            ("close", 28 * day),
        ],
    )
    # Told once of the plan, though there were two attempts; and of what came of it.
    kinds = [kind for kind, audience in played.notices(name) if audience == "alpha"]
    assert kinds == [
        *("planned", "buffered", "enforced"),
        *("at_risk", "at_risk"),  # the maintenance takes GPUs, and gives them back
        *("monitored", "at_risk", "breach", "rolled_back"),
        *("buffered", "enforced", "monitored"),
        *("at_risk", "at_risk", "closed"),  # the nine bad minutes
    ]
    assert sql.broken_links(name) == []
    await played.runs()


def assert_timeline(found: list[tuple[str, float]], by_hand: list[tuple[str, float]]) -> None:
    """The same in the same order, each at its hour: never early, hardly late."""
    assert [what for what, _ in found] == [what for what, _ in by_hand]
    for (what, at), (_, due) in zip(found, by_hand, strict=True):
        assert due - 1e-6 <= at < due + LATE, f"{what} at hour {at}, by hand {due}"


@pytest.mark.nightly
async def test_days_with_a_breach_each_stay_small_and_lose_nothing(played: Played) -> None:
    year = await play(played, 9, breaches=True, suggested=SUGGESTED, says=lambda _: None)
    assert len(year.runs) > 1
    assert len(played.said) > 20
    check(played, year, suggested=SUGGESTED)


@pytest.mark.nightly
async def test_so_do_they_through_many_runs(sqlite_ledger_url: str, tmp_path: Path) -> None:
    few = 300
    async with playing(sqlite_ledger_url, tmp_path, f"limit.historyCount.suggestContinueAsNew={few}") as played:
        year = await play(played, 3, breaches=True, suggested=few, says=lambda _: None)
        assert len(year.runs) > 5
        assert len(played.said) > 10
        check(played, year, suggested=few)


@pytest.mark.nightly
async def test_a_quiet_day_costs_one_look(played: Played) -> None:
    await monitored(played)
    await played.to(24)
    before = await played.runs(replay=False)
    await played.to(24 * 3)
    (after,) = await played.runs()
    # A look: timer 2, call 3, two steps of the workflow of 3 events each. Nothing is written.
    assert (after.events - before[0].events) / 2 == pytest.approx(11, abs=1)
    assert (after.size - before[0].size) / 2 < 3_000
    assert played.sql.effects("years/1") == SETUP
    assert played.said == played.audited() == []


@pytest.mark.nightly
async def test_a_ledger_that_is_away_for_long_does_not_use_up_the_history(
    sqlite_ledger_url: str, tmp_path: Path
) -> None:
    """Somebody speaks meanwhile, so that there is something to archive, and an edge has it look: the next run begins
    all the same.

    A look a minute makes 16,000 events a day: three days would end the rollout. Here limits and hours are fewer.
    """
    few, hard = 300, 900
    settings = (f"limit.historyCount.suggestContinueAsNew={few}", f"limit.historyCount.error={hard}")
    async with playing(sqlite_ledger_url, tmp_path, *settings) as played:
        await monitored(played)
        await played.to(20)
        before = len(played.sql.archive(played.name))
        played.exporter.away = ("observe", "record", "tell", "apply_effect", "aim_rollback", "draft_plan")
        await played.acks("said while the ledger is away")
        await played.signal("an edge while the ledger is away")
        await played.to(20 + 2)
        assert played.exporter.missed["observe"] > 350  # four tries a minute
        status = await played.status(played.name)
        assert status.stage is Stage.MONITORED
        assert status.runs > 2
        assert len(played.sql.archive(played.name)) == before
        played.exporter.away = ()
        await played.to(25)
        await eventually(lambda: played.audited() == played.said, "the archive of what was said")
        runs = await played.runs()
        assert max(r.events for r in runs) < few + 200
        assert [reason for run in runs for reason in run.said] == played.said
        assert played.sql.effects("years/1") == SETUP
        assert played.sql.broken_links(played.name) == []


@pytest.mark.nightly
async def test_where_nobody_can_be_told_the_next_run_and_the_archive_wait_minutes_and_not_for_a_look(
    sqlite_ledger_url: str, tmp_path: Path
) -> None:
    """It waits five minutes at most for the call that sends its mail; a look at rest comes only once a day."""
    few = 450  # more than there are until people speak
    async with playing(sqlite_ledger_url, tmp_path, f"limit.historyCount.suggestContinueAsNew={few}") as played:
        await monitored(played)
        await played.to(9)
        played.exporter.away = ("tell",)
        await played.changed(10, healthy(300))
        await played.changed(10.1, healthy(319))  # at risk for six minutes: teams are to be told
        await eventually(lambda: played.exporter.missed["tell"] > 0, "a call of mail that fails")
        assert (await played.status(played.name)).runs == 1
        while (status := await played.status(played.name)).history_events < few + 20:
            await played.acks(f"ack {len(played.said)}")
        assert status.runs == 1
        assert played.audited() != played.said
        await played.to(10.1 + 12 / 60)
        assert (await played.status(played.name)).runs == 2
        await eventually(lambda: played.audited() == played.said, "the archive of what was said")
        played.exporter.away = ()
        await played.to(11)
        await played.runs()


@pytest.mark.nightly
async def test_clocks_of_months_keep_their_time(played: Played) -> None:
    """stale_after 120 d, recover_after 90 d, a poll every 30 d: nothing comes early, nothing wraps."""
    month = 30 * 24
    clocks = {"notice": "60d", "soak_buffered": "30d", "soak_enforced": "45d", "recover_after": "90d"}
    await played.opened(
        two_teams("months", [], **clocks, stale_after="120d", clear_after="10d", safety_poll="30d", attempts=2),
        healthy(319),
    )
    await played.approve(played.name)
    drop = 8 * month
    await played.changed(drop, healthy(300))
    await played.changed(drop + 24, healthy(319))
    await played.to(20 * month)
    again = drop + 24 + 3 * month
    assert_timeline(
        played.transitions(),
        [
            ("buffered", 2 * month),
            ("enforced", 3 * month),
            ("monitored", 4.5 * month),
            ("rolling_back", drop + 1 / 6),
            ("rolled_back", drop + 1 / 6),
            ("planned", again),
            ("buffered", again),
            ("enforced", again + month),
            ("monitored", again + 2.5 * month),
        ],
    )
    (run,) = await played.runs()
    assert run.events < 900  # twenty months of monthly polls, and two attempts


@pytest.mark.nightly
async def test_stale_health_holds_and_says_so_and_breaches_nothing(played: Played) -> None:
    await played.opened(two_teams("silent", [], safety_poll="12h"), healthy(319))
    name, sql = played.name, played.sql
    await played.approve(name)
    await played.changed(24, None, told=False)  # the exporter falls silent on the first day
    await played.to(5 * 24)
    status = await played.status(name)
    assert status.stage is Stage.PLANNED  # though the notice is over since day 3
    assert [h.kind for h in status.holds] == [HoldKind.UNKNOWN_HEALTH]
    assert status.holds[0].reason.startswith("no believable health since ")
    assert sql.gpus(name) == {"alpha": 200, "beta": 145}
    await played.changed(6 * 24, healthy(319))
    await played.to(6 * 24 + 1)
    assert (await played.status(name)).stage is Stage.BUFFERED

    await played.to(11 * 24)
    assert (await played.status(name)).stage is Stage.MONITORED
    await played.changed(12 * 24, None, told=False)
    await played.to(42 * 24)  # a month of silence
    status = await played.status(name)
    assert (status.stage, status.breach_of) == (Stage.MONITORED, ())
    assert [h.kind for h in status.holds] == [HoldKind.UNKNOWN_HEALTH]
    assert sql.effects(f"{name}/1") == SETUP
    assert_timeline(played.transitions(), [("buffered", 6 * 24), ("enforced", 7 * 24), ("monitored", 10 * 24)])


SECONDS = 1 / 3600
"""In hours."""


async def nobody_works(played: Played, around: float) -> None:
    """Run no worker from four seconds before that hour to four seconds after, in real time.

    Time does not skip while a step of the workflow waits for a worker, so that this outage is a short one.
    """
    await played.to(around - 4 * SECONDS)
    await played.stop_worker()
    assert (await played.workflow_now()) < played.at(around), "the worker took too long to stop"
    while (await played.workflow_now()) < played.at(around + 4 * SECONDS):
        await asyncio.sleep(0.2)
    played.start_worker()


@pytest.mark.nightly
async def test_a_gate_that_came_due_in_an_outage_stays_shut_on_health_that_grew_stale_in_it(played: Played) -> None:
    await played.opened(two_teams("outage", [], safety_poll="12h"), healthy(319))
    name, sql = played.name, played.sql
    await played.approve(name)
    await played.to(1)
    (notice,) = [c for c in (await played.status(name)).waiting_for if c.name == "notice"]
    assert notice.until is not None
    over = played.hours(notice.until)
    last = over - 0.5 + 1 * SECONDS  # 30 minutes old a second after the notice is over
    await played.to(last)
    await played.signal("the last sample")
    await played.changed(last + 2 * SECONDS, None, told=False)
    await nobody_works(played, over)
    status = await played.until(name, lambda s: bool(s.holds))
    assert status.stage is Stage.PLANNED
    assert [h.kind for h in status.holds] == [HoldKind.UNKNOWN_HEALTH]
    assert [c.name for c in status.waiting_for] == ["holds", "backed"]
    await played.to(over + 48)
    assert sql.gpus(name) == {"alpha": 200, "beta": 145}
    await played.changed(over + 48, healthy(319))
    await played.to(over + 49)
    assert_timeline(played.transitions(), [("buffered", over + 48)])


@pytest.mark.nightly
async def test_a_shortage_that_ended_in_an_outage_is_no_breach_and_one_that_did_not_comes_before_the_gate(
    played: Played,
) -> None:
    await played.opened(two_teams("outage", [], notice="1h", soak_buffered="2h", soak_enforced="6h"), healthy(319))
    name, sql = played.name, played.sql
    await played.approve(name)
    await played.to(2)
    at = dict(played.transitions())["buffered"] + 2
    await played.to(at + 0.1)
    assert (await played.status(name)).stage is Stage.ENFORCED

    # Ten minutes short, but for the last three seconds, which nobody saw.
    await played.changed(at + 2, healthy(300))
    played.exporter.from_then_on(played.at(at + 2 + 10 / 60 - 3 * SECONDS), healthy(319))
    await nobody_works(played, at + 2 + 10 / 60)
    await played.to(at + 5)
    assert (await played.status(name)).breach_of == ()
    assert sql.effects(f"{name}/1") == SETUP[:3]

    # The soak and the breach come due together: the promise is withdrawn and the step is not made.
    await played.changed(at + 6 - 10 / 60, healthy(300))
    await nobody_works(played, at + 6)
    await played.to(at + 7)
    assert sql.effects(f"{name}/1") == [*SETUP[:3], *ANSWER[1:]]
    stages = ["buffered", "enforced", "rolling_back", "rolled_back"]
    assert [stage for stage, _ in played.transitions()] == stages
    assert sum(sql.gpus(name).values()) == 300
