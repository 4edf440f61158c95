"""A team in many clusters asks for more: the page looks where there may be room, and says that first."""

from __future__ import annotations

import asyncio
import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from models.cluster.policy import Policy
from models.cluster.snapshot import Snapshot
from models.flex.flex_sum import FlexSum
from models.questions import FlexSums, Plannable, SnapshotNow, WhyNot
from models.reports.why import WhyAnswers
from models.rollout.stages import Stage
from tests.unit.cli_fakes import NOON
from web.console.pages.team_forms import ask
from web.console.rendering import page
from web.console.visit import Page, Visit

FULL = [f"c-{n:02}" for n in range(40)]
QUOTAS = {**dict.fromkeys(FULL, 90), "y-some": 80, "z-roomy": 40}


def answer_of(visit: Any) -> Page:
    return cast("Page", asyncio.run(ask(cast("Visit", visit), "a")))


async def no_rollouts(name: str, **_: Any) -> tuple[Any, str]:
    assert name == "ask_rollouts"
    return {}, ""


def rows(
    *, sums_known: bool = True, try_call: Any = no_rollouts, **query: str
) -> tuple[list[tuple[str, int | None]], list[str]]:
    """Each cluster with how much fits; and those that were looked at."""
    looked: list[str] = []

    async def try_ask(question: Any) -> tuple[Any, str]:
        match question:
            case WhyNot():
                teams = [SimpleNamespace(cluster=name, quota_gpus=gpus) for name, gpus in QUOTAS.items()]
                return SimpleNamespace(teams=teams), ""
            case FlexSums():
                sums = [
                    FlexSum(cluster=name, health_at=NOON, total_gpus=100, healthy_gpus=100, promised_gpus=gpus)
                    for name, gpus in QUOTAS.items()
                ]
                return (tuple(sums), "") if sums_known else (None, "no worker answered")
            case SnapshotNow():
                looked.append(question.cluster)
                island = {"name": "main", "total_gpus": 100, "healthy_gpus": 100}
                quotas = [{"team": "a", "gpus": QUOTAS[question.cluster]}]
                seen = Snapshot.model_validate({"cluster": question.cluster, "islands": [island], "quotas": quotas})
                return Plannable(snapshot=seen, policy=Policy()), ""
        raise AssertionError(question)

    visit = SimpleNamespace(form={}, query=query, try_ask=try_ask, try_call=try_call)
    values = answer_of(visit).values
    around = {"title": "", "here": "/", "navigation": (), "who": "", "how": "", "said": (), "form_token": ""}
    text = bytes(page("team_ask.html", {**around, **values}).body).decode()
    body = text.partition("<tbody>")[2].partition("</tbody>")[0]
    assert re.findall(r'<th scope="row">(.*?)</th>', body) == [name for name, _, fits, _ in values["rows"] if fits]
    assert f"{len(QUOTAS) - len(looked)} more clusters of this team were not looked at." in text
    return [(name, None if fits is None else fits.fits_gpus) for name, _, fits, _ in values["rows"]], looked


def test_clusters_with_room_are_looked_at_and_stand_first() -> None:
    """With the usual buffer of 15 % each may promise 85."""
    shown, looked = rows()
    assert shown[:3] == [("z-roomy", 45), ("y-some", 5), ("c-00", 0)]
    assert [name for name, fits in shown if fits is None] == FULL[10:]
    assert len(shown) == len(QUOTAS)
    assert sorted(looked) == sorted([*FULL[:10], "y-some", "z-roomy"])


def test_what_an_open_rollout_has_cut_fits_nobody_else() -> None:
    """z-roomy has 40, and had 60 before its rollout: `request` counts 60, and so does the page."""

    async def rollouts(_: str, clusters: list[str], seconds: float) -> tuple[Any, str]:
        team = SimpleNamespace(team="a", baseline_gpus=60)
        opened = SimpleNamespace(stage=Stage.MONITORED, shadow=False, teams=(team,))
        return {name: opened if name == "z-roomy" else None for name in clusters}, ""

    shown, _ = rows(try_call=rollouts)
    assert shown[:2] == [("z-roomy", 25), ("y-some", 5)]


@pytest.mark.parametrize("sums_known", [True, False])
def test_the_cluster_that_the_address_names_is_looked_at(sums_known: bool) -> None:
    shown, looked = rows(cluster="c-39", sums_known=sums_known)
    assert "c-39" in looked
    assert ("c-39", 0) in shown


def test_a_team_without_a_quota_reads_why_it_cannot_ask_here() -> None:
    async def try_ask(question: Any) -> tuple[Any, str]:
        return (WhyAnswers(teams=()), "") if isinstance(question, WhyNot) else ((), "")

    values = answer_of(SimpleNamespace(form={}, query={}, try_ask=try_ask)).values
    assert values["no_why"] == "no cluster in the ledger has a quota of team 'a'"
