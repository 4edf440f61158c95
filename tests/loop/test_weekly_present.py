"""Open rollouts in the weekly report and on the leader's page: as each would answer, without asking any."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.client import Client

from client.rollouts import Rollouts
from client.weekly_report import weekly
from models.cluster.windows import Declared, Window, WindowKind
from models.lifecycle.holds import HoldKind
from models.questions import Declare
from models.reports.weekly import WEEK, Live
from models.rollout.stages import Command, Stage
from models.rollout.status_models import RolloutStatus
from tests.e2e.world import World, fresh, seen, worked_case, world_of

Told = dict[str, Any]


@pytest_asyncio.fixture(loop_scope="function")
async def world(temporal: Client, sqlite_ledger_url: str, tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(temporal, sqlite_ledger_url, tmp_path) as its_world:
        yield its_world


async def present(world: World) -> Live:
    """The report's present. Whoever asks a rollout for it fails."""
    with pytest.MonkeyPatch.context() as patched:

        async def refuse(*_: object, **__: object) -> None:
            raise AssertionError("a rollout was asked")

        for name in ("status", "ask_rollouts", "overview", "rollouts"):
            patched.setattr(Rollouts, name, refuse)
        now = world.now()
        live = (await weekly(world.tpm, now - WEEK, now, [now], timedelta(days=1), live=True)).live
    assert live is not None
    return live


def reported(live: Live, name: str) -> Told:
    """Return the report's statements on one cluster."""
    return {
        "unknown": [one for one in live.silent if one == name],
        "next": [(n.stage, n.at, n.waits_for, n.owner) for n in live.next if n.cluster == name],
        "risk": [(r.lacking_gpus, r.teams, r.breach_at, r.advisory) for r in live.at_risk if r.cluster == name],
        "blocked": [(b.kind, b.by, b.since, b.reason, b.needs) for b in live.blocked if b.cluster == name],
    }


def answered(status: RolloutStatus) -> Told:
    """The same by docs/reading.md from what the rollout itself answers."""
    needs = status.needs
    blocked = [(h.kind.value, h.team or h.actor, h.at, h.reason, needs) for h in status.holds]
    lifted = any(h.kind is HoldKind.PAUSED or h.reason in needs for h in status.holds)
    if needs and not lifted:
        blocked.append(("decision", status.owner, status.entered_at, needs, needs))
    if status.stage is Stage.MONITORED and not needs:
        blocked = []
    unmet = [c for c in status.waiting_for if c.name != "holds"]
    opens = [c.until for c in unmet if c.until is not None]
    at = max(opens) if opens and len(opens) == len(unmet) else None
    coming = [(status.stage.value, at, "; ".join(c.text for c in unmet), status.owner)]
    if status.at_risk:
        breaches = [r.breach_at for r in status.at_risk if r.breach_at is not None]
        lacking = sum(r.quota_gpus - r.backing_gpus for r in status.at_risk)
        risk: Any = [(lacking, tuple(r.team for r in status.at_risk), min(breaches, default=None))]
    else:
        teams = tuple(t.team for t in status.teams if t.leaf and (t.backing_gpus or 0) < t.quota_gpus)
        risk = [(status.phantom_gpus, teams, None)] if status.phantom_gpus else []
    return {
        "unknown": [],
        "next": [] if blocked or status.stage is Stage.MONITORED else coming,
        "risk": [(*one, not status.stage.promises) for one in risk],
        "blocked": sorted(blocked, key=lambda b: (b[2], b[0])),
    }


async def alike(world: World, name: str, stage: Stage) -> Told:
    """Answer what the report says once the cluster is in the stage: it comes to be what the rollout answers."""
    await world.until(name, stage)

    async def both() -> tuple[Told, Told]:
        live = reported(await present(world), name)
        live["blocked"].sort(key=lambda b: (b[2], b[0]))
        return live, answered(await world.status(name))

    told, _ = await seen(both, lambda pair: pair[0] == pair[1], f"{name} in {stage} is reported as it answers")
    row = world.sql.row("rollouts", cluster=name)
    note = json.loads(row["note"])
    assert row["stage"] == stage
    assert sum(lacking for lacking, *_ in told["risk"]) == note["lacking_gpus"]
    for _, at, text, _ in told["next"]:
        ahead = [c for c in note["waits"] if c["until"] is None or c["text"] in text]
        assert text == "; ".join(c["text"] for c in ahead)
        assert at is None or f"{at:%Y-%m-%dT%H:%M:%S}" in {str(c["until"])[:19] for c in ahead}
    return told


