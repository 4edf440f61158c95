"""Every call of every lifecycle goes wrong in every way, and the story ends as it does when nothing goes wrong.

One piece of code makes the mishaps for all lifecycles, between worker and server (tests/loop/activities.py). At the end
plain SQL reads the ledger, and each row must be there that the same story writes without a mishap, and no other.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from models.bringup.entry import BringupEntry
from models.bringup.recipe import ClusterRecipe
from models.bringup.runs import RunPhase
from models.bringup.stages import BringupStage
from models.cluster.island import Island
from models.errors import Refusal
from models.questions import OneRequest
from models.requests.commands import RequestCommand, RequestOrder
from models.requests.state import QuotaAsk, RequestStage
from models.rollout.stages import Command, Stage
from models.temporal_names import FLEET_ID, request_workflow_id
from tests.e2e.bringup_site import BARE, Site, Story
from tests.e2e.world import CLOCKS, World, cluster, seen, team, without_flex_moves, worked_case, world_of
from tests.loop.runs import Call, Mishap
from tests.loop.temporal import InMemoryTemporal, in_memory
from tests.servers import new_ledger
from tests.unit.bringup_world import ENTRY
from workers.bringups import BringupParts

# --- the stories ------------------------------------------------------------------------------


async def play_rollout(world: World, _: Site) -> None:
    """A rollout is done, a breach undoes it, and its owner ends it."""
    await world.fleet(worked_case("c"))
    await world.start("c")
    await world.until("c", Stage.MONITORED)
    await world.healthy("c", main=(361, 290))
    await world.until("c", Stage.ROLLED_BACK)
    await world.say("c", Command.ABORT)
    await world.ended("c")


async def play_request(world: World, _: Site) -> None:
    """A grant waits for a rollout, goes through it, and is given back without one."""
    quotas = [team("evals", 30), team("research", 40, busy=20)]
    await world.fleet(cluster("c", {"main": (100, 100)}, quotas, owners=["capacity"]))
    await world.launch("c")
    world.asked.add("r-1")
    day = world.now() + timedelta(days=9)
    ask = QuotaAsk(request="r-1", team="research", cluster="c", gpus=10, actor="dev", reason="a deadline", until=day)
    await world.person("dev").request(ask)
    owner, order = world.person("capacity"), RequestOrder(actor="capacity", reason="agreed in the weekly")
    await owner.decide_request("r-1", RequestCommand.APPROVE, order)
    await world.approve("c")
    await request_is(world, RequestStage.GRANTED)
    await world.say("c", Command.CLOSE)
    await world.ended("c")
    await owner.decide_request("r-1", RequestCommand.WITHDRAW, order)
    await request_is(world, RequestStage.RETURNED)
    await world.client.get_workflow_handle(request_workflow_id("r-1")).result()


async def request_is(world: World, stage: RequestStage) -> None:
    await seen(lambda: world.tpm.ask(OneRequest(request="r-1")), lambda it: it.stage is stage, f"it is {stage}")


async def play_fleet(world: World, _: Site) -> None:
    """A pilot and another cluster are done."""
    quotas = [team("research", 95, 60)]
    await world.fleet(*(cluster(name, {"main": (100, 98)}, quotas) for name in "ab"))
    await world.start_fleet("f", pilots=("a",))
    await world.until_fleet(lambda s: s.stage.has_ended)
    await world.client.get_workflow_handle(FLEET_ID).result()


async def play_bringup(world: World, site: Site) -> None:
    """A cluster is brought up, is granted later what it was owed, and is retired."""
    quotas = [{"team": "a", "gpus": 30}, {"team": "b", "gpus": 24}]
    entry = {"cluster": "c", "recipe": "bare", "quotas": quotas, "owed_until": "2036-06-01T00:00:00Z"}
    nodes = {"name": "nodes", "with": "command", "run": ["/opt/scale"], "repeatable": True}
    recipe = {"supply": {"run": ["/opt/quota"], "needs": {"gpus": 64}, "every": "0.1s"}, "settle": "2s"}
    story = Story(
        world.client,
        site,
        BringupEntry.model_validate({**ENTRY, **entry, "policy": CLOCKS}),
        ClusterRecipe.model_validate({**BARE, **recipe, "provision": [nodes]}),
    )
    site.islands = (Island(name="main", total_gpus=56, healthy_gpus=56),)
    site.ends["nodes"] = RunPhase.SUCCEEDED
    assert (await story.begin()).begun
    await story.until(lambda s: s.stage is BringupStage.IN_PRODUCTION)
    site.islands = (Island(name="main", total_gpus=64, healthy_gpus=64),)
    await story.until(lambda s: s.production is not None and not s.production.owed)
    world.launched.add("c")
    await story.say("retire")
    await story.until(lambda s: s.stage is BringupStage.RETIRED)
    await story.handle.result()


LIFECYCLES: dict[str, Callable[[World, Site], Awaitable[None]]] = {
    "rollout": play_rollout,
    "request": play_request,
    "fleet": play_fleet,
    "bringup": play_bringup,
}
CALLS = {
    "ClusterRollout": {"open_rollout", "draft_plan", "observe", "apply_effect", "record", "tell"},
    "FleetRollout": {"plan_fleet", "pick_clusters", "start_members", "follow_members", "record_fleet"},
    "QuotaRequest": {"assess_request", "keep_request", "request_owners", "prepare_grant", "tell"}
    | {"grant_through_rollout", "apply_effect"},
    "Bringup": {"open_bringup", "record_bringup", "wait_for_supply", "choose_host", "start_run", "ask_checks"}
    | {"hand_over", "grant_owed", "wind_down", "tell"},
}
"""What a reference story of each lifecycle calls. A rollout's also aims its rollback."""
OTHERS = ("health_watch", "HealthWatch", "LedgerDesk")
"""Workflows that are no lifecycle: the watch looks again by itself, and people ask the desk again."""
RETRIED = (Mishap.FAILS_ONCE, Mishap.ANSWER_LOST, Mishap.AT_ONCE, Mishap.LATE)


