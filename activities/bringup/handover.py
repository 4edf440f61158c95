"""The way of a bring-up's cluster into the fleet; activities/bringup/retirement.py is its way out.

The hardware that came goes in with the first quotas that it backs, by the ledger's book in one transaction. As more
comes, what is owed is granted: each grant by a plan, under the approval of the entry, with a receipt; through the
cluster's rollout if one is monitored, else under the bring-up's own fence. Nothing is granted while a rollout is on its
way: the call is to be tried again then. Source: docs/bringup.md, "Into the fleet, and out of it"; docs/adr/0053.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from activities.bringup.retirement import BringupExit
from activities.ports.bringup import BringupLedger, Incoming, LandedGrant, Owed
from activities.ports.registry import OpenRollout
from models.audit_chain import AuditEntry, AuditKind
from models.bringup.entry import BringupEntry
from models.bringup.first_quotas import FirstStand, due_grants, first_stand, of_leaves, opening_policy, spec_of
from models.bringup.messages import BringupRecord, BringupStart, HandedOver, HandOverRequest, OpenedBringup
from models.bringup.stages import BringupStage
from models.bringup.state import bringup_key
from models.cluster.fleet_file import ClusterSpec
from models.cluster.island import Island
from models.cluster.policy import Policy
from models.cluster.quota import Quota
from models.cluster.snapshot import Snapshot, on_islands, snapshot_of
from models.errors import Conflict, Drift, Refusal, Unavailable
from models.hashes import hash_of
from models.planning.ceiling import ceiling_of
from models.planning.divide import divide
from models.planning.grants import GrantOrder, GrantOutcome, moved_values, raises, room
from models.planning.plan import Plan, make_plan
from models.rollout.effects import Change, EffectKind, Fence, writes
from models.rollout.stages import Stage
from models.temporal_names import bringup_workflow_id
from models.texts import count_text, gpus_text, some_of

_CATCHES_UP = timedelta(minutes=2)
"""The longest time by which the ledger's health may be older than the check that saw the hardware."""
_INSISTS = timedelta(hours=1)
"""How long a rollout that refuses a fitting grant is asked again; it may not have seen the hardware yet."""


