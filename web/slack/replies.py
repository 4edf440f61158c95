"""Sends answers to the address that Slack gave: its own, over TLS, without redirects."""

from __future__ import annotations

import logging
from contextvars import ContextVar

import httpx

from web.slack.messages import Message
from web.slack.metrics import slack_replied

logger = logging.getLogger("backstop.slack")
_SECONDS = 10.0
_TRIES = 2
_sending: ContextVar[bool] = ContextVar("whether an answer is on its way", default=False)


async def send(url: str, message: Message) -> bool:
    """Send an answer; return whether Slack took it. If not, the command stays done, and only the audit shows it."""
    _sending.set(True)  # of this task alone
    why = ""
    for _ in range(_TRIES):
        try:
            async with httpx.AsyncClient(timeout=_SECONDS, follow_redirects=False) as client:
                answer = await client.post(url, json=message)
            if answer.status_code == 200:
                slack_replied(taken=True)
                return True
            why = f"HTTP {answer.status_code}"
        except httpx.HTTPError as error:
            why = type(error).__name__
    logger.warning("an answer did not reach Slack: %s", why)
    slack_replied(taken=False)
    return False


def _is_of_others(_: logging.LogRecord) -> bool:
    """Keep the HTTP client's lines about our own answers out of the log.

    Anybody who reads their addresses could post to the channel for half an hour.
    """
    return not _sending.get()


for _name in ("httpx", "httpcore.connection", "httpcore.http11"):
    logging.getLogger(_name).addFilter(_is_of_others)
