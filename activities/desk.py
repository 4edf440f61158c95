"""What people ask of the ledger outside a rollout: import, show, archive."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeVar

from pydantic import Field
from temporalio import activity

from activities.clusters import HISTORY_FRESH, ClusterActivities
from activities.failures import translated
from activities.ports import FleetPort, JobPort, MilestonePort, RegistryPort, ReportPort, SchedulerPort, TallyPort
from models.audit import AuditEntry, AuditKind, ChainedEntry
from models.base import Count, GpuCount, Model, Name, PositiveCount, Time, Words
from models.cluster.jobs import ClusterJob
from models.cluster.policy import Policy
from models.cluster.readings import HealthSample
from models.cluster.snapshot import Snapshot
from models.cluster.sources import SlurmSource
from models.cluster.windows import Declared, Entry, span_text
from models.errors import BadInput, Refusal
from models.flex.division import FlexMode
from models.reports.milestones import (
    CHAIN,
    MONITORED_CLUSTERS,
    PHANTOM_GPUS,
    ROLLED_OUT_WAVES,
    MilestoneFile,
    MilestoneNote,
    PlanNow,
)
from models.reports.weekly import BeforeAndAfter, Passage, Past, in_order, monitored_at, spans, steps_of
from models.wire import DeskAnswer, DeskRequest

_T = TypeVar("_T")
_QUOTAS_A_PAGE = 10_000
_BYTES_A_PAGE = 8_000_000
"""Of JSON, which crosses Temporal at a tenth of its size (client/compression.py); 2 MiB is the most there."""

_REQUESTS_SHOWN = 500

_Limit = Annotated[PositiveCount, Field(le=1000)]
_Number = Annotated[Count, Field(le=10**6)]


class _Nothing(Model):
    pass


class _Cluster(Model):
    cluster: Name


class _Page(Model):
    after: Words = ""
    limit: _Limit = 20


class _Planning(Model):
    cluster: Name
    policy: dict[str, Any] = Field(default_factory=dict)
    """What lies over the cluster's own."""


class _PlanningPage(_Page):
    policy: dict[str, Any] = Field(default_factory=dict)


class _Flex(_Page):
    cluster: Words = ""
    mode: FlexMode = FlexMode.EQUAL


class _Why(Model):
    team: Name
    cluster: Words = ""
    gpus: PositiveCount | None = None
    block: bool = False


class _Request(Model):
    request: Name


class _Requests(Model):
    cluster: Words = ""
    ended: bool = False


class _Rows(Model):
    cluster: Name
    after: Count = 0
    limit: _Limit = 200


class _Part(Model):
    import_id: Name
    part: _Number


class _Parts(Model):
    import_id: Name
    parts: _Number


class _Samples(Model):
    samples: tuple[HealthSample, ...]


class _Jobs(Model):
    jobs: tuple[ClusterJob, ...]


class _Slurm(Model):
    cluster: Name
    slurm: SlurmSource


class _Detached(Model):
    cluster: Name
    restore: bool = False
    reason: Words = ""


class _Since(Model):
    cluster: Words = ""
    since: Time


class _Declared(Model):
    declared: tuple[Declared, ...] = Field(min_length=1, max_length=10_000)


class _Window(Model):
    cluster: Name
    number: PositiveCount
    reason: Words = ""


class _Entries(Model):
    entries: tuple[AuditEntry, ...]


_Arguments = TypeVar("_Arguments", bound=Model)


def _of(q: DeskRequest, model: type[_Arguments]) -> _Arguments:
    """The request's arguments, checked. Errors: pydantic.ValidationError, which leaves as BadInput."""
    return model.model_validate(q.arguments)


class _Times(Model):
    cluster: Words = ""
    times: tuple[Time, ...] = Field(max_length=500)
    within_seconds: PositiveCount


class _Week(Model):
    since: Time
    until: Time
    times: tuple[Time, ...] = Field(max_length=500)
    within_seconds: PositiveCount


class _Noted(Model):
    milestone: Name
    number: GpuCount
    reason: Words


def _planning(snapshot: Snapshot, policy: Policy) -> dict[str, Any]:
    return {
        "snapshot": snapshot.model_dump(mode="json"),
        "policy": policy.model_dump(mode="json", exclude_unset=True),
    }


