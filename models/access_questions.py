"""Questions to the desk about access: who may do what, and tokens. models/questions.py has the others."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from models.access.access_file import AccessFile, Bare
from models.access.access_versions import AccessOutcome, AccessStands
from models.access.decision import Target
from models.access.tokens import Token, TokenHash, TokenLine, TokenOwner, TokenScope
from models.base import Text, Words
from models.question_base import Question

MOST_DAYS = 366
"""That a token counts, at most."""


class ImportAccess(Question[AccessOutcome], kind="import_access"):
    """The file is in force, or waits to be countersigned. Errors: BadInput, Refusal, Conflict.

    The first file of all needs one admin, who stands in it. `confirm`: the hash of the one that waits, which is
    countersigned; then there is no `file`.
    """

    file: AccessFile | None = None
    confirm: Text = Field(default="", max_length=64)
    dry_run: bool = False
    reason: Words = ""


class AccessNow(Question[AccessStands], kind="access"):
    """What is in force, and what waits to be countersigned."""


class MakeToken(Question[TokenLine], kind="make_token"):
    """The token whose hash this is counts. Its secret is made where it is shown, and is never sent. Errors: Refusal."""

    name: Bare
    hash: TokenHash
    owner: TokenOwner
    scope: TokenScope
    days: Annotated[int, Field(ge=1, le=MOST_DAYS)]
    reason: Words = ""


class RevokeToken(Question[TokenLine], kind="revoke_token"):
    """The token counts no more. Errors: Refusal where there is none."""

    name: Bare
    reason: Words = ""


class Tokens(Question[tuple[TokenLine, ...]], kind="tokens"):
    """By name: those that count, and with `ended` all that ever did."""

    ended: bool = False


class TokenOf(Question[Token | None], kind="token_of"):
    """The token with this hash, whether it counts or not: what a front asks. Null: there is none."""

    hash: TokenHash


class AimOf(Question[Target], kind="aim"):
    """A command's target with whose doing it is and how it stands: what a front asks before it judges.

    `subject`: the request that it is about; empty: none. Errors: Refusal where there is none of that id.
    """

    command: Text = Field(max_length=100)
    target: Target
    subject: Words = ""
