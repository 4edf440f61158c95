"""More quota on request: asked, approved, written under a fence, given back; beside rollouts and without one."""

from __future__ import annotations

import asyncio
import itertools
from datetime import datetime, timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from activities.requests import overdue_grants
from client.answer_models import Check
from models.errors import Refusal
from models.questions import OneRequest
from models.requests import reducers
from models.requests import state as request_state
from models.requests.commands import RequestCommand, RequestOrder
from models.requests.state import QuotaAsk, RequestStage, RequestState
from models.rollout.stages import Command, Stage
from models.status_questions import RequestsOf
from models.temporal_names import request_workflow_id
from tests.e2e.world import World, cluster, eventually, fresh, on_postgresql, seen, team, worked_case
from tests.ports import free_port
from workflows import options

_numbers = itertools.count(1)
OWNERS = {"owners": ["capacity"]}

nightly = on_postgresql


def roomy(name: str, **policy: Any) -> dict[str, Any]:
    """All of 100 healthy, 70 promised: C = 85, so there is room for 15."""
    quotas = [team("evals", 30), team("research", 40, busy=20)]
    return cluster(name, {"main": (100, 100)}, quotas, **{**OWNERS, **policy})


async def ask(world: World, name: str, gpus: int, who: str = "research", **more: Any) -> RequestState:
    request = f"r-{next(_numbers)}-{name}"
    world.asked.add(request)
    return await world.person("dev").request(
        QuotaAsk(request=request, team=who, cluster=name, gpus=gpus, actor="dev", reason="a deadline", **more)
    )


async def say(world: World, asked: RequestState, command: RequestCommand, actor: str = "capacity") -> RequestState:
    order = RequestOrder(actor=actor, reason="agreed in the weekly")
    return await world.person(actor).decide_request(asked.ask.request, command, order)


async def until(world: World, asked: RequestState, stage: RequestStage) -> RequestState:
    what = f"{asked.ask.request} is {stage}"
    return await seen(lambda: world.tpm.ask(OneRequest(request=asked.ask.request)), lambda it: it.stage is stage, what)


def quota(world: World, name: str, who: str = "research") -> int:
    return world.sql.gpus(name)[who]


TOLD = [("request", "capacity"), *[("request", t) for t in ("research", "dev")] * 2]
"""Who is told of a request that is asked, granted and given back."""


async def ten_granted(world: World, name: str, until_day: datetime) -> RequestState:
    """Research has ten GPUs more until that day: only the owner could approve it, and no other quota moved."""
    await world.fleet(roomy(name))
    asked = await ask(world, name, 10, until=until_day)
    assert (asked.stage, quota(world, name)) == (RequestStage.ASKED, 40)
    for actor in ("dev", "stranger"):
        with pytest.raises(Refusal, match=f"{actor} does not own {name}: ask capacity"):
            await say(world, asked, RequestCommand.APPROVE, actor)
    await say(world, asked, RequestCommand.APPROVE)
    granted = await until(world, asked, RequestStage.GRANTED)
    assert (quota(world, name), granted.raised) == (50, {"research": 10})
    assert quota(world, name, "evals") == 30
    return asked


async def ten_given_back(world: World, name: str, asked: RequestState, why: str) -> None:
    """The quota is what it was, the archive tells the story whole, and those whom it concerns are told."""
    returned = await until(world, asked, RequestStage.RETURNED)
    assert (quota(world, name), returned.said) == (40, "given back (research 50 -> 40)")
    archived = [e for e in world.sql.archive(name) if not e["refused"] and not e["key"].startswith("import/")]
    said = [e["text"].partition(": ")[2] for e in archived]
    assert [text.partition(" until")[0] for text in said] == [
        f"10 GPUs more for research in {name}",
        "approved",
        "granted",
        why,
        "given back (research 50 -> 40)",
    ]
    assert world.sql.refusals(name) == [
        f"{actor}: approve for request {asked.ask.request} refused: {actor} does not own {name}: ask capacity"
        for actor in ("dev", "stranger")
    ]
    assert world.sql.broken_links(name) == []
    await eventually(lambda: world.notices(name) == TOLD, f"{TOLD} are told")


