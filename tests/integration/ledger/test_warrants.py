"""Warrants in the ledger, on both databases: once by their nonce, void before anything else, kept as they were."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from joserfc.jwk import OKPKey

from activities.adapters.ledger.facade import Ledger
from activities.ports.warrants import Drawn, EffectProof
from activities.tickets.warrants import Warrants
from client.doctor import keys_checks
from models.access.access_versions import HowImported
from models.access.principals import Principal, Proof
from models.access.signing import sign
from models.access.tickets import Ticket
from models.access.warrants import Warrant
from models.audit_chain import Signature
from models.errors import Refusal
from models.rollout.effects import EffectKind, Fence
from tests.integration.ledger.world import ForeignTool, land, open_rollout
from tests.unit.access_world import access, grant
from workers.main import refuse_without_keys

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SRE = Principal(name="sre", human="sre", proof=Proof.OIDC, how="an issuer", groups=("ops",))


def a_warrant(nonce: str, command: str = "rollout.approve", **more: Any) -> Warrant:
    given: dict[str, Any] = {
        "nonce": nonce,
        "command": command,
        "workflow": "rollout/alpha",
        "subject": "r-1",
        "update_id": f"update of {nonce}",
        "principal": SRE,
        "ticket": "a.b.c",
        "message": {"plan_hash": "ab", "actor": "sre", "reason": "ü, 漢"},
        "content": {"envelope": {"plan_hash": "ab"}, "sha256": "ef"},
        "admitted_at": NOW,
    }
    return Warrant(**(given | more))


def test_a_warrant_is_kept_as_it_was_and_only_once(ledger: Ledger) -> None:
    book = ledger.warrants
    whole = a_warrant("n-1", attempt=2, plan_hash="ab", policy_hash="cd", generation=7, content_sha256="ef")
    assert book.admit(whole) == whole
    assert book.admit(whole) == whole
    assert book.warrant("n-1") == whole
    assert book.warrants("r-1") == (whole,)
    assert book.warrant("n-2") is None
    for other in (
        whole.but(update_id="another"),
        whole.but(command="rollout.abort"),
        whole.but(subject="r-2"),
        whole.but(ticket="x.y.z"),
    ):
        with pytest.raises(Refusal, match="has been used"):
            book.admit(other)
    assert book.warrants("r-1") == (whole,)


def test_the_ledger_says_which_keys_signed_what_counts_still(ledger: Ledger) -> None:
    def by(key_id: str) -> str:
        key, ticket = (
            OKPKey.generate_key("Ed25519"),
            Ticket(principal=SRE, command="rollout.approve", workflow="w", args="", nonce="n" * 16, iat=0, exp=60),
        )
        return sign(ticket, key, key_id)

    book = ledger.warrants
    assert book.list_signing_keys() == frozenset()
    book.admit(a_warrant("n-1", ticket=by("20260101-aaaaaaaa")))
    book.admit(a_warrant("n-2", ticket=by("20260101-aaaaaaaa"), subject="r-2"))
    book.admit(a_warrant("n-3", ticket=by("20260201-bbbbbbbb"), subject="r-3"))
    book.admit(a_warrant("n-4", ticket="no.ticket.at all", subject="r-4"))
    book.admit(a_warrant("n-5", ticket="", subject="r-5"))
    assert book.list_signing_keys() == {"20260101-aaaaaaaa", "20260201-bbbbbbbb"}
    book.admit(a_warrant("n-6", ticket="", subject="r-3"), {"rollout.approve"})
    assert book.list_signing_keys() == {"20260101-aaaaaaaa"}, "what is void needs no key"
    know_one = Warrants(lambda: {"20260301-cccccccc": None}, book, ledger.registry)  # type: ignore[dict-item]
    assert know_one.unknown_keys() == ("20260101-aaaaaaaa",)
    assert Warrants(None, book, ledger.registry).unknown_keys() == (), "nothing is checked without keys"
    (check,) = keys_checks(know_one.unknown_keys())
    assert not check.ok
    assert check.text.startswith("keys.json lacks 20260101-aaaaaaaa, which signed tickets in the ledger")
    assert keys_checks(()) == []


def test_a_worker_without_the_book_of_keys_starts_only_where_no_front_signs(ledger: Ledger) -> None:
    first, key = Signature(actor="user:tpm", at=NOW, key="desk/1"), OKPKey.generate_key("Ed25519")
    ticket = Ticket(principal=SRE, command="rollout.approve", workflow="w", args="", nonce="n" * 16, iat=0, exp=60)
    ledger.warrants.admit(a_warrant("n-1", ticket=sign(ticket, key, "20260101-aaaaaaaa")))
    refuse_without_keys(ledger)
    ledger.access.put_in_force(access(grant("user:sre", "operator")), 0, first, HowImported.FIRST)
    with pytest.raises(Refusal, match=r"fronts sign the commands of this fleet.*no book of keys.*keys\.json"):
        refuse_without_keys(ledger)
    ledger.warrants.admit(a_warrant("n-2", ticket=""), {"rollout.approve"})
    refuse_without_keys(ledger)


def test_what_undoes_voids_approvals_before_it_and_no_later_ones(ledger: Ledger) -> None:
    book = ledger.warrants
    book.admit(a_warrant("n-1"))
    book.admit(a_warrant("other", subject="r-2"))
    abort = a_warrant("n-2", "rollout.abort", admitted_at=NOW + timedelta(seconds=1))
    book.admit(abort, {"rollout.approve"})
    book.admit(a_warrant("n-3", admitted_at=NOW + timedelta(seconds=2)), {"rollout.abort", "rollout.approve"})
    live = {w.nonce: (w.live, w.voided_by) for w in book.warrants("r-1")}
    assert live == {
        "n-1": (False, "rollout.abort n-2"),
        "n-2": (False, "rollout.approve n-3"),
        "n-3": (True, ""),
    }
    assert [w.live for w in book.warrants("r-2")] == [True]
    book.admit(abort, {"rollout.approve"})  # told again, it voids nothing that came since
    assert book.warrants("r-1")[-1].live


def test_what_was_drawn_is_found_by_its_hash_the_newest_first(ledger: Ledger) -> None:
    book = ledger.warrants
    for number in range(120):
        book.draw("r-1", Drawn("plan", f"h{number % 2}", {"plan": number}), NOW + timedelta(seconds=number))
    book.draw("r-1", Drawn("aim", "", {"values": {"a": 1}}), NOW)
    book.draw("r-1", Drawn("plan", "h1", {"plan": 119}), NOW + timedelta(seconds=200))  # drawn again: the same row
    found = book.drawn_plans("r-1", "plan")
    assert len(found) == 100
    assert [one.content["plan"] for one in found[:3]] == [119, 118, 117]
    assert {one.hash for one in book.drawn_plans("r-1", "plan", "h0")} == {"h0"}
    assert len({one.sha256 for one in found}) == 100
    assert [(one.content, one.at) for one in book.drawn_plans("r-1", "aim")] == [({"values": {"a": 1}}, NOW)]
    assert book.drawn_plans("r-2", "plan") == ()


def test_what_an_effect_stood_on_is_beside_its_receipt(ledger: Ledger, tool: ForeignTool) -> None:
    open_rollout(ledger)
    receipt = land(ledger, EffectKind.HARDEN, 1)
    proof = EffectProof(Fence(rollout="r-1", counter=1), "harden", "called", "plan", ("n-1", "n-2"), "plan ab")
    ledger.warrants.prove(proof, NOW)
    ledger.warrants.prove(proof._replace(outcome="failed", after={"a": 3}), NOW)
    (found,) = ledger.warrants.proofs("r-1")
    assert found == proof._replace(outcome="failed", after={"a": 3})
    assert ledger.warrants.list_effects_of("n-1") == (found,)
    assert ledger.warrants.list_effects_of("n-2") == ()
    assert ledger.warrants.receipts("r-1") == (receipt,)
    assert tool.rows("SELECT outcome FROM effect_proofs") == [("failed",)]
