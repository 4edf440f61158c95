"""The checks of `doctor`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from activities.clock import Clock
from client.answer_models import STALE, Check
from client.connection import TemporalTarget
from client.lost_rollout_sentences import ADOPT_ALL, ADOPT_FLEET, adopt_line, lost_bringup_remedy, lost_fleet_sentence
from client.lost_rollouts import find_lost, run_nowhere
from client.rollouts import MOST_ASKED, OVERVIEW_SECONDS
from client.slack_secret import slack_checks
from client.watch_check import watch_check
from client.worker_builds import builds, by_build, by_last_poll, current_of, pollers
from client.workflow_calls import NO_WORKER
from models.access.access_versions import AccessCheck
from models.base import duration_text
from models.bringup.messages import BringupRow
from models.cluster.contact_secrets import SECRET
from models.cluster.implausible_falls import DoubtedSource
from models.errors import BackstopError
from models.fleet.archived_state import KeptFleet
from models.notice_digests import Untold
from models.questions import CLOCK_SKEW_SECONDS, BringupsOf, CheckLedger, LedgerCheck
from models.requests.state import RequestState
from models.rollout.gates import CHANGED_BY_OTHERS
from models.rollout.stages import Command, command_line
from models.rollout.status import ABOVE_ITS_PARENT, NOBODY_APPROVED
from models.rollout.status_models import UNGUARDED, RolloutStatus
from models.seals import Sealing
from models.status_questions import OpenRollouts, Overview, RequestsOf
from models.temporal_names import SEARCH_ATTRIBUTES, bringup_workflow_id, rollout_workflow_id
from models.texts import count_text, some_of, verb_of

if TYPE_CHECKING:
    from client.backstop import Backstop

_DOCTOR_SECONDS = 60
_LIMITS_ARE_OURS = "its limits can be read and set"
_REMEDIES = {
    "slurm": "see docs/slurm.md, and the worker's BACKSTOP_SLURM",
    "git": "see docs/git.md; the worker's user must be able to fetch and push without a prompt",
    "kueue": "see docs/kubernetes.md; deploy/kubernetes/rbac.yaml has the rights that the worker needs",
}

_LATE_NOTICE = timedelta(minutes=5)
"""A due notice is late after this time: the watch looks for due notices every few seconds."""

START_WORKER = "backstop up, or backstop worker"

_LATE_SEALS = 2
"""A seal is late after this many of its intervals."""
_TOLD = 5
"""Most items that one check lists."""


async def temporal_checks(client: Client, target: TemporalTarget) -> list[Check]:
    """Check the namespace, search attributes, workers and the watch."""
    where = "embedded (backstop up)" if target.embedded else "configured"
    checks = [Check.good("temporal", f"{target.address}, {where}")]
    for ask in (_namespace, _attributes, _workers, _builds, watch_check):
        try:
            checks.append(await ask(client))
        except RPCError as error:
            checks.append(Check.bad(ask.__name__.strip("_").removesuffix("_check"), error.message))
    return checks


async def _namespace(client: Client) -> Check:
    namespace = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
    days = namespace.config.workflow_execution_retention_ttl.ToTimedelta().days
    return Check(
        name="namespace",
        ok=days >= 30,
        text=f"{client.namespace}, keeps ended rollouts for {count_text(days, 'day')}",
        remedy="" if days >= 30 else f"temporal operator namespace update -n {client.namespace} --retention 3650d",
    )


async def _attributes(client: Client) -> Check:
    attributes = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace)
    )
    missing = [name for name in SEARCH_ATTRIBUTES if name not in attributes.custom_attributes]
    commands = "; ".join(
        f"temporal operator search-attribute create --name {name} --type {SEARCH_ATTRIBUTES[name]}" for name in missing
    )
    text = f"missing: {', '.join(missing)}" if missing else f"all {len(SEARCH_ATTRIBUTES)} there"
    return Check(name="search attributes", ok=not missing, text=text, remedy=commands)


async def _workers(client: Client) -> Check:
    serving, gone = by_last_poll(await pollers(client))
    names = sorted({p.identity for p in serving})
    ended = sorted({p.identity: p.last_access_time.ToDatetime(tzinfo=UTC) for p in gone}.items())
    text = f"{len(names)} polling: {', '.join(names)}" if names else "none is polling"
    text += "".join(f"; {name} polled last at {at:%H:%M:%SZ}, and has ended" for name, at in ended)
    return Check(name="workers", ok=bool(names), text=text, remedy="" if names else START_WORKER)


async def _builds(client: Client) -> Check:
    every, polling = await builds(client), by_build(by_last_poll(await pollers(client))[0])
    current = current_of(every)
    stranded = [build for build in every if build.is_stranded]
    if stranded:
        counts = [(one.build, count_text(one.rollouts, "rollout"), one.rollouts) for one in stranded]
        text = ", ".join(
            f"{held} {verb_of(n, 'needs', 'need')} build {build}, which has no worker" for build, held, n in counts
        )
        return Check.bad("builds", text, f"BACKSTOP_BUILD_ID={stranded[0].build} backstop worker")
    if polling and not polling[current]:
        newest = next((build.build for build in every if build.workers), "BUILD")
        runs = f"build {current}, and no worker runs it" if current else "workers without a build, and none is running"
        text = f"new rollouts begin on {runs}"
        return Check.bad("builds", text, f"backstop builds use {newest}")
    return Check.good("builds", f"new rollouts start on build {current}" if current else "workers are not versioned")


def access_checks(access: AccessCheck | None, *, tickets: bool, proven: bool = False) -> list[Check]:
    """Check whether an access file says who may do what and who gives roles, and which tokens end soon.

    `tickets`: every command needs a front's ticket. `proven`: workers believe a front's tickets.
    """
    if access is None:
        text = "not configured: everybody who reaches Temporal may do everything, under any name (docs/access.md)"
        if proven:
            text = (
                "no access file: the front checks who calls, but nothing checks who reaches Temporal, so everybody "
                "who does may do everything (docs/access.md)"
            )
        if tickets:
            text = (
                "no access file: every command needs a front's ticket; only the user who runs the front may give "
                "commands, others may only read"
            )
        return [Check.good("access", text)]
    if access.wrong:
        return [Check.bad("access", access.wrong, "backstop access recover FILE --reason ...")]
    text, remedy = f"{count_text(access.admins, 'admin')} by name", ""
    if not access.two_person:
        text += "; two_person is off: one person alone can launch, approve and change roles"
        remedy = "set two_person: true in the access file"
    elif access.admins < 2:
        text += "; nobody could countersign the next change of roles"
        remedy = "name another admin in the access file"
    if not tickets:
        text += "; no front signs commands, so everybody who reaches Temporal bypasses the access file"
        remedy = "backstop keys new, then restart the front and the workers (docs/security.md, Keys)"
    checks = [Check(name="access", ok=not remedy, text=text, remedy=remedy)]
    if access.expiring:
        ends = verb_of(len(access.expiring), "expires", "expire")
        text = f"{count_text(len(access.expiring), 'token')} {ends} within two weeks: {some_of(access.expiring, 5)}"
        checks.append(Check.bad("tokens", text, "backstop access token new, for owners who need one"))
    return checks


def keys_checks(unknown: Sequence[str]) -> list[Check]:
    """Report keys that signed people's approvals and that workers do not know; no check if they know all."""
    if not unknown:
        return []
    keys = some_of(list(unknown), _TOLD)
    text = (
        f"keys.json lacks {keys}, which signed tickets in the ledger; workers refuse the approvals with these tickets, "
        "so the rollouts do not go on"
    )
    remedy = "restore keys.json from the backup (docs/security.md, Keys), or approve again"
    return [Check.bad("keys", text, remedy)]


