"""What a bring-up needs from outside: somebody who runs its steps, and somebody who answers its checks.

All calls block: activities run them in threads.
"""

from __future__ import annotations

from typing import Protocol

from models.bringup.checks import CheckAnswer, CheckOrder
from models.bringup.runs import RunOrder, RunReport


class RunnerPort(Protocol):
    """Runs what an order says, at most once for its key.

    Every call may raise Unavailable: nothing is known of the run for now, and the same call may succeed later; and
    Stuck: nobody will ever say how it stands, so that a person has to look.
    """

    def start(self, order: RunOrder) -> RunReport:
        """A run of this key is under way, or has ended: one that was there before is found, never joined by another.

        Errors: BadInput where the worker's settings, or whoever runs it, do not take the order: nothing has begun.
        """
        ...

    def look(self, order: RunOrder) -> RunReport | None:
        """How the run stands; None: there is no trace of its key."""
        ...

    def stop(self, order: RunOrder) -> RunReport | None:
        """The run is being ended; it has ended when `look` says so. None: there is no trace of its key."""
        ...


class CheckPort(Protocol):
    def check(self, order: CheckOrder) -> CheckAnswer:
        """What the world says. Errors: none: what cannot be asked is UNKNOWN, with a sentence."""
        ...
