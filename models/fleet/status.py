"""The status of a fleet rollout as people see it, built from its state."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from models.base import DAY, duration_text
from models.cluster.windows import Entry, windows_alike
from models.fleet.decide import decide
from models.fleet.gates import breaker_share, budget_left, rest_until
from models.fleet.messages import DeclaredOver, FleetProgress, FleetStatus, WaveStatus
from models.fleet.state import WAVES, BudgetLeft, FleetRollout, FleetStage, Member, MemberState, Wave
from models.lifecycle.holds import HoldKind
from models.lifecycle.workflow_actions import Wait
from models.rollout.status_models import RolloutStatus
from models.texts import count_text

_AT = "%Y-%m-%d %H:%M:%SZ"


def status_of(fleet: FleetRollout, now: datetime, *, history_events: int = 0, runs: int = 1) -> FleetStatus:
    action = decide(fleet, now)
    left, budget_at = budget_left_now(fleet, now)
    failed, counted = breaker_share(fleet)
    return FleetStatus(
        fleet=fleet.id,
        owner=fleet.owner,
        shadow=fleet.shadow,
        stage=fleet.stage,
        entered_at=fleet.entered_at,
        at=now,
        plan_hash=fleet.plan_hash,
        approved_by=fleet.approved_by,
        wave=fleet.wave,
        waits_for=waiting_sentence(fleet, now),
        next_at=action.ahead_of(now) if isinstance(action, Wait) else None,
        rests_until=rest_until(fleet) if fleet.stage is FleetStage.RUNNING else None,
        pace=fleet.pace,
        hour_gpus=left.hour_gpus,
        day_gpus=left.day_gpus,
        budget_at=budget_at,
        failed=failed,
        failed_of=counted,
        trips_above=fleet.pace.max_failed,
        holds=fleet.holds,
        progress=progress_of(fleet, now) if fleet.stage is FleetStage.RUNNING else None,
        waves=tuple(_wave(fleet, wave) for wave in WAVES if any(m.wave is wave for m in fleet.members.values())),
        members=tuple(
            sorted((_as_of(m, fleet, now) for m in fleet.members.values()), key=lambda m: (m.wave.number, m.cluster))
        ),
        would_end=() if fleet.stage.has_ended else tuple(m.cluster for m in fleet.but(undo=False).to_abort),
        would_undo=() if fleet.stage.has_ended else tuple(m.cluster for m in fleet.but(undo=True).to_abort),
        needs=needs_of(fleet),
        ended_because=fleet.ended_because,
        history_events=history_events,
        runs=runs,
    )


_MOST_ASKED = 20
"""The most rollouts that one status asks."""


def to_ask(status: FleetStatus) -> list[str]:
    """Return the clusters whose rollouts to ask for their stage and conditions: those that are not through."""
    states = (MemberState.FAILED, MemberState.RUNNING)
    return [m.cluster for state in states for m in status.members if m.state is state and m.rollout][:_MOST_ASKED]


def with_own_words(
    status: FleetStatus, rollouts: Mapping[str, RolloutStatus | None], calendar: Iterable[Entry]
) -> FleetStatus:
    """Return the status with the stage and conditions that each asked rollout reports, and with the windows.

    The fleet rollout notes its members' stages seconds later, and does not know their gates.
    """
    own = {name: rollout for name, rollout in rollouts.items() if rollout is not None}
    members = tuple(_own_words(m, own.get(m.cluster)) for m in status.members)
    return status.model_copy(
        update={"members": members, "windows": () if status.stage.has_ended else _windows(members, calendar)}
    )


def _own_words(member: Member, status: RolloutStatus | None) -> Member:
    if status is None or status.rollout != member.rollout:
        return member
    return member.but(stage=status.stage.value, needs=status.needs, waits=rollout_waits(status))


def rollout_waits(status: RolloutStatus) -> str:
    """Describe what a rollout waits for, holds first."""
    held = [f"held: {hold.kind}, {hold.reason}{_until_text(hold.until)}" for hold in status.holds]
    waits = [
        f"{c.text.removeprefix('waits for ')}{_until_text(c.until)}" for c in status.waiting_for if c.name != "holds"
    ]
    return "; ".join([*held, *waits])


def _until_text(at: datetime | None) -> str:
    return "" if at is None else f", until {at:{_AT}}"


def _windows(members: Sequence[Member], calendar: Iterable[Entry]) -> tuple[DeclaredOver, ...]:
    """Return one window for each declaration, however many clusters it has."""
    open_ = {m.cluster for m in members if not m.state.is_settled or m.state is MemberState.FAILED}
    return tuple(
        DeclaredOver(kind=w.kind, starts=w.starts, ends=w.ends, reason=w.reason, clusters=names)
        for w, theirs in sorted(
            windows_alike(calendar).items(), key=lambda item: (item[0].starts, item[0].ends, item[0].reason)
        )
        if (names := tuple(sorted({entry.cluster for entry in theirs} & open_)))
    )


def budget_left_now(fleet: FleetRollout, now: datetime) -> tuple[BudgetLeft, datetime | None]:
    """Return the budget left by the ledger's book and by starts since, and the time of the look into the book.

    That time is None if it is too long ago; the budget left by the rollout's own starts alone is then an upper bound.
    """
    hour, day = budget_left(fleet, now)
    if fleet.left is None or fleet.picked_at is None or now - fleet.picked_at > fleet.pace.recheck:
        return BudgetLeft(hour_gpus=hour, day_gpus=day), None
    return BudgetLeft(
        hour_gpus=min(hour, fleet.left.hour_gpus), day_gpus=min(day, fleet.left.day_gpus)
    ), fleet.picked_at


def _as_of(member: Member, fleet: FleetRollout, now: datetime) -> Member:
    """Return the member without a hold that is over: it waits for another try once nothing holds the fleet rollout."""
    if member.state is not MemberState.WAITING:
        return member
    over = member.held_until is not None and member.held_until <= now
    if fleet.holds and (over or not member.held) and member.wave.number <= fleet.wave.number:
        return member.but(held="", held_until=None, waits="the fleet rollout is held")
    return (
        member.but(held="", held_until=None, waits="its hold is over; Backstop looks at it again") if over else member
    )


def _wave(fleet: FleetRollout, wave: Wave) -> WaveStatus:
    members = [m for m in fleet.members.values() if m.wave is wave]
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


def progress_of(fleet: FleetRollout, now: datetime) -> FleetProgress:
    """Project the end from the rate of the last day, but no earlier than its soaks and bakes allow."""
    members = fleet.members.values()
    steps = [wave for wave in WAVES if any(m.wave is wave for m in members)]
    left = sum(not m.state.is_settled for m in members)
    span = min(DAY, max(now - fleet.entered_at, timedelta(minutes=1)))
    of_late = sum(m.done_at is not None and m.done_at >= now - span for m in members)
    ahead = {m.wave for m in members if m.wave.number > fleet.wave.number and not m.state.is_settled}
    rest = fleet.pace.pilot_soak if fleet.wave is Wave.PILOT else fleet.pace.bake
    not_before = now
    if ahead:
        not_before = (rest_until(fleet) or now + rest) + (len(ahead) - 1) * fleet.pace.bake
    by_rate = now + span * left / of_late if of_late else None
    return FleetProgress(
        step=1 + sum(wave.number < fleet.wave.number for wave in steps),
        steps=len(steps),
        monitored=sum(m.state is MemberState.DONE for m in members),
        clusters=len(fleet.members),
        of_late=of_late,
        span=span,
        left=left,
        not_before=not_before,
        expected_end=None if by_rate is None or fleet.holds else max(by_rate, not_before),
    )


def waiting_sentence(fleet: FleetRollout, now: datetime) -> str:
    """Return one sentence about what the fleet rollout waits for."""
    match fleet.stage:
        case FleetStage.PLANNED:
            return "waits for its plan to be approved" if fleet.plan_hash else "plans every cluster"
        case FleetStage.ABORTING:
            return "waits until the rollouts that it aborts have ended"
        case FleetStage.DONE | FleetStage.ABORTED:
            return fleet.ended_because
    if fleet.holds:
        return "; ".join(h.reason for h in fleet.holds)
    rests = rest_until(fleet)
    if rests is not None and now < rests:
        what = "soaks" if fleet.wave is Wave.PILOT else "bakes"
        return f"{fleet.wave.full_name} {what} until {rests:%Y-%m-%d %H:%M:%SZ}"
    if fleet.in_flight >= fleet.pace.parallel:
        many = "1 cluster is" if fleet.in_flight == 1 else f"{fleet.in_flight} clusters are"
        return f"{many} under way, and `parallel` is {fleet.pace.parallel}"
    if fleet.waiting_members and fleet.found_none:
        return _in_vain(fleet, now)
    refused = [m for m in fleet.waiting_members if m.retry_at is not None and now < m.retry_at]
    if refused and not fleet.in_flight:
        first = min(refused, key=lambda m: (m.retry_at or now, m.cluster))
        return (
            f"the launch of {first.cluster} was refused ({first.held}); Backstop tries again at {first.retry_at:{_AT}}"
        )
    if fleet.waiting_members and not fleet.in_flight and not needs_of(fleet):
        return f"{fleet.wave.full_name}: Backstop is about to look at {_some_names(fleet.waiting_members)}"
    if not fleet.in_flight:
        return f"{fleet.wave.full_name} waits for a person"
    # A rollout that was open before counts as on its way in its own wave.
    own = sum(m.wave is fleet.wave for m in fleet.members_in_flight)
    counts = ((own, fleet.wave.full_name), (fleet.in_flight - own, "other waves"))
    which = " and ".join(f"{count} of {name}" for count, name in counts if count)
    return f"{which} {'is' if fleet.in_flight == 1 else 'are'} under way"


def _in_vain(fleet: FleetRollout, now: datetime) -> str:
    again = f"Backstop looks again every {duration_text(fleet.pace.recheck)}"
    short = fleet.members.get(fleet.left.short_for) if fleet.left is not None else None
    if short is not None and short.waits:
        return f"{short.cluster} waits for the budget: {short.waits}; {again}"
    held = [m for m in fleet.waiting_members if m.held and (m.held_until is None or now < m.held_until)]
    if len(held) == 1:
        return f"{held[0].cluster} cannot start now: {held[0].held}; {again}"
    names = _some_names(held or fleet.waiting_members)
    return f"{names} cannot start now; {again}" if held else f"Backstop is about to look at {names}; {again}"


def needs_of(fleet: FleetRollout) -> str:
    """Return what a person has to do for the fleet rollout to go on; empty if it goes on by itself."""
    if fleet.stage is FleetStage.PLANNED and fleet.plan_hash:
        return f"approve the plan: backstop fleet approve --plan {fleet.plan_hash}"
    if fleet.stage is not FleetStage.RUNNING:
        return ""
    if fleet.holds:
        why = "; ".join(f"paused by {h.actor}" if h.kind is HoldKind.PAUSED else h.reason for h in fleet.holds)
        return (
            f"{why}. Look at the cause, then: backstop fleet resume --reason ... (or backstop fleet abort --reason ...)"
        )
    asking = sorted((m for m in fleet.in_state(MemberState.RUNNING) if m.needs), key=lambda m: m.cluster)
    if asking:
        one = "waits" if len(asking) == 1 else "wait"
        # `status --needs` also lists clusters that the fleet rollout does not wait for.
        some = f"{_some_names(asking)}{' that are under way' * (len(asking) > 1)}"
        return f"{some} {one} for a person: backstop status --needs ({_skip(asking)})"
    held = sorted((m for m in fleet.waiting_members if m.held and m.held_until is None), key=lambda m: m.cluster)
    if held:
        return f"{_some_names(held)} cannot start: backstop fleet status --waiting ({_skip(held)})"
    return ""


def _skip(members: Sequence[Member]) -> str:
    """Return the command that leaves out the first of them."""
    return f"or backstop fleet skip {shlex.quote(members[0].cluster)} --reason ..."


def _some_names(members: Sequence[Member]) -> str:
    return members[0].cluster if len(members) == 1 else count_text(len(members), "cluster")
