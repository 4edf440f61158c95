"""The class of fault that hurts most: a number on the screen that is not what the ledger says.

While a story runs, every number in status, burndown, report and flex is held against plain SQL at that moment. The
expected sentences are built here, from the rows and docs/design.md's words; nothing of the product computes them.
"""

from __future__ import annotations

import asyncio
import html
import io
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType
from temporalio.client import Client

from cli.pages.haircut import page as page_of_haircut
from cli.pages.report import page as report_page
from client.weekly_report import weekly
from models.fleet.state import MemberState
from models.planning.fleet_haircut import haircut
from models.reports.weekly import WEEK
from models.rollout.stages import Stage
from tests.e2e.world import World, cluster, eventually, fresh, team, worked_case, world_of
from views.burndown import burndown_parts
from views.fleet_rollout import status_parts as fleet_status_parts
from views.flex import cluster_parts, fleet_parts
from views.overview import overview_parts
from views.report import markdown
from views.status import status_parts

HOUR = timedelta(hours=1)
_SETTLES = 15.0
"""Seconds within which a look, a tally and Temporal's list have followed what was written."""


@pytest.fixture
async def world(temporal: Client, sqlite_ledger_url: str, tmp_path: Path) -> AsyncIterator[World]:
    """Yield a world with a tally each half second."""
    async with world_of(temporal, sqlite_ledger_url, tmp_path, tally_seconds=0.5) as found:
        yield found


@dataclass(frozen=True)
class Facts:
    """One cluster of one island, without a tree or blocks, by SQL. Units: whole GPUs."""

    quotas: dict[str, int]
    scheduled: dict[str, int]
    total: int
    healthy: int
    published: int | None

    @property
    def promised(self) -> int:
        return sum(self.quotas.values())

    @property
    def backed(self) -> int:
        return min(self.promised, self.healthy)

    @property
    def phantom(self) -> int:
        return self.promised - self.backed

    @property
    def surplus(self) -> int:
        return self.healthy - self.backed

    @property
    def in_quota(self) -> int:
        return sum(min(gpus, self.scheduled.get(team, gpus)) for team, gpus in self.quotas.items())

    @property
    def unused(self) -> int:
        return max(0, self.healthy - self.in_quota - self.surplus)

    @property
    def used(self) -> int:
        return sum(max(0, self.scheduled.get(team, 0) - gpus) for team, gpus in self.quotas.items())

    @property
    def flex(self) -> int:
        return self.surplus + self.unused

    @property
    def free(self) -> int:
        return max(0, self.flex - self.used)


def facts(world: World, name: str) -> Facts:
    sql = world.sql
    ((total, healthy),) = sql.rows(
        "SELECT total_gpus, healthy_gpus FROM health_samples WHERE cluster = ? ORDER BY at DESC LIMIT 1", name
    )
    return Facts(
        quotas=dict(sql.rows("SELECT team, gpus FROM quotas WHERE cluster = ?", name)),
        scheduled=dict(
            sql.rows(
                "SELECT team, scheduled_gpus FROM usage_samples u WHERE cluster = ? AND at = "
                "(SELECT max(at) FROM usage_samples WHERE cluster = u.cluster AND team = u.team)",
                name,
            )
        ),
        total=total,
        healthy=healthy,
        published=sql.one("SELECT flex_gpus FROM clusters WHERE name = ?", name),
    )


def text(parts: Iterable[RenderableType]) -> str:
    """Return the text that a person reads, with single spaces, one of them at the end of each line."""
    console = Console(file=io.StringIO(), width=400, color_system=None)
    for part in parts:
        console.print(part)
    return re.sub(r" +", " ", console.file.getvalue().replace("\n", " \n"))  # type: ignore[attr-defined]


async def comes_true(said: Callable[[], Awaitable[str]], expected: Callable[[], list[str]]) -> None:
    """Check that all that is expected is shown; ask again if something has moved, so that both are of one moment."""
    ends = time.monotonic() + _SETTLES
    while True:
        before, shown, after = expected(), await said(), expected()
        missing = [sentence for sentence in after if sentence not in shown]
        if before == after and not missing:
            return
        assert time.monotonic() < ends, f"not said: {missing}\n{shown}"
        await asyncio.sleep(0.2)


