"""A page greys exactly the commands that the fleet rollout would refuse, with the same words, in every state."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from models.fleet.commands import FLEET_ANSWERS, FLEET_COMMANDS, FleetCommandRequest, not_now, obey, refusal
from models.fleet.gates import rest_until
from models.fleet.state import PAUSED, FleetRollout, FleetStage, MemberState, Pace, Wave
from models.fleet.status import status_of
from models.lifecycle.holds import HoldKind
from tests.property.test_fleet_machine import Fleet, prospect

ALL: dict[str, Any] = {"reason": "why", "undo": False}


def stances() -> dict[str, FleetRollout]:
    fleet_rollout = Fleet([prospect(0), prospect(1)], Pace()).f
    fleet_rollout = fleet_rollout.but(
        members={c: m.but(state=MemberState.WAITING, rollout="") for c, m in fleet_rollout.members.items()}
    )
    now = fleet_rollout.entered_at
    running = fleet_rollout.but(plan_hash="0" * 16, approved_by="user:ana", stage=FleetStage.RUNNING)
    return {
        "being planned": fleet_rollout.but(stage=FleetStage.PLANNED, plan_hash="", approved_by=""),
        "planned": fleet_rollout.but(stage=FleetStage.PLANNED, plan_hash="0" * 16, approved_by=""),
        "running": running,
        "paused": running.add_hold(PAUSED, HoldKind.PAUSED, "a look", now, "user:ana"),
        "aborting": running.but(stage=FleetStage.ABORTING),
        "done": running.but(stage=FleetStage.DONE),
    }


def test_every_pair_has_one_answer() -> None:
    assert set(FLEET_ANSWERS) == set(product(FleetStage, FLEET_COMMANDS))


@pytest.mark.parametrize("name", stances())
def test_a_page_greys_what_would_be_refused(name: str) -> None:
    fleet_rollout = stances()[name]
    status = status_of(fleet_rollout, fleet_rollout.entered_at)
    cluster = next(iter(fleet_rollout.members), "")
    for command in FLEET_COMMANDS:
        wave = Wave.BUSY if command == "move" else None
        given: dict[str, Any] = {"clusters": (cluster,)} if command in ("skip", "move") else {}
        pace = {"parallel": 7} if command == "pace" else {}
        request = FleetCommandRequest(
            actor="a", plan_hash=fleet_rollout.plan_hash, wave=wave, pace=pace, **ALL, **given
        )
        why = not_now(status, command, rests=status.rests_until is not None)
        assert why == not_now(fleet_rollout, command, rests=rest_until(fleet_rollout) is not None)
        assert why == (refusal(fleet_rollout, command, request) or ""), command
        assert "{" not in why
        if not why:
            assert (
                obey(fleet_rollout, command, request, fleet_rollout.entered_at)[0].stage
                is FLEET_ANSWERS[fleet_rollout.stage, command]
            )
