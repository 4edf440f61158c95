"""Gathers the evidence for an effect from the ledger and from sources before it is written.

The request counts only as the wish to write. models/rollout/effect_approval.py judges it. Source: docs/design.md,
"Identity and rights"; docs/adr/0057.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from activities.fleet.member_warrants import find_fleet_abort
from activities.ports.clusters import ClusterPorts
from activities.ports.registry import OpenRollout
from activities.ports.warrants import EffectProof, Outcome
from activities.rollout.breach_target import list_adopted
from activities.tickets.warrants import UNDO_WORDS, Warrants
from models.access.warrants import Warrant
from models.cluster.policy import Policy, RollbackTo
from models.cluster.readings import ForeignChange, QuotaReading
from models.cluster.snapshot import Snapshot
from models.errors import Conflict, Refusal
from models.lifecycle.holds import RADIUS
from models.planning.grants import GrantOrder
from models.planning.plan import Plan
from models.requests.commands import RequestOrder
from models.requests.state import QuotaAsk
from models.rollout.drift import baseline_beside
from models.rollout.effect_approval import (
    ACCEPTED,
    RESTORED,
    Accepted,
    Approved,
    Decided,
    DrawnPlan,
    Footing,
    Known,
    order_name,
    prove_change,
    values_written_last,
)
from models.rollout.effect_table import EFFECT, INVERSE
from models.rollout.effects import Change, EffectKind, Receipt
from models.rollout.messages import EffectRequest

SurplusOf = Callable[[str], int | None]
"""Returns a cluster's present healthy GPUs outside any quota, by its sources; None: unknown."""
OwedOf = Callable[[str, datetime], Mapping[str, int]]
OWED = "owed-"
"""The prefix of the id of an order that grants a bring-up's first quotas."""
_REQUEST = "request/"


class MayMove(NamedTuple):
    """The GPUs that a forward effect may move. None: no limit."""

    hour_gpus: int | None
    day_gpus: int | None


class Standing(NamedTuple):
    """An effect that may be made."""

    proof: Footing
    limits: MayMove


