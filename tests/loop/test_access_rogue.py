"""A rogue worker asks the genuine ones to write what nobody approved: nothing is written, and the archive says so."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from models.access.tickets import nonce_of
from models.audit_chain import proof_of
from models.cluster.readings import LimitMode
from models.fleet.commands import FleetCommandRequest
from models.requests.commands import RequestOrder
from models.requests.state import QuotaAsk
from models.rollout.effects import EffectKind
from models.rollout.stages import Command, Stage
from models.temporal_names import FLEET_ID
from tests.e2e.rogue import asks, asks_as, rogue_worker
from tests.e2e.world import World, eventually, fresh, worked_case
from tests.loop.turned_loop import EPOCH

ROOMY: dict[str, Any] = {"name": "main", "total_gpus": 500, "healthy_gpus": 480}
NOW = EPOCH.isoformat()


def effect(cluster: str, kind: str, counter: int, **change: Any) -> tuple[str, dict[str, Any]]:
    whole = {"cluster": cluster, "kind": kind, "fence": {"rollout": f"{cluster}/1", "counter": counter}, **change}
    return "apply_effect", {"change": whole, "shadow": False, "limit_gpus": None, "at": NOW}


def write(gpus: int, expected: int, **more: Any) -> list[dict[str, Any]]:
    return [{"team": "research", "expected_gpus": expected, "gpus": gpus, **more}]


def everything(name: str, generation: int, stands: int, counter: int) -> dict[str, tuple[str, dict[str, Any]]]:
    """One forged request of every kind of effect, and of some more than one; by what they would do."""
    now: dict[str, Any] = {"expected_generation": generation}
    reserve = {"freed_gpus": 0, "limit_gpus": 0}
    order = {"request": "r-1", "team": "research", "gpus": 8, "actor": "tpm"}
    grant = {**now, "writes": write(stands + 8, stands)}
    asked = {
        "reserve what nobody frees": effect(name, "reserve", counter, **now, reserve=reserve),
        "raise": effect(name, "set_soft", counter, **now, writes=write(361, stands)),
        "raise, told as a sum": effect(name, "set_soft", counter, **now, writes=write(361, stands, leaf=False)),
        "take everything": effect(name, "set_soft", counter, **now, writes=write(0, stands)),
        "restore what nobody ordered": effect(name, "restore", counter, writes=write(345, stands)),
        "restore more than there was": effect(name, "restore", counter, writes=write(361, stands)),
        "restore by a fence that something else landed by": effect(name, "restore", 1, writes=write(361, stands)),
        "restore nothing": effect(name, "restore", counter, writes=write(0, stands)),
        "soften": effect(name, "soften", counter, mode="soft"),
        "release": effect(name, "release", counter),
        "unfollow": effect(name, "unfollow", counter),
        "grant": effect(name, "grant", counter, **grant),
        "grant by an order": effect(name, "grant", counter, **grant),
        "close": effect(name, "close", counter),
    }
    asked["grant by an order"][1]["order"] = order
    alone = {**grant, "fence": {"rollout": "request/r-1", "counter": 1}}
    asked["grant alone"] = effect(name, "grant", counter, **alone)
    asked["grant alone"][1]["order"] = order
    elsewhere = {"fence": {"rollout": "nobody/1", "counter": 1}, "writes": write(0, stands)}
    asked["for another rollout"] = effect(name, "restore", counter, **elsewhere)
    return asked


MAY = {"harden", "follow"}
"""Of an approved rollout whose values stand: a rogue may trigger them early, and that is all (docs/security.md)."""


def test_every_kind_of_effect_is_tried() -> None:
    tried = {request["change"]["kind"] for _, request in everything("x", 1, 306, 9).values()}
    assert tried | MAY == {kind.value for kind in EffectKind}


def standing(world: World, name: str) -> list[Any]:
    cluster = world.sql.row("clusters", name=name)
    keys = ("generation", "reserved_gpus", "reserve_limit", "follows_health", "flex_gpus", "last_counter")
    return [world.sql.dump(name), [cluster[key] for key in keys], world.sql.rows("SELECT baseline FROM rollouts")]


@pytest.mark.parametrize("stage", [Stage.PLANNED, Stage.MONITORED])
async def test_no_effect_is_made_that_nobody_approved(ticketed: World, stage: Stage) -> None:
    name = fresh("rogue")
    await ticketed.fleet(worked_case(name))
    await (ticketed.launch(name) if stage is Stage.PLANNED else ticketed.start(name))
    await ticketed.until(name, stage)
    if stage is not Stage.PLANNED:
        await ticketed.archived(name)
    before, generation = standing(ticketed, name), ticketed.sql.generation(name)
    (stands,) = ticketed.sql.gpus(name).values()
    asked = everything(name, generation, stands, ticketed.sql.row("clusters", name=name)["last_counter"] + 1)
    if stage is Stage.PLANNED:
        asked["harden"] = effect(name, "harden", 1, expected_generation=generation, mode=LimitMode.HARD.value)
        asked["follow"] = effect(name, "follow", 1, expected_generation=generation, flex_gpus=1)
    else:
        asked["more flex than is healthy"] = effect(name, "follow", 9, flex_gpus=14)
    async with rogue_worker(ticketed.client):
        answers = await asks(ticketed, name, *asked.values())
    said = dict(zip(asked, answers, strict=True))
    assert [
        what for what, answer in said.items() if answer.partition(":")[0] not in ("Refusal", "Conflict", "Drift")
    ] == []
    assert standing(ticketed, name) == before
    told = {entry["text"] for entry in ticketed.sql.archive(name) if entry["key"].startswith("unproven/")}
    assert {f"refused: {kind}" for kind in ("restore", "close", "grant", "release")} <= {
        text.partition(" in ")[0] for text in told
    }


async def test_a_breach_is_aimed_by_what_is_so(ticketed: World) -> None:
    """Neither a forged baseline nor forged health moves a quota; without a breach nothing is aimed."""
    name = fresh("aim")
    await ticketed.fleet(worked_case(name))
    await ticketed.start(name)
    await ticketed.until(name, Stage.MONITORED)
    state = await ticketed.state(name)
    lies = {
        "cluster": name,
        "rollout": f"{name}/1",
        "baseline": state["baseline"],
        "current": {"research": 345},
        "islands": [{"name": "main", "total_gpus": 361, "healthy_gpus": 1}],
        "policy": state["policy"],
        "exempt": True,
        "at": NOW,
    }
    counter = ticketed.sql.row("clusters", name=name)["last_counter"] + 1
    async with rogue_worker(ticketed.client):
        answers = await asks(
            ticketed, name, ("aim_rollback", lies), effect(name, "restore", counter, writes=write(1, 306))
        )
    assert "there is no breach" in answers[0]
    assert answers[1].startswith("Refusal")
    assert ticketed.sql.gpus(name) == {"research": 306}


async def test_a_plan_by_another_policy_is_not_drawn(ticketed: World) -> None:
    name = fresh("policy")
    await ticketed.fleet(worked_case(name))
    await ticketed.launch(name)
    await ticketed.until(name, Stage.PLANNED)
    state = await ticketed.state(name)
    other = {**state["policy"], "max_moved_gpus": 9_999_999}
    async with rogue_worker(ticketed.client):
        (answer,) = await asks(
            ticketed,
            name,
            ("draft_plan", {"cluster": name, "rollout": f"{name}/1", "policy": other, "at": NOW}),
        )
    assert "is not the one that its launch was signed with" in answer


async def test_a_plan_from_a_forged_baseline_is_never_written(ticketed: World) -> None:
    """Its cuts may be those that were approved: what they are cut from is not what there was."""
    name = fresh("twin")
    await ticketed.fleet(worked_case(name, soak_buffered="1h"))
    await ticketed.start(name)
    await ticketed.until(name, Stage.BUFFERED)
    state = await ticketed.state(name)
    forged = state["baseline"]
    forged["quotas"][0]["gpus"] = 358
    draft = {"cluster": name, "rollout": f"{name}/1", "policy": state["policy"], "baseline": forged, "at": NOW}
    generation = ticketed.sql.generation(name)
    writes = write(319, 306)
    counter = ticketed.sql.row("clusters", name=name)["last_counter"] + 1
    async with rogue_worker(ticketed.client):
        answers = await asks(
            ticketed,
            name,
            ("draft_plan", draft),
            effect(name, "set_soft", counter, expected_generation=generation, writes=writes),
        )
    assert answers[0] == "done"
    assert answers[1].startswith("Refusal")
    assert ticketed.sql.gpus(name) == {"research": 306}


async def test_what_starts_needs_a_ticket_whoever_starts_it(ticketed: World) -> None:
    name = fresh("start")
    await ticketed.fleet(worked_case(name))
    launch = {"cluster": name, "rollout": f"{name}/1", "owner": "tpm"}
    fleet = {"fleet": "f-1", "owner": "tpm"}
    desk = {"kind": "remove_cluster", "actor": "tpm", "arguments": {"cluster": name, "reason": "x"}}
    ask = {"request": "r-9", "team": "research", "cluster": name, "gpus": 8, "actor": "tpm"}
    entrant = [{"cluster": name, "rollout": f"{name}/1"}]
    async with rogue_worker(ticketed.client):
        answers = await asks(
            ticketed,
            name,
            ("open_rollout", {"launch": launch, "at": NOW}),
            ("open_rollout", {"launch": {**launch, "fleet": "f-1"}, "at": NOW}),
            ("plan_fleet", {"launch": fleet, "at": NOW}),
            ("start_members", {"launch": fleet, "approved_by": "sre", "entrants": entrant}),
            ("ledger_desk", desk),
            ("assess_request", {"ask": ask, "at": NOW}),
        )
    opened = ticketed.sql.rows("SELECT id FROM rollouts WHERE cluster = ?", name)
    assert opened == []
    assert [answer.partition(":")[0] for answer in answers if answer != "done"][:1] == ["Refusal"]
    assert sum("the command has no ticket" in answer for answer in answers) >= 4
    assert ticketed.sql.gpus(name) == {"research": 345}


async def test_with_a_true_warrant_no_row_is_archived_as_proven_that_says_something_else(ticketed: World) -> None:
    """Somebody else's reason, text or second deed: what they signed proves what they signed, and once."""
    name = fresh("told")
    await ticketed.fleet(worked_case(name, notice="1h"))
    await ticketed.start(name)
    await eventually(lambda: any(e["data"].get("command") == "approve" for e in ticketed.sql.archive(name)), "archived")
    (true,) = (e for e in ticketed.sql.archive(name) if e["data"].get("command") == "approve")
    lies = [
        {**true, "key": f"{name}/1/900001"},
        {**true, "key": f"{name}/1/900002", "reason": "nobody looked at it"},
        {**true, "key": f"{name}/1/900003", "text": f"approve by {true['actor']}, of all clusters"},
        {**true, "key": f"{name}/1/900004", "data": {**true["data"], "command": "abort"}},
    ]
    request: dict[str, Any] = {"rollout": f"{name}/1", "cluster": name, "stage": "planned", "entries": lies}
    request |= {"ended": False, "completed": False}
    async with rogue_worker(ticketed.client):
        assert await asks(ticketed, name, ("record", request)) == ["done"]
    told = {e["key"]: proof_of(e["data"]) for e in ticketed.sql.archive(name)}
    assert told[true["key"]] == "proven (this machine)"
    assert [told[one["key"]] for one in lies] == [
        "asserted, its ticket proves another row",
        "asserted",
        "asserted",
        "asserted",
    ]


