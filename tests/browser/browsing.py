"""Debian's chromium, driven by Playwright, and a console for it with a worker, a ledger and Temporal behind it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect

from models.access.principals import Principal, Proof
from tests.e2e.front_world import front_of
from tests.e2e.world import PATIENCE, World
from web.front import Front
from web.settings import Address

HERE = Path(__file__).parent
AXE = HERE / "node_modules" / "axe-core" / "axe.min.js"
CHROMIUM = "/usr/bin/chromium"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
PATIENCE_MS = 1000 * PATIENCE
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 360, "height": 740}
THIS_USER = os.environ.get("USER") or "root"


def missing() -> list[str]:
    """Return what is not installed."""
    wanted = {"chromium": shutil.which(CHROMIUM), "axe-core": AXE.is_file()}
    return [name for name, there in wanted.items() if not there]


def person(name: str) -> Principal:
    """Somebody whom this machine's kernel knows by this name."""
    return Principal(name=f"user:{name}", human=f"user:{name}", proof=Proof.PEER, how="this machine")


@dataclass
class Window:
    """One person's browser, with all that it asked for and all that it complained of."""

    context: BrowserContext
    page: Page
    url: str
    asked: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    async def to(self, path: str) -> None:
        answer = await self.page.goto(f"{self.url}{path}")
        assert answer is not None

    async def text(self, selector: str = "main") -> str:
        """Return the text as people read it: with one space between words."""
        return re.sub(r"\s+", " ", await self.page.inner_text(selector))

    async def sees(self, text: str, selector: str = "main") -> None:
        """Wait until the text is there."""
        await self.page.locator(selector).get_by_text(text).first.wait_for(timeout=PATIENCE_MS)

    def strangers(self) -> list[str]:
        """Requests that left for another host."""
        own = urlsplit(self.url).netloc
        return [one for one in self.asked if urlsplit(one).netloc not in ("", own) and not one.startswith("data:")]


@dataclass
class Console:
    """A console that runs, and the world behind it."""

    world: World
    front: Front
    url: str
    browser: Browser

    def link(self, who: Principal) -> str:
        assert self.front.console is not None
        return f"{self.url}/open/{self.front.console.sessions.link(who)}"

    @asynccontextmanager
    async def window(self, who: str | None = THIS_USER, **more: Any) -> AsyncIterator[Window]:
        """A browser of its own, logged in by a one-time link as this user of this machine; None: as nobody."""
        context = await self.browser.new_context(**{"viewport": WIDE, "reduced_motion": "reduce", **more})
        context.set_default_timeout(PATIENCE_MS)
        page = await context.new_page()
        window = Window(context, page, self.url)
        page.on("request", lambda one: window.asked.append(one.url))
        page.on("pageerror", lambda one: window.complaints.append(str(one)))
        page.on("console", lambda one: window.complaints.append(one.text) if one.type == "error" else None)
        try:
            if who is not None:
                await page.goto(self.link(person(who)))
            yield window
        finally:
            with contextlib.suppress(Exception):
                await context.close()


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    expect.set_options(timeout=PATIENCE_MS)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def console_of(world: World, browser: Browser, **more: Any) -> AsyncIterator[Console]:
    async with front_of(world.client, None, listen=Address("127.0.0.1", 0), key=world.keys, **more) as (front, where):
        yield Console(world, front, where[0], browser)
