"""Gates: what must be true before a step, what of it is not, and when it may become true."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import assert_never

from models.base import duration_text, lacks_text, some_of
from models.cluster.policy import Acks, OnDrift
from models.cluster.readings import Doubt, Excess, LimitMode
from models.cluster.windows import WindowKind, active
from models.rollout.effect_table import STEP_FROM, Gate
from models.rollout.effects import EffectKind
from models.rollout.holds import Hold, HoldKind
from models.rollout.shown import Condition
from models.rollout.stages import Command, Stage, command_line
from models.rollout.state import Rollout

CHANGED_BY_OTHERS = "changed by others"
_WINDOW_HOLDS = {
    WindowKind.MAINTENANCE: HoldKind.MAINTENANCE,
    WindowKind.SEV: HoldKind.SEV,
    WindowKind.FREEZE: HoldKind.FREEZE,
}


def holds_now(r: Rollout, now: datetime) -> tuple[Hold, ...]:
    """Every hold in force: what people and the guard set, the calendar, and unknown health."""
    standing = [h for h in r.holds if not h.after_enforced and (h.until is None or now < h.until)]
    windows = r.seen.windows if r.seen is not None else ()
    for window in active(windows, now):
        kind = _WINDOW_HOLDS[window.kind]
        standing.append(
            Hold(
                id=f"{kind}-{window.starts:%Y%m%dT%H%M}",
                kind=kind,
                reason=window.reason,
                actor="calendar",
                at=window.starts,
                until=window.ends,
            )
        )
    unknown = unknown_since(r)
    if r.seen is not None and r.seen.ahead_to is not None:
        why = f"health samples dated ahead of now, up to {_at(r.seen.ahead_to)}, are left out"
        standing.append(_unknown_health(why, r.seen.at))
    elif (doubt := doubt_of(r)) is not None:
        standing.append(_unknown_health(doubt.why, doubt.since))
    elif (beyond := beyond_of(r)) is not None:
        standing.append(_unknown_health(beyond.text, beyond.at))
    elif r.looked_at is not None and r.looked_at - unknown >= r.policy.stale_after:
        why = f"no believable health since {_at(unknown)}"
        standing.append(_unknown_health(why, unknown + r.policy.stale_after))
    return tuple(standing)


def holds_standing(r: Rollout, now: datetime) -> tuple[Hold, ...]:
    """Those in force, and objections that came too late to hold anything: all that wait for an answer."""
    return (*holds_now(r, now), *(h for h in r.holds if h.after_enforced))


def _unknown_health(why: str, at: datetime) -> Hold:
    return Hold(id="unknown_health", kind=HoldKind.UNKNOWN_HEALTH, reason=why, actor="health", at=at)


def doubt_of(r: Rollout) -> Doubt | None:
    """Why the last look's sample is not believed, where that is for its source."""
    return None if r.seen is None or not r.sight.doubted else r.seen.doubt


def beyond_of(r: Rollout) -> Excess | None:
    """What the last look left out because it cannot be so."""
    return None if r.seen is None or r.seen.health is None else r.seen.health.beyond


def unknown_since(r: Rollout) -> datetime:
    """The time of the last sample that was believed."""
    return r.launched_at if r.sight.known is None else r.sight.known.at


def health_fresh(r: Rollout) -> bool:
    """Known, believed, and fresh when last looked at: unknown and stale health opens no gate.

    Between looks the watch tells when samples stop; a gate always looks again before it opens.
    """
    if r.sight.unknown or r.sight.known is None or r.looked_at is None:
        return False
    if r.seen is not None and r.seen.ahead_to is not None:
        return False  # what seems fresh may be a sample that was dated ahead when it was written
    if beyond_of(r) is not None:
        return False
    return r.looked_at - r.sight.known.at < r.policy.stale_after


def conditions(r: Rollout, now: datetime) -> tuple[Condition, ...]:
    """What the gate before the next step asks for; empty where no step follows."""
    step = STEP_FROM.get(r.stage)
    if step is None:
        return ()
    match step.gate:
        case Gate.MAY_START:
            own: Sequence[Condition] = (_planned(r), _approved(r), _notice(r, now))
        case Gate.MAY_ENFORCE:
            own = (_soak(r, now, r.policy.soak_buffered), _acks(r, now), _no_drift(r))
        case Gate.MAY_MONITOR:
            own = (_soak(r, now, r.policy.soak_enforced), _no_drift(r))
        case _:
            assert_never(step.gate)
    return (*own, _no_hold(r, now), _backed(r))


