"""A signal of the watch brings a look unless the last look saw the same, and nothing was wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from activities.watch.fingerprint import Judged, facts_of, fingerprint
from models.cluster.windows import WindowKind
from models.rollout.look_reducers import knows_already
from models.rollout.messages import HealthChanged, plain_sight
from models.rollout.stages import Command, Stage
from tests.unit.pure_world import CLUSTER, World

QUICK: dict[str, Any] = {"notice": "0s", "soak_buffered": "1h", "soak_enforced": "1h"}


def waiting_for_approval() -> World:
    return World(**QUICK)


def monitored() -> World:
    world = World(**QUICK)
    world.start().until(Stage.MONITORED)
    return world


def rolled_back() -> World:
    world = monitored()
    world.say(Command.ROLLBACK)
    assert world.stage is Stage.ROLLED_BACK
    return world


PLACES = (waiting_for_approval, monitored, rolled_back)


def looks_at_signal(world: World, change: Callable[[World], object] = lambda _: None) -> int:
    """Return how many looks follow when a watch without memory begins after this change."""
    before, world.mark = world.looks(), ""
    change(world)
    world.noticed()
    assert world.mark
    return world.looks() - before


@pytest.mark.parametrize("place", PLACES)
def test_a_watch_that_begins_anew_costs_no_look(place: Callable[[], World]) -> None:
    assert looks_at_signal(place()) == 0


def samples_stop(world: World) -> None:
    world.silent()
    world.now += timedelta(minutes=45)


def signals_meanwhile(world: World, does: Callable[[World], object]) -> bool:
    """Return whether the watch signalled meanwhile."""
    world.edge = None
    does(world)
    world.noticed()
    return world.edge is not None


def breached(world: World) -> None:
    world.healthy(main=300)
    world.edge = None  # the watch has signalled the shortage
    world.until(Stage.ROLLED_BACK)


@pytest.mark.parametrize(
    ("place", "does"),
    [
        (waiting_for_approval, lambda w: w.start().until(Stage.MONITORED)),
        (monitored, lambda w: w.say(Command.ROLLBACK)),
        (monitored, breached),
    ],
    ids=["launched", "rolled back", "breached"],
)
def test_the_watch_does_not_signal_what_the_rollout_did_itself(
    place: Callable[[], World], does: Callable[[World], object]
) -> None:
    world = place()
    world.noticed()
    stage, guarded = world.stage, world.stage.is_guarded
    assert not signals_meanwhile(world, does)
    assert world.stage is not stage
    assert world.stage.is_guarded is not guarded


def test_a_change_that_no_guarded_rollout_hears_of_is_signalled_once_it_is_not_guarded() -> None:
    world = waiting_for_approval()
    world.healthy(main=350)
    world.start().until(Stage.MONITORED)
    assert not signals_meanwhile(world, lambda w: w.healthy_unnoticed(main=351)), "its quotas are backed"
    assert signals_meanwhile(world, lambda w: w.say(Command.ROLLBACK))
    assert world.r.sight.known is not None
    assert world.r.sight.known.healthy_gpus == sum(i.healthy_gpus for i in world.islands.values())


CHANGES: dict[str, Callable[[World], object]] = {
    "hardware failed": lambda w: w.healthy_unnoticed(main=300),
    "one GPU failed": lambda w: w.healthy_unnoticed(main=360),
    "others set a quota": lambda w: w.foreign("a", 150),
    "others changed and changed back": lambda w: vars(w).update(generation=w.generation + 1),
    "a window begins": lambda w: w.window(WindowKind.SEV, "1h"),
    "samples stop": samples_stop,
    "a branch waits": lambda w: vars(w).update(unmerged=True),
    "samples are dated ahead": lambda w: vars(w).update(ahead_to=w.now + timedelta(hours=1)),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("change", CHANGES)
def test_every_change_brings_a_look(place: Callable[[], World], change: str) -> None:
    assert looks_at_signal(place(), CHANGES[change]) > 0


FAULTS: list[tuple[Callable[[World], object], Callable[[World], object]]] = [
    (lambda w: w.healthy_unnoticed(main=300), lambda w: w.healthy_unnoticed(main=361)),
    (lambda w: w.window(WindowKind.SEV, "1h"), lambda w: vars(w).update(windows=())),
    (samples_stop, lambda w: vars(w).update(sampled_at=None)),
]


@pytest.mark.parametrize("place", PLACES)
def test_every_change_that_ends_brings_a_look(place: Callable[[], World]) -> None:
    """The rollout saw the fault, and the watch reports that all is well."""
    for begin, end in FAULTS:
        world = place()
        begin(world)
        world.noticed()
        assert looks_at_signal(world, end) > 0


@pytest.mark.parametrize(("change", "looks"), [("none", 1), ("one GPU failed", 2)])
def test_a_signal_while_a_look_is_under_way_brings_another_if_it_saw_something_else(change: str, looks: int) -> None:
    """The one under way may have read the cluster before the watch did."""
    world = monitored()
    world.meanwhile("look", lambda: CHANGES[change](world) if change in CHANGES else None)
    world.meanwhile("look", lambda: vars(world).update(mark=""))
    world.meanwhile("look", world.watch)
    world.r = world.r.but(look_asked=True)
    before = world.looks()
    world.run()
    assert world.looks() - before == looks


def test_the_watch_words_what_a_rollout_knows_in_the_same_way() -> None:
    """Otherwise every signal would bring another look, which nobody would notice."""
    world = monitored()
    for guarded in (True, False):
        facts = facts_of("", guarded, world.sample(), (), world.now)
        plain = plain_sight(world.generation, world.islands.values(), guarded=guarded)
        assert Judged(facts, fingerprint(world.reading(), facts)).why == plain
        edge = HealthChanged(cluster=CLUSTER, at=world.now, why=plain)
        assert knows_already(world.r, edge) is guarded
        for more in ({"doubted": "exporter"}, {"at_fault": True}, {"beyond": True}, {"stale": True}, {"ahead": True}):
            changed = replace(facts, **more)
            assert Judged(changed, fingerprint(world.reading(), changed)).why != plain
