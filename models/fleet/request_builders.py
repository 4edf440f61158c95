"""Requests to activities, built from the state of a fleet rollout; the workflow sends them."""

from __future__ import annotations

from datetime import datetime

from models.fleet.messages import (
    AbortRequest,
    Candidate,
    Entrant,
    FleetLaunch,
    FollowRequest,
    Noted,
    PickRequest,
    StartRequest,
)
from models.fleet.state import FleetRollout, FleetStage
from models.fleet.workflow_actions import AbortMembers, PickMembers, StartMembers


def pick(fleet: FleetRollout, action: PickMembers, now: datetime) -> PickRequest:
    """Build the request that asks which of the action's candidates may start."""
    return PickRequest(
        fleet=fleet.id,
        wave=fleet.wave,
        candidates=tuple(Candidate(cluster=m.cluster, wave=m.wave, moved=m.moved) for m in action.candidates),
        most=action.most,
        hour_gpus=action.hour_gpus,
        day_gpus=action.day_gpus,
        pace=fleet.pace,
        policy=fleet.policy,
        shadow=fleet.shadow,
        at=now,
    )


def start(fleet: FleetRollout, launch: FleetLaunch, action: StartMembers) -> StartRequest:
    return StartRequest(
        launch=launch.but(pace=fleet.pace),
        approved_by=fleet.approved_by,
        entrants=tuple(Entrant(cluster=m.cluster, rollout=m.rollout) for m in action.members),
    )


def abort(fleet: FleetRollout, action: AbortMembers) -> AbortRequest:
    return AbortRequest(
        clusters=tuple(Entrant(cluster=m.cluster, rollout=m.rollout) for m in action.members),
        actor=fleet.aborted_by or fleet.owner,
        reason=f"fleet rollout aborted: {fleet.ended_because}",
    )


def follow(fleet: FleetRollout) -> FollowRequest:
    """Build the request to follow all members' rollouts from their last seen state: the answer comes on a change."""
    members = [m for m in fleet.members.values() if m.rollout]
    return FollowRequest(
        fleet=fleet.id,
        known={
            m.rollout: Noted(rollout=m.rollout, stage=m.stage, needs=m.needs, rollbacks=m.rollbacks)
            for m in members
            if m.stage
        },
        unseen=tuple(m.rollout for m in members if not m.stage),
        waiting=tuple(m.cluster for m in fleet.waiting_members) if fleet.stage is FleetStage.RUNNING else (),
        shadow=fleet.shadow,
        every_seconds=min(10.0, max(0.2, fleet.pace.recheck.total_seconds() / 60)),  # often beside looks at clusters
    )
