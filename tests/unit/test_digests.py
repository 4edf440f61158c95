"""When a notice goes out and which go together, against a day counted by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from activities.notices.rendering import render_together
from activities.notices.sending import _rollout_of
from client.doctor import notice_checks
from models.fleet.state import FLEET
from models.notice_digests import (
    Lane,
    Letter,
    MailPace,
    Posted,
    Told,
    Untold,
    lane_of,
    next_digest,
    next_message_time,
    notices_together,
    overtake_lane,
    restate_notices,
    still_asks,
    superseded_keys,
)
from models.notices import Notice, NoticeKind, Notify
from models.questions import LedgerCheck
from models.rollout import mailing
from models.rollout.gates import conditions
from models.rollout.stages import Command
from models.temporal_names import TellAnswer
from tests.unit.pure_world import World, quota

PACE = MailPace()
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
EIGHT = datetime(2026, 3, 3, 8, tzinfo=UTC)
"""The next hour of digests."""


def seconds(after: float) -> datetime:
    return NOON + timedelta(seconds=after)


def notice(kind: NoticeKind | str = NoticeKind.PLANNED, cluster: str = "c1", number: int = 1, **more: Any) -> Notice:
    key = f"{cluster}/1/{number:06d}/{kind}"
    given = {"audience": "research", "owner": "tpm", **more}
    return Notice(key=key, kind=NoticeKind(kind), cluster=cluster, **given)


def letter(*notices: Notice) -> Letter:
    """They were posted at noon, in this order."""
    return Letter(
        key="k", audience="research", formed_at=EIGHT, notices=notices, posted_at={n.key: NOON for n in notices}
    )


def posted(at: datetime, lane: Lane = Lane.EACH, **more: Any) -> Posted:
    return Posted(notice=notice(**more), posted_at=at, lane=lane)


@pytest.mark.parametrize(
    ("kind", "stage", "each", "digest", "breach_only"),
    [
        ("breach", "enforced", "urgent", "urgent", "urgent"),
        ("rolled_back", "rolled_back", "urgent", "urgent", "urgent"),
        ("stuck", "stuck", "urgent", "urgent", "urgent"),
        ("held", "buffered", "urgent", "urgent", "urgent"),
        ("held", "planned", "each", "digest", None),
        ("planned", "planned", "each", "digest", None),
        ("at_risk", "monitored", "each", "digest", None),
        ("fleet_held", "", "each", "digest", None),
    ],
)
def test_what_endangers_a_promise_is_urgent_whatever_was_chosen(
    kind: str, stage: str, each: str, digest: str, breach_only: str | None
) -> None:
    one = notice(kind, stage=stage)
    assert [lane_of(one, wish) for wish in Notify] == [each, digest, breach_only]


@pytest.mark.parametrize(
    ("after", "at"),
    [
        (datetime(2026, 3, 2, 7, 59, tzinfo=UTC), datetime(2026, 3, 2, 8, tzinfo=UTC)),
        (datetime(2026, 3, 2, 8, tzinfo=UTC), EIGHT),
        (NOON, EIGHT),
    ],
)
def test_a_digest_goes_at_the_first_hour_after(after: datetime, at: datetime) -> None:
    assert next_digest(after, PACE) == at


def planned(at: datetime, period: timedelta, lane: Lane = Lane.DIGEST) -> Posted:
    return posted(at, lane, effective_at=at + period)


TOLD_THRICE = [seconds(-300), seconds(-200), seconds(-100)]


def urgent(times: list[datetime]) -> list[datetime | Told]:
    return [Told(at, urgent=True) for at in times]


@pytest.mark.parametrize(
    ("waiting", "told", "at"),
    [
        ([], [], None),
        ([posted(NOON)], [], seconds(10)),
        ([posted(seconds(n)) for n in (0, 8, 15)], [], seconds(25)),
        ([posted(seconds(n)) for n in range(0, 90, 5)], [], seconds(60)),
        ([posted(NOON)], TOLD_THRICE[1:], seconds(10)),
        ([posted(NOON)], TOLD_THRICE, seconds(300)),
        ([planned(NOON, timedelta(0), Lane.EACH)], TOLD_THRICE, seconds(60)),
        ([planned(NOON, timedelta(minutes=3), Lane.EACH)], TOLD_THRICE, seconds(180)),
        ([planned(NOON, timedelta(days=3), Lane.EACH)], TOLD_THRICE, seconds(300)),
        ([planned(NOON, timedelta(0))], TOLD_THRICE, seconds(60)),
        ([posted(NOON, Lane.URGENT)], [], NOON),
        ([posted(NOON, Lane.URGENT)], urgent(TOLD_THRICE), NOON),
        ([posted(NOON, Lane.URGENT)], urgent([*TOLD_THRICE, seconds(-5)]), seconds(55)),
        ([posted(NOON, Lane.URGENT)], [*TOLD_THRICE, seconds(-5)], NOON),
        ([posted(NOON, Lane.URGENT)], [*urgent(TOLD_THRICE[:2]), *TOLD_THRICE[2:], seconds(-5)], NOON),
        ([posted(NOON, Lane.DIGEST)], TOLD_THRICE, EIGHT),
        ([planned(NOON, timedelta(days=3))], [], EIGHT),
        ([planned(NOON, timedelta(hours=1))], [], NOON + timedelta(hours=1)),
        ([planned(NOON, timedelta(0))], [], seconds(10)),
        ([posted(NOON, Lane.DIGEST), posted(seconds(60), Lane.URGENT, kind="breach")], [], seconds(60)),
    ],
    ids=[
        *("nothing", "a moment for companions", "a moment after the last", "a minute at most"),
        *("the third in ten minutes", "after three, when the first is ten minutes old"),
        *("after three, a gate waits a minute for its notice", "or as long as its period", "which may be long"),
        "nor does a digest hold it longer",
        *("at once", "at once after three that are a while ago", "a minute after the fourth"),
        *("at once after ordinary mail", "at once after two such and ordinary mail"),
        *("the day's", "the period waits for the digest", "no longer than the period", "no period, no day"),
        "urgent news waits for nobody",
    ],
)
def test_a_message_is_due(waiting: list[Posted], told: list[datetime | Told], at: datetime | None) -> None:
    messages = [each if isinstance(each, Told) else Told(each, urgent=False) for each in told]
    assert next_message_time(waiting, messages, PACE) == at


@pytest.mark.parametrize("every", [0.0, 1.0, 10.0], ids=["at once", "in a minute", "in ten minutes"])
@pytest.mark.parametrize("lane", [Lane.EACH, Lane.URGENT, Lane.DIGEST])
def test_sixty_notices_are_a_handful_of_messages(every: float, lane: Lane) -> None:
    """Each is sent once, and there are at most a few messages in any ten minutes."""
    waiting = [posted(seconds(every * n), lane, cluster=f"c{n:02d}") for n in range(60)]
    told: list[Told] = []
    gone: list[str] = []
    now = NOON
    while len(gone) < 60:
        there = [w for w in waiting if w.posted_at <= now and w.notice.key not in gone]
        if going := notices_together(there, told, now, PACE):
            gone += [w.notice.key for w in going]
            told.append(Told(now, urgent=lane is Lane.URGENT))
        at = next_message_time([w for w in there if w.notice.key not in gone], told, PACE)
        now = min([w.posted_at for w in waiting if w.posted_at > now] + ([at] if at is not None else []), default=now)
    assert sorted(gone) == sorted(w.notice.key for w in waiting)
    most = max(sum(at <= other < at + timedelta(minutes=10) for other, _ in told) for at, _ in told)
    assert most <= {Lane.EACH: 3, Lane.URGENT: 13, Lane.DIGEST: 1}[lane]
    assert len(told) == 1 or every or lane is not Lane.EACH, "forty clusters that begin together are one message"


def test_no_older_news_of_a_cluster_follows_its_urgent_news() -> None:
    waiting = [
        posted(NOON, Lane.DIGEST, kind="buffered", number=2),
        posted(NOON, Lane.EACH, kind="buffered", cluster="c2"),
        posted(seconds(1), Lane.URGENT, kind="rolled_back", number=3),
    ]
    assert [w.notice.key for w in notices_together(waiting, [], seconds(1), PACE)] == [
        "c1/1/000002/buffered",
        "c1/1/000003/rolled_back",
    ]


def test_a_cut_that_takes_effect_before_its_team_was_told_is_told_at_once() -> None:
    untold = [notice("planned"), notice("monitored", "c2")]
    assert overtake_lane(notice("buffered"), Lane.DIGEST, untold) is Lane.URGENT
    assert overtake_lane(notice("buffered", "c2"), Lane.DIGEST, untold) is Lane.DIGEST
    assert overtake_lane(notice("monitored"), Lane.DIGEST, untold) is Lane.DIGEST


def test_a_period_that_runs_from_the_sending_ends_as_much_later() -> None:
    (sent,) = restate_notices([planned(NOON, timedelta(days=3))], EIGHT)
    assert sent.effective_at == datetime(2026, 3, 6, 8, tzinfo=UTC), "three days from when the team knows"
    breach = posted(NOON, kind="breach", effective_at=NOON)
    assert restate_notices([breach], EIGHT) == (breach.notice,)


def test_what_was_overtaken_asks_nothing() -> None:
    first, second = notice("planned"), notice("closed", number=2)
    held = notice("held", "c2", facts={"goes_on": "at noon"})
    other, risk = notice("planned", "c3"), notice("at_risk", "c3", number=2)
    assert still_asks([first, second, held, other, risk]) == {other.key}


def asked(request: str, number: int) -> Notice:
    key = f"request/{request}/{number:06d}/told"
    return notice("request", facts={"to_owner": True}).model_copy(update={"key": key})


@pytest.mark.parametrize(
    ("notices", "asking", "past"),
    [
        ([asked("q-1", 1), asked("q-2", 1)], [0, 1], []),
        ([asked("q-1", 1), asked("q-1", 2)], [1], [0]),
        ([notice("planned"), asked("q-1", 1)], [0, 1], []),
        ([notice("held"), notice("held", number=2)], [0, 1], []),
        ([notice("held"), notice("held", number=2), notice("buffered", number=3)], [], [0, 1]),
        ([notice("planned"), notice("held", number=2)], [0, 1], []),
        ([notice("planned"), notice("changed", number=2)], [1], [0]),
        ([notice("held", facts={"late": True}), notice("monitored", number=2)], [0], []),
        ([notice("held", facts={"late": True}), notice("closed", number=2)], [], [0]),
        ([notice("at_risk"), notice("at_risk", number=2)], [], [0]),
        ([notice("planned", "a"), notice("closed", "b")], [0], []),
    ],
    ids=[
        *(
            "two requests of one cluster",
            "one request twice",
            "a plan and a request",
            "two holds",
            "holds that are over",
        ),
        *("a hold beside a plan", "a plan that changed", "a late objection", "a late objection that is over"),
        *("a risk that is over", "two clusters"),
    ],
)
def test_what_is_past_is_what_a_later_notice_about_the_same_made_so(
    notices: list[Notice], asking: list[int], past: list[int]
) -> None:
    assert still_asks(notices) == {notices[n].key for n in asking}
    assert superseded_keys(notices) == {notices[n].key for n in past}


FIGURES: dict[str, Any] = {"before_gpus": 345, "after_gpus": 306, "phantom_gpus": 26, "to_flex_gpus": 13}
LATER = NOON + timedelta(days=3)


@pytest.mark.parametrize(
    ("notices", "says", "never"),
    [
        (
            [
                notice("planned", effective_at=LATER, **FIGURES),
                notice("closed", number=2, stage="planned", before_gpus=345, after_gpus=345),
            ],
            [
                "- 2 March, 12:00 UTC: c1: the quota of research was to go from 345 to 306 GPUs",
                "39 fewer: 26 had no healthy GPU behind them when this was planned, 13 were to move to flex.",
                "- 2 March, 12:00 UTC: c1: the rollout is closed; the quota of research stays at 345 GPUs",
            ],
            ["Not before", "object until then", "(from ", "killed", "wants an answer"],
        ),
        (
            [
                notice("planned", effective_at=LATER, **FIGURES),
                notice("buffered", number=2, stage="buffered", **FIGURES),
            ],
            ["was to go from 345 to 306 GPUs", "the quota of research is now 306 GPUs; it was 345", "killed"],
            ["Not before", "(from "],
        ),
        (
            [
                notice("at_risk", stage="monitored", before_gpus=345, after_gpus=306, backing_gpus=290),
                notice("at_risk", number=2, stage="monitored", before_gpus=345, after_gpus=306, backing_gpus=306),
            ],
            [
                "c1: the quota of research was at risk: 290 of 306 GPUs backed",
                "290 of its 306 GPUs were backed by healthy hardware then; 16 were not.",
                "c1: the quota of research is fully backed again",
                "All of its 306 GPUs were backed by healthy hardware then.",
            ],
            ["at the moment", "killed"],
        ),
        (
            [notice("held", stage="planned", facts={"goes_on": "when the window ends"}, detail="maintenance")],
            ["c1: the rollout is held", "It goes on by itself when the window ends."],
            ["wants an answer"],
        ),
        (
            [notice("monitored", owner="research", after_gpus=306, before_gpus=306, backing_gpus=306)],
            ["c1: the rollout is complete"],
            ["backstop status", "See what holds the rollout"],
        ),
        (
            [notice("held", owner="research", stage="planned"), notice("buffered", number=2, stage="buffered")],
            ["c1: the rollout was held"],
            ["backstop status", "wants an answer", "waits for you"],
        ),
    ],
    ids=["given up", "promoted", "a risk that is over", "it goes on by itself", "the owner is a team", "a hold lifted"],
)
def test_a_digest_says_when_it_was_so_and_what_is_past(
    notices: list[Notice], says: list[str], never: list[str]
) -> None:
    going = [Posted(notice=n, posted_at=NOON, lane=Lane.DIGEST) for n in notices]
    subject, body = render_together(letter(*restate_notices(going, EIGHT), notice("monitored", "other")))
    text = f"{subject}\n{body}"
    assert [words for words in says if words not in text] == []
    assert [words for words in never if words in text] == []


def test_what_is_archived_of_a_sent_notice_names_its_rollout() -> None:
    held = notice("fleet_held", FLEET).model_copy(update={"key": "fleet/7/000012/fleet"})
    assert [_rollout_of(n) for n in (notice("held"), held, asked("q-1", 1))] == ["c1/1", "fleet/7", ""]


def test_a_digest_begins_with_what_wants_an_answer_and_says_each_figure() -> None:
    figures: dict[str, Any] = {"before_gpus": 345, "after_gpus": 306, "phantom_gpus": 26, "to_flex_gpus": 13}
    wanted = notice("planned", "h100-b", effective_at=EIGHT, reasons=("35 GPUs are held by no job",), **figures)
    done = notice("monitored", "h100-a", before_gpus=8, after_gpus=8, backing_gpus=8)
    subject, body = render_together(letter(done, wanted), "https://front.example/")
    assert subject == "2 notices for research: 1 wants an answer"
    assert body == (
        "Hello research,\n\n"
        "This wants an answer (1):\n\n"
        "- 2 March, 12:00 UTC: h100-b: the quota of research goes from 345 to 306 GPUs (from 3 March 2026)\n"
        "    Not before Tuesday 3 March 2026, 08:00 UTC; object until then.\n"
        "    39 fewer: 26 had no healthy GPU behind them when this was planned, 13 move to flex.\n"
        "    35 GPUs are held by no job\n\n"
        "To say that you have read one:\n"
        "    backstop ack CLUSTER --team research\n"
        "To object; the change then waits until a person has answered:\n"
        '    backstop object CLUSTER --team research --reason "..."\n\n'
        "In the browser: https://front.example/\n\n"
        "What happened (1):\n\n"
        "- 2 March, 12:00 UTC: h100-a: the rollout is complete; the quota of research stays at 8 GPUs\n"
        "    All of its 8 GPUs were backed by healthy hardware then.\n\n"
        "Nothing that is running is killed: jobs above a quota run on, as flex. How to use flex: submit the job to the "
        "flex queue (in Slurm: sbatch -A and your team's flex account).\n\n"
        "Questions? Ask tpm.\n"
    )
    assert "browser" not in render_together(letter(done, wanted))[1]


def test_urgent_news_leads_its_message() -> None:
    old = notice("buffered", before_gpus=345, after_gpus=306, stage="buffered")
    new = notice("rolled_back", number=2, before_gpus=306, after_gpus=295, backing_gpus=295, detail="295 are healthy")
    subject, body = render_together(letter(old, new))
    assert subject == "c1: rolled back; the quota of research is 295 GPUs, and 1 more"
    assert body.index("This cannot wait (1)") < body.index("295 are healthy") < body.index("What happened (1)")


def test_doctor_shows_what_waits_and_what_should_not() -> None:
    waits = [
        Untold(audience="daily", notices=12, since=NOON, due=EIGHT, digest=True),
        Untold(audience="dead", notices=1, since=NOON, due=NOON, digest=False, trouble="email a@b.example (no answer)"),
        Untold(audience="late", notices=2, since=NOON, due=seconds(10), digest=False),
    ]
    checks = notice_checks(LedgerCheck(open_rollouts=0, notices=tuple(waits)), NOON + timedelta(hours=1))
    assert [(check.ok, check.text) for check in checks] == [
        (False, "1 notice for dead has waited since 2026-03-02 12:00Z: email a@b.example (no answer)"),
        (False, "2 notices for late have waited since 2026-03-02 12:00Z: due, but not sent"),
        (True, "12 notices for daily wait until 2026-03-03 08:00Z"),
    ]
    (well,) = notice_checks(LedgerCheck(open_rollouts=0), NOON)
    assert (well.ok, well.text) == (True, "none waits")


def test_a_rollout_says_who_is_to_be_told_when_and_what_is_in_the_way() -> None:
    """This includes the mode without digests: there a notice waits ten seconds for others, which may not come."""
    world = World((quota("a", 180), quota("b", 181)), notice="1d")
    assert world.r.plan is not None
    world.say(Command.APPROVE, run=False, plan_hash=world.r.plan.hash)
    rollout = mailing.notify_teams(world.r, world.now).notify(NoticeKind.MONITORED, ["a"])
    to_a, to_b, other = (n.key for n in rollout.post.mail)
    at = world.now + timedelta(seconds=10)
    waiting = TellAnswer(delivered={}, failed={to_b: "nobody listens"}, refused={}, waiting={to_a: at, other: at})
    rollout = mailing.apply_delivery(rollout, rollout.post.mail, waiting, world.now)
    (said,) = [c.text for c in conditions(rollout, world.now) if c.name == "notice"]
    assert said == (
        f"Backstop notifies a at {at:%Y-%m-%d %H:%M:%SZ}; the notice period starts then (trying again: nobody listens)"
    )
    assert rollout.post.outbox[-1].text == f"Backstop will notify a at {at:%Y-%m-%d %H:%MZ}: monitored"
