"""Notices reach real servers, once: an SMTP server and an HTTP server on this machine, and the log file."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from activities.adapters import http
from activities.adapters.http import Reach, networks_of
from activities.adapters.notify import mail as mail_channel
from activities.adapters.notify import slack
from activities.adapters.notify.contact_routes import routes
from activities.adapters.notify.delivery_book import FileTurns, SqliteBook
from activities.adapters.notify.notifier import Notifier
from activities.notices.rendering import render
from activities.ports.notices import NotifyPort
from models.errors import Refusal, Unavailable
from models.notices import Notice, NoticeKind
from tests.integration.notice_servers import Mail, Web, mail_server, trickling_server, web_server
from tests.ports import free_port
from tests.waiting import PATIENCE

pytestmark = pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")

ROOT = Path(__file__).parents[2]
HERE = Reach(networks_of("127.0.0.0/8"))
NOW = datetime(2025, 6, 3, 9, tzinfo=UTC)
PASSWORD, TOKEN, PATH_TOKEN, HEADER_TOKEN = "pAsSwOrD77", "ToKeN4slackWebHook", "PaThToKeN55", "HeAdErToKeN66"
SECRETS = (PASSWORD, TOKEN, PATH_TOKEN, HEADER_TOKEN)


@pytest.fixture
def web() -> Iterator[Web]:
    with web_server() as server:
        yield server


@pytest.fixture
def mail() -> Iterator[Mail]:
    with mail_server("robot", PASSWORD) as server:
        yield server


# --- every channel alike ----------------------------------------------------------------------


@dataclass
class Channel:
    """One channel as the contract sees it."""

    name: str
    contact: str
    address: str | None
    """What may be shown; None where digits stand for a secret."""
    texts: Callable[[], list[str]]
    """What arrived, as text, oldest first."""
    broken: Callable[[], Any]
    """A context in which the channel fails."""


@contextmanager
def refusing(statuses: dict[str, int], prefix: str) -> Iterator[None]:
    statuses[prefix] = 503
    yield
    del statuses[prefix]


@contextmanager
def unknown(refused: set[str], address: str) -> Iterator[None]:
    refused.add(address)
    yield
    refused.remove(address)


@contextmanager
def in_the_way(path: Path) -> Iterator[None]:
    path.mkdir()
    yield
    path.rmdir()


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    return tmp_path / "notices.jsonl"


def lines(log_file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log_file.read_text().splitlines()] if log_file.exists() else []


@pytest.fixture(params=["log", "email", "email-url", "slack", "slack-url", "json", "webhook+http"])
def channel(
    request: pytest.FixtureRequest, web: Web, mail: Mail, log_file: Path, monkeypatch: pytest.MonkeyPatch
) -> Channel:
    monkeypatch.setitem(slack.DOORS, "hook", f"http://127.0.0.1:{web.port}/services")
    someone = "someone@team.example"
    by_mail: dict[str, Any] = {
        "address": someone,
        "texts": lambda: [f"{m['Subject']}\n{m.get_content()}" for m in mail.to(someone)],
        "broken": lambda: unknown(mail.refused, someone),
    }

    def slack_texts() -> list[str]:
        attachments = [post.json["attachments"][0] for post in web.posts("/services")]
        return [f"{a['title']}\n{a['text']}" for a in attachments]

    by_slack: dict[str, Any] = {
        "address": None,
        "texts": slack_texts,
        "broken": lambda: refusing(web.statuses, "/services"),
    }
    by_web: dict[str, Any] = {
        "address": None,
        "texts": lambda: [f"{post.json['title']}\n{post.json['message']}" for post in web.posts("/hook")],
        "broken": lambda: refusing(web.statuses, "/hook"),
    }
    hook = f"127.0.0.1:{web.port}/hook/{PATH_TOKEN}"
    channels = {
        "log": Channel(
            "log",
            "log",
            "log",
            lambda: [f"{line['subject']}\n{line['body']}" for line in lines(log_file)],
            lambda: in_the_way(log_file),
        ),
        "email": Channel("email", someone, **by_mail),
        "email-url": Channel("email", mail.url.replace("?", f"/{someone}?"), **by_mail),
        "slack": Channel("slack", f"slack://T1AAA/B1BBB/{TOKEN}", **by_slack),
        "slack-url": Channel("slack", f"https://hooks.slack.com/services/T1AAA/B1BBB/{TOKEN}", **by_slack),
        "json": Channel("webhook", f"json://robot:{PASSWORD}@{hook}?-sig={HEADER_TOKEN}", **by_web),
        "webhook+http": Channel("webhook", f"webhook+http://robot:{PASSWORD}@{hook}?sig={HEADER_TOKEN}", **by_web),
    }
    return channels[str(request.param)]


class Clock:
    """A minute passes at every look."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        self.now += timedelta(minutes=1)
        return self.now


