"""`backstop request`: what it refuses before anybody is asked, and how a request reads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest

from cli.commands.request import _day
from cli.main import run
from cli.output import show
from client.doctor import grants_check
from models.errors import BadInput
from models.lifecycle.state_machine import Refused
from models.lifecycle.workflow_actions import Finish, Wait
from models.planning.grants import Granted, GrantOutcome, Room
from models.requests.commands import REQUEST_ANSWERS, RequestCommand, RequestOrder, obey, refusal
from models.requests.decide import decide
from models.requests.reducers import (
    advance,
    apply_cancel,
    apply_delivery,
    apply_grant,
    give_up,
    open_request,
    undelivered_reasons,
)
from models.requests.state import Assessment, Elsewhere, QuotaAsk, RequestStage, RequestState
from models.requests.workflow_actions import Keep, Write
from models.temporal_names import TellAnswer
from tests.unit.cli_fakes import FakeBackstop, answering
from views.request import list_parts, request_parts

NOW = datetime(2026, 11, 22, 8, tzinfo=UTC)
DAY = timedelta(days=1)


def asked(*, fits: bool = True, **more: Any) -> RequestState:
    ask = QuotaAsk(request="q-1", team="a", cluster="c1", gpus=16, actor="dev", reason="a deadline", **more)
    room = Room(ceiling_gpus=85, assigned_gpus=70, fits_gpus=16 if fits else 15)
    found = Assessment(fits=fits, why="" if fits else "c1 is full", room=room, owners=("capacity",), quota_gpus=40)
    if not fits:
        other = Elsewhere(cluster="c2", gpu_model="H100", headroom_gpus=70, has_quota=True)
        bare = Elsewhere(cluster="c3", headroom_gpus=9, has_quota=False)
        found = found.model_copy(update={"assessed": True, "flex_gpus": 9, "elsewhere": (other, bare)})
    return open_request(ask, found, NOW)


def after(state: RequestState, command: RequestCommand, actor: str = "capacity") -> RequestState:
    request = RequestOrder(actor=actor, reason="agreed")
    assert refusal(state, command, request, ("capacity",)) is None
    return obey(state, command, request, NOW)


def granted(**more: Any) -> RequestState:
    done = Granted(request="q-1", outcome=GrantOutcome.DONE, said="written", raised={"a": 16, "org": 4})
    return apply_grant(after(asked(**more), RequestCommand.APPROVE), done, NOW)


def text(state: RequestState, capsys: pytest.CaptureFixture[str]) -> str:
    show(*request_parts(state))
    return capsys.readouterr().out


def test_a_notice_is_tried_for_a_day_and_then_it_is_said_who_was_not_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    state = granted()
    first = {n.key: n.audience for n in state.mail}
    assert set(first.values()) == {"a", "dev", "capacity"}
    dead = [key for key, audience in first.items() if audience == "a"]
    answer = TellAnswer(delivered={}, failed=dict.fromkeys(dead, "no connection"), refused={})
    for hours in (0, 1, 23):
        now = NOW + timedelta(hours=hours)
        assert undelivered_reasons(state, answer, now) == {}
        state = apply_delivery(state, answer, now)
        assert {n.key for n in state.mail} == set(first)
    late = undelivered_reasons(state, answer, NOW + DAY)
    assert late == dict.fromkeys(dead, "no connection")
    over = give_up(state, late, state.mail, NOW + DAY)
    assert {first[n.key] for n in over.mail} == {"dev", "capacity"}
    assert [e.text for e in over.outbox[-len(dead) :]] == [
        "request q-1: Backstop could not notify a: no connection"
    ] * len(dead)
    assert "Not notified, because no notice could be delivered: a." in text(over, capsys)
    assert over.unsent == {}


@pytest.mark.parametrize(
    ("more", "stage", "ends"),
    [({}, RequestStage.GRANTED, False), ({"until": NOW + DAY}, RequestStage.RETURNING, True)],
    ids=["for good", "for a time"],
)
def test_a_cancelled_grant_is_given_back_unless_it_is_for_good(
    more: dict[str, Any], stage: RequestStage, ends: bool
) -> None:
    found = apply_cancel(granted(**more), NOW, by_ticket=False)
    assert (found.stage, found.is_overdue(NOW)) == (stage, False)
    assert found.is_overdue(NOW + timedelta(minutes=2)) is ends
    assert granted(**more).is_overdue(NOW + 2 * DAY) is ends
    well = grants_check([found], NOW)
    assert (well.ok, well.text) == (True, "none is overdue")


def test_doctor_names_three_overdue_grants_and_counts_the_rest() -> None:
    found = grants_check([granted(until=NOW + DAY)] * 5, NOW + 2 * DAY)
    assert (found.ok, found.text.count("q-1: 16 GPUs more for a in c1 until ")) == (False, 3)
    assert (found.text[:17], found.text[-12:]) == ("5 are overdue: q-", "; and 2 more")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("a c1 1.5", "GPUS must be a whole number from 1 to 10000000, not '1.5'"),
        ("a c1 0", "GPUS must be a whole number from 1 to 10000000, not '0'"),
        ("a c1 -- -3", "GPUS must be a whole number from 1 to 10000000, not '-3'"),
        ("a c1 1 --until 2020-01-01", "--until 2020-01-01 is in the past"),
        ("a c1 1 --until=", "--until is empty: give it a value, or leave it out"),
        ("a c1 1 --namespace=", "--namespace is empty: give it a value, or leave it out"),
        ("a c1 1 --namespace a,b", "--namespace takes one name, not 'a,b'"),
        (
            "a c1 1 --until soon",
            "--until must be a time such as 2026-12-01T18:00Z, or a duration such as 4h, not 'soon'",
        ),
        ("a c1 1 --until 2026-13-01", "--until must be a time such as"),
        ("show Q!", "ID must be a request's id, such as q-4f2a9c1b, not 'Q!'"),
    ],
)
def test_bad_input_is_refused_before_anybody_is_asked(
    arguments: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["request", *arguments.split()]) == 2
    assert sentence in capsys.readouterr().err


def test_a_day_is_meant_to_its_end() -> None:
    assert _day("2026-12-24", NOW) == datetime(2026, 12, 25, tzinfo=UTC)
    assert _day("2026-12-24T06:00Z", NOW) == datetime(2026, 12, 24, 6, tzinfo=UTC)
    assert _day("7d", NOW) == NOW + 7 * DAY
    with pytest.raises(BadInput):
        _day("2026-11-21", NOW)


def test_a_refused_one_says_what_there_is_instead(capsys: pytest.CaptureFixture[str]) -> None:
    out = text(asked(fits=False, until=NOW + DAY), capsys)
    assert "Refused: c1 is full.\n" in out
    assert "  less of it: 15 GPUs fit: backstop request new a c1 15 --until 2026-11-23T08:00:00Z\n" in out
    assert "  flex: a could use about 9 GPUs, on which jobs inside a quota may preempt its jobs\n" in out
    assert "  c2 (H100): room to raise the quota by 70 GPUs\n" in out
    assert "  c3: could promise 9 more GPUs; a has no quota there yet\n" in out


def test_one_that_the_policy_refuses_does_not_say_that_nothing_fits(capsys: pytest.CaptureFixture[str]) -> None:
    state = asked(fits=False)
    out = text(state.but(assessment=state.assessment.model_copy(update={"room": None})), capsys)
    assert "Possible instead:\n  flex: a could use about 9 GPUs," in out
    assert "less of it" not in out


def test_one_that_lapses_names_the_last_obstacle() -> None:
    approved = after(asked(until=NOW + DAY), RequestCommand.APPROVE)
    obstacle = "a rollout of c1 is planned, and requests wait until that is monitored or over"
    later = Granted(request="q-1", outcome=GrantOutcome.LATER, said=obstacle)
    lapsed = advance(apply_grant(approved, later, NOW), NOW + DAY)
    assert lapsed.stage is RequestStage.LAPSED
    assert lapsed.said == f"its end came before it was granted; the last obstacle: {obstacle}"


def test_one_that_is_refused_after_its_approval_is_nobody_elses_request() -> None:
    approved = after(asked(), RequestCommand.APPROVE)
    no = Granted(request="q-1", outcome=GrantOutcome.NO, said="the policy refuses requests")
    refused = apply_grant(approved, no, NOW)
    assert refused.said == "it cannot be granted: the policy refuses requests"
    said = {n.detail for n in refused.mail if "approved but" in n.detail}
    assert said == {"The request for 16 GPUs more for a in c1 was approved but cannot be granted: " + no.said}


def test_each_turn_reads_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Waits for capacity to approve it.\nTo approve it: backstop request approve q-1" in text(asked(), capsys)
    assert "rose by 16 GPUs (and its parent quotas: org by 4)." in text(granted(until=NOW + DAY), capsys)
    declined = text(after(asked(), RequestCommand.DECLINE), capsys)
    assert "Declined by capacity: agreed.\n" in declined
    show(*list_parts([granted()], "", ended=True))
    assert "granted for good, approved by capacity" in capsys.readouterr().out
    show(*list_parts([], "c1", ended=False))
    assert capsys.readouterr().out == "No request of c1 is open; also ended ones: backstop request list --all.\n"


def test_status_tells_of_requests(capsys: pytest.CaptureFixture[str]) -> None:
    here = asked()
    here = here.but(ask=here.ask.model_copy(update={"cluster": "h100-worked"}))
    with answering(FakeBackstop(requests_open=[here, asked()])):
        assert run(["status", "h100-worked"]) == 0
        one = capsys.readouterr().out
        assert run(["status"]) == 0
    assert "Requests for more quota:\n  q-1 (asked): 16 GPUs more for a in h100-worked; waits for capacity" in one
    assert one.count("q-1") == 1, "of this cluster alone"
    assert "2 requests for more quota wait for a decision: backstop request list\n" in capsys.readouterr().out


def test_its_day_ends_what_it_is() -> None:
    until = NOW + DAY
    assert advance(asked(until=until), NOW + DAY / 2).stage is RequestStage.ASKED
    assert advance(asked(until=until), until).stage is RequestStage.LAPSED
    assert advance(after(asked(until=until), RequestCommand.APPROVE), until).stage is RequestStage.LAPSED
    assert advance(granted(until=until), until).stage is RequestStage.RETURNING
    assert granted().has_ended, "for good: nothing more happens to it"


def test_what_waits_is_said_once_and_tried_again() -> None:
    later = Granted(request="q-1", outcome=GrantOutcome.LATER, said="a rollout of c1 is planned")
    waiting = apply_grant(after(asked(), RequestCommand.APPROVE), later, NOW)
    assert (waiting.stage, waiting.said) == (RequestStage.APPROVED, "waits: a rollout of c1 is planned")
    assert apply_grant(waiting, later, NOW) == waiting


def test_what_happened_is_kept_before_anything_else_and_before_it_ends() -> None:
    kept = asked().without_entries(e.key for e in asked().outbox)
    assert decide(asked()) == Keep()
    assert decide(kept) == Wait(None)
    assert decide(kept.but(stage=RequestStage.APPROVED)) == decide(kept.but(stage=RequestStage.RETURNING)) == Write()
    withdrawn = after(kept, RequestCommand.WITHDRAW)
    assert decide(withdrawn) == Keep()
    assert decide(withdrawn.without_entries(e.key for e in withdrawn.outbox)) == Finish()


@pytest.mark.parametrize("command", RequestCommand)
def test_what_is_over_takes_no_command(command: RequestCommand) -> None:
    order = RequestOrder(actor="capacity", reason="x")
    for over in (asked(fits=False), granted(), after(asked(), RequestCommand.DECLINE)):
        assert refusal(over, command, order, ("capacity",)) is not None
    silent = RequestOrder(actor="capacity", reason=" ")
    state = granted(until=NOW + DAY) if command is RequestCommand.EXTEND else asked()
    assert refusal(state, command, silent, ("capacity",)) == f"{command} needs a reason"


def test_every_pair_has_one_answer() -> None:
    assert set(REQUEST_ANSWERS) == set(product(RequestStage, RequestCommand))


@pytest.mark.parametrize(("stage", "command"), REQUEST_ANSWERS)
def test_a_command_leads_where_the_grid_says(stage: RequestStage, command: RequestCommand) -> None:
    order = RequestOrder(actor="capacity", reason="agreed", until=NOW + 2 * DAY)
    state = asked(until=NOW + DAY).but(stage=stage)
    answer, why = REQUEST_ANSWERS[stage, command], refusal(state, command, order, ("capacity",))
    assert (why is None) is not isinstance(answer, Refused)
    if why is None:
        assert obey(state, command, order, NOW).stage is answer
    else:
        assert why.startswith(f"request q-1 is {stage}")
        assert "{" not in why


def test_an_extended_grant_is_given_back_on_its_new_day() -> None:
    day, later = NOW + DAY, NOW + 3 * DAY
    grant = granted(until=day)
    order = RequestOrder(actor="capacity", reason="the run takes longer", until=later)
    assert refusal(grant, RequestCommand.EXTEND, order, ("capacity",)) is None
    longer = obey(grant, RequestCommand.EXTEND, order, NOW)
    assert (longer.stage, longer.ask.until, longer.raised) == (RequestStage.GRANTED, later, {"a": 16, "org": 4})
    assert decide(longer.but(outbox=())) == Wait(later)
    assert advance(longer, day + timedelta(hours=1)).stage is RequestStage.GRANTED
    assert advance(longer, later).stage is RequestStage.RETURNING
    assert longer.outbox[-1].text == "request q-1: extended until 2026-11-25 08:00Z"
    news = [n for n in longer.mail if n not in grant.mail]
    assert {n.audience for n in news} == {"a", "dev"}
    assert news[0].detail.endswith("it now ends at 2026-11-25 08:00Z. Why: the run takes longer")


@pytest.mark.parametrize(
    ("state", "until", "why"),
    [
        (granted(until=NOW + 2 * DAY), NOW + DAY, "extend needs a day after 2026-11-24 08:00Z, when the grant ends"),
        (granted(until=NOW + 2 * DAY), NOW + 2 * DAY, "extend needs a day after 2026-11-24 08:00Z"),
        (granted(until=NOW + 2 * DAY), None, "extend needs a day after 2026-11-24 08:00Z"),
        (granted(), NOW + DAY, "a grant without an end is part of the quota"),
        (asked(until=NOW + DAY), NOW + 2 * DAY, "request q-1 is asked: only a grant can be extended"),
    ],
    ids=["earlier", "the same day", "no day", "for good", "not granted yet"],
)
def test_only_a_grant_for_a_time_is_extended_and_only_to_a_later_day(
    state: RequestState, until: datetime | None, why: str
) -> None:
    order = RequestOrder(actor="capacity", reason="r", until=until)
    assert why in str(refusal(state, RequestCommand.EXTEND, order, ("capacity",)))


def test_who_asked_cannot_extend_it() -> None:
    order = RequestOrder(actor="dev", reason="r", until=NOW + 2 * DAY)
    why = refusal(granted(until=NOW + DAY), RequestCommand.EXTEND, order, ("capacity",))
    assert why == "dev does not own c1: ask capacity"


class Deciding(FakeBackstop):
    """Takes every order to one grant."""

    def __init__(self) -> None:
        super().__init__()
        self.orders: list[tuple[str, RequestCommand, RequestOrder]] = []

    async def decide_request(self, request: str, command: RequestCommand, order: RequestOrder) -> RequestState:
        self.orders.append((request, command, order))
        return granted(until=order.until or NOW + DAY)


@pytest.mark.parametrize(
    ("words", "command", "until"),
    [
        ("approve q-1", RequestCommand.APPROVE, None),
        ("decline q-1", RequestCommand.DECLINE, None),
        ("withdraw q-1", RequestCommand.WITHDRAW, None),
        ("extend q-1 --until 2099-12-24", RequestCommand.EXTEND, datetime(2099, 12, 25, tzinfo=UTC)),
    ],
)
def test_each_command_to_a_request_is_sent_as_it_is_typed(
    words: str, command: RequestCommand, until: datetime | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(Deciding()) as door:
        assert run(["request", *words.split(), "--reason", "why", "--actor", "kim"]) == 0
        assert run(["request", *words.split()]) == 2
        assert isinstance(door, Deciding)
        assert door.orders == [("q-1", command, RequestOrder(actor="kim", reason="why", until=until))]
    out, err = capsys.readouterr()
    assert "--reason" in err
    assert ("to give the GPUs back now: backstop request withdraw q-1" in " ".join(out.split())) is (until is not None)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("extend q-1 --reason r", "Missing option '--until'"),
        ("extend q-1 --until 2020-01-01 --reason r", "--until 2020-01-01 is in the past"),
        ("extend q-1 --until 9999-12-31 --reason r", "--until 9999-12-31 gives a time outside the years 1 to 9999"),
        ("extend Q! --until 7d --reason r", "ID must be a request's id, such as q-4f2a9c1b, not 'Q!'"),
    ],
)
def test_a_slip_in_an_extension_sends_nothing(words: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with answering(Deciding()) as door:
        assert run(["request", *words.split(), "--actor", "kim"]) == 2
        assert isinstance(door, Deciding)
        assert door.orders == []
    assert why in capsys.readouterr().err
