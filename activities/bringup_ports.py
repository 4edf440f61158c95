"""What bring-ups need of the ledger: their register, their archive, and the way into the fleet and out of it.

Calls block and may raise Unavailable (retry with the same arguments), as those of activities/ports.py.
"""

from __future__ import annotations

from typing import Protocol

from models.bringup.messages import (
    BringupRecord,
    BringupRow,
    HandedOver,
    HandOverRequest,
    OpenBringup,
    OpenedBringup,
    WindDownRequest,
    WoundDown,
)


class BringupBook(Protocol):
    """The ledger's book of bring-ups. Each call may be repeated: what stands already is answered again."""

    def open_bringup(self, request: OpenBringup) -> OpenedBringup:
        """The bring-up is open, and has its number: one above the cluster's last.

        Refused (in the answer) where another bring-up of the cluster is open, or the cluster stands in the fleet.
        The same start again, by its entry, recipe and time, has the same answer.
        """
        ...

    def note_bringup(self, record: BringupRecord) -> None:
        """The board shows the row, and the entries are archived in the cluster's chain, each key once.

        A stage that ends a bring-up closes it. A row of an earlier number than the cluster's last changes nothing on
        the board; its entries are archived all the same.
        """
        ...

    def hand_over(self, request: HandOverRequest) -> HandedOver:
        """The cluster is in the fleet, as an import would put it there: once per cluster and number.

        With `granted` it is in the fleet already, and what is owed is granted as far as what came since allows: never
        above the entry's values, never above C. Errors: Refusal where it cannot be (the sentence says why).
        """
        ...

    def wind_down(self, request: WindDownRequest) -> WoundDown:
        """How much quota still stands in the cluster, and how many jobs run there. Errors: Refusal."""
        ...

    def bringups(self, ended: bool) -> tuple[BringupRow, ...]:
        """Those that are open, by cluster; with `ended` all that ever were, by cluster and number."""
        ...
