"""Bring-ups on a real server: from entry to production and out again, past dead workers and lost answers."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.worker import Replayer

from activities.adapters.runners.run_directory import Here
from activities.adapters.runners.runners import Runners
from activities.adapters.runners.settings import Allowed, RunnerSettings
from client.converter import data_converter
from models.bringup import request_builders
from models.bringup.checks import Colour
from models.bringup.entry import BringupEntry
from models.bringup.recipe import ClusterRecipe
from models.bringup.runs import RunOrder, RunPhase, RunReport
from models.bringup.stages import BringupStage
from models.bringup.status import BringupStatus
from models.cluster.island import Island
from tests.e2e.bringup_site import PROVISION, Site, Story, worker_of
from tests.e2e.world import connected, eventually, fresh
from tests.replaying import replays
from tests.unit.bringup_world import ENTRY
from workers.embedded_temporal import EmbeddedTemporal
from workers.main import FAILURES, sandbox
from workflows.bringup import BringupWorkflow

RECIPE: dict[str, Any] = {
    "name": "bare-metal",
    "supply": {"run": ["/opt/quota"], "needs": {"gpus": 64}, "every": "0.1s"},
    "provision": PROVISION,
    "validate": [{"name": "health", "healthy": 0.9, "every": "0.3s"}, {"name": "job", "command": ["/x"], "once": True}],
    "capacity": {"with": "http", "url": "https://h/nodes", "every": "0.3s"},
    "soak": "2s",
    "settle": "2s",
    "watch_every": "0.5s",
    "probation": "2s",
}
QUOTAS = [{"team": "a", "gpus": 30}, {"team": "b", "gpus": 24}]


class Stage:
    """A server, the site, and what is needed to begin a story."""

    def __init__(self, client: Client, ledger_url: str, home: Path) -> None:
        self.client, self.ledger_url, self.home, self.site = client, ledger_url, home, Site()

    def worker(self, host: str = "h1") -> Any:
        return worker_of(self.client, self.ledger_url, self.home, self.site, host)

    async def story(self, entered: dict[str, Any] | None = None, **recipe: Any) -> Story:
        made_by = ClusterRecipe.model_validate(RECIPE | recipe)
        entry = BringupEntry.model_validate({**ENTRY, "cluster": fresh("new").replace("/", "-"), **(entered or {})})
        story = Story(self.client, self.site, entry, made_by)
        story.answer = await story.begin()
        return story


@pytest.fixture
async def stage(temporal: Client, sqlite_ledger_url: str, tmp_path: Path) -> Stage:
    return Stage(temporal, sqlite_ledger_url, tmp_path)


async def replayed(story: Story) -> None:
    """Check that each run's history replays to the same commands."""

    def replayer() -> Replayer:
        return Replayer(
            workflows=[BringupWorkflow],
            workflow_runner=sandbox(),
            workflow_failure_exception_types=FAILURES,
            data_converter=data_converter,
        )

    async for run in story.client.list_workflows(f"WorkflowId = '{story.id}'"):
        history = await story.client.get_workflow_handle(story.id, run_id=run.run_id).fetch_history()
        await replays(replayer, history)


def at(stage: BringupStage) -> Any:
    return lambda status: status.stage is stage


def phase(step: str, wanted: str) -> Any:
    return lambda status: {s.name: s.phase for s in (*status.steps, *status.undos)}.get(step) == wanted