def status_says(seen: Facts, would: int | None) -> list[str]:
    promised = f"{seen.promised} promised, {seen.backed} backed, {seen.phantom} phantom; "
    promised += f"surplus {seen.surplus}, flex {seen.flex}"
    promised += f" ({seen.unused} of it unused inside quotas)" if seen.unused else ""
    said = [
        f"health {seen.healthy} healthy of {seen.total}, as of ",
        f"\nnow {promised}" if would is None else promised,
    ]
    if would is not None:
        backed = min(would, seen.healthy)
        backing = f"{backed} backed, {would - backed} phantom; surplus {seen.healthy - backed}, flex "
        said.append(f"\nwould be {would} promised, {backing}")
    if seen.published is not None:
        said.append(f"\npublished {seen.published} of the surplus")
    if len(seen.quotas) == 1 and would is None:
        said += [f" {gpus} {planned} {seen.backed} " for gpus, planned in [(seen.promised, min(seen.promised, 306))]]
    return said


def flex_says(seen: Facts) -> list[str]:
    return [
        f": {seen.healthy} of {seen.total} GPUs healthy, ",
        f"In quota: {seen.promised} promised, {seen.backed} backed, {seen.in_quota} used",
        f"Flex: {seen.flex} ({seen.surplus} outside any quota, {seen.unused} unused inside quotas); ",
        f"; {seen.flex - seen.free} used, {seen.free} free now.",
    ]


def in_the_fleet(name: str, seen: Facts) -> str:
    block = f"at most {seen.free}" if seen.free else "0"
    numbers = f"{seen.healthy}/{seen.total} {seen.promised} {seen.in_quota} {seen.flex} {seen.used} {seen.free} {block}"
    return f"{name} {numbers}"


def tallied(world: World) -> tuple[str, int, int, int, int]:
    """The last tally of each cluster: when the newest was read; clusters, promised, healthy, phantom."""
    ((at, *sums),) = world.sql.rows(
        "SELECT max(seen_at), count(*), sum(assigned_gpus), sum(healthy_gpus), sum(assigned_gpus - backed_gpus) "
        "FROM tallies t WHERE at = (SELECT max(at) FROM tallies WHERE cluster = t.cluster)"
    )
    clusters, promised, healthy, phantom = sums
    return str(at), clusters, promised, healthy, phantom


async def burndown(world: World) -> str:
    now = datetime.now(UTC)
    curve = await world.tpm.tallies("", [now], 3 * HOUR)
    return text(burndown_parts(curve.points, "", curve.began, now - HOUR))


async def report(world: World) -> str:
    """The status by the week as Markdown, and what its page says."""
    now = datetime.now(UTC)
    week = await weekly(world.tpm, now - WEEK, now, [now], 3 * HOUR, live=True)
    return markdown(week) + read(report_page(week))


def read(page: str) -> str:
    """Return the page's text without plots and tags, with single spaces."""
    plain = re.sub(r"<(style|svg)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", plain)))


async def haircut_page(world: World) -> str:
    fleet = (await world.tpm.plannable())[0]
    return read(page_of_haircut(haircut(fleet, (Fraction(15, 100),)), 0))


