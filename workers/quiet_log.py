"""Shortens activities' records in the worker's log: a sentence for an expected error, a traceback for a bug alone."""

from __future__ import annotations

import asyncio
import logging

from temporalio.exceptions import ApplicationError, CancelledError

from models.errors import BY_NAME

_ACTIVITIES = "temporalio.activity"


def _without_tracebacks(record: logging.LogRecord) -> bool:
    """Return whether it is worth a line; remove the traceback of one of our own errors."""
    error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    if isinstance(error, asyncio.CancelledError | CancelledError):
        return False  # the call was given up
    if isinstance(error, ApplicationError) and error.type in BY_NAME:
        record.exc_info = record.exc_text = None
        record.msg, record.args = (
            f"{getattr(record, 'temporal_activity', {}).get('activity_type', 'activity')}: %s",
            (error.message,),
        )
    return True


def quiet_log() -> None:
    """Install the filter; a second call changes nothing."""
    logger = logging.getLogger(_ACTIVITIES)
    if _without_tracebacks not in logger.filters:
        logger.addFilter(_without_tracebacks)
