"""Notices of forty clusters to a few teams, by real SMTP and HTTP, on both databases: who gets how many messages, when,
and whether each says what the ledger says. Plain SQL is the witness.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from activities.adapters.http import Reach, networks_of
from activities.adapters.ledger.facade import Ledger
from activities.adapters.notify.notifier import Notifier
from activities.notices.sending import Sender
from activities.notices.telling import NoticeActivities
from client.doctor import notice_checks
from models.notice_digests import Lane, MailPace
from models.notices import Notice, NoticeKind
from models.questions import LedgerCheck
from models.rollout import mailing
from models.rollout.stages import Command
from models.temporal_names import TellAnswer, TellRequest
from tests.e2e.world import on_postgresql
from tests.integration.ledger.test_observations import counted_queries
from tests.integration.ledger.world import import_fleet
from tests.integration.notice_servers import Mail, Web, mail_server, web_server
from tests.unit.pure_world import World, quota

pytestmark = pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")
ROOT = Path(__file__).parents[2]
CLUSTERS = [f"c{n:02d}" for n in range(40)]
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
PACE = MailPace()


def sql(url: str, query: str) -> list[tuple[Any, ...]]:
    """Query past the product."""
    if url.startswith("sqlite"):
        with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            return connection.execute(query).fetchall()
    with psycopg.connect(url) as connection:
        return connection.execute(query).fetchall()


def run(url: str, statement: str) -> None:
    """Run a statement as another tool does."""
    if url.startswith("sqlite"):
        with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
            connection.execute(statement)
        return
    with psycopg.connect(url) as postgres:
        postgres.execute(statement)


class Office:
    """The activities of a worker on a ledger of forty clusters, with a clock that the test moves."""

    def __init__(self, url: str, home: Path, mail: Mail, web: Web, choices: dict[str, str | None], usual: str) -> None:
        self.url, self.home, self.mail, self.web, self.now = url, home, mail, web, NOON
        self.ledger = Ledger(url, lambda: self.now)
        here = Reach(networks_of("127.0.0.0/8"))
        self.notifier = Notifier(home / "notices.jsonl", lambda: self.now, mail.url, reach=here)
        self.sender = Sender(self.notifier, self.ledger.outbox, self.ledger.registry, PACE, "https://front.example")
        self.activities = NoticeActivities(self.notifier, self.ledger.registry, self.ledger.outbox, self.sender)
        quotas = [{"team": team, "gpus": 8} for team in choices]
        hook = f"webhook+http://127.0.0.1:{web.port}"
        document = {
            "policy": {"notify": usual},
            "clusters": [
                {"name": c, "islands": [{"name": "m", "total_gpus": 64, "healthy_gpus": 64}], "quotas": quotas}
                for c in CLUSTERS
            ],
            "teams": [
                {"name": team, "contacts": [f"{team}@team.example", f"{hook}/{team}"]}
                | ({} if choice is None else {"notify": choice})
                for team, choice in choices.items()
            ],
        }
        import_fleet(self.ledger, document, now=NOON)

    def tell(self, cluster: str, kind: str, *teams: str, **more: Any) -> TellAnswer:
        """Tell the teams, as a rollout of the cluster does."""
        notices = tuple(
            Notice(
                key=f"{cluster}/1/{self.now:%H%M%S}/{team}/{kind}",
                kind=NoticeKind(kind),
                cluster=cluster,
                audience=team,
                owner="tpm",
                **more,
            )
            for team in teams
        )
        return self.activities.tell(TellRequest(cluster=cluster, notices=notices))

    def watch(self) -> None:
        """Send what is due, as the watch's rounds do."""
        for audience in self.ledger.outbox.audiences_due(PACE):
            self.sender.send(audience)

    def passes(self, until: datetime, step: timedelta = timedelta(seconds=15)) -> None:
        while self.now < until:
            self.now = min(self.now + step, until)
            self.watch()

    def messages(self, team: str) -> list[tuple[str, str]]:
        """Subject and body of each e-mail to the team; each went to its webhook as well."""
        mails = [(str(m["Subject"]), m.get_content()) for m in self.mail.to(f"{team}@team.example")]
        hooks = [(r.json["title"], r.json["message"]) for r in self.web.posts(f"/{team}")]
        assert [subject for subject, _ in mails] == [subject for subject, _ in hooks]
        return mails


