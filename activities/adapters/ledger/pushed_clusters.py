"""PushPort on the ledger: a row for each cluster that is to be looked at now, however often it is pushed.

A push writes the row after the sample, and the watch removes the row before it reads: so every pushed sample is read,
and a push that comes while it reads stands for the next look. A row that is lost with a worker costs one poll.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlmodel import col

from activities.adapters.ledger.bulk import delete, is_among, keep
from activities.adapters.ledger.database import LedgerPart
from models.ledger_tables import ClusterRow, HealthPushRow

_AT_ONCE = 1000
"""The most clusters that one look takes; the others wait for the next look."""


_PUSHES = sa.select(col(HealthPushRow.cluster), col(HealthPushRow.at))
"""Built once, because the watch runs it ten times a second."""


class LedgerPushes(LedgerPart):
    def push(self, clusters: Sequence[str]) -> tuple[str, ...]:
        statement = sa.select(col(ClusterRow.name)).where(is_among(col(ClusterRow.name), "names"))
        with self._database.begin() as session:
            names = sorted(session.scalars(statement, {"names": list(clusters)}))
            now = self._database.now()
            keep(session, HealthPushRow, [{"cluster": name, "at": now} for name in names])
        return tuple(names)

    def take(self, mine: Callable[[str], bool]) -> dict[str, datetime]:
        # Nearly always there is no push: a read keeps no writer from the ledger.
        with self._database.reading() as session:
            rows = session.connection().execute(_PUSHES).all()
        pushes = {cluster: at for cluster, at in rows if mine(cluster)}
        taken = dict(sorted(pushes.items(), key=lambda one: (one[1], one[0]))[:_AT_ONCE])
        if taken:
            with self._database.begin() as session:
                delete(session, HealthPushRow, [{"cluster": cluster} for cluster in taken])
        return taken