class FleetBringups(BringupExit):
    """BringupsPort and ProductionPort: the ledger's book, and the way in and out through a cluster's rollouts."""

    def open(self, start: BringupStart, at: datetime) -> OpenedBringup:
        return self.ledger.open_bringup(start, at)

    def record(self, record: BringupRecord) -> None:
        """Record the row; take a retired cluster out of the fleet too, if a deadline came before it was empty."""
        if self.ledger.note_bringup(record) and record.row.stage is BringupStage.RETIRED:
            self.finish_retirement(record.row)

    # --- in -------------------------------------------------------------------------------------

    def hand_over(self, request: HandOverRequest) -> HandedOver:
        entry = request.entry
        handed = self.ledger.read_handover(entry.cluster, request.number)
        if handed is None:
            incoming = (
                self._prepare_incoming(request) if entry.slurm is None else self._read_incoming_from_slurm(request)
            )
            handed = self.ledger.take_in(incoming)
        return self.grant_owed(request) if entry.slurm is not None and entry.quotas else handed

    def _prepare_incoming(self, request: HandOverRequest) -> Incoming:
        entry = request.entry
        policy = self._policy(entry)
        stand = first_stand(entry, request.islands, policy)
        spec = spec_of(entry, request.islands, stand)
        if source := entry.git or entry.kueue:  # it has the first quotas, and the ledger reads them from it
            gpus = self.schedulers.quotas_at(entry.cluster, source)
            quotas = tuple(Quota(team=team, gpus=number) for team, number in sorted(gpus.items()))
            self._refuse_unbacked(entry, spec.but(quotas=quotas), f"quotas that {source.title}", "quotas there")
        return self._make_incoming(request, stand.plan, spec, stand.granted_gpus, stand)

    def _read_incoming_from_slurm(self, request: HandOverRequest) -> Incoming:
        """Take Slurm's limits as the first quotas. Errors: Refusal if they are no honest ones."""
        entry = request.entry
        assert entry.slurm is not None
        held = self.schedulers.describe(entry.cluster, entry.slurm)
        missing = sorted({quota.team for quota in entry.quotas} - {quota.team for quota in held.quotas})
        if missing:
            raise Refusal(
                f"Slurm has no account for {some_of(missing)} in {entry.cluster}: create the accounts that the entry "
                "names (sacctmgr add account), then retry"
            )
        spec = held.but(gpu_model=entry.gpu_model, policy=entry.policy, prometheus=entry.prometheus)
        plan = self._refuse_unbacked(entry, spec, "limits that Slurm", "limits (sacctmgr)")
        values = {quota.team: quota.gpus for quota in spec.quotas}
        return self._make_incoming(request, plan, spec, of_leaves(entry, values), None)

    def _refuse_unbacked(self, entry: BringupEntry, spec: ClusterSpec, which: str, what: str) -> Plan:
        """Return the plan of these first quotas. Errors: Refusal if it would cut one, or cannot back them."""
        plan = make_plan(snapshot_of(spec), opening_policy(self._policy(entry)))
        if not plan.haircut_gpus and not plan.backed:
            raise Refusal(
                f"not all {which} has in {entry.cluster} have healthy GPUs behind them, or a protected block "
                f"among them fits in no island: lower the {what}, then retry"
            )
        if plan.haircut_gpus:
            raise Refusal(
                f"the {which} has in {entry.cluster} sum to {gpus_text(plan.assigned_gpus)}, but the cluster may "
                f"promise at most {gpus_text(plan.ceiling_gpus)}, each with a healthy GPU behind it: lower the {what}, "
                "then retry"
            )
        return plan

    def _make_incoming(
        self, request: HandOverRequest, plan: Plan, spec: ClusterSpec, granted: dict[str, int], stand: FirstStand | None
    ) -> Incoming:
        entry = request.entry
        wanted = of_leaves(entry, {quota.team: quota.gpus for quota in entry.quotas})
        lacks = _count_lacking(wanted, granted)
        owed = lacks if entry.owed_until is not None else {}
        handed = HandedOver(
            plan_hash=plan.hash,
            granted=granted,
            owed=owed,
            islands=spec.islands,
            said=_first_words(entry, spec, plan, granted, lacks, gave_way=stand is not None and stand.entry != entry),
        )
        return Incoming(
            spec=spec,
            number=request.number,
            handed=handed,
            wanted=wanted,
            owed_until=entry.owed_until,
            ceiling_gpus=plan.ceiling_gpus,
            actor=request.actor,
            at=request.at,
        )

    def _policy(self, entry: BringupEntry) -> Policy:
        return entry.policy_over(self.ledger.default_policy())

    # --- what is owed ---------------------------------------------------------------------------

    def grant_owed(self, request: HandOverRequest) -> HandedOver:
        """Grant what fits. Errors: Unavailable while a rollout is on its way, or somebody else has just written."""
        entry, cluster = request.entry, request.entry.cluster
        owed = self.ledger.read_owed(cluster)
        if owed is None or self.ledger.is_over(cluster, request.number):  # then it comes late
            granted = request.granted or {}
            return HandedOver(granted=granted, islands=request.islands, said="nothing is owed")
        islands = request.islands
        if entry.slurm is not None:
            islands = self.schedulers.describe(cluster, entry.slurm).islands
        self.ledger.add_islands(cluster, islands, request.actor, request.at)
        request = request.but(islands=islands)
        owed = self._catch_up(request, owed)
        plan, more = due_grants(entry, islands, owed.granted, self._policy(entry))
        opened = self.ports.registry.open_rollout_of(cluster)
        sentence = "nothing more may be promised yet"
        if more and opened is not None:
            sentence = self._grant_through(request, owed, plan, more, opened)
        elif more:
            sentence = self._grant_alone(request, owed, plan, more)
        now = self.ledger.read_owed(cluster) or owed
        still = _count_lacking(now.wanted, now.granted) if now.until is not None else {}
        if not (more or still):
            sentence = "all that was owed is granted"  # by an earlier attempt, whose answer was lost
        return HandedOver(plan_hash=plan.hash, granted=dict(now.granted), owed=still, islands=islands, said=sentence)

    def _catch_up(self, request: HandOverRequest, owed: Owed) -> Owed:
        """Record grants that took effect, but that nobody has recorded yet: a worker died, or is about to."""
        entry = request.entry
        landed = self._find_landed(entry.cluster, owed)
        if landed is None:
            return owed
        plan, _ = due_grants(entry, request.islands, owed.granted, self._policy(entry))
        self._note(request, owed.orders + 1, plan.hash, landed.raised, landed.by)
        return self._catch_up(request, self.ledger.read_owed(entry.cluster) or owed)

    def _find_landed(self, cluster: str, owed: Owed) -> LandedGrant | None:
        """Return the next grant if it took effect already."""
        order = owed.orders + 1
        return self.ledger.landed_grant(
            _fence(cluster, owed.number, order), cluster, _order_id(cluster, owed.number, order)
        )

    def _grant_alone(self, request: HandOverRequest, owed: Owed, plan: Plan, more: Mapping[str, int]) -> str:
        """Write in one piece while no rollout is open. Errors: Unavailable if somebody else wrote meanwhile."""
        cluster, order = request.entry.cluster, owed.orders + 1
        snapshot, policy = self.clusters.present(cluster, request.at)
        fits, why = _fit_grants(snapshot, policy, request.islands, more)
        if fits != more:
            self._require_sight(request, snapshot)
        if not fits:
            if self._find_landed(cluster, owed) is not None:
                raise Unavailable(
                    f"another attempt has just written first quotas of {cluster}: Backstop computes the rest again"
                )
            return why
        tree = snapshot.tree
        before = {quota.team: quota.gpus for quota in snapshot.quotas}
        values, raised = dict(before), dict.fromkeys(before, 0)
        for team, gpus in fits.items():
            rise = raises(tree, values, team, gpus)
            values |= moved_values(values, rise)
            raised = {name: each + rise.get(name, 0) for name, each in raised.items()}
        change = Change(
            cluster=cluster,
            kind=EffectKind.GRANT,
            fence=_fence(cluster, owed.number, order),
            expected_generation=snapshot.generation,
            writes=writes(tree, before, {t: g for t, g in raised.items() if g}, ends=False),
        )
        try:
            receipt = self.ports.quotas.apply(change)
        except (Drift, Conflict) as error:
            raise Unavailable(
                f"Backstop tries again to give {cluster} the rest of its first quotas: {error.message}"
            ) from error
        sentence = self._note(request, order, plan.hash, receipt.raised, "itself")
        if receipt.conflicts:
            raise Unavailable(
                f"others have just changed quotas of {cluster}: Backstop tries again to give {cluster} its first quotas"
            )
        return sentence

    def _grant_through(
        self, request: HandOverRequest, owed: Owed, plan: Plan, more: Mapping[str, int], opened: OpenRollout
    ) -> str:
        """Have the open rollout write it, team by team. Errors: Unavailable while it takes no grants."""
        cluster = request.entry.cluster
        if opened.stage is not Stage.MONITORED or opened.shadow:
            what, ends = ("a shadow rollout", "over") if opened.shadow else ("a rollout", "monitored or over")
            raise Unavailable(
                f"{what} of {cluster} is {opened.stage}: the rest of the quotas is written once the rollout is {ends}"
            )
        snapshot, policy = self.clusters.present(cluster, request.at)
        before = {quota.team: quota.gpus for quota in opened.baseline.quotas}
        claimed = snapshot.with_values(
            {quota.team: max(quota.gpus, before.get(quota.team, 0)) for quota in snapshot.quotas}
        )
        fits, why = _fit_grants(claimed, policy, request.islands, more)
        if fits != more:
            self._require_sight(request, snapshot)
        sentences = [] if fits else [why]
        order = owed.orders
        # If nothing fits it is asked all the same: its answer to an order that it has written may have been lost.
        for team, gpus in (fits or dict([min(more.items())])).items():
            wanted = GrantOrder(
                request=_order_id(cluster, owed.number, order + 1),
                team=team,
                gpus=gpus,
                actor=request.actor,
                reason=f"owed to the first quotas of {cluster}",
            )
            answer = self.rollouts.grant(cluster, wanted)
            if answer.outcome is GrantOutcome.DONE:
                order += 1
                sentences.append(self._note(request, order, plan.hash, answer.raised, f"rollout {opened.rollout}"))
                if not fits or answer.raised.get(team) != gpus:
                    raise Unavailable(f"an earlier grant is in place in {cluster}: Backstop computes the rest again")
            elif answer.outcome is GrantOutcome.LATER or (fits and self.now() - request.at < _INSISTS):
                raise Unavailable(f"Backstop tries again to give {cluster} the rest of its first quotas: {answer.said}")
            else:
                sentences.append(answer.said)
        return "; ".join(sentences)

    def _require_sight(self, request: HandOverRequest, snapshot: Snapshot) -> None:
        """Raise Unavailable for a while if the ledger has not seen the new healthy hardware yet."""
        came = sum(island.healthy_gpus for island in request.islands)
        if snapshot.healthy_gpus < came and self.now() - request.at < _CATCHES_UP:
            raise Unavailable(
                f"the capacity check of {request.entry.cluster} found {count_text(came, 'healthy GPU')}, but "
                f"the ledger has only {snapshot.healthy_gpus} so far: Backstop tries again to give the rest of the "
                "first quotas"
            )

    def _note(self, request: HandOverRequest, order: int, plan_hash: str, written: Mapping[str, int], by: str) -> str:
        cluster, number = request.entry.cluster, request.number
        raised = of_leaves(request.entry, written)
        raised = {team: gpus for team, gpus in raised.items() if gpus}
        what = some_of([f"{team} {gpus_text(gpus)} more" for team, gpus in sorted(raised.items())]) or "nothing"
        entry = AuditEntry(
            key=f"{bringup_key(cluster, number)}/owed/{order}",
            cluster=cluster,
            rollout=bringup_workflow_id(cluster),
            at=request.at,
            kind=AuditKind.PLAN,
            actor=request.actor,
            text=f"owed, and granted now by {by}: {what}",
            data={"command": "grant_owed", "order": order, "plan": plan_hash, "granted": raised},
        )
        self.ledger.note_granted(cluster, order, raised, entry)
        return what


