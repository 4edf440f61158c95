"""Words that people write into Slurm, thrown at the adapter: what a real 22.05.8 printed, with rubbish put in.

Three clusters, each a Slurm of its own whose tools print what was recorded; tests/slurm has the same on a real one.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from activities.adapters.ledger.facade import Ledger
from activities.adapters.slurm import slurm
from activities.adapters.slurm.command_line import Connection
from activities.adapters.slurm.parsing import accounts_in, actors_in, jobs_in, nodes_in, quotas_of, use_of
from activities.adapters.slurm.quotas import SlurmQuotas
from activities.adapters.slurm.slurm import Slurms
from activities.ports.by_cluster import ByCluster
from activities.ports.registry import RegistryPort
from activities.rollout.cluster_calls import ClusterActivities
from activities.watch.health_watch import WatchActivities
from benchmarks.console_fleet import desk_on
from cli.main import run
from client.composed import Composed
from models.audit_chain import Signature
from models.cluster.import_outcome import ImportTerms
from models.cluster.sources import SlurmSource
from models.cluster.windows import Declared, Window
from models.errors import Refusal, Unavailable
from models.question_base import Question
from models.questions import DeskRequest
from models.rollout.messages import ObserveRequest
from models.rollout.stages import Stage
from models.temporal_names import WatchInput
from tests.hostile import NAMES, Rubbish, table, threw
from tests.integration.ledger.world import stage
from tests.servers import new_ledger
from tests.tried import TRIED, examples
from tests.waiting import PATIENCE, wait_until

SOURCE = "Slurm"
NOW = datetime(2026, 11, 22, 9, tzinfo=UTC)
RECORDED = Path(__file__).with_name("recorded")
NODE = json.loads((RECORDED / "sinfo.json").read_text())["nodes"][0]
JOB = json.loads((RECORDED / "squeue.json").read_text())["jobs"][0]
TOPOLOGY = "SwitchName=rack1 Level=0 LinkSpeed=1 Nodes=gpu[001-003]\n"
ACCOUNTS = "1|0||root\n3|1||org\n5|3|gres/gpu=16|team\n6|3|gres/gpu=8|other\n"
SCRIPTS = {
    "sinfo": 'cat "$HERE/sinfo.said"',
    "scontrol": 'cat "$HERE/topology.said"',
    "squeue": 'cat "$HERE/squeue.said"',
    "sacctmgr": 'case "$*" in *=ID) cut -d"|" -f1 "$HERE/numbers.said" ;; *assoc*) cat "$HERE/assoc.said" ;; '
    '*"show cluster"*) basename "$HERE" ;; *"show account"*) cut -d"|" -f4 "$HERE/assoc.said" ;; esac',
}


def node(number: int, **more: Any) -> dict[str, Any]:
    return {**NODE, "name": f"gpu{number:03d}", **more}


def job(number: int, **more: Any) -> dict[str, Any]:
    return {**JOB, "job_id": number, "account": "team", "nodes": "gpu002", **more}


DRAINED = {"state": "idle", "state_flags": ["DRAIN"]}


@dataclass
class Tools:
    """The output of a cluster's tools: three nodes of 8 GPUs, one of them drained, and a job of one GPU."""

    folder: Path

    def __post_init__(self) -> None:
        self.folder.mkdir()
        for name, script in SCRIPTS.items():
            path = self.folder / name
            path.write_text(f"#!/bin/sh\nHERE={self.folder}\n{script}\n")
            path.chmod(0o755)
        self.says()

    def says(
        self, nodes: str | bytes = "", jobs: str | bytes = "", assoc: str = ACCOUNTS, numbers: str = "", words: str = ""
    ) -> None:
        """`words`: the reason of the drained node, its comment, and the name and comment of the job."""
        rows = [node(1, **DRAINED, reason=words, comment=words), node(2), node(3)]
        holds = job(7, name=words, comment=words)
        for name, text in {
            "sinfo": nodes or json.dumps({"nodes": rows}),
            "squeue": jobs or json.dumps({"jobs": [holds]}),
            "topology": TOPOLOGY,
            "assoc": assoc,
            "numbers": numbers or assoc,
        }.items():
            raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
            (self.folder / f"{name}.said").write_bytes(raw)


