"""Parsing and calling Slurm's tools. No Slurm is needed: tests/slurm has the real one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from activities.adapters.slurm.command_line import Connection, Talk
from activities.adapters.slurm.parsing import (
    Node,
    SlurmJob,
    accounts_in,
    actors_in,
    capacity,
    hosts,
    islands_in,
    jobs_in,
    named_jobs,
    nodes_in,
    qos_in_use,
    quotas_of,
    team_of,
    tres_of,
    use_of,
)
from activities.adapters.slurm.unsupported import limiting_qos_in, unread_settings
from models.cluster.jobs import RunsOn
from models.cluster.readings import LimitMode
from models.cluster.sources import SlurmSource
from models.errors import BadInput, Refusal, Unavailable
from workers.settings import load_settings

NOW = datetime(2026, 11, 22, 9, tzinfo=UTC)
SOURCE = SlurmSource(root="org")
ASSOCS = """\
1|0||root
2|1||org
3|2|gres/gpu=64|lab
4|3|cpu=900,gres/gpu=40,gres/gpu:h100=40|lab-a
5|3||group
6|5|gres/gpu=24|lab-b
7|2|cpu=12|open
8|2|gres/gpu=8|flex-pool
9|8|gres/gpu=8|lab-a-flex
10|1|gres/gpu=99|elsewhere
"""
NUMBERS = "".join(f"{n}\n" for n in range(1, 11))


def node(name: str, state: str, gres: str = "gpu:h100:8", cfg: str = "cpu=64,gres/gpu=8") -> dict[str, Any]:
    """Return a node as 22.05 prints it; `state`: as scontrol writes it, a word and its flags."""
    base, *flags = state.split("+")
    return {"name": name, "state": base.lower(), "state_flags": flags, "gres": gres, "tres": cfg, "reason": ""}


def nodes(*rows: dict[str, Any], gres: str = "gpu") -> tuple[Node, ...]:
    return nodes_in({"nodes": list(rows)}, gres)


def job(number: int, account: str, **more: Any) -> dict[str, Any]:
    return {
        "job_id": number,
        "name": f"j{number}",
        "account": account,
        "qos": "normal",
        "job_state": "RUNNING",
        "tres_alloc_str": "cpu=1,gres/gpu=8",
        "tres_req_str": "cpu=1,gres/gpu=8",
        "start_time": 1_795_338_029,
        "nodes": "gpu[001-002]",
        **more,
    }


def read(*rows: dict[str, Any]) -> Any:
    return jobs_in({"jobs": list(rows)}, "gres/gpu")


# --- accounts ----------------------------------------------------------------------------------


def test_quotas_are_the_limited_accounts_under_the_root() -> None:
    found = quotas_of(accounts_in(ASSOCS, "gres/gpu", NUMBERS), SOURCE)
    assert {name: (q.gpus, q.parent) for name, q in found.items()} == {
        "lab": (64, None),
        "lab-a": (40, "lab"),
        "lab-b": (24, "lab"),
    }, "without a limit nothing is promised; flex and other organisations are none of it"


def test_what_is_no_association_is_no_answer() -> None:
    with pytest.raises(Unavailable, match="that is not an association"):
        accounts_in("sacctmgr: error: something\n", "gres/gpu", "")


def test_a_limit_of_one_kind_of_gpu_is_another_limit() -> None:
    assert tres_of("cpu=4,gres/gpu=8,gres/gpu:h100=6,mem=1000M") == {"cpu": 4, "gres/gpu": 8, "gres/gpu:h100": 6}


@pytest.mark.parametrize(
    ("gpus", "mode", "earlier", "limit"),
    [
        (16, LimitMode.HARD, 24, 16),
        (16, LimitMode.SOFT, 24, 24),
        (30, LimitMode.SOFT, 24, 30),
        (16, LimitMode.SOFT, None, 16),
    ],
)
def test_a_soft_quota_admits_what_was_admitted_before(
    gpus: int, mode: LimitMode, earlier: int | None, limit: int
) -> None:
    assert mode.admits(gpus, earlier) == limit


def test_who_changed_an_association_last() -> None:
    printed = (
        "2026-11-22T09:00:25|Modify Associations|root|(id_assoc=5)\n"
        "2026-11-22T09:00:26|Add Accounts|root|team|b\n"
        "2026-11-22T09:00:26|Add Associations|root|id_assoc=9\n"
        "2026-11-22T09:00:27|Modify Associations|admin|(id_assoc=5 || id_assoc=7)\n"
    )
    assert actors_in(printed) == {"5": "admin", "7": "admin", "9": "root"}


# --- nodes -------------------------------------------------------------------------------------


# Every base state and flag of slurm.h (22.05 to 25.11), as JSON has them; a base state alone, a flag beside IDLE.
TAKE_JOBS, TAKE_NONE = "IDLE MIXED ALLOCATED", "DOWN ERROR FUTURE INVALID UNKNOWN"
HARMLESS = (
    "BLOCKED CLOUD COMPLETING DYNAMIC_FUTURE DYNAMIC_NORM EXTERNAL PLANNED POWERED_DOWN POWERING_DOWN POWERING_UP "
    "POWER_DOWN POWER_UP REBOOT_CANCELED RESERVED RESUME UNDRAIN"
)
FAULTS = "DRAIN FAIL INVALID_REG MAINTENANCE NOT_RESPONDING PERFCTRS POWER_DRAIN REBOOT_ISSUED REBOOT_REQUESTED"


@pytest.mark.parametrize(
    ("state", "healthy"),
    [
        *((state, True) for state in TAKE_JOBS.split()),
        *((state, False) for state in TAKE_NONE.split()),
        *((f"IDLE+{flag}", True) for flag in HARMLESS.split()),
        *((f"IDLE+{flag}", False) for flag in FAULTS.split()),
        ("ALLOCATED+COMPLETING", True),
        ("MIXED+DRAIN", False),
        ("DOWN+NOT_RESPONDING", False),
        ("IDLE+CLOUD+POWERED_DOWN", True),
        ("DOWN+CLOUD+POWERED_DOWN", False),
        ("IDLE+NOT_RESPONDING+POWERED_DOWN", False),
        ("IDLE+DRAIN+POWERED_DOWN", False),
        ("ALLOCATED+CLOUD+NOT_RESPONDING+POWERING_UP", True),  # as Slurm has each node that it boots for a job
        ("IDLE+DRAIN+NOT_RESPONDING+POWERING_UP", False),
        ("", False),
    ],
)
def test_a_node_is_healthy_where_slurm_would_place_a_job_on_it(state: str, healthy: bool) -> None:
    (found,) = nodes(node("gpu001", state))
    assert found.healthy is healthy
    if state:
        assert found.unknown == ()
    (newer,) = nodes({**node("gpu001", ""), "state": state.split("+"), "state_flags": None})
    assert newer.healthy is healthy, "as a list, in later releases"


@pytest.mark.parametrize(
    ("state", "healthy", "unknown"),
    [
        ("IDLE+SOMETHING_OF_NEXT_YEAR", True, ("SOMETHING_OF_NEXT_YEAR",)),
        ("IDLE+DRAIN+SOMETHING_OF_NEXT_YEAR", False, ("SOMETHING_OF_NEXT_YEAR",)),
        ("SPLENDID", False, ("SPLENDID",)),
    ],
)
def test_an_unknown_flag_is_reported_and_is_no_fault_and_an_unknown_state_is_no_health(
    state: str, healthy: bool, unknown: tuple[str, ...]
) -> None:
    (found,) = nodes(node("gpu001", state))
    assert (found.healthy, found.unknown) == (healthy, unknown)


def test_a_node_that_registered_itself_is_healthy() -> None:
    row = {"name": "w-0", "state": ["IDLE", "DYNAMIC_NORM"], "gres": "gpu:8", "tres": "cpu=64,gres/gpu=8"}
    assert [(n.gpus, n.healthy) for n in nodes(row)] == [(8, True)]


def test_gpus_are_counted_by_kind_and_without_the_configured_tres() -> None:
    lines = [
        node("a", "IDLE"),
        node("b", "IDLE", "gpu:h100:4(S:0-1),gpu:a100:2(S:0,1),shard:8", "cpu=64"),
        node("c", "IDLE", "(null)", "cpu=64"),
        node("d", "IDLE", "gpu:3", ""),
    ]
    assert {n.name: n.gpus for n in nodes(*lines)} == {"a": 8, "b": 6, "d": 3}
    assert {n.name: n.gpus for n in nodes(*lines, gres="gpu:h100")} == {"a": 8, "b": 4}


def test_islands_are_the_leaf_switches() -> None:
    printed = (
        "SwitchName=s1 Level=0 LinkSpeed=1 Nodes=gpu[001-002,004]\n"
        "SwitchName=s2 Level=0 LinkSpeed=1 Nodes=gpu003,login1\n"
        "SwitchName=top Level=1 LinkSpeed=1 Nodes=gpu[001-004] Switches=s[1-2]\n"
    )
    islands = islands_in(printed)
    assert islands == {"s1": {"gpu001", "gpu002", "gpu004"}, "s2": {"gpu003", "login1"}}
    found = nodes(*(node(f"gpu00{n}", "DOWN" if n == 2 else "IDLE") for n in range(1, 6)))
    assert [(i.name, i.total_gpus, i.healthy_gpus) for i in capacity(found, islands)] == [
        ("main", 8, 8),
        ("s1", 24, 16),
        ("s2", 8, 8),
    ]


def test_lists_of_hosts() -> None:
    assert list(hosts("a[1-3,07],b,c[01-02]n[1-2]")) == [
        *("a1", "a2", "a3", "a07", "b"),
        *("c01n1", "c01n2", "c02n1", "c02n2"),
    ]
    assert list(hosts("")) == []


# --- jobs --------------------------------------------------------------------------------------


def test_jobs_are_read_in_the_forms_of_several_releases() -> None:
    new = job(2, "lab-a", job_state=["RUNNING"], start_time={"set": True, "infinite": False, "number": 1_795_338_029})
    old, newer = read(job(1, "lab-a"), new)
    assert (old.gpus, old.runs, old.started, old.nodes) == (newer.gpus, newer.runs, newer.started, newer.nodes)
    waits, *none = read(
        job(3, "lab-a", job_state="PENDING", tres_alloc_str="", nodes=""), job(4, "x", job_state="FAILED")
    )
    assert (waits.runs, waits.gpus, waits.started, none) == (False, 8, None, [])
    assert read(job(5, "lab-a", tres_alloc_str="cpu=9")) == ()


# Every state of slurm.h (22.05 to 25.11) as one word, which hides the base state behind a flag (job_state_string).
HOLDING = "RUNNING SUSPENDED COMPLETING CONFIGURING RESIZING SIGNALING STOPPED"
WAITING = "PENDING REQUEUED REQUEUE_FED REQUEUE_HOLD RESV_DEL_HOLD SPECIAL_EXIT"
BESIDE_RUNNING = "CONFIGURING POWER_UP_NODE RESIZING SIGNALING STOPPED"
BESIDE_PENDING = "REQUEUED REQUEUE_HOLD SPECIAL_EXIT RESV_DEL_HOLD LAUNCH_FAILED RECONFIG_FAIL GETENV_FAILED EXPEDITING"
FINISHED = "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED TIMEOUT"


@pytest.mark.parametrize(
    ("states", "runs"),
    [
        *((word, True) for word in HOLDING.split()),
        *((word, False) for word in WAITING.split()),
        *((word, None) for word in [*FINISHED.split(), "REVOKED", "STAGE_OUT"]),
    ],
)
def test_a_state_of_one_word_says_whether_a_job_holds_gpus_waits_or_is_over(states: str, runs: bool | None) -> None:
    assert [j.runs for j in read(job(1, "lab-a", job_state=states))] == ([] if runs is None else [runs])
    assert [j.unknown for j in read(job(1, "lab-a", job_state=states))] == ([] if runs is None else [()])


@pytest.mark.parametrize(
    ("states", "runs"),
    [
        *((f"{base} COMPLETING", True) for base in FINISHED.split()),
        *((f"RUNNING {flag}", True) for flag in BESIDE_RUNNING.split()),
        ("RUNNING CONFIGURING POWER_UP_NODE", True),
        ("SUSPENDED STOPPED", True),
        ("PENDING COMPLETING", True),  # requeued, and its epilog runs
        ("PENDING REQUEUED COMPLETING", True),
        *((f"PENDING {flag}", False) for flag in BESIDE_PENDING.split()),
        ("PENDING REVOKED", None),  # another cluster of the federation runs it
        ("CANCELLED REVOKED", None),
        ("COMPLETED STAGE_OUT", None),
        ("COMPLETED STAGE_OUT COMPLETING", True),
    ],
)
def test_every_word_of_a_list_of_states_counts(states: str, runs: bool | None) -> None:
    for form in (states.split(), states.split()[::-1]):
        assert [j.runs for j in read(job(1, "lab-a", job_state=form))] == ([] if runs is None else [runs]), form


def test_a_job_in_an_unknown_state_holds_what_is_allocated_to_it() -> None:
    (found,) = read(job(1, "lab-a", job_state=["DREAMING"]))
    assert (found.runs, found.gpus, found.unknown) == (True, 8, ("DREAMING",))
    (found,) = read(job(1, "lab-a", job_state=["DREAMING"], tres_alloc_str=""))
    assert (found.runs, found.gpus, found.unknown) == (False, 8, ("DREAMING",))
    assert read(job(1, "lab-a", job_state=["COMPLETED", "DREAMING"])) == ()


def test_a_finished_job_holds_its_gpus_until_its_epilog_ends_and_a_row_of_an_array_is_many_jobs() -> None:
    jobs = read(
        job(1, "vision", job_state=["COMPLETED", "COMPLETING"], tres_req_str="gres/gpu=8", tres_alloc_str="gres/gpu=8"),
        job(2, "vision", job_state=["PENDING"], array_task_string="3-6", tres_req_str="gres/gpu=8", tres_alloc_str=""),
    )
    (use,) = use_of(jobs, ["vision"], SOURCE, {}, NOW)
    assert (use.scheduled_gpus, use.pending_gpus) == (8, 32)


@pytest.mark.parametrize(
    ("tasks", "count"),
    [
        *(("", 1), (None, 1), ("7", 1), ("3-6", 4), ("1,3,5-7", 5), ("0-15:4", 4), ("1-7:2,9", 5), ("2-2", 1)),
        *(("3-6%2", 1), ("0-99%10", 9), ("0-99%1", 0), ("0-9999", 10_000), ("1,3,5,...", 3), ("rubbish", 1)),
    ],
)
def test_tasks_of_an_array_that_wait_count_as_far_as_they_may_run_at_once(tasks: str | None, count: int) -> None:
    """One task of the array runs already."""
    waits = job(3, "lab-a", job_state="PENDING", tres_alloc_str="", array_job_id=2, array_task_string=tasks)
    runs = job(2, "lab-a", array_job_id={"set": True, "number": 2}, array_task_string="")
    (use,) = use_of(read(waits, runs), ["lab-a"], SOURCE, {}, NOW)
    assert (use.scheduled_gpus, use.pending_gpus) == (8, 8 * count)


# As docs of squeue have them (22.05 to 24.05), but for the last, which none has.
@pytest.mark.parametrize(
    ("in_use", "states"),
    [
        (False, "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED REVOKED TIMEOUT"),
        (True, "PENDING RUNNING SUSPENDED COMPLETING CONFIGURING REQUEUED REQUEUE_FED REQUEUE_HOLD RESIZING"),
        (True, "RESV_DEL_HOLD SIGNALING SPECIAL_EXIT STAGE_OUT STOPPED DREAMING"),
    ],
)
def test_a_job_is_in_its_qos_until_it_is_over_whatever_it_holds(in_use: bool, states: str) -> None:
    for state in states.split():
        for form in (state, [state], ["COMPLETED", state], [state, "CANCELLED"]):
            rows = [job(1, "lab-a", qos="mine", job_state=form, tres_alloc_str="", tres_req_str="cpu=1")]
            assert ("mine" in qos_in_use({"jobs": rows})) == in_use, form


def test_what_is_listed_twice_counts_once() -> None:
    rows = [node("n1", "IDLE"), node("n2", "IDLE"), node("n1", "DOWN"), node("n1", "IDLE"), node("n2", "IDLE")]
    assert [(n.name, n.gpus, n.healthy) for n in nodes(*rows)] == [("n1", 8, False), ("n2", 8, True)]
    same = job(4, "vision", job_state="RUNNING", tres_alloc_str="gres/gpu=8")
    (one,) = read(same, same)
    assert one.gpus == 8


@pytest.mark.parametrize("document", [{}, [], None, {"jobs": [{}]}, {"jobs": [{"job_state": []}]}, {"jobs": 7}])
def test_what_is_no_list_of_jobs_or_nodes_is_no_answer(document: Any) -> None:
    with pytest.raises(Unavailable, match="that Backstop cannot read"):
        jobs_in(document, "gres/gpu")
    with pytest.raises(Unavailable, match="that Backstop cannot read"):
        qos_in_use(document)
    with pytest.raises(Unavailable, match="that Backstop cannot read"):
        nodes_in(document, "gpu")


def test_flex_jobs_stand_on_no_quota() -> None:
    jobs = read(
        job(1, "lab-a"),
        job(2, "lab-a", qos="flex"),
        job(3, "lab-a-flex", qos="flex"),
        job(4, "lab-a", job_state="PENDING"),
        job(5, "strangers"),
    )
    teams = ["lab-a", "lab-b"]
    assert [team_of(j, teams, SOURCE, {}) for j in jobs] == [
        ("lab-a", RunsOn.QUOTA),
        ("lab-a", RunsOn.FLEX),
        ("lab-a", RunsOn.FLEX),
        ("lab-a", RunsOn.QUOTA),
        None,
    ]
    a, b = use_of(jobs, teams, SOURCE, {}, NOW)
    assert (a.scheduled_gpus, a.pending_gpus, b.scheduled_gpus) == (8, 8, 0)
    named = named_jobs(jobs, teams, SOURCE, {}, {"s1": ["gpu001", "gpu002"]}, {})
    assert [(j.job, j.on, j.island) for j in named] == [
        ("j1 (1)", RunsOn.QUOTA, "s1"),
        ("j2 (2)", RunsOn.FLEX, "s1"),
        ("j3 (3)", RunsOn.FLEX, "s1"),
        ("j5 (5)", RunsOn.QUOTA, "s1"),
    ]


def test_a_job_says_when_it_was_requeued() -> None:
    """Slurm gives a requeued job a new time of submission; later releases write numbers as objects."""
    since = 1_795_338_617
    rows: list[dict[str, Any]] = [{}, {"restart_cnt": 1}, {"restart_cnt": 2, "job_state": "PENDING"}]
    jobs = read(*(job(n, "lab-a", submit_time=since, **row) for n, row in enumerate(rows)))
    later = read(job(4, "lab-a", submit_time={"set": True, "number": since}, restart_cnt={"set": True, "number": 1}))
    at = datetime.fromtimestamp(since, UTC)
    assert [j.requeued for j in (*jobs, *later)] == [None, at, at, at]


def test_a_job_of_no_team_is_known_by_its_account() -> None:
    """It holds GPUs all the same; in the QOS of flex it yields."""
    jobs = read(
        job(1, "strangers"),
        job(2, "strangers", qos="flex"),
        job(3, "a\tb"),
        job(4, ""),
        job(5, "x", job_state="PENDING"),
    )
    named = named_jobs(jobs, ["lab-a"], SOURCE, {}, {}, {})
    assert [(j.job, j.team, j.on, j.gpus) for j in named] == [
        ("j1 (1)", "strangers", RunsOn.QUOTA, 8),
        ("j2 (2)", "strangers", RunsOn.FLEX, 8),
        ("j3 (3)", "a b", RunsOn.QUOTA, 8),
        ("j4 (4)", "no account", RunsOn.QUOTA, 8),
    ]


def test_a_job_of_an_account_without_a_limit_is_its_team_s_above() -> None:
    """Slurm counts it in the limit of lab-b: what is in the account group is not, as no limit is above it but lab's."""
    assocs = f"{ASSOCS}11|6||sub-b\n12|11||sub-sub-b\n13|9||sub-a-flex\n"
    accounts = accounts_in(assocs, "gres/gpu", f"{NUMBERS}11\n12\n13\n")
    jobs = read(job(1, "sub-b"), job(2, "sub-sub-b"), job(3, "sub-a-flex"), job(4, "group"), job(5, "elsewhere"))
    teams = quotas_of(accounts, SOURCE).keys() - {"lab"}
    assert [team_of(j, teams, SOURCE, accounts) for j in jobs] == [
        ("lab-b", RunsOn.QUOTA),
        ("lab-b", RunsOn.QUOTA),
        ("lab-a", RunsOn.FLEX),
        None,
        None,
    ]


