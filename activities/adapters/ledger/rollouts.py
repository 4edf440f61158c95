"""Backstop's own book: clusters and their policies, open rollouts, the blast radius.

The ledger has it even where another system holds the quotas. No receipt is stored for those clusters, so the
effects of a lost rollout are recognised by the stage that it noted, too.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Sequence
from datetime import datetime
from functools import cache, lru_cache
from typing import Any

import sqlalchemy as sa
from pydantic import TypeAdapter
from sqlalchemy.orm import aliased
from sqlmodel import Session, col, func, select

from activities.adapters.ledger.audit_archive import LedgerArchive, append_all, never_dropped
from activities.adapters.ledger.blast_radius import LedgerBlastRadius
from activities.adapters.ledger.bulk import is_among
from activities.adapters.ledger.calendar import open_windows
from activities.adapters.ledger.cluster_settings import contacts_in, facts_of
from activities.adapters.ledger.fleet_rollouts import LedgerFleetRollouts
from activities.adapters.ledger.health_and_usage import latest_health
from activities.adapters.ledger.quotas import locked_cluster
from activities.adapters.ledger.requests import LedgerRequests
from activities.bad_rows import answer_for, build_each, making_sense
from activities.ports.by_cluster import ByCluster
from activities.ports.registry import OpenRollout
from models.cluster.policy import Policy
from models.cluster.readings import LimitMode
from models.cluster.snapshot import Snapshot
from models.cluster.windows import Window
from models.errors import Conflict, NoSuchCluster, Refusal
from models.ledger_tables import AuditRow, ClusterRow, MoveRow, QuotaRow, ReceiptRow, RolloutRow
from models.lifecycle.holds import Hold, HoldKind, holds_text
from models.questions import ClusterFacts
from models.rollout.effects import Fence
from models.rollout.gates import window_holds
from models.rollout.messages import RecordRequest
from models.rollout.stages import Stage, command_line
from models.rollout.status_models import RolloutNote
from models.status_questions import Overview

log = logging.getLogger(__name__)

_HOLDS = TypeAdapter(tuple[Hold, ...])
_NOTES_KEPT = 4_096
_AGAIN = re.compile(r"~[0-9a-f]{6}$")
"""The end of the name of a rollout that has adopted itself."""
WITHOUT_EFFECTS = frozenset({Stage.PLANNED, Stage.ABORTED, Stage.CLOSED})


class LedgerRegistry(LedgerArchive, LedgerRequests, LedgerFleetRollouts, LedgerBlastRadius):
    def facts(self, cluster: str) -> ClusterFacts:
        with self._database.reading() as session:
            facts = answer_for(facts_of(session, [cluster]), cluster)
            return facts.but(contacts=contacts_in(session, cluster))

    def facts_of(self, clusters: Sequence[str]) -> ByCluster[ClusterFacts]:
        with self._database.reading() as session:
            return facts_of(session, clusters)

    def open_rollout_of(self, cluster: str) -> OpenRollout | None:
        with self._database.reading() as session:
            row = session.get(ClusterRow, cluster)
            if row is None:
                raise NoSuchCluster(cluster)
            rows = [] if row.open_rollout is None else [session.get_one(RolloutRow, row.open_rollout)]
            with making_sense(cluster, "its rollout"):
                return next(iter(open_rollouts(session, rows).values()), None)

    def read_adopted(self, rollout: str) -> str:
        with self._database.reading() as session:
            row = session.get(RolloutRow, rollout)
            return "" if row is None else row.adopted_from or ""

    def keep_baseline(self, fence: Fence, baseline: Snapshot) -> None:
        with self._database.begin() as session:
            row = session.get(RolloutRow, fence.rollout)
            if row is None:
                raise Refusal(f"the ledger has no rollout {fence.rollout!r}")
            cluster = locked_cluster(session, row.cluster)
            if cluster.open_rollout == row.id and cluster.last_counter > fence.counter:
                return  # a late attempt of an effect that others have followed
            row.baseline = baseline.model_dump_json()

    def open_rollout(self, opening: OpenRollout, adopt: bool, fence: int | None = None) -> OpenRollout:
        with self._database.begin() as session:
            cluster = locked_cluster(session, opening.cluster)
            earlier_call, lost = session.get(RolloutRow, opening.rollout), None
            if earlier_call is not None and fence is not None:
                newest = _newest(session, earlier_call, opening.opened_at)
                if newest.opened_at == opening.opened_at:
                    earlier_call = newest
                elif _has_lapsed(session, newest, fence, own=newest is earlier_call):
                    lost = newest
            if earlier_call is not None and lost is None:
                return _with_written(session, _reopen(session, cluster, earlier_call))
            if lost is not None:
                opening, adopt = opening.but(rollout=_next_name(opening.rollout)), True
            else:
                lost = _find_left_behind(session, cluster)
            if lost is not None and not adopt:
                raise Refusal(
                    f"cluster {cluster.name} still has effects of rollout {lost.id} "
                    f"({lost.stage}, opened by {lost.owner}): adopt them with "
                    f"`{command_line('launch', cluster.name)} --adopt`, or finish that rollout first"
                )
            before = _earlier(session, cluster, lost)
            for earlier in before:
                earlier.superseded_by = opening.rollout
                earlier.ended_at = earlier.ended_at or opening.opened_at
            opened = _opened_row(opening, lost)
            if adopt and not opened.fleet:  # it stays a member of the fleet rollout that launched it
                opened.fleet = next((earlier.fleet for earlier in before if earlier.fleet), "")
            session.add(opened)
            cluster.open_rollout, cluster.last_counter = opened.id, 0
            session.flush()
            return _with_written(session, open_rollouts(session, [opened])[opened.id])

    def record(self, request: RecordRequest) -> None:
        """Note a rollout's stage, even if another rollout took it over: the cluster is not touched then."""
        with never_dropped():
            self._record(request)

    def _record(self, request: RecordRequest) -> None:
        if not request.entries and not request.ended:  # a read waits for nobody
            with self._database.reading() as session:
                if _is_noted(session, request):
                    return
        with self._database.begin() as session:
            append_all(session, request.entries)
            # Most entries change no stage.
            stands = not request.ended and _is_noted(session, request)
            there = stands or _is_late(session, request) or self._note(session, request)
        if not there:
            raise Refusal(f"the ledger has no rollout {request.rollout!r}")

    def _note(self, session: Session, request: RecordRequest) -> bool:
        """Return False if there is no such rollout."""
        row = session.get(RolloutRow, request.rollout)
        if row is None:
            return False
        cluster = locked_cluster(session, row.cluster)
        session.refresh(row)
        owns = cluster.open_rollout == row.id
        if owns and request.ended and request.fence is not None and cluster.last_counter > request.fence:
            log.error(
                "the workflow of rollout %s has ended, but its history lacks the last effects in %s: the ledger "
                "keeps the rollout open",
                row.id,
                row.cluster,
            )
            return True
        if row.ended_at is None or row.superseded_by is not None:
            row.stage, row.needs = request.stage.value, request.needs
            row.held, row.note = _held_column(request), _note_column(request)
            row.rollbacks = max(row.rollbacks, request.rollbacks)
        if owns and request.ended:
            row.ended_at = self._database.now()
            cluster.open_rollout, cluster.last_counter = None, 0
        # A shadow rollout wrote nothing, so it has not earned the ramp's next step.
        if request.completed and not row.completed and not row.shadow and row.superseded_by is None:
            row.completed = True
            cluster.completed_rollouts += 1
        return True

    def overview(self, *, noted: bool = False, quiet: bool = True) -> tuple[Overview, ...]:
        later = aliased(RolloutRow)
        is_last = ~sa.exists().where(
            col(later.cluster) == col(RolloutRow.cluster), col(later.opened_at) > col(RolloutRow.opened_at)
        )
        columns = [
            getattr(RolloutRow, name)
            for name in ("id", "cluster", "stage", "needs", "held", "note", "shadow", "owner", "opened_at", "fleet")
        ]
        of_open = col(RolloutRow.id).in_(sa.select(col(ClusterRow.open_rollout)))
        past_shadow = sa.and_(col(RolloutRow.shadow), col(RolloutRow.ended_at).is_not(None), is_last)
        with self._database.reading() as session:
            by_cluster = sa.select(*columns).order_by(RolloutRow.cluster)
            rows = session.execute(by_cluster.where(of_open)).all()
            last = sa.select(col(ClusterRow.open_rollout), col(ClusterRow.last_counter))
            counters = {rollout: counter for rollout, counter in session.execute(last) if rollout}
            now, clusters = self._database.now(), [row.cluster for row in rows]
            health = {} if noted else latest_health(session, clusters, now)
            windows = open_windows(session, clusters, now)
            ended = session.execute(by_cluster.where(past_shadow)).all() if quiet else []

        def overview_of(row: Any, *, ended: bool) -> Overview:
            holds = () if ended else _holds_now(row.held, windows.get(row.cluster, ()), now)
            return Overview(
                cluster=row.cluster,
                rollout=row.id,
                stage=row.stage,
                needs="" if ended else row.needs,
                held="" if ended else holds_text(holds) or (None if _noted_holds(row.held) is None else ""),
                holds=holds,
                note=parse_note(row.note) if noted and not ended else None,
                health_at=health[row.cluster].at if not ended and row.cluster in health else None,
                shadow=row.shadow,
                ended=ended,
                owner=row.owner,
                opened_at=row.opened_at,
                fleet=row.fleet,
                counter=counters.get(row.id, 0),
            )

        shown = rows if quiet else [row for row in rows if not _is_quiet(row)]
        return (*(overview_of(row, ended=False) for row in shown), *(overview_of(row, ended=True) for row in ended))

    def open_clusters(self) -> ByCluster[tuple[Stage, bool]]:
        with self._database.reading() as session:
            rows = sa.select(col(ClusterRow.name), col(RolloutRow.stage), col(RolloutRow.shadow)).join(
                RolloutRow, col(RolloutRow.id) == col(ClusterRow.open_rollout)
            )
            opened = session.execute(rows.order_by(ClusterRow.name))
            return build_each(
                "its rollout", ((row.name, row) for row in opened), lambda _, row: (Stage(row.stage), row.shadow)
            )


