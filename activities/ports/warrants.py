"""The ledger's port for warrants."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol

from models.access.warrants import Warrant
from models.rollout.effects import Fence, Receipt

Outcome = Literal["called", "refused", "failed"]
"""The outcome of an effect's call; `called`: it has taken effect if there is a receipt."""


class Drawn(NamedTuple):
    """A plan or target that a genuine activity computed. `sha256`: of its content's canonical JSON."""

    kind: Literal["plan", "aim", "fleet"]
    hash: str
    content: dict[str, Any]
    sha256: str = ""
    at: datetime | None = None


class EffectProof(NamedTuple):
    """The justification of one effect. `ground`: which of the grounds that its kind may have."""

    fence: Fence
    kind: str
    outcome: Outcome
    ground: str
    stood_on: tuple[str, ...]
    evidence: str
    after: dict[str, int] | None = None
    """The baseline after a grant, which an undo restores once the grant has taken effect."""


class LoneDeed(NamedTuple):
    """A deed without the second person that it needs. `what`: the words after "to"."""

    what: str
    chain: str
    """The archive chain that records the deed."""
    reason: str


class WarrantPort(Protocol):
    def admit(self, warrant: Warrant, voids: Collection[str] = (), alone: LoneDeed | None = None) -> Warrant:
        """Store the warrant; void all earlier ones of its subject for the commands `voids`.

        With `alone` it is also stored among the emergencies that nobody has reviewed, or not at all. The same nonce for
        the same update returns the stored warrant. Errors: Refusal for one that was used for something else.
        """

    def warrant(self, nonce: str) -> Warrant | None: ...

    def warrants(self, subject: str, *commands: str) -> tuple[Warrant, ...]:
        """Return all of a subject, void ones included, in the order of admission. `commands`: only these."""

    def draw(self, subject: str, drawn: Drawn, now: datetime) -> None:
        """Keep it, once. The last hundred of a subject and kind are kept."""

    def drawn_plans(self, subject: str, kind: str, hash: str = "") -> tuple[Drawn, ...]:
        """Return the newest first; only those with this hash, if one is given."""

    def prove(self, proof: EffectProof, now: datetime) -> None:
        """Keep the effect's justification and outcome beside its receipt."""

    def proofs(self, rollout: str) -> tuple[EffectProof, ...]:
        """Return the rollout's proofs by their fences."""

    def list_effects_of(self, nonce: str) -> tuple[EffectProof, ...]:
        """Return the effects whose first justification is this warrant."""

    def list_signing_keys(self) -> frozenset[str]:
        """Return the ids of the keys that live warrants were signed with."""

    def receipts(self, rollout: str) -> tuple[Receipt, ...]:
        """Return the receipts of a rollout, or of a request that wrote alone, by their fences."""
