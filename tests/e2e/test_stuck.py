"""Somebody is called to a stuck rollout at night: what `backstop status` says is so in the ledger, and what it
promises of a command comes true. The real command line, workflow and ledger; rows are read by plain SQL.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities.adapters.ledger.facade import Ledger
from activities.ports.registry import OpenRollout
from client.connection import NAMESPACE
from models.rollout.effects import EffectKind
from models.rollout.stages import Command, Stage
from tests.e2e.faults import Fault, Faulty, FaultyQuotas, Way, refused
from tests.e2e.test_cli_offline import BACKSTOP, environment
from tests.e2e.world import World, cluster, eventually, fresh, team, without_flex_moves, world_of

K = EffectKind
PATIENT = 60
QUOTAS = [team("a", 200), team("b", 161, busy=100)]
"""C = 306 of 361: b gives 55."""
BASELINE, CUT = {"a": 200, "b": 161}, {"a": 200, "b": 106}
REFUSED = "failed: injected: not allowed"


class Night:
    """One rollout, monitored, and a terminal."""

    def __init__(self, world: World, quotas: FaultyQuotas, name: str) -> None:
        self.world, self.quotas, self.name, self.sql = world, quotas, name, world.sql
        self.faults: dict[EffectKind, Fault] = {}

    def breaks(self, *kinds: EffectKind) -> None:
        """These inverses are refused until they are mended."""
        for kind in kinds:
            self.faults[kind] = Fault(Way.NEVER_LANDED, refused, times=None)
            self.quotas.inject(self.name, kind, self.faults[kind])

    async def says(self, command: str, *options: str, code: int = 0) -> str:
        """`backstop COMMAND CLUSTER OPTIONS`, as a process; its output, or with a code its complaint."""
        where = {
            "TEMPORAL_ADDRESS": self.world.client.service_client.config.target_host,
            "TEMPORAL_NAMESPACE": NAMESPACE,
            "BACKSTOP_ACTOR": "tpm",
        }
        process = await asyncio.create_subprocess_exec(
            BACKSTOP,
            command,
            self.name,
            *options,
            env=environment(self.world.home, **where),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), PATIENT)
        assert process.returncode == code, (out, err)
        return (err if code else out).decode()

    async def status(self) -> dict[str, list[str]]:
        """The printed facts by their label; the text below a command's line is its second."""
        out = await self.says("status")
        told: dict[str, list[str]] = {}
        label = ""
        for line in out.split("\n\n")[0].splitlines()[1:]:
            begin, text = re.split(" {2,}", line, maxsplit=1)
            label = begin or label
            told.setdefault(label, []).append(text)
        return told

    async def stuck(self, times: int = 1) -> None:
        """Check that it became stuck so often, and that the owner was called each time."""
        await self.world.until(self.name, Stage.STUCK)
        await eventually(
            lambda: (
                self.sql.transitions(self.name).count("stuck") == times
                and self.world.notices(self.name).count(("stuck", "tpm")) == times
            ),
            f"{self.name} is stuck for the {times}. time, and its owner is called",
        )

    def call(self) -> str:
        """The last call for help, as its reader gets it."""
        lines = [json.loads(line) for line in (self.world.home / "notices.jsonl").read_text().splitlines()]
        bodies: list[str] = [
            line["body"]
            for line in lines
            if (line["notice"]["cluster"], line["notice"]["kind"]) == (self.name, "stuck")
        ]
        return bodies[-1]

    def ledger(self) -> dict[str, Any]:
        """Values, modes and the cluster's row."""
        row = self.sql.row("clusters", name=self.name)
        kept = ("open_rollout", "reserved_gpus", "reserve_limit", "follows_health")
        return {"gpus": self.sql.gpus(self.name), "modes": self.sql.modes(self.name)} | {k: row[k] for k in kept}

    def effects(self) -> list[str]:
        rows = self.sql.rows("SELECT kind FROM receipts WHERE cluster = ? ORDER BY rollout, counter", self.name)
        return without_flex_moves(kind for (kind,) in rows)


