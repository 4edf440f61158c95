"""Commands that need a second person, on both databases: they wait a day, another human gives them, and SQL says so."""

from __future__ import annotations

import hashlib
import json
from datetime import timedelta
from typing import Any

import pytest

from activities.adapters.ledger.facade import Ledger
from activities.desk.access import AccessDesk
from activities.desk.second_persons import SecondPersonsDesk
from activities.ports.warrants import LoneDeed
from models.access.access_file import AccessFile
from models.access.access_versions import ACCESS_CHAIN
from models.access.decision import Target
from models.access.principals import Principal, Proof
from models.access.rights import Case
from models.access.second_persons import Emergency, TakenCommand, Waiting
from models.access.warrants import Warrant
from models.access_questions import ImportAccess
from models.audit_chain import Signature, broken_links
from models.countersign_questions import (
    KeepWaiting,
    SeenEmergency,
    TellEmergency,
    Turn,
    TurnWaiting,
    WaitingOne,
    WithdrawWaiting,
)
from models.errors import BadInput, Refusal, Stuck
from models.hashes import canonical_json
from models.temporal_names import TellRequest
from tests.integration.ledger.world import LEDGER_NOW, ForeignTool
from tests.unit.access_world import access, at_provider, grant

FILE = access(grant("user:sre", "operator"), grant("user:hw-lead", "approver"), grant("user:research-lead", "approver"))
TPM, ADMIN, SRE, HW, RESEARCH = (
    at_provider(FILE, name) for name in ("tpm", "sre-lead", "sre", "hw-lead", "research-lead")
)
HOUR = timedelta(hours=1)
ENTER = {"entry": {"cluster": "new", "nodes": 8}, "actor": "user:sre", "reason": "the order of May"}


class Desk:
    """A desk whose book believes the clock that a test moves."""

    def __init__(self, ledger: Ledger, file: AccessFile = FILE) -> None:
        self.told: list[TellRequest] = []
        self.ledger, self.asked, self.at = ledger, 0, LEDGER_NOW
        ledger._database.now = lambda: self.at  # the port's clock
        self.desk = SecondPersonsDesk(ledger.second_persons, ledger.access, self.told.append, tickets_checked=True)
        AccessDesk(ledger.access).import_access(ImportAccess(file=file), *self.by(TPM, "the first"))

    def by(self, who: Principal, reason: str = "") -> tuple[Principal, Signature]:
        self.asked += 1
        return who, Signature(actor=who.name, at=self.at, key=f"desk/{self.asked}", reason=reason)

    def keeps(self, who: Principal = SRE, command: str = "bringup.add", **target: Any) -> Waiting:
        message = ENTER | {"actor": who.name}
        aimed = Target(**({"cluster": "new"} | target))
        question = KeepWaiting(
            command=command, target=aimed, message=message, ticket="a.b.c", reason="the order of May"
        )
        return self.desk.keep(question, *self.by(who, "the order of May"))

    def turns(self, who: Principal, digest: str, turn: Turn = Turn.TAKE) -> TakenCommand:
        return self.desk.turn(TurnWaiting(hash=digest, turn=turn), *self.by(who))

    def alone(
        self, who: Principal, reason: str = "a SEV", command: str = "rollout.promote", refused: int = 0
    ) -> Emergency:
        target = Target(cluster="alpha", first=who.name)
        question = TellEmergency(command=command, target=target, reason=reason, refused=refused)
        return self.desk.notify_emergency(question, *self.by(who, reason))

    def seen(self, who: Principal, number: int = 1, reason: str = "it was right") -> Emergency:
        return self.desk.record_review(SeenEmergency(number=number, reason=reason), *self.by(who, reason))

    def archive(self, chain: str) -> list[tuple[str, str, str]]:
        rows = self.ledger.registry.entries_after(chain, 0, 100)
        assert broken_links(rows, self.ledger.registry.chain_head(chain)) == []
        return [(row.entry.actor, row.entry.text, row.entry.reason) for row in rows]


@pytest.fixture
def desk(empty_ledger: Ledger) -> Desk:
    return Desk(empty_ledger)


def rows(tool: ForeignTool) -> list[tuple[Any, ...]]:
    return tool.rows("SELECT command, given_by, second, ended FROM waiting_commands ORDER BY given_at")


