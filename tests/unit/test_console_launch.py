"""The page that offers clusters for a launch: full pages of those without a rollout, to the last one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from models.cluster.fleet_file import ClusterSpec
from models.questions import LedgerCluster, LedgerClusters
from models.rollout.stages import Stage
from tests.unit.cli_fakes import WORKED
from web.console.pages.launch import launch
from web.console.visit import Visit

OPEN = {f"c-{n:03}" for n in range(400) if n % 4}
ALL = [f"c-{n:03}" for n in range(400)]


def answer(question: LedgerClusters, names: list[str], taken: set[str], at_once: int) -> tuple[LedgerCluster, ...]:
    """Answer as a desk does; `at_once`: the most clusters in one answer, where these have many quotas."""
    of = [n for n in names if n > question.after and not (question.free and n in taken)]
    spec: ClusterSpec = WORKED
    return tuple(
        LedgerCluster(
            cluster=spec.model_copy(update={"name": name}),
            rollout=f"{name}/1" if name in taken else None,
            stage=None,
            name=name,
        )
        for name in of[: min(question.limit, at_once)]
    )


def pages(names: list[str], taken: set[str], at_once: int = 1000) -> list[dict[str, Any]]:
    """Every page, by the link at the foot of the one before."""

    async def ask(question: LedgerClusters) -> tuple[LedgerCluster, ...]:
        return answer(question, names, taken, at_once)

    made, after = [], ""
    while True:
        visit = SimpleNamespace(path=("launch",), query={"after": after}, ask=ask, form={})
        page = asyncio.run(launch(cast("Visit", visit)))
        made.append(cast("Any", page).values)
        after = made[-1]["more"]
        if not after:
            return made


@pytest.mark.parametrize("at_once", [1000, 7])
def test_each_page_is_full_of_those_that_can_be_launched_and_none_is_left_out(at_once: int) -> None:
    made = pages(ALL, OPEN, at_once)
    assert [name for one in made for name, _, _ in one["rows"]] == [n for n in ALL if n not in OPEN]
    assert [len(one["rows"]) for one in made] == ([50, 50] if at_once > 50 else [7] * 14 + [2])


@pytest.mark.parametrize(("names", "taken", "there_are"), [([], set(), False), (["a", "b"], {"a", "b"}, True)])
def test_where_there_is_none_it_says_whether_there_are_clusters(
    names: list[str], taken: set[str], there_are: bool
) -> None:
    (one,) = pages(names, taken)
    assert (one["rows"], one["there_are"], one["more"]) == ([], there_are, "")


@pytest.mark.parametrize(
    ("stage", "wrong", "why_not"),
    [
        (Stage.MONITORED, "", "a rollout of c is open already"),
        (Stage.CLOSED, "", ""),
        (None, "the ledger has no cluster 'c'", "the ledger has no cluster 'c'"),
    ],
)
def test_what_cannot_be_launched_is_grey_and_says_why(stage: Stage | None, wrong: str, why_not: str) -> None:
    status = None if stage is None else SimpleNamespace(stage=stage)

    async def try_call(*_: object, **__: object) -> tuple[Any, str]:
        return status, ""

    async def try_ask(_: object) -> tuple[Any, str]:
        return None, wrong

    async def may(*_: object, **__: object) -> str:
        return ""

    who = SimpleNamespace(name="user:tpm")
    visit = SimpleNamespace(path=("launch", "c"), form={}, principal=who, try_call=try_call, try_ask=try_ask)
    visit.why_not = may
    made = asyncio.run(launch(cast("Visit", visit)))
    assert cast("Any", made).values["why_not"] == why_not
