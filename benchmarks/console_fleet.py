"""A made-up fleet in a real ledger, with the desk that answers of it: the console's pages are timed and drawn with it.

Every cluster has two islands, five quotas, four days of health by the hour, use, and a rollout that is monitored; every
tenth waits for an approval, every seventh is at risk, every fiftieth is silent, every 25th has none yet. One fleet
rollout launches them all. Nothing is random.
"""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import sqlalchemy as sa
from temporalio.testing import ActivityEnvironment

from activities.adapters.ledger.database import upgrade
from activities.adapters.ledger.facade import Ledger
from activities.adapters.prometheus.prometheus import Prometheuses
from activities.adapters.slurm.slurm import Slurms
from activities.desk.access import AccessDesk
from activities.desk.desk import DeskActivities
from activities.desk.second_persons import SecondPersonsDesk
from activities.rollout.cluster_calls import ClusterActivities
from activities.watch.tallies import KEPT_WHOLE, Tallier
from benchmarks.console_scene import CUT, Scene, has_rollout, owner, stage_of
from client.composed import Composed
from models.base import DAY
from models.cluster.quota import Quota
from models.errors import Refusal, Unavailable
from models.fleet.messages import FleetStatus
from models.fleet.status import status_of
from models.questions import DeskRequest, Pulse, Question
from models.reports.rollout_summary import RolloutSummary
from models.reports.tallies import slot_of
from models.rollout.command_previews import Ahead
from models.rollout.holds import holds_text
from models.rollout.status_models import RolloutStatus
from tests.unit import pure_world
from web.callers import Callers
from web.front import Front
from web.server import listening
from web.settings import FrontSettings
from web.temporal_connection import Doors

TEAMS, QUOTAS = 60, 5
_ISLANDS = ("east", "west")
_LATE_IDLE = ((24, 24, 24, 24, 24), (0, 0, 0, 0, 0))
"""Of clusters whose wave has not come: all is scheduled, so that half of them cut what is idle, half what is busy."""
_HOURS = 96
_TALLY_HOURS, HOURS_KEPT = 2, 28 * 24
_MODELS = ("H100", "H200", "A100")
_AnswerT = TypeVar("_AnswerT")


def cluster_name(number: int) -> str:
    return f"{_MODELS[number % 3].lower()}-region{number % 7}-{number:04d}"


def team_name(number: int) -> str:
    return f"team-{number % TEAMS:02d}"


