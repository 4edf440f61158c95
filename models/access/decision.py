"""The decision whether somebody may give a command, and who else could: a pure function over the table of rights.

Three conditions must hold, and each refuses by itself: the asker is proven; a grant of the file gives a role that the
row names, where the command is aimed (and, for a token, within its scope); and the second person is somebody else. Two
names that are not known to be two humans count as one. Source: docs/access.md, "The table of rights".
"""

from __future__ import annotations

from dataclasses import dataclass

from models.access.access_file import SERVICE, USER, AccessFile, Grant
from models.access.principals import Principal, Proof
from models.access.rights import RIGHTS, Case, Right, Second, Where
from models.access.roles import Role, with_included
from models.access.tokens import TokenScope
from models.base import Model
from models.errors import Refusal
from models.texts import some_of

_NAMED = 5
_ASSERTED = (
    "has not logged in, and an access file is in force here: give the command through the front (docs/access.md)"
)
_NOBODYS = (
    "is a program's account, which may only read until the access file lists it under a service with an owner "
    "(docs/access.md)"
)
_DONE = {
    Second.NOT_LAUNCHER: "launched the rollout",
    Second.NOT_CHANGER: "launched the rollout",
    Second.NOT_ASKER: "made the request",
    Second.NOT_ENTERER: "entered the cluster",
}
_NOT_IN_PERSON = (Proof.TOKEN, Proof.SLACK)
"""Proofs with which nobody may countersign or act alone: one stolen secret could act as two persons."""
_CHANGED = "changed policy or quotas since the last approved plan"


class Target(Model):
    """The clusters and team that a command is aimed at, and who started what it changes. Names are those of the audit.

    `cluster` empty: all clusters, or none. `more`: the other clusters that it reaches.
    """

    cluster: str = ""
    team: str = ""
    more: tuple[str, ...] = ()
    first: str = ""
    """The person who launched the rollout, made the request or entered the cluster; empty: unknown."""
    changed: tuple[str, ...] = ()
    """People who changed policy or quotas since the last approved plan, if they had logged in."""
    cases: frozenset[Case] = frozenset()
    breaker_open: bool = False

    @property
    def clusters(self) -> tuple[str, ...]:
        return (self.cluster, *self.more)

    @property
    def place(self) -> str:
        team = f" for team {self.team}" if self.team else ""
        return f"{team} in {some_of(self.clusters, 3)}" if self.cluster else team


class Permitted(Model):
    """A permission with the `roles` used. Unless it is `complete`, a second person must countersign."""

    roles: tuple[Role, ...]
    awaits: Second = Second.NONE
    by: tuple[str, ...] = ()
    """People who could be the second person."""
    second: str = ""
    """The person who countersigned; empty: nobody."""
    emergency: bool = False
    """True: the giver acts alone where two persons are needed, and Backstop notifies all admins."""
    one_person: bool = False
    """True: the command takes a second person, but the access file has two_person off."""

    @property
    def complete(self) -> bool:
        return self.awaits is Second.NONE

    @property
    def sentence(self) -> str:
        """A sentence that says whom it waits for; empty: nobody."""
        return "" if self.complete else f"it has to be {self.awaits.value}, within 24 h{_names_text(self.by)}"


class Denied(Model):
    """A refusal. `reason`: one sentence, which names people who could."""

    reason: str
    could: tuple[str, ...] = ()


Decision = Permitted | Denied


def require_permitted(answer: Decision) -> Permitted:
    """Return the permission. Errors: Refusal with the sentence that names people who could."""
    if isinstance(answer, Denied):
        raise Refusal(answer.reason)
    return answer


