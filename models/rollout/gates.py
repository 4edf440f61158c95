"""Gates: the conditions before a step, those not met yet, and the times at which they may be."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import assert_never

from models.base import duration_text
from models.cluster.policy import Acks, OnDrift
from models.cluster.readings import Doubt, Excess, LimitMode
from models.cluster.windows import Window, WindowKind, active
from models.lifecycle.holds import Hold, HoldKind
from models.rollout.effect_table import STEP_FROM, Gate
from models.rollout.effects import EffectKind
from models.rollout.stages import Command, Stage, command_line
from models.rollout.state import Rollout
from models.rollout.status_models import Condition
from models.texts import lacks_text, some_of

CHANGED_BY_OTHERS = "changed by others"
_WINDOW_HOLDS = {
    WindowKind.MAINTENANCE: HoldKind.MAINTENANCE,
    WindowKind.SEV: HoldKind.SEV,
    WindowKind.FREEZE: HoldKind.FREEZE,
}


def holds_now(rollout: Rollout, now: datetime) -> tuple[Hold, ...]:
    """Return every hold in force: those of people and the guard, of the calendar, and of unknown health."""
    windows = rollout.seen.windows if rollout.seen is not None else ()
    return (*own_holds(rollout, now), *window_holds(windows, now), *health_holds(rollout))


def health_holds(rollout: Rollout) -> tuple[Hold, ...]:
    """Return the hold of unknown health, as the last look saw it."""
    unknown = rollout.launched_at if rollout.sight.known is None else rollout.sight.known.at
    if rollout.seen is not None and rollout.seen.ahead_to is not None:
        why = f"health samples with times in the future, up to {_time_text(rollout.seen.ahead_to)}, do not count"
        return (_unknown_health(why, rollout.seen.at),)
    if (doubt := doubt_of(rollout)) is not None:
        return (_unknown_health(doubt.why, doubt.since),)
    if (beyond := beyond_of(rollout)) is not None:
        return (_unknown_health(beyond.text, beyond.at),)
    if rollout.looked_at is not None and rollout.looked_at - unknown >= rollout.policy.stale_after:
        why = f"no believable health since {_time_text(unknown)}"
        return (_unknown_health(why, unknown + rollout.policy.stale_after),)
    return ()


def own_holds(rollout: Rollout, now: datetime) -> tuple[Hold, ...]:
    """Return the holds in force that people and the guard set. The archive has an entry for each of their changes."""
    return tuple(h for h in rollout.holds if not h.after_enforced and (h.until is None or now < h.until))


def window_holds(windows: Sequence[Window], now: datetime) -> tuple[Hold, ...]:
    """Return the holds of the windows that have begun and not ended."""
    return tuple(
        Hold(
            id=f"{_WINDOW_HOLDS[window.kind]}-{window.starts:%Y%m%dT%H%M}",
            kind=_WINDOW_HOLDS[window.kind],
            reason=window.reason,
            actor="calendar",
            at=window.starts,
            until=window.ends,
        )
        for window in active(windows, now)
    )


def holds_standing(rollout: Rollout, now: datetime) -> tuple[Hold, ...]:
    """Return all holds that wait for an answer: those in force, and objections too late to hold anything."""
    return (*holds_now(rollout, now), *(h for h in rollout.holds if h.after_enforced))


def _unknown_health(why: str, at: datetime) -> Hold:
    return Hold(id="unknown_health", kind=HoldKind.UNKNOWN_HEALTH, reason=why, actor="health", at=at)


def doubt_of(rollout: Rollout) -> Doubt | None:
    """Return the doubt about the source of the last look's sample, if the sample is not believed for it."""
    return None if rollout.seen is None or not rollout.sight.doubted else rollout.seen.doubt


def beyond_of(rollout: Rollout) -> Excess | None:
    """Return the impossible excess that the last look left out."""
    return None if rollout.seen is None or rollout.seen.health is None else rollout.seen.health.beyond


def is_health_fresh(rollout: Rollout) -> bool:
    """Return whether health was known, believed and fresh at the last look: other health opens no gate.

    Between looks the watch reports when samples stop; a gate always looks again before it opens.
    """
    if rollout.sight.unknown or rollout.sight.known is None or rollout.looked_at is None:
        return False
    if rollout.seen is not None and rollout.seen.ahead_to is not None:
        return False  # a sample that seems fresh may have been dated ahead when it was written
    if beyond_of(rollout) is not None:
        return False
    return rollout.looked_at - rollout.sight.known.at < rollout.policy.stale_after


