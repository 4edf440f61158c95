"""The troubles that block a bring-up: each in one sentence, with the ways out as people type them."""

from __future__ import annotations

import shlex
from datetime import datetime
from typing import NamedTuple

from models.base import duration_text
from models.bringup.check_state import colours
from models.bringup.checks import Colour
from models.bringup.decide import is_soaked
from models.bringup.recipe import CAPACITY
from models.bringup.runs import UNDO_SUFFIX
from models.bringup.stages import BringupStage
from models.bringup.state import Bringup, StepPhase
from models.texts import some_of


class Trouble(NamedTuple):
    """A trouble. `ways`: the effect of each way out, and its line."""

    text: str
    ways: tuple[tuple[str, str], ...]


def troubles(bringup: Bringup, now: datetime) -> list[Trouble]:
    """Return the troubles that a person has to answer; empty if it goes on by itself."""
    undoing = bringup.direction.unmakes
    open_troubles = [
        _of_run(bringup, name)
        for name, run in bringup.runs.items()
        if run.phase.needs_person and name.endswith(UNDO_SUFFIX) == undoing
        if undoing or bringup.direction is BringupStage.PROVISIONING
    ]
    if bringup.fault:
        open_troubles.append(Trouble(bringup.fault, (("Try again", line(bringup, "retry", "--reason '...'")),)))
    return open_troubles if undoing else open_troubles + _overdue_troubles(bringup, now)


def line(bringup: Bringup, command: str, *more: str) -> str:
    """Return a command to the bring-up as people type it."""
    return " ".join(("backstop bringup", command, shlex.quote(bringup.cluster), *more))


def _of_run(bringup: Bringup, name: str) -> Trouble:
    run = bringup.runs[name]
    text = f"step {name} is {run.phase}: {run.said}"
    if run.phase is StepPhase.UNCLEAR:
        text += " (it may be running, have run, or never have started: check first)"
    again = ("Run it again", line(bringup, "retry", name, "--reason '...'"))
    return Trouble(text, (again, ("Go on without it", line(bringup, "skip", name, "--reason '...'"))))


def _overdue_troubles(bringup: Bringup, now: datetime) -> list[Trouble]:
    since, within = bringup.validating_since, bringup.recipe.validate_within
    if since is None or now < since + within or is_soaked(bringup, now):
        return []
    colour_of = colours(bringup.checks, bringup.rules(), now, bringup.recipe.stale_after)
    making = bringup.direction is BringupStage.PROVISIONING
    not_green = [f"{n} is {c} ({bringup.checks[n].said})" for n, c in colour_of.items() if c is not Colour.GREEN]
    if making:
        not_green = [text for text in not_green if text.startswith(f"{CAPACITY} ")]
    if (making and not not_green) or not (making or bringup.direction is BringupStage.PROVISIONED):
        return []
    rest = some_of(not_green) or f"they have not been green together for {duration_text(bringup.recipe.soak)}"
    return [
        Trouble(
            f"its checks were not green in {duration_text(within)}: {rest}",
            (
                ("Give it as long again", line(bringup, "retry", "--reason '...'")),
                ("Leave a check out", line(bringup, "skip", "--check NAME", "--reason '...'")),
            ),
        )
    ]
