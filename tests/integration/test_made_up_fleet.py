"""The console's pictures tell one story: what one page of the made-up fleet counts, the others and the ledger do too.

benchmarks/console_scene.py makes it up. Here its pages are read as a browser reads them, and counted by plain SQL and
by the rules that the scene's module names.
"""

from __future__ import annotations

import html
import json
import re
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from benchmarks.console_fleet import console_on, scene_of, summary
from benchmarks.console_scene import CUT
from models.fleet.status import status_of
from web.settings import Address, FrontSettings

CLUSTERS = 60
WAITING, NONE, PILOTS = {0, 10, 20, 30, 40, 50}, {13, 38}, {4}
"""By the rules: every tenth waits, every 25th has no rollout, every hundredth is a pilot."""


class Pages:
    def __init__(self, http: httpx.AsyncClient, ledger: Path) -> None:
        self._http, self._ledger = http, ledger

    async def words(self, path: str) -> str:
        answer = await self._http.get(path, headers={"sec-fetch-site": "none"})
        main = answer.raise_for_status().text.partition("<main")[2]
        return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", main)).split())

    @contextmanager
    def sql(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self._ledger)
        yield connection
        connection.close()

    def one(self, query: str) -> int:
        with self.sql() as sql:
            return int(sql.execute(query).fetchone()[0])


@asynccontextmanager
async def pages_of(folder: Path, clusters: int) -> AsyncIterator[Pages]:
    settings = FrontSettings(socket=folder / "front.sock", listen=Address("127.0.0.1", 0))
    async with console_on(folder, clusters, settings):
        transport = httpx.AsyncHTTPTransport(uds=str(settings.socket))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as http:
            yield Pages(http, folder / "ledger.db")


@pytest.fixture(scope="module")
async def pages(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pages]:
    """Yield the pages of one fleet for all tests here: they only read."""
    async with pages_of(tmp_path_factory.mktemp("made-up"), CLUSTERS) as pages:
        yield pages


async def test_pages_of_the_made_up_fleet_and_its_ledger_count_the_same(pages: Pages) -> None:
    waiting, opened = len(WAITING), CLUSTERS - len(NONE)
    monitored = opened - waiting
    assert pages.one("SELECT count(*) FROM rollouts WHERE needs != ''") == waiting
    assert pages.one("SELECT count(*) FROM rollouts WHERE stage = 'monitored' AND fleet = 'fleet-1'") == monitored

    fleet = await pages.words("/")
    assert f"{waiting} need a person" in fleet
    assert f"{opened} open rollouts" in fleet
    assert "is running: wave 2 (unscheduled) waits for a person. Needs: 6 clusters that are under way wait" in fleet

    rollout = await pages.words("/rollout")
    # Of those monitored half by half: the even ones in the pilot and the first wave, the odd ones in the second.
    even = set(range(0, CLUSTERS, 2)) - WAITING - NONE - PILOTS
    odd = set(range(1, CLUSTERS, 2)) - NONE
    assert f"pilot {len(PILOTS)} - - {len(PILOTS)} - - - {CUT * len(PILOTS):,}" in rollout
    assert f"1 unallocated {len(even)} - - {len(even)} - - - {CUT * len(even):,}" in rollout
    # Of those that wait the one at risk cuts 110, the others 30 each: GPUs promised less 85 % of 1,024.
    cut = CUT * len(odd) + (980 - 870) + 5 * (900 - 870)
    assert f"2 unscheduled {len(odd) + waiting} - {waiting} {len(odd)} - - - {cut:,}" in rollout
    assert "3 idle 1 1 - - - - - 30" in rollout
    assert "4 busy 1 1 - - - - - 30" in rollout
    assert f"0 of {opened} rolled back; the fleet rollout stops above 10%" in rollout
    assert "1,024 GPUs an hour and 20,480 a day" in rollout
    assert f"all {CLUSTERS} clusters" in rollout

    leader = await pages.words("/leader")
    assert f"{monitored} of {CLUSTERS} clusters monitored" in leader
    assert f"{waiting} clusters and the fleet rollout are blocked." in leader
    with pages.sql() as sql:
        week = "julianday(json_extract(entry, '$.at')) > julianday('now', '-7 days')"
        cuts = sql.execute(
            "SELECT count(*), sum(json_extract(entry, '$.data.cut.gpus')) FROM audit"
            f" WHERE json_extract(entry, '$.kind') = 'effect' AND {week}"
        ).fetchone()
    assert f"{cuts[1]:,} GPUs were cut from quotas in {cuts[0]} clusters this week" in leader

    launch = await pages.words("/launch")
    with pages.sql() as sql:
        free = [row[0] for row in sql.execute("SELECT name FROM clusters WHERE open_rollout IS NULL ORDER BY name")]
    assert (
        f"These {min(50, len(free))} clusters have no open rollout{', and there are more' * (len(free) > 50)}."
        in launch
    )
    assert all(name in launch for name in free[:50])
    assert not any(name in launch for name in free[50:])


async def test_promises_of_the_made_up_fleet_came_down_as_its_rollouts_cut(pages: Pages) -> None:
    """The first and the last of 28 days of tallies are compared, by cluster."""
    with pages.sql() as sql:
        newest = dict(sql.execute("SELECT cluster, assigned_gpus FROM tallies GROUP BY cluster HAVING at = max(at)"))
        oldest = dict(sql.execute("SELECT cluster, assigned_gpus FROM tallies GROUP BY cluster HAVING at = min(at)"))
    came_down = {int(name[-4:]): oldest[name] - newest[name] for name in newest}
    assert came_down == {n: 0 if n in WAITING | NONE else CUT for n in range(CLUSTERS)}


