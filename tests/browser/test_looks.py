"""The look of pages: axe-core finds nothing, light and dark, wide and narrow; and nothing is wider than the screen.

Every page that there is takes part: one that is new fails `test_every_page_takes_part` until it does. Those of one
cluster and of 1,000 are drawn by tests/browser/screens.py, to be looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal, cast

import pytest
from playwright.async_api import Browser
from temporalio.client import Client

from benchmarks.console_fleet import cluster_name, console_on, team_name
from client.http_door import http_door
from client.http_exchange import AtUrl
from models.access_questions import ImportAccess
from models.cluster.fleet_file import Fleet
from models.errors import AwaitsSecond, BackstopError
from models.requests.state import QuotaAsk
from models.rollout.stages import Stage
from tests.browser.browsing import AXE, NARROW, WIDE, Console, Window, console_of
from tests.e2e.console_world import ByName
from tests.e2e.world import World, eventually, fresh, worked_case, world_of
from tests.unit.access_world import access, grant
from web.console.pages import PAGES
from web.ledger_rights import LedgerRights
from web.settings import Address, FrontSettings

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
SCHEMES: tuple[Literal["light"], Literal["dark"]] = ("light", "dark")
VAST = {"width": 3840, "height": 2160}
CLUSTERS = 1000
LONG_MS = 120_000
"""A buffer of 1,000 clusters is planned while the reader waits."""
RUN = """async () => (await axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa",
    "best-practice"] })).violations.map((v) => `${v.id}: ${v.nodes.map((n) => n.html).join(" | ")}`)"""

SENT = "performance.getEntriesByType('navigation')[0].transferSize"


async def violations(window: Window) -> list[str]:
    """Return what axe-core finds. It is injected past the page's own policy, which would block it."""
    source = AXE.read_text()
    await window.page.evaluate(source)
    found: list[str] = await window.page.evaluate(RUN)
    return found