async def test_a_request_is_approved_by_the_owner_written_and_given_back_on_its_day(world_on_each: World) -> None:
    world, name = world_on_each, fresh("request")
    asked = await ten_granted(world, name, world.now() + timedelta(seconds=15))
    await ten_given_back(
        world, name, asked, f"the grant ended at {asked.ask.until:%Y-%m-%d %H:%MZ}: Backstop gives its GPUs back"
    )


async def test_a_request_is_approved_by_the_owner_written_and_given_back_when_it_is_withdrawn(world: World) -> None:
    name = fresh("request")
    asked = await ten_granted(world, name, world.now() + timedelta(days=9))
    await eventually(lambda: world.notices(name) == TOLD[:3], f"{TOLD[:3]} are told")
    await say(world, asked, RequestCommand.WITHDRAW)
    await ten_given_back(world, name, asked, "withdrawn: it is given back")


async def test_an_extended_grant_keeps_its_gpus_until_the_new_day(world: World) -> None:
    name = fresh("extended")
    asked = await ten_granted(world, name, world.now() + timedelta(days=9))
    assert asked.ask.until is not None
    later = asked.ask.until + timedelta(days=7)
    order = RequestOrder(actor="capacity", reason="the run takes a week longer", until=later)
    extended = await world.person("capacity").decide_request(asked.ask.request, RequestCommand.EXTEND, order)
    assert (extended.stage, extended.ask.until, quota(world, name)) == (RequestStage.GRANTED, later, 50)
    with pytest.raises(Refusal, match="extend needs a day after"):
        await world.person("capacity").decide_request(asked.ask.request, RequestCommand.EXTEND, order)
    noted = await seen(
        lambda: world.tpm.ask(OneRequest(request=asked.ask.request)), lambda it: it.ask.until == later, "it is noted"
    )
    assert noted.stage is RequestStage.GRANTED
    texts = [e["text"] for e in world.sql.archive(name)]
    assert f"request {asked.ask.request}: extended until {later:%Y-%m-%d %H:%MZ}" in texts
    await say(world, asked, RequestCommand.WITHDRAW)
    await until(world, asked, RequestStage.RETURNED)
    assert quota(world, name) == 40


async def test_what_breaks_the_ceiling_is_refused_at_once_with_what_else_there_is(world: World) -> None:
    name, other, bare = fresh("full"), fresh("full"), fresh("full")
    await world.fleet(
        roomy(name),
        cluster(other, {"main": (200, 200)}, [team("research", 100)], **OWNERS),
        cluster(bare, {"main": (900, 900)}, [team("evals", 100)], **OWNERS),
    )
    refused = await ask(world, name, 16)
    assert refused.stage is RequestStage.REFUSED
    found = refused.assessment
    assert found.room is not None
    assert (found.room.ceiling_gpus, found.room.assigned_gpus, found.room.fits_gpus) == (85, 70, 15)
    assert found.why == f"{name} may promise 85 GPUs, and 70 are spoken for"
    assert found.flex_gpus == 16, "100 healthy, 70 asked for inside quotas: flex has as much as is asked"
    ours = [(e.cluster, e.headroom_gpus, e.has_quota) for e in found.elsewhere if e.cluster in (other, bare)]
    assert ours == [(other, 70, True), (bare, 665, False)], "first where it has a quota"
    wanted = f"16 GPUs more for research in {name}"
    assert world.sql.refusals(name) == [f"dev: request {refused.ask.request}: {wanted}: refused: {found.why}"]
    assert quota(world, name) == 40
    with pytest.raises(Refusal, match=r"is refused: full"):
        await say(world, refused, RequestCommand.APPROVE)
    late = f"approve for request {refused.ask.request} refused: request {refused.ask.request} is refused: {found.why}"
    assert world.sql.refusals(name)[1:] == [f"capacity: {late}"], "a refusal by an ended request is archived too"