def conditions(rollout: Rollout, now: datetime) -> tuple[Condition, ...]:
    """Return the conditions of the gate before the next step; empty if no step follows."""
    step = STEP_FROM.get(rollout.stage)
    if step is None:
        return ()
    match step.gate:
        case Gate.MAY_START:
            own: Sequence[Condition] = (
                _plan_condition(rollout),
                _approval_condition(rollout),
                _notice_condition(rollout, now),
            )
        case Gate.MAY_ENFORCE:
            own = (
                _soak_condition(rollout, now, rollout.policy.soak_buffered),
                _acks_condition(rollout, now),
                _drift_condition(rollout),
            )
        case Gate.MAY_MONITOR:
            own = (_soak_condition(rollout, now, rollout.policy.soak_enforced), _drift_condition(rollout))
        case _:
            assert_never(step.gate)
    return (*own, _hold_condition(rollout, now), _backing_condition(rollout))


def is_open(rollout: Rollout, now: datetime) -> bool:
    """Return whether a step follows and all its conditions are met."""
    asked = conditions(rollout, now)
    return bool(asked) and all(c.met for c in asked)


def obstacles(rollout: Rollout, now: datetime) -> tuple[str, ...]:
    """Return what keeps a monitored rollout from the write of a grant."""
    asked = (_drift_condition(rollout), _hold_condition(rollout, now), _backing_condition(rollout))
    return tuple(c.text for c in asked if not c.met)


def _plan_condition(rollout: Rollout) -> Condition:
    if rollout.plan is None or rollout.stay.replan:
        return Condition(
            name="plan",
            met=False,
            text="Backstop is making a plan" + (f" ({rollout.stay.replan})" if rollout.stay.replan else ""),
        )
    if not rollout.plan.honest:
        return Condition(name="plan", met=False, text=rollout.plan.fault)
    if not rollout.plan.backed:
        return Condition(name="plan", met=False, text="the plan is not backed; it cannot be started")
    if rollout.plan.generation != rollout.generation:
        return Condition(name="plan", met=False, text="others changed the cluster after the plan was made")
    return Condition(name="plan", met=True, text=f"plan {rollout.plan.hash}, backed")


def _approval_condition(rollout: Rollout) -> Condition:
    if rollout.is_approved:
        return Condition(name="approval", met=True, text=f"approved by {rollout.approved_by}")
    name = rollout.plan.hash if rollout.plan is not None else "HASH"
    return Condition(
        name="approval",
        met=False,
        text=f"waits for approval: {command_line(Command.APPROVE, rollout.cluster)} --plan {name}",
    )


def _notice_condition(rollout: Rollout, now: datetime) -> Condition:
    if rollout.stay.waived:
        return Condition(name="notice", met=True, text="waived")
    if not rollout.is_approved:
        announcement = "Backstop writes the notices to the log" if rollout.shadow else "Backstop notifies teams"
        return Condition(name="notice", met=False, text=f"{announcement} once the plan is approved")
    if rollout.announced.undelivered:
        return Condition(name="notice", met=False, text=f"not delivered: {'; '.join(rollout.announced.undelivered)}")
    trouble = f" (trying again: {rollout.post.trouble})" if rollout.post.trouble else ""
    if rollout.announced.delivered_at is None and rollout.post.waiting:
        teams = some_of(sorted({n.audience for n in rollout.post.mail if n.key in rollout.post.waiting}), 5)
        at = _time_text(max(rollout.post.waiting.values()))
        text = f"Backstop notifies {teams} at {at}; the notice period starts then{trouble}"
        return Condition(name="notice", met=False, text=text)
    if rollout.announced.delivered_at is None:
        return Condition(name="notice", met=False, text=f"notices are being sent{trouble}")
    due = rollout.announced.delivered_at + rollout.policy.notice
    length = duration_text(rollout.policy.notice)
    return Condition(
        name="notice",
        met=now >= due,
        text=f"notice of {length} from {_time_text(rollout.announced.delivered_at)}",
        until=due,
    )


def _soak_condition(rollout: Rollout, now: datetime, length: timedelta) -> Condition:
    if rollout.breach_of:
        return Condition(name="soak", met=False, text=f"in breach: {', '.join(rollout.breach_of)}")
    if rollout.stay.waived:
        return Condition(name="soak", met=True, text="waived")
    due = rollout.stay.soak_since + length
    text = f"soak of {duration_text(length)} from {_time_text(rollout.stay.soak_since)}"
    return Condition(name="soak", met=now >= due, text=text, until=due)


def _acks_condition(rollout: Rollout, now: datetime) -> Condition:
    wanted = rollout.affected_teams
    acks = [team for team in wanted if team in rollout.announced.acks]
    needed = {Acks.NONE: 0, Acks.MAJORITY: len(wanted) // 2 + 1 if wanted else 0, Acks.ALL: len(wanted)}[
        rollout.policy.acks
    ]
    text = f"{len(acks)} of {needed} acknowledgements"
    if rollout.stay.waived or len(acks) >= needed:
        return Condition(name="acks", met=True, text="waived" if rollout.stay.waived else text)
    due = (rollout.announced.delivered_at or rollout.launched_at) + rollout.policy.ack_deadline
    return Condition(name="acks", met=now >= due, text=f"{text}, or their deadline", until=due)


