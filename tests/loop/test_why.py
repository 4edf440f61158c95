"""`backstop why`: the reasons why a team cannot use its quota, asked of the ledger through the desk."""

from __future__ import annotations

from datetime import timedelta

import pytest

from models.errors import Refusal
from models.questions import WhyNot
from models.reports.why import Cause
from models.rollout.stages import Stage
from tests.e2e.world import World, cluster, fresh, on_postgresql, team, worked_case

nightly = on_postgresql


async def test_the_answer_adds_up_and_names_windows_and_times(world_on_each: World) -> None:
    world, name = world_on_each, fresh("why")
    now = world.now()
    window = {
        "kind": "sev",
        "starts": (now - timedelta(hours=1)).isoformat(),
        "ends": (now + timedelta(hours=1)).isoformat(),
        "reason": "a switch is down",
        "gpus": 20,
    }
    await world.fleet({**worked_case(name), "windows": [window]})
    other = fresh("why")
    await world.fleet({**worked_case(name), "windows": [window]}, worked_case(other))
    (found,) = (await world.tpm.ask(WhyNot(team="research", cluster=name))).teams
    assert (found.quota_gpus, found.startable_gpus, found.gap_gpus) == (345, 9, 336)
    assert [(r.cause, r.gpus) for r in found.reasons] == [
        (Cause.DECLARED, 20),
        (Cause.UNHEALTHY, 6),
        (Cause.USED, 310),
    ]
    assert found.missing[0].since is not None
    everywhere = await world.tpm.ask(WhyNot(team="research", gpus=20, block=True))
    assert {name, other} <= {one.cluster for one in everywhere.teams}


async def test_a_sum_of_quotas_is_no_answer(world: World) -> None:
    name = fresh("why-tree")
    quotas = [{"team": "org", "gpus": 30}, team("org-1", 30, parent="org")]
    await world.fleet(cluster(name, {"main": (40, 40)}, quotas))
    with pytest.raises(Refusal, match="is the sum of its sub-quotas: name one of those"):
        await world.tpm.ask(WhyNot(team="org", cluster=name))
    elsewhere = fresh("why-flat")
    await world.fleet(
        cluster(name, {"main": (40, 40)}, quotas), cluster(elsewhere, {"main": (40, 40)}, [team("org", 30)])
    )
    everywhere = await world.tpm.ask(WhyNot(team="org"))
    assert [one.cluster for one in everywhere.teams] == [elsewhere]
    assert everywhere.unanswered.keys() == {name}, "what cannot be answered is not left out unsaid"


async def test_who_has_no_quota_there_is_told_where_it_has(world: World) -> None:
    here, there = fresh("why-none"), fresh("why-some")
    org = fresh("org")
    await world.fleet(
        cluster(here, {"main": (40, 40)}, [team("a", 30)]),
        cluster(there, {"main": (40, 40)}, [{"team": org, "gpus": 30, "namespaces": ["evals"]}]),
    )
    with pytest.raises(Refusal, match=rf"{org} has no quota in cluster {here}, only in {there} \(30\)"):
        await world.tpm.ask(WhyNot(team=org, cluster=here))
    with pytest.raises(Refusal, match=rf"nobody has no quota in cluster {here}, nor in any other cluster"):
        await world.tpm.ask(WhyNot(team="nobody", cluster=here))
    (kept_out,) = (await world.tpm.ask(WhyNot(team=org, namespace="training"))).teams
    assert (kept_out.barred, kept_out.startable_gpus, kept_out.namespaces) == ("training", 0, ("evals",))
    (let_in,) = (await world.tpm.ask(WhyNot(team=org, namespace="evals"))).teams
    assert let_in.barred == ""


async def test_after_a_rollout_the_quota_can_be_used_but_for_what_runs(world: World) -> None:
    name = fresh("why-after")
    await world.fleet(worked_case(name))
    await world.start(name)
    await world.until(name, Stage.MONITORED)
    (found,) = (await world.tpm.ask(WhyNot(team="research", cluster=name))).teams
    assert (found.quota_gpus, found.wanted_gpus, found.startable_gpus) == (306, 306, 0)
    assert [(r.cause, r.gpus) for r in found.reasons] == [(Cause.USED, 306)], "all of it is backed"
