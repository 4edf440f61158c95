"""Answers people's requests to the ledger outside a rollout: import, show, archive. Questions: models/questions.py."""

from __future__ import annotations

import base64
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from temporalio import activity

from activities.bad_rows import its_own_trouble, one_of
from activities.clock import Clock, utc_now
from activities.desk.access import AccessDesk, assert_caller
from activities.desk.report_facts import ReportFacts
from activities.desk.second_persons import SecondPersonsDesk
from activities.desk.speaker import speak_as, speaker
from activities.failures import translate_errors
from activities.ports.access import AccessPort
from activities.ports.bringup import BringupLedger
from activities.ports.clusters import CalendarPort, DoubtPort, JobPort
from activities.ports.desk import (
    Described,
    FleetPort,
    HealthSourcesPort,
    MilestonePort,
    PulsePort,
    ReportPort,
    SealPort,
)
from activities.ports.quota_systems import SchedulerPort
from activities.ports.registry import RegistryPort
from activities.ports.watch import PushPort, TallyPort
from activities.rollout.cluster_calls import HISTORY_FRESH, ClusterActivities
from activities.tickets.ticket_rights import AwaitedCommand
from activities.tickets.warrants import Warrants
from models import countersign_questions as two
from models import import_questions as coming
from models import questions as ask
from models.access.command_targets import command_awaited
from models.access.decision import Target
from models.access.principals import Principal
from models.access.rights import Case
from models.access_questions import (
    AccessNow,
    AimOf,
    EndedSessions,
    ImportAccess,
    MakeToken,
    RevokeToken,
    TokenOf,
    Tokens,
)
from models.audit_chain import ATTEMPT, BESIDE, DESK, AuditEntry, AuditKind, Deed, Signature
from models.bringup.messages import BringupRow
from models.cluster.contact_secrets import mask_secrets
from models.cluster.fleet_export import FleetPage
from models.cluster.fleet_file import Team
from models.cluster.implausible_falls import DoubtedSource
from models.cluster.import_outcome import FleetOutcome
from models.cluster.windows import Declaration, Entry, span_text
from models.errors import BackstopError, BadInput, NoSuchCluster, Refusal
from models.fleet_cut_questions import FleetEnvelopes, HaircutSums
from models.flex.flex_now import FlexNow
from models.hashes import hash_of
from models.health_pushes import HealthPushed, PushHealth
from models.notice_digests import Untold
from models.page_questions import first_questions
from models.question_base import DeskAnswer, Question
from models.questions import QUESTIONS, DeskRequest
from models.reports.milestones import CHAIN, ROLLED_OUT_WAVES, MilestoneNote, PlanNow
from models.reports.why import WhyAnswers
from models.requests.reducers import say_who_decides
from models.requests.state import RequestStage, RequestState
from models.status_questions import FleetKept, OpenRollouts, Overview, RequestsOf
from models.texts import brief, count_text, some_of

pushes_log = logging.getLogger("backstop.pushes")
_T = TypeVar("_T")
_QUOTAS_A_PAGE = 10_000
_BYTES_A_PAGE = 8_000_000
"""The most bytes of JSON on a page; compressed to a tenth, it stays below Temporal's 2 MiB (client/compression.py)."""
_REQUESTS_SHOWN = 500
_CLUSTERS_NAMED = 5
_LOOK_SECONDS = 0.5
"""Seconds between two reads of the ledger's mark."""
_WORD_LOGGED = 200
_COULD = 100
"""The most rows of a list that say who could act; each row takes a few statements."""
_RowT = TypeVar("_RowT", Overview, BringupRow, RequestState)


class DeskLedger(Protocol):
    """The ledger, as the desk uses it."""

    @property
    def fleet(self) -> FleetPort: ...

    @property
    def registry(self) -> RegistryPort: ...

    @property
    def calendar(self) -> CalendarPort: ...

    @property
    def doubts(self) -> DoubtPort: ...

    @property
    def jobs(self) -> JobPort: ...

    @property
    def tallies(self) -> TallyPort: ...

    @property
    def report(self) -> ReportPort: ...

    @property
    def milestones(self) -> MilestonePort: ...

    @property
    def bringups(self) -> BringupLedger: ...

    @property
    def seals(self) -> SealPort: ...

    @property
    def access(self) -> AccessPort: ...

    @property
    def pushes(self) -> PushPort: ...

    @property
    def pulse(self) -> PulsePort: ...


