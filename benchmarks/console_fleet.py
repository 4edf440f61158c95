"""A made-up fleet in a real ledger, and the desk that answers about it: to time and draw the console's pages.

Every cluster has two islands, five quotas, four days of health by the hour, use, and a rollout that is monitored; every
tenth waits for a person, every 25th has none yet, every fiftieth is silent. Every seventh of those whose quotas are not
cut is at risk, and of the others every seventieth. One fleet rollout launches them all. Nothing is random.
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
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.adapters.kubernetes.kubernetes import Kuberneteses
from activities.adapters.ledger.database import upgrade
from activities.adapters.ledger.facade import Ledger
from activities.adapters.prometheus.prometheus import Prometheuses
from activities.adapters.slurm.slurm import Slurms
from activities.clock import Clock, utc_now
from activities.desk.desk import DeskActivities
from activities.desk.second_persons import SecondPersonsDesk, changes_of
from activities.rollout.cluster_calls import ClusterActivities
from activities.tickets.warrants import Warrants
from activities.watch.tallies import KEPT_WHOLE, Tallier
from benchmarks.console_access import sealed, with_access
from benchmarks.console_scene import BEFORE_GPUS, CUT, Recorded, Scene, has_rollout, is_cut, owner, trouble_of
from client.composed import Composed
from client.who_could_act import could_act_now, who_could_now
from models.access.command_targets import command_awaited
from models.access.decision import Target
from models.base import DAY
from models.cluster.quota import Quota
from models.errors import BY_NAME, Refusal, Unavailable
from models.fleet.messages import FleetPlan, FleetStatus
from models.fleet.status import status_of
from models.lifecycle.holds import holds_text
from models.question_base import Question
from models.questions import DeskRequest, Pulse
from models.reports.rollout_summary import RolloutSummary
from models.reports.tallies import slot_of
from models.rollout.command_previews import Ahead
from models.rollout.status_models import RolloutStatus
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
_REGIONS = ("us-east", "us-west", "eu-north", "eu-west", "ap-south", "ap-east", "sa-east")
_FIELDS = ("vision", "audio", "code", "agents", "safety", "search", "recsys", "video", "robotics", "maps", "bio", "tts")
_WORK = ("train", "eval", "data", "serve", "lab")
"""Each cluster has the five teams of one field."""
_AnswerT = TypeVar("_AnswerT")


def cluster_name(number: int) -> str:
    return f"{_MODELS[number % 3].lower()}-{_REGIONS[number % 7]}-{number:04d}"


def team_name(number: int) -> str:
    return f"{_FIELDS[number % TEAMS // QUOTAS]}-{_WORK[number % QUOTAS]}"


def healthy_gpus(number: int, hours_ago: int) -> int:
    """Return the healthy GPUs of each island, of 512. Of clusters without a cut every seventh lost three nodes in each
    two days ago; of the others every 70th loses eleven right now."""
    if is_cut(number):
        return 512 - 88 if number % 70 == 7 and hours_ago < 1 else 512 - 8 * ((number + hours_ago // 24) % 2)
    return 512 - 24 if number % 7 == 0 and hours_ago < 48 else 512 - 8 * ((number + hours_ago // 24) % 2)


def promised_gpus(number: int) -> tuple[int, ...]:
    """Return the quotas' GPUs: within the ceiling of 870 once they are cut, above it before."""
    if is_cut(number):
        return tuple(gpus - CUT // QUOTAS for gpus in BEFORE_GPUS)
    return tuple(gpus - (8 if number % 7 == 0 else 24) for gpus in BEFORE_GPUS)


def document(clusters: int, now: datetime) -> dict[str, Any]:
    """Return the fleet as a fleet file."""
    return {"clusters": [_cluster(number, now) for number in range(clusters)]}


def _cluster(number: int, now: datetime) -> dict[str, Any]:
    idle = (0, 8, 0, 4, 16) if has_rollout(number) else _LATE_IDLE[number // 25 % 2]
    unused = (0, 40, 60, -10, 40) if has_rollout(number) else (0,) * QUOTAS
    quotas = [
        {
            "team": team_name(number * QUOTAS + n),
            "gpus": gpus,
            "scheduled_gpus": gpus - unused[n],
            "idle_gpus": idle[n],
        }
        for n, gpus in enumerate(promised_gpus(number))
    ]
    islands = [{"name": name, "total_gpus": 512, "healthy_gpus": healthy_gpus(number, 0)} for name in _ISLANDS]
    return {"name": cluster_name(number), "gpu_model": _MODELS[number % 3], "islands": islands, "quotas": quotas}


def filled(ledger: Ledger, clusters: int, now: datetime) -> None:
    """Fill the ledger with the fleet, its health of the days before, and its tallies."""
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
    """Return the rollout's summary, as its status has it; every fiftieth is silent."""
    unbacked = max(0, sum(promised_gpus(number)) - len(_ISLANDS) * healthy_gpus(number, 0))
    silent = timedelta(days=4) if trouble_of(number) == "silent" else timedelta(hours=9 if number % 50 == 49 else 0)
    return RolloutSummary(
        cluster=cluster_name(number),
        stage=scene.stage(number),
        wave=scene.tier(number),
        owner=owner(number),
        unbacked_gpus=unbacked,
        started=scene.began(number),
        closed=None,
        open=True,
        needs=scene.needs(number),
        held=holds_text(scene.status(number).holds),
        holds=scene.status(number).holds,
        health_at=scene.now - silent,
    )


def desk_on(ledger: Ledger, now: Clock = utc_now) -> DeskActivities:
    """Return the desk as a worker has it, without calls to the outside."""
    return DeskActivities(
        ledger,
        ClusterActivities(ledger.ports, now=now),
        Warrants(None, ledger.warrants, ledger.registry, now),
        SecondPersonsDesk(ledger.second_persons, ledger.access, leads_to=changes_of(ledger.fleet)),
        Slurms(ledger, ledger.schedulers),
        Prometheuses(ledger, {}),
        Kuberneteses(ledger, {}),
        now=now,
    )


def tallied(ledger: Ledger, clusters: int, now: datetime) -> None:
    """Store tallies of now, and one for every two hours of four weeks before, with the health of that time."""
    tallier = Tallier(ledger.ports, ledger.tallies)
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
    """Return a cluster's tally so many hours ago: before its rollout's cut it promised more, and its health varies."""
    at = {n: _earlier(str(row[n]), hours) for n in ("at", "seen_at", "health_at")}
    promised, healthy = stood(number, hours)
    assigned = promised + (CUT if hours > hours_cut else 0)
    flex = row["flex_gpus"] + healthy - row["healthy_gpus"]  # its jobs held as much as today
    gpus = {"healthy": healthy, "assigned": assigned, "backed": min(healthy, assigned), "flex": flex}
    return row | at | {f"{name}_gpus": count for name, count in gpus.items()}


def stood(number: int, hours_ago: int) -> tuple[int, int]:
    """Return what a cluster promises now, and how many of its GPUs were healthy then."""
    return sum(promised_gpus(number)), len(_ISLANDS) * healthy_gpus(number, 0) - 8 * ((number + hours_ago // 24) % 3)


def _earlier(text: str, hours: int) -> str:
    moved = datetime.fromisoformat(text) - timedelta(hours=hours)
    return moved.strftime("%Y-%m-%dT%H:%M:%S.%fZ" if "T" in text else "%Y-%m-%d %H:%M:%S.%f")


def _world(number: int, now: datetime) -> Recorded:
    quotas = tuple(
        Quota.model_validate(one | {"scheduled_gpus": min(one["gpus"], one["scheduled_gpus"])})
        for one in _cluster(number, now)["quotas"]
    )
    return Recorded(quotas, {name: (512, healthy_gpus(number, 0)) for name in _ISLANDS})


def scene_of(now: datetime) -> Scene:
    return Scene(now, cluster_name, lambda number: _world(number, now), stood)


class MakingUp:
    """The CPU time of this thread for making up what Temporal would answer, which is no part of a page's cost."""

    seconds = 0.0

    def __enter__(self) -> None:
        self._began = time.thread_time()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.thread_time() - self._began


making_up = MakingUp()


class DeskDoor(Composed):
    """A door to the desk in this process; what only Temporal knows is made up."""

    def __init__(self, ledger: Ledger, clusters: int, now: datetime) -> None:
        self.desk = desk_on(ledger)
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
        try:
            answer = await asyncio.to_thread(ActivityEnvironment().run, self.desk.answer, request)
        except ApplicationError as error:
            raise BY_NAME[error.type or ""](error.message) from error
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

    async def fleet_plan(self) -> FleetPlan:
        raise Refusal("no plan of the fleet rollout awaits approval: its stage is running")

    async def lost_fleet(self) -> None:
        """Return None: this scene's fleet rollout runs."""

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
        return list(await could_act_now(self.ask, await self.status(cluster)))

    async def who_could(self, needs: str, cluster: str = "", subject: str = "") -> list[str]:
        key, cases = command_awaited(needs)
        return list(await who_could_now(self.ask, key, Target(cluster=cluster, cases=cases), subject) or ())

    async def noted(self) -> None:
        """Note who could act beside what is needed, as in the ledger's own overview."""
        for n, one in enumerate(self._summaries):
            if one.needs:
                self._summaries[n] = one.but(could=tuple(await self.could_act(one.cluster)))

    async def ask_rollouts(self, clusters: Sequence[str], seconds: float) -> dict[str, RolloutStatus | None]:
        return {name: await self.status(name) for name in clusters}


class DeskDoors(Doors):
    """The doors of a front without Temporal."""

    def __init__(self, door: DeskDoor) -> None:
        super().__init__(self._nowhere)
        self.door = door
        self.desk = door.desk

    async def _nowhere(self) -> Any:
        raise Unavailable("there is no Temporal here")

    async def door_of(self, *_: Any, **__: Any) -> Any:
        return self.door


@asynccontextmanager
async def console_on(folder: Path, clusters: int, settings: FrontSettings) -> AsyncIterator[tuple[Front, list[str]]]:
    """Yield a front with its console, on a ledger in this folder, and the addresses where it listens."""
    url, now = f"sqlite:///{folder / 'ledger.db'}", datetime.now(UTC)
    upgrade(url)
    with Ledger(url) as ledger:
        filled(ledger, clusters, now)
        sealed(ledger, now - timedelta(hours=HOURS_KEPT))
        scene_of(now).kept(ledger, clusters)
        sealed(ledger, now - timedelta(hours=1))
        with_access(ledger, document(1, now), now)
        tallied(ledger, clusters, now)
        door = DeskDoor(ledger, clusters, now)
        await door.noted()
        front = Front(DeskDoors(door), Callers(()))
        async with listening(front, settings, {}) as where:
            yield front, where