@pytest.fixture
async def night(temporal: Client, sqlite_ledger_url: str, tmp_path: Path) -> AsyncIterator[Night]:
    faulty = Faulty()
    async with world_of(temporal, sqlite_ledger_url, tmp_path, faulty) as world:
        name = fresh("night")
        waits = dict.fromkeys(("notice", "soak_buffered", "soak_enforced"), "0s")
        await world.fleet(cluster(name, {"main": (361, 361)}, QUOTAS, **waits))
        await world.start(name)
        await world.until(name, Stage.MONITORED)
        yield Night(world, faulty.quotas, name)


def hard(night: Night, **more: Any) -> dict[str, Any]:
    """The ledger before the rollout, but for these."""
    before = {"gpus": BASELINE, "modes": {"a": "hard", "b": "hard"}, "open_rollout": f"{night.name}/1"}
    return before | {"reserved_gpus": 0, "reserve_limit": None, "follows_health": 0} | more


SOFT = {"a": "soft", "b": "soft"}


@pytest.mark.nightly
async def test_a_retry_says_what_it_will_run_and_comes_back_until_the_cause_is_mended(night: Night) -> None:
    night.breaks(K.RESTORE)
    await night.world.say(night.name, Command.ROLLBACK)
    await night.stuck()

    told = await night.status()
    assert told["undone"] == [
        "follow: the flex pool no longer follows health",
        "harden: the limits are soft again",
        "reserve: the freed capacity is released, so that others can raise quotas into it",
    ]
    assert told["NOT undone"] == [f"set_soft: the quotas still have the rollout's values; restore {REFUSED}"]
    assert told["still"] == ["b has 106 GPUs, not 161"]
    assert night.ledger() == hard(night, gpus=CUT, modes=SOFT)
    line, does = told["retry"]
    assert line == f"backstop retry {night.name} --reason '...'"
    assert does.startswith(
        "runs restore again and nothing else (b to 161); then the rollout is rolled back and stays open."
    )
    for text in (*told["NOT undone"], *told["still"], line, does[1:], *told["close"][0:1], told["close"][1][1:]):
        assert text in night.call()

    before = night.effects()
    out = await night.says("retry", "--reason", "perhaps now")
    said, undo = out.splitlines()
    assert said.endswith("(rolling_back): running restore again; if that fails, the rollout is stuck as before")
    assert (
        undo == "It cannot be undone: nothing stops a rollback; if an undo fails again, the rollout is stuck as before."
    )
    await night.stuck(times=2)
    again = await night.status()
    aged = ("last look", "health")
    assert {k: v for k, v in again.items() if k not in aged} == {k: v for k, v in told.items() if k not in aged}
    assert night.effects() == before
    assert night.ledger() == hard(night, gpus=CUT, modes=SOFT)
    assert night.faults[K.RESTORE].reached == 2

    night.faults[K.RESTORE].mend()
    await night.says("retry", "--reason", "the ledger takes writes again")
    await night.world.until(night.name, Stage.ROLLED_BACK)
    assert night.effects() == [*before, "restore"]
    assert night.ledger() == hard(night)
    after = await night.status()
    assert (
        after["undone"][-1]
        == "set_soft: the quotas have their earlier values, and the limits are as before the rollout"
    )
    assert {"NOT undone", "still"} & {*after} == set()
    assert "close" not in after