@dataclass(eq=False)
class EvidenceRoom:
    """Judges effects by the ledger. `present`: a snapshot of a cluster now, for grants while no rollout is open.

    `next_order`: the id under which the next of a cluster's first quotas are owed; empty: none are.
    """

    warrants: Warrants
    ports: ClusterPorts
    surplus: SurplusOf
    present: Callable[[str, datetime], Snapshot]
    owed: OwedOf
    next_order: Callable[[str], str]

    def find_standing(self, request: EffectRequest) -> Standing:
        """Return the justification. Errors: Refusal if there is none; Conflict for another's cluster; Drift."""
        change = request.change
        opened = self.ports.registry.open_rollout_of(change.cluster)
        if opened is None or opened.rollout != change.fence.rollout:
            if change.kind is not EffectKind.GRANT or not change.fence.rollout.startswith(_REQUEST):
                owner = "no rollout is" if opened is None else f"rollout {opened.rollout} is"
                raise Conflict(
                    f"rollout {change.fence.rollout} may not write to cluster {change.cluster}: {owner} open there"
                )
            alone = Known(
                baseline=self.present(change.cluster, self.warrants.now()),
                decided=self._decision(change.cluster, request.order, alone=change.fence.rollout),
            )
            return Standing(prove_change(change, alone, request.order), MayMove(None, None))
        if opened.shadow:
            raise Refusal(f"rollout {opened.rollout} is a shadow: it writes nothing")
        evidence = self._gather(opened, change, request.order)
        return Standing(prove_change(change, evidence, request.order), self._limits(request, opened, evidence))

    def repeated_proof(self, change: Change) -> EffectProof | None:
        """Return the justification of an effect whose receipt is there already."""
        fence, book = change.fence, self.warrants.book
        landed = any((receipt.fence, receipt.kind) == (fence, change.kind) for receipt in book.receipts(fence.rollout))
        return next((proof for proof in book.proofs(fence.rollout) if proof.fence == fence), None) if landed else None

    def note(self, change: Change, proof: Footing, outcome: Outcome) -> None:
        after = None if proof.after is None else dict(proof.after)
        row = EffectProof(change.fence, change.kind, outcome, proof.ground, proof.stood_on, proof.words, after)
        self.warrants.book.prove(row, self.warrants.now())

    # --- gathering ------------------------------------------------------------------------------

    def _gather(self, opened: OpenRollout, change: Change, order: GrantOrder | None) -> Known:
        book, rollout = self.warrants.book, opened.rollout
        receipts, proofs, rows = book.receipts(rollout), book.proofs(rollout), book.warrants(rollout)
        reading = self.ports.quotas.read(change.cluster)
        changed = self.ports.quotas.changes(change.cluster, opened.baseline.generation)
        back, forward = change.kind in INVERSE.values(), change.kind in INVERSE
        policy = self._policy(rows) if back else None
        approval, ordered = self._orders(rows, opened)
        gathered = Known(
            baseline=opened.baseline,
            modes=opened.modes,
            present=reading.values,
            present_modes={quota.team: quota.mode for quota in reading.quotas},
            changed=frozenset(one.team for one in changed),
            receipts=receipts,
            written_before=self._read_adopted_values(opened),
            adopted=bool(opened.adopted_from),
            grounds={proof.fence.counter: proof.ground for proof in proofs},
            failed=_has_failed(proofs, receipts),
            approval=self._approved_plan(approval) if forward else None,
            drawn=self._drawn_plans(rollout) if change.kind in (EffectKind.RESERVE, EffectKind.SET_SOFT) else (),
            undo=_nonce(ordered) if back else "",
            close=_nonce(self.warrants.live_among(rows, "rollout.close")) if change.kind is EffectKind.CLOSE else "",
            aims=self._aims(rollout) if back else (),
            to_baseline=policy is not None and policy.rollback_to is RollbackTo.BASELINE,
            surplus_gpus=self.surplus(change.cluster) if change.kind is EffectKind.FOLLOW else None,
            decided=self._decision(change.cluster, order) if change.kind is EffectKind.GRANT else None,
        )
        if not change.refits:
            return gathered
        return replace(gathered, accepted=self._accepted_values(gathered, reading, changed, rows))

    def _accepted_values(
        self, evidence: Known, reading: QuotaReading, changed: Sequence[ForeignChange], rows: Sequence[Warrant]
    ) -> Accepted | None:
        """Return the values accepted by the last answer to a drift, if nobody has changed a quota since."""
        answers = [one for one in rows if one.message.get("hold") == "drift" and one.message.get("how") != "restore"]
        answer = self.warrants.live_among(answers, "rollout.resolve")
        if answer is None or any(one.at > answer.admitted_at for one in changed):
            return None
        ours = evidence.baseline.values
        ours |= {**evidence.written_before, **values_written_last(evidence)}
        others = {team for team in {*ours, *evidence.present} if ours.get(team) != evidence.present.get(team)}
        return Accepted(answer.nonce, baseline_beside(evidence.baseline, reading.quotas, others))

    def _read_adopted_values(self, opened: OpenRollout) -> dict[str, int]:
        """Return the last values of the rollouts that it adopted."""
        written: dict[str, int] = {}
        for rollout in list_adopted(opened, self.ports.registry):
            own: dict[str, int] = {}
            for receipt in self.warrants.book.receipts(rollout):
                own |= receipt.after
            written = {**own, **written}
        return written

    def _policy(self, rows: Sequence[Warrant]) -> Policy | None:
        launch = self.warrants.live_among(rows, "rollout.launch")
        return None if launch is None else Policy.model_validate(launch.content["policy"])

    def _orders(self, rows: Sequence[Warrant], opened: OpenRollout) -> tuple[Warrant | None, Warrant | None]:
        """Return the approval, and the order to undo, which may be its fleet rollout's abort."""
        approval = self.warrants.live_among(rows, "rollout.approve")
        ended = find_fleet_abort(opened.rollout, opened.fleet, self.warrants)
        if ended is None or (approval is not None and approval.admitted_at > ended.admitted_at):
            return approval, self.warrants.live_among(rows, *UNDO_WORDS)
        return None, ended

    def _approved_plan(self, approval: Warrant | None) -> Approved | None:
        if approval is None or "envelope" not in approval.content:  # given while tickets were not required
            return None
        return Approved(approval.nonce, self.warrants.envelope_of(approval), approval.content_sha256)

    def _drawn_plans(self, rollout: str) -> tuple[DrawnPlan, ...]:
        return tuple(
            DrawnPlan(
                Plan.model_validate(one.content["plan"]),
                Snapshot.model_validate(one.content["baseline"]),
                bool(one.content["fresh"]),
                one.sha256,
            )
            for one in self.warrants.book.drawn_plans(rollout, "plan")
        )

    def _aims(self, rollout: str) -> tuple[tuple[datetime, Mapping[str, int]], ...]:
        return tuple(
            (one.at, one.content["values"]) for one in self.warrants.book.drawn_plans(rollout, "aim") if one.at
        )

    def _decision(self, cluster: str, order: GrantOrder | None, alone: str = "") -> Decided | None:
        if order is None or (alone and alone != f"{_REQUEST}{order.request}"):
            return None
        if order.request.startswith(OWED):
            return self._owed_decision(cluster, order)
        subject = f"{_REQUEST}{order.request}"
        decision = self.warrants.live(subject, "request.approve")
        asked = self.warrants.oldest(subject, "request.ask")
        if decision is None or asked is None:
            return None
        ask = QuotaAsk.model_validate(asked.message)
        if ask.cluster != cluster:
            return None
        granted = self._grants_by(decision.nonce, order.request)
        extended = self.warrants.live(subject, "request.extend")
        day = ask.until if extended is None else RequestOrder.model_validate(extended.message).until
        over = day is not None and day <= self.warrants.now()
        ends = over or self.warrants.live(subject, "request.withdraw") is not None
        return Decided(decision.nonce, ask.team, ask.gpus, granted, ends)

    def _grants_by(self, nonce: str, order: str) -> dict[str, int] | None:
        """Return what this decision granted for the order, by team, recorded or not; None: nothing."""
        for proof in self.warrants.book.list_effects_of(nonce):
            receipts = self.warrants.book.receipts(proof.fence.rollout) if order_name(order) in proof.evidence else ()
            raised = next(
                (dict(receipt.raised) for receipt in receipts if receipt.fence == proof.fence and receipt.raised), None
            )
            if raised is not None:
                return raised
        return None

    def _owed_decision(self, cluster: str, order: GrantOrder) -> Decided | None:
        """Return the first quotas still owed, by a live entry; one order after the other, as the book records."""
        entry = self.warrants.live(f"bringup/{cluster}", "bringup.add")
        if entry is None or order.ends or order.request != self.next_order(cluster):
            return None
        owed = self.owed(cluster, self.warrants.now()).get(order.team, 0)
        return Decided(entry.nonce, order.team, owed, self._grants_by(entry.nonce, order.request))

    # --- limits ---------------------------------------------------------------------------------

    def _limits(self, request: EffectRequest, opened: OpenRollout, evidence: Known) -> MayMove:
        """Return the limits of the policy that it was launched with; only a person's ticket lifts them."""
        kind = request.change.kind
        if kind not in EFFECT or not EFFECT[kind].limited:
            return MayMove(None, None)
        lifted = self.warrants.live(opened.rollout, "rollout.resolve")
        if request.limit_gpus is None and lifted is not None and lifted.message.get("hold") == RADIUS:
            since = max(
                (receipt.at for receipt in evidence.receipts if receipt.kind in INVERSE), default=opened.opened_at
            )
            if lifted.admitted_at >= since:
                return MayMove(None, None)
        policy = self.warrants.policy_of(opened.rollout) or Policy()
        return MayMove(policy.max_moved_gpus, policy.max_moved_gpus_day)


def _has_failed(proofs: tuple[EffectProof, ...], receipts: tuple[Receipt, ...]) -> bool:
    """Return whether the last forward effect failed for good, or was called and never answered."""
    landed = {receipt.fence.counter for receipt in receipts}
    forward = [
        p for p in proofs if p.kind in INVERSE and p.outcome != "refused" and p.ground not in (ACCEPTED, RESTORED)
    ]
    if not forward:
        return False
    last = forward[-1]
    return last.outcome == "failed" or (last.outcome == "called" and last.fence.counter not in landed)


def _nonce(warrant: Warrant | None) -> str:
    return "" if warrant is None else warrant.nonce
