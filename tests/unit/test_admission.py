"""Admission cell by cell: what the table of rights says, of what the ledger says, whatever the front had looked at."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from joserfc.jwk import OKPKey

from activities.ports.access import OpenOne
from activities.tickets.ticket_rights import Admission, note_of
from models.access.access_file import AccessFile
from models.access.access_versions import AccessVersion, HowImported
from models.access.decision import Permitted
from models.access.principals import Principal, Proof
from models.access.roles import Role
from models.access.signing import PublicKey, sign
from models.access.tickets import Ticket, arguments_hash
from models.access.tokens import Token, TokenScope
from models.access.warrants import Warrant, still_signed
from models.base import Model
from models.bringup.commands import BringupOrder
from models.bringup.entry import BringupEntry
from models.bringup.messages import BringupStart
from models.errors import Refusal
from models.fleet.archived_state import KeptFleet
from models.fleet.commands import FleetCommandRequest
from models.fleet.messages import FleetLaunch
from models.questions import Archive, GiveUpBringup, RemoveCluster
from models.requests.commands import RequestOrder
from models.requests.state import QuotaAsk, RequestState
from models.rollout.commands import CommandRequest
from models.rollout.messages import LaunchRequest
from tests.unit.access_world import access, at_provider, grant
from tests.unit.bringup_world import ENTRY, recipe

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
KEY = OKPKey.generate_key("Ed25519", auto_kid=False)
KEYS = {"k": PublicKey(key_id="k", pem=KEY.as_pem(private=False).decode(), valid_from=NOW - timedelta(days=9))}
EVERYTHING = [grant(f"user:{who}", "operator", "approver") for who in ("tpm", "sre")]
FILE = access(*EVERYTHING, grant("user:hw-lead", "approver"), grant("user:research-lead", "operator"))
ASK = QuotaAsk(request="r-1", team="research", cluster="h100-a", gpus=8, actor="user:tpm", reason="r")
START = BringupStart(
    entry=BringupEntry.model_validate({**ENTRY, "cluster": "h100-a"}), recipe=recipe(), actor="user:tpm", reason="r"
)
R: dict[str, Any] = {"actor": "user:tpm", "reason": "r"}


@dataclass
class Ledger:
    """AccessPort, AttributionPort and SignedBook in memory, as far as admission asks them."""

    file: AccessFile | None = FILE
    first: str = "user:tpm"
    changed: tuple[str, ...] = ()
    breaker: bool = False
    stage: str = "monitored"
    lost: bool = True
    kept_tokens: tuple[Token, ...] = ()
    keys: Mapping[str, PublicKey] = field(default_factory=lambda: KEYS)
    live_ones: Mapping[tuple[str, str], Warrant] = field(default_factory=dict)

    def access(self) -> AccessVersion | None:
        if self.file is None:
            return None
        how = HowImported.FIRST
        return AccessVersion(version=1, hash=self.file.hash, file=self.file, by="user:tpm", at=NOW, how=how)

    def tokens(self, *, ended: bool = False) -> tuple[Token, ...]:
        return self.kept_tokens

    def open_one(self, cluster: str) -> OpenOne | None:
        return OpenOne("r-1", "", self.stage) if self.lost else None

    def read_launcher(self, rollout: str) -> str:
        return self.first

    def newest_fleet(self, but: str = "") -> str:
        return "f-1"

    def read_who_entered(self, cluster: str) -> str:
        return self.first

    def list_who_changed(self, cluster: str, *, proven: bool) -> tuple[str, ...]:
        return self.changed

    def is_breaker_open(self, fleet: str) -> bool:
        return self.breaker

    def request(self, request: str) -> RequestState | None:
        asked: dict[str, Any] = {"asked_at": NOW, "changed_at": NOW}
        return RequestState.model_construct(ask=ASK.but(actor=self.first), **asked) if request == "r-1" else None

    def live(self, subject: str, *commands: str) -> Warrant | None:
        return next((self.live_ones[subject, c] for c in commands if (subject, c) in self.live_ones), None)

    def oldest(self, subject: str, command: str) -> Warrant | None:
        return self.live_ones.get((subject, command))


def ticket_of(command: str, message: Model, who: Principal, workflow: str, **more: Any) -> Ticket:
    at = int(more.pop("at", NOW).timestamp())
    given: dict[str, Any] = {"command": command, "workflow": workflow, "args": arguments_hash(message)}
    return Ticket(principal=who, nonce=secrets.token_urlsafe(18), iat=at, exp=at + 60, **given, **more)


def row_of(ticket: Ticket, **more: Any) -> Warrant:
    given = {name: getattr(ticket, name) for name in ("nonce", "command", "workflow", "principal")}
    return Warrant(**given, ticket=sign(ticket, KEY, "k"), **more)


def admitted(
    ledger: Any, command: str, message: Model, who: str | Principal = "tpm", short: bool = False, **more: Any
) -> Permitted | None:
    principal = at_provider(FILE, who) if isinstance(who, str) else who
    kind = command.partition(".")[0]
    of_cluster = f"{kind}/{more.pop('cluster', 'h100-a')}"
    workflow = {"fleet": "fleet-rollout", "request": "request/r-1", "desk": "desk/x"}.get(kind, of_cluster)
    subject = {"fleet": "f-2" if command == "fleet.launch" else "f-1", "request": workflow}.get(kind, "")
    ticket = ticket_of(command, message, principal, workflow, **more)
    admission = Admission(ledger, ledger, ledger, lambda _: short)
    return admission.judge(ticket, command, message, subject, NOW, ledger)


COMMAND, ORDER, OF_REQUEST = CommandRequest(**R), BringupOrder(**R), RequestOrder(**R)
FLEET = FleetCommandRequest(**R)
GIVEN_UP = GiveUpBringup(cluster="h100-a", reason="r")
KEPT = KeptFleet(fleet="f-1", owner="tpm", launched_at=NOW)
LAUNCHED, ENTERED, ASKED = (
    f"user:tpm {what}: another approver has to "
    for what in ("launched the rollout", "entered the cluster", "made the request")
)
COULD = r"(user:sre, user:hw-lead)"
REFUSED: dict[str, tuple[str, Model, str]] = {
    # What is the first one's own, in the words of the table; the old list of admission had none of these.
    "skip of a step": ("bringup.skip", ORDER, f"{ENTERED}skip a step or check {COULD}"),
    "retirement": ("bringup.retire", ORDER, f"{ENTERED}retire {COULD}"),
    "giving up": (
        "desk.give_up_bringup",
        GiveUpBringup(cluster="h100-a", reason="r"),
        f"{ENTERED}give a bring-up up {COULD}",
    ),
    "pace": ("fleet.pace", FLEET, f"{LAUNCHED}change the pace {COULD}"),
    "decline": ("request.decline", OF_REQUEST, f"{ASKED}decline {COULD}"),
    "adoption": (
        "rollout.launch",
        LaunchRequest(cluster="h100-a", rollout="r-2", owner="tpm", adopt=True, **R),
        f"{LAUNCHED}adopt a rollout {COULD}",
    ),
    "adoption of a fleet rollout": (
        "fleet.launch",
        FleetLaunch(fleet="f-2", owner="tpm", kept=KEPT, **R),
        f"{LAUNCHED}adopt a fleet rollout {COULD}",
    ),
    "approval": ("rollout.approve", COMMAND, f"{LAUNCHED}approve {COULD}"),
    "skip of clusters": ("fleet.skip", FLEET, f"{LAUNCHED}skip clusters {COULD}"),
    "entering a cluster": (
        "bringup.add",
        START,
        f"it has to be countersigned by an approver, within 24 h {COULD}",
    ),
    "undo of the fleet": (
        "fleet.abort",
        FLEET.but(undo=True),
        f"it has to be countersigned by an approver, except while the breaker is open, within 24 h {COULD}",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_the_first_one_alone_is_refused_and_told_who_could(what: str) -> None:
    command, message, said = REFUSED[what]
    with pytest.raises(Refusal) as refused:
        admitted(Ledger(), command, message)
    assert refused.value.message == said
    assert admitted(Ledger(file=None), command, message) is None, "nothing is asked but the signature"
    alone = admitted(Ledger(file=FILE.but(two_person=False)), command, message)
    assert alone is not None
    assert alone.one_person
    emergency = admitted(Ledger(), command, message, emergency=True)
    assert emergency is not None
    assert emergency.emergency


@pytest.mark.parametrize("what", [w for w, (c, _, __) in REFUSED.items() if c != "bringup.add" and "undo" not in w])
def test_another_approver_is_admitted(what: str) -> None:
    command, message, _ = REFUSED[what]
    given = message.but(actor="user:hw-lead") if "actor" in type(message).model_fields else message
    permitted = admitted(Ledger(), command, given, "hw-lead")
    assert permitted is not None
    assert permitted.roles == ("approver",)


def test_close_at_risk_or_stuck_takes_another_approver() -> None:
    said = "user:tpm launched the rollout: another approver has to close while it is at risk or stuck"
    assert admitted(Ledger(), "rollout.close", COMMAND) is not None
    assert admitted(Ledger(stage="planned"), "rollout.close", COMMAND, short=True) is not None
    for ledger, short in ((Ledger(stage="stuck"), False), (Ledger(), True)):
        with pytest.raises(Refusal, match=said):
            admitted(ledger, "rollout.close", COMMAND, short=short)
        assert admitted(ledger, "rollout.close", COMMAND, "hw-lead", short=short) is not None


def test_where_nothing_is_lost_a_launch_adopts_nothing() -> None:
    launch = LaunchRequest(cluster="h100-a", rollout="r-2", owner="tpm", adopt=True, **R)
    assert admitted(Ledger(lost=False), "rollout.launch", launch, "research-lead") is not None


def test_roles_are_judged_anew_and_for_starts_and_the_desk_as_well() -> None:
    for command, message, said in (
        ("rollout.pause", COMMAND, "user:hw-lead may not pause in h100-a: this needs the role operator there"),
        (
            "rollout.launch",
            LaunchRequest(cluster="h100-a", rollout="r", owner="x"),
            "may not launch a rollout in h100-a",
        ),
        (
            "fleet.launch",
            FleetLaunch(fleet="f-2", owner="x"),
            "may not launch a fleet rollout: this needs the role operator",
        ),
        ("request.ask", ASK, "may not ask for quota for team research in h100-a: this needs the role member there"),
        ("desk.remove_cluster", RemoveCluster(cluster="h100-a", reason="r"), "may not remove a cluster"),
    ):
        with pytest.raises(Refusal, match=said):
            admitted(Ledger(), command, message, "hw-lead")
    assert admitted(Ledger(), "desk.archive", Archive(entries=()), "hw-lead") is None, "anybody's refusal is archived"
    asserted = Principal(name="user:sre", human="user:sre")
    with pytest.raises(Refusal, match="has not logged in"):
        admitted(Ledger(), "rollout.pause", COMMAND, asserted)


def test_where_a_start_goes_is_what_it_says_and_not_the_workflow_that_carries_it() -> None:
    bounded = access(grant("user:tpm", "operator", clusters=["h100-*"]))
    launch = LaunchRequest(cluster="a100-a", rollout="r-2", owner="tpm", **R)
    with pytest.raises(Refusal, match="may not launch a rollout in a100-a"):
        admitted(Ledger(file=bounded), "rollout.launch", launch)


def test_whoever_changed_quotas_does_not_approve_and_a_service_counts_as_its_owner() -> None:
    ledger = Ledger(first="user:tpm", changed=("service:ci",))
    approve = COMMAND.but(actor="user:sre")
    with pytest.raises(Refusal, match="service:ci counts as the same person as user:sre, and changed policy"):
        admitted(ledger, "rollout.approve", approve, "sre")
    assert admitted(ledger, "rollout.approve", approve, "hw-lead") is not None
    assert admitted(ledger, "rollout.promote", approve, "sre") is not None


def test_an_open_breaker_stands_for_the_second_person() -> None:
    assert admitted(Ledger(breaker=True), "fleet.abort", FLEET.but(undo=True)) is not None
    assert admitted(Ledger(), "fleet.abort", FLEET) is not None


def test_a_token_carries_what_the_ledger_says_of_it_now() -> None:
    principal = Principal(name="user:tpm", human="user:tpm", proof=Proof.TOKEN, how="token t")
    given: dict[str, Any] = {"hash": 64 * "a", "owner": "user:tpm", "made_by": "user:sre", "made_at": NOW}
    token = Token(name="t", scope=TokenScope(roles=(Role.OPERATOR,)), expires_at=NOW + timedelta(days=1), **given)
    with pytest.raises(Refusal, match="token t of user:tpm is no longer valid"):
        admitted(Ledger(), "rollout.pause", COMMAND, principal)
    assert admitted(Ledger(kept_tokens=(token,)), "rollout.pause", COMMAND, principal) is not None
    with pytest.raises(Refusal, match="token t must have that role too"):
        admitted(Ledger(kept_tokens=(token,)), "rollout.approve", COMMAND, principal)


def test_of_which_cluster_a_request_is_says_the_signed_ask_and_not_what_a_worker_kept() -> None:
    """A worker's copy of the request says h100-a, in which the approver may approve."""
    ask = ASK.but(cluster="h100-b")
    ticket = ticket_of("request.ask", ask, at_provider(FILE, "tpm"), "request/r-1")
    asked = row_of(ticket, subject="request/r-1", message=ask.model_dump(mode="json"), admitted_at=NOW)
    bounded = access(*EVERYTHING, grant("user:hw-lead", "approver", clusters=["h100-a"]))
    order = OF_REQUEST.but(actor="user:hw-lead")
    assert admitted(Ledger(bounded), "request.approve", order, "hw-lead") is not None, "asked before there were keys"
    signed = Ledger(bounded, live_ones={("request/r-1", "request.ask"): asked})
    with pytest.raises(Refusal, match="h100-b"):
        admitted(signed, "request.approve", order, "hw-lead")