def contacts_checks(teams: Sequence[str]) -> list[Check]:
    """Report contacts from before access was configured that would be refused now; no check without one."""
    if not teams:
        return []
    whose = f"contacts of {some_of(list(teams), _TOLD)} contain a token in clear text, which an import now refuses"
    remedy = (
        f"put each token into a file of the workers' folder of secrets (BACKSTOP_SECRETS), import {SECRET}NAME in its "
        "place, and renew the token (docs/secrets.md, Contacts)"
    )
    return [Check.bad("contacts", whose, remedy)]


def without_answers(check: Check) -> Check:
    """Return the check as failed where no worker answered: Temporal lists a worker for minutes after its death."""
    if not check.ok or check.name not in ("workers", "watch"):
        return check
    return check.model_copy(
        update={"ok": False, "text": f"{check.text}; but no worker answers", "remedy": START_WORKER}
    )


def no_ledger_check(error: BackstopError | None, *, heard: bool, seconds: float) -> Check:
    """Say why nothing is known of the ledger. `error` None: no answer came in time; `heard`: a worker has answered."""
    if not heard:
        return Check.bad("ledger", f"not asked: {NO_WORKER}", START_WORKER)
    if error is None:
        text = f"a worker asked the ledger and all sources, but did not answer within {seconds:.0f} s"
        return Check.bad("ledger", text, "the ledger or a source is slow: see the worker's log")
    migrates = "backstop migrate" in error.message
    remedy = "backstop migrate, then backstop up" if migrates else "correct the cause; workers try again by themselves"
    return Check.bad("ledger", error.message, remedy)


