"""What the ledger keeps of warrants. Calls block and may raise Unavailable, as those of activities/ports/ports.py."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol

from models.access.warrants import Warrant
from models.rollout.effects import Fence, Receipt

Outcome = Literal["called", "refused", "failed"]
"""`called`: it landed where its receipt is there."""


class Drawn(NamedTuple):
    """What a genuine activity drew up. `sha256`: of its content's canonical JSON."""

    kind: Literal["plan", "aim", "fleet"]
    hash: str
    content: dict[str, Any]
    sha256: str = ""
    at: datetime | None = None


class EffectProof(NamedTuple):
    """What one effect stood on. `ground`: which of the ways that its kind may stand on."""

    fence: Fence
    kind: str
    outcome: Outcome
    ground: str
    stood_on: tuple[str, ...]
    evidence: str
    after: dict[str, int] | None = None
    """Of a grant: what an undo brings back once it has landed."""


class LoneDeed(NamedTuple):
    """What somebody does without the second person that it takes. `what`: as it goes on after "to"."""

    what: str
    chain: str
    """Whose part of the archive tells of it."""
    reason: str


class WarrantPort(Protocol):
    def admit(self, warrant: Warrant, voids: Collection[str] = (), alone: LoneDeed | None = None) -> Warrant:
        """The warrant stands; of its subject all earlier ones for the commands `voids` are void from then on.

        With `alone` it stands among the emergencies that nobody has looked at as well, or not at all.
        The same nonce for the same update answers what stood already. Errors: Refusal for one that was used for
        something else.
        """
        ...

    def warrant(self, nonce: str) -> Warrant | None: ...

    def warrants(self, subject: str, *commands: str) -> tuple[Warrant, ...]:
        """All of a subject, void ones included, in the order in which they were admitted. `commands`: only these."""
        ...

    def draw(self, subject: str, drawn: Drawn, now: datetime) -> None:
        """It is kept, once. Of a subject the last hundred of a kind are."""
        ...

    def drawn_plans(self, subject: str, kind: str, hash: str = "") -> tuple[Drawn, ...]:
        """The newest first; those with this hash where one is given."""
        ...

    def prove(self, proof: EffectProof, now: datetime) -> None:
        """What the effect stands on, and what became of it, is kept beside its receipt."""
        ...

    def proofs(self, rollout: str) -> tuple[EffectProof, ...]:
        """By their fences."""
        ...

    def standing_on(self, nonce: str) -> tuple[EffectProof, ...]:
        """Effects that stood on this warrant first of all."""
        ...

    def signed_by(self) -> frozenset[str]:
        """The ids of the keys that live warrants were signed with."""
        ...

    def receipts(self, rollout: str) -> tuple[Receipt, ...]:
        """Of a rollout, or of a request that wrote alone, by their fences."""
        ...
