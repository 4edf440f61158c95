"""Every list of a state, filled to its limit with words that do not compress, goes through to the next run.

The lists are found in the models themselves: a new one needs its row in LIMITS, with what keeps it there.
"""

from __future__ import annotations

import random
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from enum import Enum
from fractions import Fraction
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from pydantic import BaseModel

from client.converter import data_converter
from models.audit_chain import AuditEntry, AuditKind
from models.cluster.classes import MOST_CLASSES
from models.cluster.fleet_file import MOST_QUOTAS
from models.cluster.policy import MOST_NAMES
from models.cluster.windows import MOST_WINDOWS, Window, WindowKind, nearest
from models.fleet.messages import FleetInput, FleetLaunch
from models.fleet.state import FleetRollout
from models.notices import Notice, NoticeKind
from models.planning.busy_work import MOST_TEAMS_AT_WORK
from models.planning.cut_reasons import MOST_SHORT
from models.planning.grants import GrantOrder, GrantOutcome
from models.requests.messages import RequestInput
from models.requests.state import RequestState
from models.rollout import granting
from models.rollout.effects import EffectKind
from models.rollout.granting import MOST_GRANTS
from models.rollout.mailing import MOST_UNDELIVERED, fit_rollout
from models.rollout.messages import LaunchRequest, RolloutInput
from models.rollout.objections import OF_ALL
from models.rollout.stages import Stage
from models.rollout.state import Rollout
from tests.unit.pure_world import World

MOST_BYTES = 2 * 1024 * 1024
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
TEAMS, ISLANDS, FEW = "one for each quota", "one for each island", "a few"
"""FEW: cuts, blocks, tiers, parents and what else a fleet file says of one quota."""
KINDS = len(EffectKind)
QUEUED = 1200
"""More than fits, of entries and notices with long words."""
_KINDS_OF_ROWS = 400
"""So many different ones lie further apart than zlib looks back."""
MEMBERS = 1000
"""Clusters of a fleet (docs/performance.md, "A whole fleet")."""

