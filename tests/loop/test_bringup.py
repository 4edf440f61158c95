"""Bring-ups from an entry to production and out again; tests that need servers and several workers are in tests/e2e."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.client import Client, WorkflowFailureError

from client.backstop import Backstop
from client.connection import TemporalTarget
from models.bringup.checks import Colour
from models.bringup.commands import BringupOrder
from models.bringup.runs import RunOrder, RunPhase, RunReport
from models.bringup.stages import BringupCommand, BringupStage
from models.errors import Refusal, Stuck
from tests.e2e.bringup_site import PROVISION, worker_of
from tests.e2e.test_bringup import Elsewhere, Stage, at, in_production, is_retired, phase
from tests.e2e.test_bringup_fleet import InLedger
from tests.e2e.world import Sql, eventually
from tests.integration.runners.servers import Server, serving
from tests.loop.temporal import in_memory
from tests.waiting import async_attempts
from workflows import options


@pytest_asyncio.fixture(loop_scope="function")
async def stage(temporal: Client, sqlite_ledger_url: str, tmp_path: Path) -> Stage:
    return Stage(temporal, sqlite_ledger_url, tmp_path)


async def test_from_an_entry_to_production_with_two_touches(stage: Stage) -> None:
    async with stage.worker():
        story = await in_production(stage)
        await story.say("retire")
        await story.until(lambda s: "1 job run" in s.waits_for)
        stage.site.left = stage.site.left.but(jobs=0, said="nothing is left")
        await is_retired(stage, story)


async def test_it_soaks_as_long_as_its_recipe_says_and_a_retirement_has_a_deadline(stage: Stage) -> None:
    async with stage.worker():
        story = await in_production(stage)
        status = await story.status()
        assert status.lasted[BringupStage.PROVISIONED] >= timedelta(seconds=2)
        await story.say("retire")
        await story.until(lambda s: "1 job run" in s.waits_for)
        await story.say("retire", deadline=(await story.status()).at + timedelta(seconds=1))
        await is_retired(stage, story)


async def test_a_start_whose_answer_is_lost_is_found_by_its_key(stage: Stage) -> None:
    stage.site.lost_answers["nodes"] = 1
    async with stage.worker():
        story = await stage.story(provision=[{**PROVISION[2], "after": []}])
        await story.until(phase("nodes", "running"))
        assert stage.site.begun == {f"{story.start.entry.cluster}/1/nodes": 1}
        await story.say("cancel", stop=True)
        await story.until(phase("nodes/undo", "running"))
        stage.site.end(f"{story.start.entry.cluster}/1/nodes/undo")
        assert (await story.handle.result()).reason == "nothing is left standing"
        assert stage.site.runs[f"{story.start.entry.cluster}/1/nodes"].phase is RunPhase.STOPPED


async def test_a_runner_that_forgets_its_run_is_unclear_and_waits_for_a_person(stage: Stage) -> None:
    async with stage.worker():
        story = await stage.story(provision=[{**PROVISION[2], "after": []}])
        await story.until(phase("nodes", "running"))
        stage.site.forgets.add(f"{story.start.entry.cluster}/1/nodes")
        status = await story.until(at(BringupStage.BLOCKED))
        assert status.because == (
            "step nodes is unclear: its runner has no trace of it any more (it may be running, have run, or "
            "never have started: check first)"
        )
        await story.handle.terminate(reason="the story is over")


async def test_a_run_of_which_nobody_can_ever_say_how_it_stands_is_unclear(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoilt(_: RunOrder) -> RunReport:
        raise Stuck("record.json is damaged: it is not JSON")

    async with stage.worker():
        story = await stage.story(provision=[{**PROVISION[2], "after": []}])
        await story.until(phase("nodes", "running"))
        monkeypatch.setattr(stage.site, "look", spoilt)
        status = await story.until(at(BringupStage.BLOCKED))
        assert status.because == (
            "step nodes is unclear: record.json is damaged: it is not JSON (it may be running, have run, or "
            "never have started: check first)"
        )
        assert stage.site.begun == {f"{story.start.entry.cluster}/1/nodes": 1}
        await story.handle.terminate(reason="the story is over")


async def test_what_a_status_counts_is_counted_when_it_is_asked(stage: Stage) -> None:
    """While it waits for its supply the workflow has nothing to do, and its own clock stands still."""
    stage.site.says["supply"] = Colour.RED
    async with stage.worker():
        story = await stage.story()
        await story.until(lambda s: s.waits_for == "waits for its supply: supply is red")
        for _ in range(2):
            asked_at = stage.site.now()
            status = await story.status()
            assert status.at >= asked_at
            whole = status.at - status.entered_at
            assert (status.lasted, status.waited) == ({BringupStage.PLANNED: whole}, {"supply": whole})
        name = story.start.entry.cluster
        door = Backstop(stage.client, "tpm", TemporalTarget({"target_host": "memory"}, embedded=True))
        assert (await door.bringup_status(name)).lost == ""
        await story.handle.terminate(reason="the story is over")
        status = await door.bringup_status(name)
        assert status.waits_for == "waits for its supply: supply is red", "it answers as it last stood"
        stopped = f"Temporal stopped the bring-up of {name} before it was finished, so nothing drives it"
        assert (status.lost, status.needs) == (f"{stopped}: see `backstop doctor`", ""), "this worker has no board"


async def test_an_entry_that_asks_for_too_much_is_refused(stage: Stage) -> None:
    async with stage.worker():
        story = await stage.story({"quotas": [{"team": "a", "gpus": 60}]})
        assert story.answer is not None
        assert not story.answer.begun
        assert story.answer.reason.startswith("quotas sum to 60, 6 GPUs above the 54")
        with pytest.raises(WorkflowFailureError) as refused:
            await story.handle.result()
    assert "quotas sum to 60, 6 GPUs above the 54" in str(refused.value.cause)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({}, "recipe bare-metal, provision.0.url: {v} has no value: add v to the values of the entry of"),
        (
            {"v": "../../admin/delete"},
            "recipe bare-metal, provision.0.url: would be 'https://h/clusters/..%2F..%2Fadmin",
        ),
    ],
)
async def test_an_entry_that_does_not_fill_its_recipe_is_refused_whoever_hands_it_in(
    stage: Stage, values: dict[str, str], reason: str
) -> None:
    """Here straight to Temporal: no command line has looked at it."""
    step = {"name": "x", "with": "http", "url": "https://h/clusters/{v}/apply"}
    async with stage.worker():
        story = await stage.story({"values": values}, supply=None, provision=[step])
        assert story.answer is not None
        assert not story.answer.begun
        assert story.answer.reason.startswith(reason)
    assert stage.site.opened == stage.site.begun == {}


async def test_a_cancel_in_temporal_unmakes_what_was_made(stage: Stage) -> None:
    stage.site.ends = dict.fromkeys(("bootstrap", "bootstrap/undo"), RunPhase.SUCCEEDED)
    async with stage.worker():
        story = await stage.story(provision=PROVISION[:2])
        await story.until(phase("bootstrap", "done"))
        await story.handle.cancel()
        result = await story.handle.result()
        assert (result.stage, result.reason) == ("cancelled", "nothing is left standing")


async def test_one_of_which_temporal_has_no_record_is_lost(
    stage: Stage, sqlite_ledger_url: str, tmp_path: Path
) -> None:
    """Temporal's database was replaced by an empty one; the ledger is the same."""
    stage.site = InLedger()
    async with stage.worker():
        story = await stage.story(provision=[{**PROVISION[2], "after": []}])
        await story.until(phase("nodes", "running"))
        with contextlib.closing(Sql(sqlite_ledger_url)) as sql:
            await eventually(lambda: bool(sql.rows("SELECT * FROM bringups")), "the ledger has it")
        await story.handle.terminate(reason="its database goes")
    name, empty = story.start.entry.cluster, in_memory()
    tpm = Backstop(empty, "tpm", TemporalTarget(options={}, embedded=True))
    lost = f"the bring-up of {name} is open in the ledger .* and Temporal does not run it: nobody drives it; add {name}"
    async with worker_of(empty, sqlite_ledger_url, tmp_path, InLedger()):
        with pytest.raises(Refusal, match=lost):
            await tpm.bringup_status(name)
        with pytest.raises(Refusal, match=lost):
            await tpm.bringup_command(name, BringupCommand.HOLD, BringupOrder(actor="tpm", reason="look"))
        with pytest.raises(Refusal, match=r"^never is not being brought up: enter it with `backstop bringup add`$"):
            await tpm.bringup_status("never")