class World:
    """A ledger, and the clusters `bad`, `east` and `west`."""

    def __init__(self, ledger: Ledger, tools: dict[str, Tools]) -> None:
        self.ledger, self.tools = ledger, tools
        connections = {
            name: Connection(path=str(of.folder), timeout=timedelta(seconds=50)) for name, of in tools.items()
        }
        self.slurms = Slurms(
            ledger, ledger.schedulers, connections, timedelta(0), timedelta(0), patience=timedelta(seconds=PATIENCE)
        )
        self._health = ledger.health.feed_from(self.slurms.refresh_health, self.slurms.refresh_use)

    def healthy(self) -> dict[str, tuple[int, int]]:
        found = self._health.read(list(self.tools))
        self.faults = {name: sample.fault for name, sample in found.items()}
        return {name: (sample.total_gpus, sample.healthy_gpus) for name, sample in found.items()}

    def scheduled(self) -> dict[str, int]:
        self._health.read(list(self.tools))
        latest = self.ledger.usage.latest(list(self.tools), self.ledger.now())
        return {name: teams["team"].scheduled_gpus for name, teams in latest.items()}

    def quotas(self) -> dict[str, dict[str, int]]:
        SlurmQuotas(self.slurms).versions(list(self.tools))
        return {name: self.ledger.quotas.read(name).values for name in self.tools}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    tools = {name: Tools(tmp_path / name) for name in ("bad", "east", "west")}
    url = new_ledger(tmp_path / "ledger.db")
    clusters = [
        {
            "name": name,
            "islands": [{"name": "rack1", "total_gpus": 24, "healthy_gpus": 20}],
            "quotas": [{"team": "team", "gpus": 16}, {"team": "other", "gpus": 8}],
            "slurm": {"connection": name, "root": "org", "size_flex": False},
        }
        for name in tools
    ]
    with Ledger(url) as ledger:
        stage(ledger, {"clusters": clusters}, "first")
        ledger.fleet.commit_import("first", 2, "tpm", ledger.now() - timedelta(minutes=5))
        yield World(ledger, tools)


WORDS = [
    *NAMES,
    Rubbish("permission denied", "Permission denied"),
    Rubbish("another state", "was State=IDLE CfgTRES=gres/gpu=64"),
    Rubbish("another node", "x\nNodeName=gpu999 State=IDLE Gres=gpu:8"),
    Rubbish("JSON", '"}]}'),
    Rubbish("a letter that is cut", "caf\udcc3"),
]


@table(WORDS)
def test_what_people_write_is_only_words(rubbish: Rubbish, world: World) -> None:
    """A drain's reason, comments, and a job's name, as JSON has them and with their bytes as they are."""
    world.tools["bad"].says(words=rubbish.value)
    assert world.healthy() == dict.fromkeys(("bad", "east", "west"), (24, 16))
    assert world.scheduled() == {"bad": 1, "east": 1, "west": 1}
    assert world.faults == {"bad": "", "east": "", "west": ""}
    (found,) = world.ledger.jobs.jobs(["bad"], world.ledger.now())["bad"]
    assert found.job.isprintable()
    assert found.job.endswith("7") or found.job.endswith("(7)")
    raw = rubbish.value.replace("\\", "").replace('"', "")
    bare = json.dumps({"nodes": [node(1, **DRAINED, reason="WORDS"), node(2), node(3)]}).replace(
        "WORDS", "".join(char for char in raw if char >= " ")
    )
    world.tools["bad"].says(nodes=bare)
    assert world.healthy()["bad"] == (24, 16)
    threw(SOURCE)


