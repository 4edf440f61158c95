"""Every order of a few outside events over a bring-up, workers dying at each point, from each beginning.

Deeper by hand: `python -m tests.property.bringup_explore --depth 8`.
"""

from __future__ import annotations

import os
from datetime import datetime
from typing import Any

import pytest

from models.bringup import decide, reducers
from models.bringup.stages import BRINGUP_TRANSITIONS, BringupStage
from models.bringup.state import Bringup, StepPhase
from tests.property.bringup_explore import SETTINGS, Found, Setting, beginning, explore, happenings, step
from tests.tried import TRIED

DEPTH = 6 if os.environ.get("TRIES") == "all" else 4
REACHED: set[tuple[BringupStage, BringupStage]] = set()


@pytest.mark.parametrize("name", SETTINGS)
def test_nothing_that_may_happen_breaks_what_must_hold(name: str) -> None:
    found = explore(SETTINGS[name], DEPTH)
    assert found.violations == []
    assert found.states > 90
    assert found.passed <= BRINGUP_TRANSITIONS
    REACHED.update(found.passed)
    TRIED["states of bring-ups explored"] += found.states


def test_together_they_took_every_transition_that_begins_after_supply() -> None:
    if len(REACHED) < len(BRINGUP_TRANSITIONS) - 2:  # one of them ran alone
        for setting in SETTINGS.values():
            REACHED.update(explore(setting, 4).passed)
    waits_for_supply = {(BringupStage.PLANNED, BringupStage.CANCELLING)}
    assert BRINGUP_TRANSITIONS - waits_for_supply <= REACHED | {(BringupStage.PLANNED, BringupStage.PROVISIONING)}


def again_at_once(bringup: Bringup, run: str, attempt: int, now: datetime) -> Bringup:
    return bringup.with_run(run, phase=StepPhase.WAITING, next_at=None)


def test_an_exploration_finds_a_step_that_is_started_again_though_nobody_said_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reducers, "note_lost_host", lambda b, run, attempt, _, now: again_at_once(b, run, attempt, now))
    wrong = explore(SETTINGS["chain"], 4).violations
    assert {text.split(":")[0] for text in wrong} == {"a runs twice at once", "a began again, and nobody said so"}


def test_an_exploration_finds_an_order_that_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "ready_steps", lambda after, waiting, done: list(waiting))
    assert "b began before a" in {text.split(":")[0] for text in explore(SETTINGS["chain"], 2).violations}


def test_an_exploration_finds_what_is_left_unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reducers, "leftover_steps", lambda b: {})
    assert any("stands, and is not named" in text for text in explore(SETTINGS["cancelled"], 5).violations)


def test_an_exploration_finds_a_soak_that_was_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "is_soaked", lambda b, now: b.clock.since is not None)
    found: Found = explore(SETTINGS["soaking"], 3)
    assert any("in the fleet after" in text for text in found.violations)


@pytest.mark.parametrize("failing", ["a", "b", "c"])
@pytest.mark.parametrize("undo_fails", [False, True])
def test_whichever_step_fails_and_whichever_undo_nothing_is_left_unnamed(failing: str, *, undo_fails: bool) -> None:
    """Omicron's habit: each step fails in turn; then each undo fails, and is skipped."""
    node = beginning(Setting(SETTINGS["cancelled"].steps))
    for _ in range(60):
        events = dict(happenings(node))
        if node.b.stage.has_ended:
            break
        step(node, _next(node, events, failing, undo_fails=undo_fails))
    assert node.b.stage is BringupStage.CANCELLED
    assert node.wrong == []


def _next(node: Any, events: dict[str, Any], failing: str, *, undo_fails: bool) -> str:
    stuck = next((name for name in events if name.startswith("skip ")), None)
    if node.b.direction.unmakes and stuck:
        return stuck
    if node.b.stage is BringupStage.BLOCKED and not node.b.direction.unmakes:
        return "cancel"
    wanted = [f"{failing}: fails"] + ([f"{failing}/undo: fails"] if undo_fails else [])
    for name in (*wanted, *(n for n in events if n.endswith((": begun", ": succeeds")))):
        if name in events and name != f"{failing}: succeeds":
            return name
    return "cancel" if "cancel" in events else "time"
