"""Everybody who deals with a rollout: who launches and commands it, who writes past it, and the hardware.

Each command carries a token of its own as its reason, by which histories and archive are searched for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import psycopg

from models.errors import BackstopError, Refusal
from models.rollout.commands import CommandRequest
from models.rollout.messages import LaunchRequest
from models.rollout.stages import Command
from models.rollout.status_models import RolloutStatus
from models.status_questions import Overview
from tests.chaos.outcome import Row
from tests.chaos.site import Site
from tests.e2e.world import cluster, team

ANSWER_SECONDS = 45
BREACH_AFTER = 1.0


def shape(name: str, rng: random.Random) -> dict[str, Any]:
    """A cluster of a fleet file: one of a few shapes, on clocks and policies drawn by lot."""
    policy: dict[str, Any] = {
        "notice": f"{rng.choice((0, 0.5, 2))}s",
        "soak_buffered": f"{rng.choice((0.3, 1, 4))}s",
        "soak_enforced": f"{rng.choice((0.3, 1, 4))}s",
        "breach_after": f"{BREACH_AFTER}s",
        "on_breach": rng.choices(("rollback", "realign", "hold"), (4, 1, 1))[0],
        "on_drift": rng.choices(("hold", "restore", "accept"), (2, 1, 1))[0],
        "max_breaching_clusters": rng.choice((3, 50)),
        "scope": rng.choices(("cluster", "quota"), (2, 1))[0],
        "safety_poll": "60s",
    }
    match rng.randrange(4):
        case 0:
            return cluster(name, {"main": (361, 361)}, [team("a", 200), team("b", 161, busy=100)], **policy)
        case 1:
            return cluster(name, {"main": (361, 330)}, [team("research", 345, busy=310)], **policy)
        case 2:
            quotas = [
                team("train", 180, islands=["x"], protected_blocks=[128]),
                team("evals", 100, busy=60, islands=["y"]),
                team("grade", 60, busy=20),
            ]
            return cluster(name, {"x": (200, 200), "y": (160, 160)}, quotas, **policy)
        case _:
            org = {"team": "org", "gpus": 160}
            quotas = [org, team("org-1", 80, busy=40, parent="org"), team("org-2", 80, parent="org"), team("c", 90)]
            return cluster(name, {"main": (264, 264)}, quotas, **policy)


class Cluster:
    """One cluster and the people around it. `said`, `foreign`, `health`: what they did, for the judge."""

    def __init__(self, site: Site, spec: dict[str, Any], rng: random.Random, calm: bool, shadow: bool) -> None:
        self.name: str = spec["name"]
        self.source = f"of {self.name}"
        """Each cluster's exporter is its own: falls of several clusters of one would be taken for its fault."""
        self.said: list[Row] = []
        self.foreign: list[Row] = []
        self.health: list[Row] = []
        self.launches = 0
        self._site = site
        self._rng = rng
        self._calm = calm
        self._shadow = shadow
        self._tokens = itertools.count(1)
        self._islands = {i["name"]: (i["total_gpus"], i["healthy_gpus"]) for i in spec["islands"]}
        self._quotas = {q["team"]: q for q in spec["quotas"]}
        self._in_git = "git" in spec

    # --- what they do ---------------------------------------------------------------------------

    async def launch(self) -> bool:
        """Open a rollout; return False if it was refused or nobody answered."""
        if await self._launched("tpm", owner="tpm", shadow=self._shadow) or await self.is_open():
            self.launches += 1
            return True
        return False

    async def adopt(self, lost: Overview) -> bool:
        """Take over the rollout's effects by another one, as `backstop launch --adopt --all` does."""
        return await self._launched("on-call", owner=lost.owner, shadow=lost.shadow, adopt=True)

    async def _launched(self, actor: str, **fields: Any) -> bool:
        token = self.token("launch")
        rollout = f"{self.name}/{self.launches + 1}-{token.rpartition('-')[2]}"
        request = LaunchRequest(cluster=self.name, rollout=rollout, actor=actor, reason=token, **fields)
        return await self.asking("launch", token, self._site.person(actor).launch(request))

    async def say(self, command: Command, actor: str = "tpm", **fields: str) -> bool:
        """Give the command; return whether it was accepted."""
        token = self.token(command.value)
        request = CommandRequest(actor=actor, reason=token, **fields)
        return await self.asking(command.value, token, self._site.person(actor).command(self.name, command, request))

    async def approve(self) -> bool:
        status = await self.status()
        if status is None or status.plan_hash is None:
            return False
        return await self.say(Command.APPROVE, plan_hash=status.plan_hash)

    async def status(self) -> RolloutStatus | None:
        """Return the status; None if nobody answers."""
        with contextlib.suppress(BackstopError, TimeoutError):
            return await asyncio.wait_for(self._site.person("tpm").status(self.name), ANSWER_SECONDS)
        return None

    async def is_open(self) -> bool:
        (row,) = await self._site.asked("SELECT open_rollout FROM clusters WHERE name = %s", self.name)
        return row["open_rollout"] is not None

    async def stage(self) -> str:
        """Return the stage in the registry."""
        rows = await self._site.asked(
            "SELECT r.stage FROM rollouts r JOIN clusters c ON c.open_rollout = r.id WHERE c.name = %s", self.name
        )
        return str(rows[0]["stage"]) if rows else ""

    async def write_past_backstop(self) -> None:
        """Somebody changes a quota by plain SQL; the ledger may refuse it. Where Git has the quotas nobody does."""
        if self._in_git:
            return
        name = self._rng.choice([t for t, q in self._quotas.items() if not q.get("parent") and t != "org"])
        delta = self._rng.choice((-4, -3, -2, -1, 1, 2, 3))

        def write(connection: psycopg.Connection[Row]) -> Row:
            key = (self.name, name)
            rows = connection.execute(
                "SELECT gpus FROM quotas WHERE cluster = %s AND team = %s FOR NO KEY UPDATE", key
            ).fetchall()
            before = int(rows[0]["gpus"])
            (now,) = connection.execute("SELECT clock_timestamp() AS at, txid_current() AS tx").fetchall()
            after = max(0, before + delta)
            connection.execute("UPDATE quotas SET gpus = %s WHERE cluster = %s AND team = %s", (after, *key))
            at = now["at"].astimezone(UTC).isoformat()
            return {"cluster": self.name, "team": name, "before": before, "after": after, "tx": now["tx"], "at": at}

        with contextlib.suppress(psycopg.errors.RaiseException, psycopg.errors.CheckViolation):
            self.foreign.append(await self._site.inside(write))

    async def hardware(self, share_lost: float) -> None:
        """The exporter reports: this share of the healthy GPUs is lost."""
        at = datetime.now(UTC)
        healthy = {n: h - round(h * share_lost) for n, (_, h) in self._islands.items()}

        def report(connection: psycopg.Connection[Row]) -> None:
            for island, gpus in healthy.items():
                connection.execute(
                    "INSERT INTO health_samples (cluster, island, at, total_gpus, healthy_gpus, source)"
                    " VALUES (%s, %s, %s, %s, %s, %s)",
                    (self.name, island, at, self._islands[island][0], gpus, self.source),
                )

        await self._site.inside(report)
        self.health.append({"cluster": self.name, "at": at.isoformat(), "healthy_gpus": sum(healthy.values())})

    # --- how they live --------------------------------------------------------------------------

    async def live(self, begins: float, ends: float) -> None:
        """Launch, approve, and whatever comes to mind, until the loop's clock says `ends`."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0, begins - loop.time()))
        while loop.time() < ends:
            if not await self.is_open():
                if self.launches >= 2 or (self.launches and self._rng.random() < 0.5) or not await self.launch():
                    await asyncio.sleep(2)
                    if self.launches >= 2:
                        return
                    continue
                await self.approve()
            await asyncio.sleep(min(self._rng.expovariate(1 / 4), max(0, ends - loop.time())))
            if loop.time() >= ends:
                return
            await (self._calm_deed() if self._calm else self._deed())

    async def _calm_deed(self) -> None:
        if (await self.stage()) == "planned":
            await self.approve()

    async def _deed(self) -> None:
        """One thing that somebody does; many are refused, as in life."""
        deeds = {
            "approve": 6,
            "pause": 2,
            "object": 1,
            "promote": 4,
            "lift": 5,
            "rollback": 1,
            "retry": 2,
            "abort": 0.5,
            "close": 0.7,
            "foreign": 4,
            "drop": 3,
            "recover": 3,
        }
        match self._rng.choices(list(deeds), list(deeds.values()))[0]:
            case "approve":
                await self.approve()
            case "pause":
                await self.say(Command.PAUSE)
            case "object":
                name = self._rng.choice(sorted(self._quotas))
                await self.say(Command.OBJECT, actor=name, team=name)
            case "promote":
                await self.say(Command.PROMOTE)
            case "lift":
                await self.lift_holds()
            case "rollback":
                await self.say(Command.ROLLBACK)
            case "retry":
                await self.say(Command.RETRY)
            case "abort":
                await self.say(Command.ABORT)
            case "close":
                await self.say(Command.CLOSE)
            case "foreign":
                await self.write_past_backstop()
            case "drop":
                await self.hardware(self._rng.choice((0.05, 0.17, 0.19)))
            case "recover":
                await self.hardware(0)

    async def lift_holds(self) -> None:
        """The owner answers every hold that a person can lift."""
        status = await self.status()
        for hold in status.holds if status is not None else ():
            if hold.kind == "paused":
                await self.say(Command.RESUME)
            elif hold.kind != "unknown_health":
                how = {"how": self._rng.choice(("accept", "restore"))} if hold.kind == "drift" else {}
                await self.say(Command.RESOLVE, hold=hold.id, **how)

    # --- the end --------------------------------------------------------------------------------

    async def come_to_rest(self, until: float) -> str:
        """Monitored without a hold, or ended; else where it is instead. What it needs, it gets."""
        loop = asyncio.get_running_loop()
        where = ""
        while loop.time() < until:
            if not await self.is_open():
                return ""
            status = await self.status()
            if status is None:  # nobody answers, or it is lost
                await asyncio.sleep(0.5)
                continue
            if status.stage == "monitored" and not status.holds and not status.breach_of and not status.at_risk:
                if await self.stage() == "monitored":
                    return ""
            elif status.holds:
                await self.lift_holds()
            elif status.stage == "planned" and not status.envelope_holds:
                await self.approve()
            elif status.stage in ("rolled_back", "stuck"):
                taken = await self.say(Command.RETRY)
                if not taken and status.stage == "stuck":
                    await self.say(Command.CLOSE)
            where = status.model_dump_json(exclude={"teams"})
            await asyncio.sleep(1)
        return where

    async def end(self, until: float) -> str:
        """The rollout is closed, or undone and aborted; else where it is."""
        loop = asyncio.get_running_loop()
        wish = self._rng.choice((Command.CLOSE, Command.ABORT))
        where = ""
        while loop.time() < until:
            if not await self.is_open():
                return ""
            status = await self.status()
            if status is None:
                continue
            if not status.stage.has_ended and status.stage != "rolling_back":
                closes = status.stage in ("monitored", "rolled_back", "stuck")
                command = wish if closes else Command.ABORT
                await self.say(Command.CLOSE if status.stage == "stuck" else command)
            where = status.model_dump_json(exclude={"teams"})
            await asyncio.sleep(0.5)
        return where

    async def at_rest(self) -> Row | None:
        """Return the ledger's row of an open rollout, for the judge."""
        stage = await self.stage()
        if not stage or self._shadow:
            return None
        at = datetime.now(UTC).isoformat()
        rows = await self._site.asked("SELECT team, gpus, parent FROM quotas WHERE cluster = %s", self.name)
        parents = {r["parent"] for r in rows}
        values = {r["team"]: r["gpus"] for r in rows if r["team"] not in parents}
        (head,) = await self._site.asked("SELECT length FROM audit_heads WHERE cluster = %s", self.name)
        return {"cluster": self.name, "at": at, "stage": stage, "values": values, "archived": head["length"]}

    async def answered(self) -> bool:
        """No promise is above the hardware, or the guard has withdrawn it."""
        rest = await self.at_rest()
        if rest is None or rest["stage"] not in ("enforced", "monitored"):
            return True
        if sum(rest["values"].values()) <= self.health[-1]["healthy_gpus"]:
            return True
        rows = await self._site.asked(
            "SELECT entry FROM audit WHERE cluster = %s AND entry LIKE %s ORDER BY seq DESC LIMIT 1",
            *(self.name, '%"kind":"guard"%'),
        )
        return bool(rows) and '"breach":' in rows[0]["entry"]

    def token(self, what: str) -> str:
        return f"{self.name}-{what}-{next(self._tokens)}"

    async def asking(self, what: str, token: str, call: Any) -> bool:
        noted: Row = {"token": token, "cluster": self.name, "command": what, "answer": "unknown"}
        noted["at"] = datetime.now(UTC).isoformat()
        self.said.append(noted)
        try:
            # A launch has a patience of its own, and is not to be cut off before that.
            await asyncio.wait_for(call, 3 * ANSWER_SECONDS if what == "launch" else ANSWER_SECONDS)
        except Refusal:
            noted["answer"] = "refused"
        except (BackstopError, TimeoutError) as error:
            noted["error"] = repr(error)[:200]
        else:
            noted["answer"] = "taken"
        finally:
            noted["until"] = datetime.now(UTC).isoformat()
        return bool(noted["answer"] == "taken")