def healthy_gpus(number: int, hours_ago: int) -> int:
    """Of each island, of 512. Every seventh lost three nodes in each two days ago."""
    lost = 24 if number % 7 == 0 and hours_ago < 48 else 8 * ((number + hours_ago // 24) % 2)
    return 512 - lost


def document(clusters: int, now: datetime) -> dict[str, Any]:
    """As a fleet file. Every seventh promises more than is healthy."""
    return {"clusters": [_cluster(number, now) for number in range(clusters)]}


def _cluster(number: int, now: datetime) -> dict[str, Any]:
    promised = 196 if number % 7 == 0 else 180
    idle = (0, 8, 0, 4, 16) if has_rollout(number) else _LATE_IDLE[number // 25 % 2]
    quotas = [
        {
            "team": team_name(number * QUOTAS + n),
            "gpus": promised,
            "scheduled_gpus": (promised, promised - 40, 90, promised + 10, 120)[n] if has_rollout(number) else promised,
            "idle_gpus": idle[n],
        }
        for n in range(QUOTAS)
    ]
    islands = [{"name": name, "total_gpus": 512, "healthy_gpus": healthy_gpus(number, 0)} for name in _ISLANDS]
    return {"name": cluster_name(number), "gpu_model": _MODELS[number % 3], "islands": islands, "quotas": quotas}


def filled(ledger: Ledger, clusters: int, now: datetime) -> None:
    """The fleet stands in the ledger, with what its hardware was in the days before, and its tallies."""
    packed = zlib.compress(json.dumps(document(clusters, now)).encode())
    # Twice: it stood there before any rollout of it began, and its use and its health are of today.
    for name, at in (("fleet", now - timedelta(hours=HOURS_KEPT)), ("fleet again", now)):
        ledger.fleet.stage_import(name, 0, packed)
        ledger.fleet.commit_import(name, 1, "user:tpm", at)
    insert = sa.text(
        "INSERT INTO health_samples (cluster, island, at, total_gpus, healthy_gpus, block_gpus, source)"
        " VALUES (:cluster, :island, :at, 512, :healthy, :healthy, 'exporter')"
    )
    with ledger._database.begin() as session:
        for number in range(clusters):
            session.execute(insert, list(_samples(number, now)))


def _samples(number: int, now: datetime) -> Iterator[dict[str, Any]]:
    for hours in range(1, _HOURS):
        at = (now - timedelta(hours=hours)).astimezone(UTC)
        for island in _ISLANDS:
            healthy = healthy_gpus(number, hours)
            text = at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            yield {"cluster": cluster_name(number), "island": island, "at": text, "healthy": healthy}


def summary(number: int, scene: Scene) -> RolloutSummary:
    """Every tenth needs somebody, every seventh is at risk, every fiftieth is silent."""
    return RolloutSummary(
        cluster=cluster_name(number),
        stage=stage_of(number),
        wave=scene.tier(number),
        owner=owner(number),
        unbacked_gpus=4 if number % 7 == 0 else 0,
        started=scene.began(number),
        closed=None,
        open=True,
        needs=scene.needs(number),
        held=holds_text(scene.status(number).holds),
        health_at=scene.now - timedelta(hours=9 if number % 50 == 49 else 0),
    )


def desk_on(ledger: Ledger) -> DeskActivities:
    """The desk as a worker has it, but for what reaches out."""
    rollouts = ClusterActivities(
        ledger.quotas, ledger.health, ledger.usage, ledger.calendar, ledger.registry, ledger.jobs, ledger.doubts
    )
    return DeskActivities(
        ledger.fleet,
        ledger.registry,
        rollouts,
        ledger.tallies,
        ledger.report,
        ledger.milestones,
        ledger.jobs,
        Slurms(ledger, ledger.schedulers),
        ledger.doubts,
        Prometheuses(ledger, {}),
        ledger.calendar,
        access=AccessDesk(ledger.access),
        sealed=ledger.seals.sealed_to,
        second_persons=SecondPersonsDesk(ledger.second_persons, ledger.access),
    )


def tallied(ledger: Ledger, clusters: int, now: datetime) -> None:
    """Tallies of now, and the same each two hours of four weeks before, as hardware was then."""
    tallier = Tallier(ledger.quotas, ledger.health, ledger.usage, ledger.registry, ledger.tallies)
    while tallier.go_on(now, timedelta(hours=1)):
        pass
    scene = scene_of(now)
    numbers = {cluster_name(number): number for number in range(clusters)}
    with ledger._database.begin() as session:
        rows = [dict(row._mapping) for row in session.execute(sa.text("SELECT * FROM tallies"))]
        names = list(rows[0])
        insert = sa.text(f"INSERT INTO tallies ({', '.join(names)}) VALUES ({', '.join(':' + n for n in names)})")
        for row in rows:
            number = numbers[row["cluster"]]
            cut_at = scene.cut_at(number)
            hours_cut = HOURS_KEPT if cut_at is None else (now - cut_at) / timedelta(hours=1)
            before = [_before(row, hours, number, hours_cut) for hours in range(2, HOURS_KEPT, _TALLY_HOURS)]
            session.execute(insert, before)
    today = slot_of(now, DAY)
    while ledger.tallies.sum_up(today - KEPT_WHOLE, today - DAY):
        pass  # as the watch would have, day by day


def _before(row: dict[str, Any], hours: int, number: int, hours_cut: float) -> dict[str, Any]:
    """A cluster's tally so many hours ago: its promise came down as its rollout cut, and its hardware came and went."""
    at = {n: _earlier(str(row[n]), hours) for n in ("at", "seen_at", "health_at")}
    promised, healthy = stood(number, hours)
    assigned = promised + (CUT if hours > hours_cut else 0)
    flex = row["flex_gpus"] + healthy - row["healthy_gpus"]  # its jobs held as much as today
    gpus = {"healthy": healthy, "assigned": assigned, "backed": min(healthy, assigned), "flex": flex}
    return row | at | {f"{name}_gpus": count for name, count in gpus.items()}


def stood(number: int, hours_ago: int) -> tuple[int, int]:
    """What a cluster promises now, and what of it was healthy then."""
    promised = sum(quota["gpus"] for quota in _cluster(number, datetime.now(UTC))["quotas"])
    return promised, len(_ISLANDS) * healthy_gpus(number, 0) - 8 * ((number + hours_ago // 24) % 3)


def _earlier(text: str, hours: int) -> str:
    moved = datetime.fromisoformat(text) - timedelta(hours=hours)
    return moved.strftime("%Y-%m-%dT%H:%M:%S.%fZ" if "T" in text else "%Y-%m-%d %H:%M:%S.%f")


def _world(number: int, now: datetime) -> pure_world.World:
    quotas = tuple(
        Quota.model_validate(one | {"scheduled_gpus": min(one["gpus"], one["scheduled_gpus"])})
        for one in _cluster(number, now)["quotas"]
    )
    return pure_world.World(quotas, {name: (512, healthy_gpus(number, 0)) for name in _ISLANDS})


def scene_of(now: datetime) -> Scene:
    return Scene(now, cluster_name, lambda number: _world(number, now), stood)


class MakingUp:
    """What this process spends on what Temporal would say, which is no part of a page: its thread's CPU."""

    seconds = 0.0

    def __enter__(self) -> None:
        self._began = time.thread_time()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.thread_time() - self._began


making_up = MakingUp()


class DeskDoor(Composed):
    """Asks the desk in this process; what only Temporal knows is made up."""

    def __init__(self, ledger: Ledger, clusters: int, now: datetime) -> None:
        self._desk = desk_on(ledger)
        self._now = lambda: now
        self._scene = scene_of(now)
        self._numbers = {cluster_name(n): n for n in range(clusters) if has_rollout(n)}
        self._fleet = self._scene.fleet(clusters)
        self._summaries = [summary(n, self._scene) for n in self._numbers.values()]

    async def ask(self, question: Question[_AnswerT], payload: str = "") -> _AnswerT:
        if isinstance(question, Pulse):  # nothing ever happens here
            await asyncio.sleep(question.seconds if question.since else 0)
            return cast("_AnswerT", "as ever")
        request = DeskRequest(kind=question.kind, actor="user:tpm", arguments=question.model_dump(mode="json"))
        answer = await asyncio.to_thread(ActivityEnvironment().run, self._desk.answer, request)
        travelled = json.loads(json.dumps(answer.result))
        return question.answers().validate_python(travelled)

    async def overview(self) -> list[RolloutSummary]:
        return self._summaries

    async def rollouts(self) -> list[RolloutSummary]:
        return self._summaries

    async def open_fleet(self) -> FleetStatus:
        return await self.fleet_status()

    async def fleet_status(self) -> FleetStatus:
        with making_up:
            return status_of(self._fleet, self._now())

    async def lost_fleet(self) -> None:
        """The fleet rollout of this scene runs."""

    async def status(self, cluster: str) -> RolloutStatus:
        with making_up:
            return self._scene.status(self._number(cluster))

    async def ahead(self, cluster: str) -> Ahead:
        with making_up:
            return self._scene.ahead(self._number(cluster))

    def _number(self, cluster: str) -> int:
        if cluster not in self._numbers:
            raise Refusal(f"{cluster}: there was no rollout yet")
        return self._numbers[cluster]

    async def could_act(self, cluster: str) -> list[str]:
        return []  # no access file is in force

    async def who_could(self, needs: str, cluster: str = "", subject: str = "") -> list[str]:
        return []

    async def ask_rollouts(self, clusters: Sequence[str], seconds: float) -> dict[str, RolloutStatus | None]:
        return {name: await self.status(name) for name in clusters}


class DeskDoors(Doors):
    """For a front without Temporal."""

    def __init__(self, door: DeskDoor) -> None:
        super().__init__(self._nowhere)
        self._door = door

    async def _nowhere(self) -> Any:
        raise Unavailable("there is no Temporal here")

    async def door_of(self, *_: Any, **__: Any) -> Any:
        return self._door


@asynccontextmanager
async def console_on(folder: Path, clusters: int, settings: FrontSettings) -> AsyncIterator[tuple[Front, list[str]]]:
    """A front with its console, on a ledger in this folder; and where it listens."""
    url, now = f"sqlite:///{folder / 'ledger.db'}", datetime.now(UTC)
    upgrade(url)
    with Ledger(url) as ledger:
        filled(ledger, clusters, now)
        scene_of(now).kept(ledger, clusters)
        tallied(ledger, clusters, now)
        front = Front(DeskDoors(DeskDoor(ledger, clusters, now)), Callers(()))
        async with listening(front, settings, {}) as where:
            yield front, where