LIMITS: dict[str, Any] = {
    # The policy: as a file says it, 20,000 characters at most (LaunchRequest.policy) or a fleet file's.
    "Policy.authorities": MOST_NAMES,
    "Policy.owners": MOST_NAMES,
    "Policy.classes": MOST_CLASSES,
    "Ramp.ramp": 20,
    "LaunchRequest.policy": 0,
    # A cluster's quotas and islands: fleet_file.MOST_QUOTAS, and what an import refuses.
    "Snapshot.islands": ISLANDS,
    "Snapshot.quotas": TEAMS,
    "Quota.islands": FEW,
    "Quota.protected_blocks": FEW,
    "Quota.namespaces": 1,
    "Quota.classes": 2,
    "Snapshot.work": 0,  # of no baseline
    "HealthSample.islands": ISLANDS,
    "Present.islands": FEW,
    "Present.protected_blocks": FEW,
    "Present.namespaces": 1,
    "Present.classes": 2,
    "QuotaReading.quotas": TEAMS,
    "Rollout.modes": TEAMS,
    "Rollout.written": TEAMS,
    "Rollout.was": TEAMS,
    "Rollout.foreign": TEAMS,
    "Rollout.unapproved": TEAMS,
    "Rollout.modes_given": TEAMS,
    "Rollout.attempted": TEAMS,
    "Rollout.breach_of": TEAMS,
    "Rollout.warned": TEAMS,
    "Stay.aiming": TEAMS,
    "Outlook.reconsider": ISLANDS,
    "Plan.quotas": TEAMS,
    "Plan.unplaced_blocks": FEW,
    "Plan.work": MOST_TEAMS_AT_WORK,
    "Observation.work": MOST_TEAMS_AT_WORK,
    "TeamWork.classes": MOST_CLASSES,
    "Plan.out_of_reach": FEW,
    "Plan.short_islands": MOST_SHORT,
    "ShortIslands.islands": ISLANDS,
    "QuotaPlan.cuts": FEW,
    "QuotaPlan.namespaces": 1,
    "Envelope.largest_cut": TEAMS,
    "Envelope.gates": FEW,
    "Envelope.gates[]": 2,
    "Announced.cuts": TEAMS,
    "Announced.acks": TEAMS,
    "Undo.target": TEAMS,
    "Undo.changed": TEAMS,
    "Undo.broken_floors": TEAMS,
    "Undo.was": TEAMS,
    "Undo.taken": TEAMS,
    "Observation.tested": TEAMS,
    "Observation.backing": TEAMS,
    "Observation.shortage": TEAMS,
    "Observation.counted": TEAMS,
    "Observation.changes": TEAMS,
    "Doubt.counted": TEAMS,
    "Observation.long_run": ISLANDS,
    "PresentBacking.backing": TEAMS,
    "PresentBacking.shortage": TEAMS,
    "Clocks.by_team": TEAMS,
    "GrantOrder.raised": FEW,
    "Granted.raised": FEW,
    "Granted.hands": FEW,
    # Counted by what they are.
    "Stay.done": KINDS,
    "Rollout.standing": KINDS,
    "Rollout.stood": KINDS,
    "Rollout.unanswered": KINDS,
    "Undo.owed": KINDS,
    "Undo.undone": KINDS,
    "Undo.stuck_on": KINDS,
    # Each with a limit of its own.
    "Announced.undelivered": MOST_UNDELIVERED,
    "Observation.windows": MOST_WINDOWS,
    "Window.islands": 2,
    "Rollout.holds": OF_ALL + 50,
    "Post.owner_told": OF_ALL + 50,
    "Rollout.grants": MOST_GRANTS,
    "Rollout.grants[]": FEW,
    "Rollout.on_top": MOST_GRANTS,
    "Rollout.given_back": 200,
    # Queues: cut when a run ends (models/rollout/mailing.py).
    "Post.outbox": QUEUED,
    "Post.mail": QUEUED,
    "Post.unseen": QUEUED,
    "Post.waiting": QUEUED,
    "AuditEntry.data": 3,
    "Notice.contacts": 0,
    "Notice.reasons": FEW,
    "Notice.facts": 2,
    # A fleet rollout, and a request.
    "FleetRollout.policy": 0,
    "FleetLaunch.policy": 0,
    "FleetRollout.members": MEMBERS,
    "FleetRollout.holds": FEW,
    "FleetRollout.asked": MEMBERS,
    "FleetRollout.outbox": QUEUED,
    "FleetRollout.mail": QUEUED,
    "FleetLaunch.pilots": MEMBERS,
    "FleetLaunch.waves": 5,
    "RequestState.raised": FEW,
    "RequestState.hands": FEW,
    "RequestState.outbox": 50,
    "RequestState.mail": 50,
    "RequestState.unsent": 50,
    "RequestState.untold": 2 * MOST_NAMES,
    "RequestState.could": 0,
    "Assessment.owners": MOST_NAMES,
    "Assessment.elsewhere": MEMBERS,
}
"""How many there may be at most, by model and field; `[]`: of what is inside."""


