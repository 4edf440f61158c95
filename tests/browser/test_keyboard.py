"""The keyboard alone over each page: every control is reached, in the order in which it stands, seen, and works."""

from __future__ import annotations

from typing import Any

import pytest

from models.rollout.stages import Stage
from tests.browser.browsing import Console, Window
from tests.browser.test_looks import asked_for_more
from tests.e2e.world import eventually, fresh, worked_case

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.nightly]

CONTROLS = """() => [...document.querySelectorAll(
    'a[href], button, input:not([type=hidden]), select, textarea, summary, .scroll[tabindex]')]
    .filter((one) => !one.closest('[hidden]') && !one.disabled && (one.offsetParent !== null || one.matches('.skip')))
    .filter((one) => !one.closest('details:not([open])') || one.tagName === 'SUMMARY')
    .map((one, number) => { one.dataset.walked = number; return one.outerHTML.slice(0, 120); })"""
"""What can be reached, in the order of the page; each is given its number."""

FOCUSED = """() => { const at = document.activeElement, style = getComputedStyle(at), box = at.getBoundingClientRect();
    return { number: at.dataset.walked, html: at.outerHTML.slice(0, 120), outline: style.outlineStyle,
        width: parseFloat(style.outlineWidth) || 0, area: box.width * box.height,
        seen: box.bottom > 0 && box.top < innerHeight && box.right > 0 }; }"""
MOST = 400


async def walked(window: Window, path: str) -> list[str]:
    """Return the faults of the keyboard's way over this page, from its top to its last control."""
    await window.to(path)
    controls: list[str] = await window.page.evaluate(CONTROLS)
    assert 5 < len(controls) < MOST, path
    wrong: list[str] = []
    for number, html in enumerate(controls):
        await window.page.keyboard.press("Tab")
        at: dict[str, Any] = await window.page.evaluate(FOCUSED)
        if at["number"] != str(number):
            return [*wrong, f"{path}: Tab {number + 1} is at {at['html']} and not at {html}"]
        if at["outline"] == "none" or at["width"] < 2 or not at["area"] or not at["seen"]:
            wrong.append(f"{path}: the focus is not seen at {html}")
    return wrong


async def a_site(console: Console) -> tuple[str, dict[str, str]]:
    """One cluster that waits for an approval, one that is monitored, a request; and the pages to walk."""
    world, waits, done = console.world, fresh("keyed"), fresh("held")
    await world.fleet(worked_case(waits), worked_case(done))
    await world.launch(waits)
    await world.start(done)
    await world.until(done, Stage.MONITORED)
    await asked_for_more(world, done)
    await world.at_rest()  # a page that changes while it is walked is another one
    pages = {
        "fleet": "/",
        "cluster": f"/clusters/{waits}",
        "approve": f"/clusters/{waits}/approve",
        "launch": "/launch",
        "teams": "/teams",
        "team": "/teams/research",
        "ask": "/teams/research/ask",
        "flex": "/flex",
        "flex-cluster": f"/flex/{done}",
        "requests": "/requests",
        "calendar": "/calendar",
        "audit": f"/audit?cluster={done}",
        "access": "/access",
        "leader": "/leader?buffer=15",
    }
    return waits, pages


async def test_tab_reaches_every_control_in_order_and_shows_where_it_is(console: Console) -> None:
    _, pages = await a_site(console)
    async with console.window() as window:
        wrong = [fault for path in pages.values() for fault in await walked(window, path)]
        assert wrong == []
        for path in pages.values():
            await window.to(path)
            await window.page.keyboard.press("Tab")
            await window.page.keyboard.press("Enter")
            assert await window.page.evaluate("document.activeElement.id") == "main", path
            await window.page.keyboard.press("Tab")
            inside = await window.page.evaluate("document.getElementById('main').contains(document.activeElement)")
            links = await window.page.locator("main :is(a, button, input, .scroll):visible").count()
            assert inside or not links, f"{path}: the way past the navigation leads nowhere"
        assert window.complaints == []


async def test_enter_and_space_work_controls_that_a_mouse_would(console: Console) -> None:
    waits, pages = await a_site(console)
    async with console.window() as window:
        page = window.page
        await window.to("/")
        await page.locator("select[name=show]").focus()
        await page.keyboard.press("n")
        assert await page.locator("select[name=show]").input_value() == "needs"
        await page.keyboard.press("Tab")
        await page.keyboard.press("Space")
        await page.wait_for_url("**/?name=&stage=&wave=&show=needs#clusters")
        await window.to(pages["flex"])
        await page.locator("input[name=block]").focus()
        await page.keyboard.type("8")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/flex?name=&model=&block=8")
        await window.to(pages["leader"])
        await page.locator("input[type=range]").focus()
        await page.keyboard.press("ArrowRight")
        await page.locator("main form.filter button").focus()
        await page.keyboard.press("Space")
        await page.wait_for_url("**/leader?buffer=16#buffer")
        await window.to(pages["audit"])
        await page.locator("main form button").first.focus()
        async with page.expect_navigation(url="**/audit?**"):
            await page.keyboard.press("Space")
        await window.to("/")
        await page.locator(".next a.button").first.focus()
        await page.keyboard.press("Enter")
        await page.wait_for_url(f"**/clusters/{waits}/approve")
        plan = (await console.world.status(waits)).plan_hash
        assert str(plan) in await window.text("form.give")
        await page.locator("form.give button").focus()
        await page.keyboard.press("Space")
        await window.sees("is approved")

        def approvers() -> list[str]:
            archived = console.world.sql.archive(waits)
            return [entry["actor"] for entry in archived if entry["text"].startswith("approve")]

        await eventually(lambda: approvers() == ["user:root"], "its approval in the archive")
        assert window.complaints == []
