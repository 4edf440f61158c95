"""Sessions of browsers, which last twelve hours, and links that begin one.

A session is in its cookie, sealed with a secret that all fronts with one signing key have, so that a browser may come
to any of them, and no front stores sessions. The ledger records which sessions ended early, by the hash of their name;
a front reads that every 15 seconds. A link leads to the front that made it, which keeps its hash alone.
Source: docs/adr/0113-sessions-of-any-front.md.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import secrets
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic import ValidationError

from models.access.principals import Principal
from models.errors import BackstopError, Refusal
from web.oidc import MOST_SECONDS

SESSION_SECONDS = 12 * 3600.0
GROUPS_SECONDS = float(MOST_SECONDS)
LINK_SECONDS = 120.0
ANEW_SECONDS = 15.0
"""The most seconds for which a session that ended at another front still counts here."""
_MOST_LINKS = 10_000
_COOKIE_CHARS = 3_800
"""The longest value of a cookie: browsers keep 4,096 bytes, with its name and attributes."""
_SENTENCES_CHARS = 2_000
_MOST_BYTES = 200_000
"""The most bytes that a cookie may unpack to."""
_BYTES, _NONCE_BYTES = 32, 12
_ANSWER_SECONDS = 5.0

EndSessions = Callable[[Sequence[str], datetime], Awaitable[Mapping[str, datetime]]]
"""Ends sessions in the ledger, by hash, and returns the time at which each ended."""


@dataclass
class Session:
    """A browser's session, as its cookie stores it. `said`: sentences to show once, on the next page."""

    principal: Principal
    began: float
    until: float
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(_BYTES))
    said: list[str] = field(default_factory=list)

    @property
    def form_token(self) -> str:
        """The secret in our forms, which another site's page does not know; it has a new mask for each form.

        Without the mask, a compressed page's length would reveal the token (BREACH): a random pad, then the token
        under it.
        """
        pad = secrets.token_bytes(_BYTES)
        return (pad + _under(pad, self._token)).hex()

    def is_own_form(self, form_token: str) -> bool:
        try:
            token = bytes.fromhex(form_token)
        except ValueError:
            return False
        return len(token) == 2 * _BYTES and hmac.compare_digest(_under(token[:_BYTES], token[_BYTES:]), self._token)

    @property
    def hashes(self) -> tuple[str, str]:
        """The names by which the ledger knows this session, and all sessions of its human."""
        return hash_of(self.secret.hex()), hash_of(f"all of {self.principal.human or self.principal.name}")

    @property
    def _token(self) -> bytes:
        return hmac.new(self.secret, b"form", hashlib.sha256).digest()


def seconds_of(principal: Principal) -> float:
    """Return how long the session lasts: where a provider gave the groups, only as long as these count
    (docs/access.md).

    Then the browser goes to the provider again; a person who is still logged in there does not notice.
    """
    return GROUPS_SECONDS if principal.groups else SESSION_SECONDS


