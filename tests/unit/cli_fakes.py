"""A Backstop without a server: it answers what it is given, and keeps what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest, DescribeTaskQueueResponse

from client.answer_models import AuditRecord, Build, Check
from client.who_could_act import could_act_now, who_could_now
from models.access.access_versions import AccessStands
from models.access.command_targets import command_awaited, team_awaited
from models.access.decision import Target
from models.access_questions import AccessNow
from models.audit_chain import GENESIS, AuditEntry, AuditKind, ChainedEntry, ChainHead, chain_hash
from models.buffers.health_hours import HealthHours
from models.cluster.fleet_diff import ClusterNow, OtherCluster, other_lines, resolve_cluster, resolve_teams
from models.cluster.fleet_export import FleetPage
from models.cluster.fleet_file import ClusterInSlurm, ClusterSpec, Fleet
from models.cluster.fleet_oddities import oddities_of
from models.cluster.import_outcome import Departure, FleetOutcome, ImportTerms, outcome_of
from models.cluster.jobs import ClusterJob
from models.cluster.policy import Policy
from models.cluster.readings import HealthSample
from models.cluster.snapshot import Snapshot, snapshot_of
from models.cluster.windows import Declaration, Declared, Entry
from models.errors import BackstopError, BadInput, Refusal
from models.fleet.archived_state import KeptFleet
from models.fleet.commands import FleetCommand, FleetCommandRequest
from models.fleet.messages import FleetCommandAnswer, FleetLaunch, FleetPlan, FleetStatus, Prospect
from models.fleet.state import FleetStage, Wave
from models.fleet_cut_questions import FleetEnvelopes
from models.flex.division import FlexMode
from models.flex.flex_now import FlexNow
from models.lifecycle.holds import Hold, HoldKind
from models.planning.plan import Envelope, make_plan
from models.question_base import Question
from models.questions import (
    Archived,
    ArchivePage,
    Curve,
    Declare,
    DescribeSlurm,
    EndHold,
    EndWindow,
    FactsOf,
    LedgerCluster,
    MilestonesNow,
    NoteMilestone,
    PlanMilestones,
    RemoveCluster,
    RenameCluster,
    WhyNot,
    YearOfHealth,
)
from models.reports.milestones import PlanNow
from models.reports.rollout_summary import RolloutSummary
from models.reports.tallies import Point
from models.reports.weekly import Past
from models.reports.why import TeamWhy, WhyAnswers
from models.requests.state import RequestState
from models.rollout.command_previews import Ahead, TeamBack
from models.rollout.commands import CommandRequest
from models.rollout.messages import CommandAnswer, LaunchAnswer, LaunchRequest
from models.rollout.stages import Command, Stage
from models.rollout.status_models import Risk, RolloutStatus, TeamStatus
from models.status_questions import OpenRollouts, Overview
from tests.unit.weeks import a_past, a_plan


class Polled:
    """A Temporal that a worker polls at this moment: the client's part of it that says so."""

    namespace = "backstop"
    polls = True

    @property
    def workflow_service(self) -> Polled:
        return self

    async def describe_task_queue(self, _: DescribeTaskQueueRequest) -> DescribeTaskQueueResponse:
        response = DescribeTaskQueueResponse()
        if self.polls:
            response.pollers.add(identity="worker").last_access_time.FromDatetime(datetime.now(UTC))
        return response


NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
WORKED = ClusterSpec.model_validate(
    {
        "name": "h100-worked",
        "gpu_model": "H100",
        "islands": [{"name": "main", "total_gpus": 361, "healthy_gpus": 319}],
        "quotas": [{"team": "research", "gpus": 345, "scheduled_gpus": 310, "idle_gpus": 0}],
    }
)
PLAN = make_plan(snapshot_of(WORKED), Policy())
AHEAD = Ahead(
    cluster="h100-worked",
    rollout="h100-worked/1",
    stage=Stage.BUFFERED,
    plan=PLAN,
    undoes=("set_soft", "reserve"),
    back=(TeamBack(team="research", gpus=306, back_gpus=345, backing_gpus=319),),
    unbacked_gpus=26,
    told=("research",),
    close_told=("research",),
)


