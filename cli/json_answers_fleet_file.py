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
    """cluster, island, quota, window, team, policy, health, or field for what else a cluster says."""
    cluster: str
    """Empty: of the fleet as a whole."""
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
    """The file is older than what a rollout, a grant or a health source has written: that stays."""
    left_out: tuple[FleetLine, ...]
    """What is in the ledger but not in the file: it stays, and --prune removes it."""
    refused: tuple[FleetLine, ...]
    totals: dict[str, Count]
    untouched: dict[str, Count]
    """Of the file's clusters, quotas and teams."""
    warnings: tuple[FleetWarning, ...]


class ImportAnswer(JsonAnswer, schema="import"):
    """Counts of what the import found and changed."""

    file: str
    counts: dict[str, int]
    """Of clusters that went in, their quotas, quotas that changed, and quotas that went."""
    health_rows: int
    jobs: int = 0
    left_out: dict[str, str] = Field(default_factory=dict)
    """Clusters whose health was not taken, each with the first thing that is wrong with it."""
    dry_run: bool = False
    """Nothing was changed: it is what the import would do."""
    fleet: FleetDiffAnswer | None = None
    """What became of the fleet file, line by line; null where none was given."""
    unread: tuple[str, ...] = ()
    """With --slurm: what Slurm has that Backstop does not read, in a sentence each."""
    gone: tuple[str, ...] = ()
    """With --slurm: what went from the ledger with accounts that are no quotas any more, in a sentence each."""


class UndoneAnswer(JsonAnswer, schema="fleet-undone"):
    """A cluster that was removed or renamed, and the command that undoes it."""

    cluster: Name
    what: str
    summary: str
    history: dict[str, Count]
    """Rows of what no fleet file has: health samples, past rollouts and the like."""
    undo: str
