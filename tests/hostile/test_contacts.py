"""Contacts that teams write and servers that answer badly, beside two healthy audiences: these are told in time.

The real notifier, behind the activity that rollouts call; servers on loopback addresses. 127.0.0.2 stands for the world
outside (the test lists it), 127.0.0.1 for the network inside, where nobody may be reached.
"""

from __future__ import annotations

import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from activities.adapters import http
from activities.adapters.http import PUBLIC, Reach, networks_of
from activities.adapters.ledger.facade import Ledger
from activities.adapters.notify import mail, slow_addresses
from activities.adapters.notify.notifier import Notifier
from activities.notices import telling
from activities.notices.sending import Sender
from activities.notices.telling import NoticeActivities
from models.errors import BadInput
from models.notice_digests import MailPace
from models.notices import Notice, NoticeKind
from models.temporal_names import TellAnswer, TellRequest
from tests.hostile import NAMES, Rubbish, receivers, table, threw
from tests.hostile.receivers import INSIDE, LISTED, Behaviour, receiver, takes
from tests.servers import new_ledger
from tests.waiting import PATIENCE

HELD_SECONDS = 300.0
"""Of one delivery, where what is bad lets go of it as soon as the healthy audiences have got theirs."""
SECONDS = 1.5
"""Of one delivery in the tests of `make nightly`: the time that is over there."""
IN_TIME = 5.0
"""For a healthy audience there, on a busy machine; what is bad has eight notices before it."""
MANY = 8
SECRET = "SeCrEtToKeN99"


def told_by(home: Path, notifier: Notifier, contacts: dict[str, tuple[str, ...]]) -> NoticeActivities:
    """The activity on a ledger that has these contacts."""
    ledger = Ledger(new_ledger(home / "ledger.db"))
    with sqlite3.connect(home / "ledger.db") as sql:
        sql.execute("DELETE FROM contacts")
        sql.execute("DELETE FROM teams")
        for team, addresses in contacts.items():
            sql.execute("INSERT INTO teams (name) VALUES (?)", (team,))
            rows = [(team, position, address) for position, address in enumerate(addresses)]
            sql.executemany("INSERT INTO contacts (team, position, address) VALUES (?, ?, ?)", rows)
    sql.close()
    at_once = MailPace(moment=timedelta(0), longest_moment=timedelta(0), most=1_000_000)
    sender = Sender(notifier, ledger.outbox, ledger.registry, at_once)
    return NoticeActivities(notifier, ledger.registry, ledger.outbox, sender)


@dataclass
class Post:
    """Two healthy receivers and the inside, and the contacts of an audience that is bad."""

    home: Path
    good: dict[str, str] = field(default_factory=dict)
    got: dict[str, list[bytes]] = field(default_factory=dict)
    inside: list[bytes] = field(default_factory=list)
    inside_port: int = 0
    told: threading.Event = field(default_factory=threading.Event)
    """Both healthy audiences have got theirs."""

    def healthy(self, audience: str) -> Behaviour:
        def got_it() -> None:
            if all(self.got.values()):
                self.told.set()

        return takes(self.got[audience], got_it)

    def activity(self, *bad: str) -> NoticeActivities:
        clock = lambda: datetime.now(UTC)  # noqa: E731
        notifier = Notifier(self.home / "notices.jsonl", clock, None, reach=Reach(networks_of(LISTED)))
        contacts = {"bad": bad, **{audience: (contact,) for audience, contact in self.good.items()}}
        return told_by(self.home, notifier, contacts)

    def tell(self, activity: NoticeActivities, many: int = MANY) -> TellAnswer:
        """Send so many notices of the bad audience first; check that the others were delivered all the same."""
        audiences = ["bad"] * many + list(self.good)
        notices = tuple(notice(f"{n}/{audience}", audience) for n, audience in enumerate(audiences))
        answer = activity.tell(TellRequest(cluster="c", notices=notices))
        assert self.told.is_set(), "the healthy audiences have got theirs"
        return answer

    def tell_in_time(self, activity: NoticeActivities, many: int = MANY) -> TellAnswer:
        """Tell, and check that the others have not waited for theirs."""
        in_time: list[bool] = []
        watching = threading.Thread(target=lambda: in_time.append(self.told.wait(IN_TIME)), daemon=True)
        watching.start()
        answer = self.tell(activity, many)
        watching.join()
        assert in_time == [True]
        return answer


