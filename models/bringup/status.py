"""The status of a bring-up as people see it: its graph, its checks, its obstacle and the task for a person."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from models.base import Count, Duration, Model, Name, PositiveCount, Text, Time, duration_text
from models.bringup.check_state import colour_at
from models.bringup.checks import Colour
from models.bringup.decide import checks_to_ask, is_soaked
from models.bringup.leftovers import leftover_steps
from models.bringup.messages import BringupRow
from models.bringup.placeholders import fill_text
from models.bringup.recipe import CAPACITY
from models.bringup.runs import UNDO_SUFFIX
from models.bringup.soak_clock import gathered_time
from models.bringup.stages import BringupStage
from models.bringup.state import Bringup, HeldBy, Leaving, Production, StepPhase, StepRun, touchable_steps, waits_for
from models.bringup.troubles import line, troubles
from models.cluster.island import Island
from models.texts import gpus_text, verb_of

_AT = "%Y-%m-%d %H:%MZ"


class StepStatus(Model):
    """A step of the graph, or its undo."""

    name: Name
    runner: str
    """command, buildkite or http; touch: a person does the step."""
    after: tuple[str, ...] = ()
    phase: StepPhase
    attempts: Count = 0
    took: Duration | None = None
    """How long the latest run took, or has run so far; None: a touch, or not started."""
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
    """The present state of a check."""

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
    lost: Text = Field(default="", exclude_if=lambda text: not text)
    """A sentence if Temporal stopped the bring-up early; the other fields are its last state. Empty: it did not."""
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
    """Steps whose result stays, each with the reason; filled during and after the undo."""
    touches: Count = 0
    """The number of commands by people, without the entry and check-ins."""
    check_ins: Count = 0
    lasted: dict[BringupStage, Duration] = Field(default_factory=dict)
    waited: dict[str, Duration] = Field(default_factory=dict)
    history_events: Count = 0
    runs: PositiveCount = 1


def status_of(bringup: Bringup, now: datetime, *, history_events: int = 0, runs: int = 1) -> BringupStatus:
    bringup = bringup.account_time(now)
    within = bringup.recipe.validate_within
    return BringupStatus(
        cluster=bringup.cluster,
        number=bringup.number,
        recipe=bringup.recipe.name,
        recipe_hash=bringup.recipe.hash,
        owner=bringup.entry.owner,
        nodes=bringup.entry.nodes,
        gpus=bringup.entry.gpus,
        entered_by=bringup.entered_by,
        entered_at=bringup.entered_at,
        at=now,
        stage=bringup.stage,
        stage_at=bringup.stage_at,
        blocked_from=bringup.blocked_from,
        because=bringup.because,
        waits_for=waiting_sentence(bringup, now),
        needs=needs_of(bringup, now),
        hold=bringup.hold,
        supply=_supply(bringup),
        steps=tuple(_step(bringup, step.name, now) for step in bringup.recipe.provision),
        undos=tuple(_step(bringup, name, now) for name in bringup.runs if name.endswith(UNDO_SUFFIX)),
        checks=tuple(_check(bringup, name, now) for name in bringup.checks),
        soak=bringup.recipe.soak,
        soaked=min(bringup.recipe.soak, gathered_time(bringup.clock, now)),
        validate_until=None
        if bringup.validating_since is None or bringup.production
        else bringup.validating_since + within,
        islands=bringup.islands,
        production=bringup.production,
        leaving=bringup.leaving,
        standing=leftover_steps(bringup) if bringup.direction.unmakes or bringup.stage.has_ended else {},
        touches=bringup.touches,
        check_ins=bringup.check_ins,
        lasted=bringup.lasted,
        waited={whom.value: time for whom, time in bringup.waited.items()},
        history_events=history_events,
        runs=runs,
    )


def row_of(bringup: Bringup, now: datetime) -> BringupRow:
    """Return the row for the board and the report."""
    bringup = bringup.account_time(now)
    production = bringup.production
    return BringupRow(
        cluster=bringup.cluster,
        number=bringup.number,
        recipe=bringup.recipe.name,
        recipe_hash=bringup.recipe.hash,
        owner=bringup.entry.owner,
        entered_by=bringup.entered_by,
        entered_at=bringup.entered_at,
        stage=bringup.stage,
        stage_at=bringup.stage_at,
        blocked_from=bringup.blocked_from,
        waits_for=waiting_sentence(bringup, now),
        needs=needs_of(bringup, now),
        nodes=bringup.entry.nodes,
        gpus=bringup.entry.gpus,
        touches=bringup.touches,
        check_ins=bringup.check_ins,
        lasted=bringup.lasted,
        waited={whom.value: time for whom, time in bringup.waited.items()},
        granted={} if production is None else production.granted,
        owed={} if production is None else production.owed,
        owed_until=bringup.entry.owed_until,
        probation_until=None if production is None else production.probation_until,
        red=tuple(name for name, check in bringup.checks.items() if check.colour is Colour.RED and not check.skipped),
        whom=waits_for(bringup) or "",
        accounted_at=bringup.accounted_at,
    )


def _step(bringup: Bringup, name: str, now: datetime) -> StepStatus:
    run, step = bringup.runs[name], bringup.recipe.steps[name.removesuffix(UNDO_SUFFIX)]
    undo = name.endswith(UNDO_SUFFIX)
    touch = bool(step.touch) and not undo
    return StepStatus(
        name=name,
        runner="touch" if touch else bringup.runner(name).value,
        after=() if undo else step.after,
        phase=run.phase,
        attempts=run.attempt,
        took=None if touch else _time_taken(run, now),
        said=fill_text(step.touch, bringup.entry.all_values) if touch and run.phase is StepPhase.WAITING else run.said,
        by=run.by,
        reason=run.reason,
        code=run.code,
        tail=run.tail,
        link=run.link,
        host=run.host,
        next_at=run.next_at,
        repeatable=bringup.instructions(name).repeatable,
    )


def _time_taken(run: StepRun, now: datetime) -> Duration | None:
    begun = run.started_at or run.noted_at
    return None if begun is None else max(begun, run.ended_at or now) - begun


def _check(bringup: Bringup, name: str, now: datetime) -> CheckStatus:
    check, terms = bringup.checks[name], bringup.rules()[name]
    kinds = {c.name: c.kind.value for c in bringup.recipe.checks}
    watched = bringup.stage.has_ended or bringup.direction.unmakes
    return CheckStatus(
        name=name,
        kind=kinds.get(name, CAPACITY),
        colour=check.colour if watched else colour_at(check, terms, now, bringup.recipe.stale_after),
        said=check.said,
        number=check.number,
        at=check.at,
        reds=check.reds,
        skipped=check.skipped,
        once=terms.once,
    )


def _supply(bringup: Bringup) -> CheckStatus | None:
    supply = bringup.supply
    if supply is None:
        return None
    return CheckStatus(
        name="supply", kind="supply", colour=supply.colour, said=supply.said, at=supply.at, skipped=supply.skipped
    )


def waiting_sentence(bringup: Bringup, now: datetime) -> str:
    """Return one sentence about what it waits for."""
    if bringup.stage.has_ended or bringup.stage is BringupStage.BLOCKED:
        return bringup.because
    if bringup.hold is not None and waits_for(bringup) is not None:
        return f"held by {bringup.hold.actor}: {bringup.hold.reason}"
    match bringup.stage:
        case BringupStage.PLANNED:
            return f"waits for its supply: {bringup.supply.said}" if bringup.supply is not None else "about to begin"
        case BringupStage.PROVISIONING:
            return _making_text(bringup)
        case BringupStage.PROVISIONED:
            return _validating_text(bringup, now)
        case BringupStage.RETIRING if bringup.leaving is not None and not bringup.leaving.empty:
            return f"its quotas go to zero: {bringup.leaving.said or 'about to begin'}"
        case BringupStage.CANCELLING | BringupStage.RETIRING:
            return f"the cluster is being torn down: {_busy_text(bringup) or 'the next step is about to begin'}"
    return _production_text(bringup, now)


def _busy_text(bringup: Bringup) -> str:
    busy = [
        f"{name} is {run.phase}{f' ({run.said})' if run.unheard else ''}"
        for name, run in bringup.runs.items()
        if run.phase.under_way
    ]
    later = [
        f"{name} is tried again at {run.next_at:{_AT}}{f' ({run.said})' if run.said else ''}"
        for name, run in bringup.runs.items()
        if run.next_at is not None and run.phase is StepPhase.WAITING
    ]
    return "; ".join(busy + later)


def _making_text(bringup: Bringup) -> str:
    if bringup.all_made:
        return f"every step is done; the bring-up waits for the nodes: {bringup.checks[CAPACITY].said}"
    touches = [f"{step.name} waits for a person" for step in touchable_steps(bringup)]
    return "; ".join(([busy] if (busy := _busy_text(bringup)) else []) + touches) or "about to go on"


def _validating_text(bringup: Bringup, now: datetime) -> str:
    if is_soaked(bringup, now):
        return "all checks have been green together for long enough: Backstop is moving the cluster into production"
    rules = bringup.rules()
    counted = {name: colour_at(c, rules[name], now, bringup.recipe.stale_after) for name, c in bringup.checks.items()}
    not_green = [f"{name} is {colour}" for name, colour in counted.items() if colour is not Colour.GREEN]
    left = duration_text(bringup.recipe.soak)
    if not_green:
        return f"{'; '.join(not_green)} (all must be green together for {left})"
    since = bringup.clock.since or now  # a person skipped the red check, and the clock is about to start
    until = since + bringup.recipe.soak - bringup.clock.gathered
    return f"all checks are green; they must stay so until {until:{_AT}}"


def _production_text(bringup: Bringup, now: datetime) -> str:
    assert bringup.production is not None
    owed = bringup.production.owed
    text = "in production"
    if now < bringup.production.probation_until:
        text += f", in probation until {bringup.production.probation_until:{_AT}}"
    elif not checks_to_ask(bringup, now):
        return text
    if owed and bringup.entry.owed_until is not None and now < bringup.entry.owed_until:
        count = sum(owed.values())
        text += f"; {gpus_text(count)} {verb_of(count)} owed until {bringup.entry.owed_until:{_AT}}"
    return text


def needs_of(bringup: Bringup, now: datetime) -> str:
    """Return what a person has to do for it to go on; empty if it goes on by itself."""
    if bringup.stage.has_ended:
        return ""
    if bringup.hold is not None:
        return f"held by {bringup.hold.actor}: {line(bringup, 'release')}"
    if bringup.stage is BringupStage.BLOCKED:
        return "; ".join(f"{t.text}: {' or '.join(way for _, way in t.ways)}" for t in troubles(bringup, now))
    if bringup.stage is not BringupStage.PROVISIONING:
        return ""
    return "; ".join(
        f"{fill_text(step.touch, bringup.entry.all_values)}, then: {line(bringup, 'check-in', step.name)}"
        for step in touchable_steps(bringup)
    )