# --- starts that a service does not answer well ----------------------------------------------------


class Begins(Server):
    """A service that begins a run with each key it is sent, and answers by its list; then that it is done."""

    def __init__(self, *answers: tuple[int, bytes]) -> None:
        super().__init__()
        self.answers = list(answers)
        self.keys: list[str] = []

    def answer(self, method: str, path: str, query: list[tuple[str, str]], body: Any, headers: dict[str, str]) -> Any:
        self.keys.append(headers["Idempotency-Key"])
        last = len(self.answers) == 1
        return self.answers[0] if last else self.answers.pop(0)


def over_http(service: Server) -> Elsewhere:
    return Elsewhere({"hosts": [{"origin": service.url}], "networks": ["127.0.0.0/8"]})


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that was not answered is sent again without a pause."""
    monkeypatch.setattr(options, "START_PAUSES", (timedelta(milliseconds=10),) * 3)


LOST = (200, b"<html>welcome</html>")
DENIED = (401, b'{"message": "no such token"}')
BEGUN = [(500, b""), (302, b""), (429, b"{}"), (408, b"{}"), (200, b""), (202, b"{" * 5_000_000)]
BEGUN_AT_NIGHT = [pytest.param(answer, marks=pytest.mark.nightly) for answer in BEGUN]


@pytest.mark.parametrize("first", [LOST, (503, b"{}"), *BEGUN_AT_NIGHT], ids=lambda each: str(each[0]))
async def test_a_start_that_may_have_begun_is_unclear_whatever_is_answered_to_it_later(
    stage: Stage, soon: None, first: tuple[int, bytes]
) -> None:
    """A person's retry would send another key, and so begin a second run."""
    service = Begins(first, DENIED)
    with serving(service):
        stage.site = over_http(service)
        async with stage.worker():
            story = await stage.story(provision=[{"name": "x", "with": "http", "url": service.url}], supply=None)
            status = await story.until(at(BringupStage.BLOCKED))
            (step,) = status.steps
            assert step.phase == "unclear"
            assert "HTTP 401: no such token" in step.said
            assert "nothing has begun" not in step.said
            assert "it may be running, have run, or never have started: check first" in status.because
            await story.handle.terminate(reason="the story is over")
    assert service.keys == [f"{story.start.entry.cluster}/1/x"] * 2