class DeskActivities:
    def __init__(
        self,
        fleet: FleetPort,
        registry: RegistryPort,
        clusters: ClusterActivities,
        tallies: TallyPort,
        report: ReportPort,
        milestones: MilestonePort,
        jobs: JobPort,
        schedulers: SchedulerPort,
    ) -> None:
        self._fleet = fleet
        self._registry = registry
        self._rollouts = clusters
        self._tallies = tallies
        self._report = report
        self._milestones = milestones
        self._jobs = jobs
        self._schedulers = schedulers
        self._answers: dict[str, Callable[[DeskRequest], Any]] = {
            "stage_import": self._stage_import,
            "commit_import": self._commit_import,
            "add_health": self._add_health,
            "add_jobs": self._add_jobs,
            "describe_slurm": self._describe_slurm,
            "detach": self._detach,
            "clusters": self._clusters,
            "teams": self._teams,
            "facts": lambda q: self._registry.facts(_of(q, _Cluster).cluster).model_dump(mode="json"),
            "snapshot": self._snapshot,
            "snapshots": self._snapshots,
            "health_hours": self._health_hours,
            "flex": self._flex,
            "why": self._why,
            "archive": self._archive,
            "archived": self._archived,
            "calendar": self._calendar,
            "declare": self._declare,
            "end_window": self._end_window,
            "overview": self._overview,
            "tallies": self._curve,
            "week": self._week,
            "request": self._request,
            "requests": self._requests,
            "milestones": self._plan,
            "plan_milestones": self._plan_milestones,
            "note_milestone": self._note_milestone,
            "doctor": self._doctor,
        }

    @activity.defn(name="ledger_desk", no_thread_cancel_exception=True)
    def answer(self, request: DeskRequest) -> DeskAnswer:
        """The request is carried out. Errors: BadInput for wrong arguments, those of the ports."""
        with translated():
            return DeskAnswer(result=self._answers[request.kind](request))

    def _stage_import(self, q: DeskRequest) -> None:
        asked = _of(q, _Part)
        try:
            payload = base64.b64decode(q.payload, validate=True)
        except ValueError:
            raise BadInput("the payload of an import's part must be Base64") from None
        self._fleet.stage_import(asked.import_id, asked.part, payload)

    def _commit_import(self, q: DeskRequest) -> dict[str, Any]:
        asked = _of(q, _Parts)
        return self._fleet.commit_import(asked.import_id, asked.parts, q.actor, datetime.now(UTC))

    def _add_health(self, q: DeskRequest) -> int:
        return self._fleet.add_health(_of(q, _Samples).samples, q.actor)

    def _add_jobs(self, q: DeskRequest) -> int:
        return self._jobs.add_jobs(_of(q, _Jobs).jobs)

    def _describe_slurm(self, q: DeskRequest) -> dict[str, Any]:
        asked = _of(q, _Slurm)
        return self._schedulers.describe(asked.cluster, asked.slurm).model_dump(mode="json", exclude_defaults=True)

    def _detach(self, q: DeskRequest) -> dict[str, Any]:
        asked, now = _of(q, _Detached), datetime.now(UTC)
        back = self._schedulers.detach(asked.cluster, restore=asked.restore)
        moves = ", ".join(f"{name} {before} -> {after}" for name, (before, after) in sorted(back.items()))
        entry = AuditEntry(
            key=_request_id(),
            cluster=asked.cluster,
            at=now,
            kind=AuditKind.COMMAND,
            actor=q.actor,
            text=f"detached from its scheduler{': ' + moves if moves else ''}",
            reason=asked.reason,
        )
        self._registry.archive([entry])
        return {name: list(values) for name, values in back.items()}

    def _clusters(self, q: DeskRequest) -> list[dict[str, Any]]:
        asked = _of(q, _Page)
        found = self._fleet.clusters(asked.after, asked.limit)
        found = tuple(_light(found, lambda row: len(row[0].quotas), _QUOTAS_A_PAGE))
        return [
            {
                "cluster": spec.model_dump(mode="json", exclude_defaults=True),
                "rollout": None if rollout is None else rollout.rollout,
                "stage": None if rollout is None else rollout.stage,
            }
            for spec, rollout in found
        ]

    def _teams(self, q: DeskRequest) -> list[dict[str, Any]]:
        _of(q, _Nothing)
        return [t.model_dump(mode="json") for t in self._fleet.teams()]

    def _snapshot(self, q: DeskRequest) -> dict[str, Any]:
        """What a launch would plan from now: the same values, health and usage."""
        asked = _of(q, _Planning)
        return _planning(*self._rollouts.present(asked.cluster, datetime.now(UTC), asked.policy))

    def _flex(self, q: DeskRequest) -> list[dict[str, Any]]:
        asked = _of(q, _Flex)
        if asked.cluster:
            wanted = [asked.cluster]
        else:
            wanted = sorted(n for n in self._registry.names() if n > asked.after)[: asked.limit]
        found = self._rollouts.flex(wanted, asked.mode, datetime.now(UTC))
        return [one.model_dump(mode="json") for one in found]

    def _why(self, q: DeskRequest) -> list[dict[str, Any]]:
        asked, now = _of(q, _Why), datetime.now(UTC)
        names = [asked.cluster] if asked.cluster else sorted(self._registry.names())
        found, refused = [], None
        for name in names:
            try:
                one = self._rollouts.why(name, asked.team, asked.gpus, now, block=asked.block)
            except Refusal as error:  # a sum of quotas here, and elsewhere perhaps one that jobs run in
                refused = error
            else:
                found += [] if one is None else [one.model_dump(mode="json")]
        if refused is not None and not found:
            raise refused
        return found

    def _request(self, q: DeskRequest) -> dict[str, Any]:
        asked = _of(q, _Request)
        found = self._registry.request(asked.request)
        if found is None:
            raise Refusal(f"there is no request {asked.request!r}: see `backstop request list`")
        return found.model_dump(mode="json")

    def _requests(self, q: DeskRequest) -> list[dict[str, Any]]:
        asked = _of(q, _Requests)
        found = [one.model_dump(mode="json") for one in self._registry.requests(asked.cluster, ended=asked.ended)]
        return found[-_REQUESTS_SHOWN:]

    def _health_hours(self, q: DeskRequest) -> dict[str, Any]:
        """The hours that a buffer from health history goes by, and what it is asked for."""
        cluster = _of(q, _Cluster).cluster
        return self._rollouts.health_hours(cluster, datetime.now(UTC)).model_dump(mode="json")

    def _snapshots(self, q: DeskRequest) -> list[dict[str, Any]]:
        asked = _of(q, _PlanningPage)
        page = self._fleet.clusters(asked.after, asked.limit)
        light = _light(page, lambda row: len(row[0].quotas), _QUOTAS_A_PAGE)
        now = datetime.now(UTC)
        return [_planning(*self._rollouts.present(spec.name, now, asked.policy, HISTORY_FRESH)) for spec, _ in light]

    def _archive(self, q: DeskRequest) -> int:
        entries = _of(q, _Entries).entries
        self._registry.archive(entries)
        return len(entries)

    def _archived(self, q: DeskRequest) -> dict[str, Any]:
        asked = _of(q, _Rows)
        rows = self._registry.archived(asked.cluster, asked.after, asked.limit)
        head = self._registry.chain_head(asked.cluster)
        return {
            "rows": [row.model_dump(mode="json") for row in _light(rows, _json_bytes, _BYTES_A_PAGE)],
            "head": None if head is None else head.model_dump(mode="json"),
        }

    def _calendar(self, q: DeskRequest) -> list[dict[str, Any]]:
        asked = _of(q, _Since)
        return [entry.model_dump(mode="json") for entry in self._fleet.calendar(asked.cluster, asked.since)]

    def _declare(self, q: DeskRequest) -> dict[str, Any]:
        now = datetime.now(UTC)
        found = self._fleet.declare(_of(q, _Declared).declared, q.actor, now)
        # Tried again, it may find new what the first try declared, and had no time to archive.
        new = found.new if activity.info().attempt == 1 else found.stand
        said = [*(("declared", e) for e in new), *(("took back", e) for e in found.gone)]
        self._registry.archive(
            [_told(q, f"/{n}", what, entry, entry.window.reason, now) for n, (what, entry) in enumerate(said)]
        )
        return found.model_dump(mode="json")

    def _end_window(self, q: DeskRequest) -> dict[str, Any]:
        asked, now = _of(q, _Window), datetime.now(UTC)
        entry = self._fleet.end_window(asked.cluster, asked.number, now)
        self._registry.archive([_told(q, "", "ended", entry, asked.reason, now)])
        return entry.model_dump(mode="json")

    def _overview(self, q: DeskRequest) -> list[dict[str, Any]]:
        _of(q, _Nothing)
        return [row.model_dump(mode="json") for row in self._registry.overview()]

    def _curve(self, q: DeskRequest) -> dict[str, Any]:
        asked = _of(q, _Times)
        points = self._tallies.points(asked.cluster, asked.times, timedelta(seconds=asked.within_seconds))
        began = self._tallies.began(asked.cluster)
        return {
            "points": [point.model_dump(mode="json") for point in points],
            "began": None if began is None else began.isoformat(),
        }

    def _week(self, q: DeskRequest) -> dict[str, Any]:
        asked = _of(q, _Week)
        within = timedelta(seconds=asked.within_seconds)
        passages = self._report.passages(asked.until)
        week_ago = self._tallies.points("", [asked.since], timedelta(days=1))
        past = Past(
            since=asked.since,
            until=asked.until,
            clusters=self._report.cluster_count(),
            moves=tuple(m for m in in_order(passages) if asked.since < m.at <= asked.until),
            monitored=monitored_at(passages, asked.until),
            monitored_before=len(monitored_at(passages, asked.since)),
            steps=steps_of(passages, asked.until),
            outcomes=self._outcomes(passages, asked.until),
            points=self._tallies.points("", asked.times, within),
            week_ago=week_ago[0] if week_ago else None,
            began=self._tallies.began(""),
            milestones=self._milestones.milestones(),
        )
        return past.model_dump(mode="json")

    def _outcomes(self, passages: Sequence[Passage], until: datetime) -> tuple[BeforeAndAfter, ...]:
        asked = spans(passages, until)
        before = self._report.means([before for _, _, before, _ in asked])
        after = iter(self._report.means([after for _, _, _, after in asked if after is not None]))
        return tuple(
            BeforeAndAfter(
                cluster=first.cluster,
                wrote_at=span.until,
                monitored_at=None if reached is None else reached.at,
                before=mean,
                after=None if later is None else next(after),
            )
            for (first, reached, span, later), mean in zip(asked, before, strict=True)
        )

    def _plan(self, q: DeskRequest) -> dict[str, Any]:
        _of(q, _Nothing)
        return self._plan_now().model_dump(mode="json")

    def _plan_now(self) -> PlanNow:
        """Waves take a plan of every cluster: whoever asks for them counts them."""
        now = datetime.now(UTC)
        points = self._tallies.points("", [now], timedelta(days=1))
        monitored = monitored_at(self._report.passages(now), now)
        phantom = points[0].phantom_gpus if points and points[0].known else None
        return PlanNow(
            plan=self._milestones.milestones(),
            measured={MONITORED_CLUSTERS: len(monitored), PHANTOM_GPUS: phantom},
            monitored=monitored,
        )

    def _plan_milestones(self, q: DeskRequest) -> dict[str, Any]:
        given, now = _of(q, MilestoneFile).milestones, datetime.now(UTC)
        measured = {**self._plan_now().measured, ROLLED_OUT_WAVES: 0}
        self._milestones.plan_milestones(given, measured, now)
        names = ", ".join(m.name for m in given)
        said = f"set {len(given)} milestone{'' if len(given) == 1 else 's'}: {names}"
        self._registry.archive([_of_people(q, said, "", now)])
        return self._plan_now().model_dump(mode="json")

    def _note_milestone(self, q: DeskRequest) -> dict[str, Any]:
        asked, now = _of(q, _Noted), datetime.now(UTC)
        note = MilestoneNote(milestone=asked.milestone, at=now, number=asked.number, actor=q.actor, reason=asked.reason)
        self._milestones.note_milestone(_request_id(), note)
        self._registry.archive([_of_people(q, f"noted {asked.number} for {asked.milestone}", asked.reason, now)])
        return self._plan_now().model_dump(mode="json")

    def _doctor(self, q: DeskRequest) -> dict[str, Any]:
        """Proof that a worker reaches its ledger, and the schedulers that hold quotas."""
        _of(q, _Nothing)
        schedulers = {cluster: found.model_dump() for cluster, found in self._schedulers.check().items()}
        return {"open_rollouts": len(self._registry.open_clusters()), "schedulers": schedulers}


