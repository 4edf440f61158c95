"""Races, each forced: a call of the worker is held at the moment that matters, and somebody else acts.

Nothing here hopes for an order. A `Held` call stands in the worker's thread, before it reaches the port or with
its answer in hand, until the test lets it go. Quotas, receipts and the archive are read by plain SQL.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio import activity
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from activities.adapters.ledger.facade import Ledger
from activities.adapters.notify.notifier import Notifier
from models.cluster.island import Island
from models.cluster.readings import HealthSample
from models.errors import BackstopError, BadInput, Conflict, Drift, Refusal
from models.notices import Notice, NoticeKind
from models.rollout.effects import Change, EffectKind
from models.rollout.messages import CommandAnswer, HealthChanged
from models.rollout.stages import Command, Stage
from models.rollout.status_models import RolloutStatus
from models.temporal_names import HEALTH_SIGNAL
from tests.e2e.world import (
    PATIENCE,
    World,
    cluster,
    connected,
    eventually,
    fresh,
    seen,
    team,
    without_flex_moves,
    world_of,
)
from tests.loop.turned_loop import TurnedLoop
from workers.embedded_temporal import EmbeddedTemporal

LONG = "1h"
QUOTAS = [team("a", 200), team("b", 161, busy=100)]
"""T = H = 361, C = 306: b gives 55. With H = 300 a breach rollback leaves a 200 and b 100."""
BASELINE, PROMISED, BACKED = {"a": 200, "b": 161}, {"a": 200, "b": 106}, {"a": 200, "b": 100}
CUT, UNCUT = ["reserve", "set_soft"], ["restore", "release"]


class Held:
    """One call of the worker, stopped at the moment of the race."""

    def __init__(self, fits: Callable[..., bool], answered: bool, error: BackstopError | None) -> None:
        self.fits = fits
        self.failed_with: BackstopError | None = None
        self._answered, self._error = answered, error
        self._here, self._over = threading.Event(), threading.Event()
        self._go = Future[None]()
        self._loop = asyncio.get_running_loop()

    def run(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Run the call in the worker's thread."""
        try:
            if not self._answered:
                self._stop()
            if self._error is not None:
                raise self._error
            answer = call(*arguments)
            if self._answered:
                self._stop()
            return answer
        except BackstopError as error:
            self.failed_with = error
            raise
        finally:
            self._over.set()

    def _stop(self) -> None:
        if isinstance(self._loop, TurnedLoop):
            self._loop.waited_for(self._go)  # its clock goes on
        self._here.set()
        self._go.result(PATIENCE)

    async def here(self) -> None:
        """The call has come, and stands."""
        await eventually(self._here.is_set, "the call comes")

    def go(self) -> None:
        if not self._go.done():
            self._go.set_result(None)

    async def over(self) -> None:
        """The port has answered."""
        await eventually(self._over.is_set, "the call returns")


class Hooks:
    """The ports' calls, by the activity that makes them: `observe.health`, `apply_effect.apply` and so on."""

    def __init__(self) -> None:
        self._points: list[tuple[str, Held]] = []
        self._lock = threading.Lock()

    def on(self, ledger: Ledger, notify: Notifier) -> None:
        named: list[tuple[object, str, str]] = [
            (ledger.quotas, "read", "quotas"),
            (ledger.quotas, "apply", "apply"),
            (ledger.health, "read", "health"),
            (ledger.registry, "record", "record"),
            (notify, "write_log", "write_log"),
        ]
        for port, method, name in named:
            setattr(port, method, self._around(name, getattr(port, method)))

    @contextmanager
    def hold(
        self, point: str, fits: Callable[..., bool], *, answered: bool = False, error: BackstopError | None = None
    ) -> Iterator[Held]:
        """The next fitting call stands: before it is made, or `answered` before its answer is handed on.

        `error`: it is not made at all, and fails with this.
        """
        held = Held(fits, answered, error)
        with self._lock:
            self._points.append((point, held))
        try:
            yield held
        finally:
            held.go()
            with self._lock:
                self._points = [(p, h) for p, h in self._points if h is not held]

    def effect(self, cluster: str, kind: EffectKind, **more: Any) -> contextlib.AbstractContextManager[Held]:
        def fits(change: Change) -> bool:
            return change.cluster == cluster and change.kind is kind

        return self.hold("apply_effect.apply", fits, **more)

    def look(self, cluster: str) -> contextlib.AbstractContextManager[Held]:
        """A look that has read the cluster's health, and not yet told the rollout."""
        return self.hold("observe.health", lambda clusters: list(clusters) == [cluster], answered=True)

    def _around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def hooked(*arguments: Any) -> Any:
            held = self._taken(f"{activity.info().activity_type}.{name}", arguments)
            return call(*arguments) if held is None else held.run(call, *arguments)

        return hooked

    def _taken(self, point: str, arguments: tuple[Any, ...]) -> Held | None:
        with self._lock:
            found = next((h for p, h in self._points if p == point and h.fits(*arguments)), None)
            self._points = [(p, h) for p, h in self._points if h is not found]
        return found


