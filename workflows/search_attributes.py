"""What Temporal's own list shows of a workflow, and may be asked for there."""

from __future__ import annotations

from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributeUpdate

with workflow.unsafe.imports_passed_through():
    from models.rollout.state import Rollout
    from models.rollout.status import standing_now
    from models.wire import SearchName

BY_CLUSTER = SearchAttributeKey.for_keyword(SearchName.CLUSTER)
BY_STAGE = SearchAttributeKey.for_keyword(SearchName.STAGE)
BY_WAVE = SearchAttributeKey.for_keyword(SearchName.WAVE)
BY_OWNER = SearchAttributeKey.for_keyword(SearchName.OWNER)
_UNBACKED = SearchAttributeKey.for_int(SearchName.UNBACKED)


def rollout_attributes(r: Rollout) -> list[SearchAttributeUpdate[Any]]:
    """As the state has it; two that are alike are equal."""
    stands = standing_now(r)
    return [
        BY_CLUSTER.value_set(r.cluster),
        BY_STAGE.value_set(r.stage.value),
        BY_WAVE.value_set("none" if r.plan is None else r.plan.wave.value),
        BY_OWNER.value_set(r.owner),
        _UNBACKED.value_set(max(0, stands.assigned_gpus - stands.backed_gpus)),
    ]