def is_open(r: Rollout, now: datetime) -> bool:
    """True where a step follows and all its conditions are met."""
    asked = conditions(r, now)
    return bool(asked) and all(c.met for c in asked)


def _planned(r: Rollout) -> Condition:
    if r.plan is None or r.stay.replan:
        return Condition(name="plan", met=False, text=f"a new plan is being made: {r.stay.replan or 'the first'}")
    if not r.plan.honest:
        return Condition(name="plan", met=False, text=r.plan.fault)
    if not r.plan.backed:
        return Condition(name="plan", met=False, text="the plan is not backed; it cannot be started")
    if r.plan.generation != r.generation:
        return Condition(name="plan", met=False, text="others changed the cluster after the plan was made")
    return Condition(name="plan", met=True, text=f"plan {r.plan.hash}, backed")


def _approved(r: Rollout) -> Condition:
    if r.approved:
        return Condition(name="approval", met=True, text=f"approved by {r.approved_by}")
    name = r.plan.hash if r.plan is not None else "HASH"
    return Condition(
        name="approval", met=False, text=f"waits for approval: {command_line(Command.APPROVE, r.cluster)} --plan {name}"
    )


def _notice(r: Rollout, now: datetime) -> Condition:
    if r.stay.waived:
        return Condition(name="notice", met=True, text="waived")
    if not r.approved:
        announcement = "what teams would be told is written to the log" if r.shadow else "teams are told"
        return Condition(name="notice", met=False, text=f"{announcement} once the plan is approved")
    if r.announced.undelivered:
        return Condition(name="notice", met=False, text=f"not delivered: {'; '.join(r.announced.undelivered)}")
    trouble = f" (trying again: {r.post.trouble})" if r.post.trouble else ""
    if r.announced.delivered_at is None and r.post.waiting:
        teams = some_of(sorted({n.audience for n in r.post.mail if n.key in r.post.waiting}), 5)
        at = _at(max(r.post.waiting.values()))
        text = f"to be told at {at}, and the notice runs from then: {teams}{trouble}"
        return Condition(name="notice", met=False, text=text)
    if r.announced.delivered_at is None:
        return Condition(name="notice", met=False, text=f"notices are being sent{trouble}")
    due = r.announced.delivered_at + r.policy.notice
    length = duration_text(r.policy.notice)
    return Condition(
        name="notice", met=now >= due, text=f"notice of {length} from {_at(r.announced.delivered_at)}", until=due
    )


def _soak(r: Rollout, now: datetime, length: timedelta) -> Condition:
    if r.breach_of:
        return Condition(name="soak", met=False, text=f"in breach: {', '.join(r.breach_of)}")
    if r.stay.waived:
        return Condition(name="soak", met=True, text="waived")
    due = r.stay.soak_since + length
    text = f"soak of {duration_text(length)} from {_at(r.stay.soak_since)}"
    return Condition(name="soak", met=now >= due, text=text, until=due)


