"""Pushes of health: look at these clusters now."""

from __future__ import annotations

from client.questions import Questions
from models.health_pushes import AlertmanagerPush, HealthPush, HealthPushed, PushHealth


class HealthPushes(Questions):
    async def push_health(self, request: HealthPush) -> HealthPushed:
        """The watch looks at these clusters at once, and at what they say then. Errors: Unavailable."""
        return await self.ask(PushHealth(clusters=request.clusters, word=request.word))

    async def push_alerts(self, request: AlertmanagerPush) -> HealthPushed:
        """The same for the clusters that Alertmanager's alerts name. Errors: BadInput where they name none."""
        return await self.ask(request.to_question())