nightly = on_postgresql


@pytest.fixture
def servers() -> Iterator[tuple[Mail, Web]]:
    with mail_server("robot", "secret") as mail, web_server() as web:
        yield mail, web


@pytest.fixture
def office(ledger_url: str, tmp_path: Path, servers: tuple[Mail, Web]) -> Iterator[Office]:
    choices = {"daily": "digest", "eager": None, "calm": "breach-only"}
    office = Office(ledger_url, tmp_path, *servers, choices, "each")
    yield office
    office.ledger.close()


def planned(n: int, effective_at: datetime) -> dict[str, Any]:
    """Figures that no two clusters share."""
    cut, phantom = 10 + n, 3 + n // 2
    return {
        "before_gpus": 300 + n,
        "after_gpus": 300 + n - cut,
        "phantom_gpus": phantom,
        "to_flex_gpus": cut - phantom,
        "effective_at": effective_at,
        "reasons": (f"{cut} GPUs of the quota are held by no job",),
        "stage": "planned",
    }


def test_a_day_of_forty_clusters_is_one_digest_a_few_messages_or_nothing(office: Office) -> None:
    """Forty cuts are announced within four minutes; one team of three wants each, one a digest, one breaches alone."""
    for n, cluster in enumerate(CLUSTERS):
        effective = office.now + timedelta(days=3)
        answer = office.tell(cluster, "planned", "daily", "eager", "calm", **planned(n, effective))
        assert {key.split("/")[-2] for key in answer.delivered} == {"calm"}, "in the log, which is all it wants"
        assert {key.split("/")[-2] for key in answer.waiting} == {"daily", "eager"}
        office.passes(office.now + timedelta(seconds=6), timedelta(seconds=3))
    office.passes(NOON + timedelta(minutes=30), timedelta(minutes=1))
    assert (len(office.messages("daily")), len(office.messages("calm"))) == (0, 0)
    eager = office.messages("eager")
    assert 1 <= len(eager) <= 5
    office.passes(datetime(2026, 3, 3, 8, tzinfo=UTC), timedelta(hours=4))
    ((subject, digest),) = office.messages("daily")
    assert subject == "40 notices for daily: 40 want an answer"
    assert len(office.messages("eager")) == len(eager), "and nothing comes twice"

    rows = sql(
        office.url, "SELECT n.audience, n.notice, m.formed_at FROM notices n JOIN messages m ON m.key = n.message"
    )
    assert Counter(audience for audience, *_ in rows) == {"daily": 40, "eager": 40}
    said = {"daily": digest, "eager": "\n".join(f"{subject}\n{body}" for subject, body in eager)}
    for audience, text, formed_at in rows:
        told = json.loads(text)
        assert f"{told['cluster']}: the quota of {audience} goes from {told['before_gpus']} to " in said[audience]
        cut = told["before_gpus"] - told["after_gpus"]
        them = "it" if told["phantom_gpus"] == 1 else "them"
        figures = f"{cut} fewer: {told['phantom_gpus']} had no healthy GPU behind {them} when this was planned, "
        assert f"{figures}{told['to_flex_gpus']} move to flex" in said[audience]
        formed = formed_at if isinstance(formed_at, datetime) else datetime.fromisoformat(formed_at)
        assert datetime.fromisoformat(told["effective_at"]) - formed == timedelta(days=3), "from when it is told"
    assert digest.count("Not before Friday 6 March 2026, 08:00 UTC; object until then.") == 40
    lines = (office.home / "notices.jsonl").read_text().splitlines()
    keys = Counter(json.loads(line)["key"] for line in lines)
    assert sum(key.endswith("/planned") for key in keys) == 120, "the log has each"
    assert set(keys.values()) == {1}
    archived = [json.loads(entry) for (entry,) in sql(office.url, "SELECT entry FROM audit WHERE cluster = 'c07'")]
    texts = [entry["text"] for entry in archived]
    assert "Backstop notified daily: planned, with 39 other notices in one message" in texts


def test_a_notice_for_no_person_asks_for_no_policy(office: Office) -> None:
    """A team that has no address and has chosen nothing: the log is all."""
    with counted_queries() as queries:
        answer = office.tell("c01", "planned", "nameless", **planned(1, NOON))
    assert [len(deliveries) for deliveries in answer.delivered.values()] == [1]
    assert len(queries) == 1


