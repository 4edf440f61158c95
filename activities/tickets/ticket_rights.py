"""Judges whether a ticket's command may be given, by the access file in force and the table of rights.

The front has judged it once, and is trusted for a person's identity alone: meanwhile a role may have been taken away,
and a thief of its key may have it say anything. Without an access file only the signature is checked. The ledger
answers what the table asks about a target, to front and workers alike: `fill_target`.

Source: docs/access.md, "The table of rights"; docs/adr/0060.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol

from activities.bad_rows import one_of
from activities.ports.access import AccessPort, AttributionPort, OpenOne
from activities.ports.clusters import HealthPort
from activities.ports.quota_systems import QuotaPort
from activities.ports.registry import RegistryPort
from activities.ports.warrants import LoneDeed
from activities.rollout.observation import as_it_stands
from models.access.access_file import AccessFile
from models.access.command_targets import asks_ledger, target_of
from models.access.decision import Permitted, Target, decide, require_permitted, who_could
from models.access.principals import Principal, Proof
from models.access.rights import RIGHTS, Case, Second
from models.access.second_persons import WAITS_BY_ITSELF, deed_of
from models.access.signing import PublicKey, verify_ticket
from models.access.ticket_checks import find_countersigned
from models.access.tickets import Ticket
from models.access.tokens import TokenScope
from models.access.warrants import Warrant, still_signed
from models.base import Model
from models.countersign_questions import chain_of
from models.errors import BackstopError, Refusal, Unavailable
from models.planning.backing import back
from models.requests.state import QuotaAsk
from models.rollout.stages import Stage

_OF_ALL = frozenset({"desk.archive", "desk.keep_waiting"})
"""Commands that need no role: a refused attempt is archived; a waiting command is judged by the command itself."""
_ROLLOUT, _BRINGUP, _REQUEST = "rollout/", "bringup/", "request/"


class AwaitedCommand(NamedTuple):
    """A command, where it is aimed, and what it is about."""

    command: str
    target: Target
    subject: str = ""


class SignedBook(Protocol):
    """The signed rows of the ledger: activities/tickets/warrants.py."""

    @property
    def keys(self) -> Mapping[str, PublicKey]: ...

    def live(self, subject: str, *commands: str) -> Warrant | None: ...

    def oldest(self, subject: str, command: str) -> Warrant | None: ...


@dataclass(eq=False)
class Admission:
    """Judges commands. `short`: whether a quota of a cluster lacks healthy GPUs now, as far as known."""

    access: AccessPort
    attribution: AttributionPort
    registry: RegistryPort
    short: Callable[[str], bool] = lambda _: False

    def judge(
        self,
        ticket: Ticket,
        command: str,
        message: Model,
        subject: str,
        now: datetime,
        signed: SignedBook,
        given: Model | None = None,
    ) -> Permitted | None:
        """Return the roles that permit it; None: no access file is in force. Errors: Refusal, which names who could.

        `subject`: the rollout, fleet rollout or request that it is about; empty: none. `given`: the signed message, if
        this message came inside of it.
        """
        in_force = None if command in _OF_ALL else self.access.access()
        if in_force is None:
            return None
        target = target_of(command, message, _cluster_of(ticket.workflow))
        target = self.fill_target(command, target, subject, signed)
        first = find_countersigned(ticket, signed.keys, now, given or message)
        giver, second = (ticket.principal, None) if first is None else (first.principal, ticket.principal)
        answer = require_permitted(
            decide(
                in_force.file,
                giver,
                command,
                target,
                emergency=ticket.emergency,
                reason=str(getattr(message, "reason", "") or ""),
                second=second,
                scope=self._scope(giver),
            )
        )
        if not answer.complete and command not in WAITS_BY_ITSELF:
            raise Refusal(answer.sentence)
        return answer

    def who_could(self, asked: Iterable[AwaitedCommand], signed: SignedBook) -> list[tuple[str, ...]]:
        """Return who may give each command by the access file in force; nobody without a file."""
        try:
            in_force = self.access.access()
        except BackstopError:
            in_force = None
        return [() if in_force is None else self._could(in_force.file, one, signed) for one in asked]

    def _could(self, file: AccessFile, asked: AwaitedCommand, signed: SignedBook) -> tuple[str, ...]:
        try:
            return who_could(file, asked.command, self.fill_target(asked.command, asked.target, asked.subject, signed))
        except Refusal:
            return ()

    def lone_deed(self, ticket: Ticket, command: str, message: Model, subject: str, signed: SignedBook) -> LoneDeed:
        """Describe a deed without a second person, as people are notified of it."""
        target = self.fill_target(command, target_of(command, message, _cluster_of(ticket.workflow)), subject, signed)
        return LoneDeed(deed_of(command, target), chain_of(command, target), str(getattr(message, "reason", "") or ""))

    @property
    def by_roles(self) -> bool:
        """True if an access file is in force: its roles decide, and not a policy's owners. Errors: Unavailable."""
        return self.access.access() is not None

    @property
    def two_persons(self) -> bool:
        """True if an access file is in force, and wants a second person where the table does. Errors: Unavailable."""
        in_force = self.access.access()
        return in_force is not None and in_force.file.two_person

    def _scope(self, principal: Principal) -> TokenScope | None:
        """Return the scope of the token that it came in with. Errors: Refusal for one that counts no more."""
        if principal.proof is not Proof.TOKEN:
            return None
        token = next((one for one in self.access.tokens() if principal.how == f"token {one.name}"), None)
        if token is None or token.owner != principal.name:
            raise Refusal(f"{principal.how} of {principal.name} is no longer valid: ask an admin for another token")
        return token.scope

    # --- what the ledger says of a target ---------------------------------------------------------

    def fill_target(self, command: str, target: Target, subject: str, signed: SignedBook) -> Target:
        """Add the target's authors and state, if the table asks for them. Errors: Refusal."""
        if not asks_ledger(command, target):
            return target
        match command.partition(".")[0]:
            case "request":
                return self._fill_request(target, subject.removeprefix(_REQUEST), signed)
            case "fleet":
                return self._fill_fleet(command, target, subject, signed)
            case "rollout":
                return self._fill_rollout(command, target, signed)
            case _:
                return target.but(first=self._enterer(target.cluster, signed))

    def _fill_request(self, target: Target, request: str, signed: SignedBook) -> Target:
        """Fill from the signed message, if it was asked with a ticket: the stored state is only a worker's word."""
        asked = signed.oldest(f"{_REQUEST}{request}", "request.ask")
        if asked is not None:
            ask = QuotaAsk.model_validate(asked.message)
            return target.but(cluster=ask.cluster, team=ask.team, first=giver_of(asked, signed.keys))
        state = self.registry.request(request)
        if state is None:
            raise Refusal(f"there is no request {request!r}: see `backstop request list`")
        return target.but(cluster=state.ask.cluster, team=state.ask.team, first=state.ask.actor)

    def _fill_fleet(self, command: str, target: Target, fleet: str, signed: SignedBook) -> Target:
        launches = command == "fleet.launch"
        # A new fleet rollout adopts the one before it, whichever it claims to adopt.
        about = self.attribution.newest_fleet(but=fleet) if launches or not fleet else fleet
        if Case.UNDO in target.cases:
            return target.but(breaker_open=bool(about) and self.attribution.is_breaker_open(about))
        first = self._fleet_launcher(about, signed) if about else ""
        return self._with_changers(command, target.but(first=first), "", signed)

    def _fill_rollout(self, command: str, target: Target, signed: SignedBook) -> Target:
        one = self.attribution.open_one(target.cluster)
        if command == "rollout.launch" and one is None:
            return target.but(cases=target.cases - {Case.ADOPT})  # nothing is there to adopt
        if command == "rollout.close" and one is not None and self._is_at_risk(target.cluster, one):
            target = target.but(cases=target.cases | {Case.AT_RISK})
        if one is None or not _asks_for(command, target, *_PERSONS):
            return target
        return self._with_changers(command, target.but(first=self._launcher(one, signed)), target.cluster, signed)

    def _with_changers(self, command: str, target: Target, cluster: str, signed: SignedBook) -> Target:
        if not _asks_for(command, target, Second.NOT_CHANGER):
            return target
        return target.but(changed=self.attribution.list_who_changed(cluster, proven=bool(signed.keys)))

    def _is_at_risk(self, cluster: str, one: OpenOne) -> bool:
        stage = one.stage
        return stage == Stage.STUCK or (stage in _STAGES and Stage(stage).is_guarded and self.short(cluster))

    def _launcher(self, one: OpenOne, signed: SignedBook) -> str:
        """Return who launched the rollout; for a fleet rollout's member, who launched that."""
        own = signed.live(one.rollout, "rollout.launch")
        if own is not None and not (own.inherits and one.fleet):
            return giver_of(own, signed.keys)
        if one.fleet:
            return self._fleet_launcher(one.fleet, signed) or self.attribution.read_launcher(one.rollout)
        return self.attribution.read_launcher(one.rollout)

    def _fleet_launcher(self, fleet: str, signed: SignedBook) -> str:
        launch = signed.live(fleet, "fleet.launch")
        return self.attribution.read_launcher(fleet) if launch is None else giver_of(launch, signed.keys)

    def _enterer(self, cluster: str, signed: SignedBook) -> str:
        added = signed.live(f"{_BRINGUP}{cluster}", "bringup.add")
        return self.attribution.read_who_entered(cluster) if added is None else giver_of(added, signed.keys)