async def in_production(stage: Stage) -> Story:
    """All is granted, and one job runs; the last undo would fail. A worker is there."""
    site = stage.site
    site.says["supply"] = Colour.RED
    story = await stage.story({"quotas": QUOTAS, "owed_until": "2036-06-01T00:00:00Z"}, accept_at_least=0.75)
    name = story.start.entry.cluster
    site.islands = (Island(name="main", total_gpus=48, healthy_gpus=48),)
    status = await story.until(lambda s: s.waits_for == "waits for its supply: supply is red")
    assert status.stage is BringupStage.PLANNED
    del site.says["supply"]
    await story.until(phase("bootstrap", "running"))
    assert list(site.begun) == [f"{name}/1/bootstrap"]
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await story.say("retire")
    assert isinstance(refused.value.cause, ApplicationError)
    assert refused.value.cause.message == "the cluster is not in production: `cancel` tears down what was made"
    site.ends = dict.fromkeys(("nodes", "services"), RunPhase.SUCCEEDED)
    site.end(f"{name}/1/bootstrap")
    status = await story.until(phase("nodes", "done"))
    assert status.needs == f"tell others of {name}, then: backstop bringup check-in {name} check-in"
    answer = await story.say("check-in")
    assert (answer.said, answer.stage) == ("check-in is checked in by ann", BringupStage.PROVISIONING)
    status = await story.until(at(BringupStage.IN_PRODUCTION))
    assert site.fleet[0].granted == {"a": 22, "b": 18}  # written out in tests/unit/test_bringup_quotas.py
    assert site.fleet[0].owed == {"a": 8, "b": 6}
    site.islands = (Island(name="main", total_gpus=64, healthy_gpus=64),)
    status = await story.until(lambda s: s.production is not None and not s.production.owed)
    assert status.production is not None
    assert status.production.granted == {"a": 30, "b": 24}
    assert (status.touches, status.check_ins) == (0, 1)
    assert set(site.begun.values()) == {1}

    site.left = site.left.but(jobs=1, said="one runs")
    site.ends |= {"nodes/undo": RunPhase.SUCCEEDED, "bootstrap/undo": RunPhase.FAILED}
    return story


async def is_retired(stage: Stage, story: Story) -> None:
    """Once a person has had the failed undo run again."""
    site, name = stage.site, story.start.entry.cluster
    status = await story.until(at(BringupStage.BLOCKED))
    assert status.because == "step bootstrap/undo is failed: exit status 1"
    site.ends["bootstrap/undo"] = RunPhase.SUCCEEDED
    await story.say("retry", step="bootstrap")
    result = await story.handle.result()
    assert (result.stage, result.reason) == ("retired", _left_standing())
    texts = [entry.text for entry in site.archive]
    assert len(texts) == len({entry.key for entry in site.archive})
    assert [t for t in texts if t.startswith("bring-up: ")][-1] == f"bring-up: retiring -> retired: {_left_standing()}"
    assert site.rows[name].stage is BringupStage.RETIRED


def _left_standing() -> str:
    return "check-in is left standing: it has no undo; services is left standing: it has no undo"


@pytest.mark.nightly
async def test_a_long_step_outlives_two_workers_and_runs_once(stage: Stage) -> None:
    async with stage.worker():
        story = await stage.story(provision=[PROVISION[0]])
        await story.until(phase("bootstrap", "running"))
    async with stage.worker("h2"):
        await story.until(phase("bootstrap", "running"))
    key = f"{story.start.entry.cluster}/1/bootstrap"
    stage.site.end(key)  # while nobody looks
    async with stage.worker("h3"):
        await story.until(at(BringupStage.IN_PRODUCTION))
        assert stage.site.begun == {key: 1}
        await story.handle.terminate(reason="the story is over")
    await replayed(story)


@pytest.mark.nightly
async def test_a_host_that_is_gone_makes_its_step_unclear_and_nobody_starts_it_again(stage: Stage) -> None:
    async with stage.worker("h1"):
        story = await stage.story(provision=[{**PROVISION[2], "after": []}])
        await story.until(phase("nodes", "running"))
    elsewhere = Stage(stage.client, stage.ledger_url, stage.home)  # another home, another process table
    async with elsewhere.worker("h2"):
        status = await story.until(at(BringupStage.BLOCKED))
        assert status.because.startswith(
            "step nodes is unclear: host h1 is gone, and no other worker can see what became of the run"
        )
        assert elsewhere.site.begun == {}
        await story.handle.terminate(reason="the story is over")
    await replayed(story)


