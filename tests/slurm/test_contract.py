"""A real Slurm does what every quota system must do."""

from __future__ import annotations

import pytest

from tests.quota_contract import *  # noqa: F403 - its tests are asked here
from tests.quota_contract import System
from tests.slurm.conftest import Site

pytestmark = pytest.mark.nightly  # a real Slurm


class SlurmSystem(System):
    def __init__(self, site: Site) -> None:
        site.adopt()
        super().__init__(site.ledger, site.quotas, site.cluster)
        self._site = site

    def team(self, letter: str) -> str:
        return self._site.team(letter)

    def there(self) -> tuple[int, int]:
        a, b = self._site.lab.limits(self.team("a"), self.team("b"))
        return int(a), int(b)

    def somebody_sets(self, letter: str, gpus: int) -> None:
        self._site.lab.set_limit(self.team(letter), gpus)


@pytest.fixture
def system(site: Site) -> System:
    return SlurmSystem(site)
