"""Classes inside a quota on a real Slurm, told by it: who waits, who yields, and what Backstop leaves behind."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from models.cluster.readings import LimitMode
from models.cluster.sources import ClassesInSlurm, SlurmSource, Yield
from models.questions import SchedulerCheck
from models.rollout.effects import EffectKind, Reserve
from tests.integration.ledger.world import note_stage
from tests.slurm.conftest import Site
from tests.slurm.lab import Lab
from tests.slurm.test_slurm_quotas import land as landed
from tests.slurm.test_slurm_quotas import opened

pytestmark = pytest.mark.nightly  # a real Slurm

CLASSES = ("training", "engines")
QOS_FORMAT = "format=Name,Priority,Preempt,PreemptMode,GraceTime,MaxTRESPA"


def written(site: Site, **more: Any) -> SlurmSource:
    return site.source.model_copy(update={"classes": ClassesInSlurm.WRITE, **more})


def brought_in(site: Site, source: SlurmSource, classes: tuple[str, ...] = CLASSES, block: int = 8) -> None:
    """The cluster stands in the ledger; of both teams, one block is protected."""
    policy(site, *classes, source=source, block=block)
    site.quotas.read(site.cluster)


def policy(site: Site, *classes: str, source: SlurmSource | None = None, block: int = 8) -> None:
    """Import the cluster's classes and blocks; an open rollout keeps the blocks that it began with."""
    found = site.slurms.describe(site.cluster, source or written(site))
    blocks = tuple(q.model_copy(update={"protected_blocks": (block,)}) for q in found.quotas)
    site.import_clusters(found.model_copy(update={"quotas": blocks, "policy": {"classes": list(classes)}}))


def look(site: Site) -> None:
    """Look at the classes as the watch does, without waiting."""
    site.slurms.look_at_classes(site.cluster, site.ledger.schedulers.sources([site.cluster])[site.cluster])


def land(site: Site, *effect: Any, **more: Any) -> None:
    landed(site, *effect, **more)
    look(site)


def first_write(site: Site) -> None:
    opened(site)
    land(site, EffectKind.RESERVE, 1, reserve=Reserve(freed_gpus=8, limit_gpus=32))


def qos(site: Site) -> dict[str, tuple[str, ...]]:
    """Every QOS of this site's teams, as sacctmgr tells it, by what comes after the site's own name."""
    shown = site.lab.run("sacctmgr", "-n", "-P", "show", "qos", QOS_FORMAT).replace(f"lab-{site.root}-", "")
    rows = (row.split("|") for row in shown.splitlines())
    return {row[0]: tuple(row[1:]) for row in rows if row[0][:2] in ("a-", "b-")}


def may_use(site: Site, letter: str) -> list[str]:
    shown = site.lab.run(
        "sacctmgr", "-n", "-P", "show", "assoc", "cluster=lab", f"account={site.team(letter)}", "user=", "format=QOS"
    )
    return sorted(name.replace(f"lab-{site.root}-", "") for name in shown.split(","))


def submit(site: Site, letter: str, job_class: str, gpus: int, name: str, *more: str) -> str:
    of = f"--qos=lab-{site.root}-{letter}-{job_class}"
    return site.lab.submit(site.team(letter), gpus, name, of, "--requeue", *more)


def test_nothing_is_written_before_a_rollout_is_and_then_it_is_kept_in_step(site: Site) -> None:
    brought_in(site, written(site, yields={"engines": Yield(grace=timedelta(seconds=5))}))
    opened(site)
    look(site)
    assert qos(site) == {}, "not yet: a rehearsal comes as far"
    land(site, EffectKind.RESERVE, 1, reserve=Reserve(freed_gpus=8, limit_gpus=32))
    assert qos(site) == {
        "a-training": ("100", "flex,a-engines", "cluster", "00:00:00", ""),
        "a-engines": ("99", "flex", "requeue", "00:00:05", "gres/gpu=16"),
        "b-training": ("100", "flex,b-engines", "cluster", "00:00:00", ""),
        "b-engines": ("99", "flex", "requeue", "00:00:05", "gres/gpu=8"),
    }
    assert may_use(site, "a") == ["a-engines", "a-training", "normal"]
    land(site, EffectKind.SET_SOFT, 2, ("a", 24, 16), to=LimitMode.SOFT)
    assert qos(site)["a-engines"][-1] == "gres/gpu=16", "soft: what was admitted still is"
    land(site, EffectKind.HARDEN, 3, mode=LimitMode.HARD)
    assert qos(site)["a-engines"][-1] == "gres/gpu=8"
    assert site.slurms.check() == {site.cluster: SchedulerCheck()}
    land(site, EffectKind.RESTORE, 4, ("a", 16, 24), to=LimitMode.HARD)
    assert qos(site)["a-engines"][-1] == "gres/gpu=16"