class Full:
    """Makes values that are as full as they may be. `teams`: names of a cluster's quotas."""

    def __init__(self, teams: list[str], islands: int, few: int = 4) -> None:
        self._few = few
        self._random = random.Random(7)
        self._teams = teams
        self._islands = [f"island-{n}" for n in range(islands)]
        self._times = [NOON + timedelta(microseconds=self._random.randrange(10**13)) for _ in range(50)]
        """Of looks: each tells of many quotas."""
        self.missing: set[str] = set()

    def words(self, length: int) -> str:
        return b64encode(self._random.randbytes(length)).decode()[:length]

    def model(self, kind: type[BaseModel]) -> Any:
        """Not validated: its size is asked, not its sense."""
        fields = {
            name: self.value(field.annotation, f"{kind.__name__}.{name}")
            for name, field in kind.model_fields.items()
            if not field.exclude
        }
        return kind.model_construct(**fields)

    def value(self, hint: Any, where: str) -> Any:
        origin, given = get_origin(hint), get_args(hint)
        if origin is Annotated:
            return self.value(given[0], where)
        if origin in (Union, UnionType):
            kinds = [one for one in given if one is not NoneType]
            # The model, of a model and something smaller.
            return self.value(next((k for k in kinds if _is_model(k)), kinds[-1]), where)
        if origin is tuple and len(given) == 2 and given[1] is Ellipsis:
            several = self.count(where)
            made = [self.value(given[0], where) for _ in range(min(several, _KINDS_OF_ROWS))]
            return tuple(self.entry(made[n % _KINDS_OF_ROWS], given[0], where, n) for n in range(several))
        if origin is tuple:
            return tuple(self.value(one, where) for one in given)
        if origin is dict:
            several = self.count(where)
            values = [self.value(given[1], f"{where}[]") for _ in range(min(several, _KINDS_OF_ROWS))]
            return {self.key(where, n): values[n % _KINDS_OF_ROWS] for n in range(several)}
        if origin is Literal:
            return given[0]
        return self.plain(hint, where)

    def plain(self, hint: Any, where: str) -> Any:
        if _is_model(hint):
            return self.model(hint)
        if isinstance(hint, type) and issubclass(hint, Enum):
            return self._random.choice(list(hint))
        simple: dict[Any, Any] = {
            bool: True,
            int: self._random.randrange(1000),
            float: self._random.random(),
            datetime: self._random.choice(self._times),
            timedelta: timedelta(seconds=self._random.randrange(10**6)),
            Fraction: Fraction(15, 100),
        }
        return simple[hint] if hint in simple else self.text(where)

    def text(self, where: str) -> str:
        """A name of the cluster's, a sentence of ours, or words of somebody's."""
        field = where.partition(".")[2]
        if field in ("parent", "team", "namespaces"):
            return self._random.choice(self._teams)
        if field in ("classes", "job_class"):
            return f"class-{self._random.randrange(MOST_CLASSES)}"
        if field == "islands":
            return self._random.choice(self._islands)
        if where in ("Cut.reason", "Undo.broken_floors"):
            return f"{self._random.randrange(1000)} of {self._random.randrange(1000)} GPUs that no job holds go first"
        return self.words(600 if where == "Hold.reason" else 30)

    def count(self, where: str) -> int:
        if where not in LIMITS:
            self.missing.add(where)
        limit = LIMITS.get(where, 0)
        counted: dict[Any, int] = {TEAMS: len(self._teams), ISLANDS: len(self._islands), FEW: self._few}
        return int(counted.get(limit, limit))

    def key(self, where: str, number: int) -> str:
        return self._teams[number] if LIMITS.get(where) == TEAMS else f"{number}-{self.words(40)}"

    def entry(self, made: Any, hint: Any, where: str, number: int) -> Any:
        limit = LIMITS.get(where)
        if hint is AuditEntry or hint is Notice:
            return self.queued(hint, number)
        if limit == TEAMS and isinstance(made, str):
            return self._teams[number]
        if limit == TEAMS and "team" in getattr(type(made), "model_fields", {}):
            return made.model_copy(update={"team": self._teams[number]})
        if limit == ISLANDS and isinstance(made, BaseModel):
            return made.model_copy(update={"name": self._islands[number]})
        return made

    def queued(self, hint: type[BaseModel], number: int) -> Any:
        """Return an entry as commands and breaches make it, with long texts."""
        if hint is AuditEntry:
            return AuditEntry(
                key=f"r/{number:06d}",
                cluster="c",
                rollout="r",
                at=NOON,
                kind=AuditKind.COMMAND,
                actor=self.words(200),
                text=self.words(200),
                reason=self.words(2000),
            )
        return Notice(
            key=f"r/n/{number:06d}",
            kind=NoticeKind.HELD,
            cluster="c",
            audience=self.words(100),
            owner="tpm",
            detail=self.words(2000),
        )


def _is_model(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, BaseModel)


async def sent(value: BaseModel) -> int:
    """Bytes of the payload."""
    (payload,) = await data_converter.encode([value])
    return payload.ByteSize()


_MANY = [f"team-{number:05d}" for number in range(MOST_QUOTAS)]
"""Regular names: they compress."""
_LONG = [b64encode(random.Random(number).randbytes(150)).decode() for number in range(300)]


