"""Simulated hourly health of a cluster: failures, heavy-tailed repairs, bursts, waves, lemons and racks, from a seed.

Published figures that the defaults follow, each a fact with its source. Failures per 1,000 node-days: 6.5 and 2.3 (two
training clusters, arXiv:2410.21680), 3.8 (419 unplanned interruptions in 54 days on 2,048 nodes, arXiv:2407.21783).
Repair: a median under a day and a mean of several days; a tenth of the nodes with a third of the failures; bursts that
make the daily variance several times the mean; failure domains of about eight hosts: docs/buffers.md, "Made-up
history".

What no figure says is fitted to 400 GPU servers over 24 weeks (arXiv:2502.03885) and two groups of 100 of them: sudden
bursts grow as the square root of the cluster, for a bug finds some of many; waves, in which a share of the nodes fails
one after another for weeks, make the level climb and the days resemble those of a week ago; in 200,000 rack-days of
that and of four LANL clusters no whole rack was out. benchmarks/buffers.py prints made-up beside real.
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from pydantic import Field

from models.base import Model, Name, PositiveCount
from models.buffers.estimator import WEEK_HOURS
from models.buffers.hourly_health import Series

_WARM_HOURS = 26 * WEEK_HOURS
"""Hours simulated before the first one, so that long repairs are already under way."""
_BURST_ROOT = 0.2

Rate = Annotated[float, Field(ge=0, le=1000)]


class Recipe(Model):
    """The failures of a simulated cluster. Rates are means; every draw comes from the seed."""

    cluster: Name = "simulated"
    nodes: Annotated[PositiveCount, Field(le=20_000)] = 128
    weeks: Annotated[PositiveCount, Field(le=520)] = 52
    failures: Rate = 3.8
    """Failures of single nodes, per 1,000 node-days."""
    repair_hours: Annotated[float, Field(gt=0, le=10_000)] = 10.0
    """Median length of a repair; log-normal."""
    repair_tail: Annotated[float, Field(ge=0, le=3)] = 2.1
    """Standard deviation of the logarithm: the mean is exp(tail^2 / 2) times the median."""
    lemons: Annotated[float, Field(ge=0, le=1)] = 0.1
    """The share of nodes that are lemons, which fail more often than others."""
    lemon_share: Annotated[float, Field(ge=0, lt=1)] = 1 / 3
    """The share of single-node failures that happen on lemons."""
    racks: Rate = 0.02
    """Rack failures, per 1,000 rack-days: all nodes of a rack at once."""
    rack_nodes: PositiveCount = 8
    bursts: Rate = 0.04
    """Bursts of failures per day in the cluster, such as from a driver, a network or a stress test."""
    burst_nodes: Annotated[float, Field(ge=1, le=1000)] | None = None
    """Mean nodes in a burst; geometric. None: a fifth of the square root of the number of nodes."""
    burst_hours: Annotated[float, Field(gt=0, le=10_000)] = 6.0
    """Median length of a burst's and a rack's outage."""
    waves: Rate = 0.01
    """Waves per day. In a wave, nodes fail one after another for weeks, after a bad batch or a new release."""
    wave_share: Annotated[float, Field(ge=0, le=1)] = 0.03
    """Mean share of the nodes that a wave affects; geometric, at least one node."""
    wave_weeks: Annotated[float, Field(gt=0, le=52)] = 4.0
    """Median length of a wave."""
    wave_hours: Annotated[float, Field(gt=0, le=10_000)] = 250.0
    """Median outage of a node in a wave."""
    change_week: Annotated[int, Field(ge=0, le=520)] = 0
    """The week from which all rates are multiplied by `change`; 0: they never are."""
    change: Annotated[float, Field(ge=0, le=100)] = 1.0

    @property
    def burst_size(self) -> float:
        """The mean size of a burst, in nodes."""
        return max(1.0, _BURST_ROOT * math.sqrt(self.nodes)) if self.burst_nodes is None else self.burst_nodes


def simulate_health(recipe: Recipe, seed: int) -> Series:
    """Simulate one cluster's hours, in nodes. The same recipe and seed make the same series on every machine.

    Shapes: (weeks * 168,). A node is unhealthy in an hour while any of its outages touches it; `worst` counts all
    that do, `mean` weighs each by the part of the hour that it takes.
    """
    dice = np.random.default_rng(seed)
    hours = recipe.weeks * WEEK_HOURS
    starts, nodes, lengths = _draw_outages(recipe, dice, hours)
    ends = starts + lengths
    kept = (ends > 0) & (starts < hours)
    starts, ends, nodes = np.clip(starts[kept], 0, None), np.clip(ends[kept], None, hours), nodes[kept]
    down, part = np.zeros(hours), np.zeros(hours)
    for begin, end in _merge_outages(nodes, starts, ends):
        first, last = math.floor(begin), math.ceil(end)
        down[first:last] += 1
        part[first:last] += 1
        part[first] -= begin - first
        part[last - 1] -= last - end
    total = np.full(hours, float(recipe.nodes))
    return Series(recipe.cluster, total, total - down, total - part, np.zeros(hours))


Outages = tuple[np.ndarray, np.ndarray, np.ndarray]


def _draw_outages(recipe: Recipe, dice: np.random.Generator, hours: int) -> Outages:
    """Draw the outages: their starts (hours, negative before the first hour), nodes and lengths."""
    single = _draw_times(recipe, dice, hours, recipe.failures / 1000 / 24 * recipe.nodes)
    weights = np.ones(recipe.nodes)
    lemons = round(recipe.lemons * recipe.nodes)
    if 0 < lemons < recipe.nodes:
        weights[:lemons] = recipe.lemon_share / lemons
        weights[lemons:] = (1 - recipe.lemon_share) / (recipe.nodes - lemons)
    owners = dice.permutation(recipe.nodes)
    outages = [
        (
            single,
            owners[dice.choice(recipe.nodes, len(single), p=weights / weights.sum())],
            dice.lognormal(math.log(recipe.repair_hours), recipe.repair_tail, len(single)),
        )
    ]
    racks = -(-recipe.nodes // recipe.rack_nodes)
    for at in _draw_times(recipe, dice, hours, recipe.racks / 1000 / 24 * racks):
        first = recipe.rack_nodes * int(dice.integers(racks))
        hit = np.arange(first, min(first + recipe.rack_nodes, recipe.nodes))
        outages.append(_draw_joint_outage(at, hit, recipe, dice))
    bursts = _draw_times(recipe, dice, hours, recipe.bursts / 24)
    outages += [_draw_joint_outage(at, _draw_nodes(recipe.burst_size, recipe, dice), recipe, dice) for at in bursts]
    waves = _draw_times(recipe, dice, hours, recipe.waves / 24)
    outages += [
        _draw_wave(at, _draw_nodes(recipe.wave_share * recipe.nodes, recipe, dice), recipe, dice) for at in waves
    ]
    starts, nodes, lengths = (np.concatenate(column) for column in zip(*outages, strict=True))
    return starts, nodes, lengths


def _draw_times(recipe: Recipe, dice: np.random.Generator, hours: int, rate: float) -> np.ndarray:
    """Draw the times of an event with this hourly rate, multiplied by `change` from the change week on."""
    change = recipe.change_week * WEEK_HOURS if recipe.change_week else hours
    change = min(change, hours)
    before = dice.uniform(-_WARM_HOURS, change, dice.poisson(rate * (_WARM_HOURS + change)))
    after = dice.uniform(change, hours, dice.poisson(rate * recipe.change * (hours - change)))
    return np.sort(np.concatenate([before, after]))


def _draw_nodes(mean: float, recipe: Recipe, dice: np.random.Generator) -> np.ndarray:
    """Draw this many nodes on average, anywhere; geometric."""
    return dice.choice(recipe.nodes, min(recipe.nodes, int(dice.geometric(1 / max(1.0, mean)))), replace=False)


def _draw_wave(at: float, nodes: np.ndarray, recipe: Recipe, dice: np.random.Generator) -> Outages:
    lasts = dice.lognormal(math.log(recipe.wave_weeks * WEEK_HOURS), 0.5)
    starts = at + dice.uniform(0, lasts, len(nodes))
    return starts, nodes, dice.lognormal(math.log(recipe.wave_hours), 1.0, len(nodes))


def _draw_joint_outage(at: float, nodes: np.ndarray, recipe: Recipe, dice: np.random.Generator) -> Outages:
    length = dice.lognormal(math.log(recipe.burst_hours), 1.0)
    return np.full(len(nodes), at), nodes, np.full(len(nodes), length)


def _merge_outages(nodes: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> list[tuple[float, float]]:
    """Merge each node's overlapping outages: a node that fails twice is down once."""
    order = np.lexsort((starts, nodes))
    merged: list[tuple[float, float]] = []
    owner = -1
    for node, start, end in zip(nodes[order].tolist(), starts[order].tolist(), ends[order].tolist(), strict=True):
        if node == owner and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
            owner = node
    return merged