@pytest.fixture
def full(site: Site) -> Iterator[Site]:
    """Classes are written, a may have 24 of 48 GPUs and b 16; no jobs are left behind."""
    brought_in(site, written(site))
    first_write(site)
    yield site
    for letter in ("a", "b", "guest"):
        site.lab.run("scancel", "-A", site.team(letter))
    site.lab.until(lambda: not site.lab.run("squeue", "-h"), "no jobs are left")


def running(site: Site, *jobs: str) -> None:
    for job in jobs:
        site.lab.until(lambda job=job: site.lab.job(job)[0] == "RUNNING", f"job {job} runs")  # type: ignore[misc]


def ends(site: Site, job: str) -> list[str]:
    """Return how each of its runs ended so far, from sacct."""
    return site.lab.run("sacct", "-n", "-P", "-D", "-X", "-j", job, "-o", "State").split("\n")


def test_engines_leave_room_for_the_block_and_never_go_beyond_the_quota(full: Site) -> None:
    first, second, third = (submit(full, "a", "engines", 8, f"engine-{n}") for n in range(3))
    running(full, first, second)
    waits = ("PENDING", "MaxGRESPerAccount")
    full.lab.until(lambda: full.lab.job(third) == waits, "16 of the 24 are all that engines may have")
    block = submit(full, "a", "training", 8, "train")
    running(full, block)
    assert full.lab.job(first)[0] == full.lab.job(second)[0] == "RUNNING"
    full.lab.run("scancel", first, second, third)
    more = submit(full, "a", "training", 16, "train-more")
    running(full, more)
    beyond = submit(full, "a", "engines", 8, "engine-beyond")
    full.lab.until(lambda: full.lab.job(beyond) == ("PENDING", "AssocGrpGRES"), "training has all of the quota")


def failed(site: Site, node: str) -> None:
    """Fail a node whose daemon is well: it takes no job, and does not come back by itself as one that is only down."""
    for state in ("drain", "down"):
        site.lab.run("scontrol", "update", f"nodename={node}", f"state={state}", "reason=Xid 79")


@pytest.fixture
def mended(lab: Lab) -> Iterator[None]:
    """All nodes take jobs again afterwards."""
    yield
    for node in lab.all_nodes:
        with contextlib.suppress(subprocess.SubprocessError):
            lab.run("scontrol", "update", f"nodename={node}", "state=resume")


@pytest.mark.usefixtures("mended")
def test_engines_yield_to_a_block_of_their_own_account_and_nobody_else_does(full: Site) -> None:
    lab = full.lab
    lab.run("scontrol", "update", f"nodename={lab.all_nodes[-1]}", "state=drain", "reason=Xid 79")
    mine = [submit(full, "a", "engines", 8, f"a-engine-{n}") for n in range(2)]
    others = [submit(full, "b", "engines", 8, "b-engine"), submit(full, "b", "training", 8, "b-train")]
    plain = lab.submit(lab_guest(full), 8, "guest")
    running(full, *mine, *others, plain)
    train = submit(full, "a", "training", 8, "a-train")
    running(full, train)
    went = [job for job in mine if lab.job(job)[0] == "PENDING"]
    lab.until(lambda: [ends(full, j)[0] for j in went] == ["PREEMPTED"], "one engine went for the block")
    failed(full, lab.run("squeue", "-h", "-j", train, "-o", "%N"))
    lab.until(lambda: ends(full, train)[0] == "NODE_FAIL", "the node of the block failed")
    lab.run("scontrol", "update", f"jobid={train}", "StartTime=now")
    running(full, train)
    lab.until(lambda: [ends(full, j)[0] for j in mine] == ["PREEMPTED"] * 2, "the other went when it started again")
    assert [ends(full, job) for job in (*others, plain)] == [["RUNNING"]] * 3, "and nobody else ever did"
    assert ends(full, train) == ["NODE_FAIL", "RUNNING"]


def lab_guest(site: Site) -> str:
    """An account of somebody who has heard of no classes."""
    site.lab.account(f"{site.root}-guest", "root")
    return f"{site.root}-guest"


