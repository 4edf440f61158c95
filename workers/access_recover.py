"""Lets an admin in who locked everybody out: `python -m workers.access_recover ACTOR REASON < file.json`.

It writes the access file straight into the ledger that BACKSTOP_LEDGER_URL names, with neither front nor Temporal nor a
second person: somebody with the ledger's address and password could write there anyhow. The audit records it. Without a
file it prints the present state. Exit code 3: no ledger can be reached from here.
"""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path

from activities.adapters.ledger.facade import Ledger
from client.places import ledger_url
from models.access.access_file import AccessFile
from models.access.access_versions import HowImported, standing_sentence
from models.audit_chain import DESK, Signature
from models.errors import BackstopError, Stuck
from models.temporal_names import NO_LEDGER_EXIT

_FILE = "sqlite:///"


def main() -> None:
    actor, reason = sys.argv[1:]
    url = ledger_url()
    if url.startswith(_FILE) and not Path(url.removeprefix(_FILE)).exists():
        sys.exit(NO_LEDGER_EXIT)  # opening it would make an empty one
    text = sys.stdin.read()
    try:
        with Ledger(url) as ledger:
            sys.stdout.write(json.dumps({"said": recover(ledger, AccessFile.model_validate_json(text), actor, reason)}))
    except BackstopError as error:
        sys.stderr.write(error.message)
        sys.exit(1)


def recover(ledger: Ledger, file: AccessFile, actor: str, reason: str) -> str:
    """Put the file in force, whatever the present one is. Errors: Conflict, Unavailable."""
    by = Signature(actor=actor, at=ledger.now(), key=f"{DESK}recover/{uuid.uuid4().hex}", reason=reason)
    try:
        standing = ledger.access.access()
        after = 0 if standing is None else standing.version
    except Stuck:
        after = ledger.access.newest_version()
    return standing_sentence(ledger.access.put_in_force(file, after, by, HowImported.RECOVERED))


if __name__ == "__main__":
    main()
