"""Attackers, and tools that behave like them: a lying exporter, invalid rows, a webhook that drips, a team that shouts.

Each has clusters of its own, that are monitored before it begins; nobody else's may be answered later for it. A lie
may move nothing of theirs either. What they throw is counted by kind.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from models.errors import BackstopError
from models.rollout.commands import CommandRequest
from models.rollout.stages import Command
from tests.chaos.outcome import Row
from tests.chaos.people import BREACH_AFTER, Cluster
from tests.chaos.site import Site
from tests.e2e.world import cluster, team

LIARS = tuple(f"x-liar{n}" for n in range(6))
SOURCE = "liar"
_ROWS, _DRIP, _MOB = "x-rows", "x-drip", "x-mob"
NAMES = (*LIARS, _ROWS, _DRIP, _MOB)
_GPUS = 400
_CROWD = 8
"""Who shouts at the same time."""

_FAST = {"notice": "0s", "soak_buffered": "0.3s", "soak_enforced": "0.3s", "safety_poll": "60s"}


@dataclass(frozen=True)
class Poison:
    """A row that makes no sense, and how it is taken away. Parameters are the cluster's name, as often as asked."""

    what: str
    put: str
    gone: str


POISON = (
    Poison(
        "a cycle",
        "UPDATE quotas SET parent = 'a' WHERE cluster = %s AND team = 'a'",
        "UPDATE quotas SET parent = NULL WHERE cluster = %s AND team = 'a'",
    ),
    Poison(
        "a child under a leaf that has a minimum",
        "UPDATE quotas SET parent = 'b' WHERE cluster = %s AND team = 'a'",
        "UPDATE quotas SET parent = NULL WHERE cluster = %s AND team = 'a'",
    ),
    Poison(
        "a sample of infinity",
        "INSERT INTO health_samples (cluster, island, at, total_gpus, healthy_gpus, source)"
        " VALUES (%s, 'main', 'infinity', 400, 400, 'poison')",
        "DELETE FROM health_samples WHERE cluster = %s AND source = 'poison'",
    ),
    Poison(
        "a sample of twenty million GPUs",
        "INSERT INTO health_samples (cluster, island, at, total_gpus, healthy_gpus, source)"
        " VALUES (%s, 'main', clock_timestamp(), 20000000, 20000000, 'poison')",
        "DELETE FROM health_samples WHERE cluster = %s AND source = 'poison'",
    ),
    Poison(
        "a sample of an island that is none",
        "INSERT INTO health_samples (cluster, island, at, total_gpus, healthy_gpus, source)"
        " VALUES (%s, 'nowhere', clock_timestamp(), 8, 8, 'poison')",
        "DELETE FROM health_samples WHERE cluster = %s AND source = 'poison'",
    ),
    Poison(
        "islands that are none",
        "UPDATE islands SET total_gpus = -1 WHERE cluster = %s",
        "UPDATE islands SET total_gpus = 400 WHERE cluster = %s",
    ),
    Poison(
        "a policy that is none",
        """UPDATE clusters SET policy = '{"breach_after": "soon", "was": ' || policy || '}' WHERE name = %s""",
        "UPDATE clusters SET policy = policy::jsonb ->> 'was' WHERE name = %s AND policy LIKE '%%\"soon\"%%'",
    ),
)


