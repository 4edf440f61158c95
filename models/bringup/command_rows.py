"""Commands to a bring-up, one row each. Which of them a stage allows is in models/bringup/stages.py."""

from __future__ import annotations

from models.lifecycle.command_rows import NEVER, REASON, Asks, CommandField, NeedsReason, rows_of
from models.lifecycle.command_rows import CommandRow as _Row

_STEP = CommandField("step", "The step, if several could be meant.", "STEP", argument=True, otherwise="the only one")

BRINGUP_ROWS = rows_of(
    "bringup",
    _Row(
        "check-in",
        "Report that a person's step is done: the second of two touches. Without STEP: the one that waits.",
        "backstop bringup check-in h100-new --reason 'merged'",
        (_STEP,),
        NeedsReason.NEVER,
    ),
    _Row(
        "hold",
        "Start nothing new. Running steps go on, and checks are still asked.",
        "backstop bringup hold h100-new --reason 'the room is not cooled yet'",
        undo="Undo: backstop bringup release {cluster}",
    ),
    _Row(
        "release",
        "Lift a hold.",
        "backstop bringup release h100-new",
        reason=NeedsReason.NEVER,
        undo=f"Undo: backstop bringup hold {{cluster}} {REASON} (what has begun goes on)",
    ),
    _Row(
        "retry",
        "Run again what failed or is unclear (look first whether it still runs), or try again what is blocked.",
        "backstop bringup retry h100-new nodes --reason 'the API is back'",
        (_STEP,),
    ),
    _Row(
        "skip",
        "Count a step as done, or a check as green. Status and audit keep the reason.",
        "backstop bringup skip h100-new --check first-job --reason 'run by hand'",
        (_STEP, CommandField("check", "The check; supply: do not wait for it.", "CHECK")),
    ),
    _Row(
        "stop",
        "End a running step. It has failed then: retry or skip it.",
        "backstop bringup stop h100-new nodes --reason 'wrong subscription'",
        (_STEP,),
        asks=Asks.STATUS,
        question="Stop {step} of {cluster}?",
    ),
    _Row(
        "revalidate",
        "Ask every check again, including those asked only once. The state stays.",
        "backstop bringup revalidate h100-new",
        reason=NeedsReason.NEVER,
        undo=f"{NEVER}: the answers before are gone.",
    ),
    _Row(
        "cancel",
        "Unmake what was made, the latest first, and end. Backstop names what has no undo and stays.",
        "backstop bringup cancel h100-new --reason 'the order was withdrawn'",
        (CommandField("stop", "Stop running steps; without it, wait for them."),),
        asks=Asks.STATUS,
        question="Cancel the bring-up of {cluster}?",
        undo=f"{NEVER}. When it has ended: backstop bringup add",
    ),
    _Row(
        "retire",
        "Take a cluster out of production: a rollout with notice takes its quotas to zero, then it is unmade.\n\n"
        "It is unmade when no job runs, or at --deadline.",
        "backstop bringup retire h100-old --deadline 2026-12-31T00:00Z --reason 'its lease ends' --yes",
        (
            CommandField(
                "deadline", "When it is unmade even if jobs run: 14d, or a time such as 2026-12-31T00:00Z.", "TIME"
            ),
        ),
        asks=Asks.STATUS,
        question="Retire {cluster}?",
        undo=f"{NEVER}. When it has ended: backstop bringup add",
    ),
)