@pytest.fixture
def hooks() -> Hooks:
    return Hooks()


@pytest.fixture
async def world(temporal: Client, sqlite_ledger_url: str, tmp_path: Path, hooks: Hooks) -> AsyncIterator[World]:
    async with world_of(temporal, sqlite_ledger_url, tmp_path, touch=hooks.on) as found:
        yield found


async def at(world: World, stage: Stage, what: str, **policy: Any) -> str:
    """A rollout that has come to this stage and stays there of itself."""
    name = fresh(what)
    soaks = {s: {"soak_buffered": LONG, "soak_enforced": LONG} for s in (Stage.BUFFERED,)}
    soaks[Stage.ENFORCED] = {"soak_buffered": "0s", "soak_enforced": LONG}
    clocks = {"notice": "0s", "soak_buffered": "0s", "soak_enforced": "0s", "recover_after": LONG}
    await world.fleet(cluster(name, {"main": (361, 361)}, QUOTAS, **clocks | soaks.get(stage, {}) | policy))
    await world.launch(name)
    if stage is not Stage.PLANNED:
        await world.approve(name)
        await world.until(name, stage)
    return name


def receipts(world: World, name: str, rollout: int = 1) -> list[str]:
    """Return the receipts by fence. A call that wrote nothing leaves a gap in the fences and no row here."""
    found = world.sql.rows("SELECT kind FROM receipts WHERE rollout = ? ORDER BY counter", f"{name}/{rollout}")
    return without_flex_moves(kind for (kind,) in found)


def texts(world: World, name: str) -> list[str]:
    return [e["text"] for e in world.sql.archive(name)]


def spoken(world: World, name: str) -> list[tuple[str, bool]]:
    """(command, refused) as archived; the launch and the approval that every scene begins with left out."""
    found = [
        (e["text"].split()[0], e["refused"])
        for e in world.sql.archive(name)
        if e["kind"] == "command" and e["actor"] != "tpm"
    ]
    return sorted(found)


async def signals(world: World, name: str) -> int:
    """Return how often the watch has signalled this run."""
    history = await world.handle(name).fetch_history()
    return sum(e.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED for e in history.events)


async def signalled(world: World, name: str, main: int) -> None:
    """Hardware fails or comes back; the watch has signalled it, and the signal stands in the history."""
    before = await signals(world, name)
    await world.healthy(name, main=(361, main))
    await seen(lambda: signals(world, name), lambda now: now != before, f"{name} is signalled")


async def ask_to_look(world: World, name: str) -> None:
    """A signal as the watch sends it."""
    edge = HealthChanged(cluster=name, at=datetime.now(UTC), why="a test")
    await world.handle(name).signal(HEALTH_SIGNAL, edge)


async def refused(world: World, name: str, command: Command, why: str, actor: str = "bob") -> None:
    with pytest.raises(Refusal, match=why):
        await world.say(name, command, actor=actor)


# --- two operators -----------------------------------------------------------------------------


async def duel(
    world: World, hooks: Hooks, name: str, first: Command, second: Command, held: EffectKind, why: str, then: Stage
) -> None:
    """Ann's command is taken, nothing of it is done yet, and Bob's comes: he is told the stage hers led to."""
    with hooks.effect(name, held) as effect:
        await world.say(name, first, actor="ann")
        await effect.here()
        await refused(world, name, second, why)
        effect.go()
        await effect.over()
    if then.has_ended:
        assert (await world.ended(name))["stage"] == then
    else:
        await world.until(name, then)
        await world.archived(name)
    assert spoken(world, name) == sorted([(first.value, False), (second.value, True)])
    assert world.sql.broken_links(name) == []


ROLLING = "is rolling_back: a rollback is running and cannot be stopped"
CLOSED = "is closed: the rollout has ended; launch a new one"