def _is_noted(session: Session, request: RecordRequest) -> bool:
    """Return whether the ledger already has all that the request notes, as long as the rollout has not ended."""
    noted = session.connection().execute(_select_noted(), {"rollout": request.rollout}).first()
    stands = (request.stage.value, request.needs, _held_column(request), _note_column(request), request.rollbacks)
    return noted is not None and tuple(noted) in ((*stands, True), (*stands, request.completed))


def _held_column(request: RecordRequest) -> str | None:
    return None if request.held is None else _HOLDS.dump_json(request.held).decode()


def _note_column(request: RecordRequest) -> str | None:
    return None if request.note is None else request.note.model_dump_json()


def _is_quiet(row: Any) -> bool:
    """Return whether a report says nothing of the rollout: holds of a monitored one have no gate to shut."""
    if row.stage != Stage.MONITORED or row.needs or row.shadow:
        return False
    note = parse_note(row.note)
    return note is not None and not note.lacking_gpus and not note.lacking_team_count


@lru_cache(maxsize=_NOTES_KEPT)
def parse_note(column: str | None) -> RolloutNote | None:
    """Return the note in this column; None if there is none, or none that makes sense."""
    try:
        return None if column is None else RolloutNote.model_validate_json(column)
    except ValueError:
        return None


def _noted_ceiling(column: str | None) -> dict[str, Any]:
    note = parse_note(column)
    if note is None:
        return {}
    try:
        Policy.model_validate(note.ceiling)
    except ValueError:
        return {}
    return note.ceiling


