"""All code that dates something, or asks how old something is, uses the clock that it was given. Witness: plain SQL."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any, cast

import pytest
from temporalio.testing import ActivityEnvironment

from activities.adapters.http import Reach, networks_of
from activities.adapters.ledger.facade import Ledger
from activities.adapters.notify.notifier import Notifier
from activities.adapters.slurm.slurm import Slurms
from activities.bringup.calls import CheckActivities
from activities.clock import utc_now
from activities.desk.desk import DeskActivities
from activities.requests.overdue_grants import Sweeper
from activities.rollout.cluster_calls import ClusterActivities
from activities.watch.health_watch import WatchActivities
from benchmarks.console_fleet import desk_on
from models.bringup.checks import CheckAnswer, CheckKind, CheckOrder
from models.bringup.messages import AskRequest
from models.notices import Notice, NoticeKind
from models.question_base import Question
from models.questions import DeskRequest, NoteMilestone, PlanMilestones
from models.reports.milestones import Milestone
from models.requests.state import Assessment, QuotaAsk, RequestStage, RequestState
from models.rollout.messages import HealthChanged
from models.temporal_names import WatchInput
from tests.integration.ledger.world import NOW, ForeignTool, fleet, import_fleet, note_stage, open_rollout
from tests.integration.notice_servers import mail_server
from tests.waiting import eventually
from workers import main
from workers.bringups import bringup_parts
from workers.settings import load_settings

HOUR = timedelta(hours=1)


class Temporal:
    """Takes signals and starts; `signalled` is called after each signal."""

    def __init__(self, signalled: Callable[[], None]) -> None:
        self.signalled = signalled
        self.signals: list[HealthChanged] = []
        self.started: list[str] = []

    def get_workflow_handle(self, _: str) -> Temporal:
        return self

    async def signal(self, _: str, change: HealthChanged) -> None:
        self.signals.append(change)
        self.signalled()

    async def start_workflow(self, *_: object, id: str, **__: object) -> None:
        self.started.append(id)


class Site:
    """A ledger with the small fleet of 1 March 2026 in it, and a clock that the test turns."""

    def __init__(self, url: str) -> None:
        self.now = NOW
        self.ledger = Ledger(url, now=self.clock)
        self.sql = ForeignTool(url)
        import_fleet(self.ledger, fleet())

    def clock(self) -> datetime:
        return self.now

    def clusters(self) -> ClusterActivities:
        return ClusterActivities(self.ledger.ports, now=self.clock)

    def desk(self) -> DeskActivities:
        return desk_on(self.ledger, self.clock)

    def ask(self, question: Question[Any]) -> None:
        request = DeskRequest(kind=question.kind, actor="tpm", arguments=question.model_dump(mode="json"))
        ActivityEnvironment().run(self.desk().answer, request)

    def watch(self, temporal: Temporal) -> WatchActivities:
        ports, client = self.ledger.ports, cast("Any", temporal)
        return WatchActivities(client, ports, sweeper=Sweeper(client, ports.registry), now=self.clock)


@pytest.fixture
def site(sqlite_ledger_url: str) -> Iterator[Site]:
    made = Site(sqlite_ledger_url)
    yield made
    made.sql.close()
    made.ledger.close()


def test_the_ledger_dates_the_end_of_a_rollout_by_its_clock(site: Site) -> None:
    open_rollout(site.ledger)
    site.now = NOW + 3 * HOUR
    note_stage(site.ledger, "r-1", "rolled_back", ended=True, completed=False)
    assert site.sql.one("SELECT ended_at FROM rollouts") == "2026-03-01T15:00:00.000000Z"


def test_a_look_believes_no_health_that_is_dated_after_its_clock(site: Site) -> None:
    assert site.clusters().surplus("beta") == 64 - 32
    site.now = NOW - HOUR
    assert site.clusters().surplus("beta") is None


def test_the_desk_dates_the_plan_and_what_is_noted_of_it(site: Site) -> None:
    site.ask(PlanMilestones(milestones=(Milestone(name="trained", measure="users trained", target=9, due=NOW.date()),)))
    site.now = NOW + 3 * HOUR
    site.ask(NoteMilestone(milestone="trained", number=4, reason="the first course"))
    assert site.sql.one("SELECT began FROM milestones") == "2026-03-01T12:00:00.000000Z"
    assert site.sql.one("SELECT at FROM milestone_notes") == "2026-03-01T15:00:00.000000Z"


async def test_the_watch_goes_by_its_clock_for_health_for_grants_that_are_overdue_and_for_its_own_end(
    site: Site,
) -> None:
    """Its call lasts 90 minutes: the clock is turned by two hours at the first signal, and by nothing else."""
    open_rollout(site.ledger, cluster="beta")
    site.ledger.registry.keep_request(lent(until=NOW + HOUR))

    def turn() -> None:
        site.now = NOW + 2 * HOUR

    temporal = Temporal(turn)
    watching = ActivityEnvironment().run(site.watch(temporal).watch, WatchInput(interval_seconds=0.01))
    call = asyncio.create_task(watching)
    try:
        await eventually(call.done, "two hours have passed")
    finally:
        call.cancel()
    assert [(one.at, "fresh" in one.why) for one in temporal.signals] == [(NOW, True)]
    await eventually(lambda: temporal.started == ["request/r-1"], "the grant of an hour ago is taken care of")


def lent(until: datetime) -> RequestState:
    """Ten GPUs that were granted."""
    ask = QuotaAsk(request="r-1", team="a", cluster="alpha", gpus=10, until=until, actor="dev")
    return RequestState(
        ask=ask, stage=RequestStage.GRANTED, asked_at=NOW, changed_at=NOW, assessment=Assessment(fits=True)
    )


@pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")
def test_a_mail_and_the_line_in_the_log_are_of_the_same_time(tmp_path: Path) -> None:
    log = tmp_path / "notices.jsonl"
    with mail_server("robot", "a-password") as server:
        here = Reach(networks_of("127.0.0.0/8"))
        notifier = Notifier(log, lambda: NOW, server.url, reach=here)
        to = "a@example.org"
        team_a: dict[str, Any] = {"cluster": "beta", "audience": "a", "owner": "tpm"}
        told = Notice(key="k", kind=NoticeKind.PLANNED, contacts=(to,), **team_a)
        (_, mailed) = notifier.deliver(told, "a subject", "a body")
    assert parsedate_to_datetime(server.to(to)[0]["Date"]) == NOW
    assert (json.loads(log.read_text())["at"], mailed.at) == ("2026-03-01T12:00:00+00:00", NOW)


class Broken:
    """A port that breaks its word."""

    def check(self, order: CheckOrder) -> CheckAnswer:
        raise ValueError(order)


async def test_a_check_that_cannot_be_asked_is_dated_by_the_worker(site: Site) -> None:
    order = CheckOrder(name="burn-in", kind=CheckKind.HTTP, cluster="beta", url="http://127.0.0.1/burn-in")
    with ThreadPoolExecutor(1) as threads:
        checks = CheckActivities(Broken(), threads, site.clock)
        answer = await ActivityEnvironment().run(checks.ask, AskRequest(orders=(order,)))
    assert answer.answers["burn-in"].at == NOW


OURS = ("activities.", "client.", "models.", "workers.")


def parts_of(thing: object) -> list[object]:
    """Return the parts of an object of ours, a container or a callable."""
    match thing:
        case dict():
            return [*thing.keys(), *thing.values()]
        case list() | tuple() | set() | frozenset():
            return list(thing)
        case partial():
            return [thing.func, *thing.args, *thing.keywords.values()]
        case MethodType():
            return [thing.__self__]
        case FunctionType():
            return [cell.cell_contents for cell in thing.__closure__ or ()]
    return list(vars(thing).values()) if type(thing).__module__.startswith(OURS) and hasattr(thing, "__dict__") else []


async def test_a_worker_has_one_clock(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that its calls are made of uses the ledger's clock, and nothing uses the real one, which is the default."""
    given: list[object] = []
    monkeypatch.setattr(main, "Worker", lambda *_, **more: given.append(more))
    monkeypatch.setenv("BACKSTOP_HOME", str(tmp_path))
    slurms = Slurms(site.ledger, site.ledger.schedulers)
    parts = bringup_parts(site.ledger, slurms, load_settings())
    client: Any = SimpleNamespace(data_converter=SimpleNamespace(payload_codec=None))
    notifier = Notifier(tmp_path / "notices.jsonl", site.clock)
    with ThreadPoolExecutor(1) as threads:
        main.make_worker(client, site.ledger, notifier, threads, slurms=slurms, bringups=parts, keys=dict)
    seen: dict[int, object] = {}
    told_the_time = set()
    while given:
        thing = given.pop()
        seen[id(thing)] = thing
        inside = parts_of(thing)
        assert not any(part is utc_now for part in inside), thing
        if any(part in (site.clock, site.ledger.now) for part in inside if isinstance(part, MethodType)):
            told_the_time.add(type(thing).__name__)
        given += [part for part in inside if id(part) not in seen]
    assert {"Database", "Faults", "ReportFacts", "WatchActivities", "FleetBringups", "BuildkiteRunner"} <= told_the_time
