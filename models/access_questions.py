"""Questions to the desk about access: who may do what, and tokens. models/questions.py has the others."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from models.access.access_file import AccessFile, Bare
from models.access.access_versions import AccessOutcome, AccessStands
from models.access.decision import Target
from models.access.tokens import Token, TokenHash, TokenLine, TokenOwner, TokenScope
from models.base import Text, Time, Words
from models.question_base import Question

MOST_DAYS = 366
"""The longest validity of a token, in days."""


class ImportAccess(Question[AccessOutcome], kind="import_access"):
    """Put the access file in force, or keep it to be countersigned. Errors: BadInput, Refusal, Conflict.

    The very first file needs one admin, who is named in it. `confirm`: the hash of the waiting file, to countersign it;
    then there is no `file`.
    """

    file: AccessFile | None = None
    confirm: Text = Field(default="", max_length=64)
    dry_run: bool = False
    reason: Words = ""


class AccessNow(Question[AccessStands], kind="access"):
    """The access file in force, and the one that waits to be countersigned."""


class MakeToken(Question[TokenLine], kind="make_token"):
    """Make the token with this hash valid. Its secret is made where it is shown, and is never sent. Errors: Refusal."""

    name: Bare
    hash: TokenHash
    owner: TokenOwner
    scope: TokenScope
    days: Annotated[int, Field(ge=1, le=MOST_DAYS)]
    reason: Words = ""


class RevokeToken(Question[TokenLine], kind="revoke_token"):
    """Revoke the token. Errors: Refusal if there is none."""

    name: Bare
    reason: Words = ""


class Tokens(Question[tuple[TokenLine, ...]], kind="tokens"):
    """The valid tokens by name; with `ended` all that ever were."""

    ended: bool = False


class TokenOf(Question[Token | None], kind="token_of"):
    """The token with this hash, valid or not: a front asks this. Null: there is none."""

    hash: TokenHash


class EndedSessions(Question[dict[str, Time]], kind="ended_sessions"):
    """Browser sessions that were ended early, each by its hash with the time of its end: a front asks this.

    `end`: end these too, at the time `at`. Idempotent.
    """

    end: Annotated[tuple[TokenHash, ...], Field(max_length=10)] = ()
    at: Time


class AimOf(Question[Target], kind="aim"):
    """A command's target with its owner and state: a front asks this before it decides.

    `subject`: the id of the request that it is about; empty: none. Errors: Refusal if there is none of that id.
    """

    command: Text = Field(max_length=100)
    target: Target
    subject: Words = ""