def test_what_waits_is_kept_whole_and_by_its_hash(desk: Desk, tool: ForeignTool) -> None:
    waits = desk.keeps()
    assert waits.what == "begin a bring-up in new"
    assert (waits.by, waits.until, waits.could) == (
        "user:sre",
        LEDGER_NOW + timedelta(days=1),
        ("user:hw-lead", "user:research-lead"),
    )
    digest, document = tool.rows("SELECT hash, document FROM waiting_commands")[0]
    assert hashlib.sha256(canonical_json(json.loads(document)).encode()).hexdigest() == digest == waits.hash
    kept = json.loads(document)
    assert (kept["message"], kept["ticket"], kept["principal"]["name"]) == (ENTER, "a.b.c", "user:sre")
    assert rows(tool) == [("bringup.add", "user:sre", "", "")]
    assert desk.desk.one(WaitingOne(hash=waits.hash[:16])).message == ENTER
    assert [one.message for one in desk.desk.list_waiting()] == [{}], "a list names it, and does not spread it"
    text = "a command to begin a bring-up in new waits for a second person until 2026-01-02 12:00Z"
    ((actor, said, reason),) = desk.archive("new")
    assert (actor, said[: len("a command to begin a bring-up in new waits for")], reason) == (
        "user:sre",
        text[: len("a command to begin a bring-up in new waits for")],
        "the order of May",
    )


def test_the_same_given_again_waits_once(desk: Desk, tool: ForeignTool) -> None:
    first = desk.keeps()
    desk.at += HOUR
    assert desk.keeps().hash == first.hash
    assert len(rows(tool)) == 1


def test_another_human_takes_it_and_gives_it_once(desk: Desk, tool: ForeignTool) -> None:
    waits = desk.keeps()
    taken = desk.turns(HW, waits.hash[:16])
    assert (taken.message, taken.ticket, taken.waiting.second) == (ENTER, "a.b.c", "user:hw-lead")
    assert rows(tool) == [("bringup.add", "user:sre", "user:hw-lead", "")]
    assert desk.turns(HW, waits.hash).waiting.second == "user:hw-lead", "who has heard no answer asks again"
    with pytest.raises(Refusal, match=r"user:hw-lead is already countersigning"):
        desk.turns(RESEARCH, waits.hash)
    with pytest.raises(Refusal, match="too late to withdraw"):
        desk.desk.withdraw(WithdrawWaiting(hash=waits.hash), *desk.by(SRE))
    desk.turns(HW, waits.hash, Turn.DONE)
    assert rows(tool) == [("bringup.add", "user:sre", "user:hw-lead", "given")]
    for who in (HW, RESEARCH):
        with pytest.raises(Refusal, match="user:hw-lead has already countersigned"):
            desk.turns(who, waits.hash)
    assert desk.desk.list_waiting() == ()
    told = [(actor, text) for actor, text, _ in desk.archive("new")][1:]
    assert told == [("user:hw-lead", "countersigned the command of user:sre to begin a bring-up in new")], (
        "the audit names both"
    )


def test_what_was_refused_goes_on_waiting_for_anybody(desk: Desk, tool: ForeignTool) -> None:
    waits = desk.keeps()
    desk.turns(HW, waits.hash)
    desk.turns(HW, waits.hash, Turn.REFUSED)
    assert rows(tool) == [("bringup.add", "user:sre", "", "")]
    assert desk.turns(RESEARCH, waits.hash).waiting.second == "user:research-lead"


@pytest.mark.parametrize(
    ("who", "why"),
    [
        (SRE, "user:sre may not countersign: this needs the role approver"),
        (TPM, "user:tpm may not countersign: this needs the role approver"),
        (FILE.at_machine("somebody"), "user:somebody may not countersign: this needs the role approver"),
        (HW.but(proof=Proof.TOKEN), "did not log in as a person"),
        (HW.but(proof=Proof.ASSERTED), "did not log in as a person"),
        (Principal(name="service:ci", proof=Proof.SERVICE), "services never countersign"),
    ],
)
def test_who_does_not_count_is_told_who_could(desk: Desk, tool: ForeignTool, who: Principal, why: str) -> None:
    waits = desk.keeps()
    with pytest.raises(Refusal, match=r"\(user:hw-lead, user:research-lead\)") as refused:
        desk.turns(who, waits.hash)
    assert why in refused.value.message
    assert rows(tool) == [("bringup.add", "user:sre", "", "")]


