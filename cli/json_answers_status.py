"""The JSON answer of `status`, in a file of its own as for `plan`: scripts ask every few seconds."""

from __future__ import annotations

from pydantic import Field

from cli.json_answer_base import JsonAnswer
from models.base import Time
from models.reports.rollout_summary import RolloutSummary


class RolloutsAnswer(JsonAnswer, schema="rollouts"):
    rollouts: tuple[RolloutSummary, ...]
    ledger_word_at: Time | None = Field(default=None, exclude_if=lambda at: at is None)
    """When the ledger had these open rollouts, if no worker answered. Left out otherwise."""
