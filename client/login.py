"""The device flow (RFC 8628) of `backstop login` with the provider that the front names, and the login that it keeps.

The login is a file that only its user can read, not a keyring, which a server without a desktop does not have. A token
older than ten minutes is refreshed: a front takes none that is older than fifteen.
"""

from __future__ import annotations

import base64
import contextlib
import json
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import HTTPRedirectHandler, Request, build_opener

from client.http_exchange import AtUrl, FrontPlace
from client.operations import API
from client.places import login_file
from client.private_files import write_private
from client.problems import error_from
from models.errors import BadInput, Refusal, Unavailable
from models.hashes import json_object

_HTTP_SECONDS = 20.0
_OLD_SECONDS = 600.0
_SLOWER_SECONDS = 5.0
DEVICE = "urn:ietf:params:oauth:grant-type:device_code"


def fetch_login(place: FrontPlace) -> dict[str, Any]:
    """Return the front's description of its login. Errors: those of models.errors."""
    return answer_of(place, "GET", "auth", {"accept": "application/json"}, _HTTP_SECONDS)


def answer_of(
    place: FrontPlace, method: str, path: str, headers: Mapping[str, str], seconds: float = 30.0
) -> dict[str, Any]:
    """Return the front's answer, which is a document. Errors: those in it."""
    reply = place.exchange(method, f"{API}/{path}", headers, b"", seconds)
    if reply.status != 200:
        raise error_from(reply.status, reply.body)
    document: dict[str, Any] = json.loads(reply.body)
    return document


def log_in(place: AtUrl, tell: Callable[[str, str], None], pause: Callable[[float], None] = time.sleep) -> None:
    """Wait until somebody agrees in a browser, and keep the tokens. `tell` gets the address, and the code to type.

    Errors: Refusal if it was declined or took too long, BadInput for a front without a provider, Unavailable.
    """
    oidc = fetch_login(place).get("oidc")
    if not isinstance(oidc, dict):
        raise BadInput(f"the front at {place.url} has no provider to log in with: ask its admin for a token")
    if not oidc.get("device_authorization_endpoint"):
        raise BadInput(
            f"the provider {oidc.get('issuer')} lacks the device flow, which `backstop login` needs: ask an admin "
            "for a token"
        )
    begun = _post(str(oidc["device_authorization_endpoint"]), {"client_id": oidc["client_id"], "scope": oidc["scope"]})
    if "device_code" not in begun:
        raise Unavailable(f"the provider did not start the login: {_reason_in(begun)}")
    tell(str(begun.get("verification_uri_complete") or begun["verification_uri"]), str(begun["user_code"]))
    tokens = _await_tokens(oidc, begun, pause)
    _keep(_what_to_keep(place.url, oidc, tokens))


def _await_tokens(
    oidc: Mapping[str, Any], begun: Mapping[str, Any], pause: Callable[[float], None]
) -> Mapping[str, Any]:
    interval, ends = float(begun.get("interval", 5)), time.monotonic() + float(begun.get("expires_in", 600))
    form = {"grant_type": DEVICE, "device_code": begun["device_code"], "client_id": oidc["client_id"]}
    while time.monotonic() < ends:
        pause(interval)
        answer = _post(str(oidc["token_endpoint"]), form)
        match answer.get("error"):
            case None:
                return answer
            case "authorization_pending":
                continue
            case "slow_down":
                interval += _SLOWER_SECONDS
            case "access_denied":
                raise Refusal("the login was refused in the browser: run `backstop login` again")
            case _:
                raise Refusal(f"the login failed: {_reason_in(answer)}")
    raise Refusal("nobody confirmed the login in time: run `backstop login` again")


def kept_token(place: FrontPlace) -> str:
    """Return the token for the front at this place, refreshed where it is old; empty: nobody has logged in there."""
    kept = kept_login()
    if not isinstance(place, AtUrl) or kept.get("url") != place.url:
        return ""
    if time.time() - float(kept.get("at", 0)) > _OLD_SECONDS and kept.get("refresh_token"):
        kept = _refresh(kept)
    return str(kept.get("token", ""))