def test_whoever_asks_again_learns_when_a_notice_was_sent(office: Office) -> None:
    """The notice period begins then: a digest makes no cut's notice shorter."""
    figures = planned(1, NOON + timedelta(days=3))
    first = office.tell("c01", "planned", "daily", **figures)
    ((key, due),) = first.waiting.items()
    assert due == datetime(2026, 3, 3, 8, tzinfo=UTC)
    notice = Notice(key=key, kind=NoticeKind.PLANNED, cluster="c01", audience="daily", owner="tpm", **figures)
    office.passes(due, timedelta(hours=1))
    again = office.activities.tell(TellRequest(cluster="c01", notices=(notice,)))
    assert {(d.channel, d.at) for d in again.delivered[key]} >= {("email", due), ("webhook", due)}
    assert len(office.messages("daily")) == 1


def test_that_a_team_was_told_is_archived_once_whoever_sent_it(office: Office) -> None:
    """One notice of a cut waits for a round of the watch; another goes in the rollout's own call."""
    world = World((quota("daily", 180), quota("calm", 181)), notice="1d")
    assert world.r.plan is not None
    world.say(Command.APPROVE, run=False, plan_hash=world.r.plan.hash)
    rollout = mailing.notify_teams(world.r, world.now)
    keys = {n.audience: n.key for n in rollout.post.mail}
    for at in (NOON, datetime(2026, 3, 3, 9, tzinfo=UTC)):
        office.passes(at, timedelta(hours=1))
        answer = office.activities.tell(TellRequest(cluster=rollout.cluster, notices=rollout.post.mail))
        rollout = mailing.apply_delivery(rollout, rollout.post.mail, answer, office.now)
    office.ledger.registry.archive(rollout.post.outbox)
    entries = sql(office.url, "SELECT entry FROM audit WHERE entry LIKE '%Backstop notified %'")
    rows = [json.loads(entry) for (entry,) in entries]
    assert Counter(row["data"]["key"] for row in rows) == dict.fromkeys((keys["daily"], keys["calm"]), 1)
    assert rollout.post.mail == ()


@pytest.mark.parametrize("contact", ["log", " LOG "])
def test_a_team_whose_only_contact_is_the_log_has_each_notice_there_once(office: Office, contact: str) -> None:
    run(office.url, "DELETE FROM contacts WHERE team = 'daily' AND position > 0")
    run(office.url, f"UPDATE contacts SET address = '{contact}' WHERE team = 'daily'")
    for cluster in ("c01", "c02"):
        answer = office.tell(cluster, "planned", "daily", **planned(1, NOON + timedelta(days=3)))
        assert (len(answer.delivered), answer.waiting) == (1, {})
    office.passes(datetime(2026, 3, 3, 9, tzinfo=UTC), timedelta(hours=1))
    lines = [json.loads(line) for line in (office.home / "notices.jsonl").read_text().splitlines()]
    assert [line["notice"]["cluster"] for line in lines] == ["c01", "c02"]


@pytest.mark.parametrize("kind", ["breach", "rolled_back", "stuck", "held"])
def test_what_endangers_a_promise_goes_at_once_in_every_mode(kind: str, office: Office) -> None:
    office.tell("c01", "planned", "daily", **planned(1, NOON + timedelta(days=3)))
    office.tell("c02", "planned", "daily", **planned(2, NOON + timedelta(days=3)))
    office.now += timedelta(seconds=1)
    more = {"before_gpus": 310, "after_gpus": 295, "stage": "enforced", "detail": "hardware is missing"}
    answer = office.tell("c01", kind, "daily", "eager", "calm", **more)
    assert len(answer.delivered) == 3
    for team in ("daily", "eager", "calm"):
        ((subject, body),) = office.messages(team)
        assert subject.startswith("c01: ")
        assert "hardware is missing" in body
    assert "and 1 more" in office.messages("daily")[0][0], "older news of the cluster does not follow newer"
    office.passes(datetime(2026, 3, 3, 8, tzinfo=UTC), timedelta(hours=1))
    assert [s for s, _ in office.messages("daily")][1:] == [
        "c02: the quota of daily goes from 302 to 290 GPUs (from 6 March 2026)"
    ]
    assert len(office.messages("calm")) == 1