def health_source_checks(ledger: LedgerCheck) -> list[Check]:
    """Report clusters whose Prometheus or Kubernetes answers badly, and calendar rows that are no windows, by name."""
    wrong = {cluster: text for cluster, text in sorted(ledger.prometheus.items()) if text}
    checks = [
        Check.bad("prometheus", f"{cluster}: {text}", "mend its series (docs/prometheus.md)")
        for cluster, text in wrong.items()
    ]
    if ledger.prometheus and not wrong:
        summary = f"reports the health of {count_text(len(ledger.prometheus), 'cluster')}"
        checks.append(Check.good("prometheus", summary))
    checks += [
        Check.bad("kubernetes", f"{cluster}: {text}", "see docs/kubernetes.md, When health is unknown")
        for cluster, text in sorted(ledger.kubernetes.items())
        if text
    ]
    if ledger.kubernetes and not any(ledger.kubernetes.values()):
        summary = f"reports the health of {count_text(len(ledger.kubernetes), 'cluster')}"
        checks.append(Check.good("kubernetes", summary))
    remedy = "delete the row of this window from the table windows by SQL, then declare the window with `backstop hold`"
    return checks + [
        Check.bad("calendar", f"{cluster}: {text}", remedy) for cluster, text in sorted(ledger.windows.items())
    ]


def health_check(rollouts: Sequence[Overview], now: datetime) -> Check:
    """Check whether health comes in for every open rollout, according to the ledger."""
    opened = [rollout for rollout in rollouts if not rollout.ended]
    silent = [rollout for rollout in opened if rollout.health_at is None or now - rollout.health_at >= STALE]
    if not silent:
        return Check.good(
            "health", f"no figure is older than {duration_text(STALE)}, in {count_text(len(opened), 'open rollout')}"
        )
    names = some_of([rollout.cluster for rollout in silent], 3)
    oldest = min((rollout.health_at for rollout in silent if rollout.health_at is not None), default=None)
    since = "" if oldest is None else f"; the oldest figure is of {oldest:%Y-%m-%d %H:%M:%SZ}"
    of = f"{len(silent)} of {count_text(len(opened), 'open rollout')}"
    text = f"no figures for {duration_text(STALE)} in {of}: {names}{since}"
    return Check.bad("health", text, "mend their health source")


