"""The port that takes fleet files in and writes them: a part of the ledger's port (activities/ports/ports.py)."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from models.audit_chain import Signature
from models.cluster.fleet_export import FleetPage
from models.cluster.import_outcome import Departure, FleetOutcome, ImportTerms


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
