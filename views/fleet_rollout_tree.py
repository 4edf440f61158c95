"""A fleet rollout as a tree: waves are its branches, clusters their leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from rich.console import RenderableType
from rich.text import Text

from models.cluster.windows import WindowKind
from models.fleet.messages import FleetStatus, WaveStatus
from models.fleet.state import Member, MemberState
from models.rollout.status_models import RolloutStatus
from views.fleet_rollout import facts_of, title_of, wave_name
from views.layout import FactSheet, Fitted, Grid, height
from views.words import clean, line, moment, row, span, table

_MARKS = {
    MemberState.WAITING: ("○", "dim"),
    MemberState.STARTING: ("●", "blue"),
    MemberState.RUNNING: ("●", "blue"),
    MemberState.DONE: ("✔", "green"),
    MemberState.FAILED: ("✖", "red"),
    MemberState.ENDED: ("-", "dim"),
    MemberState.SKIPPED: ("-", "dim"),
}
_WORDS = {MemberState.DONE: "monitored", MemberState.FAILED: "rolled back", MemberState.RUNNING: "under way"}
_FIRST = (MemberState.FAILED, MemberState.RUNNING, MemberState.STARTING, MemberState.WAITING, MemberState.DONE)
"""The order in which leaves are chosen if there is no room for all."""
_LEAST_LEAVES = (2, 1)
"""The fewest leaves of each wave: the first number for which all waves have room, else none."""
_BELOW = 2
"""Rows below the picture: one for the cursor, one for the reason why there is no answer."""


@dataclass(frozen=True)
class FleetSeen:
    """The fleet rollout at one look, with the status of its members' rollouts by cluster."""

    status: FleetStatus
    rollouts: Mapping[str, RolloutStatus] = field(default_factory=dict)


def tree_parts(seen: FleetSeen, now: datetime, screen: tuple[int, int] | None = None) -> list[RenderableType]:
    """Return its facts, and below them the tree. `screen`: its columns and rows; None: the whole tree.

    On a screen that is too low each leaf is one line, and leaves without room are counted.
    """
    fleet = seen.status
    facts = [fact for fact in facts_of(fleet) if fact[0] in ("now", "step", "hold", "needs", "ended", *WindowKind)]
    head: list[Fitted] = [title_of(fleet, now), FactSheet(facts), Text()]
    whole = [wave.clusters for wave in fleet.waves]
    if screen is None:
        return [*head, *_branches(seen, whole, now)]
    columns, rows = screen
    left = rows - _BELOW - height(head, columns)
    if sum(whole) + len(whole) <= left:
        tree = _branches(seen, whole, now)
        if height(tree, columns) <= left:
            return [*head, *tree]
    return [*head, *_branches(seen, _rooms(fleet, left - len(whole)), now, single=True)]


def _branches(seen: FleetSeen, rooms: Sequence[int], now: datetime, *, single: bool = False) -> list[Fitted]:
    parts: list[Fitted] = []
    for number, (wave, room) in enumerate(zip(seen.status.waves, rooms, strict=True)):
        last = number == len(rooms) - 1
        parts.append(
            line(
                "└─ " if last else "├─ ",
                (wave_name(wave.wave), "bold"),
                f"  {_progress(wave, over=seen.status.stage.has_ended)}",
            )
        )
        own = sorted((m for m in seen.status.members if m.wave is wave.wave), key=_rank)
        parts += _leaves(own, room, "   " if last else "│  ", seen, now, single=single)
    return parts


def _rooms(status: FleetStatus, left: int) -> list[int]:
    """Return how many leaves each wave shows in `left` lines: a few each, then more, first for the current wave."""
    sizes = [wave.clusters for wave in status.waves]
    least = next((few for few in _LEAST_LEAVES if sum(_lines(min(few, size), size) for size in sizes) <= left), 0)
    rooms = [min(least, size) for size in sizes]
    left -= sum(map(_lines, rooms, sizes))
    for number in sorted(range(len(sizes)), key=lambda number: (status.waves[number].wave is not status.wave, number)):
        before = _lines(rooms[number], sizes[number])
        most = before + left
        rooms[number] = sizes[number] if sizes[number] <= most else max(rooms[number], most - 1)
        left -= _lines(rooms[number], sizes[number]) - before
    return rooms


