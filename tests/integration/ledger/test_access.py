"""The book of access on both databases: files by two admins, tokens by their hash, each with its line in the audit."""

from __future__ import annotations

import json
import threading
from datetime import timedelta
from typing import Any

import pytest

from activities.adapters.ledger.facade import Ledger
from activities.desk.access import AccessDesk, assert_caller
from models.access.access_file import AccessFile
from models.access.access_versions import ACCESS_CHAIN, AccessOutcome, HowImported
from models.access.principals import Principal, Proof
from models.access.roles import Role
from models.access.tokens import TokenScope, token_hash
from models.access_questions import ImportAccess, MakeToken, RevokeToken, Tokens
from models.audit_chain import Signature, broken_links
from models.errors import BackstopError, BadInput, Conflict, Refusal, Stuck
from tests.integration.ledger.world import LEDGER_NOW, ForeignTool
from tests.unit.access_world import access, at_provider, grant
from workers.main import refuse_without_keys

SECRET = "bst_" + 43 * "s"
FIRST, NEXT = access(grant("user:sre", "operator")), access(grant("user:sre", "operator", "approver"))


class Desk:
    """A desk that knows who asks, and an hour that passes between questions where it is told to."""

    def __init__(self, ledger: Ledger) -> None:
        self.desk, self.book, self.asked = AccessDesk(ledger.access), ledger.access, 0
        self.ledger = ledger

    def by(self, who: Principal) -> tuple[Principal, Signature]:
        self.asked += 1
        return who, Signature(actor=who.name, at=LEDGER_NOW, key=f"desk/{self.asked}")

    def imports(self, who: Principal, file: AccessFile | None = None, **more: Any) -> AccessOutcome:
        return self.desk.import_access(ImportAccess(file=file, **more), *self.by(who))

    def makes(self, who: Principal, name: str = "t-1", owner: str = "user:sre", **more: Any) -> Any:
        scope = more.pop("scope", TokenScope(roles=(Role.VIEWER,)))
        question = MakeToken(name=name, hash=token_hash(SECRET + name), owner=owner, scope=scope, days=30)
        return self.desk.make_token(question, *self.by(who))

    @property
    def told(self) -> list[str]:
        rows = self.ledger.registry.entries_after(ACCESS_CHAIN, 0, 100)
        assert broken_links(rows, self.ledger.registry.chain_head(ACCESS_CHAIN)) == []
        return [row.entry.text for row in rows]


@pytest.fixture
def desk(empty_ledger: Ledger) -> Desk:
    return Desk(empty_ledger)


TPM, LEAD, SRE = (at_provider(FIRST, name) for name in ("tpm", "sre-lead", "sre"))


def test_without_a_file_nothing_is_configured(desk: Desk) -> None:
    assert desk.desk.stands().version is None
    assert desk.desk.check() is None
    with pytest.raises(Refusal, match="no access is configured"):
        desk.makes(TPM)
    with pytest.raises(Refusal, match="no access is configured"):
        desk.imports(TPM, confirm="feed")


@pytest.mark.parametrize(
    "who", [TPM, assert_caller("tpm"), assert_caller("user:tpm")], ids=["proven", "login", "user:"]
)
def test_the_first_file_takes_one_admin_who_stands_in_it(desk: Desk, who: Principal) -> None:
    with pytest.raises(Refusal, match="user:sre is not among user:sre-lead, user:tpm"):
        desk.imports(SRE, FIRST)
    tried = desk.imports(who, FIRST, dry_run=True)
    assert (tried.in_force, desk.book.access()) == (False, None)
    done = desk.imports(who, FIRST)
    assert (done.in_force, done.version, done.awaits) == (True, 1, False)
    standing = desk.book.access()
    assert standing is not None
    assert (standing.file, standing.how, standing.second) == (FIRST, HowImported.FIRST, "")
    assert [text.partition(" is")[2][:26] for text in desk.told] == [" in force as version 1 (fi"]


