"""Where the undo of each command that changes something comes from: one table, and a test that it has them all.

`UNDOING` names who says the line: the workflow that obeys (models/rollout/undo_lines.py, models/fleet/undo_lines.py,
models/requests/commands.py, models/bringup/undo_lines.py), or the command itself. What only looks has nothing to undo.
"""

from __future__ import annotations

from models.fleet.command_rows import FLEET_ROWS
from models.requests.command_rows import REQUEST_ROWS
from models.rollout.command_rows import ROLLOUT_ROWS

THE_ROLLOUT, THE_FLEET, THE_REQUEST, ITSELF = "the rollout", "the fleet rollout", "the request", "the command"
THE_BRINGUP = "the bring-up"

UNDOING: dict[str, str] = {
    **dict.fromkeys(ROLLOUT_ROWS, THE_ROLLOUT),
    **dict.fromkeys((row.typed for row in FLEET_ROWS.values()), THE_FLEET),
    **dict.fromkeys(("request new", *(row.typed for row in REQUEST_ROWS.values())), THE_REQUEST),
    **{
        f"bringup {command}": THE_BRINGUP
        for command in (
            *("add", "hold", "release", "check-in", "retry", "skip", "stop", "revalidate", "cancel", "retire"),
        )
    },
    **dict.fromkeys(
        (
            *("launch", "hold", "calendar import", "calendar end", "confirm", "detach", "bringup give-up"),
            *("access token new", "access token revoke", "access seen", "countersign give", "countersign withdraw"),
        ),
        ITSELF,
    ),
}
"""By the command as it is typed."""