def cuts(seen: Facts) -> tuple[int, int]:
    """Return the cut by a buffer of 15 % of one island without a tree, nodes of 8, and its phantom part."""
    ceiling = min(seen.total * 85 // 100, max(0, seen.healthy - 8))
    cut = max(0, seen.promised - ceiling)
    return cut, min(cut, seen.phantom)


async def numbers_agree(
    world: World, names: list[str], would: dict[str, int], monitored: int, wave: str = "busy"
) -> None:
    """Everything that is shown of these clusters, which are all that this ledger has. `wave`: of every rollout."""
    for name in names:
        rollout = world.sql.rows("SELECT 1 FROM clusters WHERE name = ? AND open_rollout IS NOT NULL", name)

        async def one_status(name: str = name) -> str:
            return text(status_parts(await world.tpm.status(name)))

        async def one_flex(name: str = name) -> str:
            return text(cluster_parts((await world.tpm.flex(name))[0], []))

        if rollout:
            await comes_true(one_status, lambda name=name: status_says(facts(world, name), would.get(name)))  # type: ignore[misc]
        await comes_true(one_flex, lambda name=name: flex_says(facts(world, name)))  # type: ignore[misc]

    async def all_flex() -> str:
        return text(fleet_parts(await world.tpm.flex(), []))

    def of_all_flex() -> list[str]:
        every = [facts(world, name) for name in names]
        flex, free = (sum(getattr(f, what) for f in every) for what in ("flex", "free"))
        summary = f"{len(names):,} clusters: {flex:,} GPUs of flex, {flex - free:,} used, {free:,} free now."
        return [*(in_the_fleet(name, f) for name, f in zip(names, every, strict=True)), summary]

    await comes_true(all_flex, of_all_flex)

    async def overview() -> str:
        rows = [r for r in await world.tpm.overview() if r.cluster in names and r.open]
        return text(overview_parts(rows, datetime.now(UTC), all_lines=True))

    def of_overview() -> list[str]:
        rows = world.sql.rows(
            "SELECT c.name, r.stage, r.shadow FROM clusters c JOIN rollouts r ON r.id = c.open_rollout"
        )
        said = []
        for name, stage, shadow in rows:
            seen = facts(world, name)
            meant = f" {max(0, would[name] - seen.healthy)}" if shadow else " -"
            beside = meant if would else ""  # a column that stands where there is a shadow
            said.append(f"{name} {stage}{' (shadow)' * bool(shadow)} {wave} tpm {seen.phantom}{beside} 20")
        return said

    await comes_true(overview, of_overview)

    def of_tallies() -> list[str]:
        at, clusters, promised, healthy, phantom = tallied(world)
        real = [facts(world, name) for name in names]
        # The tallies that are told are those of this moment: they have followed.
        assert (clusters, len(at)) == (len(names), 27)
        followed = (promised, healthy, phantom) == tuple(
            sum(getattr(f, what) for f in real) for what in ("promised", "healthy", "phantom")
        )
        had = f"{phantom:,} of {promised:,} promised GPUs in the fleet had no healthy GPU behind"
        return [
            had if followed else "the tallies have not followed yet",
            f" {clusters} {promised} {healthy} {phantom} ",
        ]

    await comes_true(lambda: burndown(world), of_tallies)

    def of_report() -> list[str]:
        _, clusters, promised, _, phantom = tallied(world)
        really = world.sql.one(
            "SELECT count(*) FROM clusters c JOIN rollouts r ON r.id = c.open_rollout "
            "WHERE r.stage = 'monitored' AND NOT r.shadow"
        )
        assert really == monitored
        were = "was" if phantom == 1 else "were"
        return [
            f"{really} of {clusters} clusters monitored",
            f"{phantom:,} of {promised:,} promised GPUs {were} phantom on ",
            f"- **{really}** of {clusters} clusters monitored",
            f"- **{phantom:,}** phantom GPUs, read ",
            f" {really} of {clusters} clusters monitored",
            f" {phantom:,} phantom GPUs, read ",
            *(["1 shadow rollout rehearses"] if would else []),
        ]

    await comes_true(lambda: report(world), of_report)

    def of_haircut() -> list[str]:
        every = [facts(world, name) for name in names]
        cut, lost = (sum(part) for part in zip(*map(cuts, every), strict=True))
        promised, phantom = sum(f.promised for f in every), sum(f.phantom for f in every)
        have = "has" if lost == 1 else "have"
        said = [f" {phantom:,} GPU"]
        if cut:
            are = "is" if cut == 1 else "are"
            said.append(f"{cut:,} of {promised:,} promised GPUs {are} cut: {lost:,} {have} no healthy GPU behind")
        return said

    await comes_true(lambda: haircut_page(world), of_haircut)


def told(world: World) -> list[dict[str, Any]]:
    lines = (world.home / "notices.jsonl").read_text().splitlines()
    return [json.loads(line)["notice"] for line in lines]


WRITES = {"buffered": "set_soft", "rolled_back": "restore"}


def notices_agree(world: World) -> int:
    """Check that each notice of a write has the values of the ledger's receipt; return the number of notices."""
    written: dict[tuple[str, str, str], list[tuple[int, int]]] = {}
    for name, effect, body in world.sql.rows("SELECT cluster, kind, receipt FROM receipts ORDER BY rollout, counter"):
        receipt = json.loads(body)
        for kind in (kind for kind, of in WRITES.items() if of == effect):
            for one, after in receipt["after"].items():
                written.setdefault((name, kind, one), []).append((receipt["before"].get(one, after), after))
    seen = 0
    for notice in told(world):
        at = (notice["cluster"], notice["kind"], notice["audience"])
        if notice["kind"] in WRITES and not notice["shadow"] and notice["audience"] != notice["owner"]:
            assert (notice["before_gpus"], notice["after_gpus"]) in written[at], notice
            state = facts(world, notice["cluster"])
            assert notice["backing_gpus"] is None or notice["backing_gpus"] <= min(notice["after_gpus"], state.total)
            seen += 1
    return seen


@pytest.mark.nightly
async def test_every_number_is_what_the_ledger_says_at_that_moment(world: World) -> None:
    """A real rollout, a shadow beside it, and a cluster that nobody rolls out, with jobs beyond a quota."""
    real, shadow, still = fresh("numbers"), fresh("shade"), fresh("still")
    quotas = [team("train", 100, busy=110), team("evals", 40, busy=5)]
    await world.fleet(worked_case(real), worked_case(shadow), cluster(still, {"main": (160, 133)}, quotas))
    names, would = [real, shadow, still], {shadow: 306}
    await world.start(shadow, shadow=True)
    await world.until(shadow, Stage.MONITORED)
    await world.launch(real)
    await numbers_agree(world, names, would, monitored=0)

    await world.approve(real)
    await world.until(real, Stage.MONITORED)
    assert facts(world, real).promised == 306
    await world.archived(real)
    await numbers_agree(world, names, would, monitored=1)

    first = world.sql.one("SELECT min(at) FROM health_samples WHERE cluster = ?", real)
    (notice,) = [n for n in told(world) if n["kind"] == "planned" and n["cluster"] == real]
    assert (notice["phantom_gpus"], notice["phantom_since"]) == (345 - 319, {"at": first, "or_earlier": True})

    await world.healthy(still, main=(160, 141))
    await world.healthy(real, main=(361, 300))
    await world.until(real, lambda s: s.stage is Stage.ROLLED_BACK or s.assigned_gpus == 300)
    await world.archived(real)
    await world.healthy(real, main=(361, 330))
    await world.until(real, lambda s: s.stage is Stage.MONITORED and s.attempt > 1)
    await world.archived(real)
    await numbers_agree(world, names, would, monitored=1)
    assert notices_agree(world) == 3, "buffered, rolled back, and buffered again"


class Forty:
    """A fleet rollout of forty clusters, every one of another size, health and quota. Units: whole GPUs."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.names = sorted(fresh("c") for _ in range(40))
        self.total = {name: 80 + 4 * n for n, name in enumerate(self.names)}
        self.healthy = {name: total - n % 9 for n, (name, total) in enumerate(self.total.items())}
        self.before = {name: total - 4 - n % 5 for n, (name, total) in enumerate(self.total.items())}
        self.after = {
            name: min(before, self.total[name] * 85 // 100, self.healthy[name] - 8)
            for name, before in self.before.items()
        }

    async def begin(self) -> None:
        """Import, launch and approve. Each team leaves 18 or 30 unscheduled: no cut goes deeper."""
        await self.world.fleet(
            *(
                cluster(
                    name,
                    {"main": (self.total[name], self.healthy[name])},
                    [team("train", quota - 30, busy=quota - 60), team("evals", 30, busy=12)],
                    breach_after="2s",
                )
                for name, quota in self.before.items()
            )
        )
        await self.world.start_fleet(fresh("fleet"), {"parallel": 5, "max_failed": "0.9", "budget_per_hour": 20_000})

    def stages(self) -> dict[str, str]:
        return dict(self.world.sql.rows("SELECT cluster, stage FROM rollouts"))

    def at(self, *stages: str) -> list[str]:
        """Clusters whose rollout stands there."""
        return sorted(name for name, stage in self.stages().items() if stage in stages)

    async def until(self, true: Callable[[], bool], what: str, seconds: float) -> None:
        """Wait by SQL: forty statuses many times a second would use most of the machine."""
        try:
            await eventually(true, what, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.stages()}") from None

    async def agree(self) -> None:
        """Every number that is shown, at a moment at which nothing is under way."""
        done, fell = self.at("monitored"), self.at("rolled_back")
        await numbers_agree(self.world, self.names, {}, monitored=len(done), wave="unscheduled")
        for name in done:
            assert facts(self.world, name).promised == self.after[name]
        for name in set(self.names) - {*done, *fell}:
            assert facts(self.world, name).promised == self.before[name]

        async def status() -> str:
            found = await self.world.tpm.fleet_status()
            return text(fleet_status_parts(found, found.members))

        await comes_true(status, self.fleet_says)

    def fleet_says(self) -> list[str]:
        """A line for each cluster, one for the wave that they all are in, and what is left of the budget."""
        stages = self.stages()
        cut = {name: self.before[name] - self.after[name] for name in self.names}
        state = {"monitored": "done", "rolled_back": "failed"}
        said = [f"{name} 2 unscheduled {state[stage]} {stage} {cut[name]} 20" for name, stage in stages.items()]
        said += [f"{name} 2 unscheduled waiting - {cut[name]} - " for name in self.names if name not in stages]
        counts = (40 - len(stages), 0, *(list(stages.values()).count(stage) for stage in state))
        shown = " ".join(str(count or "-") for count in counts)
        said.append(f"\n2 unscheduled 40 {shown} - - {sum(cut.values())}")
        if set(stages) == set(self.names):
            return [*said, "\nended 40 of 40 clusters are monitored", "These figures are from its end, 20"]
        started = sum(cut[name] for name in stages)
        return [*said, f" {20_000 - started:,} GPUs left for this hour, {4096 - started:,} for this day"]


@pytest.mark.nightly
async def test_of_a_fleet_of_forty_too(temporal: Client, sqlite_ledger_url: str, tmp_path: Path) -> None:
    """Held half-way, with three clusters fallen (more would be an implausible source), and at its end."""
    # Slower than in other stories: forty tallies each half second would be most of the machine.
    async with world_of(temporal, sqlite_ledger_url, tmp_path, watch_seconds=1.0, tally_seconds=3.0) as world:
        await played(Forty(world))


async def played(forty: Forty) -> None:
    world = forty.world
    await forty.begin()
    await forty.until(lambda: len(forty.at("monitored")) >= 12, "a dozen monitored", 120)
    await world.say_fleet("pause")
    # Not by the stages: one that was picked just before it has none yet.
    await world.until_fleet(lambda s: {m.state for m in s.members} == {MemberState.DONE, MemberState.WAITING}, 60)
    assert world.sql.one("SELECT sum(gpus) FROM moves") == sum(
        forty.before[name] - forty.after[name] for name in forty.stages()
    )
    await forty.agree()

    fallen = forty.at("monitored")[:3]
    for name in fallen:
        await world.healthy(name, main=(forty.total[name], forty.total[name] * 82 // 100))
    await forty.until(lambda: forty.at("rolled_back") == fallen, "three rolled back", 60)
    for name in fallen:
        assert facts(world, name).promised == facts(world, name).healthy
    await forty.agree()

    for name in fallen:
        await world.healthy(name, main=(forty.total[name], forty.healthy[name]))
    await world.say_fleet("resume")
    await forty.until(lambda: len(forty.at("monitored")) == 40, "all forty monitored", 240)
    await forty.agree()
    assert world.sql.one("SELECT sum(gpus) FROM quotas") == sum(forty.after.values())
    assert notices_agree(world) == 40 * 2 + 3 * 2 * 2, "buffered by team; of three also rolled back and buffered again"