@pytest.fixture
def notifier(log_file: Path, mail: Mail) -> Notifier:
    return Notifier(log_file, Clock(), mail.url, reach=HERE)


def notice(*contacts: str, key: str = "h100-a/1/planned/team-a") -> Notice:
    return Notice(
        key=key,
        kind=NoticeKind.PLANNED,
        cluster="h100-a",
        audience="team-a",
        contacts=contacts,
        owner="capacity-owners",
        before_gpus=345,
        after_gpus=310,
        phantom_gpus=26,
        to_flex_gpus=9,
        reasons=("what <!channel> & co. say",),
    )


def deliver(port: NotifyPort, what: Notice) -> dict[str, bool]:
    """Channel -> repeated."""
    return {d.channel: d.repeated for d in port.deliver(what, *render(what))}


def test_the_message_arrives_as_it_was_written(channel: Channel, notifier: Notifier) -> None:
    what = notice(channel.contact)
    subject, body = render(what)
    deliver(notifier, what)
    (text,) = channel.texts()
    text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    assert text.split("\n", 1)[0] == subject
    assert text.split("\n", 1)[1].replace("\r\n", "\n").strip() == body.strip()


def test_a_delivery_names_key_channel_time_and_a_masked_address(channel: Channel, notifier: Notifier) -> None:
    what = notice(channel.contact)
    delivery = notifier.deliver(what, *render(what))[-1]
    assert (delivery.key, delivery.channel, delivery.repeated) == (what.key, channel.name, False)
    assert NOW < delivery.at < NOW + timedelta(hours=1)
    assert delivery.address == channel.address or "***" in delivery.address


def test_delivered_twice_is_sent_once(channel: Channel, notifier: Notifier) -> None:
    what = notice(channel.contact)
    first = notifier.deliver(what, *render(what))
    again = notifier.deliver(what, *render(what))
    assert len(channel.texts()) == 1
    assert [d.model_copy(update={"repeated": True}) for d in first] == list(again)


def test_another_key_is_another_notice(channel: Channel, notifier: Notifier) -> None:
    deliver(notifier, notice(channel.contact, key="one"))
    assert deliver(notifier, notice(channel.contact, key="two"))[channel.name] is False
    assert len(channel.texts()) == 2


def test_a_restart_does_not_send_again(channel: Channel, log_file: Path, mail: Mail) -> None:
    what = notice(channel.contact)
    assert deliver(Notifier(log_file, Clock(), mail.url, reach=HERE), what)[channel.name] is False
    assert deliver(Notifier(log_file, Clock(), mail.url, reach=HERE), what)[channel.name] is True
    assert len(channel.texts()) == 1


class Crowd:
    """Turns of several workers; `all_here` once all of them have asked for theirs at one address beside the log.

    The log has a folder of its own: whoever shares a file with it would keep the others from coming so far.
    """

    def __init__(self, folder: Path, workers: int, all_here: threading.Event) -> None:
        self._logs, self._others = FileTurns(folder / "log"), FileTurns(folder / "others")
        self._workers, self._all_here = workers, all_here
        self._come: Counter[str] = Counter()
        self._counting = threading.Lock()

    def take_turn(self, key: str, address: str) -> AbstractContextManager[None]:
        if address == "log":
            return self._logs.take_turn(key, address)
        with self._counting:
            self._come[address] += 1
            if self._come[address] == self._workers:
                self._all_here.set()
        return self._others.take_turn(key, address)