ANSWERS = [
    Rubbish("nothing", "\n"),
    Rubbish("text", "slurm_load_node error: Unable to contact slurm controller"),
    Rubbish("a deep list", "[" * 200_000),
    Rubbish("half of it", json.dumps({"nodes": [NODE], "jobs": [JOB]})[:-9]),
    Rubbish("another document", '{"nodes": 7, "jobs": 7}'),
    Rubbish("rows that are none", '{"nodes": [1], "jobs": [1]}'),
    Rubbish("rows of nothing", '{"nodes": [{}], "jobs": [{}]}'),
    Rubbish("no text", b"\xff\xfe\x00\x01" * 1000),
    Rubbish(
        "20 million GPUs",
        json.dumps(
            {"nodes": [node(1, tres="gres/gpu=20000000")], "jobs": [job(1, tres_alloc_str="gres/gpu=20000000")]}
        ),
    ),
    Rubbish(
        "names of no text",
        json.dumps({"nodes": [node(1, name=[1])], "jobs": [job(1, job_id="x")]}),
    ),
    Rubbish(
        "a time of no year and a billion hosts",
        json.dumps({"nodes": [node(1, name="x" * 500)], "jobs": [job(1, start_time=10**18, nodes="gpu[1-999999999]")]}),
    ),
]


@table(ANSWERS)
def test_an_answer_that_is_rubbish_costs_its_own_cluster_alone_and_is_named(rubbish: Rubbish, world: World) -> None:
    world.tools["bad"].says(nodes=rubbish.value, jobs=rubbish.value)
    assert world.healthy() == {"bad": (24, 20), "east": (24, 16), "west": (24, 16)}, "what was known of it stands"
    assert "nodes of Slurm: " in world.faults["bad"]
    assert "jobs of Slurm: " in world.faults["bad"]
    assert (world.faults["east"], world.faults["west"]) == ("", "")
    checks = world.slurms.check()
    assert checks["bad"].wrong
    assert (checks["east"].wrong, checks["west"].wrong) == ("", "")
    threw(SOURCE)


LISTS = [
    Rubbish("text", "sacctmgr: something\n"),
    Rubbish("nothing", "\n"),
    Rubbish("an association that there is not", ACCOUNTS + "9|3||x\n777|1|gres/gpu=99|ghost\n"),
    Rubbish("an association twice", ACCOUNTS + "9|3||x\n5|3|gres/gpu=1|team\n"),
    Rubbish("an account twice", ACCOUNTS + "9|3|gres/gpu=1|team\n"),
    Rubbish("without its root", "1|0||root\n5|1|gres/gpu=16|team\n"),
]


@table(LISTS)
def test_a_list_of_accounts_that_is_none_costs_its_own_cluster_alone(rubbish: Rubbish, world: World) -> None:
    assert world.quotas()["bad"] == {"team": 16, "other": 8}
    world.tools["bad"].says(assoc=rubbish.value, numbers="1\n3\n5\n6\n9\n")
    assert [*world.quotas().values()] == [{"team": 16, "other": 8}] * 3
    assert "limits of Slurm: " in world.slurms.faults.recent_faults()["bad"]
    world.tools["east"].says(assoc=ACCOUNTS.replace("=16", "=12"))
    assert world.quotas()["east"] == {"team": 12, "other": 8}, "and the others are read on"
    threw(SOURCE)


def test_an_import_leaves_no_account_in_the_ledger_that_slurm_has_no_more(world: World, tmp_path: Path) -> None:
    """The ledger's own rows are the witness. What is asked of another root changes nothing."""

    def rows() -> dict[str, int]:
        with closing(sqlite3.connect(tmp_path / "ledger.db")) as ledger:
            return dict(ledger.execute("SELECT team, gpus FROM quotas WHERE cluster = 'bad'").fetchall())

    assert rows() == {"team": 16, "other": 8}
    source = world.ledger.schedulers.sources(["bad"])["bad"]
    world.tools["bad"].says(assoc=ACCOUNTS.replace("6|3|gres/gpu=8|other", "9|3|gres/gpu=5|newcomer"))
    described = world.slurms.describe("bad", source.model_copy(update={"root": "root"}))
    assert {quota.team for quota in described.quotas} == {"team", "newcomer"}
    assert rows() == {"team": 16, "other": 8}
    described = world.slurms.describe("bad", source)
    assert {quota.team: quota.gpus for quota in described.quotas} == {"team": 16, "newcomer": 5}
    assert rows() == {"team": 16, "newcomer": 5}


