"""The proof that an effect was approved, derived from the ledger and the sources, never from the request.

Pure. An activity gathers `Known` (activities/rollout/evidence.py) and asks before it writes. models/rollout/
effect_table.py (`StandsOn`) lists the evidence for each kind of effect. Source: docs/design.md, "Identity and rights".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from models.cluster.readings import LimitMode
from models.cluster.snapshot import Snapshot
from models.errors import Drift, Refusal
from models.planning.grants import GrantOrder, moved_values, raises
from models.planning.plan import Envelope, Plan
from models.rollout.effect_changes import reserve_beside
from models.rollout.effect_table import INVERSE, STANDS_ON, StandsOn
from models.rollout.effects import Change, EffectKind, Receipt, Reserve, ValueWrite
from models.texts import gpus_text, verb_of

_K = EffectKind
_ORDERED = "ordered"
"""The ground of an undo to the baseline by a person's order; the next one: after a failed effect."""
_AFTER_FAILURE = "failed"
ACCEPTED, RESTORED = "accepted", "restored"
"""The grounds of writes outside a plan: a person accepted the values of others, or Backstop restores its own."""


@dataclass(frozen=True)
class Approved:
    """A live approval. `sha256`: the approved plan's; empty if only an envelope was approved (a fleet's)."""

    nonce: str
    envelope: Envelope
    sha256: str = ""


@dataclass(frozen=True)
class DrawnPlan:
    """A plan as an activity drew it. `fresh`: its baseline is what the quota system held then."""

    plan: Plan
    baseline: Snapshot
    fresh: bool
    sha256: str


@dataclass(frozen=True)
class Decided:
    """The decision on a request, or the quota that an entry owes. Units: whole GPUs."""

    nonce: str
    team: str
    gpus: int
    granted: Mapping[str, int] | None = None
    """GPUs already granted, by team; None: nothing has been granted."""
    may_end: bool = False
    """The end date of the grant has come, or the grant was withdrawn."""


@dataclass(frozen=True)
class Accepted:
    """A person's acceptance of what others set. `baseline`: the one with it; an undo leaves it alone."""

    nonce: str
    baseline: Snapshot


@dataclass(frozen=True)
class Known:
    """The ledger's record of a rollout, and what the sources say now. Nonces are of live warrants; empty: none."""

    baseline: Snapshot
    modes: Mapping[str, LimitMode] = field(default_factory=dict)
    """The baseline's modes by team."""
    present: Mapping[str, int] = field(default_factory=dict)
    present_modes: Mapping[str, LimitMode] = field(default_factory=dict)
    changed: frozenset[str] = frozenset()
    """Teams whose quotas others have changed since the baseline, as the ledger noted."""
    receipts: tuple[Receipt, ...] = ()
    written_before: Mapping[str, int] = field(default_factory=dict)
    """The last values that adopted rollouts wrote, by team."""
    adopted: bool = False
    grounds: Mapping[int, str] = field(default_factory=dict)
    """The grounds of the rollout's receipts, by the counter of the fence."""
    failed: bool = False
    """The rollout's last forward effect failed for good, or its call got no answer."""
    approval: Approved | None = None
    accepted: Accepted | None = None
    drawn: tuple[DrawnPlan, ...] = ()
    undo: str = ""
    close: str = ""
    aims: tuple[tuple[datetime, Mapping[str, int]], ...] = ()
    to_baseline: bool = False
    """After a breach the policy restores the baseline, even if hardware does not back it."""
    surplus_gpus: int | None = None
    decided: Decided | None = None


@dataclass(frozen=True)
class Footing:
    """The evidence of an effect. `baseline`: the one that an undo from before it restores; `after`: the one with it."""

    ground: str
    stood_on: tuple[str, ...]
    words: str
    baseline: Snapshot | None = None
    after: Mapping[str, int] | None = None


