"""Logging in in the browser, against a real provider: by code, PKCE, state and nonce; and answers that do not count."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import httpx
import pytest

from tests.oidc.real import FORM, Key, a_key, fields_of, needs_provider, provider
from tests.oidc.test_login import nowhere
from tests.ports import free_port
from tests.waiting import PATIENCE
from web.callers import Callers
from web.console import login
from web.console.login import BrowserClient, Login
from web.front import Front
from web.oidc import Terms
from web.server import listening
from web.settings import Address, FrontSettings
from web.temporal_connection import Doors

pytestmark = [pytest.mark.e2e, needs_provider]


class Site:
    """A console, and its provider."""

    def __init__(self, url: str, issuer: str, front: Front) -> None:
        self.url, self.issuer, self.front = url, issuer, front

    @property
    def login(self) -> Login:
        assert self.front.console is not None
        assert isinstance(self.front.console.log_in, Login)
        return self.front.console.log_in

    def who(self, browser: httpx.AsyncClient) -> str:
        """Return the owner of the browser's session; empty: none."""
        assert self.front.console is not None
        session = self.front.console.sessions.session_of(browser.cookies.get("backstop") or "")
        return "" if session is None else session.principal.name

    def browser(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(timeout=120, headers={"sec-fetch-mode": "navigate"})


@asynccontextmanager
async def a_site(folder: Path, key: Key, secret: str = "", known: str = "") -> AsyncIterator[Site]:
    """`known`: the secret that the provider knows."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with provider(folder, key, redirect=f"{url}/login/back", secret=known or secret) as issuer:
        terms = Terms(issuer, "an-api", "backstop-console")
        front = Front(Doors(nowhere), Callers(()), browsers=BrowserClient(terms, secret))
        async with listening(front, FrontSettings(None, listen=Address("127.0.0.1", port)), {}):
            yield Site(url, issuer, front)


def made_of(browser: httpx.AsyncClient, what: str) -> str:
    """Return the value that belongs to the login secret in this browser's cookie."""
    return made_by((browser.cookies.get("backstop-login") or "").split(".")[0], what)


def made_by(secret: str, what: str) -> str:
    return hmac.new(secret.encode(), what.encode(), hashlib.sha256).hexdigest()


async def at_provider(browser: httpx.AsyncClient, address: str, name: str = "ana", *, yes: bool = True) -> str:
    """Somebody says yes, or no, to whatever it asks; where it sends them back."""
    answer = await browser.get(address)
    for _ in range(20):
        if answer.is_redirect:
            where = str(answer.url.join(answer.headers["location"]))
            if "/login/back" in where:
                return where
            answer = await browser.get(where)
            continue
        form = FORM.search(answer.text)
        assert form is not None, answer.text[:500]
        if not yes:
            abort = re.search(r'href="([^"]*abort)"', answer.text)
            assert abort is not None
            answer = await browser.get(str(answer.url.join(unescape(abort[1]))))
            continue
        answer = await browser.post(str(answer.url.join(unescape(form[1]))), data=fields_of(form, name))
    raise AssertionError("it does not come to an end")


async def begun(site: Site, browser: httpx.AsyncClient, path: str = "/") -> str:
    answer = await browser.get(f"{site.url}{path}")
    assert answer.status_code == 303, answer.text
    assert answer.headers["location"].startswith(site.issuer)
    return str(answer.headers["location"])


def sentence(answer: httpx.Response) -> str:
    """The one that the page says."""
    found = re.search(r"<p data-again>(.*?)</p>", answer.text, re.DOTALL)
    assert found is not None, answer.text
    return unescape(found[1])


@pytest.mark.parametrize("secret", ["", "a secret of a test: with a colon"])
async def test_somebody_logs_in_and_is_where_they_wanted_to_be(tmp_path: Path, secret: str) -> None:
    async with a_site(tmp_path, a_key("one"), secret) as site, site.browser() as browser:
        away = await begun(site, browser, "/clusters/h100?a=b")
        asked = {name: values[0] for name, values in parse_qs(urlsplit(away).query).items()}
        assert (asked["response_type"], asked["code_challenge_method"]) == ("code", "S256")
        challenge = hashlib.sha256(made_of(browser, "verifier").encode()).digest()
        assert asked["code_challenge"] == base64.urlsafe_b64encode(challenge).rstrip(b"=").decode()
        assert asked["nonce"] == made_of(browser, "nonce")
        back = await at_provider(browser, away)
        answer = await browser.get(back)
        assert (answer.status_code, answer.headers["location"]) == (303, "/clusters/h100?a=b"), answer.text
        assert site.who(browser) == f"oidc:ana@{site.issuer}"
        cookies = answer.headers.get_list("set-cookie")
        assert len(cookies) == 2
        assert all("HttpOnly" in cookie and "SameSite=Lax" in cookie for cookie in cookies)
        again = await browser.get(back)
        assert (again.status_code, "began in another browser" in sentence(again)) == (403, True), "it counts once"


async def test_an_answer_counts_in_the_browser_that_asked_and_as_it_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_site(tmp_path, a_key("one")) as site, site.browser() as browser, site.browser() as another:
        back = await at_provider(browser, await begun(site, browser))
        stolen = await another.get(back)  # somebody was sent the answer of another's login
        assert (stolen.status_code, site.who(another)) == (403, "")
        assert sentence(stolen) == (
            "This login began in another browser, or more than ten minutes ago: begin again at /login."
        )
        wrong = await browser.get(re.sub(r"state=[^&]*", "state=guessed", back))
        assert (wrong.status_code, "began in another browser" in sentence(wrong)) == (403, True)
        mixed = await browser.get(back.replace("iss=", "iss=https%3A%2F%2Fanother.example&x="))
        assert (mixed.status_code, "another provider" in sentence(mixed)) == (403, True)

        back = await at_provider(browser, await begun(site, browser))
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(login._Begun, "nonce", "another")
            answer = await browser.get(back)
        assert (answer.status_code, site.who(browser)) == (403, "")
        assert sentence(answer) == "The token belongs to another login than this one; you are not logged in."

        back = await at_provider(browser, await begun(site, browser))
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(login._Begun, "verifier", "another" * 10)
            answer = await browser.get(back)
        assert sentence(answer) == "The provider did not log you in (invalid_grant): begin again at /login."

        back = await at_provider(browser, await begun(site, browser))
        began = site.login.clock()
        site.login.clock = lambda: began + 601
        assert "more than ten minutes ago" in sentence(await browser.get(back))
        assert site.who(browser) == ""


async def test_who_says_no_is_not_logged_in(tmp_path: Path) -> None:
    async with a_site(tmp_path, a_key("one")) as site, site.browser() as browser:
        back = await at_provider(browser, await begun(site, browser), yes=False)
        assert "error=access_denied" in back
        answer = await browser.get(back)
        assert (answer.status_code, site.who(browser)) == (403, "")
        assert sentence(answer) == "You did not confirm the login at the provider: begin again at /login."


async def test_a_wrong_secret_and_a_provider_away_are_said(tmp_path: Path) -> None:
    async with a_site(tmp_path, a_key("one"), "wrong", known="right") as site, site.browser() as browser:
        answer = await browser.get(await at_provider(browser, await begun(site, browser)))
        assert sentence(answer) == "The provider did not log you in (invalid_client): begin again at /login."
    terms = Terms(f"http://127.0.0.1:{free_port()}", "an-api", "backstop-console")
    front = Front(Doors(nowhere), Callers(()), browsers=BrowserClient(terms))
    settings = FrontSettings(None, listen=Address("127.0.0.1", 0))
    async with listening(front, settings, {}) as (url,), httpx.AsyncClient(timeout=PATIENCE) as http:
        answer = await http.get(f"{url}/")
        assert (answer.status_code, "The provider does not answer" in sentence(answer)) == (503, True)
        stale = await http.post(f"{url}/clusters/x/approve", content="a=b")
        assert (stale.status_code, "log in again at /login" in sentence(stale)) == (401, True)


@pytest.mark.parametrize("path", ["//evil.example/", "/%5Cevil.example", "/\\evil.example", "/login?to=//evil.example"])
async def test_nobody_is_led_elsewhere(tmp_path: Path, path: str) -> None:
    async with a_site(tmp_path, a_key("one")) as site, site.browser() as browser:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(urlsplit(site.url).port or 0))
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {urlsplit(site.url).netloc}\r\nConnection: close\r\n\r\n".encode())
        head = (await reader.read()).decode()
        writer.close()
        assert " 303 " in head.split("\r\n")[0], head
        kept = re.search(r"set-cookie: backstop-login=[\w-]+\.\d+\.([^;]+);", head)
        assert kept is not None
        assert unquote(kept[1]) in ("/", "/%5Cevil.example")
        assert browser is not None
