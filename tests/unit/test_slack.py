"""Slack without Slack: signatures, buttons beside words, second presses, what is escaped, and what people may."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from rich.text import Text

from activities.notices.buttons import MOST_ANSWERED, VALUE_CHARS, Act, ButtonRow, Press, blocks_of, rows_of, slack_text
from activities.notices.rendering import render
from client.slack_secret import SigningSecret, slack_checks, slack_secret_name
from models.access.access_file import AccessFile, in_slack
from models.access.access_versions import changes_between
from models.access.decision import Denied, Permitted, Target, decide
from models.errors import BadInput, Refusal
from models.notices import Notice, NoticeKind
from models.rollout.available_commands import line_of
from models.rollout.commands import CommandRequest
from models.rollout.stages import Command
from tests.e2e.slack_world import slack_signature
from tests.unit.access_world import ADMINS, PEOPLE, access, grant
from tests.unit.test_rendering import FULLEST, KINDS, notice
from web.failures import Problem
from web.settings import load_front_settings
from web.slack import messages
from web.slack.actions import _split
from web.slack.endpoint import REPLIES
from web.slack.reading import SlackPerson, read_typed
from web.slack.signed_confirmation import SECONDS, Sure, sure_of
from web.slack.signing import Signatures, signature_of

SECRET = "8f742231b10e8888abcd99yyyzzz85a5"

# --- signatures -----------------------------------------------------------------------------------

DOCUMENTED = (
    "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar"
    "&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com"
    "%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
    "&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
)
"""The example of Slack's document, with the signature that it gives."""


def test_the_example_of_slacks_document_has_the_signature_that_it_gives() -> None:
    expected = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"
    assert signature_of(SECRET, "1531420618", DOCUMENTED.encode()) == expected


@pytest.mark.parametrize("body", [b"", b"\0\xff", b"x" * 10_000, "payload=é".encode()])
def test_a_signature_is_the_hmac_of_rfc_2104(body: bytes) -> None:
    assert signature_of(SECRET, "1", body) == slack_signature(SECRET, "1", body)


def headers(at: float, body: bytes) -> dict[str, str]:
    stamp = str(int(at))
    return {"x-slack-request-timestamp": stamp, "x-slack-signature": slack_signature(SECRET, stamp, body)}


def test_a_request_is_taken_once_within_its_time() -> None:
    now = [1_700_000_000.0]
    signatures = Signatures(lambda: SECRET, lambda: now[0])
    first = headers(now[0] + 290, b"a")
    assert signatures.check(first, b"a") != signatures.check(headers(now[0], b"b"), b"b")
    for later in (0.0, 100.0, 289.0, 580.0):
        now[0] = 1_700_000_000.0 + later
        with pytest.raises(Problem, match="handled before") as told:
            signatures.check(first, b"a")
        assert told.value.status == 409
    now[0] += 100
    with pytest.raises(Problem, match="more than 5 minutes"):
        signatures.check(first, b"a")


def test_a_renewed_secret_counts_at_once() -> None:
    secret = [SECRET]
    signatures = Signatures(lambda: secret[0], lambda: 1e9)
    secret[0] = "another-secret-of-32-characters!"
    with pytest.raises(Problem, match="not signed"):
        signatures.check(headers(1e9, b""), b"")


# --- buttons and words ----------------------------------------------------------------------------


def acts(one: Notice) -> list[str]:
    return [press.act.value for row in rows_of(one) for press in row.presses]


@pytest.mark.parametrize("audience", ["team-a", "capacity-owners"])
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("stage", ["", "planned", "buffered", "enforced", "monitored"])
@pytest.mark.parametrize("kind", KINDS)
def test_there_is_a_button_for_what_the_words_say_can_be_answered(
    kind: NoticeKind, stage: str, ends: bool, audience: str
) -> None:
    one = notice(kind, **{**FULLEST, "stage": stage, "audience": audience, "facts": {"ends": True} if ends else {}})
    _, body = render(one)
    assert ("ack" in acts(one)) == ("backstop ack h100-a --team team-a" in body)
    assert ("object" in acts(one)) == ("backstop object h100-a --team team-a" in body)


