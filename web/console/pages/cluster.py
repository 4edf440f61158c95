"""The page of one cluster: its rollout's state, what it waits for, and every command with its impact."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from client.who_could_act import Openers, could_text, list_unacknowledged, who_could_open
from models.audit_chain import AuditEntry
from models.cluster.windows import Entry
from models.errors import Refusal, Unavailable
from models.lifecycle.holds import PROPOSAL, Hold, HoldKind, holds_text
from models.questions import Archived, ArchivePage, Calendar, FactsOf, FlexOf, SnapshotNow
from models.rollout.command_previews import Ahead
from models.rollout.command_rows import ROLLOUT_ROWS
from models.rollout.commands import CommandRequest
from models.rollout.messages import CommandAnswer
from models.rollout.stages import Command, Stage
from models.rollout.status_models import Condition, RolloutStatus
from views.calendar import calendar_parts
from views.consequence import approved_line, consequence_parts
from views.flex import at_most_note, block_text
from views.plan import plan_parts
from views.status import shorten_condition, status_parts
from views.words import clean, count, moment, row, space_name, table
from web.console.command_page import Button, button_of, command_page
from web.console.forms import fill_model, given_fields, try_work
from web.console.pages.cluster_curve import bands_of, cluster_curve
from web.console.pages.gpu_curves import tallied_points
from web.console.views_html import place
from web.console.visit import Elsewhere, Page, Visit

_TRACK = (Stage.PLANNED, Stage.BUFFERED, Stage.ENFORCED, Stage.MONITORED)
_ENTRIES, _LOOKED = 30, 200
"""Rows of the archive: those that the page lists, and those that it reads to mark the picture."""
_CURVE, _POINTS = timedelta(days=7), 85


async def cluster(visit: Visit) -> Page | Elsewhere:
    if len(visit.path) == 2:
        return await _show_cluster(visit, visit.path[1])
    if len(visit.path) == 3 and visit.path[2] in {c.value for c in Command}:
        name, command = visit.path[1], Command(visit.path[2])
        return await _give(visit, name, command) if visit.form else await _before(visit, name, command)
    raise Refusal("there is no such page of a cluster")


# --- where it stands ------------------------------------------------------------------------------


async def _show_cluster(visit: Visit, name: str) -> Page:
    status, why_not = await visit.try_call("status", cluster=name)
    facts = None if status is not None else (await visit.try_ask(FactsOf(cluster=name)))[0]
    ahead, _ = (None, "") if status is None or status.stage.has_ended else await visit.try_call("ahead", cluster=name)
    could, _ = ([], "") if status is None or not status.needs else await visit.try_call("could_act", cluster=name)
    openers = Openers() if status is None or status.stage.has_ended else await _openers(visit, status)
    # Beside one another: each is a question to the desk, or to the table of rights.
    (archived, no_audit), buttons, hardware, (declared, no_windows), tallies, (plannable, _) = await asyncio.gather(
        visit.try_ask(Archived(cluster=name, limit=_LOOKED, newest=True)),
        _buttons(visit, status, ahead),
        _hardware(visit, name),
        visit.try_ask(Calendar(cluster=name, since=visit.now - _CURVE)),
        tallied_points(visit, _CURVE, _POINTS, name),
        visit.try_ask(SnapshotNow(cluster=name)),
    )
    points, no_curve = tallies
    tracked = status is not None and status.stage in _TRACK[:-1]  # what it waits for stands there
    bands = bands_of(archived, [e.window for e in declared or ()], visit.now - _CURVE, visit.now)
    values: dict[str, Any] = {
        "cluster": name,
        "status": status,
        "why_not": why_not,
        "launchable": facts is not None,
        "parts": [] if status is None else status_parts(status, visit.now, could=could or (), tracked=tracked)[1:],
        "track": [] if status is None else _track(status, could, openers),
        "could_lift": openers.lifts,
        "plan": [] if ahead is None or ahead.plan is None else plan_parts(ahead.plan, visit.now),
        "buttons": buttons,
        "holds": [] if status is None else [*status.holds, *status.recorded_objections],
        "entries": [] if archived is None else _entries(archived),
        "seals": () if archived is None else archived.seals,
        "no_audit": no_audit,
        **hardware,
        "windows": _windows([e for e in declared or () if e.window.ends > visit.now], name, status, visit.now),
        "no_windows": no_windows,
        "curve": cluster_curve(points, archived, plannable, bands),
        "no_curve": no_curve,
        "bands": bands,
    }
    return Page("cluster.html", name, values)


async def _openers(visit: Visit, status: RolloutStatus) -> Openers:
    async def who_could(needs: str, cluster: str) -> Sequence[str]:
        names, why = await visit.try_call("who_could", needs=needs, cluster=cluster)
        if names is None:
            raise Unavailable(why)
        return list(names)

    return await who_could_open(who_could, status)


def _track(status: RolloutStatus, could: Sequence[str] | None, openers: Openers) -> list[dict[str, Any]]:
    """Return the four stages, each with its place, what its gate waits for, and who may give the next command."""
    here = status.stage if status.stage in _TRACK else None
    at = _TRACK.index(here) if here is not None else -1
    track = []
    for number, stage in enumerate(_TRACK):
        state = "ahead" if number > at else "here" if number == at else "behind"
        waits = (
            [text for c in status.waiting_for for text in _describe_wait(status, c, could, openers)]
            if number == at + 1 and here is not None
            else []
        )
        track.append({"stage": stage.value, "state": state, "waits": waits})
    return track


def _describe_wait(
    status: RolloutStatus, condition: Condition, could: Sequence[str] | None, openers: Openers
) -> list[str]:
    until = "" if condition.until is None else f", until {moment(condition.until)}"
    if condition.name == "holds":
        return [_describe_hold(hold, openers) for hold in status.holds]
    if condition.name == "acks" and openers.acks:
        more = len(list_unacknowledged(status)) - len(openers.acks)
        by_people = {
            who: [team for team, whose in openers.acks.items() if whose == who] for who in openers.acks.values()
        }
        teams = [f"{clean(', '.join(theirs))} (by {who})" for who, theirs in by_people.items()]
        teams += [count(more, "more team")] if more > 0 else []
        return [f"{shorten_condition(condition, status.needs)}{until}; missing: {'; '.join(teams)}"]
    if condition.name != "approval":
        return [f"{shorten_condition(condition, status.needs)}{until}"]
    approvers = could if could is None or "backstop approve" in status.needs else ()
    return [f"{shorten_condition(condition, status.needs)}{until}; who could approve: {could_text(approvers)}"]


def _describe_hold(hold: Hold, openers: Openers) -> str:
    who = openers.lifts.get(hold.id)
    return f"{holds_text([hold])} (to be lifted by {who})" if who else holds_text([hold])


async def _buttons(visit: Visit, status: RolloutStatus | None, ahead: Ahead | None) -> list[Button]:
    if status is None or status.stage.has_ended:
        return []
    refused = await asyncio.gather(*(_why_not(visit, status, ahead, command) for command in Command))
    return [button_of(ROLLOUT_ROWS[command], why) for command, why in zip(Command, refused, strict=True)]


async def _why_not(visit: Visit, status: RolloutStatus, ahead: Ahead | None, command: Command) -> str:
    """Return why a command cannot be given: by the rollout's stage, then its holds, then the table of rights."""
    if command is Command.APPROVE and ahead is not None and ahead.plan is None:
        return "nothing awaits an approval"
    if ahead is not None and (refusal := ahead.refusal(command, "given")):
        return refusal
    pauses = {hold.id for hold in status.holds if hold.kind is HoldKind.PAUSED}
    paused = bool(pauses)
    if command in (Command.PAUSE, Command.RESUME) and paused is (command is Command.PAUSE):
        return "already paused" if paused else "not paused"
    if command is Command.RESOLVE and not status.lifts.keys() - pauses and status.proposal is None:
        return "there is no hold that a person can lift"
    request = CommandRequest(actor=visit.principal.name, reason="may it")
    return await visit.why_not("command", cluster=status.cluster, command=command, request=request)