def doubt_check(doubt: DoubtedSource) -> Check:
    """Report a health source whose figures are not believed."""
    of = some_of(doubt.clusters, 3)
    text = f"{doubt.why}, at {doubt.since:%Y-%m-%d %H:%M:%SZ}; Backstop does not believe its figures of {of}"
    return Check.bad("source", text, f"mend the source; if its figures are right, confirm them: {doubt.confirm_line}")


def notice_checks(ledger: LedgerCheck, now: datetime) -> list[Check]:
    """Report notices that wait longer than they should, with the reason, and count those that wait for a digest."""
    late = [w for w in ledger.notices if w.trouble or now - w.due >= _LATE_NOTICE]
    checks = [
        Check.bad(
            "notices",
            f"{_notices(w, 'has waited', 'have waited')} since {w.since:%Y-%m-%d %H:%MZ}: "
            f"{w.trouble or 'due, but not sent'}",
            (w.remedy or "correct the contact in the fleet file; Backstop tries again by itself")
            if w.trouble
            else "the watch sends due notices: mend what the line `watch` of this list reports",
        )
        for w in late
    ]
    waiting = [f"{_notices(w, 'waits', 'wait')} until {w.due:%Y-%m-%d %H:%MZ}" for w in ledger.notices if w not in late]
    text = some_of(waiting, _TOLD, by="; ") if waiting else "none waits"
    return [*checks, Check.good("notices", text)] if waiting or not late else checks


def _notices(waits: Untold, one: str, several: str) -> str:
    return f"{count_text(waits.notices, 'notice')} for {waits.audience} {verb_of(waits.notices, one, several)}"


def seals_check(sealing: Sealing | None, now: datetime) -> list[Check]:
    """Check whether the archive is sealed in time; no check if no worker seals it."""
    if sealing is None:
        return []
    last = sealing.at or sealing.since
    every = timedelta(seconds=sealing.every_seconds)
    state = f"SEAL {sealing.number} of {last:%Y-%m-%d %H:%M:%SZ}" if sealing.at else "none yet"
    if sealing.trouble:
        remedy = "correct the cause; rollouts go on meanwhile (docs/seals.md)"
        return [Check.bad("seals", f"{state}; {sealing.trouble}", remedy)]
    if now - last > _LATE_SEALS * every:
        text = f"late: {state}, but a seal is due every {duration_text(every)}"
        return [Check.bad("seals", text, "see the log of a worker that seals (BACKSTOP_SEALS)")]
    return [Check.good("seals", f"{state}, every {duration_text(every)}")]


def grants_check(requests: Sequence[RequestState], now: datetime) -> Check:
    """Check whether temporary grants are given back in time, according to the ledger."""
    late = [request for request in requests if request.is_overdue(now)]
    if not late:
        return Check.good("grants", "none is overdue")
    named = some_of(
        [
            f"{request.ask.request}: {request.wanted_text}, {request.waits_for or request.stage.value}"
            for request in late
        ],
        3,
        by="; ",
    )
    text = f"{len(late)} {'is' if len(late) == 1 else 'are'} overdue: {named}"
    return Check.bad(
        "grants",
        text,
        "`backstop request show ID` shows what each waits for; the watch takes back the others within a minute",
    )


def senseless_check(by_cluster: Mapping[str, Sequence[str]], teams: Mapping[str, str]) -> Check:
    """Check whether the ledger's rows are valid, cluster by cluster and team by team."""
    all_sentences = [sentence for _, sentences in sorted(by_cluster.items()) for sentence in sentences]
    all_sentences += [sentence for _, sentence in sorted(teams.items())]
    if not all_sentences:
        return Check.good("rows", "all rows of the ledger are valid")
    return Check.bad(
        "rows",
        some_of(all_sentences, _TOLD, by="; "),
        "correct these rows, by SQL or `backstop fleet import`; all other clusters go on meanwhile",
    )


def _all_run_text(opened: int) -> str:
    if not opened:
        return "the ledger has none open"
    return f"Temporal runs {'the one' if opened == 1 else f'all {opened:,}'} that the ledger has open"