def approving(plan: str = "0123456789abcdef") -> dict[str, Any]:
    line = line_of("h100 a", Command.APPROVE, CommandRequest(actor="tpm", plan_hash=plan))
    return {"commands": [{"does": "Lift it", "line": "backstop resume x"}, {"does": "Approve the plan", "line": line}]}


def test_an_owner_approves_the_plan_that_the_message_names() -> None:
    one = notice(NoticeKind.HELD, audience="tpm", owner="tpm", facts=approving())
    ((_, presses),) = rows_of(one)
    assert presses[0] == Press(act=Act.APPROVE, cluster="h100-a", plan="0123456789abcdef")
    assert "--plan 0123456789abcdef" in render(one)[1]
    assert acts(notice(NoticeKind.HELD, audience="tpm", owner="tpm")) == ["show"]
    assert acts(notice(NoticeKind.REQUEST, facts={"to_owner": True, "commands": ["backstop request approve r1"]})) == []


def test_a_rehearsal_has_nothing_to_press() -> None:
    assert rows_of(notice(NoticeKind.PLANNED, shadow=True)) == ()


def together(*notices: Notice) -> Notice:
    documents = [one.model_dump(mode="json", exclude={"contacts"}) for one in notices]
    return notice(NoticeKind.DIGEST, facts={"notices": documents})


def test_of_several_notices_those_can_be_answered_that_still_ask() -> None:
    def planned(number: int) -> Notice:
        return notice(NoticeKind.PLANNED, key=f"c{number}/000001/planned", cluster=f"c{number}")

    past = notice(NoticeKind.PLANNED, key="a/000001/planned", cluster="a")
    now = notice(NoticeKind.MONITORED, key="a/000002/monitored", cluster="a")
    many = together(past, now, *(planned(n) for n in range(MOST_ANSWERED + 3)))
    rows = rows_of(many)
    assert [row.cluster for row in rows] == [f"c{n}" for n in range(MOST_ANSWERED + 3)]
    blocks = blocks_of(rows)
    assert len([b for b in blocks if b["type"] == "actions"]) == MOST_ANSWERED
    assert blocks[-1]["text"]["text"].startswith("3 more notices can be answered: send /backstop status CLUSTER")
    assert len(blocks) <= 50
    assert len({b["block_id"] for b in blocks if b["type"] == "actions"}) == MOST_ANSWERED


def test_no_name_becomes_markup_and_no_value_is_too_long() -> None:
    evil = "<!channel> & <https://evil.example|here>"
    rows = (ButtonRow(evil, (Press(act=Act.SHOW, cluster=evil),)), ButtonRow("b", (Press(act=Act.SHOW, cluster="b"),)))
    shown = json.dumps([{**block, "elements": []} for block in blocks_of(rows)])
    assert "<" not in shown
    longest = "é" * 200
    press = Press(act=Act.OBJECT, cluster=longest, team=longest, plan="f" * 64)
    assert len(press.value) <= VALUE_CHARS
    sure = Sure(press=press, workspace="T" * 32, user="U" * 32, until=1, back="https://hooks.slack.com/" + "x" * 200)
    assert len(sure.sign(SECRET)) <= VALUE_CHARS
    printed = messages.print_blocks([Text(f"a ``` b <!here> {evil}")])
    assert printed[0]["text"]["text"].count("```") == 2
    assert "<" not in printed[0]["text"]["text"]


@pytest.mark.parametrize("text", ["&" * 9000, "x" * 9000, "x" * 2999 + "<" * 2000, "é<" * 5000])
def test_a_sentence_fits_its_block_once_it_is_escaped(text: str) -> None:
    shown = messages.plain_block(text)["text"]["text"]
    assert 1000 < len(shown) <= 3000
    assert shown.endswith("…")
    assert slack_text(text).startswith(shown[:-1])


