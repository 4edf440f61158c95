"""Questions at a terminal before a command that undoes or touches many: what the question says is what happens.

Real processes on a pseudo-terminal. What was said is compared with plain SQL after the command has run.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys

import pytest

from models.rollout.stages import Command, Stage
from tests.e2e.terminal import ASKS, Terminal, environment
from tests.e2e.world import CLOCKS, World, cluster, eventually, fresh, team, worked_case

pytestmark = pytest.mark.e2e

ROW = re.compile(r"^(\S+) +(\S+) +(\d+) +(\d+) +(\d+)\s*$", re.MULTILINE)
"""CLUSTER, TEAM, NOW, COMES BACK, BACKED TODAY."""


def typed(world: World, *words: str) -> Terminal:
    return Terminal(words, environment(world.client.service_client.config.target_host, world.home))


async def piped(world: World, *words: str) -> tuple[int, str]:
    """Run the command without a terminal; return the exit code and the output."""
    found = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "cli.main", *words],
        env=environment(world.client.service_client.config.target_host, world.home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return found.returncode, found.stdout + found.stderr


async def monitored(world: World, *names: str, **policy: object) -> None:
    await world.fleet(*(worked_case(name, **policy) for name in names))
    for name in names:
        await world.start(name)
    for name in names:
        await world.until(name, Stage.MONITORED)


@pytest.mark.nightly
async def test_an_abort_of_several_says_who_gets_what_back_and_it_is_so(world: World) -> None:
    stem = fresh("abort")
    a, b, waits = (f"{stem}-{n}" for n in ("a", "b", "c"))
    await monitored(world, a, b)
    await world.fleet(worked_case(waits))
    await world.launch(waits)
    before = {name: world.sql.dump(name) for name in (a, b, waits)}

    code, said = await piped(world, "abort", f"{stem}-*", "--reason", "wrong buffer")
    assert code == 2
    assert "Abort 3 rollouts? There is no terminal to ask on, so nothing was changed: give --yes if you mean it" in said

    no = typed(world, "abort", f"{stem}-*", "--reason", "wrong buffer")
    await no.until(ASKS)
    no.types("n")
    assert (await no.ended(), "Nothing was changed." in no.shown) == (1, True)
    assert {name: world.sql.dump(name) for name in (a, b, waits)} == before
    assert {world.sql.row("rollouts", cluster=name)["stage"] for name in (a, b)} == {"monitored"}

    yes = typed(world, "abort", f"{stem}-*", "--reason", "wrong buffer")
    shown = await yes.until(ASKS)
    told = {(c, t): (int(now), int(back), int(backed)) for c, t, now, back, backed in ROW.findall(shown)}
    assert told.keys() == {(a, "research"), (b, "research")}
    assert {now for now, _, _ in told.values()} == {world.sql.gpus(a)["research"]} == {306}
    assert f"{waits} (planned): nothing has been applied yet." in shown
    healthy = world.sql.one("SELECT SUM(healthy_gpus) FROM health_samples WHERE cluster = ?", a)
    assert {backed for _, _, backed in told.values()} == {min(345, healthy)} == {319}
    # 2 x (345 - 306) come back; of 345 promised, 319 are healthy, in each of two.
    sums = (
        "3 rollouts end; 78 GPUs come back to 1 team; "
        "then 52 promised GPUs will have no healthy GPU behind them, by today's health."
    )
    assert sums in shown
    assert "Will be notified: research (1 team)." in shown
    yes.types("y")
    assert await yes.ended() == 0, yes.shown
    for name in (a, b, waits):
        await world.ended(name)
        assert world.sql.row("rollouts", cluster=name)["stage"] == "aborted"
    assert {key: world.sql.gpus(key[0])[key[1]] for key in told} == {key: back for key, (_, back, _) in told.items()}
    for name in (a, b):
        assert ("rolled_back", "research") in world.notices(name)
    assert [kind for kind, _ in world.notices(waits)] == []  # nobody had been told of its plan
    assert "3 accepted." in yes.shown
    assert "It cannot be undone: nothing stops a rollback. When it has ended:" in yes.shown
    assert f"backstop launch CLUSTER, for each of {a}, {b}" in yes.shown


@pytest.mark.nightly
async def test_a_rollback_by_a_script_needs_yes_and_then_asks_nothing(world: World) -> None:
    name = fresh("script")
    await monitored(world, name)
    code, said = await piped(world, "rollback", name, "--reason", "evals are starved", "--json")
    assert (code, "give --yes if you mean it" in said, world.sql.gpus(name)) == (2, True, {"research": 306})
    code, said = await piped(world, "rollback", name, "--reason", "evals are starved", "--json", "--yes")
    assert (code, json.loads(said)["stage"]) == (0, "rolling_back")
    await world.until(name, Stage.ROLLED_BACK)
    assert world.sql.gpus(name) == {"research": 345}
    undo = json.loads(said)["undo"]
    assert undo.startswith(f"Undo, once it is rolled back: backstop retry {name}")
    code, said = await piped(world, "retry", name)
    assert code == 0, said


@pytest.mark.nightly
async def test_the_plan_that_is_approved_is_the_one_that_was_shown(world: World) -> None:
    name = fresh("shown")
    await world.fleet(worked_case(name))
    await world.launch(name)
    shown_hash = (await world.status(name)).plan_hash
    assert shown_hash is not None
    code, said = await piped(world, "approve", name)
    assert (code, "--plan is missing" in said) == (2, True)

    late = typed(world, "approve", name)
    shown = await late.until(ASKS)
    assert "345   306   39" in shown
    assert "1 team will be notified." in shown
    assert f"Approve plan {shown_hash} of {name}?" in shown
    world.sql.set("research", 340, name)  # by others, while the person reads
    await world.until(name, lambda s: s.plan_hash not in (None, shown_hash))
    late.types("y")
    assert await late.ended() == 3
    assert re.search(
        rf"the plan is \w+, not {shown_hash}: look at the plan, then approve it", late.shown.replace("\n", " ")
    )
    assert (await world.status(name)).approved_by == ""

    again = typed(world, "approve", name)
    shown = await again.until(ASKS)
    assert "340   306   34" in shown
    again.types("y")
    assert await again.ended() == 0
    assert f"Undo: backstop abort {name} --reason '...'" in again.shown
    await world.until(name, Stage.MONITORED)
    assert world.sql.gpus(name) == {"research": 306}


@pytest.mark.nightly
async def test_a_close_at_risk_is_asked_for_and_one_that_is_backed_is_not(world: World) -> None:
    risky, backed = fresh("risky"), fresh("backed")
    await monitored(world, risky, backed, breach_after="1h")
    code, said = await piped(world, "close", backed)
    assert code == 0, said
    await world.healthy(risky, main=(361, 300))
    await world.until(risky, lambda s: bool(s.at_risk))
    code, said = await piped(world, "close", risky, "--reason", "a year")
    assert (code, f"Close {risky}? There is no terminal to ask on" in said) == (2, True)
    asked = typed(world, "close", risky, "--reason", "a year")
    shown = await asked.until(ASKS)
    assert re.search(rf"{risky} +monitored +research +6\n", shown)  # 306 promised, 300 healthy
    assert "Will be notified: research (1 team)." in shown
    asked.types("y")
    assert await asked.ended() == 0
    await world.ended(risky)
    assert world.sql.gpus(risky) == {"research": 306}
    await eventually(lambda: ("closed", "research") in world.notices(risky), "the team is told")


@pytest.mark.nightly
async def test_several_are_shown_and_asked_for_and_each_has_its_line(world: World) -> None:
    stem = fresh("many")
    names = [f"{stem}-{n}" for n in ("a", "b")]
    await monitored(world, *names)
    await world.say(names[1], Command.PAUSE)
    code, said = await piped(world, "pause", f"{stem}-*", "--reason", "SEV")
    assert (code, "Pause 2 rollouts? There is no terminal to ask on" in said) == (2, True)
    asked = typed(world, "pause", f"{stem}-*", "--reason", "SEV")
    shown = await asked.until(ASKS)
    assert "2 clusters, 612 GPUs promised to 1 team." in shown
    assert sum(sum(world.sql.gpus(name).values()) for name in names) == 612
    asked.types("y")
    assert await asked.ended() == 1
    assert re.search(rf"{names[0]} +monitored +paused: gates stay shut", asked.shown)
    assert re.search(rf"{names[1]} +refused +already paused", asked.shown)
    assert f"1 accepted, 1 refused.\nUndo: backstop resume {names[0]}\n" in asked.shown
    code, said = await piped(world, "resume", *names, "--yes", "--json")
    answers = json.loads(said)["answers"]
    assert (code, [(a["cluster"], a["refused"]) for a in answers]) == (0, [(names[0], False), (names[1], False)])
    code, said = await piped(world, "resume", "no-such-*")
    assert (code, "no-such-*: the glob matches no open rollout" in said) == (2, True)


@pytest.mark.nightly
async def test_a_fleet_is_approved_paced_and_let_go_on_at_a_terminal(world: World) -> None:
    names = [fresh(n) for n in ("pilot", "other", "last")]
    pilot = names[0]
    clusters = [cluster(n, {"main": (100, 98)}, [team("research", 95, busy=60)], breach_after="0.5s") for n in names]
    await world.fleet(*clusters)
    await world.launch_fleet(fresh("fleet"), {"parallel": 1, "pilot_soak": "1h", "bake": "1h"}, pilots=(pilot,))
    approve = typed(world, "fleet", "approve")
    shown = await approve.until(ASKS)
    assert re.search(r"all +3 +285 +294 +30 ", shown)  # 95 -> 85 in each
    assert "of 3 clusters?" in shown
    approve.types("y")
    assert await approve.ended() == 0
    assert "Undo: backstop fleet abort --undo --reason '...'" in approve.shown
    await world.until_fleet(lambda s: s.rests_until is not None)
    assert (await world.tpm.fleet_status()).wave.value == "pilot"

    await asyncio.sleep(1.5)  # the soak is older than what it is set to
    code, said = await piped(world, "fleet", "pace", "pilot_soak=1s", "--reason", "they have run for a week")
    assert code == 0, said
    assert "pilot_soak 1h -> 1s; in force at once: by the new length the running soak has already ended" in said
    assert "Undo: backstop fleet pace pilot_soak=1h --reason '...'" in said
    await world.until_fleet(lambda s: sum(m.state.value == "done" for m in s.members) == 2)
    await world.healthy(pilot, main=(100, 80))  # 85 were promised
    await world.until(pilot, lambda s: s.stage is Stage.ROLLED_BACK)
    await world.say_fleet("pace", pace={"max_failed": "0.01"})
    status = await world.until_fleet(lambda s: bool(s.holds))
    assert [h.id for h in status.holds] == ["breaker"]
    code, said = await piped(world, "fleet", "resume", "--reason", "racks replaced")
    assert (code, "Let the fleet rollout go on? There is no terminal to ask on" in said) == (2, True)
    resume = typed(world, "fleet", "resume", "--reason", "racks replaced")
    shown = await resume.until(ASKS)
    assert "1 failure no longer counts; " in shown
    resume.types("y")
    assert await resume.ended() == 0
    await eventually(
        lambda: any("pace pilot_soak 1h -> 1s by tpm" in e["text"] for e in world.sql.archive("(fleet)")), "archived"
    )
    paced = [e for e in world.sql.archive("(fleet)") if e["data"].get("command") == "pace"]
    assert [e["reason"] for e in paced] == ["they have run for a week", "as the story goes"]


@pytest.mark.nightly
async def test_a_fleet_s_abort_says_what_every_team_gets_back(world: World) -> None:
    names = [fresh(n) for n in ("first", "second", "waits")]
    slow = {**CLOCKS, "soak_enforced": "1h"}
    clusters = [cluster(n, {"main": (100, 98)}, [team("research", 95, busy=60)]) for n in names]
    for one in clusters:
        one["policy"] = slow
    await world.fleet(*clusters)
    await world.start_fleet(fresh("fleet"), {"parallel": 2})
    await world.until_fleet(lambda s: sum(m.stage == "enforced" for m in s.members) == 2)
    started = sorted(name for (name,) in world.sql.rows("SELECT cluster FROM rollouts"))
    code, said = await piped(world, "fleet", "abort", "--undo", "--reason", "wrong buffer")
    assert (code, "Abort the fleet rollout and undo what it has done? There is no terminal to ask on" in said) == (
        2,
        True,
    )
    asked = typed(world, "fleet", "abort", "--undo", "--reason", "wrong buffer")
    shown = await asked.until(ASKS)
    told = {c: (int(now), int(back)) for c, _, now, back, _ in ROW.findall(shown)}
    assert told == dict.fromkeys(started, (85, 95))
    assert {name: world.sql.gpus(name)["research"] for name in started} == {
        name: now for name, (now, _) in told.items()
    }
    assert "2 rollouts end; 20 GPUs come back to 1 team; today's hardware backs all of it." in shown
    assert "1 waiting cluster will not be started." in shown
    asked.types("y")
    assert await asked.ended() == 0
    await world.until_fleet(lambda s: s.stage.has_ended)
    assert {name: world.sql.gpus(name)["research"] for name in started} == {n: back for n, (_, back) in told.items()}
    assert world.sql.one("SELECT COUNT(*) FROM rollouts") == 2
