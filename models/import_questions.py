"""Questions to the desk that import a fleet file: its parts, and its outcome."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from models.base import Count, Name
from models.cluster.import_outcome import FleetOutcome, ImportTerms
from models.question_base import Question

_Number = Annotated[Count, Field(le=10**6)]


class StageImport(Question[None], kind="stage_import"):
    """Keep one part of a large document, to be committed with the others. The part is the request's payload."""

    import_id: Name
    part: _Number


class CommitImport(Question[dict[str, int]], kind="commit_import"):
    """Import the fleet whole or not at all, as earlier builds ask, and answer with counts.

    Errors: BadInput, Refusal.
    """

    import_id: Name
    parts: _Number


class TakeFleet(Question[FleetOutcome], kind="take_fleet"):
    """Import the staged fleet: each cluster goes in whole, or is refused and stays; a dry run changes nothing.

    Errors: BadInput; Refusal if all was to go in and something is refused, or what would go is not what was shown.
    """

    import_id: Name
    parts: _Number
    terms: ImportTerms

    @property
    def own_run(self) -> str:
        """The part of its workflow's id that makes two admins sign for the same run."""
        return f"{self.import_id}/{self.terms.policy}" if self.terms.policy else ""
