"""The static ceiling, the most that a cluster may promise, from the policy's buffer."""

from __future__ import annotations

from fractions import Fraction

from models.cluster.policy import Basis, Policy
from models.cluster.snapshot import Snapshot


def static_ceiling(total_gpus: int, healthy_gpus: int, buffer: Fraction, spare_gpus: int, basis: Basis) -> int:
    """Return the most GPUs that a cluster may promise.

    Shapes: scalars. Units: whole GPUs; buffer in [0, 1), exact.
    Errors: ValueError when healthy_gpus > total_gpus or a count is negative.
    Source: docs/design.md, "Words"; rounds down, so that a promise is never rounded up.
    """
    if min(total_gpus, healthy_gpus, spare_gpus) < 0 or healthy_gpus > total_gpus:
        raise ValueError(f"counts are impossible: total {total_gpus}, healthy {healthy_gpus}, spare {spare_gpus}")
    base = total_gpus if basis is Basis.TOTAL else healthy_gpus
    return min(after_buffer(base, buffer), max(0, healthy_gpus - spare_gpus))


def after_buffer(gpus: int, buffer: Fraction) -> int:
    """Return floor((1 - b) * gpus), exactly."""
    return int((1 - buffer) * gpus)


def spare_of(gpus_per_node: int, policy: Policy) -> int:
    """Return the spare GPUs: one node unless the policy says otherwise."""
    return gpus_per_node if policy.spare_gpus is None else policy.spare_gpus


def with_buffer(snapshot: Snapshot, policy: Policy) -> Snapshot:
    """Add the buffer of an empty history where the policy derives it from health and the snapshot has none."""
    if policy.terms is None or snapshot.derived is not None:
        return snapshot
    import numpy as np

    from models.buffers.estimator import derive_buffer

    buffer = derive_buffer(np.empty(0), max(1, snapshot.total_gpus), policy.terms, snapshot.gpus_per_node)
    return snapshot.model_copy(update={"derived": buffer})


def buffer_of(snapshot: Snapshot, policy: Policy) -> Fraction:
    """Return b of a snapshot under a policy."""
    return policy.buffer_at(snapshot.completed_rollouts, snapshot.derived)


def ceiling_of(snapshot: Snapshot, policy: Policy) -> int:
    """Return C of a snapshot under a policy."""
    if policy.terms is not None and snapshot.derived is not None and snapshot.derived.promise is None:
        # Its need can be the whole cluster, which is no share that a buffer may have.
        left = snapshot.total_gpus - snapshot.derived.needed
        return max(0, min(left, snapshot.healthy_gpus - spare_of(snapshot.gpus_per_node, policy)))
    return static_ceiling(
        snapshot.total_gpus,
        snapshot.healthy_gpus,
        buffer_of(snapshot, policy),
        spare_of(snapshot.gpus_per_node, policy),
        policy.basis,
    )
