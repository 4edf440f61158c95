"""The page of the fleet rollout: its state, and every command with its impact."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any

from models.base import duration_text
from models.errors import BadInput
from models.fleet.command_rows import FLEET_ROWS
from models.fleet.commands import FLEET_COMMANDS, FleetCommand, FleetCommandRequest, not_now
from models.fleet.messages import FleetStatus
from models.fleet.state import WAVES, Pace, Wave
from models.fleet.status import to_ask, with_own_words
from models.questions import Calendar
from models.rollout.command_previews import Ahead
from models.rollout.stages import Command
from views.consequence import undo_parts
from views.fleet_rollout import abort_parts, of_interest, plan_parts, resume_parts, status_parts, wave_name
from views.words import count, line
from web.console.command_page import Button, button_of, command_page
from web.console.forms import fill_model, given_fields, try_work
from web.console.views_html import place
from web.console.visit import Elsewhere, Page, Visit
from web.failures import not_found

_ASKED = 12
"""The most rollouts that the page asks what every team would get back."""
_ASKED_SECONDS = 5.0
"""How long the page waits for rollouts to report their own state."""
_FIELDS = ("reason", "plan_hash", "clusters", "wave", "undo")


async def fleet_rollout(visit: Visit) -> Page | Elsewhere:
    match visit.path[1:]:
        case ():
            return await _show_status(visit)
        case (command,) if command in FLEET_COMMANDS:
            name = next(one for one in FLEET_COMMANDS if one == command)
            return await _give(visit, name) if visit.form else await _before(visit, name)
    raise not_found("there is no such page of the fleet rollout")


async def _show_status(visit: Visit) -> Page:
    status, why_not = await visit.try_call("fleet_status")
    if status is not None and not (status.stage.has_ended or status.lost):
        asked, _ = await visit.try_call("ask_rollouts", clusters=to_ask(status), seconds=_ASKED_SECONDS)
        calendar, _ = await visit.try_ask(Calendar(since=visit.now))
        status = with_own_words(status, asked or {}, calendar or ())
    could, _ = ([], "") if status is None or not status.needs else await visit.try_call("who_could", needs=status.needs)
    show = visit.query.get("show", "")
    chosen = None if status is None else _choose_members(status, show)
    values: dict[str, Any] = {
        "status": status,
        "why_not": why_not,
        "parts": [] if status is None else status_parts(status, chosen, now=visit.now, could=could or ()),
        "show": show,
        "buttons": [] if status is None or status.lost else await fleet_buttons(visit, status),
    }
    return Page("fleet_rollout.html", "Fleet rollout", values)


def _choose_members(status: FleetStatus, show: str) -> Sequence[Any] | None:
    return of_interest(status.members, waiting=show == "waiting", failed=show == "failed", every=show == "all")


async def fleet_buttons(visit: Visit, status: FleetStatus) -> list[Button]:
    """Return every command; none once it has ended."""
    if status.stage.has_ended:
        return []
    refused = await asyncio.gather(*(_why_not(visit, status, command) for command in FLEET_COMMANDS))
    return [button_of(FLEET_ROWS[command], why) for command, why in zip(FLEET_COMMANDS, refused, strict=True)]


async def _why_not(visit: Visit, status: FleetStatus, command: FleetCommand) -> str:
    """Return why a command cannot be given: by the fleet rollout's state, then the table of rights."""
    if why := not_now(status, command, rests=status.rests_until is not None):
        return why
    request = FleetCommandRequest(actor=visit.principal.name, reason="may it", plan_hash=status.plan_hash)
    return await visit.why_not("fleet_command", command=command, request=request)


async def _before(visit: Visit, command: FleetCommand, failed: str = "", said: Mapping[str, str] | None = None) -> Page:
    """Return the page before a command: its impact, and a form for its fields."""
    status: FleetStatus = await visit.call("fleet_status")
    consequence, silent = await try_work(visit, _consequence(visit, command, status))
    return command_page(
        FLEET_ROWS[command],
        "the fleet rollout",
        (place("rollout"), "The fleet rollout"),
        place("rollout", command),
        failed=failed,
        why_not=await _why_not(visit, status, command),
        consequence=consequence or [],
        silent=silent,
        plan_hash=status.plan_hash,
        clusters=[m.cluster for m in status.members],
        waves=[(wave.value, wave_name(wave)) for wave in WAVES if wave is not Wave.AFTER],
        pace=_pace_texts(status.pace),
        typed=dict.fromkeys((*_FIELDS, *Pace.model_fields), "") | dict(said or {}),
    )


