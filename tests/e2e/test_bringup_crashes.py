"""A step of hours, here of seconds, while the workers that look after it are killed with -9.

Workers are processes as deployed. What really ran is read from a file that the step's program writes itself, and what
was archived by plain SQL.
"""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import PendingActivityState

from activities.adapters.ledger.database import upgrade
from client.connection import NAMESPACE
from models.bringup.entry import BringupEntry
from models.bringup.recipe import ClusterRecipe
from models.bringup.stages import BringupStage
from models.bringup.state import Bringup, StepPhase, StepRun
from tests.e2e.bringup_site import Site, Story
from tests.e2e.test_crashes import PATIENT, Processes, ledger_of, processes
from tests.e2e.world import Sql, connected, eventually
from tests.unit.bringup_world import ENTRY
from workers.embedded_temporal import EmbeddedTemporal

pytestmark = [pytest.mark.chaos, pytest.mark.nightly]

PROGRAM = """\
#!/bin/sh
echo "$1 begins" >> "$2/ran"
[ "$1" = short ] || while [ ! -e "$2/may-end" ]; do sleep 0.1; done
echo "$1 ends" >> "$2/ran"
"""


class Operator:
    """One site: a server, workers that come and go, and a bring-up whose first step lasts."""

    def __init__(self, home: Path, running: Processes, address: str, story: Story) -> None:
        self.home, self.story = home, story
        self.name = story.start.entry.cluster
        self.sql = Sql(ledger_of(home))
        self._running, self._address = running, address

    async def worker(self, home: Path | None = None) -> Process:
        """One more, of this home or with another one's place for runs."""
        where = {"TEMPORAL_ADDRESS": self._address, "TEMPORAL_NAMESPACE": NAMESPACE}
        ours = {"BACKSTOP_RUNNERS": str(self.home / "runners.yaml"), "BACKSTOP_LEDGER_URL": ledger_of(self.home)}
        other = {} if home is None else {"BACKSTOP_HOME": str(home)}
        return await self._running.start("workers.main", "serving", **where, **ours, **other)

    async def killed(self, worker: Process) -> None:
        """Kill the worker and its whole session."""
        os.killpg(worker.pid, signal.SIGKILL)
        await worker.wait()

    async def followed_by(self, worker: Process) -> None:
        """Wait until that worker has taken up the running step."""
        ends = asyncio.get_running_loop().time() + PATIENT
        while True:
            described = await self.story.handle.describe()
            taken = [
                call.last_worker_identity.partition("@")[0]
                for call in described.raw_description.pending_activities
                if call.activity_type.name == "follow_run"
                and call.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
            ]
            if taken == [str(worker.pid)]:
                return
            assert asyncio.get_running_loop().time() < ends, taken
            await asyncio.sleep(0.2)

    def ran(self) -> list[str]:
        path = self.home / "ran"
        return path.read_text().splitlines() if path.exists() else []

    async def goes_on(self) -> StepRun:
        """Both steps are done, and the cluster is in production; answers how the long one went."""
        await self.story.until(lambda s: s.stage is BringupStage.IN_PRODUCTION, PATIENT)
        state: Bringup = await self.story.handle.query("state", result_type=Bringup)
        return state.runs["long"]

    def archived(self, step: str) -> list[str]:
        """Return the archive's entries about the step's runs, without the program's own text."""
        texts = [entry["text"] for entry in self.sql.archive(self.name) if entry["data"].get("run") == step]
        return [text.partition(": ")[0] for text in texts]


def written(home: Path) -> Path:
    """The step's program, and the worker's file that allows it."""
    program = home / "step.sh"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    (home / "runners.yaml").write_text(f"programs: [{{program: {program}}}]\n")
    return program