@pytest.mark.nightly
async def test_of_two_last_words_the_first_counts(world: World, hooks: Hooks) -> None:
    async def scene(first: Command, second: Command, held: EffectKind, why: str, then: Stage) -> None:
        name = await at(world, Stage.MONITORED, f"{first}-{second}")
        await duel(world, hooks, name, first, second, held, why, then)
        undone = [] if first is Command.CLOSE else ["unfollow", "soften", *UNCUT]
        ends = ["close"] if first is Command.CLOSE else []
        assert receipts(world, name) == [*CUT, "harden", "follow", *undone, *ends]
        assert world.sql.gpus(name) == (PROMISED if first is Command.CLOSE else BASELINE)

    rollback, abort, close = Command.ROLLBACK, Command.ABORT, Command.CLOSE
    await asyncio.gather(
        scene(rollback, close, EffectKind.UNFOLLOW, ROLLING, Stage.ROLLED_BACK),
        scene(close, rollback, EffectKind.CLOSE, CLOSED, Stage.CLOSED),
        scene(rollback, abort, EffectKind.UNFOLLOW, ROLLING, Stage.ROLLED_BACK),
        scene(abort, rollback, EffectKind.UNFOLLOW, ROLLING, Stage.ABORTED),
        scene(rollback, rollback, EffectKind.UNFOLLOW, ROLLING, Stage.ROLLED_BACK),
        both_at_the_same_instant(world),
    )


async def both_at_the_same_instant(world: World) -> None:
    """Either person may come first: there is one outcome, and the other person gets a refusal."""
    name = await at(world, Stage.MONITORED, "instant")
    answers = await asyncio.gather(
        world.say(name, Command.ROLLBACK, actor="ann"),
        world.say(name, Command.CLOSE, actor="bob"),
        return_exceptions=True,
    )
    (won,) = [a for a in answers if isinstance(a, CommandAnswer)]
    (lost,) = [a for a in answers if isinstance(a, Refusal)]
    assert won.stage in (Stage.ROLLING_BACK, Stage.CLOSED)
    if won.stage is Stage.CLOSED:
        assert (await world.ended(name))["stage"] == "closed"
        assert "has ended; launch a new one" in lost.message
    else:
        await world.until(name, Stage.ROLLED_BACK)
        await world.archived(name)
        assert "rolling_back" in lost.message or "rolled_back" in lost.message
    assert world.sql.gpus(name) == (PROMISED if won.stage is Stage.CLOSED else BASELINE)
    assert sorted(r for _, r in spoken(world, name)) == [False, True]


@pytest.mark.nightly
async def test_a_pause_and_a_promotion_are_both_taken_and_the_pause_holds(world: World, hooks: Hooks) -> None:
    async def promoted_first() -> None:
        name = await at(world, Stage.BUFFERED, "promote-pause", soak_enforced="0s")
        with hooks.effect(name, EffectKind.HARDEN) as effect:
            await world.say(name, Command.PROMOTE, actor="ann")
            await effect.here()
            await world.say(name, Command.PAUSE, actor="bob")
            effect.go()
        status = await world.until(name, Stage.ENFORCED)  # what was under way finishes; the next gate is shut
        assert [h.kind for h in status.holds] == ["paused"]
        assert world.sql.mode(name) == "hard"
        assert receipts(world, name) == [*CUT, "harden"]

    async def paused_first() -> None:
        name = await at(world, Stage.BUFFERED, "pause-promote", soak_enforced=LONG)
        await world.say(name, Command.PAUSE, actor="ann")
        with hooks.look(name) as look:
            await ask_to_look(world, name)
            await look.here()
            await world.say(name, Command.PROMOTE, actor="bob")
            look.go()
        status = await world.until(name, lambda s: {c.name for c in s.waiting_for} == {"holds"})
        assert status.stage is Stage.BUFFERED
        assert receipts(world, name) == CUT
        await world.say(name, Command.RESUME)
        await world.until(name, Stage.ENFORCED)  # the promotion still counts
        assert receipts(world, name) == [*CUT, "harden"]

    await asyncio.gather(promoted_first(), paused_first())


@pytest.mark.nightly
async def test_a_stuck_rollout_is_retried_or_closed(world: World, hooks: Hooks) -> None:
    async def scene(first: Command, second: Command, held: EffectKind, why: str, then: Stage) -> None:
        name = await at(world, Stage.BUFFERED, f"{first}-{second}")
        with hooks.effect(name, EffectKind.RESTORE, error=Refusal("no")) as broken:
            broken.go()
            await world.say(name, Command.ROLLBACK)
            await world.until(name, Stage.STUCK)
        await duel(world, hooks, name, first, second, held, why, then)
        assert world.sql.gpus(name) == (PROMISED if first is Command.CLOSE else BASELINE)

    await asyncio.gather(
        scene(Command.RETRY, Command.CLOSE, EffectKind.RESTORE, ROLLING, Stage.ROLLED_BACK),
        scene(Command.CLOSE, Command.RETRY, EffectKind.CLOSE, CLOSED, Stage.CLOSED),
    )


