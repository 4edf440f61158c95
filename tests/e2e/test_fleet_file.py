"""The fleet file beside a real rollout: imported again, tried, with secrets; clusters renamed and taken out."""

from __future__ import annotations

from typing import Any

import pytest

from client.inputs.fleet_yaml_writer import fleet_yaml
from models.cluster.fleet_file import Fleet
from models.cluster.import_outcome import FleetOutcome, ImportTerms, Verb
from models.errors import Refusal
from models.questions import RemoveCluster, RenameCluster
from models.rollout.stages import Command, Stage
from tests.e2e.test_secrets import TOKEN, histories_with, rows_with
from tests.e2e.world import World, fresh, worked_case
from tests.integration.notice_servers import web_server


async def taken(world: World, *clusters: dict[str, Any], contact: str, **terms: Any) -> FleetOutcome:
    teams = [{"name": "research", "contacts": [contact]}]
    fleet = Fleet.model_validate({"clusters": clusters, "teams": teams})
    return await world.tpm.take_fleet(fleet, ImportTerms(file="fleet.yaml", **terms), world.stage)


@pytest.mark.nightly
async def test_a_file_is_imported_again_beside_a_rollout_and_a_cluster_goes_when_it_is_closed(
    world: World, sqlite_ledger_url: str
) -> None:
    with web_server() as web:
        await a_second_day(world, sqlite_ledger_url, f"webhook+http://127.0.0.1:{web.port}/yes/{TOKEN}")


async def a_second_day(world: World, ledger_url: str, secret: str) -> None:
    name, other = fresh("lives"), fresh("typo")
    case = worked_case(name, soak_buffered="0s", soak_enforced="1s")
    tried = await taken(world, case, contact=secret, dry_run=True)
    assert (tried.totals, world.sql.rows("SELECT name FROM clusters")) == ({Verb.ADDED: 2}, [])
    assert rows_with(ledger_url, TOKEN) == set()
    await taken(world, case, contact=secret)
    await world.start(name)
    await world.until(name, Stage.MONITORED)

    # The same file, with another contact and another cluster: both go in, and the cut stands.
    outcome = await taken(world, case, worked_case(other), contact=f"{secret}/new")
    assert (outcome.totals, outcome.done) == ({Verb.ADDED: 1, Verb.CHANGED: 1, Verb.KEPT: 1}, True)
    assert world.sql.gpus(name) == {"research": 306}
    assert world.sql.one("SELECT address FROM contacts") == f"{secret}/new"
    status = await world.status(name)
    assert (status.stage, status.holds) == (Stage.MONITORED, ())

    # A wish is refused with its cluster, and the rest is not.
    wish = worked_case(name)
    wish["quotas"][0]["gpus"] = 320
    outcome = await taken(world, wish, {**worked_case(other), "gpu_model": "B200"}, contact=secret)
    assert [line.cluster for line in outcome.of(Verb.REFUSED)] == [name]
    assert world.sql.rows("SELECT name FROM clusters WHERE gpu_model = 'B200'") == [(other,)]
    for question in (RemoveCluster(cluster=name), RenameCluster(cluster=name, name="else")):
        with pytest.raises(Refusal, match="is open"):
            await world.tpm.ask(question)

    # Out again, as a file without secrets; then the typo goes, and the other one is called otherwise.
    pages = await world.tpm.fleet_pages()
    assert [c["name"] for page in pages for c in page.clusters] == sorted([name, other])
    assert "contacts: ['webhook+http://***']" in fleet_yaml(
        {"teams": [t.model_dump(mode="json") for t in pages[0].teams]}
    )
    assert (await world.tpm.ask(RemoveCluster(cluster=other, reason="a typo"))).done
    await world.say(name, Command.CLOSE)
    await world.handle(name).result()
    assert (await world.tpm.ask(RenameCluster(cluster=name, name=f"{name}-2"))).done
    world.launched.discard(name)
    assert world.sql.gpus(f"{name}-2") == {"research": 306}
    assert (await taken(world, worked_case(f"{name}-2"), contact="webhook+http://***")).of(Verb.KEPT)
    texts = [row.entry.text for row in (await world.tpm.read_archive(f"{name}-2"))[0]]
    assert texts[0] == f"renamed from {name}: earlier entries are under that name"
    assert await histories_with(world.client, TOKEN) == set()
    assert rows_with(ledger_url, TOKEN) == {"contacts"}