# --- what a story leaves ----------------------------------------------------------------------

NOT_COMPARED = (
    # A retry takes a second or more, in which other things happen.
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|\+00:00)?", "<time>"),
    (r'"\d+(\.\d+)?s"', "<duration>"),
    (r'"breach_seconds": ?[\d.]+', "<duration>"),
    (r"\b\d{8}T\d{6}Z-[0-9a-f]{6}\b|\bretire-c-\d{14}\b", "<rollout, by the time of its launch>"),
    (r"\b[0-9a-f]{16,}\b", "<hash, of times too>"),
    # The pool of flex follows health while an effect is retried, or does not get to it: one fence more or less.
    (r'"(fence|counter)": ?\d+', "<fence>"),
    (r"#\d+'", "<fence>'"),
    (r"/0000\d\d\b", "/<number>"),
    # A notice whose answer was lost is in the book of deliveries, and not sent again: the archive says so.
    (r'"repeated": ?(true|false)', "<whether>"),
    # How often a request has changed or been tried, and where a bring-up is with its steps.
    (r'"(serial|tries|attempt|orders)": ?\d+', "<count>"),
    # A call whose answer was lost is over later: what it began may be done by then, and nobody has waited for it.
    (r'"waited": ?\{[^}]*\}', '"waited":<by whom>'),
    # A run that was not begun has another key.
    (r"\bc/\d/nodes\b| \(attempt \d\)", ""),
    # The retry of a grant whose answer was lost finds nothing left to grant.
    (r'"said": "(a 4 GPUs more, b 3 GPUs more|all that was owed is granted)"', "<what this attempt granted>"),
)
LEFT_OUT = (
    "follow: flex ",  # as above
    "waits: a rollout of c is ",  # it is tried again later, when the rollout has moved on
    "nodes: its runner shows no sign of a start",  # an attempt that did not begin is noted, and so is the next one
    "nodes is about to start",
    " GPUs of quota remain, ",  # a later look at what is left of a cluster that is retired
)
"""Entries of the archive."""
TABLES = ("quotas", "clusters", "reserve_limits", "rollouts", "requests", "fleet_plans", "owed", "bringups", "notices")


