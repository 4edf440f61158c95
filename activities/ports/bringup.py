"""The ports of bring-ups: what a bring-up needs of the ledger and the fleet, its runners and checks, the ledger's part.

activities/bringup/handover.py builds BringupsPort and ProductionPort on BringupLedger and a cluster's rollouts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from models.audit_chain import AuditEntry, Signature
from models.bringup.checks import CheckAnswer, CheckOrder
from models.bringup.messages import (
    BringupRecord,
    BringupRow,
    BringupStart,
    HandedOver,
    HandOverRequest,
    OpenedBringup,
    WindDownRequest,
    WoundDown,
)
from models.bringup.runs import RunOrder, RunReport
from models.cluster.fleet_file import ClusterSpec
from models.cluster.island import Island
from models.cluster.policy import Policy
from models.planning.grants import Granted, GrantOrder
from models.rollout.commands import CommandRequest
from models.rollout.effects import Fence
from models.rollout.messages import LaunchAnswer, LaunchRequest
from models.rollout.stages import Command


class BringupsPort(Protocol):
    """The registry of bring-ups: the board, the weekly report, and how many there were of a cluster."""

    def open(self, start: BringupStart, at: datetime) -> OpenedBringup:
        """Return whether it may begin (the cluster is not in the fleet, its quotas are below C), and its number.

        `at`: when the call was made. A call that comes after the end of the bring-up that it opened is refused.
        """

    def record(self, record: BringupRecord) -> None:
        """Store the row, and archive the entries, each once by its key."""


class ProductionPort(Protocol):
    """Takes clusters into the fleet, and out of it. A call finishes what an earlier one of its bring-up began."""

    def hand_over(self, request: HandOverRequest) -> HandedOver:
        """Take islands, sources and first quotas into the fleet. Errors: Refusal, BadInput."""

    def grant_owed(self, request: HandOverRequest) -> HandedOver:
        """Grant what is owed as far as it fits now; through the open rollout, if there is one."""

    def wind_down(self, request: WindDownRequest) -> WoundDown:
        """Have a rollout lower the quotas to nothing; return the quotas and jobs that are left. Errors: Refusal."""


class RunnerPort(Protocol):
    """Runs an order at most once for its key.

    Every call may raise Unavailable: nothing is known of the run for now, and the same call may succeed later; and
    Stuck: its state will never be known, so that a person has to look.
    """

    def start(self, order: RunOrder) -> RunReport:
        """Start a run of this key, unless there is or was one, which is returned instead.

        Errors: BadInput if the worker's settings, or the runner, do not accept the order: nothing has begun.
        """

    def look(self, order: RunOrder) -> RunReport | None:
        """Return the state of the run; None: there is no trace of its key."""

    def stop(self, order: RunOrder) -> RunReport | None:
        """Begin to end the run; it has ended when `look` says so. None: there is no trace of its key."""


class CheckPort(Protocol):
    def check(self, order: CheckOrder) -> CheckAnswer:
        """Return the answer to the check. Errors: none: a check that cannot be asked is UNKNOWN, with a sentence."""


class Incoming(NamedTuple):
    """A cluster on its way into the fleet. Units: whole GPUs."""

    spec: ClusterSpec
    number: int
    handed: HandedOver
    wanted: Mapping[str, int]
    """The quotas in the bring-up entry, by leaf."""
    owed_until: datetime | None
    ceiling_gpus: int
    actor: str
    at: datetime


class Owed(NamedTuple):
    """The quotas that a cluster's entry asked for, and those granted, by leaf. `orders`: grants that were recorded."""

    number: int
    orders: int
    wanted: Mapping[str, int]
    granted: Mapping[str, int]
    until: datetime | None


class LandedGrant(NamedTuple):
    """A grant that took effect: the GPUs that each team got, and who wrote it, as an entry of the archive says it."""

    raised: Mapping[str, int]
    by: str


class BringupLedger(Protocol):
    """The book of bring-ups. Each call may be repeated: it then returns the first answer."""

    def open_bringup(self, start: BringupStart, at: datetime) -> OpenedBringup:
        """Open the bring-up, with a number one above the cluster's last.

        Refused (in the answer) if another bring-up of the cluster is open, if the cluster is in the fleet, and if the
        ordered hardware could not back its first quotas. While it is open the same start again has the same answer.
        `at`: when the call was made, the same for all its attempts. A call that comes after the end of the bring-up
        that it opened is refused.
        """

    def why_not_open(self, start: BringupStart, at: datetime) -> str:
        """Return the refusal that `open_bringup` would give, in one sentence; empty: it would open it."""

    def note_bringup(self, record: BringupRecord) -> bool:
        """Show the row on the board, and archive the entries in the cluster's chain, each key once.

        A final stage closes the bring-up; later records change nothing on the board, nor do late attempts: then the
        answer is False.
        """

    def bringups(self, ended: bool) -> tuple[BringupRow, ...]:
        """Return those that are open, by cluster; with `ended` all that ever were, by cluster and number."""

    def give_up(self, cluster: str, by: Signature) -> BringupRow:
        """End the cluster's last bring-up, whatever became of its workflow. Errors: Refusal, there is none."""

    def default_policy(self) -> Policy:
        """Return the fleet's policy."""

    def is_in_fleet(self, cluster: str) -> bool: ...

    def number(self, cluster: str) -> int:
        """Return the number of its last bring-up; 0: there was none."""

    def is_over(self, cluster: str, number: int) -> bool:
        """Return whether this bring-up has ended, was given up, or was followed by another one."""

    def read_handover(self, cluster: str, number: int) -> HandedOver | None:
        """Return what this bring-up put into the fleet; None: nothing yet."""

    def take_in(self, incoming: Incoming) -> HandedOver:
        """Take the cluster into the fleet as the spec says, with a receipt and an archive entry. Idempotent by number.

        Errors: Refusal if it is there already, and not by this bring-up.
        """

    def add_islands(self, cluster: str, islands: Sequence[Island], actor: str, at: datetime) -> None:
        """Raise T to what came, if that is more than is installed; T never shrinks by this. A change by others."""

    def read_owed(self, cluster: str) -> Owed | None:
        """Return what is owed; None: it has no first quotas."""

    def owed_gpus(self, cluster: str, now: datetime) -> dict[str, int]:
        """Return the GPUs still owed now, by leaf: they come before later requests."""

    def note_granted(self, cluster: str, order: int, raised: Mapping[str, int], entry: AuditEntry) -> None:
        """Record the grant of this number, by leaf, and archive it; once."""

    def landed_grant(self, fence: Fence, cluster: str, request: str) -> LandedGrant | None:
        """Return what the fence, or a rollout for this order, has granted; it may not be recorded yet.

        None: nothing, by receipts and the archive.
        """

    def open_floors(self, cluster: str, by: Signature) -> None:
        """Remove minimums and blocks of the cluster's quotas, so that they can be cut; archive which there were."""

    def leave_fleet(self, cluster: str, by: Signature) -> None:
        """Take the cluster out of the fleet as `fleet remove` does. Idempotent. Errors: Refusal, as there."""


class RolloutDoor(Protocol):
    """Reaches a cluster's rollouts from a thread. Errors: Unavailable if one does not answer."""

    def grant(self, cluster: str, order: GrantOrder) -> Granted:
        """Return the answer of the open rollout."""

    def launch(self, request: LaunchRequest) -> LaunchAnswer: ...

    def command(self, cluster: str, command: Command, request: CommandRequest) -> str:
        """Return why it was refused; empty if it was obeyed, or if an order to end finds the rollout ended."""