@pytest.mark.parametrize(("kind", "most"), [("buffered", 4), ("rolled_back", 13)])
def test_sixty_notices_in_ten_minutes_are_a_handful_of_messages(kind: str, most: int, office: Office) -> None:
    for n in range(60):
        office.tell(CLUSTERS[n % 40], kind, "eager", before_gpus=9 + n, after_gpus=8, detail=f"no. {n:02d}.")
        office.passes(office.now + timedelta(seconds=10), timedelta(seconds=10))
    within = len(office.messages("eager"))
    office.passes(office.now + timedelta(minutes=20), timedelta(minutes=1))
    assert 1 <= within <= most
    text = "\n".join(body for _, body in office.messages("eager"))
    assert [text.count(f"no. {n:02d}.") for n in range(60)] == [1] * 60


def test_an_address_that_fails_holds_up_no_other(office: Office) -> None:
    """The mail server knows no such user: the webhook has each message once, and mail comes once it is mended."""
    office.mail.refused.add("eager@team.example")
    for n in range(3):
        office.tell(CLUSTERS[n], "rolled_back", "eager", before_gpus=9, after_gpus=8, detail=f"no. {n}")
        office.now += timedelta(minutes=5)
    assert len(office.web.posts("/eager")) == 3
    (waits, *_) = office.ledger.outbox.waits(PACE)
    assert (waits.audience, waits.notices) == ("eager", 1)
    assert "eager@team.example" in waits.trouble
    office.mail.refused.clear()
    office.passes(office.now + timedelta(minutes=10))
    assert (len(office.mail.to("eager@team.example")), len(office.web.posts("/eager"))) == (3, 3)
    assert office.ledger.outbox.waits(PACE) == ()


@pytest.mark.parametrize("broken", ["notice = '{}'", "lane = 'soon'"])
def test_a_notice_that_nobody_can_read_holds_up_no_other(broken: str, office: Office) -> None:
    """Another tool, or a newer build, has left it so: alone, and in a message that is being tried again."""
    office.mail.refused.add("eager@team.example")
    for cluster in ("c01", "c02"):
        office.tell(cluster, "buffered", "daily", "eager", before_gpus=9, after_gpus=8, detail=f"of {cluster}")
    office.passes(NOON + timedelta(seconds=30))
    assert sql(office.url, "SELECT count(*) FROM messages") == [(1,)], "eager's, tried again"
    stood = sql(office.url, "SELECT key, notice, lane FROM notices WHERE cluster = 'c01'")
    run(office.url, f"UPDATE notices SET {broken} WHERE cluster = 'c01'")
    office.mail.refused.clear()
    office.tell("c03", "rolled_back", "eager", before_gpus=9, after_gpus=8, detail="of c03")
    office.passes(datetime(2026, 3, 3, 8, tzinfo=UTC), timedelta(minutes=30))
    for team, told in (("daily", ["c02"]), ("eager", ["c02", "c03"])):
        text = "".join(m.get_content() for m in office.mail.to(f"{team}@team.example"))
        assert [c for c in ("c01", "c02", "c03") if f"of {c}" in text] == told
    waits = office.ledger.outbox.waits(PACE)
    assert [(w.audience, w.notices, w.due) for w in waits] == [("daily", 1, office.now), ("eager", 1, office.now)]
    for check in notice_checks(LedgerCheck(open_rollouts=0, notices=waits), office.now):
        assert "this version cannot read c01/1/120000/" in check.text
        assert check.remedy.startswith("if a newer version of Backstop posted the notice")
    for key, notice, lane in stood:
        run(office.url, f"UPDATE notices SET notice = '{notice}', lane = '{lane}' WHERE key = '{key}'")
    office.passes(datetime(2026, 3, 4, 8, tzinfo=UTC), timedelta(hours=1))
    for team in ("daily", "eager"):
        text = "".join(m.get_content() for m in office.mail.to(f"{team}@team.example"))
        assert text.count("of c01") == 1, "once it can be read it is told"
    assert office.ledger.outbox.waits(PACE) == ()


def test_a_digest_of_one_notice_says_when_it_was_written(office: Office) -> None:
    figures = {"before_gpus": 345, "after_gpus": 306, "backing_gpus": 290, "stage": "monitored"}
    office.tell("c01", "at_risk", "daily", "eager", **figures)
    office.passes(datetime(2026, 3, 3, 8, tzinfo=UTC), timedelta(minutes=5))
    ((_, body),) = office.messages("daily")
    assert "This was written on Monday 2 March 2026, 12:00 UTC." in body
    assert "290 of its 306 GPUs were backed by healthy hardware then; 16 were not." in body
    ((_, body),) = office.messages("eager")
    assert "290 of its 306 GPUs are backed by healthy hardware at the moment; 16 are not." in body
    assert "written on" not in body
    assert "In the browser: https://front.example/teams/eager?cluster=c01\n" in body


