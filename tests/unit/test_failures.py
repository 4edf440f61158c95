"""Our errors' way across Temporal."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.failures import translate_errors
from models.errors import BackstopError, BadInput, BlastRadius, Conflict, Drift, Refusal, Unavailable

LOUD, QUIET = ApplicationErrorCategory.UNSPECIFIED, ApplicationErrorCategory.BENIGN


@pytest.mark.parametrize(
    ("error", "retried", "category"),
    [
        (Unavailable("no answer"), True, LOUD),
        (Conflict("somebody newer"), False, LOUD),
        (Drift("it moved"), False, LOUD),
        (Refusal("no"), False, QUIET),
        (BadInput("not a number"), False, QUIET),
        (BlastRadius("too much", datetime(2026, 1, 31, tzinfo=UTC)), False, QUIET),
    ],
)
def test_an_error_is_told_by_its_name_and_a_decision_is_no_noise_in_the_log(
    error: BackstopError, retried: bool, category: ApplicationErrorCategory
) -> None:
    with pytest.raises(ApplicationError) as told, translate_errors():
        raise error
    assert (told.value.type, told.value.message) == (type(error).__name__, error.message)
    assert (told.value.non_retryable, told.value.category) == (not retried, category)


def test_how_long_a_limit_stands_is_told_with_it() -> None:
    with pytest.raises(ApplicationError) as told, translate_errors():
        raise BlastRadius("too much", datetime(2026, 1, 31, tzinfo=UTC))
    assert told.value.details == ("2026-01-31T00:00:00+00:00",)


def test_what_is_not_ours_stays_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError), translate_errors():
        _ = 1 // 0