# --- health moves at the moment of a decision -----------------------------------------------------


@pytest.mark.nightly
async def test_hardware_that_fails_as_the_plan_is_approved_is_not_promised(world: World, hooks: Hooks) -> None:
    """The look that the gate would have opened on had read the health of before."""

    async def scene(*, breach_first: bool) -> None:
        name = fresh("approve-breach")
        await world.fleet(cluster(name, {"main": (361, 361)}, QUOTAS, notice="0s", breach_after="0.3s"))
        with hooks.look(name) as look:
            await world.launch(name)
            await look.here()
            if breach_first:
                await signalled(world, name, 300)
            await world.approve(name)
            if not breach_first:
                await signalled(world, name, 300)
            look.go()
        status = await world.until(name, lambda s: s.healthy_gpus == 300 and "approve" in s.needs)
        assert status.stage is Stage.PLANNED  # 300 - 8 is outside what was approved
        assert receipts(world, name) == []
        assert world.sql.gpus(name) == BASELINE

    await asyncio.gather(scene(breach_first=True), scene(breach_first=False))


@pytest.mark.nightly
async def test_hardware_that_fails_as_a_gate_opens_hardens_nothing(world: World, hooks: Hooks) -> None:
    name = await at(world, Stage.BUFFERED, "promote-breach")
    with hooks.look(name) as look:
        await ask_to_look(world, name)
        await look.here()
        await world.say(name, Command.PROMOTE)
        await signalled(world, name, 300)
        look.go()
    await world.until(name, Stage.ROLLED_BACK)
    assert receipts(world, name) == [*CUT, *UNCUT]
    assert world.sql.gpus(name) == BACKED


@pytest.mark.nightly
async def test_hardware_that_fails_under_an_effect_is_rolled_back(world: World, hooks: Hooks) -> None:
    async def scene(kind: EffectKind, *undone: str) -> None:
        name = await at(world, Stage.PLANNED, "effect-breach")
        with hooks.effect(name, kind) as effect:
            await world.approve(name)
            await effect.here()
            await signalled(world, name, 300)
            effect.go()
        await world.until(name, Stage.ROLLED_BACK)
        made = [*CUT, "harden", "follow"]
        assert receipts(world, name) == [*made[: made.index(kind) + 1], *undone, *UNCUT]
        assert world.sql.gpus(name) == BACKED
        assert world.sql.mode(name) == "soft"

    await asyncio.gather(
        scene(EffectKind.SET_SOFT),
        scene(EffectKind.HARDEN, "soften"),
        scene(EffectKind.FOLLOW, "unfollow", "soften"),
    )


# --- others write ------------------------------------------------------------------------------


@pytest.mark.nightly
async def test_a_quota_changed_before_the_first_write_is_planned_anew(world: World, hooks: Hooks) -> None:
    async def scene(kind: EffectKind, *landed: str) -> None:
        name = await at(world, Stage.PLANNED, "before", soak_buffered=LONG)
        with hooks.effect(name, kind) as effect:
            await world.approve(name)
            await effect.here()
            world.sql.set("b", 150, name)
            effect.go()
            await effect.over()
        assert isinstance(effect.failed_with, Drift)
        await world.until(name, Stage.BUFFERED)  # inside what was approved: b gives 44, not 55
        assert world.sql.gpus(name) == PROMISED
        assert receipts(world, name) == [*landed, *CUT]
        last = world.sql.one("SELECT max(counter) FROM receipts WHERE rollout = ?", f"{name}/1")
        assert world.sql.receipt(f"{name}/1", last)["before"] == {"a": 200, "b": 150}
        await world.say(name, Command.ROLLBACK)
        await world.until(name, Stage.ROLLED_BACK)
        assert world.sql.gpus(name) == {"a": 200, "b": 150}

    await asyncio.gather(scene(EffectKind.RESERVE), scene(EffectKind.SET_SOFT, "reserve"))


