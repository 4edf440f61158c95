"""Commands to a request for quota, one row each. The undo of most depends on the state of the request."""

from __future__ import annotations

from models.lifecycle.command_rows import NEVER, REASON, CommandField, rows_of
from models.lifecycle.command_rows import CommandRow as _Row

REQUEST_ROWS = rows_of(
    "request",
    _Row(
        "approve",
        "Approve a request, as an owner of the cluster or of the rollout that is open there.",
        "backstop request approve q-4f2a9c1b --reason 'agreed in the weekly'",
    ),
    _Row(
        "decline",
        "Decline a request, as an owner of the cluster or of the rollout that is open there.",
        "backstop request decline q-4f2a9c1b --reason 'flex has room for it'",
    ),
    _Row(
        "withdraw",
        "Withdraw a request, as the person who asked or as an owner. A grant with an end is given back now; a grant "
        "without an end cannot be withdrawn.",
        "backstop request withdraw q-4f2a9c1b --reason 'the run is done early'",
    ),
    _Row(
        "extend",
        "Give a grant a later end, as an owner of the cluster or of the rollout that is open there.\n\n"
        "The number of GPUs stays, so Backstop does not check again whether they fit.",
        "backstop request extend q-4f2a9c1b --until 14d --reason 'the run takes a week longer'",
        (
            CommandField(
                "until",
                "The new day when the GPUs are given back, such as 2026-12-24 (at its end, UTC), or 14d from now.",
                "DATE",
                True,
            ),
        ),
        undo=f"{NEVER}; to give the GPUs back now: backstop request withdraw {{request}} {REASON}",
    ),
)