def test_a_job_is_of_the_class_that_its_qos_says_where_that_is_of_its_own_team() -> None:
    classes = {"h100-lab-a-engines": ("lab-a", "engines"), "flex": ("lab-a", "training")}
    jobs = read(
        job(1, "lab-a", qos="h100-lab-a-engines"),
        job(2, "lab-b", qos="h100-lab-a-engines"),
        job(3, "lab-a"),
        job(4, "lab-a", qos="flex"),
    )
    named = named_jobs(jobs, ["lab-a", "lab-b"], SOURCE, {}, {}, classes)
    assert [j.job_class for j in named] == ["engines", None, None, None]


# --- what is not read ---------------------------------------------------------------------------


def said(assocs: str, qos: str = "", nodes_: tuple[Node, ...] = (), jobs: tuple[SlurmJob, ...] = ()) -> tuple[str, ...]:
    accounts = accounts_in(assocs, "gres/gpu", "\n".join(line.partition("|")[0] for line in assocs.splitlines()))
    limiting = limiting_qos_in(qos, SOURCE, {"flex", "flex-lab"})
    return unread_settings(SOURCE, accounts, limiting, nodes_, jobs)


LIMITED = "1|0||root\n2|1||org\n3|2|gres/gpu=16|lab\n"


def test_limits_that_stand_on_qos_are_said() -> None:
    none = "no account under org has a limit of gres/gpu: the cluster has no quotas"
    some = (
        "QOS speech, vision, vision-b limit gres/gpu, and Backstop reads only limits of accounts: "
        "the QOS may keep a job waiting although its quota has room"
    )
    bare = "1|0||root\n2|1||org\n3|2||vision\n4|2||speech\n"
    qosonly = "|normal\ngres/gpu=40|vision\ngres/gpu=360|vision-b\ngres/gpu=16|speech\n"
    assert said(bare, qosonly) == (none, some)
    assert said(LIMITED, qosonly) == (some,)
    assert said(LIMITED, "|normal\n") == ()
    assert said(bare) == (none,)
    # With all columns: a sum, by account, by user, by kind; and what bounds no GPU, flex, and a QOS of Backstop's own.
    columns = (
        "gres/gpu=4||||a\n|gres/gpu=4|||b\n||cpu=9,gres/gpu=4|a user's share|c\ngres/gpu:h100=4||||d\n"
        "cpu=9,gres/fpga=2||||e\ngres/gpu=4||||flex\ngres/gpu=4||||flex-lab\n"
        "|gres/gpu=4||backstop: training of lab under org in lab|lab-lab-training\n"
    )
    (sentence,) = said(LIMITED, columns)
    assert sentence.startswith("QOS a, b, c, d limit gres/gpu, and ")


