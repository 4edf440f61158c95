"""What people see of a fleet rollout, made from its state."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from models.base import DAY, count_text, duration_text
from models.cluster.windows import Entry, windows_alike
from models.fleet.decide import decide
from models.fleet.gates import breaker_share, budget_left, rest_until
from models.fleet.messages import DeclaredOver, FleetProgress, FleetStatus, WaveStatus
from models.fleet.state import WAVES, BudgetLeft, FleetRollout, FleetStage, Member, MemberState, Wave
from models.lifecycle.actions import Wait
from models.rollout.holds import HoldKind
from models.rollout.status_models import RolloutStatus

_AT = "%Y-%m-%d %H:%M:%SZ"


def status_of(f: FleetRollout, now: datetime, *, history_events: int = 0, runs: int = 1) -> FleetStatus:
    action = decide(f, now)
    left, budget_at = left_now(f, now)
    failed, counted = breaker_share(f)
    return FleetStatus(
        fleet=f.id,
        owner=f.owner,
        shadow=f.shadow,
        stage=f.stage,
        entered_at=f.entered_at,
        at=now,
        plan_hash=f.plan_hash,
        approved_by=f.approved_by,
        wave=f.wave,
        waits_for=waiting_sentence(f, now),
        next_at=action.ahead_of(now) if isinstance(action, Wait) else None,
        rests_until=rest_until(f) if f.stage is FleetStage.RUNNING else None,
        pace=f.pace,
        hour_gpus=left.hour_gpus,
        day_gpus=left.day_gpus,
        budget_at=budget_at,
        failed=failed,
        failed_of=counted,
        trips_above=f.pace.max_failed,
        holds=f.holds,
        progress=progress_of(f, now) if f.stage is FleetStage.RUNNING else None,
        waves=tuple(_wave(f, wave) for wave in WAVES if any(m.wave is wave for m in f.members.values())),
        members=tuple(
            sorted((_as_of(m, f, now) for m in f.members.values()), key=lambda m: (m.wave.number, m.cluster))
        ),
        would_end=() if f.stage.has_ended else tuple(m.cluster for m in f.but(undo=False).to_abort),
        would_undo=() if f.stage.has_ended else tuple(m.cluster for m in f.but(undo=True).to_abort),
        needs=needs_of(f),
        ended_because=f.ended_because,
        history_events=history_events,
        runs=runs,
    )


_MOST_ASKED = 20
"""Rollouts that one status asks."""


def to_ask(s: FleetStatus) -> list[str]:
    """Clusters whose rollouts know better where they stand, and what they wait for: those that are not through."""
    states = (MemberState.FAILED, MemberState.RUNNING)
    return [m.cluster for state in states for m in s.members if m.state is state and m.rollout][:_MOST_ASKED]


def with_own_words(
    s: FleetStatus, rollouts: Mapping[str, RolloutStatus | None], calendar: Iterable[Entry]
) -> FleetStatus:
    """With the stage that each asked rollout says itself, and what it waits for in that stage; and with the windows.

    The fleet rollout notes its members' stages seconds later, and knows nothing of their gates.
    """
    own = {name: r for name, r in rollouts.items() if r is not None}
    members = tuple(_own_words(m, own.get(m.cluster)) for m in s.members)
    return s.model_copy(
        update={"members": members, "windows": () if s.stage.has_ended else _windows(members, calendar)}
    )


def _own_words(m: Member, r: RolloutStatus | None) -> Member:
    if r is None or r.rollout != m.rollout:
        return m
    return m.but(stage=r.stage.value, needs=r.needs, waits=rollout_waits(r))


def rollout_waits(r: RolloutStatus) -> str:
    """What a rollout waits for, holds first."""
    held = [f"held: {hold.kind}, {hold.reason}{_until_text(hold.until)}" for hold in r.holds]
    waits = [f"{c.text.removeprefix('waits for ')}{_until_text(c.until)}" for c in r.waiting_for if c.name != "holds"]
    return "; ".join([*held, *waits])


def _until_text(at: datetime | None) -> str:
    return "" if at is None else f", until {at:{_AT}}"


def _windows(members: Sequence[Member], calendar: Iterable[Entry]) -> tuple[DeclaredOver, ...]:
    """One for each declaration, however many clusters it has."""
    open_ = {m.cluster for m in members if not m.state.is_settled or m.state is MemberState.FAILED}
    return tuple(
        DeclaredOver(kind=w.kind, starts=w.starts, ends=w.ends, reason=w.reason, clusters=names)
        for w, theirs in sorted(
            windows_alike(calendar).items(), key=lambda item: (item[0].starts, item[0].ends, item[0].reason)
        )
        if (names := tuple(sorted({entry.cluster for entry in theirs} & open_)))
    )


def left_now(f: FleetRollout, now: datetime) -> tuple[BudgetLeft, datetime | None]:
    """What is left of the budget by the ledger's book and its own starts since, and when it looked into the book.

    None: too long ago to go by. What is left by its own starts alone is then a bound.
    """
    hour, day = budget_left(f, now)
    if f.left is None or f.picked_at is None or now - f.picked_at > f.pace.recheck:
        return BudgetLeft(hour_gpus=hour, day_gpus=day), None
    return BudgetLeft(hour_gpus=min(hour, f.left.hour_gpus), day_gpus=min(day, f.left.day_gpus)), f.picked_at


def _as_of(m: Member, f: FleetRollout, now: datetime) -> Member:
    """A reason that is over is none: the cluster waits to be looked at again, once nothing holds the fleet rollout."""
    if m.state is not MemberState.WAITING:
        return m
    over = m.held_until is not None and m.held_until <= now
    if f.holds and (over or not m.held) and m.wave.number <= f.wave.number:
        return m.but(held="", held_until=None, waits="the fleet rollout is held")
    return m.but(held="", held_until=None, waits="what held it is over; it is looked at again") if over else m


def _wave(f: FleetRollout, wave: Wave) -> WaveStatus:
    members = [m for m in f.members.values() if m.wave is wave]
    count = Counter(m.state for m in members)
    return WaveStatus(
        wave=wave,
        clusters=len(members),
        waiting=count[MemberState.WAITING],
        running=count[MemberState.RUNNING] + count[MemberState.STARTING],
        done=count[MemberState.DONE],
        failed=count[MemberState.FAILED],
        ended=count[MemberState.ENDED],
        skipped=count[MemberState.SKIPPED],
        cut_gpus=sum(m.cut_gpus for m in members if m.state is not MemberState.SKIPPED),
    )


def progress_of(f: FleetRollout, now: datetime) -> FleetProgress:
    """At the rate of the last day, and never before what its soaks and bakes take."""
    members = f.members.values()
    steps = [wave for wave in WAVES if any(m.wave is wave for m in members)]
    left = sum(not m.state.is_settled for m in members)
    span = min(DAY, max(now - f.entered_at, timedelta(minutes=1)))
    of_late = sum(m.done_at is not None and m.done_at >= now - span for m in members)
    ahead = {m.wave for m in members if m.wave.number > f.wave.number and not m.state.is_settled}
    rest = f.pace.pilot_soak if f.wave is Wave.PILOT else f.pace.bake
    not_before = now
    if ahead:
        not_before = (rest_until(f) or now + rest) + (len(ahead) - 1) * f.pace.bake
    by_rate = now + span * left / of_late if of_late else None
    return FleetProgress(
        step=1 + sum(wave.number < f.wave.number for wave in steps),
        steps=len(steps),
        monitored=sum(m.state is MemberState.DONE for m in members),
        clusters=len(f.members),
        of_late=of_late,
        span=span,
        left=left,
        not_before=not_before,
        expected_end=None if by_rate is None or f.holds else max(by_rate, not_before),
    )


def waiting_sentence(f: FleetRollout, now: datetime) -> str:
    """One sentence: what the fleet rollout waits for."""
    match f.stage:
        case FleetStage.PLANNED:
            return "waits for its plan to be approved" if f.plan_hash else "plans every cluster"
        case FleetStage.ABORTING:
            return "waits for the rollouts that it aborts"
        case FleetStage.DONE | FleetStage.ABORTED:
            return f.ended_because
    if f.holds:
        return "; ".join(h.reason for h in f.holds)
    rests = rest_until(f)
    if rests is not None and now < rests:
        what = "soaks" if f.wave is Wave.PILOT else "bakes"
        return f"{f.wave.full_name} {what} until {rests:%Y-%m-%d %H:%M:%SZ}"
    if f.in_flight >= f.pace.parallel:
        many = "1 cluster is on its" if f.in_flight == 1 else f"{f.in_flight} clusters are on their"
        return f"{many} way, and `parallel` is {f.pace.parallel}"
    if f.waiting_members and f.found_none:
        return _in_vain(f, now)
    refused = [m for m in f.waiting_members if m.retry_at is not None and now < m.retry_at]
    if refused and not f.in_flight:
        first = min(refused, key=lambda m: (m.retry_at or now, m.cluster))
        return f"the launch of {first.cluster} was refused ({first.held}); tried again at {first.retry_at:{_AT}}"
    if f.waiting_members and not f.in_flight and not needs_of(f):
        return f"{f.wave.full_name}: {_some_names(f.waiting_members)} about to be looked at"
    if not f.in_flight:
        return f"{f.wave.full_name} waits for a person"
    # A rollout that was open before counts as on its way in its own wave.
    own = sum(m.wave is f.wave for m in f.members_in_flight)
    counts = ((own, f.wave.full_name), (f.in_flight - own, "other waves"))
    which = " and ".join(f"{count} of {name}" for count, name in counts if count)
    return f"{which} {'is' if f.in_flight == 1 else 'are'} on the way"


def _in_vain(f: FleetRollout, now: datetime) -> str:
    again = f"looked at again every {duration_text(f.pace.recheck)}"
    short = f.members.get(f.left.short_for) if f.left is not None else None
    if short is not None and short.waits:
        return f"{short.cluster} waits for the budget: {short.waits}; {again}"
    held = [m for m in f.waiting_members if m.held and (m.held_until is None or now < m.held_until)]
    if len(held) == 1:
        return f"{held[0].cluster} cannot start now: {held[0].held}; {again}"
    verb = "cannot start now" if held else "about to be looked at"
    return f"{_some_names(held or f.waiting_members)} {verb}; {again}"


def needs_of(f: FleetRollout) -> str:
    """What a person has to do for the fleet rollout to go on; empty when it goes on by itself."""
    if f.stage is FleetStage.PLANNED and f.plan_hash:
        return f"approve the plan: backstop fleet approve --plan {f.plan_hash}"
    if f.stage is not FleetStage.RUNNING:
        return ""
    if f.holds:
        why = "; ".join(f"paused by {h.actor}" if h.kind is HoldKind.PAUSED else h.reason for h in f.holds)
        return f"{why}. Look, then: backstop fleet resume --reason ... (or backstop fleet abort --reason ...)"
    asking = sorted((m for m in f.in_state(MemberState.RUNNING) if m.needs), key=lambda m: m.cluster)
    if asking:
        one = "waits" if len(asking) == 1 else "wait"
        return f"{_some_names(asking)} {one} for a person: backstop status --needs ({_skip(asking)})"
    held = sorted((m for m in f.waiting_members if m.held and m.held_until is None), key=lambda m: m.cluster)
    if held:
        return f"{_some_names(held)} cannot start: backstop fleet status --waiting ({_skip(held)})"
    return ""


def _skip(members: Sequence[Member]) -> str:
    """How the first of them is left out."""
    return f"or backstop fleet skip {shlex.quote(members[0].cluster)} --reason ..."


def _some_names(members: Sequence[Member]) -> str:
    return members[0].cluster if len(members) == 1 else count_text(len(members), "cluster")