def test_what_is_long_is_cut_where_it_says_so() -> None:
    blocks = messages.print_blocks([Text("\n".join(f"line {n} " + "x" * 60 for n in range(1000)))])
    assert all(len(block["text"]["text"]) <= 3000 for block in blocks)
    lines = sum(len(block["text"]["text"].splitlines()) for block in blocks[:-1])
    assert blocks[-1]["text"]["text"] == f"{1000 - lines} more lines are left out here."


# --- the second press -----------------------------------------------------------------------------

ANA = SlackPerson("T1", "U1")
ASKED = Sure(press=Press(act=Act.APPROVE, cluster="a", plan="ab"), workspace="T1", user="U1", until=1000 + SECONDS)


def test_the_second_press_is_of_whom_we_asked_and_in_time() -> None:
    value = ASKED.sign(SECRET)
    assert sure_of(value, SECRET, ANA, 1000) == ASKED
    with pytest.raises(Refusal, match="somebody else"):
        sure_of(value, SECRET, SlackPerson("T1", "U2"), 1000)
    with pytest.raises(Refusal, match="somebody else"):
        sure_of(value, SECRET, SlackPerson("T2", "U1"), 1000)
    with pytest.raises(Refusal, match="more than 15 minutes"):
        sure_of(value, SECRET, ANA, 1001 + SECONDS)


@pytest.mark.parametrize(
    "change", [lambda v: "", lambda v: "é" * 100, lambda v: v[64:], lambda v: v.replace('"a"', '"b"')]
)
def test_a_second_press_that_we_did_not_ask_for_is_none(change: Any) -> None:
    """Anybody who knows a webhook's address can send a button with any value."""
    with pytest.raises(BadInput, match="not from Backstop"):
        sure_of(change(ASKED.sign(SECRET)), SECRET, ANA, 1000)
    with pytest.raises(BadInput, match="not from Backstop"):
        sure_of(ASKED.sign("another secret of this length ok"), SECRET, ANA, 1000)


# --- what is typed --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words", "rest"),
    [
        ("", [], ""),
        ("object \"h100 a\" research don't: we can't", ["object", "h100 a", "research"], "don't: we can't"),
        ('object “h100 a” r it says "no"', ["object", "h100 a", "r"], 'it says "no"'),
        ('why "open', ["why", '"open'], ""),
        ("  why   x  ", ["why", "x"], ""),
    ],
)
def test_words_are_divided_and_a_reason_stays_as_it_was_typed(text: str, words: list[str], rest: str) -> None:
    assert _split(text, 3) == (words, rest)


HOOKS = "https://hooks.slack.com"


@pytest.mark.parametrize(
    "url",
    [
        *("", HOOKS, f"{HOOKS}.evil.example/a", f"{HOOKS}@evil.example/a", f"{HOOKS}:443@evil.example/a"),
        *(f"{HOOKS}\\@evil.example/", f"{HOOKS}/a b", f"{HOOKS}/é", f"{HOOKS}/\r\nhost: x", f"{HOOKS}/" + "x" * 500),
        *("http://hooks.slack.com/a", "https://evil.example/https://hooks.slack.com/", "//hooks.slack.com/a"),
    ],
)
def test_an_answer_goes_to_slack_and_nowhere_else(url: str) -> None:
    whole = {"user_id": "U1", "team_id": "T1", "text": "help", "response_url": f"{HOOKS}/commands/T1/1/x"}
    assert read_typed(whole, REPLIES).reply_at == whole["response_url"]
    with pytest.raises(BadInput, match="does not lead to Slack"):
        read_typed({**whole, "response_url": url}, REPLIES)


# --- a notice that was answered -------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"attachments": "x"},
        {"attachments": [{}, {}]},
        {"attachments": [{"text": 7}, {"blocks": []}]},
        {"attachments": [{"text": "a"}, {"blocks": 7}]},
        {"attachments": [{"text": "a"}]},
        {"attachments": [1, 2]},
    ],
)
def test_a_message_that_no_worker_wrote_is_left_alone(message: dict[str, Any]) -> None:
    assert messages.answered_notice(message) is None