_STAGES = frozenset(stage.value for stage in Stage)
_PERSONS = (Second.NOT_LAUNCHER, Second.NOT_CHANGER)


def short_by(quotas: QuotaPort, health: HealthPort, registry: RegistryPort) -> Callable[[str], bool]:
    """Return a function that says whether a quota lacks healthy GPUs now; True also if nobody can say."""

    def is_short(cluster: str) -> bool:
        try:
            sample = one_of(health.read([cluster]), cluster)
            reading, gpus_per_node = quotas.read(cluster), registry.facts(cluster).gpus_per_node
        except Unavailable:
            return True
        return sample is None or not back(as_it_stands(reading, gpus_per_node, sample)).is_backed

    return is_short


def giver_of(warrant: Warrant, keys: Mapping[str, PublicKey]) -> str:
    """Return who gave the command; the first person's name if it was countersigned. Errors: Refusal for a void one."""
    ticket = still_signed(warrant, keys)
    return (verify_ticket(ticket.second, keys) if ticket.second else ticket).principal.name


def note_of(ticket: Ticket, allowed: Permitted | None) -> str:
    """Return the audit's remark on an admitted command; empty: none."""
    alone = ticket.emergency if allowed is None else allowed.emergency
    row = RIGHTS.get(ticket.command)
    asked = row is not None and any(right.second is not Second.NONE for right in row.rights_under(frozenset()))
    off = asked and not ticket.two_person if allowed is None else allowed.one_person
    return "an emergency" if alone else "two persons are off" if off else ""


def _asks_for(command: str, target: Target, *seconds: Second) -> bool:
    return any(right.second in seconds for right in RIGHTS[command].rights_under(target.cases))


def _cluster_of(workflow: str) -> str:
    """Return the cluster in the workflow's id, for rollouts and bring-ups."""
    for kind in (_ROLLOUT, _BRINGUP):
        if workflow.startswith(kind):
            return workflow.removeprefix(kind)
    return ""
