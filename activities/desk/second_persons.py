"""Second persons at the desk: commands that wait for one, and deeds without one in an emergency.

The front carries a command out, and asks here before and after: `turn` gives it to one second person alone. So a second
front, or the same one asked twice, does it once. The access file in force, and the ticket of the question, decide who
may be the second person.

Source: docs/access.md, "The table of rights"; docs/adr/0061-countersigning.md.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import copy_context

from activities.clock import Clock
from activities.ports.access import AccessPort, SecondPersonsPort
from activities.ports.bringup import BringupLedger
from activities.ports.desk import FleetFilePort
from models import countersign_questions as ask
from models.access.access_file import USER, AccessFile
from models.access.decision import Target, decide, decide_countersign, require_permitted, roles_for, who_countersigns
from models.access.principals import Principal, Proof, bare_name
from models.access.rights import RIGHTS
from models.access.second_persons import Awaited, Emergency, KeptCommand, TakenCommand, Waiting, deed_of
from models.audit_chain import Signature
from models.bringup.messages import BringupStart
from models.countersign_questions import Turn, chain_of
from models.errors import BackstopError, Refusal
from models.import_questions import TakeFleet
from models.notices import Notice, NoticeKind
from models.questions import DeskRequest
from models.temporal_names import TellRequest
from models.texts import some_of

logger = logging.getLogger("backstop.second_persons")
_MOMENT_SECONDS = 3.0
_UNCONFIGURED = (
    "no access is configured, so no command waits for a second person: import an access file first "
    "(`backstop access import FILE`)"
)


def _tell_nobody(_: TellRequest) -> None:
    """Notify nobody, if no worker does."""


def changes_of(fleet: FleetFilePort) -> Callable[[KeptCommand], tuple[str, ...]]:
    """Return a function that lists the changes that a waiting import would make now."""

    def changes(kept: KeptCommand) -> tuple[str, ...]:
        if kept.command != "desk.take_fleet":
            return ()
        question = TakeFleet.model_validate(DeskRequest.model_validate(kept.message).arguments)
        try:
            return fleet.would_change(question.import_id, question.parts, question.terms)
        except BackstopError as error:
            return (f"it is unknown what the command would change: {error.message}",)

    return changes


def refusals_of(bringups: BringupLedger, now: Clock) -> Callable[[KeptCommand], str]:
    """Return a function that explains why a command would be refused now, whoever countersigned it; empty: it may go.

    It looks at bring-ups. The front has asked Temporal, and an import has passed its checks before it waits.
    """

    def refusal(kept: KeptCommand) -> str:
        if kept.command != "bringup.add":
            return ""
        return bringups.why_not_open(BringupStart.model_validate(kept.message), now())

    return refusal


class SecondPersonsDesk:
    """Answers the questions of models/countersign_questions.py. `tell`: sends notices, to the log first."""

    def __init__(
        self,
        book: SecondPersonsPort,
        access: AccessPort,
        tell: Callable[[TellRequest], object] = _tell_nobody,
        leads_to: Callable[[KeptCommand], tuple[str, ...]] = lambda _: (),
        refusal_of: Callable[[KeptCommand], str] = lambda _: "",
        *,
        tickets_checked: bool = False,
    ) -> None:
        """`leads_to`: what a command would change, if its message does not say. `refusal_of`: why it is refused.

        `tickets_checked`: workers note each command that they take up.
        """
        self._leads_to, self._refusal_of, self._tickets_checked = leads_to, refusal_of, tickets_checked
        self._book = book
        self._access = access
        self._tell = tell
        self._postman = ThreadPoolExecutor(4, "emergency")

    # --- what waits -----------------------------------------------------------------------------

    def keep(self, question: ask.KeepWaiting, who: Principal, by: Signature) -> Waiting:
        """Keep a command.

        Errors: Refusal if it needs no second person, if the caller may not give it, or if it would be refused now.
        """
        file = self._file()
        row = RIGHTS.get(question.command)
        if row is None or not any(right.second.needs_countersign for right in row.rights_under(question.target.cases)):
            raise Refusal(f"{question.command} needs no second person: give it directly")
        # Only the front knows a token's scope: it has judged by it.
        giver = who.but(proof=Proof.SERVICE) if who.proof is Proof.TOKEN else who
        require_permitted(decide(file, giver, question.command, question.target))
        kept = KeptCommand(principal=who, at=by.at, **dict(question))
        if why := self._refusal_of(kept):
            raise Refusal(why)
        return self._describe(self._book.keep(kept, by), file)

    def list_waiting(self) -> tuple[Waiting, ...]:
        file = self._file_in_force()
        return tuple(self._describe(one, file).but(message={}) for one in self._book.list_awaited())

    def one(self, question: ask.WaitingOne) -> Waiting:
        waiting = self._book.awaited_one(question.hash)
        return self._describe(waiting, self._file_in_force()).but(
            changes=() if waiting.ended else self._leads_to(waiting.kept)
        )

    def turn(self, question: ask.TurnWaiting, who: Principal, by: Signature) -> TakenCommand:
        """Give the command to its second person. Errors: Refusal for any other, or if it waits no more."""
        file, digits = self._file(), question.hash
        if question.turn is Turn.TAKE:
            self._check_second(file, self._book.awaited_one(digits), who)
            waiting = self._book.take(digits, by)
        elif question.turn is Turn.DONE:
            waiting = self._book.mark_given(digits, by)
        else:
            waiting = self._book.let_go(digits, by)
        kept = waiting.kept
        return TakenCommand(
            waiting=self._describe(waiting, file), command=kept.command, message=kept.message, ticket=kept.ticket
        )

    def withdraw(self, question: ask.WithdrawWaiting, who: Principal, by: Signature) -> Waiting:
        """End the wait. Errors: Refusal unless the caller gave the command."""
        waiting = self._book.awaited_one(question.hash)
        giver = waiting.kept.principal
        if giver.name != who.name and (not who.human or giver.human != who.human):
            raise Refusal(
                f"only {giver.name}, who gave the command, may withdraw it; if nobody countersigns it, it "
                "expires after a day"
            )
        return self._describe(self._book.withdraw(question.hash, by), None)

    def _check_second(self, file: AccessFile, waiting: Awaited, who: Principal) -> None:
        """Check that `who` may countersign, and that the giver may still give it. Errors: Refusal."""
        if why := waiting.why_not(self._book.now()):
            raise Refusal(why)
        kept = waiting.kept
        require_permitted(decide_countersign(file, kept.principal.name, who, kept.command, kept.target))
        for right in RIGHTS[kept.command].rights_under(kept.target.cases):
            if not roles_for(file, kept.principal, right, kept.target):
                raise Refusal(f"the access file in force now does not let {kept.principal.name} {waiting.deed_text}")

    def _describe(self, waiting: Awaited, file: AccessFile | None) -> Waiting:
        """Describe a waiting command. `file`: names who could countersign; None: leave that out."""
        kept = waiting.kept
        could = () if file is None else who_countersigns(file, kept.principal, kept.command, kept.target)
        return Waiting(
            hash=kept.hash,
            command=kept.command,
            what=waiting.deed_text,
            cluster=kept.target.cluster,
            by=kept.principal.name,
            reason=kept.reason,
            at=kept.at,
            until=waiting.until,
            could=could,
            message={name: value for name, value in kept.message.items() if name != "ticket"},
            second=waiting.second,
            ended=waiting.ended,
        )

    # --- alone ----------------------------------------------------------------------------------

    def notify_emergency(self, question: ask.TellEmergency, who: Principal, by: Signature) -> Emergency:
        """Notify all admins before it is done, or note that it was refused. Errors: Refusal if the caller may not."""
        file = self._file()
        require_permitted(decide(file, who, question.command, question.target, emergency=True, reason=question.reason))
        chain = chain_of(question.command, question.target)
        if question.refused and self._tickets_checked:
            return self._book.mark_refused(question.refused, chain, by)
        if question.refused:
            raise Refusal(
                "without signing keys Backstop cannot tell whether a worker accepted the command, so an admin has to "
                "review the emergency"
            )
        emergency = self._book.record_emergency(question.command, deed_of(question.command, question.target), chain, by)
        self._tell_admins(emergency, file, chain)
        return emergency

    def notify_admitted(self, nonce: str, chain: str) -> None:
        """Notify all admins of a warrant's deed without a second person, if no front has."""
        emergency, file = self._book.find_admitted_alone(nonce), self._file_in_force()
        if emergency is not None and file is not None:
            self._tell_admins(emergency, file, chain)

    def _tell_admins(self, emergency: Emergency, file: AccessFile, chain: str) -> None:
        notices = [_notice(emergency, admin, chain) for admin in file.admins]
        self._send(TellRequest(cluster=chain, notices=tuple(notices)))

    def _send(self, request: TellRequest) -> None:
        """Send the notices, without making the person in an emergency wait for slow receivers."""
        wait([self._postman.submit(copy_context().run, self._post, request)], timeout=_MOMENT_SECONDS)

    def _post(self, request: TellRequest) -> None:
        try:
            self._tell(request)
        except Exception:
            logger.exception("could not send notices of an emergency; the archive and the weekly report have it")

    def emergencies(self) -> tuple[Emergency, ...]:
        """Return those that nobody else has reviewed."""
        return tuple(self._book.emergencies())

    def record_review(self, question: ask.SeenEmergency, who: Principal, by: Signature) -> Emergency:
        """Record a review. Errors: Refusal unless the caller is an admin other than the person who acted."""
        file, emergency = self._file(), self._book.emergency(question.number)
        if emergency is None:
            raise Refusal(
                f"there is no emergency {question.number}: `backstop report --weekly` lists those that nobody has "
                "reviewed yet"
            )
        if emergency.is_refused:
            raise Refusal(f"emergency {question.number} needs no review: its command was refused, so nothing was done")
        if not question.reason.strip():
            raise Refusal("say what you found in the review: --reason")
        require_permitted(decide(file, who, "desk.seen_emergency", Target()))
        own, other = file.human_of(who.name), file.human_of(emergency.by)
        if not file.are_surely_two(own, other):
            others = [name for name in file.admins if file.are_surely_two(file.human_of(name), other)]
            named = f" ({some_of(others)})" if others else ""
            raise Refusal(f"{emergency.by} acted alone in this emergency, so another admin must review it{named}")
        return self._book.mark_seen(question.number, by)

    def _file(self) -> AccessFile:
        file = self._file_in_force()
        if file is None:
            raise Refusal(_UNCONFIGURED)
        return file

    def _file_in_force(self) -> AccessFile | None:
        standing = self._access.access()
        return None if standing is None else standing.file


def _notice(emergency: Emergency, admin: str, chain: str) -> Notice:
    """Make the notice to one admin, by the name that the fleet file has contacts for, as a rollout's owner is."""
    return Notice(
        key=f"emergency/{emergency.number}/{admin.removeprefix(USER)}"[:300],
        kind=NoticeKind.EMERGENCY,
        cluster=chain,
        audience=bare_name(admin),
        owner=emergency.by,
        detail=emergency.sentence,
        facts={
            "commands": [
                {
                    "line": f"backstop audit {shlex.quote(chain)} --archive",
                    "does": "shows whether Backstop carried the command out or refused it",
                },
                {
                    "line": f'backstop access seen {emergency.number} --reason "..."',
                    "does": "confirms that you have reviewed it, as an admin other than the person who acted alone",
                },
            ]
        },
    )