def rollouts_check(rollouts: Sequence[Overview], lost: Sequence[Overview]) -> Check:
    """Check whether Temporal runs every rollout that the ledger has open."""
    opened = sum(not rollout.ended for rollout in rollouts)
    if not lost:
        return Check.good("rollouts", _all_run_text(opened))
    names = some_of([rollout.cluster for rollout in lost], 3)
    opened_text = count_text(opened, "rollout")
    text = f"Temporal has lost {len(lost)} of {opened_text} that the ledger has open, so nobody guards {names}"
    remedy = adopt_line(lost[0].cluster) if len(lost) == 1 else f"{ADOPT_ALL}; or one by one: {adopt_line('CLUSTER')}"
    return Check.bad("rollouts", text, remedy)


def promises_checks(rollouts: Sequence[Overview]) -> list[Check]:
    """Report quotas that nobody approved, or that their parents do not allow; no check if all are kept."""
    marks = (CHANGED_BY_OTHERS, NOBODY_APPROVED, ABOVE_ITS_PARENT)
    wrong = [rollout for rollout in rollouts if not rollout.ended and any(mark in rollout.needs for mark in marks)]
    remedy = "do what the line asks for; `backstop status CLUSTER` shows which values are promised"
    return [Check.bad("promises", f"{rollout.cluster}: {rollout.needs}", remedy) for rollout in wrong]


def histories_check(rollouts: Sequence[Overview], statuses: Mapping[str, RolloutStatus | None]) -> Check:
    """Check whether each rollout's history has the ledger's effects. `statuses`: of rollouts that answered."""
    answers = [(row, status) for row in rollouts if not row.ended and (status := statuses.get(row.cluster)) is not None]
    behind = [(row, answer) for row, answer in answers if row.rollout != answer.rollout or row.counter > answer.fence]
    if not behind:
        text = f"{count_text(len(answers), 'open rollout')} compared: none lacks effects that the ledger has"
        return Check.good("histories", text)
    sentences = [
        f"{row.cluster}: the ledger is at effect {row.counter} of {row.rollout}, Temporal at effect {answer.fence} "
        f"of {answer.rollout}"
        for row, answer in behind
    ]
    cluster = behind[0][0].cluster
    remedy = (
        "a rollout reads missing effects when it next looks at its cluster; if it does not, end its run and adopt it"
        f"{'' if len(behind) == 1 else f' (here the rollout of {cluster})'}: "
        f"temporal workflow terminate -w {rollout_workflow_id(cluster)}, then {adopt_line(cluster)}"
    )
    return Check.bad("histories", some_of(sentences, _TOLD, by="; "), remedy)


def guard_checks(statuses: Mapping[str, RolloutStatus | None]) -> list[Check]:
    """Report rollouts that took over an earlier run's cuts and do not guard them yet; no check if there are none."""
    checks = []
    for cluster, status in sorted(statuses.items()):
        if status is not None and status.unguarded:
            approve = f"{command_line(Command.APPROVE, cluster)} --plan {status.plan_hash}"
            onward = f"{command_line(Command.PROMOTE, cluster)} --reason '...'" if status.envelope_holds else approve
            remedy = f"{onward}, or restore the baseline: {command_line(Command.ABORT, cluster)} --reason '...'"
            checks.append(Check.bad("guard", f"{cluster}: {UNGUARDED}", remedy))
    return checks


def bringups_checks(rows: Sequence[BringupRow], lost: Sequence[BringupRow]) -> list[Check]:
    """Check whether Temporal runs every bring-up that the ledger has open; no check if it has none."""
    if not rows:
        return []
    if not lost:
        return [Check.good("bring-ups", _all_run_text(len(rows)))]
    names = some_of([f"{row.cluster} ({row.stage.words})" for row in lost], 3)
    opened = count_text(len(rows), "bring-up")
    text = f"Temporal has lost {len(lost)} of {opened} that the ledger has open, so nothing drives {names}"
    return [Check.bad("bring-ups", text, lost_bringup_remedy(lost[0].cluster))]