def test_the_same_human_under_another_name_does_not_count(empty_ledger: Ledger, tool: ForeignTool) -> None:
    """The person has both roles, and comes in once as a user of the machine and once by the provider."""
    file = access(grant("user:sre", "operator", "approver"), grant("user:hw-lead", "approver"))
    desk = Desk(empty_ledger, file)
    waits = desk.keeps(file.at_machine("sre"))
    with pytest.raises(Refusal, match=r"user:sre gave the command: another approver has to countersign"):
        desk.turns(at_provider(file, "sre"), waits.hash)
    assert rows(tool)[0][2:] == ("", "")


def test_a_service_of_the_first_ones_is_the_first_one(empty_ledger: Ledger) -> None:
    file = access(grant("service:ci", "operator"), grant("user:sre", "approver"), grant("user:hw-lead", "approver"))
    desk = Desk(empty_ledger, file)
    token = Principal(name="service:ci", proof=Proof.TOKEN, how="token ci-1")
    waits = desk.keeps(token)
    with pytest.raises(Refusal, match="user:sre may be the person who gave the command"):
        desk.turns(at_provider(file, "sre"), waits.hash)
    assert desk.turns(at_provider(file, "hw-lead"), waits.hash).waiting.by == "service:ci"


def test_a_day_later_nobody_can(desk: Desk, tool: ForeignTool) -> None:
    waits = desk.keeps()
    desk.at += timedelta(days=1) - timedelta(seconds=1)
    assert len(desk.desk.list_waiting()) == 1
    desk.at += timedelta(seconds=1)
    assert desk.desk.list_waiting() == ()
    with pytest.raises(Refusal, match="nobody countersigned it: user:sre has to give the command again"):
        desk.turns(HW, waits.hash)
    assert rows(tool) == [("bringup.add", "user:sre", "", "")]
    assert desk.keeps().hash != waits.hash, "given again it is another one"


def test_who_lost_the_role_meanwhile_has_given_nothing(desk: Desk) -> None:
    waits = desk.keeps()
    version = desk.ledger.access.access()
    assert version is not None
    from models.access.access_versions import HowImported

    _, by = desk.by(TPM)
    desk.ledger.access.put_in_force(access(grant("user:hw-lead", "approver")), 1, by, HowImported.RECOVERED)
    with pytest.raises(Refusal, match="the access file in force now does not let user:sre begin a bring-up in new"):
        desk.turns(HW, waits.hash)


@pytest.mark.parametrize("rubbish", ["", "feed", "x" * 16, "%" * 16, "0" * 65, "4F2A9C1B7D3E5F60", "\x00" * 16])
def test_rubbish_is_no_hash(rubbish: str) -> None:
    with pytest.raises(BadInput):
        TurnWaiting(hash=rubbish, turn=Turn.TAKE)


def test_a_hash_that_nothing_has_is_refused_and_so_is_an_altered_row(desk: Desk, tool: ForeignTool) -> None:
    with pytest.raises(Refusal, match=f"no command with the hash {'0' * 16} waits"):
        desk.turns(HW, "0" * 16)
    waits = desk.keeps()
    document = tool.one("SELECT document FROM waiting_commands")
    tool.run("UPDATE waiting_commands SET document = ?", document.replace('"nodes":8', '"nodes":800'))
    with pytest.raises(Stuck, match="is not the one that user:sre gave"):
        desk.turns(HW, waits.hash)


def test_who_gave_it_withdraws_it_and_nobody_else(desk: Desk, tool: ForeignTool) -> None:
    waits = desk.keeps()
    with pytest.raises(Refusal, match="only user:sre, who gave the command, may withdraw it"):
        desk.desk.withdraw(WithdrawWaiting(hash=waits.hash), *desk.by(HW))
    gone = desk.desk.withdraw(WithdrawWaiting(hash=waits.hash, reason="wrong"), *desk.by(SRE, "wrong"))
    assert (gone.ended, rows(tool)[0][3]) == ("withdrawn", "withdrawn")
    with pytest.raises(Refusal, match="user:sre withdrew"):
        desk.turns(HW, waits.hash)


