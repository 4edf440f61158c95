"""A rollout's status as people read it, in 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from cli.answers import RolloutLine
from cli.output import clean, gpus, line, moment, row, span, table
from models.gates import Condition
from models.messages import RolloutStatus, TeamStatus
from models.stages import Stage

_STYLES = {
    Stage.PLANNED: "cyan",
    Stage.BUFFERED: "cyan",
    Stage.ENFORCED: "blue",
    Stage.MONITORED: "green",
    Stage.ROLLING_BACK: "yellow",
    Stage.ROLLED_BACK: "yellow",
    Stage.STUCK: "bold red",
}


def rollouts_parts(rollouts: Sequence[RolloutLine]) -> list[RenderableType]:
    """One line for each cluster's newest rollout."""
    if not rollouts:
        return [line("There is no rollout yet. Look at `backstop plan`, then `backstop launch CLUSTER`.")]
    made = table("CLUSTER", "STAGE", "WAVE", "OWNER", ">UNBACKED", "STARTED", "ENDED")
    for r in rollouts:
        row(
            made,
            r.cluster,
            r.stage,
            r.wave or None,
            r.owner or None,
            r.unbacked_gpus,
            moment(r.started),
            moment(r.closed),
            style="" if r.open else "dim",
        )
    return [made]


def status_line(s: RolloutStatus) -> str:
    """One line that changes when something a person cares about does."""
    said = [f"{s.stage}{' (shadow)' if s.shadow else ''}", f"{_health(s)}, {s.assigned_gpus} promised"]
    said += [f"at risk: {risk.team} has {risk.backing_gpus} of {risk.quota_gpus}" for risk in s.at_risk]
    said += [f"hold: {hold.kind} by {hold.actor}, {hold.reason}" for hold in s.holds]
    if s.undoing is not None:
        said.append(f"rollback ({s.undoing.why}): {s.undoing.reason}" + _left(s))
    if not s.holds:
        said += [f"waits for {_awaited(condition)}" for condition in s.waiting_for if condition.name != "holds"]
    if s.needs:
        said.append(f"needs: {s.needs}")
    if s.ended_because:
        said.append(s.ended_because)
    return clean("; ".join(said))


def status_parts(s: RolloutStatus) -> list[RenderableType]:
    """Everything about one rollout."""
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, text in _facts(s):
        facts.add_row(name, text)
    parts: list[RenderableType] = [_title(s), facts]
    if s.teams:
        parts += [Text(), _teams(s.teams)]
    return parts


def _title(s: RolloutStatus) -> Text:
    shadow = ("  shadow", "magenta") if s.shadow else ""
    since = f" since {moment(s.entered_at)} ({span(s.at - s.entered_at)})"
    return line((s.cluster, "bold"), "  ", (s.stage.value, _STYLES.get(s.stage, "")), shadow, since)


def _facts(s: RolloutStatus) -> list[tuple[str, Text]]:
    found = [("rollout", line(f"{s.rollout}, owner {s.owner}, attempt {s.attempt}{_failures(s)}"))]
    if s.plan_hash is not None:
        approved = f"approved by {s.approved_by}" if s.approved_by else "not approved"
        wave = f", wave {s.wave}" if s.wave else ""
        found.append(("plan", line(f"{s.plan_hash}, {approved}{wave}, cuts {gpus(s.cut_gpus)}")))
    found.append(("health", line(_health(s), "" if s.health_known else ("  not known or stale", "yellow"), _seen(s))))
    found.append(
        (
            "promised",
            line(
                f"{s.assigned_gpus} promised, {s.backed_gpus} backed, ",
                (f"{s.phantom_gpus} phantom", "red" if s.phantom_gpus else ""),
                f"; flex pool {s.flex_gpus}",
            ),
        )
    )
    for risk in s.at_risk:
        until = f"; a breach at {moment(risk.breach_at)}" if risk.breach_at else ""
        lost = "promise withdrawn" if risk.team in s.breach_of else "at risk"
        found.append((lost, line((f"{risk.team} has {risk.backing_gpus} healthy of {risk.quota_gpus}", "red"), until)))
    for hold in s.holds:
        until = f", until {moment(hold.until)}" if hold.until else ""
        found.append(("hold", line((f"{hold.kind} ", "yellow"), f"[{hold.id}] by {hold.actor}: {hold.reason}{until}")))
    found += [("objection", line(f"recorded, by {hold.actor}: {hold.reason}")) for hold in s.recorded_objections]
    if s.undoing is not None:
        found.append(("rollback", line(f"{s.undoing.why}, by {s.undoing.actor}: {s.undoing.reason}{_left(s)}")))
        found += [("stuck on", line((text, "red"))) for text in s.undoing.stuck_on]
    found += [
        ("waits for", line(f"{_awaited(condition)}{f', until {moment(condition.until)}' if condition.until else ''}"))
        for condition in s.waiting_for
        if condition.name != "holds"
    ]
    if s.next_at is not None:
        found.append(("next look", line(moment(s.next_at))))
    if s.needs:
        found.append(("needs", line((s.needs, "bold"))))
    if s.ended_because:
        found.append(("ended", line(s.ended_because)))
    return found


def _awaited(condition: Condition) -> str:
    return condition.text.removeprefix("waits for ")


def _failures(s: RolloutStatus) -> str:
    return f", {s.failures} of {s.attempts} failures" if s.failures else ""


def _health(s: RolloutStatus) -> str:
    return f"{'?' if s.healthy_gpus is None else s.healthy_gpus} healthy of {s.total_gpus}"


def _seen(s: RolloutStatus) -> str:
    return "" if s.health_at is None else f", seen {span(s.at - s.health_at)} ago"


def _left(s: RolloutStatus) -> str:
    return f"; left to undo: {', '.join(s.undoing.left)}" if s.undoing is not None and s.undoing.left else ""


def _teams(teams: Sequence[TeamStatus]) -> Table:
    made = table("TEAM", ">BASELINE", ">QUOTA", ">PLAN", ">BACKING", "VALUE", "ACK")
    for t in teams:
        lacks = t.backing_gpus is not None and t.backing_gpus < t.quota_gpus
        row(
            made,
            t.team if t.leaf else f"{t.team} (parent)",
            t.baseline_gpus,
            t.quota_gpus,
            t.planned_gpus,
            t.backing_gpus,
            "promise" if t.promise else "advisory",
            "yes" if t.acknowledged else None,
            style="red" if lacks else "",
        )
    return made
