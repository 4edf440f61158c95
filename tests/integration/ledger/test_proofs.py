"""A warrant proves exactly one row of the archive, which says what was signed, on both databases."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from joserfc.jwk import OKPKey

from activities.adapters.ledger.facade import Ledger
from activities.fleet import calls as launching
from activities.fleet.calls import FleetActivities
from activities.tickets.warrants import Warrants
from models.access.principals import Principal, Proof
from models.access.signing import sign
from models.access.tickets import Ticket, arguments_hash
from models.access.warrants import Warrant, service
from models.audit_chain import AuditEntry, AuditKind, broken_links
from models.fleet.archived_state import KeptFleet
from models.fleet.messages import FleetLaunch, FleetRecord
from models.fleet.reducers import open_fleet
from models.fleet.state import FLEET
from models.hashes import canonical_json
from models.temporal_names import FLEET_ID
from tests.integration.ledger.world import NOW, open_rollout

SRE = Principal(name="sre", human="sre", proof=Proof.OIDC, how="an issuer")
PROVEN, ASSERTED = {"proof": "oidc", "how": "an issuer"}, {"proof": "asserted"}
SPENT = ASSERTED | {"note": "its ticket proves another row"}
APPROVE = {"actor": "sre", "reason": "seen", "plan_hash": "ab", "team": "", "hold": "", "how": ""}
FLEET_ABORT: dict[str, Any] = {
    "actor": "sre",
    "reason": "too hot",
    "clusters": [],
    "wave": None,
    "undo": True,
    "pace": {},
}
RETIRE = {"actor": "sre", "reason": "its lease ends", "deadline": None, "step": "", "check": ""}
ASK = {"request": "q-1", "team": "a", "cluster": "alpha", "gpus": 8, "actor": "sre", "reason": "a run"}


def admitted(ledger: Ledger, nonce: str, command: str, subject: str, message: Mapping[str, Any], **more: Any) -> None:
    given: dict[str, Any] = {"workflow": "rollout/alpha", "principal": SRE, "ticket": "a.b.c", "admitted_at": NOW}
    warrant = {"nonce": nonce, "command": command, "subject": subject, "message": dict(message), **given, **more}
    ledger.warrants.admit(Warrant(**warrant))


def inherited(ledger: Ledger, parent: str, command: str, subject: str, of: str = "") -> None:
    more = {"principal": service(), "inherits": parent, "workflow": of or "fleet-rollout"}
    admitted(ledger, f"{parent}/{command}/{subject}", command, subject, FLEET_ABORT, **more)


def said(key: str, warrant: str, command: str = "approve", **more: Any) -> AuditEntry:
    word = {"command": command} if command else {}
    data = {**word, "warrant": warrant, **more.pop("data", {})}
    given = {"cluster": "alpha", "rollout": "r-1", "at": NOW, "kind": AuditKind.COMMAND, "actor": "sre"}
    whole = {"key": key, "text": f"{command} by sre", "reason": "seen", "data": data} | given | more
    return AuditEntry.model_validate(whole)


def proofs(ledger: Ledger, cluster: str = "alpha") -> dict[str, Any]:
    """Return the proofs of rows that name a warrant, by key; check the hash chain."""
    rows = [row.entry for row in ledger.registry.entries_after(cluster, 0, 1000)]
    return {one.key: one.data["proof"] for one in rows if one.kind is AuditKind.COMMAND and "warrant" in one.data}


@pytest.fixture
def approved(ledger: Ledger) -> Ledger:
    open_rollout(ledger, "r-1")
    admitted(ledger, "n-1", "rollout.approve", "r-1", APPROVE)
    return ledger


def test_what_was_signed_is_proven_however_often_it_is_archived(approved: Ledger) -> None:
    one = said("r-1/000002", "n-1", data={"plan_hash": "ab"})
    for batch in ([one], [one, one], [said("r-1/000003", ""), one]):
        approved.registry.archive(batch)
    assert proofs(approved) == {"r-1/000002": PROVEN, "r-1/000003": ASSERTED}
    assert broken_links(approved.registry.entries_after("alpha", 0, 99), approved.registry.chain_head("alpha")) == []


FORGED: dict[str, dict[str, Any]] = {
    "another reason": {"reason": "she said so"},
    "another plan": {"data": {"plan_hash": "cd"}},
    "another text": {"text": "approve by sre, who was drunk"},
    "another command": {"command": "abort"},
    "no command": {"command": "", "text": "approve by sre"},
    "somebody else": {"actor": "tpm", "text": "approve by tpm"},
    "another rollout": {"rollout": "r-2"},
    "no rollout": {"rollout": ""},
    "another cluster": {"cluster": "beta"},
    "as refused": {"refused": True},
    "with a proof of its own": {"reason": "x", "data": {"proof": PROVEN}},
}


@pytest.mark.parametrize("what", FORGED)
def test_a_warrant_proves_no_row_that_says_something_else(what: str, approved: Ledger) -> None:
    forged, true = said("r-1/000002", "n-1", **FORGED[what]), said("r-1/000003", "n-1", data={"plan_hash": "ab"})
    approved.registry.archive([forged])
    approved.registry.archive([true])
    assert proofs(approved, forged.cluster)["r-1/000002"] == ASSERTED
    assert proofs(approved)["r-1/000003"] == PROVEN, "and what was said before of it takes nothing from what is true"


def test_one_warrant_proves_one_row(approved: Ledger) -> None:
    one, other = (said(key, "n-1", data={"plan_hash": "ab"}) for key in ("r-1/000002", "r-1/000009"))
    approved.registry.archive([one])
    approved.registry.archive([other, other.but(key="r-1/000010")])
    assert proofs(approved) == {"r-1/000002": PROVEN, "r-1/000009": SPENT, "r-1/000010": SPENT}
    approved.registry.archive([one, other])
    assert len(proofs(approved)) == 3
    assert broken_links(approved.registry.entries_after("alpha", 0, 99), approved.registry.chain_head("alpha")) == []


def test_one_warrant_proves_one_row_within_one_call(approved: Ledger) -> None:
    approved.registry.archive([said(f"r-1/{n:06d}", "n-1", data={"plan_hash": "ab"}) for n in range(3)])
    assert list(proofs(approved).values()) == [PROVEN, SPENT, SPENT]


def test_under_a_key_that_was_taken_it_proves_the_true_row_and_no_second(approved: Ledger) -> None:
    approved.registry.archive([said("r-1/000002", "n-1", reason="forged")])
    true = said("r-1/000002", "n-1", data={"plan_hash": "ab"})
    for _ in range(3):
        approved.registry.archive([true])
        approved.registry.archive([true.but(at=true.at.replace(hour=1))])
    assert sorted(map(canonical_json, proofs(approved).values())) == [
        canonical_json(proof) for proof in (PROVEN, SPENT, ASSERTED)
    ]


def test_what_a_machine_does_on_a_word_is_proven_once_for_each_rollout_it_was_admitted_for(approved: Ledger) -> None:
    ledger = approved
    admitted(ledger, "n-2", "fleet.abort", "f-1", FLEET_ABORT, workflow="fleet-rollout")
    inherited(ledger, "n-2", "rollout.abort", "r-1")
    told = {"command": "abort", "reason": "fleet rollout aborted: too hot"}
    of_fleet = said("f-1/000009", "n-2", "abort", cluster=FLEET, rollout="f-1", reason="too hot", data={"undo": True})
    ledger.registry.archive([of_fleet, said("r-1/000005", "n-2", **told), said("r-1/000006", "n-2", **told)])
    ledger.registry.archive([said("r-2/000005", "n-2", rollout="r-2", cluster="beta", **told)])
    ledger.registry.archive([said("r-1/000007", "n-2", command="abort", reason="she hates us: too hot")])
    assert proofs(ledger, FLEET) == {"f-1/000009": PROVEN}
    assert proofs(ledger) == {"r-1/000005": PROVEN, "r-1/000006": SPENT, "r-1/000007": ASSERTED}
    assert proofs(ledger, "beta") == {"r-2/000005": ASSERTED}, "nobody admitted it for that one"


def test_a_fleets_member_is_launched_on_the_fleets_launch_once_it_is_admitted(approved: Ledger) -> None:
    launch = {"fleet": "f-1", "owner": "sre", "shadow": False, "actor": "sre", "reason": "go"}
    admitted(approved, "n-3", "fleet.launch", "f-1", launch, workflow="fleet-rollout")
    admitted(approved, "n-4", "fleet.approve", "f-1", APPROVE, workflow="fleet-rollout")
    text = "launched by sre in fleet rollout f-1"
    member = said("r-1/000001", "n-3", "launch", text=text, reason="go", data={"shadow": False})
    approved.registry.archive([member.but(key="r-1/0000a")])
    inherited(approved, "n-4", "rollout.launch", "r-1")
    approved.registry.archive([member, member.but(key="r-1/0000b"), member.but(key="r-1/0000c", text="launched")])
    assert list(proofs(approved).values()) == [ASSERTED, PROVEN, SPENT, ASSERTED]


def test_a_retirement_says_its_own_reason_after_the_signed_one(approved: Ledger) -> None:
    admitted(approved, "n-5", "bringup.retire", "bringup/alpha", RETIRE, workflow="bringup/alpha")
    for command in ("rollout.approve", "rollout.close"):
        inherited(approved, "n-5", command, "r-1", "bringup/alpha")
    whole = "alpha is retired: its lease ends"
    rows = [
        said("b/1", "n-5", "retire", rollout="bringup-alpha-1", reason="its lease ends", data={"stage": "retiring"}),
        said("r-1/000004", "n-5", reason=whole, data={"plan_hash": "ab"}),
        said("r-1/000005", "n-5", "close", reason="alpha is retired"),
        said("r-1/000006", "n-5", "abort", reason=whole),
    ]
    approved.registry.archive(rows)
    assert list(proofs(approved).values()) == [PROVEN, PROVEN, PROVEN, ASSERTED]


def test_a_request_is_proven_in_the_chain_of_the_cluster_that_was_asked_for(approved: Ledger) -> None:
    admitted(approved, "n-6", "request.ask", "request/q-1", ASK, workflow="request/q-1")
    decision = {"actor": "sre", "reason": "seen"}
    admitted(approved, "n-7", "request.approve", "request/q-1", decision, workflow="request/q-1")
    of = {"request": "q-1", "team": "a", "stage": "asked"}

    def told(key: str, nonce: str, text: str, **more: Any) -> AuditEntry:
        return said(key, nonce, "", rollout="", text=f"request q-1: {text}", data=of | more.pop("data", {}), **more)

    rows = [
        told("request/q-1/1", "n-6", "8 GPUs for a: asked for", reason="a run", data={"gpus": 8}),
        told("request/q-1/2", "n-7", "approved"),
    ]
    approved.registry.archive(rows)
    approved.registry.archive([told("request/q-1/3", "n-7", "declined"), told("request/q-1/4", "n-7", "approved")])
    approved.registry.archive([told("request/q-1/5", "n-7", "approved", cluster="beta")])
    approved.registry.archive([told("request/q-1/6", "n-6", "9 GPUs", reason="a run", data={"gpus": 9})])
    assert list(proofs(approved).values()) == [PROVEN, PROVEN, ASSERTED, SPENT, ASSERTED]
    assert list(proofs(approved, "beta").values()) == [ASSERTED]


def test_what_was_given_at_the_desk_proves_nothing_that_somebody_else_archives(approved: Ledger) -> None:
    admitted(approved, "n-8", "desk.confirm_source", "", {"kind": "confirm_source", "actor": "sre"}, workflow="desk/x")
    approved.registry.archive([said("x/1", "n-8", "confirm_source", reason="", rollout="")])
    assert list(proofs(approved).values()) == [ASSERTED]


def test_a_fleets_launch_is_proven_although_its_ticket_is_admitted_beside_the_archive(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workflow archives the launch while its first activity admits the ticket: whoever is first, it is proven."""
    front, kept = OKPKey.generate_key("Ed25519"), KeptFleet(fleet="fleet/0", owner="tpm", launched_at=NOW)
    nothing: Any = None
    launch = FleetLaunch(fleet="fleet/1", owner="tpm", actor="sre", reason="in May", kept=kept)
    text = arguments_hash(launch)
    ticket = sign(
        Ticket(principal=SRE, command="fleet.launch", workflow=FLEET_ID, args=text, nonce="n" * 20, iat=0, exp=60),
        front,
        "a-key",
    )
    launch = launch.but(ticket=ticket)
    fleets = FleetActivities(nothing, ledger.ports, nothing, Warrants(dict, ledger.warrants, ledger.registry))
    message = launch.model_dump(mode="json", by_alias=True, exclude={"ticket"})
    waits = 0

    def admits(_: float) -> None:
        """While the archive waits for the third time."""
        nonlocal waits
        waits += 1
        if waits == 3:
            admitted(ledger, "n" * 20, "fleet.launch", "fleet/1", message, workflow=FLEET_ID)

    monkeypatch.setattr(launching, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=admits))
    fleets.record(FleetRecord(entries=open_fleet(launch, NOW).outbox))
    assert waits == 3
    assert list(proofs(ledger, FLEET).values()) == [PROVEN]
