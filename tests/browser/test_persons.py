"""Two browsers as two persons, a stale page, a worker that is away, and logging out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Locator, expect
from temporalio.client import Client

from client.http_door import http_door
from client.http_exchange import AtUrl
from models.access_questions import ImportAccess
from models.fleet.messages import FleetLaunch
from models.rollout.stages import Stage
from tests.browser.browsing import Console, Window, console_of, person
from tests.e2e.console_world import ByName
from tests.e2e.world import World, fresh, worked_case, world_of
from tests.unit.access_world import access, grant
from web.ledger_rights import LedgerRights

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
FILE = access(grant("user:sre", "operator", "approver"), grant("user:hw-lead", "approver"))


@pytest.fixture
async def by_two(ticketed: World, browser: Browser) -> AsyncIterator[Console]:
    """A console of people whose rights an access file may say."""
    async with console_of(ticketed, browser, tokens=(ByName(),)) as found:
        found.front.rights = found.front.giving.rights = LedgerRights(found.front.doors)
        yield found


def button(window: Window, name: str) -> Locator:
    """The row of a command, whether it can be given or is greyed."""
    return window.page.locator(".do li").filter(has=window.page.get_by_text(name, exact=True))


@pytest.mark.nightly
async def test_who_launched_cannot_approve_and_another_can(by_two: Console) -> None:
    world, name = by_two.world, fresh("two")
    await world.fleet(worked_case(name, soak_buffered="1h"), by="user:tpm")
    await world.person("user:tpm").ask(ImportAccess(file=FILE))
    world.launched.add(name)
    async with by_two.window("sre") as one, by_two.window("hw-lead") as other:
        await one.to(f"/launch/{name}")
        await one.page.get_by_role("button", name="Launch").click()
        await one.sees("its plan waits for an approval")
        await expect(button(one, "Approve the plan").locator(".off")).to_have_text("Approve the plan")
        why = "user:sre launched the rollout: another approver has to approve"
        await expect(button(one, "Approve the plan")).to_contain_text(why)
        await one.to(f"/clusters/{name}/approve")
        await one.sees(why)
        assert await one.page.locator("form.give").count() == 0
        assert world.sql.row("rollouts", cluster=name)["stage"] == "planned"

        await other.to(f"/clusters/{name}")
        await expect(button(other, "Pause").locator(".off")).to_have_text("Pause")
        await other.page.locator("#do").get_by_role("link", name="Approve the plan").click()
        await other.page.get_by_role("button", name="Approve the plan").click()
        await other.page.wait_for_url(f"**/clusters/{name}")
        assert (await world.until(name, Stage.BUFFERED)).approved_by == "user:hw-lead"
        await world.archived(name)
        given = [e["actor"] for e in world.sql.archive(name) if e["kind"] == "command" and "approve" in e["text"]]
        assert set(given) <= {"user:hw-lead"}


@pytest.mark.nightly
async def test_who_aborts_with_undo_cannot_countersign_it_and_another_can(by_two: Console) -> None:
    world, name = by_two.world, fresh("abort")
    await world.fleet(worked_case(name, soak_buffered="1h"), by="user:tpm")
    await world.person("user:tpm").ask(ImportAccess(file=FILE))
    world.fleet_launched = True
    launch = FleetLaunch(fleet=f"fleet/{name}", owner="user:sre", actor="user:sre", pilots=(name,))
    await http_door(AtUrl(by_two.url), lambda: "sub-sre").launch_fleet(launch)
    async with by_two.window("sre") as one, by_two.window("hw-lead") as other:
        await one.to("/rollout/abort")
        await one.page.get_by_role("checkbox").check()
        await one.page.get_by_label("Reason").fill("the wrong order")
        await one.page.get_by_role("button", name="Abort").click()
        await one.sees(
            "Nothing is done yet: the command to abort the fleet rollout with undo waits for a second person"
        )
        (row,) = world.sql.rows("SELECT hash, given_by, second, ended FROM waiting_commands")
        digest = row[0]
        assert row[1:] == ("user:sre", "", "")

        await one.to("/access")
        await one.page.get_by_role("link", name="Look at it").click()
        await one.sees("you gave the command yourself: another person must countersign it")
        assert await one.page.get_by_role("button", name="Countersign").count() == 0
        await one.page.get_by_role("button", name="Withdraw it").wait_for()

        await other.to("/access")
        await other.page.get_by_role("link", name="Look at it").click()
        await other.page.wait_for_url(f"**/access/waiting/{digest}")
        await other.sees("the wrong order")
        assert await other.page.get_by_role("button", name="Withdraw it").count() == 0
        assert world.sql.rows("SELECT count(*) FROM warrants WHERE command = 'fleet.abort'") == [(0,)]
        await other.page.get_by_role("button", name="Countersign").click()
        await other.sees("Given by user:sre, countersigned by user:hw-lead")
        assert world.sql.rows("SELECT second, ended FROM waiting_commands") == [("user:hw-lead", "given")]
        assert world.sql.one("SELECT count(*) FROM warrants WHERE command = 'fleet.abort'") == 1
        assert "aborted" in str((await world.tpm.fleet_status()).stage)

        await one.page.reload()
        await one.sees("it has already been given")
        assert await one.page.get_by_role("button", name="Withdraw it").count() == 0


@pytest.mark.nightly
async def test_a_plan_that_changed_meanwhile_is_not_approved(console: Console) -> None:
    world, name = console.world, fresh("stale")
    await world.fleet(worked_case(name, soak_buffered="1h"))
    await world.launch(name)
    before = str((await world.status(name)).plan_hash)
    async with console.window() as window:
        await window.to(f"/clusters/{name}/approve")
        await expect(window.page.locator("form.give code")).to_have_text(before)
        await world.healthy(name, main=(361, 280))
        after = str((await world.until(name, lambda s: s.plan_hash not in (None, before))).plan_hash)
        await window.page.locator("#changed").wait_for(state="visible")
        await expect(window.page.locator("form.give code")).to_have_text(before)  # as it was looked at
        await window.page.get_by_role("button", name="Approve the plan").click()
        alert = window.page.get_by_role("alert")
        await expect(alert).to_contain_text("Backstop refused this and changed nothing")
        await expect(alert).to_contain_text(after)
        await expect(window.page.locator("form.give code")).to_have_text(after)
        assert (await world.status(name)).approved_by == ""
        assert world.sql.row("rollouts", cluster=name)["stage"] == "planned"


@pytest.mark.nightly
async def test_a_worker_away_is_said_and_its_return_too(
    temporal: Client, sqlite_ledger_url: str, tmp_path: Path, browser: Browser
) -> None:
    async with world_of(temporal, sqlite_ledger_url, tmp_path) as world, console_of(world, browser) as console:
        await world.fleet(worked_case("away"))
        async with console.window() as window:
            await expect(window.page.locator("h1")).to_have_text("Fleet")
    async with console_of(world, browser) as console, console.window() as window:
        await window.sees("there was no answer within")
        async with world_of(temporal, sqlite_ledger_url, tmp_path):
            await expect(window.page.locator("main")).not_to_contain_text("no answer within")  # by itself
            await expect(window.page.locator("h1")).to_have_text("Fleet")
        await window.page.locator("#away").wait_for(state="visible")
        assert "Nobody says whether anything has changed" in await window.text("#away")


@pytest.mark.nightly
async def test_out_of_this_browser_and_out_of_all(console: Console) -> None:
    async with console.window() as one, console.window() as other, console.window("somebody") as another:
        await one.page.get_by_role("button", name="Log out", exact=True).click()
        await one.sees("You are logged out.")
        answer = await one.page.goto(f"{console.url}/")
        assert answer is not None
        assert answer.status == 401
        await one.sees("backstop open")
        link = console.link(person("root"))
        await one.page.goto(link)
        await one.sees("Fleet")
        again = await another.page.goto(link)
        assert again is not None
        assert again.status == 403, "a link is used once"
        await one.page.get_by_role("button", name="Log out everywhere").click()
        await one.sees("You are logged out in every browser.")
        for window, status in ((one, 401), (other, 401), (another, 200)):
            answer = await window.page.goto(f"{console.url}/")
            assert answer is not None
            assert answer.status == status
