"""Pushes of health: they make the watch look at these clusters now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from client.questions import Questions

if TYPE_CHECKING:
    from models.health_pushes import AlertmanagerPush, HealthPush, HealthPushed


class HealthPushes(Questions):
    async def push_health(self, request: HealthPush) -> HealthPushed:
        """Make the watch read these clusters' health now; health in the request is ignored. Errors: Unavailable."""
        from models.health_pushes import PushHealth

        return await self.ask(PushHealth(clusters=request.clusters, word=request.word))

    async def push_alerts(self, request: AlertmanagerPush) -> HealthPushed:
        """Make the watch look at the clusters that the alerts name by `label`. Errors: BadInput for none."""
        return await self.ask(request.to_question())
