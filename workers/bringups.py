"""Builds the parts with which a worker takes part in bring-ups, from its own settings."""

from __future__ import annotations

from typing import NamedTuple

from activities.adapters.kubernetes.kubernetes import Kuberneteses
from activities.adapters.ledger.facade import Ledger
from activities.adapters.prometheus.prometheus import Prometheuses
from activities.adapters.runners.outside_checks import OutsideChecks
from activities.adapters.runners.run_directory import Here
from activities.adapters.runners.runners import Runners
from activities.adapters.runners.settings import Allowed, RunnerSettings
from activities.adapters.slurm.slurm import Slurms
from activities.bringup.health_checks import OwnHealth
from activities.ports.bringup import BringupsPort, CheckPort, ProductionPort, RunnerPort
from activities.secret_files import SecretFiles
from workers.settings import Settings


class BringupParts(NamedTuple):
    """The adapters that bring-ups need. `host`: this one's name, if commands may run on it; empty: they may not.

    Without `bringups` and `production` the ledger's book and its fleet are used.
    """

    runners: RunnerPort
    checks: CheckPort
    bringups: BringupsPort | None = None
    production: ProductionPort | None = None
    host: str = ""


def bringup_parts(ledger: Ledger, slurms: Slurms, settings: Settings) -> BringupParts:
    """Build the parts. Without a file of runners nothing is run or asked outside, and orders for it are refused."""
    secrets = SecretFiles(settings.secrets)
    allowed, here = Allowed(settings.runners or RunnerSettings(), secrets=secrets), Here()
    health = ledger.health.feed_from(slurms.refresh_health)
    prometheuses = Prometheuses(ledger, settings.prometheus, slurms.every, secrets=secrets)
    kuberneteses = Kuberneteses(ledger, settings.kubernetes, slurms.every)
    outside = OutsideChecks(allowed, settings.prometheus, ledger.now)
    own = slurms.describe, prometheuses.read_islands, kuberneteses.read_islands
    checks = OwnHealth(*own, health, outside, ledger.now)
    host = here.host if settings.runners is not None else ""
    return BringupParts(Runners(allowed, settings.runs_dir, here, ledger.now), checks, host=host)
