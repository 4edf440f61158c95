"""The secret with which Slack signs its messages, by its name: for the front, which checks them, and for `doctor`.

The variable holds only a name (docs/secrets.md), so that workers can have it too and know that button presses arrive.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from activities.secret_files import SecretFiles
from client.answer_models import Check
from models.cluster.contact_secrets import SECRET
from models.errors import BackstopError, BadInput
from models.texts import brief

_VARIABLE = "BACKSTOP_SLACK_SIGNING_SECRET"
_SIGNING = re.compile(r"[!-~]{16,200}")
_REMEDY = (
    f"put the app's signing secret (Slack: Basic Information, App Credentials) into a file NAME of the folder "
    f"that BACKSTOP_SECRETS names, and set {_VARIABLE} to {SECRET}NAME (docs/slack.md)"
)


def slack_secret_name(text: str) -> str:
    """Return NAME of `secret:NAME`; empty: Slack is off. Errors: BadInput, which does not repeat the value."""
    bare = text.strip()
    if not bare:
        return ""
    if not bare.lower().startswith(SECRET) or not bare[len(SECRET) :]:
        raise BadInput(
            f"{_VARIABLE} must be {SECRET}NAME with the name of a file, not the secret itself (docs/slack.md)"
        )
    return bare[len(SECRET) :]


def configured_name() -> str:
    """Return the name in this process's settings. Errors: BadInput."""
    return slack_secret_name(os.environ.get(_VARIABLE, ""))


class SigningSecret:
    """The signing secret, read at each use: a renewed one needs no restart."""

    def __init__(self, name: str, folder: Path | None) -> None:
        self.name = name
        self._files = SecretFiles(folder, "front")

    @classmethod
    def from_settings(cls) -> SigningSecret | None:
        """Return the configured secret; None: Slack is off. Errors: BadInput."""
        name, folder = configured_name(), os.environ.get("BACKSTOP_SECRETS", "")
        if folder and not folder.startswith("/"):
            raise BadInput(f"BACKSTOP_SECRETS must be the absolute path of a folder, not {brief(folder)}")
        return cls(name, Path(folder) if folder else None) if name else None

    def read(self) -> str:
        """Read the secret. Errors: Refusal or Unavailable if that fails; BadInput if it is no signing secret."""
        secret = self._files.read(self.name).strip()
        if not _SIGNING.fullmatch(secret):
            raise BadInput(
                f"{SECRET}{self.name} does not hold a signing secret of Slack, which is one word of about 32 "
                "hexadecimal digits"
            )
        return secret


def slack_checks() -> list[Check]:
    """Check the signing secret, where this process is a front that takes button presses from Slack; else no check."""
    try:
        secret = SigningSecret.from_settings()
        if secret is None:
            return []
        secret.read()
    except BackstopError as error:
        return [Check.bad("slack", f"the front refuses all requests from Slack: {error.message}", _REMEDY)]
    text = (
        f"the front accepts requests that are signed with {SECRET}{secret.name}; the access file names the Slack users"
    )
    return [Check.good("slack", text)]