async def test_an_abort_says_what_undo_adds_and_of_how_many_rollouts(pages: Pages) -> None:
    abort = await pages.words("/rollout/abort")
    monitored = CLUSTERS - len(WAITING | NONE)
    assert "An abort would also end 6 rollouts without changes so far." in abort
    assert "2 waiting clusters will not be started." in abort
    assert f"{monitored} rollouts go on by themselves, and keep their quotas: " in abort
    assert f"With undo, Backstop would also undo {monitored} rollouts, the newest first." in abort
    assert (
        f"What teams would get back in 12 of these {monitored} rollouts (the others were not asked, or did not answer):"
        in abort
    )
    newest = sorted(set(range(1, CLUSTERS, 2)) - NONE)[-12:]
    teams = {(n * 5 + quota) % 60 for n in newest for quota in range(5)}
    assert f"12 rollouts end; {12 * CUT:,} GPUs come back to {len(teams)} teams" in abort


async def test_one_cluster_is_spoken_of_as_one(tmp_path: Path) -> None:
    async with pages_of(tmp_path, 1) as pages:
        rollout = await pages.words("/rollout")
        assert "1 under way" in rollout
        assert "or the 1 cluster ." in rollout
        assert (
            "0 of 1 rolled back (the share is computed from at least 10 clusters); the fleet rollout stops above 10%"
            in rollout
        )
        abort = await pages.words("/rollout/abort")
        assert "With undo, nothing more would happen: the fleet rollout has changed no quota." in abort
        assert "1 cluster and the fleet rollout are blocked." in await pages.words("/leader")


async def test_its_archive_is_sealed_and_what_came_since_is_not(pages: Pages) -> None:
    """Each chain is sealed up to its row of an hour ago: the rows have the hashes that the seals name."""
    with pages.sql() as sql:
        seals = [json.loads(leaf) for (leaf,) in sql.execute("SELECT leaf FROM seals ORDER BY number")]
        rows = {(cluster, seq): digest for cluster, seq, digest in sql.execute("SELECT cluster, seq, hash FROM audit")}
    sealed = {head["cluster"]: head for seal in seals for head in seal["heads"]}
    assert len(seals) == 2
    assert len(sealed) == CLUSTERS + 1, "each cluster, and the fleet rollouts"
    assert all(rows[name, head["length"]] == head["hash"] for name, head in sealed.items())
    since = {name for name, seq in rows if seq > sealed.get(name, {"length": 0})["length"]}
    assert since == {"(access)", "h100-us-east-0000"}
    audit = await pages.words("/audit?cluster=h100-us-east-0000")
    assert re.search(r"4 2\S+ \S+Z command user:capacity.* [0-9a-f]{12} - 3 2", audit)
    assert re.search(r"1 2\S+ \S+Z command user:tpm.* [0-9a-f]{12} 1 The chain ends at row 4", audit)


async def test_something_waits_for_a_second_person_and_somebody_acted_alone(pages: Pages) -> None:
    with pages.sql() as sql:
        ((digest, by),) = sql.execute("SELECT hash, given_by FROM waiting_commands").fetchall()
    waiting = await pages.words(f"/access/waiting/{digest}")
    assert by == "user:tpm"
    assert "added h100-us-east-0000 policy buffer: 0.1" in waiting
    assert "differently from when the command was given" not in waiting
    access = await pages.words("/access")
    assert "change the policy user:tpm" in access
    assert "user:capacity acted alone in an emergency" in access
    assert "user:capacity acted alone in an emergency" in await pages.words("/leader")


def test_what_waits_for_a_person_in_the_made_up_fleet_is_of_many_kinds() -> None:
    """The one that cannot wait comes first: nothing goes on, then values that stand, then plans that lack hardware."""
    scene = scene_of(datetime(2026, 11, 24, 12, tzinfo=UTC))
    waiting = sorted((summary(number, scene) for number in range(0, 1000, 10)), key=lambda one: one.urgency)
    first = [(one.cluster[-4:], one.stage, one.needs or "") for one in waiting[:7]]
    expected = (
        ("0120", "stuck", "mend the cause, then give: backstop retry"),
        ("0230", "buffered", "held (drift: changed by others: code-data"),
        ("0640", "rolled_back", "rolled back: backstop retry"),
        ("0140", "planned", "held (objection by user:recsys-lead: a launch on Friday)"),
        ("0350", "planned", "paused by user:sre"),
        ("0560", "planned", "no believable health since 2026-11-20"),
        ("0770", "planned", "approve the plan: backstop approve a100-us-east-0770"),
    )
    for (number, stage, needs), (want, at, begins) in zip(first, expected, strict=True):
        assert (number, stage) == (want, at)
        assert needs.startswith(begins)
    assert all((one.needs or "").startswith("approve the plan") for one in waiting[6:])


def test_the_made_up_fleet_rollout_keeps_its_pace() -> None:
    """Starts of each hour and day, by its archive, within the budget; of a wave none before the one before is done."""
    scene = scene_of(datetime(2026, 11, 24, 12, tzinfo=UTC))
    status = status_of(scene.fleet(CLUSTERS), scene.now)
    starts = sorted((m.started_at, m.cut_gpus) for m in status.members if m.started_at is not None)
    assert len(starts) == CLUSTERS - len(NONE)
    for seconds, most in ((3600, status.pace.budget_per_hour), (86400, status.pace.budget_per_day)):
        for at, _ in starts:
            assert sum(gpus for other, gpus in starts if 0 <= (other - at).total_seconds() < seconds) <= most
    waves = [w.wave for w in status.waves]
    began = [[m.started_at for m in status.members if m.wave is wave and m.started_at] for wave in waves]
    for earlier, later in pairwise(filter(None, began)):
        assert max(earlier) < min(later)
