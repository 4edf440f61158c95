"""Rubbish for the routes that Slack calls: each is one sentence and a status, nothing is passed on, and none is obeyed.

The front's Temporal is away, so whatever got past the walls would say so at the address where Slack takes answers.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from temporalio.client import Client

from client.connection import TemporalTarget
from client.slack_secret import SigningSecret
from models.errors import Unavailable
from tests.e2e.slack_world import SECRET, WORKSPACE, slack_signature
from tests.integration.notice_servers import Web, web_server
from tests.waiting import PATIENCE
from web import metrics
from web.callers import Callers
from web.front import Front
from web.ledger_rights import LedgerRights
from web.limits import Rate
from web.server import listening
from web.settings import Address, FrontSettings
from web.slack import metrics as slack_metrics
from web.slack.endpoint import SlackTerms
from web.slack.reading import MOST_BYTES
from web.temporal_connection import Doors

FORM = "application/x-www-form-urlencoded"
INTERACTIVE, COMMAND = "/slack/interactive", "/slack/command"
NOW = 1_767_225_600.0


@pytest.fixture
def web() -> Iterator[Web]:
    with web_server() as server:
        yield server


async def nowhere() -> tuple[Client, TemporalTarget]:
    raise Unavailable("nothing is passed on here")


def stopped_doors() -> Doors:
    """Return doors whose clock stands still, so that a signature grows no older while a test runs."""
    return Doors(nowhere, now=lambda: datetime.fromtimestamp(NOW, UTC))


@asynccontextmanager
async def front_at(home: Path, web: Web, rate: Rate | None = None) -> AsyncIterator[httpx.AsyncClient]:
    (home / "signing").write_text(SECRET)
    doors = stopped_doors()
    terms = SlackTerms(SigningSecret("signing", home), (f"http://127.0.0.1:{web.port}",))
    rate = rate or Rate(10_000, 10_000)
    front = Front(doors, Callers(), rights=LedgerRights(doors), rate=rate, slack=terms)
    settings = FrontSettings(socket=None, listen=Address("127.0.0.1", 0))
    async with listening(front, settings, {}) as (url,), httpx.AsyncClient(base_url=url, timeout=60) as client:
        yield client


@pytest.fixture
async def http(tmp_path: Path, web: Web) -> AsyncIterator[httpx.AsyncClient]:
    async with front_at(tmp_path, web) as client:
        yield client


def signed(body: bytes, at: float = 0.0, secret: str = SECRET, kind: str = FORM) -> dict[str, str]:
    stamp = str(int(NOW + at))
    return {
        "content-type": kind,
        "x-slack-request-timestamp": stamp,
        "x-slack-signature": slack_signature(secret, stamp, body),
    }


def one_sentence(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    detail = str(answer.json()["detail"])
    assert "\n" not in detail
    assert 0 < len(detail) < 1500
    assert "Traceback" not in answer.text
    assert SECRET not in answer.text
    return detail


def form(**fields: str) -> bytes:
    return urlencode(fields).encode()


def payload(web: Web, **more: Any) -> dict[str, Any]:
    return {
        "type": "block_actions",
        "team": {"id": WORKSPACE},
        "user": {"id": "U1", "team_id": WORKSPACE},
        "response_url": f"http://127.0.0.1:{web.port}/actions/1",
        "actions": [{"type": "button", "action_id": "backstop.ack", "value": '{"act":"ack","cluster":"a","team":"t"}'}],
        **more,
    }


# --- who sent it ----------------------------------------------------------------------------------------

BODY = form(user_id="U1", team_id=WORKSPACE, text="help", response_url="https://hooks.slack.com/commands/1")
FORGED = [
    pytest.param(dict, "the request has no valid X-Slack-Request-Timestamp and X-Slack-Signature", id="unsigned"),
    pytest.param(
        lambda: signed(BODY, secret="another" * 5),
        "the request is not signed with this app's signing secret",
        id="forged",
    ),
    pytest.param(
        lambda: signed(BODY + b"x"), "the request is not signed with this app's signing secret", id="of-another-body"
    ),
    pytest.param(lambda: {**signed(BODY), "x-slack-signature": "v0="}, "the request has no valid X-Slack", id="empty"),
    pytest.param(
        lambda: {**signed(BODY), "x-slack-signature": "v1=" + "0" * 64},
        "the request has no valid X-Slack",
        id="another-version",
    ),
    pytest.param(
        lambda: {**signed(BODY), "x-slack-request-timestamp": "²"}, "the request has no valid X-Slack", id="no-number"
    ),
    pytest.param(
        lambda: {**signed(BODY), "x-slack-request-timestamp": "-1"}, "the request has no valid X-Slack", id="negative"
    ),
    pytest.param(
        lambda: {**signed(BODY), "x-slack-request-timestamp": "9" * 400},
        "the request has no valid X-Slack",
        id="endless",
    ),
]


@pytest.mark.parametrize("path", [INTERACTIVE, COMMAND])
@pytest.mark.parametrize(("headers", "why"), FORGED)
async def test_what_slack_did_not_sign_is_nobodys(
    http: httpx.AsyncClient, web: Web, path: str, headers: Callable[[], dict[str, str]], why: str
) -> None:
    raw = [(k.encode(), v.encode()) for k, v in {"content-type": FORM, **headers()}.items()]
    answer = await http.post(path, content=BODY, headers=raw)
    assert why in one_sentence(answer, 401)
    assert web.posts() == []


@pytest.mark.parametrize("at", [-301, -100_000, 301, 1e9])
async def test_what_is_old_or_of_the_future_is_nobodys(http: httpx.AsyncClient, at: float) -> None:
    answer = await http.post(COMMAND, content=BODY, headers=signed(BODY, at))
    assert "more than 5 minutes" in one_sentence(answer, 401)


@pytest.mark.parametrize("at", [-300, 300])
async def test_a_clock_that_is_a_little_off_is_believed(http: httpx.AsyncClient, web: Web, at: float) -> None:
    body = typed(web, "help")
    assert (await http.post(COMMAND, content=body, headers=signed(body, at))).status_code == 200


# --- what it says ---------------------------------------------------------------------------------------


def typed(web: Web, text: str, **more: str) -> bytes:
    fields = {"user_id": "U1", "team_id": WORKSPACE, "text": text}
    return form(**{**fields, "response_url": f"http://127.0.0.1:{web.port}/commands/1", **more})


BAD_PAYLOADS: list[tuple[Any, str]] = [
    ("{", "payload: "),
    ("null", "payload: "),
    ("[]", "payload: "),
    ("7", "payload: "),
    ("[" * 50_000, "payload: "),
    ({"type": "view_submission"}, "'view_submission' is not supported"),
    ({"type": 7}, "payload: type"),
    ({"type": "x" * 5000}, "payload: type"),
    ({"actions": []}, "payload: actions"),
    ({"actions": "all"}, "payload: actions"),
    ({"actions": [{"type": "button", "action_id": 7}]}, "payload: actions"),
    ({"actions": [{"type": "button", "action_id": "a", "value": "x" * 2001}]}, "payload: actions"),
    ({"actions": [{"type": "datepicker", "action_id": "a"}]}, "'datepicker' is not a button"),
    ({"actions": [{"type": "button", "action_id": "a"}] * 2}, "payload: actions"),
    ({"user": "U1"}, "payload: user"),
    ({"user": {"id": ""}}, "payload: user"),
    ({"user": {"id": "<!channel>"}}, "payload: user"),
    ({"user": {"id": "U1@T0001TEAM"}}, "payload: user"),
    ({"user": {"id": ["U1"]}}, "payload: user"),
    ({"state": {"values": 7}}, "payload: state"),
    ({"message": "words"}, "payload: message"),
    ({"response_url": 7}, "payload: response_url"),
    ({"response_url": ""}, "response_url does not lead to Slack"),
    ({"response_url": "https://hooks.slack.com.evil.example/a"}, "response_url does not lead to Slack"),
    ({"response_url": "https://hooks.slack.com@evil.example/a"}, "response_url does not lead to Slack"),
    ({"response_url": "http://169.254.169.254/latest"}, "response_url does not lead to Slack"),
    ({"response_url": "https://hooks.slack.com\\@evil.example/"}, "response_url does not lead to Slack"),
]


@pytest.mark.parametrize(("given", "why"), BAD_PAYLOADS, ids=range(len(BAD_PAYLOADS)))
async def test_a_payload_of_another_shape_is_refused_in_a_sentence(
    http: httpx.AsyncClient, web: Web, given: Any, why: str
) -> None:
    text = given if isinstance(given, str) else json.dumps({**payload(web), **given})
    body = form(payload=text)
    answer = await http.post(INTERACTIVE, content=body, headers=signed(body))
    assert why in one_sentence(answer, 422)
    assert web.posts() == []


@pytest.mark.parametrize(
    ("body", "kind", "status", "why"),
    [
        (b"", FORM, 422, "the form has no payload"),
        (b"payload=", FORM, 422, "the form has no payload"),
        (b"payload=%ff%fe", FORM, 400, "its fields are not valid text"),
        (b"\xff\xfe", FORM, 400, "its fields are not valid text"),
        (b"a=1&" * 200, FORM, 400, "its fields are not valid text"),
        (b'{"payload": {}}', "application/json", 415, "Slack sends application/x-www-form-urlencoded"),
        (b"payload=" + b"x" * MOST_BYTES, FORM, 413, f"at most {MOST_BYTES} bytes"),
    ],
)
async def test_a_body_of_another_kind_is_refused_in_a_sentence(
    http: httpx.AsyncClient, body: bytes, kind: str, status: int, why: str
) -> None:
    answer = await http.post(INTERACTIVE, content=body, headers=signed(body, kind=kind))
    assert why in one_sentence(answer, status)


async def test_who_types_without_ids_is_nobody(http: httpx.AsyncClient, web: Web) -> None:
    for more in ({"user_id": ""}, {"user_id": "<@U1>"}, {"team_id": "T1\n"}, {"user_id": "U" * 40}):
        body = typed(web, "help", **more)
        answer = await http.post(COMMAND, content=body, headers=signed(body))
        assert "ids of Slack" in one_sentence(answer, 422)


async def test_other_places_and_ways_of_asking_are_told_apart(http: httpx.AsyncClient) -> None:
    assert "this address answers only POST" in one_sentence(await http.get(INTERACTIVE), 405)
    assert "Slack must send its requests to" in one_sentence(await http.post("/slack/events", content=b""), 404)
    assert "Slack must send its requests to" in one_sentence(await http.post("/slack/command/more", content=b""), 404)


async def test_slack_may_look_whether_somebody_listens(http: httpx.AsyncClient, web: Web) -> None:
    body = form(ssl_check="1", token="x")
    assert (await http.post(COMMAND, content=body, headers=signed(body))).status_code == 200
    assert web.posts() == []


# --- where nobody answers -------------------------------------------------------------------------------


async def test_where_no_worker_answers_that_is_said_and_not_that_nobody_is_known(
    http: httpx.AsyncClient, web: Web
) -> None:
    body = form(payload=json.dumps(payload(web)))
    assert (await http.post(INTERACTIVE, content=body, headers=signed(body))).status_code == 200
    (answer,) = web.posts("/actions")
    assert answer.json["text"].startswith("Nothing was done: no worker answers")
    assert answer.json["response_type"] == "ephemeral"


async def test_an_answer_that_slack_does_not_take_is_tried_again_and_not_for_ever(
    http: httpx.AsyncClient, web: Web, caplog: pytest.LogCaptureFixture
) -> None:
    """Its address is said nowhere: whoever has it speaks in the channel."""
    caplog.set_level(logging.DEBUG)
    web.statuses["/actions"] = 302
    body = form(payload=json.dumps(payload(web)))
    assert (await http.post(INTERACTIVE, content=body, headers=signed(body))).status_code == 200
    assert [post.path for post in web.posts()] == ["/actions/1", "/actions/1"]
    assert "an answer did not reach Slack: HTTP 302" in caplog.text
    assert "/actions/1" not in caplog.text


async def test_without_its_secret_the_front_takes_nothing(tmp_path: Path, web: Web) -> None:
    doors = stopped_doors()
    front = Front(
        doors, Callers(), slack=SlackTerms(SigningSecret("gone", tmp_path), (f"http://127.0.0.1:{web.port}",))
    )
    settings = FrontSettings(socket=None, listen=Address("127.0.0.1", 0))
    body = typed(web, "help")
    async with listening(front, settings, {}) as (url,), httpx.AsyncClient(base_url=url, timeout=PATIENCE) as http:
        answer = await http.post(COMMAND, content=body, headers=signed(body))
        assert "cannot read Slack's signing secret" in one_sentence(answer, 503)
        (tmp_path / "gone").write_text(SECRET)
        body = typed(web, "help", trigger_id="2")
        answer = await http.post(COMMAND, content=body, headers=signed(body))
        assert answer.status_code == 200
        assert "no access file is in force, so Backstop knows nobody in Slack" in answer.json()["text"]


async def test_a_front_that_takes_nothing_from_slack_has_no_such_place(tmp_path: Path) -> None:
    settings = FrontSettings(socket=None, listen=Address("127.0.0.1", 0))
    front = Front(Doors(nowhere), Callers())
    async with listening(front, settings, {}) as (url,), httpx.AsyncClient(timeout=PATIENCE) as http:
        answer = await http.post(f"{url}{COMMAND}", content=BODY, headers=signed(BODY))
        assert answer.status_code in (401, 403, 404)


async def test_one_user_cannot_hold_up_the_others(tmp_path: Path, web: Web) -> None:
    async with front_at(tmp_path, web, Rate(0.001, 3)) as http:
        found = []
        for number in range(4):
            body = typed(web, "help", trigger_id=str(number))
            found.append((await http.post(COMMAND, content=body, headers=signed(body))).status_code)
        assert found == [200, 200, 200, 429]
        body = typed(web, "help", user_id="U2")
        assert (await http.post(COMMAND, content=body, headers=signed(body))).status_code == 200


# --- what is counted of it ------------------------------------------------------------------------------


class Counted:
    """The metrics that a reader of the SDK gets, by instrument and labels."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._reader = InMemoryMetricReader()
        meter = MeterProvider([self._reader]).get_meter("test")
        monkeypatch.setattr(slack_metrics, "_slack", meter.create_counter("slack"))
        monkeypatch.setattr(slack_metrics, "_replies", meter.create_counter("replies"))
        monkeypatch.setattr(metrics, "_seconds", meter.create_histogram("seconds"))

    def of(self, name: str) -> dict[tuple[str, ...], int]:
        read = json.loads(self._reader.get_metrics_data().to_json())  # type: ignore[union-attr]
        return {
            tuple(point["attributes"].values()): point.get("value", point.get("count"))
            for resource in read["resource_metrics"]
            for scope in resource["scope_metrics"]
            for metric in scope["metrics"]
            if metric["name"] == name
            for point in metric["data"]["data_points"]
        }