class OnCall:
    """The person on call when Temporal has lost its database, who takes over lost rollouts."""

    def __init__(self, site: Site, clusters: Mapping[str, Cluster], rng: random.Random) -> None:
        self._site, self._clusters, self._rng = site, clusters, rng

    async def work(self) -> None:
        """Work until cancelled. Once is not enough: a call under way may open a rollout that nobody runs."""
        while not self._site.deleted:
            await asyncio.sleep(0.5)
        await asyncio.sleep(self._rng.uniform(1, 8))
        turn = asyncio.Semaphore(8)
        seen: set[str] = set()
        while True:
            lost = await self._lost()
            await asyncio.gather(*(self._takes_over(one, turn) for one in lost if one.rollout in seen))
            seen = {one.rollout for one in lost}
            await asyncio.sleep(1)

    async def _lost(self) -> list[Overview]:
        with contextlib.suppress(BackstopError, TimeoutError):
            return await asyncio.wait_for(self._site.person("on-call").lost(), ANSWER_SECONDS)
        return []

    async def _takes_over(self, lost: Overview, turn: asyncio.Semaphore) -> None:
        """Its owner looks at the plan and approves it, or forgets to."""
        async with turn:
            c = self._clusters[lost.cluster]
            if await c.adopt(lost) and self._rng.random() < 0.8:
                await c.approve()