def _told(q: DeskRequest, part: str, what: str, entry: Entry, reason: str, now: datetime) -> AuditEntry:
    """What became of a window. Under the request's own name: whoever carries it out again archives nothing twice."""
    return AuditEntry(
        key=f"{activity.info().workflow_id}{part}",
        cluster=entry.cluster,
        at=now,
        kind=AuditKind.COMMAND,
        actor=q.actor,
        text=f"{what} {span_text(entry.window)} ({entry.source or 'fleet file'})",
        reason=reason,
        data={"command": q.kind, "id": entry.id, "window": entry.window.model_dump(mode="json")},
    )


def _request_id() -> str:
    """Of this request, however often it is carried out."""
    return str(activity.info().workflow_id)


def _of_people(q: DeskRequest, text: str, reason: str, now: datetime) -> AuditEntry:
    """What somebody did to the milestones, in the chain that these have."""
    return AuditEntry(
        key=_request_id(),
        cluster=CHAIN,
        at=now,
        kind=AuditKind.COMMAND,
        actor=q.actor,
        text=text if len(text) <= 500 else f"{text[:500]} and so on",
        reason=reason,
        data={"command": q.kind, **q.arguments},
    )


def _json_bytes(row: ChainedEntry) -> int:
    return len(row.model_dump_json())


def _light(rows: Iterable[_T], weight: Callable[[_T], int], most: int) -> Iterator[_T]:
    """The first rows that weigh no more than this together; at least one, so that the next page goes on."""
    total = 0
    for number, row in enumerate(rows):
        total += weight(row)
        if number and total > most:
            return
        yield row