async def test_what_became_of_requests_is_counted_by_words_of_ours(
    http: httpx.AsyncClient, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(monkeypatch)
    web.statuses["/actions"] = 302
    pressed, rubbish = form(payload=json.dumps(payload(web))), b"payload=" + b"\xff" * 40
    once = signed(rubbish)
    asked: tuple[tuple[str, bytes, dict[str, str]], ...] = (
        (INTERACTIVE, pressed, signed(pressed)),  # no worker answers
        (INTERACTIVE, rubbish, once),
        (INTERACTIVE, rubbish, once),
        (INTERACTIVE, b"x", signed(b"x", secret="another")),
        (COMMAND, b"x", {}),
    )
    statuses = [(await http.post(path, content=body, headers=head)).status_code for path, body, head in asked]
    assert statuses == [200, 400, 409, 401, 401]
    ends = {("button", "away"): 1, ("button", "refused"): 1, ("button", "unproven"): 2, ("command", "unproven"): 1}
    assert counted.of("slack") == ends
    assert counted.of("replies") == {("no",): 1}
    assert counted.of("seconds") == {("slack", str(code)): statuses.count(code) for code in set(statuses)}


# --- every field, with whatever is odd ------------------------------------------------------------------

ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    1e308,
    "",
    "\x00",
    "\ud7ff" * 300,
    "<!channel>",
    "x" * 3000,
    [],
    [[]],
    {},
    {"a": {}},
]


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        yield (*at, key)
        yield from paths(one, (*at, key))


async def test_each_field_may_hold_anything_and_each_answer_is_clear(http: httpx.AsyncClient, web: Web) -> None:
    """422 with a sentence, or 200 where it is read as before: then nobody answers, and that is said."""
    state = {"values": {"b": {"backstop.reason": {"type": "plain_text_input", "value": "r"}}}}
    message = {"attachments": [{"text": "a", "title": "b", "color": "c"}, {"blocks": [{"type": "actions"}]}]}
    whole, statuses = payload(web, state=state, message=message), set[int]()
    for number, path in enumerate(paths(whole)):
        for odd in (ODD * 2)[number % len(ODD) :][:4]:  # each value at many fields
            changed = json.loads(json.dumps(whole))
            inner = changed
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = odd
            body = form(payload=json.dumps(changed), number=str(number))
            answer = await http.post(INTERACTIVE, content=body, headers=signed(body))
            statuses.add(answer.status_code)
            if answer.status_code == 200:
                assert answer.content == b""
            else:
                one_sentence(answer, answer.status_code)
    assert statuses <= {200, 422, 409}, statuses
    assert {200, 422} <= statuses
    texts = {post.json["text"].partition(":")[0] for post in web.posts()}
    assert texts == {"Nothing was done"}
