"""The access page: the file in force, who can do what, commands that wait for a second person, and who acted alone."""

from __future__ import annotations

import asyncio
from typing import Any

from models.access.access_file import AccessFile
from models.access.decision import Target
from models.access.rights import RIGHTS
from models.access_questions import AccessNow, ImportAccess
from models.countersign_questions import SeenEmergency, UnseenEmergencies, WaitingNow, WaitingOne, WithdrawWaiting
from models.errors import BadInput
from views.access import access_parts, rights_parts, who_lines
from views.countersign import given_words, whole_parts
from views.row_models import RightLine
from web.console.forms import try_work
from web.console.views_html import place
from web.console.visit import Elsewhere, Page, Visit
from web.failures import not_found

_ENDED = {"given": "it has already been given", "withdrawn": "it was withdrawn"}


async def access(visit: Visit) -> Page | Elsewhere:
    match visit.path[1:]:
        case ():
            return await _act(visit) if visit.form else await _show_access(visit)
        case ("waiting", digest):
            return await _countersign(visit, digest) if visit.form else await _show_waiting(visit, digest)
    raise not_found("there is no such page about access")


# --- what is in force, and who can ----------------------------------------------------------------


async def _show_access(visit: Visit, failed: str = "") -> Page:
    stands, (waiting, no_waiting), (alone, no_alone) = await asyncio.gather(
        visit.ask(AccessNow()), visit.try_ask(WaitingNow()), visit.try_ask(UnseenEmergencies())
    )
    cluster, team = visit.query.get("cluster", "")[:200], visit.query.get("team", "")[:200]
    command = visit.query.get("command", "")[:100]
    file = None if stands.version is None else stands.version.file
    lines = [] if file is None else _who_can(file, Target(cluster=cluster, team=team), command)
    values: dict[str, Any] = {
        "parts": access_parts(stands),
        "proposal": stands.proposal,
        "waiting": waiting or (),
        "no_waiting": no_waiting,
        "emergencies": alone or (),
        "no_emergencies": no_alone,
        "rights": [rights_parts(lines, who=True, team=team)[0]] if lines else [],
        "configured": file is not None,
        "cluster": cluster,
        "team": team,
        "command": command,
        "failed": failed,
    }
    return Page("access.html", "Access", values, 409 if failed else 200)


def _who_can(file: AccessFile, target: Target, command: str) -> list[RightLine]:
    """Return the rows of the table of rights whose key or text contains the command."""
    return [
        line
        for key, row in RIGHTS.items()
        if not command or command.lower() in f"{key} {row.to}"
        for line in who_lines(file, key, target)
    ]


async def _act(visit: Visit) -> Elsewhere | Page:
    """Review an emergency, or confirm an access file; return the page after it."""
    done, failed = await try_work(visit, _carry_out(visit))
    if failed:
        return await _show_access(visit.without_form, failed)
    if done:
        visit.add_sentence(done)
    return Elsewhere(place("access"))


async def _carry_out(visit: Visit) -> str:
    """Carry the form out. Errors: BadInput, those of the questions."""
    reason = visit.form.get("reason", "").strip()
    if confirm := visit.form.get("confirm", "").strip():
        return (await visit.ask(ImportAccess(confirm=confirm[:64], reason=reason))).said
    number = visit.form.get("emergency_number", "").strip()
    if not (number.isascii() and number.isdigit() and int(number[:18])):
        raise BadInput("name an emergency of the list")
    if not reason:
        raise BadInput("the review of an emergency needs a reason: say what you found")
    seen = await visit.ask(SeenEmergency(number=int(number[:18]), reason=reason))
    return f"Emergency {seen.number} has been reviewed by {seen.seen_by}."


# --- one that waits -------------------------------------------------------------------------------


async def _show_waiting(visit: Visit, digest: str, failed: str = "", reason: str = "") -> Page:
    one = await visit.ask(WaitingOne(hash=digest))
    may_not = _ENDED.get(one.ended, "") or await visit.why_not("countersign", digest=digest)
    own = one.by == await visit.name()
    if not may_not and own:
        may_not = "you gave the command yourself: another person must countersign it"
    values = {
        "digest": digest,
        "one": one,
        "parts": whole_parts(one),
        "own": own and not one.ended,
        "why_not": may_not,
        "failed": failed,
        "reason": reason,
    }
    return Page("waiting.html", f"To {one.what}", values, 409 if failed else 200)


async def _countersign(visit: Visit, digest: str) -> Elsewhere | Page:
    reason = visit.form.get("reason", "").strip()
    if visit.form.get("do") == "withdraw":
        gone, failed = await try_work(visit, visit.ask(WithdrawWaiting(hash=digest, reason=reason)))
        news = "" if gone is None else f"Withdrawn: the command to {gone.what} no longer waits for a second person."
    else:
        done, failed = await try_work(visit, visit.call("countersign", digest=digest))
        news = "" if done is None else " ".join(given_words(done))
    if failed:
        return await _show_waiting(visit.without_form, digest, failed, reason)
    if news:
        visit.add_sentence(news)
    return Elsewhere(place("access"))