def decide(
    access: AccessFile,
    principal: Principal,
    command: str,
    target: Target,
    *,
    emergency: bool = False,
    reason: str = "",
    second: Principal | None = None,
    scope: TokenScope | None = None,
) -> Decision:
    """Decide whether the principal may give the command. `second`: the countersigner. `scope`: its token's.

    Nobody may give a command that the table does not have.
    """
    row = RIGHTS.get(command)
    if row is None:
        return Denied(reason=f"nobody may give {command!r}: the table of rights has no such command (docs/access.md)")
    if not principal.is_proven:
        return Denied(reason=f"{principal.name} {_ASSERTED}")
    if principal.proof is Proof.TOKEN and scope is None:
        return Denied(reason=f"{principal.name} used a token whose scope is unknown: make a new token")
    if principal.is_program and not _is_service(principal.name) and Role.VIEWER not in row.roles:
        return Denied(reason=f"{principal.name} {_NOBODYS}")
    answers = list[Permitted]()
    for right in row.rights_under(target.cases):
        asked = _Asked(access, principal, command, right, target, scope)
        answer = asked.decide_as(emergency, reason, second)
        if isinstance(answer, Denied):
            return answer
        answers.append(answer)
    hardest = max(answers, key=lambda one: (not one.complete, one.emergency, one.one_person))
    return hardest.but(roles=tuple(dict.fromkeys(role for one in answers for role in one.roles)))


def decide_countersign(access: AccessFile, first: str, second: Principal, command: str, target: Target) -> Decision:
    """Decide whether this second person counts beside the giver, whose own right was judged before."""
    right = RIGHTS[command].rights_under(target.cases)[0]
    giver = Principal(name=first, proof=Proof.SERVICE)
    return _Asked(access, giver, command, right, target, None)._require_second(Permitted(roles=right.roles), second)


def who_countersigns(access: AccessFile, giver: Principal, command: str, target: Target) -> tuple[str, ...]:
    """Return the names in the file that may countersign this giver's command."""
    rows = [right for right in RIGHTS[command].rights_under(target.cases) if right.second.needs_countersign]
    return _names_able(access, _countersign_right(rows[0]), target.but(first=giver.name, changed=())) if rows else ()


def who_could(access: AccessFile, command: str, target: Target) -> tuple[str, ...]:
    """Return the names in the file that may give the command; services only where no second person is needed.

    The person known to have launched, asked for or entered it is left out where somebody else is needed.
    """
    row = RIGHTS.get(command)
    if row is None:
        return ()
    able = [_names_able(access, right, target) for right in row.rights_under(target.cases)]
    return tuple(name for name in able[0] if all(name in others for others in able[1:]))


def roles_for(access: AccessFile, principal: Principal, right: Right, target: Target) -> tuple[Role, ...]:
    """Return its roles that count for the row there, whoever else is needed; none: it may not."""
    return _Asked(access, principal, "", right, target, None)._roles(right.roles)


