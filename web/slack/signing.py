"""Checks that Slack sent a request, just now, and for the first time.

Slack signs `v0:TIMESTAMP:BODY` with the app's signing secret (HMAC-SHA256). The signature of an accepted request is
kept for as long as its time counts, so that it is not accepted again here. At another front, or after a restart,
Temporal knows the resulting command by the same mark. Source: docs.slack.dev, "Verifying requests from Slack".
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping

from models.errors import BackstopError, Unavailable
from web.failures import Problem

SKEW_SECONDS = 300.0
_MOST_SEEN = 100_000
_STAMP = re.compile(r"[0-9]{1,12}", re.ASCII)
_SIGNATURE = re.compile(r"v0=[0-9a-f]{64}", re.ASCII)


def signature_of(secret: str, timestamp: str, body: bytes) -> str:
    """Return the value of X-Slack-Signature."""
    return "v0=" + hmac.new(secret.encode(), b"v0:%b:%b" % (timestamp.encode(), body), hashlib.sha256).hexdigest()


class Signatures:
    """The signatures that one front has accepted. `secret`: reads the signing secret."""

    def __init__(self, secret: Callable[[], str], clock: Callable[[], float] = time.time) -> None:
        self._secret, self._clock = secret, clock
        self._seen: OrderedDict[str, float] = OrderedDict()

    def check(self, headers: Mapping[str, str], body: bytes) -> str:
        """Return the mark of a request from Slack. Errors: Problem 401, 409 for a repeated one, 503."""
        timestamp, signature = headers.get("x-slack-request-timestamp", ""), headers.get("x-slack-signature", "")
        if not _STAMP.fullmatch(timestamp) or not _SIGNATURE.fullmatch(signature):
            raise _not_slack("the request has no valid X-Slack-Request-Timestamp and X-Slack-Signature")
        now = self._clock()
        if abs(now - int(timestamp)) > SKEW_SECONDS:
            raise _not_slack(
                f"the request's time and this front's clock differ by more than {SKEW_SECONDS / 60:.0f} minutes"
            )
        if not hmac.compare_digest(signature_of(self.secret(), timestamp, body), signature):
            raise _not_slack("the request is not signed with this app's signing secret")
        self._forget(now)
        if signature in self._seen:
            raise Problem(
                "repeated",
                409,
                "The request was handled before.",
                "this same request was handled before, so nothing is done again",
            )
        self._seen[signature] = now
        return hashlib.sha256(signature.encode()).hexdigest()[:32]

    def secret(self) -> str:
        """Read the signing secret. Errors: Problem 503; `backstop doctor` says what is wrong with it."""
        try:
            return self._secret()
        except BackstopError:
            raise Unavailable("the front cannot read Slack's signing secret: `backstop doctor` says why") from None

    def _forget(self, now: float) -> None:
        """Forget signatures whose time is over, and the oldest of too many: Temporal knows these."""
        while self._seen and (
            len(self._seen) >= _MOST_SEEN or now - next(iter(self._seen.values())) > 2 * SKEW_SECONDS
        ):
            self._seen.popitem(last=False)


def _not_slack(why: str) -> Problem:
    return Problem("unauthenticated", 401, "Slack did not send this.", why)
