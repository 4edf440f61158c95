"""Requests for more quota as people read them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from cli.output import count, gpus, line, moment, row, table
from models.requests.state import Assessment, Elsewhere, QuotaAsk, RequestStage, RequestState


def request_parts(found: RequestState) -> list[RenderableType]:
    """One request: what was asked for, where it stands, and what to do next."""
    ask, stage = found.ask, found.stage
    why = f": {ask.reason}" if ask.reason else ""
    behalf = f" on behalf of {ask.namespace}" if ask.namespace else ""
    made: list[RenderableType] = [
        line((ask.request, "bold"), f" ({stage}): {found.wants}."),
        line(f"Asked for by {ask.actor}{behalf} on {moment(found.asked_at)}{why}."),
    ]
    if stage is RequestStage.REFUSED:
        approved = [line(f"Approved by {found.decided_by}: {found.decision}.")] if found.decided_by else []
        return [*made, *approved, line(f"Refused: {found.said}."), *_instead(ask, found.assessment)]
    if found.decided_by and stage is not RequestStage.DECLINED:
        made.append(line(f"Decided by {found.decided_by}: {found.decision}."))
    said = found.said[:1].upper() + found.said[1:]
    made.append(line(f"{said}."))
    if stage is RequestStage.ASKED:
        made.append(line(f"An owner gives: backstop request approve {ask.request} --reason '...'"))
    if stage is RequestStage.GRANTED:
        above = sorted({*found.raised} - {ask.team})
        rose = f" (with {', '.join(f'{t} by {found.raised[t]}' for t in above)} above it)" if above else ""
        made.append(line(f"The quota of {ask.team} rose by {found.raised.get(ask.team, 0)}{rose}."))
    return made


def _instead(ask: QuotaAsk, found: Assessment) -> list[RenderableType]:
    if not found.assessed:
        return []
    fits = 0 if found.room is None else found.room.fits_gpus
    until = "" if ask.until is None else f" --until {ask.until:%Y-%m-%dT%H:%MZ}"
    less = f"{gpus(fits)} fit: backstop request {ask.team} {ask.cluster} {fits}{until}" if fits else "nothing more fits"
    flex = f"its share would be about {gpus(found.flex_gpus)} here" if found.flex_gpus else "it has none to share here"
    made: list[RenderableType] = [
        line("What there is instead:"),
        line(f"  less of it: {less}"),
        line(f"  flex: {flex}, junior to every quota" if found.flex_gpus else f"  flex: {flex}"),
    ]
    for other in found.elsewhere:
        model = f" ({other.gpu_model})" if other.gpu_model else ""
        has = f"raise its quota there by up to {other.headroom_gpus}" if other.has_quota else _none_yet(ask, other)
        made.append(line(f"  {other.cluster}{model}: {has}"))
    return made if found.elsewhere else [*made, line("  other clusters: none has room under its ceiling")]


def _none_yet(ask: QuotaAsk, other: Elsewhere) -> str:
    return f"could promise {other.headroom_gpus} more; {ask.team} has no quota there yet"


def request_lines(found: Sequence[RequestState]) -> list[RenderableType]:
    """Beside a rollout's status: what was asked for, and what stands granted."""
    if not found:
        return []
    lines = [line(f"  {one.ask.request} ({one.stage}): {one.wants}; {one.said}") for one in found]
    return [Text(), line("Requests for more quota:"), *lines]


def waiting_line(found: Sequence[RequestState]) -> list[RenderableType]:
    """Beside the fleet's status: that somebody has to decide."""
    waiting = sum(one.stage is RequestStage.ASKED for one in found)
    wait = "waits" if waiting == 1 else "wait"
    text = f"{count(waiting, 'request')} for more quota {wait} for an owner: backstop request list"
    return [Text(), line(text)] if waiting else []


def list_parts(found: Sequence[RequestState], cluster: str, *, ended: bool) -> list[RenderableType]:
    """A line for each request, the oldest first."""
    if not found:
        where = f" of {cluster}" if cluster else ""
        more = "" if ended else "; those that are over: backstop request list --all"
        return [line(f"No request{where} is open{more}." if not ended else f"There is no request{where}.")]
    made = table("ID", "CLUSTER", "TEAM", ">GPUS", "UNTIL", "STAGE", "BY", "WHERE IT STANDS")
    for one in found:
        until = "for good" if one.ask.until is None else moment(one.ask.until)
        row(
            made,
            one.ask.request,
            one.ask.cluster,
            one.ask.team,
            one.ask.gpus,
            until,
            one.stage.value,
            one.ask.actor,
            one.said,
        )
    waiting = sum(one.stage is RequestStage.ASKED for one in found)
    return [made, line(f"{count(len(found), 'request')}; {waiting} for an owner to decide.")]
