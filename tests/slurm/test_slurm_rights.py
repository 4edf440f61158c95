"""The rights that the worker's user needs in Slurm, told by a real Slurm to a user without any (docs/slurm.md)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from models.cluster.readings import LimitMode
from models.cluster.sources import ClassesInSlurm
from models.errors import Refusal
from models.rollout.effects import EffectKind, Reserve
from tests.slurm.conftest import LESSER, Site
from tests.slurm.test_slurm_quotas import land, opened

pytestmark = pytest.mark.nightly  # a real Slurm

ACCOUNTS = "may not set limits of accounts in Slurm: give that user AdminLevel Operator"
QOS = (
    "may not set the limit of the QOS flex in Slurm: give that user AdminLevel Admin, or import the cluster with "
    "--no-size-flex"
)


@pytest.fixture
def known(lesser: Site) -> Iterator[Site]:
    """Slurm's accounting database knows the user, who may do nothing there yet."""
    lab = lesser.lab
    lab.run("sacctmgr", "-i", "-Q", "add", "user", LESSER, f"account={lesser.root}")
    yield lesser
    lab.run("sacctmgr", "-i", "-Q", "delete", "user", LESSER)


def level(site: Site, name: str) -> None:
    site.lab.run("sacctmgr", "-i", "-Q", "modify", "user", LESSER, "set", f"adminlevel={name}")


def transactions(site: Site) -> str:
    return site.lab.run("sacctmgr", "-n", "-P", "list", "transactions", f"actor={LESSER}")


def test_whoever_may_only_look_can_plan_and_rehearse(lesser: Site) -> None:
    lesser.adopt()
    assert lesser.quotas.read(lesser.cluster).values == {lesser.team("a"): 24, lesser.team("b"): 16}
    sample = lesser.health.read([lesser.cluster])[lesser.cluster]
    assert sum(i.healthy_gpus for i in sample.islands) == 48
    lesser.usage.latest([lesser.cluster], lesser.ledger.now())
    assert ACCOUNTS in lesser.quotas.barred_reason(lesser.cluster)
    check = lesser.slurms.check()[lesser.cluster]
    assert (check.wrong, ACCOUNTS in check.barred) == ("", True)
    opened(lesser)
    with pytest.raises(Refusal, match="Slurm does not let this worker run sacctmgr"):
        land(lesser, EffectKind.SET_SOFT, 1, ("a", 24, 16), to=LimitMode.HARD)
    assert lesser.limits() == ["", "24", "16"]


def test_an_operator_may_all_but_size_flex(known: Site) -> None:
    known.adopt()
    level(known, "Operator")
    before = transactions(known)
    assert QOS in known.quotas.barred_reason(known.cluster)
    assert transactions(known) == before, "asking changes nothing"

    source = known.source.model_copy(update={"size_flex": False})
    known.adopt(source)
    opened(known)
    assert known.quotas.barred_reason(known.cluster) == ""
    land(known, EffectKind.RESERVE, 1, reserve=Reserve(freed_gpus=8, limit_gpus=32))
    land(known, EffectKind.SET_SOFT, 2, ("a", 24, 16), to=LimitMode.HARD)
    land(known, EffectKind.FOLLOW, 3, flex_gpus=16)
    assert known.limits() == ["32", "16", "16"]
    assert known.flex_limit() is None, "left alone"
    assert known.slurms.check()[known.cluster].wrong == ""
    land(known, EffectKind.UNFOLLOW, 4)
    land(known, EffectKind.RESTORE, 5, ("a", 16, 24), to=LimitMode.HARD)
    land(known, EffectKind.RELEASE, 6)
    assert known.limits() == ["", "24", "16"]


def test_an_administrator_may_size_flex(known: Site) -> None:
    known.adopt()
    opened(known)
    level(known, "Admin")
    assert known.quotas.barred_reason(known.cluster) == ""
    land(known, EffectKind.FOLLOW, 1, flex_gpus=16)
    assert known.flex_limit() == 16 + 40
    land(known, EffectKind.UNFOLLOW, 2)
    assert known.flex_limit() is None


def test_a_coordinator_cannot_bound_what_is_freed(known: Site) -> None:
    """Limits of the teams are theirs to set, that of the account above them is not: the first write says so."""
    known.lab.run("sacctmgr", "-i", "-Q", "add", "coordinator", f"account={known.root}", f"names={LESSER}")
    known.adopt(known.source.model_copy(update={"size_flex": False}))
    opened(known)
    with pytest.raises(Refusal, match="Slurm does not let this worker run sacctmgr"):
        land(known, EffectKind.RESERVE, 1, reserve=Reserve(freed_gpus=8, limit_gpus=32))
    assert known.limits() == ["", "24", "16"]


def test_an_operator_may_not_make_qos_for_classes_and_limits_are_written_all_the_same(known: Site) -> None:
    source = known.source.model_copy(update={"size_flex": False, "classes": ClassesInSlurm.WRITE})
    level(known, "Operator")
    found = known.slurms.describe(known.cluster, source)
    known.import_clusters(found.model_copy(update={"policy": {"classes": ["training", "engines"]}}))
    known.quotas.read(known.cluster)
    assert known.quotas.barred_reason(known.cluster) == (
        "the worker's user may not write the QOS of classes in Slurm: give that user AdminLevel Admin, "
        "or import the cluster with classes: off (docs/slurm.md)"
    )
    opened(known)
    land(known, EffectKind.SET_SOFT, 1, ("a", 24, 16), to=LimitMode.HARD)
    known.slurms.look_at_classes(known.cluster, source)
    assert known.limits()[1] == "16"
    assert known.root not in known.lab.run("sacctmgr", "-n", "-P", "show", "qos", "format=Name")
    (check,) = known.slurms.check().values()
    assert "classes that differ from what Backstop wants" in check.wrong