@pytest.mark.nightly
async def test_a_quota_changed_as_limits_are_made_hard_is_drift(world: World, hooks: Hooks) -> None:
    async def scene(back: bool) -> None:
        name = await at(world, Stage.BUFFERED, "harden-drift")
        with hooks.effect(name, EffectKind.HARDEN) as effect:
            await world.say(name, Command.PROMOTE)
            await effect.here()
            world.sql.set("b", 90, name)
            if back:
                world.sql.set("b", 106, name)
            effect.go()
            await effect.over()
        assert isinstance(effect.failed_with, Drift)
        if not back:
            status = await world.until(name, lambda s: bool(s.holds))
            (hold,) = status.holds
            assert hold.id == "drift"
            assert hold.reason.startswith("changed by others: b 106 -> 90, by ")
            assert receipts(world, name) == CUT
            assert world.sql.mode(name) == "soft"
            world.sql.set("b", 106, name)  # whoever it was takes it back: nothing is left to answer
        await world.until(name, Stage.ENFORCED)
        assert not (await world.status(name)).holds
        assert receipts(world, name) == [*CUT, "harden"]
        assert world.sql.gpus(name) == PROMISED

    await asyncio.gather(scene(back=False), scene(back=True))


@pytest.mark.nightly
async def test_a_second_change_during_the_restoring_of_the_first_is_restored_too(world: World, hooks: Hooks) -> None:
    name = await at(world, Stage.BUFFERED, "restore", on_drift="restore")
    with hooks.effect(name, EffectKind.SET_SOFT) as effect:
        world.sql.set("b", 100, name)
        await effect.here()
        world.sql.set("b", 95, name)
        effect.go()
        await effect.over()
    assert isinstance(effect.failed_with, Drift)
    await eventually(lambda: world.sql.gpus(name) == PROMISED, "our values again")
    await world.archived(name)
    last = world.sql.one("SELECT max(counter) FROM receipts WHERE rollout = ?", f"{name}/1")
    assert world.sql.receipt(f"{name}/1", last)["before"] == {"b": 95}  # named as seen: not overwritten unseen
    status = await world.until(name, lambda s: not s.holds)
    assert status.stage is Stage.BUFFERED


@pytest.mark.nightly
async def test_an_accepted_change_stays_through_the_undo(world: World, hooks: Hooks) -> None:
    """The change comes during a look that has already read the quotas."""
    name = await at(world, Stage.BUFFERED, "accept", on_drift="accept")
    with hooks.look(name) as look:
        await ask_to_look(world, name)
        await look.here()
        world.sql.set("b", 90, name)
        look.go()
    await eventually(lambda: "accepted a change by others: b" in texts(world, name), "the change is accepted")
    await world.say(name, Command.ROLLBACK)
    await world.until(name, Stage.ROLLED_BACK)
    assert world.sql.gpus(name) == {"a": 200, "b": 90}


# --- two rollouts --------------------------------------------------------------------------------


@pytest.mark.nightly
async def test_a_second_launch_is_told_who_has_the_cluster(world: World, hooks: Hooks) -> None:
    name = fresh("two")
    await world.fleet(cluster(name, {"main": (361, 361)}, QUOTAS, notice="0s", soak_buffered="0s", soak_enforced="0s"))

    async def told(why: str) -> None:
        with pytest.raises(Refusal, match=why):
            await world.launch(name, rollout=f"{name}/2")

    with hooks.hold("open_rollout.quotas", lambda read: read == name) as opening:
        first = asyncio.create_task(world.launch(name))
        await opening.here()
        await told("is open already")
        opening.go()
        await first
    await told(rf"is open already \(planned, {name}/1 of tpm\)")
    await world.approve(name)
    await world.until(name, Stage.MONITORED)

    # The old one ends: first its last effect stands, then its place in the registry.
    with hooks.effect(name, EffectKind.CLOSE) as effect:
        await world.say(name, Command.CLOSE)
        await effect.here()
        await told(rf"has just ended \(closed, {name}/1 of tpm\), and its end is not recorded yet")
        with hooks.hold("record.record", lambda r, *_: r.stage == "closed") as record:
            effect.go()
            await record.here()
            await told("has just ended")
    assert (await world.ended(name))["stage"] == "closed"
    assert (await world.launch(name, rollout=f"{name}/2")).launched
    assert world.sql.rows("SELECT id FROM rollouts WHERE cluster = ? ORDER BY id", name) == [
        (f"{name}/1",),
        (f"{name}/2",),
    ]
    assert receipts(world, name, 2) == []
    assert sorted(r.split(":")[1] for r in world.sql.refusals(name)) == [" launch refused"] * 4


async def lost(world: World, hooks: Hooks, kind: EffectKind, stack: contextlib.ExitStack) -> tuple[str, Held]:
    """A rollout was terminated while this effect was in a worker's hand: it is there still."""
    name = await at(world, Stage.PLANNED, f"zombie-{kind}")
    effect = stack.enter_context(hooks.effect(name, kind))
    await world.approve(name)
    await effect.here()
    await world.handle(name).terminate(reason="an operator's mistake")
    return name, effect


