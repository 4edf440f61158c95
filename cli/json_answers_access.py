"""The JSON answers of `backstop access`, beside cli/json_answers.py."""

from __future__ import annotations

from cli.json_answer_base import JsonAnswer
from models.access.access_versions import AccessOutcome, AccessStands
from models.access.second_persons import Countersigned, Emergency, Waiting
from models.access.tokens import TokenLine
from views.row_models import RightLine


class AccessAnswer(AccessStands, JsonAnswer, schema="access"):
    """The access file in force, and the one that waits. `said`: in words, also where no access is configured."""

    configured: bool
    said: str


class AccessImportAnswer(AccessOutcome, JsonAnswer, schema="access-import"):
    """The result of an import, or of its dry run."""


class WhoCanAnswer(JsonAnswer, schema="access-who-can"):
    """The people who could give a command there."""

    cluster: str
    team: str
    rights: tuple[RightLine, ...]


class CanAnswer(JsonAnswer, schema="access-can"):
    """The commands that somebody may give there. `roles` of each line: those that allow it."""

    user: str
    cluster: str
    team: str
    rights: tuple[RightLine, ...]


class AccessRecoveredAnswer(JsonAnswer, schema="access-recovered"):
    """An access file that was put in force past all rules."""

    hash: str
    said: str


class TokensAnswer(JsonAnswer, schema="access-tokens"):
    """Tokens by name."""

    tokens: tuple[TokenLine, ...]


class TokenMadeAnswer(TokenLine, JsonAnswer, schema="access-token"):
    """A token that was made or revoked. Only the answer to `new` has `token`."""

    token: str = ""
    undo: str = ""


class WaitingAnswer(JsonAnswer, schema="countersign-list"):
    """The commands that wait for a second person, the oldest first."""

    waiting: tuple[Waiting, ...]


class CountersignedAnswer(Countersigned, JsonAnswer, schema="countersign"):
    """The result of a command that two people have given."""


class WithdrawnAnswer(Waiting, JsonAnswer, schema="countersign-withdrawn"):
    """A command that was withdrawn."""

    undo: str


class EmergencySeenAnswer(Emergency, JsonAnswer, schema="access-seen"):
    """An act that somebody did alone, and the person who has reviewed it."""

    undo: str