@pytest.mark.parametrize("undo", [False, True])
async def test_members_of_an_aborted_fleet_rollout_that_had_written_nothing_write_nothing(
    ticketed: World, undo: bool
) -> None:
    """The fleet's abort stands in the ledger, and a rogue in the fleet's place passes it on to nobody."""
    name = fresh("unbegun")
    await ticketed.fleet(worked_case(name, notice="6s"))
    await ticketed.start_fleet(fleet := fresh("fleet"))
    await eventually(lambda: bool(ticketed.sql.rows("SELECT 1 FROM rollouts WHERE cluster = ?", name)), "it is opened")
    signer = ticketed.signer("tpm")
    assert signer is not None
    order = signer(FleetCommandRequest(actor="tpm", reason="stop", undo=undo), "fleet.abort", FLEET_ID)
    whole = {"kind": "fleet", "command": "abort", "subject": fleet, "update_id": "u-1"}
    ticketed.fleet_replays = False  # what a rogue's history leads to is no business of ours
    async with rogue_worker(ticketed.client):
        answers = await asks_as(ticketed, FLEET_ID, ("admit", {**whole, "message": order.model_dump(mode="json")}))
        assert answers == ["done"]
        assert ticketed.sql.gpus(name) == {"research": 345}
        await eventually(lambda: any(e["key"].startswith("unproven/") for e in ticketed.sql.archive(name)), "refused")
    assert ticketed.sql.gpus(name) == {"research": 345}
    assert ticketed.sql.row("clusters", name=name)["reserve_limit"] is None
    refused = [e["text"] for e in ticketed.sql.archive(name) if e["key"].startswith("unproven/")]
    assert refused[0] == f"refused: reserve in {name} is refused: the ledger has no valid approval of its plan"
    await ticketed.until(name, Stage.ROLLED_BACK)
    await ticketed.say(name, Command.ABORT)
    assert (await ticketed.ended(name))["stage"] == "aborted"