@pytest.mark.nightly
async def test_an_effect_of_a_terminated_rollout_is_refused_once_another_is_open(world: World, hooks: Hooks) -> None:
    async def before_anything_stood() -> None:
        with contextlib.ExitStack() as stack:
            name, zombie = await lost(world, hooks, EffectKind.RESERVE, stack)
            assert (await world.launch(name, rollout=f"{name}/2")).launched
            zombie.go()
            await zombie.over()
        assert isinstance(zombie.failed_with, Conflict)
        assert receipts(world, name) == []
        assert world.sql.row("clusters", name=name)["reserve_limit"] is None

    async def after_the_values() -> None:
        with contextlib.ExitStack() as stack:
            name, zombie = await lost(world, hooks, EffectKind.HARDEN, stack)
            with pytest.raises(Refusal, match=f"still has effects of rollout {name}/1"):
                await world.launch(name, rollout=f"{name}/2")
            await world.launch(name, rollout=f"{name}/3", adopt=True)
            zombie.go()
            await zombie.over()
        assert isinstance(zombie.failed_with, Conflict)
        assert receipts(world, name) == CUT
        assert world.sql.mode(name) == "soft"
        await undone(name, 3)

    async def before_the_launch_that_adopts() -> None:
        """No newer rollout owns the cluster yet: the effect is applied, and adopted with the others."""
        with contextlib.ExitStack() as stack:
            name, zombie = await lost(world, hooks, EffectKind.HARDEN, stack)
            with pytest.raises(Refusal, match=f"still has effects of rollout {name}/1"):
                await world.launch(name, rollout=f"{name}/2")
            zombie.go()
            await zombie.over()
        assert receipts(world, name) == [*CUT, "harden"]
        await world.launch(name, rollout=f"{name}/3", adopt=True)
        await undone(name, 3)

    async def while_the_launch_adopts() -> None:
        """The effect is applied after the launch has read the quotas, and before its fence is in force."""
        with contextlib.ExitStack() as stack:
            name, zombie = await lost(world, hooks, EffectKind.SET_SOFT, stack)
            fits: Callable[..., bool] = lambda read: read == name  # noqa: E731
            with hooks.hold("open_rollout.quotas", fits, answered=True) as opening:
                launching = asyncio.create_task(world.launch(name, rollout=f"{name}/3", adopt=True))
                await opening.here()
                zombie.go()
                await zombie.over()
                opening.go()
                await launching
        assert receipts(world, name) == CUT
        assert world.sql.gpus(name) == PROMISED
        status = await world.until(name, lambda s: s.health_known)
        assert not status.holds  # a lost rollout's write is not another's
        await undone(name, 3)

    async def undone(name: str, rollout: int) -> None:
        await world.say(name, Command.ABORT)
        assert (await world.ended(name))["stage"] == "aborted"
        assert world.sql.gpus(name) == BASELINE
        assert receipts(world, name, rollout)[-2:] == UNCUT
        assert world.sql.row("clusters", name=name)["reserve_limit"] is None

    await asyncio.gather(
        before_anything_stood(), after_the_values(), before_the_launch_that_adopts(), while_the_launch_adopts()
    )


# --- mail -----------------------------------------------------------------------------------------


def told(world: World, name: str) -> list[str]:
    """Return the notices to team b, in order."""
    return [kind for kind, audience in world.notices(name) if audience == "b"]


def to_b(name: str, kind: NoticeKind) -> Callable[..., bool]:
    def fits(lines: Sequence[tuple[Notice, str, str]]) -> bool:
        """A team without contacts has its notices in the log alone: that call tells it."""
        return (name, kind, "b") in [(notice.cluster, notice.kind, notice.audience) for notice, _, _ in lines]

    return fits


@pytest.mark.nightly
async def test_slow_mail_delays_no_rollback_and_keeps_its_order(world: World, hooks: Hooks) -> None:
    async def scene(kind: NoticeKind, answered: bool) -> None:
        name = await at(world, Stage.PLANNED, "mail", soak_buffered="0s", soak_enforced="0s")
        with hooks.hold("tell.write_log", to_b(name, kind), answered=answered) as mail:
            await world.approve(name)
            await mail.here()
            await world.until(name, Stage.MONITORED)
            await world.say(name, Command.ROLLBACK)
            await world.until(name, Stage.ROLLED_BACK)
            assert world.sql.gpus(name) == BASELINE
            assert "rolled_back" not in told(world, name)
            mail.go()
        await eventually(lambda: "rolled_back" in told(world, name), "the last notice")
        assert told(world, name) == ["planned", "buffered", "enforced", "monitored", "rolled_back"]

    await asyncio.gather(scene(NoticeKind.BUFFERED, False), scene(NoticeKind.ENFORCED, True))