def test_after_that_roles_are_changed_by_two_admins(desk: Desk) -> None:
    desk.imports(TPM, FIRST)
    waits = desk.imports(TPM, NEXT, reason="r")
    assert (waits.in_force, waits.awaits, waits.by) == (False, True, ("user:sre-lead",))
    assert waits.changes == ("+ user:sre is approver",)
    assert f"`backstop access import --confirm {NEXT.hash}`" in waits.said
    standing = desk.book.access()
    assert standing is not None
    assert standing.hash == FIRST.hash, "nothing has changed yet"
    with pytest.raises(Refusal, match=r"user:tpm gave the command: another admin has to countersign \(user:sre-lead\)"):
        desk.imports(TPM, confirm=NEXT.hash)
    with pytest.raises(Refusal, match="user:tpm gave the command"):
        desk.imports(FIRST.at_machine("tpm"), confirm=NEXT.hash)
    with pytest.raises(Refusal, match="user:sre may not countersign: this needs the role admin"):
        desk.imports(SRE, confirm=NEXT.hash)
    with pytest.raises(Refusal, match="did not log in as a person"):
        desk.imports(assert_caller("user:sre-lead"), confirm=NEXT.hash)
    with pytest.raises(
        Refusal, match=f"'feed' is not the hash of the file that waits to be confirmed: that is {NEXT.hash}"
    ):
        desk.imports(LEAD, confirm="feed")
    done = desk.imports(LEAD, confirm=NEXT.hash)
    assert (done.in_force, done.version) == (True, 2)
    standing = desk.book.access()
    assert standing is not None
    assert (standing.by, standing.second, standing.how) == ("user:tpm", "user:sre-lead", HowImported.COUNTERSIGNED)
    assert desk.book.proposal() is None
    assert len(desk.told) == 3
    assert desk.told[-1].endswith("(countersigned), imported by user:tpm, countersigned by user:sre-lead")
    with pytest.raises(Refusal, match="is already in force"):
        desk.imports(LEAD, confirm=NEXT.hash)


def test_the_first_file_itself_says_who_imports_it(desk: Desk) -> None:
    """A login of the machine and an account at a provider are whom this file ties them to: no other is in force."""
    admins = {"to": ["user:sre", "user:tpm"], "roles": ["admin"]}
    people = [{"name": "tpm", "machine": ["root"]}, {"name": "sre", "oidc": [{"issuer": "https://i", "subject": "7"}]}]
    file = AccessFile.model_validate({"people": people, "grants": [admins]})
    names_nobody = AccessFile.model_validate({"grants": [admins]})
    root = Principal(name="user:root", human="machine:root", proof=Proof.PEER, how="this machine")
    account = Principal(name="oidc:7@https://i", human="oidc:7@https://i", proof=Proof.OIDC, how="https://i")
    tpm = Principal(name="user:tpm", human="machine:tpm", proof=Proof.PEER, how="this machine")
    assert desk.imports(account, file, dry_run=True).said == "nothing was changed: this was a dry run"
    with pytest.raises(Refusal, match="user:root is not among user:sre, user:tpm"):
        desk.imports(root, names_nobody)
    with pytest.raises(Refusal, match="machine:tpm is not among user:sre, user:tpm"):
        desk.imports(tpm, file)  # a user of the machine with the name of a person who is somebody else
    assert desk.imports(root, file).in_force


