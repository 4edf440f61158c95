"""The JSON that commands of access answer with, beside cli/json_answers.py."""

from __future__ import annotations

from cli.json_answer import JsonAnswer
from models.access.access_versions import AccessOutcome, AccessStands
from models.access.second_persons import Countersigned, Emergency, Waiting
from models.access.tokens import TokenLine
from views.row_models import RightLine


class AccessAnswer(AccessStands, JsonAnswer, schema="access"):
    """The access file in force, and what waits. `said`: in words, also where no access is configured."""

    configured: bool
    said: str


class AccessImportAnswer(AccessOutcome, JsonAnswer, schema="access-import"):
    """What an import led to, or would."""


class WhoCanAnswer(JsonAnswer, schema="access-who-can"):
    """Who could give a command there."""

    cluster: str
    team: str
    rights: tuple[RightLine, ...]


class CanAnswer(JsonAnswer, schema="access-can"):
    """What somebody may do there. `roles` of each line: those that let them."""

    user: str
    cluster: str
    team: str
    rights: tuple[RightLine, ...]


class AccessRecoveredAnswer(JsonAnswer, schema="access-recovered"):
    """An access file that was put in force beside all rules."""

    hash: str
    said: str


class TokensAnswer(JsonAnswer, schema="access-tokens"):
    """Tokens by name."""

    tokens: tuple[TokenLine, ...]


class TokenMadeAnswer(TokenLine, JsonAnswer, schema="access-token"):
    """A token that was made or revoked. `token` stands in the answer to `new`, once."""

    token: str = ""
    undo: str = ""


class WaitingAnswer(JsonAnswer, schema="countersign-list"):
    """What waits for a second person, the oldest first."""

    waiting: tuple[Waiting, ...]


class CountersignedAnswer(Countersigned, JsonAnswer, schema="countersign"):
    """What became of a command that two have given."""


class WithdrawnAnswer(Waiting, JsonAnswer, schema="countersign-withdrawn"):
    """A command that waits no more."""

    undo: str


class EmergencySeenAnswer(Emergency, JsonAnswer, schema="access-seen"):
    """What somebody did alone, and who has looked at it."""

    undo: str
