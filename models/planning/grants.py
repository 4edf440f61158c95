"""Grants: more quota for a team, for good or until a day, and never past what the cluster may promise.

A grant raises a team's quota, and those above it in the tree as far as they have no room of their own; the raises are
recorded, and exactly those are given back. Source: docs/design.md, "Ports" (fence rule) and "Guard and rollback" (later
grants by request are kept); ADR 0020.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from pydantic import Field

from models.base import Count, GpuCount, Model, Name, PositiveCount, Text, Words
from models.cluster.policy import Policy
from models.cluster.quota import QuotaTree
from models.cluster.snapshot import Snapshot
from models.planning.backing import back
from models.planning.ceiling import ceiling_of
from models.texts import gpus_text, spoken_for_text


class GrantOrder(Model):
    """A change of a quota by request, to be written under a fence. Units: whole GPUs."""

    request: Text = Field(min_length=1, max_length=100)
    team: Name
    gpus: PositiveCount
    raised: dict[Name, GpuCount] = Field(default_factory=dict)
    """When a grant ends: the GPUs that it added, by team. Empty: the grant is to be made."""
    actor: Text = Field(default="", max_length=200)
    reason: Words = ""

    @property
    def ends(self) -> bool:
        return bool(self.raised)


class GrantOutcome(StrEnum):
    DONE = "done"
    LATER = "later"
    """A temporary obstacle: ask again."""
    NO = "no"


class Granted(Model):
    """The outcome of an order. `raised`: GPUs by team, of a grant that was written."""

    request: str
    ends: bool = False
    outcome: GrantOutcome
    said: str
    raised: dict[str, GpuCount] = Field(default_factory=dict)
    hands: dict[str, Count] = Field(default_factory=dict)


class Room(Model):
    """The GPUs more that a team could be promised in a cluster, and the obstacle to more. Units: whole GPUs."""

    ceiling_gpus: GpuCount
    assigned_gpus: GpuCount
    fits_gpus: GpuCount
    """The GPUs that fit, at most the number asked for."""
    why: str = ""
    """Why not all of them fit; empty: all do."""


def raises(tree: QuotaTree, values: Mapping[str, int], team: str, gpus: int) -> dict[str, int]:
    """Return how much each quota must rise so that the team's, and its part of the tree's promise, rises by `gpus`."""
    assigned = tree.count_assigned(values)
    by_team = {team: gpus}
    for parent in tree.ancestors(team):
        free = max(0, values[parent] - sum(assigned[child] for child in tree.children[parent]))
        if gpus > free:
            by_team[parent] = gpus - free
    return by_team


def moved_values(values: Mapping[str, int], raised: Mapping[str, int], *, ends: bool = False) -> dict[str, int]:
    """Return the values that a grant changes, after it, or after its end; a quota that is gone is left out."""
    return {
        team: max(0, values[team] - gpus) if ends else values[team] + gpus
        for team, gpus in raised.items()
        if team in values
    }


def room(snapshot: Snapshot, policy: Policy, team: str, gpus: int) -> Room:
    """Return how many of `gpus` more fit under the ceiling and on today's hardware.

    They fit where the sum stays under the ceiling and no quota has less behind it than before.
    """
    tree, values = snapshot.tree, snapshot.values
    ceiling, assigned, before = ceiling_of(snapshot, policy), tree.assigned_gpus(values), back(snapshot)

    def fits(more: int) -> bool:
        after = {**values, **moved_values(values, raises(tree, values, team, more))}
        if tree.assigned_gpus(after) > ceiling:
            return False
        stands = back(snapshot.with_values(after))
        lacks = stands.shortage.get(team, 0) > 0 or stands.phantom_gpus > before.phantom_gpus
        return not lacks and len(stands.unplaced) <= len(before.unplaced)

    if fits(gpus):
        return Room(ceiling_gpus=ceiling, assigned_gpus=assigned, fits_gpus=gpus)
    low, high = 0, gpus  # low fits (or is nothing), high does not: more never fits where less did not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    if assigned + gpus > ceiling:
        why = f"{snapshot.cluster} may promise {gpus_text(ceiling)}, and {spoken_for_text(assigned)}"
    else:
        why = f"the islands that {team} may use have too few healthy GPUs today for this many more"
    return Room(ceiling_gpus=ceiling, assigned_gpus=assigned, fits_gpus=low, why=why)
