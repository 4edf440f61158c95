"""The proofs of effects, judged alone: each way that is open, and each near it that is not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from joserfc.jwk import OKPKey

from models.access.principals import Principal, Proof
from models.access.signing import PublicKey, sign
from models.access.tickets import Ticket
from models.access.warrants import Warrant, still_signed
from models.cluster.island import Island
from models.cluster.policy import Policy
from models.cluster.quota import Quota
from models.cluster.readings import LimitMode
from models.cluster.snapshot import Snapshot
from models.errors import Drift, Refusal
from models.planning.grants import GrantOrder
from models.planning.plan import envelope_of, make_plan
from models.rollout.effect_approval import Accepted, Approved, Decided, DrawnPlan, Known, prove_change
from models.rollout.effect_changes import reserve_beside
from models.rollout.effect_table import STANDS_ON
from models.rollout.effects import Change, EffectKind, Fence, Receipt, ValueConflict, ValueWrite

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
K = EffectKind
BASE = Snapshot(
    cluster="alpha",
    gpus_per_node=8,
    islands=(Island(name="main", total_gpus=361, healthy_gpus=319),),
    quotas=(Quota(team="a", gpus=200, scheduled_gpus=150), Quota(team="b", gpus=145, scheduled_gpus=140)),
    generation=3,
)
PLAN = make_plan(BASE, Policy())
VALUES = PLAN.values
DRAWN = DrawnPlan(PLAN, BASE, fresh=True, sha256="s1")
APPROVED = Approved("n-1", envelope_of(PLAN), "s1")
BEFORE = {"a": 200, "b": 145}


def receipt(kind: EffectKind, counter: int, minutes: int = 0, **after: int) -> Receipt:
    fence = Fence(rollout="r-1", counter=counter)
    at = NOW + timedelta(minutes=minutes)
    return Receipt(cluster="alpha", kind=kind, fence=fence, at=at, generation=3, before=BEFORE, after=after)


STANDS = Known(
    baseline=BASE,
    present=VALUES,
    receipts=(receipt(K.RESERVE, 1), receipt(K.SET_SOFT, 2, 1, **VALUES)),
    approval=APPROVED,
    drawn=(DRAWN,),
)
FRESH = Known(baseline=BASE, present=BEFORE, approval=APPROVED, drawn=(DRAWN,))


THEIRS = {**VALUES, "a": 160, "z": 8}
TAKEN = replace(STANDS, present=THEIRS, accepted=Accepted("n-7", BASE.with_values({"a": 160})))


def change(
    kind: EffectKind, values: Mapping[str, int] | None = None, was: Mapping[str, int] = BEFORE, **more: Any
) -> Change:
    writes = tuple(ValueWrite(team=t, expected_gpus=was[t], gpus=g) for t, g in (values or {}).items())
    return Change(cluster="alpha", kind=kind, fence=Fence(rollout="r-1", counter=9), writes=writes, **more)


def test_each_kind_stands_on_something() -> None:
    assert set(STANDS_ON) == set(EffectKind)


def test_what_was_approved_may_be() -> None:
    assert prove_change(change(K.RESERVE, reserve=reserve_beside(BASE, VALUES)), FRESH).baseline == BASE
    assert prove_change(change(K.SET_SOFT, VALUES), FRESH).stood_on == ("n-1",)
    assert prove_change(change(K.HARDEN, mode=LimitMode.HARD), STANDS).ground == "plan"
    assert prove_change(change(K.FOLLOW, flex_gpus=5), replace(STANDS, surplus_gpus=5)).stood_on == ("n-1",)
    assert prove_change(change(K.SET_SOFT, VALUES, {"a": 1, "b": 1}), STANDS).ground == "restored"
    assert prove_change(change(K.CLOSE), replace(STANDS, close="n-9")).stood_on == ("n-9",)


def test_what_a_person_accepted_may_be_written_as_it_stands() -> None:
    footing = prove_change(change(K.SET_SOFT, THEIRS, THEIRS), TAKEN)
    assert (footing.ground, footing.stood_on) == ("accepted", ("n-7",))
    assert footing.baseline == BASE.with_values({"a": 160}), "an undo leaves it"


REFUSED: dict[str, tuple[Change, Known]] = {
    "no approval": (change(K.SET_SOFT, VALUES), replace(FRESH, approval=None)),
    "other values": (change(K.SET_SOFT, VALUES | {"a": VALUES["a"] - 1}), FRESH),
    "values of some": (change(K.SET_SOFT, {"a": VALUES["a"]}), FRESH),
    "no values": (change(K.SET_SOFT), STANDS),
    "a plan that nobody drew": (change(K.SET_SOFT, VALUES), replace(FRESH, drawn=())),
    "a twin of the same hash": (change(K.SET_SOFT, VALUES), replace(FRESH, drawn=(replace(DRAWN, sha256="s2"),))),
    "from another baseline": (
        change(K.SET_SOFT, VALUES),
        replace(STANDS, baseline=BASE.with_values({"a": 190}), receipts=STANDS.receipts[:1], adopted=True),
    ),
    "hard at once": (
        Change(
            cluster="alpha",
            kind=K.SET_SOFT,
            fence=Fence(rollout="r-1", counter=9),
            writes=tuple(
                ValueWrite(team=t, expected_gpus=BEFORE[t], gpus=g, mode=LimitMode.HARD) for t, g in VALUES.items()
            ),
        ),
        FRESH,
    ),
    "another reservation": (change(K.RESERVE, reserve=reserve_beside(BASE, BEFORE)), FRESH),
    "harden what is not written": (change(K.HARDEN), FRESH),
    "harden with values": (change(K.HARDEN, BEFORE), STANDS),
    "follow what is not written": (change(K.FOLLOW, flex_gpus=1), replace(FRESH, surplus_gpus=5)),
    "undo unasked": (change(K.RESTORE, BEFORE, VALUES), STANDS),
    "undo past the baseline": (change(K.RESTORE, {"a": 201}, VALUES), replace(STANDS, undo="n-2")),
    "undo to nothing": (change(K.RESTORE, {"a": 0}, VALUES), replace(STANDS, undo="n-2")),
    "undo that keeps": (
        change(K.RELEASE, reserve=reserve_beside(BASE, VALUES)),
        replace(STANDS, undo="n-2"),
    ),
    "undo that hardens": (change(K.SOFTEN, mode=LimitMode.HARD), replace(STANDS, undo="n-2")),
    "an old aim": (
        change(K.RESTORE, {"a": 100, "b": 100}, VALUES),
        replace(STANDS, aims=((NOW, {"a": 100, "b": 100}),)),
    ),
    "less than was aimed": (
        change(K.RESTORE, {"a": 99, "b": 100}, VALUES),
        replace(STANDS, aims=((NOW + timedelta(hours=1), {"a": 100, "b": 100}),)),
    ),
    "a close unasked": (change(K.CLOSE), STANDS),
    "as theirs what nobody accepted": (change(K.SET_SOFT, THEIRS, THEIRS), replace(STANDS, present=THEIRS)),
    "more than was accepted": (change(K.SET_SOFT, THEIRS | {"z": 9}, THEIRS | {"z": 9}), TAKEN),
    "what was accepted, moved": (change(K.SET_SOFT, THEIRS, VALUES | {"z": 8}), TAKEN),
    "as accepted what no plan wrote": (change(K.SET_SOFT, THEIRS, THEIRS), replace(TAKEN, receipts=())),
    "a grant unasked": (change(K.GRANT, {"a": 208}), STANDS),
}


@pytest.mark.parametrize("what", REFUSED)
def test_nothing_else_may_be(what: str) -> None:
    with pytest.raises(Refusal, match="is refused"):
        prove_change(*REFUSED[what])


def test_more_flex_than_is_healthy_is_looked_at_again() -> None:
    with pytest.raises(Drift):
        prove_change(change(K.FOLLOW, flex_gpus=6), replace(STANDS, surplus_gpus=5))


def test_the_way_back() -> None:
    assert prove_change(change(K.RESTORE, BEFORE, VALUES), replace(STANDS, undo="n-2")).ground == "ordered"
    assert prove_change(change(K.RESTORE, BEFORE, VALUES), replace(STANDS, failed=True)).ground == "failed"
    assert prove_change(change(K.RELEASE), replace(STANDS, undo="n-2")).ground == "ordered"
    aim = {"a": 100, "b": 100}
    breached = replace(STANDS, aims=((NOW + timedelta(hours=1), aim),))
    for back in (
        change(K.RESTORE, aim, VALUES),
        change(K.SOFTEN, mode=LimitMode.SOFT),
        change(K.UNFOLLOW),
        change(K.RELEASE, reserve=reserve_beside(BASE, aim)),
    ):
        assert prove_change(back, breached).ground == "breach"
    # What others hold by now is left to them.
    assert prove_change(change(K.RESTORE, {"a": 77}, {"a": 77}), replace(STANDS, undo="n-2", present={"a": 77})).words


@pytest.mark.parametrize(
    ("decided", "order", "gpus", "good"),
    [
        (Decided("n", "a", 8), {}, 8, True),
        (Decided("n", "a", 4), {}, 8, False),
        (Decided("n", "b", 8), {}, 8, False),
        (Decided("n", "a", 8, {"a": 8}), {}, 8, False),
        (Decided("n", "a", 8), {}, 9, False),
        (Decided("n", "a", 8, {"a": 8}, True), {"raised": {"a": 8}}, -8, True),
        (Decided("n", "a", 8, {"a": 8}), {"raised": {"a": 8}}, -8, False),
        (Decided("n", "a", 8, {"a": 8}, True), {"raised": {"a": 9}}, -9, False),
        (Decided("n", "a", 8, None, True), {"raised": {"a": 8}}, -8, False),
    ],
)
def test_a_grant_is_what_was_decided(decided: Decided, order: dict[str, Any], gpus: int, good: bool) -> None:
    asked = change(K.GRANT, {"a": 200 + gpus})
    known = replace(FRESH, decided=decided)
    wanted = GrantOrder(request="r-7", team="a", gpus=abs(gpus) if not good or gpus < 0 else 8, **order)
    if good:
        assert prove_change(asked, known, wanted).after == {"a": 200 + gpus, "b": 145}
    else:
        with pytest.raises(Refusal):
            prove_change(asked, known, wanted)


def test_what_others_hold_is_not_taken_for_a_value_that_was_written() -> None:
    theirs = ValueConflict(team="a", expected_gpus=1, found_gpus=7)
    met = receipt(K.SET_SOFT, 3, 2, a=7, b=VALUES["b"]).model_copy(update={"conflicts": (theirs,)})
    known = replace(STANDS, receipts=(*STANDS.receipts, met))
    with pytest.raises(Refusal):
        prove_change(change(K.SET_SOFT, {"a": 7}), known)
    assert prove_change(change(K.SET_SOFT, VALUES, {"a": 7, "b": 1}), known).ground == "restored"


def test_a_row_that_nobody_signed_is_no_warrant() -> None:
    key, other = OKPKey.generate_key("Ed25519"), OKPKey.generate_key("Ed25519")
    sre = Principal(name="sre", human="sre", proof=Proof.PEER)
    ticket = Ticket(
        principal=sre,
        command="rollout.approve",
        workflow="rollout/alpha",
        args="ab",
        nonce="n" * 16,
        iat=int(NOW.timestamp()),
        exp=int(NOW.timestamp()) + 60,
    )
    keys = {"k": PublicKey(key_id="k", pem=key.as_pem(private=False).decode(), valid_from=NOW - timedelta(days=1))}
    row = Warrant(
        nonce="n" * 16,
        command="rollout.approve",
        workflow="rollout/alpha",
        subject="r-1",
        principal=sre,
        ticket=sign(ticket, key, "k"),
        admitted_at=NOW,
    )
    assert still_signed(row, keys) == ticket
    forged = (
        row.but(ticket=sign(ticket, other, "k")),
        row.but(ticket=""),
        row.but(nonce="m" * 16),
        row.but(command="rollout.abort"),
    )
    for bad in forged:
        with pytest.raises(Refusal):
            still_signed(bad, keys)
    with pytest.raises(Refusal, match="is no longer valid"):
        still_signed(row, {"k": keys["k"].but(revoked_from=NOW)})
