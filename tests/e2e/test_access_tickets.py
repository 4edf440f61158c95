"""A rollout where keys are configured: every command has its ticket, every effect what it stands on."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from temporalio.client import Client

from client.backstop import Backstop
from client.connection import TemporalTarget
from client.front_signer import FrontSigner
from models.access.principals import Principal, Proof
from models.bringup.commands import BringupOrder
from models.bringup.entry import BringupEntry
from models.bringup.recipe import ClusterRecipe
from models.bringup.runs import RunPhase
from models.bringup.stages import BringupCommand, BringupStage
from models.cluster.island import Island
from models.rollout.stages import Stage
from tests.e2e.bringup_site import BARE, Story, worker_of
from tests.e2e.keys import FRONT_KEY, public_keys
from tests.e2e.test_bringup_fleet import InLedger
from tests.e2e.world import CLOCKS, Sql, World, eventually, fresh, worked_case
from tests.unit.bringup_world import ENTRY

ROOMY = {"name": "main", "total_gpus": 500, "healthy_gpus": 480}


def proofs(ticketed: World, rollout: str) -> list[tuple[str, str, str]]:
    rows = ticketed.sql.rows(
        "SELECT kind, outcome, ground FROM effect_proofs WHERE rollout = ? ORDER BY counter", rollout
    )
    return [(kind, outcome, ground) for kind, outcome, ground in rows if kind != "follow"]


async def all_proven(sql: Sql, *words: str) -> None:
    """Check that each row about a warrant's own command by its own giver is proven, including these texts.

    By plain SQL, and without a look at what else the row says.
    """

    def told() -> list[tuple[str, str]]:
        given = {n: json.loads(p)["name"] for n, p in sql.rows("SELECT nonce, principal FROM warrants")}
        rows = [json.loads(entry) for (entry,) in sql.rows("SELECT entry FROM audit ORDER BY cluster, seq")]
        named = [(row, given.get(row["data"].get("warrant", ""))) for row in rows if row["kind"] == "command"]
        theirs = [row for row, by in named if by is not None and by == row["actor"]]
        return [(row["data"].get("command", row["text"]), row["data"]["proof"]["proof"]) for row in theirs]

    def those_that_are_told() -> set[str]:
        return {word for want in words for word, _ in told() if word.endswith(want)}

    await eventually(lambda: len(those_that_are_told()) >= len(words), f"{words} in the archive")
    assert [row for row in told() if row[1] != "peer"] == []


async def changed_by_others(ticketed: World, what: str) -> str:
    """A monitored rollout that is held, as somebody else has set its quota to 300."""
    name = fresh(what)
    await ticketed.fleet(worked_case(name, owners=["sre"]))
    await ticketed.start(name)
    await ticketed.until(name, Stage.MONITORED)
    ticketed.sql.set("research", 300, name)
    await ticketed.until(name, lambda s: any(h.id == "drift" for h in s.holds))
    return name


@pytest.mark.nightly
async def test_a_bring_up_fills_the_fleet_by_its_entry_and_goes_by_its_retirement(
    temporal: Client, sqlite_ledger_url: str, tmp_path: Path
) -> None:
    """The machine's work in a bring-up rests on the two tickets: of the entry, and of the retirement."""
    site = InLedger()
    site.islands = (Island(name="main", total_gpus=56, healthy_gpus=56),)
    site.ends["nodes"] = RunPhase.SUCCEEDED
    made_by = ClusterRecipe.model_validate(BARE)
    quotas = [{"team": "a", "gpus": 30}, {"team": "b", "gpus": 24}]
    said = {"recipe": "bare", "quotas": quotas, "owed_until": "2036-06-01T00:00:00Z", "policy": CLOCKS}
    story = Story(temporal, site, BringupEntry.model_validate({**ENTRY, **said, "cluster": fresh("feed")}), made_by)
    name = story.start.entry.cluster
    sre = FrontSigner(FRONT_KEY, Principal(name="sre", human="sre", proof=Proof.PEER))
    with contextlib.closing(Sql(sqlite_ledger_url)) as sql:
        async with worker_of(temporal, sqlite_ledger_url, tmp_path, site, "h1", keys=public_keys):
            assert "the command has no ticket" in (await story.begin()).reason
            story.start = sre(story.start, "bringup.add", story.id)
            assert (await story.begin()).begun
            await story.until(lambda s: s.stage is BringupStage.IN_PRODUCTION)
            assert sql.gpus(name) == {"a": 26, "b": 21}
            site.islands = (Island(name="main", total_gpus=64, healthy_gpus=64),)
            await eventually(lambda: sql.gpus(name) == {"a": 30, "b": 24}, "what is owed is granted")
            target = TemporalTarget(options={}, embedded=True)
            door = Backstop(temporal, "sre", target, sre)
            await door.bringup_command(name, BringupCommand.RETIRE, BringupOrder(actor="sre", reason="over"))
            await eventually(lambda: not sql.rows("SELECT 1 FROM clusters WHERE name = ?", name), "it is out", 90)
        machines = sql.rows("SELECT DISTINCT command FROM warrants WHERE inherits IS NOT NULL ORDER BY command")
        assert machines == [("rollout.approve",), ("rollout.close",), ("rollout.launch",)]
        await all_proven(sql, "retire", "launch", "approve", "close")
