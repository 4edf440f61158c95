"""Questions to the desk that bring a fleet file in: its parts, and what becomes of it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from models.base import Count, Name
from models.cluster.import_lines import FleetOutcome, ImportTerms
from models.question_base import Question

_Number = Annotated[Count, Field(le=10**6)]


class StageImport(Question[None], kind="stage_import"):
    """One part of a large document is kept, to be committed with the others. It is the request's payload."""

    import_id: Name
    part: _Number


class CommitImport(Question[dict[str, int]], kind="commit_import"):
    """As earlier builds ask: the fleet stands whole in the ledger, or nothing of it does; answers counts.

    Errors: BadInput, Refusal.
    """

    import_id: Name
    parts: _Number


class TakeFleet(Question[FleetOutcome], kind="take_fleet"):
    """Of the staged fleet each cluster stands in the ledger whole, or, refused, as it was; on a dry run none does.

    Errors: BadInput; Refusal where all was to go in and something is refused, or what would go is not what was shown.
    """

    import_id: Name
    parts: _Number
    terms: ImportTerms

    @property
    def own_run(self) -> str:
        """What two admins give is signed by both for the same workflow."""
        return f"{self.import_id}/{self.terms.policy}" if self.terms.policy else ""