def test_rubbish_between_our_blocks_is_left_out() -> None:
    ours = blocks_of((ButtonRow("a", (Press(act=Act.SHOW, cluster="a"),)),))
    rubbish = [
        7,
        {"type": "actions", "elements": [7]},
        {"type": "actions", "elements": [{"value": "x"}]},
        {"type": "x"},
    ]
    found = messages.answered_notice({"attachments": [{"text": "a <!here>"}, {"blocks": [*rubbish, *ours]}]})
    assert found is not None
    assert found.rows == (ButtonRow("a", (Press(act=Act.SHOW, cluster="a"),)),)
    assert found.words["text"] == "a &lt;!here&gt;"


# --- who somebody is, and what they may -----------------------------------------------------------

WITH_SLACK = [{**PEOPLE[2], "slack": [{"workspace": "T1", "user": "U1"}, {"workspace": "E2", "user": "W2"}]}, PEOPLE[0]]


def file_of(**more: Any) -> AccessFile:
    grants = [ADMINS, grant("user:sre", "approver", "member", "operator"), grant("user:tpm", "operator")]
    return AccessFile.model_validate({"people": WITH_SLACK, "grants": grants, **more})


def test_a_slack_user_is_the_person_who_claims_it_and_else_nobody() -> None:
    file = file_of()
    assert {file.at_slack("T1", "U1").name, file.at_slack("E2", "W2").name} == {"user:sre"}
    for workspace, user in (("T1", "W2"), ("E2", "U1"), ("T1", "U2"), ("", ""), ("T1", "u1")):
        principal = file.at_slack(workspace, user)
        assert principal.name == f"slack:{user}@{workspace}"
        assert isinstance(decide(file, principal, "rollout.ack", Target(cluster="a", team="t")), Denied)
        assert isinstance(decide(file, principal, "read.status", Target(cluster="a")), Denied)
    assert file.human_of("slack:U1@T1") == "user:sre"
    assert not file.are_surely_two("user:sre", file.human_of("slack:U1@T1"))


TO_APPROVE = Target(cluster="a", first="user:tpm")


def test_slack_gives_no_role_and_takes_those_that_the_file_does_not_let_through() -> None:
    default, all_, none = file_of(), file_of(slack_roles=["viewer", "member", "approver"]), file_of(slack_roles=[])
    ack, there = "rollout.ack", Target(cluster="a", team="t")
    assert isinstance(decide(default, default.at_slack("T1", "U1"), ack, there), Permitted)
    assert isinstance(decide(none, none.at_slack("T1", "U1"), ack, there), Denied)
    refused = decide(default, default.at_slack("T1", "U1"), "rollout.approve", TO_APPROVE)
    assert isinstance(refused, Denied)
    assert "does not let people use it from Slack (slack_roles)" in refused.reason
    assert isinstance(decide(all_, all_.at_slack("T1", "U1"), "rollout.approve", TO_APPROVE), Permitted)
    assert isinstance(decide(all_, all_.at_slack("T1", "U1"), "rollout.pause", Target(cluster="a")), Denied)
    own = decide(all_, all_.at_slack("T1", "U1"), "rollout.approve", TO_APPROVE.but(first="user:sre"))
    assert isinstance(own, Denied), "the human behind counts, whichever way they come in"