@dataclass(frozen=True)
class _Asked:
    """A row of the table, asked for one principal."""

    access: AccessFile
    principal: Principal
    command: str
    right: Right
    target: Target
    scope: TokenScope | None

    def decide_as(self, emergency: bool, reason: str, second: Principal | None) -> Decision:
        roles = self._roles(self.right.roles)
        if not roles:
            return self._deny_role()
        allowed, needed = Permitted(roles=roles), self.right.second
        if needed is Second.NONE or _is_spared(self.right, self.target):
            return allowed
        if not self.access.two_person:
            return allowed.but(one_person=True)
        answer = self._require_second(allowed, second) if needed.needs_countersign else self._require_other(allowed)
        settled = isinstance(answer, Permitted) and answer.complete
        return self._act_alone(allowed, reason) if emergency and not settled and needed is not Second.ADMIN else answer

    # --- roles --------------------------------------------------------------------------------------

    def _roles(self, wanted: tuple[Role, ...]) -> tuple[Role, ...]:
        """Return the wanted roles that it has where the command is aimed; none: it may not."""
        held = {
            role
            for g in self.access.grants_of(self.principal)
            if self._is_in_reach(g)
            for role in with_included(g.roles)
        }
        if self.scope is not None:
            within = Grant.model_construct(
                to=(), roles=self.scope.roles, clusters=self.scope.clusters, teams=self.scope.teams
            )
            open_to = self.scope.has_command(self.command) and self._is_in_reach(within)
            held &= with_included(self.scope.roles) if open_to else frozenset()
        if self.principal.proof is Proof.SLACK:
            held &= with_included(self.access.slack_roles)
        if _is_service(self.principal.name):
            held.discard(Role.APPROVER)
        return tuple(role for role in wanted if role in held)

    def _is_in_reach(self, grant: Grant) -> bool:
        return reaches(grant, self.right, self.target)

    def _deny_role(self) -> Denied:
        right, could = self.right, _names_able(self.access, self.right, self.target)
        roles, place = " or ".join(right.roles), self.target.place
        takes = f"this needs the role {roles}{_extent_text(right, self.target)}"
        if _is_service(self.principal.name) and right.roles == (Role.APPROVER,):
            takes = f"services never may: {takes}"
        elif self.scope is not None:
            takes = f"{takes}, and {self.principal.how} must have that role too"
        elif self.principal.proof is Proof.SLACK and not set(right.roles) & with_included(self.access.slack_roles):
            takes = f"{takes}, and the access file does not let people use it from Slack (slack_roles)"
        named = _names_text(could) or self._nobody_text()
        return Denied(reason=f"{self.principal.name} may not {right.to}{place}: {takes}{named}", could=could)

    def _nobody_text(self) -> str:
        """Say why nobody could give it, and the remedy: nobody has the role, or only those who must not use it here."""
        right = self.right
        holders = _names_able(self.access, right, self.target.but(first="", changed=()))
        if not holders:
            return " (nobody has it: ask an admin to grant it)"
        if right.second is Second.NOT_CHANGER and _names_able(self.access, right, self.target.but(first="")):
            return self._way_out()
        return f" (only people who {_DONE[right.second]} have this role: ask an admin to grant it to somebody else)"

    # --- second persons -----------------------------------------------------------------------------

    def _require_other(self, allowed: Permitted) -> Decision:
        """Permit if the asker is the second person; refuse if they are the first."""
        right, access = self.right, self.access
        done = _DONE[right.second]
        could = _names_able(access, right, self.target)
        another = f"another {right.roles[0]} has to {right.to}{_names_text(could) or self._way_out()}"
        if _is_service(self.principal.name):
            return Denied(reason=f"{self.principal.name} is a service: {another}", could=could)
        if not self.target.first:
            unknown = (
                f"the ledger does not say who {done} (nothing is open there, or it began without a login), "
                "so Backstop cannot tell that you are another person"
            )
            return Denied(reason=f"{self.principal.name} may not {right.to}{self.target.place}: {unknown}", could=could)
        changed = self.target.changed if right.second is Second.NOT_CHANGER else ()
        own = access.human_of(self.principal.name)
        for name, what in ((self.target.first, done), *((name, _CHANGED) for name in changed)):
            human = access.human_of(name)
            if not access.are_surely_two(own, human):
                return Denied(reason=f"{self._identity_text(name, human == own)} {what}: {another}", could=could)
        return allowed

    def _way_out(self) -> str:
        """Say how to go on if nobody has the role but those who launched or changed it."""
        target = self.target.but(first="")
        rest = _names_able(self.access, self.right, target) if self.right.second is Second.NOT_CHANGER else ()
        if not rest:
            return " (nobody else has the role)"
        return (
            " (nobody else may: abort the rollout and let another operator launch a new one; then "
            f"{some_of(rest, _NAMED)} can)"
        )

    def _identity_text(self, name: str, same: bool) -> str:
        if name == self.principal.name:
            return name
        if same:
            return f"{name} counts as the same person as {self.principal.name}, and"
        return f"{name}, who may be the same person as {self.principal.name} (see people in the access file),"

    def _require_second(self, allowed: Permitted, second: Principal | None) -> Decision:
        """Permit with a second person who counts, or as waiting for one."""
        needed, access = self.right.second, self.access
        by = _names_able(access, _countersign_right(self.right), self.target.but(first=self.principal.name, changed=()))
        if second is None:
            return allowed.but(awaits=needed, by=by)
        countersigner = _Asked(access, second, self.command, _countersign_right(self.right), self.target, None)
        if not second.is_proven or second.proof in _NOT_IN_PERSON:
            why = (
                f"{second.name} did not log in as a person (a token or Slack is not enough): "
                f"another {_second_role(needed)} has to countersign"
            )
        elif second.is_program or _is_service(second.name):
            kind = "a service" if _is_service(second.name) else "a program's account"
            why = (
                f"{second.name} is {kind}, and services never countersign: "
                f"another {_second_role(needed)} has to countersign"
            )
        elif not countersigner._roles((_second_role(needed),)):
            extent = _extent_text(countersigner.right, self.target)
            why = f"{second.name} may not countersign: this needs the role {_second_role(needed)}{extent}"
        elif not access.are_surely_two(access.human_of(self.principal.name), access.human_of(second.name)):
            who = second.name if second.name == self.principal.name else f"{second.name} may be the person who"
            why = f"{who} gave the command: another {_second_role(needed)} has to countersign"
        else:
            return allowed.but(second=second.name)
        return Denied(reason=f"{why}{_names_text(by)}", could=by)

    def _act_alone(self, allowed: Permitted, reason: str) -> Decision:
        """Permit an approver to act alone in an emergency, with a reason."""
        approvers = Right(self.right.to, (Role.APPROVER,), self.right.where)
        could = _names_able(self.access, approvers, self.target)
        in_person = not _is_service(self.principal.name) and self.principal.proof not in _NOT_IN_PERSON
        if not in_person or not self._roles((Role.APPROVER,)):
            text = (
                f"{self.principal.name} may not act alone: in an emergency only an approver who logged in as a person "
                f"may{_names_text(could)}"
            )
            return Denied(reason=text, could=could)
        if not reason.strip():
            return Denied(reason="an emergency needs a reason: say why it cannot wait for a second person", could=could)
        return allowed.but(emergency=True)


