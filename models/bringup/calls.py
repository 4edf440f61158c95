"""Requests to activities, built from the state of a bring-up: the workflow sends them, tests answer the same ones."""

from __future__ import annotations

import math
from datetime import datetime, timedelta

from models.bringup.checks import CheckKind, CheckOrder
from models.bringup.messages import FollowRun, HandOverRequest, SupplyRequest, WindDownRequest
from models.bringup.placeholders import RUN_KEY, fill_text, fill_url
from models.bringup.recipe import CAPACITY, SUPPLY, Reading
from models.bringup.runs import UNDO_SUFFIX, RunOrder
from models.bringup.state import Bringup

_LOOKS_EVERY = timedelta(seconds=15)
"""The interval between looks at a run, short compared with the time that steps take."""
_LEAST = timedelta(milliseconds=100)
_TELLS_EVERY = timedelta(minutes=10)
"""The greatest age of the log tail that people see."""
_LOOKS_FOR = timedelta(hours=24)
"""The longest time that one call waits for supply."""


def run_order(b: Bringup, run: str) -> RunOrder:
    """Build the order for the latest noted start of a step or its undo."""
    step, undo = b.recipe.steps[run.removesuffix(UNDO_SUFFIX)], run.endswith(UNDO_SUFFIX)
    runs, values = step.runs(undo=undo), b.entry.all_values

    def fill(text: str) -> str:
        return fill_text(text, values)

    return RunOrder(
        key=b.key(run),
        runner=step.runner(undo=undo),
        run=tuple(fill(text) for text in runs.run),
        pipeline=fill(runs.pipeline),
        branch=fill(runs.branch),
        commit=fill(runs.commit),
        values={name: fill(text) for name, text in runs.values.items()},
        url=fill_url(runs.url, values),
        status_url=fill_url(runs.status_url, values | {RUN_KEY: b.key(run).text}),
        field=runs.field,
        succeeded=runs.succeeded,
        failed=runs.failed,
        limit=runs.limit,
    )


def follow_request(b: Bringup, run: str) -> FollowRun:
    order = run_order(b, run)
    return FollowRun(
        order=order,
        seen=b.runs[run].seen,
        settle=b.recipe.settle,
        every=min(_LOOKS_EVERY, max(b.recipe.settle / 8, _LEAST)),
        news=max(_TELLS_EVERY, order.limit / 100),
        unheard=b.runs[run].unheard,
    )


def supply_request(b: Bringup) -> SupplyRequest:
    assert b.recipe.supply is not None
    assert b.supply is not None
    every = b.recipe.supply.every
    return SupplyRequest(
        order=supply_order(b), every=every, most=max(_LOOKS_FOR, every), colour=b.supply.colour, said=b.supply.said
    )


def supply_order(b: Bringup) -> CheckOrder:
    supply = b.recipe.supply
    assert supply is not None
    return _reading(b, SUPPLY, CheckKind.SUPPLY, supply).but(needs=supply.needs)


def _reading(b: Bringup, name: str, kind: CheckKind, reading: Reading) -> CheckOrder:
    values = b.entry.all_values
    return CheckOrder(
        cluster=b.cluster,
        name=name,
        kind=kind,
        run=tuple(fill_text(text, values) for text in reading.run),
        url=fill_url(reading.url, values),
        limit=reading.limit,
    )


def check_order(b: Bringup, name: str) -> CheckOrder:
    """Build the order for a check, or for the capacity check, by name."""
    source = {"slurm": b.entry.slurm, "prometheus": b.entry.prometheus, "islands": b.entry.planned_islands}
    if name == CAPACITY:
        capacity = b.recipe.capacity
        nodes = math.ceil(b.recipe.accept_at_least * b.entry.nodes)
        order = CheckOrder(cluster=b.cluster, name=name, kind=CheckKind.CAPACITY)
        order = order if capacity is None else _reading(b, name, CheckKind.CAPACITY, capacity)
        return order.but(gpus=nodes * b.entry.gpus_per_node, **source)
    check, values = next(c for c in b.recipe.checks if c.name == name), b.entry.all_values
    return CheckOrder(
        cluster=b.cluster,
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


def hand_over_request(b: Bringup, now: datetime) -> HandOverRequest:
    """Build the request that puts the cluster into the fleet or, once there, grants GPUs that are owed."""
    return HandOverRequest(
        entry=b.entry,
        number=b.number,
        islands=b.islands or b.entry.planned_islands,
        granted=None if b.production is None else b.production.granted,
        actor=b.entered_by,
        at=now,
    )


def wind_down_request(b: Bringup, now: datetime) -> WindDownRequest:
    assert b.leaving is not None
    return WindDownRequest(
        cluster=b.cluster,
        owner=b.entry.owner,
        actor=b.leaving.actor,
        reason=b.leaving.reason,
        at=now,
        slurm=b.entry.slurm,
        number=b.number,
    )