def test_what_backstop_made_goes_with_it_and_jobs_in_it_run_on(site: Site) -> None:
    brought_in(site, written(site))
    first_write(site)
    engine = submit(site, "a", "engines", 8, "engine")
    running(site, engine)
    waiting = submit(site, "a", "engines", 8, "waits", "--begin=now+1hour")
    without_gpus = site.lab.run(
        *("sbatch", "--parsable", "-o", "/dev/null", "-A", site.team("b"), "-c", "1", "--begin=now+1hour"),
        *(f"--qos=lab-{site.root}-b-engines", "--wrap", "sleep 3600"),
    )
    held = submit(site, "b", "training", 8, "held")
    running(site, held)
    site.lab.run("scontrol", "requeuehold", "State=SpecialExit", held)
    site.lab.until(lambda: site.lab.job(held)[0] == "SPECIAL_EXIT", "it waits for whoever releases it")
    land(site, EffectKind.CLOSE, 2)
    note_stage(site.ledger, "r-1", "closed", ended=True, completed=True)
    name = f"class:lab-{site.root}"
    gone: dict[str, tuple[int | None, int | None]]
    gone = {f"{name}-{t}": (gpus, None) for t, gpus in (("a-engines", 16), ("b-engines", 8))}
    gone |= {f"{name}-{t}": (None, None) for t in ("a-training", "b-training")}
    assert site.slurms.detach(site.cluster, restore=True, look=True) == gone
    assert len(qos(site)) == 4, "a look changes nothing"
    assert site.slurms.detach(site.cluster, restore=True) == gone
    idle = ("flex", "cluster", "00:00:00", "")
    assert qos(site) == {
        "a-engines": ("99", *idle),
        "b-engines": ("99", *idle),
        "b-training": ("100", *idle),
    }, "without effect, while jobs are in it"
    assert may_use(site, "a") == ["a-engines", "normal"]
    assert may_use(site, "b") == ["b-engines", "b-training", "normal"]
    assert site.lab.job(engine)[0] == "RUNNING"
    assert site.lab.job(waiting)[1] == site.lab.job(without_gpus)[1] == "BeginTime"
    site.lab.run("scontrol", "release", held)
    site.lab.until(lambda: site.lab.job(held) == ("PENDING", "BeginTime"), "it starts anew in two minutes")
    site.lab.run("scancel", engine, waiting, without_gpus, held)


def test_classes_that_are_named_no_more_go_and_an_order_may_turn_round(site: Site) -> None:
    brought_in(site, written(site))
    first_write(site)
    policy(site, "engines", "training", "evals")
    land(site, EffectKind.SET_SOFT, 2, ("a", 24, 24), to=LimitMode.HARD)
    assert {n: row[:2] for n, row in qos(site).items() if n.startswith("a-")} == {
        "a-engines": ("100", "flex,a-evals,a-training"),
        "a-training": ("99", "flex,a-evals"),
        "a-evals": ("98", "flex"),
    }
    policy(site, "training")
    land(site, EffectKind.SET_SOFT, 3, ("a", 24, 24), to=LimitMode.HARD)
    assert qos(site) == {}
    policy(site, *CLASSES)
    land(site, EffectKind.SET_SOFT, 4, ("a", 24, 24), to=LimitMode.HARD)
    assert len(qos(site)) == 4
    policy(site, *CLASSES, source=site.source)
    land(site, EffectKind.SET_SOFT, 5, ("a", 24, 24), to=LimitMode.HARD)
    assert qos(site) == {}, "off takes them out"
    assert may_use(site, "a") == ["normal"]


def test_classes_that_are_off_go_without_a_rollout_too_and_the_doctor_names_what_is_left(site: Site) -> None:
    brought_in(site, written(site))
    first_write(site)
    land(site, EffectKind.CLOSE, 2)
    note_stage(site.ledger, "r-1", "closed", ended=True, completed=True)
    waiting = submit(site, "a", "engines", 8, "waits", "--begin=now+1hour")
    policy(site, *CLASSES, source=site.source)
    names = [f"lab-{site.root}-{name}" for name in ("a-engines", "a-training", "b-engines", "b-training")]
    takes_out = "Backstop's next write deletes each of these QOS that has no jobs"
    (check,) = site.slurms.check().values()
    assert check.wrong == ""
    assert check.note == f"classes are off, and Backstop's QOS {', '.join(names)} are still there: {takes_out}"
    generation = site.quotas.read(site.cluster).generation
    landed(
        site,
        EffectKind.GRANT,
        1,
        ("a", 24, 23),
        rollout="request/q-1",
        expected_generation=generation,
        to=LimitMode.HARD,
    )
    assert qos(site) == {"a-engines": ("99", "flex", "cluster", "00:00:00", "")}
    site.lab.run("scancel", waiting)
    (check,) = site.slurms.check().values()
    assert check.note.startswith(f"classes are off, and Backstop's QOS {names[0]} is still there: {takes_out}; ")


