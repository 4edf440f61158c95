"""Rights at the desk: access files are imported and countersigned, tokens made and revoked.

Roles are changed by two admins. The first file of all needs one, who is named in it; after that an unchecked name
changes nothing.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from activities.ports.access import AccessPort
from models import access_questions as ask
from models.access.access_file import BACKSTOP_ITSELF, SERVICE, USER, AccessFile
from models.access.access_versions import (
    COUNTERSIGNED_WITHIN,
    EXPIRES_SOON,
    AccessCheck,
    AccessOutcome,
    AccessStands,
    AccessVersion,
    HowImported,
    changes_between,
    standing_sentence,
    warnings_of,
)
from models.access.decision import Permitted, Target, decide, decide_countersign, require_permitted
from models.access.lost_readers import no_longer_read
from models.access.principals import Principal, asserted_principal
from models.access.rights import RIGHTS, Case
from models.access.roles import with_included
from models.access.tokens import Token, TokenLine, line_of
from models.audit_chain import Signature
from models.errors import BackstopError, BadInput, Refusal
from models.texts import some_of

_IMPORT = "desk.import_access"
_UNCONFIGURED = "no access is configured: import an access file first (`backstop access import FILE`)"


class AccessDesk:
    """Answers the questions of models/access_questions.py. `by`: who asks, when, and why."""

    def __init__(self, book: AccessPort) -> None:
        self.book = book

    # --- the file -------------------------------------------------------------------------------

    def stands(self) -> AccessStands:
        return AccessStands(version=self.book.access(), proposal=self.book.proposal())

    def import_access(self, question: ask.ImportAccess, who: Principal, by: Signature) -> AccessOutcome:
        """Import or confirm a file. Errors: BadInput, Refusal, Conflict."""
        standing = self.book.access()
        if question.confirm:
            if question.file is not None:
                raise BadInput(
                    "give either a file or the hash to confirm, not both: Backstop has kept the proposed file"
                )
            return self._confirm(question, standing, who, by)
        if question.file is None:
            raise BadInput("an import needs a file, or the hash of a proposed file to confirm")
        file = question.file
        outcome = AccessOutcome(
            hash=file.hash,
            changes=changes_between(None if standing is None else standing.file, file),
            warnings=_warnings(standing, file, who),
            said="",
        )
        if standing is None:
            return self._import_first(file, outcome, who, by, dry_run=question.dry_run)
        if file.hash == standing.hash:
            sentence = f"this file is already in force: {standing_sentence(standing)}"
            return outcome.but(in_force=True, version=standing.version, said=sentence)
        cases = frozenset({Case.DRY_RUN}) if question.dry_run else frozenset[Case]()
        allowed = require_permitted(decide(standing.file, who, _IMPORT, Target(cases=cases)))
        if question.dry_run:
            return outcome.but(awaits=standing.file.two_person, said="nothing was changed: this was a dry run")
        if not allowed.complete:
            return self._propose(file, standing, outcome, allowed, by)
        version = self.book.put_in_force(file, standing.version, by, HowImported.ONE_PERSON)
        return outcome.but(in_force=True, version=version.version, said=standing_sentence(version))

    def _import_first(
        self, file: AccessFile, outcome: AccessOutcome, who: Principal, by: Signature, *, dry_run: bool
    ) -> AccessOutcome:
        name = find_importer(file, who).name
        if name not in file.admins:
            raise Refusal(
                f"the first access file must name the person who imports it as an admin: {name} is not among "
                f"{some_of(file.admins)}"
            )
        if dry_run:
            return outcome.but(said="nothing was changed: this was a dry run")
        version = self.book.put_in_force(file, 0, by, HowImported.FIRST)
        return outcome.but(in_force=True, version=version.version, said=standing_sentence(version))

    def _propose(
        self, file: AccessFile, standing: AccessVersion, outcome: AccessOutcome, allowed: Permitted, by: Signature
    ) -> AccessOutcome:
        proposal = self.book.propose(file, standing.version, by)
        until = proposal.at + COUNTERSIGNED_WITHIN
        sentence = (
            f"the file waits: another admin ({some_of(allowed.by) or 'the access file names no other'}) must confirm "
            f"it before {until:%Y-%m-%d %H:%MZ}, with `backstop access import --confirm {proposal.hash}`"
        )
        return outcome.but(awaits=True, by=allowed.by, until=until, said=sentence)

    def _confirm(
        self, question: ask.ImportAccess, standing: AccessVersion | None, who: Principal, by: Signature
    ) -> AccessOutcome:
        if standing is None:
            raise Refusal(_UNCONFIGURED)
        proposal = self.book.proposal()
        if standing.hash == question.confirm:
            raise Refusal(f"{question.confirm} is already in force: {standing_sentence(standing)}")
        if proposal is None or proposal.hash != question.confirm:
            waits = "no file waits" if proposal is None else f"that is {proposal.hash}, proposed by {proposal.by}"
            raise Refusal(f"{question.confirm!r} is not the hash of the file that waits to be confirmed: {waits}")
        require_permitted(decide_countersign(standing.file, proposal.by, who, _IMPORT, Target()))
        warnings = _warnings(standing, proposal.file, who)
        changes = changes_between(standing.file, proposal.file)
        outcome = AccessOutcome(hash=proposal.hash, changes=changes, warnings=warnings, said="")
        if question.dry_run:
            return outcome.but(said="nothing was changed: this was a dry run")
        version = self.book.put_in_force(
            proposal.file, standing.version, by, HowImported.COUNTERSIGNED, proposal=proposal
        )
        return outcome.but(in_force=True, version=version.version, said=standing_sentence(version))

    # --- tokens ---------------------------------------------------------------------------------

    def make_token(self, question: ask.MakeToken, who: Principal, by: Signature) -> TokenLine:
        file = self._file()
        require_permitted(decide(file, who, "desk.make_token", Target()))
        owner, scope = question.owner, question.scope
        services = {SERVICE + service.name for service in file.services}
        if owner.startswith(SERVICE) and owner not in services:
            raise Refusal(f"the access file has no service {owner}: it has {some_of(sorted(services)) or 'none'}")
        if owner == BACKSTOP_ITSELF or not file.grants_of(Principal(name=owner)):
            raise Refusal(f"the access file gives {owner} no role by name, so a token for {owner} could do nothing")
        held = {role for grant in file.grants_of(Principal(name=owner)) for role in with_included(grant.roles)}
        if missing := [role for role in scope.roles if role not in held]:
            text = f"{owner} does not have the role {' or '.join(missing)}, so a token for them cannot have it"
            raise Refusal(f"{text}: the access file gives them {', '.join(sorted(held))}")
        if not any(scope.has_command(command) for command in RIGHTS):
            raise BadInput(f"no command is named {' or '.join(scope.commands)}: docs/access.md lists the commands")
        token = Token(
            name=question.name,
            hash=question.hash,
            owner=owner,
            scope=scope,
            made_by=who.name,
            made_at=by.at,
            expires_at=by.at + timedelta(days=question.days),
        )
        return line_of(self.book.make_token(token, by))

    def revoke_token(self, question: ask.RevokeToken, who: Principal, by: Signature) -> TokenLine:
        require_permitted(decide(self._file(), who, "desk.revoke_token", Target()))
        return line_of(self.book.revoke_token(question.name, by))

    def tokens(self, question: ask.Tokens) -> tuple[TokenLine, ...]:
        return tuple(map(line_of, self.book.tokens(ended=question.ended)))

    # --- for doctor -----------------------------------------------------------------------------

    def check(self) -> AccessCheck | None:
        """Check access for `doctor`; None: no access is configured."""
        try:
            standing = self.book.access()
        except BackstopError as error:
            return AccessCheck(configured=True, wrong=error.message)
        if standing is None:
            return None
        return AccessCheck(
            configured=True,
            admins=len(standing.file.admins),
            two_person=standing.file.two_person,
            expiring=_list_expiring(self.book, self.book.now()),
        )

    def _file(self) -> AccessFile:
        standing = self.book.access()
        if standing is None:
            raise Refusal(_UNCONFIGURED)
        return standing.file


def find_importer(file: AccessFile, who: Principal) -> Principal:
    """Return the importer of the first file as that file names them: none is in force that could."""
    importer = file.principal_of(who)
    return importer if importer.is_proven or ":" in importer.name else importer.but(name=USER + importer.name)


def assert_caller(actor: str) -> Principal:
    """Return the principal of a caller without a front's signature."""
    return asserted_principal(actor or "nobody")


def _warnings(standing: AccessVersion | None, file: AccessFile, who: Principal) -> tuple[str, ...]:
    """Warn of oddities in the file itself, and of readers who lose a right that they use each day."""
    before = None if standing is None else standing.file
    return (*warnings_of(file), *no_longer_read(before, file, find_importer(file, who) if before is None else who))


def _list_expiring(book: AccessPort, now: datetime) -> tuple[str, ...]:
    soon = (token for token in book.tokens() if token.expires_at < now + EXPIRES_SOON)
    return tuple(f"{token.name} of {token.owner}, {token.expires_at:%Y-%m-%d}" for token in soon)
