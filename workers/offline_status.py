"""Prints the ledger's open rollouts as JSON: `python -m workers.offline_status`.

`backstop status` runs it when no worker answers. A person waits, so it imports nothing that takes time. Exit code 3: it
cannot reach a ledger; 1: it reaches one and cannot read it.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime

from activities.adapters.ledger.offline_status import overviews_in_ledger
from client.places import ledger_url
from models.errors import BackstopError, Refusal


def main() -> None:
    now = datetime.now(UTC)
    try:
        rows = overviews_in_ledger(ledger_url(), now)
    except BackstopError as error:
        sys.stderr.write(error.message)
        sys.exit(3 if isinstance(error, Refusal) else 1)  # models.temporal_names.NO_LEDGER_EXIT
    print(json.dumps({"at": now.isoformat(), "rollouts": rows}, default=datetime.isoformat))


if __name__ == "__main__":
    main()