def test_limits_of_a_kind_of_gpu_are_said_where_they_bind() -> None:
    typed = LIMITED + "4|2|gres/gpu:h100=40|vision\n5|2|cpu=8,gres/gpu:h100=8|speech\n"
    assert said(typed) == (
        (
            "accounts speech, vision have limits of gres/gpu:h100, and Backstop reads only limits of gres/gpu "
            "(slurm: {gres: 'gpu:h100'} in the fleet file reads these instead)"
        ),
    )
    assert said(LIMITED + "4|2|gres/gpu=40,gres/gpu:h100=6|vision\n")[0].startswith("account vision has a limit of")
    assert said(LIMITED + "4|2|gres/gpu=40,gres/gpu:h100=40|vision\n") == ()
    assert said(LIMITED + "4|1|gres/gpu:h100=40|elsewhere\n5|1||flex-pool\n6|5|gres/gpu:h100=4|lab-flex\n") == ()
    source = SlurmSource(root="org", gres="gpu:h100")
    accounts = accounts_in(LIMITED + "4|2|gres/gpu:h100=4|vision\n", source.tres, "1 2 3 4")
    (sentence,) = unread_settings(source, accounts, (), (), ())
    assert sentence.startswith("account lab has a limit of gres/gpu, and Backstop reads only limits of gres/gpu:h100")


