"""Commands to a bring-up, one row each. models/bringup/stages.py has the stages that allow each of them."""

from __future__ import annotations

from models.lifecycle.command_rows import NEVER, REASON, Asks, CommandField, NeedsReason, rows_of
from models.lifecycle.command_rows import CommandRow as _Row

_STEP = CommandField(
    "step",
    "The bring-up's step. Name it if the command fits several steps.",
    "STEP",
    argument=True,
    otherwise="the only one",
)

BRINGUP_ROWS = rows_of(
    "bringup",
    _Row(
        "check-in",
        "Report that a manual step is done. Without STEP: the step that waits for a person.",
        "backstop bringup check-in h100-new --reason 'merged'",
        (_STEP,),
        NeedsReason.NEVER,
    ),
    _Row(
        "hold",
        "Start nothing new. Running steps go on, and checks still run.",
        "backstop bringup hold h100-new --reason 'the room is not cooled yet'",
        undo="Undo: backstop bringup release {cluster}",
    ),
    _Row(
        "release",
        "Lift a hold.",
        "backstop bringup release h100-new",
        reason=NeedsReason.NEVER,
        undo=f"Undo: backstop bringup hold {{cluster}} {REASON} (running steps go on)",
    ),
    _Row(
        "retry",
        "Run again a step that failed or whose outcome is unknown (first check whether it still runs), or let a "
        "blocked bring-up try again.",
        "backstop bringup retry h100-new nodes --reason 'the API is back'",
        (_STEP,),
    ),
    _Row(
        "skip",
        "Count a step as done, or a check as passed. Status and audit keep the reason.",
        "backstop bringup skip h100-new --check first-job --reason 'run by hand'",
        (
            _STEP,
            CommandField(
                "check",
                "The check to count as passed. With `supply`, the bring-up does not wait for the nodes to arrive.",
                "CHECK",
            ),
        ),
    ),
    _Row(
        "stop",
        "End a running step. It then counts as failed: retry or skip it.",
        "backstop bringup stop h100-new nodes --reason 'wrong subscription'",
        (_STEP,),
        asks=Asks.STATUS,
        question="Stop {step} of {cluster}?",
    ),
    _Row(
        "revalidate",
        "Run every check again, also those that normally run once. The bring-up stays in its stage "
        "until they have answered.",
        "backstop bringup revalidate h100-new",
        reason=NeedsReason.NEVER,
        undo=f"{NEVER}: the earlier answers are gone.",
    ),
    _Row(
        "cancel",
        "Tear down what the steps built, the latest first, and end the bring-up. Backstop names what "
        "stays: the results of steps without an undo.",
        "backstop bringup cancel h100-new --reason 'the order was withdrawn'",
        (CommandField("stop", "Stop running steps. Without --stop, Backstop waits for them."),),
        asks=Asks.STATUS,
        question="Cancel the bring-up of {cluster}?",
        undo=f"{NEVER}. Once it has ended, enter the cluster again with `backstop bringup add`",
    ),
    _Row(
        "retire",
        "Take a cluster out of production: a rollout with notice takes its quotas to zero, then its recipe "
        "tears it down.\n\n"
        "It is torn down when no job runs there, or at --deadline.",
        "backstop bringup retire h100-old --deadline 2026-12-31T00:00Z --reason 'its lease ends' --yes",
        (
            CommandField(
                "deadline", "When to tear it down even if jobs run: 14d, or a time such as 2026-12-31T00:00Z.", "TIME"
            ),
        ),
        asks=Asks.STATUS,
        question="Retire {cluster}?",
        undo=f"{NEVER}. Once it has ended, enter the cluster again with `backstop bringup add`",
    ),
)
