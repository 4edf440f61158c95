"""The calls that Backstop makes to a quota system, and the receipts it gets back.

Each effect is one call with one fence. Its inverse also works if the forward call never ran. See docs/design.md, "The
state machine" and "Ports".
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from pydantic import Field

from models.base import Count, GpuCount, Model, Name, PositiveCount, Time
from models.cluster.quota import QuotaTree
from models.cluster.readings import LimitMode
from models.planning.grants import moved_values


class EffectKind(StrEnum):
    RESERVE = "reserve"
    RELEASE = "release"
    SET_SOFT = "set_soft"
    RESTORE = "restore"
    HARDEN = "harden"
    SOFTEN = "soften"
    FOLLOW = "follow"
    UNFOLLOW = "unfollow"
    CLOSE = "close"
    """Ends the rollout in the quota system: the reservation goes, the values stay."""
    GRANT = "grant"
    """Grants more quota by request, or ends such a grant; for a rollout, or for the request if no rollout is open."""


class Fence(Model):
    """The place of a write among Backstop's own: a counter that only grows within one rollout, inverses included."""

    rollout: str = Field(min_length=1, max_length=200)
    counter: PositiveCount


class ValueWrite(Model):
    """A write of one quota, done only if the present value is the expected one.

    A present value that already equals `gpus` is no conflict either: a timed-out call may have landed.
    """

    team: Name
    expected_gpus: GpuCount
    gpus: GpuCount
    mode: LimitMode | None = None
    """The quota's new mode; None: unchanged."""
    leaf: bool = True
    """False for a quota with children, whose change only repeats the children's."""


class Reserve(Model):
    """A reservation that keeps freed capacity from others while the rollout is open.

    `freed_gpus`: GPUs that the rollout took out of quotas. `limit_gpus`: a foreign write may not raise the sum of the
    cluster's leaf quotas above it, nor raise a quota that has children at all. `limits_by_islands`: the same for the
    leaves that are limited to exactly these islands ("X" or "X,Y", names sorted), so that nobody can take freed GPUs of
    one island by giving up others elsewhere.
    """

    freed_gpus: GpuCount
    limit_gpus: GpuCount
    limits_by_islands: dict[str, GpuCount] = Field(default_factory=dict)


class Change(Model):
    """An effect on one cluster, applied whole or not at all where the system has transactions.

    `expected_generation`: a forward effect is refused with Drift if others changed the cluster since; None (inverses)
    writes what it may and reports the rest as conflicts.
    """

    cluster: Name
    kind: EffectKind
    fence: Fence
    expected_generation: Count | None = None
    writes: tuple[ValueWrite, ...] = ()
    mode: LimitMode | None = None
    """For HARDEN and SOFTEN: the new mode of all quotas of the cluster."""
    reserve: Reserve | None = None
    """For RESERVE and RELEASE: the reservation afterwards; None: nothing is reserved."""
    flex_gpus: GpuCount | None = None
    """For FOLLOW: the surplus to publish. A repeated FOLLOW with another value changes the flex pool and no quota."""
    flex_band_gpus: GpuCount = 0
    only_ours: bool = Field(default=False, exclude_if=lambda only: not only)
    """For GRANT: a value that Backstop did not write last is a conflict, whatever was expected."""

    @property
    def refits(self) -> bool:
        """True if it moves no quota, but makes the present values our own and fits the limit above all to them."""
        moves = any(w.gpus != w.expected_gpus or w.mode is not None for w in self.writes)
        return self.kind is EffectKind.SET_SOFT and bool(self.writes) and not moves

    @property
    def moved_gpus(self) -> int:
        """The sum of |change| over the leaves, which counts against the blast radius."""
        return sum(abs(w.gpus - w.expected_gpus) for w in self.writes if w.leaf)


class ValueConflict(Model):
    """A quota that somebody else changed: Backstop leaves it alone and accepts its value."""

    team: Name
    expected_gpus: GpuCount
    found_gpus: GpuCount | None
    """The present value; None: the quota is gone."""


class Receipt(Model):
    """Proof of one effect. A repeated fence gets the stored receipt again."""

    cluster: Name
    kind: EffectKind
    fence: Fence
    at: Time
    generation: Count
    before: dict[str, int]
    """Values of the written quotas before the writes, in whole GPUs."""
    after: dict[str, int]
    conflicts: tuple[ValueConflict, ...] = ()
    reserved_gpus: GpuCount = 0
    flex_gpus: GpuCount | None = None
    """For FOLLOW: the surplus that is published now."""
    shadow: bool = False

    @property
    def raised(self) -> dict[str, int]:
        """GPUs by which each quota has risen; empty if a conflict kept the write from landing."""
        return {} if self.conflicts else {team: gpus - self.before[team] for team, gpus in self.after.items()}


def writes(
    tree: QuotaTree, values: Mapping[str, int], raised: Mapping[str, int], *, ends: bool
) -> tuple[ValueWrite, ...]:
    """Return the changes of quotas, each valid only while the value is as it was read."""
    after = moved_values(values, raised, ends=ends)
    return tuple(
        ValueWrite(team=team, expected_gpus=values[team], gpus=gpus, leaf=team not in tree.children)
        for team, gpus in sorted(after.items())
    )
