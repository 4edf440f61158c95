"""Commands to a fleet rollout, one row each."""

from __future__ import annotations

from models.lifecycle.command_rows import NEVER, REASON, Asks, CommandField, NeedsReason, rows_of
from models.lifecycle.command_rows import CommandRow as _Row

_CLUSTERS = CommandField("clusters", "One or more clusters.", "CLUSTER", needed=True, argument=True, many=True)

FLEET_ROWS = rows_of(
    "fleet",
    _Row(
        "approve",
        "Approve the fleet's plan. Each cluster's rollout then goes on by itself as long as it cuts no team "
        "more and uses no deeper tier than this plan.\n\n"
        "Without --plan Backstop shows the plan and asks; --yes approves the current plan unseen. With FILE it "
        "approves that plan if it is current; else it shows the differences and asks.",
        "backstop fleet approve\nbackstop fleet approve plan.json",
        (
            CommandField("file", "A plan kept by `fleet plan --out`.", "FILE", argument=True),
            CommandField("plan_hash", "The plan to approve, by its hash.", "HASH", option="plan"),
        ),
        NeedsReason.NEVER,
        Asks.PLAN,
        "Approve plan {plan} of {size}?",
        f"Undo: backstop fleet abort --undo {REASON} (this undoes the rollouts that the fleet rollout started)",
        "Approve the plan",
    ),
    _Row(
        "pause",
        "Start no more clusters. Rollouts under way go on, each by its own gates.",
        "backstop fleet pause --reason 'SEV in the region'",
    ),
    _Row(
        "resume",
        "Lift a pause, the stop after too many rollbacks, or the hold of a failed pilot. Rollbacks so far "
        "no longer count.\n\n"
        "A soak or bake under way starts from zero. If clusters have failed, Backstop shows them and asks.",
        "backstop fleet resume --reason 'bad racks replaced'",
        asks=Asks.FAILED,
        question="Let the fleet rollout go on?",
        undo=f"Undo: backstop fleet pause {REASON} (earlier failures still do not count)",
    ),
    _Row(
        "skip",
        "Leave clusters out. A rollout that is open there goes on.",
        "backstop fleet skip h100-7 h100-8 --reason 'retired in May'",
        (_CLUSTERS,),
        button="Skip clusters",
    ),
    _Row(
        "move",
        "Move waiting clusters to another wave, or add skipped clusters again. They keep that wave when "
        "Backstop computes the waves again.",
        "backstop fleet move h100-7 --wave busy --reason 'training until Friday'",
        (_CLUSTERS, CommandField("wave", "0 (pilot) to 4, or its name, such as busy.", "N|TIER", needed=True)),
        button="Move clusters",
    ),
    _Row(
        "promote",
        "Waive the rest of the pilots' soak or of a wave's bake, and nothing else.",
        "backstop fleet promote --reason 'pilots have run for a week'",
    ),
    _Row(
        "pace",
        "Change how fast the fleet rollout goes.\n\n"
        "docs/reading.md names the settings. The change takes effect at once, also for a soak or bake under way. "
        "Rollouts under way keep the limit on moved GPUs that they were opened with.",
        "backstop fleet pace parallel=20 --reason 'the first two waves went well'",
        (
            CommandField(
                "pace", "The settings to change, such as parallel=20.", "KEY=VALUE...", True, argument=True, many=True
            ),
        ),
        button="Change the pace",
    ),
    _Row(
        "abort",
        "End the fleet rollout. Rollouts that have changed nothing end with it; the others go on, or are undone with "
        "--undo.\n\n"
        "Backstop shows what ends, what every team gets back, and how much of that has healthy hardware behind it, "
        "and asks.",
        "backstop fleet abort --undo --reason 'wrong buffer' --yes",
        (CommandField("undo", "Also undo its rollouts, the newest first."),),
        asks=Asks.UNDO,
        question="Abort the fleet rollout{also}?",
        undo=f"{NEVER}. When it has ended: backstop launch --fleet",
    ),
)