async def test_after_each_transition_the_report_is_what_the_rollout_would_answer(world: World) -> None:
    name = fresh("walk")
    soaks = {"notice": "20s", "soak_buffered": "40s", "soak_enforced": "20s"}
    await world.fleet(worked_case(name, **soaks, breach_after="20s", on_breach="hold"))
    await world.launch(name)
    told = await alike(world, name, Stage.PLANNED)
    (decision,) = told["blocked"]
    assert (decision[0], told["risk"]) == ("decision", [(26, ("research",), None, True)])

    await world.healthy(name, main=(361, 310))  # the plan has room for it, and the archive no word
    await world.until(name, lambda s: s.phantom_gpus == 35)
    assert (await alike(world, name, Stage.PLANNED))["risk"][0][0] == 35
    await world.healthy(name, main=(361, 319))
    await world.until(name, lambda s: s.phantom_gpus == 26)

    await world.approve(name)
    await world.until(name, lambda s: any(c.name == "notice" and c.until for c in s.waiting_for))
    (step,) = (await alike(world, name, Stage.PLANNED))["next"]
    assert step[1] is not None
    await world.say(name, Command.PAUSE, reason="a paper is due")
    assert [b[:2] for b in (await alike(world, name, Stage.PLANNED))["blocked"]] == [("paused", "tpm")]
    await world.say(name, Command.RESUME)
    told = await alike(world, name, Stage.BUFFERED)
    assert told["risk"] == []
    assert "soak of 40s" in told["next"][0][2]
    ends = (world.now() + timedelta(seconds=30)).replace(microsecond=0)
    window = Window(kind=WindowKind.FREEZE, starts=world.now(), ends=ends, reason="year end")
    await world.tpm.ask(Declare(declared=(Declared(source="hold year", windows=((name, window),)),)))
    await world.until(name, lambda s: any(h.kind is HoldKind.FREEZE for h in s.holds))
    assert [b[0] for b in (await alike(world, name, Stage.BUFFERED))["blocked"]] == ["freeze"]
    assert [stage for stage, *_ in (await alike(world, name, Stage.ENFORCED))["next"]] == ["enforced"]
    assert await alike(world, name, Stage.MONITORED) == {"unknown": [], "next": [], "risk": [], "blocked": []}

    await world.healthy(name, main=(361, 300))
    await world.until(name, lambda s: bool(s.at_risk))
    ((lacking, teams, breach_at, advisory),) = (await alike(world, name, Stage.MONITORED))["risk"]
    assert (lacking, teams, advisory) == (6, ("research",), False)
    assert breach_at is not None
    await world.until(name, lambda s: any(h.kind is HoldKind.BREACH for h in s.holds))
    assert [b[0] for b in (await alike(world, name, Stage.MONITORED))["blocked"]] == ["breach"]
    ahead = world.now().replace(tzinfo=None) + timedelta(hours=1)
    world.sql.run(
        "INSERT INTO health_samples (cluster, island, at, total_gpus, healthy_gpus, block_gpus, source)"
        f" VALUES (?, 'main', '{ahead.isoformat(timespec='microseconds')}Z', 361, 300, 300, 'x')", name,
    )  # fmt: skip
    await world.until(name, lambda s: any(h.kind is HoldKind.UNKNOWN_HEALTH for h in s.holds))
    assert "unknown_health" in [b[0] for b in (await alike(world, name, Stage.MONITORED))["blocked"]]


async def test_a_rollout_that_noted_nothing_of_itself_is_counted_and_not_guessed(world: World) -> None:
    name, shadow = fresh("older"), fresh("shadow")
    await world.fleet(worked_case(name), worked_case(shadow))
    await world.launch(name)
    await world.launch(shadow, shadow=True)
    await alike(world, name, Stage.PLANNED)
    await world.at_rest()
    world.sql.run("UPDATE rollouts SET note = NULL")  # as an earlier build's row
    live = await present(world)
    assert (live.silent, live.shadows) == ((name,), (shadow,))
    assert not live.next
    assert not live.at_risk
    assert not live.blocked
    world.sql.run("UPDATE rollouts SET note = '{'")
    assert (await present(world)).silent == (name,)