def _refresh(kept: dict[str, Any]) -> dict[str, Any]:
    """Refresh the login. Errors: Refusal if the provider refuses to."""
    answer = _post(
        str(kept["token_endpoint"]),
        {"grant_type": "refresh_token", "refresh_token": kept["refresh_token"], "client_id": kept["client_id"]},
    )
    if "error" in answer:
        raise Refusal(f"the login has ended ({_reason_in(answer)}): run `backstop login` again")
    again = _what_to_keep(str(kept["url"]), kept, {"refresh_token": kept["refresh_token"], **answer})
    _keep(again)
    return again


def kept_login() -> dict[str, Any]:
    """Return the login on disk; empty if nobody has logged in."""
    try:
        return json_object(login_file().read_text())
    except (OSError, ValueError):
        return {}


def log_out() -> str:
    """Remove the login, and tell a provider that wants to know. Returns the front's URL; empty: there was no login."""
    kept = kept_login()
    login_file().unlink(missing_ok=True)
    if kept.get("revocation_endpoint") and kept.get("refresh_token"):
        # What is not kept here any more is of no use to anybody else either.
        with contextlib.suppress(Unavailable):
            _post(str(kept["revocation_endpoint"]), {"token": kept["refresh_token"], "client_id": kept["client_id"]})
    return str(kept.get("url", ""))


def _what_to_keep(url: str, oidc: Mapping[str, Any], tokens: Mapping[str, Any]) -> dict[str, Any]:
    """Return the login to keep, with the access token where that one is for this front, else the identity token."""
    names = ("token_endpoint", "client_id", "issuer", "audience", "revocation_endpoint")
    access = str(tokens.get("access_token", ""))
    token = access if _is_for(access, str(oidc.get("audience", ""))) else str(tokens.get("id_token") or access)
    if not token:
        raise Unavailable("the provider gave no token")
    return {
        "url": url,
        **{name: oidc.get(name, "") for name in names},
        "token": token,
        "refresh_token": tokens.get("refresh_token", ""),
        "at": time.time(),
    }


def _is_for(token: str, audience: str) -> bool:
    """Return whether the token claims this audience; the front verifies it."""
    try:
        body = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        named = claims.get("aud")
    except (IndexError, ValueError, AttributeError):
        return False
    return audience in (named if isinstance(named, list) else [named])


def _keep(login: Mapping[str, Any]) -> None:
    """Write the login at once, readable by nobody else."""
    write_private(login_file(), json.dumps(dict(login)).encode())


class _NoRedirect(HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


_OPENER = build_opener(_NoRedirect)


def _post(url: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Post a form; return the answer's JSON, an error's too. Errors: Unavailable."""
    if not url.startswith(("https://", "http://127.0.0.1:", "http://localhost:", "http://[::1]:")):
        raise Unavailable(f"the provider's address must begin with https:// or be on this machine, not {url}")
    request = Request(  # noqa: S310 - its scheme was looked at
        url, urlencode(fields).encode(), {"accept": "application/json"}
    )
    try:
        with _OPENER.open(request, timeout=_HTTP_SECONDS) as answer:
            body = answer.read(1_000_000)
    except HTTPError as error:
        body = error.read(1_000_000)
    except (URLError, OSError) as error:
        raise Unavailable(f"the provider does not answer at {url}: {getattr(error, 'reason', error)}") from None
    if not body:
        return {}
    try:
        return json_object(body)
    except ValueError:
        raise Unavailable(f"the server at {url} is not an OpenID Connect provider") from None


def _reason_in(answer: Mapping[str, Any]) -> str:
    return str(answer.get("error_description") or answer.get("error") or "it gave no reason")[:200]