def _count_lacking(wanted: Mapping[str, int], granted: Mapping[str, int]) -> dict[str, int]:
    lacks = {team: gpus - granted.get(team, 0) for team, gpus in wanted.items()}
    return {team: gpus for team, gpus in lacks.items() if gpus > 0}


def _fit_grants(
    snapshot: Snapshot, policy: Policy, came: Sequence[Island], more: Mapping[str, int]
) -> tuple[dict[str, int], str]:
    """Return how much of it fits, by leaf, and why not all: never above C, and nobody loses backing.

    C is the lesser of what the ledger's health and what the capacity check (`came`) allow.
    """
    tree = snapshot.tree
    asked = {team: gpus for team, gpus in more.items() if team in tree.leaves}
    ceiling = min(ceiling_of(snapshot, policy), ceiling_of(on_islands(snapshot, came), policy))
    headroom = max(0, ceiling - tree.assigned_gpus())
    fits, why = {}, "existing quotas already take all GPUs that the cluster may promise"
    for team, gpus in divide(min(headroom, sum(asked.values())), asked, asked).items():
        if not gpus:
            continue
        space = room(snapshot, policy, team, gpus)
        why = space.why or why
        if space.fits_gpus:
            fits[team] = space.fits_gpus
            values = {quota.team: quota.gpus for quota in snapshot.quotas}
            snapshot = snapshot.with_values(moved_values(values, raises(tree, values, team, space.fits_gpus)))
    return fits, why


