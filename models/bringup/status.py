"""What people see of a bring-up: its graph, its checks, what it waits for and what a person has to do."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from models.base import Count, Duration, Model, Name, PositiveCount, Text, Time, duration_text, gpus_text, verb_of
from models.bringup.checks import Colour
from models.bringup.decide import checks_to_ask, is_soaked
from models.bringup.leftovers import leftover_steps
from models.bringup.messages import BringupRow
from models.bringup.placeholders import fill_text
from models.bringup.recipe import CAPACITY
from models.bringup.runs import UNDO_SUFFIX
from models.bringup.soak import colour_at, gathered_time
from models.bringup.stages import BringupStage
from models.bringup.state import Bringup, HeldBy, Leaving, Production, StepPhase, StepRun, touchable_steps, waits_for
from models.bringup.troubles import line, troubles
from models.cluster.island import Island

_AT = "%Y-%m-%d %H:%MZ"


class StepStatus(Model):
    """A step of the graph, or its undo."""

    name: Name
    runner: str
    """command, buildkite, http; touch: a person."""
    after: tuple[str, ...] = ()
    phase: StepPhase
    attempts: Count = 0
    took: Duration | None = None
    """How long the latest run took, or takes."""
    said: Text = ""
    by: Text = ""
    reason: Text = ""
    code: int | None = None
    tail: str = ""
    link: str = ""
    host: str = ""
    next_at: Time | None = None
    repeatable: bool = False


class CheckStatus(Model):
    """A check, as it counts now."""

    name: Name
    kind: str
    colour: Colour
    said: Text
    number: float | None = None
    at: Time | None = None
    reds: Count = 0
    skipped: Text = ""
    once: bool = False


class BringupStatus(Model):
    """Everything a person may want to know about a bring-up, as of `at`."""

    schema_: Literal["backstop.bringup-status/1"] = Field(default="backstop.bringup-status/1", alias="schema")
    cluster: Name
    number: PositiveCount
    recipe: str
    recipe_hash: str
    owner: str
    nodes: PositiveCount
    gpus: PositiveCount
    entered_by: str
    entered_at: Time
    at: Time
    stage: BringupStage
    stage_at: Time
    blocked_from: BringupStage | None = None
    because: Text = ""
    waits_for: Text
    needs: Text = ""
    hold: HeldBy | None = None
    supply: CheckStatus | None = None
    steps: tuple[StepStatus, ...]
    undos: tuple[StepStatus, ...] = ()
    checks: tuple[CheckStatus, ...]
    soak: Duration
    soaked: Duration
    validate_until: Time | None = None
    islands: tuple[Island, ...] = ()
    production: Production | None = None
    leaving: Leaving | None = None
    standing: dict[str, str] = Field(default_factory=dict)
    """While it is unmade, and after: what is left standing, each with why."""
    touches: Count = 0
    """What people did beside entry and check-in."""
    check_ins: Count = 0
    lasted: dict[BringupStage, Duration] = Field(default_factory=dict)
    waited: dict[str, Duration] = Field(default_factory=dict)
    history_events: Count = 0
    runs: PositiveCount = 1


def status_of(b: Bringup, now: datetime, *, history_events: int = 0, runs: int = 1) -> BringupStatus:
    b = b.account_time(now)
    within = b.recipe.validate_within
    return BringupStatus(
        cluster=b.cluster,
        number=b.number,
        recipe=b.recipe.name,
        recipe_hash=b.recipe.hash,
        owner=b.entry.owner,
        nodes=b.entry.nodes,
        gpus=b.entry.gpus,
        entered_by=b.entered_by,
        entered_at=b.entered_at,
        at=now,
        stage=b.stage,
        stage_at=b.stage_at,
        blocked_from=b.blocked_from,
        because=b.because,
        waits_for=waiting_sentence(b, now),
        needs=needs_of(b, now),
        hold=b.hold,
        supply=_supply(b),
        steps=tuple(_step(b, step.name, now) for step in b.recipe.provision),
        undos=tuple(_step(b, name, now) for name in b.runs if name.endswith(UNDO_SUFFIX)),
        checks=tuple(_check(b, name, now) for name in b.checks),
        soak=b.recipe.soak,
        soaked=min(b.recipe.soak, gathered_time(b.clock, now)),
        validate_until=None if b.validating_since is None or b.production else b.validating_since + within,
        islands=b.islands,
        production=b.production,
        leaving=b.leaving,
        standing=leftover_steps(b) if b.direction.unmakes or b.stage.has_ended else {},
        touches=b.touches,
        check_ins=b.check_ins,
        lasted=b.lasted,
        waited={whom.value: time for whom, time in b.waited.items()},
        history_events=history_events,
        runs=runs,
    )


def row_of(b: Bringup, now: datetime) -> BringupRow:
    """For the board and the report."""
    b = b.account_time(now)
    production = b.production
    return BringupRow(
        cluster=b.cluster,
        number=b.number,
        recipe=b.recipe.name,
        recipe_hash=b.recipe.hash,
        owner=b.entry.owner,
        entered_by=b.entered_by,
        entered_at=b.entered_at,
        stage=b.stage,
        stage_at=b.stage_at,
        blocked_from=b.blocked_from,
        waits_for=waiting_sentence(b, now),
        needs=needs_of(b, now),
        nodes=b.entry.nodes,
        gpus=b.entry.gpus,
        touches=b.touches,
        check_ins=b.check_ins,
        lasted=b.lasted,
        waited={whom.value: time for whom, time in b.waited.items()},
        granted={} if production is None else production.granted,
        owed={} if production is None else production.owed,
        owed_until=b.entry.owed_until,
        probation_until=None if production is None else production.probation_until,
        red=tuple(name for name, check in b.checks.items() if check.colour is Colour.RED and not check.skipped),
        whom=waits_for(b) or "",
        accounted_at=b.accounted_at,
    )


def _step(b: Bringup, name: str, now: datetime) -> StepStatus:
    run, step = b.runs[name], b.recipe.steps[name.removesuffix(UNDO_SUFFIX)]
    undo = name.endswith(UNDO_SUFFIX)
    touch = bool(step.touch) and not undo
    return StepStatus(
        name=name,
        runner="touch" if touch else step.runner(undo=undo).value,
        after=() if undo else step.after,
        phase=run.phase,
        attempts=run.attempt,
        took=None if touch else _time_taken(run, now),
        said=fill_text(step.touch, b.entry.all_values) if touch and run.phase is StepPhase.WAITING else run.said,
        by=run.by,
        reason=run.reason,
        code=run.code,
        tail=run.tail,
        link=run.link,
        host=run.host,
        next_at=run.next_at,
        repeatable=step.runs(undo=undo).repeatable,
    )


def _time_taken(run: StepRun, now: datetime) -> Duration | None:
    begun = run.started_at or run.noted_at
    return None if begun is None else max(begun, run.ended_at or now) - begun


def _check(b: Bringup, name: str, now: datetime) -> CheckStatus:
    check, terms = b.checks[name], b.rules()[name]
    kinds = {c.name: c.kind.value for c in b.recipe.checks}
    watched = b.stage.has_ended or b.direction.unmakes
    return CheckStatus(
        name=name,
        kind=kinds.get(name, CAPACITY),
        colour=check.colour if watched else colour_at(check, terms, now, b.recipe.stale_after),
        said=check.said,
        number=check.number,
        at=check.at,
        reds=check.reds,
        skipped=check.skipped,
        once=terms.once,
    )


def _supply(b: Bringup) -> CheckStatus | None:
    s = b.supply
    if s is None:
        return None
    return CheckStatus(name="supply", kind="supply", colour=s.colour, said=s.said, at=s.at, skipped=s.skipped)


def waiting_sentence(b: Bringup, now: datetime) -> str:
    """One sentence: what it waits for."""
    if b.stage.has_ended or b.stage is BringupStage.BLOCKED:
        return b.because
    if b.hold is not None and waits_for(b) is not None:
        return f"held by {b.hold.actor}: {b.hold.reason}"
    match b.stage:
        case BringupStage.PLANNED:
            return f"waits for its supply: {b.supply.said}" if b.supply is not None else "about to begin"
        case BringupStage.PROVISIONING:
            return _making_text(b)
        case BringupStage.PROVISIONED:
            return _validating_text(b, now)
        case BringupStage.RETIRING if b.leaving is not None and not b.leaving.empty:
            return f"its quotas go to nothing: {b.leaving.said or 'about to begin'}"
        case BringupStage.CANCELLING | BringupStage.RETIRING:
            return f"unmakes what was made: {_busy_text(b) or 'about to go on'}"
    return _production_text(b, now)


def _busy_text(b: Bringup) -> str:
    busy = [
        f"{name} is {run.phase}{f' ({run.said})' if run.unheard else ''}"
        for name, run in b.runs.items()
        if run.phase.under_way
    ]
    later = [
        f"{name} is tried again at {run.next_at:{_AT}}{f' ({run.said})' if run.said else ''}"
        for name, run in b.runs.items()
        if run.next_at is not None and run.phase is StepPhase.WAITING
    ]
    return "; ".join(busy + later)


def _making_text(b: Bringup) -> str:
    if b.all_made:
        return f"every step is done; waits for the nodes: {b.checks[CAPACITY].said}"
    touches = [f"{step.name} waits for a person" for step in touchable_steps(b)]
    return "; ".join(([busy] if (busy := _busy_text(b)) else []) + touches) or "about to go on"


def _validating_text(b: Bringup, now: datetime) -> str:
    if is_soaked(b, now):
        return "all checks were green together for long enough: it is being handed over"
    rules = b.rules()
    counted = {name: colour_at(c, rules[name], now, b.recipe.stale_after) for name, c in b.checks.items()}
    not_green = [f"{name} is {colour}" for name, colour in counted.items() if colour is not Colour.GREEN]
    left = duration_text(b.recipe.soak)
    if not_green:
        return f"{'; '.join(not_green)} (all must be green together for {left})"
    since = b.clock.since or now  # a person skipped what was red, and the clock is about to begin
    until = since + b.recipe.soak - b.clock.gathered
    return f"all checks are green; they must stay so until {until:{_AT}}"


def _production_text(b: Bringup, now: datetime) -> str:
    assert b.production is not None
    owed = b.production.owed
    text = "in production"
    if now < b.production.probation_until:
        text += f", in probation until {b.production.probation_until:{_AT}}"
    elif not checks_to_ask(b, now):
        return text
    if owed and b.entry.owed_until is not None and now < b.entry.owed_until:
        count = sum(owed.values())
        text += f"; {gpus_text(count)} {verb_of(count)} owed until {b.entry.owed_until:{_AT}}"
    return text


def needs_of(b: Bringup, now: datetime) -> str:
    """What a person has to do for it to go on; empty when it goes on by itself."""
    if b.stage.has_ended:
        return ""
    if b.hold is not None:
        return f"held by {b.hold.actor}: {line(b, 'release')}"
    if b.stage is BringupStage.BLOCKED:
        return "; ".join(f"{t.text}: {' or '.join(way for _, way in t.ways)}" for t in troubles(b, now))
    if b.stage is not BringupStage.PROVISIONING:
        return ""
    return "; ".join(
        f"{fill_text(step.touch, b.entry.all_values)}, then: {line(b, 'check-in', step.name)}"
        for step in touchable_steps(b)
    )