async def too_wide(window: Window) -> int:
    found: Any = await window.page.evaluate(
        "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )
    return int(found)


async def sheets(window: Window, paper: str) -> int:
    """Return how many sheets of this paper the page takes."""
    return len(re.findall(rb"/Type\s*/Page\b", await window.page.pdf(format=paper)))


@pytest.fixture
async def console(temporal: Client, sqlite_ledger_url: str, tmp_path: Path, browser: Browser) -> AsyncIterator[Console]:
    """Yield a console whose clusters are tallied every other second."""
    async with (
        world_of(temporal, sqlite_ledger_url, tmp_path, tally_seconds=2.0) as world,
        console_of(world, browser) as found,
    ):
        yield found


def lived(world: World, cluster: str) -> None:
    """Store a tally for every two hours of the week before, with changing hardware and a shrinking promise."""
    newest = world.sql.one("SELECT max(at) FROM tallies WHERE cluster = ?", cluster)
    row = world.sql.row("tallies", cluster=cluster, at=newest)
    for hours in range(2, 166, 2):
        before = dict(row)
        for name in ("at", "seen_at", "health_at"):
            text = str(row[name])
            at = datetime.fromisoformat(text) - timedelta(hours=hours)
            before[name] = at.isoformat(sep=text[10], timespec="microseconds" if "." in text else "seconds")
        healthy = 319 + (hours * 7) % 30 - (40 if hours < 50 else 0)
        assigned = 345 if hours > 24 else 306
        before |= {"healthy_gpus": healthy, "assigned_gpus": assigned, "backed_gpus": min(healthy, assigned)}
        marks = ", ".join("?" for _ in before)
        world.sql.run(f"INSERT INTO tallies ({', '.join(before)}) VALUES ({marks})", *before.values())


@asynccontextmanager
async def a_console_of(clusters: int, folder: Path, browser: Browser) -> AsyncIterator[tuple[Console, dict[str, str]]]:
    """A console of so many made-up clusters, and its pages by name."""
    settings = FrontSettings(socket=None, listen=Address("127.0.0.1", 0))
    async with console_on(folder, clusters, settings) as (front, where):
        with contextlib.closing(sqlite3.connect(folder / "ledger.db")) as sql:
            ((waiting,),) = sql.execute("SELECT hash FROM waiting_commands")
        yield Console(cast("World", None), front, where[0], browser), vast_pages(clusters, waiting)


def vast_pages(clusters: int, waiting: str) -> dict[str, str]:
    """Return the pages by name; for one cluster only those that would differ. `waiting`: a waiting command's hash."""
    cluster, team = cluster_name(0), team_name(2)
    pages = {
        "fleet": "/",
        "cluster": f"/clusters/{cluster}",
        "cluster-unknown": "/clusters/there-is-no-such",
        "command": f"/clusters/{cluster}/approve",
        "pause": f"/clusters/{cluster}/pause",
        "rollout": "/rollout",
        "rollout-all": "/rollout?show=all",
        "rollout-approve": "/rollout/approve",
        "rollout-pace": "/rollout/pace",
        "rollout-move": "/rollout/move",
        "rollout-skip": "/rollout/skip",
        "rollout-abort": "/rollout/abort",
        "launch": "/launch",
        "launch-one": f"/launch/{cluster_name(13 if clusters > 13 else 0)}",
        "teams": "/teams",
        "team": f"/teams/{team}",
        "ask": f"/teams/{team}/ask",
        "object": f"/teams/{team}/object/{cluster}",
        "flex": "/flex",
        "flex-cluster": f"/flex/{cluster}",
        "leader": "/leader",
        "buffer": "/leader?buffer=15#buffer",
        "calendar": "/calendar",
        "audit": f"/audit?cluster={cluster}",
        "access": "/access",
        "waiting": f"/access/waiting/{waiting}",
        "requests": "/requests",
        "request": "/requests/q-1",
        "failure": "/no-such-page",
    }
    if clusters > 1:
        pages |= {
            "fleet-needs": "/?show=needs#clusters",
            "cluster-monitored": f"/clusters/{cluster_name(1)}",
            "cluster-stuck": f"/clusters/{cluster_name(120)}",
            "rollback": f"/clusters/{cluster_name(1)}/rollback",
        }
    return pages


async def a_fleet(console: Console) -> tuple[str, str, str]:
    """One cluster that is monitored, with a history; one that waits for an approval, one without a rollout."""
    world = console.world
    done, waits, free = fresh("h100-east"), fresh("a100-west"), fresh("h200-north")
    await world.fleet(*(worked_case(name) for name in (done, waits, free)))
    await world.launch(waits)
    await world.start(done)
    await world.until(done, Stage.MONITORED)
    await eventually(lambda: world.sql.one("SELECT count(*) FROM tallies WHERE cluster = ?", done) > 0, "a tally")
    await asyncio.to_thread(lived, world, done)
    return done, waits, free


def routes(done: str, waits: str, free: str, request: str = "", team: str = "research") -> dict[str, str]:
    """Return each kind of page by name. `waits`: a cluster whose plan awaits approval; `free`: without a rollout."""
    return {
        "fleet": "/",
        "fleet-filtered": "/?show=needs",
        "cluster": f"/clusters/{done}",
        "cluster-waiting": f"/clusters/{waits}",
        "cluster-unknown": "/clusters/there-is-no-such",
        "command-approve": f"/clusters/{waits}/approve",
        "command-pause": f"/clusters/{waits}/pause",
        "command-rollback": f"/clusters/{done}/rollback",
        "rollout": "/rollout",
        "rollout-all": "/rollout?show=all",
        "rollout-approve": "/rollout/approve",
        "rollout-pace": "/rollout/pace",
        "rollout-move": "/rollout/move",
        "rollout-abort": "/rollout/abort",
        "launch": "/launch",
        "launch-one": f"/launch/{free}",
        "teams": "/teams",
        "team": f"/teams/{team}",
        "team-ask": f"/teams/{team}/ask",
        "team-object": f"/teams/{team}/object/{waits}",
        "flex": "/flex",
        "flex-cluster": f"/flex/{done}",
        "requests": "/requests",
        "request": f"/requests/{request}",
        "calendar": "/calendar",
        "audit": f"/audit?cluster={done}",
        "access": "/access",
        "leader": "/leader?buffer=15",
        "failure": "/no-such-page",
    }


@pytest.mark.nightly
async def test_everybody_can_read_what_waits_for_a_second_person(ticketed: World, browser: Browser) -> None:
    """The page is shown to an admin who may countersign, to the person who gave it, and to one who may do neither."""
    file = access(grant("user:sre", "operator"), grant("user:hw-lead", "viewer"))
    await ticketed.person("user:tpm").ask(ImportAccess(file=file))
    found = dict[str, Any]()
    async with console_of(ticketed, browser, tokens=(ByName(),)) as console:
        console.front.rights = console.front.giving.rights = LedgerRights(console.front.doors)
        door = http_door(AtUrl(console.url), lambda: "sub-tpm")
        with pytest.raises(AwaitsSecond):
            await door.import_fleet(Fleet.model_validate({"clusters": [worked_case(fresh("new"), notice="1h")]}))
        digest = ticketed.sql.one("SELECT hash FROM waiting_commands")
        for scheme in SCHEMES:
            for width, size in (("wide", WIDE), ("narrow", NARROW)):
                for who in ("sre-lead", "tpm", "hw-lead"):
                    async with console.window(who, color_scheme=scheme, viewport=size) as window:
                        for path in ("/access", f"/access/waiting/{digest}"):
                            if wrong := await found_wrong(window, path, path):
                                found[f"{path} {who} {scheme} {width}"] = wrong
                        forms = await window.page.get_by_role("button", name="Countersign").count()
                        assert forms == (who == "sre-lead"), who
    assert found == {}


def test_every_page_takes_part() -> None:
    kinds = {path.strip("/").split("/")[0].split("?")[0] or "fleet" for path in routes("a", "b", "c").values()}
    assert set(PAGES) <= kinds


async def found_wrong(window: Window, name: str, path: str) -> list[str]:
    """Return what is wrong with how this page looks here."""
    await window.to(path)
    await window.page.locator("h1").wait_for()
    wrong = await violations(window)
    beyond = await too_wide(window)
    return [*wrong, *([f"{beyond} pixels too wide"] if beyond else [])]


async def test_the_fleet_and_a_cluster_can_be_read_by_everybody(console: Console) -> None:
    """By day these are the two pages that most people open, at night all of them."""
    done, _, _ = await a_fleet(console)
    async with console.window(color_scheme="dark", viewport=NARROW) as window:
        for name, path in (("fleet", "/"), ("cluster", f"/clusters/{done}")):
            assert await found_wrong(window, name, path) == []
            await window.page.locator(".plot canvas").first.wait_for()
            assert await window.page.locator(".curve details tbody tr").count() > 1


@pytest.mark.nightly
async def test_everybody_can_read_each_page(console: Console) -> None:
    done, waits, free = await a_fleet(console)
    await asked_for_more(console.world, done)
    await console.world.launch_fleet(fresh("fleet"))
    request = str(console.world.sql.one("SELECT id FROM requests"))
    pages, found = routes(done, waits, free, request), dict[str, Any]()
    for scheme in SCHEMES:
        for width, size in (("wide", WIDE), ("narrow", NARROW)):
            async with console.window(color_scheme=scheme, viewport=size) as window:
                for name, path in pages.items():
                    if wrong := await found_wrong(window, name, path):
                        found[f"{name} {scheme} {width}"] = wrong
    async with console.window(viewport=VAST) as window:
        for name, path in pages.items():
            if wrong := await found_wrong(window, name, path):
                found[f"{name} vast"] = wrong
    assert found == {}


async def asked_for_more(world: World, cluster: str) -> None:
    ask = QuotaAsk(request=fresh("q"), team="research", cluster=cluster, gpus=4, actor="user:lead", reason="evals")
    with contextlib.suppress(BackstopError):
        await world.person("user:lead").request(ask)
    await eventually(lambda: world.sql.one("SELECT count(*) FROM requests") > 0, "a request")


@pytest.mark.nightly
async def test_a_page_with_something_on_it_fits_a_phone(browser: Browser, tmp_path: Path) -> None:
    """A window in a list of windows, requests, a fleet rollout: what is empty is narrow by itself."""
    wide = dict[str, int]()
    async with a_console_of(1, tmp_path, browser) as (console, pages), console.window(viewport=NARROW) as window:
        for name, path in pages.items():
            await window.to(path)
            await window.page.locator("h1").wait_for()
            if beyond := await too_wide(window):
                wide[name] = beyond
        await window.to("/calendar")
        assert await window.page.locator("select[name=window] option").count() == 1
    assert wide == {}


@pytest.mark.nightly
async def test_pages_of_a_thousand_clusters_can_be_read_and_are_light(browser: Browser, tmp_path: Path) -> None:
    """The ledger, the desk and the front are real; what Temporal knows is made up (benchmarks/console_fleet.py)."""
    found = dict[str, Any]()
    async with a_console_of(CLUSTERS, tmp_path, browser) as (console, pages):
        for scheme in SCHEMES:
            async with console.window(color_scheme=scheme) as window:
                window.context.set_default_timeout(LONG_MS)
                for name, path in pages.items():
                    if wrong := await found_wrong(window, name, path):
                        found[f"{name} {scheme}"] = wrong
                    sent = await window.page.evaluate(SENT)
                    if sent > 100_000:
                        found[f"{name} weighs"] = sent
                    for paper in ("A4", "Letter") if name in ("leader", "buffer") else ():
                        if (count := await sheets(window, paper)) != 1:
                            found[f"{name} is printed on {paper}"] = count
    assert found == {}
