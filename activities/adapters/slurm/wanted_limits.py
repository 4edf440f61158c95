"""Computes the limits that Slurm should have, and the commands that set them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from activities.adapters.ledger.scheduler_mirror import MirroredCluster
from activities.adapters.slurm.names import POOL, QOS, plain_name
from models.cluster.sources import SlurmSource

_NAMES = 200
"""The most accounts in one command."""


def wanted_limits(standing: MirroredCluster, source: SlurmSource, sized: str | None) -> dict[str, int | None]:
    """Return the limits that Slurm should have, by name, among those that the ledger has. `sized`: the QOS of flex."""
    wanted: dict[str, int | None] = {
        team: standing.admitted_limit(team) for team in standing.quotas if team in standing.limits
    }
    tops = [team for team, quota in standing.quotas.items() if quota.parent is None]
    pool = standing.limits.get(POOL + source.root)
    if pool is not None:
        # While a rollout is open nobody can use the GPUs that it freed, whatever limit is raised below.
        # An earlier limit of the pool stays: a rollout does not allow more than it did.
        before = pool.first if pool.ours else pool.gpus
        bound = standing.bound if before is None else min(standing.bound, before)
        wanted[POOL + source.root] = bound if standing.reserved else before
    if not source.size_flex:
        return wanted
    for name, qos in standing.limits.items():
        if name == f"{QOS}{sized}":
            # Flex may have all healthy GPUs that no job inside a quota holds.
            unused = sum(standing.quotas[t].gpus for t in tops)
            size = None if standing.flex_gpus is None else standing.flex_gpus + unused
            wanted[name] = size if size is not None else qos.first if qos.ours else qos.gpus
        elif name.startswith(QOS) and sized is not None and qos.ours:
            wanted[name] = qos.first  # another QOS sizes flex by now
    return wanted


def root_limit_of(standing: MirroredCluster, source: SlurmSource) -> int | None:
    """Return the GPUs that the root lets all accounts under it hold together, as last seen; None: it has no limit."""
    pool = standing.limits.get(POOL + source.root)
    return None if pool is None else pool.gpus


def commands(limits: Mapping[str, int | None], cluster: str, source: SlurmSource) -> list[str]:
    """Return commands of sacctmgr; -1 removes a limit."""
    groups: dict[int | None, list[str]] = {}
    lines = []
    for name, gpus in sorted(limits.items()):
        if name.startswith(QOS):
            lines.append(f"modify qos {plain_name(name.removeprefix(QOS))} set GrpTRES={source.tres}={_limit(gpus)}")
        else:
            groups.setdefault(gpus, []).append(plain_name(name.removeprefix(POOL)))
    for gpus, names in groups.items():
        for at in range(0, len(names), _NAMES):
            some = ",".join(names[at : at + _NAMES])
            lines.append(
                f"modify account {some} cluster={plain_name(cluster)} set GrpTRES={source.tres}={_limit(gpus)}"
            )
    return lines


def _limit(gpus: int | None) -> int:
    return -1 if gpus is None else gpus
