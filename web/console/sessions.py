"""Sessions of browsers, which last twelve hours, and links that begin one.

Sessions belong to this process: at another front, or after a restart, a person logs in again. Only the hashes of
sessions and links are kept, so that a leak of this process's memory begins none. Source:
docs/adr/0065-the-console.md.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from models.access.principals import Principal
from models.errors import Refusal
from web.oidc import MOST_SECONDS

SESSION_SECONDS = 12 * 3600.0
GROUPS_SECONDS = float(MOST_SECONDS)
LINK_SECONDS = 120.0
_MOST = 10_000
"""Sessions of one front; whoever comes beyond is told to come later."""
_MOST_OF_ONE = 50
_BYTES = 32


@dataclass
class Session:
    """One browser's session. `said`: sentences to show on the next page, once."""

    principal: Principal
    until: float
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(_BYTES))
    said: list[str] = field(default_factory=list)

    @property
    def form_token(self) -> str:
        """The secret of our forms, which another site's page does not know; it is written differently each time.

        So the length of a compressed page says nothing about it (BREACH): it is a pad, and the token under the pad.
        """
        pad = secrets.token_bytes(_BYTES)
        return (pad + _under(pad, self._token)).hex()

    def is_own_form(self, form_token: str) -> bool:
        try:
            given = bytes.fromhex(form_token)
        except ValueError:
            return False
        return len(given) == 2 * _BYTES and hmac.compare_digest(_under(given[:_BYTES], given[_BYTES:]), self._token)

    @property
    def _token(self) -> bytes:
        return hmac.new(self.secret, b"form", hashlib.sha256).digest()

    def take_sentences(self) -> list[str]:
        """Return the sentences for this page, and forget them."""
        found, self.said = self.said, []
        return found


def seconds_of(principal: Principal) -> float:
    """Return how long the session lasts: where a provider gave the groups, only as long as these count
    (docs/access.md).

    Then the browser goes to the provider again, which nobody notices who is still logged in there.
    """
    return GROUPS_SECONDS if principal.groups else SESSION_SECONDS


class Sessions:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_hash: dict[str, Session] = {}
        self._links: dict[str, tuple[Principal, float]] = {}

    def begin(self, principal: Principal) -> str:
        """Begin a session; return the browser's secret. Errors: Refusal where there are too many."""
        self._forget()
        own = [key for key, one in self._by_hash.items() if one.principal.human == principal.human]
        for key in own[: max(0, len(own) - _MOST_OF_ONE + 1)]:
            del self._by_hash[key]  # the oldest goes
        if len(self._by_hash) >= _MOST:
            raise Refusal(f"this front already has {_MOST} sessions: try again later")
        secret = secrets.token_urlsafe(_BYTES)
        self._by_hash[hash_of(secret)] = Session(principal, self._clock() + seconds_of(principal))
        return secret

    def session_of(self, secret: str) -> Session | None:
        """Return the secret's session; None where it never existed or has ended."""
        found = self._by_hash.get(hash_of(secret)) if secret else None
        return found if found is not None and self._clock() < found.until else None

    def end(self, secret: str) -> None:
        self._by_hash.pop(hash_of(secret), None)

    def end_all_of(self, principal: Principal) -> int:
        """End this person's sessions in every browser; return how many ended."""
        own = [key for key, one in self._by_hash.items() if one.principal.human == principal.human]
        for key in own:
            del self._by_hash[key]
        return len(own)

    def link(self, principal: Principal) -> str:
        """Return a word that begins one session, once and soon."""
        self._forget()
        word = secrets.token_urlsafe(_BYTES)
        self._links[hash_of(word)] = (principal, self._clock() + LINK_SECONDS)
        return word

    def by_link(self, word: str) -> Principal | None:
        """Use up the link; return its owner, or None where it is not valid any more."""
        found = self._links.pop(hash_of(word), None)
        return found[0] if found is not None and self._clock() < found[1] else None

    def _forget(self) -> None:
        now = self._clock()
        self._by_hash = {key: one for key, one in self._by_hash.items() if now < one.until}
        self._links = {key: one for key, one in self._links.items() if now < one[1]}


def _under(pad: bytes, token: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(pad, token, strict=True))


def hash_of(secret: str) -> str:
    """Return the hash of a browser's secret, which is all that is kept of it."""
    return hashlib.sha256(secret.encode()).hexdigest()
