"""Verifies tokens of an OpenID Connect provider: the signature by the provider's keys, and the claims.

Source: OpenID Connect Core 1.0 and Discovery 1.0, RFC 7519, RFC 8725 (algorithms by an allow-list, never `none`, never
a key of another kind). A failure is one sentence that repeats nothing of the token but the names of missing claims.
"""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from joserfc import jws, jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from models.access.principals import Principal, Proof
from models.errors import Refusal, Unavailable

warnings.filterwarnings("ignore", message="EdDSA is deprecated")  # RFC 9864 renames it, and providers still say it

ALGORITHMS = ("EdDSA", "Ed25519", "ES256", "RS256")
_KEY_KINDS = ("OKP", "EC", "RSA")
_SKEW_SECONDS = 60
MOST_SECONDS = 15 * 60
"""Most seconds since a token was issued: its groups are as of then."""
_REFETCH_SECONDS = 60.0
"""Least seconds between two reads of the provider's keys, however many tokens name an unknown key."""
_KEPT_SECONDS = 3600.0
_MOST_GROUPS, _MOST_GROUP = 500, 200
_HTTP_SECONDS = 10.0
_MOST_BYTES = 1_000_000


@dataclass(frozen=True)
class Terms:
    """The terms of accepted tokens. `client`: the command line's. `groups`: the claim of groups; empty: none."""

    issuer: str
    audience: str
    client: str = ""
    groups: str = "groups"


class Provider:
    """An issuer of tokens. Its keys are cached, and fetched again when a token names an unknown one."""

    def __init__(self, terms: Terms, clock: Callable[[], float] = time.time) -> None:
        self.terms = terms
        self._clock = clock
        self._keys: KeySet | None = None
        self._looked = float("-inf")
        self._known: dict[str, Any] = {}
        self._turn = asyncio.Lock()

    async def principal(self, token: str, *, nonce: str = "") -> Principal | None:
        """Return the token's owner; None if it is no JWT. `nonce`: the one of its login; empty: any.

        Errors: Refusal; Unavailable if the provider's keys cannot be fetched.
        """
        if token.count(".") != 2:
            return None
        key_id = _checked_head(token)
        keys = await self._keys_with(key_id)
        try:
            claims = jwt.decode(token, keys, algorithms=list(ALGORITHMS)).claims
        except (JoseError, ValueError, TypeError):
            raise Refusal("the token's signature does not match the provider's keys") from None
        principal = _principal(claims, self.terms, self._clock())
        if nonce and claims.get("nonce") != nonce:
            raise Refusal("the token belongs to another login than this one")
        if nonce and claims.get("azp", self.terms.client) != self.terms.client:
            raise Refusal(f"the token was made for another client than {self.terms.client}")
        return principal

    async def endpoints(self) -> Mapping[str, Any]:
        """Return the provider's own description. Errors: Unavailable."""
        if not self._known:
            endpoints = dict(await _fetch(f"{self.terms.issuer.rstrip('/')}/.well-known/openid-configuration"))
            if endpoints.get("issuer") != self.terms.issuer:
                raise Unavailable(
                    f"the provider at {self.terms.issuer} has another issuer name: set BACKSTOP_OIDC_ISSUER to the "
                    "issuer that its configuration names"
                )
            self._known = endpoints
        return self._known

    async def _keys_with(self, key_id: str) -> KeySet:
        async with self._turn:
            now = asyncio.get_running_loop().time()
            since = now - self._looked
            is_known = self._keys is not None and (not key_id or any(key.kid == key_id for key in self._keys.keys))
            if self._keys is None or since > _KEPT_SECONDS or (not is_known and since > _REFETCH_SECONDS):
                self._looked = now
                try:
                    self._keys = _usable(await _fetch(str((await self.endpoints()).get("jwks_uri", ""))))
                except Unavailable:
                    if not is_known:
                        raise
            if self._keys is None or not (is_known or not key_id or any(key.kid == key_id for key in self._keys.keys)):
                raise Refusal("the token is signed with a key that the provider does not have")
            return self._keys


def _checked_head(token: str) -> str:
    """Return the key's id. Errors: Refusal."""
    try:
        head = jws.extract_compact(token.encode()).headers()
    except (JoseError, ValueError, UnicodeEncodeError):
        raise Refusal("the token is malformed") from None
    if head.get("alg") not in ALGORITHMS:
        raise Refusal(f"the token must be signed with one of {', '.join(ALGORITHMS)}")
    if "crit" in head:
        raise Refusal("the token has a critical header (crit) that this front does not understand")
    return str(head.get("kid", ""))


def _usable(document: Mapping[str, Any]) -> KeySet:
    """Return the provider's public keys for signing, without shared secrets."""
    rows = document.get("keys")
    kept = [
        row
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, dict) and row.get("kty") in _KEY_KINDS and row.get("use", "sig") == "sig"
    ]
    try:
        return KeySet.import_key_set({"keys": [{k: v for k, v in row.items() if k not in _PRIVATE} for row in kept]})
    except (JoseError, ValueError, TypeError, KeyError):
        raise Unavailable("the provider's keys cannot be read") from None