@dataclass(eq=False)
class DeskActivities:
    """Answers questions. `warrants`: proves who asks. `waits`: returns notices not sent yet, by audience."""

    ledger: DeskLedger
    rollouts: ClusterActivities
    warrants: Warrants
    second_persons: SecondPersonsDesk
    schedulers: SchedulerPort
    prometheus: HealthSourcesPort
    kubernetes: HealthSourcesPort
    waits: Callable[[], tuple[Untold, ...]] = tuple
    now: Clock = utc_now

    def __post_init__(self) -> None:
        ledger, alone = self.ledger, self.second_persons.emergencies
        self._access = AccessDesk(ledger.access)
        self._reports = ReportFacts(
            *(ledger.tallies, ledger.report, ledger.milestones, ledger.bringups.bringups),
            *(alone, self.now, self._waves),
        )
        self._answers = self._answers_by_question()

    def _answers_by_question(self) -> dict[type[Question[Any]], Callable[[Any, DeskRequest], Any]]:
        """Return how each is answered, with the request that it came in: who asks, and under which name."""
        ledger, fleet, registry = self.ledger, self.ledger.fleet, self.ledger.registry
        access, two_persons, looks = self._access, self.second_persons, self.rollouts.looks
        return {
            coming.StageImport: self._stage_import,
            coming.CommitImport: lambda question, by: fleet.commit_import(
                question.import_id, question.parts, by.actor, self.now()
            ),
            coming.TakeFleet: self._take_fleet,
            ask.FleetFile: self._fleet_file,
            ask.RemoveCluster: lambda question, by: fleet.remove_cluster(
                question.cluster, _signature(by, question.reason), dry_run=question.dry_run
            ),
            ask.RenameCluster: lambda question, by: fleet.rename_cluster(
                question.cluster, question.name, _signature(by, question.reason), dry_run=question.dry_run
            ),
            ask.AddHealth: lambda question, by: fleet.add_health(question.samples, by.actor),
            ask.AddJobs: lambda question, _: ledger.jobs.add_jobs(question.jobs),
            ask.DescribeSlurm: lambda question, _: self.schedulers.describe(question.cluster, question.slurm),
            ask.Detach: self._detach,
            ask.ConfirmSource: self._confirm,
            ask.LedgerClusters: self._clusters,
            ask.AllTeams: lambda _, __: tuple(_without_secrets(team) for team in fleet.teams()),
            ask.TeamSums: lambda _, __: fleet.team_sums(),
            ask.FactsOf: self._facts,
            ask.SnapshotNow: self._snapshot,
            ask.SnapshotsNow: self._snapshots,
            ask.YearOfHealth: lambda question, _: self.rollouts.health_hours(question.cluster, self.now()),
            ask.FlexOf: self._flex,
            HaircutSums: lambda question, _: self.rollouts.costs.haircut_at(
                sorted(registry.names()), question.buffers, self.now()
            ),
            ask.FlexSums: lambda question, _: looks.flex_sums(sorted(registry.names()), question.mode, self.now()),
            ask.WhyNot: self._explain,
            ask.Archive: self._archive,
            ask.Archived: self._archive_page,
            ask.Calendar: lambda question, _: fleet.calendar(question.cluster, question.since),
            ask.Declare: self._declare,
            ask.EndWindow: self._end_window,
            ask.EndHold: self._end_hold,
            OpenRollouts: self._overview,
            FleetEnvelopes: lambda question, _: registry.fleet_envelopes(question.fleet, question.clusters),
            FleetKept: lambda _, __: registry.kept_fleet(),
            ask.Tallies: lambda question, _: self._reports.curve(question),
            ask.PastWeek: lambda question, _: self._reports.week(question),
            ask.BringupsOf: lambda question, _: self._with_could(
                ledger.bringups.bringups(question.ended), _command_for_row
            ),
            ask.GiveUpBringup: self._give_up,
            ask.OneRequest: self._request,
            RequestsOf: self._requests,
            ask.MilestonesNow: lambda _, __: self._reports.plan_now(),
            ask.PlanMilestones: self._plan_milestones,
            ask.NoteMilestone: self._note_milestone,
            ask.Senseless: lambda _, __: fleet.senseless(),
            ask.CheckLedger: self._check,
            AimOf: lambda question, _: self.warrants.fill_target(question.command, question.target, question.subject),
            ask.Pulse: self._wait_for_change,
            PushHealth: self._push_health,
            ImportAccess: lambda question, by: access.import_access(*_with_signature(question, by)),
            AccessNow: lambda _, __: access.stands(),
            MakeToken: lambda question, by: access.make_token(*_with_signature(question, by)),
            RevokeToken: lambda question, by: access.revoke_token(*_with_signature(question, by)),
            Tokens: lambda question, _: access.tokens(question),
            TokenOf: lambda question, _: ledger.access.token_of(question.hash),
            EndedSessions: lambda question, _: ledger.access.end_sessions(question.end, question.at),
            two.KeepWaiting: lambda question, by: two_persons.keep(*_with_signature(question, by)),
            two.WaitingNow: lambda _, __: two_persons.list_waiting(),
            two.WaitingOne: lambda question, _: two_persons.one(question),
            two.TurnWaiting: lambda question, by: two_persons.turn(*_with_signature(question, by)),
            two.WithdrawWaiting: lambda question, by: two_persons.withdraw(*_with_signature(question, by)),
            two.TellEmergency: lambda question, by: two_persons.notify_emergency(*_with_signature(question, by)),
            two.UnseenEmergencies: lambda _, __: two_persons.emergencies(),
            two.SeenEmergency: lambda question, by: two_persons.record_review(*_with_signature(question, by)),
        }

    @activity.defn(name="ledger_desk", no_thread_cancel_exception=True)
    def answer(self, request: DeskRequest) -> DeskAnswer:
        """Carry out the request. Errors: BadInput for wrong arguments, those of the ports."""
        with translate_errors():
            asks = self.warrants.desk(request)
            kind = QUESTIONS[request.kind]
            try:
                with speak_as(asks):
                    answer = self._answers[kind](kind.model_validate(request.arguments), request)
            except NoSuchCluster as error:
                raise BadInput(error.message) from None
            return DeskAnswer(result=kind.answers().dump_python(answer, mode="json"))

    def first_looks(self) -> Iterator[str]:
        """Work out what pages tell of all clusters, one question after the other; yield the kind of each.

        Errors: those of the ports.
        """
        for question in first_questions(self.now()):
            self._answers[type(question)](question, DeskRequest(kind=question.kind))
            yield question.kind

    def _stage_import(self, question: coming.StageImport, request: DeskRequest) -> None:
        try:
            payload = base64.b64decode(request.payload, validate=True)
        except ValueError:
            raise BadInput("payload must be Base64-encoded in each part of an upload") from None
        self.ledger.fleet.stage_import(question.import_id, question.part, payload)

    def _take_fleet(self, question: coming.TakeFleet, request: DeskRequest) -> FleetOutcome:
        first = self.warrants.first_of(request)
        return self.ledger.fleet.take_import(
            question.import_id, question.parts, question.terms, request.actor, self.now(), first
        )

    def _fleet_file(self, question: ask.FleetFile, _: DeskRequest) -> FleetPage:
        page = self.ledger.fleet.fleet_page(question.after, question.limit)
        shown_ones = tuple(_first_rows(page.clusters, lambda cluster: len(cluster["quotas"])))
        last = page.last if len(shown_ones) == len(page.clusters) else shown_ones[-1]["name"]
        wrong = {name: why for name, why in page.wrong.items() if name <= last}
        teams = tuple(map(_without_secrets, page.teams))
        return page.but(clusters=shown_ones, wrong=wrong, teams=teams, last=last)

    def _facts(self, question: ask.FactsOf, _: DeskRequest) -> ask.ClusterFacts:
        facts = self.ledger.registry.facts(question.cluster)
        contacts = {team: tuple(map(mask_secrets, each)) for team, each in facts.contacts.items()}
        return facts.but(contacts=contacts)

    def _detach(self, question: ask.Detach, request: DeskRequest) -> dict[str, tuple[int | None, int | None]]:
        back = self.schedulers.detach(question.cluster, restore=question.restore, look=question.look)
        if question.look:
            return back
        moves = ", ".join(f"{name} {before} -> {after}" for name, (before, after) in sorted(back.items()))
        text = f"detached from its scheduler{': ' + moves if moves else ''}"
        self.ledger.registry.archive([_entry(request, question.cluster, text, question.reason)])
        return back

    def _clusters(self, question: ask.LedgerClusters, _: DeskRequest) -> tuple[ask.LedgerCluster, ...]:
        return tuple(
            ask.LedgerCluster(
                cluster=one.spec,
                rollout=None if one.rollout is None else one.rollout.rollout,
                stage=None if one.rollout is None else one.rollout.stage,
                name=one.name,
                wrong=one.wrong,
            )
            for one in self._page(question.after, question.limit, free=question.free, names=question.names)
        )

    def _page(self, after: str, limit: int, *, free: bool = False, names: Sequence[str] = ()) -> Iterator[Described]:
        described = self.ledger.fleet.describe(after, limit, free=free, names=names)
        return _first_rows(described, lambda one: len(one.spec.quotas if one.spec else ()))

    def _snapshot(self, question: ask.SnapshotNow, _: DeskRequest) -> ask.Plannable:
        """Return the basis of a launch now: the same values, health and usage."""
        now = self.now()
        snapshot, policy = self.rollouts.present(question.cluster, now, question.policy)
        return ask.Plannable(snapshot=self.rollouts.works.with_work(snapshot, policy, now), policy=policy)

    def _snapshots(self, question: ask.SnapshotsNow, _: DeskRequest) -> tuple[ask.Plannable | ask.Unplannable, ...]:
        now = self.now()
        return tuple(self._plannable(one, question, now) for one in self._page(question.after, question.limit))

    def _plannable(self, one: Described, question: ask.SnapshotsNow, now: datetime) -> ask.Plannable | ask.Unplannable:
        """Return one cluster's basis; one that cannot be planned now must not cost the others theirs."""
        if one.spec is None:
            return ask.Unplannable(cluster=one.name, why_not=one.wrong)
        try:
            snapshot, policy = self.rollouts.present(one.name, now, question.policy, HISTORY_FRESH)
        except BackstopError as error:
            its_own_trouble(error, self.ledger.registry)
            return ask.Unplannable(cluster=one.name, why_not=error.message)
        return ask.Plannable(snapshot=self.rollouts.works.with_work(snapshot, policy, now), policy=policy)

    def _flex(self, question: ask.FlexOf, _: DeskRequest) -> tuple[FlexNow, ...]:
        now = self.now()
        if question.cluster:
            self.ledger.registry.facts(question.cluster)  # raises for an unknown one, which `flex` leaves out
            one = one_of(self.rollouts.looks.flex([question.cluster], question.mode, now), question.cluster)
            return () if one is None else (one,)
        names = sorted(n for n in self.ledger.registry.names() if n > question.after)
        for start in range(0, len(names), question.limit):  # until a page has any: an empty one would be the last
            if page := self.rollouts.looks.flex(names[start : start + question.limit], question.mode, now):
                return tuple(_first_rows(page.values(), lambda one: 1 + len(one.jobs)))
        return ()

    def _explain(self, question: ask.WhyNot, _: DeskRequest) -> WhyAnswers:
        now = self.now()
        if not question.cluster:
            return self.rollouts.looks.explain(sorted(self.ledger.registry.names()), question, now)
        self.ledger.registry.facts(question.cluster)
        answers = self.rollouts.looks.explain([question.cluster], question, now)
        if answers.unanswered:
            raise Refusal(answers.unanswered[question.cluster])
        if not answers.teams:
            raise Refusal(self._no_quota(question.team, question.cluster))
        return answers

    def _no_quota(self, team: str, cluster: str) -> str:
        has = {
            spec.name: quota.gpus
            for one in self.ledger.fleet.describe("", len(self.ledger.registry.names()))
            if (spec := one.spec) is not None
            for quota in spec.quotas
            if quota.team == team
        }
        most = sorted(has, key=lambda name: (-has[name], name))[:_CLUSTERS_NAMED]
        named = ", ".join(f"{name} ({has[name]})" for name in most)
        more = f" and {count_text(len(has) - len(most), 'more cluster')}" if len(has) > len(most) else ""
        elsewhere = f"only in {named}{more}" if has else "nor in any other cluster"
        return f"{team} has no quota in cluster {cluster}, {elsewhere}"

    def _archive(self, question: ask.Archive, request: DeskRequest) -> int:
        """Archive a caller's own refused attempts, and nothing else: other events are archived where they happen."""
        asked = activity.info().scheduled_time
        for entry in question.entries:
            own = entry.actor == request.actor and entry.key.startswith(ATTEMPT) and not entry.rollout
            if not (own and entry.refused and entry.kind is AuditKind.COMMAND):
                raise BadInput("a client may archive only its own commands that were refused")
            if BESIDE in entry.key:
                raise BadInput(f"an audit entry's own id (`key`) may not contain {BESIDE}: {brief(entry.key)}")
        self.ledger.registry.archive([entry.but(at=asked) for entry in question.entries])
        return len(question.entries)

    def _archive_page(self, question: ask.Archived, _: DeskRequest) -> ask.ArchivePage:
        head = self.ledger.registry.chain_head(question.cluster)
        last = 0 if head is None else max(0, head.length - question.limit)
        rows = self.ledger.registry.entries_after(
            question.cluster, last if question.newest else question.after, question.limit
        )
        seals = self.ledger.seals.read_last_seals(question.cluster) if question.newest else ()
        page = _first_rows(rows, lambda row: len(row.model_dump_json()), _BYTES_A_PAGE)
        return ask.ArchivePage(rows=tuple(page), head=head, seals=seals)

    def _declare(self, question: ask.Declare, request: DeskRequest) -> Declaration:
        declaration = self.ledger.fleet.declare(question.declared, request.actor, self.now())
        # A second try may find windows that the first one declared and had no time to archive.
        new = declaration.new if activity.info().attempt == 1 else declaration.stand
        changes = [*(("declared", e) for e in new), *(("took back", e) for e in declaration.gone)]
        self.ledger.registry.archive(
            [_window_entry(request, what, entry, entry.window.reason, f"/{what}/{entry.id}") for what, entry in changes]
        )
        return declaration

    def _end_window(self, question: ask.EndWindow, request: DeskRequest) -> Entry:
        deed = Deed[Entry](_request_id(), lambda entry: _window_entry(request, "ended", entry, question.reason))
        return self.ledger.fleet.end_window(question.cluster, question.number, self.now(), deed)

    def _end_hold(self, question: ask.EndHold, request: DeskRequest) -> tuple[Entry, ...]:
        deed = Deed[Entry](_request_id(), lambda e: _window_entry(request, "ended", e, question.reason, f"/{e.id}"))
        return self.ledger.fleet.end_hold(question.source, question.clusters, self.now(), deed)

    def _confirm(self, question: ask.ConfirmSource, request: DeskRequest) -> DoubtedSource:
        """Archive first, then confirm: a second try after the confirmation would be refused."""
        doubts = {one.source: one for one in self.ledger.doubts.sources_in_doubt()}
        doubt = doubts.get(question.source)
        if doubt is not None:
            text, data = f"confirmed: {doubt.why}", {"command": request.kind, "source": question.source}
            entries = [_entry(request, c, text, question.reason, f"/{c}", data) for c in doubt.clusters]
            self.ledger.registry.archive(entries)
        return self.ledger.doubts.confirm(question.source, request.actor)

    def _give_up(self, question: ask.GiveUpBringup, request: DeskRequest) -> BringupRow:
        return self.ledger.bringups.give_up(question.cluster, _signature(request, question.reason))

    def _request(self, question: ask.OneRequest, _: DeskRequest) -> RequestState:
        request = self.ledger.registry.request(question.request)
        if request is None:
            raise Refusal(f"there is no request {question.request!r}: see `backstop request list`")
        return self._name_deciders((request,))[0]

    def _waves(self, clusters: Sequence[str]) -> Mapping[str, str]:
        return self.rollouts.costs.waves(clusters, self.now())

    def _plan_milestones(self, question: ask.PlanMilestones, request: DeskRequest) -> PlanNow:
        milestones, now = question.milestones, self.now()
        measured = self._reports.plan_now(waves=any(m.measure == ROLLED_OUT_WAVES for m in milestones)).measured
        self.ledger.milestones.plan_milestones(milestones, measured, now)
        names = ", ".join(m.name for m in milestones)
        text = f"set {len(milestones)} milestone{'' if len(milestones) == 1 else 's'}: {names}"
        self.ledger.registry.archive([_plan_entry(request, text, "")])
        return self._reports.plan_now()

    def _note_milestone(self, question: ask.NoteMilestone, request: DeskRequest) -> PlanNow:
        note = MilestoneNote(actor=request.actor, at=self.now(), **dict(question))
        self.ledger.milestones.note_milestone(_request_id(), note)
        text = f"noted {question.number} for {question.milestone}"
        self.ledger.registry.archive([_plan_entry(request, text, question.reason)])
        return self._reports.plan_now()

    def _overview(self, question: OpenRollouts, _: DeskRequest) -> tuple[Overview, ...]:
        rows = self.ledger.registry.overview(noted=question.noted, quiet=question.quiet)
        return self._with_could(rows, _command_for_row) if question.could else rows

    def _requests(self, question: RequestsOf, _: DeskRequest) -> tuple[RequestState, ...]:
        requests = self.ledger.registry.requests(question.cluster, ended=question.ended)[-_REQUESTS_SHOWN:]
        return self._with_could(self._name_deciders(requests), _command_for_request)

    def _name_deciders(self, requests: tuple[RequestState, ...]) -> tuple[RequestState, ...]:
        """Say who decides now: an access file may have come into force after the ask."""
        by_roles = bool(requests) and self.warrants.by_roles
        return tuple(say_who_decides(one, by_roles=True) for one in requests) if by_roles else requests

    def _with_could(
        self, rows: tuple[_RowT, ...], awaited: Callable[[_RowT], AwaitedCommand | None]
    ) -> tuple[_RowT, ...]:
        """Add who could do what each row needs, for the first rows that need a person."""
        asked = [(number, one) for number, row in enumerate(rows) if (one := awaited(row)) is not None][:_COULD]
        if not asked:
            return rows
        names = self.warrants.who_could([one for _, one in asked])
        could = {number: able for (number, _), able in zip(asked, names, strict=True) if able}
        return tuple(row.but(could=could[number]) if number in could else row for number, row in enumerate(rows))

    def _wait_for_change(self, question: ask.Pulse, _: DeskRequest) -> str:
        """Return the ledger's mark once it has changed, when its time is over, or as the worker stops.

        One thread of a worker waits for each front that shows pages, and for none that shows none.
        """
        ends = time.monotonic() + question.seconds
        while (mark := self.ledger.pulse.mark()) == question.since and time.monotonic() < ends:
            if activity.is_worker_shutdown():
                break
            activity.wait_for_worker_shutdown_sync(_LOOK_SECONDS)
        return mark

    def _push_health(self, question: PushHealth, request: DeskRequest) -> HealthPushed:
        """Have the watch look at those that exist. The push's own word is logged, and does not count."""
        names = tuple(dict.fromkeys(question.clusters))
        clusters, word = self.ledger.pushes.push(names), question.word[:_WORD_LOGGED]
        pushes_log.info("%s asks the watch to look at %s: %r", request.actor, some_of(clusters), word)
        return HealthPushed(looking_at=clusters, unknown=tuple(name for name in names if name not in {*clusters}))

    def _check(self, _: ask.CheckLedger, __: DeskRequest) -> ask.LedgerCheck:
        ahead = (self.now() - activity.info().started_time).total_seconds()  # first: the rest takes time
        opened, senseless = self.ledger.registry.open_clusters(), self.ledger.fleet.senseless()
        return ask.LedgerCheck(
            open_rollouts=len(opened),
            schedulers=self.schedulers.check(),
            prometheus=self.prometheus.check(),
            kubernetes=self.kubernetes.check(),
            windows=self.ledger.calendar.faults(),
            doubts=self.ledger.doubts.sources_in_doubt(),
            senseless=senseless,
            senseless_teams=self.ledger.fleet.senseless_teams(),
            teams_in_clear=self.ledger.fleet.teams_in_clear(),
            worker_ahead_seconds=ahead,
            notices=self.waits(),
            seals=self.ledger.seals.sealing_state(),
            access=self._access.check(),
            tickets=self.warrants.is_required,
            proven=self.warrants.can_verify,
            unknown_keys=self.warrants.unknown_keys(),
        )