class Door(Composed):
    """The ledger's desk itself, without a Temporal between."""

    def __init__(self, world: World) -> None:
        ledger, nobody = world.ledger, cast("Any", None)
        rollouts = ClusterActivities(replace(ledger.ports, quotas=SlurmQuotas(world.slurms), doubts=nobody))
        self._desk = replace(desk_on(ledger), rollouts=rollouts, schedulers=world.slurms)

    async def ask(self, question: Question[Any], payload: str = "") -> Any:
        arguments = question.model_dump(mode="json", exclude_unset=True)
        request = DeskRequest(kind=question.kind, actor="tpm", arguments=arguments, payload=payload)
        answer = ActivityEnvironment().run(self._desk.answer, request)
        return question.answers().validate_python(answer.result)

    async def close(self) -> None:
        pass


BESIDE = "islands, blocks, minimum, namespaces, classes"
GIVEN: dict[str, Any] = {
    "name": "bad",
    "gpu_model": "H100",
    "gpus_per_node": 4,
    "policy": {"notice": "2d", "classes": ["training", "evals"]},
    "islands": [{"name": "rack1", "total_gpus": 24, "healthy_gpus": 20}],
    "quotas": [
        {
            "team": "team",
            "gpus": 16,
            "islands": ["rack1"],
            "protected_blocks": [8],
            "minimum_gpus": 9,
            "namespaces": ["lab"],
            "classes": ["training"],
        },
        {"team": "other", "gpus": 8, "parent": "more", "protected_blocks": [2, 2], "minimum_gpus": 3},
        {"team": "more", "gpus": 10},
    ],
    "windows": [
        {
            "kind": "maintenance",
            "starts": "2027-03-02T00:00:00Z",
            "ends": "2027-03-02T04:00:00Z",
            "reason": "switches",
            "gpus": 8,
        }
    ],
}


