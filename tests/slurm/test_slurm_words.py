"""Words that people write into a real Slurm, and what two clusters on one slurmdbd have in common."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from models.cluster.fleet_file import ClusterSpec
from models.cluster.island import Island
from models.cluster.jobs import RunsOn
from models.cluster.quota import Quota
from models.rollout.effects import EffectKind
from tests.slurm.conftest import Site
from tests.slurm.test_slurm_nodes import healthy
from tests.slurm.test_slurm_quotas import land, opened

pytestmark = pytest.mark.nightly  # a real Slurm

OTHER = "lab2"


@pytest.mark.parametrize(
    "reason",
    [
        "Permission denied",
        "was State=IDLE",
        "Access denied State=IDLE CfgTRES=gres/gpu=64",
        "x\nNodeName=gpu999 State=IDLE Gres=gpu:8 CfgTRES=gres/gpu=8",
        "a\udcffb \N{FIRE}",
    ],
)
def test_the_reason_of_a_drain_is_only_a_reason(site: Site, reason: str) -> None:
    site.adopt()
    for node, others in (("gpu001", 24), ("gpu004", 16)):
        site.lab.run("scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}", f"comment={reason}")
        assert healthy(site)["island2"] == others
    try:
        sample = site.health.read([site.cluster])[site.cluster]
        assert {i.name: (i.total_gpus, i.healthy_gpus) for i in sample.islands} == {
            "island1": (24, 16),
            "island2": (24, 16),
        }
        assert site.slurms.check()[site.cluster].wrong == ""
    finally:
        for node in ("gpu001", "gpu004"):
            site.lab.run("scontrol", "update", f"nodename={node}", "state=resume", "comment=")


HOSTILE = ["access denied", "x" * 500, "a\tb\n999|c", '"};{', "a\udcffb", "=1+1", "\N{FIRE}" * 60]


def test_a_job_may_be_called_anything(site: Site) -> None:
    lab, team = site.lab, site.team("a")
    jobs = [lab.submit(team, 1, name, f"--comment={name}") for name in HOSTILE]
    try:
        lab.until(lambda: all(lab.job(job)[0] == "RUNNING" for job in jobs), "they run")
        site.adopt()
        use = site.usage.latest([site.cluster], site.ledger.now())[site.cluster]
        assert (use[team].scheduled_gpus, use[site.team("b")].scheduled_gpus) == (len(jobs), 0)
        found = site.ledger.jobs.jobs([site.cluster], site.ledger.now())[site.cluster]
        assert sum(j.gpus for j in found if j.ended is None and j.on is RunsOn.QUOTA) == len(jobs)
        names = {j.job for j in found if j.ended is None}
        assert f"access denied ({jobs[0]})" in names
        assert f"a b 999|c ({jobs[2]})" in names
        assert site.slurms.check()[site.cluster].wrong == ""
    finally:
        lab.run("scancel", *jobs)


def test_an_account_may_be_called_anything(site: Site) -> None:
    lab = site.lab
    names = ["permission denied", "o'neil", "a|b", "n\nm", "c:d"]
    for name in names:
        lab.run("sacctmgr", "-i", "-Q", "add", "account", f"names={name}", "Cluster=lab", f"Parent={site.root}")
    try:
        site.adopt()
        assert site.quotas.read(site.cluster).values == {site.team("a"): 24, site.team("b"): 16}
        opened(site)
        lab.run("sacctmgr", "-i", "-Q", "modify", "account", "names=a|b", "set", "GrpTRES=gres/gpu=3")
        before = site.ledger.quotas.read(site.cluster).generation
        assert site.quotas.read(site.cluster).values["a|b"] == 3
        (change,) = site.quotas.changes(site.cluster, before)
        assert (change.team, change.by) == ("a|b", "root, by sacctmgr")
        names.append("n\n777|1|gres/gpu=99|ghost")
        lab.run("sacctmgr", "-i", "-Q", "add", "account", f"names={names[-1]}", "Cluster=lab", f"Parent={site.root}")
        assert "ghost" not in site.ledger.quotas.read(site.cluster).values
        assert site.slurms.check()[site.cluster].wrong == (
            "sacctmgr printed inconsistent associations, or somebody changed them while it ran: try again"
        )
    finally:
        for name in names:
            lab.run("sacctmgr", "-i", "-Q", "delete", "account", f"names={name}", "Cluster=lab")


@pytest.fixture
def other(site: Site) -> Iterator[Site]:
    """A second cluster of the same slurmdbd: it has accounts of its own, and shares the QOS."""
    lab = site.lab
    lab.run("sacctmgr", "-i", "-Q", "add", "cluster", OTHER)
    lab.run("sacctmgr", "-i", "-Q", "add", "account", site.root, f"Cluster={OTHER}")
    lab.run("sacctmgr", "-i", "-Q", "add", "account", site.team("a"), f"Cluster={OTHER}", f"Parent={site.root}")
    lab.run(
        *("sacctmgr", "-i", "-Q", "modify", "account", site.team("a"), f"Cluster={OTHER}", "set"), "GrpTRES=gres/gpu=8"
    )
    yield replace(site, cluster=OTHER)
    lab.run("sacctmgr", "-i", "-Q", "modify", "qos", "flex", "set", "GrpTRES=gres/gpu=-1")
    lab.run("sacctmgr", "-i", "-Q", "delete", "cluster", OTHER)


def adopt_other(other: Site) -> None:
    """Put the other cluster into the ledger as its own Slurm would report it; it has no controller here."""
    spec = ClusterSpec(
        name=OTHER,
        islands=(Island(name="island1", total_gpus=16, healthy_gpus=16),),
        quotas=(Quota(team=other.team("a"), gpus=8),),
        slurm=other.source.model_copy(update={"cluster": OTHER}),
    )
    other.import_clusters(spec)
    other.quotas.read(OTHER)


def look(*sites: Site) -> None:
    """Again, with the QOS looked at too."""
    for site in sites:
        site.slurms._done.clear()
        site.quotas.read(site.cluster)


def test_two_clusters_on_one_slurmdbd_do_not_fight_over_its_flex_qos(site: Site, other: Site) -> None:
    site.adopt()
    adopt_other(other)
    opened(site)
    opened(other, "r-2")
    land(site, EffectKind.FOLLOW, 1, flex_gpus=8)
    land(other, EffectKind.FOLLOW, 1, rollout="r-2", flex_gpus=8)
    assert site.flex_limit() == 48, "it has sized the QOS first: it goes on to"
    look(site, other, site)
    assert site.flex_limit() == 48
    checks = site.slurms.check()
    assert checks[site.cluster].wrong == ""
    assert checks[OTHER].wrong == (
        "lab2 and lab share the QOS flex in one slurmdbd, and Backstop sizes it for lab: make the QOS flex-lab2 for "
        "the flex jobs of lab2 (docs/slurm.md)"
    )


def test_a_qos_of_its_own_is_found_and_the_old_one_given_back(site: Site, other: Site) -> None:
    lab = site.lab
    site.adopt()
    opened(site)
    land(site, EffectKind.FOLLOW, 1, flex_gpus=8)
    assert site.flex_limit() == 48
    adopt_other(other)
    opened(other, "r-2")
    lab.run("sacctmgr", "-i", "-Q", "add", "qos", "flex-lab2,flex-lab")
    try:
        look(site, other)
        land(other, EffectKind.FOLLOW, 1, rollout="r-2", flex_gpus=8)
        assert (site.flex_limit("flex-lab2"), site.flex_limit()) == (16, 48), "each its own"
        land(site, EffectKind.FOLLOW, 2, flex_gpus=7)
        assert (site.flex_limit("flex-lab"), site.flex_limit()) == (47, None), "and the old one is as it was found"
        look(site, other)
        assert {c: check.wrong for c, check in site.slurms.check().items()} == {site.cluster: "", OTHER: ""}
        land(site, EffectKind.UNFOLLOW, 3)
        assert (site.flex_limit("flex-lab"), site.flex_limit("flex-lab2")) == (None, 16)
    finally:
        lab.run("sacctmgr", "-i", "-Q", "delete", "qos", "flex-lab,flex-lab2")


def test_the_packaged_release_tells_nodes_as_json(site: Site) -> None:
    """The adapter relies on this: if it fails, the release has other forms (docs/slurm.md)."""
    rows = json.loads(site.lab.run("sinfo", "--json"))["nodes"]
    assert {"name", "state", "state_flags", "gres", "tres"} <= set(rows[0])
