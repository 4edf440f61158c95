"""The ports of access: a book of access files and tokens, one of deeds that need a second person, and attribution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from models.access.access_file import AccessFile
from models.access.access_versions import AccessProposal, AccessVersion, HowImported
from models.access.second_persons import Awaited, Emergency, KeptCommand
from models.access.tokens import Token
from models.audit_chain import Signature


class AccessPort(Protocol):
    """Writes each change with its line in the audit, in one transaction. A repeated call changes nothing."""

    def access(self) -> AccessVersion | None:
        """Return the file in force; None: no access is configured."""

    def proposal(self) -> AccessProposal | None:
        """Return the last proposal for the next version, if it may still be countersigned."""

    def propose(self, file: AccessFile, after: int, by: Signature) -> AccessProposal:
        """Keep the file as the waiting proposal. Errors: Conflict if another version than `after` is in force."""

    def put_in_force(
        self, file: AccessFile, after: int, by: Signature, how: HowImported, proposal: AccessProposal | None = None
    ) -> AccessVersion:
        """Put the file in force. `by`: who does this now; for a `proposal` the person who countersigns.

        Errors: Conflict if another version than `after` is in force.
        """

    def tokens(self, *, ended: bool = False) -> Sequence[Token]:
        """Return the valid tokens by name, and with `ended` all that ever were."""

    def token_of(self, digest: str) -> Token | None:
        """Return the token with this hash, whether it is valid or not."""

    def make_token(self, token: Token, by: Signature) -> Token:
        """Make a token valid. The same one again is the same. Errors: Refusal if the name is taken."""

    def revoke_token(self, name: str, by: Signature) -> Token:
        """Make the token invalid. Errors: Refusal if there is none."""

    def end_sessions(self, hashes: Sequence[str], at: datetime) -> Mapping[str, datetime]:
        """These have ended, then. Answers which have of late, and when: what is older no front would take."""

    def now(self) -> datetime:
        """Return the ledger's time."""


class SecondPersonsPort(Protocol):
    """Writes each change with its line in the audit, in one transaction. A repeated call changes nothing."""

    def keep(self, kept: KeptCommand, by: Signature) -> Awaited:
        """Let the command wait; a giver's same command is kept once. Errors: Refusal for too many."""

    def list_awaited(self) -> Sequence[Awaited]:
        """Return the commands that may still be countersigned, the oldest first."""

    def awaited_one(self, digits: str) -> Awaited:
        """Return the command whose hash begins so. Errors: Refusal if there is none, or more than one; Stuck."""

    def take(self, digits: str, by: Signature) -> Awaited:
        """Let nobody but `by` carry it out. Errors: Refusal if it waits no more, or somebody else has taken it."""

    def let_go(self, digits: str, by: Signature) -> Awaited:
        """Let it wait for anybody again: it was not carried out."""

    def mark_given(self, digits: str, by: Signature) -> Awaited:
        """Record that it was carried out."""

    def withdraw(self, digits: str, by: Signature) -> Awaited:
        """End the wait. Errors: Refusal if it did not wait."""

    def record_emergency(self, command: str, what: str, chain: str, by: Signature) -> Emergency:
        """Record that somebody acts alone, among the emergencies that nobody has reviewed."""

    def mark_refused(self, number: int, chain: str, by: Signature) -> Emergency:
        """Record that its command was refused, so that nobody needs to review it; not once a worker admitted it.

        Errors: Refusal unless `by` acted in it.
        """

    def find_admitted_alone(self, nonce: str) -> Emergency | None:
        """Return the emergency of this warrant, if no front had reported it before it was admitted."""

    def emergencies(self) -> Sequence[Emergency]:
        """Return those that no other admin has reviewed, the oldest first."""

    def emergency(self, number: int) -> Emergency | None:
        """Return the emergency, whether anybody has reviewed it or not."""

    def mark_seen(self, number: int, by: Signature) -> Emergency:
        """Record that somebody has reviewed it; the first reviewer stays. Errors: Refusal if there is none."""

    def now(self) -> datetime:
        """Return the ledger's time."""


class OpenOne(NamedTuple):
    """An open rollout, or a lost one whose reservation is still in place. `fleet`: its fleet rollout, if any."""

    rollout: str
    fleet: str = ""
    stage: str = ""


class AttributionPort(Protocol):
    """Finds the authors of changes in the ledger: each call is a few statements that an index answers."""

    def open_one(self, cluster: str) -> OpenOne | None: ...

    def read_launcher(self, rollout: str) -> str:
        """Return who launched the rollout or fleet rollout, by the archive; empty if it does not say."""

    def newest_fleet(self, but: str = "") -> str:
        """Return the fleet rollout that was launched last, other than `but`; empty if there never was one."""

    def read_who_entered(self, cluster: str) -> str:
        """Return who entered the cluster for the bring-up that began last; empty if nobody did."""

    def list_who_changed(self, cluster: str, *, proven: bool) -> tuple[str, ...]:
        """Return who changed the policy or quotas of the cluster, or of all (empty), since the last approved plan.

        `proven`: only an approval with a ticket counts. Names that nobody checked, and changes by plain SQL, are left
        out.
        """

    def is_breaker_open(self, fleet: str) -> bool:
        """Return whether the fleet rollout's breaker holds it."""