def status(stage: Stage = Stage.BUFFERED, **changes: Any) -> RolloutStatus:
    made = RolloutStatus(
        cluster="h100-worked",
        rollout="h100-worked/1",
        owner="tpm",
        shadow=False,
        stage=stage,
        entered_at=NOON,
        at=NOON,
        attempt=1,
        failures=0,
        attempts=3,
        plan_hash=PLAN.hash,
        approved_by="tpm",
        envelope_holds=True,
        wave="busy",
        total_gpus=361,
        healthy_gpus=300,
        health_at=NOON,
        health_known=True,
        assigned_gpus=306,
        backed_gpus=300,
        phantom_gpus=6,
        flex_gpus=0,
        cut_gpus=39,
        gate="may_enforce",
        waiting_for=(),
        next_at=None,
        holds=(Hold(id="paused", kind=HoldKind.PAUSED, reason="a SEV", actor="oncall", at=NOON),),
        at_risk=(Risk(team="research", quota_gpus=306, backing_gpus=300, breach_at=NOON),),
        breach_of=(),
        undoing=None,
        teams=(
            TeamStatus(
                team="research",
                baseline_gpus=345,
                quota_gpus=306,
                planned_gpus=306,
                backing_gpus=300,
                promise=False,
                acknowledged=True,
            ),
        ),
        needs="paused by oncall: backstop resume h100-worked",
    )
    return made.model_copy(update=changes)


def chain(*texts: str) -> tuple[list[ChainedEntry], ChainHead]:
    rows: list[ChainedEntry] = []
    previous = GENESIS
    for number, text in enumerate(texts, 1):
        entry = AuditEntry(
            key=f"k{number}", cluster="h100-worked", at=NOON, kind=AuditKind.COMMAND, actor="tpm", text=text
        )
        rows.append(ChainedEntry(seq=number, previous_hash=previous, hash=chain_hash(previous, entry), entry=entry))
        previous = rows[-1].hash
    return rows, ChainHead(cluster="h100-worked", length=len(rows), hash=previous)