@pytest.mark.parametrize(("buffer", "ceiling"), [(0.1, 90), (0.25, 75), ({"ramp": [0.1, 0.25]}, 90)])
async def test_the_buffer_that_an_open_rollout_was_launched_with_counts(
    world: World, buffer: float | dict[str, Any], ceiling: int
) -> None:
    """The rollout writes the grant by its own buffer, and a ramp stays on its step; the cluster's 15 % would be 85."""
    name = fresh("own")
    await world.fleet(roomy(name))
    await world.start(name, policy={"buffer": buffer})
    await world.until(name, Stage.MONITORED)
    await world.archived(name)
    asked = await ask(world, name, ceiling - 70)
    refused = await ask(world, name, ceiling - 70 + 1)
    assert refused.assessment.why == f"{name} may promise {ceiling} GPUs, and 70 are spoken for"
    await say(world, asked, RequestCommand.APPROVE)
    await until(world, asked, RequestStage.GRANTED)
    assert quota(world, name) == 40 + ceiling - 70


async def test_a_rollout_is_waited_for_and_its_freed_capacity_is_never_granted(world: World) -> None:
    name = fresh("freed")
    await world.fleet(worked_case(name, **OWNERS))
    await world.launch(name)
    refused = await ask(world, name, 1)
    assert refused.stage is RequestStage.REFUSED, "345 are promised, and 306 may be"
    await world.approve(name)
    await world.until(name, Stage.MONITORED)
    await world.archived(name)
    await world.healthy(name, main=(361, 361))  # C stays 306: the buffer is of T
    again = await ask(world, name, 1)
    assert (again.stage, again.assessment.room and again.assessment.room.assigned_gpus) == (RequestStage.REFUSED, 345)
    assert quota(world, name) == 306


async def test_a_request_during_a_rollout_waits_and_the_rollout_writes_it(world_on_each: World) -> None:
    world, name = world_on_each, fresh("through")
    await world.fleet(roomy(name))
    await world.launch(name)
    asked = await ask(world, name, 10, until=world.now() + timedelta(hours=1))
    await say(world, asked, RequestCommand.APPROVE, "tpm")  # the rollout's owner
    await eventually(lambda: _waits(world, asked), "it waits for the rollout")
    assert quota(world, name) == 40
    await world.approve(name)
    await world.until(name, Stage.MONITORED)
    granted = await until(world, asked, RequestStage.GRANTED)
    assert (quota(world, name), granted.raised) == (50, {"research": 10})
    assert world.sql.effects(f"{name}/1")[-1] == "grant", "under the rollout's fence"
    status = await world.status(name)
    assert (status.stage, status.holds) == (Stage.MONITORED, ()), "its own write is no drift"
    # An undo keeps what was granted; the end of the grant is no undo of the rollout.
    await say(world, asked, RequestCommand.WITHDRAW, "dev")
    await until(world, asked, RequestStage.RETURNED)
    assert quota(world, name) == 40
    assert (await world.status(name)).stage is Stage.MONITORED
    assert (await world.status(name)).holds == ()


def _waits(world: World, asked: RequestState) -> bool:
    state = str(world.sql.row("requests", id=asked.ask.request)["state"])
    return "requests wait until that is monitored or over" in state


async def test_an_undo_keeps_a_grant_and_an_adopted_rollout_knows_of_it(world: World) -> None:
    name = fresh("kept")
    await world.fleet(roomy(name))
    await world.start(name)
    await world.until(name, Stage.MONITORED)
    await world.archived(name)
    asked = await ask(world, name, 10)
    await say(world, asked, RequestCommand.APPROVE)
    await until(world, asked, RequestStage.GRANTED)
    assert '"gpus":50' in world.sql.row("rollouts", id=f"{name}/1")["baseline"]
    await world.say(name, Command.ABORT)
    await world.ended(name)
    assert quota(world, name) == 50


