"""Tickets on the workers' side of Temporal: checked in a start's first activity, and admitted into the ledger.

An admitted ticket is a warrant: later effects are justified by it (activities/rollout/evidence.py). Without keys every
call is permitted, and nothing is kept. With keys a ticket, if there is one, is checked and admitted; it is required
once an access file is in force. Source: docs/security.md, "Tickets"; docs/adr/0057.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from temporalio import activity

from activities.clock import Clock, utc_now
from activities.desk.access import assert_caller
from activities.desk.speaker import speak_as
from activities.failures import translate_errors
from activities.fleet.member_warrants import ends_member, inherited_nonce, member_launched
from activities.ports.registry import OpenRollout, RegistryPort
from activities.ports.warrants import Drawn, LoneDeed, WarrantPort
from activities.tickets.ticket_rights import Admission, AwaitedCommand, note_of
from models.access.decision import Permitted, Target
from models.access.principals import Principal
from models.access.rights import READS_DESK
from models.access.signing import PublicKey
from models.access.signing import verify_ticket as signed_by
from models.access.ticket_checks import NO_TICKET, check_ticket
from models.access.tickets import ADMITTED_WITHIN, SKEW, Ticket, arguments_hash, nonce_of
from models.access.warrants import AdmitAnswer, AdmitRequest, Warrant, service, still_signed
from models.base import Model
from models.bringup.commands import BringupOrder
from models.bringup.entry import BringupEntry
from models.bringup.messages import BringupStart
from models.cluster.policy import Policy
from models.errors import Refusal
from models.fleet.commands import FleetCommandRequest
from models.fleet.messages import FleetLaunch
from models.hashes import content_hash
from models.planning.plan import Envelope, Plan, envelope_of
from models.questions import QUESTIONS, DeskRequest
from models.requests.commands import RequestOrder
from models.requests.state import QuotaAsk
from models.rollout.commands import CommandRequest
from models.rollout.messages import LaunchRequest
from models.temporal_names import retires_cluster

KeysOf = Callable[[], Mapping[str, PublicKey]]
_MESSAGES: Mapping[str, type[Model]] = {
    "rollout": CommandRequest,
    "fleet": FleetCommandRequest,
    "request": RequestOrder,
    "bringup": BringupOrder,
    "rollout.launch": LaunchRequest,
    "fleet.launch": FleetLaunch,
    "request.ask": QuotaAsk,
    "bringup.add": BringupStart,
    "desk": DeskRequest,
}
UNDO_WORDS = frozenset({"rollout.abort", "rollout.rollback"})
_VOIDS: Mapping[str, frozenset[str]] = {
    "rollout.approve": UNDO_WORDS | {"rollout.approve"},
    "rollout.abort": frozenset({"rollout.approve"}),
    "rollout.rollback": frozenset({"rollout.approve"}),
    "rollout.close": frozenset({"rollout.approve"}),
    "fleet.approve": frozenset({"fleet.approve"}),
    "fleet.abort": frozenset({"fleet.approve"}),
    "bringup.add": frozenset({"bringup.add", "bringup.retire", "bringup.cancel"}),
    "bringup.cancel": frozenset({"bringup.add"}),
    "bringup.retire": frozenset({"bringup.add"}),
}
"""The earlier commands on the same subject that a command voids, before anything else is written."""
_MACHINES: Mapping[str, frozenset[str]] = {
    "rollout.abort": frozenset({"fleet.abort", "bringup.retire"}),
    "rollout.approve": frozenset({"bringup.retire"}),
    "rollout.close": frozenset({"bringup.retire"}),
}
"""The commands that a machine may give to a rollout, each with the person's commands that justify it."""


def here() -> str:
    """Return the id of the workflow that calls, as the server says."""
    return str(activity.info().workflow_id)