async def test_what_somebody_adopted_is_not_undone_by_an_abort_of_its_fleet_before(ticketed: World) -> None:
    name = fresh("adopted")
    await ticketed.fleet(worked_case(name))
    await ticketed.start_fleet(fleet := fresh("fleet"))
    await eventually(lambda: ticketed.sql.gpus(name) == {"research": 306}, "it is cut")
    await ticketed.until(name, Stage.MONITORED)
    await ticketed.handle(name).terminate(reason="lost")
    ticketed.fleet_replays = False  # what a rogue's history leads to is no business of ours
    signer = ticketed.signer("tpm")
    assert signer is not None
    order = signer(FleetCommandRequest(actor="tpm", reason="stop", undo=True), "fleet.abort", FLEET_ID)
    whole = {"kind": "fleet", "command": "abort", "subject": fleet, "update_id": "u-1"}
    async with rogue_worker(ticketed.client):
        answers = await asks_as(ticketed, FLEET_ID, ("admit", {**whole, "message": order.model_dump(mode="json")}))
        assert answers == ["done"]
        await ticketed.launch(name, f"{name}/2", adopt=True)
        await ticketed.until(name, Stage.PLANNED)
        back = {"fence": {"rollout": f"{name}/2", "counter": 9}, "writes": write(345, 306)}
        machines = {"kind": "rollout", "command": "abort", "update_id": "u-2"}
        word = {"actor": "tpm", "reason": "stop", "warrant": nonce_of(order.ticket)}
        answers = await asks(
            ticketed, name, ("admit", {**machines, "message": word}), effect(name, "restore", 9, **back)
        )
    assert "does not end this rollout" in answers[0]
    assert "nobody has ordered an undo" in answers[1]
    assert ticketed.sql.gpus(name) == {"research": 306}