def reaches(grant: Grant, right: Right, target: Target) -> bool:
    """Return whether a role with these bounds counts for the row, where the command is aimed."""
    match right.where:
        case Where.ANY:
            return True
        case Where.FLEET:
            return grant.everywhere and grant.for_all_teams
        case Where.CLUSTER:
            return grant.for_all_teams and all(map(grant.is_in_cluster, target.clusters))
        case Where.TEAM:
            return grant.is_of_team(target.team) and all(map(grant.is_in_cluster, target.clusters))


def _extent_text(right: Right, target: Target) -> str:
    """Say what a role must cover to count for the row, as `reaches` judges it."""
    if right.where is Where.ANY:
        return ""
    if right.where is Where.FLEET or not target.place:
        return " for all clusters and teams"
    return " there" if target.cluster else " there in all clusters"


def _second_role(second: Second) -> Role:
    return Role.ADMIN if second is Second.ADMIN else Role.APPROVER


def _countersign_right(right: Right) -> Right:
    """Return the row for the countersigner, who must not be the first person."""
    return Right("countersign", (_second_role(right.second),), right.where, Second.NOT_LAUNCHER)


def _is_spared(right: Right, target: Target) -> bool:
    """Return whether an open breaker replaces the second person."""
    return right.second is Second.APPROVER_OR_BREAKER and target.breaker_open


def _is_service(name: str) -> bool:
    return name.startswith(SERVICE)


def _names_able(access: AccessFile, right: Right, target: Target) -> tuple[str, ...]:
    """Return the names in the file that may give it, in its order."""
    names = list[str]()
    wanted = {*right.roles}
    alone = right.second is Second.NONE or _is_spared(right, target) or not access.two_person
    person = not alone and not right.second.needs_countersign
    changed = target.changed if right.second is Second.NOT_CHANGER else ()
    barred = {access.human_of(name) for name in (target.first, *changed) if name} if person else set()
    for grant in access.grants:
        if wanted.isdisjoint(with_included(grant.roles)) or not reaches(grant, right, target):
            continue
        for name in grant.to:
            service = _is_service(name) and (person or wanted == {Role.APPROVER})
            own = access.human_of(name)
            one = name.startswith(USER) and any(not access.are_surely_two(own, other) for other in barred)
            names += [] if service or one else [name]
    return tuple(dict.fromkeys(names))


def _names_text(names: tuple[str, ...]) -> str:
    return f" ({some_of(names, _NAMED)})" if names else ""
