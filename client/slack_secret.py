"""The secret by which Slack signs what it sends, by its name: of the front that checks it, and of `doctor`.

The variable holds a name alone (docs/secrets.md), so that workers can have it too: it tells them that presses arrive.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from activities.secret_files import SecretFiles
from client.answer_models import Check
from models.base import brief
from models.cluster.contact_secrets import SECRET
from models.errors import BackstopError, BadInput

_VARIABLE = "BACKSTOP_SLACK_SIGNING_SECRET"
_SIGNING = re.compile(r"[!-~]{16,200}")
_REMEDY = (
    "put the app's signing secret (Slack: Basic Information, App Credentials) into that file of the folder that "
    "BACKSTOP_SECRETS names (docs/slack.md)"
)


def slack_secret_name(text: str) -> str:
    """NAME of `secret:NAME`; empty: nothing is taken from Slack. Errors: BadInput, which does not repeat the value."""
    bare = text.strip()
    if not bare:
        return ""
    if not bare.lower().startswith(SECRET) or not bare[len(SECRET) :]:
        raise BadInput(
            f"{_VARIABLE} must be {SECRET}NAME, the name of a file, and not the secret itself (docs/slack.md)"
        )
    return bare[len(SECRET) :]


def configured_name() -> str:
    """What this process was given. Errors: BadInput."""
    return slack_secret_name(os.environ.get(_VARIABLE, ""))


class SigningSecret:
    """Read each time it is used: a renewed one needs no restart."""

    def __init__(self, name: str, folder: Path | None) -> None:
        self.name = name
        self._files = SecretFiles(folder, "front")

    @classmethod
    def from_settings(cls) -> SigningSecret | None:
        """Errors: BadInput."""
        name, folder = configured_name(), os.environ.get("BACKSTOP_SECRETS", "")
        if folder and not folder.startswith("/"):
            raise BadInput(f"BACKSTOP_SECRETS must be the absolute path of a folder, not {brief(folder)}")
        return cls(name, Path(folder) if folder else None) if name else None

    def read(self) -> str:
        """Errors: Refusal, Unavailable: what cannot be read; BadInput for what can be no signing secret."""
        secret = self._files.read(self.name).strip()
        if not _SIGNING.fullmatch(secret):
            raise BadInput(
                f"{SECRET}{self.name} does not hold a signing secret of Slack, which is one word of about 32 "
                "hexadecimal digits"
            )
        return secret


def slack_checks() -> list[Check]:
    """Of this process, where it is a front that takes presses from Slack; none where it does not."""
    try:
        secret = SigningSecret.from_settings()
        if secret is None:
            return []
        secret.read()
    except BackstopError as error:
        return [Check(name="slack", ok=False, text=f"nothing from Slack is taken: {error.message}", remedy=_REMEDY)]
    text = f"what is signed with {SECRET}{secret.name} is taken; the access file says who is who"
    return [Check(name="slack", ok=True, text=text)]
