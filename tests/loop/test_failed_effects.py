"""Every effect fails in every way, on real ledgers, through the real workflow.

The cases of one database are rollouts of one world that run beside each other, each on a cluster of its own; a
test looks at one of them. At the end of each the world is what a person expects of it, to the last row: fully
changed, or exactly as before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
import pytest_asyncio
import sqlalchemy as sa
from temporalio.client import Client

from activities.adapters.ledger.database import upgrade
from models.errors import Conflict, Refusal
from models.rollout.effect_table import INVERSE
from models.rollout.effects import EffectKind, Receipt
from models.rollout.stages import Command, Stage
from tests.e2e.faults import Fault, Faulty, FaultyQuotas, Tally, Way, away, given_up, refused
from tests.e2e.world import World, cluster, eventually, fresh, team, world_of
from tests.loop.temporal import in_memory
from tests.tried import SAID
from tests.waiting import async_attempts

DATABASES = ("sqlite", "postgresql")
AT_A_TIME = 16
PATIENT = 120.0
K = EffectKind
FORWARD = (K.RESERVE, K.SET_SOFT, K.HARDEN, K.FOLLOW)
INVERSES = tuple(INVERSE[kind] for kind in reversed(FORWARD))
UNDOES = {inverse: forward for forward, inverse in INVERSE.items()}
STAGES = (Stage.BUFFERED, Stage.ENFORCED, Stage.MONITORED)
STEP = {K.RESERVE: 0, K.SET_SOFT: 0, K.HARDEN: 1, K.FOLLOW: 2}
"""How many stages have been reached when a forward effect is made."""


@dataclass(frozen=True)
class Mode:
    """`for_good`: no retry of the call heals it, so that the step is undone or the undo is stuck."""

    name: str
    way: Way
    for_good: bool = False
    beside: bool = False


MODES = (
    Mode("never-landed-for-a-while", Way.NEVER_LANDED),
    Mode("never-landed-for-good", Way.NEVER_LANDED, for_good=True),
    Mode("answer-lost-once", Way.ANSWER_LOST),
    Mode("answer-lost-for-good", Way.ANSWER_LOST, for_good=True),
    Mode("twice", Way.TWICE),
    Mode("twice-at-once", Way.AT_ONCE),
    Mode("late-after-its-retry", Way.LATE),
    Mode("late-after-the-undo", Way.LATE, for_good=True),
    Mode("late-beside-the-next-call", Way.LATE, for_good=True, beside=True),
)


@dataclass(frozen=True)
class Case:
    kind: EffectKind
    mode: Mode
    breach: bool = False
    """The inverse is one of a breach rollback, not of a person's."""

    def __str__(self) -> str:
        return f"{self.kind}-{self.mode.name}{'-in-a-breach' if self.breach else ''}"

    @property
    def forward(self) -> bool:
        return self.kind in FORWARD

    def fault(self) -> Fault:
        failure = refused if self.mode.for_good else away
        if self.mode.for_good and self.forward and self.mode.way is not Way.NEVER_LANDED:
            failure = given_up
        return Fault(self.mode.way, failure, None if self.lasts else self.meant, self.mode.beside)

    @property
    def lasts(self) -> bool:
        """An inverse or a close that is refused stays so until a person mends the cause."""
        return self.mode.for_good and not self.forward and self.mode.way is Way.NEVER_LANDED

    @property
    def meant(self) -> int:
        """Return how many calls meet the fault."""
        if self.mode.way is not Way.NEVER_LANDED or (self.forward and self.mode.for_good) or self.kind is K.CLOSE:
            return 1
        return 2


CASES = (
    *(Case(kind, mode) for kind in FORWARD for mode in MODES),
    *(Case(kind, mode, breach) for kind in INVERSES for mode in MODES for breach in (False, True)),
    *(Case(K.CLOSE, mode) for mode in MODES if not mode.beside),  # no call comes after it
)


