"""The table of free flex in pages: every cluster stands on one of them, and a link leads to it."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from html import unescape
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit

import pytest

from models.flex.flex_sum import FlexSum
from models.questions import FlexSums
from web.console.pages.flex import flex
from web.console.rendering import page
from web.console.visit import Visit

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
BASE = {
    "title": "Flex",
    "who": "",
    "how": "",
    "form_token": "",
    "said": [],
    "missed": False,
    "navigation": [],
    "here": "",
}


def offers(many: int) -> tuple[FlexSum, ...]:
    """Return offers whose free flex follows no order of names. Every third is of another model, the last is silent."""
    return tuple(
        FlexSum(
            cluster=f"c & {n:04d}",
            gpu_model="H100" if n % 3 else "A100",
            health_at=NOW if n < many - 1 else None,
            available_gpus=n * 37 % 101,
            block_gpus=n * 37 % 101,
        )
        for n in range(many)
    )


class _Looks:
    """A visit of whoever may, where no tally is known."""

    def __init__(self, address: str, there: tuple[FlexSum, ...]) -> None:
        self.path, self.query, self.now = ("flex",), dict(parse_qsl(urlsplit(address).query)), NOW
        self._there = there

    async def ask(self, question: Any) -> Any:
        assert isinstance(question, FlexSums)
        return self._there

    async def try_ask(self, _: Any) -> Any:
        return SimpleNamespace(points=()), ""


def shown(address: str, there: tuple[FlexSum, ...]) -> str:
    made = asyncio.run(flex(cast("Visit", _Looks(address, there))))
    return bytes(page(made.template, {**BASE, **made.values}).body).decode()


def rows(html: str) -> list[tuple[str, str]]:
    """Clusters of the table, and what is free there."""
    cell = r'<th scope="row"><a href="/flex/[^"]+">([^<]+)</a></th>(.*?)</tr>'
    return [
        (unescape(name), re.findall(r'<td class="number">([^<]+)</td>', rest)[-2])
        for name, rest in re.findall(cell, html)
    ]


def pages(html: str) -> list[str]:
    return [unescape(one) for one in re.findall(r'<a href="(/flex[^"/]*)" aria-label="Page', html)]


@pytest.mark.parametrize("address", ["/flex", "/flex?name=c+%26*&model=H100", "/flex?block=7"])
def test_pages_together_have_every_cluster_once_those_with_the_most_first(address: str) -> None:
    there = offers(457)
    asked = dict(parse_qsl(urlsplit(address).query))
    like_that = [
        one
        for one in there
        if asked.get("model", one.gpu_model) == one.gpu_model and one.block_gpus >= int(asked.get("block", 0))
    ]
    first = shown(address, there)
    links = pages(first)
    read = [row for html in (first, *(shown(link, there) for link in links)) for row in rows(html)]
    by_free = sorted(like_that, key=lambda one: (one.health_at is None, -one.available_gpus, one.cluster))
    assert [name for name, _ in read] == [one.cluster for one in by_free]
    assert [free for _, free in read] == [str(one.available_gpus) if one.health_at else "-" for one in by_free]
    assert len(links) == -(-len(like_that) // 100) - 1
    assert f"Clusters 1 to 100 of {len(like_that)}," in first


def test_each_page_leads_to_all_others() -> None:
    there = offers(457)
    third = shown("/flex?page=3", there)
    assert pages(third) == ["/flex", "/flex?page=2", "/flex?page=4", "/flex?page=5"]
    assert '<b aria-current="page">3</b>' in third
    assert len(rows(shown("/flex?page=5", there))) == 57


@pytest.mark.parametrize(("wanted", "is_as"), [("9", "5"), ("0", "1"), ("-1", "1"), ("x", "1"), ("9" * 5000, "1")])
def test_a_page_that_is_not_there_is_another_one(wanted: str, is_as: str) -> None:
    there = offers(457)
    assert rows(shown(f"/flex?page={wanted}", there)) == rows(shown(f"/flex?page={is_as}", there))


def test_a_fleet_that_fits_has_no_pages() -> None:
    html = shown("/flex", offers(100))
    assert (len(rows(html)), pages(html), "Clusters 1 to" in html) == (100, [], False)


def test_the_record_of_all_clusters_is_not_below_the_sums_of_some() -> None:
    there = offers(5)
    assert "No record yet" in shown("/flex", there)
    assert "No record yet" not in shown("/flex?model=A100", there)
