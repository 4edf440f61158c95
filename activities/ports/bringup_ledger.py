"""What the way into the fleet and out of it is made of: the ledger's part, and a cluster's rollouts.

Calls block and may raise Unavailable (retry with the same arguments), as those of activities/ports/ports.py.
activities/bringup/handover.py puts together of them what bring-ups themselves need (activities/ports/bringup.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from models.audit_chain import AuditEntry, Signature
from models.bringup.messages import BringupRecord, BringupRow, BringupStart, HandedOver, OpenedBringup
from models.cluster.fleet_file import ClusterSpec
from models.cluster.island import Island
from models.cluster.policy import Policy
from models.planning.grants import Granted, GrantOrder
from models.rollout.commands import CommandRequest
from models.rollout.effects import Fence
from models.rollout.messages import LaunchAnswer, LaunchRequest
from models.rollout.stages import Command


class Incoming(NamedTuple):
    """A cluster on its way into the fleet. Units: whole GPUs."""

    spec: ClusterSpec
    number: int
    handed: HandedOver
    wanted: Mapping[str, int]
    """The entry's values, by leaf."""
    owed_until: datetime | None
    ceiling_gpus: int
    actor: str
    at: datetime


class Owed(NamedTuple):
    """What a cluster's entry wanted, and what of it was granted, by leaf. `orders`: grants that were noted."""

    number: int
    orders: int
    wanted: Mapping[str, int]
    granted: Mapping[str, int]
    until: datetime | None


class BringupLedger(Protocol):
    """The book of bring-ups. Each call may be repeated: what stands already is answered again."""

    def open_bringup(self, start: BringupStart, at: datetime) -> OpenedBringup:
        """The bring-up is open, and has its number: one above the cluster's last.

        Refused (in the answer) where another bring-up of the cluster is open, where the cluster stands in the fleet,
        and where its first quotas could not stand on what is ordered. While it is open the same start again has the
        same answer. `at`: when the call was made, which all its attempts have in common. One that comes after the
        end of what the call opened is refused.
        """
        ...

    def note_bringup(self, record: BringupRecord) -> None:
        """The board shows the row, and the entries are archived in the cluster's chain, each key once.

        A stage that ends a bring-up closes it; what is told of it later changes nothing on the board, nor does a late
        attempt.
        """
        ...

    def bringups(self, ended: bool) -> tuple[BringupRow, ...]:
        """Those that are open, by cluster; with `ended` all that ever were, by cluster and number."""
        ...

    def give_up(self, cluster: str, by: Signature) -> BringupRow:
        """The cluster's last bring-up has ended, whatever became of its workflow. Errors: Refusal, there is none."""
        ...

    def default_policy(self) -> Policy:
        """The fleet's."""
        ...

    def in_fleet(self, cluster: str) -> bool: ...

    def number(self, cluster: str) -> int:
        """Of its last bring-up; 0: there was none."""
        ...

    def handed_over(self, cluster: str, number: int) -> HandedOver | None:
        """What this bring-up put into the fleet; None: nothing yet."""
        ...

    def take_in(self, incoming: Incoming) -> HandedOver:
        """The cluster is in the fleet as the spec says, its receipt kept and its archive told. Idempotent by number.

        Errors: Refusal where it is there already, and not by this bring-up.
        """
        ...

    def add_islands(self, cluster: str, islands: Sequence[Island], actor: str, at: datetime) -> None:
        """T is what came where more came than is installed; it never shrinks by this. A change by others."""
        ...

    def owed(self, cluster: str) -> Owed | None:
        """None: it has no first quotas."""
        ...

    def owed_gpus(self, cluster: str, now: datetime) -> dict[str, int]:
        """What is still owed now, by leaf: spoken for, before requests that came later."""
        ...

    def note_granted(self, cluster: str, order: int, raised: Mapping[str, int], entry: AuditEntry) -> None:
        """The grant of this number is noted, by leaf, and archived; once."""
        ...

    def landed_grants(self, fence: Fence, cluster: str, request: str) -> dict[str, int] | None:
        """By team: what was written under the fence, or by a rollout for this order, and may not be noted yet.

        None: nothing, as far as receipts and the archive say.
        """
        ...

    def open_floors(self, cluster: str, by: Signature) -> None:
        """No minimum and no block of the cluster's quotas stands in the way of a cut; the archive says which did."""
        ...

    def leave_fleet(self, cluster: str, by: Signature) -> None:
        """The cluster is out of the fleet as `fleet remove` takes it out. Idempotent. Errors: Refusal, as there."""
        ...


class RolloutDoor(Protocol):
    """A cluster's rollouts, from a thread. Errors: Unavailable where one does not answer."""

    def grant(self, cluster: str, order: GrantOrder) -> Granted:
        """What the open rollout answers."""
        ...

    def launch(self, request: LaunchRequest) -> LaunchAnswer: ...

    def command(self, cluster: str, command: Command, request: CommandRequest) -> str:
        """Why it was refused; empty: it was obeyed, or was told to end and has ended already."""
        ...