def _noted_holds(column: str | None) -> tuple[Hold, ...] | None:
    try:
        return None if column is None else _HOLDS.validate_json(column)
    except ValueError:
        return None


def _holds_now(column: str | None, windows: Sequence[Window], now: datetime) -> tuple[Hold, ...]:
    """Return what holds a rollout now, by its note and the calendar.

    A rollout notes its own holds as they change, and nothing when time alone opens or ends one.
    """
    noted = [hold for hold in _noted_holds(column) or () if hold.until is None or now < hold.until]
    health = [hold for hold in noted if hold.kind is HoldKind.UNKNOWN_HEALTH]
    return (*(hold for hold in noted if hold not in health), *window_holds(windows, now), *health)


def _is_late(session: Session, request: RecordRequest) -> bool:
    """Return whether a later entry of this rollout is archived: a late attempt, since which the rollout has gone on.

    A late attempt without entries looks like a new one. Rollouts make none: each stage comes with an entry.
    """
    if not request.entries:
        return False
    last = request.entries[-1]
    which = {"cluster": last.cluster, "key": last.key, "prefix": f"{request.rollout}/"}
    return session.connection().execute(_select_later(), which).first() is not None


@cache
def _select_later() -> sa.Select[int]:
    """Select an entry of the same rollout after the one with this key; its notices' keys are longer."""
    entry, own = AuditRow, aliased(AuditRow)
    cluster, key, prefix = (sa.bindparam(name, type_=sa.Text) for name in ("cluster", "key", "prefix"))
    its_seq = sa.select(col(own.seq)).where(col(own.cluster) == cluster, col(own.key) == key).scalar_subquery()
    return (
        sa.select(col(entry.seq))
        .where(col(entry.cluster) == cluster, col(entry.seq) > its_seq)
        .where(func.length(col(entry.key)) == func.length(key))
        .where(func.substr(col(entry.key), 1, func.length(prefix)) == prefix)
        .limit(1)
    )


