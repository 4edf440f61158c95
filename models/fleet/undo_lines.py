"""The undo of each command to a fleet rollout: one line, as people type it, or the reason there is none."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable

from models.fleet.command_rows import FLEET_ROWS
from models.fleet.commands import FleetCommand, FleetCommandRequest
from models.fleet.pace_changes import settings_back
from models.fleet.state import PAUSED, FleetRollout, Member, MemberState, Wave
from models.lifecycle.command_rows import NEVER, REASON

UNDO_OF_LAUNCH = f"Undo: backstop fleet abort {REASON}"


def fleet_undo_line(
    before: FleetRollout, after: FleetRollout, command: FleetCommand, request: FleetCommandRequest
) -> str:
    """Return the line that undoes the command just obeyed."""
    return FLEET_ROWS[command].undo_line(FLEET_UNDO, before, after, request)


def _names(members: Iterable[Member]) -> str:
    return " ".join(shlex.quote(m.cluster) for m in members)


_Left = dict[str, list[Member]]
"""Members that no command puts back, by reason."""


def _move_lines(members: Iterable[Member], fleet: FleetRollout) -> tuple[list[str], _Left]:
    """Return the commands that put waiting members back, and the members they leave."""
    by_wave: dict[Wave, list[Member]] = {}
    for member in members:
        by_wave.setdefault(member.wave, []).append(member)
    late = {Wave.AFTER: "no cluster can be moved to after the last wave"}
    late |= {Wave.PILOT: "the pilots are over"} if fleet.wave is not Wave.PILOT else {}
    lines = [
        f"backstop fleet move {_names(each)} --wave {wave.number} {REASON}"
        for wave, each in sorted(by_wave.items(), key=lambda item: item[0].number)
        if wave not in late
    ]
    return lines, {why: by_wave[wave] for wave, why in late.items() if wave in by_wave}


def _lines(lines: list[str], left: _Left) -> str:
    """Join the commands that undo, and the reasons for the members they leave."""
    if not lines:
        whose = {why: f"{_names(each)}: " if len(left) > 1 else "" for why, each in left.items()}
        return f"{NEVER}: {'; '.join(f'{whose[why]}{why}' for why in left)}."
    rest = "; ".join(f"not for {_names(each)}: {why}" for why, each in left.items())
    return f"Undo: {', and '.join(lines)}{f' ({rest})' if rest else ''}"


def _undo_skip(before: FleetRollout, after: FleetRollout, request: FleetCommandRequest) -> str:
    members = [before.members[c] for c in request.clusters]
    lines, left = _move_lines((m for m in members if not m.rollout), after)
    if opened := [m for m in members if m.rollout]:
        left["a cluster with a rollout cannot be added again"] = opened
    return _lines(lines, left)


def _undo_move(before: FleetRollout, after: FleetRollout, request: FleetCommandRequest) -> str:
    members = [before.members[c] for c in request.clusters]
    skipped = [m for m in members if m.state is MemberState.SKIPPED]
    lines, left = _move_lines((m for m in members if m.state is not MemberState.SKIPPED), after)
    lines += [f"backstop fleet skip {_names(skipped)} {REASON}"] if skipped else []
    return _lines(lines, left)


def _undo_pause(before: FleetRollout, after: FleetRollout, request: FleetCommandRequest) -> str:
    """Return the resume line, unless a resume would also lift other holds and forget failures."""
    others = [h.id for h in after.holds if h.id != PAUSED]
    if not others:
        forgets = " (earlier failures then no longer count)" if after.failed_members else ""
        return f"Undo: backstop fleet resume {REASON}{forgets}"
    failures = ", and earlier failures would no longer count" if after.failed_members else ""
    what = f"{'hold' if len(others) == 1 else 'holds'} {' and '.join(others)}"
    return f"The pause cannot be lifted alone: `backstop fleet resume` would also lift {what}{failures}."


def _undo_promote(before: FleetRollout, after: FleetRollout, request: FleetCommandRequest) -> str:
    if after.holds:
        return f"{NEVER}; the holds keep the next wave from starting."
    return f"{NEVER}; to start no more clusters: backstop fleet pause {REASON}"


FLEET_UNDO: dict[FleetCommand, Callable[[FleetRollout, FleetRollout, FleetCommandRequest], str]] = {
    "pause": _undo_pause,
    "skip": _undo_skip,
    "move": _undo_move,
    "promote": _undo_promote,
    "pace": lambda before, after, _: f"Undo: backstop fleet pace {settings_back(before.pace, after.pace)} {REASON}",
}