def nightly(item: pytest.Item) -> bool:
    """Return whether the case is for the night: by day one database, and faults that the first retry heals. Lasting
    faults are in tests/e2e/test_stuck.py too; a breach and each later retry take seconds."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    if "case" not in params:
        return "shadow" in item.name and params.get("database_url") == "postgresql"
    case = params["case"]
    slow = case.breach or (case.mode.way is Way.NEVER_LANDED and case.kind is not K.CLOSE)
    return bool(params["database_url"] == "postgresql" or case.mode.for_good or slow)


# --- the world, worked out by hand -----------------------------------------------------------
#
# T = 240, H = 232, so C = min(204, 224) = 204 and 36 go: of 40 unscheduled GPUs a and org-1 have 20 each, so 18
# each, and org gives what org-1 gives. With H = 190 every leaf is short; 50 go from the baseline: all 40
# unscheduled, and 10 busy ones by 70 (a above its minimum), 16 (b above its block), 10 and 30: 6, 1, 1 and 2.

ISLANDS = {"X": (120, 116), "Y": (120, 116)}
FAILED = {"X": (120, 100), "Y": (120, 90)}
BEFORE = {"a": 100, "b": 80, "org": 60, "org-1": 30, "org-2": 30}
CUT = {"a": 82, "b": 80, "org": 42, "org-1": 12, "org-2": 30}
SURPLUS = 28
"""Healthy GPUs beside the cut quotas."""
BACKED = {"a": 74, "b": 79, "org": 37, "org-1": 9, "org-2": 28}
SOFT_BEFORE = {"a", "org-2"}


def spec(name: str) -> dict[str, Any]:
    quotas = [
        team("a", 100, busy=80, minimum_gpus=10),
        team("b", 80, protected_blocks=[64], islands=["X"]),
        {"team": "org", "gpus": 60},
        team("org-1", 30, busy=10, parent="org"),
        team("org-2", 30, parent="org"),
    ]
    waits = dict.fromkeys(("notice", "soak_buffered", "soak_enforced"), "0s")
    policy = {**waits, "breach_after": "6s", "recover_after": "1h", "max_breaching_clusters": 1000}
    return cluster(name, ISLANDS, quotas, **policy)


@dataclass(frozen=True)
class Script:
    """One rollout and the cases it plays. A fault that a retry heals is nothing to the workflow, so that one
    rollout may meet it at every effect; what fails for good is met alone."""

    name: str
    cases: tuple[Case, ...]

    @property
    def first(self) -> Case:
        return self.cases[0]

    @property
    def last(self) -> Case:
        return self.cases[-1]


def scripts() -> Iterator[Script]:
    for mode in MODES:
        here = [case for case in CASES if case.mode == mode]
        by_person = [case for case in here if case.kind is not K.CLOSE and not case.breach]
        by_breach = [case for case in here if case.breach]
        if mode.for_good:
            for kind in FORWARD:
                step = [case for case in by_person if case.kind in (kind, INVERSE[kind])]
                yield Script(f"{kind}-{mode.name}", tuple(step))
            yield from (Script(str(case), (case,)) for case in by_breach)
        else:
            yield Script(f"all-{mode.name}", tuple(by_person))
            yield Script(f"all-{mode.name}-in-a-breach", tuple(by_breach))
        yield from (Script(str(case), (case,)) for case in here if case.kind is K.CLOSE)


@dataclass
class Story:
    """A script as it is played: what was asked for, what was seen on the way, what the ledger must hold."""

    world: World
    quotas: FaultyQuotas
    script: Script
    path: list[Stage] = field(default_factory=list)
    calls: list[tuple[EffectKind, bool | Fault]] = field(default_factory=list)
    """The effects of this rollout in the order of their fences, and whether each landed; a fault knows."""
    well: set[Case] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.sql = self.world.sql
        self.name = self.script.name
        self.rollout = f"{self.name}/1"
        marks = ",".join("?" * len(SOFT_BEFORE))
        self.sql.run(
            f"UPDATE quotas SET mode = 'soft' WHERE cluster = ? AND team IN ({marks})", self.name, *SOFT_BEFORE
        )
        self.before = self.sql.quotas(self.name)
        self.book = self.sql.row("clusters", name=self.name)
        assert self.sql.gpus(self.name) == BEFORE
        self.faults = {case: case.fault() for case in self.script.cases}

    # --- on the way -------------------------------------------------------------------------

    def inject(self, *, forward: bool) -> None:
        """Inverses only once they are asked for: the undo of a failed step goes well."""
        for case, fault in self.faults.items():
            if case.forward == forward:
                self.quotas.inject(self.name, case.kind, fault)

    async def launch(self, number: int = 1, **more: Any) -> None:
        answer = await self.world.launch(self.name, f"{self.name}/{number}", **more)
        assert answer.plan is not None
        await self.world.say(self.name, Command.APPROVE, plan_hash=answer.plan.hash)

    async def goes(self, *stages: Stage) -> None:
        """These are the next stages, and the last of them stands in the archive and in the registry."""
        self.path += stages
        seen: list[str] = []
        async for _ in async_attempts(f"{self.name} goes {' -> '.join(self.path)}", PATIENT):
            counted = "SELECT COUNT(*) FROM audit WHERE cluster = ? AND entry LIKE '%%\"transition\"%%'"
            if self.sql.one(counted, self.name) != len(seen):
                seen = self.sql.transitions(self.name)
            noted = self.sql.one("SELECT stage FROM rollouts WHERE id = ?", self.rollout)
            if seen == self.path and noted == self.path[-1]:
                return
            if seen != self.path[: len(seen)]:
                told = [f"{e['text']} {e['reason']}" for e in self.sql.archive(self.name)]
                raise AssertionError("\n".join([f"{self.name} does not go {' -> '.join(self.path)}:", *told]))

    async def say(self, command: Command, *stages: Stage) -> None:
        await self.world.say(self.name, command)
        await self.goes(*stages)

    def called(self, *kinds: EffectKind, failing: Case | None = None) -> None:
        """These calls were made; the fault of `failing` met one of them."""
        for kind in kinds:
            met = failing is not None and failing.kind is kind
            self.calls.append((kind, self.faults[failing] if met and failing else True))

    # --- what must be so --------------------------------------------------------------------

    def receipts(self) -> list[tuple[int, str]]:
        return self.sql.rows("SELECT counter, kind FROM receipts WHERE rollout = ? ORDER BY counter", self.rollout)

    def landed(self) -> None:
        """Check that each applied effect has one receipt, in the order of time, and that the book knows the last."""
        calls = [(kind, it.landed if isinstance(it, Fault) else it) for kind, it in self.calls]
        expected = [(n, kind.value) for n, (kind, landed) in enumerate(calls, start=1) if landed]
        assert self.receipts() == expected
        rows = self.sql.rows("SELECT at FROM receipts WHERE rollout = ? ORDER BY counter", self.rollout)
        assert rows == sorted(rows)
        entries = [e for e in self.sql.archive(self.name) if e["rollout"] == self.rollout]
        archived = [e["data"]["fence"] for e in entries if "fence" in e["data"]]
        assert len(archived) == len(set(archived))
        assert set(archived) <= {n for n, _ in expected}

    def stands(
        self,
        values: dict[str, int],
        modes: dict[str, str],
        reserved: tuple[int, int, int] | None,
        *,
        follows: bool = False,
        ended: bool = False,
        completed: int | None = None,
    ) -> None:
        """Every quota and the cluster's row are exactly so. `reserved`: freed GPUs, limit, limit of island X."""
        assert self.sql.quotas(self.name) == [(q[0], values[q[0]], modes[q[0]], *q[3:]) for q in self.before]
        freed, limit, limit_of_x = reserved or (0, None, None)
        counter = max((n for n, _ in self.receipts()), default=0)
        assert self.sql.row("clusters", name=self.name) == self.book | {
            "open_rollout": None if ended else self.rollout,
            "last_counter": 0 if ended else counter,
            "reserved_gpus": freed,
            "reserve_limit": limit,
            "reserved_by": self.rollout if reserved else None,
            "follows_health": follows,
            "flex_gpus": SURPLUS if follows else None,
            "flex_band_gpus": 8 if follows else 0,
            "completed_rollouts": int(Stage.MONITORED in self.path) if completed is None else completed,
        }
        limits = self.sql.rows("SELECT islands, limit_gpus FROM reserve_limits WHERE cluster = ?", self.name)
        assert limits == ([("X", limit_of_x)] if reserved else [])
        self.landed()

    def as_before(self, *, ended: bool = False) -> None:
        modes = {t: "soft" if t in SOFT_BEFORE else "hard" for t in BEFORE}
        self.stands(BEFORE, modes, None, ended=ended)

    def fully_changed(self, **more: Any) -> None:
        self.stands(CUT, dict.fromkeys(CUT, "hard"), (36, 204, 80), follows=True, **more)

    def closed(self, **more: Any) -> None:
        """The values stay and nothing is reserved."""
        self.stands(CUT, dict.fromkeys(CUT, "hard"), None, ended=True, **more)

    def rolled_back_by_a_breach(self) -> None:
        self.stands(BACKED, dict.fromkeys(BACKED, "soft"), (50, 190, 79))

    async def deliver_late(self) -> None:
        """Deliver the late calls: each is refused, or gets its stored receipt, and no row changes."""
        for change in [change for fault in self.faults.values() for change in fault.kept]:
            before = self.rows()
            outcome = await asyncio.to_thread(self.quotas.deliver, change)
            assert self.rows() == before
            if max(self.receipts(), default=None) == (change.fence.counter, change.kind.value):
                assert isinstance(outcome, Receipt)
                assert outcome.model_dump(mode="json") == self.sql.receipt(self.rollout, change.fence.counter)
            else:
                assert isinstance(outcome, Conflict)

    def rows(self) -> list[list[tuple[Any, ...]]]:
        """Return all rows that an effect could have changed."""
        tables = {"quotas": "team", "reserve_limits": "islands", "receipts": "rollout, counter"}
        tables |= {"moves": "rollout, counter", "rollouts": "id"}
        found = [self.sql.rows("SELECT * FROM clusters WHERE name = ?", self.name)]
        return found + [
            self.sql.rows(f"SELECT * FROM {table} WHERE cluster = ? ORDER BY {order}", self.name)
            for table, order in tables.items()
        ]

    def met(self, *cases: Case) -> None:
        """Check that each fault was met as often as meant, and that unheard callers got the stored receipt."""
        for case in cases:
            mode, fault = case.mode, self.faults[case]
            assert fault.reached == case.meant
            assert len(fault.kept) == (mode.way is Way.LATE)
            unheard = mode.way in (Way.ANSWER_LOST, Way.TWICE, Way.AT_ONCE)
            assert len(fault.answers) == (unheard or mode.beside or (mode.way is Way.LATE and not mode.for_good))
            for answer in fault.answers:
                if isinstance(answer, Receipt):
                    assert answer.model_dump(mode="json") == self.sql.receipt(self.rollout, answer.fence.counter)
                else:
                    assert mode.beside
                    assert isinstance(answer, Conflict)
            self.well.add(case)

    # --- the stories ------------------------------------------------------------------------

    async def play(self) -> None:
        self.inject(forward=True)
        await self.launch()
        first, last = self.script.first, self.script.last
        if first.forward and first.mode.for_good:
            await self.a_step_is_undone(first)
            self.met(first)
            await self.say(Command.RETRY, Stage.PLANNED, *STAGES)
        else:
            await self.goes(*STAGES)
        self.called(*FORWARD)
        self.fully_changed()
        await self.deliver_late()
        self.met(*(case for case in self.script.cases if case.forward and case not in self.well))
        self.inject(forward=False)
        if last.kind is K.CLOSE:
            await self.closes(last)
        else:
            await self.is_rolled_back(last)
        ended = await self.world.ended(self.name)
        assert ended["stage"] == self.path[-1]
        assert self.sql.broken_links(self.name) == []
        self.met(*self.script.cases)

    async def a_step_is_undone(self, case: Case) -> None:
        await self.goes(*STAGES[: STEP[case.kind]], Stage.ROLLING_BACK, Stage.ROLLED_BACK)
        attempted = FORWARD[: FORWARD.index(case.kind) + 1]
        self.called(*attempted, failing=case)
        for kind in reversed(attempted):
            # The first restore expects what was there before, and finds what the lost call wrote.
            again = kind is case.kind is K.SET_SOFT and self.faults[case].landed
            self.called(*[INVERSE[kind]] * (2 if again else 1))
        self.as_before()
        await self.deliver_late()

    async def is_rolled_back(self, case: Case) -> None:
        if case.breach:
            await self.world.healthy(self.name, **FAILED)
            self.called(K.FOLLOW)  # the flex pool is empty at once, before it is a breach
        else:
            await self.world.say(self.name, Command.ROLLBACK)
        if case.mode.for_good:
            await self.is_stuck(case)
        else:
            await self.goes(Stage.ROLLING_BACK, Stage.ROLLED_BACK)
            self.called(*INVERSES)
        if case.breach:
            self.rolled_back_by_a_breach()
            await self.deliver_late()
            await self.say(Command.ABORT, Stage.ROLLING_BACK, Stage.ROLLED_BACK, Stage.ABORTED)
            self.called(K.RESTORE, K.RELEASE)
        else:
            self.as_before()
            await self.deliver_late()
            await self.say(Command.ABORT, Stage.ABORTED)
        self.as_before(ended=True)
        await self.deliver_late()

    async def is_stuck(self, case: Case) -> None:
        """The other inverses are still run; a retry fails as long as its cause stands, and then ends the undo."""
        await self.goes(Stage.ROLLING_BACK, Stage.STUCK)
        self.called(*INVERSES, failing=case)
        self.landed()
        (why,) = [e["text"] for e in self.sql.archive(self.name) if e["data"].get("after") == "stuck"]
        assert f"{UNDOES[case.kind]} is not undone: injected: not allowed" in why
        await eventually(lambda: ("stuck", "tpm") in self.world.notices(self.name), "the owner is called")
        # Softening takes away the baseline's modes, which had been restored meanwhile.
        again = (K.RESTORE,) if case.kind is K.SOFTEN and not case.breach else ()
        if case.mode.way is Way.NEVER_LANDED:
            await self.say(Command.RETRY, Stage.ROLLING_BACK, Stage.STUCK)
            self.calls.append((case.kind, False))
            self.called(*again)
            self.landed()
            self.faults[case].mend()
        await self.say(Command.RETRY, Stage.ROLLING_BACK, Stage.ROLLED_BACK)
        self.called(case.kind, *again)

    async def closes(self, case: Case) -> None:
        await self.say(Command.CLOSE, Stage.CLOSED)
        await self.world.ended(self.name)
        landed = not case.mode.for_good or self.faults[case].landed
        self.calls.append((K.CLOSE, landed))
        assert (("held", "tpm") in self.world.notices(self.name)) == case.mode.for_good
        if landed:
            self.closed()
        else:
            self.fully_changed(ended=True)
        await self.deliver_late()
        if not landed:
            await self.is_closed_by_the_next_rollout(case)

    async def is_closed_by_the_next_rollout(self, case: Case) -> None:
        """Check that the reservation of a lost `close` blocks the next launch until somebody takes it over."""
        with pytest.raises(Refusal, match=f"still has effects of rollout {self.rollout}"):
            await self.world.launch(self.name, f"{self.name}/2")
        assert (await self.world.ended(self.name))["stage"] == "aborted"
        self.faults[case].mend()
        self.rollout, self.calls = f"{self.name}/3", []
        await self.launch(3, adopt=True)
        await self.goes(*STAGES)
        self.called(*FORWARD)
        self.fully_changed(completed=2)
        await self.say(Command.CLOSE, Stage.CLOSED)
        self.called(K.CLOSE)
        self.closed(completed=2)