def test_what_a_command_would_change_is_said_only_while_it_waits(desk: Desk) -> None:
    """Afterwards the upload is gone, and the page said to import it again."""
    desk.desk = SecondPersonsDesk(desk.ledger.second_persons, desk.ledger.access, leads_to=lambda _: ("8 more GPUs",))
    waits = desk.keeps()
    assert desk.desk.one(WaitingOne(hash=waits.hash)).changes == ("8 more GPUs",)
    desk.turns(HW, waits.hash)
    desk.turns(HW, waits.hash, Turn.DONE)
    assert desk.desk.one(WaitingOne(hash=waits.hash)).changes == ()


def test_what_needs_nobody_or_is_not_the_givers_to_give_does_not_wait(desk: Desk, tool: ForeignTool) -> None:
    with pytest.raises(Refusal, match=r"rollout\.pause needs no second person: give it directly"):
        desk.keeps(command="rollout.pause")
    with pytest.raises(Refusal, match=r"fleet\.abort needs no second person: give it directly"):
        desk.keeps(command="fleet.abort", cluster="")
    with pytest.raises(Refusal, match="user:hw-lead may not begin a bring-up in new"):
        desk.keeps(HW)
    assert rows(tool) == []
    undone = desk.keeps(command="fleet.abort", cluster="", cases=frozenset({Case.UNDO}))
    assert undone.what == "abort the fleet rollout with undo"
    ((_, text, _),) = desk.archive("(fleet)")
    assert text.startswith("a command to abort the fleet rollout with undo waits")


def test_nobody_fills_the_book(desk: Desk) -> None:
    for number in range(50):
        desk.keeps(cluster=f"new-{number}") if number == 0 else desk.desk.keep(
            KeepWaiting(command="bringup.add", target=Target(cluster="new"), message={"n": number}), *desk.by(SRE)
        )
    with pytest.raises(Refusal, match="50 commands of user:sre already wait for a second person"):
        desk.desk.keep(
            KeepWaiting(command="bringup.add", target=Target(cluster="new"), message={"n": 51}), *desk.by(SRE)
        )


# --- alone -----------------------------------------------------------------------------------------


def test_an_approver_acts_alone_and_every_admin_is_told(desk: Desk, tool: ForeignTool) -> None:
    found = desk.alone(HW)
    assert found.number == 1
    assert tool.rows("SELECT number, given_by, what, reason, seen_by FROM emergencies") == [
        (1, "user:hw-lead", "promote in alpha", "a SEV", "")
    ]
    ((actor, text, reason),) = desk.archive("alpha")
    assert (actor, reason) == ("user:hw-lead", "a SEV")
    assert text == "acted alone in an emergency to promote in alpha: no second person was asked"
    (entry,) = tool.rows("SELECT entry FROM audit WHERE cluster = 'alpha'")
    assert json.loads(entry[0])["data"]["emergency"] == 1
    (request,) = desk.told
    assert [(n.kind, n.audience) for n in request.notices] == [("emergency", "sre-lead"), ("emergency", "tpm")]
    assert "user:hw-lead acted alone in an emergency" in request.notices[0].detail
    lines = [one["line"] for one in request.notices[0].facts["commands"]]
    assert lines == ["backstop audit alpha --archive", 'backstop access seen 1 --reason "..."']
    assert [one.number for one in desk.desk.emergencies()] == [1]


def test_one_telling_is_for_one_command_and_what_was_not_told_is_told_as_it_is_admitted(
    desk: Desk, tool: ForeignTool
) -> None:
    """Once for each: by a front before, or with the warrant; and however often one is admitted."""

    def admitted(nonce: str, reason: str = "a SEV") -> str:
        given: dict[str, Any] = {"workflow": "rollout/alpha", "subject": "r-1", "principal": HW, "ticket": "a.b.c"}
        warrant = Warrant(nonce=nonce, command="rollout.promote", admitted_at=desk.at, **given)
        for _ in range(2):
            desk.ledger.warrants.admit(warrant, alone=LoneDeed("promote in alpha", "alpha", reason))
            desk.desk.notify_admitted(nonce, "alpha")
        return nonce

    def told() -> list[str]:
        return [notice.key for request in desk.told for notice in request.notices if notice.audience == "tpm"]

    desk.alone(HW)
    admitted("n-1")
    assert told() == ["emergency/1/tpm"], "its front has told of it, and nobody tells anew"
    admitted("n-2")
    admitted("n-3", "another reason")
    desk.asked = 1
    assert desk.alone(HW).number == 1, "the front asks again, as it heard no answer"
    desk.at += timedelta(minutes=11)
    admitted("n-4")
    assert tool.rows("SELECT number, key, reason FROM emergencies ORDER BY number") == [
        (1, "desk/2|warrant/n-1", "a SEV"),
        (2, "|warrant/n-2", "a SEV"),
        (3, "|warrant/n-3", "another reason"),
        (4, "|warrant/n-4", "a SEV"),
    ]
    assert list(dict.fromkeys(told())) == [f"emergency/{number}/tpm" for number in (1, 2, 3, 4)]
    assert len(desk.archive("alpha")) == 4


