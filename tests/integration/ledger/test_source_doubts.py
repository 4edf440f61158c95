"""A source is judged by the few clusters that lost anything, with the same result as by all of them."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any, NamedTuple

import pytest
from sqlmodel import Session

from activities.adapters.ledger import source_doubts
from activities.adapters.ledger.facade import Ledger
from tests.integration.ledger.world import LEDGER_NOW, ForeignTool, import_fleet

CLUSTERS = tuple(f"site-{number}" for number in range(7))
ISLANDS = {"X": 64, "Y": 32}
NODE_GPUS, WHOLE = 8, 96
IMPORTER = "tpm"
WRITERS = ("", "ledger", "exporter", "agent", IMPORTER)
HOUR, SKEW = timedelta(hours=1), timedelta(minutes=1)
DROP = Fraction(1, 10)


class Sample(NamedTuple):
    cluster: str
    island: str
    at: datetime
    healthy: int
    source: str


def small_fleet(names: tuple[str, ...] = CLUSTERS) -> dict[str, Any]:
    islands = [{"name": name, "total_gpus": gpus, "healthy_gpus": gpus} for name, gpus in ISLANDS.items()]
    quotas = [{"team": "research", "gpus": 40}]
    return {"clusters": [{"name": name, "islands": islands, "quotas": quotas} for name in names]}


def told(tool: ForeignTool, samples: list[Sample]) -> None:
    tool.run("DELETE FROM health_samples")
    rows = [(s.cluster, s.island, shown(tool, s.at), ISLANDS[s.island], s.healthy, s.source) for s in samples]
    marks = ", ".join(["(?, ?, ?, ?, ?, ?)"] * len(rows))
    columns = "cluster, island, at, total_gpus, healthy_gpus, source"
    tool.run(f"INSERT INTO health_samples ({columns}) VALUES {marks}", *(value for row in rows for value in row))


def shown(tool: ForeignTool, at: datetime) -> Any:
    return at if tool.postgresql else at.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def doubted_by_hand(samples: list[Sample], named: dict[str, str], most: int) -> dict[str, str]:
    """Return, by cluster, the first doubted source by which it has fallen, computed from all rows alone."""
    since, sources, before, present = LEDGER_NOW - HOUR, dict[str, set[str]](), dict[str, int](), dict[str, int]()
    for cluster in CLUSTERS:
        last, often, best, newest = set[str](), set[str](), 0, 0
        for island in ISLANDS:
            rows = sorted(s for s in samples if (s.cluster, s.island) == (cluster, island) and s.at < LEDGER_NOW + SKEW)
            stood = max((s.at for s in rows if s.at <= since), default=since)
            rows = [s for s in rows if s.at >= stood]
            if not rows:
                continue
            times = defaultdict[str, int](int)
            for row in rows:
                times[row.source] += 1
            last.add(rows[-1].source)
            often |= {source for source, count in times.items() if count > 1 and source != IMPORTER}
            best, newest = best + max(s.healthy for s in rows), newest + rows[-1].healthy
        if last:
            sources[cluster] = {named[cluster]} if cluster in named else {s or "ledger" for s in last | often}
            before[cluster], present[cluster] = best, newest
    lost = {c: before[c] - present[c] for c in sources}
    fallen = {c for c in sources if lost[c] > NODE_GPUS or lost[c] > DROP * WHOLE}
    doubted = dict[str, str]()
    for cluster in fallen:
        for source in sorted(sources[cluster]):
            those = [c for c in sources if source in sources[c]]
            down = [c for c in those if c in fallen]
            many = len(down) > 1 and sum(lost[c] for c in down) > DROP * WHOLE * len(those)
            if (len(down) > most or many) and cluster not in doubted:
                doubted[cluster] = source
    return doubted


def some_samples(dice: random.Random) -> list[Sample]:
    """Return samples of an hour in which each cluster has no, one or several falls, by one source or several."""
    samples = dict[tuple[str, str, datetime], Sample]()
    shared = dice.choice(WRITERS)
    for cluster in CLUSTERS:
        falls = dice.random() < 0.4
        for island, gpus in ISLANDS.items():
            minutes = [dice.randint(61, 300), *(dice.randint(1, 59) for _ in range(dice.randint(0, 3)))]
            for minute in minutes:
                at = LEDGER_NOW - timedelta(minutes=minute)
                writer = shared if dice.random() < 0.7 else dice.choice(WRITERS)
                healthy = gpus - (dice.choice((4, 9, 24)) if falls and minute < dice.choice((30, 60)) else 0)
                samples[cluster, island, at] = Sample(cluster, island, at, healthy, writer)
    return list(samples.values())


@pytest.mark.parametrize("seed", range(40))
def test_who_is_in_doubt_is_who_would_be_by_all_samples(empty_ledger: Ledger, tool: ForeignTool, seed: int) -> None:
    dice = random.Random(seed)
    import_fleet(empty_ledger, small_fleet())
    samples, most = some_samples(dice), dice.choice((1, 2, 3))
    told(tool, samples)
    named = {c: f"prometheus/{dice.choice(('east', 'west'))}" for c in CLUSTERS if dice.random() < 0.3}
    for cluster, source in named.items():
        text = json.dumps({"connection": source.removeprefix("prometheus/")})
        tool.run("UPDATE clusters SET health_source = ? WHERE name = ?", text, cluster)
    doubted = dict[str, str]()
    for cluster in CLUSTERS:
        doubt = empty_ledger.doubts.doubt(cluster, DROP, most)
        tool.run("DELETE FROM source_doubts")
        if doubt is not None:
            doubted[cluster] = doubt.source
    assert doubted == doubted_by_hand(samples, named, most)


def test_the_seeds_have_what_they_are_to_show() -> None:
    found = [doubted_by_hand(some_samples(dice), {}, dice.choice((1, 2, 3))) for dice in map(random.Random, range(40))]
    assert 5 < sum(bool(one) for one in found) < 35
    assert len({source for one in found for source in one.values()}) > 2


def test_a_fall_among_a_hundred_clusters_looks_closely_at_itself_alone(
    empty_ledger: Ledger, tool: ForeignTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has an exporter of its own. All have fallen, and each is asked while another program writes for long."""
    names = tuple(f"site-{number:03}" for number in range(100))
    import_fleet(empty_ledger, small_fleet(names))
    samples = [
        Sample(name, island, LEDGER_NOW - timedelta(minutes=minute), gpus - (12 if minute == 1 else 0), f"of {name}")
        for name in names
        for island, gpus in ISLANDS.items()
        for minute in (120, 1)
    ]
    told(tool, samples)
    looked_at = list[str]()
    closely = source_doubts._histories

    def looking(session: Session, clusters: Sequence[str], since: datetime, now: datetime) -> Any:
        looked_at.extend(clusters)
        return closely(session, clusters, since, now)

    monkeypatch.setattr(source_doubts, "_histories", looking)
    tool.run("BEGIN" if tool.postgresql else "BEGIN IMMEDIATE")
    try:
        tool.run("UPDATE clusters SET gpu_model = 'H200'")
        assert empty_ledger.doubts.doubt(names[7], DROP, 3) is None
    finally:
        tool.run("ROLLBACK")
    assert set(looked_at) == {names[7]}