async def _consequence(visit: Visit, command: FleetCommand, status: FleetStatus) -> list[Any]:
    match command:
        case "approve":
            pilots = [m.cluster for m in status.members if m.wave is Wave.PILOT]
            return plan_parts(await visit.call("fleet_plan"), pilots, status.pace)
        case "resume":
            return resume_parts(status) if status.failed else []
        case "abort":
            return await _ending(visit, status)
    return []


async def _ending(visit: Visit, status: FleetStatus) -> list[Any]:
    """Return what an abort ends, without `undo` and with it. Undo adds rollouts that have changed something."""
    ending = set(status.would_end)
    names = [name for name in status.would_undo if name not in ending]
    answers = await asyncio.gather(*(visit.try_call("ahead", cluster=name) for name in names[:_ASKED]))
    aheads: list[Ahead] = [
        one for one, _ in answers if one is not None and not one.refusal(Command.ABORT, "asked ahead")
    ]
    ends = f"An abort would also end {count(len(status.would_end), 'rollout')} without changes so far."
    undone = f"With undo, Backstop would also undo {count(len(names), 'rollout')}, the newest first."
    return [
        line(ends),
        *abort_parts(status, undo=False),
        line(undone if names else "With undo, nothing more would happen: the fleet rollout has changed no quota."),
        *_list_given_back(aheads, len(names)),
    ]


def _list_given_back(aheads: Sequence[Ahead], of: int) -> list[Any]:
    """Return what teams get back, after the number of rollouts that were asked: it may not be all of them."""
    parts: list[Any] = undo_parts(aheads, ends=True) if aheads else []
    if not aheads and of:
        return [line("What the teams of these rollouts would get back is unknown.")]
    asked = "the others were not asked, or did not answer"
    first = f"What teams would get back in {len(aheads):,} of these {count(of, 'rollout')} ({asked}):"
    return [line(first), *parts] if len(aheads) < of else parts


def _pace_texts(pace: Pace) -> dict[str, str]:
    """Return each setting's text, as a form shows it."""
    return {name: _text(getattr(pace, name)) for name in Pace.model_fields}


def _text(value: Any) -> str:
    if hasattr(value, "total_seconds"):
        return duration_text(value)
    return str(value) if isinstance(value, int) else f"{float(value):g}"


async def _give(visit: Visit, command: FleetCommand) -> Page | Elsewhere:
    fields = given_fields(visit.form, *_FIELDS, *Pace.model_fields)
    done, failed = await try_work(visit, _send_command(visit, command, fields))
    if failed:
        return await _before(visit.without_form, command, failed, fields)
    if done is not None:
        visit.add_sentence(f"{done.said}.{f' {done.undo}' if done.undo else ''}")
    return Elsewhere(place("rollout"))


async def _send_command(visit: Visit, command: FleetCommand, said: Mapping[str, str]) -> Any:
    """Give the command. Errors: BadInput for a malformed request, those of the command."""
    fields: dict[str, Any] = {"actor": await visit.name(), "reason": said["reason"], "undo": bool(said["undo"])}
    if command == "approve":
        fields["plan_hash"] = said["plan_hash"]
    if command in ("skip", "move"):
        stands: FleetStatus = await visit.without_form.call("fleet_status")
        fields["clusters"] = _split_names(said["clusters"], [member.cluster for member in stands.members])
        fields["wave"] = said["wave"] or None
    if command == "pace":
        status: FleetStatus = await visit.without_form.call("fleet_status")
        fields["pace"] = _changes(visit.form, _pace_texts(status.pace))
    request = fill_model(FleetCommandRequest, **fields)
    return await visit.call("fleet_command", command=command, request=request)


def _split_names(text: str, members: Sequence[str]) -> tuple[str, ...]:
    """Return the names between blanks and commas; members whose names contain these are looked for first."""
    names = []
    for name in sorted((m for m in members if set(m) & set(", ")), key=len, reverse=True):
        text, times = re.subn(rf"(?<![^\s,]){re.escape(name)}(?![^\s,])", ",", text)
        names += [name] if times else []
    return (*text.replace(",", " ").split(), *names)


def _changes(form: Mapping[str, str], stands: Mapping[str, str]) -> dict[str, str | int]:
    """Return the settings that the form changes. Errors: BadInput if it changes none."""
    changes = {name: text for name, now in stands.items() if (text := form.get(name, "").strip()) and text != now}
    if not changes:
        raise BadInput("nothing would change: write another value into a field")
    return {name: int(text) if text.isascii() and text.isdigit() else text for name, text in changes.items()}
