"""The access file: which roles people and services have where, and which identities belong to one human.

A name in it is `user:NAME`, `service:NAME` or, to give roles to, `group:NAME`. A user of this machine whom no person of
the file claims is `user:NAME` by that name; where a person has the name already, `machine:NAME`. An identity at a
provider that nobody claims is `oidc:SUBJECT@ISSUER`, and a user of Slack `slack:USER@WORKSPACE`, who may do nothing.
Source: docs/access.md, "The words" and "The table of rights".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Annotated, Self

from pydantic import AfterValidator, ConfigDict, Field, StrictBool, model_validator

from models.access.principals import Principal, Proof
from models.access.roles import Role
from models.base import ActorGiven, Documented, Name, Words, fault_at, find_repeated
from models.hashes import content_hash, hash_of
from models.texts import brief

ANYTHING = "*"


def matches(pattern: str, name: str) -> bool:
    """Return whether the name matches: `*` matches any characters, `?` one, anything else itself.

    It takes time of at most the product of the lengths: people write patterns.
    """
    at, star, mark, n = 0, -1, 0, 0
    while n < len(name):
        if at < len(pattern) and pattern[at] == "*":
            star, mark, at = at, n, at + 1
        elif at < len(pattern) and pattern[at] in ("?", name[n]):
            at, n = at + 1, n + 1
        elif star >= 0:
            at, mark, n = star + 1, mark + 1, mark + 1
        else:
            return False
    return not pattern[at:].strip("*")


def any_matches(patterns: Iterable[str], name: str) -> bool:
    return any(matches(pattern, name) for pattern in patterns)


USER, GROUP, SERVICE, MACHINE, PROVIDER = "user:", "group:", "service:", "machine:", "oidc:"
SLACK = "slack:"
BACKSTOP_ITSELF = "service:backstop"
_MOST_GRANTS, _MOST_NAMES, _MOST_PEOPLE = 2000, 1000, 10_000
_NAME_BYTES = 200
BOUNDLESS: tuple[str, ...] = (ANYTHING,)
SLACK_ROLES: tuple[Role, ...] = (Role.VIEWER, Role.MEMBER)


def _bare(name: str) -> str:
    if ":" in name or name != name.strip():
        raise ValueError(f"must be a name without a colon, and without spaces around it, not {brief(name)}")
    return name


def _issuer(text: str) -> str:
    if "@" in text or text.split() != [text]:
        raise ValueError(f"must be the address of a provider, such as https://login.example.org, not {brief(text)}")
    return text


def _receiver(name: str) -> str:
    kind, colon, rest = name.partition(":")
    if f"{kind}{colon}" not in (USER, GROUP, SERVICE) or not rest or rest != rest.strip():
        raise ValueError(f"must be user:NAME, group:NAME or service:NAME, not {brief(name)}")
    if name == BACKSTOP_ITSELF:
        raise ValueError(f"{name} is Backstop itself, which needs no role: remove it")
    return name


def _user(name: str) -> str:
    if not _receiver(name).startswith(USER):
        raise ValueError(f"must be user:NAME, not {brief(name)}")
    return name


Bare = Annotated[Name, AfterValidator(_bare)]
Receiver = Annotated[ActorGiven, AfterValidator(_receiver)]
Owner = Annotated[ActorGiven, AfterValidator(_user)]
Patterns = Annotated[tuple[Name, ...], Field(min_length=1, max_length=_MOST_NAMES)]


class Identity(Documented):
    """An account at an OpenID Connect provider."""

    issuer: Annotated[Words, Field(min_length=1, max_length=150), AfterValidator(_issuer)]
    """The provider's address, exactly as the `iss` of its tokens has it."""
    subject: Annotated[Words, Field(min_length=1, max_length=300)]
    """The account's `sub` in the provider's tokens. Not an e-mail address, which another person may get later."""


class SlackUser(Documented):
    """A user of a Slack workspace, by Slack's own ids: users can change their names there."""

    workspace: Annotated[str, Field(pattern=r"^[TE][A-Z0-9]{1,30}$")]
    """The id of the user's workspace, such as T0123ABCD."""
    user: Annotated[str, Field(pattern=r"^[UW][A-Z0-9]{1,30}$")]
    """The user's member id in the workspace, such as U0123ABCD."""