def test_of_two_files_with_one_hash_only_the_first_can_be_proposed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty-four bits of a hash are what the other admin confirms: two files that share them can be searched for."""
    desk.imports(TPM, FIRST)
    own = FIRST.hash
    monkeypatch.setattr(AccessFile, "hash", property(lambda file: own if file == FIRST else "feed" * 4))
    desk.imports(TPM, NEXT)
    desk.imports(LEAD, NEXT)
    with pytest.raises(Refusal, match="another access file already has the hash feedfeedfeedfeed"):
        desk.imports(TPM, access(grant("user:sre", "admin")))
    proposal = desk.book.proposal()
    assert proposal is not None
    assert proposal.file == NEXT


def test_who_is_no_admin_or_not_proven_changes_nothing(desk: Desk) -> None:
    desk.imports(TPM, FIRST)
    for who, why in ((SRE, "may not change roles"), (assert_caller("user:tpm"), "has not logged in")):
        with pytest.raises(Refusal, match=why):
            desk.imports(who, NEXT)
    assert desk.book.proposal() is None
    assert len(desk.told) == 1


def test_a_proposal_lasts_a_day_and_stands_in_place_of_one_version_alone(desk: Desk) -> None:
    desk.imports(TPM, FIRST)
    old = Signature(actor="user:tpm", at=LEDGER_NOW - timedelta(hours=24), key="desk/old")
    desk.book.propose(NEXT, 1, old)
    assert desk.book.proposal() is None
    with pytest.raises(Refusal, match="waits to be confirmed: no file waits"):
        desk.imports(LEAD, confirm=NEXT.hash)
    desk.book.propose(NEXT, 1, old._replace(at=LEDGER_NOW - timedelta(hours=23), key="desk/younger"))
    other = access(grant("user:research-lead", "viewer"))
    desk.imports(LEAD, other)  # in its place
    with pytest.raises(Refusal, match="waits to be confirmed"):
        desk.imports(LEAD, confirm=NEXT.hash)
    desk.imports(TPM, confirm=other.hash)
    with pytest.raises(Conflict, match="another access file came into force before this one"):
        desk.book.put_in_force(NEXT, 1, old, HowImported.ONE_PERSON)
    with pytest.raises(Conflict):
        desk.book.propose(NEXT, 1, old)


def test_with_two_person_off_one_admin_changes_roles_and_the_audit_says_so(desk: Desk) -> None:
    alone = access(two_person=False)
    desk.imports(TPM, alone)
    assert desk.imports(TPM, FIRST).in_force
    assert "two_person is off" in desk.told[0]
    assert "as version 2 (one person)" in desk.told[1]


def test_whatever_is_asked_twice_is_done_once(desk: Desk) -> None:
    first = Signature(actor="user:tpm", at=LEDGER_NOW, key="desk/1")
    for _ in range(2):
        assert desk.book.put_in_force(FIRST, 0, first, HowImported.FIRST).version == 1
    asked = first._replace(key="desk/2")
    proposal = [desk.book.propose(NEXT, 1, asked) for _ in range(2)][-1]
    confirmed = first._replace(actor="user:sre-lead", key="desk/3")
    for _ in range(2):
        version = desk.book.put_in_force(NEXT, 1, confirmed, HowImported.COUNTERSIGNED, proposal=proposal)
        assert (version.version, version.second) == (2, "user:sre-lead")
    assert len(desk.told) == 3


def test_of_two_who_change_at_once_one_is_told_to_look_again(desk: Desk) -> None:
    desk.imports(TPM, access(two_person=False))
    files = [access(grant("user:sre", role), two_person=False) for role in ("viewer", "operator", "approver")]
    ended: list[str] = []

    def change(number: int) -> None:
        by = Signature(actor="user:tpm", at=LEDGER_NOW, key=f"desk/at-once/{number}")
        try:
            desk.book.put_in_force(files[number], 1, by, HowImported.ONE_PERSON)
            ended.append("done")
        except BackstopError as error:
            ended.append(type(error).__name__)

    threads = [threading.Thread(target=change, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ended) == ["Conflict", "Conflict", "done"]


def test_a_file_that_was_changed_in_the_ledger_gives_nobody_a_right(
    desk: Desk, tool: ForeignTool, ledger: Ledger
) -> None:
    desk.imports(TPM, FIRST)
    forged = json.loads(FIRST.model_dump_json(exclude_unset=True)) | {"two_person": False}
    for document in (json.dumps(forged), "{}"):
        tool.run("UPDATE access_files SET document = ?", document)
        with pytest.raises(Stuck, match=r"is not what was imported.*access recover FILE"):
            desk.book.access()
        check = desk.desk.check()
        assert check is not None
        assert "is not what was imported" in check.wrong


def test_a_token_is_kept_as_its_hash_with_its_owner_scope_and_end(desk: Desk, tool: ForeignTool) -> None:
    desk.imports(TPM, FIRST)
    made = desk.makes(TPM)
    assert (made.owner, made.made_by, made.expires_at) == ("user:sre", "user:tpm", LEDGER_NOW + timedelta(days=30))
    found = desk.book.token_of(token_hash(SECRET + "t-1"))
    assert found is not None
    assert found.why_not(LEDGER_NOW) == ""
    assert found.why_not(LEDGER_NOW + timedelta(days=30)).startswith("token t-1 expired at")
    assert desk.book.token_of(token_hash("bst_another")) is None
    assert SECRET not in str(tool.rows("SELECT * FROM access_tokens") + tool.rows("SELECT * FROM audit"))
    again = MakeToken(name="t-1", hash=64 * "a", owner="user:sre", scope=TokenScope(roles=(Role.VIEWER,)), days=1)
    with pytest.raises(Refusal, match="there is already a token 't-1' of user:sre"):
        desk.desk.make_token(again, *desk.by(TPM))
    gone = desk.desk.revoke_token(RevokeToken(name="t-1"), *desk.by(LEAD))
    assert (gone.revoked_by, gone.revoked_at) == ("user:sre-lead", LEDGER_NOW)
    found = desk.book.token_of(token_hash(SECRET + "t-1"))
    assert found is not None
    assert "was revoked" in found.why_not(LEDGER_NOW)
    assert desk.desk.tokens(Tokens()) == ()
    assert [t.name for t in desk.desk.tokens(Tokens(ended=True))] == ["t-1"]
    desk.desk.revoke_token(RevokeToken(name="t-1"), *desk.by(TPM))  # again: it is revoked since it was
    assert desk.desk.tokens(Tokens(ended=True))[0].revoked_by == "user:sre-lead"
    assert [text.split(" ")[0] for text in desk.told] == ["access", "token", "token"]


def test_tokens_are_made_by_admins_for_who_has_a_role(desk: Desk) -> None:
    desk.imports(TPM, FIRST)
    for who, owner, why in (
        (SRE, "user:sre", "user:sre may not make a token"),
        (TPM, "user:hw-lead", "gives user:hw-lead no role by name"),
        (TPM, "service:cd", "the access file has no service service:cd: it has service:ci"),
        (TPM, "service:ci", "gives service:ci no role by name"),
    ):
        with pytest.raises(Refusal, match=why):
            desk.makes(who, owner=owner)
    with pytest.raises(BadInput, match=r"no command is named rollout\.aprove"):
        desk.makes(TPM, scope=TokenScope(roles=(Role.VIEWER,), commands=("rollout.aprove",)))
    with pytest.raises(Refusal, match="there is no token 'x'"):
        desk.desk.revoke_token(RevokeToken(name="x"), *desk.by(TPM))


def test_doctor_is_told_of_admins_of_one_person_and_of_tokens_that_end(desk: Desk) -> None:
    desk.imports(TPM, access(grant("user:sre", "operator"), two_person=False))
    desk.makes(TPM)
    check = desk.desk.check()
    assert check is not None
    assert (check.configured, check.admins, check.two_person, check.expiring) == (True, 2, False, ())
    question = MakeToken(name="soon", hash=64 * "b", owner="user:sre", scope=TokenScope(roles=(Role.VIEWER,)), days=7)
    desk.desk.make_token(question, *desk.by(TPM))
    check = desk.desk.check()
    assert check is not None
    assert check.expiring == (f"soon of user:sre, {LEDGER_NOW + timedelta(days=7):%Y-%m-%d}",)


def test_a_service_that_is_an_admin_and_its_owner_are_one(desk: Desk) -> None:
    file = access({"to": ["service:ci", "user:sre"], "roles": ["admin"]})
    desk.imports(TPM, file)
    ci = Principal(name="service:ci", proof=Proof.SERVICE)
    assert desk.imports(ci, NEXT).by == ("user:tpm", "user:sre-lead")
    with pytest.raises(Refusal, match="may be the person who gave the command"):
        desk.imports(at_provider(file, "sre"), confirm=NEXT.hash)
    with pytest.raises(Refusal, match="services never countersign"):
        desk.imports(ci, confirm=NEXT.hash)
    assert desk.imports(TPM, confirm=NEXT.hash).in_force


def test_a_token_has_no_role_that_its_owner_has_not(desk: Desk) -> None:
    """Not made without a word and then good for nothing."""
    desk.imports(TPM, access(grant("user:sre", "operator"), grant("service:ci", "member")))
    with pytest.raises(Refusal) as refused:
        desk.makes(TPM, scope=TokenScope(roles=(Role.ADMIN, Role.VIEWER)))
    sentence = (
        "user:sre does not have the role admin, so a token for them cannot have it: "
        "the access file gives them operator, viewer"
    )
    assert refused.value.message == sentence
    with pytest.raises(Refusal, match="service:ci does not have the role viewer or approver"):
        desk.makes(TPM, owner="service:ci", scope=TokenScope(roles=(Role.VIEWER, Role.MEMBER, Role.APPROVER)))
    assert desk.book.tokens() == ()
    desk.makes(TPM, scope=TokenScope(roles=(Role.VIEWER, Role.OPERATOR)))
    desk.makes(TPM, "t-2", owner="service:ci", scope=TokenScope(roles=(Role.MEMBER,)))


def test_before_a_file_goes_in_it_is_said_who_can_no_longer_read(desk: Desk) -> None:
    viewers = [grant(f"user:{name}", "viewer") for name in ("tpm", "sre-lead")]
    both, lacks_own = access(*viewers), access(viewers[1])
    assert "no admin can read" in desk.imports(TPM, FIRST, dry_run=True).warnings[0]
    assert desk.imports(assert_caller("tpm"), both, dry_run=True).warnings == ()
    desk.imports(TPM, both)
    assert desk.imports(LEAD, both, dry_run=True).warnings == ()
    for more in ({"dry_run": True}, {}):
        (said,) = desk.imports(TPM, lacks_own, **more).warnings
        assert said.startswith("after this import user:tpm can no longer read")
    (said,) = desk.imports(LEAD, confirm=lacks_own.hash).warnings
    assert said.startswith("after this import user:tpm can no longer read"), "whoever confirms it reads it too"


def test_a_worker_without_keys_waits_for_a_database_that_does_not_answer() -> None:
    with Ledger("postgresql://nobody@127.0.0.1:1/none?connect_timeout=1", patience=timedelta(seconds=1)) as away:
        refuse_without_keys(away)
