"""Any order of commands, failures, foreign writes and time: what docs/design.md says always holds, holds.

The world is tests/unit/pure_world.py; what must hold is in tests/property/witness.py. At the end everything
outside is made well and people answer what they are asked: the rollout must then get to an end or to
`monitored`. A hold that cannot be lifted, or a condition that comes true without anybody waking, shows there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from models.cluster.quota import Quota
from models.cluster.readings import LimitMode
from models.cluster.windows import WindowKind
from models.lifecycle.holds import HoldKind
from models.planning.grants import GrantOutcome
from models.rollout.effect_table import INVERSE
from models.rollout.effects import EffectKind
from models.rollout.stages import Command, Stage
from tests.property.witness import Observed
from tests.tried import examples
from tests.unit.pure_world import TWO, Refused, parent, quota

FLAT = (*TWO, quota("c", 0))
TREE = (parent("org", 250), quota("a", 150, 120, parent="org"), quota("b", 100, 20, parent="org"), quota("c", 100))
LIMITED = (quota("a", 150, 140, islands=("X",)), quota("b", 100, 90, minimum_gpus=60), quota("c", 90, 30))
ROOMY = (parent("org", 190), quota("a", 150, 140, parent="org"), quota("b", 40, 20, parent="org"), quota("c", 60))
CLUSTERS: dict[str, tuple[tuple[Quota, ...], dict[str, tuple[int, int]]]] = {
    "flat": (FLAT, {"X": (361, 361)}),
    "tree": (TREE, {"X": (361, 361)}),
    "roomy": (ROOMY, {"X": (361, 361)}),
    "limited": (LIMITED, {"X": (200, 200), "Y": (150, 150)}),
}
KINDS = [*INVERSE, *INVERSE.values()]
PAUSES = ["40s", "6m", "11m", "35m", "3h", "30h", "8d"]


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
        world, rollout = self.world, self.world.r
        resolvable = [h.id for h in rollout.holds if h.kind is not HoldKind.PAUSED] or ["unknown_health"]
        fields = {
            Command.APPROVE: {"plan_hash": "" if rollout.plan is None else rollout.plan.hash},
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
        what=st.sampled_from([*(k.value for k in KINDS), "look", "draft", "aim", "grant"]),
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

    @rule(team=st.sampled_from("abc"), mode=st.sampled_from(LimitMode))
    def foreign_mode(self, team: str, mode: LimitMode) -> None:
        there = self.world.quotas.get(team)
        if there is not None:
            self._do(lambda: self.world.foreign(team, there.gpus, by="ann", mode=mode))

    @rule(
        kind=st.sampled_from([*KINDS, EffectKind.CLOSE, EffectKind.GRANT]),
        error=st.sampled_from(["Unavailable", "Refusal", "Drift", "Conflict"]),
        landed=st.booleans(),
    )
    def failure(self, kind: EffectKind, error: str, landed: bool) -> None:
        if kind is EffectKind.GRANT and error == "Unavailable":
            return  # that is retried without limit
        if kind not in INVERSE and kind is not EffectKind.GRANT:
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

    @rule(team=st.sampled_from("abc"), gpus=st.sampled_from([1, 8, 30]), request=st.sampled_from(["r-1", "r-2"]))
    def grant(self, team: str, gpus: int, request: str) -> None:
        raised = self.world.r.grants.get(request)
        before = self.world.values
        answer = self.world.grant(team, gpus, request, raised)
        if answer.outcome is not GrantOutcome.DONE and not self.world.shadow:
            grown = {t for t, v in self.world.values.items() if v > before.get(t, 0)}
            assert EffectKind.GRANT not in self.world.effects[-1:] or not grown

    @rule(length=st.sampled_from(PAUSES))
    def time(self, length: str) -> None:
        self.world.wait(length)

    @precondition(lambda self: self.world.stage.is_guarded)
    @rule(lost=st.sampled_from([66, 100]), length=st.sampled_from(["9m", "11m"]))
    def shortage(self, lost: int, length: str) -> None:
        here = self.world.islands["X"]
        self.world.healthy(X=here.total_gpus - lost)
        self.world.wait(length)

    # --- what always holds ----------------------------------------------------------------------

    @invariant()
    def what_must_always_hold_holds(self) -> None:
        self.world.carried_over()
        self.world.check()

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
            if world.stage.has_ended or world.stage is Stage.MONITORED:
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
                assert world.needs or world.r.at_risk, "nobody is called, and no breach is on its way"
                self._do(lambda: world.say(Command.ABORT))
        raise AssertionError(f"never comes to an end: {world.stage}, {world.needs}, {world.waits_for}")


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=examples(100),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