_PRIVATE = ("d", "p", "q", "dp", "dq", "qi", "oth", "k")


def _principal(claims: Mapping[str, Any], terms: Terms, now: float) -> Principal:
    """Return the token's owner. Errors: Refusal for claims of another issuer, audience or time."""
    if claims.get("iss") != terms.issuer:
        raise Refusal(f"the token's issuer must be {terms.issuer}")
    audience = claims.get("aud")
    if terms.audience not in (audience if isinstance(audience, list) else [audience]):
        raise Refusal(f"the token is not for this front, whose audience is {terms.audience}")
    issued, ends = _time(claims, "iat"), _time(claims, "exp")
    if now >= ends + _SKEW_SECONDS:
        raise Refusal("the token has expired: log in again with `backstop login`")
    if ("nbf" in claims and now < _time(claims, "nbf") - _SKEW_SECONDS) or now < issued - _SKEW_SECONDS:
        raise Refusal("the token was issued in the future: correct the clocks of the provider and the front")
    if now - issued > MOST_SECONDS + _SKEW_SECONDS:
        raise Refusal("the token was issued more than 15 minutes ago, and groups may have changed: get a new token")
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= 300 or not subject.isprintable():
        raise Refusal("the token names nobody: its claim sub is missing, or not ordinary text")
    name = f"oidc:{subject}@{terms.issuer}"
    human = "" if subject in (claims.get("client_id"), claims.get("azp")) else name  # a client's own: RFC 9068, 2.2
    return Principal(name=name, human=human, proof=Proof.OIDC, how=terms.issuer, groups=_groups(claims, terms.groups))


def _time(claims: Mapping[str, Any], name: str) -> float:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 10**11:
        raise Refusal(f"the token's claim {name} is missing, or not a time")
    return float(value)


def _groups(claims: Mapping[str, Any], claim: str) -> tuple[str, ...]:
    """Return the groups. A token with too many groups to list is refused, because a missing one may matter."""
    if not claim:
        return ()
    elsewhere = claims.get("_claim_names")
    if (isinstance(elsewhere, dict) and claim in elsewhere) or claims.get("hasgroups"):
        raise Refusal(
            f"the provider does not list all groups in the claim {claim}: let it send only the groups that matter"
        )
    groups = claims.get(claim)
    if groups is None:
        raise Refusal(
            f"the token has no claim {claim}: let the provider add it, or name another in BACKSTOP_OIDC_GROUPS"
        )
    if not isinstance(groups, list) or not all(isinstance(g, str) and 0 < len(g) <= _MOST_GROUP for g in groups):
        raise Refusal(f"the token's claim {claim} is not a list of group names")
    if len(groups) > _MOST_GROUPS:
        raise Refusal(
            f"the token names {len(groups)} groups, but may name at most {_MOST_GROUPS}: configure the provider "
            "to send fewer"
        )
    return tuple(sorted(set(groups)))


async def _fetch(url: str) -> Mapping[str, Any]:
    """Fetch a JSON document. Errors: Unavailable."""
    if not is_safe_address(url):
        raise Unavailable(f"the provider's address must begin with https:// or be on this machine, not {url!r}")
    try:
        async with httpx.AsyncClient(timeout=_HTTP_SECONDS, follow_redirects=False) as client:
            answer = await client.get(url)
        if answer.status_code != 200 or len(answer.content) > _MOST_BYTES:
            raise Unavailable(f"the provider answers {answer.status_code} at {url}")
        document = answer.json()
    except (httpx.HTTPError, ValueError, httpx.InvalidURL):
        raise Unavailable(f"the provider does not answer at {url}") from None
    if not isinstance(document, dict):
        raise Unavailable(f"the provider's answer at {url} is not a document of an OpenID Connect provider")
    return document


def is_safe_address(url: str) -> bool:
    """Return whether the address uses TLS or is on this machine."""
    return url.startswith(("https://", "http://127.0.0.1:", "http://127.0.0.1/", "http://localhost:", "http://[::1]"))


async def how_to_log_in(provider: Provider | None) -> Mapping[str, Any]:
    """Return the login's address and client for the command line. Nothing in it is secret."""
    if provider is None:
        return {"oidc": None}
    endpoints, terms = await provider.endpoints(), provider.terms
    names = ("device_authorization_endpoint", "token_endpoint", "revocation_endpoint")
    addresses = {
        name: endpoints[name]
        for name in names
        if isinstance(endpoints.get(name), str) and is_safe_address(endpoints[name])
    }
    scopes = endpoints.get("scopes_supported", [])
    wanted = [
        scope for scope in ("openid", "profile", "groups", "offline_access") if scope == "openid" or scope in scopes
    ]
    return {
        "oidc": {
            "issuer": terms.issuer,
            "client_id": terms.client,
            "audience": terms.audience,
            "scope": " ".join(wanted),
            **addresses,
        }
    }