def _command_for_row(row: Overview | BringupRow) -> AwaitedCommand | None:
    """Return the command that it needs first; None: it needs none."""
    command, cases = command_awaited(row.needs) if row.needs else ("", frozenset[Case]())
    return AwaitedCommand(command, Target(cluster=row.cluster, cases=cases)) if command else None


def _command_for_request(request: RequestState) -> AwaitedCommand | None:
    if request.stage is not RequestStage.ASKED:
        return None
    return AwaitedCommand("request.approve", Target(cluster=request.ask.cluster), request.ask.request)


def _with_signature(question: Any, by: DeskRequest) -> tuple[Any, Principal, Signature]:
    return question, speaker() or assert_caller(by.actor), _signature(by, question.reason)


def _without_secrets(team: Team) -> Team:
    """Hide the contacts' secrets, because an answer stays in its history."""
    return team.but(contacts=tuple(map(mask_secrets, team.contacts)))


def _request_id() -> str:
    """Return this request's id, which its caller chooses. Idempotent: repeating the request archives nothing new."""
    chosen = str(activity.info().workflow_id)
    return chosen if chosen.startswith(DESK) and BESIDE not in chosen else f"{DESK}{hash_of(chosen)}"


def _signature(request: DeskRequest, reason: str) -> Signature:
    return Signature(actor=request.actor, at=activity.info().scheduled_time, key=_request_id(), reason=reason)