async def _hardware(visit: Visit, name: str) -> dict[str, Any]:
    """Return the cluster's islands, and how large a block each could take."""
    offers, why = await visit.try_ask(FlexOf(cluster=name))
    one = offers[0] if offers else None
    if one is None or one.health_at is None:
        return {"islands": [], "no_islands": why or "its health is unknown"}
    rows = table("=ISLAND", ">HEALTHY", ">TOTAL", ">HEALTHY BLOCK", ">LARGEST FREE BLOCK")
    for i in one.islands:
        style = "yellow" if i.healthy_gpus < i.total_gpus else ""
        row(rows, i.name, i.healthy_gpus, i.total_gpus, i.block_gpus, block_text(*one.free_block(i)), style=style)
    return {"islands": [rows, *at_most_note(map(one.free_block, one.islands))], "no_islands": ""}


def _windows(entries: Sequence[Entry], name: str, status: RolloutStatus | None, now: datetime) -> Sequence[Any]:
    """Return declared windows that are not over, and what the rollout expects them to take."""
    ahead = {} if status is None or not status.foretold else {name: status.foretold}
    return calendar_parts(entries, (), ahead, now) if entries else []


def _entries(archived: ArchivePage) -> list[tuple[AuditEntry, int | None]]:
    """Return the newest archive entries, each with the first of the last seals that covers it; None: no seal yet."""
    return [(row.entry, archived.seal_of(row.seq)) for row in reversed(archived.rows[-_ENTRIES:])]