@pytest.mark.nightly
async def test_a_close_says_what_stays_and_what_ends(night: Night) -> None:
    """Somebody else has set one of the quotas meanwhile."""
    night.sql.run("UPDATE quotas SET gpus = 190 WHERE cluster = ? AND team = 'a'", night.name)
    await night.world.until(night.name, lambda s: any(h.id == "drift" for h in s.holds))
    night.breaks(K.UNFOLLOW, K.SOFTEN, K.RESTORE, K.RELEASE)
    await night.world.say(night.name, Command.ABORT)
    await night.stuck()

    told = await night.status()
    assert "undone" not in told
    assert told["NOT undone"] == [
        f"follow: the flex pool still follows health; unfollow {REFUSED}",
        f"harden: the limits are still hard; soften {REFUSED}",
        f"set_soft: the quotas still have the rollout's values; restore {REFUSED}",
        f"reserve: the freed capacity is still reserved: no quota can be raised into it; release {REFUSED}",
    ]
    assert told["still"] == [
        "a has 190 GPUs, not 200 (changed by others, left alone)",
        "b has 106 GPUs, not 161",
    ]
    stands = {"gpus": {"a": 190, "b": 106}, "reserved_gpus": 55, "reserve_limit": 306, "follows_health": 1}
    assert night.ledger() == hard(night, **stands)
    assert told["retry"][1].startswith(
        "runs unfollow, soften, restore and release again and nothing else (b to 161); then the rollout ends, aborted."
    )
    assert told["close"][1] == (
        "ends the rollout as it is: a stays at 190, not 200, b stays at 106, not 161; limits stay hard. "
        "Then the reserved GPUs are released and the flex pool stops following health (Backstop notifies you if that "
        "fails). Nothing more is undone: from then on you change quotas by hand"
    )

    assert "close needs a reason while the rollout is stuck" in await night.says("close", "--yes", code=3)
    said = await night.says("close", "--reason", "by hand from here", code=2)
    assert f"Close {night.name}? There is no terminal to ask on, so nothing was changed" in said
    out = await night.says("close", "--reason", "by hand from here", "--yes")
    closed, undo = out.splitlines()
    assert closed == f"{night.name} (closed): closed as it is; the values and limits stay, and nothing more is undone"
    assert undo.startswith("It cannot be undone: the values stay.")
    assert (await night.world.ended(night.name))["stage"] == "closed"
    assert night.ledger() == hard(night, gpus={"a": 190, "b": 106}, open_rollout=None)
    assert night.effects() == ["reserve", "set_soft", "harden", "follow", "close"]
    assert night.world.notices(night.name).count(("held", "tpm")) == 1, "of the drift, and of nothing since"


@pytest.mark.nightly
async def test_a_superseded_rollout_writes_nothing_and_its_adoption_restores(
    night: Night, sqlite_ledger_url: str
) -> None:
    """Another Temporal on the same ledger took the cluster over, and is lost."""
    with Ledger(sqlite_ledger_url) as ledger:
        mine = night.sql.row("rollouts", id=f"{night.name}/1")
        theirs = OpenRollout(
            rollout=f"{night.name}/elsewhere",
            cluster=night.name,
            owner="somebody",
            opened_at=datetime.now(UTC),
            baseline=json.loads(mine["baseline"]),
        )
        assert ledger.registry.open_rollout(theirs, adopt=True).adopted_from == f"{night.name}/1"
    await night.world.say(night.name, Command.ROLLBACK)
    await night.stuck()

    told = await night.status()
    assert told["NOT undone"] == [
        "follow: the flex pool may follow health",
        "harden: the limits may be hard",
        "set_soft: the quotas may have the rollout's values",
        "reserve: the freed capacity may be reserved",
    ]
    assert told["still"] == ["b may have 106 GPUs, not 161"]
    assert "superseded: " in told["rollback"][0]
    assert "retry" not in told
    assert "only `close` is possible" in await night.says("retry", code=3)
    stands = {"gpus": CUT, "reserved_gpus": 55, "reserve_limit": 306, "follows_health": 1}
    stands["open_rollout"] = f"{night.name}/elsewhere"
    assert night.ledger() == hard(night, **stands)

    line, does = told["close"]
    assert does.startswith("ends this rollout and writes nothing")
    out = await night.says("close", "--reason", "theirs", "--yes")
    assert "nothing is written, and the cluster is left to the rollout that owns it now" in out
    assert (await night.world.ended(night.name))["stage"] == "closed"
    assert night.ledger() == hard(night, **stands)

    line, does = told["launch"]
    assert re.fullmatch(rf"backstop launch {night.name} --adopt --reason '...'", line)
    assert "takes over the baseline and what is not undone yet, so that aborting it restores the baseline" in does
    await night.says("launch", "--adopt", "--yes", "--reason", "nobody is there any more")
    await night.world.say(night.name, Command.ABORT)
    assert (await night.world.ended(night.name))["stage"] == "aborted"
    assert night.ledger() == hard(night, open_rollout=None)
