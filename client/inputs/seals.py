"""Reads seals and their public key from a person. Both together suffice to check the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from activities.regular_files import regular_file
from client.places import home
from models.errors import BadInput
from models.seals import ORIGIN, Seal, checked_seals, seals_in, verifier_of

_MOST = 2**31


def read_seals(where: str, keys: Sequence[str]) -> list[Seal]:
    """Read the seals of a file, or of a folder (a Git repository) that has `seals.txt`, and check each.

    `keys`: files with a public key, or keys as text; none: the one beside this machine's own. Errors: BadInput.
    """
    place = Path(where)
    place = place / "seals.txt" if place.is_dir() else place
    verifiers = [verifier_of(_key_text(key)) for key in keys or [str(home() / "keys" / "seal.pub")]]
    try:
        return checked_seals(seals_in(_content(place), str(place)), verifiers)
    except BadInput as error:
        raise BadInput(error.message if str(place) in error.message else f"{place}: {error.message}") from None


def _key_text(text: str) -> str:
    if text.startswith(f"{ORIGIN}+"):
        return text
    return _content(Path(text)).decode(errors="replace")


def _content(place: Path) -> bytes:
    try:
        with regular_file(place) as (file, status):
            if status.st_size > _MOST:
                raise BadInput(f"{place} is too large")
            return file.read()
    except OSError as error:
        raise BadInput(f"{place} cannot be read: {(error.strerror or 'not a file').lower()}") from None
