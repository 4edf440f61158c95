"""With keys configured, people give their commands through the front, and notice no difference."""

from __future__ import annotations

import getpass
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from joserfc.jwk import OKPKey

from client.backstop import Backstop
from client.connection import NAMESPACE, TemporalTarget
from client.front_signer import SigningKey
from models.errors import Refusal
from models.rollout.commands import CommandRequest
from models.rollout.messages import LaunchRequest
from models.rollout.stages import Command, Stage
from tests.e2e.console_world import Browser, Seen, console_of, somebody
from tests.e2e.front_world import front_of, http_to, through
from tests.e2e.keys import FRONT_KEY
from tests.e2e.world import World, fresh, worked_case

ME = f"user:{getpass.getuser()}"


@pytest_asyncio.fixture(loop_scope="function")
async def socket(ticketed: World, tmp_path: Path) -> AsyncIterator[Path]:
    async with front_of(ticketed.client, tmp_path / "front.sock", key=FRONT_KEY):
        yield tmp_path / "front.sock"


async def test_a_rollout_through_the_front_has_a_ticket_for_every_command(ticketed: World, socket: Path) -> None:
    name = fresh("front")
    await ticketed.fleet(worked_case(name))
    door = through(socket)
    ticketed.launched.add(name)
    plan = (await door.launch(LaunchRequest(cluster=name, rollout=f"{name}/1", owner="tpm", reason="x"))).plan
    assert plan is not None
    await door.command(name, Command.APPROVE, CommandRequest(actor="whoever", reason="x", plan_hash=plan.hash))
    await ticketed.until(name, Stage.MONITORED)
    await door.command(name, Command.CLOSE, CommandRequest(actor="whoever", reason="x"))
    assert (await ticketed.ended(name))["stage"] == "closed"
    rows = ticketed.sql.rows("SELECT command, human FROM warrants WHERE subject = ? ORDER BY admitted_at", f"{name}/1")
    assert [command for command, _ in rows] == ["rollout.launch", "rollout.approve", "rollout.close"]
    assert {e["actor"] for e in ticketed.sql.archive(name) if e["kind"] == "command" and e["rollout"]} == {ME}


async def test_past_the_front_the_same_command_is_refused(ticketed: World, socket: Path) -> None:
    name = fresh("past")
    await ticketed.fleet(worked_case(name))
    ticketed.launched.add(name)
    await through(socket).launch(LaunchRequest(cluster=name, rollout=f"{name}/1", owner="tpm", reason="x"))
    options = {"target_host": ticketed.client.service_client.config.target_host, "namespace": NAMESPACE}
    straight = Backstop(ticketed.client, ME, TemporalTarget(options=options, embedded=True))
    with pytest.raises(Refusal, match="the command has no ticket"):
        await straight.command(name, Command.ABORT, CommandRequest(actor=ME, reason="x"))


async def test_a_browser_may_come_to_either_of_two_fronts_and_is_logged_out_at_both(
    ticketed: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, other_key = fresh("both"), SigningKey(OKPKey.generate_key("Ed25519", private=True), "other")
    await ticketed.fleet(worked_case(name))
    ticketed.launched.add(name)
    async with console_of(ticketed, FRONT_KEY) as one, console_of(ticketed, FRONT_KEY) as two:
        first = Browser(one, somebody(ME))
        second = Browser(one, somebody(ME))
        stranger = Browser(one, somebody("user:eve"))
        async with first.http, second.http, stranger.http, console_of(ticketed, other_key) as foreign:

            async def status(browser: Browser, place: Mapping[str, Any]) -> int:
                return (await browser.http.get(f"{place['url']}/clusters/{name}")).status_code

            await first.door().launch(LaunchRequest(cluster=name, rollout=f"{name}/1", owner="tpm", reason="x"))
            assert [await status(first, place) for place in (one, two, foreign)] == [200, 200, 401]

            form = {"form_token": first.form_token, "once": "both", "reason": "a SEV"}
            done = await first.http.post(f"{two['url']}/clusters/{name}/pause", data=form)
            assert (done.status_code, done.headers["location"]) == (303, f"/clusters/{name}")
            assert (await ticketed.tpm.status(name)).holds != ()
            after = [Seen((await first.http.get(f"{one['url']}/clusters/{name}")).text).words for _ in range(2)]
            assert ["Undo: Resume" in words for words in after] == [True, False], "said at the other front, once"

            copied = dict(first.http.cookies)
            out = await first.http.post(f"{one['url']}/logout", data={"form_token": first.form_token})
            assert "You are logged out." in out.text
            assert "could not be told" not in out.text
            async with http_to(ticketed.client, cookies=copied) as thief:
                turn(two, monkeypatch)
                for place in (one, two):
                    assert (await thief.get(f"{place['url']}/clusters/{name}")).status_code == 401
            assert await status(second, two) == 200, "that one alone has ended"

            await second.http.post(f"{one['url']}/logout", data={"form_token": second.form_token, "everywhere": "1"})
            third = Browser(two, somebody(ME))
            async with third.http:
                turn(two, monkeypatch)
                assert [await status(third, place) for place in (one, two)] == [200, 200], "it began afterwards"
            assert [await status(stranger, place) for place in (one, two)] == [200, 200]
    rows = ticketed.sql.rows("SELECT hash FROM ended_sessions")
    assert {len(digest) for (digest,) in rows} == {64}
    assert len(rows) == 3


def turn(place: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Time enough has passed for this front to look into the ledger again."""
    monkeypatch.setattr(place["front"].console.sessions, "_read_at", float("-inf"))
