"""RolloutPost: the side loops of a rollout, which archive entries and send notices, so that neither delays it.

They differ from those of the other lifecycles (workflows/durable.py). They start nothing while a breach is answered or
the rollout waits for its next run; entries wait for others to travel with them; some notices wait for a look; and the
archive also gets a new stage, on which others rely, when no entry is left.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from functools import partial

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities.notices.telling import NoticeActivities
    from activities.rollout.archive import ArchiveActivities
    from models.audit_chain import AuditEntry
    from models.rollout import mailing, request_builders
    from models.rollout.messages import RecordRequest, RolloutInput
    from models.rollout.stages import Stage
    from models.rollout.state import Rollout
    from models.temporal_names import TellAnswer
    from workflows import options, patches
    from workflows.durable import Host
    from workflows.failures import reason_of
    from workflows.history_lacks_effects import Lapses
    from workflows.no_empty_tasks import leave_mark, write_mark
    from workflows.pause_during_breach import Haste

_ROUNDS = 4
"""Rounds in which all loops go on as far as they can: at most mail, its entry, the entry's call, and one more."""


class RolloutPost(Host[Rollout]):
    """The part of the host that archives and notifies."""

    def __init__(self, start: RolloutInput) -> None:
        super().__init__(start.state)
        self._recording: RecordRequest | None = None
        """The request that is on its way to the archive; None: none is."""
        self._noted: RecordRequest | None = None
        """The last request that the archive accepted in this run, without its entries."""
        self._compared: int | None = None
        """The value of `_changes` when `_noted` was last compared with the state."""
        self._news = False
        self._busy_mailing = False
        self._mail_lags = False
        """Whether the mail under way takes longer than entries wait for it, or was in trouble."""
        self._leaving = False
        """Whether the side loops start nothing new, so that even a busy rollout reaches its next run."""
        self._leaving_since: datetime | None = None
        self._haste = Haste(partial(self._leave_mark, always=True))
        self._looks_first = False
        self._waits: int | None = None
        """The value of `_changes` at which the main loop waits; None: it does not wait."""
        self._looking = False
        self._acted_at = 0
        """The length of history at the last workflow task that surely leaves an event."""
        self._marking: asyncio.Task[None] | None = None
        self._lapses = Lapses(start)

    # --- marks ------------------------------------------------------------------------------

    def _note_event(self) -> None:
        """Note that this workflow task leaves an event."""
        self._acted_at = workflow.info().get_current_history_length()

    def _leave_mark(self, *, always: bool = False) -> None:
        """Leave an event if this workflow task has no other, so that none leads to nothing.

        A run from before the patch leaves one unless the main loop starts its timer again, or `always`.
        """
        if patches.has_fewer_events():
            self._marking = asyncio.create_task(self._mark_empty_task())
        elif always or self._waits is None:
            leave_mark()

    async def _mark_empty_task(self) -> None:
        length = workflow.info().get_current_history_length()
        for _ in range(_ROUNDS):
            await workflow.wait_condition(lambda: True)
        if self._acted_at != length:
            self._note_event()
            write_mark()

    # --- the archive ------------------------------------------------------------------------

    async def _record(self) -> None:
        while True:
            await workflow.wait_condition(self._may_record)
            if patches.since(patches.TOGETHER):
                await self._linger()
                if not self._may_record():  # a breach came between
                    self._leave_mark(always=True)
                    continue
            self._note_event()
            await self._archive_next()
            self._leave_mark()

    # The loops keep no entries or notices in their frames while they wait: a rollout may wait for weeks.

    async def _archive_next(self) -> None:
        self._recording = request = request_builders.record(self._state, workflow.now())
        try:
            await workflow.execute_activity_method(
                ArchiveActivities.record,
                request,
                **options.CALL,
                summary="; ".join(e.text for e in request.entries)[:180] or f"stage {request.stage}",
            )
        except ActivityError as error:
            # The registry belongs to somebody else by now. This history has the entries.
            workflow.logger.error("not archived: %s", reason_of(error)[1])
        self._recording, self._noted = None, request.but(entries=())
        self._set(mailing.mark_archived(self._state, request))

    def _unsent(self) -> tuple[AuditEntry, ...]:
        """Return the entries that are neither archived nor on their way there."""
        sent = () if self._recording is None else self._recording.entries
        return tuple(entry for entry in self._state.post.outbox if entry not in sent)

    def _may_record(self) -> bool:
        stays = self._leaving or self._lapses.reset
        if stays or self._state.is_closing:  # closing: the registry would end the rollout before its last effect
            return False
        post = self._state.post
        if post.noted is not self._state.stage or (bool(post.outbox) and not self._haste.on):
            return True
        return self._has_news() and patches.since(patches.NOTES_AT_REST)

    def _has_news(self) -> bool:
        """Return whether the main loop rests and the registry shows what is no longer so: compared once a change."""
        if self._waits != self._changes or self._haste.on:
            return False
        if self._compared != self._changes:
            self._compared = self._changes
            self._news = not request_builders.shows_the_same(self._noted, self._state, workflow.now())
        return self._news

    async def _linger(self) -> None:
        """Wait until the main loop waits: a call is seven events and a workflow task, whatever it carries."""
        self._note_event()
        try:
            await workflow.wait_condition(self._records_now, timeout=options.LINGER, timeout_summary="for more entries")
        except TimeoutError:
            self._mail_lags = self._busy_mailing

    def _records_now(self) -> bool:
        """Return whether nothing more is about to come, or others rely on the stage (the fleet's breaker)."""
        rollout = self._state
        rolls_back = rollout.stage is Stage.ROLLING_BACK and rollout.post.noted is not rollout.stage
        rests = self._waits == self._changes and not (patches.has_fewer_events() and self._mail_comes())
        return rests or rollout.stage.has_ended or rolls_back

    def _mail_comes(self) -> bool:
        """Return whether mail is about to bring entries of its own."""
        return not self._mail_lags and (self._busy_mailing or self._may_mail())

    # --- notices ----------------------------------------------------------------------------

    def _may_mail(self) -> bool:
        may_mail = mailing.may_mail if self._looks_first else mailing.ready_notices
        stays = self._leaving or self._lapses.reset or self._haste.on
        return not stays and bool(may_mail(self._state, workflow.now()))

    async def _mail_is_due(self) -> None:
        """Wait until mail is due. A timer runs only if the ledger sends a notice that the notice period waits for."""
        while True:
            try:
                await workflow.wait_condition(self._may_mail, timeout=mailing.ask_delay(self._state, workflow.now()))
                return
            except TimeoutError:
                if not self._may_mail() and workflow.patched(patches.MARKS_LATE_MAIL):
                    self._leave_mark(always=True)

    async def _mail(self) -> None:
        while True:
            await self._mail_is_due()
            self._busy_mailing = True
            self._note_event()
            await self._tell_next()
            self._leave_mark()
            if self._state.post.trouble:
                self._mail_lags = True
                self._note_event()
                await asyncio.sleep(options.MAIL_PAUSE.total_seconds())
                self._mail_lags = False
                self._leave_mark(always=True)

    async def _tell_next(self) -> None:
        request = request_builders.tell(self._state, workflow.now())
        try:
            answer = await workflow.execute_activity_method(
                NoticeActivities.tell,
                request,
                **options.MAIL_CALL,
                summary="tell " + ", ".join(f"{n.audience} ({n.kind})" for n in request.notices)[:170],
            )
        except ActivityError as error:
            why = reason_of(error)[1]
            answer = TellAnswer(delivered={}, failed={}, refused={n.key: why for n in request.notices})
        self._busy_mailing = self._mail_lags = False
        self._set(mailing.apply_delivery(self._state, request.notices, answer, workflow.now()))

    # --- the end of a run ---------------------------------------------------------------------

    def _may_continue(self, now: datetime) -> bool:
        """Return whether no call is under way that the next run would repeat, or one has been so for too long."""
        busy = self._recording is not None or self._busy_mailing
        overdue = self._leaving_since is not None and now - self._leaving_since >= options.OVERDUE
        return (overdue or not busy) and workflow.all_handlers_finished()

    async def _settle(self) -> None:
        """Wait until everything is archived and every notice was delivered or tried for long enough."""
        await workflow.wait_condition(self._has_recorded_all)
        self._note_event()
        try:
            await workflow.wait_condition(lambda: not mailing.notices_in_hand(self._state), timeout=options.LAST_MAIL)
        except TimeoutError:
            workflow.logger.warning("ended with %d notices undelivered", len(mailing.notices_in_hand(self._state)))
        await workflow.wait_condition(self._has_recorded_all)

    def _has_recorded_all(self) -> bool:
        post = self._state.post
        return not post.outbox and post.noted is self._state.stage and self._recording is None
