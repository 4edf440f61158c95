"""Sends messages from the outbox: puts the due notices of one audience into words, delivers them, and records that.

A message is sent under its own key, so that to send it again after a death repeats no delivery that the delivery book
knows. Rollouts send what is due at once in their own calls; all else is sent in rounds that the shared watch starts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta

from activities import metrics as meters
from activities.notices.rendering import render, render_together
from activities.ports.notices import NotifyPort, OutboxPort
from activities.ports.registry import ArchivePort
from models.audit_chain import BACKSTOP, AuditEntry, AuditKind
from models.errors import BackstopError, Refusal, Unavailable
from models.fleet.state import FLEET
from models.notice_digests import Letter, MailPace, subject_of
from models.notices import Delivery, Notice, NoticeKind
from models.texts import count_text

_LONG_AGO = timedelta(hours=1)
"""After this time, a notice sent alone says when it was written."""
_SENT, _REFUSED = "sent", "refused"


class Sender:
    def __init__(
        self, notify: NotifyPort, outbox: OutboxPort, archive: ArchivePort, pace: MailPace, console: str = ""
    ) -> None:
        """`console`: its address, where people answer in a browser; empty: nowhere."""
        self._notify = notify
        self._outbox = outbox
        self._archive = archive
        self.pace = pace
        self._console = console

    def send(self, audience: str, keys: Sequence[str] = ()) -> str:
        """Try the due messages; return why some are tried again; empty: none.

        With `keys` only messages with these, whose senders record their fate themselves.
        """
        troubles = []
        for message in self._outbox.take(audience, self.pace, keys):
            try:
                deliveries = self._deliver(message)
            except Refusal as error:
                self._note(message, keys, "could not notify", f": {error.message}", failed=True)
                self._outbox.mark_refused(message.key, error.message)
            except Unavailable as error:
                self._outbox.mark_failed(message.key, error.message)
                troubles.append(error.message)
            else:
                self._note(message, keys, "notified")
                self._outbox.mark_sent(message.key, deliveries)
                meters.record_message(len(message.notices))
        return "; ".join(troubles)

    def _deliver(self, message: Letter) -> tuple[Delivery, ...]:
        contacts, _ = self._outbox.wishes([message.audience]).get(message.audience, ((), None))
        if len(message.notices) == 1:
            notice = message.notices[0]
            written_at = message.posted_at[notice.key]
            old = message.formed_at - written_at >= _LONG_AGO
            words = render(notice, written_at if old else None, self._console)
        else:
            notice, words = join_letter(message), render_together(message, self._console)
        return self._notify.deliver(notice.but(contacts=contacts), *words)

    def noted_keys(self, keys: Sequence[str]) -> frozenset[str]:
        """Return notices whose fate is in the archive already, from a round without their senders."""
        fates = {f"{key}/{fate}": key for key in keys for fate in (_SENT, _REFUSED)}
        return frozenset(fates[entry] for entry in self._archive.find_archived(list(fates)))

    def _note(self, message: Letter, own: Collection[str], did: str, why: str = "", **data: object) -> None:
        """Archive once for each cluster whom Backstop notified, unless the sender does. A repeat writes the same."""
        more = len(message.notices) - 1
        beside = f", with {count_text(more, 'other notice')} in one message" if more else ""
        entries = [
            AuditEntry(
                key=f"{notice.key}/{_REFUSED if data else _SENT}",
                cluster=notice.cluster,
                rollout=_rollout_of(notice),
                at=message.formed_at,
                kind=AuditKind.NOTICE,
                actor=BACKSTOP,
                text=f"Backstop {did} {notice.audience}: {notice.kind}{beside}{why}",
                data={"notice": notice.kind.value, "key": notice.key, "message": message.key, **data},
            )
            for notice in message.notices
            if notice.key not in own
        ]
        try:
            self._archive.archive(entries)
        except BackstopError as error:
            raise Unavailable(f"the sent notices cannot be archived: {error.message}") from None


def join_letter(message: Letter) -> Notice:
    """Join its notices into one, for the channels: `facts` has them all."""
    clusters = {notice.cluster for notice in message.notices}
    return Notice(
        key=message.key,
        kind=NoticeKind.DIGEST,
        cluster=clusters.pop() if len(clusters) == 1 else FLEET,
        audience=message.audience,
        owner=message.notices[-1].owner,
        facts={"notices": [n.model_dump(mode="json", exclude={"contacts"}) for n in message.notices]},
    )


def _rollout_of(notice: Notice) -> str:
    """Return the rollout, or the fleet rollout; a request has none."""
    return "" if notice.kind is NoticeKind.REQUEST else subject_of(notice)
