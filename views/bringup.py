"""Bring-ups for people: a board of all by state, one as its graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from rich.console import RenderableType
from rich.text import Text

from models.base import some_of
from models.bringup.checks import Colour
from models.bringup.messages import BringupRow
from models.bringup.stages import BringupStage
from models.bringup.state import StepPhase
from models.bringup.status import BringupStatus, CheckStatus, StepStatus
from views.layout import FactSheet
from views.words import clean, count, gpus, line, lost_line, moment, none_of, row, span, table

_ORDER = (
    BringupStage.BLOCKED,
    BringupStage.PLANNED,
    BringupStage.PROVISIONING,
    BringupStage.PROVISIONED,
    BringupStage.IN_PRODUCTION,
    BringupStage.RETIRING,
    BringupStage.CANCELLING,
    BringupStage.CANCELLED,
    BringupStage.RETIRED,
)
"""Of the board: what needs a person first, what has ended last."""
_STYLES = {
    BringupStage.BLOCKED: "bold red",
    BringupStage.PROVISIONING: "blue",
    BringupStage.PROVISIONED: "cyan",
    BringupStage.IN_PRODUCTION: "green",
    BringupStage.CANCELLING: "yellow",
    BringupStage.RETIRING: "yellow",
}
_MARKS = {
    StepPhase.WAITING: ("○", "dim"),
    StepPhase.STARTING: ("●", "blue"),
    StepPhase.RUNNING: ("●", "blue"),
    StepPhase.DONE: ("✔", "green"),
    StepPhase.FAILED: ("✖", "red"),
    StepPhase.UNCLEAR: ("?", "bold red"),
    StepPhase.SKIPPED: ("-", "dim"),
}
_COLOURS = {Colour.GREEN: ("✔", "green"), Colour.RED: ("✖", "red"), Colour.UNKNOWN: ("?", "yellow")}
_TAIL_LINES = 5
"""Of a log, in the graph; --json has all that travels."""


# --- the board ---------------------------------------------------------------------------------


def board_parts(rows: Sequence[BringupRow], now: datetime, *, of: int) -> list[RenderableType]:
    """Return a line for each, by state. `of`: how many there are before filters."""
    if not of:
        return [line("Nothing is being brought up: backstop bringup add FILE --recipes FILE")]
    if not rows:
        return [none_of(of, "bring-up")]
    board = table(
        *("CLUSTER", "=STATE", ">FOR", ">GPUS", "OWNER", ">ACTIONS", "~WAITS FOR"), least=("OWNER", "GPUS", "ACTIONS")
    )
    for one in sorted(rows, key=lambda r: (_ORDER.index(r.stage), r.stage_at, r.cluster)):
        since = None if one.stage.has_ended else span(now - one.stage_at)
        awaited = one.needs or one.waits_for or None
        row(board, one.cluster, one.stage.words, since, one.gpus, one.owner, one.touches, awaited)
    by_stage = [(stage, sum(r.stage is stage for r in rows)) for stage in _ORDER]
    counts = ", ".join(f"{number} {stage.words}" for stage, number in by_stage if number)
    return [board, line(f"{count(len(rows), 'bring-up')}: {counts}.")]


# --- one of them -------------------------------------------------------------------------------


def status_parts(s: BringupStatus, could: Sequence[str] = ()) -> list[RenderableType]:
    """Return everything about one bring-up. `could`: who could do what it needs."""
    since = f" since {moment(s.stage_at)} ({span(s.at - s.stage_at)})"
    title = line((s.cluster, "bold"), "  ", (s.stage.words, _STYLES.get(s.stage, "")), since)
    parts: list[RenderableType] = [
        title,
        *([lost_line(s.lost)] if s.lost else []),
        FactSheet([(name, line(text)) for name, text in _facts(s, could)]),
    ]
    parts += [Text(), *_graph(s.steps)]
    if s.undos:
        parts += [Text(), line("What is unmade:"), *_graph(s.undos)]
    if s.standing:
        parts += [Text(), line("Left standing:")]
        parts += [line(f"  {name}: {why}") for name, why in s.standing.items()]
    if s.checks and (s.stage not in (BringupStage.PLANNED, BringupStage.CANCELLED, BringupStage.RETIRED)):
        parts += [Text(), *_checks(s.checks)]
    return parts


def _facts(s: BringupStatus, could: Sequence[str]) -> Iterator[tuple[str, str]]:
    yield (
        "entered",
        f"by {s.entered_by} on {moment(s.entered_at)}; owner {s.owner}; recipe {s.recipe} ({s.recipe_hash})",
    )
    yield "ordered", f"{count(s.nodes, 'node')}, {gpus(s.gpus)}"
    if s.islands:
        there, well = sum(i.total_gpus for i in s.islands), sum(i.healthy_gpus for i in s.islands)
        yield (
            "came" if s.stage.has_ended else "there",
            f"{gpus(there)} in {count(len(s.islands), 'island')}, {well} healthy",
        )
    if s.waits_for and not s.stage.has_ended:
        yield "now", s.waits_for
    if s.hold is not None:
        yield "hold", f"by {s.hold.actor} since {moment(s.hold.at)}: {s.hold.reason}"
    if s.needs:
        yield "needs", s.needs
    if could:
        yield "could act", some_of(could, 5)
    if s.stage is BringupStage.PROVISIONED or s.blocked_from is BringupStage.PROVISIONED:
        until = ""
        if s.validate_until is not None:
            until = f"; a person {'is' if s.at < s.validate_until else 'was'} called at {moment(s.validate_until)}"
        yield "soak", f"{span(s.soaked)} of {span(s.soak)} green together{until}"
    if s.production is not None:
        lacks = f"; owed: {_by_team(s.production.owed)}" if s.production.owed else ""
        quotas = f"first quotas: {_by_team(s.production.granted)}{lacks}"
        yield "fleet", f"handed over on {moment(s.production.at)}; {quotas}"
    touches = "2 touches (entry and check-in)" if s.check_ins == 1 else "1 touch (entry)"
    if s.check_ins > 1:
        touches = f"{1 + s.check_ins} touches (entry and {s.check_ins} check-ins)"
    yield "people", f"{touches}, and {count(s.touches, 'action')} beside"
    if s.lasted:
        yield "took", ", ".join(f"{stage.words} {span(time)}" for stage, time in s.lasted.items() if time)
    waited = {whom: time for whom, time in s.waited.items() if time >= timedelta(seconds=1)}
    if waited:
        yield "waited for", ", ".join(f"{whom} {span(time)}" for whom, time in waited.items())
    if s.because and s.stage.has_ended:
        yield "ended", s.because


def _by_team(values: dict[str, int]) -> str:
    return ", ".join(f"{team} {number}" for team, number in sorted(values.items())) or "none"


def _graph(steps: Sequence[StepStatus]) -> Iterator[RenderableType]:
    for step in steps:
        mark, style = _MARKS[step.phase]
        after = f" after {', '.join(step.after)}" if step.after else ""
        runs = f", {count(step.attempts, 'run')}" if step.attempts > 1 else ""
        took = f", {span(step.took)}" if step.took is not None and step.attempts else ""
        on = f" on {step.host}" if step.host else ""
        what = f"  {step.phase} ({step.runner}{on}{runs}{took})"
        yield line((f"{mark} ", style), (step.name, "bold"), (after, "dim"), what)
        if step.said:
            yield line(f"    {step.said}")
        if step.reason:
            yield line(f"    {step.by}: {step.reason}")
        if step.link:
            yield line(f"    {step.link}")
        for text in step.tail.splitlines()[-_TAIL_LINES:] if _told(step) else ():
            yield line(("    | ", "dim"), text)


def _told(step: StepStatus) -> bool:
    """Return whether the step's log is shown: it runs, or something is wrong with it."""
    return step.phase in (StepPhase.RUNNING, StepPhase.FAILED, StepPhase.UNCLEAR)