def test_the_clusters_policy_speaks_for_teams_that_do_not(
    sqlite_ledger_url: str, tmp_path: Path, servers: tuple[Mail, Web]
) -> None:
    office = Office(sqlite_ledger_url, tmp_path, *servers, {"quiet": None, "eager": "each"}, "digest")
    answer = office.tell("c01", "buffered", "quiet", "eager", before_gpus=9, after_gpus=8, stage="buffered")
    due = {key.split("/")[-2]: at for key, at in answer.waiting.items()}
    assert due == {"quiet": datetime(2026, 3, 3, 8, tzinfo=UTC), "eager": NOON + timedelta(seconds=10)}
    office.ledger.close()


FEW = CLUSTERS[:12]


def cuts() -> Iterator[Notice]:
    for n, cluster in enumerate(FEW):
        figures = planned(n, NOON + timedelta(days=3))
        key = f"{cluster}/1/000001/planned"
        yield Notice(key=key, kind=NoticeKind.PLANNED, cluster=cluster, audience="daily", owner="tpm", **figures)


DYING = """
import os, pathlib, signal, sys
from datetime import datetime
from activities.adapters.ledger.facade import Ledger
from activities.adapters.notify.notifier import Notifier
from activities.adapters.http import Reach, networks_of
from activities.notices.sending import Sender
from models.notice_digests import MailPace
url, home, mail, now, steps = sys.argv[1:]
now, left = datetime.fromisoformat(now), [int(steps)]
def step(real):
    def dies(*args, **more):
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        return real(*args, **more)
    return dies
ledger = Ledger(url, lambda: now)
notifier = Notifier(pathlib.Path(home) / "notices.jsonl", lambda: now, mail, reach=Reach(networks_of("127.0.0.0/8")))
notifier._deliver_once = step(notifier._deliver_once)
notifier.deliver = step(notifier.deliver)
ledger.registry.archive = step(ledger.registry.archive)
ledger.outbox.mark_sent = step(ledger.outbox.mark_sent)
Sender(notifier, ledger.outbox, ledger.registry, MailPace()).send("daily")
print("sent")
"""


@pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("steps", [n if n == 3 else pytest.param(n, marks=pytest.mark.nightly) for n in range(7)])
def test_a_worker_that_dies_while_it_sends_a_digest_loses_nothing_and_repeats_nothing(
    steps: int, office: Office
) -> None:
    """Killed before: the delivery, its log, its mail, its webhook, the archive, the last word; and not at all."""
    office.ledger.outbox.post("daily", [(cut, Lane.DIGEST) for cut in cuts()])
    eight = datetime(2026, 3, 3, 8, tzinfo=UTC)
    command = [
        sys.executable,
        "-c",
        DYING,
        office.url,
        str(office.home),
        office.mail.url,
        eight.isoformat(),
        str(steps),
    ]
    died = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (died.returncode, died.stdout) == ((0, "sent\n") if steps == 6 else (-9, "")), died.stderr
    office.now = eight + timedelta(minutes=1)
    late = office.tell("c00", "monitored", "daily", before_gpus=8, after_gpus=8)
    assert len(late.waiting) == 1
    office.passes(eight + timedelta(minutes=5), timedelta(minutes=1))
    ((_, body),) = office.messages("daily")
    assert [body.count(f" UTC: {cluster}: ") for cluster in FEW] == [1] * 12
    ((sent, over),) = sql(office.url, "SELECT count(*), count(sent_at) FROM messages")
    assert (sent, over) == (1, 1)
    archived = [json.loads(entry) for (entry,) in sql(office.url, "SELECT entry FROM audit")]
    assert Counter(e["text"] for e in archived if not e["key"].startswith("import/")) == {
        "Backstop notified daily: planned, with 11 other notices in one message": 12
    }
    office.passes(eight + timedelta(days=1), timedelta(hours=6))
    assert len(office.messages("daily")) == 2, "what came too late for one digest is in the next"
