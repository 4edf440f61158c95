"""Logging in in Debian's chromium itself, against a real provider: by its own forms, cookies and redirects."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.browsing import PATIENCE_MS, chromium, missing
from tests.oidc.real import a_key, needs_provider
from tests.oidc.test_login_browser import a_site

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.nightly,
    needs_provider,
    pytest.mark.skipif(bool(missing()), reason="no browser here (make packages)"),
]


async def test_somebody_logs_in_at_the_provider_and_out_again_here(tmp_path: Path) -> None:
    async with a_site(tmp_path, a_key("one")) as site, chromium() as browser:
        context = await browser.new_context()
        context.set_default_timeout(PATIENCE_MS)
        page = await context.new_page()
        await page.goto(f"{site.url}/requests?a=b")
        assert page.url.startswith(site.issuer), "whoever is not known is sent to the provider"
        await page.locator("input[name=login]").fill("ana")
        await page.locator("input[name=password]").fill("any")
        await page.locator("button[type=submit]").click()
        await page.locator("button[type=submit]").click()  # yes, this console may know it
        await page.wait_for_url(f"{site.url}/requests?a=b")
        [cookie] = [one for one in await context.cookies() if one["name"] == "backstop"]
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Lax")
        assert await page.evaluate("document.cookie") == "", "no script reads it"
        assert site.front.console is not None
        session = site.front.console.sessions.session_of(cookie["value"])
        assert session is not None
        assert session.principal.name == f"oidc:ana@{site.issuer}"
        await page.get_by_role("button", name="Log out", exact=True).click()
        await page.get_by_text("You are logged out.").wait_for()
        assert site.front.console.sessions.session_of(cookie["value"]) is None
        assert "backstop" not in {one["name"] for one in await context.cookies()}
