"""Tickets inside a workflow: each is good once, and the ledger admits it before its command is obeyed.

Only a command that has a ticket (or a machine's warrant) goes this way, so older histories without tickets replay
unchanged. Continue-as-new carries used tickets for as long as they could be used again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

with workflow.unsafe.imports_passed_through():
    from activities.tickets.warrants import Warrants
    from models.access.tickets import LIFETIME, SKEW, nonce_of
    from models.access.warrants import AdmitRequest, Spent
    from models.base import Model
    from workflows.failures import to_application_error
    from workflows.options import ASKED_CALL

_KEPT = 2 * (LIFETIME + 2 * SKEW) + timedelta(minutes=1)
"""How long used tickets are remembered: longer than any clock accepts a ticket."""
_MOST = 1000


class TicketBook:
    """The tickets of one workflow. `of`: the kind of its commands. `subject`, `attempt`: as the ledger gets them."""

    def __init__(
        self, of: str, spent: Iterable[Spent], subject: Callable[[], str] = str, attempt: Callable[[], int] = int
    ) -> None:
        self._of = of
        self._spent = {one.nonce: one for one in spent}
        self._subject = subject
        self._attempt = attempt
        self._turn = asyncio.Lock()
        self.taken_back: deque[str] = deque(maxlen=100)
        """The ids of updates that their senders took back."""
        self._admitted: dict[str, bool | None] = {}
        """By nonce, whether roles allowed the command that is being obeyed."""

    def carry_over(self) -> tuple[Spent, ...]:
        """Return, for the next run, the used tickets that could still be used again."""
        now = workflow.now()
        return tuple(one for one in self._spent.values() if now - one.at < _KEPT)[-_MOST:]

    def check(self, message: Model) -> None:
        """Refuse a used nonce under another update's id: a replay. Errors: ApplicationError of type Refusal."""
        spent = self._spent.get(_nonce(message))
        if spent is not None and spent.update != update_id():
            raise ApplicationError(
                "the ticket has been used: give the command again", type="Refusal", non_retryable=True
            )

    def by_roles(self, message: Model) -> bool | None:
        """Return whether roles say who may give the command, in place of the policy's owners and authorities.

        None: there is no ticket. True before admission: the command is checked again after it.
        """
        nonce = _nonce(message)
        return self._admitted.get(nonce, True) if nonce else None

    async def admit_and_obey(
        self, command: str, message: Model, check: Callable[[], None], obey: Callable[[], Awaitable[object]]
    ) -> object:
        """Admit a command, check it again (the workflow may have moved on), and obey it: one at a time."""
        async with self._turn:
            self.check(message)
            await self._admit(command, message)
            check()
            return await obey()

    async def _admit(self, command: str, message: Model) -> None:
        nonce = _nonce(message)
        if nonce:
            self._spent[nonce] = Spent(nonce=nonce, update=update_id(), at=workflow.now())
            self._spent = {one.nonce: one for one in self.carry_over()}
        request = AdmitRequest(
            kind=self._of,
            command=command,
            update_id=update_id(),
            message=message.model_dump(mode="json", by_alias=True),
            subject=self._subject(),
            attempt=self._attempt(),
        )
        try:
            answer = await workflow.execute_activity_method(
                Warrants.admit, request, **ASKED_CALL, summary=f"admit {command} of {getattr(message, 'actor', '')}"
            )
        except ActivityError as error:
            raise to_application_error(error) from error
        self._admitted = {nonce: None if answer.roles is None else bool(answer.roles)}


def is_signed(message: Model) -> bool:
    """Return whether the message has a ticket, or comes from a machine that names a warrant."""
    return bool(getattr(message, "ticket", "") or getattr(message, "warrant", ""))


def _nonce(message: Model) -> str:
    return nonce_of(str(getattr(message, "ticket", "")))


def update_id() -> str:
    info = workflow.current_update_info()
    return "" if info is None else info.id