def prove_change(change: Change, evidence: Known, order: GrantOrder | None = None) -> Footing:
    """Return the evidence for the change.

    Errors: Refusal if nothing permits it; Drift if health has moved on.
    """
    tree = evidence.baseline.tree
    if any(write.leaf is (write.team in tree.children) for write in change.writes if write.team in tree.by_team):
        raise _refusal_of(
            change, "it treats a quota without sub-quotas as the sum of sub-quotas, or the other way round"
        )
    match STANDS_ON[change.kind]:
        case StandsOn.APPROVAL:
            return _prove_by_approval(change, evidence)
        case StandsOn.HEALTH:
            return _prove_by_health(change, evidence)
        case StandsOn.WAY_BACK:
            return _prove_undo(change, evidence)
        case StandsOn.DECISION:
            return _prove_grant(change, evidence, order)
        case StandsOn.TICKET:
            if not evidence.close:
                raise _refusal_of(change, "nobody has closed the rollout with a ticket")
            return Footing("ticket", (evidence.close,), "the ticket of the close")


def _refusal_of(change: Change, why: str) -> Refusal:
    return Refusal(f"{change.kind} in {change.cluster} is refused: {why}")


# --- forward ----------------------------------------------------------------------------------------


def _require_approval(change: Change, evidence: Known) -> Approved:
    if evidence.approval is None:
        raise _refusal_of(change, "the ledger has no valid approval of its plan")
    return evidence.approval


def _prove_by_approval(change: Change, evidence: Known) -> Footing:
    approved = _require_approval(change, evidence)
    match change.kind:
        case _K.RESERVE:
            for drawn in _plans_approved(evidence, approved):
                if change.reserve == reserve_beside(drawn.baseline, drawn.plan.values):
                    news = None if values_stand(evidence) else drawn.baseline
                    return Footing("plan", (approved.nonce,), f"plan {drawn.plan.hash}, approved", baseline=news)
            raise _refusal_of(change, "it reserves GPUs that no approved plan frees")
        case _K.SET_SOFT:
            return _prove_values(change, evidence, approved)
        case _:
            if not values_stand(evidence) or change.writes or change.mode not in (None, LimitMode.HARD):
                raise _refusal_of(change, "the values of an approved plan are not in place")
            return Footing("plan", (approved.nonce,), f"plan {approved.envelope.plan_hash}, approved")


def _prove_values(change: Change, evidence: Known, approved: Approved) -> Footing:
    stays = change.refits and all(_leaves_value(write, evidence) for write in change.writes)
    if stays and evidence.accepted is not None and values_stand(evidence):
        words = "changes by others that a person accepted"
        return Footing(ACCEPTED, (evidence.accepted.nonce,), words, baseline=evidence.accepted.baseline)
    values = {w.team: w.gpus for w in change.writes}
    if values_stand(evidence):
        last = {**evidence.written_before, **values_written_last(evidence)}
        if values and all(last.get(team) == gpus for team, gpus in values.items()):
            _check_modes(change, evidence)
            return Footing(RESTORED, (approved.nonce,), "the values of the last receipts")
    for drawn in _plans_approved(evidence, approved):
        if values == drawn.plan.values:
            _check_modes(change, evidence)
            return Footing("plan", (approved.nonce,), f"plan {drawn.plan.hash}, approved")
    raise _refusal_of(change, "no approved plan has these values")


def _plans_approved(evidence: Known, approved: Approved) -> Iterator[DrawnPlan]:
    """Yield the drawn plans, the newest first, that the approval holds and that start from the rollout's baseline."""
    for drawn in evidence.drawn:
        plan = drawn.plan
        same = plan.hash == approved.envelope.plan_hash
        if same and approved.sha256 and drawn.sha256 != approved.sha256:
            continue  # another plan with the same sixteen digits
        if plan.fault or not (same or approved.envelope.holds(plan)):
            continue
        if (drawn.fresh and not values_stand(evidence)) or _has_baseline_of(plan, evidence):
            yield drawn