def timeless(value: object) -> str:
    text = value if isinstance(value, str) else str(value)
    for pattern, word in NOT_COMPARED:
        text = re.sub(pattern, word, text)
    return text


def rows_of(world: World) -> dict[str, Any]:
    """All that a story wrote, without times."""
    sql = world.sql
    clusters = [name for (name,) in sql.rows("SELECT cluster FROM audit_heads")]
    assert [sql.broken_links(name) for name in clusters] == [[]] * len(clusters)
    found: dict[str, Any] = {
        table: sorted(timeless(row) for row in sql.rows(f"SELECT * FROM {table}")) for table in TABLES
    }
    effects = sql.rows("SELECT rollout, kind FROM receipts ORDER BY rollout, counter")
    effects += sql.rows("SELECT rollout, kind FROM grant_receipts ORDER BY rollout, counter")
    by_rollout = {timeless(rollout): [k for r, k in effects if r == rollout] for rollout, _ in effects}
    found["receipts"] = {rollout: without_flex_moves(kinds) for rollout, kinds in by_rollout.items()}
    entries = [{k: v for k, v in e.items() if k not in ("at", "key")} for name in clusters for e in sql.archive(name)]
    kept = [e for e in entries if not any(words in e["text"] for words in LEFT_OUT)]
    found["audit"] = sorted(timeless(json.dumps(entry)) for entry in kept)
    lines = (world.home / "notices.jsonl").read_text().splitlines()
    found["delivered"] = sorted(
        (n["cluster"], n["kind"], n["audience"]) for n in (json.loads(li)["notice"] for li in lines)
    )
    return found


@dataclass
class End:
    """The end of a story. `calls`: workflow and activity of each call, in order."""

    calls: list[tuple[str, str]] = field(default_factory=list)
    rows: dict[str, Any] = field(default_factory=dict)


Choose = Callable[..., Mishap | None]
"""The mishap of a workflow's so-many-th call of an activity."""


class Theatre:
    """Plays stories, each in a world of its own; the one without a mishap once per lifecycle."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._numbers = Counter[str]()
        self._references: dict[str, End] = {}

    async def reference(self, lifecycle: str) -> End:
        if lifecycle not in self._references:
            self._references[lifecycle] = await self.play(lifecycle, lambda *_: None)
        return self._references[lifecycle]

    async def play(self, lifecycle: str, choose: Choose) -> End:
        end = End()
        async with self.stage(choose, end) as (world, site):
            await LIFECYCLES[lifecycle](world, site)
            await settled(world)
            end.rows = rows_of(world)
        return end

    @asynccontextmanager
    async def stage(self, choose: Choose, end: End) -> Any:
        self._numbers["story"] += 1
        home = self._home / str(self._numbers["story"])
        home.mkdir()
        client, counts = in_memory(), Counter[tuple[str, str]]()
        server = client.service_client
        assert isinstance(server, InMemoryTemporal)

        def mishap(call: Call) -> Mishap | None:
            name = call.run.kind, call.order.activity_type
            if name[0] in OTHERS:
                return None
            end.calls.append(name)
            counts[name] += 1
            return choose(*name, counts[name])

        server.workflows.activities.mishap = mishap
        site = Site(server.now)
        parts = BringupParts(site, site, host="h1")
        async with world_of(client, new_ledger(home / "ledger.db"), home, bringups=parts) as world:
            yield world, site


async def settled(world: World) -> None:
    """The last records and notices are through, and what was kept back."""
    await asyncio.sleep(5)
    server = world.client.service_client
    assert isinstance(server, InMemoryTemporal)
    server.workflows.activities.send_late()
    await asyncio.sleep(1)


def differences(end: End, reference: End) -> dict[str, Any]:
    """Return, by table, the missing rows and the extra rows."""

    def of(rows: Any) -> Counter[str]:
        return Counter(map(str, rows.items() if isinstance(rows, dict) else rows))

    found = {t: (of(reference.rows[t]) - of(end.rows[t]), of(end.rows[t]) - of(reference.rows[t])) for t in end.rows}
    return {table: sides for table, sides in found.items() if any(sides)}


@pytest.fixture(scope="module")
def theatre(tmp_path_factory: pytest.TempPathFactory) -> Theatre:
    return Theatre(tmp_path_factory.mktemp("calls"))


# --- the tests --------------------------------------------------------------------------------


def nightly(item: pytest.Item) -> bool:
    """Return whether the test is for the night: by day every call of a story has the mishap, by night each in turn."""
    return "in_turn" in item.name


@pytest.mark.parametrize("lifecycle", LIFECYCLES)
async def test_a_reference_story_makes_all_calls_of_its_lifecycle(lifecycle: str, theatre: Theatre) -> None:
    calls = (await theatre.reference(lifecycle)).calls
    workflows = {workflow for workflow, _ in calls}
    expected = {(workflow, name) for workflow in workflows for name in CALLS[workflow]}
    if lifecycle == "rollout":
        expected.add(("ClusterRollout", "aim_rollback"))
    assert set(calls) == expected


def may_happen(case: tuple[str, str, int], mishap: Mishap) -> bool:
    """A run's start is no call that Temporal repeats: after three that failed a person is asked, and rightly so."""
    _, activity, number = case
    return (activity, mishap) != ("start_run", Mishap.FAILS_ONCE) or number == 1


