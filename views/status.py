"""A rollout's status as people read it, in 80 columns."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from rich.console import RenderableType
from rich.text import Text

from client.answer_models import STALE
from models.base import some_of, verb_of
from models.cluster.derived_buffer import Derived
from models.cluster.windows import Foretold
from models.rollout.holds import Hold
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
from views.layout import FactSheet, Grid, commands_in
from views.words import clean, count, gpus, line, moment, number, row, span, table

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
"""Nobody looks while effects are being undone."""
_ROWS = 10
_AT_ONCE = timedelta(seconds=1)
"""Of quotas, where a rollout is stuck: a person who was called at night reads one screen."""


def status_line(s: RolloutStatus) -> str:
    """One line that changes when something a person cares about does."""
    parts = [f"{s.stage}{' (shadow)' if s.shadow else ''}", _health(s)]
    if s.stage.has_ended:
        return clean("; ".join((*parts, s.ended_because or "the rollout has ended")))
    parts.append(f"{s.assigned_gpus:,} promised" + (f" (would be {s.would.assigned_gpus:,})" if s.would else ""))
    parts += [f"the last look failed: {s.look_failed}"] if s.look_failed else []
    parts += [f"{_trouble(s, risk.team)}: {_both(s, risk)}" for risk in s.at_risk]
    parts += [f"hold: {hold.kind} by {hold.actor}, {hold.reason}" for hold in s.holds]
    if s.undoing is not None:
        parts.append(f"rollback ({s.undoing.why}): {s.undoing.reason}{_left(s.undoing)}")
    if not s.holds:
        parts += [f"waits for {awaited_text(condition)}" for condition in s.waiting_for]
    if s.needs:
        parts.append(f"needs: {s.needs}")
    return clean("; ".join(parts))


def status_parts(
    s: RolloutStatus,
    now: datetime | None = None,
    source_at: datetime | None = None,
    could: Sequence[str] = (),
    *,
    tracked: bool = False,
) -> list[RenderableType]:
    """Everything about one rollout. `source_at`: of the ledger's latest health, where it was asked. `could`: who could
    give the command that it needs. `tracked`: what the next gate waits for stands beside it already."""
    now = now or datetime.now(UTC)
    shadow = ("  (shadow: nothing is written)", "magenta") if s.shadow else ""
    since = f" since {moment(s.entered_at)} ({span(now - s.entered_at)})"
    ended = [("ended", line(s.ended_because))]
    facts = FactSheet([*_standing(s, now, source_at), *(ended if s.stage.has_ended else _ahead(s, could, tracked))])
    title = line((s.cluster, "bold"), "  ", (s.stage.value, _STYLES.get(s.stage, "")), shadow, since)
    return [title, facts, *((Text(), *_teams_parts(s)) if s.teams else ())]


def _standing(s: RolloutStatus, now: datetime, source_at: datetime | None) -> Iterator[tuple[str, Text]]:
    """What is so."""
    failures = f", failed {s.failures} of {count(s.attempts, 'time')}" if s.failures else ""
    yield "rollout", line(f"{s.rollout}, owner {s.owner}, attempt {s.attempt}{failures}")
    if s.plan_hash is not None:
        approved = f"approved by {s.approved_by}" if s.approved_by else "not approved"
        wave = f", wave {s.wave}" if s.wave else ""
        yield "plan", line(f"{s.plan_hash}, {approved}{wave}, cuts {gpus(s.cut_gpus)}")
    if s.buffer is not None:
        looked = "" if s.buffer_at is None else f"; looked at again {moment(s.buffer_at)}"
        yield "buffer", line(_buffer(s.buffer), looked)
    yield "health", _seen(s, now, source_at)
    if s.look_failed:
        yield "NOT seen", line((f"the last look failed: {s.look_failed}", "red"))
    if s.health_fault and not s.stage.has_ended:
        yield "source", line((s.health_fault, "yellow"))
    if not s.stage.has_ended:
        healthy_gpus = s.healthy_gpus if s.doubted_gpus is None else s.doubted_gpus
        doubt = "" if s.doubted_gpus is None else f"; by a newer sample of {gpus(s.doubted_gpus)} healthy, in doubt"
        yield _WHEN.get(s.stage, "now"), _sums(s, healthy_gpus, doubt)
        if s.would is not None:
            yield "would be", _sums(s.would, healthy_gpus)
        yield from _published(s)
    for risk in s.at_risk:
        due = f"; a breach at {moment(risk.breach_at)}" if risk.breach_at and risk.team not in s.breach_of else ""
        yield _trouble(s, risk.team), line((_both(s, risk), "red"), due, f"; {risk.yields}" if risk.yields else "")
    for foretold in s.foretold:
        yield "foretold", foretold_line(foretold, datetime.now(UTC))


def _seen(s: RolloutStatus, now: datetime, source_at: datetime | None) -> Text:
    """The health that the rollout goes by, how old it is, and whether its source knows better."""
    if s.stage.has_ended or s.health_at is None:
        return line(_health(s), "" if s.health_at is None else f", as of {moment(s.health_at)}")
    parts = [f"{_health(s)}, as of {moment(s.health_at)} ({span(now - s.health_at)} ago)"]
    latest = max(s.health_at, source_at or s.health_at)
    stale = not s.health_known or (source_at is not None and now - latest >= (s.stale_after or STALE))
    if latest > s.health_at:
        parts.append(f"; its source has a sample of {moment(latest)}, which it has not looked at")
    return line(*parts, ("; not known or stale", "yellow") if stale else "")


def _sums(s: RolloutStatus | WouldStand, healthy_gpus: int | None, doubt: str = "") -> Text:
    """What quotas leave unused is flex too, so that it is more than the surplus; `backstop flex` has both."""
    free = None if healthy_gpus is None else max(0, healthy_gpus - s.backed_gpus)
    surplus = "" if free is None else f"surplus {free:,}, "
    unused = "" if free is None or free >= s.flex_gpus else f" ({s.flex_gpus - free:,} that quotas leave unused)"
    return line(
        f"{s.assigned_gpus:,} promised, {s.backed_gpus:,} backed, ",
        (f"{s.phantom_gpus:,} phantom", "red" if s.phantom_gpus else ""),
        f"; {surplus}flex {s.flex_gpus:,}{unused}",
        (doubt, "yellow"),
    )


def _published(s: RolloutStatus) -> Iterator[tuple[str, Text]]:
    """The part of the surplus that a scheduler reads, which is no second flex; of a shadow also what it would read."""
    grows = "" if s.flex_grows_at is None else f"; more if it stands until {moment(s.flex_grows_at)}"
    if s.would is not None and s.would.flex_published_gpus is not None:
        is_ = "nothing" if s.flex_published_gpus is None else f"{s.flex_published_gpus:,}"
        yield "published", line(f"{is_}; {s.would.flex_published_gpus:,} of the surplus would be{grows}")
    elif s.flex_published_gpus is not None:
        yield "published", line(f"{s.flex_published_gpus:,} of the surplus{grows}")


def _proposed(s: RolloutStatus) -> Iterator[tuple[str, Text]]:
    """What a plan on the long-run health would change, by team."""
    p = s.proposal
    if p is None:
        return
    inside = "inside" if p.inside else "outside"
    basis = f"{p.plan_hash}, on the usual health of {gpus(p.healthy_gpus)} ({p.planned_gpus:,} when planned)"
    yield "proposed", line((basis, "yellow"), f"; {inside} what was approved")
    if p.buffer is not None:
        yield "", line(f"buffer {_buffer(p.buffer)}")
    for value in p.values[:_ROWS]:
        yield "", line(f"{value.team} {value.quota_gpus:,} -> {value.proposed_gpus:,}")
    if len(p.values) > _ROWS:
        yield "", line(f"and {count(len(p.values) - _ROWS, 'more quota')}: {_in_full(s)}")


def _buffer(derived: Derived) -> str:
    return f"{derived.needed} of {gpus(derived.total)}, by health history: {derived.text}"


def foretold_line(foretold: Foretold, now: datetime) -> Text:
    """In 3d, 26 GPUs of team X lose their backing; of a window that begins within the second, from now on."""
    loses = ", ".join(
        f"{gpus(lost)} of {team}" + (f" ({lacks} {verb_of(lacks, 'lacks', 'lack')} it then)" if lacks > lost else "")
        for team, lost in foretold.loses.items()
        for lacks in [foretold.lacks[team]]
    )
    return line(
        f"in {span(foretold.starts - now)}, " if foretold.starts - now > _AT_ONCE else "from now on, ",
        (f"{loses} lose their backing", "yellow"),
        f": {foretold.kind} from {moment(foretold.starts)} until {moment(foretold.ends)} ({foretold.reason})",
    )


def _ahead(s: RolloutStatus, could: Sequence[str], tracked: bool) -> Iterator[tuple[str, Text]]:
    """What keeps it, and what comes next."""
    yield from _holds(s)
    if s.undoing is not None:
        yield from _undone(s, s.undoing)
    yield from _proposed(s)
    for condition in s.waiting_for:
        if condition.name != "holds" and not tracked:  # holds have their own lines
            until = f", until {moment(condition.until)}" if condition.until else ""
            yield "waits for", line(f"{awaited_text(condition)}{until}")
    if s.next_at is not None:
        yield "next look", line(moment(s.next_at))
    choices = s.undoing.choices if s.undoing is not None else ()
    if s.needs:
        yield "needs", line(("a person: nothing happens by itself" if choices else s.needs, "bold"))
    elif s.unguarded:
        abort = f"{command_line(Command.ABORT, s.cluster)} --reason '...'"
        yield "unguarded", line((UNGUARDED, "yellow"), f"; restore the baseline: {abort}")
    if could:
        yield "could act", line(some_of(could, 5))
    for choice in choices:
        yield choice.command, line((choice.line, "bold"))
        yield "", line(choice.does)


def _holds(s: RolloutStatus) -> Iterator[tuple[str, Text]]:
    for hold in s.holds:
        until = f", until {moment(hold.until)}" if hold.until else ""
        # A window's hold is no one's to resolve: it ends with the window.
        ends = f"; see backstop calendar show {shlex.quote(s.cluster)}" if hold.actor == "calendar" else ""
        yield "hold", line((f"{hold.kind} ", "yellow"), f"[{hold.id}] by {hold.actor}: {hold.reason}{until}{ends}")
        yield from _lifted_by(s, hold)
    for hold in s.recorded_objections:
        yield "objection", line(f"recorded, by {hold.actor}: {hold.reason}")
        yield from _lifted_by(s, hold)


def _lifted_by(s: RolloutStatus, hold: Hold) -> Iterator[tuple[str, Text]]:
    """What lifts it, where that is not said as the next thing to do anyway."""
    if hold.id in s.lifts and s.lifts[hold.id] not in s.needs:
        yield "", line(f"lift it: {s.lifts[hold.id]}")


def _undone(s: RolloutStatus, undoing: UndoStatus) -> Iterator[tuple[str, Text]]:
    reason = undoing.reason.removeprefix(f"{undoing.why}: ")
    yield "rollback", line(f"{undoing.why}, by {undoing.actor}: {reason}{_left(undoing)}")
    for text in undoing.undone:
        yield "undone", line((text, "green"))
    for text in undoing.not_undone or undoing.stuck_on:
        yield "NOT undone", line((text, "red"))
    for value in undoing.values[:_ROWS]:
        yield "still", line((value_text(value), "red"))
    if len(undoing.values) > _ROWS:
        yield "", line(f"and {count(len(undoing.values) - _ROWS, 'more quota')}: {_in_full(s)}")


def _in_full(s: RolloutStatus) -> str:
    return f"{command_line('status', s.cluster)} --json"


def awaited_text(condition: Condition) -> str:
    return condition.text.removeprefix("waits for ")


def awaited_alone(condition: Condition, needs: str) -> str:
    """Without a command that stands with what the rollout needs anyway."""
    text = awaited_text(condition)
    for start, end in commands_in(text):
        if text[start:end] in needs:
            return text[:start].rstrip(" :`")
    return text


def _both(s: RolloutStatus, risk: Risk) -> str:
    has = "would have" if s.shadow else "has"
    healthy = "1 healthy GPU" if risk.backing_gpus == 1 else f"{risk.backing_gpus:,} healthy GPUs"
    return f"{risk.team} {has} {healthy} behind a quota of {risk.quota_gpus:,}"


def _trouble(s: RolloutStatus, team: str) -> str:
    return "in breach" if team in s.breach_of else "at risk"


def _health(s: RolloutStatus) -> str:
    return f"{'?' if s.healthy_gpus is None else number(s.healthy_gpus)} healthy of {s.total_gpus:,}"


def _left(undoing: UndoStatus) -> str:
    return f"; left to undo: {', '.join(undoing.left)}" if undoing.left else ""


def _teams_parts(s: RolloutStatus) -> Iterator[RenderableType]:
    """Every team; of a stuck rollout the first ones, so that what to do is not scrolled away."""
    if s.stage is not Stage.STUCK or len(s.teams) <= _ROWS:
        yield _teams(s.teams, shadow=s.shadow)
        return
    left = {value.team for value in s.undoing.values} if s.undoing is not None else set()
    yield _teams(sorted(s.teams, key=lambda t: t.team not in left)[:_ROWS], shadow=s.shadow)
    yield line(f"and {count(len(s.teams) - _ROWS, 'more team')}: {_in_full(s)}")


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
