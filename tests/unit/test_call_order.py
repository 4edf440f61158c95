"""Where calls queue for a worker, those that have begun are finished before others begin."""

from __future__ import annotations

import pytest

from workflows import options


def rank(call: options.CallOptions) -> int:
    """The smaller goes first. Temporal's own middle where nothing is said."""
    priority = call.get("priority")
    return 3 if priority is None or priority.priority_key is None else priority.priority_key


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (options.INVERSE_CALL, options.AIM_CALL),
        (options.AIM_CALL, options.DUE_READ_CALL),
        (options.AIM_CALL, options.EFFECT_CALL),
        (options.DUE_READ_CALL, options.READ_CALL),
        (options.EFFECT_CALL, options.READ_CALL),
    ],
)
def test_a_breach_that_is_being_answered_goes_before_one_that_is_not(
    first: options.CallOptions, then: options.CallOptions
) -> None:
    assert rank(first) < rank(then)
    assert first.get("task_queue") == then.get("task_queue"), "in queues of their own nobody waits for anybody"


def test_mail_goes_last() -> None:
    assert rank(options.MAIL_CALL) == rank(options.ROUND_CALL) > rank(options.READ_CALL)
