"""Commands that a cluster's page offers are accepted, and greyed ones are refused for the reason beside them."""

from __future__ import annotations

import pytest

from models.access_questions import ImportAccess
from models.errors import Refusal
from models.rollout.stages import Command, Stage
from tests.e2e.console_world import Browser, console_of, somebody
from tests.e2e.keys import FRONT_KEY
from tests.e2e.world import World, fresh, worked_case
from tests.unit.access_world import access, grant

FILE = access(grant("user:sre", "operator", "approver"), grant("user:hw-lead", "approver"))


async def test_a_form_of_a_rollout_that_has_ended_offers_nothing_and_says_why(world: World) -> None:
    name = fresh("over")
    await world.fleet(worked_case(name))
    await world.launch(name)
    await world.until(name, Stage.PLANNED)
    await world.say(name, Command.ABORT)
    await world.ended(name)
    paths = [f"/clusters/{name}/{c}" for c in ("abort", "rollback", "retry", "close", "promote")]
    paths += [f"/teams/research/object/{name}", f"/teams/research/ack/{name}"]
    async with console_of(world) as place:
        browser = Browser(place, somebody("user:ana"))
        async with browser.http:
            for path in paths:
                seen = await browser.look(path)
                assert f"the rollout of {name} has ended (aborted)" in seen.words, path
                assert "What the command would do is unknown" not in seen.words, path
                assert not any(where == path for where, _ in seen.forms), path


async def test_a_command_that_would_be_refused_for_a_hold_is_grey_with_the_same_words(world: World) -> None:
    name = fresh("offers")
    await world.fleet(worked_case(name))
    await world.launch(name)
    await world.until(name, Stage.PLANNED)
    place_of = {command: f"/clusters/{name}/{command}" for command in (Command.PAUSE, Command.RESUME, Command.RESOLVE)}
    async with console_of(world) as place:
        browser = Browser(place, somebody("user:ana"))
        async with browser.http:
            free = await browser.look(f"/clusters/{name}")
            with pytest.raises(Refusal, match="not paused"):
                await world.say(name, Command.RESUME)
            with pytest.raises(Refusal, match="none to resolve"):
                await world.say(name, Command.RESOLVE, hold="x")
            await world.say(name, Command.PAUSE)
            with pytest.raises(Refusal, match="already paused"):
                await world.say(name, Command.PAUSE)
            paused = await browser.look(f"/clusters/{name}")
            await world.say(name, Command.OBJECT, team="research")
            objected = await browser.look(f"/clusters/{name}")
            nowhere = await browser.look(f"/clusters/{fresh('nowhere')}")
    offered = {
        stage: {c for c, path in place_of.items() if path in seen.links}
        for stage, seen in {"free": free, "paused": paused, "objected": objected}.items()
    }
    assert offered == {
        "free": {Command.PAUSE},
        "paused": {Command.RESUME},
        "objected": {Command.RESUME, Command.RESOLVE},
    }
    assert "not paused" in free.words
    assert "there is no hold that a person can lift" in free.words
    assert "already paused" in paused.words
    assert not any("hold=paused" in link for link in paused.links), "a pause is resumed, not resolved"
    assert not any("/launch/" in link for link in nowhere.links)


async def test_who_launched_cannot_approve_and_another_can(ticketed: World) -> None:
    """In a browser: tests/browser/test_persons.py."""
    world, name = ticketed, fresh("two")
    await world.fleet(worked_case(name, soak_buffered="1h"), by="user:tpm")
    await world.person("user:tpm").ask(ImportAccess(file=FILE))
    world.launched.add(name)
    page, approve = f"/clusters/{name}", f"/clusters/{name}/approve"
    async with console_of(world, key=FRONT_KEY, by_file=True) as place:
        sre, lead = Browser(place, somebody("user:sre")), Browser(place, somebody("user:hw-lead"))
        async with sre.http, lead.http:
            await sre.given(f"/launch/{name}", "launch")
            why = "user:sre launched the rollout: another approver has to approve"
            own, form = await sre.look(page), await sre.look(approve)
            assert why in own.words
            assert (why in form.words, approve in dict(form.forms)) == (True, False)
            assert world.sql.row("rollouts", cluster=name)["stage"] == "planned"

            other, form = await lead.look(page), await lead.look(approve)
            assert (approve in other.links, f"{page}/pause" in other.links) == (True, False)
            plan = dict(form.forms)[approve]["plan_hash"]
            refused = await sre.refused(approve, "own", plan_hash=plan)
            assert why in refused.words
            await lead.given(approve, "other", plan_hash=plan)
    assert (await world.until(name, Stage.BUFFERED)).approved_by == "user:hw-lead"
    await world.archived(name)
    approvals = [e for e in world.sql.archive(name) if e["kind"] == "command" and "approve" in e["text"]]
    assert {e["actor"] for e in approvals if not e["refused"]} == {"user:hw-lead"}
