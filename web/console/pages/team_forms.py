"""A team's forms: it acknowledges, objects, and asks for more quota."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Any

from models.planning.grants import Room, room
from models.questions import FlexSums, SnapshotNow, WhyNot
from models.reports.why import WhyAnswers
from models.requests.state import QuotaAsk, RequestStage, RequestState
from models.requests.undo_lines import undo_of_ask
from models.rollout.command_rows import ROLLOUT_ROWS
from models.rollout.commands import CommandRequest
from models.rollout.messages import CommandAnswer
from models.rollout.stages import Command
from models.rollout.status_models import RolloutStatus
from views.request import request_parts
from web.console.command_page import command_page
from web.console.forms import day_ahead, fill_model, given_fields, number, try_work
from web.console.views_html import place
from web.console.visit import Elsewhere, Page, Visit

_LOOKED_AT = 12
"""The most clusters for which the form says how much fits: those with the most unpromised healthy GPUs."""
_ROLLOUT_SECONDS = 5
_ASKED = ("cluster", "gpus", "until", "namespace", "reason")


# --- acknowledge, object --------------------------------------------------------------------------


async def speak(visit: Visit, team: str, command: Command, cluster: str) -> Page | Elsewhere:
    """Return the form, or the result."""
    if not visit.form:
        return await _before(visit, team, command, cluster)
    reason = visit.form.get("reason", "").strip()
    done, failed = await try_work(visit, _send_command(visit, team, command, cluster, reason))
    if failed:
        return await _before(visit.without_form, team, command, cluster, failed, reason)
    if done is not None:
        visit.add_sentence(f"{done.said}.{f' {done.undo}' if done.undo else ''}")
    return Elsewhere(place("teams", team))


async def _send_command(visit: Visit, team: str, command: Command, cluster: str, reason: str) -> CommandAnswer:
    request = fill_model(CommandRequest, actor=await visit.name(), team=team, reason=reason)
    answer: CommandAnswer = await visit.call("command", cluster=cluster, command=command, request=request)
    return answer


async def _before(visit: Visit, team: str, command: Command, cluster: str, failed: str = "", reason: str = "") -> Page:
    ahead, silent = await visit.try_call("ahead", cluster=cluster)
    why_not = "" if ahead is None else ahead.refusal(command, "given")
    request = CommandRequest(actor=visit.principal.name, team=team, reason="may it")
    why_not = why_not or await visit.why_not("command", cluster=cluster, command=command, request=request)
    status, _ = await visit.try_call("status", cluster=cluster)
    if status is not None and status.stage.has_ended:
        why_not, silent = silent or why_not, ""
    own = None if status is None else next((t for t in status.teams if t.team == team), None)
    return command_page(
        ROLLOUT_ROWS[command],
        f"{team} in {cluster}",
        (place("teams", team), team),
        place("teams", team, command.value, cluster),
        failed=failed,
        fixed="team",
        own=own,
        silent=silent,
        why_not=why_not,
        typed={"reason": reason},
    )


# --- ask for more ---------------------------------------------------------------------------------


async def ask(visit: Visit, team: str) -> Page | Elsewhere:
    """Return the form with what fits, or the result; one that does not fit is refused at once, with alternatives."""
    if not visit.form:
        return await _show_form(visit, team)
    fields = given_fields(visit.form, *_ASKED)
    state, failed = await try_work(visit, _request_quota(visit, team, fields))
    if failed or (state is not None and state.stage is RequestStage.REFUSED):
        return await _show_form(visit.without_form, team, fields, failed, state)
    if state is None:
        return Elsewhere(place("teams", team))
    news = state.said[:1].upper() + state.said[1:].rstrip(".")
    visit.add_sentence(f"Request {state.ask.request}: {state.wanted_text}. {news}. {undo_of_ask(state)}")
    return Elsewhere(place("requests", state.ask.request))


async def _request_quota(visit: Visit, team: str, said: dict[str, str]) -> RequestState:
    asked = fill_model(
        QuotaAsk,
        # The same for a form that is sent twice, so that it asks once.
        request=f"q-{hashlib.sha256(chr(0).join((visit.principal.name, visit.key)).encode()).hexdigest()[:12]}",
        team=team,
        cluster=said["cluster"],
        gpus=number("How many more", said["gpus"]),
        until=day_ahead("Until", said["until"], visit.now) if said["until"] else None,
        namespace=said["namespace"],
        actor=await visit.name(),
        reason=said["reason"],
    )
    state: RequestState = await visit.call("request", ask=asked)
    return state


async def _show_form(
    visit: Visit, team: str, fields: dict[str, str] | None = None, failed: str = "", state: RequestState | None = None
) -> Page:
    fields = fields or {**dict.fromkeys(_ASKED, ""), "cluster": visit.query.get("cluster", "")[:200]}
    (answers, no_why), (sums, _) = await asyncio.gather(visit.try_ask(WhyNot(team=team)), visit.try_ask(FlexSums()))
    spare = {one.cluster: one.healthy_gpus - one.promised_gpus for one in sums or ()}
    clusters = [] if answers is None else [(one.cluster, one.quota_gpus) for one in answers.teams]
    clusters.sort(key=lambda pair: (pair[0] != fields["cluster"], -spare.get(pair[0], 0)))
    looked_at = [name for name, _ in clusters[:_LOOKED_AT]]
    opened = await statuses_of(visit, looked_at)
    rooms = await asyncio.gather(*(_room(visit, name, team, opened.get(name)) for name in looked_at))
    values: dict[str, Any] = {
        "team": team,
        "rows": _rows(clusters, rooms),
        "unseen": len(clusters) - len(rooms),
        "no_why": no_why if answers is None else nowhere(answers, team),
        "refused": [] if state is None else request_parts(state),
        "failed": failed,
        "typed": fields,
    }
    return Page("team_ask.html", f"{team}: ask for more", values, 409 if failed or state is not None else 200)


def nowhere(answers: WhyAnswers, team: str) -> str:
    """Return why no cluster says anything about the team's quota; empty if one does."""
    if answers.teams:
        return ""
    return "; ".join(answers.unanswered.values()) or f"no cluster in the ledger has a quota of team {team!r}"