def test_who_comes_from_slack_is_no_second_person_and_acts_not_alone() -> None:
    file = file_of(slack_roles=["viewer", "member", "approver", "operator"])
    tpm = file.at_machine("tpm")
    second = decide(file, tpm, "bringup.add", Target(cluster="a"), second=file.at_slack("T1", "U1"))
    assert isinstance(second, Denied)
    assert "did not log in as a person" in second.reason
    alone = decide(
        file, file.at_slack("T1", "U1"), "rollout.approve", TO_APPROVE.but(first="user:sre"), emergency=True, reason="x"
    )
    assert isinstance(alone, Denied)
    assert "may not act alone" in alone.reason


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"slack_roles": ["admin"]}, "cannot have admin"),
        ({"slack_roles": ["viewer", "viewer"]}, "is given twice"),
        ({"people": [{"name": "a", "slack": [{"workspace": "T1", "user": "u1"}]}]}, "user"),
        ({"people": [{"name": "a", "slack": [{"workspace": "acme", "user": "U1"}]}]}, "workspace"),
        (
            {"people": [{"name": n, "slack": [{"workspace": "T1", "user": "U1"}]} for n in ("a", "b")]},
            "U1 of T1 already belongs to a",
        ),
    ],
)
def test_a_file_that_says_it_otherwise_is_refused(more: dict[str, Any], why: str) -> None:
    with pytest.raises((ValidationError, BadInput), match=why):
        access(**{"people": [], **more})


def test_a_change_of_slack_is_told_and_a_file_without_it_has_the_hash_that_it_had() -> None:
    plain, mapped = access(), access(people=[*PEOPLE[1:], {**PEOPLE[0], "slack": [{"workspace": "T1", "user": "U1"}]}])
    assert any("U1 in Slack workspace T1" in line for line in changes_between(plain, mapped))
    wider = access(slack_roles=["member", "approver"])
    assert changes_between(plain, wider) == ("+ roles that people may use from Slack: approver, member",)
    assert access(slack_roles=["viewer", "member"]).hash == plain.hash
    assert mapped.hash != plain.hash
    assert "slack" not in plain.model_dump_json(), "an earlier worker reads it as it did"
    assert AccessFile.model_validate_json(mapped.model_dump_json()) == mapped
    assert AccessFile.model_validate_json(wider.model_dump_json()) == wider


def test_at_the_front_nobody_is_known_before_the_file_is_asked() -> None:
    assert in_slack("T1", "U1").name == "slack:U1@T1"
    assert in_slack("T1", "U1").proof == "slack"


# --- settings -------------------------------------------------------------------------------------


def test_the_secret_is_given_by_its_name_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert slack_secret_name("") == ""
    assert slack_secret_name(" secret:slack ") == "slack"
    with pytest.raises(BadInput, match="BACKSTOP_SLACK_SIGNING_SECRET") as told:
        slack_secret_name(SECRET)
    assert SECRET not in told.value.message
    monkeypatch.setenv("BACKSTOP_SLACK_SIGNING_SECRET", "secret:slack")
    monkeypatch.setenv("BACKSTOP_SECRETS", str(tmp_path))
    (check,) = slack_checks()
    assert not check.ok
    assert "secret:slack cannot be read from the front's folder of secrets" in check.text
    (tmp_path / "slack").write_text("short\n")
    (check,) = slack_checks()
    assert not check.ok
    assert "does not hold a signing secret" in check.text
    assert "short" not in check.text
    (tmp_path / "slack").write_text(f"{SECRET}\n")
    (check,) = slack_checks()
    assert check.ok
    found = load_front_settings().slack
    assert isinstance(found, SigningSecret)
    assert found.read() == SECRET
    assert SECRET not in repr(load_front_settings())
    monkeypatch.delenv("BACKSTOP_SLACK_SIGNING_SECRET")
    assert slack_checks() == []
    assert load_front_settings().slack is None


@pytest.mark.parametrize("text", ["http://slack.example", "https://a/b", "slack.example", "https://a@b"])
def test_answers_go_over_tls_or_stay_on_this_machine(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKSTOP_SLACK_REPLIES", text)
    with pytest.raises(BadInput, match="BACKSTOP_SLACK_REPLIES"):
        load_front_settings()
    monkeypatch.setenv("BACKSTOP_SLACK_REPLIES", "http://127.0.0.1:8080, https://gateway.example")
    assert load_front_settings().slack_replies == ("http://127.0.0.1:8080", "https://gateway.example")