class Sessions:
    """Begins, reads and ends sessions. `secret`: the fronts' common one; None: sessions are this front's alone."""

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        secret: Callable[[], bytes | None] = lambda: None,
        end_in_ledger: EndSessions | None = None,
    ) -> None:
        self._clock, self._secret, self._end_in_ledger = clock, secret, end_in_ledger
        self._own_secret = secrets.token_bytes(_BYTES)
        self._ended: dict[str, float] = {}
        self._read_at = float("-inf")
        self._links: dict[str, tuple[Principal, float]] = {}

    def begin(self, principal: Principal) -> str:
        """Begin a session; return the browser's cookie. Errors: Refusal if it would be too long."""
        now = self._clock()
        session = Session(principal, now, now + seconds_of(principal))
        cookie = self._seal(b"session", [principal.model_dump(mode="json"), now, session.until, session.secret.hex()])
        if len(cookie) > _COOKIE_CHARS:
            raise Refusal(
                f"a browser cannot keep a session with {len(principal.groups)} groups: let the provider send only "
                "those that the access file names"
            )
        return cookie

    def session_of(self, cookie: str) -> Session | None:
        """Return the cookie's session; None if it never existed or has ended."""
        try:
            principal, began, until, secret = self._unseal(b"session", cookie)
            session = Session(Principal.model_validate(principal), began, until, bytes.fromhex(secret))
        except (ValueError, TypeError, ValidationError):
            return None
        return None if self.has_ended(session) else session

    def has_ended(self, session: Session) -> bool:
        """Return whether its time is over, or somebody ended it, as far as this front has read."""
        own, all_of_one = session.hashes
        ended = own in self._ended or self._ended.get(all_of_one, float("-inf")) >= session.began
        return ended or self._clock() >= session.until

    async def look(self) -> None:
        """End here the sessions that ended at other fronts. If the ledger does not answer, its last answer holds."""
        if self._end_in_ledger is None or self._secret() is None or self._clock() - self._read_at < ANEW_SECONDS:
            return
        self._read_at = self._clock()
        await self._tell(())

    async def end(self, session: Session, *, everywhere: bool) -> bool:
        """End it, and with `everywhere` all sessions of its human; return whether other fronts hear of it."""
        one, all_of_one = session.hashes
        hashes = (one, all_of_one) if everywhere else (one,)
        self._ended |= dict.fromkeys(hashes, self._clock())
        alone = self._end_in_ledger is None or self._secret() is None
        return alone or await self._tell(hashes)

    async def _tell(self, hashes: Sequence[str]) -> bool:
        assert self._end_in_ledger is not None
        try:
            telling = self._end_in_ledger(hashes, datetime.fromtimestamp(self._clock(), UTC))
            ended = await asyncio.wait_for(telling, _ANSWER_SECONDS)
        except (BackstopError, TimeoutError):
            return False
        forgotten = self._clock() - SESSION_SECONDS
        newer = {one: max(at.timestamp(), self._ended.get(one, 0.0)) for one, at in ended.items()}
        self._ended = {one: at for one, at in (self._ended | newer).items() if at > forgotten}
        return True

    # --- sentences for the next page ------------------------------------------------------------

    def seal_sentences(self, session: Session) -> str:
        """Return a cookie with the sentences for this session's next page, whichever front makes that page."""
        kept, chars = list[str](), 0
        for sentence in session.said:
            chars += len(sentence)
            if chars > _SENTENCES_CHARS:
                break
            kept.append(sentence)
        return self._seal(b"sentences", [session.hashes[0], kept])

    def sentences(self, session: Session, cookie: str) -> list[str]:
        try:
            whose, sentences = self._unseal(b"sentences", cookie)
        except (ValueError, TypeError):
            return []
        return list(map(str, sentences)) if whose == session.hashes[0] else []

    # --- links ----------------------------------------------------------------------------------

    def link(self, principal: Principal) -> str:
        """Return a word that begins one session here, once and soon. Errors: Refusal if there are too many."""
        now = self._clock()
        self._links = {key: one for key, one in self._links.items() if now < one[1]}
        if len(self._links) >= _MOST_LINKS:
            raise Refusal(f"this front already has {_MOST_LINKS:,} unused login links: try again in two minutes")
        word = secrets.token_urlsafe(_BYTES)
        self._links[hash_of(word)] = (principal, now + LINK_SECONDS)
        return word

    def by_link(self, word: str) -> Principal | None:
        """Use up the link; return its owner, or None if it is not valid any more."""
        owner = self._links.pop(hash_of(word), None)
        return owner[0] if owner is not None and self._clock() < owner[1] else None

    # --- seals ----------------------------------------------------------------------------------

    def _seal(self, what: bytes, content: Any) -> str:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        text = zlib.compress(json.dumps(content, separators=(",", ":")).encode())
        return base64.urlsafe_b64encode(nonce + self._cipher.encrypt(nonce, text, what)).decode().rstrip("=")

    def _unseal(self, what: bytes, sealed: str) -> Any:
        """Return the content. Errors: ValueError where no front with this secret sealed it for that use."""
        try:
            raw = base64.urlsafe_b64decode(sealed + "=" * (-len(sealed) % 4))
            text = self._cipher.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], what)
            return json.loads(zlib.decompressobj().decompress(text, _MOST_BYTES))
        except (InvalidTag, binascii.Error, zlib.error) as error:
            raise ValueError("not sealed by us") from error

    @property
    def _cipher(self) -> AESGCM:
        return AESGCM(self._secret() or self._own_secret)


def _under(pad: bytes, token: bytes) -> bytes:
    return bytes(mask ^ byte for mask, byte in zip(pad, token, strict=True))


def hash_of(secret: str) -> str:
    """Return the hash of a browser's secret, which is all that is kept of it."""
    return hashlib.sha256(secret.encode()).hexdigest()