# --- countersigned ---------------------------------------------------------------------------------


def firsts(message: Model = START, who: str = "tpm", **more: Any) -> str:
    given = {"command": "bringup.add", "workflow": "bringup/h100-a", **more}
    at = given.pop("at", NOW - timedelta(hours=23))
    return sign(ticket_of(message=message, who=at_provider(FILE, who), at=at, **given), KEY, "k")


def test_an_approvers_ticket_over_the_firsts_admits_it() -> None:
    seconds = START.but(actor="user:hw-lead")
    permitted = admitted(Ledger(), "bringup.add", seconds, "hw-lead", second=firsts())
    assert permitted is not None
    assert (permitted.second, permitted.roles) == ("user:hw-lead", ("operator",))
    assert admitted(Ledger(), "bringup.add", START, "hw-lead", second=firsts()) is not None


def test_what_is_no_firsts_ticket_admits_nothing() -> None:
    other = OKPKey.generate_key("Ed25519", auto_kid=False)
    forged = sign(ticket_of("bringup.add", START, at_provider(FILE, "tpm"), "bringup/h100-a"), other, "k")
    longer = BringupStart.model_validate({**START.model_dump(), "reason": "another"})
    bad = {
        "more than a day ago": firsts(at=NOW - timedelta(hours=25)),
        "another command": firsts(command="bringup.retire"),
        "another command ": firsts(workflow="bringup/h100-b"),
        "differs from the first person's": firsts(longer),
        "another person has to countersign": firsts(START.but(actor="user:hw-lead"), "hw-lead"),
        "malformed, or its signature": forged,
        "may not begin a bring-up in h100-a": firsts(START.but(actor="user:sre-lead"), "sre-lead"),
    }
    for why, second in bad.items():
        with pytest.raises(Refusal, match=why.strip()):
            admitted(Ledger(), "bringup.add", START.but(actor="user:hw-lead"), "hw-lead", second=second)
    no_approver = START.but(actor="user:research-lead")
    with pytest.raises(Refusal, match="user:research-lead may not countersign: this needs the role approver"):
        admitted(Ledger(), "bringup.add", no_approver, "research-lead", second=firsts())


