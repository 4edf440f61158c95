"""The ports of the desk: fleet files, the ledger's clusters and teams, reports, milestones and checks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from activities.ports.registry import OpenRollout
from models.audit_chain import Deed, Signature
from models.base import Model
from models.cluster.fleet_export import FleetPage
from models.cluster.fleet_file import ClusterSpec, Team
from models.cluster.import_outcome import Departure, FleetOutcome, ImportTerms
from models.cluster.readings import HealthSample
from models.cluster.windows import Declaration, Declared, Entry
from models.questions import TeamSum
from models.reports.milestones import Milestone, MilestoneNote, Milestones
from models.reports.weekly import ClusterCut, Mean, Passage, Span
from models.seals import SealedTo, Sealing


class FleetFilePort(Protocol):
    """Takes a fleet file into the ledger and writes one out of it; removes and renames clusters."""

    def stage_import(self, import_id: str, part: int, payload: bytes) -> None:
        """Keep one part of a large document until it is committed. Idempotent."""

    def commit_import(self, import_id: str, parts: int, actor: str, now: datetime) -> dict[str, int]:
        """Take in the staged fleet, all of it or nothing: earlier builds ask for this.

        Returns counts: {"clusters": n, "quotas": n, "added": n, "changed": n, "removed": 0}. Errors: BadInput; Refusal
        if a line of it is refused.
        """

    def would_change(self, import_id: str, parts: int, terms: ImportTerms) -> tuple[str, ...]:
        """Return the changes that the staged fleet would make now, policies first, a sentence each; it stays staged.

        Errors: BadInput if it is not there any more.
        """

    def take_import(
        self, import_id: str, parts: int, terms: ImportTerms, actor: str, now: datetime, given_by: str = ""
    ) -> FleetOutcome:
        """Take in the staged fleet: each cluster whole or, if refused, not at all; on a dry run none.

        `given_by`: whose command `actor` countersigns. Idempotent: committed again it returns the first answer. Errors:
        BadInput; Refusal by its terms.
        """

    def fleet_page(self, after: str, limit: int) -> FleetPage:
        """Return clusters by name after `after` as the fleet file that would bring them here."""

    def remove_cluster(self, cluster: str, by: Signature, *, dry_run: bool) -> Departure:
        """Remove the cluster and its history, and archive a description of it. Idempotent by the signature's key.

        Errors: Refusal for an unknown cluster, and while a rollout or a request is open there.
        """

    def rename_cluster(self, cluster: str, name: str, by: Signature, *, dry_run: bool) -> Departure:
        """Give all of the cluster but its archive the other name. As `remove_cluster`; BadInput: it is taken."""


class Described(Model):
    """A cluster of the ledger; `spec` None: it makes no sense, for the reason `wrong`."""

    name: str
    spec: ClusterSpec | None
    rollout: OpenRollout | None = None
    wrong: str = ""


class FleetPort(FleetFilePort, Protocol):
    """Import and show: the ledger as the source of clusters, quotas, health and usage."""

    def add_health(self, samples: Sequence[HealthSample], actor: str) -> int:
        """Store samples (a repeated cluster, island and time replaces); return the number of rows."""

    def describe(
        self, after: str, limit: int, *, free: bool = False, names: Collection[str] = ()
    ) -> tuple[Described, ...]:
        """Describe clusters by name after `after`: values and latest health.

        `free`: those without a rollout. `names`: only these; empty: all.
        """

    def senseless(self) -> dict[str, tuple[str, ...]]:
        """Return the rows of each cluster that make no sense, in a sentence each."""

    def teams_in_clear(self) -> tuple[str, ...]:
        """Return teams with a contact that holds a token itself, by name, if an import of it would be refused."""

    def senseless_teams(self) -> dict[str, str]:
        """Return a sentence for each team whose choice of notification makes no sense."""

    def teams(self) -> tuple[Team, ...]: ...

    def team_sums(self) -> tuple[TeamSum, ...]: ...

    def calendar(self, cluster: str, since: datetime) -> tuple[Entry, ...]:
        """Return windows that end after `since`; of all clusters if none is named. Errors: BadInput."""

    def declare(self, declared: Sequence[Declared], actor: str, now: datetime) -> Declaration:
        """Store the windows, all or none, in place of their sources' earlier ones. Errors: BadInput."""

    def end_window(self, cluster: str, number: int, now: datetime, deed: Deed[Entry]) -> Entry:
        """End the window: cut it short if it has begun, else remove it; archive it, once. Errors: Refusal, unknown one.

        The same deed again gets the same answer.
        """

    def end_hold(self, source: str, clusters: Sequence[str], now: datetime, deed: Deed[Entry]) -> tuple[Entry, ...]:
        """End every window that the source has in these clusters and that is not over, all or none."""


class HealthSourcesPort(Protocol):
    """Sources of health beside the ledger."""

    def check(self) -> dict[str, str]:
        """Return the fault in each cluster's present answer, for clusters that have a source; empty: none."""


class SealPort(Protocol):
    def sealing_state(self) -> Sealing | None:
        """Return how the archive is sealed; None if nobody has sealed it."""

    def read_last_seals(self, cluster: str) -> tuple[SealedTo, ...]:
        """Return the last seals that name this chain, the newest first."""


class PulsePort(Protocol):
    def mark(self) -> str:
        """Return a text that changes with the ledger."""


class ReportPort(Protocol):
    """The facts for a weekly report from Backstop's own book."""

    def passages(self, until: datetime) -> tuple[Passage, ...]:
        """Return every rollout's way through its stages up to then, shadows left out, by cluster and time.

        While nothing has moved it is the same tuple, so that what was made of it can be kept.
        """

    def means(self, spans: Sequence[Span], until: datetime) -> tuple[Mean | None, ...]:
        """Return the mean of each span's tallies, of open ones up to `until`; None if there are none."""

    def cuts(self, since: datetime, until: datetime) -> tuple[ClusterCut, ...]:
        """Return the GPUs that rollouts, without shadows, took after `since` and up to `until`, by cluster."""

    def clusters(self) -> tuple[str, ...]:
        """Return every cluster of the ledger, by name."""

    def waves(self) -> Mapping[str, str]:
        """Return the wave of each cluster whose open rollout has noted one."""


class MilestonePort(Protocol):
    """The plan's milestones, and people's notes on them."""

    def milestones(self) -> Milestones: ...

    def plan_milestones(
        self, milestones: Sequence[Milestone], measured: Mapping[str, int | None], now: datetime
    ) -> None:
        """Replace the plan by these milestones; notes stay. Idempotent."""

    def note_milestone(self, key: str, note: MilestoneNote) -> None:
        """Store the note, once per key. Errors: Refusal for a milestone that is not planned, or is measured."""
