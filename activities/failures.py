"""Translates our errors into Temporal's, in one place: the error decides what is retryable, not the caller."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pydantic
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from models.base import in_one_sentence
from models.errors import BY_NAME, AwaitsMerge, BackstopError, BadInput, BlastRadius, Refusal


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise errors of models.errors as ApplicationError with their class name as type.

    A validation error is a decision about data and never heals by retrying. Anything else is a bug and is retried, so
    that a fixed worker can go on.
    """
    try:
        yield
    except BackstopError as error:
        until = error.until if isinstance(error, BlastRadius) else None
        details = () if until is None else (until.isoformat(),)
        # A decision is an answer to the caller: no warning and no traceback in the worker's log.
        decided = isinstance(error, Refusal | BadInput | AwaitsMerge)
        raise ApplicationError(
            error.message,
            *details,
            type=next(each.__name__ for each in type(error).__mro__ if each.__name__ in BY_NAME),
            non_retryable=not error.retryable,
            category=ApplicationErrorCategory.BENIGN if decided else ApplicationErrorCategory.UNSPECIFIED,
        ) from error
    except pydantic.ValidationError as error:
        # Not "from error": the cause would be sent along, with every fault at any length.
        raise ApplicationError(in_one_sentence(error), type=BadInput.__name__, non_retryable=True) from None
