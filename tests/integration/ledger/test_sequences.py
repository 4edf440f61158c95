"""Any sequence of effects, lost calls and foreign writes, and the undo at its end."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from activities.adapters.ledger.facade import Ledger
from models.cluster.readings import LimitMode
from models.errors import Refusal
from models.rollout.effect_table import INVERSE
from models.rollout.effects import Change, EffectKind, Fence, Reserve, ValueWrite
from tests.integration.ledger.world import CLUSTER, ForeignTool, fleet, foreign_write, note_stage, opening, take

TEAMS = ("a", "b", "c", "org", "org-1", "org-2")
LEAVES = ("a", "b", "c", "org-1", "org-2")
ON_X = ("a", "c")

Writes = tuple[ValueWrite, ...]


@dataclass(frozen=True)
class Effect:
    kind: EffectKind
    cuts: dict[str, int]
    landed: bool
    """False: the forward call never arrives; its inverse is run all the same."""


@dataclass(frozen=True)
class Foreign:
    team: str
    gpus: int
    by_sql: bool


effects = st.builds(
    Effect,
    kind=st.sampled_from([EffectKind.RESERVE, EffectKind.SET_SOFT, EffectKind.HARDEN, EffectKind.FOLLOW]),
    cuts=st.dictionaries(st.sampled_from(LEAVES), st.integers(0, 30), max_size=5),
    landed=st.booleans(),
)
foreign_writes = st.builds(Foreign, team=st.sampled_from(TEAMS), gpus=st.integers(0, 130), by_sql=st.booleans())


@dataclass
class World:
    """The ledger, and what somebody who knows only the rules expects of it."""

    ledger: Ledger
    tool: ForeignTool
    rollout: str
    expected: dict[str, int]
    counter: int = 0
    limits: tuple[int, int] | None = None
    """For all leaves, and for those limited to island X."""
    attempted: list[tuple[EffectKind, Writes]] = field(default_factory=list)
    foreign_changes: int = 0
    touched: set[str] = field(default_factory=set)
    """Teams that others changed."""

    def attempt(self, step: Effect) -> None:
        if step.kind is EffectKind.HARDEN and not any(kind is EffectKind.SET_SOFT for kind, _ in self.attempted):
            return  # the stage table sets values first, and it is their inverse that brings the modes back
        writes: Writes = ()
        reserve = None
        if step.kind is EffectKind.SET_SOFT:
            writes = tuple(self._lowered(team, step.cuts.get(team, 0)) for team in TEAMS)
        if step.kind is EffectKind.RESERVE:
            total, on_x = self._sums()
            limit, limit_x = max(0, total - sum(step.cuts.values())), max(0, on_x - step.cuts.get("a", 0))
            reserve = Reserve(freed_gpus=total - limit, limit_gpus=limit, limits_by_islands={"X": limit_x})
        self.attempted.append((step.kind, writes))
        if step.landed:
            self._apply(step.kind, writes, reserve)

    def disturb(self, step: Foreign) -> None:
        before, generation = self.tool.quotas(), self.tool.generation()
        if not self._may_be_set(step):
            if step.by_sql:
                assert "which rollout" in self.tool.set_refused(step.team, step.gpus)
            else:
                with pytest.raises(Refusal, match="which rollout"):
                    foreign_write(self.ledger, CLUSTER, step.team, step.gpus, "tool")
            assert (self.tool.quotas(), self.tool.generation()) == (before, generation)
            return
        if step.by_sql:
            self.tool.set(step.team, step.gpus)
        else:
            foreign_write(self.ledger, CLUSTER, step.team, step.gpus, "tool")
        if step.gpus != self.expected[step.team]:
            self.foreign_changes += 1
            self.touched.add(step.team)
        self.expected[step.team] = step.gpus

    def undo(self) -> None:
        for kind, writes in reversed(self.attempted):
            back = tuple(
                ValueWrite(team=w.team, expected_gpus=w.gpus, gpus=w.expected_gpus, mode=LimitMode.HARD) for w in writes
            )
            self._apply(INVERSE[kind], back, None)

    def _apply(self, kind: EffectKind, writes: Writes, reserve: Reserve | None) -> None:
        self.counter += 1
        fence = Fence(rollout=self.rollout, counter=self.counter)
        change = Change(cluster=CLUSTER, kind=kind, fence=fence, writes=writes, reserve=reserve)
        receipt = self.ledger.quotas.apply(change)
        assert self.ledger.quotas.apply(change) == receipt
        if kind in (EffectKind.RESERVE, EffectKind.RELEASE):
            self.limits = None if reserve is None else (reserve.limit_gpus, reserve.limits_by_islands["X"])
        for write in writes:
            if self.expected[write.team] in (write.expected_gpus, write.gpus):
                self.expected[write.team] = write.gpus

    def _lowered(self, team: str, by: int) -> ValueWrite:
        present = self.expected[team]
        return ValueWrite(team=team, expected_gpus=present, gpus=max(0, present - by), mode=LimitMode.SOFT)

    def _sums(self) -> tuple[int, int]:
        return sum(self.expected[t] for t in LEAVES), sum(self.expected[t] for t in ON_X)

    def _may_be_set(self, step: Foreign) -> bool:
        rise = step.gpus - self.expected[step.team]
        if rise <= 0 or self.limits is None:
            return True
        total, on_x = self._sums()
        if step.team == "org" or total + rise > self.limits[0]:
            return False
        return step.team not in ON_X or on_x + rise <= self.limits[1]


def fresh_world(ledger: Ledger, tool: ForeignTool) -> World:
    """The next rollout on the same ledger, from the file's own values."""
    rollout = f"r-{tool.one('SELECT count(*) FROM rollouts')}"
    for (earlier,) in tool.rows("SELECT open_rollout FROM clusters WHERE open_rollout IS NOT NULL"):
        note_stage(ledger, earlier, "aborted", ended=True, completed=False)
    # A failed example may have left a reservation; shrinking needs each to start alike.
    tool.run("UPDATE clusters SET reserve_limit = NULL, reserved_gpus = 0, follows_health = ?", False)
    take(ledger, fleet(), rollout, reset=True)
    tool.run("UPDATE quotas SET mode = 'hard'")
    ledger.registry.open_rollout(opening(ledger, rollout), adopt=False)
    return World(ledger, tool, rollout, expected=tool.gpus())


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=st.lists(effects | foreign_writes, max_size=10))
def test_whatever_happens_limits_hold_changes_are_counted_and_an_undo_leaves_only_what_others_did(
    steps: list[Effect | Foreign], ledger: Ledger, tool: ForeignTool
) -> None:
    world = fresh_world(ledger, tool)
    original, generation = tool.quotas(), tool.generation()
    for step in steps:
        if isinstance(step, Effect):
            world.attempt(step)
        else:
            world.disturb(step)
        assert tool.gpus() == world.expected
    world.undo()
    assert tool.gpus() == world.expected
    assert tool.generation() == generation + world.foreign_changes
    untouched = [row for row in original if row[0] not in world.touched]
    assert [row for row in tool.quotas() if row[0] not in world.touched] == untouched
    standing = "SELECT reserved_gpus, reserve_limit, follows_health FROM clusters WHERE name = 'alpha'"
    assert tool.rows(standing) == [(0, None, False)]
