"""The JSON of changes to the ledger's fleet: diffs, imports, clusters that were removed or renamed."""

from __future__ import annotations

from pydantic import Field

from cli.json_answer_base import JsonAnswer
from models.base import Count, Model, Name
from models.cluster.import_outcome import Line


class FleetLine(Model):
    """A difference. `place`: its place in the file, where it has one."""

    place: str
    kind: str
    """cluster, island, quota, window, team, policy or health; field: any other field of a cluster."""
    cluster: str
    """Empty: the line is about the fleet as a whole."""
    name: str
    field: str
    before: str
    after: str
    why: str

    @staticmethod
    def of(line: Line, place: str) -> FleetLine:
        return FleetLine(place=place, **line.model_dump(exclude={"verb", "path"}))


class FleetWarning(Model):
    """An entry that is legal but odd."""

    place: str
    text: str


class FleetDiffAnswer(JsonAnswer, schema="fleet-diff"):
    """The changes that an import would make: at most 2,000 lines, refused ones first; `totals` counts all."""

    file: str
    prune: bool
    differs: bool
    added: tuple[FleetLine, ...]
    changed: tuple[FleetLine, ...]
    removed: tuple[FleetLine, ...]
    kept: tuple[FleetLine, ...]
    """Values that stay, because a rollout, a grant or a health source has written them since the file."""
    left_out: tuple[FleetLine, ...]
    """Values in the ledger that the file lacks: they stay, and --prune removes them."""
    refused: tuple[FleetLine, ...]
    totals: dict[str, Count]
    untouched: dict[str, Count]
    """The number of unchanged clusters, quotas and teams of the file."""
    warnings: tuple[FleetWarning, ...]


class ImportAnswer(JsonAnswer, schema="import"):
    """Counts of what the import found and changed."""

    file: str
    counts: dict[str, int]
    """The number of imported clusters, of their quotas, of changed quotas, and of removed quotas."""
    health_rows: int
    jobs: int = 0
    left_out: dict[str, str] = Field(default_factory=dict)
    """Clusters whose health was not imported, each with the first fault of its data."""
    dry_run: bool = False
    """True: nothing was changed; the answer says what the import would do."""
    fleet: FleetDiffAnswer | None = None
    """The result for the fleet file, line by line; null: no file was given."""
    unread: tuple[str, ...] = ()
    """With --slurm: what Backstop does not read from Slurm, one sentence each."""
    gone: tuple[str, ...] = ()
    """With --slurm: what was removed from the ledger with accounts that are no longer quotas, one sentence each."""


class UndoneAnswer(JsonAnswer, schema="fleet-undone"):
    """A cluster that was removed or renamed, and the command that undoes it."""

    cluster: Name
    what: str
    summary: str
    history: dict[str, Count]
    """The number of rows that no fleet file holds: health samples, past rollouts and the like."""
    undo: str
