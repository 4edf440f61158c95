"""Grants under an open rollout: the orders it takes, its answers, and the baseline after each.

Every function returns a new Rollout; none decides what to do next (models/rollout/decide.py does). GPUs that a rollout
freed belong first to the teams it took them from, so an order must fit beside the baseline, not beside the present
quotas.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from models.audit_chain import AuditKind
from models.cluster.quota import why_no_jobs
from models.cluster.snapshot import on_islands
from models.planning.ceiling import ceiling_of
from models.planning.grants import Granted, GrantOrder, GrantOutcome, moved_values, raises
from models.rollout.decide import has_looked_recently, has_tested_all
from models.rollout.effect_changes import baseline_with
from models.rollout.effects import Receipt
from models.rollout.gates import obstacles
from models.rollout.stages import Stage
from models.rollout.state import Granting, Rollout, UndoCause
from models.texts import count_text, gpus_text, spoken_for_text, verb_of

MOST_GRANTS = 1000
"""The most grants that a rollout carries."""
_REMEMBERED = 200
"""The most ended grants that a rollout remembers, so that asking again gives the same answer."""


def take_order(rollout: Rollout, order: GrantOrder) -> Rollout:
    """Queue the order to be written, or answer it if it was written before or cannot be now."""
    if order.ends and order.request in rollout.given_back:
        return _answer_order(rollout, order, GrantOutcome.DONE, "its GPUs have already been given back")
    if not order.ends and order.request in rollout.grants:
        return _answer_order(rollout, order, GrantOutcome.DONE, "it is granted already", rollout.grants[order.request])
    if rollout.grant_order is not None:
        return _answer_order(
            rollout,
            order,
            GrantOutcome.LATER,
            f"Backstop is writing another request in {rollout.cluster}; this request follows",
        )
    waiting = rollout.but(granting=Granting(order=order), granted=None, look_asked=True)
    return settle_order(waiting)


def answer_to(rollout: Rollout, order: GrantOrder) -> Granted | None:
    """Return the answer to the order; None while it waits."""
    answer = rollout.granted
    return answer if answer is not None and (answer.request, answer.ends) == (order.request, order.ends) else None


def settle_order(rollout: Rollout) -> Rollout:
    """Answer an order that can never be written under the present conditions."""
    order = rollout.grant_order
    if order is None or rollout.grant_begun:
        return rollout
    if rollout.shadow or rollout.stage is not Stage.MONITORED:
        when = "after it has ended" if rollout.shadow else "once it is monitored or has ended"
        why = (
            f"a {'shadow ' * rollout.shadow}rollout of {rollout.cluster} is {rollout.stage}, and Backstop writes "
            f"grants only {when}"
        )
        return _answer_order(rollout, order, GrantOutcome.LATER, why)
    why = _refuse_order(rollout, order)
    return _answer_order(rollout, order, GrantOutcome.NO, why) if why else rollout


def _refuse_order(rollout: Rollout, order: GrantOrder) -> str:
    """Explain why a monitored rollout will not write the order; empty if it may."""
    if order.ends:
        theirs = sorted({*order.raised} & {*rollout.foreign})
        changed = theirs or order.team not in rollout.written
        return f"others have changed the quota of {', '.join(theirs) or order.team} since the grant" if changed else ""
    if len(rollout.grants) >= MOST_GRANTS:
        return (
            f"{rollout.cluster} already has {count_text(len(rollout.grants), 'grant')}, the most that a rollout can "
            "carry: launch a new rollout first"
        )
    tree = rollout.baseline.tree
    if order.team not in tree.leaves:
        return f"{rollout.cluster}: {why_no_jobs(order.team, has_children=order.team in tree.children)}"
    if rollout.sight.known is None:
        return ""
    after = baseline_with(rollout, order)
    ceiling = ceiling_of(on_islands(after, rollout.sight.known.islands), rollout.policy)
    if after.tree.assigned_gpus() <= ceiling:
        return ""
    sentence = f"{rollout.cluster} may promise {gpus_text(ceiling)}, and {spoken_for_text(tree.assigned_gpus())}"
    if tree.assigned_gpus() > tree.assigned_gpus(rollout.written):
        sentence += ", counting what its rollout cut"
    return sentence


def test_order(rollout: Rollout, now: datetime) -> Rollout:
    """Answer an order that today's hardware does not back, after a look at the quotas with it."""
    order = rollout.grant_order
    if (
        order is None
        or order.ends
        or rollout.grant_begun
        or rollout.look_failed
        or not has_looked_recently(rollout, now)
    ):
        return rollout
    values = baseline_with(rollout, order).values
    if rollout.seen is None or rollout.seen.health is None or rollout.seen.is_backed:
        return rollout
    if not has_tested_all(rollout.seen, values):
        return rollout
    return _answer_order(
        rollout,
        order,
        GrantOutcome.NO,
        "today's healthy GPUs cannot back the requested GPUs on top of the present quotas",
    )