def fleet_checks(lost: KeptFleet | None) -> list[Check]:
    """Report a fleet rollout that the ledger has open and Temporal does not run; no check if there is none."""
    if lost is None:
        return []
    return [Check.bad("fleet", lost_fleet_sentence(lost).partition(";")[0], ADOPT_FLEET)]


def clock_check(ahead_seconds: float) -> Check:
    """Check whether the worker's clock and the Temporal server's agree, and say by how much they do not."""
    if abs(ahead_seconds) <= CLOCK_SKEW_SECONDS:
        return Check.good("clocks", "the worker's and Temporal's agree within a minute")
    by, way = duration_text(timedelta(seconds=round(abs(ahead_seconds)))), "ahead of" if ahead_seconds > 0 else "behind"
    text = f"the worker's clock is {by} {way} Temporal's, which times notices, soaks and breaches"
    return Check.bad("clocks", text, "set both clocks right (NTP)")


async def all_checks(door: Backstop, client: Client, target: TemporalTarget, now: Clock) -> list[Check]:
    door.heard.clear()  # a front keeps its door: what a worker answered before says nothing of now
    checks = [*await temporal_checks(client, target), *slack_checks()]
    try:
        ledger = await asyncio.wait_for(door.ask(CheckLedger()), _DOCTOR_SECONDS)
    except (BackstopError, TimeoutError) as error:
        heard, ours = door.heard.is_set(), error if isinstance(error, BackstopError) else None
        checks = checks if heard else [without_answers(check) for check in checks]
        return [*checks, no_ledger_check(ours, heard=heard, seconds=_DOCTOR_SECONDS)]
    checks.append(Check.good("ledger", f"answers; {count_text(ledger.open_rollouts, 'rollout')} open"))
    checks.append(senseless_check(ledger.senseless, ledger.senseless_teams))
    for cluster, check in sorted(ledger.schedulers.items()):
        well = f"its limits can be read, not set: {check.barred}" if check.barred else _LIMITS_ARE_OURS
        remedy = _REMEDIES.get(check.system, "") if check.wrong else ""
        text = f"{cluster}: {check.wrong or well}"
        checks.append(Check(name=check.system, ok=not check.wrong, text=text, remedy=remedy))
        if check.note:
            checks.append(Check.good(check.system, f"{cluster}: {check.note}"))
    checks += health_source_checks(ledger)
    checks += access_checks(ledger.access, tickets=ledger.tickets, proven=ledger.proven)
    checks += keys_checks(ledger.unknown_keys)
    checks += contacts_checks(ledger.teams_in_clear)
    checks += notice_checks(ledger, now())
    checks += seals_check(ledger.seals, now())
    checks += [doubt_check(one) for one in ledger.doubts]
    checks.append(clock_check(ledger.worker_ahead_seconds))
    rollouts, asked_at = await door.ask(OpenRollouts()), now()
    checks += promises_checks(rollouts)
    try:
        lost_rollouts = await find_lost(client, rollouts)
        checks.append(rollouts_check(rollouts, lost_rollouts))
        run = [row.cluster for row in rollouts if not row.ended and row not in lost_rollouts]
        statuses = await door.ask_rollouts(run[:MOST_ASKED], OVERVIEW_SECONDS)
        checks.append(histories_check(rollouts, statuses))
        checks += guard_checks(statuses)
        checks += fleet_checks(await door.lost_fleet())
        brought = await door.ask(BringupsOf())
        lost = await run_nowhere(client, brought, lambda row: bringup_workflow_id(row.cluster))
        checks += bringups_checks(brought, lost)
    except RPCError as error:
        checks.append(Check.bad("rollouts", error.message))
    checks.append(grants_check(await door.ask(RequestsOf()), asked_at))
    return [*checks, health_check(rollouts, asked_at)]
