"""The top of the fleet's page: whatever cannot wait, however many plans wait for an approval beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from models.fleet.messages import FleetStatus
from models.fleet.state import FleetRollout, FleetStage, Member, MemberState, Pace, Wave
from models.fleet.status import status_of
from models.lifecycle.holds import Hold, HoldKind
from models.reports.rollout_summary import RolloutSummary
from web.console.pages.fleet import Row, fleet
from web.console.pages.fleet_rollout import _split_names
from web.console.visit import Visit

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
APPROVE = "approve the plan: backstop approve {} --plan 0123"


def summary(cluster: str, stage: str, needs: str, **more: Any) -> RolloutSummary:
    facts = {
        "wave": "idle",
        "owner": "tpm",
        "unbacked_gpus": 0,
        "started": NOW,
        "closed": None,
        "health_at": NOW,
        "held": "",
    }
    return RolloutSummary.model_validate(
        {"cluster": cluster, "stage": stage, "needs": needs, "open": True, **facts, **more}
    )


PLANS = [summary(f"a-{n:03}", "planned", APPROVE.format(f"a-{n:03}")) for n in range(40)]
PRESSING = [
    summary("z-held", "buffered", "paused by user:ana: backstop resume z-held"),
    summary(
        "z-lacks", "enforced", "research lacks hardware: wait for it, or backstop rollback z-lacks", unbacked_gpus=4
    ),
    summary("z-lacks-more", "monitored", "evals lacks hardware: wait for it, or backstop rollback z", unbacked_gpus=9),
    summary("z-lost", "buffered", "", lost=True),
    summary("z-plan", "planned", APPROVE.format("z-plan"), unbacked_gpus=26),
    summary("z-rehearsal", "monitored", "paused by user:ana: backstop resume z-rehearsal", shadow=True),
    summary("z-stuck", "stuck", "mend the cause, then give: backstop retry z-stuck"),
]
ORDER = ["z-lost", "z-stuck", "z-lacks-more", "z-lacks", "z-held", "z-plan"]


def page(
    *, others: Sequence[RolloutSummary] = (), under_way: FleetStatus | None = None, may: bool = False, **query: str
) -> dict[str, Any]:
    async def call(_: str) -> list[RolloutSummary]:
        return sorted([*PLANS, *PRESSING, *others], key=lambda one: one.cluster)

    async def try_call(name: str, **_: object) -> tuple[FleetStatus | None, str]:
        return (under_way, "") if name == "open_fleet" else (None, "nobody was asked")

    async def nothing(*_: object) -> tuple[None, str]:
        return None, "nobody was asked"

    async def may_by_file(*_: object, **__: object) -> bool:
        return may

    async def why_not(*_: object, **__: object) -> str:
        return "" if may else "not you"

    visit = SimpleNamespace(
        query=query, now=NOW, call=call, try_call=try_call, try_ask=nothing, may_by_file=may_by_file, why_not=why_not,
        principal=SimpleNamespace(name="ana"),
    )  # fmt: skip
    return dict(cast("Any", asyncio.run(fleet(cast("Visit", visit)))).values)


HELD = [
    summary("h-frozen", "buffered", "", held="freeze: year end, until 2026-12-31 08:00Z"),
    summary(
        "h-paused", "enforced", "paused by ana: backstop resume h-paused", held="paused by ana: a run", asked_at=NOW
    ),
    summary("h-short", "buffered", "b lacks hardware: wait", held="SEV: fabric", unbacked_gpus=3),
    summary(
        "h-unasked",
        "buffered",
        "held (objection by lead: on a Friday): backstop resolve h-unasked --hold o-1",
        held="objection by lead: on a Friday",
        holds=(Hold(id="o-1", kind=HoldKind.OBJECTION, actor="lead", reason="on a Friday", at=NOW),),
        asked_at=NOW,
    ),
    summary("h-ended", "closed", "", open=False, closed=NOW, held=""),
]


def test_what_is_on_hold_is_counted_and_listed_with_what_holds_it() -> None:
    shown = page(others=HELD, show="held")
    assert [(row.cluster, row.story) for row in shown["rows"]] == [
        ("h-short", "b lacks hardware: wait; on hold: SEV: fabric"),
        ("h-frozen", "on hold: freeze: year end, until 2026-12-31 08:00Z"),
        ("h-paused", "on hold: paused by ana: a run"),
        ("h-unasked", "on hold: objection by lead: on a Friday"),
    ]
    assert (shown["held"], page(others=HELD)["held"]) == (4, 4)


def test_who_may_not_give_a_command_gets_no_button_for_it_but_the_way_to_the_reason() -> None:
    buttons = {row.cluster: deed for row, deed in page(may=True)["next"]}
    assert buttons["z-plan"] == ("Approve...", "/clusters/z-plan/approve")
    assert buttons["z-held"] == ("Resume...", "/clusters/z-held/resume")
    refused = page()["next"]
    assert len(refused) == 20
    assert {deed for _, deed in refused} == {("Look...", f"/clusters/{row.cluster}#do") for row, _ in refused}


def test_clusters_that_a_held_fleet_rollout_may_not_start_are_on_hold_too() -> None:
    """They have no rollouts yet, so the list of all rollouts leaves them out."""
    waiting = [Member(cluster=name, wave=Wave.IDLE, held=held) for name, held in (("w-1", ""), ("w-2", "a freeze"))]
    runs = Member(cluster="z-held", wave=Wave.IDLE, state=MemberState.RUNNING, rollout="z-held/1")
    hold = Hold(id="pause", kind=HoldKind.PAUSED, reason="look first", actor="ana", at=NOW)
    for stage, holds, held in (
        (FleetStage.RUNNING, (hold,), {}),
        (FleetStage.RUNNING, (), {"w-2": "a freeze"}),
        (FleetStage.PLANNED, (), {}),
    ):
        members = {member.cluster: member for member in (*waiting, runs)}
        its = FleetRollout(id="f", owner="tpm", launched_at=NOW, pace=Pace(), entered_at=NOW, members=members)
        fleet_now = status_of(its.but(stage=stage, holds=holds, wave=Wave.IDLE, plan_hash="0123"), NOW)
        shown = page(under_way=fleet_now, show="held")
        whole = "the whole fleet rollout, paused by ana: look first"
        wanted = {"w-1": whole, "w-2": f"{whole}; a freeze"} if holds else held
        assert {row.cluster: row.held for row in shown["rows"]} == wanted
        assert shown["held"] == len(wanted)
        assert not {"w-1", "w-2"} & {row.cluster for row in page(under_way=fleet_now)["rows"]}


@pytest.mark.parametrize(
    ("needs", "number", "text"),
    [
        ("", 1, "Whether 1 rollout is on hold is unknown: it has not recorded it yet."),
        ("", 2, "Whether 2 rollouts are on hold is unknown: they have not recorded it yet."),
        (None, 2, "Whether 2 rollouts are on hold is unknown: no worker answered in time."),
    ],
)
def test_what_nobody_knows_is_not_counted_as_free(needs: str | None, number: int, text: str) -> None:
    unknown = [summary(f"u-{n}", "buffered", "", held=None).but(needs=needs) for n in range(number)]
    ended = summary("u-9", "closed", "", open=False, closed=NOW, held=None)
    assert page(others=[*unknown, ended])["held_unknown"] == text
    assert page(others=[summary("c", "buffered", "")])["held_unknown"] == ""


def names_of(rows: Sequence[Row | RolloutSummary]) -> list[str]:
    return [row.cluster for row in rows]


def test_what_cannot_wait_is_the_first_thing_to_do() -> None:
    waiting = [*ORDER, *names_of(PLANS), "z-rehearsal"]
    assert names_of(page()["needs"]) == names_of(page(show="needs")["rows"]) == waiting
    assert names_of(page(show="risk")["rows"]) == ["z-lacks-more", "z-lacks", "z-plan"]
    assert names_of(page()["rows"]) == sorted(one.cluster for one in [*PLANS, *PRESSING]), "a list of all goes by name"


def test_every_cluster_is_a_square_of_the_map_once_and_few_have_none() -> None:
    drawn = page()["map"]
    assert [(stage, len(rows)) for stage, rows in drawn] == [
        ("planned", 41), ("buffered", 2), ("enforced", 1), ("monitored", 2), ("stuck", 1)
    ]  # fmt: skip
    assert sorted(row.cluster for _, rows in drawn for row in rows) == sorted(names_of([*PLANS, *PRESSING]))
    moods = {row.cluster: (row.mood, row.hint) for _, rows in drawn for row in rows}
    assert moods["z-stuck"] == ("bad", "z-stuck: stuck, idle, mend the cause, then give: backstop retry z-stuck")
    assert moods["z-plan"] == ("warn", "z-plan: planned, idle, 26 GPUs unbacked, approve the plan")
    assert page(show="risk")["map"] == [], "three clusters need no map"


@pytest.mark.parametrize(
    ("needs", "news"),
    [
        (APPROVE.format("c"), "approve the plan"),
        ("held (breach: a run): `backstop resolve c --hold x --reason ...`", "held (breach: a run)"),
        ("answer bob: too late, then: backstop resolve c --hold o --reason x", "answer bob: too late"),
        ("told twice: backstop ack c --team a; and more", "told twice: backstop ack c --team a; and more"),
        ("rolled back: backstop retry c, or backstop close c", "rolled back: backstop retry c, or backstop close c"),
        ("", ""),
    ],
)
def test_a_command_that_a_button_gives_is_not_spelled_out_beside_it(needs: str, news: str) -> None:
    row = Row("c", "planned", False, True, "idle", "tpm", 0, None, needs, "", "", False, (4, 0, "c"))
    assert row.news == news


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("h1, h2\nh3", ("h1", "h2", "h3")),
        ("h1 new one, lab", ("h1", "lab", "new one")),
        ("new one more", ("new one more",)),
        ("brandnew one", ("brandnew", "one")),
        ("a, b", ("a, b",)),
    ],
)
def test_clusters_whose_names_contain_blanks_can_be_named_in_a_form(text: str, names: tuple[str, ...]) -> None:
    assert _split_names(text, ["h1", "h2", "h3", "lab", "new one", "new one more", "a, b"]) == names
