"""The undo of each command to a rollout: one line, as people type it, or the reason there is none.

The line is built when the command is obeyed, from the rollout before and after it, so that it fits the stage in which
people read it. A test fails for a command that neither its row nor `UNDO` covers, and for a line that its rollout would
refuse.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable

from models.lifecycle.command_rows import NEVER, REASON
from models.lifecycle.holds import HoldKind
from models.lifecycle.state_machine import Refused
from models.rollout.command_rows import ROLLOUT_ROWS
from models.rollout.commands import CommandRequest, is_paused
from models.rollout.effect_table import STEP_FROM
from models.rollout.stages import Command, Stage, answer, command_line
from models.rollout.state import Rollout


def undo_line(
    before: Rollout, after: Rollout, command: Command, request: CommandRequest, *, by_roles: bool | None = None
) -> str:
    """Return the line that undoes the command just obeyed. `by_roles`: as for `refusal`; it decides whom to name."""
    names = {"cluster": after.cluster, "team": request.team}
    line = ROLLOUT_ROWS[command].undo_line(UNDO, before, after, request, **names)
    if command is not Command.OBJECT or not line.startswith("Undo: "):
        return line
    roles = after.ticketed if by_roles is None else by_roles
    return f"{line} (by {f'a member of {request.team} or an approver' if roles else after.owner})"


def undo_of_launch(cluster: str) -> str:
    """Return the line that undoes a launch: it ends the rollout and restores the baseline of an adopted one."""
    return f"Undo: {command_line(Command.ABORT, cluster)} {REASON}"


def _line(rollout: Rollout, command: Command, *more: str) -> str:
    return " ".join((command_line(command, rollout.cluster), *more))


def _takes_command(rollout: Rollout, command: Command) -> bool:
    return not isinstance(answer(rollout.stage, command, effects_stand=rollout.effects_stand), Refused)


def _never_text(rollout: Rollout) -> str:
    """Say that there is no undo and, if a gate is still to open, how to keep it shut."""
    if rollout.stage not in STEP_FROM or not _takes_command(rollout, Command.PAUSE) or is_paused(rollout):
        return f"{NEVER}."
    return f"{NEVER}; to keep the next gate shut: {_line(rollout, Command.PAUSE, REASON)}"


def _undo_approve(before: Rollout, after: Rollout, request: CommandRequest) -> str:
    if after.effects_stand:
        return f"Undo: {_line(after, Command.ROLLBACK, REASON)} (every quota back to its value without the rollout)"
    return f"Undo: {_line(after, Command.ABORT, REASON)} (Backstop writes no quota before the next gate opens)"


def _undo_object(before: Rollout, after: Rollout, request: CommandRequest) -> str:
    holds_before = {h.id: h for h in before.holds}
    new_objections = [h for h in after.holds if h.kind is HoldKind.OBJECTION and holds_before.get(h.id) != h]
    if not new_objections or not _takes_command(after, Command.RESOLVE):
        return f"{NEVER} now: the rollback is stuck." if new_objections else f"{NEVER}: the objection was there before."
    return f"Undo: {_line(after, Command.RESOLVE, '--hold', shlex.quote(new_objections[0].id), REASON)}"


def _undo_resume(before: Rollout, after: Rollout, request: CommandRequest) -> str:
    if not _takes_command(after, Command.PAUSE):
        return f"{NEVER}: nothing stops a rollback."
    soaks = " (the soak has started again all the same)" if after.stage in (Stage.BUFFERED, Stage.ENFORCED) else ""
    return f"Undo: {_line(after, Command.PAUSE, REASON)}{soaks}"


def _undo_resolve(before: Rollout, after: Rollout, request: CommandRequest) -> str:
    hold = before.hold(request.hold)
    if hold is not None and hold.kind is HoldKind.OBJECTION and hold.team:
        return f"Undo: {_line(after, Command.OBJECT, '--team', shlex.quote(hold.team), REASON)}"
    return _never_text(after)


def _launch_line(rollout: Rollout) -> str:
    """Return a launch like the earlier one: after a shadow, no pasted line opens a real rollout."""
    return command_line("launch", rollout.cluster) + (" --shadow" if rollout.shadow else "")


def _undo_rollback(before: Rollout, after: Rollout, request: CommandRequest) -> str:
    """Return the line for both abort and rollback."""
    if after.stage is Stage.ABORTED:
        return f"{NEVER}; to begin anew: {_launch_line(after)}"
    if after.undo is not None and after.undo.then is Stage.ABORTED:
        return f"{NEVER}: nothing stops a rollback. When it has ended: {_launch_line(after)}"
    return f"Undo, once it is rolled back: {_line(after, Command.RETRY)} (it makes a new plan from the same baseline)"


def _undo_retry(before: Rollout, after: Rollout, request: CommandRequest) -> str:
    if after.stage is Stage.ROLLING_BACK:
        return f"{NEVER}: nothing stops a rollback; if an undo fails again, the rollout is stuck as before."
    if not after.effects_stand:
        return f"Undo: {_line(after, Command.ABORT, REASON)}"
    # Hardware backs the values that a breach left; a rollback would raise them to the exact baseline.
    if not _takes_command(after, Command.PAUSE) or is_paused(after):
        return f"{NEVER}."
    return f"{NEVER}; to hold the next attempt: {_line(after, Command.PAUSE, REASON)}"


def _undo_close(before: Rollout, after: Rollout, request: CommandRequest) -> str:
    adopt = " --adopt" if before.stage is Stage.STUCK else ""
    return f"{NEVER}: the values stay. For a new promise: {_launch_line(after)}{adopt}"


UNDO: dict[Command, Callable[[Rollout, Rollout, CommandRequest], str]] = {
    Command.APPROVE: _undo_approve,
    Command.OBJECT: _undo_object,
    Command.RESUME: _undo_resume,
    Command.RESOLVE: _undo_resolve,
    Command.PROMOTE: lambda _, after, __: _never_text(after),
    Command.ABORT: _undo_rollback,
    Command.ROLLBACK: _undo_rollback,
    Command.RETRY: _undo_retry,
    Command.CLOSE: _undo_close,
}
