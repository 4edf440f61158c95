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
    """cluster, island, quota, window, team, policy or health; `field`: another field of a cluster."""
    cluster: str
    """Empty: the difference is in no single cluster."""
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
    """Values that a rollout, a grant or a health source has written and the file does not replace."""
    left_out: tuple[FleetLine, ...]
    """What is in the ledger but not in the file: it stays unless --prune is given."""
    refused: tuple[FleetLine, ...]
    totals: dict[str, Count]
    untouched: dict[str, Count]
    """How many of the file's clusters, quotas and teams do not change."""
    warnings: tuple[FleetWarning, ...]


class ImportAnswer(JsonAnswer, schema="import"):
    """Counts of what the import found and changed."""

    file: str
    counts: dict[str, int]
    """Numbers of imported clusters, their quotas, changed quotas and removed quotas."""
    health_rows: int
    jobs: int = 0
    left_out: dict[str, str] = Field(default_factory=dict)
    """Clusters whose health was not imported, each with its first fault."""
    dry_run: bool = False
    """True: nothing was changed; the answer says what the import would do."""
    fleet: FleetDiffAnswer | None = None
    """The result of the fleet file, line by line; null: no file was given."""
    unread: tuple[str, ...] = ()
    """With --slurm: what Backstop does not read from Slurm, one sentence each."""
    gone: tuple[str, ...] = ()
    """With --slurm: what the ledger lost with removed accounts and islands, one sentence each."""


class UndoneAnswer(JsonAnswer, schema="fleet-undone"):
    """A cluster that was removed or renamed, and the command that undoes it."""

    cluster: Name
    what: str
    summary: str
    history: dict[str, Count]
    """How many rows there are that no fleet file has: health samples, past rollouts and the like."""
    undo: str
