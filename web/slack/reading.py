"""Reads Slack's requests: a form, and for a button a JSON document in it.

Source: docs.slack.dev, "block_actions payload" and "Implementing slash commands". Fields that are not named here are
ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from models.base import in_one_sentence
from models.errors import BadInput
from models.texts import brief
from web.failures import Problem

MOST_BYTES = 300_000
"""Most bytes of a request, which includes the message with the button."""
_FORM = "application/x-www-form-urlencoded"
_URL_CHARS = 500
_ID = r"^[A-Z0-9]{0,32}$"


class SlackPerson(NamedTuple):
    """A person, by Slack's own ids."""

    workspace: str
    user: str


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Team(_Part):
    id: str = Field(default="", pattern=_ID)


class _User(_Part):
    id: str = Field(pattern=_ID, min_length=1)
    team_id: str = Field(default="", pattern=_ID)


class _Action(_Part):
    type: str = Field(max_length=100)
    action_id: str = Field(max_length=255)
    value: str = Field(default="", max_length=2000)


class _Input(_Part):
    value: str | None = Field(default=None, max_length=5000)


class _State(_Part):
    values: dict[str, dict[str, _Input]] = Field(default_factory=dict, max_length=100)


class _Payload(_Part):
    type: str = Field(max_length=100)


class _Pressed(_Part):
    user: _User
    team: _Team | None = None
    actions: tuple[_Action, ...] = Field(min_length=1, max_length=1)
    response_url: str = Field(default="", max_length=_URL_CHARS)
    message: dict[str, Any] = Field(default_factory=dict)
    state: _State | None = None


class Pressed(NamedTuple):
    """A pressed button. `typed`: the inputs beside it, by the fields' names. `message`: the one above it."""

    who: SlackPerson
    button: str
    value: str
    typed: Mapping[str, str]
    message: Mapping[str, Any]
    reply_at: str


class Typed(NamedTuple):
    """A slash command."""

    who: SlackPerson
    text: str
    reply_at: str


def read_press(form: Mapping[str, str], replies: tuple[str, ...]) -> Pressed:
    """Read a pressed button. Errors: BadInput, Problem."""
    text = form.get("payload", "")
    if not text:
        raise BadInput("the form has no payload")
    try:
        kind = _Payload.model_validate_json(text).type
        if kind != "block_actions":
            raise BadInput(f"{brief(kind)} is not supported: Backstop has buttons only in messages")
        press = _Pressed.model_validate_json(text)
    except ValidationError as error:
        raise BadInput(f"payload: {in_one_sentence(error)}") from None
    action = press.actions[0]
    if action.type != "button":
        raise BadInput(f"{brief(action.type)} is not a button")
    team = press.user.team_id or (press.team.id if press.team is not None else "")
    fields = {} if press.state is None else {k: v for block in press.state.values.values() for k, v in block.items()}
    typed = {name: one.value or "" for name, one in fields.items()}
    who = SlackPerson(team, press.user.id)
    return Pressed(who, action.action_id, action.value, typed, press.message, _ours(press.response_url, replies))


def read_typed(form: Mapping[str, str], replies: tuple[str, ...]) -> Typed:
    """Read a slash command. Errors: BadInput."""
    who = SlackPerson(form.get("team_id", ""), form.get("user_id", ""))
    if not who.user or not all(re.fullmatch(_ID, one) for one in who):
        raise BadInput("user_id and team_id must be ids of Slack")
    return Typed(who, form.get("text", "")[:5000], _ours(form.get("response_url", ""), replies))


def _ours(url: str, replies: tuple[str, ...]) -> str:
    """Return the address for an answer. Errors: BadInput for one that does not lead to Slack."""
    plain = url.isascii() and url.isprintable() and " " not in url and "\\" not in url and len(url) <= _URL_CHARS
    if not plain or not any(url.startswith(f"{origin}/") for origin in replies):
        raise BadInput("response_url does not lead to Slack, so no answer is sent there")
    return url


def form_of(content_type: str, body: bytes) -> Mapping[str, str]:
    """Read a form. Errors: Problem 400, 415."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind != _FORM:
        raise Problem(
            "not-a-form",
            415,
            "This is not a form.",
            f"Slack sends {_FORM}, {f'not {kind[:80]}' if kind else 'and this request has no Content-Type'}",
        )
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=100, errors="strict")
    except ValueError:
        raise Problem("not-a-form", 400, "This is not a form.", "its fields are not valid text") from None
    return {name: values[-1] for name, values in fields.items()}