@cache
def _select_noted() -> sa.Select[str, str, str | None, str | None, int, bool]:
    noted = (col(RolloutRow.stage), col(RolloutRow.needs), col(RolloutRow.held), col(RolloutRow.note))
    columns = (*noted, col(RolloutRow.rollbacks), col(RolloutRow.completed))
    return sa.select(*columns).where(col(RolloutRow.id) == sa.bindparam("rollout"))


def open_rollouts(session: Session, rows: Sequence[RolloutRow]) -> dict[str, OpenRollout]:
    """Return the rows by id, as the port shows them. Errors: ValueError for one that makes no sense."""
    counters = dict.fromkeys((row.id for row in rows), 0)
    if not rows:
        return {}
    for rollout, counter in session.connection().execute(_select_counters(), {"rollouts": list(counters)}):
        counters[rollout] = max(counters[rollout], counter)
    return {
        row.id: OpenRollout(
            rollout=row.id,
            cluster=row.cluster,
            owner=row.owner,
            opened_at=row.opened_at,
            baseline=Snapshot.model_validate_json(row.baseline),
            shadow=row.shadow,
            stage=Stage(row.stage),
            last_counter=counters[row.id],
            modes={team: LimitMode(mode) for team, mode in json.loads(row.modes).items()},
            adopted_from=row.adopted_from or "",
            fleet=row.fleet,
            ceiling=_noted_ceiling(row.note),
        )
        for row in rows
    }


@cache
def _select_counters() -> sa.CompoundSelect[str, int]:
    """Select the highest counter that each of these rollouts has written a receipt, and a move, with."""
    return sa.union_all(
        *(
            sa.select(col(table.rollout), func.max(table.counter))
            .where(is_among(table.rollout, "rollouts"))
            .group_by(col(table.rollout))
            for table in (ReceiptRow, MoveRow)
        )
    )


def _reopen(session: Session, cluster: ClusterRow, row: RolloutRow) -> OpenRollout:
    if row.cluster != cluster.name:
        raise Refusal(f"rollout {row.id} belongs to cluster {row.cluster}, not to {cluster.name}")
    if row.superseded_by is not None:
        raise Conflict(f"rollout {row.id} was taken over by rollout {row.superseded_by}")
    return open_rollouts(session, [row])[row.id]


def _next_name(rollout: str) -> str:
    """Return the name under which a rollout adopts itself."""
    return f"{_AGAIN.sub('', rollout)[:180]}~{secrets.token_hex(3)}"


