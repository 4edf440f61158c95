"""The contract of every quota system, tested on each alike; values are read from the systems themselves.

A test module of a system imports all of this, and has a fixture `system`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from activities.adapters.ledger.facade import Ledger
from activities.ports.quota_systems import QuotaPort
from activities.ports.registry import OpenRollout
from models.cluster.readings import LimitMode
from models.cluster.snapshot import snapshot_of
from models.errors import Conflict, Drift, Refusal
from models.rollout.effects import Change, EffectKind, Fence, Receipt, Reserve, ValueWrite

T = TypeVar("T")


class System(ABC):
    """A quota system with a (24 GPUs) and b (16), and somebody else who writes to it."""

    def __init__(self, ledger: Ledger, port: QuotaPort, cluster: str) -> None:
        self.ledger = ledger
        self.port = port
        self.cluster = cluster

    def team(self, letter: str) -> str:
        return letter

    @abstractmethod
    def there(self) -> tuple[int, int]:
        """Return the values of a and b in the system itself."""

    @abstractmethod
    def somebody_sets(self, letter: str, gpus: int) -> None: ...

    def open(self, rollout: str = "r-1") -> None:
        self.port.read(self.cluster)
        spec, _ = self.ledger.fleet.clusters("", 1)[0]
        planned = OpenRollout(
            rollout=rollout,
            cluster=self.cluster,
            owner="tpm",
            opened_at=self.ledger.now(),
            baseline=snapshot_of(spec),
        )
        self.ledger.registry.open_rollout(planned, adopt=False)

    def generation(self) -> int:
        return self.port.read(self.cluster).generation

    def apply(self, kind: EffectKind, counter: int, *writes: tuple[str, int, int], **more: Any) -> Receipt:
        return self.port.apply(self.change(kind, counter, *writes, **more))

    def change(
        self, kind: EffectKind, counter: int, *writes: tuple[str, int, int], rollout: str = "r-1", **more: Any
    ) -> Change:
        values = tuple(
            ValueWrite(team=self.team(t), expected_gpus=before, gpus=after, mode=LimitMode.HARD)
            for t, before, after in writes
        )
        fence = Fence(rollout=rollout, counter=counter)
        return Change(**{"cluster": self.cluster, "kind": kind, "fence": fence, "writes": values, **more})


def twice(call: Callable[[], T]) -> T:
    first = call()
    assert call() == first
    return first


def test_an_effect_lands_once_however_often_it_is_delivered(system: System) -> None:
    system.open()
    receipt = twice(lambda: system.apply(EffectKind.SET_SOFT, 1, ("a", 24, 16), ("b", 16, 8)))
    assert sorted(receipt.before.values()) == [16, 24]
    assert system.there() == (16, 8)
    system.somebody_sets("a", 20)
    assert system.apply(EffectKind.SET_SOFT, 1, ("a", 24, 16), ("b", 16, 8)) == receipt
    assert system.there() == (20, 8), "a delivery of long ago changes nothing"


def test_a_zombie_and_a_stranger_are_refused(system: System) -> None:
    system.open()
    system.apply(EffectKind.SET_SOFT, 2, ("a", 24, 16))
    for counter, rollout in ((1, "r-1"), (3, "r-2")):
        with pytest.raises(Conflict):
            system.apply(EffectKind.SET_SOFT, counter, ("a", 16, 8), rollout=rollout)
    assert system.there() == (16, 16)


def test_a_moved_generation_refuses_a_forward_effect_whole(system: System) -> None:
    system.open()
    read = system.generation()
    system.somebody_sets("b", 12)
    with pytest.raises(Drift):
        system.apply(EffectKind.SET_SOFT, 1, ("a", 24, 16), expected_generation=read)
    assert system.there() == (24, 12)
    assert system.generation() == read + 1


def test_its_own_writes_do_not_move_the_generation(system: System) -> None:
    system.open()
    read = system.generation()
    system.apply(EffectKind.RESERVE, 1, reserve=Reserve(freed_gpus=8, limit_gpus=32), expected_generation=read)
    system.apply(EffectKind.SET_SOFT, 2, ("a", 24, 16), expected_generation=read)
    system.apply(EffectKind.HARDEN, 3, mode=LimitMode.HARD, expected_generation=read)
    assert system.generation() == read


def test_an_inverse_leaves_alone_what_others_changed_and_says_so(system: System) -> None:
    system.open()
    system.apply(EffectKind.SET_SOFT, 1, ("a", 24, 16), ("b", 16, 8))
    system.somebody_sets("a", 12)
    back = twice(lambda: system.apply(EffectKind.RESTORE, 2, ("a", 16, 24), ("b", 8, 16)))
    assert [c.found_gpus for c in back.conflicts] == [12]
    assert system.there() == (12, 16)


def test_an_undo_that_softens_leaves_what_others_lowered(system: System) -> None:
    system.open()
    system.apply(EffectKind.SET_SOFT, 1, ("a", 24, 16), ("b", 16, 8))
    system.somebody_sets("a", 12)
    system.apply(EffectKind.SOFTEN, 2, mode=LimitMode.SOFT)
    assert system.there()[0] == 12
    back = system.apply(EffectKind.RESTORE, 3, ("a", 16, 24), ("b", 8, 16))
    assert [c.found_gpus for c in back.conflicts] == [12]
    assert system.there() == (12, 16)


def test_who_changed_it_is_known(system: System) -> None:
    system.open()
    before = system.generation()
    system.somebody_sets("a", 20)
    system.generation()
    (change,) = system.port.changes(system.cluster, before)
    assert change.team == system.team("a")
    assert change.by


def test_without_a_rollout_a_request_writes_under_its_own_fence(system: System) -> None:
    read = system.generation()
    grant: dict[str, Any] = {"rollout": "request/q-1", "expected_generation": read}
    twice(lambda: system.apply(EffectKind.GRANT, 1, ("a", 24, 30), **grant))
    assert system.there() == (30, 16)
    assert system.generation() == read + 1
    system.open()
    with pytest.raises(Conflict, match="a grant has to go through that rollout"):
        system.apply(EffectKind.GRANT, 2, ("a", 30, 24), rollout="request/q-1")


def test_an_unknown_cluster_is_refused(system: System) -> None:
    with pytest.raises(Refusal):
        system.port.read("nowhere")
