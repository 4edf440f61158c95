"""One chromium for all of these tests; a worker, a ledger and a front for each."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser

from tests.browser.browsing import Console, chromium, console_of, missing
from tests.e2e.conftest import *  # noqa: F403 - its worlds are fixtures here too
from tests.e2e.world import World


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Browser]:
    """Yield a browser. Without one CI fails; on a laptop its tests are skipped."""
    if lacking := missing():
        reason = f"no browser here: {', '.join(lacking)} not installed (make packages)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    async with chromium() as found:
        yield found


@pytest.fixture
async def console(world: World, browser: Browser) -> AsyncIterator[Console]:
    """Yield a console where every visitor may do everything."""
    async with console_of(world, browser) as found:
        yield found
