"""Where a breach goes, where keys are configured: from health, quotas and the kept baseline as they are read here.

What a request says of them does not count: whoever serves workflow tasks may have written it.
"""

from __future__ import annotations

from activities.ports import QuotaPort, RegistryPort
from activities.warrant_ports import Drawn
from activities.warrants import Warrants
from models.cluster.readings import HealthSample
from models.cluster.snapshot import filled
from models.errors import BackstopError, Refusal
from models.planning.backing import back
from models.planning.plan import BreachTarget, breach_target
from models.rollout.holds import RADIUS, ROLLBACK
from models.rollout.messages import AimRequest


def aimed(
    request: AimRequest, sample: HealthSample | None, quotas: QuotaPort, registry: RegistryPort, warrants: Warrants
) -> BreachTarget:
    """Errors: Refusal where no quota is short of hardware; BlastRadius past what a person has not lifted."""
    cluster, rollout = request.cluster, request.rollout
    opened, policy, now = registry.opened(cluster), warrants.policy_of(rollout), warrants.now()
    if opened is None or opened.rollout != rollout or policy is None:
        raise Refusal(f"no rollout {rollout} that was launched with a ticket is open in {cluster}")
    if sample is None:
        raise Refusal(f"nobody knows the health of {cluster}: no breach can be told")
    current = quotas.read(cluster).values
    islands = filled(opened.baseline.quotas, sample.islands)
    if not back(opened.baseline.with_values(current).with_islands(islands)).shortage:
        raise Refusal(f"every quota of {cluster} has healthy GPUs behind it: there is no breach")
    lifted = warrants.live(rollout, "rollout.resolve")
    exempt = request.exempt and lifted is not None and lifted.message.get("hold") in (RADIUS, ROLLBACK)
    registry.reserve_breach(cluster, None if exempt else policy.max_breaching_clusters, now)
    try:
        target = breach_target(opened.baseline, current, islands)
    except BackstopError:
        registry.release_breach(cluster)
        raise
    warrants.drew(rollout, Drawn("aim", "", {"values": dict(target.values)}))
    return target
