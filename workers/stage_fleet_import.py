"""Writes one part of an import straight into the ledger: `python -m workers.stage_fleet_import ID PART < payload`.

A fleet file may hold contacts' secrets, and Temporal keeps what it carries in its histories for years. So the command
line hands such a file to this program, which writes it to the workers' ledger; only the order to commit it goes through
Temporal. Exit code 3: no ledger can be reached from here.
"""

from __future__ import annotations

import sys
from pathlib import Path

from activities.adapters.ledger.facade import Ledger
from client.places import ledger_url
from models.errors import BackstopError
from models.temporal_names import NO_LEDGER_EXIT

_FILE = "sqlite:///"


def main() -> None:
    import_id, part = sys.argv[1:]
    url = ledger_url()
    if url.startswith(_FILE) and not Path(url.removeprefix(_FILE)).exists():
        sys.exit(NO_LEDGER_EXIT)  # opening it would make an empty one
    try:
        with Ledger(url) as ledger:
            ledger.fleet.stage_import(import_id, int(part), sys.stdin.buffer.read())
    except BackstopError as error:
        sys.stderr.write(error.message)
        sys.exit(1)


if __name__ == "__main__":
    main()
