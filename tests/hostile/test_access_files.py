"""Access files of all kinds of nonsense: refused with line, field and value, or taken and harmless."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cli.main import run
from client.inputs.access_files import read_access
from models.access.access_file import AccessFile, matches
from models.access.access_versions import changes_between, warnings_of
from models.access.decision import Permitted, Target, decide, who_could
from models.access.rights import RIGHTS
from models.errors import BadFile, BadInput
from tests.tried import examples

ADMIN = {"to": ["user:tpm"], "roles": ["admin"]}


def written(folder: Path, document: Any) -> Path:
    path = folder / "access.yaml"
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document, allow_unicode=True))
    return path


def told(folder: Path, document: Any) -> list[str]:
    path = written(folder, document)
    with pytest.raises(BadInput) as refused:
        read_access(path)
    sentences = refused.value.sentences if isinstance(refused.value, BadFile) else (refused.value.message,)
    return [text.replace(str(path), "FILE") for text in sentences]


def grants(*more: dict[str, Any], **rest: Any) -> dict[str, Any]:
    return {"grants": [ADMIN, *more], **rest}


FAULTS: dict[str, tuple[Any, str]] = {
    "empty": ("", "FILE is empty: an access file needs at least the field grants"),
    "a list": ("[]", "FILE must be a mapping with the field grants, not []"),
    "no grants": ({"two_person": True}, "FILE, line 1: grants is missing"),
    "none": ({"grants": []}, "FILE, line 1: grants must have at least 1 entry"),
    "nobody is admin": (
        {"grants": [{"to": ["user:tpm"], "roles": ["approver"]}]},
        "FILE, line 1: grants names no user as admin: give the role admin to at least one user:NAME",
    ),
    "a group is admin": (
        {"grants": [{"to": ["group:admins"], "roles": ["admin"]}]},
        "FILE, line 1: grants names no user as admin: give the role admin to at least one user:NAME",
    ),
    "an unknown role": (
        grants({"to": ["user:a"], "roles": ["root"]}),
        "FILE, line 7: grants[1].roles[0] must be 'viewer', 'member', 'operator', 'approver' or 'admin', not 'root'",
    ),
    "a role in capitals": (
        grants({"to": ["user:a"], "roles": ["Admin"]}),
        "FILE, line 7: grants[1].roles[0] must be 'viewer', 'member', 'operator', 'approver' or 'admin', not 'Admin'",
    ),
    "roles as text": (
        grants({"to": ["user:a"], "roles": "admin"}),
        "FILE, line 6: grants[1].roles must be a list, not 'admin'",
    ),
    "a bare name": (
        grants({"to": ["tpm"], "roles": ["viewer"]}),
        "FILE, line 9: grants[1].to[0] must be user:NAME, group:NAME or service:NAME, not 'tpm'",
    ),
    "nobody's name": (
        grants({"to": ["user:"], "roles": ["viewer"]}),
        "FILE, line 9: grants[1].to[0] must be user:NAME, group:NAME or service:NAME, not 'user:'",
    ),
    "backstop itself": (
        grants({"to": ["service:backstop"], "roles": ["viewer"]}),
        ("FILE, line 9: grants[1].to[0]: service:backstop is Backstop itself, which needs no role: remove it"),
    ),
    "an unknown service": (
        grants({"to": ["service:ci"], "roles": ["viewer"]}),
        "FILE, line 9: grants[1].to[0] names service:ci, which is not listed under services",
    ),
    "a bounded admin": (
        grants({"to": ["user:a"], "roles": ["admin"], "clusters": ["h100-*"]}),
        "FILE, line 8: grants[1].roles cannot limit admin to clusters h100-*: admin commands reach the whole fleet",
    ),
    "a member of nothing": (
        grants({"to": ["user:a"], "roles": ["member"]}),
        "FILE, line 6: grants[1]: teams is missing: a member acts for named teams, so list them (or '*' for all)",
    ),
    "no clusters": (
        grants({"to": ["user:a"], "roles": ["viewer"], "clusters": []}),
        "FILE, line 6: grants[1].clusters must have at least 1 entry",
    ),
    "the same twice": (
        grants({"to": ["user:a", "user:a"], "roles": ["viewer"]}),
        "FILE, line 10: grants[1].to[1]: 'user:a' is given twice",
    ),
    "two humans of one": (
        grants(people=[{"name": "a", "machine": ["x"]}, {"name": "b", "machine": ["x"]}]),
        "FILE, line 11: people[1].machine[0]: 'x' already belongs to a: remove it from one of them",
    ),
    "one account of two": (
        grants(
            people=[{"name": n, "oidc": [{"issuer": "https://i.example", "subject": "1"}]} for n in ("a", "b")],
        ),
        "FILE, line 13: people[1].oidc[0]: 1 of https://i.example already belongs to a: remove it from one of them",
    ),
    "a person's account of a service": (
        grants(
            people=[{"name": "a", "oidc": [{"issuer": "https://i.example", "subject": "1"}]}],
            services=[{"name": "ci", "owner": "user:a", "oidc": [{"issuer": "https://i.example", "subject": "1"}]}],
        ),
        "FILE, line 14: services[0].oidc[0]: 1 of https://i.example already belongs to a: remove it from one of them",
    ),
    "a human twice": (
        grants(people=[{"name": "a", "machine": ["x"]}, {"name": "a", "machine": ["y"]}]),
        "FILE, line 12: people[1].name: person 'a' is given twice",
    ),
    "a human who cannot come in": (
        grants(people=[{"name": "a"}]),
        "FILE, line 7: people[0] needs one of machine, oidc or slack: without one nobody can log in as user:a",
    ),
    "a service of nobody": (
        grants(services=[{"name": "ci"}]),
        "FILE, line 7: services[0].owner is missing",
    ),
    "a service of a service": (
        grants(services=[{"name": "ci", "owner": "service:cd"}]),
        "FILE, line 8: services[0].owner must be user:NAME, not 'service:cd'",
    ),
    "a yes that is text": (grants(two_person="no"), "FILE, line 6: two_person must be true or false, not 'no'"),
    "a misspelt switch": (
        grants(two_persons=False),
        "FILE, line 6: two_persons is not a known field (its value is false; did you mean two_person?)",
    ),
    "a number for a subject": (
        grants(people=[{"name": "a", "oidc": [{"issuer": "https://i", "subject": 7}]}]),
        "FILE, line 10: people[0].oidc[0].subject must be text, not 7 (put it in quotes)",
    ),
    "control characters": (
        grants({"to": ["user:a"], "roles": ["viewer"], "clusters": ["h\x1b[31m"]}),
        "FILE, line 7: grants[1].clusters[0] must be one line without control characters, not 'h\\x1b[31m'",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_nonsense_is_refused_with_its_place_and_value(fault: str, tmp_path: Path) -> None:
    document, sentence = FAULTS[fault]
    assert told(tmp_path, document) == [sentence]


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    document = grants(
        {"to": ["user:a"], "roles": ["boss"]},
        {"to": ["service:cx"], "roles": ["viewer"]},
        people=[{"name": "a", "machine": ["x"]}, {"name": "b", "machine": ["x"]}, {"name": "c:d", "machine": ["z"]}],
        two_person="maybe",
    )
    sentences = told(tmp_path, document)
    assert [text.split(": ")[1].split(" ")[0].rstrip(":") for text in sentences] == [
        "grants[1].roles[0]",
        "grants[2].to[0]",
        "people[1].machine[0]",
        "people[2].name",
        "two_person",
    ]


def test_a_file_of_thousands_of_faults_tells_twenty(tmp_path: Path) -> None:
    sentences = told(tmp_path, grants(*({"to": [f"user{n}"], "roles": ["viewer"]} for n in range(1500))))
    assert len(sentences) == 21
    assert sentences[-1] == "and 1480 more problems"


@pytest.mark.parametrize("given", [1, True, "user:tpm", {"to": ["user:tpm"]}])
@pytest.mark.parametrize("field", ["grants", "people", "services"])
def test_what_is_no_list_is_refused_by_its_name(field: str, given: Any, tmp_path: Path) -> None:
    assert any(field in sentence for sentence in told(tmp_path, {**grants(), field: given}))


@pytest.mark.parametrize(
    ("what", "document"),
    [
        ("grants", {"grants": [ADMIN] * 2001}),
        ("grants[1].to", grants({"to": [f"user:u{n}" for n in range(1001)], "roles": ["viewer"]})),
        ("people", grants(people=[{"name": f"p{n}", "machine": [f"p{n}"]} for n in range(10_001)])),
    ],
)
def test_a_list_that_is_too_long_is_refused(what: str, document: Any, tmp_path: Path) -> None:
    sentence = told(tmp_path, document)[0]
    assert what in sentence
    assert "must have at most" in sentence


def test_a_file_that_is_too_long_for_a_message_is_refused(tmp_path: Path) -> None:
    names = [f"user:{n:03}{'x' * 150}" for n in range(1000)]
    document = grants(*({"to": names, "roles": ["viewer"]} for _ in range(7)))
    assert told(tmp_path, document) == ["FILE is too long: an access file may have at most 1,000,000 bytes"]


def test_the_largest_file_is_read_and_asked_in_seconds(tmp_path: Path) -> None:
    people = [{"name": f"p{n}", "machine": [f"p{n}"]} for n in range(3000)]
    many = ({"to": [f"user:p{n}" for n in range(k, k + 100)], "roles": ["viewer"]} for k in range(0, 3000, 100))
    path = written(tmp_path, grants(*many, people=people))
    file = read_access(path)
    began = time.process_time()
    for _ in range(20):
        assert isinstance(decide(file, file.at_machine("p7"), "read.status", Target(cluster="x")), Permitted)
    assert len(who_could(file, "read.status", Target(cluster="x"))) == 3000
    assert time.process_time() - began < 5


PATTERNS = ["*" * 200, "*a" * 100, "?" * 200, "*a*b" * 50, "[a-z]*", "(a+)+$", "h100-\\*", "%", "**", "*?*?*", "漢*"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_pattern_takes_long_or_means_more_than_it_says(pattern: str) -> None:
    began = time.process_time()
    for name in ("a" * 200, "ab" * 100, "h100-a", "漢字", "[a-z]x", ""):
        matched = matches(pattern, name)
        if matched and "*" not in pattern and "?" not in pattern:
            assert name == pattern
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    "name", ["user:ana", "user:*", "user:'; drop table", "user:<b>", "user:漢字", "user:" + "x" * 195]
)
def test_a_strange_name_is_a_name_and_no_pattern(name: str, tmp_path: Path) -> None:
    file = read_access(written(tmp_path, grants({"to": [name], "roles": ["operator"]})))
    assert who_could(file, "rollout.pause", Target(cluster="c")) == (name,)
    other = file.at_machine("somebody")
    assert not isinstance(decide(file, other, "rollout.pause", Target(cluster="c")), Permitted)


def test_bad_files_end_with_2_and_ask_no_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, {"grants": []})
    for command in (["access", "import", str(path)], ["access", "who-can", "approve", "--file", str(path)]):
        assert run(command) == 2
        assert "grants must have at least 1 entry" in capsys.readouterr().err
    assert run(["access", "import"]) == 2
    assert run(["access", "import", str(path), "--confirm", "x"]) == 2
    assert run(["access", "import", str(tmp_path / "none.yaml")]) == 2
    assert run(["access", "recover", str(path), "--reason", "r", "--yes"]) == 2
    assert run(["access", "token", "new", "t", "--owner", "group:x", "--role", "viewer"]) == 2
    assert run(["access", "token", "new", "t", "--owner", "user:x", "--role", "boss"]) == 2


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from(["user:a", "admin", "*", "group:g"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    ["grants", "people", "services", "two_person", "to", "roles", "teams", "name", "owner", "oidc"]
)
SHAPED = st.dictionaries(FIELDS, JUNK | st.lists(st.dictionaries(FIELDS, JUNK, max_size=4), max_size=3), max_size=5)


@pytest.mark.fuzzed
@settings(
    max_examples=examples(400),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(SHAPED)
def test_whatever_is_written_is_taken_or_refused_in_words(tmp_path: Path, document: dict[str, Any]) -> None:
    path = written(tmp_path, document)
    file: AccessFile | None
    try:
        file = read_access(path)
        said = ""
    except BadInput as error:
        file, said = None, error.message
    assert not said or str(path) in said
    if file is None:
        return
    assert file.admins
    assert AccessFile.model_validate_json(file.model_dump_json(exclude_unset=True, by_alias=True)).hash == file.hash
    assert changes_between(file, file) == ()
    warnings_of(file)
    for key in RIGHTS:
        who_could(file, key, Target(cluster="c", team="t"))