def _has_baseline_of(plan: Plan, evidence: Known) -> bool:
    base = evidence.baseline.values
    before = {quota.team: quota.before_gpus for quota in plan.quotas}
    return all(
        before.get(team) == base.get(team)
        or (team in evidence.changed and before.get(team) == evidence.present.get(team))
        for team in {*base, *before}
    )


def values_stand(evidence: Known) -> bool:
    """Return whether quotas were written and have not been set back to the baseline since."""
    stands = evidence.adopted
    for receipt in evidence.receipts:
        if receipt.kind is _K.SET_SOFT:
            stands = True
        elif receipt.kind is _K.RESTORE and evidence.grounds.get(receipt.fence.counter) in (_ORDERED, _AFTER_FAILURE):
            stands = False
    return stands


def values_written_last(evidence: Known) -> dict[str, int]:
    """Return the rollout's last written values by team, without those it met as others'."""
    last: dict[str, int] = {}
    for receipt in evidence.receipts:
        theirs = {conflict.team for conflict in receipt.conflicts}
        last |= {team: gpus for team, gpus in receipt.after.items() if team not in theirs}
    return last


def _check_modes(change: Change, evidence: Known) -> None:
    """Refuse a hard limit unless limits are hard already, by an effect of the rollout or from before it."""
    hard = _effect_stands(evidence, _K.HARDEN)
    for write in change.writes:
        allowed = {None, LimitMode.SOFT, evidence.present_modes.get(write.team), evidence.modes.get(write.team)}
        if write.mode not in (allowed | {LimitMode.HARD} if hard else allowed):
            raise _refusal_of(change, f"limits of {write.team} are not hard yet")


def _effect_stands(evidence: Known, kind: EffectKind) -> bool:
    stands = False
    for receipt in evidence.receipts:
        if receipt.kind in (kind, INVERSE[kind]):
            stands = receipt.kind is kind
    return stands


def _prove_by_health(change: Change, evidence: Known) -> Footing:
    """Prove that the flex pool is no larger than the healthy GPUs outside every quota."""
    follows = _effect_stands(evidence, _K.FOLLOW)
    stood_on = () if follows else (_require_approval(change, evidence).nonce,)
    if not follows and not values_stand(evidence):
        raise _refusal_of(change, "the values of an approved plan are not in place")
    if change.flex_gpus is not None and (evidence.surplus_gpus is None or change.flex_gpus > evidence.surplus_gpus):
        raise Drift(f"health of {change.cluster} has changed: {_unowned_text(evidence)} now")
    return Footing("health", stood_on, _unowned_text(evidence))


def _unowned_text(evidence: Known) -> str:
    surplus = evidence.surplus_gpus
    if surplus is None:
        return "the number of healthy GPUs outside every quota is unknown"
    return f"{gpus_text(surplus)} {verb_of(surplus)} healthy and outside every quota"


# --- the way back -----------------------------------------------------------------------------------


def _prove_undo(change: Change, evidence: Known) -> Footing:
    if change.mode not in (None, LimitMode.SOFT):
        raise _refusal_of(change, "an undo may not make a limit hard")
    why = ""
    if evidence.undo or evidence.failed:
        try:
            return _prove_to_baseline(change, evidence)
        except Refusal as error:
            why = error.message
    for at, aim in evidence.aims:
        if at > _last_forward(evidence) and _is_to_aim(change, evidence, aim):
            return Footing("breach", (), f"the breach rollback that began at {at:%Y-%m-%d %H:%M:%SZ}")
    raise (
        Refusal(why)
        if why
        else _refusal_of(change, "nobody has ordered an undo, no effect has failed, and there is no breach")
    )