def _acks(r: Rollout, now: datetime) -> Condition:
    wanted = r.affected
    acks = [team for team in wanted if team in r.announced.acks]
    needed = {Acks.NONE: 0, Acks.MAJORITY: len(wanted) // 2 + 1 if wanted else 0, Acks.ALL: len(wanted)}[r.policy.acks]
    text = f"{len(acks)} of {needed} acknowledgements"
    if r.stay.waived or len(acks) >= needed:
        return Condition(name="acks", met=True, text="waived" if r.stay.waived else text)
    due = (r.announced.delivered_at or r.launched_at) + r.policy.ack_deadline
    return Condition(name="acks", met=now >= due, text=f"{text}, or their deadline", until=due)


def _no_drift(r: Rollout) -> Condition:
    if r.looked_after != r.fence:
        return Condition(name="drift", met=False, text="what was written has not been read back yet")
    drifted = drift_of(r)
    if drifted:
        return Condition(name="drift", met=False, text=f"{CHANGED_BY_OTHERS}: {', '.join(drifted)}")
    return Condition(name="drift", met=True, text="read-back equals what was written")


def drift_of(r: Rollout) -> tuple[str, ...]:
    """Teams whose present value or mode is not the one we believe in, one text each; by whom, where that is known."""
    if r.seen is None or r.looked_after != r.fence:
        return ()
    present, expected, modes = r.seen.reading.values, awaited(r), mode_drift(r)
    changes = {c.team: c for c in r.seen.changes}

    def text(team: str) -> str:
        moved = [f"{expected.get(team, 'absent')} -> {present.get(team, 'absent')}"]
        if present.get(team) == expected.get(team):
            moved = []
        if team in modes:
            moved.append(" -> ".join(modes[team]))
        change = changes.get(team)
        return f"{team} {', '.join(moved)}" + ("" if change is None else f", by {change.by} at {_at(change.at)}")

    return tuple(
        text(team) for team in sorted({*present, *expected}) if present.get(team) != expected.get(team) or team in modes
    )


def mode_drift(r: Rollout) -> dict[str, tuple[LimitMode, LimitMode]]:
    """Our mode and the present one, by team, of quotas that we wrote and whose mode others have set since."""
    if r.seen is None or r.looked_after != r.fence or not r.seen.reading.counts_modes:
        return {}
    if r.shadow or not (r.stage.guarded and r.values_stand):
        return {}
    ours = LimitMode.HARD if EffectKind.HARDEN in r.standing else LimitMode.SOFT
    return {
        q.team: (expected, q.mode)
        for q in r.seen.reading.quotas
        if q.team in r.written
        and q.team not in r.foreign
        and (expected := r.modes_given.get(q.team, ours)) is not q.mode
    }


def changed_by_others(r: Rollout) -> dict[str, int]:
    """The last seen values of quotas that we know and others have changed, by team; {} after a write of ours."""
    if r.seen is None or r.looked_after != r.fence:
        return {}
    expected = believed(r)
    return {t: gpus for t, gpus in r.seen.reading.values.items() if t in expected and expected[t] != gpus}


def believed(r: Rollout) -> dict[str, int]:
    """The values that we think the quota system holds, by team: those of a shadow rollout are not in it."""
    return {q.team: q.gpus for q in r.baseline.quotas} if r.shadow else r.written


def awaited(r: Rollout) -> dict[str, int]:
    """The values that were approved, by team: those before a change of others that nobody has answered.

    Where the policy accepts what others change, nobody is asked; nor where nothing of ours stands.
    """
    values = believed(r)
    if not r.asks or r.shadow or not r.values_stand or r.policy.on_drift is OnDrift.ACCEPT:
        return values
    return {team: gpus for team, gpus in {**values, **r.unapproved}.items() if gpus is not None}


def theirs(r: Rollout) -> dict[str, int | None]:
    """What others hold and nobody has answered for, by team as last seen; None: the quota is gone."""
    if not r.asks or r.shadow or r.seen is None or r.looked_after != r.fence:
        return {}
    present, approved = r.seen.reading.values, awaited(r)
    return {t: present.get(t) for t in sorted({*present, *approved}) if present.get(t) != approved.get(t)}


def _no_hold(r: Rollout, now: datetime) -> Condition:
    held = holds_now(r, now)
    if not held:
        return Condition(name="holds", met=True, text="no hold")
    until = min((h.until for h in held if h.until is not None), default=None) if all(h.until for h in held) else None
    return Condition(
        name="holds",
        met=False,
        text="; ".join(f"{h.kind} by {h.actor}: {h.reason}" for h in held),
        until=until,
    )


def _backed(r: Rollout) -> Condition:
    if r.seen is None:
        return Condition(name="backed", met=False, text="the cluster has not been looked at yet")
    if r.seen.health is None or not health_fresh(r):
        return Condition(name="backed", met=False, text="health is unknown or stale and counts as zero")
    if not r.seen.backed:
        missing = lacks_text(r.seen.shortage)
        return Condition(name="backed", met=False, text=f"not backed by today's health: {missing}")
    return Condition(name="backed", met=True, text="backed by today's health")


def _at(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%SZ}"


def gate_of(stage: Stage) -> Gate | None:
    step = STEP_FROM.get(stage)
    return None if step is None else step.gate