# --- playing them ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def database_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A ledger of this module's own: its rollouts run all at once."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('faults') / 'ledger.db'}"
    else:
        server = request.getfixturevalue("postgres_url")
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute("CREATE DATABASE faults")
        url = sa.make_url(server).set(database="faults").render_as_string(hide_password=False)
    upgrade(url)
    return url


@dataclass
class Played:
    """A world in which cases have been played."""

    world: World
    quotas: FaultyQuotas
    ends: dict[Case, BaseException | None]
    """None is well."""


SCRIPTS = tuple(scripts())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def played(
    database_url: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Played]:
    """Every case that was asked for, on this database."""
    asked = {
        item.callspec.params.get("case")
        for item in request.session.items
        if hasattr(item, "callspec") and database_url.startswith(item.callspec.params.get("database_url", "?"))
    }
    chosen = [script for script in SCRIPTS if asked & {*script.cases}]
    faulty = Faulty()
    found: dict[Case, BaseException | None] = {}
    limit = asyncio.Semaphore(AT_A_TIME)
    tally = Tally(database_url.partition(":")[0])

    async def play(world: World, script: Script) -> None:
        async with limit:
            story = Story(world, faulty.quotas, script)
            error: BaseException | None = None
            try:
                await story.play()
            except (Exception, pytest.fail.Exception) as failed:  # the latter is none of the former
                error = failed
            ends = {case: None if case in story.well else error for case in script.cases}
            found.update(ends)
            tally.take([str(case.kind) for case in ends], [case.mode.name for case in ends])
            tally.reached += sum(fault.reached for fault in story.faults.values())
            tally.lost += sum(end is not None for end in ends.values())

    home = tmp_path_factory.mktemp("home")
    async with world_of(in_memory(), database_url, home, faulty) as world:
        if chosen:
            await world.fleet(*(spec(script.name) for script in chosen))
        await asyncio.gather(*(play(world, script) for script in chosen))
        SAID[f"failed effects on {tally.database}"] = str(tally)
        yield Played(world, faulty.quotas, found)