@dataclass
class FakeBackstop:
    """`statuses` are given one by one, the last for ever; an error among them is raised."""

    statuses: list[RolloutStatus | BackstopError] = field(default_factory=lambda: [status()])
    archive: tuple[list[ChainedEntry], ChainHead | None] = field(default_factory=lambda: chain("launched", "approved"))
    checks: list[Check] = field(default_factory=lambda: [Check.good("temporal", "here")])
    specs: tuple[ClusterSpec, ...] = (WORKED,)
    senseless_ones: tuple[LedgerCluster, ...] = ()
    free: tuple[str, ...] = ()
    """Clusters of the ledger without an open rollout, beside the one that has one."""
    entries: list[Entry] = field(default_factory=list)
    declared: list[Declared] = field(default_factory=list)
    summaries: list[RolloutSummary] | None = None
    watching: Check = field(default_factory=lambda: Check.good("watch", "watching"))
    fleet: FleetStatus | None = None
    kept: KeptFleet | None = None
    awaits: FleetPlan | None = None
    """The fleet's plan that awaits approval."""
    points: list[Point] = field(default_factory=list)
    source_at: datetime | None = None
    lost_rollouts: list[Overview] = field(default_factory=list)
    in_ledger: tuple[Overview, ...] = ()
    taken: tuple[str, ...] = ()
    """Clusters whose launch is refused, and every command to them."""
    aheads: dict[str, Ahead | BackstopError] = field(default_factory=dict)
    week: Past = field(default_factory=lambda: a_past(3))
    plan: PlanNow = field(
        default_factory=lambda: PlanNow(
            plan=a_plan(3, NOON), measured={"monitored_clusters": 2, "phantom_gpus": 30, "rolled_out_waves": 0}
        )
    )
    hours: HealthHours = field(
        default_factory=lambda: HealthHours(cluster="h100-worked", total_gpus=361, gpus_per_node=8)
    )
    flexes: list[FlexNow] = field(default_factory=list)
    whys: list[TeamWhy] = field(default_factory=list)
    unanswered: dict[str, str] = field(default_factory=dict)
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    requests_open: list[RequestState] = field(default_factory=list)
    standing: dict[str, ClusterNow] = field(default_factory=dict)
    """What the ledger has of clusters, for imports."""
    pages: list[FleetPage] = field(default_factory=list)
    envelopes: dict[str, Envelope] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    """Of the policy of the one cluster."""
    in_slurm: ClusterInSlurm = field(default_factory=lambda: ClusterInSlurm(**dict(WORKED)))
    refuses: BackstopError | None = None
    asked: list[Any] = field(default_factory=list)
    actor: str = ""
    closed: bool = False

    async def close(self) -> None:
        self.closed = True

    def _ask(self, *what: Any) -> None:
        self.asked.append(what)
        if self.refuses is not None:
            raise self.refuses

    async def ask(self, question: Question[Any]) -> Any:
        self._ask(question.kind, *dict(question).values())
        match question:
            case OpenRollouts():
                return self.in_ledger
            case DescribeSlurm():
                return self.in_slurm.model_copy(update={"name": question.cluster, "slurm": question.slurm})
            case Declare():
                self.declared += question.declared
                windows = [(d.source, *each) for d in question.declared for each in d.windows]
                entries = tuple(
                    Entry(id=number, cluster=name, window=window, source=source, declared_by="tpm")
                    for number, (source, name, window) in enumerate(windows, 1)
                )
                return Declaration(stand=entries, new=entries, gone=())
            case EndWindow():
                return _ended(next(e for e in self.entries if e.id == question.number))
            case FleetEnvelopes():
                return {c: e for c, e in self.envelopes.items() if c in question.clusters}
            case EndHold():
                own = [e for e in self.entries if e.source == question.source and e.cluster in question.clusters]
                return tuple(map(_ended, own))
            case MilestonesNow() | PlanMilestones() | NoteMilestone():
                return self.plan
            case YearOfHealth():
                return self.hours
            case RemoveCluster() | RenameCluster():
                barred = "" if question.cluster in self.standing else "rollout h100-worked/1 is open (buffered)"
                history = {"health samples": 1, "tallies": 1200}
                done = not question.dry_run
                return Departure(
                    cluster=question.cluster, summary="1 island", history=history, barred=barred, done=done
                )
            case AccessNow():
                return AccessStands()
            case Archived():
                return ArchivePage(rows=(), head=self.archive[1])
            case FactsOf():
                if question.cluster != WORKED.name:
                    raise BadInput(f"the ledger has no cluster {question.cluster!r}")
                return None
            case WhyNot():
                return WhyAnswers(teams=tuple(self.whys), unanswered=self.unanswered)
        raise AssertionError(f"nobody has told the fake what to answer to {question!r}")

    async def launch(self, request: LaunchRequest) -> LaunchAnswer:
        self._ask("launch", request)
        if request.cluster in self.taken:
            raise Refusal(f"{request.cluster} was not launched: another has it")
        return LaunchAnswer(
            launched=True, rollout="h100-worked/1", cluster=request.cluster, stage=Stage.PLANNED, plan=PLAN
        )

    async def command(self, cluster: str, command: Command, request: CommandRequest) -> CommandAnswer:
        self._ask("command", cluster, command, request)
        if cluster in self.taken:
            raise Refusal(f"{command} is not possible while {cluster} is monitored: already at the last stage")
        undo = f"Undo: backstop pause {cluster} --reason '...'"
        return CommandAnswer(cluster=cluster, command=command, stage=Stage.BUFFERED, said="so be it", undo=undo)

    async def could_act(self, cluster: str) -> list[str]:
        return list(await could_act_now(self.ask, await self.status(cluster)))

    async def who_could(self, needs: str, cluster: str = "", subject: str = "") -> list[str]:
        self._ask("who_could", needs, cluster, subject)
        key, cases = command_awaited(needs)
        target = Target(cluster=cluster, team=team_awaited(needs), cases=cases)
        return list(await who_could_now(self.ask, key, target, subject) or ())

    async def ahead(self, cluster: str) -> Ahead:
        self._ask("ahead", cluster)
        found = self.aheads.get(cluster, AHEAD)
        if isinstance(found, BackstopError):
            raise found
        return found.model_copy(update={"cluster": cluster})

    async def status(self, cluster: str) -> RolloutStatus:
        self._ask("status", cluster)
        found = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        if isinstance(found, BackstopError):
            raise found
        return found

    async def watch(self) -> Check:
        return self.watching

    async def open_requests(self, cluster: str = "") -> list[RequestState]:
        return [r for r in self.requests_open if cluster in ("", r.ask.cluster)]

    async def open_fleet(self) -> FleetStatus | None:
        return self.fleet

    async def lost_fleet(self) -> KeptFleet | None:
        return self.kept

    async def fleet_status(self) -> FleetStatus:
        self._ask("fleet_status")
        if self.fleet is None:
            raise Refusal("there is no fleet rollout: launch one with `backstop launch --fleet`")
        return self.fleet

    async def fleet_plan(self) -> FleetPlan:
        self._ask("fleet_plan")
        assert self.awaits is not None
        return self.awaits

    async def launch_fleet(self, request: FleetLaunch) -> FleetPlan:
        self._ask("launch_fleet", request)
        prospect = Prospect(cluster=WORKED.name, wave=Wave.BUSY, headroom=-0.07, cut_gpus=39, plan_hash="abc")
        return FleetPlan(fleet=request.fleet, hash="feed", clusters=(prospect,))

    async def fleet_command(self, command: FleetCommand, request: FleetCommandRequest) -> FleetCommandAnswer:
        self._ask("fleet_command", command, request)
        return FleetCommandAnswer(command=command, stage=FleetStage.RUNNING, said="so be it")

    async def overview(self) -> list[RolloutSummary]:
        self._ask("overview")
        if self.summaries is not None:
            return self.summaries
        return [
            RolloutSummary(
                cluster=f"cluster-with-a-rather-long-name-{number:06d}",
                stage="monitored",
                wave="busy",
                owner="tpm",
                unbacked_gpus=1234567,
                started=NOON,
                closed=None,
                open=True,
                needs="",
            )
            for number in range(3)
        ]

    async def ask_rollouts(self, clusters: Sequence[str], seconds: float) -> dict[str, RolloutStatus | None]:
        answers: dict[str, RolloutStatus | None] = {}
        for cluster in clusters:
            try:
                answers[cluster] = await self.status(cluster)
            except BackstopError:
                answers[cluster] = None
        return answers

    async def health_at(self, cluster: str) -> datetime | None:
        self._ask("health_at", cluster)
        return self.source_at

    async def lost(self, cluster: str = "") -> list[Overview]:
        return self.lost_rollouts

    async def audit(self, cluster: str) -> list[AuditRecord]:
        self._ask("audit", cluster)
        if cluster != WORKED.name:
            raise Refusal(f"there is no rollout of {cluster}: launch one with `backstop launch {cluster}`")
        return [
            AuditRecord(
                at=NOON,
                kind=AuditKind.COMMAND,
                actor="tpm",
                text="launched by tpm, in one \x1b[31mlong\n sentence " + "on and " * 40 + "on",
                reason="pilot",
            )
        ]

    async def read_archive(self, cluster: str) -> tuple[list[ChainedEntry], ChainHead | None]:
        self._ask("read_archive", cluster)
        return self.archive

    async def import_fleet(self, fleet: Fleet, stage: object = None) -> dict[str, int]:
        self._ask("import_fleet", fleet)
        return {"clusters": len(fleet.clusters), "quotas": 1, "added": 0, "changed": 1, "removed": 0}

    async def take_fleet(self, fleet: Fleet, terms: ImportTerms, stage: object = None) -> FleetOutcome:
        """Return the differences that models/cluster/fleet_diff.py finds between the file and the present fleet."""
        self._ask("take_fleet", fleet, terms)
        numbers = {cluster.name: number for number, cluster in enumerate(fleet.clusters)}
        lines = [
            line
            for cluster in fleet.clusters
            for line in resolve_cluster(cluster, self.standing.get(cluster.name), terms, numbers[cluster.name])[1]
        ]
        beside = [OtherCluster(name=n, summary="2 quotas, 9 GPUs in all") for n in self.standing if n not in numbers]
        lines += [*resolve_teams(fleet, {}, prune=terms.prune)[1], *other_lines(beside, prune=terms.prune)]
        counts = {"clusters": len(fleet.clusters), "quotas": 1, "added": 0, "changed": 1, "removed": 0}
        contacts = {team.name: team.contacts for team in fleet.teams}
        return outcome_of(fleet, lines, counts, oddities_of(fleet, contacts), done=not terms.dry_run)

    async def fleet_pages(self) -> list[FleetPage]:
        return self.pages

    async def add_health(self, samples: Sequence[HealthSample]) -> int:
        self._ask("add_health", samples)
        return len(samples)

    async def describe_clusters(self) -> list[LedgerCluster]:
        self._ask("clusters")
        free = [LedgerCluster(cluster=WORKED.model_copy(update={"name": name}), name=name) for name in self.free]
        return [LedgerCluster(cluster=WORKED, stage="planned", name=WORKED.name), *free, *self.senseless_ones]

    async def senseless(self) -> dict[str, tuple[str, ...]]:
        return {one.name: (one.wrong,) for one in self.senseless_ones}

    async def clusters(self) -> list[ClusterSpec]:
        self._ask("clusters")
        return list(self.specs)

    async def clusters_named(self, names: Collection[str]) -> list[ClusterSpec]:
        self._ask("clusters_named", sorted(names))
        return [spec for spec in self.specs if spec.name in names]

    async def calendar(self, cluster: str = "") -> tuple[Entry, ...]:
        self._ask("calendar", cluster)
        return tuple(self.entries)

    async def tallies(self, cluster: str, times: Sequence[datetime], within: timedelta) -> Curve:
        self._ask("tallies", cluster, times, within)
        if cluster not in ("", WORKED.name):
            raise BadInput(f"the ledger has no cluster {cluster!r}")
        began = None if not self.points else self.points[0].at
        return Curve(points=tuple(p for p in self.points if p.at >= times[0]), began=began)

    async def past(
        self, since: datetime, until: datetime, times: Sequence[datetime], within: timedelta, _: int | None = None
    ) -> Past:
        self._ask("past", since, until, times, within)
        return self.week.model_copy(update={"since": since, "until": until})

    async def rollouts(self) -> list[RolloutSummary]:
        return await self.overview()

    async def snapshot(self, cluster: str, over: Mapping[str, Any] | None = None) -> tuple[Snapshot, Policy]:
        self._ask("snapshot", cluster, *([over] if over else []))
        if cluster != WORKED.name and cluster not in self.free:
            raise Refusal(f"cluster {cluster!r} is not in the ledger")
        snapshot = snapshot_of(WORKED.model_copy(update={"name": cluster}))
        return snapshot.model_copy(update={"health_at": self.source_at}), Policy(classes=self.classes)

    async def add_jobs(self, jobs: Sequence[ClusterJob]) -> int:
        self._ask("add_jobs", jobs)
        return len(jobs)

    async def plannable(
        self, over: Mapping[str, Any] | None = None
    ) -> tuple[list[tuple[Snapshot, Policy]], dict[str, str]]:
        self._ask("snapshots", *([over] if over else []))
        return [(snapshot_of(WORKED), Policy())], {one.name: one.wrong for one in self.senseless_ones}

    async def flex(self, cluster: str = "", mode: FlexMode = FlexMode.EQUAL) -> list[FlexNow]:
        self._ask("flex", cluster, mode)
        return self.flexes

    async def builds(self) -> list[Build]:
        self._ask("builds")
        return [
            Build(build="2026-11-21.1", status="current", workers=2, rollouts=40, created=NOON),
            Build(build="2026-11-07.2", status="draining", workers=0, rollouts=2, created=NOON),
            Build(build="2026-11-01.1", status="drained", workers=1, rollouts=0, created=NOON),
        ]

    async def use_build(self, build: str) -> str:
        self._ask("use_build", build)
        return "2026-11-07.2"

    async def doctor(self) -> list[Check]:
        self._ask("doctor")
        return self.checks


def _ended(entry: Entry) -> Entry:
    """Return the window as the ledger leaves it: cut short if it has begun."""
    now = datetime.now(UTC)
    if not entry.window.starts < now < entry.window.ends:
        return entry
    return entry.model_copy(update={"window": entry.window.model_copy(update={"ends": now})})


@contextmanager
def answering(fake: FakeBackstop) -> Iterator[FakeBackstop]:
    """The command line talks to the fake."""

    async def connect(actor: str, **options: Any) -> FakeBackstop:
        fake.actor = actor
        return fake

    with patch("client.backstop.Backstop.connect", connect):
        yield fake
