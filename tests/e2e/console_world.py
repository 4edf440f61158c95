"""A console in this process for the world of a story, somebody's browser without a screen, and what a page shows it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from typing import Any

import httpx

from client.backstop import Backstop
from client.front_signer import SigningKey
from models.access.access_file import provider_name
from models.access.principals import Principal, Proof
from tests.e2e.front_world import doors_of, http_to, listening_at, through_url
from tests.e2e.world import World
from tests.unit.access_world import ISSUER
from web.callers import Callers
from web.front import Front
from web.ledger_rights import LedgerRights
from web.settings import Address, FrontSettings

LISTEN = Address("127.0.0.1", 0)
_ALONE = {"input", "meta", "link", "br", "img", "hr"}
_ASKS = {"input", "select", "textarea"}


class Seen(HTMLParser):
    """One page as it is read: tables as rows of text, forms with their fields, and what a page must not have."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tables: dict[str, list[list[str]]] = {}
        self.forms: list[tuple[str, dict[str, str]]] = []
        self.headings: list[int] = []
        self.links: list[str] = []
        self.wrong: list[str] = []
        self.words = ""
        self._open: list[str] = []
        self._table = ""
        self._cell: list[str] | None = None
        self.feed(text)
        self.close()
        self.wrong += [f"<{tag}> is left open" for tag in self._open]
        self.wrong += [
            f"h{b} follows h{a}" for a, b in zip([0, *self.headings], self.headings, strict=False) if b > a + 1
        ]
        self.words = re.sub(r"\s+", " ", self.words)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.wrong += [f"<{tag} {name}>" for name in found if name == "style" or name.startswith("on")]
        if tag == "script" and not found.get("src", "").startswith("/static/"):
            self.wrong.append("a script of somebody else")
        if tag in _ASKS and found.get("type") != "hidden" and "label" not in self._open:
            self.wrong.append(f"<{tag} name={found.get('name')}> has no label")
        if tag == "table" and "scroll" not in self._table:
            self.wrong.append("a table does not scroll by itself")
        if tag not in _ALONE:
            self._open.append(tag)
        if tag == "div" and "scroll" in found.get("class", ""):
            self._table = f"scroll {found.get('aria-label', '')}"
            self.wrong += [] if found.get("tabindex") == "0" and found.get("aria-label") else ["nobody can scroll it"]
        if tag == "tr" and self._table:
            self.tables.setdefault(self._table.partition(" ")[2], []).append([])
        if tag in ("td", "th"):
            self._cell = []
        if re.fullmatch(r"h\d", tag):
            self.headings.append(int(tag[1]))
        if tag == "a":
            self.links.append(found.get("href", ""))
        if tag == "form" and found.get("method") == "post":
            self.forms.append((found["action"], {}))
        if tag in ("input", "button") and self.forms and "form" in self._open and found.get("name"):
            self.forms[-1][1].setdefault(found["name"], found.get("value", ""))

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.wrong.append(f"</{tag}> ends what is not open")
        if tag in ("td", "th") and self._cell is not None:
            self.tables[self._table.partition(" ")[2]][-1].append("".join(self._cell).strip())
            self._cell = None
        if tag == "table":
            self._table = ""

    def handle_data(self, data: str) -> None:
        self.words += data
        if self._cell is not None:
            self._cell.append(data)

    def column(self, table: str, name: str) -> dict[str, str]:
        """Return the column by the first cell of each row."""
        head, *rows = self.tables[table]
        at = head.index(name)
        return {row[0]: row[at] for row in rows}


class Browser:
    """Somebody who is logged in."""

    def __init__(self, place: Mapping[str, Any], principal: Principal) -> None:
        front: Front = place["front"]
        assert front.console is not None
        self._place, self._principal = place, principal
        self.session = front.console.sessions.begin(principal)
        found = front.console.sessions.session_of(self.session)
        assert found is not None
        self.form_token = found.form_token
        cookies = {"backstop": self.session}
        self.http = http_to(place["client"], place["url"], cookies=cookies, follow_redirects=False)

    @asynccontextmanager
    async def another(self, name: str) -> AsyncIterator[Browser]:
        """Somebody else's, at the same front."""
        browser = Browser(self._place, somebody(name))
        async with browser.http:
            yield browser

    def door(self) -> Backstop:
        """The same person at the front's API."""
        return through_url(self._place["url"], lambda: self._principal.human)

    async def look(self, path: str, status: int = 200) -> Seen:
        """The page, which has nothing that it must not have."""
        answer = await self.http.get(path)
        assert answer.status_code == status, (path, answer.status_code, answer.text[-800:])
        seen = Seen(answer.text)
        assert seen.wrong == [], (path, seen.wrong)
        assert "Undo: Undo:" not in seen.words, path
        return seen

    async def give(self, path: str, key: str, **fields: str) -> httpx.Response:
        """A form of ours, sent. `key`: of this one giving."""
        data = {"form_token": self.form_token, "once": key, **fields}
        return await self.http.post(path, data=data)

    async def given(self, path: str, key: str, **fields: str) -> Seen:
        """A form that is done; answers the page that follows."""
        answer = await self.give(path, key, **fields)
        assert answer.status_code == 303, (path, Seen(answer.text).words)
        return await self.look(answer.headers["location"])

    async def refused(self, path: str, key: str, **fields: str) -> Seen:
        """A form that is refused on its own page."""
        answer = await self.give(path, key, **fields)
        assert answer.status_code == 409, (path, answer.status_code, answer.headers, answer.text[-500:])
        seen = Seen(answer.text)
        assert seen.wrong == [], seen.wrong
        return seen


class ByName:
    """web.callers.Tokens of a made-up provider: the token is the subject."""

    async def principal(self, token: str) -> Principal | None:
        return known(token)


def somebody(name: str) -> Principal:
    return Principal(name=name, human=name, proof=Proof.PEER, how="this machine")


def known(name: str) -> Principal:
    """Return the person whom the access file of tests knows at its provider by this name."""
    sub = f"sub-{name.removeprefix('user:').removeprefix('sub-')}"
    return Principal(name=provider_name(ISSUER, sub), human=sub, proof=Proof.OIDC, how=ISSUER)


@asynccontextmanager
async def console_of(
    world: World, key: SigningKey | None = None, *, by_file: bool = False
) -> AsyncIterator[Mapping[str, Any]]:
    """Yields the front and its address. `by_file`: the access file in force says who may."""
    doors = doors_of(world.client, key)
    more: dict[str, Any] = {"rights": LedgerRights(doors)} if by_file else {}
    front = Front(doors, Callers((ByName(),)), **more)
    async with listening_at(world.client, front, FrontSettings(socket=None, listen=LISTEN)) as (url,):
        yield {"front": front, "url": url, "client": world.client}
