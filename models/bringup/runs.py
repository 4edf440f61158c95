"""Orders to a runner, and its reports. Both sides of the port build on these values.

A run has a key, which is noted durably before the start: whoever starts, finds or stops a run names it by its key
alone. Nothing in here is secret: tokens stay in the worker's settings.
"""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum

from pydantic import Field

from models.base import Duration, Model, Name, PositiveCount, Text, Time

TAIL_LENGTH = 2000
"""The most characters of a log's end that a report carries."""
NOTHING_BEGUN = "; nothing has begun"
"""The end of a sentence about a request that a service refused. It says nothing about earlier requests."""
UNDO_SUFFIX = "/undo"
"""The suffix of a step's name in the key of its undo."""


class Runner(StrEnum):
    COMMAND = "command"
    BUILDKITE = "buildkite"
    HTTP = "http"


class RunKey(Model):
    """The key of a run. `attempt` counts the starts of a step, those of earlier bring-ups of the cluster too."""

    cluster: Name
    attempt: PositiveCount
    step: Text = Field(min_length=1, max_length=200)

    @property
    def text(self) -> str:
        """CLUSTER/ATTEMPT/STEP; an undo's step is STEP/undo."""
        return f"{self.cluster}/{self.attempt}/{self.step}"


class RunOrder(Model):
    """A run to start, with everything filled in and nothing secret. The runner decides which fields it needs."""

    key: RunKey
    runner: Runner
    run: tuple[str, ...] = ()
    """command: the program (an absolute path) and its arguments."""
    pipeline: str = ""
    """buildkite: the pipeline's slug."""
    branch: str = "main"
    commit: str = "HEAD"
    values: dict[str, str] = Field(default_factory=dict)
    """buildkite: environment and meta-data beside the key. http: the body, as JSON."""
    url: str = ""
    """http: the URL to POST to."""
    status_url: str = ""
    """http: the URL to GET; it may contain {id} from the first answer. Empty: the same POST is sent again."""
    field: str = "status"
    """http: the dotted path of the field that has the run's state."""
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
    """The state of a run, by its runner. `said`: one sentence, cleaned of control characters for terminals."""

    phase: RunPhase
    said: str
    code: int | None = None
    tail: str = Field(default="", max_length=TAIL_LENGTH)
    """The last lines of the run's log, cleaned of control characters."""
    link: str = ""
    host: str = ""
    """For a command: the host that runs it, which has its own task queue."""
    started_at: Time | None = None
    ended_at: Time | None = None
    endless: bool = False
    """True: the run was to be stopped, but its runner cannot stop it."""


NO_TIME_LIMIT = timedelta(days=30)
"""The longest limit that a recipe may give a step, and the time-out of a call that follows a run."""