@asynccontextmanager
async def operator(home: Path) -> AsyncIterator[Operator]:
    async with processes(home / "state") as running, EmbeddedTemporal(home / "temporal", None, None) as server:
        program = written(running.home)
        upgrade(ledger_of(running.home))
        steps = [
            {"name": "long", "with": "command", "run": [str(program), "long", "{folder}"], "repeatable": True},
            {"name": "short", "with": "command", "run": [str(program), "short", "{folder}"], "after": ["long"]},
        ]
        made_by = {"name": "bare-metal", "provision": steps, "soak": "1s", "settle": "20s"}
        entry = {**ENTRY, "cluster": f"long-{home.name}", "values": {"folder": str(running.home)}}
        story = Story(
            await connected(server.address),
            Site(),
            BringupEntry.model_validate(entry),
            ClusterRecipe.model_validate(made_by),
        )
        found = Operator(running.home, running, server.address, story)
        try:
            yield found
        finally:
            (running.home / "may-end").touch()
            found.sql.close()


ONCE = ["long begins", "long ends", "short begins", "short ends"]
BEGUN = ["long is about to start (attempt 1)", "long runs"]
ONE_RUN = [*BEGUN, "long is done"]


async def test_a_long_step_runs_once_whatever_becomes_of_its_workers(tmp_path: Path) -> None:
    """Three operators at once, whose machines have nothing to do with each other."""
    places = [tmp_path / name for name in ("two", "none", "other")]
    for place in places:
        place.mkdir()
    await asyncio.gather(
        two_workers_die_while_it_runs(places[0]),
        it_ends_while_no_worker_lives(places[1]),
        a_worker_with_another_home_sees_no_trace_of_it(places[2]),
    )


async def two_workers_die_while_it_runs(home: Path) -> None:
    async with operator(home) as here:
        for number in range(3):
            worker = await here.worker()
            if number == 0:
                assert (await here.story.begin()).begun
            await here.followed_by(worker)
            assert here.ran() == ["long begins"]
            if number < 2:
                await here.killed(worker)
        (here.home / "may-end").touch()
        assert (await here.goes_on()).attempt == 1
        assert here.ran() == ONCE
        await eventually(lambda: here.archived("long") == ONE_RUN, "its archive")
        assert here.sql.broken_links(here.name) == []


async def it_ends_while_no_worker_lives(home: Path) -> None:
    async with operator(home) as here:
        worker = await here.worker()
        assert (await here.story.begin()).begun
        await here.followed_by(worker)
        await here.killed(worker)
        (here.home / "may-end").touch()
        await eventually(lambda: here.ran() == ["long begins", "long ends"], "the program ends")
        await asyncio.sleep(1)
        back_at = datetime.now(UTC)
        await here.worker()
        ended_at = (await here.goes_on()).ended_at
        assert ended_at is not None
        assert ended_at < back_at
        assert here.ran() == ONCE
        await eventually(lambda: here.archived("long") == ONE_RUN, "its archive")


async def a_worker_with_another_home_sees_no_trace_of_it(home: Path) -> None:
    """A step that is repeatable, at that: it has begun, so that nobody may say that it does not run."""
    async with operator(home) as here:
        worker = await here.worker()
        assert (await here.story.begin()).begun
        await here.followed_by(worker)
        await here.killed(worker)
        worker = await here.worker(home / "elsewhere")
        status = await here.story.until(lambda s: s.stage is BringupStage.BLOCKED, PATIENT)
        assert {step.name: step.phase for step in status.steps}["long"] is StepPhase.UNCLEAR
        assert status.because == (
            "step long is unclear: its runner has no trace of it any more (it may be running, have run, or "
            "never have started: check first)"
        )
        assert here.ran() == ["long begins"]
        (here.home / "may-end").touch()
        await eventually(lambda: here.ran() == ["long begins", "long ends"], "the program ends")
        await here.story.say("skip", step="long", reason="it has ended")
        await here.goes_on()
        assert here.ran() == ONCE
        assert here.archived("long")[:3] == [*BEGUN, "long is unclear"]