def test_states_that_are_not_known_are_said() -> None:
    rows = [node(f"gpu{n}", "IDLE+QUANTUM") for n in range(7)]
    strange = nodes(*rows, node("odd", "SPLENDID"), node("well", "IDLE+DYNAMIC_NORM"))
    jobs = read(job(1, "lab", job_state=["DREAMING"]), job(2, "lab", job_state=["RUNNING", "COMPLETING"]))
    assert said(LIMITED, nodes_=strange, jobs=jobs) == (
        (
            "Slurm reports states that Backstop does not know for 7 nodes (gpu0, gpu1, gpu2, gpu3, gpu4 and 2 more): "
            "QUANTUM; Backstop ignores this"
        ),
        (
            "Slurm reports states that Backstop does not know for 1 node (odd): SPLENDID; Backstop counts such a node "
            "as not healthy"
        ),
        (
            "Slurm reports states that Backstop does not know for 1 job: DREAMING; Backstop counts such a job "
            "as holding the GPUs that are allocated to it"
        ),
    )


# --- how they are called -----------------------------------------------------------------------


def tool(folder: Path, name: str, script: str, seconds: float = 50) -> Talk:
    """A program of this name that does so, and for how long it is waited for."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return Talk(Connection(path=str(folder), conf="/etc/slurm/other.conf", timeout=timedelta(seconds=seconds)))


def test_a_tool_is_run_with_its_settings_in_plain_english_and_utc(tmp_path: Path) -> None:
    talk = tool(tmp_path, "sacctmgr", 'echo "$SLURM_CONF $LC_ALL $TZ $SLURM_BITSTR_LEN $*"; cat')
    assert talk.run("sacctmgr", "show", stdin="x") == "/etc/slurm/other.conf C UTC 0 show\nx"
    assert talk.calls == 1


@pytest.mark.parametrize(
    ("script", "error", "sentence"),
    [
        ("echo 'sacctmgr: error: Unable to contact' >&2; exit 1", Unavailable, "Unable to contact"),
        ("echo 'sacctmgr: error: nothing' >&2; exit 0", Unavailable, "sacctmgr failed"),
        ("echo ' Access denied' >&2; exit 1", Refusal, "Slurm does not let this worker run sacctmgr"),
        (
            "echo 'sacctmgr: error: Access/permission denied' >&2",
            Refusal,
            "Slurm does not let this worker run sacctmgr",
        ),
        ("echo 'Permission denied'; exit 1", Unavailable, "sacctmgr failed: Permission denied"),
        ("exit 3", Unavailable, "exit code 3"),
    ],
)
def test_what_goes_wrong_is_told_apart(script: str, error: type[Exception], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=sentence):
        tool(tmp_path, "sacctmgr", script).run("sacctmgr", "show")


def test_a_tool_that_never_answers_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"sacctmgr did not answer within 0\.5 s"):
        tool(tmp_path, "sacctmgr", "exec tail -f /dev/null", seconds=0.5).run("sacctmgr", "show")


def test_words_of_an_answer_are_no_refusal(tmp_path: Path) -> None:
    talk = tool(tmp_path, "sinfo", "echo 'Permission denied'; echo 'Access denied to strangers' >&2; printf '\\377'")
    assert talk.run("sinfo") == "Permission denied\n\N{REPLACEMENT CHARACTER}"


def test_a_tool_that_is_not_there_is_no_answer() -> None:
    with pytest.raises(Unavailable, match="scontrol-of-nowhere cannot be run"):
        Talk(Connection()).run("scontrol-of-nowhere")


def test_over_ssh_the_far_shell_reads_one_quoted_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nwhile [ "$1" != "--" ]; do shift; done\nshift\nexec sh -c "$*"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    talk = Talk(Connection(ssh="ops@controller", conf="/etc/slurm/slurm.conf"))
    assert (
        talk.run("sh", "-c", 'echo "$SLURM_CONF $SLURM_BITSTR_LEN: a  b $1"', "x", "$HOME; rm")
        == "/etc/slurm/slurm.conf 0: a  b $HOME; rm"
    )


def test_a_worker_reads_its_connections_from_its_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "slurm.yaml"
    monkeypatch.setenv("BACKSTOP_SLURM", str(path))
    path.write_text("connections:\n  lab: { ssh: ops@controller, timeout: 10s }\n")
    assert load_settings().slurm["lab"].timeout == timedelta(seconds=10)
    path.write_text("connections:\n  lab: { shh: ops@controller }\n")
    with pytest.raises(BadInput, match="shh"):
        load_settings()