@pytest.mark.parametrize(
    ("teams", "islands", "few"),
    [
        pytest.param(_MANY, 20, 1, id="as many quotas as may be", marks=pytest.mark.nightly),
        pytest.param(_LONG, 100, 4, id="long names that do not compress"),
    ],
)
async def test_a_rollout_with_every_list_full_continues_as_new(teams: list[str], islands: int, few: int) -> None:
    full = Full(teams, islands, few)
    state = full.model(Rollout)
    assert not full.missing, f"no limit is known of {', '.join(sorted(full.missing))}: add one, and its row in LIMITS"
    assert len(state.model_dump_json()) > 2 * MOST_BYTES, "the queues alone are larger than a payload may be"
    carried = fit_rollout(state, NOON)
    size = await sent(
        RolloutInput(launch=LaunchRequest(cluster="c", rollout="r", owner="o"), runs=1).model_copy(
            update={"state": carried}
        )
    )
    print(f"\n{len(teams)} quotas: {size:,} bytes of {MOST_BYTES:,}")
    assert size < MOST_BYTES
    assert carried.post.outbox[:1] == state.post.outbox[:1]
    assert [e.text.split()[0].replace(",", "").isdigit() for e in carried.post.outbox[-2:]] == [True, True]
    assert "left out" in carried.post.outbox[-1].text
    mended = ("post", "seen", "looked_at", "look_asked", "stay")
    kept = {name: getattr(state, name) for name in mended}
    assert carried.but(**kept) == state  # what a look brings back may be left out, and nothing else


async def test_a_fleet_rollout_and_a_request_with_every_list_full_continue_as_new() -> None:
    full = Full(["a"], 1)
    fleet = full.model(FleetRollout)
    request = full.model(RequestState)
    assert not full.missing, f"no limit is known of {', '.join(sorted(full.missing))}: add one, and its row in LIMITS"
    carried = fleet.fit(NOON)
    launch = FleetLaunch(fleet="f", owner="o")
    assert await sent(FleetInput(launch=launch).model_copy(update={"state": carried})) < MOST_BYTES
    assert "left out" in carried.outbox[-1].text
    assert await sent(RequestInput.model_construct(ask=request.ask, state=request)) < MOST_BYTES


def test_what_fits_is_left_as_it_is() -> None:
    full = Full(["a", "b"], 1)
    state = full.model(Rollout)
    small = state.but(post=state.post.but(outbox=state.post.outbox[:20], mail=state.post.mail[:20]))
    assert fit_rollout(small, NOON) is small


def test_a_rollout_carries_the_windows_that_matter_next() -> None:
    def window(begins: int, lasts: int, reason: str = "power") -> Window:
        starts = NOON + timedelta(hours=begins)
        return Window(kind=WindowKind.SEV, starts=starts, ends=starts + timedelta(hours=lasts), reason=reason)

    under_way, to_come = [window(-1, n + 2) for n in range(150)], [window(n + 1, 1) for n in range(3000)]
    assert set(nearest((*to_come, *under_way), NOON)) == {*under_way, *to_come[:50]}
    assert nearest((*to_come[:3], under_way[0]), NOON) == (*to_come[:3], under_way[0])
    long = [window(n, 5, "x" * 500) for n in range(3000)]
    carried = nearest(long, NOON)
    assert carried == tuple(long[: len(carried)])
    assert 60_000 < sum(len(w.model_dump_json()) for w in carried) <= 65_536


def test_a_grant_beyond_those_that_a_rollout_carries_is_refused() -> None:
    world = World().start()
    world.until(Stage.MONITORED)
    order = GrantOrder(request="one-more", team="a", gpus=1)
    full = world.r.but(grants={f"r-{n}": {"a": 1} for n in range(MOST_GRANTS)})
    told = granting.answer_to(granting.take_order(full, order), order)
    assert told is not None
    assert told.outcome is GrantOutcome.NO
    assert (
        told.said
        == f"c1 already has {MOST_GRANTS:,} grants, the most that a rollout can carry: launch a new rollout first"
    )
    other = granting.answer_to(granting.take_order(world.r, order), order)
    assert other is None or "grants already" not in other.said