def _lines(shown: int, of: int) -> int:
    """Return how many lines a wave's leaves take, with the line that counts the hidden ones if any leaf is shown."""
    return shown + (0 < shown < of)


def _rank(member: Member) -> tuple[bool, int, str]:
    return not member.needs, _FIRST.index(member.state) if member.state in _FIRST else len(_FIRST), member.cluster


def _progress(wave: WaveStatus, *, over: bool) -> str:
    counts = {
        "under way": wave.running,
        "rolled back": wave.failed,
        "never started" if over else "waiting": wave.waiting,
        "ended": wave.ended,
        "skipped": wave.skipped,
    }
    more = [f"{count} {what}" for what, count in counts.items() if count]
    return ", ".join([f"{wave.done} of {wave.clusters} monitored", *more])


def _leaves(
    members: Sequence[Member], room: int, trunk: str, seen: FleetSeen, now: datetime, *, single: bool
) -> list[Fitted]:
    shown, hidden = members[:room], members[room:]
    if not shown:
        return []
    leaves: Grid = table("=", "CLUSTER", "=STAGE", "=SINCE", "~WAITS FOR", least=["SINCE"])
    leaves.header, leaves.hint, leaves.margin, leaves.single = False, False, f"{trunk}│    ", single
    for number, member in enumerate(shown):
        mark, style = _MARKS[member.state]
        last = number == len(shown) - 1 and not hidden
        since = _since(member, seen.rollouts.get(member.cluster))
        row(
            leaves,
            f"{trunk}{'└─' if last else '├─'} {mark}",
            member.cluster,
            "never started" if seen.status.stage.has_ended and member.state is MemberState.WAITING else _stage(member),
            "" if since is None else span(now - since),
            _waits(member),
            style="yellow" if member.needs else style,
        )
    parts: list[Fitted] = [leaves]
    if hidden:
        counts = Counter(_WORDS.get(member.state, member.state.value) for member in hidden)
        text = ", ".join(f"{count} {what}" for what, count in counts.items())
        parts.append(line(f"{trunk}└─ ", (f"and {len(hidden)} more: {text}", "dim")))
    return parts


def _stage(member: Member) -> str:
    return member.stage or member.state.value


def _since(member: Member, rollout: RolloutStatus | None) -> datetime | None:
    if rollout is not None:
        return rollout.entered_at
    if member.state is MemberState.ENDED:
        return None  # nobody noted when
    return member.failed_at if member.state is MemberState.FAILED else member.started_at


def _waits(member: Member) -> str:
    """Return what a person must do for it, else what its rollout waits for, else why it has not started."""
    until = f" (until {moment(member.held_until)})" if member.held and member.held_until is not None else ""
    return member.needs or clean(f"{member.held or member.waits}{until}")


def fleet_changes(before: FleetSeen | None, now: FleetSeen, at: datetime) -> list[str]:
    """Return a line for the fleet rollout, and one for each cluster with a change that a person cares about."""
    texts_before = dict(_texts_of(before)) if before is not None else {}
    return [f"{at:%H:%M:%SZ}  {text}" for who, text in _texts_of(now) if texts_before.get(who) != text]


def _texts_of(seen: FleetSeen) -> list[tuple[str, str]]:
    fleet = seen.status
    parts = [fleet.stage.value, fleet.waits_for, *([f"needs: {fleet.needs}"] if fleet.needs else [])]
    lines = [("", "fleet: " + "; ".join(dict.fromkeys(part for part in parts if part)))]
    for member in fleet.members:
        if member.state is not MemberState.WAITING or member.held:
            waits = _waits(member)
            lines.append(
                (
                    member.cluster,
                    f"{member.cluster} ({wave_name(member.wave)}): {_stage(member)}{f'; {waits}' if waits else ''}",
                )
            )
    return [(who, clean(text)) for who, text in lines]
