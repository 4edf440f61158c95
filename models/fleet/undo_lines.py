"""How each command to a fleet rollout is undone: one line, as people type it, or why there is none."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable

from models.fleet.commands import FleetCommand, FleetCommandRequest
from models.fleet.pacing import settings_back
from models.fleet.state import FleetRollout, Member, MemberState, Wave
from models.rollout.undo_lines import NEVER, REASON

UNDO_OF_LAUNCH = f"Undo: backstop fleet abort {REASON}"


def fleet_undo_line(
    before: FleetRollout, after: FleetRollout, command: FleetCommand, request: FleetCommandRequest
) -> str:
    """What to say to undo a command that has just been obeyed."""
    return FLEET_UNDO[command](before, after, request)


def _names(members: Iterable[Member]) -> str:
    return " ".join(shlex.quote(m.cluster) for m in members)


def _moving(members: Iterable[Member], f: FleetRollout) -> list[str]:
    """The commands that put waiting members where they were."""
    by_wave: dict[Wave, list[Member]] = {}
    for m in members:
        by_wave.setdefault(m.wave, []).append(m)
    late = {Wave.AFTER} | ({Wave.PILOT} if f.wave is not Wave.PILOT else set())
    may = {w: each for w, each in by_wave.items() if w not in late}
    return [
        f"backstop fleet move {_names(each)} --wave {w.number} {REASON}"
        for w, each in sorted(may.items(), key=lambda item: item[0].number)
    ]


def _lines(lines: list[str], rest: str) -> str:
    if not lines:
        return f"{NEVER}{rest}."
    return f"Undo: {', and '.join(lines)}"


def _skipped(before: FleetRollout, after: FleetRollout, request: FleetCommandRequest) -> str:
    waited = [m for c in request.clusters if not (m := before.members[c]).rollout]
    return _lines(_moving(waited, after), ": rollouts that are open go on, and the fleet rollout leaves them alone")


def _moved(before: FleetRollout, after: FleetRollout, request: FleetCommandRequest) -> str:
    members = [before.members[c] for c in request.clusters]
    skipped = [m for m in members if m.state is MemberState.SKIPPED]
    lines = _moving((m for m in members if m.state is not MemberState.SKIPPED), after)
    lines += [f"backstop fleet skip {_names(skipped)} {REASON}"] if skipped else []
    return _lines(lines, ": the pilots are over")


def _promoted(before: FleetRollout, after: FleetRollout, request: FleetCommandRequest) -> str:
    if after.holds:
        return f"{NEVER}; the holds keep the next wave from starting."
    return f"{NEVER}; to start no more clusters: backstop fleet pause {REASON}"


FLEET_UNDO: dict[FleetCommand, Callable[[FleetRollout, FleetRollout, FleetCommandRequest], str]] = {
    "approve": lambda *_: f"Undo: backstop fleet abort --undo {REASON} (what it has started is undone)",
    "pause": lambda *_: f"Undo: backstop fleet resume {REASON}",
    "resume": lambda *_: f"Undo: backstop fleet pause {REASON} (failures that were let go count no more)",
    "skip": _skipped,
    "move": _moved,
    "promote": _promoted,
    "pace": lambda before, after, _: f"Undo: backstop fleet pace {settings_back(before.pace, after.pace)} {REASON}",
    "abort": lambda *_: f"{NEVER}. When it has ended: backstop launch --fleet",
}
