"""Slurm as a quota system: what the ledger's contract asks for, told by sacctmgr itself."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from activities.ports.registry import OpenRollout
from models.cluster.readings import LimitMode
from models.cluster.snapshot import snapshot_of
from models.errors import BadInput, Conflict, Drift, Refusal, Unavailable
from models.questions import SchedulerCheck
from models.rollout.effects import Change, EffectKind, Fence, Receipt, Reserve, ValueWrite
from tests.integration.ledger.world import note_stage
from tests.slurm.conftest import Site

pytestmark = pytest.mark.nightly  # a real Slurm

T = TypeVar("T")


def twice(call: Callable[[], T]) -> T:
    first = call()
    assert call() == first
    return first


def opened(site: Site, rollout: str = "r-1") -> None:
    (spec, _) = next(page for page in site.ledger.fleet.clusters("", 10) if page[0].name == site.cluster)
    planned = OpenRollout(
        rollout=rollout, cluster=site.cluster, owner="tpm", opened_at=site.ledger.now(), baseline=snapshot_of(spec)
    )
    site.ledger.registry.open_rollout(planned, adopt=False)


def land(site: Site, kind: EffectKind, counter: int, *writes: tuple[str, int, int], **more: Any) -> Receipt:
    mode = more.pop("to", None)
    made = tuple(
        ValueWrite(team=site.team(t), expected_gpus=before, gpus=after, mode=mode) for t, before, after in writes
    )
    fence = Fence(rollout=more.pop("rollout", "r-1"), counter=counter)
    change = Change(cluster=site.cluster, kind=kind, fence=fence, writes=made, **more)
    return twice(lambda: site.quotas.apply(change))


def test_it_is_read_as_it_stands(site: Site) -> None:
    site.adopt()
    reading = site.quotas.read(site.cluster)
    assert reading.values == {site.team("a"): 24, site.team("b"): 16}
    sample = site.health.read([site.cluster])[site.cluster]
    assert [(i.name, i.total_gpus, i.healthy_gpus) for i in sample.islands] == [
        ("island1", 24, 24),
        ("island2", 24, 24),
    ]


def test_a_whole_rollout_is_seen_in_sacctmgr(site: Site) -> None:
    site.adopt()
    opened(site)
    reading = site.quotas.read(site.cluster)
    land(
        *(site, EffectKind.RESERVE, 1),
        reserve=Reserve(freed_gpus=8, limit_gpus=32),
        expected_generation=reading.generation,
    )
    assert site.limits() == ["40", "24", "16"], "what bounds them all, and nothing else yet"
    land(site, EffectKind.SET_SOFT, 2, ("a", 24, 16), to=LimitMode.SOFT, expected_generation=reading.generation)
    assert site.quotas.read(site.cluster).values[site.team("a")] == 16
    assert site.limits() == ["40", "24", "16"], "soft: what was admitted still is"
    land(site, EffectKind.HARDEN, 3, mode=LimitMode.HARD, expected_generation=reading.generation)
    assert site.limits() == ["32", "16", "16"]
    land(site, EffectKind.FOLLOW, 4, expected_generation=reading.generation, flex_gpus=16)
    assert site.flex_limit() == 48, "16 that no quota stands on, and what quotas may leave unused"
    land(site, EffectKind.UNFOLLOW, 5)
    land(site, EffectKind.SOFTEN, 6, mode=LimitMode.SOFT)
    assert site.limits() == ["40", "24", "16"], "soft again: what was admitted before is"
    land(site, EffectKind.RESTORE, 7, ("a", 16, 24), to=LimitMode.HARD)
    land(site, EffectKind.RELEASE, 8)
    assert site.limits() == ["", "24", "16"], "as it was"
    assert site.flex_limit() is None
    assert site.quotas.read(site.cluster).generation == reading.generation, "none of it was a change by others"


def test_other_limits_of_an_account_stay(site: Site) -> None:
    site.lab.run("sacctmgr", "-i", "-Q", "modify", "account", site.team("a"), "set", "GrpTRES=cpu=512")
    site.adopt()
    opened(site)
    land(site, EffectKind.SET_SOFT, 1, ("a", 24, 16), to=LimitMode.HARD)
    shown = site.lab.run(
        "sacctmgr", "-n", "-P", "show", "assoc", f"account={site.team('a')}", "user=", "format=GrpTRES"
    )
    assert shown == "cpu=512,gres/gpu=16"


def test_a_raise_that_slurm_lets_through_is_found_and_says_who(site: Site) -> None:
    site.adopt()
    opened(site)
    land(site, EffectKind.RESERVE, 1, reserve=Reserve(freed_gpus=8, limit_gpus=32))
    land(site, EffectKind.SET_SOFT, 2, ("a", 24, 16), to=LimitMode.HARD)
    before, version = site.quotas.read(site.cluster).generation, site.quotas.versions([site.cluster])
    site.lab.set_limit(site.team("b"), 40)
    assert site.quotas.versions([site.cluster]) != version, "the watch sees it"
    reading = site.quotas.read(site.cluster)
    assert (reading.values[site.team("b")], reading.generation) == (40, before + 1)
    (change,) = site.quotas.changes(site.cluster, before)
    assert (change.team, change.by) == (site.team("b"), "root, by sacctmgr")
    assert site.limits()[0] == "32", "and what bounds them all still does"
    with pytest.raises(Drift):
        land(site, EffectKind.HARDEN, 3, mode=LimitMode.HARD, expected_generation=before)
    receipt = land(site, EffectKind.RESTORE, 4, ("b", 16, 16), ("a", 16, 24), to=LimitMode.HARD)
    assert [c.found_gpus for c in receipt.conflicts] == [40]
    assert site.limits()[1:] == ["24", "40"], "left alone"


def test_a_bound_that_somebody_takes_away_is_told_and_put_right_by_the_next_write(site: Site) -> None:
    site.adopt()
    opened(site)
    land(site, EffectKind.RESERVE, 1, reserve=Reserve(freed_gpus=8, limit_gpus=32))
    land(site, EffectKind.SET_SOFT, 2, ("a", 24, 16), to=LimitMode.HARD)
    site.lab.set_limit(site.root, -1)
    wrong = f"limits that differ from what Backstop wants: pool:{site.root}"
    assert site.slurms.check() == {site.cluster: SchedulerCheck(wrong=wrong)}
    land(site, EffectKind.SET_SOFT, 3, ("a", 16, 16), to=LimitMode.HARD)
    assert site.limits()[0] == "32"
    assert site.slurms.check() == {site.cluster: SchedulerCheck()}


def test_limits_that_stand_elsewhere_are_said(site: Site) -> None:
    site.adopt()
    a, sacctmgr = site.team("a"), ("sacctmgr", "-i", "-Q")
    assert site.slurms.check() == {site.cluster: SchedulerCheck()}
    limits = ("GrpTRES=gres/gpu=8", "MaxTRESPerAccount=gres/gpu=4", "MaxTRESPerUser=gres/gpu=2", "GrpTRES=cpu=8")
    names = [f"{site.root}-qos{number}" for number, _ in enumerate(limits)]
    try:
        for name, limit in zip(names, limits, strict=True):
            site.lab.run(*sacctmgr, "add", "qos", name)
            site.lab.run(*sacctmgr, "modify", "qos", name, "set", limit)
        site.lab.run(*sacctmgr, "modify", "account", a, "set", "GrpTRES=gres/gpu:h100=6")
        by_kind, by_qos = site.slurms.describe(site.cluster, site.source).unread
        assert by_kind.startswith(
            f"account {a} has a limit of gres/gpu:h100, and Backstop reads only limits of gres/gpu"
        )
        assert by_qos.startswith(
            f"QOS {', '.join(names[:3])} limit gres/gpu, and Backstop reads only limits of accounts"
        )
        assert site.slurms.check() == {site.cluster: SchedulerCheck(note=f"{by_kind}; {by_qos}")}
    finally:
        site.lab.run(*sacctmgr, "remove", "qos", ",".join(names))
    site.lab.run(*sacctmgr, "modify", "account", a, "set", "GrpTRES=gres/gpu:h100=-1")
    assert site.slurms.check() == {site.cluster: SchedulerCheck()}


def test_an_import_forgets_an_account_that_is_gone(site: Site) -> None:
    site.adopt()
    b = site.team("b")
    assert set(site.ledger.quotas.read(site.cluster).values) == {site.team("a"), b}
    site.lab.run("sacctmgr", "-i", "-Q", "remove", "account", b)
    site.slurms.describe(site.cluster, site.source)
    assert set(site.ledger.quotas.read(site.cluster).values) == {site.team("a")}


def test_a_look_while_a_bound_is_written_takes_it_for_nobody_s(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.adopt()
    opened(site)
    write = site.slurms._write

    def looked_at(*given: Any) -> None:
        write(*given)
        site.quotas.read(site.cluster)  # as the watch does

    monkeypatch.setattr(site.slurms, "_write", looked_at)
    land(site, EffectKind.RESERVE, 1, reserve=Reserve(freed_gpus=8, limit_gpus=32))
    land(site, EffectKind.SET_SOFT, 2, ("a", 24, 16), to=LimitMode.HARD)
    land(site, EffectKind.RESTORE, 3, ("a", 16, 24), to=LimitMode.HARD)
    land(site, EffectKind.RELEASE, 4)
    assert site.limits() == ["", "24", "16"]


def test_what_is_not_there_is_said_so(site: Site) -> None:
    for changes, sentence in (
        ({"cluster": "nowhere"}, "Slurm has no cluster 'nowhere'; it has: lab"),
        ({"root": "nobody"}, "Slurm has no account 'nobody'"),
        ({"connection": "none"}, "this worker has no such Slurm connection; it has: lab, local"),
    ):
        with pytest.raises(BadInput, match=sentence):
            site.slurms.describe("lab", site.source.model_copy(update=changes))
    with pytest.raises(Refusal, match="has no cluster"):
        site.slurms.detach("nowhere", restore=True)


def test_an_account_that_comes_or_goes_is_a_change_by_others(site: Site) -> None:
    site.adopt()
    opened(site)
    before = site.quotas.read(site.cluster).generation
    site.lab.account(site.team("c"), site.root, 8)
    site.lab.run("sacctmgr", "-i", "-Q", "modify", "account", site.team("b"), "set", "GrpTRES=gres/gpu=-1")
    reading = site.quotas.read(site.cluster)
    assert reading.values == {site.team("a"): 24, site.team("c"): 8}
    assert reading.generation == before + 2


def test_fences_are_kept_though_slurm_has_none(site: Site) -> None:
    site.adopt()
    opened(site)
    land(site, EffectKind.SET_SOFT, 2, ("a", 24, 16), to=LimitMode.HARD)
    with pytest.raises(Conflict):
        land(site, EffectKind.SET_SOFT, 1, ("a", 24, 8), to=LimitMode.HARD)
    assert site.limits()[1] == "16"


def test_what_was_cut_short_is_finished_by_the_next_try(site: Site) -> None:
    site.adopt()
    opened(site)
    change = Change(
        cluster=site.cluster,
        kind=EffectKind.SET_SOFT,
        fence=Fence(rollout="r-1", counter=1),
        writes=tuple(
            ValueWrite(team=site.team(t), expected_gpus=before, gpus=8, mode=LimitMode.HARD)
            for t, before in (("a", 24), ("b", 16))
        ),
    )
    site.ledger.quotas.apply(change)  # and the worker dies: Slurm has heard of nothing yet
    site.lab.set_limit(site.team("a"), 8)  # or of the half of it
    generation = site.ledger.quotas.read(site.cluster).generation
    assert site.quotas.read(site.cluster).generation == generation, "nobody else has changed anything"
    twice(lambda: site.quotas.apply(change))
    assert site.limits()[1:] == ["8", "8"]


def test_without_slurmdbd_nothing_is_known_and_nothing_is_written(site: Site) -> None:
    site.adopt()
    opened(site)
    site.lab.kill("slurmdbd", signal.SIGTERM)
    try:
        for call in (lambda: site.quotas.read(site.cluster), lambda: land(site, EffectKind.RELEASE, 1)):
            with pytest.raises(Unavailable):
                call()
        assert site.ledger.quotas.read(site.cluster).values[site.team("a")] == 24
    finally:
        site.lab.start()
    land(site, EffectKind.SET_SOFT, 1, ("a", 24, 16), to=LimitMode.HARD)
    assert site.limits()[1] == "16"


def test_the_doctor_tells_whether_it_can_be_read(site: Site) -> None:
    site.adopt()
    assert site.slurms.check() == {site.cluster: SchedulerCheck()}
    site.slurms._talks.clear()
    (check,) = site.slurms.check().values()
    assert check.wrong == "this worker has no Slurm connection 'lab': add it to the file that BACKSTOP_SLURM names"


def test_it_is_taken_out_again_and_slurm_is_as_it_was(site: Site) -> None:
    site.adopt()
    opened(site)
    land(site, EffectKind.RESERVE, 1, reserve=Reserve(freed_gpus=8, limit_gpus=32))
    land(site, EffectKind.SET_SOFT, 2, ("a", 24, 16), ("b", 16, 8), to=LimitMode.HARD)
    with pytest.raises(Refusal, match="rollout r-1 is open in lab: close or abort it first"):
        site.slurms.detach(site.cluster, restore=True)
    land(site, EffectKind.CLOSE, 3)
    note_stage(site.ledger, "r-1", "closed", ended=True, completed=True)
    site.lab.set_limit(site.team("b"), 12)
    before = site.limits()
    told = site.slurms.detach(site.cluster, restore=True, look=True)
    assert site.limits() == before, "a look changes nothing"
    back = site.slurms.detach(site.cluster, restore=True)
    assert told == back == {site.team("a"): (16, 24)}, "b is somebody else's by now, and closing had freed the pool"
    assert site.limits() == ["", "24", "12"]
    with pytest.raises(Refusal, match="lab is not connected to Slurm: there is nothing to detach"):
        site.slurms.detach(site.cluster, restore=True)


def test_an_account_that_a_person_accepts_is_within_the_root_and_an_undo_takes_the_root_back(site: Site) -> None:
    site.adopt()
    opened(site)
    land(site, EffectKind.RESERVE, 1, reserve=Reserve(freed_gpus=8, limit_gpus=32))
    land(site, EffectKind.SET_SOFT, 2, ("a", 24, 16), to=LimitMode.HARD)
    site.lab.account(site.team("c"), site.root, 8)
    site.lab.set_limit(site.team("b"), 20)
    reading = site.quotas.read(site.cluster)
    assert (site.limits()[0], reading.bound_gpus) == ("32", 32), "44 are wanted under it: Slurm holds jobs of all"
    stands = tuple((t, g, g) for t, g in (("a", 16), ("b", 20), ("c", 8)))
    land(site, EffectKind.SET_SOFT, 3, *stands, expected_generation=reading.generation)
    assert [*site.limits(), site.lab.limit(site.team("c"))] == ["44", "16", "20", "8"]
    assert site.quotas.read(site.cluster).bound_gpus == 44
    site.lab.set_limit(site.team("b"), 40)
    assert site.quotas.read(site.cluster).values[site.team("b")] == 40
    assert site.limits()[0] == "44", "what nobody accepted has no room"
    site.lab.set_limit(site.team("b"), 20)
    site.quotas.read(site.cluster)
    land(site, EffectKind.RESTORE, 4, ("a", 16, 24), ("b", 20, 20), ("c", 8, 8), to=LimitMode.HARD)
    land(site, EffectKind.RELEASE, 5)
    assert [*site.limits(), site.lab.limit(site.team("c"))] == ["", "24", "20", "8"]