class Person(Documented):
    """A human with all their identities: where two persons are needed they count once."""

    name: Bare
    """The person's name. The audit shows ana as user:ana."""
    machine: Annotated[tuple[Name, ...], Field(max_length=_MOST_NAMES)] = ()
    """All user names of the person on the machines where a front listens. Default: none."""
    oidc: Annotated[tuple[Identity, ...], Field(max_length=100)] = ()
    """All accounts of the person at OpenID Connect providers. Default: none."""
    slack: Annotated[tuple[SlackUser, ...], Field(max_length=100, exclude_if=lambda users: not users)] = ()
    """All Slack users of the person. Default: none."""

    @property
    def user(self) -> str:
        return USER + self.name

    @model_validator(mode="after")
    def _comes_in(self) -> Self:
        if not (self.machine or self.oidc or self.slack):
            raise ValueError(f"needs one of machine, oidc or slack: without one nobody can log in as {self.user}")
        return self


WayIn = str | Identity | SlackUser
"""A user name on the machine, an account at a provider, or a Slack user. At most one person or service has it."""


class Service(Documented):
    """A program that gives commands by itself: a CI job, an exporter. It never approves."""

    name: Bare
    """The service's name. The audit shows ci as service:ci."""
    owner: Owner
    """The person responsible for the service. Where two persons are needed, the service counts as its owner."""
    oidc: Annotated[tuple[Identity, ...], Field(max_length=100, exclude_if=lambda accounts: not accounts)] = ()
    """All accounts of the service at providers, such as a CI job's. Default: none; it then uses Backstop tokens."""


class Grant(Documented):
    """A grant of roles to people, groups or services, within bounds."""

    to: Annotated[tuple[Receiver, ...], Field(min_length=1, max_length=_MOST_NAMES)]
    """The receivers: user:NAME, group:NAME (as in the provider's groups claim) or service:NAME."""
    roles: Annotated[tuple[Role, ...], Field(min_length=1, max_length=len(Role))]
    """The roles: viewer, member, operator, approver or admin. Approver and operator include viewer."""
    clusters: Patterns = BOUNDLESS
    """Cluster names, with * and ? as wildcards. Default: all clusters, and commands for the whole fleet."""
    teams: Patterns = BOUNDLESS
    """Team names, with * and ? as wildcards; required for the role member. Default: all."""

    @property
    def everywhere(self) -> bool:
        return ANYTHING in self.clusters

    @property
    def for_all_teams(self) -> bool:
        return ANYTHING in self.teams

    def is_in_cluster(self, cluster: str) -> bool:
        """Return whether the grant covers the cluster; empty: all of them at once."""
        return self.everywhere or (bool(cluster) and any_matches(self.clusters, cluster))

    def is_of_team(self, team: str) -> bool:
        return self.for_all_teams or (bool(team) and any_matches(self.teams, team))

    @property
    def bounds(self) -> str:
        """A text such as `clusters h100-*, teams research`; empty: no bounds."""
        parts = [] if self.everywhere else [f"clusters {', '.join(self.clusters)}"]
        parts += [] if self.for_all_teams else [f"teams {', '.join(self.teams)}"]
        return "; ".join(parts)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        services = [name for name in self.to if name.startswith(SERVICE)]
        if Role.APPROVER in self.roles and services:
            raise fault_at(("roles",), f"cannot make {services[0]} an approver: services never approve")
        if Role.ADMIN in self.roles and self.bounds:
            raise fault_at(("roles",), f"cannot limit admin to {self.bounds}: admin commands reach the whole fleet")
        if Role.MEMBER in self.roles and "teams" not in self.model_fields_set:
            raise ValueError("teams is missing: a member acts for named teams, so list them (or '*' for all)")
        for what in ("to", "roles", "clusters", "teams"):
            _once((what,), getattr(self, what))
        return self