async def test_a_member_is_opened_within_the_pace_that_was_signed(ticketed: World) -> None:
    """A rogue in the fleet rollout's place opens it, and claims another budget."""
    names = [fresh("paced") for _ in range(2)]
    await ticketed.fleet(*(worked_case(name, notice="1h") for name in names))
    await ticketed.start_fleet(fleet := fresh("fleet"), {"parallel": 1, "budget_per_hour": 300})

    def opened() -> list[str]:
        return [cluster for (cluster,) in ticketed.sql.rows("SELECT cluster FROM rollouts")]

    await eventually(lambda: len(opened()) == 1, "the first one is opened")
    (name,) = set(names) - set(opened())
    ticketed.fleet_replays = False  # what a rogue's history leads to is no business of ours
    launch: dict[str, Any] = {"fleet": fleet, "owner": "tpm", "reason": "a story"}
    paces: list[dict[str, int]] = [
        {"budget_per_hour": 301},
        {"budget_per_hour": 300, "budget_per_day": 4097},
        {"budget_per_hour": 300},
    ]
    forged = [
        {
            "launch": launch | {"pace": pace},
            "approved_by": "tpm",
            "entrants": [{"cluster": name, "rollout": f"{name}/{number}"}],
        }
        for number, pace in enumerate(paces)
    ]
    async with rogue_worker(ticketed.client):
        assert await asks_as(ticketed, FLEET_ID, *(("start_members", one) for one in forged[:2])) == ["done", "done"]
        assert name not in opened()
        assert await asks_as(ticketed, FLEET_ID, ("start_members", forged[2])) == ["done"]
        assert name in opened()
    assert (await ticketed.state(name))["policy"]["max_moved_gpus"] == 300


