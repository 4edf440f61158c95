"""The login in the browser: the authorization code flow of OpenID Connect, which ends with a session.

Source: OpenID Connect Core 1.0, 3.1; RFC 7636 (PKCE, S256); RFC 9207 (the answer names its issuer). A login under way
is in a cookie of its browser, for ten minutes: a secret, from which state, nonce and verifier are made. So an answer
that somebody else's browser fetched logs nobody in, and any front can check it. web/oidc.py checks the identity token.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

import httpx
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from models.access.principals import Principal
from models.errors import Refusal, Unavailable
from web.console.guarding import HEADERS, cookie, cookie_name
from web.failures import Problem, forbidden_problem, unauthenticated_problem
from web.oidc import Provider, Terms, is_safe_address

BACK = "/login/back"
_SECONDS = 600.0
_COOKIE_CHARS = 3_800
_KEPT = re.compile(r"([\w-]{43})\.(\d{1,12})\.([\w.~%-]+)", re.ASCII)
_OURS = re.compile(r"/(?!/)[!-~]*")
_HTTP_SECONDS = 10.0
_MOST_BYTES = 1_000_000
_COOKIE = "backstop-login"
_ERROR = re.compile(r"[a-z_]{1,40}")
_DENIED = "you did not confirm the login at the provider: begin again at /login"
_AGAIN = "this login began in another browser, or more than ten minutes ago: begin again at /login"

Begin = Callable[[Request, Principal, str], Response]


class BrowserClient(NamedTuple):
    """The console's registration with the provider. `secret` empty: a public client, with PKCE alone."""

    terms: Terms
    secret: str = ""


class _Begun(NamedTuple):
    """A login under way, as the browser's cookie stores it. `to`: the page that the browser asked for."""

    secret: str
    at: int
    to: str

    @classmethod
    def read(cls, cookie: str) -> _Begun | None:
        match = _KEPT.fullmatch(cookie)
        return None if match is None else cls(match[1], int(match[2]), unquote(match[3]))

    @property
    def cookie(self) -> str:
        return f"{self.secret}.{self.at}.{quote(self.to, safe='')}"

    @property
    def state(self) -> str:
        return self._derive(f"state {self.at} {self.to}")

    @property
    def nonce(self) -> str:
        return self._derive("nonce")

    @property
    def verifier(self) -> str:
        return self._derive("verifier")

    def _derive(self, what: str) -> str:
        """Return a value that only a holder of the cookie can compute, and that does not reveal the cookie."""
        return hmac.new(self.secret.encode(), what.encode(), hashlib.sha256).hexdigest()


