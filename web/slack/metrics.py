"""Counts of requests from Slack by outcome, and of answers. Labels are fixed words, never text from a caller."""

from __future__ import annotations

from enum import StrEnum

from opentelemetry import metrics

from models.errors import AwaitsSecond, BackstopError, Unavailable
from web.failures import Problem

_meter = metrics.get_meter("backstop")
_slack = _meter.create_counter("backstop.slack_requests", description="Requests from Slack, by outcome")
_replies = _meter.create_counter(
    "backstop.slack_replies", description="Answers sent to Slack, by whether Slack accepted them"
)


class SlackEnd(StrEnum):
    """The result of a request from Slack."""

    ANSWERED = "answered"
    WAITS = "waits"
    """The command waits for a second person."""
    REFUSED = "refused"
    """A missing right, an unknown cluster, the wrong stage, an unknown form, or one request too many."""
    UNPROVEN = "unproven"
    """Not signed by Slack, signed at another time, or sent again."""
    AWAY = "away"
    """No worker answered, or the front cannot read the signing secret."""
    FAULT = "fault"


_UNPROVEN = (401, 409)


def slack_ended(button: bool, error: Exception | None) -> None:
    """Count the result of a request from Slack."""
    _slack.add(1, {"by": "button" if button else "command", "end": _end_of(error).value})


def slack_replied(taken: bool) -> None:
    _replies.add(1, {"taken": "yes" if taken else "no"})


def _end_of(error: Exception | None) -> SlackEnd:
    if error is None:
        return SlackEnd.ANSWERED
    if isinstance(error, AwaitsSecond):
        return SlackEnd.WAITS
    if isinstance(error, Unavailable) or (isinstance(error, Problem) and error.status >= 500):
        return SlackEnd.AWAY
    if isinstance(error, Problem) and error.status in _UNPROVEN:
        return SlackEnd.UNPROVEN
    return SlackEnd.REFUSED if isinstance(error, BackstopError | Problem) else SlackEnd.FAULT
