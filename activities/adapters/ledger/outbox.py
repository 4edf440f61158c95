"""Notices on their way to people: those that wait, which go together, and the fate of each message.

A notice is posted once per key. A message is formed in one transaction from the notices due by then, and never
changes: a later attempt to send it, after a death or a failure, sends the same under the same key, and the delivery
book knows which addresses have had it. One transaction at a time forms messages of one audience.

A notice that this build cannot read (a newer one posted it, or another tool wrote it) holds up no other: it waits until
it can be read, and `doctor` names it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import cache

import sqlalchemy as sa
from sqlmodel import Session, col, select

from activities.adapters.ledger.bulk import is_among, keep
from activities.adapters.ledger.database import LedgerPart, one_at_a_time
from activities.bad_rows import SENSELESS, those_that_do, why_senseless
from models.cluster.contact_secrets import is_log
from models.hashes import hash_of
from models.ledger_tables import ContactRow, MessageRow, NoticeRow, TeamRow
from models.notice_digests import (
    Fate,
    Lane,
    Letter,
    MailPace,
    Posted,
    Told,
    Untold,
    due_time_of,
    next_message_time,
    notices_together,
    overtake_lane,
    restate_notices,
)
from models.notices import Delivery, Notice, Notify, notify_of

_KEPT = timedelta(days=90)
"""How long sent messages are kept; the archive keeps who was notified of what."""
_FIRST_PAUSE, _LONGEST_PAUSE = timedelta(seconds=30), timedelta(minutes=5)


class LedgerOutbox(LedgerPart):
    def wishes(self, audiences: Sequence[str]) -> dict[str, tuple[tuple[str, ...], Notify | None]]:
        with self._database.reading() as session:
            rows = session.connection().execute(_select_wishes(), {"names": list(audiences)})
            wishes: dict[str, tuple[tuple[str, ...], Notify | None]] = {}
            for name, notify, address in rows:
                contacts, _ = wishes.get(name, ((), None))
                elsewhere = () if address is None or is_log(address) else (address,)
                wishes[name] = ((*contacts, *elsewhere), notify_of(notify))
            return wishes

    def post(self, audience: str, posts: Sequence[tuple[Notice, Lane]]) -> None:
        now = self._database.now()
        with self._database.begin() as session:
            one_at_a_time(session, f"notices of {audience}")
            waiting = [posted.notice for posted in _read_waiting(session, audience)]
            rows = []
            for notice, lane in posts:
                rows.append(_row(notice, overtake_lane(notice, lane, waiting), now))
                waiting.append(notice)
            keep(session, NoticeRow, rows)

    def take(self, audience: str, pace: MailPace, keys: Sequence[str] = ()) -> tuple[Letter, ...]:
        now = self._database.now()
        with self._database.begin() as session:
            one_at_a_time(session, f"notices of {audience}")
            while going := notices_together(
                _read_waiting(session, audience), _latest_messages(session, audience, now, pace), now, pace
            ):
                _form(session, audience, going, now)
            own = {row.message for row in _rows(session, keys) if row.message is not None}
            of_theirs = col(MessageRow.key).in_(own) if keys else col(MessageRow.try_at) <= now
            open_ones = session.exec(
                select(MessageRow)
                .where(MessageRow.audience == audience, col(MessageRow.over).is_(False), of_theirs)
                .order_by(col(MessageRow.formed_at), col(MessageRow.key))
            ).all()
            return tuple(letter for row in open_ones if (letter := _message(session, row)) is not None)

    def audiences_due(self, pace: MailPace) -> tuple[str, ...]:
        now = self._database.now()
        with self._database.reading() as session:
            retried = select(MessageRow.audience).where(col(MessageRow.over).is_(False), col(MessageRow.try_at) <= now)
            names = set(session.exec(retried.distinct()))
            for audience in _audiences_waiting(session):
                at = next_message_time(
                    _read_waiting(session, audience), _latest_messages(session, audience, now, pace), pace
                )
                names |= {audience} if at is not None and at <= now else set()
            return tuple(sorted(names))

    def mark_sent(self, key: str, deliveries: Sequence[Delivery]) -> None:
        now = self._database.now()
        document = json.dumps([delivery.model_dump(mode="json") for delivery in deliveries])
        self._end(key, sent_at=now, deliveries=document, trouble="")
        with self._database.begin() as session:
            old = select(MessageRow.key).where(col(MessageRow.over), col(MessageRow.formed_at) < now - _KEPT)
            session.execute(sa.delete(NoticeRow).where(col(NoticeRow.message).in_(old)))
            session.execute(sa.delete(MessageRow).where(col(MessageRow.key).in_(old)))

    def mark_refused(self, key: str, why: str) -> None:
        self._end(key, refused=why, trouble="")

    def mark_failed(self, key: str, why: str) -> None:
        now = self._database.now()
        with self._database.begin() as session:
            row = session.get(MessageRow, key)
            if row is not None and not row.over:
                row.tries += 1
                row.try_at = now + min(_FIRST_PAUSE * 2 ** min(row.tries - 1, 8), _LONGEST_PAUSE)
                row.trouble = why

    def fates(self, audience: str, keys: Sequence[str], pace: MailPace) -> dict[str, Fate]:
        now = self._database.now()
        with self._database.reading() as session:
            rows = _rows(session, keys)
            formed = {row.message for row in rows if row.message is not None}
            messages = {m.key: m for m in session.exec(select(MessageRow).where(col(MessageRow.key).in_(formed)))}
            waiting = _read_waiting(session, audience)
            next_at = next_message_time(waiting, _latest_messages(session, audience, now, pace), pace) or now
            own = {posted.notice.key: max(next_at, due_time_of(posted, pace)) for posted in waiting}
            return {row.key: _fate(row, messages, own.get(row.key, next_at)) for row in rows}

    def waits(self, pace: MailPace) -> tuple[Untold, ...]:
        now = self._database.now()
        with self._database.reading() as session:
            waits = []
            for audience in _audiences_waiting(session):
                waiting = _read_waiting(session, audience)
                at = next_message_time(waiting, _latest_messages(session, audience, now, pace), pace)
                if at is not None:
                    since, digest = min(w.posted_at for w in waiting), all(w.lane is Lane.DIGEST for w in waiting)
                    count = len(waiting)
                    waits.append(Untold(audience=audience, notices=count, since=since, due=at, digest=digest))
            waits += _unread(session, now)
            for row in session.exec(select(MessageRow).where(col(MessageRow.over).is_(False))):
                count = len(_rows_of_message(session, row.key))
                waits.append(
                    Untold(
                        audience=row.audience,
                        notices=count,
                        since=row.formed_at,
                        due=row.try_at,
                        digest=False,
                        trouble=row.trouble,
                    )
                )
            return tuple(sorted(waits, key=lambda posted: (posted.audience, posted.since)))

    def _end(self, key: str, **what: object) -> None:
        with self._database.begin() as session:
            still = (col(MessageRow.key) == key, col(MessageRow.over).is_(False))
            session.execute(sa.update(MessageRow).where(*still).values(over=True, **what))


def _row(notice: Notice, lane: Lane, now: datetime) -> dict[str, object]:
    return {
        "key": notice.key,
        "audience": notice.audience,
        "cluster": notice.cluster,
        "kind": notice.kind.value,
        "lane": lane.value,
        "posted_at": now,
        "notice": notice.but(contacts=()).model_dump_json(exclude={"contacts"}),
        "message": None,
    }


def _posted_notice(row: NoticeRow) -> Posted:
    return Posted(notice=Notice.model_validate_json(row.notice), posted_at=row.posted_at, lane=Lane(row.lane))


def _read_waiting(session: Session, audience: str) -> list[Posted]:
    those = select(NoticeRow).where(col(NoticeRow.message).is_(None), NoticeRow.audience == audience)
    rows = session.exec(those.order_by(col(NoticeRow.posted_at), col(NoticeRow.key))).all()
    return list(those_that_do(rows, _posted_notice))


def _unread(session: Session, now: datetime) -> Iterator[Untold]:
    """List the waiting notices that this build cannot read."""
    waiting = select(NoticeRow).where(col(NoticeRow.message).is_(None))
    for row in session.exec(waiting.order_by(col(NoticeRow.audience), col(NoticeRow.key))).all():
        try:
            _posted_notice(row)
        except SENSELESS as error:
            why = f"this version cannot read {row.key}: {why_senseless(error)}"
            yield Untold(
                audience=row.audience,
                notices=1,
                since=row.posted_at,
                due=now,
                digest=False,
                trouble=why,
                remedy="if a newer version of Backstop posted the notice, a worker of that version sends it; otherwise "
                "delete its row in table `notices`",
            )


def _audiences_waiting(session: Session) -> Sequence[str]:
    waiting = select(NoticeRow.audience).where(col(NoticeRow.message).is_(None))
    return session.exec(waiting.distinct().order_by(col(NoticeRow.audience))).all()


def _latest_messages(session: Session, audience: str, now: datetime, pace: MailPace) -> list[Told]:
    lately = col(MessageRow.formed_at) > now - 2 * pace.window
    of_it = (col(NoticeRow.message) == col(MessageRow.key), col(NoticeRow.lane) == Lane.URGENT.value)
    rows = select(MessageRow.formed_at, sa.exists().where(*of_it)).where(MessageRow.audience == audience, lately)
    return [Told(at, urgent) for at, urgent in session.exec(rows)]


@cache
def _select_wishes() -> sa.Select[str, str | None, str | None]:
    return (
        sa.select(col(TeamRow.name), col(TeamRow.notify), col(ContactRow.address))
        .select_from(TeamRow)
        .outerjoin(ContactRow, col(ContactRow.team) == col(TeamRow.name))
        .where(is_among(col(TeamRow.name), "names"))
        .order_by(col(TeamRow.name), col(ContactRow.position))
    )


def _rows(session: Session, keys: Sequence[str]) -> Sequence[NoticeRow]:
    if not keys:
        return ()
    return session.exec(select(NoticeRow).where(col(NoticeRow.key).in_(keys))).all()


def _rows_of_message(session: Session, key: str) -> list[NoticeRow]:
    those = select(NoticeRow).where(NoticeRow.message == key)
    return list(session.exec(those.order_by(col(NoticeRow.posted_at), col(NoticeRow.key))))


def _form(session: Session, audience: str, going: Sequence[Posted], now: datetime) -> None:
    """Make one message of these notices. A single one keeps its own key, by which receivers know it."""
    first = going[0].notice.key
    key = first if len(going) == 1 else f"together/{hash_of(f'{audience} {now.isoformat()} {first}')}"
    session.add(MessageRow(key=key, audience=audience, formed_at=now, try_at=now))
    session.flush()
    rows = {row.key: row for row in _rows(session, [posted.notice.key for posted in going])}
    for notice in restate_notices(going, now):
        row = rows[notice.key]
        row.message = key
        row.notice = notice.model_dump_json(exclude={"contacts"})
    session.flush()


def _message(session: Session, row: MessageRow) -> Letter | None:
    """Return the readable part of a message; the rest waits for another one. None: nothing is readable."""
    readable = []
    for each in _rows_of_message(session, row.key):
        try:
            readable.append(_posted_notice(each))
        except SENSELESS:
            each.message = None
    session.flush()
    if not readable:
        session.delete(row)
        return None
    return Letter(
        key=row.key,
        audience=row.audience,
        formed_at=row.formed_at,
        notices=tuple(posted.notice for posted in readable),
        posted_at={posted.notice.key: posted.posted_at for posted in readable},
    )


def _fate(row: NoticeRow, messages: dict[str, MessageRow], due_at: datetime) -> Fate:
    if row.message is None:
        return Fate(due=due_at)
    message = messages[row.message]
    return Fate(
        sent_at=message.sent_at,
        refused=message.refused,
        trouble=message.trouble or ("" if message.over else "it is on its way"),
        deliveries=tuple(Delivery.model_validate(delivery) for delivery in json.loads(message.deliveries)),
        due=message.try_at,
    )