# --- what is said, and keys -------------------------------------------------------------------------


def test_the_note_of_the_audit_is_the_decisions_own() -> None:
    ticket = ticket_of("rollout.pause", COMMAND, at_provider(FILE, "tpm"), "w", emergency=True, two_person=False)
    assert note_of(ticket, Permitted(roles=())) == ""
    assert note_of(ticket, Permitted(roles=(), emergency=True)) == "an emergency"
    assert note_of(ticket, Permitted(roles=(), one_person=True)) == "two persons are off"
    without_file = ticket.model_copy(update={"emergency": False})
    assert note_of(without_file, None) == "", "nobody else is needed for a pause"
    assert note_of(without_file.model_copy(update={"command": "rollout.approve"}), None) == "two persons are off"


def test_of_a_revoked_key_counts_what_was_admitted_before_whenever_it_says_that_it_signed() -> None:
    """A thief of the key may date signatures back; the ledger itself says when a command was admitted."""
    ticket = ticket_of("rollout.approve", COMMAND, at_provider(FILE, "tpm"), "rollout/h100-a", at=NOW)
    row = row_of(ticket, subject="r-1", admitted_at=NOW + timedelta(minutes=1))
    hour = timedelta(hours=1)
    revoked = {"k": KEYS["k"].but(revoked_from=NOW + hour)}
    assert still_signed(row, revoked) == ticket
    with pytest.raises(Refusal, match="is no longer valid: the key that signed its ticket was revoked before"):
        still_signed(row.but(admitted_at=NOW + 2 * hour), revoked)
