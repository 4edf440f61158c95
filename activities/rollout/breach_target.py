"""Computes a breach rollback's target, if keys are configured: from health, quotas and the kept baseline as read here.

The request's own claims do not count: any process that serves workflow tasks may have written it.
"""

from __future__ import annotations

from activities.ports.quota_systems import QuotaPort
from activities.ports.registry import OpenRollout, RegistryPort
from activities.ports.warrants import Drawn
from activities.tickets.warrants import Warrants
from models.cluster.readings import HealthSample
from models.cluster.snapshot import with_named_islands
from models.errors import BackstopError, Refusal
from models.lifecycle.holds import RADIUS, ROLLBACK
from models.planning.backing import back
from models.planning.breach_target import BreachTarget, breach_target
from models.rollout.drift import baseline_beside
from models.rollout.messages import AimRequest


def aim_at(
    request: AimRequest, sample: HealthSample | None, quotas: QuotaPort, registry: RegistryPort, warrants: Warrants
) -> BreachTarget:
    """Return the target. Errors: Refusal if no quota is short; BlastRadius past what no person has lifted."""
    cluster, rollout = request.cluster, request.rollout
    opened, policy, now = registry.open_rollout_of(cluster), warrants.policy_of(rollout), warrants.now()
    if opened is None or opened.rollout != rollout or policy is None:
        raise Refusal(f"{cluster} has no open rollout {rollout} that was launched with a ticket")
    if sample is None:
        raise Refusal(f"the health of {cluster} is unknown, so Backstop cannot tell whether a quota is in breach")
    reading = quotas.look(cluster)
    current, ours = reading.values, _ours(opened, registry, warrants)
    # Others' values are derived here; the request says which of them a person has accepted.
    theirs = {team for team in {*current, *ours} if current.get(team) != ours.get(team)} & {*request.theirs}
    baseline = baseline_beside(opened.baseline, reading.quotas, theirs)
    islands = with_named_islands(baseline.quotas, sample.islands)
    if not back(baseline.with_values(current).with_islands(islands)).shortage:
        raise Refusal(f"every quota of {cluster} has healthy GPUs behind it: there is no breach")
    lifted = warrants.live(rollout, "rollout.resolve")
    exempt = request.exempt and lifted is not None and lifted.message.get("hold") in (RADIUS, ROLLBACK)
    registry.reserve_breach(cluster, None if exempt else policy.max_breaching_clusters, now)
    try:
        target = breach_target(baseline, current, islands, theirs)
    except BackstopError:
        registry.release_breach(cluster)
        raise
    warrants.record_draw(rollout, Drawn("aim", "", {"values": dict(target.values)}))
    return target


def _ours(opened: OpenRollout, registry: RegistryPort, warrants: Warrants) -> dict[str, int]:
    """Return the values by the last receipts of this rollout and of those that it adopted, else of the baseline."""
    values = opened.baseline.values
    for rollout in reversed([opened.rollout, *list_adopted(opened, registry)]):
        for receipt in warrants.book.receipts(rollout):
            theirs = {conflict.team for conflict in receipt.conflicts}
            values |= {team: gpus for team, gpus in receipt.after.items() if team not in theirs}
    return values


def list_adopted(opened: OpenRollout, registry: RegistryPort) -> list[str]:
    """Return the rollouts whose effects it took over, the last one first."""
    chain: list[str] = []
    before = opened.adopted_from
    while before and before not in chain:
        chain.append(before)
        before = registry.read_adopted(before)
    return chain
