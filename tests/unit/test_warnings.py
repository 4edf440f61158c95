"""At-risk notices: at once when hardware goes missing behind a quota, once when it is back, and nothing in between."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from models.cluster.windows import WindowKind
from models.notices import NoticeKind
from models.rollout.stages import Stage
from tests.unit.pure_world import World


def monitored(**policy: Any) -> World:
    world = World(**policy)
    world.start()
    world.until(Stage.MONITORED)
    return world


def told(world: World) -> list[tuple[str, int | None, int | None]]:
    """Team, quota and backing of each notice of a risk, in order."""
    return [(n.audience, n.after_gpus, n.backing_gpus) for n in world.sent if n.kind is NoticeKind.AT_RISK]


def test_a_team_is_told_at_once_with_both_numbers_and_again_when_hardware_is_back() -> None:
    world = monitored()
    values = world.values
    world.healthy(300)
    short = told(world)
    assert {team for team, *_ in short} == {"a", "b"}
    assert all(quota == values[team] for team, quota, _ in short)
    assert sum(backing or 0 for *_, backing in short) == 300
    world.wait("5m")
    world.healthy(361)
    world.wait("5m")
    assert told(world) == short, "good for five minutes is not yet good for clear_after"
    world.wait("2h")
    assert told(world) == [*short, *((team, gpus, gpus) for team, gpus in values.items())]


def test_a_quota_that_flaps_is_one_episode() -> None:
    world = monitored()
    for _ in range(5):
        world.healthy(300)
        world.wait("1m")
        world.healthy(361)
        world.wait("3m")
    assert len(told(world)) == 2
    world.wait("2h")
    assert len(told(world)) == 4
    world.healthy(300)
    assert len(told(world)) == 6, "a new episode"


def test_a_breach_is_told_as_a_breach_and_its_rollback_ends_the_episode() -> None:
    world = monitored()
    world.healthy(300)
    world.until(Stage.ROLLED_BACK)
    kinds = [kind for kind, _ in world.told]
    assert (kinds.count(NoticeKind.AT_RISK), kinds.count(NoticeKind.BREACH)) == (2, 3), (
        "two teams, and of the breach the owner"
    )
    world.healthy(361)
    world.wait("1h")
    assert len(told(world)) == 2, "what the rollback left is told by its own notice"


def test_a_held_breach_is_told_once_it_is_backed_again() -> None:
    world = monitored(on_breach="hold")
    world.healthy(300)
    world.wait("20m")
    world.healthy(361)
    world.wait("2h")
    assert [team for team, *_ in told(world)] == ["a", "b", "a", "b"]


def test_in_a_declared_window_it_says_until_when() -> None:
    world = monitored()
    world.window(WindowKind.MAINTENANCE, "4h", gpus=61)
    ends = world.now + timedelta(hours=4)
    world.healthy(300)
    (one, other) = [n for n in world.sent if n.kind is NoticeKind.AT_RISK]
    assert one.facts == other.facts == {"until": ends.isoformat()}


def test_before_anything_is_written_nobody_is_at_risk() -> None:
    world = World()
    world.start()
    world.healthy(300)
    assert (world.stage, told(world)) == (Stage.PLANNED, [])
