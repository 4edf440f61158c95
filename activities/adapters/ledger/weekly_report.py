"""The weekly report's facts in the ledger: the stages of rollouts from the archive, means of tallies."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import NamedTuple

import sqlalchemy as sa
from sqlmodel import Session, col

from activities.adapters.ledger.bulk import is_among
from activities.adapters.ledger.database import Database, LedgerPart
from activities.adapters.ledger.rollouts import parse_note
from activities.adapters.ledger.tally_means import TallyMeans
from activities.bad_rows import those_that_do
from activities.watch.tallies import KEPT_WHOLE
from models.audit_chain import AuditEntry, AuditKind
from models.base import DAY
from models.ledger_tables import AuditHeadRow, AuditRow, ClusterRow, ReceiptRow, RolloutRow
from models.reports.tallies import slot_of
from models.reports.weekly import ClusterCut, Mean, Move, Passage, Span
from models.rollout.effects import EffectKind

_KIND = json.dumps({"kind": AuditKind.TRANSITION.value}, separators=(",", ":"))[1:-1]


class _Cut(NamedTuple):
    """The GPUs that one write took away, or gave back, by the parts of a `ClusterCut`."""

    at: datetime
    cluster: str
    gpus: Mapping[str, int]


class _Chain(NamedTuple):
    """The moves and cuts in one chain of the archive, as far as its head then."""

    head: tuple[int, str]
    moves: Sequence[Move]
    cuts: Sequence[_Cut]


class _Basis(NamedTuple):
    """The basis of passages."""

    chains: Sequence[_Chain]
    wrote: Mapping[str, datetime]
    """Time of the first receipt, by rollout; rollouts without a receipt here are left out."""
    rollouts: Sequence[tuple[str, str]]
    """The id and the cluster of each rollout."""

    def passages(self, until: datetime) -> tuple[Passage, ...]:
        moves: dict[str, list[Move]] = {}
        for move in (m for chain in self.chains for m in chain.moves if m.at <= until):
            moves.setdefault(move.rollout, []).append(move)
        return tuple(
            Passage(
                cluster=cluster,
                rollout=rollout,
                wrote_at=self.wrote.get(rollout)
                or next((move.at for move in moves.get(rollout, ()) if move.after == "buffered"), None),
                moves=tuple(moves.get(rollout, ())),
            )
            for rollout, cluster in self.rollouts
        )


class _Ways(NamedTuple):
    """The passages that were asked for last, their basis, and the time of its last move or write."""

    basis: _Basis
    last_at: datetime
    passages: tuple[Passage, ...]


class LedgerReport(LedgerPart):
    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._means = TallyMeans()
        self._chains: dict[str, _Chain] = {}
        self._ways: _Ways | None = None

    def passages(self, until: datetime) -> tuple[Passage, ...]:
        """Return the way of each rollout through its stages, from the archive, which is kept for every quota system.

        A receipt dates the first write; if none is kept here, the move into `buffered` does. The tuple is that of the
        look before, where nothing has moved and all was over by then.
        """
        with self._database.reading() as session:
            chains = self._read_chains(session)
            wrote = {row.rollout: row.at for row in session.connection().execute(_first_writes())}
            real = sa.select(col(RolloutRow.id), col(RolloutRow.cluster)).where(~col(RolloutRow.shadow))
            real = real.order_by(col(RolloutRow.cluster), col(RolloutRow.opened_at))
            rollouts = [(rollout, cluster) for rollout, cluster in session.connection().execute(real)]
        ways, basis = self._ways, _Basis(chains, wrote, rollouts)
        if ways is not None and until >= ways.last_at and basis == ways.basis:
            return ways.passages
        passages = basis.passages(until)
        moved_at = (move.at for chain in chains for move in chain.moves)
        last_at = max(itertools.chain(moved_at, wrote.values()), default=until)
        if until >= last_at:
            self._ways = _Ways(basis, last_at, passages)
        return passages

    def means(self, spans: Sequence[Span], until: datetime) -> tuple[Mean | None, ...]:
        """Return the means of many clusters. Sums are not used for days that may have been thinned since."""
        whole_since = slot_of(self._database.now(), DAY) - KEPT_WHOLE
        with self._database.reading() as session:
            return tuple(self._means.means_of(session, spans, until, whole_since))

    def cuts(self, since: datetime, until: datetime) -> tuple[ClusterCut, ...]:
        """Return the archived cuts. Entries of earlier builds do not have the GPUs, and count as nothing."""
        counts: dict[str, Counter[str]] = {}
        with self._database.reading() as session:
            for one in (cut for chain in self._read_chains(session) for cut in chain.cuts):
                if since < one.at <= until:
                    counts.setdefault(one.cluster, Counter()).update(one.gpus)
        return tuple(
            ClusterCut(
                cluster=cluster,
                cut_gpus=of["cut"],
                phantom_gpus=of["phantom"],
                to_flex_gpus=of["flex"],
                back_gpus=of["back"],
                withdrawn_gpus=of["withdrawn"],
            )
            for cluster, of in sorted(counts.items())
            if of["cut"] or of["back"] or of["withdrawn"]
        )

    def _read_chains(self, session: Session) -> Sequence[_Chain]:
        """Return all chains. Only those are read whose head has moved: what a chain has does not change."""
        head = sa.select(col(AuditHeadRow.cluster), col(AuditHeadRow.length), col(AuditHeadRow.hash))
        heads = {cluster: (length, hashed) for cluster, length, hashed in session.connection().execute(head)}
        kept = self._chains
        moved = [name for name, head in heads.items() if name not in kept or kept[name].head != head]
        facts: dict[str, list[Move | _Cut]] = {name: [] for name in moved}
        if moved:
            rows = session.connection().execute(_entries(), {"clusters": moved})
            # A row that was altered beyond reading shows in `audit --verify`.
            for name, fact in those_that_do(rows, lambda row: (row.cluster, _fact(row.entry))):
                if fact is not None:
                    facts[name].append(fact)
        new = {
            name: _Chain(
                heads[name], [one for one in of if isinstance(one, Move)], [one for one in of if isinstance(one, _Cut)]
            )
            for name, of in facts.items()
        }
        self._chains = {name: new[name] if name in new else kept[name] for name in sorted(heads)}
        return list(self._chains.values())

    def clusters(self) -> tuple[str, ...]:
        with self._database.reading() as session:
            names = sa.select(col(ClusterRow.name)).order_by(col(ClusterRow.name))
            return tuple(session.connection().execute(names).scalars())

    def waves(self) -> Mapping[str, str]:
        of_open = col(RolloutRow.id).in_(sa.select(col(ClusterRow.open_rollout)))
        with self._database.reading() as session:
            notes = sa.select(col(RolloutRow.cluster), col(RolloutRow.note)).where(of_open)
            rows = session.connection().execute(notes).all()
        noted = ((cluster, parse_note(note)) for cluster, note in rows)
        return {cluster: note.wave for cluster, note in noted if note is not None and note.wave}


def _fact(entry: str) -> Move | _Cut | None:
    """Return what the entry tells of a rollout's stages or of its cuts. Errors: ValueError for an altered entry."""
    read = AuditEntry.model_validate_json(entry)
    if read.kind is AuditKind.TRANSITION:
        return Move(
            cluster=read.cluster,
            rollout=read.rollout,
            at=read.at,
            before=str(read.data.get("before")),
            after=str(read.data.get("after")),
            actor=read.actor,
            text=read.text,
        )
    cut = read.data.get("cut")
    if read.kind is not AuditKind.EFFECT or not isinstance(cut, dict):
        return None
    gpus = int(cut.get("gpus", 0))
    # Earlier builds did not say what answered a breach; a restore that took something did.
    if gpus > 0 and (cut.get("breach") or read.data.get("effect") == EffectKind.RESTORE):
        return _Cut(read.at, read.cluster, {"withdrawn": gpus})
    parts = {"phantom": int(cut.get("phantom_gpus", 0)), "flex": int(cut.get("to_flex_gpus", 0))}
    return _Cut(read.at, read.cluster, {"cut": max(0, gpus), "back": max(0, -gpus), **parts})


@cache
def _entries() -> sa.Select[str, str]:
    """Entries are canonical JSON: the patterns find every transition and every write that says how many GPUs it took.

    `_fact` leaves out entries that quote one.
    """
    entry = col(AuditRow.entry)
    rows = sa.select(col(AuditRow.cluster), entry).where(is_among(AuditRow.cluster, "clusters"))
    return rows.where(sa.or_(entry.like(f"%{_KIND}%"), entry.like('%"cut":{%'))).order_by(
        col(AuditRow.cluster), col(AuditRow.seq)
    )


@cache
def _first_writes() -> sa.Select[str, datetime]:
    """Select when each rollout first wrote to quotas: a reservation changes none."""
    writes = col(ReceiptRow.kind).not_in((EffectKind.RESERVE.value, EffectKind.RELEASE.value))
    first = sa.select(col(ReceiptRow.rollout), sa.func.min(ReceiptRow.at).label("at")).where(writes)
    return first.group_by(col(ReceiptRow.rollout))