def test_a_refused_command_is_no_emergency_to_review_and_the_archive_keeps_it(desk: Desk, tool: ForeignTool) -> None:
    desk.alone(HW)
    with pytest.raises(Refusal, match="there is no emergency 1 in which user:research-lead acted alone"):
        desk.alone(RESEARCH, refused=1)
    for _ in range(2):
        assert desk.alone(HW, refused=1).is_refused
    assert desk.desk.emergencies() == ()
    assert tool.rows("SELECT number, seen_by, seen_reason FROM emergencies") == [(1, "", "its command was refused")]
    assert [text for _, text, _ in desk.archive("alpha")] == [
        "acted alone in an emergency to promote in alpha: no second person was asked",
        "nothing was done in emergency 1: the command to promote in alpha was refused",
    ]
    with pytest.raises(Refusal, match="emergency 1 needs no review: its command was refused, so nothing was done"):
        desk.seen(ADMIN)

    assert desk.alone(HW).number == 2
    given: dict[str, Any] = {"workflow": "rollout/alpha", "subject": "r-1", "principal": HW, "ticket": "a.b.c"}
    warrant = Warrant(nonce="n-1", command="rollout.promote", admitted_at=desk.at, **given)
    desk.ledger.warrants.admit(warrant, alone=LoneDeed("promote in alpha", "alpha", "a SEV"))
    joined = [number for number, key in tool.rows("SELECT number, key FROM emergencies") if "warrant/n-1" in key]
    assert joined == [2], "and not the refused one"
    assert not desk.alone(HW, refused=2).is_refused
    assert [one.number for one in desk.desk.emergencies()] == [2], "a worker took it up: an admin has to review it"


@pytest.mark.parametrize(
    ("who", "reason", "why"),
    [
        (SRE, "a SEV", "user:sre may not promote in alpha: this needs the role approver there"),
        (HW, " ", "an emergency needs a reason"),
        (HW.but(proof=Proof.TOKEN), "a SEV", "used a token"),
        (HW.but(proof=Proof.ASSERTED), "a SEV", "has not logged in"),
    ],
)
def test_who_may_not_act_alone_is_told_and_nobody_else_is(
    desk: Desk, tool: ForeignTool, who: Principal, reason: str, why: str
) -> None:
    with pytest.raises(Refusal) as refused:
        desk.alone(who, reason)
    assert why in refused.value.message
    assert (tool.rows("SELECT * FROM emergencies"), desk.told) == ([], [])


def test_an_operator_does_not_enter_alone(desk: Desk) -> None:
    with pytest.raises(Refusal, match="user:sre may not act alone: in an emergency only an approver"):
        desk.alone(SRE, command="bringup.add")


def test_another_admin_looks_at_it_and_not_who_did_it(empty_ledger: Ledger, tool: ForeignTool) -> None:
    file = access(grant("user:tpm", "approver"))  # an admin who approves, too
    desk = Desk(empty_ledger, file)
    desk.alone(at_provider(file, "tpm"))
    for who in (at_provider(file, "tpm"), file.at_machine("tpm")):
        with pytest.raises(Refusal, match=r"user:tpm acted alone .* another admin must .* \(user:sre-lead\)"):
            desk.seen(who)
    with pytest.raises(Refusal, match="user:sre may not look at an emergency"):
        desk.seen(at_provider(file, "sre"))
    with pytest.raises(Refusal, match="there is no emergency 7"):
        desk.seen(ADMIN, 7)
    assert len(desk.desk.emergencies()) == 1
    looked = desk.seen(ADMIN)
    assert (looked.seen_by, desk.desk.emergencies()) == ("user:sre-lead", ())
    assert tool.rows("SELECT seen_by, seen_reason FROM emergencies") == [("user:sre-lead", "it was right")]
    assert (
        desk.archive(ACCESS_CHAIN)[-1][1] == "reviewed emergency 1, in which user:tpm acted alone to promote in alpha"
    )
