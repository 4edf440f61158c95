"""Makes the ids of new rollouts."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime


def new_rollout_id(cluster: str) -> str:
    """Return a readable id, in order of time and never given twice; that of the fleet's rollout begins with `fleet`."""
    return f"{cluster[:100]}/{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