def _rows(
    clusters: Sequence[tuple[str, int]], rooms: Sequence[tuple[Room | None, str]]
) -> list[tuple[str, int, Room | None, str]]:
    unknown: list[tuple[Room | None, str]] = [(None, "")] * (len(clusters) - len(rooms))
    rows = [(name, quota, *room) for (name, quota), room in zip(clusters, [*rooms, *unknown], strict=True)]
    return sorted(rows, key=lambda row: -1 if row[2] is None else row[2].fits_gpus, reverse=True)


async def statuses_of(visit: Visit, clusters: Sequence[str]) -> dict[str, RolloutStatus]:
    """Return the status of the rollouts that are open in these clusters, if they answer in time."""
    if not clusters:
        return {}
    statuses, _ = await visit.try_call("ask_rollouts", clusters=list(clusters), seconds=_ROLLOUT_SECONDS)
    every = (statuses or {}).items()
    return {name: status for name, status in every if status is not None and not status.stage.has_ended}


async def _room(visit: Visit, cluster: str, team: str, status: RolloutStatus | None) -> tuple[Room | None, str]:
    """Return an estimate of how much more fits there now, and why there is none.

    What an open rollout has cut is kept for the teams that it was cut from.
    """
    seen, why = await visit.try_ask(SnapshotNow(cluster=cluster))
    if seen is None:
        return None, why
    snapshot = seen.snapshot
    if status is not None and not status.shadow:
        values = snapshot.values
        kept = {t.team: max(values[t.team], t.baseline_gpus) for t in status.teams if t.team in values}
        snapshot = snapshot.with_values(kept)
    return await asyncio.to_thread(room, snapshot, seen.policy, team, max(1, snapshot.total_gpus)), ""
