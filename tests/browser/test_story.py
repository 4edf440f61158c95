"""A rollout from its launch to monitored in a browser, by mouse alone and by keyboard alone. SQL is the witness."""

from __future__ import annotations

import asyncio
import re

import pytest
from playwright.async_api import Route, expect

from models.rollout.stages import Command, Stage
from tests.browser.browsing import THIS_USER, Console, Window, person
from tests.e2e.world import PATIENCE, World, eventually, fresh, worked_case

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
STEPS = ("buffered", "enforced", "monitored")


async def shows(window: Window, cluster: str, stage: str) -> None:
    """Wait until the open page shows this by itself, or a later state; nobody reloads it."""
    here = window.page.locator('.track [aria-current="step"] b')
    await expect(here).to_have_text(re.compile("|".join(STEPS[STEPS.index(stage) :])))
    assert window.page.url.endswith(f"/clusters/{cluster}")


async def compared(console: Console, window: Window, cluster: str) -> None:
    """Compare the page's quotas and commands with the ledger."""
    sql = console.world.sql
    await console.world.archived(cluster)
    entries = sql.archive(cluster)[-10:]  # something may be archived while the page is made: it has these
    await window.page.reload()
    [(team, gpus)] = sql.rows("SELECT team, gpus FROM quotas WHERE cluster = ?", cluster)
    row = window.page.locator("table").first.locator("tbody tr").first
    cells = [cell.strip() for cell in await row.locator("td").all_inner_texts()]
    head = [cell.strip() for cell in await window.page.locator("table").first.locator("thead th").all_inner_texts()]
    said = dict(zip(head, cells, strict=True))
    assert (said["Team"], int(said["Quota"])) == (team, gpus)
    audit = await window.text("#audit")
    for entry in entries:
        assert entry["text"] in audit, entry["text"]


async def test_by_mouse_alone(console: Console) -> None:
    world, name = console.world, fresh("mouse")
    await world.fleet(worked_case(name, soak_enforced="2s", soak_buffered="2s"))
    world.launched.add(name)
    async with console.window() as window:
        page = window.page
        await page.get_by_role("link", name="Launch a rollout").click()
        await page.get_by_role("link", name=name).click()
        await page.get_by_role("button", name="Launch").click()
        await window.sees(f"A rollout of {name} is open, and its plan waits for an approval.")
        launched = world.sql.row("rollouts", cluster=name)
        assert (launched["stage"], launched["owner"]) == ("planned", "user:root")
        await page.get_by_role("link", name="Fleet", exact=True).click()
        await page.locator(".next").get_by_role("link", name=name, exact=True).click()
        await page.locator("#do").get_by_role("link", name="Approve the plan").click()
        plan = (await world.status(name)).plan_hash
        await expect(page.locator("form.give code")).to_have_text(str(plan))
        await page.get_by_role("button", name="Approve the plan").click()
        for stage in STEPS:
            await shows(window, name, stage)
        await compared(console, window, name)
        assert world.sql.one("SELECT gpus FROM quotas WHERE cluster = ?", name) == 306
        await world.archived(name)
        approved = [e for e in world.sql.archive(name) if "approv" in e["text"]]
        assert {e["actor"] for e in approved} == {"user:root"}
        await page.get_by_role("link", name="Fleet", exact=True).click()
        await expect(page.get_by_role("row", name=name)).to_contain_text("monitored")
        assert (window.complaints, window.strangers()) == ([], [])


async def to_by_tab(window: Window, name: str, most: int = 60) -> None:
    """Tab until it has the focus, which can be seen on each stop."""
    for _ in range(most):
        await window.page.keyboard.press("Tab")
        found = await window.page.evaluate(
            """() => { const at = document.activeElement, style = getComputedStyle(at);
            const box = at.getBoundingClientRect();
            return [at.innerText?.trim() || '', style.outlineStyle, parseFloat(style.outlineWidth) || 0,
                    at.tagName, box.width * box.height]; }"""
        )
        text, style, width, tag, area = found
        if tag == "BODY":
            continue
        assert style != "none", found
        assert width >= 2, found
        assert area > 0, found
        if text == name:
            return
    raise AssertionError(f"{name} is not reached by Tab")


@pytest.mark.nightly
async def test_by_keyboard_alone(console: Console) -> None:
    world, name = console.world, fresh("keys")
    await world.fleet(worked_case(name))
    world.launched.add(name)
    async with console.window() as window:
        page = window.page

        async def chosen(text: str, path: str) -> None:
            await to_by_tab(window, text)
            await page.keyboard.press("Enter")
            await page.wait_for_url(f"**{path}")

        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.innerText") == "To the content"
        await page.keyboard.press("Enter")
        assert await page.evaluate("document.activeElement.id") == "main"
        await chosen("Launch a rollout", "/launch")
        await chosen(name, f"/launch/{name}")
        await to_by_tab(window, "Launch")
        await page.keyboard.press("Enter")
        await page.wait_for_url(f"**/clusters/{name}")
        await chosen("Fleet", "/")
        await chosen("Approve...", f"/clusters/{name}/approve")
        await to_by_tab(window, "Approve the plan")
        await page.keyboard.press("Enter")
        await shows(window, name, "monitored")
        await compared(console, window, name)
        assert window.complaints == []


