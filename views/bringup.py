"""Bring-ups for people: a board of all by state, one as its graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from rich.console import RenderableType
from rich.text import Text

from models.bringup.checks import Colour
from models.bringup.messages import BringupRow
from models.bringup.stages import BringupStage
from models.bringup.state import StepPhase
from models.bringup.status import BringupStatus, CheckStatus, StepStatus
from models.texts import some_of
from views.layout import FactSheet
from views.words import clean, count, gpus, line, lost_line, moment, row, span, table

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
"""The order of the board: states that need a person come first, ended ones last."""
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
"""The last lines of a log that the graph shows; --json has all that the status carries."""


# --- the board ---------------------------------------------------------------------------------


def board_parts(rows: Sequence[BringupRow], now: datetime) -> list[RenderableType]:
    """Return a line for each, by state."""
    if not rows:
        return [line("No cluster is being brought up. To add one: backstop bringup add FILE --recipes FILE")]
    able = ["~WHO COULD"] if any(one.could for one in rows) else []
    board = table(
        *("CLUSTER", "=STATE", ">FOR", ">GPUS", "OWNER", ">ACTIONS", "~WAITS FOR", *able),
        least=("OWNER", "GPUS", "ACTIONS"),
    )
    for one in sorted(rows, key=lambda row: (_ORDER.index(row.stage), row.stage_at, row.cluster)):
        since = None if one.stage.has_ended else span(now - one.stage_at)
        awaited = one.needs or one.waits_for or None
        could = [some_of(one.could, 5) or None] if able else []
        row(board, one.cluster, one.stage.words, since, one.gpus, one.owner, one.touches, awaited, *could)
    by_stage = [(stage, sum(row.stage is stage for row in rows)) for stage in _ORDER]
    counts = ", ".join(f"{number} {stage.words}" for stage, number in by_stage if number)
    return [board, line(f"{count(len(rows), 'bring-up')}: {counts}.")]


# --- one of them -------------------------------------------------------------------------------


def status_parts(status: BringupStatus, could: Sequence[str] = ()) -> list[RenderableType]:
    """Return everything about one bring-up. `could`: who could do what it needs."""
    since = f" since {moment(status.stage_at)} ({span(status.at - status.stage_at)})"
    title = line((status.cluster, "bold"), "  ", (status.stage.words, _STYLES.get(status.stage, "")), since)
    parts: list[RenderableType] = [
        title,
        *([lost_line(status.lost)] if status.lost else []),
        FactSheet([(name, line(text)) for name, text in _facts(status, could)]),
    ]
    parts += [Text(), *_graph(status.steps)]
    if status.undos:
        parts += [Text(), line("Teardown:"), *_graph(status.undos)]
    if status.standing:
        parts += [Text(), line("Left standing:")]
        parts += [line(f"  {name}: {why}") for name, why in status.standing.items()]
    if status.checks and (status.stage not in (BringupStage.PLANNED, BringupStage.CANCELLED, BringupStage.RETIRED)):
        parts += [Text(), *_checks(status.checks)]
    return parts


def _facts(status: BringupStatus, could: Sequence[str]) -> Iterator[tuple[str, str]]:
    entered = f"by {status.entered_by} on {moment(status.entered_at)}"
    yield "entered", f"{entered}; owner {status.owner}; recipe {status.recipe} ({status.recipe_hash})"
    yield "ordered", f"{count(status.nodes, 'node')}, {gpus(status.gpus)}"
    if status.islands:
        there, well = sum(i.total_gpus for i in status.islands), sum(i.healthy_gpus for i in status.islands)
        yield (
            "arrived",
            f"{gpus(there)} in {count(len(status.islands), 'island')}, {well} healthy",
        )
    if status.waits_for and not status.stage.has_ended:
        yield "now", status.waits_for
    if status.hold is not None:
        yield "hold", f"by {status.hold.actor} since {moment(status.hold.at)}: {status.hold.reason}"
    if status.needs:
        yield "needs", status.needs
    if could:
        yield "could act", some_of(could, 5)
    if status.stage is BringupStage.PROVISIONED or status.blocked_from is BringupStage.PROVISIONED:
        until = ""
        if status.validate_until is not None:
            called = "is" if status.at < status.validate_until else "was"
            until = f"; a person {called} called at {moment(status.validate_until)}"
        yield "soak", f"{span(status.soaked)} of {span(status.soak)} green together{until}"
    if status.production is not None:
        lacks = f"; still owed: {_by_team(status.production.owed)}" if status.production.owed else ""
        quotas = f"first quotas: {_by_team(status.production.granted)}{lacks}"
        yield "fleet", f"handed over on {moment(status.production.at)}; {quotas}"
    touches = "2 touches (entry and check-in)" if status.check_ins == 1 else "1 touch (entry)"
    if status.check_ins > 1:
        touches = f"{1 + status.check_ins} touches (entry and {status.check_ins} check-ins)"
    yield "people", f"{touches}, and {count(status.touches, 'other action')}"
    if status.lasted:
        yield "took", ", ".join(f"{stage.words} {span(time)}" for stage, time in status.lasted.items() if time)
    waited = {whom: time for whom, time in status.waited.items() if time >= timedelta(seconds=1)}
    if waited:
        yield "waited for", ", ".join(f"{whom} {span(time)}" for whom, time in waited.items())
    if status.because and status.stage.has_ended:
        yield "ended", status.because


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
        for text in step.tail.splitlines()[-_TAIL_LINES:] if _shows_log(step) else ():
            yield line(("    | ", "dim"), text)


def _shows_log(step: StepStatus) -> bool:
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


def _line_of(status: BringupStatus) -> str:
    steps = [
        f"{step.name} {step.phase}" for step in (*status.steps, *status.undos) if step.phase is not StepPhase.WAITING
    ]
    colours = [f"{check.name} {check.colour}" for check in status.checks if check.colour is not Colour.UNKNOWN]
    needs = [f"needs: {status.needs}"] if status.needs else []
    return clean("; ".join([status.stage.words, *steps, *colours, *needs]))
