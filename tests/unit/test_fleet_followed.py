"""A cluster whose rollout was open before the fleet's: its two plans are not one, and the page says which it shows."""

from __future__ import annotations

import pytest

from cli.output import show
from models.fleet import reducers
from models.fleet.messages import FleetLaunch, FleetPlan, Noted
from models.fleet.order import plan_hash, prospect_of
from models.fleet.state import FleetRollout, MemberState, Wave
from models.fleet.status import status_of
from models.planning.plan import make_plan
from models.rollout.stages import Stage
from models.rollout.status import status_of as status_of_cluster
from tests.unit.pure_world import World
from tests.unit.test_ahead import begun
from views.fleet_rollout import status_parts
from views.status import status_parts as cluster_parts


def fleet_of(world: World, *, joins: bool) -> FleetRollout:
    """Planned while the cluster is as it is, by the product's own planner."""
    rollout = world.r
    today = rollout.baseline.model_copy(
        update={"quotas": rollout.baseline.with_values({team: q.gpus for team, q in world.quotas.items()}).quotas}
    )
    noted = Noted(rollout=rollout.id, stage=rollout.stage.value) if joins else None
    taken = (prospect_of(make_plan(today, world.policy), noted),)
    launch = FleetLaunch(fleet="fleet/1", owner="tpm")
    fleet_rollout = reducers.open_fleet(launch, world.now)
    return reducers.apply_plan(
        fleet_rollout, launch, FleetPlan(fleet=fleet_rollout.id, hash=plan_hash(taken), clusters=taken), world.now
    )


def page(*parts: object) -> None:
    show(*parts)  # type: ignore[arg-type]


@pytest.mark.parametrize("stage", [Stage.ENFORCED, Stage.MONITORED])
def test_one_that_was_cut_before_has_two_plans_and_the_page_says_whose_wave_it_shows(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    world = begun(stage)
    fleet_rollout = fleet_of(world, joins=True)
    (member,) = fleet_rollout.members.values()
    own = status_of_cluster(world.r, world.now)
    assert world.r.plan is not None
    assert (own.wave, own.cut_gpus) == (world.r.plan.wave, world.r.plan.cut_gpus) == ("unscheduled", 55)
    assert (member.wave, member.cut_gpus, member.joined) == (Wave.UNALLOCATED, 0, True), "nothing is left to cut"
    assert member.state is (MemberState.DONE if stage is Stage.MONITORED else MemberState.RUNNING)
    page(*cluster_parts(own, world.now))
    assert ", wave unscheduled, cuts 55 GPUs" in capsys.readouterr().out
    page(*status_parts(status_of(fleet_rollout, world.now), now=world.now))
    out = " ".join(capsys.readouterr().out.split())
    assert (
        "1 cluster already had its own rollout, and the fleet rollout only watches it: wave and cut here are those of "
        "the fleet's plan; `backstop status` shows those of a cluster's own plan"
    ) in out


def test_where_none_was_open_before_nothing_is_said_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    world = begun(Stage.MONITORED)
    fleet_rollout = fleet_of(world, joins=False)
    page(*status_parts(status_of(fleet_rollout, world.now), now=world.now))
    assert "before" not in capsys.readouterr().out