@pytest.mark.nightly
async def test_what_a_worker_may_not_run_and_a_check_that_hangs_are_each_one_sentence(stage: Stage) -> None:
    stage.site.not_allowed.add("nodes")
    stage.site.hangs.add("health")
    async with stage.worker():
        checks = [{"name": "health", "healthy": 0.9, "every": "1s", "limit": "0.1s"}]
        story = await stage.story(provision=[{**PROVISION[2], "after": []}], validate=checks, stale_after="5m")
        status = await story.until(at(BringupStage.BLOCKED))
        assert status.because == "step nodes is failed: /opt/scale is not among what this worker may run"
        await story.say("skip", step="nodes")
        status = await story.until(lambda s: _check(s, "health").startswith("did not"), seconds=30)
        assert _check(status, "health") == "did not answer within 0.1s"
        await story.handle.terminate(reason="the story is over")


def _check(status: BringupStatus, name: str) -> str:
    return next(c.said for c in status.checks if c.name == name)


@pytest.mark.nightly
@pytest.mark.slow
async def test_six_months_without_supply_cost_few_events(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call waits for a day; here a day is a tenth of a second, and an hour a 24th of it."""
    monkeypatch.setattr(request_builders, "_LOOKS_FOR", timedelta(seconds=0.1))
    stage.site.says["supply"] = Colour.RED
    stage.site.ends = {"bootstrap": RunPhase.SUCCEEDED}
    async with stage.worker():
        supply = {"run": ["/opt/quota"], "needs": {"gpus": 64}, "every": f"{0.1 / 24:.6f}s"}
        story = await stage.story(provision=[PROVISION[0]], supply=supply)
        await eventually(lambda: stage.site.asked["supply"] >= 180 * 24, "six months of looks", seconds=300)
        status = await story.status()
        assert (status.stage, status.runs) == (BringupStage.PLANNED, 1)
        size = (await story.handle.describe()).raw_description.workflow_execution_info.history_size_bytes
        print(f"six months: {stage.site.asked['supply']} looks, {status.history_events} events, {size} bytes")
        assert status.history_events < 4096
        del stage.site.says["supply"]
        await story.until(at(BringupStage.IN_PRODUCTION))
        await story.handle.terminate(reason="the story is over")
    await replayed(story)


@pytest.mark.nightly
async def test_a_history_that_begins_anew_lets_go_of_runs_and_starts_none(
    sqlite_ledger_url: str, tmp_path: Path
) -> None:
    limit = "limit.historyCount.suggestContinueAsNew=60"
    async with EmbeddedTemporal(tmp_path / "temporal", None, None, dynamic_config=[limit]) as server:
        stage = Stage(await connected(server.address), sqlite_ledger_url, tmp_path)
        stage.site.says["health"] = Colour.RED
        async with stage.worker():
            beside = {"name": "beside", "with": "http", "url": "https://h"}
            story = await stage.story(provision=[PROVISION[0], beside], validate_within="1s")
            await story.until(phase("bootstrap", "running"))
            for number in range(12):
                await story.say("hold" if number % 2 == 0 else "release")
            status = await story.until(lambda s: s.runs > 1)
            assert phase("bootstrap", "running")(status)
            name = story.start.entry.cluster
            for step in ("bootstrap", "beside"):
                stage.site.end(f"{name}/1/{step}")
            await story.until(lambda s: s.runs > 3)
            del stage.site.says["health"]
            status = await story.until(at(BringupStage.IN_PRODUCTION))
            assert set(stage.site.begun.values()) == {1}
            assert (status.touches, status.history_events < 120) == (12, True)
            await story.handle.terminate(reason="the story is over")
        await replayed(story)


class Elsewhere(Site):
    """The site, but for its steps: these go to real runners."""

    def __init__(self, settings: dict[str, Any], folder: Path = Path("/nowhere"), place: Here | None = None) -> None:
        super().__init__()
        self.real = Runners(Allowed(RunnerSettings.model_validate(settings)), folder, place)

    def start(self, order: RunOrder) -> RunReport:
        return self.real.start(order)

    def look(self, order: RunOrder) -> RunReport | None:
        return self.real.look(order)

    def stop(self, order: RunOrder) -> RunReport | None:
        return self.real.stop(order)


def on_host(folder: Path, program: Path, place: Here | None = None) -> Elsewhere:
    """Its commands are real programs of this machine, under one folder."""
    return Elsewhere({"programs": [{"program": str(program)}], "grace": "1s"}, folder, place)


def a_program(folder: Path) -> Path:
    """Writes a line when it begins, and ends when it may."""
    program = folder / "step.sh"
    program.write_text(
        f'#!/bin/sh\necho "begun $1" >> {folder}/begun\nwhile [ ! -e {folder}/may-end ]; do sleep 0.1; done\n'
    )
    program.chmod(0o755)
    return program


async def _at_rest(story: Story) -> None:
    """All is told and archived: nothing but the person is waited for."""
    before, now = -1, (await story.status()).history_events
    while before != now:
        await asyncio.sleep(1)
        before, now = now, (await story.status()).history_events


@pytest.mark.nightly
async def test_a_real_command_outlives_its_workers_and_no_other_machine_starts_it_again(
    temporal: Client, sqlite_ledger_url: str, tmp_path: Path
) -> None:
    program, here = a_program(tmp_path), Here()
    steps = [
        {"name": "nodes", "with": "command", "run": [str(program), "{cluster}"], "undo": {"run": [str(program), "un"]}}
    ]

    def stage_of(place: Here, folder: str) -> Stage:
        stage = Stage(temporal, sqlite_ledger_url, tmp_path)
        stage.site = on_host(tmp_path / folder, program, place)
        return stage

    first, begun = stage_of(here, "runs"), tmp_path / "begun"
    async with first.worker(here.host):
        story = await first.story(provision=steps)
        await story.until(phase("nodes", "running"))
    other = dataclasses.replace(here, host="elsewhere")
    async with stage_of(other, "other-runs").worker("elsewhere"):
        status = await story.until(at(BringupStage.BLOCKED))
        assert f"host {here.host} is gone, and no other worker can see what became of the run" in status.because
        assert len(begun.read_text().splitlines()) == 1
        await _at_rest(story)
    async with stage_of(here, "runs").worker(here.host):  # it is back, and a person has looked
        (tmp_path / "may-end").touch()
        await story.say("skip", step="nodes", reason="it has ended")
        await story.until(at(BringupStage.PROVISIONED))
        await story.say("cancel")
        result = await story.handle.result()
        assert (result.stage, result.reason) == ("cancelled", "nothing is left standing")
    name = story.start.entry.cluster
    assert begun.read_text().splitlines() == [f"begun {name}", "begun un"]
    await replayed(story)


@pytest.mark.nightly
async def test_a_real_command_that_ends_while_nobody_looks_is_found_to_have_ended(
    temporal: Client, sqlite_ledger_url: str, tmp_path: Path
) -> None:
    program = a_program(tmp_path)
    stage = Stage(temporal, sqlite_ledger_url, tmp_path)
    stage.site = on_host(tmp_path / "runs", program)
    host = Here().host
    async with stage.worker(host):
        steps = [{"name": "nodes", "with": "command", "run": [str(program), "{cluster}"]}]
        story = await stage.story(provision=steps, settle="20s")
        await story.until(phase("nodes", "running"))
    (tmp_path / "may-end").touch()
    async with stage.worker(host):
        status = await story.until(at(BringupStage.IN_PRODUCTION))
        assert next(s.code for s in status.steps) == 0
        assert len((tmp_path / "begun").read_text().splitlines()) == 1
        await story.handle.terminate(reason="the story is over")
