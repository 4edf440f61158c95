"""`status` where nobody serves: the ledger's word, and what to start."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from models.rollout.stages import Stage
from tests.e2e.test_lost_rollouts import said
from tests.e2e.world import connected, fresh, worked_case, world_of
from workers.embedded_temporal import EmbeddedTemporal


@pytest.mark.nightly
async def test_without_a_worker_the_ledger_answers_and_says_so(
    sqlite_ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fresh("unattended")
    monkeypatch.setenv("BACKSTOP_LEDGER_URL", sqlite_ledger_url)
    server = EmbeddedTemporal(tmp_path / "temporal", None, None)
    async with server:
        async with world_of(await connected(server.address), sqlite_ledger_url, tmp_path) as world:
            await world.fleet(worked_case(cluster, soak_buffered="1h"))
            await world.start(cluster)
            await world.until(cluster, Stage.BUFFERED)
            await world.archived(cluster)
            rollout = world.sql.row("clusters", name=cluster)["open_rollout"]
            code, status = await said(server, tmp_path, "status")
            assert (code, "ledger's word" in status) == (0, False)

        # Its last poll is a moment old: the server still lists it.
        code, status = await said(server, tmp_path, "status")
        assert code == 0
        assert "This is what the ledger had at " in status
        assert "no worker has answered yet; if none is running, nobody guards the quotas" in status
        assert any(cluster in row and "buffered" in row for row in status.splitlines()), status

    shutil.rmtree(tmp_path / "temporal")
    server = EmbeddedTemporal(tmp_path / "temporal", None, None)
    async with server:
        nobody = "no worker is running, so nobody guards the quotas. Start one: `backstop up` or `backstop worker`."
        code, status = await said(server, tmp_path, "status", "--stage", "buffered")
        assert (code, nobody in status, cluster in status) == (0, True, True)
        code, status = await said(server, tmp_path, "status", "--stage", "planned")
        assert (code, "The only open rollout does not match." in status) == (0, True)
        code, status = await said(server, tmp_path, "status", cluster)
        assert (code, nobody in status) == (0, True)
        assert f"{cluster}: buffered, {rollout} of " in status
        code, status = await said(server, tmp_path, "status", "--json")
        document = json.loads(status)
        assert (code, [row["cluster"] for row in document["rollouts"]]) == (0, [cluster])
        assert document["ledger_word_at"]
        code, status = await said(server, tmp_path, "status", cluster, "--json")
        assert (code, nobody in status) == (1, True), status
        monkeypatch.setenv("BACKSTOP_LEDGER_URL", f"sqlite:///{tmp_path}/none.db")
        code, status = await said(server, tmp_path, "status")
        assert (code, status) == (1, f"backstop: {nobody}\n")

    monkeypatch.setenv("BACKSTOP_LEDGER_URL", sqlite_ledger_url)
    code, status = await said(server, tmp_path, "status")
    assert (code, f"Temporal does not answer at {server.address}" in status, cluster in status) == (0, True, True)
    assert "It is unknown whether a worker guards the quotas." in status
