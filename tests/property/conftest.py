"""The integration tests' databases are fixtures here too."""

from __future__ import annotations

from tests.integration.conftest import *  # noqa: F403
