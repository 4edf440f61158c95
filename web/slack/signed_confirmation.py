"""Signs and checks the confirmation button of a command that asks first: which command, for whom, until when.

Slack returns a button's value as it was sent, but anybody who knows a webhook's address can send one. So the value is
signed with a key that is made of the signing secret and that every front of the installation has; no front has to
keep anything. Source: docs/adr/0075.
"""

from __future__ import annotations

import hashlib
import hmac

from pydantic import Field, ValidationError

from activities.notices.buttons import VALUE_CHARS, Press
from models.base import Model
from models.errors import BadInput, Refusal
from web.slack.reading import SlackPerson

SECONDS = 15 * 60
_FOR = b"backstop: the second press\0"
_MAC_CHARS = 64


class Sure(Model):
    """The content of a confirmation button. `back`: where the original notice is answered; empty: nowhere."""

    press: Press
    workspace: str = Field(max_length=32)
    user: str = Field(max_length=32)
    until: int
    back: str = Field(default="", max_length=500)

    def sign(self, secret: str) -> str:
        """Return the button's value. Errors: Refusal for names that are too long for a button."""
        text = self.model_dump_json(exclude_defaults=True)
        if len(text) + _MAC_CHARS > VALUE_CHARS:
            raise Refusal(
                "these names are too long for a button: give the command in the console or on the command line"
            )
        return _mac(secret, text) + text


def sure_of(value: str, secret: str, who: SlackPerson, now: float) -> Sure:
    """Return the question that this person was asked recently. Errors: BadInput, Refusal."""
    mac, text = value[:_MAC_CHARS], value[_MAC_CHARS:]
    if not hmac.compare_digest(_mac(secret, text).encode(), mac.encode(errors="replace")):
        raise BadInput("this button is not from Backstop")
    try:
        confirmation = Sure.model_validate_json(text)
    except ValidationError:
        raise BadInput(
            "Backstop was upgraded since this button was sent: begin again with the newest message"
        ) from None
    if (confirmation.workspace, confirmation.user) != who:
        raise Refusal(
            "this question was put to somebody else: to give the command, press the button in the original message"
        )
    if now > confirmation.until:
        raise Refusal(f"this confirmation is more than {SECONDS // 60} minutes old: begin again from the message")
    return confirmation


def _mac(secret: str, text: str) -> str:
    return hmac.new(secret.encode(), _FOR + text.encode(), hashlib.sha256).hexdigest()
