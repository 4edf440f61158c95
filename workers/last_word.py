"""What the ledger has of open rollouts, as JSON: `python -m workers.last_word`.

For `backstop status` where no worker answers; a person waits, so nothing is imported that takes time. Exit code 3: no
ledger can be reached from here; 1: one can, and cannot be read.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime

from activities.adapters.ledger.last_word import last_word
from client.places import ledger_url
from models.errors import BackstopError, Refusal


def main() -> None:
    now = datetime.now(UTC)
    try:
        rows = last_word(ledger_url(), now)
    except BackstopError as error:
        sys.stderr.write(error.message)
        sys.exit(3 if isinstance(error, Refusal) else 1)  # models.wire.NO_LEDGER_EXIT
    print(json.dumps({"at": now.isoformat(), "rollouts": rows}, default=datetime.isoformat))


if __name__ == "__main__":
    main()