def test_many_at_once_send_once(channel: Channel, log_file: Path, mail: Mail, web: Web) -> None:
    """On a channel of the web, the first delivery is answered only when all others are waiting."""
    web.answers.clear()
    turns = Crowd(log_file.with_name("turns"), 8, web.answers)
    what = notice(channel.contact)
    workers = [Notifier(log_file, Clock(), mail.url, reach=HERE, turns=turns) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        answers = [f.result() for f in [pool.submit(deliver, worker, what) for worker in workers]]
    assert len(channel.texts()) == 1
    assert len(lines(log_file)) == 1
    assert sorted(answer[channel.name] for answer in answers) == [False] + [True] * 7


def test_many_at_once_write_the_notices_of_a_call_once_and_take_one_turn(log_file: Path) -> None:
    files, taken = FileTurns(log_file.with_name("turns")), list[str]()

    class Counted:
        def take_turn(self, key: str, address: str) -> AbstractContextManager[None]:
            taken.append(key)
            return files.take_turn(key, address)

    whats = [notice().but(key=f"alpha/1/{number}", audience=f"team-{number}") for number in range(6)]
    workers = [Notifier(log_file, Clock(), reach=HERE, turns=Counted()) for _ in range(8)]

    def write(number: int) -> None:
        mine = whats[number % 3 :] if number % 2 else whats[::-1]
        workers[number].write_log([(what, *render(what)) for what in mine])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert sorted(line["key"] for line in lines(log_file)) == [what.key for what in whats]
    assert len(taken) == 8
    assert workers[0].deliver(whats[0], "", "")[0].repeated, "who sends it to people finds it in the log"


def test_a_failing_channel_is_named_and_the_retry_reaches_it(channel: Channel, notifier: Notifier) -> None:
    what = notice(channel.contact)
    with channel.broken(), pytest.raises(Unavailable) as failure:
        notifier.deliver(what, *render(what))
    assert channel.name in failure.value.message
    sent_before = len(channel.texts())  # an HTTP server has seen what it then refused
    assert deliver(notifier, what)[channel.name] is False
    assert deliver(notifier, what)[channel.name] is True
    assert len(channel.texts()) == sent_before + 1


def test_the_log_line_is_always_written(channel: Channel, notifier: Notifier, log_file: Path) -> None:
    what = notice(channel.contact)
    notifier.deliver(what, *render(what))
    (line,) = lines(log_file)
    assert (line["key"], line["subject"], line["body"]) == (what.key, *render(what))
    assert line["notice"]["to_flex_gpus"] == 9
    assert "contacts" not in line["notice"]


# --- several addresses ------------------------------------------------------------------------


def test_a_team_without_contacts_gets_the_log(notifier: Notifier, log_file: Path) -> None:
    assert deliver(notifier, notice()) == {"log": False}
    assert len(lines(log_file)) == 1


def test_one_failing_address_does_not_stop_the_others_and_is_retried_alone(
    notifier: Notifier, web: Web, mail: Mail
) -> None:
    hooks = [f"webhook+http://127.0.0.1:{web.port}/{name}" for name in ("a", "b")]
    what = notice(hooks[0], "someone@team.example", hooks[1])
    web.statuses["/a"] = 503
    with pytest.raises(Unavailable, match=r"webhook .*answered HTTP 503") as failure:
        notifier.deliver(what, *render(what))
    assert "email" not in failure.value.message
    assert len(mail.to("someone@team.example")) == len(web.posts("/b")) == len(web.posts("/a")) == 1
    web.statuses.clear()
    answers = notifier.deliver(what, *render(what))
    assert [d.repeated for d in answers] == [True, False, True, True]
    assert len(mail.to("someone@team.example")) == len(web.posts("/b")) == 1
    assert len(web.posts("/a")) == 2


def test_recipients_in_one_mail_url_are_retried_one_by_one(notifier: Notifier, mail: Mail) -> None:
    what = notice(mail.url.replace("?", "/one@team.example/two@team.example?"))
    mail.refused.add("two@team.example")
    with pytest.raises(Unavailable, match=r"email two@team\.example .the mail server refused the message"):
        notifier.deliver(what, *render(what))
    mail.refused.clear()
    assert [d.repeated for d in notifier.deliver(what, *render(what))] == [True, True, False]
    assert len(mail.to("one@team.example")) == len(mail.to("two@team.example")) == 1


def test_one_address_given_twice_is_told_once(notifier: Notifier, mail: Mail) -> None:
    url = mail.url.replace("?", "/someone@team.example?")
    deliver(notifier, notice("log", "someone@team.example", "mailto:someone@TEAM.example", url))
    assert len(mail.messages) == 1


def test_a_malformed_contact_is_refused_after_the_others_were_told(notifier: Notifier, mail: Mail) -> None:
    what = notice(f"slack://T1/not-a-token/{TOKEN}", "someone@team.example", "nonsense")
    with pytest.raises(Refusal) as refusal:
        notifier.deliver(what, *render(what))
    assert "contact 1 of team-a: this slack:// contact" in refusal.value.message
    assert "contact 3 of team-a" in refusal.value.message
    assert not any(secret in refusal.value.message for secret in (*SECRETS, "nonsense"))
    assert len(mail.to("someone@team.example")) == 1


def test_a_failing_address_comes_before_a_malformed_one(notifier: Notifier, web: Web) -> None:
    web.statuses["/"] = 500
    what = notice("nonsense", f"webhook+http://127.0.0.1:{web.port}/a")
    with pytest.raises(Unavailable):  # so that it is retried
        notifier.deliver(what, *render(what))


def test_nobody_listening_is_unavailable(notifier: Notifier) -> None:
    what = notice(f"webhook+http://127.0.0.1:{free_port()}/a")
    with pytest.raises(Unavailable, match="no connection or login"):
        notifier.deliver(what, *render(what))


@pytest.mark.parametrize("contact", ["webhook+http://127.0.0.1:{}/moved", "json://127.0.0.1:{}/moved?redirect=yes"])
def test_a_redirect_is_no_delivery(contact: str, notifier: Notifier, web: Web) -> None:
    web.statuses["/moved"] = 302
    what = notice(contact.format(web.port))
    with pytest.raises(Unavailable, match="answered HTTP 302"):
        notifier.deliver(what, *render(what))


# --- what receivers get -----------------------------------------------------------------------


def test_a_webhook_gets_the_key_and_the_numbers(notifier: Notifier, web: Web) -> None:
    what = notice(f"webhook+http://robot:{PASSWORD}@127.0.0.1:{web.port}/a%2Fb/c?x=1&x=2&y=", key="clé 1\n")
    deliver(notifier, what)
    (sent,) = web.requests
    assert sent.path == "/a%2Fb/c?x=1&x=2&y="
    assert sent.headers["Idempotency-Key"] == "cl%C3%A9%201%0A"
    assert sent.headers["Authorization"].startswith("Basic ")
    assert sent.json["notice"]["key"] == what.key
    assert sent.json["notice"]["after_gpus"] == 310
    assert "contacts" not in sent.json["notice"]


def test_an_email_carries_the_key_and_one_message_id(notifier: Notifier, mail: Mail) -> None:
    deliver(notifier, notice("someone@team.example"))
    ((recipients, message),) = mail.messages
    assert recipients == ["someone@team.example"]
    assert message["X-Backstop-Key"] == "h100-a/1/planned/team-a"
    assert message["Auto-Submitted"] == "auto-generated"
    assert len(message.get_all("Message-ID") or []) == 1
    assert message.get_content_type() == "text/plain"
    assert "backstop@ops.example" in str(message["From"])


def test_slack_shows_free_text_as_text(notifier: Notifier, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(slack.DOORS, "hook", f"http://127.0.0.1:{web.port}/services")
    deliver(notifier, notice(f"slack://T1AAA/B1BBB/{TOKEN}"))
    (sent,) = web.requests
    assert sent.json["mrkdwn"] is False
    assert "what &lt;!channel&gt; &amp; co. say" in sent.json["attachments"][0]["text"]


@pytest.mark.parametrize(
    ("contact", "cloud", "channel"),
    [
        (f"slack://T1AAA/B1BBB/{TOKEN}/%23one", "hook", "#one"),
        (f"slack://T1AAA/B1BBB/{TOKEN}?to=two", "hook", "#two"),
        (f"slack://robot@T1AAA/B1BBB/{TOKEN}/+C123", "hook", "C123"),
        (f"slack://T1AAA/B1BBB/{TOKEN}?mode=gov-hook", "gov-hook", None),
        (f"https://hooks.slack-gov.com/services/T1AAA/B1BBB/{TOKEN}", "gov-hook", None),
    ],
)
def test_slack_puts_a_message_where_the_contact_says(
    contact: str, cloud: str, channel: str | None, notifier: Notifier, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(slack.DOORS, cloud, f"http://127.0.0.1:{web.port}/{cloud}")
    deliver(notifier, notice(contact))
    (sent,) = web.requests
    assert sent.path == f"/{cloud}/T1AAA/B1BBB/{TOKEN}"
    assert sent.json.get("channel") == channel
    assert sent.json.get("username") == ("robot" if "robot" in contact else None)


def test_slack_that_says_no_with_a_200_is_no_delivery(
    notifier: Notifier, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(slack.DOORS, "hook", f"http://127.0.0.1:{web.port}/services")
    web.text = b"invalid_token"
    with pytest.raises(Unavailable, match="answered HTTP 200"):
        notifier.deliver(notice(f"slack://T1AAA/B1BBB/{TOKEN}"), "subject", "body")


# --- what never ends --------------------------------------------------------------------------


def test_an_answer_that_trickles_is_given_up(notifier: Notifier, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is over when it has begun to trickle."""
    limits: list[float] = []

    def timeout(seconds: float) -> asyncio.Timeout:
        limits.append(seconds)
        limit, loop = asyncio.timeout(None), asyncio.get_running_loop()

        def ends() -> None:
            web.trickled.wait()
            loop.call_soon_threadsafe(lambda: limit.reschedule(loop.time()))

        threading.Thread(target=ends, daemon=True).start()
        return limit

    monkeypatch.setattr(http, "asyncio", SimpleNamespace(run=asyncio.run, timeout=timeout))
    web.trickles = True
    with pytest.raises(Unavailable, match="no answer within 20 seconds"):
        notifier.deliver(notice(f"webhook+http://127.0.0.1:{web.port}/a"), "subject", "body")
    web.trickles = False
    (seconds,) = limits
    assert 0 <= seconds <= 20


@pytest.mark.nightly
def test_an_answer_that_trickles_is_given_up_in_time(
    notifier: Notifier, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "_SECONDS", 0.3)
    web.trickles = True
    with pytest.raises(Unavailable, match="no answer within"):
        notifier.deliver(notice(f"webhook+http://127.0.0.1:{web.port}/a"), "subject", "body")
    web.trickles = False


def test_a_mail_server_that_trickles_is_given_up(log_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mail_channel, "_DELIVERY_SECONDS", 0.3)
    with trickling_server() as port:
        notifier = Notifier(log_file, Clock(), f"mailto://127.0.0.1:{port}?from=backstop@ops.example")
        with pytest.raises(Unavailable, match="no connection or login"):
            notifier.deliver(notice("someone@team.example"), "subject", "body")


# --- once, also through crashes ---------------------------------------------------------------

WORKER = """
import sys, pathlib, datetime
from activities.adapters.notify.delivery_book import FileTurns
from activities.adapters.notify.notifier import Notifier
from activities.adapters.http import Reach, networks_of
from models.notices import Notice
log_file, contact = sys.argv[1:]
class Door:
    logs, others = FileTurns(pathlib.Path(log_file + ".log-turns")), FileTurns(pathlib.Path(log_file + ".turns"))
    def take_turn(self, key, address):
        if address == "log":
            return self.logs.take_turn(key, address)
        print("at the door", flush=True)
        return self.others.take_turn(key, address)
notice = Notice(key="k", kind="closed", cluster="c", audience="team-a", contacts=[contact], owner="o")
here = Reach(networks_of("127.0.0.1"))
notifier = Notifier(pathlib.Path(log_file), lambda: datetime.datetime.now(datetime.UTC), reach=here, turns=Door())
print("ready", flush=True)
sys.stdin.readline()
print(*[d.repeated for d in notifier.deliver(notice, "subject", "body")])
"""


def start(*args: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", *args], cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    return process


def test_two_worker_processes_at_once_send_once(log_file: Path, web: Web) -> None:
    """The first one is answered when the other is at the door."""
    web.answers.clear()
    contact = f"webhook+http://127.0.0.1:{web.port}/a"
    workers = [start(WORKER, str(log_file), contact) for _ in range(2)]
    for worker in workers:
        assert worker.stdin
        worker.stdin.write("go\n")
        worker.stdin.flush()
    for worker in workers:
        assert worker.stdout
        assert worker.stdout.readline() == "at the door\n"
    web.answers.set()
    answers = [worker.communicate(timeout=PATIENCE)[0].split() for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0]
    assert len(web.requests) == 1
    assert len(lines(log_file)) == 1
    assert sorted(answer[1] for answer in answers) == ["False", "True"]


def test_a_worker_that_dies_in_its_turn_gives_it_up(tmp_path: Path) -> None:
    holder = start(
        "import sys, pathlib\n"
        "from activities.adapters.notify.delivery_book import FileTurns\n"
        f"with FileTurns(pathlib.Path({str(tmp_path)!r})).take_turn('k', 'a'):\n"
        "    print('ready', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    turns = FileTurns(tmp_path, patience_seconds=0.1)
    with pytest.raises(Unavailable, match="another worker"), turns.take_turn("k", "a"):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.communicate(timeout=PATIENCE)
    with turns.take_turn("k", "a"):
        pass


def test_nobody_waits_for_a_stranger_who_has_a_turn(tmp_path: Path) -> None:
    turns = FileTurns(tmp_path, patience_seconds=0)
    with turns.take_turn("k", "a receiver that does not answer"):
        for number in range(1000):
            with turns.take_turn("k", f"receiver {number}"):
                pass
        with (
            pytest.raises(Unavailable, match="another worker"),
            turns.take_turn("k", "a receiver that does not answer"),
        ):
            pass
    assert list(tmp_path.iterdir()) == [], "a turn that is over leaves no file"


def test_who_opened_the_file_of_a_turn_that_is_over_does_not_share_the_next(tmp_path: Path) -> None:
    first = FileTurns(tmp_path).take_turn("k", "a")
    after = FileTurns(tmp_path).take_turn("k", "a")

    class Late(FileTurns):
        """Between its opening of the file and its look whether it is locked, that turn ends and the next begins."""

        def _open_file(self, path: Path) -> int:
            file = super()._open_file(path)
            if not turns_passed:
                turns_passed.append(path)
                first.__exit__(None, None, None)
                after.__enter__()
            return file

    turns_passed = list[Path]()
    first.__enter__()
    with pytest.raises(Unavailable, match="another worker"), Late(tmp_path, patience_seconds=0).take_turn("k", "a"):
        pass
    assert len(turns_passed) == 1
    after.__exit__(None, None, None)


class ForgetfulBook(SqliteBook):
    """Stands for a crash between the channel's answer and the book."""

    forgets = True

    def remember(self, keys: Sequence[str], address: str, at: datetime) -> None:
        if self.forgets:
            raise Unavailable("the disk is full")
        super().remember(keys, address, at)


def test_what_was_sent_but_not_remembered_is_sent_again_with_the_same_key(log_file: Path, web: Web) -> None:
    """Not once, and said to be not: the receiver can tell by the key."""
    book = ForgetfulBook(log_file.with_name("book"))
    notifier = Notifier(log_file, Clock(), book=book, reach=HERE)
    what = notice(f"webhook+http://127.0.0.1:{web.port}/a")
    with pytest.raises(Unavailable, match="the disk is full"):
        notifier.deliver(what, *render(what))
    book.forgets = False
    deliver(notifier, what)
    assert [post.headers["Idempotency-Key"] for post in web.requests] == [what.key, what.key]


def test_an_unusable_book_sends_nothing(log_file: Path, web: Web) -> None:
    log_file.with_name("notices.jsonl.book").write_text("no database, but long enough to be read as one" * 10)
    what = notice(f"webhook+http://127.0.0.1:{web.port}/a")
    with pytest.raises(Unavailable, match="delivery book"):
        Notifier(log_file, Clock(), reach=HERE).deliver(what, *render(what))
    assert not web.requests
    assert not lines(log_file)


def test_a_book_that_was_replaced_is_opened_anew(tmp_path: Path) -> None:
    book = SqliteBook(tmp_path / "book")
    book.remember(["k"], "a", NOW)
    for file in tmp_path.glob("book*"):
        file.unlink()
    assert book.read_sent_times(["k"], "a") == {}
    book.remember(["k"], "b", NOW)
    assert SqliteBook(tmp_path / "book").read_sent_times(["k"], "b") == {"k": NOW}


def keyed(*keys: str) -> list[tuple[Notice, str, str]]:
    return [(notice(key=key), f"about {key}", "body") for key in keys]


def test_the_log_takes_many_notices_with_one_sync_each_once_and_in_their_order(
    log_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs: list[int] = []
    sync = os.fsync

    def counted(file: int) -> None:
        syncs.append(file)
        sync(file)

    monkeypatch.setattr(os, "fsync", counted)
    notifier = Notifier(log_file, Clock(), reach=HERE)
    first = notifier.write_log(keyed("b", "a", "c"))
    again = notifier.write_log(keyed("c", "d", "b"))
    assert [(d.key, d.channel, d.repeated) for d in first] == [
        ("b", "log", False),
        ("a", "log", False),
        ("c", "log", False),
    ]
    assert [(d.key, d.repeated) for d in again] == [("c", True), ("d", False), ("b", True)]
    assert [json.loads(line)["subject"] for line in log_file.read_text().splitlines()] == [
        "about b",
        "about a",
        "about c",
        "about d",
    ]
    assert len(syncs) == 2
    assert [d.repeated for d in notifier.deliver(*keyed("a")[0])] == [True]
    with sqlite3.connect(log_file.with_name("notices.jsonl.book")) as book:
        assert book.execute("SELECT key FROM deliveries ORDER BY key").fetchall() == [("a",), ("b",), ("c",), ("d",)]


def test_notices_that_many_write_at_once_in_any_order_are_in_the_log_once(log_file: Path) -> None:
    workers = [Notifier(log_file, Clock(), reach=HERE) for _ in range(6)]
    orders = list(itertools.permutations("xyz"))
    with ThreadPoolExecutor(6) as pool:
        calls = [pool.submit(worker.write_log, keyed(*order)) for worker, order in zip(workers, orders, strict=True)]
        answers = [delivery for call in calls for delivery in call.result()]
    assert sorted(json.loads(line)["key"] for line in log_file.read_text().splitlines()) == ["x", "y", "z"]
    assert sorted(d.key for d in answers if not d.repeated) == ["x", "y", "z"]


def test_a_log_that_cannot_be_written_fails_them_all_and_a_retry_writes_each_once(log_file: Path) -> None:
    log_file.mkdir()
    notifier = Notifier(log_file, Clock(), reach=HERE)
    with pytest.raises(Unavailable, match="the log of notices cannot be written: Is a directory"):
        notifier.write_log(keyed("a", "b"))
    log_file.rmdir()
    assert [d.repeated for d in notifier.write_log(keyed("a", "b"))] == [False, False]
    assert len(lines(log_file)) == 2


def test_the_book_keeps_the_first_time(tmp_path: Path) -> None:
    book = SqliteBook(tmp_path / "deep" / "book")
    assert book.read_sent_times(["k"], "a") == {}
    book.remember(["k"], "a", NOW)
    book.remember(["k"], "a", NOW + timedelta(days=1))
    assert SqliteBook(tmp_path / "deep" / "book").read_sent_times(["k"], "a") == {"k": NOW}
    assert book.read_sent_times(["k"], "b") == {}


def test_half_a_line_left_by_a_crash_spoils_no_other(notifier: Notifier, log_file: Path) -> None:
    log_file.write_text('{"key": "torn')
    deliver(notifier, notice())
    torn, whole = log_file.read_text().splitlines()
    assert torn == '{"key": "torn'
    assert json.loads(whole)["key"] == "h100-a/1/planned/team-a"


# --- secrets ----------------------------------------------------------------------------------


@pytest.mark.parametrize("failing", [False, True], ids=["delivered", "failing"])
def test_no_secret_is_logged_shown_or_kept(
    failing: bool,
    log_file: Path,
    web: Web,
    mail: Mail,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setitem(slack.DOORS, "hook", f"http://127.0.0.1:{web.port}/services")
    caplog.set_level(1)
    hook = f"robot:{PASSWORD}@127.0.0.1:{web.port}/hook/{PATH_TOKEN}"
    what = notice(
        "someone@team.example",
        mail.url.replace("?", "/other@team.example?"),
        f"slack://T1AAA/B1BBB/{TOKEN}",
        f"https://hooks.slack.com/services/T1AAA/B1CCC/{TOKEN}",
        f"json://{hook}?-sig={HEADER_TOKEN}",
        f"webhook+http://{hook}?sig={HEADER_TOKEN}",
        f"slack://T1/not-a-token/{TOKEN}",
        f"https://hooks.slack.com/nowhere/{TOKEN}",
        f"jsons://robot:{PASSWORD}@host:notaport/{PATH_TOKEN}",
        f"mailto://robot:{PASSWORD}@127.0.0.1/nobody?+X={HEADER_TOKEN}",
        f"unknown://{PASSWORD}",
        f"https://robot:{PASSWORD}/x@host/{PATH_TOKEN}",
    )
    if failing:
        web.statuses["/"] = 500
        mail.refused |= {"someone@team.example", "other@team.example"}
    notifier = Notifier(log_file, Clock(), mail.url, reach=HERE)
    with pytest.raises(Unavailable if failing else Refusal) as failure:
        notifier.deliver(what, *render(what))
    assert len(web.requests) == 4
    if not failing:
        assert len(mail.messages) == 2
    shown = "".join(traceback.format_exception(failure.value)) + repr(failure.value.__context__)
    shown += repr([routes(contact, mail.url) for contact in what.contacts[:6]])
    kept = b"".join(path.read_bytes() for path in log_file.parent.rglob("*") if path.is_file())
    for secret in SECRETS:
        assert secret not in caplog.text
        assert secret not in shown
        assert secret.encode() not in kept
    assert "notices.jsonl.book" in {path.name for path in log_file.parent.iterdir()}
    httpx.post(f"http://127.0.0.1:{web.port}/{PATH_TOKEN}")
    assert PATH_TOKEN in caplog.text, "or this test would see no leak of the HTTP client's at all"


def test_the_loggers_of_others_speak_on(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        logging.getLogger("httpx").info("hello")
    assert "hello" in caplog.text


def test_in_slack_a_notice_has_buttons_where_a_front_takes_them_and_the_same_words(
    web: Web, log_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(slack.DOORS, "hook", f"http://127.0.0.1:{web.port}/services")
    contacts = (f"slack://T1AAA/B1BBB/{TOKEN}", f"webhook+http://127.0.0.1:{web.port}/hook/{PATH_TOKEN}")
    with_buttons = Notifier(log_file, Clock(), reach=HERE, buttons=True)
    without = Notifier(log_file, Clock(), reach=HERE)
    for key, notifier in (("a", without), ("b", with_buttons)):
        what = notice(*contacts, key=key)
        notifier.deliver(what, *render(what))
    plain, answerable = (post.json for post in web.posts("/services"))
    assert len(plain["attachments"]) == 1
    assert answerable["attachments"][0] == plain["attachments"][0]
    (actions,) = answerable["attachments"][1]["blocks"]
    assert [one["text"]["text"] for one in actions["elements"]] == ["Acknowledge", "Object…", "Show me"]
    assert {**answerable, "attachments": []} == {**plain, "attachments": []}
    first, second = (post.json for post in web.posts("/hook"))
    assert first.keys() == second.keys()
