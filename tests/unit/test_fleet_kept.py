"""The ledger's archive of a fleet rollout, read again, against the state that it was made of."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given, settings

from models.audit_chain import AuditEntry
from models.fleet import reducers
from models.fleet.archived_state import KeptFleet, replay_fleet
from models.fleet.gates import is_wave_over
from models.fleet.messages import FleetLaunch, FleetPlan, Prospect
from models.fleet.order import plan_hash, take_prospects
from models.fleet.state import FleetRollout, FleetStage, MemberState, Pace, Wave
from tests.property.test_fleet_machine import EVENTS, PACES, PROSPECTS, Fleet, happens, prospect
from tests.tried import examples


def kept(fleet_rollout: FleetRollout) -> KeptFleet:
    """From the archive's texts, as the ledger reads them."""
    found = replay_fleet(AuditEntry.model_validate_json(entry.model_dump_json()) for entry in fleet_rollout.outbox)
    assert found is not None
    return found


@settings(max_examples=examples(200), deadline=None)
@given(PROSPECTS, PACES, EVENTS)
def test_the_archive_tells_what_the_state_was(
    prospects: list[Prospect], pace: Pace, events: list[tuple[str, int]]
) -> None:
    fleet = Fleet(prospects, pace, tuple(p.cluster for p in prospects[:2]))
    for kind, number in events:
        happens(fleet, kind, number)
    fleet_rollout, known = fleet.f, kept(fleet.f)
    assert (known.fleet, known.owner, known.pace, known.policy) == (
        fleet_rollout.id,
        fleet_rollout.owner,
        fleet_rollout.pace,
        fleet_rollout.policy,
    )
    assert (known.stage, known.plan_hash, known.approved_by) == (
        fleet_rollout.stage,
        fleet_rollout.plan_hash,
        fleet_rollout.approved_by,
    )
    assert known.wave is fleet_rollout.wave
    # A wave that is not through any more is not archived: whoever takes over looks for itself.
    assert known.through_at in (fleet_rollout.settled_at, None) or not is_wave_over(fleet_rollout, fleet.now)
    assert set(known.members) == set(fleet_rollout.members)
    assert set(known.moved) == {m.cluster for m in fleet_rollout.members.values() if m.moved}
    assert all(known.members[c] is fleet_rollout.members[c].wave for c in known.moved)
    assert set(known.skipped) == {m.cluster for m in fleet_rollout.members.values() if m.state is MemberState.SKIPPED}
    assert {m.cluster for m in fleet_rollout.members.values() if m.rollout and not m.joined} <= set(known.started)
    if not fleet_rollout.stage.has_ended and fleet_rollout.stage is not FleetStage.ABORTING:
        assert set(known.held) == {h.id for h in fleet_rollout.holds}


def taken_over(lost: Fleet, **known: Prospect) -> FleetRollout:
    """The new one, planned; `known`: what the ledger says of clusters today."""
    launch = FleetLaunch(fleet="g", owner="tpm", pace=lost.f.pace, kept=kept(lost.f))
    taken = take_prospects(launch, (known.get(p.cluster, p) for p in lost.world.values()))
    fleet_rollout = reducers.open_fleet(launch, lost.now)
    return reducers.apply_plan(
        fleet_rollout, launch, FleetPlan(fleet="g", hash=plan_hash(taken), clusters=taken), lost.now
    )


def own(lost: Fleet, cluster: str, stage: str) -> Prospect:
    return lost.world[cluster].model_copy(
        update={"own": True, "rollout": f"{cluster}/2", "stage": stage, "started_at": lost.now}
    )


def test_who_takes_it_over_goes_on_where_it_was() -> None:
    lost = Fleet([prospect(n) for n in range(4)] + [prospect(9)], Pace(parallel=1, bake=timedelta(days=1)), ("c0000",))
    lost.say("pace", pace={"parallel": 2, "pilot_soak": "1h"})
    lost.say("skip", clusters=("c0003",))
    lost.say("move", clusters=("c0002",), wave=Wave.IDLE)
    for _ in range(3):
        lost.goes_on("c0000/1")
    fleet_rollout = taken_over(lost, c0000=own(lost, "c0000", "monitored"))
    assert (fleet_rollout.stage, fleet_rollout.approved_by) == (FleetStage.PLANNED, "")  # a person says that it goes on
    assert fleet_rollout.pace == lost.f.pace
    assert fleet_rollout.settled_at == lost.f.settled_at is not None  # the pilots do not soak anew
    states = {c: (m.state, m.wave, m.joined) for c, m in fleet_rollout.members.items()}
    assert states == {
        "c0000": (MemberState.DONE, Wave.PILOT, False),
        "c0001": (MemberState.WAITING, Wave.BUSY, False),
        "c0002": (MemberState.WAITING, Wave.IDLE, False),
        "c0003": (MemberState.SKIPPED, Wave.BUSY, False),
        "c0009": (MemberState.WAITING, Wave.BUSY, False),
    }
    assert [m.cluster for m in fleet_rollout.but(undo=True).to_abort] == ["c0000"]
    assert kept(fleet_rollout).members == {c: m.wave for c, m in fleet_rollout.members.items()}  # and can be lost again


def test_what_somebody_else_has_opened_since_is_followed_and_not_undone_with_it() -> None:
    lost = Fleet([prospect(0), prospect(1)], Pace(parallel=1))
    other = lost.world["c0001"].model_copy(update={"rollout": "c0001/7", "stage": "buffered"})
    fleet_rollout = taken_over(lost, c0000=own(lost, "c0000", "aborted"), c0001=other)
    assert (fleet_rollout.members["c0000"].state, fleet_rollout.members["c0001"].joined) == (MemberState.ENDED, True)
    assert fleet_rollout.but(undo=True).to_abort == []


def test_of_an_earlier_build_s_archive_it_says_what_is_not_known() -> None:
    lost = Fleet([prospect(0), prospect(1)], Pace(parallel=1))
    bare = [e.but(data={k: v for k, v in e.data.items() if k not in ("launch", "waves")}) for e in lost.f.outbox]
    known = replay_fleet(bare, planned=["c0001", "c0000"])
    assert known is not None
    assert (known.pace, known.members, known.unplaced) == (None, {}, ("c0000", "c0001"))
    assert [said.split(":")[0] for said in known.unknown[:2]] == ["its pace and its policy", "its clusters' waves"]
    assert len(kept(lost.f).unknown) == 1