def _drift_condition(rollout: Rollout) -> Condition:
    if rollout.is_overtaken:
        return Condition(name="drift", met=False, text="Backstop has not read back its last write yet")
    drifted = drift_of(rollout)
    if drifted:
        return Condition(name="drift", met=False, text=f"{CHANGED_BY_OTHERS}: {', '.join(drifted)}")
    return Condition(name="drift", met=True, text="read-back equals what was written")


def drift_of(rollout: Rollout) -> tuple[str, ...]:
    """Describe each team whose present value or mode is not the one we believe in, and who changed it if known."""
    if rollout.seen is None or rollout.is_overtaken:
        return ()
    present, expected, modes = rollout.seen.reading.values, approved_values(rollout), mode_drift(rollout)
    changes = {c.team: c for c in rollout.seen.changes}

    def text(team: str) -> str:
        moved = [f"{expected.get(team, 'absent')} -> {present.get(team, 'absent')}"]
        if present.get(team) == expected.get(team):
            moved = []
        if team in modes:
            moved.append(" -> ".join(modes[team]))
        change = changes.get(team)
        return f"{team} {', '.join(moved)}" + ("" if change is None else f", by {change.by} at {_time_text(change.at)}")

    return tuple(
        text(team) for team in sorted({*present, *expected}) if present.get(team) != expected.get(team) or team in modes
    )


def mode_drift(rollout: Rollout) -> dict[str, tuple[LimitMode, LimitMode]]:
    """Return our mode and the present one, by team, for quotas that we wrote and whose mode others changed since."""
    if rollout.seen is None or rollout.is_overtaken or not rollout.seen.reading.counts_modes:
        return {}
    if rollout.shadow or not (rollout.stage.is_guarded and rollout.values_stand):
        return {}
    ours = LimitMode.HARD if EffectKind.HARDEN in rollout.standing else LimitMode.SOFT
    return {
        quota.team: (expected, quota.mode)
        for quota in rollout.seen.reading.quotas
        if quota.team in rollout.written
        and quota.team not in rollout.foreign
        and (expected := rollout.modes_given.get(quota.team, ours)) is not quota.mode
    }


def find_foreign_changes(rollout: Rollout) -> dict[str, int]:
    """Return the last seen values of our quotas that others have changed, by team; empty after a write of ours."""
    if rollout.seen is None or rollout.is_overtaken:
        return {}
    expected = believed_values(rollout)
    return {t: gpus for t, gpus in rollout.seen.reading.values.items() if t in expected and expected[t] != gpus}


def believed_values(rollout: Rollout) -> dict[str, int]:
    """Return the values that we believe the quota system holds, by team, without those of a shadow rollout."""
    return rollout.baseline.values if rollout.shadow else rollout.written


def approved_values(rollout: Rollout) -> dict[str, int]:
    """Return the approved values by team: those before a change of others that nobody has answered.

    The believed values count as approved if the policy accepts changes of others, or if nothing of ours is in force.
    """
    values = believed_values(rollout)
    if not rollout.asks or rollout.shadow or not rollout.values_stand or rollout.policy.on_drift is OnDrift.ACCEPT:
        return values
    return {team: gpus for team, gpus in {**values, **rollout.unapproved}.items() if gpus is not None}


def values_of_others(rollout: Rollout) -> dict[str, int | None]:
    """Return the last seen values that others set and nobody has answered for, by team; None: the quota is gone."""
    if not rollout.asks or rollout.shadow or rollout.seen is None or rollout.is_overtaken:
        return {}
    present, approved = rollout.seen.reading.values, approved_values(rollout)
    return {t: present.get(t) for t in sorted({*present, *approved}) if present.get(t) != approved.get(t)}


def _hold_condition(rollout: Rollout, now: datetime) -> Condition:
    held = holds_now(rollout, now)
    if not held:
        return Condition(name="holds", met=True, text="no hold")
    until = min((h.until for h in held if h.until is not None), default=None) if all(h.until for h in held) else None
    return Condition(
        name="holds", met=False, text="; ".join(f"{h.kind} by {h.actor}: {h.reason}" for h in held), until=until
    )


def _backing_condition(rollout: Rollout) -> Condition:
    if rollout.seen is None:
        return Condition(name="backed", met=False, text="Backstop has not looked at the cluster yet")
    if rollout.seen.health is None or not is_health_fresh(rollout):
        return Condition(name="backed", met=False, text="health is unknown or stale, so no GPU counts as backing")
    if not rollout.seen.is_backed:
        missing = lacks_text(rollout.seen.shortage)
        return Condition(name="backed", met=False, text=f"not backed by today's health: {missing}")
    return Condition(name="backed", met=True, text="backed by today's health")


def _time_text(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%SZ}"


def gate_of(stage: Stage) -> Gate | None:
    step = STEP_FROM.get(stage)
    return None if step is None else step.gate
