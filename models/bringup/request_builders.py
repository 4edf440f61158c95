"""Requests to activities, built from the state of a bring-up: the workflow sends them, tests answer the same ones."""

from __future__ import annotations

import math
from datetime import datetime, timedelta

from models.bringup.checks import CheckKind, CheckOrder
from models.bringup.messages import FollowRun, HandOverRequest, SupplyRequest, WindDownRequest
from models.bringup.placeholders import RUN_KEY, fill_text, fill_url
from models.bringup.recipe import CAPACITY, SUPPLY, Reading
from models.bringup.runs import RunOrder
from models.bringup.state import Bringup

_LOOKS_EVERY = timedelta(seconds=15)
"""The longest interval between looks at a run. Steps take much longer."""
_LEAST = timedelta(milliseconds=100)
_TELLS_EVERY = timedelta(minutes=10)
"""The shortest interval between reports of a run's log tail. A longer time limit makes it longer."""
_LOOKS_FOR = timedelta(hours=24)
"""The longest time for which one call waits for supply, unless the recipe asks even less often."""


def run_order(bringup: Bringup, run: str) -> RunOrder:
    """Build the order for the latest noted start of a step or its undo."""
    instructions, values = bringup.instructions(run), bringup.entry.all_values

    def fill(text: str) -> str:
        return fill_text(text, values)

    return RunOrder(
        key=bringup.key(run),
        runner=bringup.runner(run),
        run=tuple(fill(text) for text in instructions.run),
        pipeline=fill(instructions.pipeline),
        branch=fill(instructions.branch),
        commit=fill(instructions.commit),
        values={name: fill(text) for name, text in instructions.values.items()},
        url=fill_url(instructions.url, values),
        status_url=fill_url(instructions.status_url, values | {RUN_KEY: bringup.key(run).text}),
        field=instructions.field,
        succeeded=instructions.succeeded,
        failed=instructions.failed,
        limit=instructions.limit,
    )


def follow_request(bringup: Bringup, run: str) -> FollowRun:
    order = run_order(bringup, run)
    return FollowRun(
        order=order,
        seen=bringup.runs[run].seen,
        settle=bringup.recipe.settle,
        every=min(_LOOKS_EVERY, max(bringup.recipe.settle / 8, _LEAST)),
        news=max(_TELLS_EVERY, order.limit / 100),
        unheard=bringup.runs[run].unheard,
    )


def supply_request(bringup: Bringup) -> SupplyRequest:
    assert bringup.recipe.supply is not None
    assert bringup.supply is not None
    every = bringup.recipe.supply.every
    return SupplyRequest(
        order=supply_order(bringup),
        every=every,
        most=max(_LOOKS_FOR, every),
        colour=bringup.supply.colour,
        said=bringup.supply.said,
    )


def supply_order(bringup: Bringup) -> CheckOrder:
    supply = bringup.recipe.supply
    assert supply is not None
    return _order_reading(bringup, SUPPLY, CheckKind.SUPPLY, supply).but(needs=supply.needs)


def _order_reading(bringup: Bringup, name: str, kind: CheckKind, reading: Reading) -> CheckOrder:
    values = bringup.entry.all_values
    return CheckOrder(
        cluster=bringup.cluster,
        name=name,
        kind=kind,
        run=tuple(fill_text(text, values) for text in reading.run),
        url=fill_url(reading.url, values),
        limit=reading.limit,
    )


def check_order(bringup: Bringup, name: str) -> CheckOrder:
    """Build the order for a check, or for the capacity check, by name."""
    entry, capacity = bringup.entry, bringup.recipe.capacity
    source = {
        "slurm": entry.slurm,
        "prometheus": entry.prometheus,
        "kubernetes": entry.kubernetes,
        "islands": entry.planned_islands,
    }
    if name == CAPACITY:
        nodes = math.ceil(bringup.recipe.accept_at_least * entry.nodes)
        order = CheckOrder(cluster=bringup.cluster, name=name, kind=CheckKind.CAPACITY)
        order = order if capacity is None else _order_reading(bringup, name, CheckKind.CAPACITY, capacity)
        return order.but(gpus=nodes * entry.gpus_per_node, **source)
    check, values = next(c for c in bringup.recipe.checks if c.name == name), entry.all_values
    return CheckOrder(
        cluster=bringup.cluster,
        name=name,
        kind=check.kind,
        run=tuple(fill_text(text, values) for text in check.command),
        url=fill_url(check.http, values),
        query=fill_text(check.promql, values),
        connection=fill_text(check.connection, values),
        at_least=check.at_least,
        at_most=check.at_most,
        share=check.healthy,
        gpus=check.contiguous or 0,
        limit=check.limit,
    ).but(**source)


def hand_over_request(bringup: Bringup, now: datetime) -> HandOverRequest:
    """Build the request that puts the cluster into the fleet or, once there, grants GPUs that are owed."""
    return HandOverRequest(
        entry=bringup.entry,
        number=bringup.number,
        islands=bringup.islands or bringup.entry.planned_islands,
        granted=None if bringup.production is None else bringup.production.granted,
        actor=bringup.entered_by,
        at=now,
    )


def wind_down_request(bringup: Bringup, now: datetime) -> WindDownRequest:
    assert bringup.leaving is not None
    return WindDownRequest(
        cluster=bringup.cluster,
        owner=bringup.entry.owner,
        actor=bringup.leaving.actor,
        reason=bringup.leaving.reason,
        at=now,
        slurm=bringup.entry.slurm,
        number=bringup.number,
    )