def why_not_yet(rollout: Rollout, order: GrantOrder, now: datetime) -> str:
    """Return in one sentence why a monitored rollout has not written the order yet."""
    unread = [f"Backstop could not read the cluster: {rollout.look_failed}"] if rollout.look_failed else []
    breach = [f"in breach: {', '.join(rollout.breach_of)}"] if rollout.breach_of else []
    reasons = [*unread, *obstacles(rollout, now)] or breach or ["another change of its quotas comes first"]
    write = "end a grant" if order.ends else "write a grant"
    return f"the rollout of {rollout.cluster} cannot {write} yet: {'; '.join(reasons)}"


def put_off(rollout: Rollout, order: GrantOrder, why: str) -> Rollout:
    """Stop waiting for the order; it may come again."""
    waits = rollout.grant_order == order and not rollout.grant_begun
    return _answer_order(rollout, order, GrantOutcome.LATER, why) if waits else rollout


def record_grant(rollout: Rollout, receipt: Receipt, now: datetime) -> Rollout:
    """Apply the written order to the baseline, and to the values that an undo restores."""
    order = rollout.grant_order
    assert order is not None
    if receipt.conflicts:
        return fail_order(rollout, f"others have changed the quota of {', '.join(c.team for c in receipt.conflicts)}")
    raised = order.raised or raises(rollout.baseline.tree, rollout.baseline.values, order.team, order.gpus)
    grants = {name: each for name, each in rollout.grants.items() if name != order.request}
    if (
        rollout.undo is not None and rollout.undo.why is UndoCause.UNDO
    ):  # the undo was ordered while this grant was under way
        target = {**rollout.undo.target, **moved_values(rollout.undo.target, raised, ends=order.ends)}
        rollout = rollout.with_undo(target=target)
    others = tuple(request for request in rollout.on_top if request != order.request)
    rollout = rollout.but(
        on_top=others if order.ends else (*others, order.request),
        baseline=baseline_with(rollout, order),
        grants=grants if order.ends else {**grants, order.request: raised},
        given_back=(*rollout.given_back, order.request)[-_REMEMBERED:] if order.ends else rollout.given_back,
    )
    # A plan or a breach that has cut the quota has cut the grant first, so that less may be left to take back.
    moves = [
        f"{team} {receipt.before[team]} -> {gpus}"
        for team, gpus in sorted(receipt.after.items())
        if gpus != receipt.before[team]
    ]
    granted = f"{gpus_text(order.gpus)} {verb_of(order.gpus)} granted to {order.team}"
    sentence = (", ".join(moves) or "nothing of it was left") if order.ends else granted
    rollout = rollout.record(
        AuditKind.COMMAND,
        f"request {order.request}: {f'given back ({sentence})' if order.ends else sentence}",
        now,
        actor=order.actor,
        reason=order.reason,
        request=order.request,
        raised=raised,
    )
    return _answer_order(rollout, order, GrantOutcome.DONE, sentence, raised)


def fail_order(rollout: Rollout, why: str) -> Rollout:
    """Answer an order of which nothing was written: it may come again."""
    order = rollout.grant_order
    return rollout if order is None else _answer_order(rollout, order, GrantOutcome.LATER, why)


def _answer_order(
    rollout: Rollout, order: GrantOrder, outcome: GrantOutcome, sentence: str, raised: Mapping[str, int] | None = None
) -> Rollout:
    answer = Granted(request=order.request, ends=order.ends, outcome=outcome, said=sentence, raised=dict(raised or {}))
    if rollout.grant_order != order:
        return rollout.but(granted=answer)
    return rollout.but(granting=None, granted=answer, look_asked=True)
