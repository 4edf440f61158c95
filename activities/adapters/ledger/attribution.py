"""Finds who began, approved or changed something, by indexed rows: it reads no chain of the archive from its start.

The book of imports names each import and who made it; that gives the key of the import's entry in a cluster's chain.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import TypeVarTuple

import sqlalchemy as sa
from pydantic import ValidationError
from sqlmodel import Session, col, select

from activities.adapters.ledger.bulk import is_among
from activities.adapters.ledger.database import LedgerPart
from activities.adapters.ledger.fleet_file_port import FLEET_CHAIN, import_key
from activities.adapters.ledger.fleet_rollouts import FIRST_ENTRY
from activities.bad_rows import those_that_do
from activities.ports.access import OpenOne
from models.access.principals import Proof
from models.audit_chain import AuditEntry
from models.bringup.messages import BringupRow
from models.cluster.import_outcome import WRITES
from models.fleet.state import BREAKER, FLEET
from models.ledger_access_tables import WarrantRow
from models.ledger_tables import AuditRow, BringupBookRow, ClusterRow, ImportRow, RolloutRow
from models.rollout.stuck import LAUNCH

_Columns = TypeVarTuple("_Columns")
_POLICY_OR_QUOTAS = frozenset({"quota", "policy", "cluster"})
"""Kinds of lines that an import writes for a new cluster: the cluster, its quotas and its policy."""
_HOLD, _BREAKER, _ANY_HOLD = '%"kind":"hold"%', f'%"hold":"{BREAKER}"%', '%"hold":"%'
_APPROVED, _TAKEN = '%"command":"approve"%', '%"refused":false%'
_RENAMED = '%"command":"rename_cluster"%'
"""A pattern on canonical JSON; quotes in people's texts are escaped there, so no such text matches."""


class LedgerAttribution(LedgerPart):
    def open_one(self, cluster: str) -> OpenOne | None:
        its = sa.func.coalesce(col(ClusterRow.open_rollout), col(ClusterRow.reserved_by))
        rows = (
            sa.select(its, col(RolloutRow.fleet), col(RolloutRow.stage))
            .select_from(ClusterRow)
            .outerjoin(RolloutRow, col(RolloutRow.id) == its)
            .where(col(ClusterRow.name) == cluster, its.is_not(None))
        )
        with self._database.reading() as session:
            row = session.execute(rows).first()
            return None if row is None else OpenOne(row[0], row[1] or "", row[2] or "")

    def read_launcher(self, rollout: str) -> str:
        with self._database.reading() as session:
            first = select(AuditRow.entry).where(AuditRow.key == f"{rollout}/{FIRST_ENTRY}")
            entries = list(_readable(session.exec(first)))
        launches = (one for one in entries if one.data.get("command") == LAUNCH and not one.refused)
        return next((one.actor for one in launches if not _is_asserted(one)), "")

    def newest_fleet(self, but: str = "") -> str:
        keys = select(AuditRow.key).where(AuditRow.cluster == FLEET, col(AuditRow.key).like(f"%/{FIRST_ENTRY}"))
        if but:
            keys = keys.where(AuditRow.key != f"{but}/{FIRST_ENTRY}")
        with self._database.reading() as session:
            key = session.exec(keys.order_by(col(AuditRow.seq).desc()).limit(1)).first()
            return "" if key is None else key.removesuffix(f"/{FIRST_ENTRY}")

    def read_who_entered(self, cluster: str) -> str:
        boards = select(BringupBookRow.board).where(BringupBookRow.cluster == cluster)
        with self._database.reading() as session:
            board = session.exec(boards.order_by(col(BringupBookRow.number).desc()).limit(1)).first()
        try:
            return "" if board is None else BringupRow.model_validate_json(board).entered_by
        except ValidationError:
            return ""

    def list_who_changed(self, cluster: str, *, proven: bool) -> tuple[str, ...]:
        with self._database.reading() as session:
            since = _last_approval(session, cluster) if proven else _archived_approval(session, cluster)
            actors = _authors_of_changes(session, since, cluster) if cluster else _authors_of_any_change(session, since)
        return tuple(sorted({actor for actor in actors if ":" in actor}))

    def is_breaker_open(self, fleet: str) -> bool:
        holds = select(AuditRow.entry).where(
            AuditRow.cluster == FLEET,
            col(AuditRow.key).startswith(f"{fleet}/", autoescape=True),
            col(AuditRow.entry).like(_HOLD),
            sa.or_(col(AuditRow.entry).like(_BREAKER), col(AuditRow.entry).not_like(_ANY_HOLD)),
        )
        with self._database.reading() as session:
            last = list(_readable(session.exec(holds.order_by(col(AuditRow.seq).desc()).limit(1))))
        return any(one.data.get("hold") == BREAKER for one in last)


