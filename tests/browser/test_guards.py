"""Other people's pages, hostile names and injected scripts can do nothing here; and pages work without JavaScript."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlencode

import httpx
import pytest
from playwright.async_api import expect

from models.rollout.stages import Stage
from tests.browser.browsing import Console
from tests.e2e.world import PATIENCE, eventually, fresh, worked_case

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
HOSTILE = "<img src=x onerror=window.hit=1>"


@asynccontextmanager
async def elsewhere(html: str) -> AsyncIterator[str]:
    """Somebody else's page, at another origin. Yields its address."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\n\r\n" + html.encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


async def test_a_form_of_another_origin_or_without_our_token_is_refused(console: Console) -> None:
    world, name = console.world, fresh("forged")
    await world.fleet(worked_case(name))
    await world.launch(name)
    plan = str((await world.status(name)).plan_hash)
    async with console.window() as window:
        token = await window.page.locator("input[name=form_token]").first.input_value()
        [cookie] = await window.context.cookies()
        assert (cookie.get("httpOnly"), cookie.get("sameSite")) == (True, "Lax")
        form = f"""<form method=post action="{console.url}/clusters/{name}/approve"><input name=plan_hash value={plan}>
            <input name=form_token value={token}><button>Win</button></form>"""
        async with elsewhere(form) as there:
            await window.page.goto(there)
            async with window.page.expect_response(f"{console.url}/**") as answered:
                await window.page.get_by_role("button").click()
            assert (await answered.value).status in (401, 403)
        async with httpx.AsyncClient(cookies={"backstop": str(cookie.get("value"))}) as http:
            kind = {"content-type": "application/x-www-form-urlencoded"}

            async def given(token: str, **headers: str) -> int:
                body = urlencode({"plan_hash": plan, "form_token": token})
                url = f"{console.url}/clusters/{name}/approve"
                return (await http.post(url, content=body, headers={**kind, **headers})).status_code

            assert await given("") == await given("0" * 128) == 403
            assert await given(token, origin="https://evil.example") == 403
            assert await given(token, **{"sec-fetch-site": "cross-site"}) == 403
            assert await given(token, **{"content-type": "text/plain"}) == 415
            assert (await http.get(f"{console.url}/", headers={"host": "evil.example"})).status_code == 421
            assert world.sql.row("rollouts", cluster=name)["stage"] == "planned"
            assert (await world.status(name)).approved_by == ""
            assert await given(token, origin=console.url) == 303, "the same of our own page"


async def test_names_and_reasons_that_are_markup_run_nothing_and_nothing_leaves(console: Console) -> None:
    world, name = console.world, f"{fresh('h')} {HOSTILE}"
    await world.fleet(worked_case(name))
    await world.launch(name)
    async with console.window() as window:
        page = window.page
        await expect(page.get_by_role("row", name=name)).to_be_visible()
        await page.locator(".next a:not(.button)").first.click()
        await page.get_by_role("link", name="Pause").click()
        await page.locator("textarea").fill(f"{HOSTILE}<script>window.hit=2</script>")
        await page.get_by_role("button", name="Pause").click()
        await window.sees(HOSTILE, ".standing")
        await expect(page.locator("h1")).to_have_text(name)
        await eventually(lambda: HOSTILE in str([e["reason"] for e in world.sql.archive(name)]), "it is archived")
        await page.reload()
        assert HOSTILE in await window.text("#audit")
        await window.to(f"/?name={HOSTILE}")
        for html in ("<script>window.hit=3</script>", '<p onclick="window.hit=4" id=bait>x</p>'):
            await page.evaluate("html => document.write(html)", html)
        await page.evaluate("document.getElementById('bait')?.click()")
        assert await page.evaluate("window.hit") is None
        assert any("Content Security Policy" in text for text in window.complaints)
        assert window.strangers() == []
        assert len(window.asked) > 5


@pytest.mark.nightly
async def test_without_javascript_pages_read_and_commands_are_given(console: Console) -> None:
    world, name = console.world, fresh("plain")
    await world.fleet(worked_case(name, soak_buffered="1h"))
    await world.launch(name)
    async with console.window(java_script_enabled=False) as window:
        page = window.page
        await expect(page.get_by_role("row", name=name)).to_contain_text("planned")
        async with asyncio.timeout(PATIENCE):
            while not await page.locator(".next").count():  # what it needs is noted a moment after what it is
                await page.reload()
        await page.locator(".next a:not(.button)").first.click()
        await expect(page.locator("#plan")).to_contain_text("361 GPUs installed, 319 healthy")
        await page.locator("#do").get_by_role("link", name="Approve the plan").click()
        await page.get_by_role("button", name="Approve the plan").click()
        await window.sees("is approved")
        await world.until(name, Stage.BUFFERED)
        await page.reload()
        await expect(page.locator('.track [aria-current="step"] b')).to_have_text("buffered")
        assert not [one for one in window.asked if one.endswith("/live")]
