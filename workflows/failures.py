"""The reason a call failed for good, in the form that the pure models take."""

from __future__ import annotations

from datetime import datetime

from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.exceptions import TimeoutError as ActivityTimeout

from models.texts import shorten

_WORDS_BYTES = 2000
"""Bytes of another system's error that a rollout stores."""


def reason_of(error: ActivityError) -> tuple[str, str]:
    """Return the class name of an activity's failure, and its sentence."""
    cause = error.cause
    if isinstance(cause, ApplicationError):
        return cause.type or "ApplicationError", shorten(cause.message, _WORDS_BYTES)
    if isinstance(cause, ActivityTimeout):
        return "Unavailable", "no answer in time"
    return type(cause).__name__, shorten(str(cause), _WORDS_BYTES)


def to_application_error(error: ActivityError) -> ApplicationError:
    """Return the same failure, as a workflow raises it to its caller."""
    kind, reason = reason_of(error)
    return ApplicationError(reason, type=kind, non_retryable=True)


def room_at(error: ActivityError) -> datetime | None:
    """Return when a blast radius has room again, if its error says so."""
    cause = error.cause
    if not isinstance(cause, ApplicationError) or cause.type != "BlastRadius" or not cause.details:
        return None
    return datetime.fromisoformat(str(cause.details[0]))
