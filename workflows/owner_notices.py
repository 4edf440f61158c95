"""News for a rollout's owner: current holds and breaches, and completed rollbacks, each since a patch of its own."""

from __future__ import annotations

from datetime import datetime

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from models.rollout.owner_news import news_for_owner, rollback_for_owner, tell_owner
    from models.rollout.state import Rollout
    from workflows import patches


def call_owner(rollout: Rollout, now: datetime) -> Rollout:
    """Queue a notice for each piece of news."""
    if (news := news_for_owner(rollout, now)) and patches.since(patches.CALLS_OWNER):
        rollout = tell_owner(rollout, news)
    if (news := rollback_for_owner(rollout)) and patches.since(patches.OWNER_HEARS_OF_UNDO):
        rollout = tell_owner(rollout, news)
    return rollout