# --- a command ------------------------------------------------------------------------------------


async def _before(
    visit: Visit, name: str, command: Command, failed: str = "", reason: str = "", hold: str = ""
) -> Page:
    """Return the page before a command: its impact, and a form for its fields."""
    status = await visit.call("status", cluster=name)
    ahead, silent = await visit.try_call("ahead", cluster=name)
    why_not = await _why_not(visit, status, ahead, command)
    if status.stage.has_ended:  # nothing is unknown of it: it leads to nothing
        why_not, silent = silent or why_not, ""
    return command_page(
        ROLLOUT_ROWS[command],
        name,
        (place("clusters", name), name),
        place("clusters", name, command.value),
        failed=failed,
        why_not=why_not,
        silent=silent,
        consequence=[] if ahead is None else _consequence(command, ahead, visit.now),
        plan_hash=ahead.plan.hash if ahead is not None and ahead.plan is not None else "",
        holds=_liftable(status),
        teams=[t.team for t in status.teams if t.leaf],
        typed={"reason": reason, "hold": hold or visit.query.get("hold", "")[:300]},
    )


def _liftable(status: RolloutStatus) -> list[tuple[str, str]]:
    """Return the holds that the form resolves, by id, and a proposal to decline. A pause is resumed instead."""
    holds = [h for h in (*status.holds, *status.recorded_objections) if h.kind is not HoldKind.PAUSED]
    named = [(h.id, f"{space_name(h.kind)}: {clean(h.reason)}") for h in holds]
    proposal = status.proposal
    return named if proposal is None else [(PROPOSAL, f"decline the proposed plan {proposal.plan_hash}"), *named]


def _consequence(command: Command, ahead: Ahead, now: datetime) -> Sequence[Any]:
    if command is Command.APPROVE:
        return [] if ahead.plan is None else [*plan_parts(ahead.plan, now), approved_line([ahead])]
    return consequence_parts(ROLLOUT_ROWS[command], [ahead])


async def _give(visit: Visit, name: str, command: Command) -> Page | Elsewhere:
    fields = given_fields(visit.form, "reason", "plan_hash", "team", "hold", "how")
    done, failed = await try_work(visit, _send_command(visit, name, command, fields))
    if failed:
        return await _before(visit.without_form, name, command, failed, fields["reason"], fields["hold"])
    if done is not None:
        visit.add_sentence(f"{done.said}.{f' {done.undo}' if done.undo else ''}")
    return Elsewhere(place("clusters", name))


async def _send_command(visit: Visit, name: str, command: Command, said: Mapping[str, str]) -> CommandAnswer:
    """Give the command. Errors: BadInput for a malformed request, those of the command."""
    request = fill_model(CommandRequest, actor=await visit.name(), **said)
    answer: CommandAnswer = await visit.call("command", cluster=name, command=command, request=request)
    return answer