async def calls(world: World, name: str) -> list[str]:
    """The activities that the rollout has asked for, in order."""
    history = await world.handle(name).fetch_history()
    asked = [
        e.activity_task_scheduled_event_attributes
        for e in history.events
        if e.activity_task_scheduled_event_attributes.activity_id
    ]
    return [call.activity_type.name for call in asked]


@pytest.mark.nightly
async def test_a_breach_is_answered_before_it_is_told_but_told_if_the_answer_is_slow(
    world: World, hooks: Hooks
) -> None:
    name = await at(world, Stage.MONITORED, "haste")
    with hooks.effect(name, EffectKind.RESTORE) as restore:
        await world.healthy(name, main=(361, 300))
        await restore.here()
        asked = await calls(world, name)
        # The stage is noted at once, so that other clusters' breaches count it.
        unfollow, soften, restoring = ["apply_effect", "record"], ["apply_effect"], ["apply_effect"]
        assert asked[asked.index("aim_rollback") :] == ["aim_rollback", *unfollow, *soften, *restoring]
        assert "breach" not in told(world, name)
        await eventually(lambda: "breach" in told(world, name), "the notice of a breach that is not answered")
        await eventually(
            lambda: "soften: the limits are soft again" in texts(world, name),
            "the archive of a breach that is not answered",
        )
        restore.go()
    await world.until(name, Stage.ROLLED_BACK)
    assert world.sql.gpus(name) == BACKED
    await eventually(lambda: "rolled_back" in told(world, name), "the last notice")
    assert told(world, name)[-2:] == ["breach", "rolled_back"]


def after(status: RolloutStatus) -> Callable[[RolloutStatus], bool]:
    """A signal has been taken and looked into since, or another run has begun."""
    return lambda s: s.runs > status.runs or s.history_events >= status.history_events + 7


@pytest.mark.nightly
async def test_a_new_run_waits_for_the_mail(sqlite_ledger_url: str, tmp_path: Path, hooks: Hooks) -> None:
    limit = "limit.historyCount.suggestContinueAsNew=170"
    async with (
        EmbeddedTemporal(tmp_path / "temporal", None, None, dynamic_config=[limit]) as server,
        world_of(await connected(server.address), sqlite_ledger_url, tmp_path, touch=hooks.on) as world,
    ):
        name = await at(world, Stage.PLANNED, "runs", soak_buffered="0s", soak_enforced="0s")
        with hooks.hold("tell.write_log", to_b(name, NoticeKind.MONITORED)) as mail:
            await world.approve(name)
            await mail.here()
            status = await world.until(name, Stage.MONITORED)
            while status.runs == 1 and status.history_events < 220:
                await world.say(name, Command.ACK, team="b")
                status = await world.status(name)
            for _ in range(2):  # nothing but the mail is under way in the end, and the loop comes round
                await ask_to_look(world, name)
                status = await world.until(name, after(status))
            assert status.runs == 1
            mail.go()
        await world.until(name, lambda s: s.runs == 2)
        await world.say(name, Command.ROLLBACK)
        await world.until(name, Stage.ROLLED_BACK)
        await eventually(lambda: "rolled_back" in told(world, name), "the last notice")
        assert told(world, name) == ["planned", "buffered", "enforced", "monitored", "rolled_back"]
        assert receipts(world, name) == [*CUT, "harden", "follow", "unfollow", "soften", *UNCUT]


# --- clocks ---------------------------------------------------------------------------------------

EXPORT = "INSERT INTO health_samples (cluster, island, at, total_gpus, healthy_gpus) VALUES (?, 'main', ?, 361, ?)"


def exported(world: World, name: str, at: datetime, healthy: int) -> None:
    """A sample that an exporter wrote by plain SQL."""
    world.sql.run(EXPORT, name, f"{at:%Y-%m-%dT%H:%M:%S.%fZ}", healthy)


@asynccontextmanager
async def exporting(world: World, name: str) -> AsyncIterator[None]:
    """All is healthy, and a source with a right clock says so again and again."""

    async def export() -> None:
        while True:
            exported(world, name, datetime.now(UTC), 361)
            await ask_to_look(world, name)
            await asyncio.sleep(0.2)

    task = asyncio.create_task(export())
    try:
        yield
    finally:
        task.cancel()


def dated(name: str, at: datetime, healthy: int) -> HealthSample:
    island = Island(name="main", total_gpus=361, healthy_gpus=healthy)
    return HealthSample(cluster=name, at=at, islands=(island,))


