from __future__ import annotations

from pathlib import Path

import pytest

from activities.adapters.ledger.facade import Ledger
from tests.git.world import Forge, GitSystem


@pytest.fixture
def ledger(sqlite_ledger_url: str) -> Ledger:
    return Ledger(sqlite_ledger_url)


@pytest.fixture
def forge(tmp_path: Path) -> Forge:
    return Forge(tmp_path / "forge")


@pytest.fixture
def site(forge: Forge, ledger: Ledger, tmp_path: Path) -> GitSystem:
    return GitSystem(forge, ledger, tmp_path / "worker")
