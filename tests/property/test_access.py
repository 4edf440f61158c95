"""For any access file: nothing is allowed beyond the table, more roles never allow less, and one human is never two."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.access.access_file import AccessFile, matches
from models.access.decision import Denied, Permitted, Target, decide, who_could
from models.access.principals import Principal, Proof
from models.access.rights import RIGHTS, Case, Right, Second
from models.access.roles import Role, with_included
from models.access.tokens import TokenScope
from tests.tried import examples

NAMES = ("ana", "bo", "cy", "di")
CLUSTERS, TEAMS = ("h100-a", "h100-b", "a100", ""), ("research", "evals", "")
ISSUERS = ("https://one.example", "https://two.example")
RECEIVERS = st.sampled_from([*(f"user:{n}" for n in NAMES), "group:g", "service:ci", "service:cd"])
PATTERNS = st.lists(st.sampled_from(["*", "h100-*", "?100*", "a100", "research", "e*"]), min_size=1, max_size=3)
KEYS = st.sampled_from(sorted(RIGHTS))


@st.composite
def grants(draw: st.DrawFn) -> dict[str, Any]:
    to = draw(st.lists(RECEIVERS, min_size=1, max_size=3, unique=True))
    roles = draw(st.lists(st.sampled_from(list(Role)), min_size=1, max_size=3, unique=True))
    if any(name.startswith("service:") for name in to):
        roles = [role for role in roles if role is not Role.APPROVER] or [Role.VIEWER]
    given: dict[str, Any] = {"to": to, "roles": roles, "teams": ["*"]}
    if Role.ADMIN not in roles:
        given |= {"clusters": draw(PATTERNS.map(_once)), "teams": draw(PATTERNS.map(_once))}
    return given


def _once(names: list[str]) -> list[str]:
    return list(dict.fromkeys(names))


@st.composite
def files(draw: st.DrawFn) -> AccessFile:
    """Some of the four are tied to what they come in by; the others are whoever the kernel or a provider says."""
    people = []
    for name in NAMES:
        ways = draw(st.sets(st.sampled_from(["machine", *ISSUERS])))
        if ways:
            oidc = [{"issuer": issuer, "subject": name} for issuer in ISSUERS if issuer in ways]
            people.append({"name": name, "machine": [name] * ("machine" in ways), "oidc": oidc})
    owners = draw(st.tuples(*[st.sampled_from(NAMES)] * 2))
    return AccessFile.model_validate(
        {
            "two_person": draw(st.sampled_from([True, True, True, False])),
            "people": people,
            "services": [{"name": n, "owner": f"user:{who}"} for n, who in zip(("ci", "cd"), owners, strict=True)],
            "grants": [{"to": ["user:root"], "roles": ["admin"]}, *draw(st.lists(grants(), max_size=5))],
        }
    )


@st.composite
def guises(draw: st.DrawFn, file: AccessFile, name: str | None = None) -> tuple[str, Principal, TokenScope | None]:
    """A human by their own name, and one of the ways in which they come in."""
    human = name or draw(st.sampled_from(NAMES))
    way = draw(st.sampled_from(["machine", "token", *ISSUERS]))
    if way == "machine":
        return human, file.at_machine(human), None
    if way == "token":
        scope = TokenScope(roles=tuple(draw(st.sets(st.sampled_from(list(Role)), min_size=1))))
        return human, Principal(name=f"user:{human}", human=file.human_of(f"user:{human}"), proof=Proof.TOKEN), scope
    return human, file.at_provider(way, human, draw(st.sampled_from([(), ("g",), ("g", "h")]))), None


@st.composite
def targets(draw: st.DrawFn) -> Target:
    firsts = [*(f"user:{n}" for n in NAMES), *(f"machine:{n}" for n in NAMES), "service:ci", "service:cd", "ana", ""]
    firsts += [f"oidc:{n}@{issuer}" for n in NAMES for issuer in ISSUERS]
    return Target(
        cluster=draw(st.sampled_from(CLUSTERS)),
        team=draw(st.sampled_from(TEAMS)),
        first=draw(st.sampled_from(firsts)),
        changed=tuple(draw(st.lists(st.sampled_from([f for f in firsts if f]), max_size=2))),
        cases=frozenset(draw(st.sets(st.sampled_from(list(Case)), max_size=2))),
        breaker_open=draw(st.booleans()),
    )


def rows_of(key: str, target: Target) -> tuple[Right, ...]:
    return RIGHTS[key].rights_under(target.cases)


def owner_of(file: AccessFile, name: str) -> str:
    """Return the human behind a name, as the world that the test made knows it; the code is not asked."""
    owners = {f"service:{s.name}": s.owner for s in file.services}
    bare = owners.get(name, name)
    for head in ("user:", "machine:", "oidc:"):
        bare = bare.removeprefix(head)
    return bare.partition("@")[0]


@pytest.mark.fuzzed
@settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_nothing_is_allowed_that_no_grant_of_the_file_gives(data: st.DataObject) -> None:
    file, key, target = data.draw(files()), data.draw(KEYS), data.draw(targets())
    _, who, scope = data.draw(guises(file))
    answer = decide(file, who, key, target, emergency=data.draw(st.booleans()), reason="r", scope=scope)
    if isinstance(answer, Denied):
        return
    for right in rows_of(key, target):
        groups = {f"group:{g}" for g in who.groups}
        theirs = [g for g in file.grants if {who.name, *groups} & {*g.to}]
        assert any(with_included(g.roles) & {*right.roles} for g in theirs)
        assert scope is None or with_included(scope.roles) & {*right.roles}


@pytest.mark.fuzzed
@settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_one_human_is_never_two_whatever_their_guises(data: st.DataObject) -> None:
    file, key, target = data.draw(files()), data.draw(KEYS), data.draw(targets())
    human, who, scope = data.draw(guises(file))
    second = data.draw(st.none() | guises(file, human).map(lambda one: one[1]))
    answer = decide(file, who, key, target, second=second, scope=scope)
    if not (isinstance(answer, Permitted) and answer.complete and file.two_person):
        return
    for right in rows_of(key, target):
        if right.second is Second.NONE or (right.second is Second.APPROVER_OR_BREAKER and target.breaker_open):
            continue
        assert not right.second.needs_countersign, "the same human countersigned"
        changed = target.changed if right.second is Second.NOT_CHANGER else ()
        assert human not in {owner_of(file, name) for name in (target.first, *changed)}


@pytest.mark.fuzzed
@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_another_grant_never_takes_away_what_was_allowed(data: st.DataObject) -> None:
    file, key, target = data.draw(files()), data.draw(KEYS), data.draw(targets())
    _, who, scope = data.draw(guises(file))
    more = AccessFile.model_validate(
        {**file.model_dump(exclude_unset=True), "grants": [*file.model_dump()["grants"], data.draw(grants())]}
    )
    before, after = (decide(one, who, key, target, scope=scope) for one in (file, more))
    if isinstance(before, Permitted):
        assert isinstance(after, Permitted)
        assert (before.complete, {*before.by}) <= (after.complete, {*after.by} | {*before.by})
    assert {*who_could(file, key, target)} <= {*who_could(more, key, target)}


@pytest.mark.fuzzed
@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_whoever_could_may_and_who_may_not_is_not_named(data: st.DataObject) -> None:
    file, key, target = data.draw(files()), data.draw(KEYS), data.draw(targets())
    named = who_could(file, key, target)
    for name in NAMES:
        ways = [file.at_machine(name), *(file.at_provider(issuer, name) for issuer in ISSUERS)]
        own = [one for one in ways if one.name == f"user:{name}"]
        may = [isinstance(decide(file, one, key, target), Permitted) for one in own]
        if may and target.first:
            assert set(may) == {f"user:{name}" in named}, (name, named)
    assert not [n for n in named if n.startswith("service:") and rows_of(key, target)[0].roles == (Role.APPROVER,)]


@pytest.mark.fuzzed
@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text("ab*?", max_size=12), st.text("ab", max_size=12))
def test_patterns_match_as_a_slow_reader_says(pattern: str, name: str) -> None:
    def slow(p: str, n: str) -> bool:
        if not p:
            return not n
        if p[0] == "*":
            return any(slow(p[1:], n[k:]) for k in range(len(n) + 1))
        return bool(n) and p[0] in ("?", n[0]) and slow(p[1:], n[1:])

    assert matches(pattern, name) is slow(pattern, name)
