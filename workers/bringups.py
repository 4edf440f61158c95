"""What a worker needs to take part in bring-ups, of its own settings and of the ledger."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from temporalio.client import Client

from activities.adapters.ledger.facade import Ledger
from activities.adapters.prometheus.prometheus import Prometheuses
from activities.adapters.runners.checks import OutsideChecks
from activities.adapters.runners.run_directory import Here
from activities.adapters.runners.runners import Runners
from activities.adapters.runners.settings import Allowed, RunnerSettings
from activities.adapters.slurm.slurm import SlurmQuotas, Slurms
from activities.bringup_book import FleetBringups
from activities.bringup_checks import OwnHealth
from activities.bringup_ports import BringupsPort, ProductionPort
from activities.clusters import ClusterActivities
from activities.rollout_door import TemporalRollouts
from activities.runner_ports import CheckPort, RunnerPort
from workers.settings import Settings


class BringupParts(NamedTuple):
    """What bring-ups need. `host`: this one's name, where commands may run on it; empty: they may not."""

    runners: RunnerPort
    checks: CheckPort
    bringups: BringupsPort
    production: ProductionPort
    host: str = ""


def bringup_parts(client: Client, ledger: Ledger, slurms: Slurms, settings: Settings) -> BringupParts:
    """Called in the client's loop. Without a file of runners nothing is run, and whoever asks is told."""
    quotas, usage = SlurmQuotas(slurms), ledger.usage.fed_by(slurms.refresh_use)
    prometheuses = Prometheuses(ledger, settings.prometheus, slurms.every)
    health = ledger.health.fed_by(prometheuses.refresh_health, slurms.refresh_health, slurms.refresh_use)
    clusters = ClusterActivities(quotas, health, usage, ledger.calendar, ledger.registry, ledger.jobs, ledger.doubts)
    rollouts = TemporalRollouts(client, asyncio.get_running_loop())
    book = FleetBringups(ledger.bringups, quotas, ledger.registry, usage, ledger.jobs, slurms, clusters, rollouts)
    allowed = Allowed(settings.runners or RunnerSettings())
    here = Here()
    runners = Runners(allowed, settings.runs_dir, here)
    checks = OwnHealth(slurms.describe, health, OutsideChecks(allowed, settings.prometheus))
    host = here.host if settings.runners is not None else ""
    return BringupParts(runners, checks, book, book, host)