class AccessFile(Documented):
    """All roles and identities: the last imported file is in force, and nothing beside it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True)

    two_person: StrictBool = True
    """False: no command needs a second person, and the audit marks each command that would need one."""
    slack_roles: Annotated[
        tuple[Role, ...], Field(max_length=len(Role), exclude_if=lambda roles: roles == SLACK_ROLES)
    ] = SLACK_ROLES
    """The roles that people may use from Slack; never admin. Default: viewer and member."""
    people: Annotated[tuple[Person, ...], Field(max_length=_MOST_PEOPLE)] = ()
    """People and their identities. List everybody who has more than one way to log in. Default: none."""
    services: Annotated[tuple[Service, ...], Field(max_length=_MOST_NAMES)] = ()
    """Programs that give commands by themselves, and who is responsible for each. Default: none."""
    grants: Annotated[tuple[Grant, ...], Field(min_length=1, max_length=_MOST_GRANTS)]
    """The grants of roles. At least one gives admin to a user by name. Several grants to one name add up."""
    schema_: Words | None = Field(default=None, alias="$schema")
    """The address of the JSON Schema, for an editor that checks the file. Backstop ignores it. Default: none."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for fault in self.faults():
            raise fault_at(*fault)
        return self

    def faults(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """Yield the contradictions: the path, and a sentence that continues after the field's name."""
        yield from _doubles("people", [person.name for person in self.people], "person")
        yield from _doubles("services", [service.name for service in self.services], "service")
        _once(("slack_roles",), self.slack_roles)
        if Role.ADMIN in self.slack_roles:
            yield ("slack_roles",), "cannot have admin: nobody may change access from Slack; remove admin"
        claimed: dict[tuple[str, WayIn], str] = {}
        for part, number, who, ways in self._ways_in():
            own = set[tuple[str, WayIn]]()
            for field, place, claim in ways:
                whose = claimed.setdefault((field, claim), who)
                if whose != who:
                    text = (
                        f"{_name_of(claim)} already belongs to {whose.removeprefix(USER)}: remove it from one of them"
                    )
                    yield (part, number, field, place), text
                elif (field, claim) in own:
                    yield (part, number, field, place), f"{_name_of(claim)} is given twice"
                own.add((field, claim))
        services = {SERVICE + service.name for service in self.services}
        if BACKSTOP_ITSELF in services:
            number = [service.name for service in self.services].index(BACKSTOP_ITSELF.removeprefix(SERVICE))
            yield ("services", number, "name"), "is the name of Backstop itself: choose another name"
        for number, grant in enumerate(self.grants):
            for place, name in enumerate(grant.to):
                if name.startswith(SERVICE) and name not in services:
                    yield ("grants", number, "to", place), f"names {name}, which is not listed under services"
        if not self.admins:
            yield ("grants",), "names no user as admin: give the role admin to at least one user:NAME"

    def _ways_in(self) -> Iterator[tuple[str, int, str, list[tuple[str, int, WayIn]]]]:
        """Yield each person and service: its part of the file, number there, name, and the identities it claims."""
        for number, person in enumerate(self.people):
            ways: list[tuple[str, int, WayIn]] = [
                *(("machine", place, user) for place, user in enumerate(person.machine)),
                *(("oidc", place, one) for place, one in enumerate(person.oidc)),
                *(("slack", place, one) for place, one in enumerate(person.slack)),
            ]
            yield "people", number, person.user, ways
        for number, service in enumerate(self.services):
            yield "services", number, SERVICE + service.name, [("oidc", n, one) for n, one in enumerate(service.oidc)]

    # --- what it says -------------------------------------------------------------------------------

    @property
    def hash(self) -> str:
        return content_hash(self, exclude={"schema_"}, exclude_defaults=True)

    @property
    def admins(self) -> tuple[str, ...]:
        """People who are admins by name. A group's members come and go at its provider."""
        named = (name for grant in self.grants if Role.ADMIN in grant.roles for name in grant.to)
        return tuple(sorted({name for name in named if name.startswith(USER)}))

    def grants_of(self, principal: Principal) -> tuple[Grant, ...]:
        """Return the grants to the principal by name or group. Nobody vouches for the groups of a token."""
        names = {principal.name}
        if principal.proof is Proof.OIDC:
            names |= {GROUP + group for group in principal.groups}
        return tuple(grant for grant in self.grants if not names.isdisjoint(grant.to))

    # --- who somebody is ----------------------------------------------------------------------------

    @cached_property
    def _claims(self) -> Mapping[str, str]:
        """The name of the person or service that has each identity, by the identity in one spelling."""
        by_machine = {MACHINE + name: person.user for person in self.people for name in person.machine}
        by_slack = {slack_name(one.workspace, one.user): person.user for person in self.people for one in person.slack}
        by_provider = {
            provider_name(one.issuer, one.subject): person.user for person in self.people for one in person.oidc
        }
        of_services = {
            provider_name(one.issuer, one.subject): SERVICE + service.name
            for service in self.services
            for one in service.oidc
        }
        return by_machine | by_slack | by_provider | of_services

    @cached_property
    def _people(self) -> Mapping[str, Person]:
        return {person.user: person for person in self.people}

    @cached_property
    def _owners(self) -> Mapping[str, str]:
        return {SERVICE + service.name: service.owner for service in self.services}

    def at_machine(self, user: str, how: str = "this machine") -> Principal:
        """Return the principal that the kernel names."""
        claimed = self._claims.get(MACHINE + user)
        name = claimed or (MACHINE if USER + user in self._people else USER) + user
        return Principal(name=name, human=claimed or MACHINE + user, proof=Proof.PEER, how=how)

    def at_provider(self, issuer: str, subject: str, groups: Iterable[str] = (), *, program: bool = False) -> Principal:
        """Return the principal that an OpenID Connect provider signed for.

        `program`: the provider says that the account is no human's.
        """
        account = provider_name(issuer, subject)
        name = self._claims.get(account, account)
        human = "" if name.startswith(SERVICE) or (program and name == account) else name
        return Principal(name=name, human=human, proof=Proof.OIDC, how=issuer, groups=tuple(groups))

    def principal_of(self, principal: Principal) -> Principal:
        """Return the principal by this file, from the way in which it came in; else unchanged."""
        if principal.proof is Proof.PEER:
            return self.at_machine(principal.name.removeprefix(USER), principal.how)
        if principal.proof is Proof.OIDC and principal.name.startswith(PROVIDER):
            subject = principal.name.removeprefix(PROVIDER).removesuffix(f"@{principal.how}")
            return self.at_provider(principal.how, subject, principal.groups, program=principal.is_program)
        if principal.proof is Proof.SLACK:
            user, _, workspace = principal.name.removeprefix(SLACK).partition("@")
            return self.at_slack(workspace, user)
        return principal

    def at_slack(self, workspace: str, user: str) -> Principal:
        """Return the principal that Slack names; `slack:USER@WORKSPACE` where no person claims it."""
        member = in_slack(workspace, user)
        name = self._claims.get(member.name, member.name)
        return member.but(name=name, human=name)

    def human_of(self, name: str) -> str:
        """Return the human who counts where two persons are needed: a service's owner, else the name's holder.

        A user of the machine whom no person claims is distinct from a person of the file.
        """
        claimed = self._claims.get(name, name)
        owner = self._owners.get(claimed, claimed)
        if owner in self._people or not owner.startswith(USER):
            return self._claims.get(owner, owner)
        return self._claims.get(MACHINE + owner.removeprefix(USER), MACHINE + owner.removeprefix(USER))

    def are_surely_two(self, one: str, other: str) -> bool:
        """Return whether two humans are known to be different, and neither may be the other by another name."""
        if not one or not other or one == other:
            return False
        kinds, others = self._kinds(one), self._kinds(other)
        return (one in self._people and other in self._people) or not kinds.isdisjoint(others)

    def _kinds(self, human: str) -> frozenset[str]:
        """Return the ways in by which all names of this human are known."""
        person = self._people.get(human)
        if person is not None:
            ways = [*(PROVIDER + one.issuer for one in person.oidc), *(SLACK + one.workspace for one in person.slack)]
            return frozenset({*([MACHINE] if person.machine else []), *ways})
        if human.startswith(MACHINE):
            return frozenset({MACHINE})
        for kind in (PROVIDER, SLACK):
            if human.startswith(kind):
                return frozenset({kind + human.rpartition("@")[2]})
        return frozenset()


def provider_name(issuer: str, subject: str) -> str:
    """Return the name of an identity that no person claims. A subject that is too long for a name is hashed."""
    name = f"{PROVIDER}{subject}@{issuer}"
    return name if len(name.encode()) <= _NAME_BYTES else f"{PROVIDER}#{hash_of(subject)}@{issuer}"


def slack_name(workspace: str, user: str) -> str:
    """Return the name of a user of Slack whom no person claims."""
    return f"{SLACK}{user}@{workspace}"


def in_slack(workspace: str, user: str) -> Principal:
    """Return the principal that Slack names, before the file resolves it."""
    name = slack_name(workspace, user)
    return Principal(name=name, human=name, proof=Proof.SLACK, how=f"Slack workspace {workspace}")


def _name_of(claim: WayIn) -> str:
    if isinstance(claim, SlackUser):
        return f"{claim.user} of {claim.workspace}"
    return repr(claim) if isinstance(claim, str) else f"{claim.subject} of {claim.issuer}"


def _once(path: tuple[str | int, ...], names: tuple[str, ...]) -> None:
    for place, name in find_repeated(names):
        raise fault_at((*path, place), f"{brief(str(name))} is given twice")


def _doubles(field: str, names: list[str], what: str) -> Iterator[tuple[tuple[str | int, ...], str]]:
    for number, name in find_repeated(names):
        yield (field, number, "name"), f"{what} {name!r} is given twice"