def _entry(
    request: DeskRequest,
    cluster: str,
    text: str,
    reason: str,
    part: str = "",
    data: Mapping[str, Any] = MappingProxyType({}),
) -> AuditEntry:
    """Make the entry of a deed at the desk, dated when it was asked, so that a second try makes the same entry."""
    return _signature(request, reason).entry(cluster, text, data, part)


def _window_entry(request: DeskRequest, what: str, entry: Entry, reason: str, part: str = "") -> AuditEntry:
    text = f"{what} {span_text(entry.window)} ({entry.source or 'fleet file'})"
    data = {"command": request.kind, **entry.model_dump(mode="json", exclude={"cluster"})}
    return _entry(request, entry.cluster, text, reason, part, data)


def _plan_entry(request: DeskRequest, text: str, reason: str) -> AuditEntry:
    """Make the entry of a change to the milestones, in their chain."""
    text = text if len(text) <= 500 else f"{text[:500]} and so on"
    return _entry(request, CHAIN, text, reason, data={"command": request.kind, **request.arguments})


def _first_rows(rows: Iterable[_T], weight: Callable[[_T], int], most: int = _QUOTAS_A_PAGE) -> Iterator[_T]:
    """Yield the first rows that weigh no more than this together; at least one, so that the next page goes on."""
    total = 0
    for number, row in enumerate(rows):
        total += weight(row)
        if number and total > most:
            return
        yield row