async def test_policy_may_refuse_while_a_rollout_is_on_its_way(world: World) -> None:
    name = fresh("refuses")
    await world.fleet(roomy(name, requests="refuse"))
    await world.launch(name)
    refused = await ask(world, name, 1)
    why = f"a rollout of {name} is planned, and the policy refuses requests until that is monitored or over"
    assert (refused.stage, refused.said) == (RequestStage.REFUSED, why)


async def test_what_others_changed_is_not_taken_back(world_on_each: World) -> None:
    world, name = world_on_each, fresh("left")
    await world.fleet(roomy(name))
    asked = await ask(world, name, 5, until=world.now() + timedelta(hours=1))
    await say(world, asked, RequestCommand.APPROVE)
    await until(world, asked, RequestStage.GRANTED)
    world.sql.set("research", 47, name)
    await say(world, asked, RequestCommand.WITHDRAW)
    left = await until(world, asked, RequestStage.LEFT)
    assert (quota(world, name), left.said) == (
        47,
        "not given back: others have changed the quota of research since the grant",
    )


async def test_a_value_of_others_in_between_is_no_part_of_a_grant(world: World) -> None:
    """Granted 5 to 45, set back to 40 by hand, granted 4 more: the first one's end must not take what is left."""
    name = fresh("between")
    await world.fleet(roomy(name))
    first = await ask(world, name, 5, until=world.now() + timedelta(hours=1))
    await say(world, first, RequestCommand.APPROVE)
    await until(world, first, RequestStage.GRANTED)
    world.sql.set("research", 40, name)
    second = await ask(world, name, 4)
    await say(world, second, RequestCommand.APPROVE)
    await until(world, second, RequestStage.GRANTED)
    await say(world, first, RequestCommand.WITHDRAW)
    left = await until(world, first, RequestStage.LEFT)
    assert (quota(world, name), left.said) == (
        44,
        "not given back: others have changed the quota of research since the grant",
    )


async def test_who_owns_the_cluster_and_who_may_target_it_counts_on_the_day_of_the_decision(world: World) -> None:
    name = fresh("today")
    await world.fleet(roomy(name))
    one, other = await ask(world, name, 1), await ask(world, name, 1, namespace="lab")
    quotas = [team("evals", 30), team("research", 40, busy=20, namespaces=["prod"])]
    await world.fleet(cluster(name, {"main": (100, 100)}, quotas, owners=["board"]))
    with pytest.raises(Refusal, match=f"capacity does not own {name}: ask board"):
        await say(world, one, RequestCommand.APPROVE)
    await say(world, one, RequestCommand.APPROVE, "board")
    await until(world, one, RequestStage.GRANTED)
    await say(world, other, RequestCommand.APPROVE, "board")
    refused = await until(world, other, RequestStage.REFUSED)
    assert refused.said == "it cannot be granted: the quota of research no longer admits jobs of namespace lab"


async def test_two_grants_of_one_team_end_one_by_one_and_a_parent_rises_with_them(world: World) -> None:
    name = fresh("tree")
    quotas = [{"team": "org", "gpus": 42}, team("org-a", 20, parent="org"), team("org-b", 20, parent="org")]
    await world.fleet(cluster(name, {"main": (100, 100)}, quotas, **OWNERS))
    day = {"until": world.now() + timedelta(hours=1)}
    first, second = await ask(world, name, 5, "org-a", **day), await ask(world, name, 7, "org-a", **day)
    for one in (first, second):
        await say(world, one, RequestCommand.APPROVE)
        await until(world, one, RequestStage.GRANTED)
    assert [quota(world, name, t) for t in ("org", "org-a", "org-b")] == [52, 32, 20], "2 of the parent's were free"
    await say(world, first, RequestCommand.WITHDRAW)
    assert (await until(world, first, RequestStage.RETURNED)).raised == {"org-a": 5, "org": 3}
    assert [quota(world, name, t) for t in ("org", "org-a", "org-b")] == [49, 27, 20]
    await say(world, second, RequestCommand.WITHDRAW)
    await until(world, second, RequestStage.RETURNED)
    assert [quota(world, name, t) for t in ("org", "org-a", "org-b")] == [42, 20, 20]