@pytest.mark.parametrize("status_code", [401, 403, 422])
async def test_a_start_that_was_refused_at_once_has_begun_nothing(stage: Stage, soon: None, status_code: int) -> None:
    service = Begins((status_code, b"{}"))
    with serving(service):
        stage.site = over_http(service)
        async with stage.worker():
            story = await stage.story(provision=[{"name": "x", "with": "http", "url": service.url}], supply=None)
            status = await story.until(at(BringupStage.BLOCKED))
            assert status.because == f"step x is failed: {service.url} answered HTTP {status_code}; nothing has begun"
            await story.handle.terminate(reason="the story is over")
    assert len(service.keys) == 1


async def test_a_start_that_meets_nothing_but_errors_shows_the_latest_one(stage: Stage, soon: None) -> None:
    service = Begins((503, b'{"message": "we are closed"}'))
    with serving(service):
        stage.site = over_http(service)
        async with stage.worker():
            story = await stage.story(provision=[{"name": "x", "with": "http", "url": service.url}], supply=None)
            closed = f"{service.url} answered HTTP 503: we are closed"
            status = await story.until(lambda s: closed in s.steps[0].said)
            assert status.steps[0].phase == "starting"
            assert closed in status.waits_for
            async for _ in async_attempts("the board and the archive say so too"):
                if any(closed in entry.text for entry in stage.site.archive):
                    break
            assert closed in stage.site.rows[story.start.entry.cluster].waits_for
            service.answers[:] = [(200, b'{"status": "at work"}')]
            async for _ in async_attempts("the board and the archive say that it runs"):
                if any(entry.text == f"x runs: {service.url} says at work" for entry in stage.site.archive):
                    break
            assert stage.site.rows[story.start.entry.cluster].waits_for == "x is running"
            service.answers[:] = [(200, b'{"status": "succeeded"}')]
            status = await story.until(lambda s: s.steps[0].phase == "done")
            assert closed not in status.waits_for + status.steps[0].said
            await story.handle.terminate(reason="the story is over")
    assert set(service.keys) == {f"{story.start.entry.cluster}/1/x"}
