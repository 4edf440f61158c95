"""The worker's log: a sentence where one is due, and a traceback for what nobody expected."""

from __future__ import annotations

import asyncio
import logging

import pytest
from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.failures import translate_errors
from models.errors import Unavailable
from workers.quiet_log import quiet_log


def logged(error: BaseException, caplog: pytest.LogCaptureFixture) -> str:
    """Return the screen's text when an activity fails with this, as the SDK logs it."""
    quiet_log()

    def fails() -> None:
        try:
            raise error
        except BaseException:
            activity.logger.warning("Completing activity as failed", exc_info=True)

    with caplog.at_level(logging.WARNING, "temporalio.activity"):
        ActivityEnvironment().run(fails)
    return "\n".join(caplog.handler.format(record) for record in caplog.records)


def ours() -> BaseException:
    try:
        with translate_errors():
            raise Unavailable("no worker that was asked runs commands")
    except ApplicationError as error:
        return error
    raise AssertionError


def test_one_of_our_own_errors_is_a_line(caplog: pytest.LogCaptureFixture) -> None:
    said = logged(ours(), caplog)
    assert said.endswith("unknown: no worker that was asked runs commands")
    assert "Traceback" not in said
    assert "\n" not in said


def test_what_was_given_up_is_no_line(caplog: pytest.LogCaptureFixture) -> None:
    assert logged(asyncio.CancelledError(), caplog) == ""


@pytest.mark.parametrize("error", [KeyError("x"), ApplicationError("boom", type="KeyError")])
def test_a_bug_keeps_its_traceback(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    said = logged(error, caplog)
    assert "Completing activity as failed" in said
    assert "Traceback (most recent call last)" in said
