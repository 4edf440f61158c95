"""Requests to activities, built from the state of a quota request, and the outcomes of their answers."""

from __future__ import annotations

from datetime import datetime

from models.errors import Drift
from models.planning.grants import Granted, GrantOrder, GrantOutcome
from models.requests.messages import KeepRequest, Prepared, PrepareRequest
from models.requests.state import RequestState
from models.rollout.effects import Change, Receipt
from models.rollout.messages import EffectRequest


def prepare(state: RequestState, now: datetime) -> PrepareRequest:
    """Build the request that asks how the order can be written now, and by whom."""
    return PrepareRequest(
        order=state.order,
        cluster=state.ask.cluster,
        namespace=state.ask.namespace,
        hands=state.hands,
        fence=state.fence + 1,
        at=now,
    )


def write(state: RequestState, change: Change, now: datetime) -> EffectRequest:
    """Build the request for the one fenced call that changes the quota if no rollout is open."""
    order = state.order if state.ticketed else None
    return EffectRequest(change=change, shadow=False, limit_gpus=None, order=order, at=now)


def keep(state: RequestState) -> KeepRequest:
    """Build the request that updates the book and archives the entries."""
    return KeepRequest(request=state.but(mail=()))


def answer(order: GrantOrder, outcome: GrantOutcome, reason: str) -> Granted:
    return Granted(request=order.request, ends=order.ends, outcome=outcome, said=reason)


def failure(order: GrantOrder, kind: str, reason: str) -> Granted:
    """Return the outcome of a call that failed and is tried again. `kind`: the class name of models.errors."""
    drifted = kind == Drift.__name__
    return answer(
        order, GrantOutcome.LATER, "its quotas have just been changed: Backstop tries again" if drifted else reason
    )


def outcome_of(order: GrantOrder, prepared: Prepared, receipt: Receipt) -> Granted:
    """Return the outcome of the order; if others changed the quota meanwhile, nothing was written."""
    if receipt.conflicts:
        theirs = ", ".join(c.team for c in receipt.conflicts)
        outcome = GrantOutcome.NO if order.ends else GrantOutcome.LATER
        return answer(order, outcome, f"others have changed the quota of {theirs} since")
    moves = ", ".join(f"{team} {receipt.before[team]} -> {gpus}" for team, gpus in sorted(receipt.after.items()))
    done = answer(order, GrantOutcome.DONE, moves)
    return done.model_copy(update={"raised": prepared.raised, "hands": prepared.hands})
