"""A rollout's status for people, in 80 columns."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from rich.console import RenderableType
from rich.text import Text

from client.answer_models import STALE
from models.cluster.derived_buffer import Derived
from models.cluster.policy import AFTER_ALL
from models.cluster.windows import Foretold
from models.lifecycle.holds import Hold
from models.rollout.stages import Command, Stage, command_line
from models.rollout.status_models import (
    UNGUARDED,
    Condition,
    Risk,
    RolloutStatus,
    TeamStatus,
    UndoStatus,
    WouldStand,
    value_text,
)
from models.texts import some_of
from views.layout import FactSheet, Grid, commands_in
from views.words import clean, count, gpus, line, lost_line, moment, number, row, span, table

_STYLES = {
    Stage.PLANNED: "cyan",
    Stage.BUFFERED: "cyan",
    Stage.ENFORCED: "blue",
    Stage.MONITORED: "green",
    Stage.ROLLING_BACK: "yellow",
    Stage.ROLLED_BACK: "yellow",
    Stage.STUCK: "bold red",
}
_WHEN = {Stage.ROLLING_BACK: "last look", Stage.STUCK: "last look"}
"""The words before a time, by stage: while effects are being undone, nobody looks."""
_ROWS = 10
"""The most quotas in one list, so that a person who was called at night reads one screen."""
_AT_ONCE = timedelta(seconds=1)


def status_line(status: RolloutStatus) -> str:
    """Return one line that changes when something a person cares about does."""
    parts = [f"{status.stage}{' (shadow)' if status.shadow else ''}", _health(status)]
    if status.stage.has_ended:
        return clean("; ".join((*parts, status.ended_because or "the rollout has ended")))
    parts.append(
        f"{status.assigned_gpus:,} promised" + (f" (would be {status.would.assigned_gpus:,})" if status.would else "")
    )
    parts += [f"the last look failed: {status.look_failed}"] if status.look_failed else []
    parts += [f"{_trouble(status, risk.team)}: {_both(status, risk)}" for risk in status.at_risk]
    parts += [f"hold: {hold.kind} by {hold.actor}, {hold.reason}" for hold in status.holds]
    if status.undoing is not None:
        parts.append(f"rollback ({status.undoing.why}): {status.undoing.reason}{_left_text(status.undoing)}")
    if not status.holds:
        parts += [f"waits for {awaited_text(condition)}" for condition in status.waiting_for]
    if status.needs:
        parts.append(f"needs: {status.needs}")
    return clean("; ".join(parts))


def status_parts(
    status: RolloutStatus,
    now: datetime | None = None,
    source_at: datetime | None = None,
    could: Sequence[str] = (),
    *,
    could_lift: Mapping[str, str] | None = None,
    tracked: bool = False,
) -> list[RenderableType]:
    """Return everything about one rollout. `source_at`: when the ledger last got health, where it was asked.

    `could`: who could give the command that it needs. `could_lift`: who could lift each hold, by hold. `tracked`: the
    next gate's conditions are already shown beside it.
    """
    now = now or datetime.now(UTC)
    shadow = ("  (shadow: nothing is written)", "magenta") if status.shadow else ""
    since = f" since {moment(status.entered_at)} ({span(now - status.entered_at)})"
    ended = [("ended", line(status.ended_because))]
    facts = FactSheet(
        [
            *_list_facts(status, now, source_at),
            *(ended if status.stage.has_ended else _ahead(status, could, could_lift or {}, tracked)),
        ]
    )
    title = line((status.cluster, "bold"), "  ", (status.stage.value, _STYLES.get(status.stage, "")), shadow, since)
    return [
        title,
        *([lost_line(status.lost)] if status.lost else []),
        facts,
        *((Text(), *_teams_parts(status)) if status.teams else ()),
    ]


def _list_facts(status: RolloutStatus, now: datetime, source_at: datetime | None) -> Iterator[tuple[str, Text]]:
    """Yield the facts of its present state."""
    failures = f", failed {status.failures} of {count(status.attempts, 'time')}" if status.failures else ""
    yield "rollout", line(f"{status.rollout}, owner {status.owner}, attempt {status.attempt}{failures}")
    if status.plan_hash is not None:
        # An undo ends the approval, so that an ended rollout does not say whether it had one.
        unapproved = "" if status.stage.has_ended else ", not approved"
        approved = f", approved by {status.approved_by}" if status.approved_by else unapproved
        wave = ", after all waves" if status.wave == AFTER_ALL else f", wave {status.wave}" if status.wave else ""
        yield "plan", line(f"{status.plan_hash}{approved}{wave}, cuts {gpus(status.cut_gpus)}")
    if status.buffer is not None:
        looked = "" if status.buffer_at is None else f"; last computed {moment(status.buffer_at)}"
        yield "buffer", line(_buffer(status.buffer), looked)
    yield "health", _health_seen(status, now, source_at)
    if status.look_failed:
        yield "NOT seen", line((f"the last look failed: {status.look_failed}", "red"))
    if status.health_fault and not status.stage.has_ended:
        yield "source", line((status.health_fault, "yellow"))
    if not status.stage.has_ended:
        healthy_gpus = status.healthy_gpus if status.doubted_gpus is None else status.doubted_gpus
        doubt = (
            ""
            if status.doubted_gpus is None
            else f"; computed from a newer sample, which is in doubt: {count(status.doubted_gpus, 'healthy GPU')}"
        )
        yield _WHEN.get(status.stage, "now"), _sums(status, healthy_gpus, doubt)
        if status.would is not None:
            yield "would be", _sums(status.would, healthy_gpus)
        yield from _published_facts(status)
    for risk in status.at_risk:
        due = f"; a breach at {moment(risk.breach_at)}" if risk.breach_at and risk.team not in status.breach_of else ""
        yield (
            _trouble(status, risk.team),
            line((_both(status, risk), "red"), due, f"; {risk.yields}" if risk.yields else ""),
        )
    for foretold in status.foretold:
        yield "foretold", foretold_line(foretold, now)


def _health_seen(status: RolloutStatus, now: datetime, source_at: datetime | None) -> Text:
    """Return the health that the rollout uses, its age, and whether its source has newer."""
    if status.health_at is None and status.doubted_gpus is not None:
        until = "this figure counts until the clusters recover or a person confirms the fall"
        return line(_health(status), (f", the last figure before Backstop doubted its source: {until}", "yellow"))
    if status.stage.has_ended or status.health_at is None:
        return line(_health(status), "" if status.health_at is None else f", as of {moment(status.health_at)}")
    parts = [f"{_health(status)}, as of {moment(status.health_at)} ({span(now - status.health_at)} ago)"]
    latest = max(status.health_at, source_at or status.health_at)
    stale = not status.health_known or (source_at is not None and now - latest >= (status.stale_after or STALE))
    if latest > status.health_at:
        which = "the rollout has not read yet" if status.doubted_gpus is None else "does not count yet"
        parts.append(f"; its source has a newer sample, from {moment(latest)}, which {which}")
    return line(*parts, ("; not known or stale", "yellow") if stale else "")


def _sums(status: RolloutStatus | WouldStand, healthy_gpus: int | None, doubt: str = "") -> Text:
    """Return the sums. Flex is more than the surplus, because it has the unused part of quotas too."""
    free = None if healthy_gpus is None else max(0, healthy_gpus - status.backed_gpus)
    surplus = "" if free is None else f"surplus {free:,}, "
    unused = (
        "" if free is None or free >= status.flex_gpus else f" ({status.flex_gpus - free:,} of it unused inside quotas)"
    )
    return line(
        f"{status.assigned_gpus:,} promised, {status.backed_gpus:,} backed, ",
        (f"{status.phantom_gpus:,} phantom", "red" if status.phantom_gpus else ""),
        f"; {surplus}flex {status.flex_gpus:,}{unused}",
        (doubt, "yellow"),
    )


def _published_facts(status: RolloutStatus) -> Iterator[tuple[str, Text]]:
    """Yield the part of the surplus that a scheduler reads, or for a shadow would read: it is no second flex."""
    grows = "" if status.flex_grows_at is None else f"; more if the surplus lasts until {moment(status.flex_grows_at)}"
    if status.would is not None and status.would.flex_published_gpus is not None:
        is_ = "nothing" if status.flex_published_gpus is None else f"{status.flex_published_gpus:,}"
        yield (
            "published",
            line(f"{is_}; a real rollout would publish {status.would.flex_published_gpus:,} of the surplus{grows}"),
        )
    elif status.flex_published_gpus is not None:
        yield "published", line(f"{status.flex_published_gpus:,} of the surplus{grows}")


def _proposal_facts(status: RolloutStatus) -> Iterator[tuple[str, Text]]:
    """Yield what a plan on the long-run health would change, by team."""
    proposal = status.proposal
    if proposal is None:
        return
    inside = "inside" if proposal.inside else "outside"
    health = f"{gpus(proposal.healthy_gpus)} ({proposal.planned_gpus:,} when planned)"
    basis = f"{proposal.plan_hash}, based on the usual health: {health}"
    yield "proposed", line((basis, "yellow"), f"; {inside} what was approved")
    if proposal.buffer is not None:
        yield "", line(f"buffer {_buffer(proposal.buffer)}")
    for value in proposal.values[:_ROWS]:
        yield "", line(f"{value.team} {value.quota_gpus:,} -> {value.proposed_gpus:,}")
    if len(proposal.values) > _ROWS:
        yield "", line(f"and {count(len(proposal.values) - _ROWS, 'more quota')}: {_in_full(status)}")


def _buffer(derived: Derived) -> str:
    return f"{derived.needed} of {gpus(derived.total)}: {derived.text}"


def foretold_line(foretold: Foretold, now: datetime) -> Text:
    """Return "in 3d, 26 GPUs of team X lose their backing"; "from now on" if a window begins within a second."""
    loses = ", ".join(
        f"{gpus(lost)} of {team}" + (f" ({lacks:,} will then lack backing)" if lacks > lost else "")
        for team, lost in foretold.loses.items()
        for lacks in [foretold.lacks[team]]
    )
    return line(
        f"in {span(foretold.starts - now)}, " if foretold.starts - now > _AT_ONCE else "from now on, ",
        (f"{loses} {'loses its' if sum(foretold.loses.values()) == 1 else 'lose their'} backing", "yellow"),
        f": {foretold.kind} from {moment(foretold.starts)} until {moment(foretold.ends)} ({foretold.reason})",
    )


def _ahead(
    status: RolloutStatus, could: Sequence[str], could_lift: Mapping[str, str], tracked: bool
) -> Iterator[tuple[str, Text]]:
    """Yield what holds the rollout back, and what comes next."""
    yield from _holds(status, could_lift)
    if status.undoing is not None:
        yield from _undo_facts(status, status.undoing)
    yield from _proposal_facts(status)
    for condition in status.waiting_for:
        if condition.name != "holds" and not tracked:  # holds have their own lines
            until = f", until {moment(condition.until)}" if condition.until else ""
            yield "waits for", line(f"{awaited_text(condition)}{until}")
    if status.next_at is not None:
        yield "next look", line(moment(status.next_at))
    choices = status.undoing.choices if status.undoing is not None else ()
    if status.needs:
        yield "needs", line(("a person: nothing happens by itself" if choices else status.needs, "bold"))
    elif status.unguarded:
        abort = f"{command_line(Command.ABORT, status.cluster)} --reason '...'"
        yield "unguarded", line((UNGUARDED, "yellow"), f"; restore the baseline: {abort}")
    if could:
        yield "could act", line(some_of(could, 5))
    for choice in choices:
        yield choice.command, line((choice.line, "bold"))
        yield "", line(choice.does)


def _holds(status: RolloutStatus, could_lift: Mapping[str, str]) -> Iterator[tuple[str, Text]]:
    for hold in status.holds:
        until = f", until {moment(hold.until)}" if hold.until else ""
        # A window's hold is no one's to resolve: it ends with the window.
        ends = f"; see backstop calendar show {shlex.quote(status.cluster)}" if hold.actor == "calendar" else ""
        yield "hold", line((f"{hold.kind} ", "yellow"), f"[{hold.id}] by {hold.actor}: {hold.reason}{until}{ends}")
        yield from _lift_facts(status, hold, could_lift)
    for hold in status.recorded_objections:
        yield "objection", line(f"recorded, by {hold.actor}: {hold.reason}")
        yield from _lift_facts(status, hold, could_lift)


def _lift_facts(status: RolloutStatus, hold: Hold, could_lift: Mapping[str, str]) -> Iterator[tuple[str, Text]]:
    """Yield the command that lifts a hold, where `needs` does not say it anyway, and who could give it."""
    if hold.id in liftable_beside_needs(status):
        who = f" (could: {could_lift[hold.id]})" if hold.id in could_lift else ""
        yield "", line(f"lift it: {status.lifts[hold.id]}{who}")


def liftable_beside_needs(status: RolloutStatus) -> set[str]:
    """Return the holds that a person can lift by another command than the one that the rollout needs."""
    return {hold for hold, command in status.lifts.items() if command not in status.needs}


def _undo_facts(status: RolloutStatus, undoing: UndoStatus) -> Iterator[tuple[str, Text]]:
    reason = undoing.reason.removeprefix(f"{undoing.why}: ")
    yield "rollback", line(f"{undoing.why}, by {undoing.actor}: {reason}{_left_text(undoing)}")
    for text in undoing.undone:
        yield "undone", line((text, "green"))
    for text in undoing.not_undone or undoing.stuck_on:
        yield "NOT undone", line((text, "red"))
    for value in undoing.values[:_ROWS]:
        yield "still", line((value_text(value), "red"))
    if len(undoing.values) > _ROWS:
        yield "", line(f"and {count(len(undoing.values) - _ROWS, 'more quota')}: {_in_full(status)}")


def _in_full(status: RolloutStatus) -> str:
    return f"{command_line('status', status.cluster)} --json"


def awaited_text(condition: Condition) -> str:
    return condition.text.removeprefix("waits for ")


def shorten_condition(condition: Condition, needs: str) -> str:
    """Return the condition without a command that `needs` already names."""
    text = awaited_text(condition)
    for start, end in commands_in(text):
        if text[start:end] in needs:
            return text[:start].rstrip(" :`")
    return text


def _both(status: RolloutStatus, risk: Risk) -> str:
    has = "would have" if status.shadow else "has"
    healthy = "1 healthy GPU" if risk.backing_gpus == 1 else f"{risk.backing_gpus:,} healthy GPUs"
    return f"{risk.team} {has} {healthy} behind a quota of {risk.quota_gpus:,}"


def _trouble(status: RolloutStatus, team: str) -> str:
    return "in breach" if team in status.breach_of else "at risk"


def _health(status: RolloutStatus) -> str:
    return f"{'?' if status.healthy_gpus is None else number(status.healthy_gpus)} healthy of {status.total_gpus:,}"


def _left_text(undoing: UndoStatus) -> str:
    return f"; left to undo: {', '.join(undoing.left)}" if undoing.left else ""


def _teams_parts(status: RolloutStatus) -> Iterator[RenderableType]:
    """Return every team; of a stuck rollout the first ones, so that its remedy is not scrolled away."""
    if status.stage is not Stage.STUCK or len(status.teams) <= _ROWS:
        yield _teams(status.teams, shadow=status.shadow)
        return
    left = {value.team for value in status.undoing.values} if status.undoing is not None else set()
    yield _teams(sorted(status.teams, key=lambda t: t.team not in left)[:_ROWS], shadow=status.shadow)
    yield line(f"and {count(len(status.teams) - _ROWS, 'more team')}: {_in_full(status)}")


def _teams(teams: Sequence[TeamStatus], *, shadow: bool) -> Grid:
    would = [">WOULD BE", ">BACKING THEN"] if shadow else []
    shown = table(
        *("TEAM", ">BASELINE", ">QUOTA", ">PLAN", ">BACKING", *would, "=VALUE", "=ACK"), least=("ACK", "BASELINE")
    )
    for t in teams:
        lacks = t.backing_gpus is not None and t.backing_gpus < t.quota_gpus
        row(
            shown,
            t.team if t.leaf else f"{t.team} (parent)",
            t.baseline_gpus,
            t.quota_gpus,
            t.planned_gpus,
            t.backing_gpus,
            *([t.would_gpus, t.would_backing_gpus] if shadow else []),
            "promise" if t.promise else "advisory",
            "yes" if t.acknowledged else None,
            style="red" if lacks else "",
        )
    return shown