@dataclass
class Login:
    """The login. `address`: the console's URL. `secret`: the client's own; empty: a public client, PKCE alone."""

    terms: Terms
    address: Callable[[], str]
    begin: Begin
    secret: str = ""
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        # What is made for the browser is meant for the client itself, whatever the API's audience is called.
        self._provider = Provider(replace(self.terms, audience=self.terms.client))

    async def __call__(self, request: Request) -> Response:
        """Send the browser to the provider, or receive it back from there. Errors: Problem, Refusal, Unavailable."""
        if request.url.path == BACK:
            return await self._back(request)
        if request.method != "GET" or request.headers.get("sec-fetch-mode", "navigate") != "navigate":
            raise unauthenticated_problem("this browser is no longer logged in: log in again at /login")
        if urlsplit(self.address()).netloc != request.headers.get("host", ""):
            return RedirectResponse(f"{self.address()}/login", 303, headers=HEADERS)  # what it is known by there
        return await self._away(request)

    async def _away(self, request: Request) -> Response:
        where = _endpoint(await self._provider.endpoints(), "authorization_endpoint")
        begun = _Begun(secrets.token_urlsafe(32), int(self.clock()), _page(request))
        if len(begun.cookie) > _COOKIE_CHARS:
            begun = begun._replace(to="/")
        scopes = (await self._provider.endpoints()).get("scopes_supported")
        supported = scopes if isinstance(scopes, list) else []
        asked = {
            "response_type": "code",
            "client_id": self.terms.client,
            "redirect_uri": self._redirect,
            "scope": " ".join(["openid", *(scope for scope in ("profile", "groups") if scope in supported)]),
            "state": begun.state,
            "nonce": begun.nonce,
            "code_challenge": _challenge(begun.verifier),
            "code_challenge_method": "S256",
        }
        response = RedirectResponse(f"{where}{'&' if '?' in where else '?'}{urlencode(asked)}", 303, headers=HEADERS)
        response.headers["set-cookie"] = self._cookie(begun.cookie)
        response.headers["cache-control"] = "no-store"
        return response

    async def _back(self, request: Request) -> Response:
        parameters = {name: values[-1] for name, values in parse_qs(request.url.query, max_num_fields=20).items()}
        begun = _Begun.read(request.cookies.get(cookie_name(secure=self._secure, name=_COOKIE), ""))
        state = parameters.get("state", "").encode()
        if begun is None or not hmac.compare_digest(begun.state.encode(), state) or not self._is_soon(begun):
            raise forbidden_problem(_AGAIN)
        if parameters.get("iss", self.terms.issuer) != self.terms.issuer:
            raise forbidden_problem(
                "the answer came from another provider than the one that was asked: begin again at /login"
            )
        if "error" in parameters or "code" not in parameters:
            raise forbidden_problem(_denial_text(parameters.get("error", "")))
        token = await self._token(parameters["code"], begun.verifier)
        try:
            principal = await self._provider.principal(token, nonce=begun.nonce)
        except Refusal as refusal:
            raise forbidden_problem(f"{refusal.message}; you are not logged in") from None
        if principal is None:
            raise forbidden_problem("the provider sent no ID token: begin again at /login")
        response = self.begin(request, principal, begun.to if _OURS.fullmatch(begun.to) else "/")
        response.headers.append("set-cookie", self._cookie(""))
        return response

    async def _token(self, code: str, verifier: str) -> str:
        """Return the identity token. Errors: Problem 403, Unavailable."""
        where = _endpoint(await self._provider.endpoints(), "token_endpoint")
        fields = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._redirect,
            "code_verifier": verifier,
        }
        headers = {}
        if self.secret:
            pair = f"{quote(self.terms.client, safe='')}:{quote(self.secret, safe='')}"  # RFC 6749, 2.3.1
            headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            fields["client_id"] = self.terms.client
        try:
            async with httpx.AsyncClient(timeout=_HTTP_SECONDS, follow_redirects=False) as client:
                answer = await client.post(where, data=fields, headers=headers)
            document = answer.json() if len(answer.content) <= _MOST_BYTES else None
        except (httpx.HTTPError, ValueError):
            raise Unavailable("the provider does not answer: log in again later") from None
        token = document.get("id_token") if isinstance(document, dict) else None
        if answer.status_code != 200 or not isinstance(token, str):
            why = str(document.get("error", "")) if isinstance(document, dict) else ""
            raise forbidden_problem(_denial_text(why))
        return token

    @property
    def _redirect(self) -> str:
        return f"{self.address()}{BACK}"

    @property
    def _secure(self) -> bool:
        return self.address().startswith("https://")

    def _cookie(self, secret: str) -> str:
        """Return the cookie header; without a secret the one that removes it."""
        return cookie(secret, _SECONDS, secure=self._secure, name=_COOKIE)

    def _is_soon(self, begun: _Begun) -> bool:
        return 0 <= self.clock() - begun.at + 1 < _SECONDS


def _endpoint(known: Mapping[str, object], name: str) -> str:
    address = known.get(name)
    if not isinstance(address, str) or not is_safe_address(address):
        raise Problem(
            "unavailable", 503, "The provider cannot be used.", f"it names no safe address (https) as its {name}"
        )
    return address


def _page(request: Request) -> str:
    """Return the console's page that was asked for, never another site's."""
    path = request.scope["raw_path"].decode("latin-1")
    if not re.fullmatch(r"/[A-Za-z0-9._~%-][A-Za-z0-9._~%/-]*", path) or path.startswith("/login"):
        return "/"
    return f"{path}?{request.url.query}" if request.url.query else path


def _denial_text(error: str) -> str:
    if error == "access_denied":
        return _DENIED
    named = error if _ERROR.fullmatch(error) else "it gave no reason"
    return f"the provider did not log you in ({named}): begin again at /login"


def _challenge(verifier: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
