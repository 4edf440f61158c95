"""Git and the ledger do what every quota system must do."""

from __future__ import annotations

from pathlib import Path

import pytest

from activities.adapters.ledger.facade import Ledger
from tests.git.world import CLUSTER, Forge, GitSystem, KueueSystem, ProposeSystem, ask_for_more, spec, take
from tests.integration.ledger.world import foreign_write
from tests.quota_contract import *  # noqa: F403 - its tests are asked here
from tests.quota_contract import System


class LedgerSystem(System):
    def __init__(self, forge: Forge, ledger: Ledger) -> None:
        own = spec(forge)
        del own["git"]
        take(ledger, own)
        super().__init__(ledger, ledger.quotas, CLUSTER)

    def there(self) -> tuple[int, int]:
        values = self.ledger.quotas.read(CLUSTER).values
        return values["a"], values["b"]

    def somebody_sets(self, letter: str, gpus: int) -> None:
        foreign_write(self.ledger, CLUSTER, letter, gpus, "ops")


@pytest.fixture(params=["ledger", "git", "git, kueue", "git, merged"])
def system(
    request: pytest.FixtureRequest, forge: Forge, ledger: Ledger, sqlite_ledger_url: str, tmp_path: Path
) -> System:
    if request.param == "ledger":
        return LedgerSystem(forge, ledger)
    kinds: dict[str, type[GitSystem]] = {"git": GitSystem, "git, kueue": KueueSystem, "git, merged": ProposeSystem}
    own = kinds[request.param](forge, ledger, tmp_path / "worker")
    ask_for_more(sqlite_ledger_url)
    return own
