"""Falls judged across a source: one wrong exporter must not be believed cluster by cluster.

Theory of operation. A single cluster's loss is judged by its own rollout (models/rollout/guard.py). Here all clusters
of one source are compared, each at its best of the last hour and as it is now. If too many have fallen, the source is
in doubt: its clusters below their best are UNKNOWN, and stay so, however many samples agree, until they are back or a
person confirms the source. The best is kept when the doubt begins, so that waiting does not make a wrong reading true,
and the hour before it is looked at as a whole, so that small steps do not either. Source: docs/design.md, "What is
believed of health"; docs/adr/0029.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from fractions import Fraction

from models.base import Model, Name, PositiveCount, Share, Time
from models.cluster.island import Island, healthy, total
from models.cluster.readings import HealthSample, confirm_line_of
from models.texts import count_text, gpus_text

LEDGER = "ledger"
"""The source of samples that name no source."""


class Level(Model):
    """One cluster as its source reports it: its islands at their recent best, and now."""

    cluster: Name
    gpus_per_node: PositiveCount = 8
    before: tuple[Island, ...]
    now: tuple[Island, ...]

    @property
    def lost_gpus(self) -> int:
        return max(0, healthy(self.before) - healthy(self.now))

    def has_fallen(self, plausible_drop: Fraction) -> bool:
        """Return whether more is gone than the one node that fails somewhere in a fleet in any hour."""
        lost = self.lost_gpus
        return lost > self.gpus_per_node or lost > plausible_drop * total(self.before)


class Judgement(Model):
    """The reason why a source is in doubt, and the levels of its clusters when the doubt began."""

    why: str
    plausible_drop: Share
    levels: tuple[Level, ...]


class DoubtedSource(Model):
    """A source in doubt, for people. `clusters`: those below what it reported before."""

    source: str
    why: str
    since: Time
    clusters: tuple[Name, ...]

    @property
    def confirm_line(self) -> str:
        return confirm_line_of(self.source)


def doubt_reason(
    source: str, levels: Collection[Level], plausible_drop: Fraction, most_clusters: int, other_gpus: int = 0
) -> str:
    """Return why the falls of a source's clusters are not believed; empty if they are.

    They are not if more than `most_clusters` have fallen, or several, and together by more than `plausible_drop` of the
    source's GPUs. A single cluster is judged by itself. `other_gpus`: installed in clusters that are not among the
    levels and have lost nothing; the more there are, the sooner a fall is believed. Units: whole GPUs.
    """
    fallen = [level for level in levels if level.has_fallen(plausible_drop)]
    lost = sum(level.lost_gpus for level in fallen)
    installed = other_gpus + sum(total(level.before) for level in levels)
    if len(fallen) <= most_clusters and (len(fallen) < 2 or lost <= plausible_drop * installed):
        return ""
    return (
        f"source {source} lost {lost} of {gpus_text(installed)} in {count_text(len(fallen), 'cluster')} within an hour"
    )


def still_fallen(levels: Iterable[Level], plausible_drop: Fraction) -> tuple[str, ...]:
    """Return the clusters that are not back at their former level."""
    return tuple(level.cluster for level in levels if level.has_fallen(plausible_drop))


def sample_before(level: Level, since: datetime) -> HealthSample:
    """Return the cluster as it was before."""
    return HealthSample(cluster=level.cluster, at=since, islands=level.before)
