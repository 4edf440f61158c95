"""Requests for more quota as the ledger keeps them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlmodel import col, select

from activities.adapters.ledger.audit_archive import append_all, never_dropped
from activities.adapters.ledger.bulk import store
from activities.adapters.ledger.database import LedgerPart
from activities.bad_rows import making_sense, those_that_do
from models.audit_chain import AuditEntry
from models.ledger_tables import RequestRow
from models.requests.state import RequestState


class LedgerRequests(LedgerPart):
    """The requests' part of RegistryPort."""

    def keep_request(self, request: RequestState, entries: Sequence[AuditEntry] = ()) -> None:
        with never_dropped(), self._database.begin() as session:
            append_all(session, entries)
            kept = session.get(RequestRow, request.ask.request)
            if kept is not None and RequestState.model_validate_json(kept.state).serial > request.serial:
                return  # a late attempt of an earlier call
            row = {
                "id": request.ask.request,
                "cluster": request.ask.cluster,
                "team": request.ask.team,
                "stage": request.stage.value,
                "ended": request.has_ended,
                "asked_at": request.asked_at,
                "state": request.model_dump_json(),
            }
            store(session, RequestRow, [row])

    def requests(self, cluster: str = "", *, ended: bool = False) -> tuple[RequestState, ...]:
        rows = select(RequestRow.state).order_by(col(RequestRow.asked_at), col(RequestRow.id))
        if cluster:
            rows = rows.where(col(RequestRow.cluster) == cluster)
        if not ended:
            rows = rows.where(col(RequestRow.ended).is_(False))
        with self._database.reading() as session:
            return tuple(those_that_do(session.exec(rows), RequestState.model_validate_json))

    def request(self, request: str) -> RequestState | None:
        with self._database.reading() as session:
            row = session.get(RequestRow, request)
            if row is None:
                return None
            with making_sense(row.cluster, f"request {request}"):
                return RequestState.model_validate_json(row.state)
