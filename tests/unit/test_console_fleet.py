"""What the fleet's page says first: whatever cannot wait, however many plans wait for an approval beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from models.reports.rollout_summary import RolloutSummary
from web.console.pages.fleet import Row, fleet
from web.console.visit import Visit

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
APPROVE = "approve the plan: backstop approve {} --plan 0123"


def summary(cluster: str, stage: str, needs: str, **more: Any) -> RolloutSummary:
    facts = {"wave": "idle", "owner": "tpm", "unbacked_gpus": 0, "started": NOW, "closed": None, "health_at": NOW}
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


def page(**query: str) -> dict[str, Any]:
    async def call(_: str) -> list[RolloutSummary]:
        return sorted([*PLANS, *PRESSING], key=lambda one: one.cluster)

    async def nothing(*_: object) -> tuple[None, str]:
        return None, "nobody was asked"

    visit = SimpleNamespace(query=query, now=NOW, call=call, try_call=nothing, try_ask=nothing)
    return dict(cast("Any", asyncio.run(fleet(cast("Visit", visit)))).values)


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
        ("a hold stands (a run): `backstop resolve c --hold x --reason ...`", "a hold stands (a run)"),
        ("told twice: backstop ack c --team a; and more", "told twice: backstop ack c --team a; and more"),
        ("rolled back: backstop retry c, or backstop close c", "rolled back: backstop retry c, or backstop close c"),
        ("", ""),
    ],
)
def test_a_command_that_a_button_gives_is_not_spelled_out_beside_it(needs: str, news: str) -> None:
    row = Row("c", "planned", False, True, "idle", "tpm", 0, None, needs, "", "", False, (4, 0, "c"))
    assert row.news == news
