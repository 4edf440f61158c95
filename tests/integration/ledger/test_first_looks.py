"""Figures of all clusters on pages are computed before anybody looks, and are as true as if computed then."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from importlib import import_module
from typing import Any, cast

import pytest
import sqlalchemy as sa

from activities.adapters.ledger.facade import Ledger
from activities.rollout import many_looks
from activities.watch.tallies import Tallier
from benchmarks.console_fleet import desk_on
from models.page_questions import FLEET_CURVE, curve_question
from models.question_base import Question
from models.questions import Curve, DeskRequest, FlexSums
from tests.integration.ledger.world import CLUSTER, LEDGER_NOW, ForeignTool
from tests.waiting import eventually
from workers.first_looks import looking_first

LATER = timedelta(minutes=5)


def answer(desk: Any, question: Question[Any]) -> Any:
    return desk._answers[type(question)](question, DeskRequest(kind=question.kind))


def desk_at(ledger: Ledger, now: datetime) -> Any:
    return desk_on(ledger, lambda: now)


@pytest.fixture
def statements(ledger: Ledger) -> Iterator[list[Any]]:
    """The parameters of each statement from now on."""
    heard = list[Any]()

    def hear(_: Any, __: Any, ___: str, parameters: Any, *____: Any) -> None:
        heard.append(parameters)

    engine = ledger._database._engine
    sa.event.listen(engine, "before_cursor_execute", hear)
    yield heard
    sa.event.remove(engine, "before_cursor_execute", hear)


def test_the_first_reader_is_told_what_has_been_worked_out(
    ledger: Ledger, statements: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = desk_at(ledger, LEDGER_NOW)
    assert list(desk.first_looks()) == ["tallies", "flex_sums", "tallies", "week", "haircut_sums"]

    def not_again(*_: Any, **__: Any) -> Any:
        raise AssertionError("the flex is worked out again")

    monkeypatch.setattr(many_looks, "flex_now", not_again)
    answer(desk, FlexSums())
    statements.clear()
    answer(desk, curve_question(LEDGER_NOW + LATER, *FLEET_CURVE))
    with_first = max(len(parameters) for parameters in statements)
    assert with_first < FLEET_CURVE.points, "the sums of past times are kept: only the time of now is read"


def test_the_fleets_page_asks_for_the_same_times() -> None:
    fleet = import_module("web.console.pages.fleet")
    assert (fleet._CURVE, fleet._POINTS) == FLEET_CURVE


def test_what_comes_after_the_first_looks_is_in_the_next(ledger: Ledger, tool: ForeignTool) -> None:
    desk = desk_at(ledger, LEDGER_NOW)
    list(desk.first_looks())
    tallier = Tallier(ledger.ports, ledger.tallies)
    while tallier.go_on(LEDGER_NOW, timedelta(hours=1)):
        pass
    tool.run("UPDATE health_samples SET healthy_gpus = 1, block_gpus = 1 WHERE cluster = ?", CLUSTER)
    curve = cast("Curve", answer(desk, curve_question(LEDGER_NOW + LATER, *FLEET_CURVE)))
    promised = tool.one("SELECT sum(assigned_gpus) FROM tallies WHERE backed_gpus IS NOT NULL")
    assert curve.points[-1].promised_gpus == promised > 0
    sums = {one.cluster: one.healthy_gpus for one in answer(desk, FlexSums())}
    assert sums[CLUSTER] == tool.one("SELECT count(*) FROM islands WHERE cluster = ?", CLUSTER)


async def test_a_worker_takes_its_looks_one_after_the_other_and_a_fault_ends_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    taken = list[str]()

    def looks() -> Iterator[str]:
        for name in ("one", "two"):
            taken.append(name)
            yield name
        raise ValueError("the ledger is away")

    with ThreadPoolExecutor(1) as executor, caplog.at_level(logging.WARNING, "backstop.worker"):
        async with looking_first(looks, executor, 0, 0):
            await eventually(lambda: "the ledger is away" in caplog.text, "the fault is logged")
        assert taken == ["one", "two"]
        async with looking_first(looks, executor, 3600, 0):
            pass
        assert taken == ["one", "two"], "a worker that has just started does not look"
