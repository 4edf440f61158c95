"""Outcomes of a request's calls and of time alone, applied to its state; people are notified of each end.

Every function returns a new RequestState; none decides what to do next (models/requests/decide.py does).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from models.access.tickets import warrant_in
from models.audit_chain import AuditKind
from models.notices import Notice
from models.planning.grants import Granted, GrantOutcome
from models.requests.state import Assessment, QuotaAsk, RequestStage, RequestState, any_of
from models.temporal_names import TellAnswer

MAIL_TIME = timedelta(days=1)
"""The longest time for which delivery of a notice is tried, so that an absent receiver does not keep a request open."""


def open_request(ask: QuotaAsk, assessment: Assessment, now: datetime) -> RequestState:
    """Open a request: it waits for an owner, or is refused at once with the alternatives."""
    ticketed = bool(ask.ticket) if assessment.ticketed is None else assessment.ticketed
    on = warrant_in(ask)
    ask = ask.but(ticket="")  # it is used up, and everybody may read the request
    if ask.until is not None and ask.until <= now:
        assessment = assessment.model_copy(
            update={"fits": False, "why": f"its end, {ask.until:%Y-%m-%d %H:%MZ}, is already past"}
        )
    state = RequestState(ask=ask, ticketed=ticketed, asked_at=now, changed_at=now, assessment=assessment)
    if not assessment.fits:
        refused = state.but(stage=RequestStage.REFUSED, said=assessment.why)
        return refused.record(
            AuditKind.COMMAND,
            f"{state.wanted_text}: refused: {assessment.why}",
            now,
            actor=ask.actor,
            reason=ask.reason,
            refused=True,
            **on,
        )
    state = say_who_decides(state, by_roles=assessment.by_roles)
    behalf = f" on behalf of {ask.namespace}" if ask.namespace else ""
    on["gpus"] = ask.gpus
    asked = state.record(
        AuditKind.COMMAND, f"{state.wanted_text}: asked for{behalf}", now, actor=ask.actor, reason=ask.reason, **on
    )
    text = f"{ask.actor} asks for {state.wanted_text}{behalf}." + (f" Why: {ask.reason}" if ask.reason else "")
    line = f"backstop request {{}} {ask.request} --reason '...'"
    return asked.notify(
        assessment.owners, text, ("Approve it", line.format("approve")), ("Decline it", line.format("decline"))
    )


def say_who_decides(state: RequestState, *, by_roles: bool) -> RequestState:
    """Say who decides on a request that waits. `by_roles`: an access file is in force, perhaps since after the ask."""
    if state.stage is not RequestStage.ASKED:
        return state
    decides = "an approver" if by_roles else any_of(state.assessment.owners)
    return state.but(said=f"waits for {decides} to approve it")


def advance(state: RequestState, now: datetime) -> RequestState:
    """Apply the end date: a grant is given back, a request not granted is over."""
    if state.ends_on is None or now < state.ends_on:
        return state
    if state.stage is RequestStage.GRANTED:
        why = f"the grant ended at {state.ends_on:%Y-%m-%d %H:%MZ}: Backstop gives its GPUs back"
        return state.enter_stage(RequestStage.RETURNING, now, why).record(AuditKind.COMMAND, why, now)
    waited = f"; the last obstacle: {state.waits_for}" if state.waits_for else ""
    why = f"its end came before it was granted{waited}"
    lapsed = state.enter_stage(RequestStage.LAPSED, now, why).record(AuditKind.COMMAND, why, now)
    return lapsed.notify(state.askers, f"Your request for {state.wanted_text} is over: {why}.")


def apply_grant(state: RequestState, answer: Granted, now: datetime) -> RequestState:
    """Apply a try to write the order, or to take it back."""
    if answer.outcome is GrantOutcome.LATER:
        if state.waits_for == answer.said:
            return state
        return state.but(waits_for=answer.said, said=f"waits: {answer.said}").record(
            AuditKind.COMMAND, f"waits: {answer.said}", now
        )
    state = state.but(waits_for="")
    if state.stage is RequestStage.RETURNING:
        return _finish_return(state, answer, now)
    if answer.outcome is GrantOutcome.NO:
        refused = state.enter_stage(RequestStage.REFUSED, now, f"it cannot be granted: {answer.said}")
        text = f"The request for {state.wanted_text} was approved but cannot be granted: {answer.said}"
        audience = (*state.askers, *state.assessment.owners)
        return refused.record(AuditKind.COMMAND, f"refused: {answer.said}", now, refused=True).notify(audience, text)
    until = "for good" if state.ask.until is None else f"until {state.ask.until:%Y-%m-%d %H:%MZ}"
    granted = state.enter_stage(
        RequestStage.GRANTED,
        now,
        f"granted {until}, approved by {state.decided_by}",
        raised=answer.raised,
        hands=answer.hands,
        granted_at=now,
    )
    text = f"Your request for {state.wanted_text} is granted by {state.decided_by}: {state.decision}"
    return granted.record(AuditKind.COMMAND, f"granted {until} ({answer.said})", now, raised=answer.raised).notify(
        state.askers, text
    )


def _finish_return(state: RequestState, answer: Granted, now: datetime) -> RequestState:
    if answer.outcome is GrantOutcome.DONE:
        ended = state.enter_stage(RequestStage.RETURNED, now, f"given back ({answer.said})")
        text = f"The grant of {state.wanted_text} has ended. Taken back: {answer.said}"
        return ended.record(AuditKind.COMMAND, ended.said, now, lowered=state.raised).notify(state.askers, text)
    left = state.enter_stage(RequestStage.LEFT, now, f"not given back: {answer.said}")
    text = f"The grant of {state.wanted_text} has ended and was not taken back: {answer.said}. Check the quota."
    return left.record(AuditKind.COMMAND, left.said, now).notify((*state.assessment.owners, *state.askers), text)


def apply_cancel(state: RequestState, now: datetime, *, by_ticket: bool) -> RequestState:
    """Apply a cancel from Temporal: a grant with an end is given back, a request not granted is over.

    `by_ticket`: the request came with a ticket, so only a ticket withdraws it.
    """
    if state.ticketed or by_ticket:
        ignored = "a cancel from Temporal was ignored, because this request takes only commands with a ticket"
        return state.record(AuditKind.COMMAND, ignored, now)
    why = "cancelled in Temporal"
    if state.stage is RequestStage.GRANTED and not state.has_ended:
        return state.enter_stage(RequestStage.RETURNING, now, why).record(
            AuditKind.COMMAND, f"{why}: it is given back", now
        )
    if state.stage in (RequestStage.ASKED, RequestStage.APPROVED):
        over = state.enter_stage(RequestStage.WITHDRAWN, now, why).record(AuditKind.COMMAND, why, now)
        return over.notify(state.askers, f"Your request for {state.wanted_text} is over: {why}.")
    return state


def apply_delivery(state: RequestState, answer: TellAnswer, now: datetime) -> RequestState:
    """Remove notices that were delivered, that the ledger sends, or that never can be delivered."""
    gone = answer.delivered.keys() | answer.refused.keys() | answer.waiting.keys()
    mail = tuple(n for n in state.mail if n.key not in gone)
    since = {n.key: state.unsent.get(n.key, now) for n in mail if n.key in answer.failed or n.key in state.unsent}
    return state.but(mail=mail, unsent=since)


def undelivered_reasons(state: RequestState, answer: TellAnswer, now: datetime) -> dict[str, str]:
    """Return the notices to give up, with the reason: refused, or tried too long. `state`: before `apply_delivery`."""
    tried = {n.key: state.unsent.get(n.key, now) for n in state.mail}
    late = {key: why for key, why in answer.failed.items() if now - tried.get(key, now) >= MAIL_TIME}
    return {**answer.refused, **late}


def give_up(state: RequestState, lost: Mapping[str, str], notices: Iterable[Notice], now: datetime) -> RequestState:
    """Give up these notices; the archive names the people who were not notified."""
    audiences = {n.key: n.audience for n in notices}
    for key, why in lost.items():
        audience = audiences.get(key, "somebody")
        text = f"Backstop could not notify {audience}: {why}"
        state = state.record(AuditKind.NOTICE, text, now, notice=key).but(
            untold=tuple(dict.fromkeys((*state.untold, audience)))
        )
    return state.but(
        mail=tuple(n for n in state.mail if n.key not in lost),
        unsent={key: since for key, since in state.unsent.items() if key not in lost},
    )
