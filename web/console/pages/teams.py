"""Teams, and one team's home: its quotas, its gaps, coming changes, its requests, and free flex."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from models.flex.flex_sum import FlexSum
from models.lifecycle.state_machine import Refused
from models.questions import AllTeams, FlexSums, TeamSums, WhyNot
from models.reports.rollout_summary import RolloutSummary
from models.reports.why import Cause, TeamWhy, WhyAnswers
from models.requests.state import RequestState
from models.rollout.stages import Command, Stage, answer
from models.rollout.status_models import RolloutStatus
from models.status_questions import RequestsOf
from models.texts import some_of, verb_of
from views.flex import by_free_flex
from views.status import awaited_text
from views.why import in_full
from views.words import count, gpus, moment
from web.console.forms import is_like
from web.console.pages.flex import flex_rows
from web.console.pages.team_forms import ask, nowhere, speak, statuses_of
from web.console.visit import Elsewhere, Page, Visit
from web.failures import not_found

_SHOWN = 1_000
_ASKED = 24
"""The most rollouts that the page asks what changes, and when."""
_FREE = 10
_REQUESTS = 100


async def teams(visit: Visit) -> Page | Elsewhere:
    match visit.path[1:]:
        case ():
            return await _list(visit)
        case (team,):
            return await _home(visit, team)
        case (team, "ask"):
            return await ask(visit, team)
        case (team, "ack" | "object" as command, cluster):
            return await speak(visit, team, Command(command), cluster)
    raise not_found("there is no such page of a team")


async def _list(visit: Visit) -> Page:
    asked = visit.query.get("name", "")[:200]
    teams, team_sums = await asyncio.gather(visit.ask(AllTeams()), visit.ask(TeamSums()))
    sums = {one.team: (one.clusters, one.gpus) for one in team_sums}
    names = sorted({*sums, *(team.name for team in teams)})
    rows = [(name, *sums.get(name, (0, 0))) for name in names if is_like(name, asked)]
    values = {"teams": rows[:_SHOWN], "more": max(0, len(rows) - _SHOWN), "name": asked, "all": len(names)}
    return Page("teams.html", "Teams", values)


# --- one team's home ------------------------------------------------------------------------------


class Holding(NamedTuple):
    """A team's quota in one cluster. Units: whole GPUs; None: unknown."""

    cluster: str
    promised: int
    backed: int | None
    used: int | None
    idle: int | None
    startable: int
    short: int | None
    since: str
    health_at: str


class Change(NamedTuple):
    """A rollout under way. `planned`: the team's GPUs in its plan; None: unknown. `buttons`: command, label, why."""

    cluster: str
    stage: str
    shadow: bool
    now: int | None
    planned: int | None
    waits: Sequence[str]
    acknowledged: bool
    buttons: Sequence[tuple[str, str, str]]


async def _home(visit: Visit, team: str) -> Page:
    cluster = visit.query.get("cluster", "")[:200]
    (answers, no_why), (flexes, no_flex), (rollouts, no_rollouts), (requests, no_requests) = await asyncio.gather(
        visit.try_ask(WhyNot(team=team, cluster=cluster)),
        visit.try_ask(FlexSums()),
        visit.try_call("rollouts"),
        visit.try_ask(RequestsOf(ended=False)),
    )
    answers, flexes = answers or WhyAnswers(teams=()), flexes or ()
    moving, settled = _open_rollouts(answers, rollouts or [])
    statuses = await statuses_of(visit, [*moving, *settled][:_ASKED])
    own: list[RequestState] = [one for one in requests or () if one.ask.team == team]
    values: dict[str, Any] = {
        "team": team,
        "cluster": cluster,
        "no_why": no_why or nowhere(answers, team),
        "lead": _lead(answers) if answers.teams else [],
        "holdings": [_holding(one) for one in answers.teams],
        "in_full": _in_full(answers, statuses, flexes),
        "changes": [_change(team, status) for status in statuses.values()],
        "settled": [name for name in settled if name not in statuses],
        "unheard": [name for name in moving if name not in statuses],
        "no_rollouts": no_rollouts or no_why,
        "requests": own[-_REQUESTS:],
        "no_requests": no_requests,
        "flex": flex_rows([flex for flex in by_free_flex(flexes) if flex.available_gpus][:_FREE]),
        "no_flex": no_flex,
    }
    return Page("team.html", team, values)


def _in_full(answers: WhyAnswers, statuses: Mapping[str, RolloutStatus], flexes: Sequence[FlexSum]) -> list[Any]:
    if not answers.teams:
        return []
    lacking = any(one.gap_gpus or one.over_gpus for one in answers.teams)
    return in_full(answers, statuses, flexes if lacking else [])