def test_where_classes_are_off_the_doctor_says_what_an_administrator_would_type(site: Site) -> None:
    brought_in(site, site.source)
    (check,) = site.slurms.check().values()
    assert check.wrong == ""
    off, _, typed = check.note.partition(", or let an administrator run: ")
    both = f"{site.team('a')}, {site.team('b')}"
    assert off == f"classes of 2 teams are not in Slurm ({both}): set slurm: {{classes: write}} in the fleet file"
    *commands, others = typed.split("; ")
    assert others == "and likewise for the others"
    for command in commands:
        site.lab.run(*shlex.split(command))
    assert qos(site) == {
        "a-training": ("100", "flex,a-engines", "cluster", "00:00:00", ""),
        "a-engines": ("99", "flex", "requeue", "00:00:00", "gres/gpu=16"),
    }
    assert may_use(site, "a") == ["a-engines", "a-training", "normal"]
    (check,) = site.slurms.check().values()
    assert check.note.startswith(f"classes of 1 team are not in Slurm ({site.team('b')}): ")
    first_write(site)
    assert len(qos(site)) == 2, "they are the site's own"
    site.lab.run("sacctmgr", "-i", "-Q", "remove", "qos", ",".join(f"lab-{site.root}-{name}" for name in qos(site)))


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        (("training", "big engines"), "class 'big engines' cannot be the QOS 'lab-{a}-big engines' in Slurm: "),
        (("training", "x' Priority=9000"), "cannot be the QOS"),
        (
            ("training", "Engines", "engines"),
            "class 'Engines' and another class would both be the QOS lab-{a}-engines: ",
        ),
    ],
)
def test_a_class_that_slurm_cannot_name_is_said_and_nothing_is_written(
    site: Site, classes: tuple[str, ...], said: str
) -> None:
    brought_in(site, written(site), classes)
    before = qos(site)
    first_write(site)
    assert qos(site) == before == {}
    (check,) = site.slurms.check().values()
    assert f"Backstop cannot write the classes of {site.team('a')}: " in check.wrong
    assert said.format(a=site.team("a")) in check.wrong


def test_a_qos_of_that_name_that_somebody_made_is_left_alone_until_it_is_handed_over(site: Site) -> None:
    theirs = f"lab-{site.root}-a-engines"
    site.lab.run("sacctmgr", "-i", "-Q", "add", "qos", theirs, "Priority=7")
    brought_in(site, written(site))
    first_write(site)
    assert {n for n in qos(site) if n.startswith("a-")} == {"a-engines"}
    assert qos(site)["a-engines"] == ("7", "", "cluster", "00:00:00", "")
    assert set(qos(site)) == {"a-engines", "b-engines", "b-training"}, "and the other team has its own"
    (check,) = site.slurms.check().values()
    hand_over = (
        f"sacctmgr modify qos {theirs} set description='backstop: engines of {site.team('a')} under {site.root} in lab'"
    )
    assert hand_over in check.wrong
    site.lab.run(*shlex.split(hand_over.replace("sacctmgr", "sacctmgr -i -Q", 1)))
    land(site, EffectKind.SET_SOFT, 2, ("a", 24, 24), to=LimitMode.HARD)
    assert qos(site)["a-engines"] == ("99", "flex", "requeue", "00:00:00", "gres/gpu=16")
    assert site.slurms.check() == {site.cluster: SchedulerCheck()}


def test_where_slurm_conf_does_not_allow_it_nothing_is_written_and_the_doctor_says_what_to_set(site: Site) -> None:
    conf, lab = site.lab.conf, site.lab
    as_it_was = conf.read_text()
    brought_in(site, written(site))
    try:
        conf.write_text(as_it_was.replace("PriorityWeightQOS=10000", "PriorityWeightQOS=0"))
        lab.run("scontrol", "reconfigure")
        lab.until(lambda: "PriorityWeightQOS       = 0" in lab.run("scontrol", "show", "config"), "it is set so")
        first_write(site)
        assert qos(site) == {}
        wrong = "Backstop cannot write classes: slurm.conf needs PriorityWeightQOS above 0 (it has 0)"
        assert site.slurms.check() == {site.cluster: SchedulerCheck(wrong=wrong)}
    finally:
        conf.write_text(as_it_was)
        lab.run("scontrol", "reconfigure")
        lab.until(lambda: "PriorityWeightQOS       = 10000" in lab.run("scontrol", "show", "config"), "as it was")
    site.slurms._done.clear()
    site.quotas.versions([site.cluster])
    lab.until(lambda: len(qos(site)) == 4, "the watch's next look writes them")
