"""Writes secrets to the ledger past Temporal, by a program of the workers' (workers/stage_fleet_import.py)."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

from backstop.program import program
from models.errors import Refusal, Unavailable
from models.temporal_names import NO_LEDGER_EXIT

if TYPE_CHECKING:
    from models.access.access_file import AccessFile

_SECONDS = 120


def stage_import(import_id: str, part: int, payload: bytes) -> None:
    """Write this part of an import into the ledger that this machine reaches. Errors: Refusal if it reaches none."""
    no_ledger = (
        "the fleet has contacts that contain secrets, which may not pass through Temporal, because Temporal stores "
        "them: import on a machine where BACKSTOP_LEDGER_URL reaches the workers' ledger, or write named:NAME as the "
        "contact, and put NAME with its URL into the workers' file of contacts (BACKSTOP_CONTACTS)"
    )
    _write([*program("workers.stage_fleet_import"), import_id, str(part)], payload, no_ledger)


def recover_access(file: AccessFile, actor: str, reason: str) -> str:
    """Put the access file in force in the ledger that this machine reaches. Errors: Refusal if it reaches none."""
    command = [*program("workers.access_recover"), actor, reason]
    text = file.model_dump_json(exclude_unset=True, by_alias=True).encode()
    no_ledger = "this machine reaches no ledger: set BACKSTOP_LEDGER_URL to the workers' ledger"
    return str(json.loads(_write(command, text, no_ledger))["said"])


def _write(command: list[str], text: bytes, no_ledger: str) -> bytes:
    """Return what the program answers. Errors: Refusal with this sentence where it reaches no ledger; Unavailable."""
    try:
        done = subprocess.run(command, input=text, capture_output=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        raise Unavailable("the ledger does not answer: try again") from None
    if done.returncode == NO_LEDGER_EXIT:
        raise Refusal(no_ledger)
    if done.returncode:
        raise Unavailable(done.stderr.decode(errors="replace").strip()[-500:] or "the ledger cannot be written")
    return done.stdout