def _prove_to_baseline(change: Change, evidence: Known) -> Footing:
    base = evidence.baseline.values
    if change.kind is _K.RELEASE and change.reserve is not None:
        raise _refusal_of(change, "an undo may not keep GPUs reserved")
    for write in change.writes:
        if write.gpus != base.get(write.team) and not _leaves_value(write, evidence):
            team, own = write.team, base.get(write.team)
            why = f"has no quota of {team}" if own is None else f"of {team} is {own}, not {write.gpus}"
            raise _refusal_of(change, f"the baseline {why}")
        if write.team not in evidence.modes and _leaves_value(write, evidence):
            continue  # others added it since, in whichever mode
        if write.mode not in {
            None,
            LimitMode.SOFT,
            evidence.modes.get(write.team),
            evidence.present_modes.get(write.team),
        }:
            raise _refusal_of(change, f"limits of {write.team} were not {write.mode} before")
    if evidence.undo:
        return Footing(_ORDERED, (evidence.undo,), "the order to undo, and the kept baseline")
    return Footing(_AFTER_FAILURE, (), "an effect that failed, and the kept baseline")


def _is_to_aim(change: Change, evidence: Known, aim: Mapping[str, int]) -> bool:
    base = evidence.baseline.values
    if change.kind is _K.RELEASE:
        most = sum(base[leaf] for leaf in evidence.baseline.tree.leaves)
        return change.reserve is not None and change.reserve.limit_gpus <= most
    return all(
        write.mode in (None, LimitMode.SOFT, evidence.present_modes.get(write.team))
        and (
            write.gpus == aim.get(write.team)
            or _leaves_value(write, evidence)
            or (evidence.to_baseline and write.gpus == base.get(write.team))
        )
        for write in change.writes
    )


def _leaves_value(write: ValueWrite, evidence: Known) -> bool:
    return write.gpus == evidence.present.get(write.team) and write.expected_gpus == write.gpus


def _last_forward(evidence: Known) -> datetime:
    """Return when the last forward effect landed. Flex that follows health does not count."""
    first = datetime.min.replace(tzinfo=next((at.tzinfo for at, _ in evidence.aims), None))
    times = [receipt.at for receipt in evidence.receipts if receipt.kind in INVERSE and receipt.kind is not _K.FOLLOW]
    return max(times, default=first)


# --- grants -----------------------------------------------------------------------------------------


def _prove_grant(change: Change, evidence: Known, order: GrantOrder | None) -> Footing:
    decided = evidence.decided
    if order is None or decided is None:
        raise _refusal_of(change, "the ledger has no decision on the request")
    tree, base = evidence.baseline.tree, evidence.baseline.values
    if order.ends:
        most = decided.granted or {}
        if decided.granted is None or not decided.may_end or any(g > most.get(t, 0) for t, g in order.raised.items()):
            fault = "was granted fewer GPUs than this takes back, or its grant is not due to end yet"
            raise _refusal_of(change, f"request {order.request} {fault}")
        raised: Mapping[str, int] = order.raised
        fits = all(0 <= w.expected_gpus - w.gpus <= raised.get(w.team, 0) for w in change.writes)
    else:
        if decided.may_end:
            raise _refusal_of(change, f"request {order.request} is over")
        if decided.granted is not None or order.team != decided.team or order.gpus > decided.gpus:
            raise _refusal_of(change, f"it differs from the decision on request {order.request}")
        raised = raises(tree, base, order.team, order.gpus) if order.team in base else {}
        above = {order.team, *tree.ancestors(order.team)} if order.team in base else set[str]()
        fits = all(w.team in above and 0 <= w.gpus - w.expected_gpus <= order.gpus for w in change.writes)
    if not fits or (change.reserve is not None and not _is_within(change.reserve, evidence, order)):
        raise _refusal_of(change, f"it writes more than request {order.request} was granted")
    after = {**base, **moved_values(base, raised, ends=order.ends)}
    return Footing("decision", (decided.nonce,), f"the decision on {order_name(order.request)}", after=after)


def order_name(order: str) -> str:
    """Return the order's name in the evidence of a grant."""
    return f"request [{order}]"


def _is_within(reserve: Reserve, evidence: Known, order: GrantOrder) -> bool:
    base = evidence.baseline.values
    return reserve.limit_gpus <= sum(base[leaf] for leaf in evidence.baseline.tree.leaves) + order.gpus
