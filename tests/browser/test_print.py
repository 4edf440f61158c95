"""A printed page has all that it says, without the controls that only a screen can use."""

from __future__ import annotations

import pytest

from tests.browser.browsing import Console
from tests.e2e.world import fresh, worked_case

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.nightly]


@pytest.mark.parametrize("path", ["/leader", "/", "/calendar", "/audit"])
async def test_a_printed_page_leaves_out_its_forms(console: Console, path: str) -> None:
    await console.world.fleet(worked_case(fresh("printed")))
    async with console.window() as window:
        await window.to(path)
        controls = window.page.locator("form button, form input:not([type=hidden]), form select").locator(
            "visible=true"
        )
        assert await controls.count() > 0
        await window.page.emulate_media(media="print")
        assert await controls.count() == 0
        assert await window.page.locator("h1").is_visible()