async def test_a_request_that_nobody_decides_lapses_and_one_may_be_declined_or_withdrawn(world: World) -> None:
    name = fresh("ways-out")
    await world.fleet(roomy(name))
    lapsing = await ask(world, name, 1, until=world.now() + timedelta(seconds=5))
    declined, withdrawn = await ask(world, name, 1), await ask(world, name, 1)
    await say(world, declined, RequestCommand.DECLINE)
    with pytest.raises(Refusal, match=r"stranger may not withdraw request .*: ask dev or capacity"):
        await say(world, withdrawn, RequestCommand.WITHDRAW, "stranger")
    await say(world, withdrawn, RequestCommand.WITHDRAW, "dev")
    await until(world, lapsing, RequestStage.LAPSED)
    await until(world, declined, RequestStage.DECLINED)
    await until(world, withdrawn, RequestStage.WITHDRAWN)
    assert (quota(world, name), await world.tpm.ask(RequestsOf(cluster=name))) == (40, ())
    assert len(await world.tpm.ask(RequestsOf(cluster=name, ended=True))) == 3


async def test_a_command_that_cannot_be_read_is_refused_in_one_sentence(world: World) -> None:
    name = fresh("unreadable")
    await world.fleet(roomy(name))
    asked = await ask(world, name, 1)
    handle = world.client.get_workflow_handle(request_workflow_id(asked.ask.request))
    for command in RequestCommand:
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await handle.execute_update(command, {"reason": "r"})
        assert isinstance(refused.value.cause, ApplicationError)
        assert refused.value.cause.message.startswith("not a valid RequestOrder: actor: Field required")
    await say(world, asked, RequestCommand.WITHDRAW, "dev")
    await until(world, asked, RequestStage.WITHDRAWN)


async def test_who_may_target_a_quota_and_who_has_none(world: World) -> None:
    name = fresh("gate")
    quotas = [team("research", 40, namespaces=["lab-a", "lab-b"]), team("evals", 30)]
    await world.fleet(cluster(name, {"main": (100, 100)}, quotas, **OWNERS))
    refused = await ask(world, name, 1, namespace="lab-c")
    only = "only the namespaces research and lab-a and lab-b may"
    assert refused.said == f"namespace lab-c may not target the quota of research: {only}"
    for fine in ({"namespace": "lab-b"}, {}):
        assert (await ask(world, name, 1, **fine)).stage is RequestStage.ASKED
    with pytest.raises(
        Refusal,
        match=r"'nobody' in cluster .* does not exist: ask an owner of the cluster to create",
    ):
        await ask(world, name, 1, "nobody")
    bare = fresh("gate")
    await world.fleet(cluster(bare, {"main": (100, 100)}, quotas))
    assert (await ask(world, bare, 1)).said == f"nobody owns {bare}: name its owners in its policy (owners: [...])"


# --- what must not keep a grant from coming back ----------------------------------------------


async def cancel(world: World, asked: RequestState) -> None:
    """Cancel the workflow, as a person can in Temporal's UI."""
    await world.client.get_workflow_handle(request_workflow_id(asked.ask.request)).cancel()


