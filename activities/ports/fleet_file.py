"""What takes fleet files in and writes them: a part of the ledger's port (activities/ports/ports.py)."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from models.audit_chain import Signature
from models.cluster.fleet_export import FleetPage
from models.cluster.import_lines import Departure, FleetOutcome, ImportTerms


class FleetFilePort(Protocol):
    """A fleet file into the ledger and out of it; clusters taken out, and called otherwise."""

    def stage_import(self, import_id: str, part: int, payload: bytes) -> None:
        """One part of a large document is kept until it is committed. Idempotent."""
        ...

    def commit_import(self, import_id: str, parts: int, actor: str, now: datetime) -> dict[str, int]:
        """The staged fleet stands whole in the ledger, or nothing of it does: what earlier builds ask for.

        Answers counts: {"clusters": n, "quotas": n, "added": n, "changed": n, "removed": 0}. Errors: BadInput; Refusal
        where a line of it is refused.
        """
        ...

    def would_change(self, import_id: str, parts: int, terms: ImportTerms) -> tuple[str, ...]:
        """What the staged fleet would change now, policies first, a sentence each; it stays staged.

        Errors: BadInput where it is not there any more.
        """
        ...

    def take_import(
        self, import_id: str, parts: int, terms: ImportTerms, actor: str, now: datetime, given_by: str = ""
    ) -> FleetOutcome:
        """Of the staged fleet each cluster stands in the ledger whole, or, refused, as it was; on a dry run none.

        `given_by`: whose command `actor` countersigns. Idempotent: committed again it answers as before. Errors:
        BadInput; Refusal by its terms.
        """
        ...

    def fleet_page(self, after: str, limit: int) -> FleetPage:
        """Clusters by name after `after` as the fleet file that would bring them here."""
        ...

    def remove_cluster(self, cluster: str, by: Signature, *, dry_run: bool) -> Departure:
        """The cluster and its history are gone, and its archive says what it was. Idempotent by the signature's key.

        Errors: Refusal for an unknown cluster; while a rollout or a request is open there.
        """
        ...

    def rename_cluster(self, cluster: str, name: str, by: Signature, *, dry_run: bool) -> Departure:
        """All of the cluster but its archive goes by the other name. As `remove_cluster`; BadInput: it is taken."""
        ...
