"""The remains of a bring-up after its undo, each with the reason: no step that was started is left out."""

from __future__ import annotations

from models.bringup.decide import spared_steps
from models.bringup.recipe import RecipeStep
from models.bringup.state import Bringup, StepPhase, StepRun


def leftover_steps(bringup: Bringup) -> dict[str, str]:
    """Return the reason for every step that may have left something, in the recipe's order."""
    by = spared_steps(bringup)
    whys = {step.name: _leftover_reason(bringup, step, run, by) for step, run in bringup.steps() if run.may_stand}
    return {step: why for step, why in whys.items() if why}


def _leftover_reason(bringup: Bringup, step: RecipeStep, run: StepRun, by: dict[str, str]) -> str:
    if not run.starts and run.phase is StepPhase.SKIPPED:
        return f"it was skipped ({run.reason}): if somebody did it by hand, undo it by hand"
    if step.undo is None:
        return "it has no undo"
    undo = bringup.undo(step.name)
    if undo is None:
        return "its undo has not begun"
    match undo.phase:
        case StepPhase.DONE:
            return ""
        case StepPhase.SKIPPED:
            return f"its undo was skipped by {undo.by} ({undo.reason})"
        case StepPhase.FAILED | StepPhase.UNCLEAR:
            return f"its undo is {undo.phase}: {undo.said}"
    if step.name in by:
        return f"{by[step.name]} needs it"
    return "its undo is not done yet"