EACH = pytest.mark.parametrize("mishap", RETRIED, ids=lambda mishap: mishap.name.lower())


@EACH
@pytest.mark.parametrize("lifecycle", LIFECYCLES)
async def test_a_mishap_at_every_call_changes_nothing(lifecycle: str, mishap: Mishap, theatre: Theatre) -> None:
    reference = await theatre.reference(lifecycle)
    end = await theatre.play(lifecycle, lambda *case: mishap if may_happen(case, mishap) else None)
    assert differences(end, reference) == {}


@EACH
@pytest.mark.parametrize("lifecycle", LIFECYCLES)
async def test_a_mishap_at_each_call_in_turn_changes_nothing(lifecycle: str, mishap: Mishap, theatre: Theatre) -> None:
    reference = await theatre.reference(lifecycle)
    cases = [(*call, number) for call, count in Counter(reference.calls).items() for number in range(1, count + 1)]
    changed: dict[tuple[str, str, int], object] = {}
    for case in cases:
        if may_happen(case, mishap):
            try:
                end = await theatre.play(lifecycle, lambda *it, case=case: mishap if it == case else None)
                changed[case] = differences(end, reference)
            except AssertionError as error:
                changed[case] = str(error)
    assert changed
    assert {case: change for case, change in changed.items() if change} == {}


@pytest.mark.parametrize(
    ("lifecycle", "activity", "number"),
    [
        ("rollout", "observe", 1),
        ("request", "prepare_grant", 1),
        ("request", "keep_request", 3),
    ],
)
async def test_a_call_that_fails_for_good_leaves_the_same_quotas_and_effects(
    lifecycle: str, activity: str, number: int, theatre: Theatre
) -> None:
    """All that was written has a workflow that takes it back."""
    reference = await theatre.reference(lifecycle)
    end = await theatre.play(lifecycle, lambda *it: Mishap.FOR_GOOD if it[1:] == (activity, number) else None)
    for table in ("quotas", "clusters", "reserve_limits", "receipts"):
        assert end.rows[table] == reference.rows[table]
    assert [row.split(", ")[3:5] for row in end.rows["requests"]] == [
        row.split(", ")[3:5] for row in reference.rows["requests"]
    ]


@pytest.mark.parametrize("activity", ["open_rollout", "draft_plan"])
async def test_a_launch_that_fails_for_good_is_refused_and_leaves_nothing(activity: str, theatre: Theatre) -> None:
    async with theatre.stage(lambda *it: Mishap.FOR_GOOD if it[1:] == (activity, 1) else None, End()) as (world, _):
        await world.fleet(worked_case("c"))
        before = world.sql.dump("c"), world.sql.row("clusters", name="c")
        with pytest.raises(Refusal, match="c was not launched: injected"):
            await world.launch("c")
        await world.ended("c")
        assert (world.sql.dump("c"), world.sql.row("clusters", name="c")) == before
        assert world.sql.rows("SELECT * FROM receipts") == []
        await world.start("c", "c/2")
        await world.until("c", Stage.MONITORED)