def _open_rollouts(answers: WhyAnswers, rollouts: Sequence[RolloutSummary]) -> tuple[list[str], list[str]]:
    """Return the team's clusters with an open rollout: those where something changes, and those that are monitored.

    A monitored rollout changes the quota no more, and its needs are for its owner.
    """
    here = {one.cluster for one in answers.teams}
    opened = sorted((one.cluster, one.stage) for one in rollouts if one.open and one.cluster in here)
    settled = [name for name, stage in opened if stage == Stage.MONITORED]
    return [name for name, stage in opened if stage != Stage.MONITORED], settled


def _short(one: TeamWhy) -> int | None:
    """Return the part of the quota that its jobs neither hold nor could take; None: their use is unknown."""
    return one.short_gpus if one.use_known else None


def _lead(answers: WhyAnswers) -> list[str]:
    """Say how much the team has in all, and what keeps the most of what is short."""
    teams = answers.teams
    measured = [one for one in teams if one.use_known]
    quota, held = sum(one.quota_gpus for one in teams), sum(one.used_gpus for one in measured)
    idle, start = sum(one.idle_gpus or 0 for one in measured), sum(one.startable_gpus for one in teams)
    short = sum(_short(one) or 0 for one in teams)
    where = f"in {teams[0].cluster}" if len(teams) == 1 else f"in {len(teams)} clusters"
    looked_at = f" in the {count(len(measured), 'cluster')} whose use is known" if len(measured) < len(teams) else ""
    has = f"its jobs hold {held:,} of these{looked_at}, {idle:,} of them idle"
    rest = f"{start:,} more could start now, and {short:,} {verb_of(short)} short"
    if not measured:
        has, rest = "it is unknown what its jobs hold, so all of it counts as used", f"{start:,} more could start now"
    lead = [f"Its quota is {gpus(quota)} {where}: {has}; {rest}."]
    held_anyway = [one for one in measured if one.backed_gpus is not None and not _short(one)]
    covered = {one.cluster: one.quota_gpus - (one.backed_gpus or 0) for one in held_anyway}
    if missing := sum(max(0, number) for number in covered.values()):
        there = [cluster for cluster, number in covered.items() if number > 0]
        inside = "" if len(teams) == 1 else f" in {some_of(there, 3)}"
        have = verb_of(missing, "has", "have")
        lead.append(
            f"{gpus(missing)} of this quota{inside} {have} no healthy GPU behind {verb_of(missing, 'it', 'them')}: its "
            "jobs can use that part only on hardware that other teams' quotas leave unused."
        )
    others = [(reason, one) for one in measured if one.short_gpus for reason in one.reasons if not reason.cause.own]
    if others:
        most, one = max(others, key=lambda pair: pair[0].gpus)
        lead.append(f"The main cause, for {gpus(most.gpus)} in {one.cluster}: {most.text}.")
    if answers.unanswered:
        left_out = sorted(answers.unanswered)
        lead.append(f"{some_of(left_out, 3)} {verb_of(len(left_out))} not counted: the reason is below.")
    return lead


def _holding(one: TeamWhy) -> Holding:
    since = [missing.since for missing in one.missing if missing.since is not None]
    unbacked = one.backed_gpus is not None and one.backed_gpus < one.quota_gpus
    unhealthy = any(reason.cause is Cause.UNHEALTHY for reason in one.reasons)
    return Holding(
        cluster=one.cluster,
        promised=one.quota_gpus,
        backed=one.backed_gpus,
        used=one.used_gpus if one.use_known else None,
        idle=one.idle_gpus,
        startable=one.startable_gpus,
        short=_short(one),
        since=moment(min(since)) if since and (unbacked or unhealthy) else "",
        health_at=moment(one.health_at),
    )


def _change(team: str, status: RolloutStatus) -> Change:
    own = next((t for t in status.teams if t.team == team), None)
    buttons = [
        (command.value, label, _why_not(status, command))
        for command, label in ((Command.ACK, "Acknowledge"), (Command.OBJECT, "Object"))
    ]
    waits = [awaited_text(c) + ("" if c.until is None else f", until {moment(c.until)}") for c in status.waiting_for]
    return Change(
        cluster=status.cluster,
        stage=status.stage.value,
        shadow=status.shadow,
        now=None if own is None else own.quota_gpus,
        planned=None if own is None else own.planned_gpus,
        waits=waits,
        acknowledged=own is not None and own.acknowledged,
        buttons=buttons,
    )


def _why_not(status: RolloutStatus, command: Command) -> str:
    """Return why the rollout's stage refuses the command; rights are checked before the form is shown."""
    cell = answer(status.stage, command, effects_stand=False)
    return cell.reason if isinstance(cell, Refused) else ""