def _checks(checks: Sequence[CheckStatus]) -> Iterator[RenderableType]:
    checks_table = table("=CHECK", "=NOW", "=KIND", ">REDS", "=ASKED", "~SAID", least=("KIND", "ASKED"))
    for check in checks:
        mark, style = _COLOURS[check.colour]
        last_words = f"skipped: {check.skipped}" if check.skipped else check.said
        now = "skipped" if check.skipped else f"{mark} {check.colour}"
        row(
            checks_table,
            check.name,
            now,
            check.kind,
            check.reds,
            moment(check.at),
            last_words,
            style=style if style == "red" else "",
        )
    yield checks_table


def step_changes(before: BringupStatus | None, now: BringupStatus) -> list[str]:
    """Return a line for each change since the last look, for pipes."""
    text = f"{now.at:%H:%M:%SZ}  {_line_of(now)}"
    return [] if before is not None and _line_of(before) == _line_of(now) else [text]


def _line_of(s: BringupStatus) -> str:
    steps = [f"{step.name} {step.phase}" for step in (*s.steps, *s.undos) if step.phase is not StepPhase.WAITING]
    colours = [f"{check.name} {check.colour}" for check in s.checks if check.colour is not Colour.UNKNOWN]
    needs = [f"needs: {s.needs}"] if s.needs else []
    return clean("; ".join([s.stage.words, *steps, *colours, *needs]))
