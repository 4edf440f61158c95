"""Search attributes of workflows, which Temporal's own list shows and filters by."""

from __future__ import annotations

from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributeUpdate

with workflow.unsafe.imports_passed_through():
    from models.bringup.state import Bringup
    from models.fleet.state import FleetRollout
    from models.requests.state import RequestState
    from models.rollout.state import Rollout
    from models.rollout.status import backing_now
    from models.temporal_names import SearchName

_BY_CLUSTER = SearchAttributeKey.for_keyword(SearchName.CLUSTER)
_BY_STAGE = SearchAttributeKey.for_keyword(SearchName.STAGE)
_BY_WAVE = SearchAttributeKey.for_keyword(SearchName.WAVE)
_BY_OWNER = SearchAttributeKey.for_keyword(SearchName.OWNER)
_UNBACKED = SearchAttributeKey.for_int(SearchName.UNBACKED)


def rollout_attributes(rollout: Rollout, *, by_tier: bool) -> list[SearchAttributeUpdate[Any]]:
    """Return the attributes of the state; equal ones compare as equal.

    `by_tier`: a run from before named a wave by its tier also where the cluster comes after all waves.
    """
    stands, plan = backing_now(rollout), rollout.plan
    return [
        _BY_CLUSTER.value_set(rollout.cluster),
        _BY_STAGE.value_set(rollout.stage.value),
        _BY_WAVE.value_set("none" if plan is None else plan.wave.value if by_tier else plan.wave_name),
        _BY_OWNER.value_set(rollout.owner),
        _UNBACKED.value_set(stands.phantom_gpus),
    ]


def fleet_attributes(fleet: FleetRollout) -> list[SearchAttributeUpdate[Any]]:
    return [
        _BY_STAGE.value_set(fleet.stage.value),
        _BY_WAVE.value_set(fleet.wave.value),
        _BY_OWNER.value_set(fleet.owner),
    ]


def request_attributes(state: RequestState) -> list[SearchAttributeUpdate[Any]]:
    return [_BY_CLUSTER.value_set(state.ask.cluster), _BY_STAGE.value_set(state.stage.value)]


def bringup_attributes(bringup: Bringup) -> list[SearchAttributeUpdate[Any]]:
    return [
        _BY_CLUSTER.value_set(bringup.cluster),
        _BY_STAGE.value_set(bringup.stage.value),
        _BY_OWNER.value_set(bringup.entry.owner),
    ]
