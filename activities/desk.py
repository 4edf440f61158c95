"""What people ask of the ledger outside a rollout: import, show, archive. Each question is in models/questions.py."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, TypeVar

from temporalio import activity

from activities.clusters import HISTORY_FRESH, ClusterActivities
from activities.failures import translated
from activities.ports import (
    CalendarPort,
    FleetPort,
    HealthSourcesPort,
    JobPort,
    MilestonePort,
    OpenRollout,
    RegistryPort,
    ReportPort,
    SchedulerPort,
    TallyPort,
)
from activities.report_facts import ReportFacts
from models import questions as ask
from models.audit import AuditEntry, AuditKind, ChainedEntry
from models.cluster.fleet_file import ClusterSpec
from models.cluster.windows import Declaration, Entry, span_text
from models.errors import BadInput, Refusal
from models.flex.flex_now import FlexNow
from models.questions import QUESTIONS, DeskAnswer, DeskRequest, Question
from models.reports.milestones import CHAIN, ROLLED_OUT_WAVES, MilestoneNote, PlanNow
from models.reports.why import WhyAnswers
from models.requests.state import RequestState

_T = TypeVar("_T")
_QUOTAS_A_PAGE = 10_000
_BYTES_A_PAGE = 8_000_000
"""Of JSON, which crosses Temporal at a tenth of its size (client/compression.py); 2 MiB is the most there."""

_REQUESTS_SHOWN = 500
_CLUSTERS_NAMED = 5


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
        health: HealthSourcesPort,
        calendar: CalendarPort,
    ) -> None:
        self._fleet = fleet
        self._registry = registry
        self._rollouts = clusters
        self._reports = ReportFacts(tallies, report, milestones)
        self._milestones = milestones
        self._schedulers = schedulers
        self._health = health
        self._calendar = calendar
        # A question, with the request that it came in: who asks, and under which name.
        self._answers: dict[type[Question[Any]], Callable[[Any, DeskRequest], Any]] = {
            ask.StageImport: self._stage_import,
            ask.CommitImport: self._commit_import,
            ask.AddHealth: lambda q, by: fleet.add_health(q.samples, by.actor),
            ask.AddJobs: lambda q, _: jobs.add_jobs(q.jobs),
            ask.DescribeSlurm: lambda q, _: schedulers.describe(q.cluster, q.slurm),
            ask.Detach: self._detach,
            ask.LedgerClusters: self._clusters,
            ask.AllTeams: lambda _, __: fleet.teams(),
            ask.FactsOf: lambda q, _: registry.facts(q.cluster),
            ask.SnapshotNow: self._snapshot,
            ask.SnapshotsNow: self._snapshots,
            ask.YearOfHealth: lambda q, _: clusters.health_hours(q.cluster, datetime.now(UTC)),
            ask.FlexOf: self._flex,
            ask.WhyNot: self._why,
            ask.Archive: self._archive,
            ask.Archived: self._archived,
            ask.Calendar: lambda q, _: fleet.calendar(q.cluster, q.since),
            ask.Declare: self._declare,
            ask.EndWindow: self._end_window,
            ask.OpenRollouts: lambda _, __: registry.overview(),
            ask.Tallies: lambda q, _: self._reports.curve(q),
            ask.PastWeek: lambda q, _: self._reports.week(q),
            ask.OneRequest: self._request,
            ask.RequestsOf: lambda q, _: registry.requests(q.cluster, ended=q.ended)[-_REQUESTS_SHOWN:],
            ask.MilestonesNow: lambda _, __: self._reports.plan_now(),
            ask.PlanMilestones: self._plan_milestones,
            ask.NoteMilestone: self._note_milestone,
            ask.CheckLedger: self._check,
        }

    @activity.defn(name="ledger_desk", no_thread_cancel_exception=True)
    def answer(self, request: DeskRequest) -> DeskAnswer:
        """The request is carried out. Errors: BadInput for wrong arguments, those of the ports."""
        with translated():
            kind = QUESTIONS[request.kind]
            answer = self._answers[kind](kind.model_validate(request.arguments), request)
            return DeskAnswer(result=kind.answers().dump_python(answer, mode="json"))

    def _stage_import(self, question: ask.StageImport, request: DeskRequest) -> None:
        try:
            payload = base64.b64decode(request.payload, validate=True)
        except ValueError:
            raise BadInput("the payload of an import's part must be Base64") from None
        self._fleet.stage_import(question.import_id, question.part, payload)

    def _commit_import(self, question: ask.CommitImport, request: DeskRequest) -> dict[str, int]:
        return self._fleet.commit_import(question.import_id, question.parts, request.actor, datetime.now(UTC))

    def _detach(self, question: ask.Detach, request: DeskRequest) -> dict[str, tuple[int | None, int | None]]:
        now = datetime.now(UTC)
        back = self._schedulers.detach(question.cluster, restore=question.restore)
        moves = ", ".join(f"{name} {before} -> {after}" for name, (before, after) in sorted(back.items()))
        text = f"detached from its scheduler{': ' + moves if moves else ''}"
        self._registry.archive([_entry(request, question.cluster, text, question.reason, now)])
        return back

    def _clusters(self, question: ask.LedgerClusters, _: DeskRequest) -> tuple[ask.LedgerCluster, ...]:
        return tuple(
            ask.LedgerCluster(
                cluster=spec,
                rollout=None if rollout is None else rollout.rollout,
                stage=None if rollout is None else rollout.stage,
            )
            for spec, rollout in self._page(question.after, question.limit)
        )

    def _page(self, after: str, limit: int) -> Iterator[tuple[ClusterSpec, OpenRollout | None]]:
        return _light(self._fleet.clusters(after, limit), lambda row: len(row[0].quotas), _QUOTAS_A_PAGE)

    def _snapshot(self, question: ask.SnapshotNow, _: DeskRequest) -> ask.Plannable:
        """What a launch would plan from now: the same values, health and usage."""
        snapshot, policy = self._rollouts.present(question.cluster, datetime.now(UTC), question.policy)
        return ask.Plannable(snapshot=snapshot, policy=policy)

    def _snapshots(self, question: ask.SnapshotsNow, _: DeskRequest) -> tuple[ask.Plannable, ...]:
        now = datetime.now(UTC)
        present = (
            self._rollouts.present(spec.name, now, question.policy, HISTORY_FRESH)
            for spec, _ in self._page(question.after, question.limit)
        )
        return tuple(ask.Plannable(snapshot=snapshot, policy=policy) for snapshot, policy in present)

    def _flex(self, question: ask.FlexOf, _: DeskRequest) -> tuple[FlexNow, ...]:
        if question.cluster:
            names = [question.cluster]
        else:
            names = sorted(n for n in self._registry.names() if n > question.after)[: question.limit]
        return tuple(self._rollouts.flex(names, question.mode, datetime.now(UTC)))

    def _why(self, question: ask.WhyNot, _: DeskRequest) -> WhyAnswers:
        now = datetime.now(UTC)
        if question.cluster:
            one = self._rollouts.why(question.cluster, question, now)
            if one is None:
                raise Refusal(self._no_quota(question.team, question.cluster))
            return WhyAnswers(teams=(one,))
        teams, unanswered = [], {}
        for name in sorted(self._registry.names()):
            try:
                teams += [one] if (one := self._rollouts.why(name, question, now)) is not None else []
            except Refusal as error:  # a sum of quotas here, and elsewhere perhaps one that jobs run in
                unanswered[name] = str(error)
        return WhyAnswers(teams=tuple(teams), unanswered=unanswered)

    def _no_quota(self, team: str, cluster: str) -> str:
        """That it has none there, and where it has."""
        has = {
            spec.name: quota.gpus
            for spec, _ in self._fleet.clusters("", len(self._registry.names()))
            for quota in spec.quotas
            if quota.team == team
        }
        most = sorted(has, key=lambda name: (-has[name], name))[:_CLUSTERS_NAMED]
        named = ", ".join(f"{name} ({has[name]})" for name in most)
        more = f" and {len(has) - len(most)} clusters more" if len(has) > len(most) else ""
        elsewhere = f"it has in {named}{more}" if has else "nor in any other"
        return f"{team} has no quota in cluster {cluster}; {elsewhere}"

    def _archive(self, question: ask.Archive, _: DeskRequest) -> int:
        self._registry.archive(question.entries)
        return len(question.entries)

    def _archived(self, question: ask.Archived, _: DeskRequest) -> ask.ArchivePage:
        rows = self._registry.archived(question.cluster, question.after, question.limit)
        head = self._registry.chain_head(question.cluster)
        return ask.ArchivePage(rows=tuple(_light(rows, _json_bytes, _BYTES_A_PAGE)), head=head)

    def _declare(self, question: ask.Declare, request: DeskRequest) -> Declaration:
        now = datetime.now(UTC)
        declaration = self._fleet.declare(question.declared, request.actor, now)
        # Tried again, it may find new what the first try declared, and had no time to archive.
        new = declaration.new if activity.info().attempt == 1 else declaration.stand
        changes = [*(("declared", e) for e in new), *(("took back", e) for e in declaration.gone)]
        self._registry.archive(
            [
                _of_window(request, what, entry, entry.window.reason, now, f"/{number}")
                for number, (what, entry) in enumerate(changes)
            ]
        )
        return declaration

    def _end_window(self, question: ask.EndWindow, request: DeskRequest) -> Entry:
        now = datetime.now(UTC)
        entry = self._fleet.end_window(question.cluster, question.number, now)
        self._registry.archive([_of_window(request, "ended", entry, question.reason, now)])
        return entry

    def _request(self, question: ask.OneRequest, _: DeskRequest) -> RequestState:
        request = self._registry.request(question.request)
        if request is None:
            raise Refusal(f"there is no request {question.request!r}: see `backstop request list`")
        return request

    def _plan_milestones(self, question: ask.PlanMilestones, request: DeskRequest) -> PlanNow:
        given, now = question.milestones, datetime.now(UTC)
        measured = {**self._reports.plan_now().measured, ROLLED_OUT_WAVES: 0}
        self._milestones.plan_milestones(given, measured, now)
        names = ", ".join(m.name for m in given)
        text = f"set {len(given)} milestone{'' if len(given) == 1 else 's'}: {names}"
        self._registry.archive([_of_plan(request, text, "", now)])
        return self._reports.plan_now()

    def _note_milestone(self, question: ask.NoteMilestone, request: DeskRequest) -> PlanNow:
        now = datetime.now(UTC)
        self._milestones.note_milestone(_request_id(), MilestoneNote(actor=request.actor, at=now, **dict(question)))
        text = f"noted {question.number} for {question.milestone}"
        self._registry.archive([_of_plan(request, text, question.reason, now)])
        return self._reports.plan_now()

    def _check(self, _: ask.CheckLedger, __: DeskRequest) -> ask.LedgerCheck:
        return ask.LedgerCheck(
            open_rollouts=len(self._registry.open_clusters()),
            schedulers=self._schedulers.check(),
            prometheus=self._health.check(),
            windows=self._calendar.faults(),
        )


def _request_id() -> str:
    """Of this request, however often it is carried out: whoever does again archives nothing twice."""
    return str(activity.info().workflow_id)


def _entry(
    request: DeskRequest,
    cluster: str,
    text: str,
    reason: str,
    now: datetime,
    part: str = "",
    data: Mapping[str, Any] = MappingProxyType({}),
) -> AuditEntry:
    """What somebody did at the desk."""
    return AuditEntry(
        key=f"{_request_id()}{part}",
        cluster=cluster,
        at=now,
        kind=AuditKind.COMMAND,
        actor=request.actor,
        text=text,
        reason=reason,
        data=dict(data),
    )


def _of_window(request: DeskRequest, what: str, entry: Entry, reason: str, now: datetime, part: str = "") -> AuditEntry:
    """What became of a window."""
    text = f"{what} {span_text(entry.window)} ({entry.source or 'fleet file'})"
    data = {"command": request.kind, "id": entry.id, "window": entry.window.model_dump(mode="json")}
    return _entry(request, entry.cluster, text, reason, now, part, data)


def _of_plan(request: DeskRequest, text: str, reason: str, now: datetime) -> AuditEntry:
    """What somebody did to the milestones, in the chain that these have."""
    text = text if len(text) <= 500 else f"{text[:500]} and so on"
    return _entry(request, CHAIN, text, reason, now, data={"command": request.kind, **request.arguments})


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
