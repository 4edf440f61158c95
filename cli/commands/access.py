"""`backstop access`: who may do what, and the tokens of callers without a browser."""

from __future__ import annotations

import base64
import secrets
import shlex
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from cli.consent import Yes, consent
from cli.list_options import Listing, listed, tell
from cli.options import (
    SET_UP,
    Actor,
    AsJson,
    NeededReason,
    ReasonOption,
    actor_of,
    arg,
    check_model,
    examples,
    flag,
    opt,
    optional_cluster,
)
from cli.session import ask
from models.errors import BadInput, Refusal

if TYPE_CHECKING:
    from models.access.access_file import AccessFile
    from models.access.access_versions import AccessStands
    from models.access.principals import Principal

_TYPED = {
    "hold": "desk.declare",
    "calendar end": "desk.end_window",
    "calendar end --hold": "desk.end_hold",
    "confirm": "desk.confirm_source",
    "detach": "desk.detach",
    "fleet import": "desk.take_fleet",
    "fleet remove": "desk.remove_cluster",
    "fleet rename": "desk.rename_cluster",
    "request new": "request.ask",
    "access import": "desk.import_access",
    "access show": "desk.access",
    "access token new": "desk.make_token",
    "access token revoke": "desk.revoke_token",
    "access token list": "desk.tokens",
    "access seen": "desk.seen_emergency",
    "countersign list": "desk.waiting",
    "countersign withdraw": "desk.withdraw_waiting",
    "status": "read.status",
    "audit": "read.audit",
    "why": "desk.why",
}
"""Keys of the commands whose typed words differ from the key, by these words."""

FileOption = Annotated[str, opt("FILE", "The access file to read. Default: the one in force.", "--file")]
OfTeam = Annotated[str, opt("TEAM", "The team that the rights must cover.")]
ClusterOrNone = Annotated[str, arg("CLUSTER", "The cluster's name. Default: all clusters.", callback=optional_cluster)]


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Set and show who may do what: roles, second persons and tokens.")
    for name, command, lines in (
        (
            "import",
            import_,
            (
                "backstop access import access.yaml --dry-run",
                "backstop access import access.yaml --reason 'the new team'",
                "backstop access import --confirm 4f2a9c1b7d3e5f60",
            ),
        ),
        ("show", show_, ("backstop access show",)),
        (
            "who-can",
            who_can,
            ("backstop access who-can approve h100-pods", "backstop access who-can 'fleet abort' --file access.yaml"),
        ),
        ("can", can, ("backstop access can tpm h100-pods",)),
        ("seen", record_review, ("backstop access seen 3 --reason 'the SEV was real, the promotion was right'",)),
        ("recover", recover, ("backstop access recover access.yaml --reason 'both admins have left'",)),
    ):
        group.command(name, epilog=examples(*lines))(command)
    tokens = typer.Typer(no_args_is_help=True, help="Tokens for programs that have no browser.")
    new = ("backstop access token new ci --owner service:ci --role operator --cluster 'h100-*' --days 90",)
    tokens.command("new", epilog=examples(*new))(token_new)
    tokens.command("list", epilog=examples("backstop access token list"))(token_list)
    tokens.command("revoke", epilog=examples("backstop access token revoke ci --reason 'it was in a log'"))(
        token_revoke
    )
    group.add_typer(tokens, name="token")
    app.add_typer(group, name="access", rich_help_panel=SET_UP)


# --- the file --------------------------------------------------------------------------------------


