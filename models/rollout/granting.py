"""Grants under an open rollout: which order it takes, what it answers, and what the baseline is after it.

Every function answers a new Rollout; none decides what to do next (models/rollout/decide.py does). What a rollout freed
belongs first to whom it was taken from: an order must fit beside the baseline, not beside what stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from models.audit import AuditKind
from models.base import count_text, gpus_text, spoken_for, verb_of
from models.cluster.snapshot import on_islands
from models.planning.ceiling import ceiling_of
from models.planning.grants import Granted, GrantOrder, GrantOutcome, moved, raises
from models.rollout.changes import baseline_with
from models.rollout.decide import looked_recently, tests
from models.rollout.effects import Receipt
from models.rollout.stages import Stage
from models.rollout.state import Granting, Rollout, UndoCause

MOST_GRANTS = 1000
"""Grants that a rollout carries."""
_REMEMBERED = 200
"""Grants whose end is remembered, so that whoever asks again is not given a second answer."""


def ordered(r: Rollout, order: GrantOrder) -> Rollout:
    """With the order waiting to be written; or answered, where that was done before or cannot be now."""
    if order.ends and order.request in r.given_back:
        return _answered(r, order, GrantOutcome.DONE, "it was given back already")
    if not order.ends and order.request in r.grants:
        return _answered(r, order, GrantOutcome.DONE, "it is granted already", r.grants[order.request])
    if r.grant_order is not None:
        return _answered(r, order, GrantOutcome.LATER, f"another request is being written in {r.cluster}")
    waiting = r.but(granting=Granting(order=order), granted=None, look_asked=True)
    return settled(waiting)


def answer_to(r: Rollout, order: GrantOrder) -> Granted | None:
    """What became of the order; None while it waits."""
    answer = r.granted
    return answer if answer is not None and (answer.request, answer.ends) == (order.request, order.ends) else None


def settled(r: Rollout) -> Rollout:
    """An order that can never be written as things stand is answered."""
    order = r.grant_order
    if order is None or r.grant_begun:
        return r
    if r.shadow or r.stage is not Stage.MONITORED:
        return _answered(r, order, GrantOutcome.LATER, f"a {'shadow ' * r.shadow}rollout of {r.cluster} is {r.stage}")
    if order.ends:
        theirs = sorted({*order.raised} & {*r.foreign})
        if theirs or order.team not in r.written:
            return _answered(r, order, GrantOutcome.NO, f"others have changed {', '.join(theirs) or order.team} since")
        return r
    if len(r.grants) >= MOST_GRANTS:
        sentence = f"{r.cluster} has {count_text(len(r.grants), 'grant')} already: its next rollout can take more"
        return _answered(r, order, GrantOutcome.NO, sentence)
    if order.team not in r.baseline.tree.leaves:
        return _answered(r, order, GrantOutcome.NO, f"{order.team} holds no quota in {r.cluster} that jobs run in")
    if r.sight.known is None:
        return r
    after = baseline_with(r, order)
    ceiling = ceiling_of(on_islands(after, r.sight.known.islands), r.policy)
    if after.tree.assigned() > ceiling:
        sentence = f"{r.cluster} may promise {gpus_text(ceiling)}, and {spoken_for(r.baseline.tree.assigned())}"
        if r.baseline.tree.assigned() > r.baseline.tree.assigned(r.written):
            sentence += ", with what its rollout took from others"
        return _answered(r, order, GrantOutcome.NO, sentence)
    return r


def looked(r: Rollout, now: datetime) -> Rollout:
    """After a look at the quotas with the order: one that today's hardware does not back is answered."""
    order = r.grant_order
    if order is None or order.ends or r.grant_begun or r.look_failed or not looked_recently(r, now):
        return r
    values = {q.team: q.gpus for q in baseline_with(r, order).quotas}
    if r.seen is None or r.seen.health is None or r.seen.backed or not _tested(r, values):
        return r
    return _answered(
        r, order, GrantOutcome.NO, "today's healthy GPUs do not back so many more beside what is promised already"
    )


def _tested(r: Rollout, values: dict[str, int]) -> bool:
    return r.seen is not None and r.seen.tested.keys() >= values.keys() and tests(r.seen, values)


def put_off(r: Rollout, order: GrantOrder, why: str) -> Rollout:
    """The order is not waited for any longer; it may come again."""
    return _answered(r, order, GrantOutcome.LATER, why) if r.grant_order == order and not r.grant_begun else r


def landed(r: Rollout, receipt: Receipt, now: datetime) -> Rollout:
    """The order is written: the baseline and what an undo brings back have it, or have it no more."""
    order = r.grant_order
    assert order is not None
    if receipt.conflicts:
        return failed(r, f"others have changed {', '.join(c.team for c in receipt.conflicts)}")
    raised = order.raised or raises(r.baseline.tree, _values(r), order.team, order.gpus)
    grants = {name: each for name, each in r.grants.items() if name != order.request}
    if r.undo is not None and r.undo.why is UndoCause.UNDO:  # it was ordered while this was under way
        target = {**r.undo.target, **moved(r.undo.target, raised, ends=order.ends)}
        r = r.rolling_back(target=target)
    r = r.but(
        baseline=baseline_with(r, order),
        grants=grants if order.ends else {**grants, order.request: raised},
        given_back=(*r.given_back, order.request)[-_REMEMBERED:] if order.ends else r.given_back,
    )
    sentence = (
        f"{gpus_text(order.gpus)} of {order.team} {verb_of(order.gpus)} {'given back' if order.ends else 'granted'}"
    )
    r = r.noting(
        AuditKind.COMMAND,
        f"request {order.request}: {sentence}",
        now,
        actor=order.actor,
        reason=order.reason,
        request=order.request,
        raised=raised,
    )
    return _answered(r, order, GrantOutcome.DONE, sentence, raised)


def failed(r: Rollout, why: str) -> Rollout:
    """Nothing was written; whoever asked may ask again."""
    return r if r.grant_order is None else _answered(r, r.grant_order, GrantOutcome.LATER, why)


def _values(r: Rollout) -> dict[str, int]:
    return {q.team: q.gpus for q in r.baseline.quotas}


def _answered(
    r: Rollout, order: GrantOrder, outcome: GrantOutcome, said: str, raised: Mapping[str, int] | None = None
) -> Rollout:
    answer = Granted(request=order.request, ends=order.ends, outcome=outcome, said=said, raised=dict(raised or {}))
    if r.grant_order != order:
        return r.but(granted=answer)
    return r.but(granting=None, granted=answer, look_asked=True)