async def test_a_cancel_in_temporal_ends_a_request_and_gives_its_grant_back(world: World) -> None:
    name = fresh("cancelled")
    await world.fleet(roomy(name))
    waiting, lent = await ask(world, name, 1), await ask(world, name, 5, until=world.now() + timedelta(days=9))
    await say(world, lent, RequestCommand.APPROVE)
    await until(world, lent, RequestStage.GRANTED)
    await cancel(world, waiting)
    await cancel(world, lent)
    withdrawn = await until(world, waiting, RequestStage.WITHDRAWN)
    returned = await until(world, lent, RequestStage.RETURNED)
    assert (quota(world, name), withdrawn.said) == (40, "cancelled in Temporal")
    assert returned.said == "given back (research 45 -> 40)"
    assert "cancelled in Temporal: it is given back" in " ".join(e["text"] for e in world.sql.archive(name))


async def grants(world: World) -> Check:
    (found,) = [c for c in await world.tpm.doctor() if c.name == "grants"]
    return found


async def test_a_grant_whose_workflow_is_gone_is_named_and_given_back_by_the_watch(
    monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    monkeypatch.setattr(request_state, "_GRACE", timedelta(seconds=1))
    monkeypatch.setattr(overdue_grants, "EVERY_SECONDS", 1e9)
    name = fresh("gone")
    await world.fleet(roomy(name))
    lent = await ask(world, name, 5, until=world.now() + timedelta(seconds=4))
    kept = await ask(world, name, 2, until=world.now() + timedelta(days=9))
    for one in (lent, kept):
        await say(world, one, RequestCommand.APPROVE)
        await until(world, one, RequestStage.GRANTED)
    assert (await grants(world)).ok
    for one in (lent, kept):
        await world.client.get_workflow_handle(request_workflow_id(one.ask.request)).terminate(reason="by mistake")
    await asyncio.sleep(max(0.0, (lent.ask.until - world.now()).total_seconds()) + 1.5 if lent.ask.until else 0)
    found = await grants(world)
    assert (found.ok, quota(world, name)) == (False, 47)
    assert found.text.startswith(f"1 is overdue: {lent.ask.request}: 5 GPUs more for research in {name} until ")
    monkeypatch.setattr(overdue_grants, "EVERY_SECONDS", 0.1)
    returned = await until(world, lent, RequestStage.RETURNED)
    assert (quota(world, name), returned.said) == (42, "given back (research 47 -> 42)"), "and the other one is not due"
    assert (await grants(world)).ok


async def test_a_dead_webhook_keeps_no_request_from_its_end_and_the_archive_says_who_was_not_told(
    monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    """A notice that fails is given up after its time; a new one does not wait for it."""
    monkeypatch.setattr(reducers, "MAIL_TIME", timedelta(seconds=2))
    monkeypatch.setattr(options, "MAIL_PAUSE", timedelta(seconds=1))
    name, port = fresh("dead"), free_port()
    dead = {"name": "research", "contacts": [f"webhook+http://127.0.0.1:{port}/x"]}
    barred = {"name": "evals", "contacts": ["webhook+http://10.1.2.3/x"]}
    await world.fleet(roomy(name, owners=["evals"]), teams=[dead, barred])
    lent = await ask(world, name, 5, until=world.now() + timedelta(seconds=9))
    await say(world, lent, RequestCommand.APPROVE, "evals")
    await until(world, lent, RequestStage.GRANTED)

    def said() -> list[str]:
        texts = [e["text"].partition(": ")[2] for e in world.sql.archive(name)]
        return [text for text in texts if "could not notify" in text]

    await eventually(lambda: len(said()) == 2, "both are given up")
    assert "could not notify evals: the notice" in said()[0]
    assert "its host is in an internal network" in said()[0]
    assert "could not notify research: the notice" in said()[1]
    assert "no connection or login" in said()[1]
    assert ("request", "dev") in world.notices(name), "the one who asked does not wait for a team's webhook"
    returned = await until(world, lent, RequestStage.RETURNED)
    assert (quota(world, name), set(returned.untold)) == (40, {"evals", "research"})
