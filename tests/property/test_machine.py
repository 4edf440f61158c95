"""Any order of commands, failures, foreign writes and time: what DESIGN.md says always holds, holds.

The world is tests/unit/pure_world.py; what should be true is computed from the world's own values, health
and clock, never from the rollout's state. At the end everything outside is made well and people answer
what they are asked: the rollout must then get to an end or to `monitored`. A hold that cannot be lifted,
or a condition that comes true without anybody waking, shows there.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from models.effects import INVERSE, Change, EffectKind, Mode, Receipt
from models.fleet import WindowKind
from models.gates import drift_of
from models.interpreter import Wait, decide
from models.quota import Quota, QuotaTree
from models.rollout import HoldKind, Why
from models.stages import Command, Stage
from models.status import needs_of, waiting_sentence
from tests.unit.pure_world import TWO, Refused, World, parent, quota

BREACH_AFTER = timedelta(minutes=10)
FLAT = (*TWO, quota("c", 0))
TREE = (parent("org", 250), quota("a", 150, 120, parent="org"), quota("b", 100, 20, parent="org"), quota("c", 100))
LIMITED = (quota("a", 150, 140, islands=("X",)), quota("b", 100, 90, minimum_gpus=60), quota("c", 90, 30))
CLUSTERS: dict[str, tuple[tuple[Quota, ...], dict[str, tuple[int, int]]]] = {
    "flat": (FLAT, {"X": (361, 361)}),
    "tree": (TREE, {"X": (361, 361)}),
    "limited": (LIMITED, {"X": (200, 200), "Y": (150, 150)}),
}
KINDS = [*INVERSE, *INVERSE.values()]
PAUSES = ["40s", "6m", "11m", "35m", "3h", "30h", "8d"]


class Observed(World):
    """The world, keeping its own account of shortages and of what an undo must restore."""

    def __init__(self, *args: Any, **policy: Any) -> None:
        self.short_since: dict[str, datetime] = {}
        self.short_total: dict[str, timedelta] = {}
        self.ever_blind = False
        self.expected: dict[str, int] | None = None
        """What an undo must leave, by team; None while nothing of ours stands."""
        self.before_change: dict[str, int] = {}
        """What was expected of a team before others last changed it away from ours."""
        self.touched: set[str] = set()
        super().__init__(*args, every_state=False, **policy)
        self.first_modes = {t: q.mode for t, q in self.quotas.items()}

    @property
    def blind(self) -> bool:
        unseen = self.sampled_at is not None or not self.has_sample or not self.watch_runs or self.looks_fail
        return unseen or self.r.sight.unknown

    def passing(self, until: datetime) -> None:
        self.account()
        for team in self.short_since:
            self.short_total[team] = self.short_total.get(team, timedelta(0)) + until - self.now

    def account(self) -> None:
        """Which promises are short now, and since when anybody could have known."""
        if self.blind or not self.r.stage.guarded:
            self.ever_blind = self.ever_blind or self.blind
            self.short_since = {}
            return
        short = self.standing_shortage()
        self.short_since = {t: self.short_since.get(t, self.now) for t in short}

    def standing_shortage(self) -> dict[str, int]:
        if not self.shadow:
            return self.backing(declared=True).shortage
        real = self.quotas
        self.quotas = {t: q.model_copy(update={"gpus": self.r.written.get(t, q.gpus)}) for t, q in real.items()}
        try:
            return self.backing(declared=True).shortage
        finally:
            self.quotas = real

    def foreign(self, team: str, gpus: int | None, **more: Any) -> None:
        was = self.quotas.get(team)
        ours = was is not None and was.gpus == self.r.written.get(team)
        # The account first: the rollout answers within the call.
        kept = self.expected, dict(self.before_change), set(self.touched)
        if self.expected is not None and (None if was is None else was.gpus) != gpus:
            expected = dict(self.expected)
            if ours and team in expected:
                self.before_change[team] = expected[team]
            if gpus is None:
                expected.pop(team, None)
                self.before_change.pop(team, None)
            elif gpus == self.r.written.get(team) and team in self.before_change:
                expected[team] = self.before_change.pop(team)
            else:
                expected[team] = gpus
            self.expected = expected
            self.touched.add(team)
        try:
            super().foreign(team, gpus, **more)
        except Refused:
            self.expected, self.before_change, self.touched = kept
            raise

    def apply(self, change: Change, limit: int | None) -> Receipt:
        before = self.values
        restoring = change.kind is EffectKind.SET_SOFT and self.r.restoring
        receipt = super().apply(change, limit)
        if change.kind is EffectKind.SET_SOFT and self.expected is None:
            self.expected, self.before_change, self.touched = before, {}, set()
        for write in change.writes if restoring else ():
            if self.expected is not None and write.team in self.before_change:
                self.expected[write.team] = self.before_change.pop(write.team)
        return receipt


class Machine(RuleBasedStateMachine):
    world: Observed

    @initialize(
        cluster=st.sampled_from(sorted(CLUSTERS)),
        shadow=st.sampled_from([False, False, False, True]),
        policy=st.fixed_dictionaries(
            {
                "on_breach": st.sampled_from(["rollback", "rollback", "hold", "realign"]),
                "on_drift": st.sampled_from(["hold", "restore", "accept"]),
                "rollback_to": st.sampled_from(["backed", "backed", "baseline"]),
                "acks": st.sampled_from(["none", "majority"]),
                "notice": st.sampled_from(["0s", "3d"]),
                "plausible_drop": st.sampled_from([0.2, 0.9]),
                "buffer": st.sampled_from([0, 0.15]),
                "max_moved_gpus": st.sampled_from([20, 1000, 1000]),
                "max_tier": st.sampled_from(["busy", "busy", "unscheduled"]),
            }
        ),
    )
    def opened(self, cluster: str, shadow: bool, policy: dict[str, Any]) -> None:
        quotas, islands = CLUSTERS[cluster]
        soaks = {"soak_buffered": "1h", "soak_enforced": "1h", "safety_poll": "12h", "stale_after": "1d"}
        self.world = Observed(quotas, islands, shadow=shadow, **soaks, **policy)

    @precondition(lambda self: self.world.stage is Stage.PLANNED)
    @rule()
    def approve(self) -> None:
        self._do(self.world.approve)

    @precondition(lambda self: self.world.stage is Stage.PLANNED)
    @rule(kind=st.sampled_from(sorted(INVERSE)), landed=st.booleans())
    def first_step_fails(self, kind: EffectKind, landed: bool) -> None:
        self.world.fail(kind, "Unavailable", landed=landed)
        self._do(self.world.approve)
        self.world.wait("11m")

    # --- what can happen ------------------------------------------------------------------------

    def _do(self, what: Callable[[], object]) -> None:
        try:
            what()
        except Refused:
            return

    def _command(self, command: Command, team: str, how: str, run: bool) -> None:
        world, r = self.world, self.world.r
        resolvable = [h.id for h in r.holds if h.kind is not HoldKind.PAUSED] or ["unknown_health"]
        fields = {
            Command.APPROVE: {"plan_hash": "" if r.plan is None else r.plan.hash},
            Command.ACK: {"team": team},
            Command.OBJECT: {"team": team},
            Command.RESOLVE: {"hold": resolvable[0], "how": how},
        }.get(command, {})
        self._do(lambda: world.say(command, run=run, **fields))

    @rule(command=st.sampled_from(Command), team=st.sampled_from("abc"), how=st.sampled_from(["accept", "restore"]))
    def command(self, command: Command, team: str, how: str) -> None:
        if command not in (Command.ABORT, Command.CLOSE):
            self._command(command, team, how, run=True)

    @rule(command=st.sampled_from([Command.ABORT, Command.CLOSE, Command.ROLLBACK]), sure=st.integers(0, 3))
    def ending(self, command: Command, sure: int) -> None:
        if not sure:
            self._command(command, "a", "accept", run=True)

    @rule(
        command=st.sampled_from(Command),
        what=st.sampled_from([*(k.value for k in KINDS), "look", "draft", "aim"]),
        team=st.sampled_from("abc"),
        how=st.sampled_from(["accept", "restore"]),
    )
    def command_meanwhile(self, command: Command, what: str, team: str, how: str) -> None:
        self.world.meanwhile(what, lambda: self._command(command, team, how, run=False))

    @rule(island=st.sampled_from("XY"), lost=st.sampled_from([0, 0, 0, 7, 30, 66, 150]))
    def health(self, island: str, lost: int) -> None:
        here = self.world.islands.get(island)
        if here is not None:
            self.world.healthy(**{island: max(0, here.total_gpus - lost)})

    @rule(team=st.sampled_from(["a", "b", "c", "z"]), gpus=st.sampled_from([None, 0, 10, 33, 77, 120]))
    def foreign(self, team: str, gpus: int | None) -> None:
        world = self.world
        if gpus is None and (team not in world.quotas or team == "a"):
            return
        if world.r.attempted.get(team) == gpus:
            return  # nobody could tell this value from ours
        self._do(lambda: world.foreign(team, gpus))

    @rule(
        kind=st.sampled_from([*KINDS, EffectKind.CLOSE]),
        error=st.sampled_from(["Unavailable", "Refusal", "Drift", "Conflict"]),
        landed=st.booleans(),
    )
    def failure(self, kind: EffectKind, error: str, landed: bool) -> None:
        if kind not in INVERSE:
            error = "Refusal"  # anything else is retried without limit
        if error == "Conflict" and landed:
            return
        self.world.fail(kind, error, landed=landed and error != "Drift")

    @rule(kind=st.sampled_from(WindowKind), length=st.sampled_from(["9m", "4h"]), gpus=st.sampled_from([None, 20]))
    def window(self, kind: WindowKind, length: str, gpus: int | None) -> None:
        self.world.window(kind, length, gpus)

    @rule(what=st.sampled_from(["silent", "speaks", "no sample", "watch", "looks", "mail", "elsewhere"]))
    def outside(self, what: str) -> None:
        world = self.world
        match what:
            case "silent":
                world.silent()
            case "speaks":
                world.has_sample = True
                world.speaks()
            case "no sample":
                world.has_sample = not world.has_sample
            case "watch":
                world.watch_runs = not world.watch_runs
            case "looks":
                world.looks_fail = not world.looks_fail
            case "mail":
                world.mail_works = not world.mail_works
            case _:
                world.breaching_elsewhere = 3 - world.breaching_elsewhere
        world.noticed()

    @rule(length=st.sampled_from(PAUSES))
    def time(self, length: str) -> None:
        self.world.wait(length)

    @precondition(lambda self: self.world.stage.guarded)
    @rule(lost=st.sampled_from([66, 100]), length=st.sampled_from(["9m", "11m"]))
    def shortage(self, lost: int, length: str) -> None:
        here = self.world.islands["X"]
        self.world.healthy(X=here.total_gpus - lost)
        self.world.wait(length)

    # --- what always holds ----------------------------------------------------------------------

    @invariant()
    def people_can_see_it_and_it_can_be_carried_over(self) -> None:
        world = self.world
        world.carried_over()
        assert world.status.stage is world.stage
        needs_of(world.r, world.now)
        waiting_sentence(world.r, world.now)
        if world.stage is Stage.ROLLED_BACK and world.r.order is not None and world.r.order.why is Why.UNDO:
            assert world.needs

    @invariant()
    def it_always_wakes_again(self) -> None:
        world = self.world
        action = decide(world.r, world.now)
        if not world.stage.ended and world.stage is not Stage.STUCK:
            assert isinstance(action, Wait)
            assert action.until is not None
            assert world.now < action.until <= world.now + world.policy.safety_poll

    @invariant()
    def no_promise_outlives_breach_after_without_its_hardware(self) -> None:
        world = self.world
        world.account()
        late = {t for t, since in world.short_since.items() if world.now - since >= BREACH_AFTER}
        assert not late & world.promises.keys(), (late, world.promises)
        if not world.blind and world.short_since.keys() <= late and world.promises:
            tree = QuotaTree(q.as_quota() for q in world.quotas.values())
            values = {t: 0 if t in tree.leaves and t not in world.promises else v for t, v in world.values.items()}
            declared = world.backing(declared=True)
            assert tree.assigned(values) <= declared.healthy_gpus

    @invariant()
    def no_blip_rolls_back(self) -> None:
        world, order = self.world, self.world.r.order
        if order is not None and order.why is Why.BREACH and not world.ever_blind:
            assert max(world.short_total.values(), default=timedelta(0)) >= BREACH_AFTER

    @invariant()
    def what_stands_is_owed(self) -> None:
        world, r = self.world, self.world.r
        if world.shadow:
            assert world.effects == []
            return
        if r.superseded or r.stage.ended:
            return
        assert world.limit is None or EffectKind.RESERVE in r.standing
        assert not world.follows or EffectKind.FOLLOW in r.standing
        if r.stage is Stage.ROLLING_BACK:
            assert set(r.owed) <= set(r.standing)
        if EffectKind.HARDEN in r.standing and r.stage.promises and not drift_of(r):
            assert {q.mode for t, q in world.quotas.items() if t in r.written and t not in world.touched} <= {Mode.HARD}

    @invariant()
    def an_undo_that_completes_restores_the_baseline_but_for_what_others_changed(self) -> None:
        world, r = self.world, self.world.r
        if world.expected is None or r.superseded or r.values_stand or r.stage in (Stage.CLOSED, Stage.STUCK):
            return
        if r.stage in (Stage.ROLLED_BACK, Stage.ABORTED, Stage.PLANNED):
            assert world.values == world.expected
            modes = {t: q.mode for t, q in world.quotas.items() if t in world.first_modes and t not in world.touched}
            assert modes == {t: world.first_modes[t] for t in modes}
            world.expected, world.touched = None, set()

    def teardown(self) -> None:
        """Outside all is well, and people answer: it comes to an end or to monitored."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.failures, world.hooks, world.breaching_elsewhere = {}, {}, 0
        world.watch_runs = world.mail_works = world.has_sample = True
        world.looks_fail = False
        for island in world.islands.values():
            world.islands[island.name] = island.model_copy(update={"healthy_gpus": island.total_gpus})
        world.speaks()
        for _ in range(12):
            world.wait("8d")
            if world.stage.ended or world.stage is Stage.MONITORED:
                return
            for hold in world.r.holds:
                if hold.kind is HoldKind.PAUSED:
                    self._do(lambda: world.say(Command.RESUME))
                else:
                    self._do(lambda hold=hold: world.say(Command.RESOLVE, hold=hold.id, how="accept"))  # type: ignore[misc]
                    self._do(lambda hold=hold: world.say(Command.RESOLVE, hold=hold.id))  # type: ignore[misc]
            self._do(world.approve)
            self._do(lambda: world.say(Command.RETRY))
            if world.r.superseded:
                world.say(Command.CLOSE)
            # What others added has no hardware, and the policy leaves it to a person.
            over = world.backing().phantom_gpus > 0 or world.shadow or world.r.plan is None or not world.r.plan.backed
            if over and "backed" in world.waits_for | {c.name for c in world.status.waiting_for if "backed" in c.text}:
                assert world.needs
                self._do(lambda: world.say(Command.ABORT))
        raise AssertionError(f"never comes to an end: {world.stage}, {world.needs}, {world.waits_for}")


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=100,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