class Attackers:
    """`thrown`: what they did, by kind; `clusters`: theirs."""

    def __init__(self, site: Site, rng: random.Random) -> None:
        self._site, self._rng = site, rng
        self.thrown: Counter[str] = Counter()
        self.specs = [self._spec(name) for name in NAMES]
        self.clusters = {
            spec["name"]: Cluster(site, spec, random.Random(rng.random()), calm=True, shadow=False)
            for spec in self.specs
        }
        for name in LIARS:
            self.clusters[name].source = SOURCE
        self._server: asyncio.Server | None = None
        self._mended = False
        self.teams: list[Row] = []

    def _spec(self, name: str) -> dict[str, Any]:
        quotas = [team("a", 200), team("b", 100, busy=60, minimum_gpus=20)]
        if name == _DRIP:
            quotas = [team(f"drip-{n:02d}", 20) for n in range(16)]
        return cluster(name, {"main": (_GPUS, _GPUS)}, quotas, **_FAST, breach_after=f"{BREACH_AFTER}s")

    async def prepare(self) -> None:
        """The webhook listens: known to the fleet file by `teams`."""
        self._server = await asyncio.start_server(self._drips, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.teams = [{"name": f"drip-{n:02d}", "contacts": [f"json://127.0.0.1:{port}/"]} for n in range(16)]

    async def _drips(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One byte every two seconds, as long as somebody listens; once it is mended, what it should say."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            if self._mended:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            else:
                self.thrown["webhook drips"] += 1
                await self._drip(writer)
            await writer.drain()
        writer.close()

    async def _drip(self, writer: asyncio.StreamWriter) -> None:
        for byte in b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000:
            if self._mended:
                return
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(2)

    def mend(self) -> None:
        """The webhook is well: an ended rollout goes on for five minutes trying to tell its teams."""
        self._mended = True

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def begin(self) -> None:
        """Their clusters are monitored."""
        await asyncio.gather(*(c.hardware(0) for c in self.clusters.values()))
        for c in self.clusters.values():
            await c.launch()
        until = asyncio.get_running_loop().time() + 120
        await asyncio.gather(*(c.come_to_rest(until) for c in self.clusters.values()))

    async def rage(self, ends: float) -> None:
        """Attack until the loop's clock says so; then the lies end, and a person confirms what needs confirming."""
        attacks: tuple[Callable[[], Awaitable[None]], ...] = (
            self._lie,
            self._poison,
            self._bother,
            *(self._shout for _ in range(_CROWD)),
        )
        await asyncio.gather(*(self._again(attack, ends) for attack in attacks))
        await self._site.asked("DELETE FROM health_samples WHERE source LIKE 'liar%%' AND at > now() RETURNING 1")
        for _ in range(5):  # an exporter goes on: a rise is believed after some samples
            await asyncio.gather(*(c.hardware(0) for c in self.clusters.values()))
            await asyncio.sleep(1)

    async def _again(self, attack: Callable[[], Awaitable[None]], ends: float) -> None:
        while asyncio.get_running_loop().time() < ends:
            with contextlib.suppress(BackstopError, TimeoutError, psycopg.Error):
                await attack()
            await asyncio.sleep(0.05)

    # --- what each does -------------------------------------------------------------------------

    async def _lie(self) -> None:
        """The exporter of six clusters says the same wrong thing of all, a few times in a row."""
        lies = {
            "zeros": 0.0,
            "halves": 0.5,
            "a fifth less": 0.81,
            "a tenth less": 0.9,
            "doubles": 2.0,
            "tiny": 0.02,
        }
        what = self._rng.choice([*lies, "relabelled", "dated ahead", "dated back"])
        for _ in range(self._rng.randint(1, 4)):
            now = datetime.now(UTC)
            at = now + timedelta(hours={"dated ahead": 30, "dated back": -30}.get(what, 0))
            healthy = round(_GPUS * lies.get(what, 0.5))
            source = f"{SOURCE}-2" if what == "relabelled" else SOURCE

            def report(
                connection: psycopg.Connection[Row],
                at: datetime = at,
                healthy: int = healthy,
                source: str = source,
            ) -> None:
                for name in LIARS:
                    connection.execute(
                        "INSERT INTO health_samples (cluster, island, at, total_gpus, healthy_gpus, source)"
                        " VALUES (%s, 'main', %s, %s, %s, %s)",
                        (name, at, max(_GPUS, healthy), healthy, source),
                    )

            self.thrown[f"lies: {what}"] += len(LIARS)
            with contextlib.suppress(psycopg.Error):  # refused by the table itself: as good
                await self._site.inside(report)
            await asyncio.sleep(0.5)

    async def _poison(self) -> None:
        poison = self._rng.choice(POISON)
        self.thrown[f"poison: {poison.what}"] += 1
        with contextlib.suppress(psycopg.Error):
            await self._site.asked(f"{poison.put} RETURNING 1", _ROWS)
            await asyncio.sleep(2)
        with contextlib.suppress(psycopg.Error):
            await self._site.asked(f"{poison.gone} RETURNING 1", _ROWS)
        await asyncio.sleep(1)

    async def _bother(self) -> None:
        """Cause notices to all sixteen teams behind the webhook."""
        self.thrown["notices to who drips"] += 16
        for command in (Command.PAUSE, Command.RESUME):
            await self._say(_DRIP, command, "tpm")
        await asyncio.sleep(3)

    async def _shout(self) -> None:
        """One of a crowd: objects and acknowledges, at full speed, in many names and at length."""
        actor = f"crowd-{self._rng.randrange(2000)}"
        command = self._rng.choice((Command.OBJECT, Command.OBJECT, Command.ACK))
        words = self._rng.choice(("no", "\N{FIRE}" * 450, "x" * 1900, "o'neil; --"))
        self.thrown[f"shouts: {command.value}"] += 1
        await self._say(_MOB, command, actor, team=self._rng.choice("ab"), words=words)

    async def _say(self, name: str, command: Command, actor: str, words: str = "", **fields: str) -> None:
        c = self.clusters[name]
        token = c.token(command.value)
        request = CommandRequest(actor=actor, reason=f"{token} {words}".strip(), **fields)
        await c.asking(command.value, request.reason, self._site.person(actor).command(name, command, request))
