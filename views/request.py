"""Requests for more quota, for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from models.requests.state import Assessment, Elsewhere, QuotaAsk, RequestStage, RequestState
from models.texts import some_of, verb_of
from views.words import count, gpus, line, moment, row, table


def request_parts(state: RequestState, could: Sequence[str] = ()) -> list[RenderableType]:
    """Return one request: what was asked for, its state, and what to do next. `could`: who could decide."""
    ask, stage = state.ask, state.stage
    why = f": {ask.reason}" if ask.reason else ""
    behalf = f" on behalf of {ask.namespace}" if ask.namespace else ""
    parts: list[RenderableType] = [
        line((ask.request, "bold"), f" ({stage}): {state.wanted_text}."),
        line(f"Asked for by {ask.actor}{behalf} on {moment(state.asked_at)}{why}."),
    ]
    if stage is RequestStage.REFUSED:
        approved = [line(f"Approved by {state.decided_by}: {state.decision}.")] if state.decided_by else []
        return [*parts, *approved, line(f"Refused: {state.said}."), *_instead(ask, state.assessment)]
    if state.decided_by and stage is not RequestStage.DECLINED:
        parts.append(line(f"Decided by {state.decided_by}: {state.decision}."))
    news = state.said[:1].upper() + state.said[1:]
    parts.append(line(f"{news}."))
    if state.untold:
        parts.append(line(f"Not notified, because no notice could be delivered: {', '.join(state.untold)}."))
    if stage is RequestStage.ASKED:
        who = f"{some_of(could, 5)} could approve it" if could else "To approve it"
        parts.append(line(f"{who}: backstop request approve {ask.request} --reason '...'"))
    if stage is RequestStage.GRANTED:
        above = sorted({*state.raised} - {ask.team})
        rose = f" (and its parent quotas: {', '.join(f'{t} by {state.raised[t]}' for t in above)})" if above else ""
        parts.append(line(f"The quota of {ask.team} rose by {gpus(state.raised.get(ask.team, 0))}{rose}."))
    return parts


def _instead(ask: QuotaAsk, assessment: Assessment) -> list[RenderableType]:
    if not assessment.assessed:
        return []
    less = [] if assessment.room is None else [line(f"  less of it: {_less(ask, assessment.room.fits_gpus)}")]
    flex = (
        f"{ask.team} could use about {gpus(assessment.flex_gpus)}, on which jobs inside a quota may preempt its jobs"
        if assessment.flex_gpus
        else "none is free here"
    )
    parts: list[RenderableType] = [
        line("Possible instead:"),
        *less,
        line(f"  flex: {flex}"),
    ]
    for other in assessment.elsewhere:
        model = f" ({other.gpu_model})" if other.gpu_model else ""
        has = f"room to raise the quota by {gpus(other.headroom_gpus)}" if other.has_quota else _none_yet(ask, other)
        parts.append(line(f"  {other.cluster}{model}: {has}"))
    return parts if assessment.elsewhere else [*parts, line("  other clusters: none has room under its ceiling")]


def _less(ask: QuotaAsk, fits: int) -> str:
    until = "" if ask.until is None else f"{ask.until:%Y-%m-%dT%H:%M:%SZ}"
    return f"{gpus(fits)} {verb_of(fits, 'fits', 'fit')}: {ask.line(fits, until)}" if fits else "nothing more fits"


def _none_yet(ask: QuotaAsk, other: Elsewhere) -> str:
    return f"could promise {count(other.headroom_gpus, 'more GPU')}; {ask.team} has no quota there yet"


def request_lines(requests: Sequence[RequestState]) -> list[RenderableType]:
    """Return lines for a rollout's status: open requests and grants."""
    if not requests:
        return []
    lines = [line(f"  {one.ask.request} ({one.stage}): {one.wanted_text}; {one.said}") for one in requests]
    return [Text(), line("Requests for more quota:"), *lines]


def waiting_line(requests: Sequence[RequestState]) -> list[RenderableType]:
    """Return a line for the fleet's status: how many requests wait for a decision."""
    waiting = sum(one.stage is RequestStage.ASKED for one in requests)
    wait = "waits" if waiting == 1 else "wait"
    text = f"{count(waiting, 'request')} for more quota {wait} for a decision: backstop request list"
    return [Text(), line(text)] if waiting else []


def list_parts(requests: Sequence[RequestState], cluster: str, *, ended: bool) -> list[RenderableType]:
    """Return a line for each request."""
    if not requests:
        where = f" of {cluster}" if cluster else ""
        more = "" if ended else "; also ended ones: backstop request list --all"
        return [line(f"No request{where} is open{more}." if not ended else f"There is no request{where}.")]
    able = ["~WHO COULD"] if any(one.could for one in requests) else []
    rows = table(
        *("=ID", "CLUSTER", "TEAM", ">GPUS", "=UNTIL", "=STAGE", "BY", "~WHERE IT STANDS", *able), least=("UNTIL", "BY")
    )
    for one in requests:
        until = "for good" if one.ask.until is None else moment(one.ask.until)
        row(
            rows,
            one.ask.request,
            one.ask.cluster,
            one.ask.team,
            one.ask.gpus,
            until,
            one.stage.value,
            one.ask.actor,
            one.said,
            *([some_of(one.could, 5) or None] if able else []),
        )
    waiting = sum(one.stage is RequestStage.ASKED for one in requests)
    return [
        rows,
        line(f"{count(len(requests), 'request')}; {waiting} {verb_of(waiting, 'waits', 'wait')} for a decision."),
    ]
