"""Reads nodes, jobs and QOS with a Slurm's tools."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from activities.adapters.slurm.command_line import Talk
from activities.adapters.slurm.parsing import Node, SlurmJob, document_in, islands_in, jobs_in, nodes_in, qos_in_use
from activities.adapters.slurm.unsupported import QOS_LIMITS, limiting_qos_in
from models.cluster.sources import SlurmSource
from models.errors import Unavailable

_NONE = "No topology information"


def islands(talk: Talk) -> dict[str, frozenset[str]]:
    """Return nodes by island; none if there is no topology. Errors: Unavailable."""
    try:
        return islands_in(talk.run("scontrol", "-o", "show", "topology"))
    except Unavailable as error:
        if _NONE in error.message:
            return {}
        raise  # a topology that is unknown for a moment is not one island


def nodes(talk: Talk, source: SlurmSource) -> tuple[Node, ...]:
    """Read the nodes. Errors: Unavailable."""
    document = document_in(talk.run("sinfo", "--json"))
    if not isinstance(document, dict) or "nodes" not in document:
        # From 23.02 on sinfo sums nodes up, and scontrol, which has no JSON before, lists each.
        document = document_in(talk.run("scontrol", "show", "nodes", "--json"))
    return nodes_in(document, source.gres)


def jobs(talk: Talk, cluster: str, source: SlurmSource) -> tuple[SlurmJob, ...]:
    """Read the jobs; those in the cluster's own flex QOS are shown as in the shared one. Errors: Unavailable."""
    own = source.own_flex_qos(cluster)
    return tuple(
        job.but(qos=source.flex_qos) if job.qos == own else job for job in jobs_in(_read_jobs(talk), source.tres)
    )


def qos_used(talk: Talk) -> frozenset[str]:
    """Return the QOS of jobs that are not over, and the default ones. Errors: Unavailable."""
    defaults = talk.run("sacctmgr", "-n", "-P", "show", "assoc", "format=DefaultQOS")
    return qos_in_use(_read_jobs(talk)) | frozenset(defaults.split("\n"))


def limiting_qos(talk: Talk, source: SlurmSource, ours: Collection[str]) -> list[str]:
    """Return QOS that limit GPUs, without flex, classes (`ours`) and Backstop's own. Errors: Unavailable."""
    return limiting_qos_in(talk.run("sacctmgr", "-n", "-P", "show", "qos", QOS_LIMITS), source, ours)


def _read_jobs(talk: Talk) -> Any:
    """Read every job, in hidden partitions too."""
    return document_in(talk.run("squeue", "--all", "--states=all", "--json"))
