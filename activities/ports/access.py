"""What access needs from outside: a book of access files and tokens, one of what takes a second person, and whose
doing something is.

Calls block and may raise Unavailable (retry with the same arguments), as those of activities/ports/ports.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from models.access.access_file import AccessFile
from models.access.access_versions import AccessProposal, AccessVersion, HowImported
from models.access.second_persons import Awaited, Emergency, KeptCommand
from models.access.tokens import Token
from models.audit_chain import Signature


class AccessPort(Protocol):
    """What is done lands with its line in the audit, in one transaction. Done again it is no more."""

    def access(self) -> AccessVersion | None:
        """What is in force; None: no access is configured."""
        ...

    def proposal(self) -> AccessProposal | None:
        """What was proposed last in place of what is in force, if it may still be countersigned."""
        ...

    def propose(self, file: AccessFile, after: int, by: Signature) -> AccessProposal:
        """It waits, in place of any other. Errors: Conflict where another version than `after` is in force."""
        ...

    def put_in_force(
        self, file: AccessFile, after: int, by: Signature, how: HowImported, proposal: AccessProposal | None = None
    ) -> AccessVersion:
        """It is in force. `by`: who does this now; of a `proposal` that is who countersigns.

        Errors: Conflict where another version than `after` is in force.
        """
        ...

    def tokens(self, *, ended: bool = False) -> Sequence[Token]:
        """By name: those that count, and with `ended` all that ever did."""
        ...

    def token_of(self, digest: str) -> Token | None:
        """The token with this hash, whether it counts or not."""
        ...

    def make_token(self, token: Token, by: Signature) -> Token:
        """It counts. The same one again is the same. Errors: Refusal where the name is taken."""
        ...

    def revoke_token(self, name: str, by: Signature) -> Token:
        """It counts no more. Errors: Refusal where there is none."""
        ...

    def now(self) -> datetime:
        """The ledger's clock."""
        ...


class SecondPersonsPort(Protocol):
    """What is done lands with its line in the audit, in one transaction. Done again it is no more."""

    def keep(self, kept: KeptCommand, by: Signature) -> Awaited:
        """It waits. The same of the same giver, while it waits, is the same. Errors: Refusal for too many of one."""
        ...

    def awaited(self) -> Sequence[Awaited]:
        """What may still be countersigned, the oldest first."""
        ...

    def awaited_one(self, digits: str) -> Awaited:
        """The one whose hash begins so. Errors: Refusal where there is none, or more than one; Stuck."""
        ...

    def take(self, digits: str, by: Signature) -> Awaited:
        """Nobody but `by` carries it out. Errors: Refusal where it waits no more, or somebody else has taken it."""
        ...

    def let_go(self, digits: str, by: Signature) -> Awaited:
        """It was not carried out: it goes on waiting for anybody."""
        ...

    def mark_given(self, digits: str, by: Signature) -> Awaited:
        """It was carried out."""
        ...

    def withdraw(self, digits: str, by: Signature) -> Awaited:
        """It waits no more. Errors: Refusal where it did not."""
        ...

    def record_emergency(self, command: str, what: str, chain: str, by: Signature) -> Emergency:
        """Somebody acts alone, and stands among those whom nobody has looked at."""
        ...

    def admitted_alone(self, nonce: str) -> Emergency | None:
        """What this warrant did alone, where no front had told of it before it was admitted."""
        ...

    def emergencies(self) -> Sequence[Emergency]:
        """Those that no other admin has looked at, the oldest first."""
        ...

    def emergency(self, number: int) -> Emergency | None:
        """Whether anybody has looked at it or not."""
        ...

    def mark_seen(self, number: int, by: Signature) -> Emergency:
        """Somebody has looked at it; who did first stands. Errors: Refusal where there is none."""
        ...

    def now(self) -> datetime:
        """The ledger's clock."""
        ...


class OpenOne(NamedTuple):
    """An open rollout, or a lost one whose reservation stands. `fleet`: the fleet rollout that it belongs to."""

    rollout: str
    fleet: str = ""
    stage: str = ""


class AttributionPort(Protocol):
    """Whose doing something is, asked of the ledger narrowly: each call is a few statements that an index answers."""

    def open_one(self, cluster: str) -> OpenOne | None: ...

    def begun_by(self, rollout: str) -> str:
        """Who launched the rollout or fleet rollout, as the archive has it; empty: it does not say."""
        ...

    def newest_fleet(self, but: str = "") -> str:
        """The fleet rollout that was launched last, `but` that one; empty: there never was one."""
        ...

    def entered_by(self, cluster: str) -> str:
        """Who entered the cluster for the bring-up that began last; empty: nobody did."""
        ...

    def changed_by(self, cluster: str, *, proven: bool) -> tuple[str, ...]:
        """Who changed the policy or quotas of the cluster since its last approved plan; empty: of all clusters since
        the fleet's. `proven`: only an approval with a ticket counts as one.

        A name that nobody checked, and what was changed by plain SQL, are nobody's.
        """
        ...

    def breaker_open(self, fleet: str) -> bool:
        """Whether the fleet rollout's breaker holds it."""
        ...
