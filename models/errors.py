"""Failures, named by what to do next. Plain fields only: they are serialised across Temporal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime


class BackstopError(Exception):
    """A failure with one sentence for a person. `retryable`: the same call may succeed later."""

    retryable = False

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Unavailable(BackstopError):
    """The other side did not answer, or not in full: retry with the same fence."""

    retryable = True


class Conflict(BackstopError):
    """Somebody newer owns this: stop, and run no inverses."""


class HistoryLapse(Conflict):
    """The ledger has effects of this very rollout that its history does not have: adopt them, or stop."""


class Drift(BackstopError):
    """The world is not as the plan assumed (the generation moved): re-plan or ask the policy."""


class Refusal(BackstopError):
    """Not allowed, and retrying will not help: tell the person why."""


class NoSuchCluster(Refusal):
    """The ledger has no cluster of this name. For a person that is bad input (activities/desk/desk.py)."""

    def __init__(self, cluster: str) -> None:
        super().__init__(f"the ledger has no cluster {cluster!r}")


class Barred(Refusal):
    """A right is missing: a person must grant it. Work that must not be lost meanwhile is tried again."""


class BlastRadius(Refusal):
    """The change would move more GPUs than may be moved at once: hold, and call a person.

    `until`: when there is room for it again, by what is booked now; None if there never is.
    """

    def __init__(self, message: str, until: datetime | None = None) -> None:
        super().__init__(message)
        self.until = until


class AwaitsSecond(Refusal):
    """The command is kept until a second person countersigns it. `digits`: of its hash, to name it by."""

    def __init__(self, message: str, digits: str = "", until: datetime | None = None) -> None:
        super().__init__(message)
        self.digits = digits
        self.until = until


class AwaitsMerge(BackstopError):
    """The write waits on a branch of its own until people merge it, and is not in force: hold until then."""


class Stuck(BackstopError):
    """A person must act before anything can go on."""


class BadInput(BackstopError):
    """The input is malformed: the message names the file, the line or field, and the value."""


class BadFile(BadInput):
    """A file with several faults, each a sentence of its own. The message is the first, and how many more there are."""

    def __init__(self, sentences: Sequence[str], more: int = 0) -> None:
        """`more`: the number of further faults that are not among the sentences."""
        rest = len(sentences) - 1 + more
        beside = f" (and {rest} more problem{'s' if rest > 1 else ''})" if rest else ""
        super().__init__(f"{sentences[0]}{beside}")
        self.sentences = (*sentences, *([f"and {more} more problem{'s' if more > 1 else ''}"] if more else []))


BY_NAME: dict[str, type[BackstopError]] = {
    cls.__name__: cls
    for cls in (
        Unavailable,
        Conflict,
        HistoryLapse,
        Drift,
        Refusal,
        Barred,
        BlastRadius,
        AwaitsSecond,
        AwaitsMerge,
        Stuck,
        BadInput,
    )
}
"""The classes of errors by name. Temporal carries an error's type as its class name."""