async def test_what_is_asked_again_under_one_id_is_not_what_was_decided(ticketed: World) -> None:
    name, request = fresh("asked"), fresh("r")
    await ticketed.fleet(worked_case(name, owners=["sre"]) | {"islands": [ROOMY]})
    asker, sre, workflow = ticketed.signer("tpm"), ticketed.signer("sre"), f"request/{request}"
    assert asker is not None
    assert sre is not None
    first = QuotaAsk(request=request, team="research", cluster=name, gpus=8, actor="tpm", reason="x")
    asked = [asker(one, "request.ask", workflow) for one in (first, first.but(gpus=80))]
    decision = sre(RequestOrder(actor="sre", reason="there is room"), "request.approve", workflow)
    decided = {"kind": "request", "command": "approve", "update_id": "u", "message": decision.model_dump(mode="json")}

    def grant(gpus: int) -> tuple[str, dict[str, Any]]:
        generation = ticketed.sql.generation(name)
        change: dict[str, Any] = {"expected_generation": generation, "writes": write(345 + gpus, 345)}
        change["fence"] = {"rollout": workflow, "counter": 1}
        kind, whole = effect(name, "grant", 1, **change)
        order = {"request": request, "team": "research", "gpus": gpus, "actor": "sre"}
        return kind, {**whole, "order": order}

    async with rogue_worker(ticketed.client):
        answers = await asks_as(
            ticketed,
            workflow,
            *(("assess_request", {"ask": one.model_dump(mode="json"), "at": NOW}) for one in asked),
            ("admit", decided),
            grant(80),
        )
        assert answers[:3] == ["done", "done", "done"]
        assert answers[3].startswith("Refusal")
        assert ticketed.sql.gpus(name) == {"research": 345}
        assert await asks_as(ticketed, workflow, grant(8)) == ["done"]
    assert ticketed.sql.gpus(name) == {"research": 353}


@pytest.mark.parametrize("extended", [False, True])
async def test_the_day_that_counts_is_the_one_to_which_a_grant_was_extended(ticketed: World, extended: bool) -> None:
    name, request = fresh("longer"), fresh("r")
    await ticketed.fleet(worked_case(name, owners=["sre"]) | {"islands": [ROOMY]})
    asker, sre, workflow = ticketed.signer("tpm"), ticketed.signer("sre"), f"request/{request}"
    assert asker is not None
    assert sre is not None
    past, ahead = datetime(2026, 1, 1, tzinfo=UTC), datetime(2999, 1, 1, tzinfo=UTC)
    ask = QuotaAsk(request=request, team="research", cluster=name, gpus=8, actor="tpm", reason="x", until=past)
    orders = {"approve": RequestOrder(actor="sre", reason="r")}
    orders |= {"extend": RequestOrder(actor="sre", reason="r", until=ahead)} if extended else {}

    def written(counter: int, gpus: int, was: int, **more: Any) -> tuple[str, dict[str, Any]]:
        change: dict[str, Any] = {"expected_generation": ticketed.sql.generation(name), "writes": write(gpus, was)}
        change["fence"] = {"rollout": workflow, "counter": counter}
        kind, whole = effect(name, "grant", counter, **change)
        return kind, {**whole, "order": {"request": request, "team": "research", "gpus": 8, "actor": "sre", **more}}

    admitted = [
        {"kind": "request", "command": command, "update_id": command, "message": signed.model_dump(mode="json")}
        for command, order in orders.items()
        for signed in [sre(order, f"request.{command}", workflow)]
    ]
    async with rogue_worker(ticketed.client):
        asked = asker(ask, "request.ask", workflow).model_dump(mode="json")
        *done, grant = await asks_as(
            ticketed,
            workflow,
            ("assess_request", {"ask": asked, "at": NOW}),
            *(("admit", one) for one in admitted),
            written(1, 353, 345),
        )
        assert set(done) == {"done"}
        if not extended:
            assert grant.endswith(f"request {request} is over")
            assert ticketed.sql.gpus(name) == {"research": 345}
            return
        assert (grant, ticketed.sql.gpus(name)) == ("done", {"research": 353})
        (answer,) = await asks_as(ticketed, workflow, written(2, 345, 353, raised={"research": 8}))
    assert answer.endswith(
        f"request {request} was granted fewer GPUs than this takes back, or its grant is not due to end yet"
    )
    assert ticketed.sql.gpus(name) == {"research": 353}
