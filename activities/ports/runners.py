"""The ports of a bring-up to the outside: runners of its steps, and sources that answer its checks.

All calls block: activities run them in threads.
"""

from __future__ import annotations

from typing import Protocol

from models.bringup.checks import CheckAnswer, CheckOrder
from models.bringup.runs import RunOrder, RunReport


class RunnerPort(Protocol):
    """Runs an order at most once for its key.

    Every call may raise Unavailable: nothing is known of the run for now, and the same call may succeed later; and
    Stuck:
    its state will never be known, so that a person has to look.
    """

    def start(self, order: RunOrder) -> RunReport:
        """Start a run of this key, unless there is or was one, which is returned instead.

        Errors: BadInput if the worker's settings, or the runner, do not accept the order: nothing has begun.
        """

    def look(self, order: RunOrder) -> RunReport | None:
        """Return the state of the run; None: there is no trace of its key."""

    def stop(self, order: RunOrder) -> RunReport | None:
        """Begin to end the run; it has ended when `look` says so. None: there is no trace of its key."""


class CheckPort(Protocol):
    def check(self, order: CheckOrder) -> CheckAnswer:
        """Return the answer to the check. Errors: none: a check that cannot be asked is UNKNOWN, with a sentence."""
