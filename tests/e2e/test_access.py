"""Rights through a real desk: the first file, what it refuses after that, who could act, and the way back."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import yaml

from cli.main import run
from client.who_could_act import could_act_now
from models.access.access_file import AccessFile
from models.access.access_versions import ACCESS_CHAIN
from models.access.roles import Role
from models.access.tokens import TokenScope
from models.access_questions import AccessNow, ImportAccess, MakeToken, RevokeToken, TokenOf, Tokens
from models.audit_chain import broken_links
from models.errors import Refusal
from models.rollout.stages import Command
from tests.e2e.world import World, cluster, team

FILE = AccessFile.model_validate(
    {
        "grants": [
            {"to": ["user:tpm", "user:sre"], "roles": ["admin"]},
            {"to": ["user:sre", "group:hw-leads"], "roles": ["approver"], "clusters": ["access-*"]},
            {"to": ["user:tpm"], "roles": ["operator"]},
        ]
    }
)


@pytest.mark.nightly
async def test_access_from_the_first_file_to_the_way_back(
    world: World,
    sqlite_ledger_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = "access-a"
    await world.fleet(cluster(name, {"main": (361, 361)}, [team("a", 200), team("b", 161, busy=100)]))
    await world.launch(name)
    status = await world.tpm.status(name)
    assert "approve" in status.needs
    assert await could_act_now(world.tpm.ask, status) == (), "no access is configured"
    configured = {check.name: check.text for check in await world.tpm.doctor()}
    assert configured["access"].startswith("not configured: everybody who reaches Temporal")

    with pytest.raises(Refusal, match="user:intern is not among user:sre, user:tpm"):
        await world.person("intern").ask(ImportAccess(file=FILE))
    outcome = await world.tpm.ask(ImportAccess(file=FILE, reason="r"))
    assert (outcome.in_force, outcome.version) == (True, 1)
    stands = await world.person("anybody").ask(AccessNow())
    assert stands.version is not None
    assert stands.version.file == FILE
    assert await could_act_now(world.tpm.ask, status) == ("user:sre", "group:hw-leads")
    checks = {check.name: check for check in await world.tpm.doctor()}
    assert checks["access"].text.startswith("2 admins by name; no front signs")

    # Nobody checks who asks here: from now on that changes nothing.
    scope = TokenScope(roles=(Role.VIEWER,))
    for question in (
        ImportAccess(file=FILE.but(two_person=False)),
        MakeToken(name="t", hash=64 * "a", owner="user:sre", scope=scope, days=1),
        RevokeToken(name="t"),
    ):
        with pytest.raises(Refusal, match="has not logged in, and an access file is in force"):
            await world.person("user:tpm").ask(question)
    assert await world.tpm.ask(Tokens(ended=True)) == ()
    assert await world.tpm.ask(TokenOf(hash=64 * "a")) is None

    # The way back needs the ledger, and neither Temporal nor a second person.
    path = tmp_path / "access.yaml"
    path.write_text(yaml.safe_dump({"grants": [{"to": ["user:new"], "roles": ["admin"]}]}))
    monkeypatch.setenv("BACKSTOP_LEDGER_URL", sqlite_ledger_url)
    monkeypatch.setenv("BACKSTOP_ACTOR", "root")
    line = ["access", "recover", str(path), "--reason", "both have left", "--yes", "--json"]
    assert await asyncio.to_thread(run, line) == 0
    assert "as version" not in json.loads(capsys.readouterr().out)["said"]
    stands = await world.tpm.ask(AccessNow())
    assert stands.version is not None
    assert (stands.version.version, stands.version.how, stands.version.by) == (2, "recovered", "root")
    assert stands.version.file.admins == ("user:new",)
    rows, head = await world.tpm.read_archive(ACCESS_CHAIN)
    assert broken_links(rows, head) == []
    assert [(row.entry.actor, row.entry.reason) for row in rows] == [("tpm", "r"), ("root", "both have left")]
    monkeypatch.setenv("BACKSTOP_LEDGER_URL", f"sqlite:///{tmp_path / 'none.db'}")
    assert await asyncio.to_thread(run, line) == 3
    assert "this machine reaches no ledger" in capsys.readouterr().err
    await world.say(name, Command.ABORT, reason="the story is over")
    await world.ended(name)