def notice(key: str, audience: str) -> Notice:
    return Notice(key=key, kind=NoticeKind.CLOSED, cluster="c", audience=audience, owner="o", after_gpus=8)


@pytest.fixture
def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Post]:
    monkeypatch.setattr(telling, "_CALL_SECONDS", PATIENCE)
    for module, name in ((http, "_SECONDS"), (mail, "_ANSWER_SECONDS"), (mail, "_DELIVERY_SECONDS")):
        monkeypatch.setattr(module, name, HELD_SECONDS)
    office = Post(tmp_path)
    with ExitStack() as stack:
        for audience in ("good-1", "good-2"):
            office.got[audience] = []
            port = stack.enter_context(receiver(office.healthy(audience)))
            office.good[audience] = f"webhook+http://{LISTED}:{port}/hook"
        office.inside_port = stack.enter_context(receiver(takes(office.inside), INSIDE))
        yield office


@pytest.fixture
def hasty(office: Post, monkeypatch: pytest.MonkeyPatch) -> Post:
    """One whose deliveries end after a time that really passes."""
    monkeypatch.setattr(telling, "_CALL_SECONDS", 60.0)
    monkeypatch.setattr(http, "_SECONDS", SECONDS)
    monkeypatch.setattr(mail, "_ANSWER_SECONDS", 15.0)
    monkeypatch.setattr(mail, "_DELIVERY_SECONDS", SECONDS)
    monkeypatch.setattr(slow_addresses, "_LONG_SECONDS", SECONDS / 2)
    return office


# --- servers ------------------------------------------------------------------------------------

SERVERS = [
    Rubbish("drips its headers", receivers.drips),
    Rubbish("drips its body", receivers.drips_its_body),
    Rubbish("never reads", receivers.never_reads),
    Rubbish("never answers", receivers.never_answers),
    Rubbish("closes", receivers.closes),
    Rubbish("closes halfway", receivers.closes_halfway),
    Rubbish("speaks no HTTP", receivers.is_no_http),
    Rubbish("endless headers", receivers.endless_headers),
    Rubbish("answers 503", receivers.says_no),
]
TALKERS = [
    Rubbish("ten megabytes", receivers.ten_megabytes),
    Rubbish("an endless answer", receivers.endless_answer),
    Rubbish("a bomb", receivers.a_bomb),
]
WAYS = [
    "webhook+http://{host}:{port}/{secret}",
    "https://{host}:{port}/{secret}",
    "mailto://{host}:{port}/a@b.example?from=o@ops.example",
]


@pytest.mark.parametrize("way", WAYS, ids=["http", "tls", "smtp"])
@table(SERVERS)
def test_a_bad_server_is_named_and_holds_up_nobody_else(rubbish: Rubbish, way: str, office: Post) -> None:
    """The server answers only after the others have got their notices."""
    with receiver(rubbish.value, until=office.told) as port:
        answer = office.tell(office.activity(way.format(host=LISTED, port=port, secret=SECRET)))
    is_named_alone(office, answer)


def is_named_alone(office: Post, answer: TellAnswer) -> None:
    assert {key.partition("/")[2] for key in answer.delivered} == set(office.good)
    assert len(answer.failed) == MANY
    assert SECRET not in str(answer)
    threw("webhooks and mail servers")


@pytest.mark.nightly
@pytest.mark.parametrize("way", WAYS, ids=["http", "tls", "smtp"])
@table(SERVERS)
def test_a_bad_server_is_given_up_in_time(rubbish: Rubbish, way: str, hasty: Post) -> None:
    with receiver(rubbish.value) as port:
        answer = hasty.tell_in_time(hasty.activity(way.format(host=LISTED, port=port, secret=SECRET)))
    is_named_alone(hasty, answer)


@table(TALKERS)
def test_what_a_server_goes_on_to_say_is_not_read(rubbish: Rubbish, office: Post) -> None:
    with receiver(rubbish.value) as port:
        answer = office.tell(office.activity(f"webhook+http://{LISTED}:{port}/hook"))
    assert (len(answer.delivered), answer.failed, answer.refused) == (MANY + 2, {}, {})
    threw("webhooks and mail servers")


