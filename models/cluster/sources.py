"""Where a cluster's quotas, health and use come from, where that is not the ledger."""

from __future__ import annotations

from models.base import Model, Name

WHOLE = "main"
"""The island of a cluster of which its source tells none."""


class SlurmSource(Model):
    """Where a cluster's quotas, health and use come from: a Slurm cluster, and how it names what we need."""

    connection: Name = "local"
    """How the worker reaches it: one of its own connections. The file that is imported names no commands."""
    cluster: Name | None = None
    """Slurm's name of it; None: ours."""
    root: Name = "root"
    """The account under which the teams' accounts are. Unless it is Slurm's own root, it bounds them all."""
    gres: Name = "gpu"
    """The name of the TRES that is promised: gres/ and this."""
    flex_root: Name = "flex-pool"
    """The account under which the accounts for flex are; they hold no quota."""
    flex_suffix: Name = "-flex"
    """What a team's account for flex has after the team's name."""
    flex_qos: Name = "flex"
    size_flex: bool = True
    """Whether the limit of that QOS is set, where there is one: in Slurm that takes an Administrator."""

    @property
    def tres(self) -> str:
        return f"gres/{self.gres}"


class PrometheusSource(Model):
    """Where a cluster's health comes from: a Prometheus, and what it calls the cluster."""

    connection: Name = "local"
    """Which one: a name of the worker's own file, which has its address and the queries."""
    cluster: Name | None = None
    """The value of its label for clusters; None: our name."""
