"""The writes that a request makes itself, in a cluster without an open rollout."""

from __future__ import annotations

from collections.abc import Mapping

from models.cluster.quota import QuotaTree
from models.planning.grants import moved_values
from models.rollout.effects import ValueWrite


def writes(
    tree: QuotaTree, values: Mapping[str, int], raised: Mapping[str, int], *, ends: bool
) -> tuple[ValueWrite, ...]:
    """Return the changes of quotas, each valid only while the value is as it was read."""
    after = moved_values(values, raised, ends=ends)
    return tuple(
        ValueWrite(team=team, expected_gpus=values[team], gpus=gpus, leaf=team not in tree.children)
        for team, gpus in sorted(after.items())
    )