@pytest.mark.parametrize("held", [True, False], ids=["of Slurm before", "of the ledger before"])
def test_an_import_from_slurm_keeps_what_slurm_cannot_say(
    held: bool, world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Values, parents, accounts and the size of a node are Slurm's; all else stays as a file and people gave it."""

    def rows(query: str) -> list[Any]:
        with closing(sqlite3.connect(tmp_path / "ledger.db")) as ledger:
            return ledger.execute(query).fetchall()

    async def connect(actor: str, **options: Any) -> Door:
        return Door(world)

    source = {"connection": "bad", "root": "org", "size_flex": False}
    world.ledger.fleet.remove_cluster("bad", Signature("tpm", world.ledger.now(), "gone"), dry_run=False)
    stage(world.ledger, {"clusters": [GIVEN | ({"slurm": source} if held else {})]}, "given")
    world.ledger.fleet.commit_import("given", 2, "tpm", world.ledger.now())
    by_hand = Window.model_validate(GIVEN["windows"][0] | {"reason": "a hold by hand"})
    world.ledger.calendar.declare([Declared(source="hold 1", windows=(("bad", by_hand),))], "tpm", world.ledger.now())
    of_file = f"SELECT team, {BESIDE} FROM quotas WHERE cluster = 'bad' AND team IN ('team', 'other') ORDER BY team"
    of_cluster = "SELECT gpu_model, policy FROM clusters WHERE name = 'bad'"
    windows = "SELECT source, reason FROM windows WHERE cluster = 'bad' ORDER BY reason"
    beside = [rows(query) for query in (of_file, of_cluster, windows)]
    assert rows(of_file) == [
        ("other", None, "2,2", 3, None, None),
        ("team", "rack1", "8", 9, "lab", "training"),
    ]
    world.tools["bad"].says(assoc=ACCOUNTS.replace("=16", "=12").replace("=8|", "=2|") + "9|3|gres/gpu=5|newcomer\n")
    asked = ["fleet", "import", "--slurm", "bad", "--root", "org", "--connection", "bad", "--no-size-flex"]
    with patch("client.backstop.Backstop.connect", connect):
        assert run(asked) == 0
        assert capsys.readouterr().out.endswith("; 1 added, 2 changed, 1 removed.\n")
        assert rows("SELECT team, gpus, parent FROM quotas WHERE cluster = 'bad' ORDER BY team") == [
            ("newcomer", 5, None),
            ("other", 2, None),
            ("team", 12, None),
        ]
        assert [rows(query) for query in (of_file, of_cluster, windows)] == beside
        assert rows("SELECT gpus_per_node FROM clusters WHERE name = 'bad'") == [(8,)]
        world.tools["bad"].says(assoc=ACCOUNTS.replace("5|3|gres/gpu=16|team\n", ""))
        assert run(asked) == 0
    assert rows("SELECT team, gpus FROM quotas WHERE cluster = 'bad'") == [("other", 8)]
    assert capsys.readouterr().err == (
        "backstop: warning: bad: Slurm no longer has a quota for team: the import removes the quota and these "
        "settings, which only the ledger has: islands, protected_blocks, minimum_gpus, namespaces, classes\n"
    )


def test_an_import_from_slurm_leaves_no_island_that_slurm_has_no_more(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """8 GPUs of a rack that was taken away counted in T for ever. By the ledger's own rows."""

    async def connect(actor: str, **options: Any) -> Door:
        return Door(world)

    islands = [*GIVEN["islands"], {"name": "sold", "total_gpus": 8, "healthy_gpus": 8}]
    world.ledger.fleet.remove_cluster("bad", Signature("tpm", world.ledger.now(), "gone"), dry_run=False)
    stage(world.ledger, {"clusters": [GIVEN | {"islands": islands}]}, "given")
    world.ledger.fleet.commit_import("given", 2, "tpm", world.ledger.now())
    asked = ["fleet", "import", "--slurm", "bad", "--root", "org", "--connection", "bad", "--no-size-flex"]
    with patch("client.backstop.Backstop.connect", connect):
        assert run(asked) == 0
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as ledger:
        rows = ledger.execute("SELECT name, total_gpus FROM islands WHERE cluster = 'bad'").fetchall()
    assert rows == [("rack1", 24)]
    assert capsys.readouterr().err == (
        "backstop: warning: bad: Slurm has no GPU in island sold (8 GPUs) any more, so the import removes it\n"
    )


def test_an_import_from_slurm_is_refused_where_what_stays_makes_no_sense_beside_it(world: World) -> None:
    """Only leaves have floors, and Slurm has other accounts under this one: a file must remove the floor first."""
    quota = {"team": "team", "gpus": 16, "minimum_gpus": 9}
    document = {"clusters": [GIVEN | {"name": "new", "quotas": [quota]}]}
    stage(world.ledger, document, "given")
    world.ledger.fleet.commit_import("given", 2, "tpm", world.ledger.now())
    quotas = [{"team": "team", "gpus": 16}, {"team": "child", "gpus": 8, "parent": "team"}]
    islands = GIVEN["islands"]
    stage(world.ledger, {"clusters": [{"name": "new", "islands": islands, "slurm": {}, "quotas": quotas}]}, "slurm")
    with pytest.raises(Refusal, match="minimum_gpus is 9 for team 'team', which has sub-quotas"):
        world.ledger.fleet.take_import("slurm", 2, ImportTerms(whole=True, partial=True), "tpm", world.ledger.now())
    assert world.ledger.fleet.senseless() == {}


@table([row for row in NAMES if "\0" not in row.value and row.value.strip()])
def test_an_account_may_be_called_anything(rubbish: Rubbish, world: World) -> None:
    """One with a limit is a quota: under its name, or where that cannot be a team's under one with its number."""
    world.tools["bad"].says(assoc=f"{ACCOUNTS}9|3|gres/gpu=5|{rubbish.value}\n", numbers="1\n3\n5\n6\n9\n")
    found = world.quotas()
    assert found["east"] == {"team": 16, "other": 8}
    strange = {name: gpus for name, gpus in found["bad"].items() if name not in ("team", "other")}
    assert list(strange.values()) == [5]
    (name,) = strange
    assert name in (rubbish.value, "\N{REPLACEMENT CHARACTER}") or name.endswith("(9)")
    assert found["bad"].items() >= {("team", 16), ("other", 8)}
    threw(SOURCE)


def test_a_slurm_that_hangs_holds_nobody_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Slurm that was late before is not waited for."""
    world.healthy()
    aside, folder, waited = world.slurms._threads["nodes"], world.tools["bad"].folder, list[list[str]]()
    wait = aside._wait

    def waits_for(names: Iterable[str]) -> None:
        waited.append([*names])
        wait(waited[-1])

    monkeypatch.setattr(aside, "_wait", waits_for)
    monkeypatch.setattr(aside, "_patience", 0.3)
    (folder / "sinfo").write_text(f"#!/bin/sh\nwhile [ ! -e {folder}/go ]; do sleep 0.05; done\n")
    try:
        world.healthy()
        assert "no answer within 0.3 s" in world.faults["bad"]
        assert "bad" in waited.pop(0)
        monkeypatch.setattr(aside, "_patience", 300.0)  # whoever waited now would wait until its call is over
        world.tools["east"].says(nodes=json.dumps({"nodes": [node(1)]}))
        # What is installed moves by import alone.
        wait_until(lambda: world.healthy()["east"] == (24, 8), "the others are read on")
        assert "bad" not in {name for names in waited for name in names}
        assert world.healthy()["bad"] == (24, 16)
    finally:
        (folder / "go").touch()


def test_a_healthy_slurm_has_no_fault(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check does not wait for the reading of classes, and one that is still under way is no fault."""
    begun, over = threading.Semaphore(0), threading.Event()

    def reads_on(*_: object) -> None:
        begun.release()
        over.wait(PATIENCE)

    monkeypatch.setattr(world.slurms, "look_at_classes", reads_on)
    try:
        world.quotas()
        for _ in world.tools:
            assert begun.acquire(timeout=PATIENCE)
        world.healthy()
        world.scheduled()
        assert world.slurms.faults.recent_faults() == {}
        assert set(world.faults.values()) == {""}
    finally:
        over.set()


def test_doctor_hears_of_the_others_while_one_slurm_hangs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = world.tools["bad"].folder
    (folder / "sacctmgr").write_text(f"#!/bin/sh\nwhile [ ! -e {folder}/go ]; do sleep 0.05; done\n")
    monkeypatch.setattr(slurm, "wait", lambda checks, _: all_but_one(checks))
    try:
        checks = world.slurms.check()
    finally:
        (folder / "go").touch()
    assert checks["bad"].wrong == "Slurm did not answer all questions within 25 s"
    assert [checks[name].wrong for name in ("east", "west")] == ["", ""]


def all_but_one(checks: Iterable[Future[object]]) -> tuple[set[Future[object]], set[Future[object]]]:
    """Wait until only one check is late; return the others and it."""
    done, late = set[Future[object]](), {*checks}
    while len(late) > 1:
        more, late = wait(late, PATIENCE, FIRST_COMPLETED)
        done |= more
    return done, late


def test_a_slurmdbd_that_hangs_hides_no_health_from_the_guard(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look, and the watch, judge today's health by the last known limits; the others' limits are read on."""
    world.quotas()
    aside, folder, ledger = world.slurms._threads["limits"], world.tools["bad"].folder, world.ledger
    monkeypatch.setattr(aside, "_patience", 0.3)
    (folder / "sacctmgr").write_text(f"#!/bin/sh\nwhile [ ! -e {folder}/go ]; do sleep 0.05; done\n")
    world.tools["bad"].says(nodes=json.dumps({"nodes": [node(1)]}))
    health = ledger.health.feed_from(world.slurms.refresh_health)
    ports = replace(ledger.ports, quotas=SlurmQuotas(world.slurms), health=health)
    rollouts = ClusterActivities(ports)
    monkeypatch.setattr(world.slurms, "every", timedelta(hours=1))  # one look at nodes, which a judgement stands on
    try:
        request = ObserveRequest(cluster="bad", at=ledger.now())
        seen = ActivityEnvironment().run(rollouts.observe, request)
        assert seen.health is not None
        assert (seen.health.healthy_gpus, seen.reading.values) == (8, {"team": 16, "other": 8})
        assert sum(seen.shortage.values()) == 16 + 8 - 8
        assert seen.reading.unread == "no answer within 0.3 s"
        monkeypatch.setattr(aside, "_patience", 300.0)  # whoever waited now would wait until its call is over
        seen = ActivityEnvironment().run(rollouts.observe, request)
        assert (sum(seen.shortage.values()), bool(seen.reading.unread)) == (16, True)
        monkeypatch.setattr(world.slurms, "every", timedelta(0))
        nobody, opened = cast("Client", None), cast("RegistryPort", _OpenEverywhere())
        watch = WatchActivities(nobody, replace(ports, registry=opened))
        marks = watch._fingerprints(WatchInput(), lambda: None)
        assert "short other 5, team 11" in marks["bad"]
        world.tools["east"].says(assoc=ACCOUNTS.replace("=16", "=12"))
        wait_until(lambda: world.quotas()["east"] == {"team": 12, "other": 8}, "the others' limits are read on")
        assert world.quotas()["bad"] == {"team": 16, "other": 8}
    finally:
        (folder / "go").touch()


class _OpenEverywhere:
    """A monitored rollout in each cluster."""

    def open_clusters(self) -> ByCluster[tuple[Stage, bool]]:
        return ByCluster(dict.fromkeys(("bad", "east", "west"), (Stage.MONITORED, False)))

    def open_rollout_of(self, cluster: str) -> None:
        return None


# --- fuzzed ------------------------------------------------------------------------------------

FUZZ = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
WRITTEN = st.one_of(
    st.sampled_from([row.value for row in WORDS]),
    st.text(max_size=40),
    st.lists(
        st.sampled_from(
            ["State=IDLE", "NodeName=gpu009", "|", "\n", "7|1|gres/gpu=9|x", "error:", "Access denied", '"']
        ),
        max_size=6,
    ).map(" ".join),
)


@pytest.mark.fuzzed
@settings(FUZZ, max_examples=examples(400))
@given(st.lists(WRITTEN, min_size=6, max_size=6), st.booleans())
def test_whatever_is_written_the_nodes_and_jobs_are_the_same(words: list[str], escaped: bool) -> None:
    """Through JSON as Slurm writes it, with letters escaped and not."""
    names = ("reason", "comment", "extra", "features", "owner", "mcs_label")
    free = dict(zip(names, words, strict=True))
    nodes = [node(1, **{**free, **DRAINED}), node(2, **free)]
    jobs = [job(n, name=word, comment=word, account="team" if n % 2 else word) for n, word in enumerate(words)]
    text = json.dumps({"nodes": nodes, "jobs": jobs}, ensure_ascii=escaped)
    document = json.loads(text.encode("utf-8", "replace" if not escaped else "strict"))
    assert [(n.name, n.gpus, n.healthy) for n in nodes_in(document, "gpu")] == [
        ("gpu001", 8, False),
        ("gpu002", 8, True),
    ]
    found = jobs_in(document, "gres/gpu")
    assert [j.number for j in found] == list(range(len(words)))
    assert all(j.name.isprintable() and 0 < len(j.name) <= 150 for j in found)
    (use,) = use_of(found, ["team"], SlurmSource(root="org"), {}, NOW)
    assert use.scheduled_gpus == sum(1 for j in jobs if j["account"] == "team")
    TRIED["words in Slurm's nodes and jobs"] += len(words)


@pytest.mark.fuzzed
@settings(FUZZ, max_examples=examples(600))
@given(st.lists(WRITTEN, max_size=4))
def test_no_name_of_an_account_moves_another_one_s_limit(words: list[str]) -> None:
    """Found, or refused as a whole: never with another limit, or with a quota that there is not."""
    rows = [*ACCOUNTS.splitlines(), *(f"{n}|3||{word}" for n, word in enumerate(words, 10))]
    numbers = "".join(f"{row.partition('|')[0]}\n" for row in rows)
    try:
        found = quotas_of(accounts_in("\n".join(rows), "gres/gpu", numbers), SlurmSource(root="org"))
    except Unavailable:
        TRIED["lists of Slurm's accounts that were refused"] += 1
        return
    assert {name: held.gpus for name, held in found.items()} == {"team": 16, "other": 8}
    TRIED["lists of Slurm's accounts"] += 1


@pytest.mark.fuzzed
@settings(FUZZ, max_examples=examples(200))
@given(WRITTEN)
def test_no_name_says_who_changed_a_limit(word: str) -> None:
    one_line = word.replace("\n", " ")
    printed = (
        f"2026-11-22T09:00:25|Modify Associations|root|(id_assoc=5)\n2026-11-22T09:00:26|Add Accounts|x|{one_line}\n"
    )
    assert actors_in(printed) == {"5": "root"}