def import_(
    file: Annotated[str, arg("FILE", "The access file (-: stdin).")] = "",
    confirm: Annotated[str, opt("HASH", "Confirm the file that another admin imported, by its hash.")] = "",
    dry_run: Annotated[bool, flag("--dry-run", "Only show what would change.")] = False,
    reason: ReasonOption = "",
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Put an access file in force. The first one is imported by an admin whom it names; each
    later one must be confirmed by another admin.

    A later file waits up to 24 hours for the other admin's --confirm, and the import exits with 3. To undo an
    import, import the earlier file again.
    """
    from cli.json_answers_access import AccessImportAnswer
    from models.access_questions import ImportAccess
    from views.access import outcome_parts

    if bool(file) is bool(confirm):
        raise BadInput("give a FILE to import, or --confirm HASH of a file that awaits confirmation")
    rules = _read(file) if file else None
    question = ImportAccess(file=rules, confirm=confirm, dry_run=dry_run, reason=reason)
    outcome = ask(actor_of(actor), lambda door: door.ask(question))
    tell(AccessImportAnswer.build_from(outcome), lambda: outcome_parts(outcome), as_json=as_json)
    if outcome.awaits and not dry_run:
        raise typer.Exit(3)


def show_(as_json: AsJson = False, actor: Actor = "") -> None:
    """Show the access file in force, who imported it, and which file waits to be confirmed."""
    from cli.json_answers_access import AccessAnswer
    from views.access import access_parts, describe_access

    stands = _stands(actor)
    answer = AccessAnswer.build_from(stands, configured=stands.version is not None, said=describe_access(stands))
    tell(answer, lambda: access_parts(stands), as_json=as_json)


def record_review(
    number: Annotated[int, arg("NUMBER", "The emergency's number in `backstop report`.", min=1)],
    reason: NeededReason,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Record that you have reviewed what somebody did alone in an emergency; reports no longer name it.

    Only an admin other than the one who did it may record this.
    """
    from cli.json_answers_access import EmergencySeenAnswer
    from models.countersign_questions import SeenEmergency
    from views.words import line

    looked = ask(actor_of(actor), lambda door: door.ask(SeenEmergency(number=number, reason=reason)))
    undo = "It cannot be undone; the audit keeps the emergency and this review."
    sentence = line((f"Emergency {looked.number}", "bold"), f" has been reviewed by {looked.seen_by}. {undo}")
    tell(EmergencySeenAnswer.build_from(looked, undo=undo), lambda: [sentence], as_json=as_json)


def recover(
    file: Annotated[str, arg("FILE", "The access file.")],
    reason: NeededReason,
    yes: Yes = False,
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Put an access file in force without a front or a second person, after everybody is locked out.

    The command writes to the ledger itself (BACKSTOP_LEDGER_URL), and the audit records it.
    """
    from cli.json_answers_access import AccessRecoveredAnswer
    from cli.ledger_direct_writes import recover_access
    from models.access.lost_readers import no_longer_read
    from models.access.principals import asserted_principal
    from views.words import line

    if not reason.strip():
        raise BadInput("--reason must say why")
    rules, person = _read(file), actor_of(actor)

    def ahead() -> list[object]:
        admins = ", ".join(rules.admins[:5])
        blind = no_longer_read(None, rules, asserted_principal(rules.admins[0]))
        sentence = (
            f"{file} replaces the access file in force, and no second person is asked. The new file's admins: {admins}."
        )
        return [line(sentence), *(line((f"! {warning}", "yellow")) for warning in blind)]

    consent("Recover access?", ahead, yes=yes, as_json=as_json)  # type: ignore[arg-type]
    sentence = recover_access(rules, person, reason)
    shown = [
        line(("RECOVERED", "bold red"), f": {sentence}"),
        line("This import bypassed all rules; the audit records it: backstop audit '(access)'. Tell the other admins."),
    ]
    tell(AccessRecoveredAnswer(hash=rules.hash, said=sentence), lambda: shown, as_json=as_json)


# --- who could -------------------------------------------------------------------------------------


def who_can(
    command: Annotated[
        str, arg("COMMAND", "The command as you type it, or with dots: approve, 'fleet pace', fleet.pace.")
    ],
    cluster: ClusterOrNone = "",
    team: OfTeam = "",
    file: FileOption = "",
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Show who could give a command in a cluster, and who would have to countersign it."""
    from cli.json_answers_access import WhoCanAnswer
    from models.access.decision import Target
    from views.access import rights_parts, who_lines

    key, target = _key(command), Target(cluster=cluster, team=team)
    access = _access(file, actor)
    lines = who_lines(access, key, target)
    answer = WhoCanAnswer(cluster=cluster, team=team, rights=tuple(lines))
    tell(answer, lambda: rights_parts(lines, who=True, team=team), as_json=as_json)


def can(
    user: Annotated[str, arg("USER", "user:NAME, service:NAME, or a name alone for a user.")],
    cluster: ClusterOrNone = "",
    team: OfTeam = "",
    groups: Annotated[
        list[str] | None, opt("GROUP", "Answer as if USER were in this group. Repeatable.", "--group")
    ] = None,
    file: FileOption = "",
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """List what somebody may do in a cluster, by which role, and who would have to countersign it."""
    from cli.json_answers_access import CanAnswer
    from models.access.decision import Target
    from views.access import by_team_line, may_lines, rights_parts
    from views.words import line

    principal, target = _principal(user, groups or []), Target(cluster=cluster, team=team)
    access = _access(file, actor)
    lines = may_lines(access, principal, target)
    place = cluster or "all clusters"
    for_a_team = not team and any(not grant.for_all_teams for grant in access.grants_of(principal))
    more = [by_team_line(f"What else {principal.name} may do")] if for_a_team else []
    nothing = f"{principal.name} has no right that holds in {place}{' for all teams' if for_a_team else ''}."
    shown = rights_parts(lines, who=False) if lines else [line(nothing)]
    answer = CanAnswer(user=principal.name, cluster=cluster, team=team, rights=tuple(lines))
    tell(answer, lambda: [*shown, *more], as_json=as_json)


def _key(command: str) -> str:
    """Return the command's key in the table of rights. Errors: BadInput."""
    import difflib

    from models.access.rights import RIGHTS

    words = " ".join(command.split())
    for key in (words, _TYPED.get(words, ""), words.replace(" ", "."), f"rollout.{words}"):
        if key in RIGHTS:
            return key
    near = difflib.get_close_matches(words, [*RIGHTS, *_TYPED, *(k.partition(".")[2] for k in RIGHTS)], 1, 0.6)
    meant = f"; did you mean {near[0]}?" if near else ""
    raise BadInput(f"COMMAND must be a command of the table of rights (docs/access.md), not {command[:80]!r}{meant}")


def _principal(user: str, groups: list[str]) -> Principal:
    from models.access.access_file import SERVICE, USER
    from models.access.principals import Principal, Proof

    name = user if ":" in user else USER + user
    if not user.strip():
        raise BadInput("USER is empty: name a user or a service")
    proof = Proof.SERVICE if name.startswith(SERVICE) else Proof.OIDC
    return check_model(Principal, name=name, human=name, proof=proof, groups=tuple(groups))


# --- tokens ----------------------------------------------------------------------------------------


def token_new(
    name: Annotated[str, arg("NAME", "The token's name.")],
    owner: Annotated[str, opt("WHO", "The token's owner: user:NAME or service:NAME.")],
    role: Annotated[list[str], opt("ROLE", "A role of the owner that the token gets. Repeatable.")],
    cluster: Annotated[list[str] | None, opt("PATTERN", "Only in these clusters. Repeatable.")] = None,
    team: Annotated[list[str] | None, opt("PATTERN", "Only for these teams. Repeatable.")] = None,
    command: Annotated[
        list[str] | None,
        opt(
            "PATTERN",
            "Only commands whose dotted name matches, such as 'fleet.*'; 'read.*' is everything that only reads. "
            "Repeatable.",
        ),
    ] = None,
    days: Annotated[int, opt("DAYS", "How many days the token is valid.", min=1, max=366)] = 90,
    reason: ReasonOption = "",
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Make a token and show it once. The ledger keeps only its hash.

    The token acts as its owner, with no more than its owner's rights. Hand it over privately.
    """
    from cli.json_answers_access import TokenMadeAnswer
    from models.access.tokens import TOKEN_BYTES, TOKEN_PREFIX, TokenScope, token_hash
    from models.access_questions import MakeToken
    from views.words import line

    bounds = {"clusters": cluster, "teams": team, "commands": command}
    scope = check_model(TokenScope, roles=tuple(role), **{k: tuple(v) for k, v in bounds.items() if v})
    token = TOKEN_PREFIX + base64.urlsafe_b64encode(secrets.token_bytes(TOKEN_BYTES)).rstrip(b"=").decode()
    question = MakeToken(name=name, hash=token_hash(token), owner=owner, scope=scope, days=days, reason=reason)
    token_line = ask(actor_of(actor), lambda door: door.ask(question))
    undo = f"backstop access token revoke {shlex.quote(token_line.name)}"
    shown = [
        line(token),
        line(
            (token_line.name, "bold"),
            f" counts as {token_line.owner} ({token_line.scope.text}) until {token_line.expires_at:%Y-%m-%d}.",
        ),
        line("The token is not shown again. Set BACKSTOP_TOKEN to it in the environment of the program that uses it."),
        line(f"Undo: {undo}"),
    ]
    tell(TokenMadeAnswer.build_from(token_line, token=token, undo=undo), lambda: shown, as_json=as_json)


@listed
def token_list(
    every: Annotated[bool, flag("--all", "List expired and revoked tokens too.")] = False,
    *,
    how: Listing,
    actor: Actor = "",
) -> None:
    """List tokens: whose they are, what they may do, and until when."""
    from cli.json_answers_access import TokensAnswer
    from models.access.tokens import TokenLine
    from models.access_questions import Tokens
    from views.access import token_parts

    tokens = ask(actor_of(actor), lambda door: door.ask(Tokens(ended=every)))
    lines = how.rows(tokens, TokenLine)
    now = datetime.now(UTC)
    names = [one.name for one in lines]
    how.tell(lambda: TokensAnswer(tokens=tuple(lines)), lambda: token_parts(lines, now), names, (len(tokens), "token"))


def token_revoke(
    name: Annotated[str, arg("NAME", "The token, as `token list` shows it.")],
    reason: ReasonOption = "",
    as_json: AsJson = False,
    actor: Actor = "",
) -> None:
    """Revoke a token. Within a minute no front accepts it."""
    from cli.json_answers_access import TokenMadeAnswer
    from models.access_questions import RevokeToken
    from views.words import line

    gone = ask(actor_of(actor), lambda door: door.ask(RevokeToken(name=name, reason=reason)))
    undo = "It cannot be undone: make a new token with backstop access token new."
    sentence = line((gone.name, "bold"), f" of {gone.owner} is revoked: within a minute every front refuses it. {undo}")
    tell(TokenMadeAnswer.build_from(gone, undo=undo), lambda: [sentence], as_json=as_json)


# --- what is read ----------------------------------------------------------------------------------


def _read(file: str) -> AccessFile:
    from client.inputs.access_files import read_access

    return read_access(file)


def _stands(actor: str) -> AccessStands:
    from models.access_questions import AccessNow

    return ask(actor_of(actor), lambda door: door.ask(AccessNow()))


def _access(file: str, actor: str) -> AccessFile:
    """Read the access file in force. Errors: BadInput; Refusal if no file is in force."""
    from models.access.access_versions import NOT_CONFIGURED

    if file:
        return _read(file)
    version = _stands(actor).version
    if version is None:
        raise Refusal(f"{NOT_CONFIGURED} Or name a file: --file access.yaml")
    return version.file
