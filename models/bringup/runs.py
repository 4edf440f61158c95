"""What a runner is told to run, and what it says of it. Both sides of the port build on these values.

A run is known by its key, which is noted durably before the start: whoever starts, finds again, or stops a run names it
by its key alone. Nothing in here is secret: tokens stay in the worker's settings.
"""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum

from pydantic import Field

from models.base import Duration, Model, Name, PositiveCount, Text, Time

TAIL_LENGTH = 2000
"""Characters of a log's end that travel."""
NOTHING_BEGUN = "; nothing has begun"
"""How a sentence ends of a request that a service refused: true of that request alone."""
UNDO_SUFFIX = "/undo"
"""After a step's name in a key: the run that unmakes it."""


class Runner(StrEnum):
    COMMAND = "command"
    BUILDKITE = "buildkite"
    HTTP = "http"


class RunKey(Model):
    """Which run: `attempt` counts the starts of a step, those of earlier bring-ups of the cluster too."""

    cluster: Name
    attempt: PositiveCount
    step: Text = Field(min_length=1, max_length=200)

    @property
    def text(self) -> str:
        """CLUSTER/ATTEMPT/STEP; an undo's step is STEP/undo."""
        return f"{self.cluster}/{self.attempt}/{self.step}"


class RunOrder(Model):
    """One run, with everything filled in and nothing secret. Which fields it needs depends on the runner."""

    key: RunKey
    runner: Runner
    run: tuple[str, ...] = ()
    """command: the program (absolute) and its arguments."""
    pipeline: str = ""
    """buildkite: the pipeline's slug."""
    branch: str = "main"
    commit: str = "HEAD"
    values: dict[str, str] = Field(default_factory=dict)
    """buildkite: environment and meta-data beside the key. http: the body, as JSON."""
    url: str = ""
    """http: POST here."""
    status_url: str = ""
    """http: GET there; it may hold {id} of the first answer. Empty: the same POST again."""
    field: str = "status"
    """http: the dotted path of the field that says how it stands."""
    succeeded: tuple[str, ...] = ("succeeded",)
    failed: tuple[str, ...] = ("failed",)
    limit: Duration
    """The step's time limit."""


class RunPhase(StrEnum):
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def has_ended(self) -> bool:
        return self is not RunPhase.RUNNING


class RunReport(Model):
    """How a run stands, as its runner says. `said`: one sentence, cleaned of what could fool a terminal."""

    phase: RunPhase
    said: str
    code: int | None = None
    tail: str = Field(default="", max_length=TAIL_LENGTH)
    """The last lines of its log, cleaned."""
    link: str = ""
    host: str = ""
    """Of a command: the host whose task queue it belongs to."""
    started_at: Time | None = None
    ended_at: Time | None = None
    endless: bool = False
    """It was to be ended, and its runner has no way to."""


NO_TIME_LIMIT = timedelta(days=30)
"""Of a step whose recipe names none: nothing runs for ever unseen."""