@pytest.mark.parametrize("by", ["mouse", "keyboard"])
@pytest.mark.nightly
async def test_hardware_fails_and_comes_back_as_in_the_demo(console: Console, by: str) -> None:
    """The open page says by itself that it was rolled back and is monitored again; one link leads to the audit."""
    world, name = console.world, fresh("demo")
    await world.fleet(worked_case(name))
    await world.start(name)
    await world.until(name, Stage.MONITORED)
    async with console.window() as window:
        page = window.page
        await window.to(f"/clusters/{name}")
        await world.healthy(name, main=(361, 300))
        await window.sees("The rollout is rolled back.")
        await world.until(name, Stage.ROLLED_BACK)
        assert world.sql.one("SELECT gpus FROM quotas WHERE cluster = ?", name) <= 300
        await expect(page.locator("#audit")).to_contain_text("breach")
        await world.healthy(name, main=(361, 319))
        await world.until(name, lambda s: s.stage is Stage.MONITORED and s.attempt == 2)
        await shows(window, name, "monitored")
        await expect(page.locator(".standing")).to_contain_text("attempt 2")
        assert world.sql.one("SELECT gpus FROM quotas WHERE cluster = ?", name) == 306
        await world.at_rest()  # a page that is made again under way is another one
        if by == "mouse":
            await page.get_by_role("link", name="All of it").click()
        else:
            await to_by_tab(window, "All of it")
            await page.keyboard.press("Enter")
        await page.wait_for_url(f"**/audit?cluster={name}")
        shown = await window.text()
        moves = [e["text"] for e in world.sql.archive(name) if e["kind"] == "transition"]
        assert len(moves) > 6
        assert [text for text in moves if re.sub(r"\s+", " ", text) not in shown] == []
        assert window.complaints == []


async def quiet(window: Window) -> None:
    """The page asks for nothing for a while, once what happened before it has been noted."""
    asked = -1
    async with asyncio.timeout(PATIENCE):
        while len(window.asked) != asked:
            asked = len(window.asked)
            await asyncio.sleep(3)


async def archived(world: World, name: str, command: Command) -> None:
    await eventually(
        lambda: command in [entry["data"].get("command") for entry in world.sql.archive(name)], f"{command} is archived"
    )


@pytest.mark.nightly
async def test_an_open_page_costs_nothing_while_nothing_changes_and_follows_what_does(console: Console) -> None:
    world, name = console.world, fresh("live")
    await world.fleet(worked_case(name, soak_buffered="1h"))
    await world.start(name)
    await world.until(name, Stage.BUFFERED)
    async with console.window() as window:
        await window.to(f"/clusters/{name}")
        await quiet(window)
        await world.say(name, Command.PAUSE)
        await window.sees("paused")
        await quiet(window)  # an answer that is on its way would come through

        await window.context.set_offline(True)
        await world.say(name, Command.RESUME)
        await asyncio.sleep(1)
        assert "paused" in await window.text(".standing"), "the line is cut"
        await window.context.set_offline(False)
        await expect(window.page.locator(".standing")).not_to_contain_text("paused")

        console.front.stopping.set()  # the front ends every stream, and takes none
        await window.sees("The console does not answer", "#away")
        await world.say(name, Command.PAUSE)
        console.front.stopping.clear()
        await expect(window.page.locator(".standing")).to_contain_text("paused")
        await expect(window.page.locator("#away")).to_be_hidden()


@pytest.mark.parametrize("first", [True, False], ids=["the first page", "a later one"])
@pytest.mark.nightly
async def test_what_happens_between_a_page_and_its_line_is_shown(console: Console, first: bool) -> None:
    """The page shows an earlier state; the first event on its line brings the present one."""
    world, name = console.world, fresh("between")
    await world.fleet(worked_case(name, soak_buffered="1h"))
    await world.start(name)
    await world.until(name, Stage.BUFFERED)
    await world.at_rest()
    heard = asyncio.Event()

    async def late(route: Route) -> None:
        await heard.wait()
        await route.continue_()

    async with console.window(None) as window:
        if first:
            await window.page.route("**/live", late)
        await window.page.goto(console.link(person(THIS_USER)))
        if not first:
            await window.page.route("**/live", late)
            await window.to("/")
        await expect(window.page.get_by_role("row", name=name)).not_to_contain_text("paused")
        await world.say(name, Command.PAUSE)
        await archived(world, name, Command.PAUSE)
        await world.at_rest()  # nothing happens after it that would have the page made again
        heard.set()
        await expect(window.page.get_by_role("row", name=name)).to_contain_text("paused")


@pytest.mark.nightly
async def test_of_two_looks_the_later_one_stays(console: Console) -> None:
    """The page is asked for again while an answer from before is still on its way."""
    world, name = console.world, fresh("twice")
    await world.fleet(worked_case(name, soak_buffered="1h"))
    await world.start(name)
    await world.until(name, Stage.BUFFERED)
    await world.at_rest()
    taken, let_go, held = asyncio.Event(), asyncio.Event(), list[str]()

    async def slow(route: Route) -> None:
        answer = await route.fetch()
        if not held:
            held.append(route.request.url)
            taken.set()
            await let_go.wait()
        await route.fulfill(response=answer)

    async with console.window() as window:
        await window.to(f"/clusters/{name}")
        standing = window.page.locator(".standing")
        await expect(standing).not_to_contain_text("paused")
        await quiet(window)
        await window.page.route(f"**/clusters/{name}", slow)
        await world.say(name, Command.PAUSE)
        async with asyncio.timeout(PATIENCE):
            await taken.wait()
        await world.say(name, Command.RESUME)
        await archived(world, name, Command.RESUME)
        await asyncio.sleep(3)  # whoever asks again at once has the answer
        let_go.set()
        await asyncio.sleep(1)  # it is there
        await expect(standing).not_to_contain_text("paused")