def _fence(cluster: str, number: int, order: int) -> Fence:
    return Fence(rollout=bringup_key(cluster, number), counter=order)


def _order_id(cluster: str, number: int, order: int) -> str:
    """Return the id by which a rollout recognises the order. A cluster's name may be longer than an order's may."""
    return f"owed-{hash_of(cluster)}-{number}-{order}"


def next_order(ledger: BringupLedger, cluster: str) -> str:
    """Return the id under which the next of what is owed is to be granted; empty: nothing is owed."""
    owed = ledger.read_owed(cluster)
    return "" if owed is None else _order_id(cluster, owed.number, owed.orders + 1)


def _first_words(
    entry: BringupEntry,
    spec: ClusterSpec,
    plan: Plan,
    granted: Mapping[str, int],
    lacks: Mapping[str, int],
    *,
    gave_way: bool,
) -> str:
    installed = sum(island.total_gpus for island in spec.islands)
    parts = [f"{count_text(len(spec.islands), 'island')}, {gpus_text(installed)} installed"]
    if not entry.quotas:
        return f"{parts[0]}; no first quotas"
    stands = f"first quotas of {gpus_text(sum(granted.values()))}"
    parts.append(f"{stands}, advisory; the cluster may promise {gpus_text(plan.ceiling_gpus)}")
    if lacks:
        missing = gpus_text(sum(lacks.values()))
        until = entry.owed_until
        is_owed = f"owed until {until:%Y-%m-%d}" if until is not None else "not owed, as the entry gives no date"
        parts.append(f"{missing} of the entry {'is' if sum(lacks.values()) == 1 else 'are'} {is_owed}")
    if gave_way:
        parts.append("minimums and blocks that do not fit the delivered GPUs are left out")
    return "; ".join(parts)
