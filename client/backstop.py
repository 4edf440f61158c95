"""The one typed door to Temporal. Everything people do goes through here; nothing here decides.

Rollouts, fleet rollouts, requests for quota and questions to the ledger's desk each have a file beside this one.
"""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio.client import Client
from temporalio.service import RPCError

from client.answer_models import Build, Check
from client.bringups import Bringups
from client.connection import connect, current_actor, find_target
from client.doctor import (
    access_checks,
    bringups_checks,
    clock_check,
    contacts_checks,
    doubt_check,
    fleet_checks,
    grants_check,
    guard_checks,
    health_check,
    health_source_checks,
    histories_check,
    keys_checks,
    no_ledger_check,
    notice_checks,
    promises_checks,
    rollouts_check,
    seals_check,
    senseless_check,
    temporal_checks,
    watch_check,
    without_answers,
)
from client.fleet_rollouts import FleetRollouts
from client.health_pushes import HealthPushes
from client.lost_rollouts import lost_of, run_nowhere
from client.requests import QuotaRequests
from client.rollouts import MOST_ASKED, OVERVIEW_SECONDS, Rollouts
from client.slack_secret import slack_checks
from client.worker_builds import builds, use
from models.access.second_persons import Countersigned
from models.access.tickets import Signer
from models.base import count_text
from models.bringup.state import bringup_workflow_id
from models.errors import BackstopError, Refusal
from models.questions import BringupsOf, CheckLedger, OpenRollouts, RequestsOf

_DOCTOR_SECONDS = 60
_LIMITS_ARE_OURS = "its limits can be read and set"
_REMEDIES = {
    "slurm": "see docs/slurm.md, and the worker's BACKSTOP_SLURM",
    "git": "see docs/git.md; the worker's user must be able to fetch and push without a prompt",
    "kueue": "see docs/kubernetes.md; deploy/kubernetes/rbac.yaml has the rights that the worker needs",
}


class Backstop(Rollouts, FleetRollouts, QuotaRequests, Bringups, HealthPushes):
    """A connection for one actor."""

    @classmethod
    async def connect(cls, actor: str, signer: Signer | None = None, **options: Any) -> Backstop:
        """Connect as this actor. `signer`: a front's, whose actor is proven. Errors: Unavailable, in one sentence."""
        current_actor.set(actor)
        target = find_target()
        client = await connect(target, identity=f"{actor} (backstop)", **options)
        return cls(client, actor, target, signer)

    @property
    def client(self) -> Client:
        return self._client

    async def close(self) -> None:
        """Do nothing: the connection ends with the process."""

    async def countersign(self, digest: str) -> Countersigned:
        """Countersign, as the second person, a command of somebody else. Errors: Refusal without a front."""
        whose = "give the command through one (BACKSTOP_URL, or `backstop up` on this machine)"
        raise Refusal(f"only a front can countersign {digest}, because it knows who you are: {whose}")

    async def doctor(self) -> list[Check]:
        """Return all checks, each with what to do when it fails."""
        checks = [*await temporal_checks(self._client, self._target), *slack_checks()]
        try:
            ledger = await asyncio.wait_for(self.ask(CheckLedger()), _DOCTOR_SECONDS)
        except (BackstopError, TimeoutError) as error:
            heard, ours = self.heard.is_set(), error if isinstance(error, BackstopError) else None
            checks = checks if heard else [without_answers(check) for check in checks]
            return [*checks, no_ledger_check(ours, heard=heard, seconds=_DOCTOR_SECONDS)]
        checks.append(Check.good("ledger", f"answers; {count_text(ledger.open_rollouts, 'rollout')} open"))
        checks.append(senseless_check(ledger.senseless, ledger.senseless_teams))
        for cluster, check in sorted(ledger.schedulers.items()):
            well = f"its limits can be read, not set: {check.barred}" if check.barred else _LIMITS_ARE_OURS
            remedy = _REMEDIES.get(check.system, "") if check.wrong else ""
            text = f"{cluster}: {check.wrong or well}"
            checks.append(Check(name=check.system, ok=not check.wrong, text=text, remedy=remedy))
            if check.note:
                checks.append(Check.good(check.system, f"{cluster}: {check.note}"))
        checks += health_source_checks(ledger)
        checks += access_checks(ledger.access, tickets=ledger.tickets, proven=ledger.proven)
        checks += keys_checks(ledger.unknown_keys)
        checks += contacts_checks(ledger.teams_in_clear)
        checks += notice_checks(ledger, self._now())
        checks += seals_check(ledger.seals, self._now())
        checks += [doubt_check(one) for one in ledger.doubts]
        checks.append(clock_check(ledger.worker_ahead_seconds))
        rollouts, now = await self.ask(OpenRollouts()), self._now()
        checks += promises_checks(rollouts)
        try:
            lost_rollouts = await lost_of(self._client, rollouts)
            checks.append(rollouts_check(rollouts, lost_rollouts))
            run = [row.cluster for row in rollouts if not row.ended and row not in lost_rollouts]
            statuses = await self.ask_rollouts(run[:MOST_ASKED], OVERVIEW_SECONDS)
            checks.append(histories_check(rollouts, statuses))
            checks += guard_checks(statuses)
            checks += fleet_checks(await self.lost_fleet())
            brought = await self.ask(BringupsOf())
            lost = await run_nowhere(self._client, brought, lambda row: bringup_workflow_id(row.cluster))
            checks += bringups_checks(brought, lost)
        except RPCError as error:
            checks.append(Check.bad("rollouts", error.message))
        checks.append(grants_check(await self.ask(RequestsOf()), now))
        return [*checks, health_check(rollouts, now)]

    async def watch(self) -> Check:
        """Check whether the shared watch is alive."""
        try:
            return await watch_check(self._client)
        except RPCError as error:
            return Check.bad("watch", error.message)

    async def builds(self) -> list[Build]:
        """Return the builds of versioned workers, the newest first."""
        try:
            return await builds(self._client)
        except RPCError as error:
            raise self._translate(error) from error

    async def use_build(self, build: str) -> str:
        """Make this build serve; return the one that served before. Errors: BadInput, Refusal, Unavailable."""
        try:
            return await use(self._client, build, self._actor)
        except RPCError as error:
            raise self._translate(error) from error