class Warrants:
    """Checks and admits tickets. `keys`: None if there are none. `wanted`: whether every command needs a ticket now.

    `admission`: None: only the signature is checked.
    """

    def __init__(
        self,
        keys: KeysOf | None,
        book: WarrantPort,
        registry: RegistryPort,
        now: Clock = utc_now,
        wanted: Callable[[], bool] = lambda: True,
        admission: Admission | None = None,
    ) -> None:
        self._keys = keys
        self._wanted = wanted
        self.book = book
        self._registry = registry
        self.now = now
        self._admission = admission
        self.tell_alone: Callable[[str, str], None] = lambda nonce, chain: None
        """Notifies all admins that a command was given without its second person; replaced once a notifier exists."""

    @property
    def can_verify(self) -> bool:
        """True if tickets can be checked here: there are keys."""
        return self._keys is not None

    @property
    def is_required(self) -> bool:
        """True if nothing is done without a ticket. Errors: Unavailable."""
        return self.can_verify and self._wanted()

    @property
    def by_roles(self) -> bool:
        """True if the access file's roles decide, and not a policy's owners. Errors: Unavailable."""
        return self.is_required and self._admission is not None and self._admission.by_roles

    def judges(self, message: Model) -> bool:
        """Return whether the message's ticket is to be checked: it has one, or needs one."""
        return self.can_verify and (bool(getattr(message, "ticket", "")) or self.is_required)

    @property
    def keys(self) -> Mapping[str, PublicKey]:
        return {} if self._keys is None else self._keys()

    def unknown_keys(self) -> tuple[str, ...]:
        """Return keys that live warrants were signed with, and that the book lacks: those warrants justify nothing."""
        return tuple(sorted(self.book.list_signing_keys() - self.keys.keys())) if self.can_verify else ()

    # --- what starts ----------------------------------------------------------------------------

    def admit_launch(self, launch: LaunchRequest, policy: Policy) -> AdmitAnswer | None:
        """Admit a rollout's launch, by its ticket, or by its fleet's approval; return the warrant. Errors: Refusal."""
        if not self.can_verify:
            return None
        content = {"policy": policy.model_dump(mode="json")}
        if launch.ticket:
            return self._answer(self._admit_start(launch, "rollout.launch", launch.rollout, content))
        try:
            return self._admit_machine_launch(launch, content)
        except Refusal:
            if self.is_required:
                raise
            return None

    def _admit_machine_launch(self, launch: LaunchRequest, content: dict[str, Any]) -> AdmitAnswer:
        """Admit a launch by the command that was given to a fleet rollout or a bring-up. Errors: Refusal."""
        command = "fleet.approve" if launch.fleet else "bringup.retire"
        parent = self.live(launch.fleet or f"bringup/{launch.cluster}", command)
        if parent is None:
            raise Refusal(NO_TICKET)
        if not launch.fleet and not launch.rollout.startswith(retires_cluster(launch.cluster)):
            raise Refusal(f"rollout {launch.rollout} is not the rollout that retires {launch.cluster}")
        begun = member_launched(launch, parent, self, self._registry) if launch.fleet else parent
        self._inherit(parent, "rollout.launch", launch.rollout, launch, content)
        if launch.fleet and launch.cluster in parent.content.get("envelopes", ()):
            envelope = {"envelope": parent.content["envelopes"][launch.cluster]}
            self._inherit(parent, "rollout.approve", launch.rollout, launch, envelope)
        return self._answer(begun if begun.principal.name == launch.actor else parent)

    def fleet(self, launch: FleetLaunch) -> None:
        if self.judges(launch):
            self._admit_start(launch, "fleet.launch", launch.fleet, {})

    def admit_request(self, ask: QuotaAsk) -> None:
        if self.judges(ask):
            self._admit_start(ask, "request.ask", f"request/{ask.request}", {})

    def bringup(self, start: BringupStart) -> None:
        if self.judges(start):
            self._admit_start(start, "bringup.add", f"bringup/{start.entry.cluster}", {})

    def admit_entry(self, entry: BringupEntry) -> None:
        """Raise Refusal for an entry other than the one with a valid ticket."""
        if not self.is_required:
            return
        added = self.live(f"bringup/{entry.cluster}", "bringup.add")
        if added is None or BringupStart.model_validate(added.message).entry != entry:
            raise Refusal(
                f"the bring-up entry of {entry.cluster} is not the one that was signed when it was added: "
                "cancel this bring-up, and add the entry again"
            )

    def desk(self, request: DeskRequest) -> Principal:
        """Return who asks: proven by the ticket, or as the caller says. Errors: Refusal."""
        if not self.judges(request):
            return assert_caller(request.actor)
        command, workflow = f"desk.{request.kind}", here()
        run = str(activity.info().workflow_run_id)
        if request.kind in READS_DESK:
            return check_ticket(request, command, workflow, self.keys, self.now()).principal
        ticket = self._check_in_time(request, command, workflow, run)
        question = QUESTIONS[request.kind].model_validate(request.arguments)
        allowed = self._permission(ticket, command, question, "", run, request)
        alone = self._lone_deed(allowed, ticket, command, question, "")
        self._store(self._warrant(ticket, request.but(arguments={}, payload=""), workflow, run), alone)
        return ticket.principal

    def first_of(self, request: DeskRequest) -> str:
        """Return who gave the command that the caller countersigns; empty: the caller. Its ticket is checked."""
        ticket = signed_by(request.ticket, self.keys) if self.judges(request) else None
        return signed_by(ticket.second, self.keys).principal.name if ticket is not None and ticket.second else ""

    def _admit_start(self, message: Model, command: str, subject: str, content: dict[str, Any]) -> Warrant:
        run = str(activity.info().workflow_run_id)
        ticket = self._check_in_time(message, command, here(), run)
        allowed = self._permission(ticket, command, message, subject, run)
        content = _with_note(content, note_of(ticket, allowed))
        alone = self._lone_deed(allowed, ticket, command, message, subject)
        return self._store(self._warrant(ticket, message, subject, run, content), alone)

    def _check_in_time(self, message: Model, command: str, workflow: str, run: str) -> Ticket:
        """Check the ticket. A repeated call after the ticket has expired is valid if the first was admitted in time."""
        stood = self.book.warrant(nonce_of(str(getattr(message, "ticket", ""))))
        again = stood is not None and stood.update_id == run
        return check_ticket(message, command, workflow, self.keys, None if again else self.now())

    # --- commands -------------------------------------------------------------------------------

    @activity.defn(name="admit", no_thread_cancel_exception=True)
    def admit(self, request: AdmitRequest) -> AdmitAnswer:
        """Admit the command into the ledger as its giver's. Errors: Refusal."""
        with translate_errors():
            if not self.can_verify:
                return AdmitAnswer()
            command, workflow = f"{request.kind}.{request.command}", here()
            message = _MESSAGES[request.kind].model_validate(request.message)
            signed = str(getattr(message, "ticket", ""))
            if not signed and str(getattr(message, "warrant", "")):
                return self._admit_machine(request, command, workflow, message)
            if not self.judges(message):
                return AdmitAnswer()
            ticket = check_ticket(message, command, workflow, self.keys)
            self._check_age(ticket)
            subject, since = self._subject_of(request, workflow)
            if since is not None and ticket.iat < (since - SKEW).timestamp():
                raise Refusal(f"the ticket is older than this {request.kind}: give the command again")
            allowed = self._permission(ticket, command, message, subject, request.update_id)
            content = _with_note(self._content_or_none(command, subject, message), note_of(ticket, allowed))
            warrant = self._warrant(ticket, message, subject, request.update_id, content, request.attempt)
            roles = () if allowed is None else allowed.roles
            alone = self._lone_deed(allowed, ticket, command, message, subject)
            return self._answer(self._store(warrant, alone)).but(roles=roles)

    def _answer(self, warrant: Warrant) -> AdmitAnswer:
        by, note = warrant.principal, str(warrant.content.get("note", ""))
        return AdmitAnswer(warrant=warrant.nonce, note=note, proof=by.proof, how=by.how)

    def _content_or_none(self, command: str, subject: str, message: Model) -> dict[str, Any]:
        """Return no content for a plan from before there were keys, while tickets are not required."""
        try:
            return self._content(command, subject, message)
        except Refusal:
            if self.is_required:
                raise
            return {}

    def _permission(
        self, ticket: Ticket, command: str, message: Model, subject: str, update_id: str, given: Model | None = None
    ) -> Permitted | None:
        """Return the roles that permit it; None: no access file is in force. Errors: Refusal.

        A command that was admitted, and is tried again as its answer was lost, stays permitted, whatever has changed
        since.
        """
        if self._admission is None:
            return None
        try:
            return self._admission.judge(ticket, command, message, subject, self.now(), self, given)
        except Refusal:
            stood = self.book.warrant(ticket.nonce)
            if stood is None or (stood.update_id, stood.command) != (update_id, command) or not self.is_good(stood):
                raise
            return Permitted(roles=())

    def _lone_deed(
        self, allowed: Permitted | None, ticket: Ticket, command: str, message: Model, subject: str
    ) -> LoneDeed | None:
        if self._admission is None or allowed is None or not allowed.emergency:
            return None
        return self._admission.lone_deed(ticket, command, message, subject, self)

    def _store(self, warrant: Warrant, alone: LoneDeed | None = None) -> Warrant:
        """Admit it, and notify admins if somebody acts alone. Errors: Refusal if its key counts no more."""
        still_signed(warrant, self.keys)
        with speak_as(warrant.principal):
            stands = self.book.admit(warrant, _VOIDS.get(warrant.command, frozenset()), alone)
        if alone is not None:
            self.tell_alone(stands.nonce, alone.chain)
        return stands

    def fill_target(self, command: str, target: Target, subject: str) -> Target:
        """Complete a command's target from the ledger: the front asks as admission does."""
        if self._admission is None:
            raise Refusal("this worker cannot check access: start workers with `backstop worker`")
        return self._admission.fill_target(command, target, subject, self)

    def who_could(self, asked: Sequence[AwaitedCommand]) -> list[tuple[str, ...]]:
        """Return who may give each command by the access file in force; nobody without a file."""
        return [()] * len(asked) if self._admission is None else self._admission.who_could(asked, self)

    def _check_age(self, ticket: Ticket) -> None:
        age = self.now().timestamp() - ticket.iat
        if age > ADMITTED_WITHIN.total_seconds():
            raise Refusal("the ticket is more than a day old: give the command again")
        if age < -SKEW.total_seconds():
            raise Refusal("the ticket is dated in the future: check the clocks of the front and of this worker")

    def _subject_of(self, request: AdmitRequest, workflow: str) -> tuple[str, datetime | None]:
        """Return the command's subject, and since when that exists, by the ledger."""
        if request.kind == "rollout":
            opened = self._open_rollout(workflow)
            return opened.rollout, opened.opened_at
        subject = request.subject if request.kind == "fleet" else workflow
        begun = {"fleet": "fleet.launch", "request": "request.ask", "bringup": "bringup.add"}[request.kind]
        first = self.live(subject, begun)
        if first is None:
            return subject, None
        return subject, datetime.fromtimestamp(still_signed(first, self.keys).iat, tz=UTC)

    def _open_rollout(self, workflow: str) -> OpenRollout:
        opened = self._registry.open_rollout_of(workflow.removeprefix("rollout/"))
        if opened is None:
            raise Refusal(f"the ledger has no open rollout of {workflow.removeprefix('rollout/')}")
        return opened

    def _content(self, command: str, subject: str, message: Model) -> dict[str, Any]:
        """Return the content frozen with the warrant. Errors: Refusal for a plan that not exactly one activity drew."""
        if command not in ("rollout.approve", "fleet.approve"):
            return {}
        wanted = str(getattr(message, "plan_hash", ""))
        kind = "plan" if command == "rollout.approve" else "fleet"
        drawn = self.book.drawn_plans(subject, kind, wanted)
        plans = {one.sha256: one for one in drawn}
        if len(plans) != 1:
            why = "was not made by a worker" if not plans else "names two different plans"
            raise Refusal(f"plan {wanted or '(none given)'} {why}: look at the current plan and approve that")
        one = drawn[0]
        if kind == "fleet":
            return {**one.content, "sha256": one.sha256}
        plan = Plan.model_validate(one.content["plan"])
        if plan.hash != wanted or plan.fault:
            raise Refusal(f"plan {wanted} cannot be approved: {plan.fault or f'its contents have hash {plan.hash}'}")
        envelope = envelope_of(plan).model_dump(mode="json")
        return {"envelope": envelope, "generation": plan.generation, "sha256": one.sha256}

    # --- machines -------------------------------------------------------------------------------

    def _admit_machine(self, request: AdmitRequest, command: str, workflow: str, message: Model) -> AdmitAnswer:
        """Admit a fleet rollout's or a bring-up's command to a rollout, by a person's command to it."""
        if request.kind != "rollout":
            raise Refusal("only a rollout takes commands from a fleet rollout or a bring-up")
        opened = self._open_rollout(workflow)
        parent = self.book.warrant(str(getattr(message, "warrant", "")))
        allowed = _MACHINES.get(command, frozenset())
        theirs = (opened.fleet, f"bringup/{opened.cluster}")
        if parent is None or not parent.live or parent.command not in allowed or parent.subject not in theirs:
            raise Refusal(f"no person's command allows this: {request.command} needs a ticket of its own")
        self.intact(parent)
        older = command == "rollout.approve" or parent.admitted_at < opened.opened_at
        if (
            parent.command == "bringup.retire"
            and older
            and not opened.rollout.startswith(retires_cluster(opened.cluster))
        ):
            raise Refusal(f"rollout {opened.rollout} is not the rollout that retires {opened.cluster}")
        if parent.command == "fleet.abort" and not ends_member(parent, opened.rollout, self.book):
            raise Refusal(
                "the fleet abort does not end this rollout: it has changed quotas, or somebody has adopted it"
            )
        content = self._content(command, opened.rollout, message)
        self._inherit(parent, command, opened.rollout, message, content)
        return self._answer(parent)

    def _inherit(self, parent: Warrant, command: str, subject: str, message: Model, content: dict[str, Any]) -> None:
        """Store a row that says by which command a machine acts."""
        row = parent.but(
            nonce=inherited_nonce(parent, command, subject),
            command=command,
            subject=subject,
            update_id="",
            plan_hash=str(getattr(message, "plan_hash", "")),
            content=content,
            content_sha256=str(content.get("sha256", "")),
            generation=int(content.get("generation", 0)),
            principal=service(),
            inherits=parent.nonce,
            admitted_at=self.now(),
        )
        self.book.admit(row, _VOIDS.get(command, frozenset()))

    def word(self, subject: str, command: str) -> str:
        """Return the nonce by which a machine acts; empty if none is needed. Errors: Refusal for none."""
        if not self.can_verify:
            return ""
        warrant = self.live(subject, command)
        if warrant is None and not self.is_required:
            return ""
        if warrant is None:
            raise Refusal(f"the ledger has no valid warrant of {command} for {subject}: give the command again")
        return warrant.nonce

    # --- what stands ----------------------------------------------------------------------------

    def live(self, subject: str, *commands: str) -> Warrant | None:
        """Return the newest for any of these commands that is not void, its signature and message checked again."""
        return self.live_among(self.book.warrants(subject, *commands), *commands)

    def live_among(self, rows: Sequence[Warrant], *commands: str) -> Warrant | None:
        """Do `live` for rows that are read already, in the order in which they were admitted."""
        for warrant in reversed(rows):
            if warrant.live and warrant.command in commands and self.is_good(warrant):
                return warrant
        return None

    def oldest(self, subject: str, command: str) -> Warrant | None:
        """Return the oldest that is not void: nobody replaces it by giving the command again."""
        rows = self.book.warrants(subject, command)
        return next((one for one in rows if one.live and self.is_good(one)), None)

    def is_good(self, warrant: Warrant) -> bool:
        try:
            self.intact(warrant)
        except Refusal:
            return False
        return True

    def intact(self, warrant: Warrant) -> None:
        """Check that it is what was signed, by a key that is still valid. Errors: Refusal."""
        ticket = still_signed(warrant, self.keys)
        if warrant.inherits:
            parent = self.book.warrant(warrant.inherits)
            if parent is None:
                raise Refusal(
                    f"the warrant {warrant.nonce} depends on an earlier warrant that is not in the ledger, so Backstop "
                    "may write nothing under it"
                )
            self.intact(parent)
            return
        kind = ticket.command if ticket.command in _MESSAGES else ticket.command.partition(".")[0]
        if kind != "desk" and arguments_hash(_MESSAGES[kind].model_validate(warrant.message)) != ticket.args:
            raise Refusal(f"the warrant {warrant.nonce} for {warrant.command} differs from the command that was signed")

    def record_draw(self, subject: str, drawn: Drawn) -> None:
        if self.can_verify:
            self.book.draw(subject, drawn, self.now())

    def policy_of(self, rollout: str) -> Policy | None:
        """Return the policy that the rollout was opened with; None if no warrant of its launch is valid."""
        launch = self.live(rollout, "rollout.launch")
        return None if launch is None else Policy.model_validate(launch.content["policy"])

    def same_policy(self, rollout: str, policy: Policy) -> None:
        """Raise Refusal for a policy other than that of the launch."""
        if self.is_required:
            own = self.policy_of(rollout)
            if own is None or content_hash(own) != content_hash(policy):
                raise Refusal(
                    f"the policy of rollout {rollout} is not the one that its launch was signed "
                    "with: Backstop writes nothing"
                )

    def envelope_of(self, approval: Warrant) -> Envelope:
        """Return the approved envelope. Errors: Refusal if it is not that of the signed plan."""
        envelope = Envelope.model_validate(approval.content["envelope"])
        signed = str(approval.message.get("plan_hash", ""))
        if not approval.inherits and envelope.plan_hash != signed:
            raise Refusal(f"the warrant {approval.nonce} is for a plan other than the one that was signed")
        return envelope

    def _warrant(
        self,
        ticket: Ticket,
        message: Model,
        subject: str,
        update_id: str,
        content: dict[str, Any] | None = None,
        attempt: int = 0,
    ) -> Warrant:
        content = content or {}
        return Warrant(
            nonce=ticket.nonce,
            command=ticket.command,
            workflow=ticket.workflow,
            subject=subject,
            update_id=update_id,
            attempt=attempt,
            plan_hash=str(getattr(message, "plan_hash", "")),
            policy_hash=content_hash(Policy.model_validate(content["policy"])) if "policy" in content else "",
            generation=int(content.get("generation", 0)),
            principal=ticket.principal,
            ticket=str(getattr(message, "ticket", "")),
            message=message.but(ticket="").model_dump(mode="json", by_alias=True),
            content=content,
            content_sha256=str(content.get("sha256", "")),
            admitted_at=self.now(),
        )


def _with_note(content: dict[str, Any], note: str) -> dict[str, Any]:
    """Add the audit's remark to the content that is frozen with a warrant."""
    return {**content, "note": note} if note else content


def plan_drawn(plan: Plan, baseline: Model, *, fresh: bool) -> Drawn:
    content = {"plan": plan.model_dump(mode="json"), "baseline": baseline.model_dump(mode="json"), "fresh": fresh}
    return Drawn("plan", plan.hash, content)
