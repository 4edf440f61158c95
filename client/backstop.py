"""The one typed door to Temporal. Everything people do goes through here; nothing here decides.

Rollouts, fleet rollouts, requests for quota and questions to the ledger's desk each have a file beside this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from temporalio.client import Client
from temporalio.service import RPCError

from client.answer_models import Build, Check
from client.bringups import Bringups
from client.connection import connect, current_actor, find_target
from client.fleet_rollouts import FleetRollouts
from client.requests import QuotaRequests
from client.rollouts import Rollouts
from client.watch_check import watch_check
from client.worker_builds import builds, use
from models.errors import Refusal

if TYPE_CHECKING:
    from models.access.second_persons import Countersigned
    from models.access.tickets import Signer
    from models.health_pushes import AlertmanagerPush, HealthPush, HealthPushed


class Backstop(Rollouts, FleetRollouts, QuotaRequests, Bringups):
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

    async def push_health(self, request: HealthPush) -> HealthPushed:
        """Make the watch read these clusters' health now; health in the request is ignored. Errors: Unavailable."""
        from models.health_pushes import PushHealth

        return await self.ask(PushHealth(clusters=request.clusters, word=request.word))

    async def push_alerts(self, request: AlertmanagerPush) -> HealthPushed:
        """Make the watch look at the clusters that the alerts name by `label`. Errors: BadInput for none."""
        return await self.ask(request.to_question())

    async def close(self) -> None:
        """Do nothing: the connection ends with the process."""

    async def countersign(self, digest: str) -> Countersigned:
        """Countersign another person's command, as the second person. Errors: Refusal without a front."""
        how = "give the command through a front (BACKSTOP_URL, or `backstop up` on this machine)"
        raise Refusal(f"only a front can countersign {digest}, because a front knows who you are: {how}")

    async def doctor(self) -> list[Check]:
        """Return all checks, each with what to do when it fails."""
        from client.doctor import all_checks

        return await all_checks(self, self._client, self._target, self._now)

    async def watch(self) -> Check:
        """Check whether the shared watch is alive."""
        try:
            return await watch_check(self._client)
        except RPCError as error:
            return Check.bad("watch", error.message)

    async def builds(self) -> list[Build]:
        """Return the builds of versioned workers, the newest first."""
        with self._translate_errors():
            return await builds(self._client)

    async def use_build(self, build: str) -> str:
        """Start new rollouts on this build; return the previous one. Errors: BadInput, Refusal, Unavailable."""
        with self._translate_errors():
            return await use(self._client, build, self._actor)
