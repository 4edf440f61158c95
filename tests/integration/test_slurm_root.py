"""The limit of Slurm's root account bounds every quota below it: who reads, who explains and who writes counts it."""

from __future__ import annotations

from typing import Any

import pytest

from activities.adapters.slurm.quotas import SlurmQuotas
from activities.adapters.slurm.wanted_limits import wanted_limits
from activities.ports.registry import OpenRollout
from models.cluster.island import Island
from models.cluster.latest_readings import Evidence
from models.cluster.readings import HealthSample, TeamUsage
from models.cluster.snapshot import snapshot_of
from models.reports.why import Cause, explain_team
from models.rollout.effects import Change, EffectKind, Fence, Reserve, ValueWrite
from tests.hostile.test_slurm import World, world

__all__ = ["world"]

ROOT_OF_20 = "1|0||root\n3|1|gres/gpu=20|org\n5|3|gres/gpu=16|team\n6|3|gres/gpu=8|other\n"


def test_why_counts_the_limit_of_the_root(world: World) -> None:
    """16 and 8 under 20: while one holds all of its 16, Slurm lets the other start 4 (AssocGrpGRES for the rest)."""
    quotas, now = SlurmQuotas(world.slurms), world.ledger.now()
    free = quotas.versions(["bad"])
    assert quotas.read("bad").bound_gpus is None
    world.tools["bad"].says(assoc=ROOT_OF_20)
    assert quotas.read("bad").bound_gpus == quotas.readings(["bad"])["bad"].bound_gpus == 20
    assert quotas.versions(["bad"]) != free, "who keeps what it worked out works it out anew"
    assert quotas.read("east").bound_gpus is None
    health = HealthSample(cluster="bad", at=now, islands=(Island(name="rack1", total_gpus=24, healthy_gpus=24),))
    used = {t: TeamUsage(team=t, scheduled_gpus=g) for t, g in {"team": 16, "other": 0}.items()}
    answer = explain_team(Evidence(quotas.read("bad"), health, used, now), {}, "other", None)
    assert (answer.wanted_gpus, answer.startable_gpus) == (8, 4)
    assert [(reason.cause, reason.gpus) for reason in answer.reasons] == [(Cause.WITHHELD, 4)]


@pytest.mark.parametrize(("assoc", "bound"), [(ROOT_OF_20, 20), (ROOT_OF_20.replace("=20", "=100"), 24)])
def test_a_rollout_does_not_raise_a_limit_that_the_root_had(world: World, assoc: str, bound: int) -> None:
    world.tools["bad"].says(assoc=assoc)
    (spec,) = (page[0] for page in world.ledger.fleet.clusters("", 10) if page[0].name == "bad")
    opened = OpenRollout(
        rollout="r-1", cluster="bad", owner="tpm", opened_at=world.ledger.now(), baseline=snapshot_of(spec)
    )
    world.ledger.registry.open_rollout(opened, adopt=False)
    source = world.ledger.schedulers.sources(["bad"])["bad"]
    world.slurms.sync("bad", source)
    fence = Fence(rollout="r-1", counter=1)
    reserve = Reserve(freed_gpus=0, limit_gpus=24)
    world.ledger.quotas.apply(Change(cluster="bad", kind=EffectKind.RESERVE, fence=fence, reserve=reserve))
    standing = world.ledger.schedulers.mirrored_cluster("bad")
    assert standing.reserved
    assert wanted_limits(standing, source, None)["pool:org"] == bound


def test_what_a_person_accepted_is_in_the_root_s_limit_once_it_is_written_as_it_stands(world: World) -> None:
    """16 and 8; an account of 6 is added, and 8 raised to 10: 24, then 32. The release takes the limit away again."""
    tools, ledger = world.tools["bad"], world.ledger
    tools.says(assoc=ROOT_OF_20.replace("gres/gpu=20", ""))
    (spec,) = (page[0] for page in ledger.fleet.clusters("", 10) if page[0].name == "bad")
    opened = OpenRollout(rollout="r-1", cluster="bad", owner="tpm", opened_at=ledger.now(), baseline=snapshot_of(spec))
    ledger.registry.open_rollout(opened, adopt=False)
    source = ledger.schedulers.sources(["bad"])["bad"]
    world.slurms.sync("bad", source)

    def lands(kind: EffectKind, counter: int, **more: Any) -> int | None:
        fence = Fence(rollout="r-1", counter=counter)
        ledger.quotas.apply(Change(cluster="bad", kind=kind, fence=fence, **more))
        return wanted_limits(ledger.schedulers.mirrored_cluster("bad"), source, None)["pool:org"]

    assert lands(EffectKind.RESERVE, 1, reserve=Reserve(freed_gpus=0, limit_gpus=24)) == 24
    raised = ROOT_OF_20.replace("gres/gpu=20", "").replace("gres/gpu=8", "gres/gpu=10")
    tools.says(assoc=f"{raised}7|3|gres/gpu=6|newteam\n")
    world.slurms.sync("bad", source)
    assert wanted_limits(ledger.schedulers.mirrored_cluster("bad"), source, None)["pool:org"] == 24
    stands = {"team": 16, "other": 10, "newteam": 6}
    writes = tuple(ValueWrite(team=team, expected_gpus=gpus, gpus=gpus) for team, gpus in stands.items())
    change = Change(cluster="bad", kind=EffectKind.SET_SOFT, fence=Fence(rollout="r-1", counter=2), writes=writes)
    assert (change.refits, change.moved_gpus) == (True, 0)
    assert lands(EffectKind.SET_SOFT, 2, writes=writes) == 32
    assert lands(EffectKind.RELEASE, 3) is None