def _is_own(rollout: str, adopter: str) -> bool:
    """Return whether the adopter is the rollout itself, under a later name."""
    return _AGAIN.search(adopter) is not None and _AGAIN.sub("", rollout)[:180] == _AGAIN.sub("", adopter)


def _newest(session: Session, row: RolloutRow, at: datetime) -> RolloutRow:
    """Return the rollout under the last name by which it adopted itself.

    `at`: when it is opened; all attempts of one call have the same time, which tells calls apart. Errors: Refusal if
    the rollout has ended; Conflict for a late attempt of a call that a later one has overtaken.
    """
    newest = row
    while newest.superseded_by is not None and _is_own(row.id, newest.superseded_by):
        newest = session.get_one(RolloutRow, newest.superseded_by)
    if newest.ended_at is not None and newest.superseded_by is None:
        raise Refusal(f"rollout {newest.id} has ended ({newest.stage}): launch a new one")
    if newest is not row and at < newest.opened_at:
        raise Conflict(f"rollout {row.id} was taken over by rollout {newest.id}")
    return newest


def _has_lapsed(session: Session, newest: RolloutRow, fence: int, *, own: bool) -> bool:
    """Return whether a history that ends with `fence` lacks effects. `own`: `newest` has its first name."""
    if newest.superseded_by is not None:
        return False  # by another rollout
    return not own or open_rollouts(session, [newest])[newest.id].last_counter > fence


def _with_written(session: Session, opened: OpenRollout) -> OpenRollout:
    """Return the rollout with the last values that it, or those that it took over, wrote."""
    if not opened.adopted_from:
        return opened
    chain: list[str] = []
    earlier: str | None = opened.adopted_from
    while earlier:
        chain.append(earlier)
        earlier = session.get_one(RolloutRow, earlier).adopted_from
    of_cluster = select(QuotaRow).where(col(QuotaRow.cluster) == opened.cluster)
    ours = [row for row in session.exec(of_cluster) if (row.written_by or "").rpartition("#")[0] in chain]
    written = {row.team: row.written_gpus for row in ours if row.written_gpus is not None}
    return opened.but(written=written)


def _find_left_behind(session: Session, cluster: ClusterRow) -> RolloutRow | None:
    """Return the rollout whose effects are still in place in the cluster; None if there are none."""
    previous = None
    if cluster.open_rollout is not None:
        previous = session.get_one(RolloutRow, cluster.open_rollout)
        if _may_have_effects(session, previous):
            return previous
    if cluster.reserve_limit is None:
        return None
    made_it = None if cluster.reserved_by is None else session.get(RolloutRow, cluster.reserved_by)
    lost = made_it or previous
    if lost is None:
        raise Refusal(
            f"cluster {cluster.name} has GPUs reserved by an unknown rollout: an administrator of the ledger must "
            "clear the reservation"
        )
    return lost


def _may_have_effects(session: Session, rollout: RolloutRow) -> bool:
    if rollout.adopted_from is not None:
        return True
    if rollout.stage not in WITHOUT_EFFECTS and not rollout.shadow:
        return True
    receipts = select(ReceiptRow.counter).where(ReceiptRow.rollout == rollout.id).limit(1)
    return session.exec(receipts).first() is not None


def _earlier(session: Session, cluster: ClusterRow, lost: RolloutRow | None) -> list[RolloutRow]:
    """Return the rollouts whose fences die when the new one is opened."""
    rows = [] if lost is None else [lost]
    if cluster.open_rollout is not None and (lost is None or lost.id != cluster.open_rollout):
        rows.append(session.get_one(RolloutRow, cluster.open_rollout))
    return rows


def _opened_row(opening: OpenRollout, lost: RolloutRow | None) -> RolloutRow:
    return RolloutRow(
        id=opening.rollout,
        cluster=opening.cluster,
        owner=opening.owner,
        opened_at=opening.opened_at,
        stage=opening.stage.value,
        shadow=opening.shadow,
        baseline=opening.baseline.model_dump_json() if lost is None else lost.baseline,
        modes=json.dumps(opening.modes, sort_keys=True) if lost is None else lost.modes,
        adopted_from=None if lost is None else lost.id,
        fleet=opening.fleet,
    )
