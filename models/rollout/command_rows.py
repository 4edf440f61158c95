"""Commands to a rollout, one row each. models/rollout/stages.py has the stages that allow each of them."""

from __future__ import annotations

from models.lifecycle.command_rows import DECIDE, HALT, NEVER, REASON, Asks, CommandField, NeedsReason, rows_of
from models.lifecycle.command_rows import CommandRow as _Row

_TEAM = CommandField("team", "The team for which you speak.", "TEAM", needed=True)
_HOW = "accept|restore"
_WHAT_COMES_BACK = (
    "\n\nBackstop shows what every team gets back, and how much of that has healthy hardware behind it, and asks."
)

ROLLOUT_ROWS = rows_of(
    "rollout",
    _Row(
        "approve",
        "Approve a plan. Backstop then notifies teams, and the rollout goes on by itself.\n\n"
        "Without --plan Backstop shows the plan, asks, and approves only that one; --yes approves the current plan "
        "unseen. An approval covers later plans that cut no team more and use no deeper tier.",
        "backstop approve h100-worked\n"
        "backstop approve h100-worked --plan 3f0c9a51b2d4e687\n"
        "backstop approve --stage planned --needs\n"
        "backstop approve 'h100-*' --reason 'agreed in the weekly' --yes",
        (CommandField("plan_hash", "The plan to approve, by its hash.", "HASH", option="plan"),),
        NeedsReason.NEVER,
        Asks.PLAN,
        button="Approve the plan",
    ),
    _Row(
        "ack",
        "Acknowledge the notice for a team.",
        "backstop ack h100-worked --team research",
        (_TEAM,),
        NeedsReason.NEVER,
        Asks.SEVERAL,
        undo=f"{NEVER}; the team can still object: backstop object {{cluster}} --team {{team}} {REASON}",
        button="Acknowledge",
    ),
    _Row(
        "object",
        "Object for a team. Before `enforced` this holds the rollout; from then on Backstop only records the "
        "objection, for the owner to answer.\n\n"
        "A team has at most 5 objections, one for each person; your new one replaces your earlier one.",
        "backstop object h100-worked --team research --reason 'deadline on Friday'",
        (_TEAM,),
        asks=Asks.SEVERAL,
    ),
    _Row(
        "resolve",
        "Lift a hold: an objection, a drift, or another that `status` shows.\n\n"
        "`--hold proposal` declines a proposed plan. A pause ends with `resume`, and a maintenance window, a SEV or "
        "a freeze with `calendar end`.\n\n"
        "With an access file: an approver may lift any hold, and a team's member may lift that team's "
        "objections. Without an access file: the rollout's owner and the policy's `authorities` may lift "
        "any hold, and the cluster's owners (the policy's `owners`) any hold except an objection.",
        "backstop resolve h100-worked --hold objection-research --reason 'moved to Monday, research agrees'\n"
        "backstop resolve h100-worked --hold drift --how restore --reason 'changed by mistake'",
        (
            CommandField(
                "hold",
                "The hold's id, as `status` shows it. Each objection has its own: objection-TEAM, objection-TEAM-2.",
                "ID",
                needed=True,
            ),
            CommandField(
                "how",
                "For a drift: accept (the default) keeps the present values, restore writes Backstop's values again.",
                "accept|restore",
            ),
        ),
        asks=Asks.SEVERAL,
        question="{label} of {of}?",
        button="Lift a hold",
    ),
    _Row(
        "promote",
        "Waive the rest of the next gate's notice, soak and acknowledgements, and nothing else.\n\n"
        "Objections, other holds and a missing approval keep the gate shut. If a notice is not delivered yet, the "
        "quota may change before its team reads of it. At a terminal Backstop shows the holds and "
        "undelivered notices, and asks. A script needs --yes only for several clusters.",
        "backstop promote h100-worked --reason 'all teams agreed in the weekly'",
        asks=Asks.NOTICE,
    ),
    panel=DECIDE,
) | rows_of(
    "rollout",
    _Row(
        "pause",
        "Keep gates shut. Effects under way finish, and rollbacks still run.",
        "backstop pause h100-worked --reason 'SEV under investigation'",
        asks=Asks.SEVERAL,
        undo="Undo: backstop resume {cluster}",
    ),
    _Row(
        "resume",
        "Lift a pause. A soak under way starts from zero.",
        "backstop resume h100-worked",
        reason=NeedsReason.NEVER,
        asks=Asks.SEVERAL,
    ),
    _Row(
        "rollback",
        "Undo every effect, back to the baseline. The rollout stays open for a retry." + _WHAT_COMES_BACK,
        "backstop rollback h100-worked --reason 'evals are starved'",
        asks=Asks.UNDO,
        button="Roll back",
    ),
    _Row(
        "retry",
        "Start the next attempt after a rollback, or try the rest of a stuck rollback again.\n\n"
        "Remove the cause first; otherwise the rollout gets stuck again, which loses nothing. `backstop "
        "status` shows what will run.",
        "backstop retry h100-worked --reason 'nodes are back'",
        reason=NeedsReason.NEVER,
        asks=Asks.SEVERAL,
    ),
    _Row(
        "abort",
        "Undo every effect and end the rollout." + _WHAT_COMES_BACK,
        "backstop abort h100-worked --reason 'the buffer was wrong'",
        asks=Asks.UNDO,
    ),
    _Row(
        "close",
        "End a rollout and its promise, and leave the quotas as they are.\n\n"
        "If a quota is at risk or the rollout is stuck, --reason is required; Backstop shows who is at "
        "risk, and asks.",
        "backstop close h100-worked --reason 'a year without a breach'",
        reason=NeedsReason.SOMETIMES,
        asks=Asks.RISK,
    ),
    panel=HALT,
)