async def test_what_could_not_be_written_is_not_launched(
    temporal: Client, sqlite_ledger_url: str, tmp_path: Path
) -> None:
    """The right to write is asked for at the launch, not days later, when the first write is due."""

    class Barred(FaultyQuotas):
        def barred_reason(self, cluster: str) -> str:
            return "the worker's user may not set limits"

    name = fresh("barred")
    async with world_of(temporal, sqlite_ledger_url, tmp_path, Barred) as world:
        await world.fleet(cluster(name, {"main": (361, 319)}, [team("research", 345, busy=310)]))
        with pytest.raises(
            Refusal, match=r"the worker's user may not set limits; a rehearsal .--shadow. needs no right to write"
        ):
            await world.launch(name)
        await world.start(name, rollout=f"{name}/2", shadow=True)
        await world.until(name, Stage.MONITORED)
        await world.say(name, Command.CLOSE)
        await world.ended(name)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("database_url", DATABASES, indirect=True)
@pytest.mark.parametrize("case", CASES, ids=str)
async def test_a_failed_effect_is_done_or_undone_to_the_last_row(case: Case, played: Played) -> None:
    error = played.ends[case]
    if error is not None:
        raise error


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("database_url", DATABASES, indirect=True)
async def test_a_shadow_rollout_under_faults_writes_nothing(played: Played) -> None:
    """Every rehearsal first gets no answer, and the answer to every write would be lost: none is asked for."""
    world, quotas = played.world, played.quotas
    name = fresh("shadow-faults")
    await world.fleet(spec(name))
    writes = {kind: Fault(Way.ANSWER_LOST, refused, times=None) for kind in EffectKind}
    for kind, fault in writes.items():
        quotas.inject(name, kind, fault)
    quotas.silence_rehearsals(name)
    rows, book = world.sql.dump(name), world.sql.row("clusters", name=name)

    def untouched(**more: Any) -> None:
        assert world.sql.dump(name) == rows
        assert world.sql.row("clusters", name=name) == book | more
        for table in ("receipts", "reserve_limits", "moves"):
            assert world.sql.rows(f"SELECT * FROM {table} WHERE cluster = ?", name) == []

    await world.start(name, shadow=True)
    await world.until(name, Stage.MONITORED)
    untouched(open_rollout=f"{name}/1")
    await world.say(name, Command.ROLLBACK)
    await world.until(name, Stage.ROLLED_BACK)
    untouched(open_rollout=f"{name}/1")
    await world.say(name, Command.ABORT)
    assert (await world.ended(name))["stage"] == "aborted"
    untouched()
    assert quotas.rehearsals_silenced[name] == len(FORWARD) + len(INVERSES)
    assert [fault.reached for fault in writes.values()] == [0] * len(EffectKind)
    assert world.sql.transitions(name) == [*STAGES, "rolling_back", "rolled_back", "aborted"]
    assert world.sql.broken_links(name) == []