@pytest.mark.nightly
async def test_a_source_with_a_wrong_clock_decides_nothing_and_shadows_nothing(world: World) -> None:
    hours = timedelta(hours=1)

    async def ahead() -> None:
        name = await at(world, Stage.BUFFERED, "ahead")
        with pytest.raises(BadInput, match=f"a health sample of cluster '{name}' is dated .* ahead of now"):
            await world.person("exporter").add_health([dated(name, datetime.now(UTC) + 3 * hours, 100)])
        assert not (await world.status(name)).holds

        exported(world, name, datetime.now(UTC) + 3 * hours, 100)
        status = await world.until(name, lambda s: bool(s.holds))
        assert [h.id for h in status.holds] == ["unknown_health"]
        assert "with times in the future" in status.needs
        assert status.healthy_gpus == 361
        await world.say(name, Command.PROMOTE)
        await ask_to_look(world, name)
        await world.until(name, lambda s: {"holds", "backed"} == {c.name for c in s.waiting_for})
        assert receipts(world, name) == CUT

        # The clock is set right, and hardware fails: what is said now is not older than what was said of tomorrow.
        exported(world, name, datetime.now(UTC), 300)
        await world.until(name, Stage.ROLLED_BACK)
        assert world.sql.gpus(name) == BACKED
        assert [h.id for h in (await world.status(name)).holds] == ["unknown_health"]
        world.sql.run("DELETE FROM health_samples WHERE cluster = ? AND healthy_gpus = 100", name)
        await world.until(name, lambda s: not s.holds)

    async def behind() -> None:
        name = await at(world, Stage.PLANNED, "behind", stale_after="2s", soak_buffered=LONG)
        async with exporting(world, name):
            await world.approve(name)
            await world.until(name, Stage.BUFFERED)
        exported(world, name, datetime.now(UTC) - 2 * hours, 100)
        async with asyncio.timeout(PATIENCE):
            while not (await world.status(name)).holds:
                await ask_to_look(world, name)
                await asyncio.sleep(0.1)
        await world.say(name, Command.PROMOTE)
        await world.person("exporter").add_health([dated(name, datetime.now(UTC) - hours, 100)])
        await ask_to_look(world, name)
        status = await world.until(name, lambda s: {"holds", "backed"} == {c.name for c in s.waiting_for})
        assert status.healthy_gpus == 361  # an old truth says nothing of now
        assert not status.at_risk
        assert receipts(world, name) == CUT
        async with exporting(world, name):
            await world.until(name, Stage.ENFORCED)

    await asyncio.gather(ahead(), behind())


# --- messages -------------------------------------------------------------------------------------


@pytest.mark.nightly
async def test_a_signal_is_not_lost_whatever_is_under_way(world: World, hooks: Hooks) -> None:
    """The safety poll is an hour away: what is seen, a signal brought about."""

    async def during_a_look() -> None:
        name = await at(world, Stage.MONITORED, "look", breach_after=LONG)
        with hooks.look(name) as look:
            await ask_to_look(world, name)
            await look.here()
            await signalled(world, name, 300)
            look.go()
        await world.until(name, lambda s: s.healthy_gpus == 300)

    async def twice_during_a_look() -> None:
        name = await at(world, Stage.MONITORED, "looks", breach_after=LONG)
        with hooks.look(name) as look:
            await signalled(world, name, 300)
            await look.here()
            await signalled(world, name, 299)
            await signalled(world, name, 298)  # seen at once, without those before, it is still a plausible drop
            look.go()
        await world.until(name, lambda s: s.healthy_gpus == 298)

    async def before_a_look() -> None:
        """The change comes while the look is requested and an effect is still under way."""
        name = await at(world, Stage.BUFFERED, "effect", breach_after=LONG)
        with hooks.effect(name, EffectKind.HARDEN) as effect:
            await world.say(name, Command.PROMOTE)
            await effect.here()
            await signalled(world, name, 300)
            effect.go()
        await world.until(name, lambda s: s.healthy_gpus == 300 and s.stage is Stage.ENFORCED)

    async def during_a_plan() -> None:
        name = fresh("draft")
        await world.fleet(cluster(name, {"main": (361, 361)}, QUOTAS, breach_after=LONG))
        fits: Callable[..., bool] = lambda clusters: list(clusters) == [name]  # noqa: E731
        with hooks.hold("draft_plan.health", fits, answered=True) as draft:
            launching = asyncio.create_task(world.launch(name))
            await draft.here()
            await signalled(world, name, 300)
            draft.go()
            await launching
        await world.until(name, lambda s: s.healthy_gpus == 300)

    await asyncio.gather(during_a_look(), twice_during_a_look(), before_a_look(), during_a_plan())