@pytest.mark.nightly
@table(TALKERS)
def test_a_server_that_goes_on_talking_takes_no_time(rubbish: Rubbish, hasty: Post) -> None:
    with receiver(rubbish.value) as port:
        answer = hasty.tell_in_time(hasty.activity(f"webhook+http://{LISTED}:{port}/hook"))
    assert (len(answer.delivered), answer.failed, answer.refused) == (MANY + 2, {}, {})
    threw("webhooks and mail servers")


def test_a_redirect_into_the_network_is_not_followed(office: Post) -> None:
    with receiver(receivers.redirects_to(office.inside_port)) as port:
        answer = office.tell(office.activity(f"webhook+http://{LISTED}:{port}/hook"))
    assert len(answer.failed) == MANY
    assert all("answered HTTP 307" in why for why in answer.failed.values())
    assert office.inside == []


@pytest.mark.nightly
def test_an_audience_with_many_bad_addresses_takes_no_more_than_its_time(
    hasty: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty receivers that drip, each with its own address: one call ends, and so does the next one."""
    monkeypatch.setattr(telling, "_CALL_SECONDS", 4.0)
    with ExitStack() as stack:
        ports = [stack.enter_context(receiver(receivers.drips)) for _ in range(30)]
        activity = hasty.activity(*(f"webhook+http://{LISTED}:{port}/hook" for port in ports))
        began = time.monotonic()
        answer = hasty.tell_in_time(activity)
    assert time.monotonic() - began < 4.0 + IN_TIME
    assert len(answer.failed) == MANY


def test_an_audience_with_many_bad_addresses_holds_up_nobody_else(office: Post) -> None:
    with ExitStack() as stack:
        ports = [stack.enter_context(receiver(receivers.drips, until=office.told)) for _ in range(30)]
        answer = office.tell(office.activity(*(f"webhook+http://{LISTED}:{port}/hook" for port in ports)))
    assert len(answer.failed) == MANY


def test_what_let_us_wait_is_left_alone_for_a_while_and_then_tried_again(
    office: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[bytes] = []
    bad, clock = [True], [0.0]

    def behave(connection: socket.socket) -> None:
        if bad[0]:
            receivers.read(connection)
            clock[0] += slow_addresses._LONG_SECONDS  # so long it let us wait, and then hung up
        else:
            takes(got)(connection)

    def fails(activity: NoticeActivities, reason: str) -> None:
        answer = office.tell(activity)
        assert {why.partition("(")[2][:20] for why in answer.failed.values()} == {reason}
        assert len(answer.failed) == MANY

    monkeypatch.setattr(slow_addresses, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    with receiver(behave) as port:
        activity = office.activity(f"webhook+http://{LISTED}:{port}/hook")
        fails(activity, "no connection or log")
        bad[0] = False
        fails(activity, "it did not answer in")
        clock[0] += slow_addresses._FIRST_SECONDS - 1
        fails(activity, "it did not answer in")
        clock[0] += 1
        comes_together(office.tell(activity), got)


def comes_together(again: TellAnswer, got: list[bytes]) -> None:
    assert (len(got), again.failed) == (1, {}), "what came together goes together"
    assert all(str(n) in got[0].decode() for n in range(MANY))


@pytest.mark.nightly
def test_what_dripped_is_left_alone_for_a_while_and_then_tried_again(
    hasty: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[bytes] = []
    bad = [True]

    def behave(connection: socket.socket) -> None:
        (receivers.drips if bad[0] else takes(got))(connection)

    monkeypatch.setattr(slow_addresses, "_FIRST_SECONDS", 1.0)
    with receiver(behave) as port:
        activity = hasty.activity(f"webhook+http://{LISTED}:{port}/hook")
        for reason in ("no answer within 1.5", "it did not answer in"):
            answer = hasty.tell(activity)
            assert {why.partition("(")[2][:20] for why in answer.failed.values()} == {reason}
            assert len(answer.failed) == MANY
        bad[0] = False
        time.sleep(1.0)
        comes_together(hasty.tell(activity), got)


# --- names --------------------------------------------------------------------------------------


def resolving(
    monkeypatch: pytest.MonkeyPatch, name: str, *answers: str, takes_time: Callable[[], object] = lambda: None
) -> None:
    """The machine's resolver takes its time over this name, and answers it with these in turn, the last for ever."""
    real, left = socket.getaddrinfo, list(answers)

    def getaddrinfo(host: Any, port: Any, *args: Any, **more: Any) -> Any:
        if host != name or more.get("flags", 0) & socket.AI_NUMERICHOST:
            return real(host, port, *args, **more)
        takes_time()
        address = left.pop(0) if len(left) > 1 else left[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@pytest.mark.parametrize("way", WAYS, ids=["http", "tls", "smtp"])
def test_a_name_that_is_slow_to_resolve_holds_up_nobody(
    way: str, office: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolving(monkeypatch, "slow.example", LISTED, takes_time=lambda: office.told.wait(HELD_SECONDS))
    answer = office.tell(office.activity(way.format(host="slow.example", port=9, secret=SECRET)))
    assert len(answer.failed) == MANY
    threw("webhooks and mail servers")


@pytest.mark.nightly
@pytest.mark.parametrize("way", WAYS, ids=["http", "tls", "smtp"])
def test_a_name_that_is_slow_to_resolve_is_given_up_in_time(
    way: str, hasty: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mail, "_ANSWER_SECONDS", SECONDS)
    resolving(monkeypatch, "slow.example", LISTED, takes_time=lambda: time.sleep(8))
    began = time.monotonic()
    answer = hasty.tell_in_time(hasty.activity(way.format(host="slow.example", port=9, secret=SECRET)))
    assert time.monotonic() - began < IN_TIME, "the call waits no longer than a delivery may take"
    assert len(answer.failed) == MANY
    threw("webhooks and mail servers")


@pytest.mark.parametrize("way", WAYS[:2], ids=["http", "tls"])
def test_a_name_that_nobody_knows_is_told_from_a_host_that_nobody_answers_at(
    way: str, office: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    resolving(monkeypatch, "nobody.example", LISTED, takes_time=fails)
    answer = office.tell(office.activity(way.format(host="nobody.example", port=9, secret=SECRET)))
    assert len(answer.failed) == MANY
    assert all("its host's name could not be resolved" in why for why in answer.failed.values())


def test_a_name_that_answers_otherwise_the_second_time_leads_nowhere(
    office: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DNS rebinding: first an address that may be reached, then one inside."""
    resolving(monkeypatch, "rebind.example", LISTED, INSIDE)
    office.tell(office.activity(f"webhook+http://rebind.example:{office.inside_port}/admin"))
    assert office.inside == []
    resolving(monkeypatch, "inside.example", INSIDE)
    answer = office.tell(office.activity(f"webhook+http://inside.example:{office.inside_port}/admin"))
    assert len(answer.refused) == MANY
    assert office.inside == []


# --- contacts -----------------------------------------------------------------------------------

INWARD = [
    *("127.0.0.1", "localhost", "127.1", "0x7f000001", "2130706433", "017700000001", "0.0.0.0", "[::1]", "[::]"),
    *("[::ffff:127.0.0.1]", "[::127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "169.254.169.254"),
    *("10.0.0.1", "172.16.0.1", "192.168.0.1", "100.64.0.1", "[fe80::1]", "[fd00::1]", "224.0.0.1", "255.255.255.255"),
]
LEADING = [
    Rubbish(f"{scheme} to {host}", f"{scheme}://{host}:{{port}}/{tail}")
    for host in INWARD
    for scheme, tail in (("webhook+http", SECRET), ("mailto", "a@b.example?from=o@ops.example"))
    if scheme != "mailto" or host in INWARD[:3]
]
WRITTEN = [
    Rubbish("another method", "json://127.0.0.2:{port}/x?method=DELETE"),
    Rubbish("a header", f"json://127.0.0.2:{{port}}/x?+Authorization={SECRET}"),
    Rubbish("a header of a mail", "mailto://127.0.0.2:{port}/a@b.example?from=o@ops.example&+Bcc=c@b.example"),
    Rubbish("a header with a line break", "json://127.0.0.2:{port}/x?+X=a%0D%0AHost:%20b"),
    Rubbish("a file", "file:///etc/passwd"),
    *(Rubbish(f"scheme {s}", f"{s}://127.0.0.2:{{port}}/{SECRET}") for s in ("ftp", "gopher", "ldap", "unix", "http")),
    Rubbish("no host", "https:///x"),
    Rubbish("port 0", "webhook+http://127.0.0.2:0/x"),
    Rubbish("a name in the worker's file that is not there", "named:nobody"),
]


STORED = [name for name in NAMES if "surrogate" not in name.what]
"""No database holds half a character."""


@table([*LEADING, *WRITTEN, *STORED])
def test_a_contact_that_leads_inside_or_makes_no_sense_is_refused(rubbish: Rubbish, office: Post) -> None:
    is_refused(rubbish, office, office.tell)


@pytest.mark.nightly
@table([*LEADING, *WRITTEN, *STORED])
def test_a_contact_that_is_refused_takes_no_time(rubbish: Rubbish, hasty: Post) -> None:
    is_refused(rubbish, hasty, hasty.tell_in_time)


def is_refused(rubbish: Rubbish, office: Post, tell: Callable[[NoticeActivities, int], TellAnswer]) -> None:
    contact = rubbish.value.replace("{port}", str(office.inside_port))
    answer = tell(office.activity(contact), 1)
    assert office.inside == []
    assert list(answer.refused) == ["0/bad"]
    assert SECRET not in str(answer)
    threw("contacts")


@pytest.mark.parametrize("host", [h.strip("[]") for h in INWARD if h[-1].isdigit() or ":" in h])
def test_a_proxy_is_asked_for_no_address_inside(host: str, office: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a proxy configured, the proxy resolves names; the worker still refuses a literal inner address."""
    monkeypatch.setenv("HTTP_PROXY", f"http://{INSIDE}:{office.inside_port}")
    monkeypatch.setenv("NO_PROXY", LISTED)
    written = f"[{host}]" if ":" in host else host
    answer = office.tell(office.activity(f"webhook+http://{written}:9/x"), many=1)
    assert (len(answer.refused), office.inside) == (1, [])


def test_a_named_contact_is_what_the_workers_file_says(office: Post) -> None:
    got: list[bytes] = []
    with receiver(takes(got)) as port:
        clock, reach = (lambda: datetime.now(UTC)), Reach(networks_of(LISTED))
        named = {"hook": f"webhook+http://{LISTED}:{port}/{SECRET}", "inside": f"webhook+http://{INSIDE}:9/{SECRET}"}
        notifier = Notifier(office.home / "notices.jsonl", clock, reach=reach, named=named)
        contacts: dict[str, tuple[str, ...]] = {"a": ("named:hook",), "b": ("named:inside",), "c": ("named:other",)}
        activity = told_by(office.home, notifier, contacts)
        answer = activity.tell(TellRequest(cluster="c", notices=tuple(notice(each, each) for each in contacts)))
    assert (len(got), set(answer.delivered), set(answer.refused)) == (1, {"a"}, {"b", "c"})
    assert "'named:other' is not in the worker's file of contacts (BACKSTOP_CONTACTS)" in answer.refused["c"]
    assert SECRET not in str(answer)


def test_the_operator_lists_networks_that_contacts_may_lead_to() -> None:
    reach = Reach(networks_of(" 10.1.0.0/16, fd00::/8 ,192.0.2.7"))
    reached = ["10.1.2.3", "10.2.0.1", "fd12::1", "fe80::1", "192.0.2.7", "192.0.2.8", "1.1.1.1", "2606:4700::1111"]
    assert [a for a in reached if reach.admits(a)] == ["10.1.2.3", "fd12::1", "192.0.2.7", "1.1.1.1", "2606:4700::1111"]
    assert [a for a in reached if PUBLIC.admits(a)] == ["1.1.1.1", "2606:4700::1111"]
    for wrong in ("10.1.0.1/16", "10.0.0.0/33", "everywhere"):
        with pytest.raises(BadInput, match="BACKSTOP_CONTACT_NETWORKS has '" + wrong):
            networks_of(wrong)