def _last_approval(session: Session, cluster: str) -> datetime | None:
    """Return when a plan was last approved with a ticket, there or by a fleet rollout; None: never."""
    command, subject = col(WarrantRow.command), col(WarrantRow.subject)
    if cluster:
        theirs = sa.select(col(RolloutRow.id)).where(col(RolloutRow.cluster) == cluster)
        which = (command == "rollout.approve", subject.in_(theirs))
    else:
        fleets = sa.select(col(RolloutRow.fleet)).where(col(RolloutRow.fleet) != "").distinct()
        which = (command == "fleet.approve", subject.in_(fleets))
    newest = sa.select(col(WarrantRow.admitted_at)).where(*which).order_by(col(WarrantRow.admitted_at).desc())
    return session.execute(newest.limit(1)).scalar()


def _archived_approval(session: Session, cluster: str) -> datetime | None:
    """Return the time of the last approval in the archive, which counts if no keys are configured."""
    entry = col(AuditRow.entry)
    rows = select(AuditRow.entry).where(AuditRow.cluster == (cluster or FLEET), entry.like(_APPROVED))
    last = rows.where(entry.like(_TAKEN)).order_by(col(AuditRow.seq).desc()).limit(1)
    return next((one.at for one in _readable(session.exec(last))), None)


def _authors_of_changes(session: Session, since: datetime | None, cluster: str) -> Iterable[str]:
    """Name the authors of changes, by imports' entries in the cluster's chain and in that of the fleet's own policy."""
    imports = session.execute(_since(sa.select(col(ImportRow.import_id), col(ImportRow.actor)), since)).all()
    if not imports:
        return ()
    chains = (*_names(session, cluster), FLEET_CHAIN)
    actors = {import_key(one, chain): actor for one, actor in imports for chain in chains}
    rows = sa.select(col(AuditRow.entry)).where(is_among(AuditRow.key, "keys"))
    texts = session.connection().execute(rows, {"keys": list(actors)}).scalars()
    changes = [one for one in _readable(texts) if _has_changes(one) and not _is_asserted(one)]
    return [_author(one, actors[one.key]) for one in changes]


def _names(session: Session, cluster: str) -> list[str]:
    """Return the cluster's names, its former ones too: the archive stays under those."""
    names = [cluster]
    while True:
        own = select(AuditRow.entry).where(AuditRow.cluster == names[-1], col(AuditRow.entry).like(_RENAMED))
        last = list(_readable(session.exec(own.order_by(col(AuditRow.seq)))))
        before = [one.data.get("from") for one in last if one.data.get("to") == names[-1]]
        if not before or not isinstance(before[-1], str) or before[-1] in names:
            return names
        names.append(before[-1])


def _authors_of_any_change(session: Session, since: datetime | None) -> Iterable[str]:
    """Name the authors of changes by the book of imports, which keeps each import's entries of all chains."""
    result = col(ImportRow.result)
    perhaps = sa.or_(*(result.like(f'%"kind":"{kind}"%') for kind in sorted(_POLICY_OR_QUOTAS)))
    rows = session.execute(_since(sa.select(col(ImportRow.actor), result).where(perhaps), since))
    changes_by_actor = [(actor, [one for one in _stored_entries(text) if _has_changes(one)]) for actor, text in rows]
    return [_author(one, actor) for actor, changes in changes_by_actor for one in changes]


def _since(rows: sa.Select[*_Columns], since: datetime | None) -> sa.Select[*_Columns]:
    return rows if since is None else rows.where(col(ImportRow.at) > since)


def _stored_entries(text: str) -> Iterable[AuditEntry]:
    try:
        documents = json.loads(text).get("entries", ())
    except (ValueError, AttributeError):
        return ()
    return _readable(map(json.dumps, documents))


def _giver_of(entry: AuditEntry) -> str:
    """Return who gave the command, if its actor countersigned it; empty if one person gave it alone."""
    given_by = entry.data.get("given_by")
    return given_by if isinstance(given_by, str) else ""


def _author(entry: AuditEntry, actor: str) -> str:
    """Return whose change it is: of two admins the first one's, as the second saw only the policies."""
    return _giver_of(entry) or actor


def _is_asserted(entry: AuditEntry) -> bool:
    """Return whether nobody checked the actor's name: then the entry proves nothing about anybody."""
    proof = entry.data.get("proof")
    return isinstance(proof, dict) and proof.get("proof") == Proof.ASSERTED


def _has_changes(entry: AuditEntry) -> bool:
    """Return whether the entry is one person's change of policy or quotas.

    A policy change that a second admin countersigned does not count; a cut list of lines counts as a change.
    """
    lines = entry.data.get("lines", ())
    alone = _POLICY_OR_QUOTAS - {"policy"} if _giver_of(entry) else _POLICY_OR_QUOTAS
    written = any(line.get("kind") in alone and line.get("verb") in WRITES for line in lines)
    return not entry.refused and (written or bool(entry.data.get("more_lines")))


def _readable(texts: Iterable[str]) -> Iterable[AuditEntry]:
    return those_that_do(texts, AuditEntry.model_validate_json)
