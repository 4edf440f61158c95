"""Secrets by name: one file each in one folder, as Docker and Kubernetes lay them out, read each time they are used.

Kubernetes makes `NAME` a link to `..data/NAME`, and `..data` one to a folder that it swaps whole: links are followed,
and must end inside the folder. The content of a file is shown nowhere.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from activities.regular_files import regular_file
from models.cluster.contact_secrets import SECRET
from models.errors import Refusal, Unavailable

LARGEST_SECRET = 65_536
"""The most bytes of one secret; a certificate with its chain fits."""
_NAME = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,253}")


class SecretFiles:
    """The folder that BACKSTOP_SECRETS names; None: this process has none. `whose`: the process, in words."""

    def __init__(self, folder: Path | None = None, whose: str = "worker") -> None:
        self._folder = folder
        self._whose = whose

    def resolve(self, text: str) -> str:
        """Return the secret behind `secret:NAME`; any other text itself. Errors: as `read`."""
        bare = text.strip()
        return self.read(bare[len(SECRET) :]) if bare.lower().startswith(SECRET) else text

    def read(self, name: str) -> str:
        """Return the secret, without the newlines at its end.

        Errors: Refusal for an impossible name, and if this process has no folder; Unavailable for a file that is
        missing or unusable: it is read again the next time.
        """
        if not _NAME.fullmatch(name):
            raise Refusal(
                "a secret's name may have up to 253 letters, digits, '.', '_' and '-', and may not begin with '.': "
                f"it names a file in the {self._whose}'s folder of secrets"
            )
        if self._folder is None:
            raise Refusal(f"{SECRET}{name}: this {self._whose} has no folder of secrets: set BACKSTOP_SECRETS to one")
        return _text(name, _content(name, self._folder, self._whose), self._whose)


def _content(name: str, folder: Path, whose: str) -> bytes:
    try:
        root = os.path.realpath(folder, strict=True)
        path = os.path.realpath(os.path.join(root, name), strict=True)
        if os.path.commonpath((root, path)) != root:
            raise _unusable(name, "it leads out of the folder", whose)
        with regular_file(path, os.O_NOFOLLOW) as (file, _):
            return file.read(LARGEST_SECRET + 1)
    except OSError as error:
        raise _unusable(name, (error.strerror or "it cannot be read").lower(), whose) from None


def _text(name: str, content: bytes, whose: str) -> str:
    if len(content) > LARGEST_SECRET:
        raise _unusable(name, f"it has more than {LARGEST_SECRET} bytes", whose)
    try:
        text = content.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        text = "\0"
    if not text.strip():
        raise _unusable(name, "it is empty", whose)
    if not text.isprintable():
        raise _unusable(name, "it is not one line of text", whose)
    return text


def _unusable(name: str, why: str, whose: str) -> Unavailable:
    return Unavailable(f"{SECRET}{name} cannot be read from the {whose}'s folder of secrets: {why}")
