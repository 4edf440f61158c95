"""Requests to activities, built from the state of a rollout.

Pure, and the only such place: the workflow sends these requests, and the pure world of the tests answers them as the
activities do.
"""

from __future__ import annotations

from datetime import datetime

from models.audit_chain import AuditEntry
from models.lifecycle.holds import Hold
from models.notices import Notice, NoticeKind
from models.planning.grants import GrantOrder
from models.rollout.available_commands import choices_now
from models.rollout.drift import baseline_beside
from models.rollout.effect_changes import baseline_with
from models.rollout.effect_table import EFFECT
from models.rollout.effects import Change, EffectKind
from models.rollout.gates import health_holds, own_holds, values_of_others
from models.rollout.mailing import ready_notices
from models.rollout.messages import AimRequest, DraftRequest, EffectRequest, ObserveRequest, RecordRequest
from models.rollout.proposals import derives_buffer, may_propose
from models.rollout.state import Rollout
from models.rollout.status import needs_of, note_of
from models.rollout.workflow_actions import Draft, Look
from models.temporal_names import TellRequest

_WITH_COMMANDS = frozenset({NoticeKind.BREACH, NoticeKind.ROLLED_BACK})
"""Kinds of notices in which the owner reads commands; a team's notice explains its quota instead."""
_BATCH = 50
"""The most entries, or notices, in one call."""
_BATCH_VALUES = 20_000
"""The most values in the entries of one call, which must stay below Temporal's 2 MiB, compressed."""
_NEEDS = 500
"""Characters of `needs`, and of a hold's reason, that the registry keeps; the status has the whole text."""
_HOLDS = 20
"""The most holds of a rollout that the registry keeps."""


def look_at(rollout: Rollout, look: Look, now: datetime) -> ObserveRequest:
    """Build the request for a look. It leaves out the baseline, which would be most of a large history."""
    return ObserveRequest(
        cluster=rollout.cluster,
        values=look.values,
        gpus_per_node=rollout.baseline.gpus_per_node,
        generation=rollout.generation,
        flex_after=rollout.policy.clear_after if rollout.stage.promises else None,
        long_run=rollout.policy.replan_window if may_propose(rollout, now) else None,
        derive=rollout.policy.terms if derives_buffer(rollout, now) else None,
        shadow=rollout.shadow,
        plausible_drop=rollout.policy.plausible_drop,
        max_breaching_clusters=rollout.policy.max_breaching_clusters,
        at=now,
    )


def draft(rollout: Rollout, action: Draft, now: datetime) -> DraftRequest:
    """Build the request for a plan on the action's islands, or on the believed ones if a newer sample is in doubt."""
    believed = rollout.sight.known.islands if rollout.sight.unknown and rollout.sight.known is not None else None
    derived = None if rollout.plan is None else rollout.plan.derived
    return DraftRequest(
        cluster=rollout.cluster,
        policy=rollout.policy,
        baseline=rollout.baseline if rollout.values_stand else None,
        frozen=rollout.baseline,
        keep_usage=rollout.approval is not None,
        islands=action.islands or believed,
        promised=None if derived is None else derived.promise,
        promised_of=None if derived is None else derived.total,
        rollout=rollout.id,
        at=now,
    )


def aim(rollout: Rollout, now: datetime) -> AimRequest:
    """Build the request for the target of a breach rollback, from the present quotas and the believed health."""
    others, seen, baseline = values_of_others(rollout), rollout.seen, rollout.baseline
    return AimRequest(
        cluster=rollout.cluster,
        baseline=baseline if seen is None else baseline_beside(baseline, seen.reading.quotas, others),
        current=rollout.written if rollout.shadow or seen is None else seen.reading.values,
        theirs=tuple(others),
        islands=baseline.islands if rollout.sight.known is None else rollout.sight.known.islands,
        policy=rollout.policy,
        exempt=rollout.stay.exempt,
        shadow=rollout.shadow,
        rollout=rollout.id,
        at=now,
    )


def effect(rollout: Rollout, change: Change, now: datetime) -> EffectRequest:
    """Build the request for one fenced call, with the blast radius it must keep."""
    limited = change.kind in EFFECT and EFFECT[change.kind].limited and not rollout.stay.exempt
    order: GrantOrder | None = rollout.grant_order if change.kind is EffectKind.GRANT else None
    # A later plan, or accepted values of others, may have changed the baseline since the launch: an adopter needs it.
    first = rollout.baseline if (change.kind is EffectKind.RESERVE or change.refits) and not rollout.shadow else None
    return EffectRequest(
        change=change,
        shadow=rollout.shadow,
        limit_gpus=rollout.policy.max_moved_gpus if limited else None,
        limit_day_gpus=rollout.policy.max_moved_gpus_day if limited else None,
        baseline=first if order is None else baseline_with(rollout, order),
        order=order,
        at=now,
    )


def effect_summary(change: Change) -> str:
    """Return the text of the call in Temporal's UI."""
    moved = [f"{w.team} {w.expected_gpus} -> {w.gpus}" for w in change.writes if w.leaf and w.expected_gpus != w.gpus]
    return f"{change.kind} (fence {change.fence.counter}){': ' + ', '.join(moved) if moved else ''}"[:190]


def record(rollout: Rollout, now: datetime) -> RecordRequest:
    """Build the request that archives the next entries and updates the registry."""
    return RecordRequest(
        rollout=rollout.id,
        entries=_fit_entries(rollout.post.outbox),
        stage=rollout.stage,
        ended=rollout.stage.has_ended,
        completed=rollout.completed,
        needs=needs_of(rollout, now)[:_NEEDS],
        held=() if rollout.stage.has_ended else _noted_holds(rollout, now),
        note=note_of(rollout, now),
        rollbacks=rollout.failed_rollbacks,
        fence=rollout.fence,
    )


def shows_the_same(noted: RecordRequest | None, rollout: Rollout, now: datetime) -> bool:
    """Return whether the registry, as of that request, shows what the rollout is now."""
    update = record(rollout, now)
    return noted is not None and (noted.needs, noted.held, noted.note) == (update.needs, update.held, update.note)


def _noted_holds(rollout: Rollout, now: datetime) -> tuple[Hold, ...]:
    holds = (*own_holds(rollout, now)[:_HOLDS], *health_holds(rollout))
    return tuple(hold.but(reason=hold.reason[:_NEEDS]) for hold in holds)


def _fit_entries(outbox: tuple[AuditEntry, ...]) -> tuple[AuditEntry, ...]:
    """Return the first entries that fit into one call, at least one."""
    values = 0
    for count, entry in enumerate(outbox[:_BATCH]):
        values += 4 * len(entry.data.get("after", ()))  # before and after, and both again in the receipt
        if count and values > _BATCH_VALUES:
            return outbox[:count]
    return outbox[:_BATCH]


def tell(rollout: Rollout, now: datetime) -> TellRequest:
    """Build the request that sends the next notices, with the commands that their readers can give now."""
    return TellRequest(
        cluster=rollout.cluster,
        notices=tuple(_answerable(rollout, n, now) for n in ready_notices(rollout, now)[:_BATCH]),
    )


def _answerable(rollout: Rollout, notice: Notice, now: datetime) -> Notice:
    facts = dict(notice.facts)
    if notice.kind is NoticeKind.HELD or (facts.get("to_owner") and notice.kind in _WITH_COMMANDS):
        facts["commands"] = [{"does": c.does, "line": c.line} for c in choices_now(rollout, now)]
    if rollout.stage.has_ended:
        facts["ends"] = True
    return notice if facts == notice.facts else notice.model_copy(update={"facts": facts})
