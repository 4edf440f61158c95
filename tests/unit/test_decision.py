"""Rights, cell by cell: commands x roles x bounds x whose doing it was; and the refusals' sentences."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from models.access.access_file import AccessFile
from models.access.decision import Decision, Denied, Permitted, Target, decide, who_could
from models.access.principals import Principal, Proof, asserted_principal
from models.access.rights import RIGHTS, Case, Right, Second, Where
from models.access.roles import Role
from models.access.second_persons import deed_of
from models.access.tokens import Token, TokenScope
from tests.unit.access_world import ISSUER, access, at_provider, grant

BOUNDS: dict[str, dict[str, list[str]]] = {
    "none": {},
    "this cluster": {"clusters": ["h100-*"]},
    "another cluster": {"clusters": ["a100-*", "h100-pod"]},
    "this team": {"teams": ["research"]},
    "another team": {"teams": ["evals", "resear"]},
    "this cluster and team": {"clusters": ["h100-pods"], "teams": ["res*"]},
    "this team elsewhere": {"clusters": ["a100"], "teams": ["research"]},
}
COUNTS = {
    Where.FLEET: {"none"},
    Where.CLUSTER: {"none", "this cluster"},
    Where.TEAM: {"none", "this cluster", "this team", "this cluster and team"},
    Where.ANY: set(BOUNDS),
}
"""Which bounds a role may have to count: typed by hand."""
IS_LIKE = {
    Role.VIEWER: {Role.VIEWER},
    Role.MEMBER: {Role.MEMBER},
    Role.OPERATOR: {Role.OPERATOR, Role.VIEWER},
    Role.APPROVER: {Role.APPROVER, Role.VIEWER},
    Role.ADMIN: {Role.ADMIN},
}
FIRST = {
    "somebody else": ("user:tpm", False),
    "who asks": ("user:sre", True),
    "who asks, by a service": ("service:ci", True),
    "who asks, by an account": ("oidc:sub-sre@" + ISSUER, True),
    "a name that nobody checked": ("sre", True),
    "nobody knows": ("", True),
}
"""And whether it bars who asks."""
PLACE = Target(cluster="h100-pods", team="research")


def every_right() -> list[tuple[str, frozenset[Case], Right]]:
    plain = [(key, frozenset[Case](), row) for key, row in RIGHTS.items()]
    return plain + [(key, frozenset({case}), right) for key, row in RIGHTS.items() for case, right in row.case.items()]


def allows(answer: Decision) -> bool:
    return isinstance(answer, Permitted) and answer.complete


def file_with(role: Role, bound: str) -> AccessFile:
    given = {**grant("user:sre", role.value), **BOUNDS[bound]}
    return access(given)


def possible() -> list[tuple[Role, str]]:
    """A bounded admin is refused in the file itself."""
    return [(role, bound) for role, bound in product(Role, BOUNDS) if role is not Role.ADMIN or bound == "none"]


def test_every_cell_of_commands_roles_bounds_and_second_persons() -> None:
    cells = {"allowed": 0, "denied": 0, "waiting": 0}
    files = {(role, bound): file_with(role, bound) for role, bound in possible()}
    for (key, cases, right), (role, bound), (whose, (first, bars)) in product(every_right(), files, FIRST.items()):
        target = PLACE.but(first=first, cases=cases)
        answer = decide(files[role, bound], at_provider(files[role, bound], "sre"), key, target)
        has = not IS_LIKE[role].isdisjoint(right.roles) and bound in COUNTS[right.where]
        waits = right.second in (Second.ADMIN, Second.APPROVER, Second.APPROVER_OR_BREAKER)
        barred = bars and right.second in (
            *(Second.NOT_LAUNCHER, Second.NOT_CHANGER),
            *(Second.NOT_ASKER, Second.NOT_ENTERER),
        )
        expected = "denied" if not has or barred else "waiting" if waits else "allowed"
        got = "denied" if isinstance(answer, Denied) else "allowed" if answer.complete else "waiting"
        assert got == expected, (key, cases, role, bound, whose, answer)
        cells[got] += 1
    print(f"{sum(cells.values())} cells: {cells}")
    assert sum(cells.values()) == len(every_right()) * 29 * 6
    assert min(cells.values()) > 30


@pytest.mark.parametrize("command", ["rollout.fly", "", "desk", "rollout", "ROLLOUT.APPROVE", "read.*", "*"])
def test_a_command_that_the_table_does_not_have_is_nobodys(command: str) -> None:
    file = access(grant("user:sre", *(r.value for r in Role if r is not Role.ADMIN)))
    answer = decide(file, at_provider(file, "sre"), command, PLACE)
    why = "the table of rights has no such command (docs/access.md)"
    assert answer == Denied(reason=f"nobody may give {command!r}: {why}")
    assert who_could(file, command, PLACE) == ()


@pytest.mark.parametrize("key", RIGHTS)
def test_a_name_that_nobody_checked_may_nothing_where_access_is_configured(key: str) -> None:
    file = access(grant("user:sre", "viewer", "member", "operator", "approver"))
    for name in ("user:sre", "user:tpm", "service:backstop", "service:ci"):
        answer = decide(file, asserted_principal(name), key, PLACE.but(first="user:hw-lead"))
        assert isinstance(answer, Denied)
        assert answer.reason.startswith(f"{name} has not logged in")


LEADS = (grant("user:sre", "operator", "approver"), grant("user:research-lead", "approver"))
GROUP = {"to": ["group:hw-leads"], "roles": ["approver"], "clusters": ["h100-*"]}


def told(answer: Decision) -> str:
    assert isinstance(answer, Denied)
    return answer.reason


def test_a_refusal_names_who_could() -> None:
    file = access(*LEADS, GROUP)
    sre = at_provider(file, "sre")
    assert told(decide(file, sre, "rollout.approve", PLACE.but(first="user:sre"))) == (
        "user:sre launched the rollout: another approver has to approve (user:research-lead, group:hw-leads)"
    )
    viewer = at_provider(file, "hw-lead")
    assert told(decide(file, viewer, "rollout.pause", PLACE)) == (
        "user:hw-lead may not pause for team research in h100-pods: this needs the role operator there (user:sre)"
    )
    assert told(decide(file, sre, "desk.make_token", Target())) == (
        "user:sre may not make a token: this needs the role admin for all clusters and teams (user:tpm, user:sre-lead)"
    )
    bounded = access(grant("user:sre", "viewer", clusters=["h100-*"]))
    sre = at_provider(bounded, "sre")
    all_of_them = "this needs the role viewer for all clusters and teams (nobody has it: ask an admin to grant it)"
    assert told(decide(bounded, sre, "desk.tallies", Target())) == f"user:sre may not read: {all_of_them}"
    assert told(decide(bounded, sre, "read.overview", Target())) == (
        f"user:sre may not read about all clusters: {all_of_them}"
    )
    assert told(decide(bounded, sre, "desk.why", Target(team="evals"))) == (
        "user:sre may not ask why for team evals: this needs the role viewer or member there in all clusters "
        "(nobody has it: ask an admin to grant it)"
    )
    assert told(decide(access(), at_provider(access(), "sre"), "rollout.launch", Target(cluster="h100-pods"))) == (
        "user:sre may not launch a rollout in h100-pods: this needs the role operator there "
        "(nobody has it: ask an admin to grant it)"
    )
    one = access(grant("user:sre", "approver"), grant("user:tpm", "operator"))
    tpm, launched = at_provider(one, "tpm"), Target(cluster="h100-pods", first="user:sre")
    assert told(decide(one, tpm, "rollout.approve", launched)) == (
        "user:tpm may not approve in h100-pods: this needs the role approver there "
        "(nobody else may: abort the rollout and let another operator launch a new one; then user:sre can)"
    )
    assert told(decide(one, tpm, "rollout.promote", launched)) == (
        "user:tpm may not promote in h100-pods: this needs the role approver there "
        "(only people who launched the rollout have this role: ask an admin to grant it to somebody else)"
    )
    assert told(decide(one, sre, "request.approve", Target(cluster="h100-pods", first="user:sre"))) == (
        "user:sre made the request: another approver has to approve (nobody else has the role)"
    )


def test_where_nothing_is_open_the_refusal_says_so_and_where() -> None:
    file = access(*LEADS)
    assert told(decide(file, at_provider(file, "sre"), "rollout.promote", Target(cluster="h100-typo"))) == (
        "user:sre may not promote in h100-typo: the ledger does not say who launched the rollout "
        "(nothing is open there, or it began without a login), so Backstop cannot tell that you are another person"
    )


def test_who_changed_policy_or_quotas_does_not_approve_the_plan_that_came_of_it() -> None:
    file, other = access(*LEADS), Target(cluster="h100-pods", first="user:tpm")
    sre = at_provider(file, "sre")
    assert allows(decide(file, sre, "rollout.approve", other.but(changed=("user:tpm", "user:hw-lead"))))
    answer = decide(file, sre, "rollout.approve", other.but(changed=("user:hw-lead", "user:sre")))
    assert told(answer) == (
        "user:sre changed policy or quotas since the last approved plan: another approver has to approve "
        "(user:research-lead)"
    )
    promote = decide(file, sre, "rollout.promote", other.but(changed=("user:sre",)))
    assert allows(promote), "that is asked of an approval alone"


def test_where_the_launcher_and_the_changer_are_all_approvers_the_refusal_says_the_way_out() -> None:
    file = access(*LEADS, grant("user:research-lead", "operator"))
    tangled = Target(cluster="h100-pods", first="user:sre", changed=("user:research-lead",))
    way = "(nobody else may: abort the rollout and let another operator launch a new one; then user:sre can)"
    changed = "changed policy or quotas since the last approved plan"
    for who, what in (("sre", "launched the rollout"), ("research-lead", changed)):
        answer = decide(file, at_provider(file, who), "rollout.approve", tangled)
        assert told(answer) == f"user:{who} {what}: another approver has to approve {way}"
    launched_by_the_other = tangled.but(first="user:research-lead")
    assert allows(decide(file, at_provider(file, "sre"), "rollout.approve", launched_by_the_other))


def test_one_human_who_comes_in_by_another_way_is_no_second_person() -> None:
    file = access(*LEADS)
    ways = (file.at_machine("sre"), at_provider(file, "sre"))
    assert {one.name for one in ways} == {one.human for one in ways} == {"user:sre"}
    for one, first in product(ways, ("user:sre", "service:ci", "machine:sre", f"oidc:sub-sre@{ISSUER}")):
        assert "another approver has to approve" in told(
            decide(file, one, "rollout.approve", PLACE.but(team="", first=first))
        )


def test_two_who_may_be_one_are_not_two_until_the_file_says_who_they_are() -> None:
    file = access({"to": ["group:hw-leads", "user:new"], "roles": ["approver"]})
    of_group = file.at_provider(ISSUER, "sub-9", ["hw-leads"])
    for first, two in {
        "user:sre": True,  # whose accounts at this provider the file has, and this is none of them
        f"oidc:sub-8@{ISSUER}": True,  # another account at the same provider
        "oidc:sub-8@https://other.example": False,
        "machine:new": False,
        "user:new": False,
        "sre": False,
        "service:backstop": False,
    }.items():
        answer = decide(file, of_group, "rollout.approve", Target(cluster="h100-pods", first=first))
        assert allows(answer) is two, (first, answer)
        assert two or "who may be the same person as" in told(answer)
    assert allows(decide(file, file.at_machine("new"), "rollout.approve", Target(cluster="x", first="user:sre")))


def test_groups_count_for_whom_a_provider_signed_alone() -> None:
    file = access(GROUP)
    target = Target(cluster="h100-pods", first="user:tpm")
    known = file.at_provider(ISSUER, "sub-sre", ["hw-leads"])
    assert allows(decide(file, known, "rollout.approve", target))
    for proof in (Proof.PEER, Proof.TOKEN, Proof.SERVICE):
        answer = decide(
            file,
            known.but(proof=proof),
            "rollout.approve",
            target,
            scope=TokenScope(roles=(Role.APPROVER,)) if proof is Proof.TOKEN else None,
        )
        assert isinstance(answer, Denied), proof


JOB = {"name": "job", "owner": "user:sre", "oidc": [{"issuer": ISSUER, "subject": "client-job"}]}
CROWD = {"to": ["group:robots"], "roles": ["operator", "approver", "admin"]}
"""Somebody granted a group of the provider too much: a job of CI is in it as well."""


def test_a_job_of_ci_is_no_second_person_beside_its_owner() -> None:
    file, target = access(*LEADS, CROWD, services=[JOB]), Target(cluster="h100-pods")
    job = file.at_provider(ISSUER, "client-job", ["robots"])
    assert (job.name, job.human, file.human_of(f"oidc:client-job@{ISSUER}")) == ("service:job", "", "user:sre")
    assert allows(decide(file, job, "rollout.launch", target)), "its group may launch"
    for launcher in ("service:job", f"oidc:client-job@{ISSUER}"):
        by_owner = decide(file, at_provider(file, "sre"), "rollout.approve", target.but(first=launcher))
        assert "counts as the same person as user:sre, and launched the rollout" in told(by_owner)
        assert allows(decide(file, at_provider(file, "research-lead"), "rollout.approve", target.but(first=launcher)))
    for launcher in ("user:sre", "user:research-lead"):
        assert "services never may" in told(decide(file, job, "rollout.approve", target.but(first=launcher)))
    entry = decide(file, at_provider(file, "sre"), "bringup.add", Target(cluster="new"), second=job)
    assert "service:job is a service, and services never countersign" in told(entry)


def test_a_programs_account_that_no_service_has_reads_and_commands_nothing() -> None:
    """Nobody knows its owner, who may be the person that approves what it launched."""
    file = access(*LEADS, CROWD)
    stray = file.at_provider(ISSUER, "client-job", ["robots"], program=True)
    assert file.principal_of(stray) == stray
    for key, row in RIGHTS.items():
        answer = decide(file, stray, key, PLACE.but(first="user:research-lead"))
        assert isinstance(answer, Denied) or Role.VIEWER in row.roles, key
    assert told(decide(file, stray, "rollout.launch", PLACE)) == (
        f"oidc:client-job@{ISSUER} is a program's account, which may only read until the access file lists it under a "
        "service with an owner (docs/access.md)"
    )
    assert allows(decide(file, stray, "read.status", Target(cluster="h100-pods")))
    entry = decide(file, at_provider(file, "sre"), "bringup.add", Target(cluster="new"), second=stray)
    assert "a program's account, and services never countersign" in told(entry)
    listed = access(*LEADS, CROWD, services=[JOB])
    assert listed.principal_of(stray).name == "service:job"


# --- countersigning --------------------------------------------------------------------------------


def test_what_is_countersigned_waits_and_says_for_whom() -> None:
    file = access(*LEADS)
    answer = decide(file, at_provider(file, "sre"), "bringup.add", Target(cluster="new"))
    assert answer == Permitted(roles=(Role.OPERATOR,), awaits=Second.APPROVER, by=("user:research-lead",))
    assert isinstance(answer, Permitted)
    assert answer.sentence == "it has to be countersigned by an approver, within 24 h (user:research-lead)"
    roles = decide(file, at_provider(file, "tpm"), "desk.import_access", Target())
    assert roles == Permitted(roles=(Role.ADMIN,), awaits=Second.ADMIN, by=("user:sre-lead",))


SECONDS = {
    "another admin": ("sre-lead", True),
    "who gave it": ("tpm", False),
    "an approver": ("research-lead", False),
    "nobody of the file": ("zed", False),
}


@pytest.mark.parametrize("who", SECONDS)
def test_roles_are_changed_by_two_admins(who: str) -> None:
    file, (name, counts) = access(*LEADS), SECONDS[who]
    answer = decide(file, at_provider(file, "tpm"), "desk.import_access", Target(), second=file.at_machine(name))
    assert allows(answer) is counts, answer
    assert not counts or (isinstance(answer, Permitted) and answer.second == "user:sre-lead")


def test_an_abort_with_undo_needs_an_approver_unless_the_breaker_is_open() -> None:
    file = access(*LEADS)
    sre, undo = at_provider(file, "sre"), Target(cases=frozenset({Case.UNDO}))
    waiting = decide(file, sre, "fleet.abort", undo)
    assert isinstance(waiting, Permitted)
    assert (waiting.complete, waiting.by) == (False, ("user:research-lead",))
    assert allows(decide(file, sre, "fleet.abort", undo, second=at_provider(file, "research-lead")))
    assert not allows(decide(file, sre, "fleet.abort", undo, second=file.at_machine("sre")))
    assert allows(decide(file, sre, "fleet.abort", undo.but(breaker_open=True)))
    assert allows(decide(file, sre, "fleet.abort", Target()))


def test_neither_a_service_nor_a_token_countersigns() -> None:
    file = access(*LEADS)
    sre = at_provider(file, "sre")
    ci = Principal(name="service:ci", proof=Proof.SERVICE)
    by_token = Principal(name="user:research-lead", human="user:research-lead", proof=Proof.TOKEN)
    for second in (ci, by_token, asserted_principal("user:research-lead")):
        assert isinstance(decide(file, sre, "bringup.add", Target(cluster="new"), second=second), Denied)


# --- alone -----------------------------------------------------------------------------------------


def test_in_an_emergency_an_approver_acts_alone_with_a_reason() -> None:
    file, own = access(*LEADS, grant("user:hw-lead", "operator")), Target(cluster="h100-pods", first="user:sre")
    sre, hw = at_provider(file, "sre"), at_provider(file, "hw-lead")
    alone = decide(file, sre, "rollout.approve", own, emergency=True, reason="nobody else is awake")
    assert alone == Permitted(roles=(Role.APPROVER,), emergency=True)
    assert told(decide(file, sre, "rollout.approve", own, emergency=True, reason="  ")).startswith(
        "an emergency needs a reason"
    )
    new = Target(cluster="new")
    assert allows(decide(file, sre, "bringup.add", new, emergency=True, reason="r"))
    assert told(decide(file, hw, "bringup.add", new, emergency=True, reason="r")) == (
        "user:hw-lead may not act alone: in an emergency only an approver who logged in as a person may "
        "(user:sre, user:research-lead)"
    )


def test_an_emergency_gives_nobody_a_role_and_changes_no_roles() -> None:
    file = access(*LEADS)
    research = at_provider(file, "research-lead")
    assert isinstance(decide(file, research, "rollout.launch", PLACE, emergency=True, reason="r"), Denied)
    both = access(*LEADS, grant("user:tpm", "approver"))
    answer = decide(both, at_provider(both, "tpm"), "desk.import_access", Target(), emergency=True, reason="r")
    assert isinstance(answer, Permitted)
    assert not answer.complete


def test_where_nobody_else_is_needed_an_emergency_is_none() -> None:
    file = access(*LEADS)
    answer = decide(file, at_provider(file, "sre"), "rollout.pause", Target(cluster="x"), emergency=True)
    assert answer == Permitted(roles=(Role.OPERATOR,))
    other = Target(cluster="x", first="user:tpm")
    assert decide(file, at_provider(file, "sre"), "rollout.approve", other, emergency=True) == Permitted(
        roles=(Role.APPROVER,)
    )


def test_two_person_off_lets_one_do_both_and_says_so() -> None:
    file = access(*LEADS, two_person=False)
    answer = decide(file, at_provider(file, "sre"), "rollout.approve", Target(cluster="x", first="user:sre"))
    assert answer == Permitted(roles=(Role.APPROVER,), one_person=True)
    assert decide(file, at_provider(file, "sre"), "rollout.pause", Target(cluster="x")) == Permitted(
        roles=(Role.OPERATOR,)
    )
    ci = Principal(name="service:ci", proof=Proof.SERVICE)
    assert isinstance(decide(file, ci, "rollout.approve", Target(cluster="x", first="user:tpm")), Denied)


# --- tokens and services ---------------------------------------------------------------------------


def token(owner: str, **scope: Any) -> tuple[Token, TokenScope]:
    made = "2026-01-01T00:00:00Z"
    one = Token.model_validate(
        {"name": "t", "hash": "0" * 64, "owner": owner, "scope": {"roles": list(Role), **scope}}
        | {"made_by": "user:tpm", "made_at": made, "expires_at": "2026-02-01T00:00:00Z"}
    )
    return one, one.scope


def test_a_token_counts_as_its_owner_within_its_scope() -> None:
    file = access(*LEADS, {"to": ["service:ci"], "roles": ["operator"]})
    own, all_of_it = token("user:sre")
    sre = own.principal(file)
    assert (sre.name, sre.human, sre.how) == ("user:sre", "user:sre", "token t")
    place = Target(cluster="h100-pods", first="user:tpm")
    assert allows(decide(file, sre, "rollout.approve", place, scope=all_of_it))
    assert isinstance(decide(file, sre, "rollout.approve", place.but(first="user:sre"), scope=all_of_it), Denied)
    narrow = {
        "roles": {"roles": ["viewer"]},
        "clusters": {"clusters": ["a100"]},
        "teams": {"teams": ["research"]},
        "commands": {"commands": ["rollout.a?ort", "read.*"]},
    }
    for what, scope in narrow.items():
        answer = decide(file, sre, "rollout.pause", place, scope=token("user:sre", **scope)[1])
        assert told(answer).startswith("user:sre may not pause in h100-pods: "), what
        assert "and token t must have that role too" in told(answer)
    assert allows(decide(file, sre, "rollout.abort", place, scope=token("user:sre", **narrow["commands"])[1]))
    assert isinstance(decide(file, sre, "desk.tokens", Target(), scope=all_of_it), Denied), "no more than its owner"
    assert told(decide(file, sre, "rollout.abort", place)).endswith("make a new token")


def test_a_services_token_is_nobody_and_never_approves() -> None:
    file = access(*LEADS, {"to": ["service:ci"], "roles": ["operator"]})
    ci, scope = token("service:ci")
    one = ci.principal(file)
    assert (one.name, one.human) == ("service:ci", "")
    place = Target(cluster="h100-pods", first="user:tpm")
    assert allows(decide(file, one, "rollout.launch", place, scope=scope))
    for command in ("rollout.approve", "rollout.promote", "bringup.cancel", "fleet.approve"):
        assert isinstance(decide(file, one, command, place, scope=scope), Denied), command
    assert "service:ci" not in who_could(file, "rollout.approve", place)
    assert "service:ci" in who_could(file, "rollout.launch", place)
    # What it launches is its owner's doing.
    mine = place.but(first="service:ci")
    assert told(decide(file, at_provider(file, "sre"), "rollout.approve", mine)) == (
        "service:ci counts as the same person as user:sre, and launched the rollout: another approver has to approve "
        "(user:research-lead)"
    )
    assert allows(decide(file, at_provider(file, "research-lead"), "rollout.approve", mine))


# --- who could -------------------------------------------------------------------------------------


def test_who_could_act_leaves_out_who_may_not_be_the_second_person() -> None:
    file = access(*LEADS, GROUP)
    here = Target(cluster="h100-pods")
    assert who_could(file, "rollout.approve", here) == ("user:sre", "user:research-lead", "group:hw-leads")
    assert who_could(file, "rollout.approve", here.but(first="user:sre")) == ("user:research-lead", "group:hw-leads")
    assert who_could(file, "rollout.approve", Target(cluster="a100")) == ("user:sre", "user:research-lead")
    assert who_could(file, "rollout.approve", here.but(more=("a100",))) == ("user:sre", "user:research-lead")
    assert who_could(file, "rollout.close", here.but(cases=frozenset({Case.AT_RISK}))) == (
        *("user:sre", "user:research-lead"),
        "group:hw-leads",
    )


@pytest.mark.parametrize(
    ("command", "case", "deed"),
    [
        ("fleet.launch", Case.ADOPT, "adopt a fleet rollout"),
        ("fleet.approve", None, "approve the fleet rollout"),
        ("fleet.skip", None, "skip clusters of the fleet rollout"),
        ("fleet.pace", None, "change the pace of the fleet rollout"),
        ("fleet.abort", None, "abort the fleet rollout"),
        ("fleet.abort", Case.UNDO, "abort the fleet rollout with undo"),
        ("rollout.promote", None, "promote in h100-a"),
    ],
)
def test_a_waiting_or_lone_command_is_named_in_words(command: str, case: Case | None, deed: str) -> None:
    target = Target(cluster="" if command.startswith("fleet.") else "h100-a", cases=frozenset({case} if case else ()))
    assert deed_of(command, target) == deed
